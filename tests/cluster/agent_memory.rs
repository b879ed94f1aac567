//! The memory of an agent. In a large cluster, no request needs more memory than the limit of the agent's pod. An agent
//! does not read a cluster that is too large.

use std::{
    fs,
    io::{Read as _, Write as _},
    os::unix::net::UnixStream,
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use portreeve_cluster::Resource;
use portreeve_facts::Why;
use serde_json::Value;
use tempfile::TempDir;

use crate::{
    api::small,
    fake::{Fake, Reply},
    watch::{A, calm, errors, is_list, is_watch, is_watch_of_services, names, start, until},
};

const SERVICES: u32 = 50_000;
/// The limit of the agent's pod, in KiB: `resources.limits.memory` of the chart.
const LIMIT: u64 = 128 << 10;
const SOON: Duration = Duration::from_secs(120);
const BEGINNING: &str = r#""apiVersion":"v1","metadata":{"resourceVersion":"9"},"items":["#;

fn list_of(kind: &str, items: impl Iterator<Item = String>) -> String {
    format!(r#"{{"kind":"{kind}List",{BEGINNING}{}]}}"#, items.collect::<Vec<_>>().join(","))
}

fn service(n: u32) -> String {
    let address = format!("10.{}.{}.{}", 100 + n / 62_500, n / 250 % 250, n % 250 + 1);
    let node_port = if n < 2000 { format!(r#""nodePort":{},"#, 30_000 + n) } else { String::new() };
    let filler = "x".repeat(300);
    format!(
        r#"{{"metadata":{{"name":"service-{n}","namespace":"team-{}","uid":"0b1c2d3e-0000-4000-8000-{n:012}",
        "annotations":{{"filler":"{filler}"}}}},"spec":{{"type":"NodePort","clusterIP":"{address}",
        "clusterIPs":["{address}"],"ipFamilies":["IPv4"],"ports":[{{"name":"http","port":80,{node_port}"protocol":"TCP"}}]}}}}"#,
        n % 300,
    )
}

fn slice(n: u32) -> String {
    format!(
        r#"{{"metadata":{{"name":"service-{n}-x","namespace":"team-{}","labels":{{"kubernetes.io/service-name":"service-{n}"}}}},
        "addressType":"IPv4","ports":[{{"name":"http","port":8080}}],"endpoints":[{{"addresses":["10.244.0.7"],"nodeName":"n2"}}]}}"#,
        n % 300,
    )
}

/// The first pod has a NodePort as hostPort, so the agent reads endpoints.
fn pod(n: u32) -> String {
    format!(
        r#"{{"metadata":{{"name":"pod-{n}","namespace":"team-{n}","uid":"pod-{n}"}},"spec":{{"nodeName":"n1",
        "containers":[{{"ports":[{{"containerPort":80,"hostPort":{}}}]}}]}},"status":{{"phase":"Running",
        "podIPs":[{{"ip":"10.244.1.{n}"}}]}}}}"#,
        31_000 + n,
    )
}

/// If `expires` is true, the server refuses the next watch of Services, because the version of the watch is gone.
fn large(expires: Arc<AtomicBool>) -> Fake {
    let services = list_of("Service", (0..SERVICES).map(service));
    let slices = list_of("EndpointSlice", (0..SERVICES).map(slice));
    let pods = list_of("Pod", (0..100).map(pod));
    Fake::new(move |path, _| match path {
        path if is_watch_of_services(path) && expires.swap(false, Ordering::SeqCst) => Reply::Refused(410),
        // After a watch of more than ten seconds, the agent requests the next watch at once.
        path if is_watch_of_services(path) => Reply::Slow(vec![String::new()], Duration::from_secs(11)),
        path if is_watch(path) => calm(path),
        path if path.starts_with("/api/v1/services?") => Reply::Json(services.clone()),
        path if path.starts_with("/apis/discovery.k8s.io/v1/endpointslices?") => Reply::Json(slices.clone()),
        path if path.starts_with("/api/v1/pods?") => Reply::Json(pods.clone()),
        path => small(path),
    })
}

/// If this value is dropped, the agent ends.
pub(crate) struct Agent {
    child: Child,
    directory: TempDir,
}

impl Agent {
    pub(crate) fn of(fake: &Fake) -> Self {
        Self::with(fake, &[])
    }

    pub(crate) fn with(fake: &Fake, more: &[&str]) -> Self {
        let directory = TempDir::new().expect("a directory");
        let mut command = Command::new(env!("CARGO_BIN_EXE_portreeve"));
        command.env_clear().env("HOME", directory.path()).env("KUBECONFIG", fake.kubeconfig());
        command.args(["agent", "--node", "n1", "--listen", "127.0.0.1:0", "--interval", "1s", "--cpu-percent", "100"]);
        command.args(["--proxy-mode", "iptables", "--socket"]).arg(directory.path().join("socket")).args(more);
        let log = fs::File::create(directory.path().join("log")).expect("a file");
        let child = command.stdin(Stdio::null()).stderr(log).spawn().expect("portreeve runs");
        Self { child, directory }
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.directory.path().join("log")).expect("a log")
    }

    pub(crate) fn stop(&mut self) {
        let pid = Pid::from_raw(i32::try_from(self.child.id()).expect("a pid"));
        kill(pid, Signal::SIGTERM).expect("the agent is a child");
        assert!(self.child.wait().expect("the agent ended").success(), "{}", self.log());
    }

    fn ask(&self, path: &str) -> Option<String> {
        let mut stream = UnixStream::connect(self.directory.path().join("socket")).ok()?;
        write!(stream, "GET {path} HTTP/1.0\r\n\r\n").ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        let (head, body) = answer.split_once("\r\n\r\n")?;
        head.contains(" 200 ").then(|| body.to_owned())
    }

    #[track_caller]
    pub(crate) fn wait_for(&self, path: &str, fits: impl Fn(&str) -> bool) -> String {
        let begun = Instant::now();
        loop {
            match self.ask(path).filter(|body| fits(body)) {
                Some(body) => return body,
                None if begun.elapsed() < SOON => thread::sleep(Duration::from_millis(100)),
                None => panic!("{path} never matches: {:.3000}", self.ask(path).unwrap_or_default()),
            }
        }
    }

    /// The highest resident memory since the last call, in KiB.
    fn peak(&self) -> u64 {
        let place = format!("/proc/{}", self.child.id());
        let status = fs::read_to_string(format!("{place}/status")).expect("the agent runs");
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a peak");
        // Resets the highest value to the present resident memory (proc(5)).
        fs::write(format!("{place}/clear_refs"), "5").expect("the agent is a child");
        line.trim().trim_end_matches(" kB").parse().expect("a number")
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.child.kill().expect("the agent is a child");
        self.child.wait().expect("the agent ended");
    }
}

