//! The reader of kube-proxy's answers on loopback. A stand-in gives these answers, and can behave like any program on
//! kube-proxy's port.

use std::{
    io::{BufRead, BufReader, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use portreeve_facts::{Mode, NodeQuery, Owner, ProxyFacts, Reading, Why};
use portreeve_kernel::Host;

use crate::namespace::Namespace;

/// Sends the bytes that `answer` makes from the path of the request. If `answer` returns `None`, the connection stays
/// open without a response. The threads end when the test process ends.
pub fn serve(place: &str, answer: impl Fn(&str) -> Option<String> + Send + Clone + 'static) {
    let place: SocketAddr = place.parse().expect("an address");
    let listener = TcpListener::bind(place).unwrap_or_else(|error| panic!("listen on {place}: {error}"));
    thread::spawn(move || {
        for stream in listener.incoming() {
            let stream = stream.expect("a connection");
            let answer = answer.clone();
            thread::spawn(move || respond(stream, answer));
        }
    });
}

fn respond(mut stream: TcpStream, answer: impl Fn(&str) -> Option<String>) {
    let mut lines = BufReader::new(stream.try_clone().expect("a second handle")).lines().map_while(Result::ok);
    let request = lines.next().unwrap_or_default();
    // Reads the whole request, because a close with unread bytes resets the connection. Then the client would lose the
    // answer.
    lines.by_ref().find(String::is_empty);
    match answer(request.split(' ').nth(1).unwrap_or_default()) {
        // Ignores errors: in some tests, the client closes the connection before the end of a long answer.
        Some(response) => drop(stream.write_all(response.as_bytes())),
        None => drop(lines.next()),
    }
}

pub fn response(status: &str, body: &str) -> String {
    format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}", body.len())
}

pub fn kube_proxy(mode: &'static str) -> impl Fn(&str) -> Option<String> + Send + Clone {
    let configz = format!(
        r#"{{"kubeproxy.config.k8s.io":{{"Mode":"{mode}","NodePortAddresses":["primary"],"BindAddress":"0.0.0.0"}}}}"#
    );
    let metrics = "process_max_fds 1024\nprocess_open_fds 900\nkubernetes_build_info{git_version=\"v1.23.6\"} 1\n";
    move |path| {
        Some(match path {
            "/proxyMode" => response("200 OK", mode),
            "/configz" => response("200 OK", &configz),
            "/metrics" => response("200 OK", metrics),
            _ => response("404 Not Found", "404 page not found"),
        })
    }
}

fn proxy() -> ProxyFacts {
    Host::at("/").read(&NodeQuery::default()).proxy
}

/// Returns the facts of a scan while `rude` answers on the proxy's port. Then the simulated kube-proxy answers, and the
/// next scan must have kube-proxy's facts.
#[track_caller]
fn seen_until_it_is_back(rude: impl Fn(&str) -> Option<String> + Send + Clone + 'static) -> ProxyFacts {
    let is_back = Arc::new(AtomicBool::new(false));
    let (shared, polite) = (Arc::clone(&is_back), kube_proxy("nftables"));
    serve("127.0.0.1:10249", move |path| if shared.load(Ordering::Relaxed) { polite(path) } else { rude(path) });
    let seen = proxy();
    is_back.store(true, Ordering::Relaxed);
    let after = proxy();
    assert_eq!(after.mode.get().expect("a mode").value, Mode::Nftables);
    assert!(after.config.seen().is_some() && after.metrics.seen().is_some());
    seen
}

fn whys(proxy: &ProxyFacts) -> [Why; 3] {
    let why = |gap: Option<&portreeve_facts::Gap>| gap.expect("a gap").why;
    [why(proxy.mode.gap()), why(proxy.config.gap()), why(proxy.metrics.gap())]
}

#[test]
fn a_proxy_has_mode_settings_limits_and_its_process() {
    let _namespace = Namespace::enter();
    serve("127.0.0.1:10249", kube_proxy("nftables"));
    let seen = proxy();
    let mode = seen.mode.get().expect("a mode");
    assert_eq!((mode.value, mode.place.as_str()), (Mode::Nftables, "127.0.0.1:10249/proxyMode"));
    assert_eq!(seen.config.get().expect("settings").node_port_addresses, ["primary"]);
    let metrics = seen.metrics.get().expect("metrics");
    assert_eq!(
        (metrics.max_fds, metrics.open_fds, metrics.version.as_deref()),
        (Some(1024), Some(900), Some("v1.23.6"))
    );
    assert_eq!(seen.process.get().expect("root sees the process").pid, std::process::id());
    assert!(seen.fds.get().expect("root sees its files").limit > 0);
}

#[test]
fn a_proxy_on_ipv6_loopback_is_found_too() {
    let _namespace = Namespace::enter();
    serve("[::1]:10249", kube_proxy("ipvs"));
    let seen = proxy();
    assert_eq!(seen.mode.get().expect("a mode").value, Mode::Ipvs);
    assert_eq!(seen.mode.get().expect("a mode").place, "[::1]:10249/proxyMode");
    assert!(seen.process.seen().is_some());
}

#[test]
fn another_place_can_be_set() {
    let _namespace = Namespace::enter();
    serve("127.0.0.1:31234", kube_proxy("iptables"));
    let host = Host::at("/").with_proxy_places(vec!["127.0.0.1:31234".parse().unwrap()]);
    assert_eq!(host.read(&NodeQuery::default()).proxy.mode.get().expect("a mode").value, Mode::Iptables);
}

#[test]
fn every_fact_is_unreachable_without_a_listener() {
    let _namespace = Namespace::enter();
    let seen = proxy();
    assert_eq!(whys(&seen), [Why::Unreachable; 3]);
    let detail = &seen.mode.gap().expect("a gap").detail;
    assert!(detail.contains("127.0.0.1:10249") && detail.contains("[::1]:10249"), "{detail}");
    assert_eq!(seen.process.gap().expect("a gap").why, Why::Unreachable);
}

/// Fault (proxy): a web server listens on the proxy's port
/// Does: the mode is unread (`malformed`); treats no process as the proxy
/// Right again: with the next scan after the proxy answers
/// Lost: facts that depend on the mode
#[test]
fn a_web_page_on_the_proxy_s_port_is_malformed() {
    let _namespace = Namespace::enter();
    let page = "<!DOCTYPE html><title>Welcome to nginx!</title>";
    let seen = seen_until_it_is_back(|_| Some(response("200 OK", page)));
    assert_eq!(whys(&seen), [Why::Malformed; 3]);
    assert_eq!(seen.process.gap().expect("the process on the port is not the proxy").why, Why::Malformed);
}

#[test]
fn a_server_that_hangs_times_out() {
    let _namespace = Namespace::enter();
    serve("127.0.0.1:10249", |_| None);
    assert_eq!(whys(&proxy()), [Why::TimedOut; 3]);
}

/// Fault (proxy): a program that does not speak HTTP listens on the proxy's port
/// Does: the mode is unread (`malformed`)
/// Right again: with the next scan after the proxy answers
/// Lost: facts that depend on the mode
#[test]
fn bytes_that_are_not_http_are_malformed() {
    let _namespace = Namespace::enter();
    let seen = seen_until_it_is_back(|_| Some("SSH-2.0-OpenSSH_9.2\r\n".to_owned()));
    assert_eq!(whys(&seen), [Why::Malformed; 3]);
}

/// Fault (proxy): the proxy's answer never ends
/// Does: cuts the answer; the mode is unread (`too-much`)
/// Right again: with the next scan after the proxy answers
/// Lost: facts that depend on the mode
#[test]
fn an_endless_answer_is_cut_and_too_much() {
    let _namespace = Namespace::enter();
    let endless = |_: &str| Some(format!("HTTP/1.1 200 OK\r\n\r\n{}", "nftables ".repeat(400_000)));
    assert_eq!(whys(&seen_until_it_is_back(endless)), [Why::TooMuch; 3]);
}

/// Fault (proxy): the proxy refuses requests (403, 404, 500)
/// Does: each answer is unread, with its own reason
/// Right again: with the next scan after the proxy answers
/// Lost: refused facts
#[test]
fn each_status_has_its_reason() {
    let _namespace = Namespace::enter();
    let seen = seen_until_it_is_back(|path| {
        Some(match path {
            "/proxyMode" => response("404 Not Found", ""),
            "/configz" => response("403 Forbidden", ""),
            _ => response("500 Internal Server Error", ""),
        })
    });
    assert_eq!(whys(&seen), [Why::NotSupported, Why::NotPermitted, Why::Malformed]);
}

#[test]
fn our_own_requests_leave_no_client_socket_behind() {
    let _namespace = Namespace::enter();
    serve("127.0.0.1:10249", kube_proxy("ipvs"));
    let host = Host::at("/");
    let every_port = "1-65535".parse().expect("ports");
    let wanted = NodeQuery { client_ports: every_port, ..NodeQuery::default() };
    assert_eq!(host.read(&wanted).proxy.mode.get().expect("a mode").value, Mode::Ipvs);
    let left = host.read(&wanted).clients.get().expect("clients").sockets.clone();
    assert!(left.iter().all(|socket| socket.local_port == 10249), "{left:?}");
}

#[test]
fn health_checks_name_the_service_that_answers() {
    let _namespace = Namespace::enter();
    let body = r#"{"service":{"namespace":"default","name":"web"},"localEndpoints":0,"serviceProxyHealthy":true}"#;
    serve("127.0.0.1:30100", move |_| Some(response("503 Service Unavailable", body)));
    serve("127.0.0.1:30101", |_| Some(response("200 OK", "ok")));
    serve("127.0.0.1:30102", |_| None);
    let wanted = NodeQuery { health_check_ports: vec![30103, 30102, 30101, 30100], ..NodeQuery::default() };
    let answers = Host::at("/").read(&wanted).health_checks.get().expect("answers").clone();
    let ports: Vec<u16> = answers.iter().map(|answer| answer.port).collect();
    assert_eq!(ports, [30100, 30101, 30102, 30103]);
    assert_eq!(answers[0].service, Reading::Seen(Some("default/web".to_owned())));
    assert_eq!(answers[1].service, Reading::Seen(None));
    assert_eq!(answers[2].service.gap().expect("a gap").why, Why::TimedOut);
    assert_eq!(answers[3].service.gap().expect("a gap").why, Why::Unreachable);
}

#[test]
fn a_health_check_that_ends_before_its_answer_is_unread() {
    let _namespace = Namespace::enter();
    let listener = TcpListener::bind("127.0.0.1:30100").expect("the port is free");
    thread::spawn(move || {
        let accepted = listener.accept().expect("a connection");
        drop(listener);
        drop(accepted);
    });
    serve("127.0.0.1:30101", |_| Some("SSH-2.0-OpenSSH_9.2\r\n".to_owned()));
    let restarting = TcpListener::bind("127.0.0.1:30102").expect("the port is free");
    thread::spawn(move || {
        drop(restarting.accept().expect("a connection"));
        // The new process accepts, and does not answer yet.
        let _accepted = restarting.accept().expect("a connection");
        thread::park();
    });
    let wanted = NodeQuery { health_check_ports: vec![30100, 30101, 30102], ..NodeQuery::default() };
    let answers = Host::at("/").read(&wanted).health_checks.get().expect("answers").clone();
    assert_eq!(answers[0].service.gap().expect("a gap").why, Why::Torn);
    assert_eq!(answers[1].service, Reading::Seen(None), "another program");
    assert_eq!(answers[2].service.gap().expect("a gap").why, Why::TimedOut);
}

#[test]
fn a_health_check_on_the_node_s_address_alone_is_found() {
    let namespace = Namespace::enter();
    namespace.add_address("192.0.2.2/24");
    let body = r#"{"service":{"namespace":"default","name":"web"}}"#;
    serve("192.0.2.2:30100", move |_| Some(response("200 OK", body)));
    let wanted = NodeQuery { health_check_ports: vec![30100], ..NodeQuery::default() };
    let answers = Host::at("/").read(&wanted).health_checks.get().expect("answers").clone();
    assert_eq!(answers[0].service, Reading::Seen(Some("default/web".to_owned())));
}

#[test]
fn the_owner_of_the_proxy_s_port_is_always_read() {
    let _namespace = Namespace::enter();
    serve("127.0.0.1:10249", kube_proxy("ipvs"));
    let listeners = Host::at("/").read(&NodeQuery::default()).listeners.get().expect("listeners").clone();
    let proxy = listeners.iter().find(|socket| socket.local_port == 10249).expect("the stand-in");
    assert!(matches!(proxy.owner, Owner::Held(_)), "{proxy:?}");
}
