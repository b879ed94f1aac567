//! Credentials as people and programs write them: tokens that end with a newline, missing files, passwords in
//! addresses.

use std::{
    fs,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::TcpListener,
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use nix::{sys::stat::Mode, unistd::mkfifo};
use portreeve_cluster::{self as cluster, Access, ClusterSource, Credentials};
use portreeve_facts::ClusterFacts;
use tempfile::TempDir;

use crate::{api::small, fake::Fake};

const TIMEOUT: Duration = Duration::from_secs(20);

fn kubeconfig(directory: &TempDir, server: &str, user: &str) -> PathBuf {
    let path = directory.path().join("kubeconfig");
    let text = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts: [{{name: c, context: {{cluster: k, user: u}}}}]\nclusters: [{{name: k, cluster: {server}}}]\nusers: [{{name: u, user: {user}}}]\n"
    );
    fs::write(&path, text).expect("a kubeconfig");
    path
}

fn facts_of(path: &Path, request_timeout: Duration) -> ClusterFacts {
    let credentials = Credentials::Kubeconfig { paths: vec![path.to_owned()], context: None };
    let access = Access { credentials, api_server: None, request_timeout };
    cluster::read_now(&ClusterSource::Api(access), None, "n1").expect("a runtime")
}

/// The server accepts the token `t`.
fn facts(user: &str, request_timeout: Duration) -> ClusterFacts {
    let (fake, directory) = (Fake::new(|path, _| small(path)), TempDir::new().expect("a directory"));
    facts_of(&kubeconfig(&directory, &format!("{{server: \"{}\"}}", fake.address()), user), request_timeout)
}

#[track_caller]
fn is_refused(facts: &ClusterFacts, wanted: &str) {
    let detail = &facts.services.gap().expect("a gap").detail;
    assert!(detail.contains(wanted) && detail.contains("kubeconfig"), "{detail}");
}