fn wait_for_requests(fake: &Fake, what: &str, fit: impl Fn(&[String]) -> bool) {
    let begun = Instant::now();
    while !fit(&fake.requests()) {
        assert!(begun.elapsed() < SOON, "{what}: {:?}", fake.requests());
        thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn fifty_thousand_services_stay_below_the_limit_of_the_pod_for_every_request() {
    let expires = Arc::new(AtomicBool::new(false));
    let fake = large(Arc::clone(&expires));
    let agent = Agent::of(&fake);
    let seen = agent.wait_for("/snapshot", |text| text.contains("\"service-49999\"") && text.contains("\"pod-99\""));
    assert!(seen.contains("\"pods_at\":"), "the scan has the time at which Pods were confirmed");
    drop(seen);
    let is_of_slices = |path: &String| path.starts_with("/apis/discovery.k8s.io/v1/endpointslices?") && is_watch(path);
    wait_for_requests(&fake, "endpoints are read", |requests| requests.iter().any(is_of_slices));
    let arriving = agent.peak();
    thread::sleep(Duration::from_secs(3));
    let resting = agent.peak();
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for path in ["/metrics", "/findings", "/snapshot"] {
                    assert!(agent.wait_for(path, |_| true).len() > 1000);
                }
            });
        }
    });
    let asked = agent.peak();

    // The agent lists Services again, in their present state, while it still has the old state.
    expires.store(true, Ordering::SeqCst);
    wait_for_requests(&fake, "Services are listed and watched again", |requests| {
        let is_list_again = |path: &&String| is_list(path) && path.contains("?limit=");
        requests.iter().skip_while(|path| !is_list_again(path)).any(|path| is_watch_of_services(path))
    });
    thread::sleep(Duration::from_secs(3));
    let again = agent.peak();
    println!("{arriving} KiB during the first list, {resting} at rest, {asked} during requests, {again} in a new list");
    assert!(arriving.max(resting).max(asked).max(again) < LIMIT, "{arriving}, {resting}, {asked}, {again} KiB");
    assert!(2 * asked <= 3 * resting, "{resting} KiB at rest, {asked} during requests");
    // The new list takes unchanged Services from the old state.
    assert!(4 * again <= 5 * resting, "{resting} KiB at rest, {again} with a new list");
}

/// Fault (API server): the cluster has more than 200,000 objects of a kind
/// Does: at the start, the kind is unread (`too-much`); lists the kind again after some minutes
/// Right again: with a list that fits
/// Lost: verdicts about objects of the kind
#[tokio::test]
async fn a_list_without_memory_for_it_is_unread_and_the_rest_is_known() {
    let beginning = r#"{"kind":"ServiceList","apiVersion":"v1","metadata":{"resourceVersion":"1"},"items":["#;
    let fake = Fake::new(move |path, _| match path {
        path if is_list(path) => Reply::Endless(beginning, format!("{A},")),
        path => calm(path),
    });
    let (_watch, views) = start(&fake);
    let view = until(&views, "the list ends", |view| errors(view, Resource::Services, "too-much") == 1).await;
    let gap = view.facts.services.gap().expect("a gap");
    assert_eq!(gap.why, Why::TooMuch);
    assert!(gap.detail.contains("it holds more than 200000 objects"), "{gap:?}");
    assert_eq!(names(&view), [""; 0]);
    until(&views, "the rest is known", |view| view.facts.nodes.seen().is_some()).await;
    let lists = fake.requests().iter().filter(|path| is_list(path)).count();
    assert_eq!(lists, 1, "the agent does not retry at once");
}

#[test]
fn a_cluster_that_is_too_large_is_never_healthy() {
    let fat = format!(r#"{{"kind":"ServiceList",{BEGINNING}"#);
    let beginning: &'static str = Box::leak(fat.into_boxed_str());
    let fake = Fake::new(move |path, _| match path {
        path if is_list(path) => Reply::Endless(beginning, format!("{},", service(1))),
        path => calm(path),
    });
    let agent = Agent::of(&fake);
    agent.wait_for("/metrics", |text| {
        text.contains("portreeve_watch_errors_total{resource=\"services\",code=\"too-much\"} 1")
    });
    let findings = agent.wait_for("/findings", |text| text.contains("more than 200000 objects"));
    let findings: Value = serde_json::from_str(&findings).expect("JSON");
    assert!(findings["unknown"].as_array().is_some_and(|unknown| !unknown.is_empty()), "{findings:#}");
    let peak = agent.peak();
    println!("{peak} KiB");
    assert!(peak < LIMIT, "{peak} KiB");
}