#[test]
fn a_token_is_the_same_with_a_newline_after_it() {
    let directory = TempDir::new().expect("a directory");
    let path = directory.path().join("token");
    for text in ["t", "t\n", "t\r\n", "\nt\n\n"] {
        fs::write(&path, text).expect("a token");
        let facts = facts(&format!("{{tokenFile: {:?}}}", path), TIMEOUT);
        assert!(facts.services.seen().is_some(), "{text:?}: {:?}", facts.services);
    }
    assert!(facts(r#"{token: "t\r\n"}"#, TIMEOUT).services.seen().is_some());
}

#[test]
fn a_token_that_cannot_be_sent_is_one_message_without_the_token() {
    let directory = TempDir::new().expect("a directory");
    let path = directory.path().join("token");
    fs::write(&path, "sec\nret").expect("a token");
    let of_file = facts(&format!("{{tokenFile: {:?}}}", path), TIMEOUT);
    for facts in [of_file, facts(r#"{token: "sec\u0007ret"}"#, TIMEOUT)] {
        is_refused(&facts, "the token has forbidden characters");
        assert!(!format!("{facts:?}").contains("ret\""), "{facts:?}");
    }
}

#[test]
fn a_file_of_credentials_that_cannot_be_read_is_named() {
    let root = Path::new("/");
    is_refused(&facts_of(root, TIMEOUT), "failed to read kubeconfig from '\"/\"': Is a directory");
    is_refused(&facts("{tokenFile: /}", TIMEOUT), "/ cannot be read: Is a directory");
    let certificate = "{client-certificate: /, client-key: /}";
    is_refused(&facts(certificate, TIMEOUT), "failed to load client certificate");
    let own = TempDir::new().expect("a directory");
    let server = "{server: \"https://127.0.0.1:1\", certificate-authority: /}";
    is_refused(&facts_of(&kubeconfig(&own, server, "{token: t}"), TIMEOUT), "failed to load certificate authority");
}

/// Fault (API server): a kubeconfig file is on a hanging file server, or is a pipe without a writer
/// Does: stops reading after the request timeout, and reports the timeout
/// Right again: with the first request after the file can be read
/// Lost: requests meanwhile
#[test]
fn a_kubeconfig_that_hangs_times_out() {
    let directory = TempDir::new().expect("a directory");
    let pipe = directory.path().join("pipe");
    mkfifo(&pipe, Mode::S_IRWXU).expect("a pipe");
    is_refused(&facts_of(&pipe, Duration::from_secs(1)), "no answer within 1 s");
}

/// If a kubeconfig names an HTTP proxy, a request begins with CONNECT, before TLS.
#[test]
fn requests_go_through_the_proxy_of_the_kubeconfig() {
    let proxy = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = proxy.local_addr().expect("an address");
    let asked = thread::spawn(move || {
        let (stream, _) = proxy.accept().expect("a connection");
        let lines = BufReader::new(&stream).lines().map_while(Result::ok).take_while(|line| !line.is_empty());
        let head: Vec<_> = lines.collect();
        (&stream).write_all(b"HTTP/1.1 403 Forbidden\r\n\r\n").expect("an answer");
        head
    });
    let own = TempDir::new().expect("a directory");
    let server = format!("{{server: \"https://192.0.2.10:6443\", proxy-url: \"http://me:hunter2@{address}\"}}");
    let facts = facts_of(&kubeconfig(&own, &server, "{token: t}"), TIMEOUT);
    let detail = &facts.services.gap().expect("a gap").detail;
    assert!(detail.contains("192.0.2.10") && !detail.contains("hunter2"), "{detail}");
    let head = asked.join().expect("the proxy was used");
    assert_eq!(head[0], "CONNECT 192.0.2.10:6443 HTTP/1.1");
    assert!(head.iter().any(|line| line.to_lowercase().starts_with("proxy-authorization: basic ")), "{head:?}");
}

#[test]
fn requests_go_through_the_socks5_proxy_of_the_kubeconfig() {
    let proxy = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = proxy.local_addr().expect("an address");
    let greeting = thread::spawn(move || {
        let (mut stream, _) = proxy.accept().expect("a connection");
        let mut version = [0];
        stream.read_exact(&mut version).expect("a greeting");
        version
    });
    let own = TempDir::new().expect("a directory");
    let server = format!("{{server: \"https://192.0.2.10:6443\", proxy-url: \"socks5://{address}\"}}");
    let facts = facts_of(&kubeconfig(&own, &server, "{token: t}"), TIMEOUT);
    let detail = &facts.services.gap().expect("a gap").detail;
    assert!(detail.contains("192.0.2.10"), "{detail}");
    // RFC 1928: a greeting begins with the version of the protocol. A TLS handshake begins with 22.
    assert_eq!(greeting.join().expect("the proxy was used"), [5]);
}

#[test]
fn a_password_in_the_address_of_a_server_is_shown_nowhere() {
    let (fake, directory) = (Fake::new(|path, _| small(path)), TempDir::new().expect("a directory"));
    let address = fake.address().replace("http://", "http://me:hunter2@");
    let facts = facts_of(&kubeconfig(&directory, &format!("{{server: \"{address}\"}}"), "{token: t}"), TIMEOUT);
    assert!(facts.services.seen().is_some(), "{:?}", facts.services);
    let shown = format!("{facts:?}");
    assert!(!shown.contains("hunter2"), "{shown}");
    drop(fake);
    let nowhere = "{server: \"https://me:hunter2@127.0.0.1:1\"}";
    let facts = facts_of(&kubeconfig(&directory, nowhere, "{token: t}"), TIMEOUT);
    assert!(facts.services.gap().is_some() && !format!("{facts:?}").contains("hunter2"), "{facts:?}");
}

fn plugin(words: &str, request_timeout: Duration) -> String {
    let exec = "apiVersion: client.authentication.k8s.io/v1, interactiveMode: Never, command: sh";
    let facts = facts(&format!("{{exec: {{{exec}, args: [\"-c\", {words:?}]}}}}"), request_timeout);
    facts.services.gap().expect("a gap").detail.clone()
}

#[test]
fn a_plug_in_that_hangs_is_killed() {
    let directory = TempDir::new().expect("a directory");
    let path = directory.path().join("pid");
    let said = plugin(&format!("echo $$ > {}; exec sleep 600", path.display()), Duration::from_secs(2));
    assert!(said.contains("the credential plug-in sh returned no answer within 2 s"), "{said}");
    thread::sleep(Duration::from_millis(500)); // a second plug-in would write another number
    is_ended(&path);
}

fn is_ended(path: &Path) {
    let process: i32 = fs::read_to_string(path).expect("it ran").trim().parse().expect("a number");
    // The process may be a zombie, if its parent has not waited for it yet.
    let gone = || fs::read_to_string(format!("/proc/{process}/stat")).map_or(true, |stat| stat.contains(") Z "));
    (0..2000)
        .find(|_| {
            gone() || {
                thread::sleep(Duration::from_millis(5));
                false
            }
        })
        .expect("the process has ended");
}

/// The plug-in's token has already expired, so the next request runs the plug-in again.
fn short_lived(more: &str) -> String {
    let ended = r#"{"status":{"token":"t","expirationTimestamp":"2020-01-01T00:00:00Z"}}"#;
    let exec = "apiVersion: client.authentication.k8s.io/v1, interactiveMode: Never, command: sh";
    format!("{{exec: {{{exec}, args: [\"-c\", {:?}]}}}}", format!("{more} printf '%s' '{ended}'"))
}

#[test]
fn a_plug_in_is_run_again_when_its_token_ends() {
    let directory = TempDir::new().expect("a directory");
    let runs = directory.path().join("runs");
    let facts = facts(&short_lived(&format!("echo run >> {};", runs.display())), TIMEOUT);
    assert!(facts.services.seen().is_some(), "{:?}", facts.services);
    let runs = fs::read_to_string(&runs).expect("it ran").lines().count();
    assert!(runs > 2, "{runs} runs");
}

/// Fault (API server): the credential plug-in of a kubeconfig hangs after the token expired
/// Does: kills the plug-in after the request timeout, and reports the timeout
/// Right again: with the first run that prints a token
/// Lost: requests meanwhile
#[test]
fn a_plug_in_that_hangs_when_its_token_has_ended_is_killed() {
    let directory = TempDir::new().expect("a directory");
    let [ran, pid] = ["ran", "pid"].map(|name| directory.path().join(name));
    let (ran, shown) = (ran.display(), pid.display());
    let second = format!("if test -e {ran}; then echo $$ > {shown}; exec sleep 600; fi; touch {ran};");
    let facts = facts(&short_lived(&second), Duration::from_secs(2));
    let detail = &facts.services.gap().expect("a gap").detail;
    assert!(detail.contains("no answer within 2 s"), "{detail}");
    is_ended(&pid);
}

#[test]
fn a_plug_in_that_writes_forever_when_its_token_has_ended_is_killed() {
    let directory = TempDir::new().expect("a directory");
    let ran = directory.path().join("ran");
    let ran = ran.display();
    let second = format!("if test -e {ran}; then exec cat /dev/zero; fi; touch {ran};");
    let facts = facts(&short_lived(&second), TIMEOUT);
    let detail = &facts.services.gap().expect("a gap").detail;
    assert!(detail.contains("the credential plug-in sh printed more than 1048576 bytes"), "{detail}");
}

#[test]
fn a_token_that_cannot_be_sent_is_one_message_that_names_its_plug_in() {
    for ends in ["", r#","expirationTimestamp":"2100-01-01T00:00:00Z""#] {
        let said = plugin(&format!(r#"printf '%s' '{{"status":{{"token":"sec\u0007ret"{ends}}}}}'"#), TIMEOUT);
        assert!(said.contains("the credential plug-in sh returned a token that cannot be used"), "{said}");
        assert!(!said.contains("ret\""), "{said}");
    }
    let said = plugin("echo no", TIMEOUT);
    assert!(said.contains("the credential plug-in sh printed no ExecCredential"), "{said}");
    let legacy = facts("{auth-provider: {name: gcp, config: {cmd-path: sh}}}", TIMEOUT);
    is_refused(&legacy, "the auth-provider gcp is not supported; use exec instead");
}

#[test]
fn a_plug_in_that_writes_forever_is_killed() {
    let said = plugin("cat /dev/zero", TIMEOUT);
    assert!(said.contains("the credential plug-in sh printed more than 1048576 bytes"), "{said}");
}
