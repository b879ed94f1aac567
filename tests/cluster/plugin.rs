//! The binary as `kubectl portreeve`. The plugin reaches agents through the pod proxy. Some agents of the tests are
//! faulty.

use std::{
    collections::BTreeMap,
    fs,
    io::BufReader,
    os::unix::fs::symlink,
    path::Path,
    process::{Command, Output, Stdio},
    slice,
    sync::LazyLock,
};

use jiff::Timestamp;
use serde_json::{Deserializer, Value, json};
use tempfile::TempDir;

use crate::{
    api::list,
    fake::{Fake, Reply},
};

/// A home directory without configuration, with the binary under both of its names.
pub(crate) struct Plugin(TempDir);

impl Plugin {
    pub(crate) fn new() -> Self {
        let directory = TempDir::new().expect("a directory");
        for name in ["kubectl-portreeve", "kubectl_complete-portreeve"] {
            symlink(env!("CARGO_BIN_EXE_portreeve"), directory.path().join(name)).expect("a link");
        }
        Self(directory)
    }

    pub(crate) fn command(&self, name: &str, fake: &Fake, words: &[&str]) -> Command {
        let mut command = Command::new(self.0.path().join(name));
        command.env_clear().env("HOME", self.0.path()).env("KUBECONFIG", fake.kubeconfig()).stdin(Stdio::null());
        command.args(words);
        command
    }

    /// Returns exit code, standard output and standard error.
    pub(crate) fn run(&self, fake: &Fake, words: &[&str]) -> (i32, String, String) {
        ended(self.command("kubectl-portreeve", fake, words))
    }
}

pub(crate) fn ended(mut command: Command) -> (i32, String, String) {
    let Output { status, stdout, stderr } = command.output().expect("the binary runs");
    let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
    (status.code().expect("an exit code"), text(stdout), text(stderr))
}

pub(crate) fn pod(node: &str, ready: bool) -> String {
    pod_with(&json!([{"name": "http", "containerPort": 29517, "hostPort": 29517, "protocol": "TCP"}]), node, ready)
}

fn pod_with(ports: &Value, node: &str, ready: bool) -> String {
    json!({
        "metadata": {"name": format!("portreeve-{node}"), "namespace": "portreeve"},
        "spec": {"nodeName": node, "hostNetwork": true, "containers": [{"ports": ports}]},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": if ready { "True" } else { "False" }}]},
    })
    .to_string()
}

pub(crate) fn told(node: &str, findings: &Value) -> Reply {
    told_at(node, findings, Timestamp::now())
}

/// The answer of an agent whose last scan was at this time.
pub(crate) fn told_at(node: &str, findings: &Value, at: Timestamp) -> Reply {
    let document = json!({
        "schema": "portreeve.findings/v1", "findings": findings, "unknown": [],
        "nodes": [{"node": node, "version": "0.1.0", "lookedAt": at.to_string()}],
    });
    Reply::Json(document.to_string())
}

pub(crate) fn listener() -> Value {
    json!([{
        "rule": "listener-on-node-port", "variant": "loses", "severity": "critical", "scope": "node",
        "subject": {"kind": "Service", "namespace": "shop", "name": "web"}, "port": 30080, "protocol": "tcp",
        "summary": "Something listens here\u{1b}[2J.", "evidence": [], "affects": ["remote"],
        "remedy": [], "remedies": [], "since": "2026-11-21T12:00:00Z",
    }])
}

/// `agent` receives the node, the path that the proxy requests from the agent, and the number of earlier requests for
/// this path.
pub(crate) fn cluster(
    nodes: &'static [&'static str],
    agent: impl Fn(&str, &str, usize) -> Reply + Send + Sync + 'static,
) -> Fake {
    guarded_cluster(nodes, Some(&[]), agent)
}

/// `guards` are the nodes with the pod of a guard, and whether the pod is Ready. If `guards` is `None`, the API server
/// does not list the pods of guards.
pub(crate) fn guarded_cluster(
    nodes: &'static [&'static str],
    guards: Option<&'static [(&'static str, bool)]>,
    agent: impl Fn(&str, &str, usize) -> Reply + Send + Sync + 'static,
) -> Fake {
    Fake::new(move |path, before| {
        if path.starts_with("/api/v1/namespaces/portreeve/pods?") {
            let pods: Vec<String> = match path.contains("labelSelector=app.kubernetes.io%2Fname%3Dportreeve-guard") {
                true => {
                    let Some(guards) = guards else { return Reply::Status(403, "pods is forbidden") };
                    // A guard without `--listen` has no port.
                    guards.iter().map(|(node, ready)| pod_with(&json!([]), node, *ready)).collect()
                }
                false => nodes.iter().map(|node| pod(node, !node.starts_with("unready"))).collect(),
            };
            return list("Pod", &pods.iter().map(String::as_str).collect::<Vec<_>>());
        }
        let place = path.strip_prefix("/api/v1/namespaces/portreeve/pods/portreeve-");
        match place.and_then(|place| place.split_once(":29517/proxy")) {
            Some((node, asked)) => agent(node, asked, before),
            None => Reply::Status(404, "not found"),
        }
    })
}

/// The state of each node: `known`, or the reason why the node is unknown.
fn statuses(document: &Value) -> BTreeMap<String, String> {
    let unknown = document["unknown"].as_array().expect("a list");
    let why = |of: &Value| unknown.iter().find(|it| it["node"] == *of).and_then(|it| it["why"].as_str());
    let status = |node: &Value| match node.get("findings") {
        Some(_) => "known".to_owned(),
        None => why(&node["node"]).expect("a reason").to_owned(),
    };
    let nodes = document["nodes"].as_array().expect("nodes").iter();
    nodes.map(|node| (node["node"].as_str().expect("a name").to_owned(), status(node))).collect()
}

const WORLD: &[&str] = &[
    "ancient",
    "fine",
    "forbidden",
    "garbage",
    "gone",
    "huge",
    "hung",
    "liar",
    "old",
    "refused",
    "silent",
    "torn",
    "unready",
];

fn misbehave(node: &str, _: &str, _: usize) -> Reply {
    match node {
        "ancient" => {
            let document = json!({"schema": "portreeve.findings/v1", "findings": [], "unknown": [],
                                  "nodes": [{"node": node, "lookedAt": "1970-01-01T00:00:00Z"}]});
            Reply::Json(document.to_string())
        }
        "forbidden" => Reply::Status(403, "pods is forbidden"),
        "garbage" => Reply::Html("<html>who are you?</html>"),
        "gone" => Reply::Status(404, "pods not found"),
        "huge" => Reply::Json(format!("\"{}\"", "x".repeat(9 << 20))),
        "hung" => Reply::Hangup,
        "liar" => told("fine", &listener()),
        "old" => Reply::Json(r#"{"schema":"portreeve/v1"}"#.to_owned()),
        "refused" => Reply::Status(503, "error trying to reach service: connection refused"),
        "silent" => Reply::Silence,
        "torn" => Reply::Torn(r#"{"schema":"portreeve.findings/v1""#),
        node => told(node, &json!([])),
    }
}

#[test]
fn an_agent_that_cannot_be_queried_is_unknown_with_its_node_and_the_reason() {
    let fake = cluster(WORLD, misbehave);
    let plugin = Plugin::new();
    let (code, stdout, stderr) = plugin.run(&fake, &["check", "-o", "json", "--request-timeout", "3s"]);
    let document: Value = serde_json::from_str(&stdout).unwrap_or_else(|error| panic!("{error}: {stdout}{stderr}"));
    let expected = [
        ("ancient", "known"),
        ("fine", "known"),
        ("forbidden", "not-permitted"),
        ("garbage", "malformed"),
        ("gone", "not-supported"),
        ("huge", "malformed"),
        ("hung", "unreachable"),
        ("liar", "malformed"),
        ("old", "malformed"),
        ("refused", "unreachable"),
        ("silent", "timed-out"),
        ("torn", "unreachable"),
        ("unready", "unreachable"),
    ];
    let expected = expected.map(|(node, why)| (node.to_owned(), why.to_owned()));
    assert_eq!(statuses(&document), BTreeMap::from(expected), "{document:#}");
    assert_eq!((code, stderr.as_str()), (2, ""), "no findings, but not all agents answered");
    assert_eq!(document["unknown"][0]["why"], "stale", "a scan of 1970 is too old");
    assert!(!fake.requests().iter().any(|path| path.contains("unready")), "a pod that is not ready gets no request");
    assert!(!stdout.contains("listener-on-node-port/loses"), "no agent reports another node's findings");
    let schema = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/schema/findings.schema.json"));
    let schema: Value = serde_json::from_str(&schema.expect("a schema")).expect("JSON");
    jsonschema::validate(&schema, &document).unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn findings_of_all_nodes_are_listed_and_decide_the_exit_code() {
    let fake = cluster(&["n1", "n2", "unready"], |node, _, _| told(node, &listener()));
    let plugin = Plugin::new();
    let (code, table, _) = plugin.run(&fake, &["check"]);
    assert_eq!(code, 1);
    assert!(table.starts_with("1 critical; 2 agents queried, 1 could not be queried, oldest scan "), "{table}");
    assert!(
        table.contains(
            "critical  listener-on-node-port/loses  Service shop/web  30080/tcp  remote   2 of 2 nodes: n1, n2\n"
        ),
        "{table}"
    );
    assert!(table.contains("its pod portreeve-unready is not Ready"), "{table}");
    assert!(table.contains("about 3 agents of namespace portreeve"), "{table}");
    assert!(!table.contains('\u{1b}'), "{table:?}");
    let code = |words: &[&str]| plugin.run(&fake, &[&["check"], words].concat()).0;
    assert_eq!(code(&["--exit-zero"]), 2);
    assert_eq!(code(&["--exit-zero", "--node", "n1"]), 0);
    assert_eq!(code(&["--node", "n1", "-n", "office"]), 0);
    assert_eq!(code(&["--node", "n1", "-n", "shop"]), 1);
    assert_eq!(code(&["--node", "n1", "-A"]), 1);
    assert_eq!(code(&["--node", "n9"]), 2);
    assert_eq!(code(&["--node", "n1", "--rule", "listener-on-node-port/loses"]), 1);
    assert_eq!(code(&["--node", "n1", "--rule", "host-network-port-taken/agent"]), 0);
    assert_eq!(code(&["-A", "-n", "shop"]), 64);
    assert_eq!(plugin.run(&fake, &["check", "-o", "name"]).1, "service/web\n");
    let (_, rows, _) = plugin.run(&fake, &["check", "--no-headers"]);
    assert_eq!(rows.lines().count(), 1, "{rows}");
}

#[test]
fn agents_are_selected_by_their_labels_in_their_own_namespace() {
    let fake = cluster(&[], misbehave);
    let plugin = Plugin::new();
    let (code, stdout, _) = plugin.run(&fake, &["check", "-l", "app.kubernetes.io/instance=blue"]);
    assert_eq!(code, 2, "nothing is known without an agent");
    assert!(stdout.contains("no agent is listed"), "{stdout}");
    let label = "labelSelector=app.kubernetes.io%2Fname%3Dportreeve%2Capp.kubernetes.io%2Finstance%3Dblue";
    assert!(fake.requests()[0].contains(label), "{:?}", fake.requests());
    let (code, _, stderr) = plugin.run(&fake, &["check", "--agent-namespace", "else/where"]);
    assert_eq!(code, 2);
    assert!(stderr.contains("namespaces/else%2Fwhere/pods"), "{stderr}");
}

#[test]
fn an_ending_agent_is_not_reported_if_another_replaces_it() {
    let fake = Fake::new(|path, _| match path.split('?').next().expect("a path") {
        "/api/v1/namespaces/portreeve/pods" => {
            let old = pod("n1", false).replace("portreeve-n1", "portreeve-aaaa");
            list("Pod", &[&old, &pod("n1", true)])
        }
        _ => told("n1", &json!([])),
    });
    let (code, stdout, _) = Plugin::new().run(&fake, &["check"]);
    assert!(code == 0 && stdout.starts_with("no port conflicts; 1 agent queried, oldest scan "), "{stdout}");
}

fn with_status(name: &str, node: &str, status: &Value) -> Value {
    let mut pod: Value = serde_json::from_str(&pod(node, false)).expect("JSON");
    pod["metadata"]["name"] = json!(name);
    pod["status"] = status.clone();
    pod
}

/// A pod of a DaemonSet without a node, with the scheduler's message.
fn waiting(name: &str, node: &str, message: &str) -> Value {
    let conditions = json!([{"type": "PodScheduled", "status": "False", "message": message}]);
    let mut pod = with_status(name, "", &json!({"phase": "Pending", "conditions": conditions}));
    let field = json!({"key": "metadata.name", "operator": "In", "values": [node]});
    let required = json!({"nodeSelectorTerms": [{"matchFields": [field]}]});
    pod["spec"]["affinity"] = json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}});
    pod
}

/// A cluster in which the agent of n1 answers. The list of pods also has the pods in `others`.
fn beside(others: &[Value]) -> Fake {
    let others: Vec<String> = others.iter().map(Value::to_string).collect();
    Fake::new(move |path, _| match path.split('?').next().expect("a path") {
        "/api/v1/namespaces/portreeve/pods" => {
            let running = pod("n1", true);
            list("Pod", &others.iter().chain([&running]).map(String::as_str).collect::<Vec<_>>())
        }
        _ => told("n1", &json!([])),
    })
}

const NO_MEMORY: &str = "0/9 nodes are available: 1 Insufficient memory, 8 node(s) didn't match.";
const NO_PORTS: &str = "0/9 nodes are available: 1 node(s) didn't have free ports for the requested pod ports.";

#[test]
fn an_agent_that_waits_or_was_refused_or_is_not_understood_could_not_be_queried() {
    let mut odd: Value = serde_json::from_str(&pod("n2", true)).expect("JSON");
    odd["spec"]["containers"][0]["ports"][0]["protocol"] = json!("QUIC");
    let fake = beside(&[
        odd,
        waiting("portreeve-c", "n7", NO_MEMORY),
        waiting("portreeve-d", "n8", NO_PORTS),
        with_status("portreeve-f", "n9", &json!({"phase": "Failed", "reason": "NodePorts"})),
    ]);
    let plugin = Plugin::new();
    let (code, stdout, stderr) = plugin.run(&fake, &["check", "-o", "json"]);
    let document: Value = serde_json::from_str(&stdout).unwrap_or_else(|error| panic!("{error}: {stdout}{stderr}"));
    let expected = [("", "malformed"), ("n1", "known"), ("n7", "not-yet"), ("n8", "not-yet"), ("n9", "unreachable")];
    let expected = expected.map(|(node, why)| (node.to_owned(), why.to_owned()));
    assert_eq!((code, statuses(&document)), (2, BTreeMap::from(expected)), "{document:#}");
    let unknown = document["unknown"].as_array().expect("a list");
    let detail = |node: &str| unknown.iter().find(|it| it["node"] == node).and_then(|it| it["detail"].as_str());
    assert!(detail("").is_some_and(|it| it.contains("portreeve-n2") && it.contains("QUIC")), "{document:#}");
    assert_eq!(detail("n7"), Some("its pod portreeve-c has no node yet"));
    assert_eq!(detail("n8"), Some("its pod portreeve-d has no node with free ports yet"));
    let refused = "its pod portreeve-f was refused by the kubelet, because its ports are in use";
    assert_eq!(detail("n9"), Some(refused));
    let (_, table, _) = plugin.run(&fake, &["check"]);
    assert!(table.contains("; 1 agent queried, 4 could not be queried, oldest scan "), "{table}");
    assert!(table.contains("\n  an unknown node "), "{table}");
    assert_eq!(plugin.run(&fake, &["check", "--node", "n9"]).0, 2);
    assert_eq!(plugin.run(&fake, &["check", "--node", "n1"]).0, 0);
    let (code, versions, _) = plugin.run(&fake, &["version"]);
    assert!(code == 2 && versions.contains("not known: 4 agents\n"), "{versions}");
    let (code, _, stderr) = plugin.run(&fake, &["snapshot", "n9"]);
    assert!(code == 2 && stderr.contains(refused), "{stderr}");
    let (code, owners, _) = plugin.run(&fake, &["owner", "30080"]);
    assert!(code == 2 && owners.starts_with("an unknown node\n  not known: "), "{owners}");
}

#[test]
fn a_pod_that_never_started_or_has_ended_is_not_reported_beside_a_queried_agent_of_its_node() {
    let mut ending = with_status("portreeve-a", "n1", &json!({"phase": "Running"}));
    ending["metadata"]["deletionTimestamp"] = json!("2026-11-21T12:00:00Z");
    let ended = |status: Value| with_status("portreeve-a", "n1", &status);
    let twins = [
        ending,
        waiting("portreeve-a", "n1", NO_MEMORY),
        waiting("portreeve-a", "n1", NO_PORTS),
        ended(json!({"phase": "Failed", "reason": "NodePorts"})),
        ended(json!({"phase": "Failed", "reason": "Evicted"})),
        ended(json!({"phase": "Succeeded"})),
    ];
    let plugin = Plugin::new();
    for twin in twins.iter().map(slice::from_ref).chain([&twins[..]]) {
        let (code, stdout, _) = plugin.run(&beside(twin), &["check"]);
        assert!(code == 0 && stdout.starts_with("no port conflicts; 1 agent queried, oldest scan "), "{stdout}");
    }
}

#[test]
fn several_pods_of_a_node_that_cannot_be_queried_are_one_agent() {
    let failed = with_status("portreeve-a", "n2", &json!({"phase": "Failed", "reason": "NodePorts"}));
    let fake = beside(&[failed, waiting("portreeve-b", "n2", NO_PORTS)]);
    let (code, stdout, _) = Plugin::new().run(&fake, &["check"]);
    assert!(code == 2 && stdout.contains("; 1 agent queried, 1 could not be queried, oldest scan "), "{stdout}");
    assert!(stdout.contains("portreeve-b has no node"), "the pod that may still start: {stdout}");
}

#[test]
fn an_agent_that_needs_no_token_is_read_without_one() {
    let fake = cluster(&["n1", "n2"], |node, _, _| told(node, &json!([])));
    let (code, stdout, stderr) = Plugin::new().run(&fake, &["check", "--reader", "somebody"]);
    assert!(code == 0 && stdout.starts_with("no port conflicts; 2 agents queried"), "{stdout}{stderr}");
    let requests = fake.requests();
    let token = "/api/v1/namespaces/portreeve/serviceaccounts/somebody/token";
    let asked = requests.iter().filter(|path| path.trim_end_matches('?') == token).count();
    assert!((1..=2).contains(&asked), "{requests:?}");
    let refuses = cluster(&["n1"], |_, _, _| Reply::Status(401, "a token is needed"));
    let (code, stdout, _) = Plugin::new().run(&refuses, &["check", "-o", "json"]);
    let document: Value = serde_json::from_str(&stdout).expect("JSON");
    let unknown = &document["unknown"][0];
    assert_eq!((code, &unknown["why"]), (2, &json!("not-permitted")));
    let words = unknown["detail"].as_str().expect("words");
    assert!(words.contains("portreeve-reader/token: 404") && words.contains("a token is needed"), "{words}");
}

#[test]
fn a_watch_without_a_reader_ends_even_if_nothing_changes() {
    let fake = cluster(&["n1"], |node, _, _| told(node, &json!([])));
    let plugin = Plugin::new();
    let mut watch = plugin.command("kubectl-portreeve", &fake, &["check", "-w", "--interval", "50ms", "-o", "json"]);
    let mut watch = watch.stdout(Stdio::piped()).spawn().expect("the binary runs");
    let out = BufReader::new(watch.stdout.take().expect("a pipe"));
    let first: Option<Result<Value, _>> = Deserializer::from_reader(out).into_iter().next();
    assert!(first.is_some_and(|it| it.is_ok()));
    // The test closed the pipe after the first document.
    assert!(watch.wait().expect("the watch ends").success());
}

#[test]
fn a_watch_prints_again_only_if_something_changed() {
    let fake = cluster(&["n1"], |node, _, before| match before {
        0..3 => told(node, &json!([])),
        3 => Reply::Hangup,
        _ => told(node, &listener()),
    });
    let plugin = Plugin::new();
    let mut watch = plugin.command("kubectl-portreeve", &fake, &["check", "-w", "--interval", "50ms", "-o", "json"]);
    let mut watch = watch.stdout(Stdio::piped()).spawn().expect("the binary runs");
    let out = BufReader::new(watch.stdout.take().expect("a pipe"));
    let documents: Vec<Value> =
        Deserializer::from_reader(out).into_iter().take(3).map(|document| document.expect("JSON")).collect();
    watch.kill().expect("the watch runs");
    watch.wait().expect("the watch ends");
    let findings = documents.iter().map(|document| document["nodes"][0]["findings"].as_array().map(Vec::len));
    assert_eq!(findings.collect::<Vec<_>>(), [Some(0), None, Some(1)]);
}

/// The time of the scan in all snapshots of agents.
static LOOKED: LazyLock<String> = LazyLock::new(|| jiff::Timestamp::now().to_string());

pub(crate) fn snapshot(node: &str, port: u16) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/anywhere/worlds/healthy.json");
    let mut world: Value = serde_json::from_slice(&fs::read(path).expect("the recorded world")).expect("JSON");
    world["cluster"]["node_name"] = json!(node);
    world["at"] = json!(*LOOKED);
    let listeners = world["kernel"]["listeners"]["seen"].as_array_mut().expect("listeners");
    let kubelets = |socket: &&Value| socket["local_port"] == 10250;
    let mut socket = listeners.iter().find(kubelets).expect("the kubelet listens").clone();
    (socket["local"], socket["local_port"]) = (json!("0.0.0.0"), json!(port));
    listeners.push(socket);
    world.to_string()
}

pub(crate) fn seen() -> Fake {
    cluster(&["n1", "n2", "odd"], |node, path, _| match (node, path) {
        ("odd", _) => Reply::Json(r#"{"schema":"portreeve.snapshot/v1"}"#.to_owned()),
        (_, "/snapshot") => Reply::Json(snapshot(node, if node == "n1" { 30000 } else { 30001 })),
        _ => Reply::Status(404, "not found"),
    })
}

#[test]
fn the_owner_of_a_port_on_each_node_comes_from_its_agent() {
    let (fake, plugin) = (seen(), Plugin::new());
    let (code, text, _) = plugin.run(&fake, &["owner", "30001/tcp"]);
    assert_eq!(code, 2, "{text}");
    let [first, second, odd] = &text.split("\n\n").filter(|it| it.starts_with("node ")).collect::<Vec<_>>()[..] else {
        panic!("{text}")
    };
    assert!(first.contains("no Service, pod or process has it"), "{text}");
    assert!(second.starts_with("node n2") && second.contains("30001/tcp, proxy mode"), "{text}");
    assert!(odd.starts_with("node odd\n  not known: the agent's answer is not a snapshot"), "{text}");
    let (code, stdout, _) = plugin.run(&fake, &["owner", "30080", "--node", "n1", "-o", "json"]);
    assert_eq!(code, 0);
    let document: Value = serde_json::from_str(&stdout).expect("JSON");
    assert_eq!(document["nodes"][0]["protocols"][0]["claimants"][0]["claim"], "node-port");
    let schema = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/schema/owner.schema.json"));
    let schema: Value = serde_json::from_str(&schema.expect("a schema")).expect("JSON");
    jsonschema::validate(&schema, &document).unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn a_slice_that_cannot_be_used_leaves_the_endpoints_that_an_agent_lacks_unknown() {
    let asked = |address: &'static str| {
        let fake = Fake::new(move |path, _| match path.split('?').next() {
            Some("/api/v1/namespaces/portreeve/pods") => list("Pod", &[pod("n1", true).as_str()]),
            Some("/apis/discovery.k8s.io/v1/endpointslices") => {
                let labels = json!({"kubernetes.io/service-name": "web"});
                let slice = json!({
                    "metadata": {"name": "web-x", "namespace": "default", "labels": labels}, "addressType": "IPv4",
                    "ports": [{"name": "", "port": 8080, "protocol": "TCP"}],
                    "endpoints": [{"addresses": [address], "conditions": {"ready": true}, "nodeName": "n1"}],
                });
                list("EndpointSlice", &[slice.to_string().as_str()])
            }
            Some(path) if path.ends_with("/proxy/snapshot") => {
                let mut world: Value = serde_json::from_str(&snapshot("n1", 30000)).expect("JSON");
                world["cluster"]["endpoints_of"] = json!([]);
                Reply::Json(world.to_string())
            }
            _ => Reply::Status(404, "not found"),
        });
        let (_, text, _) = Plugin::new().run(&fake, &["owner", "30080/tcp", "--node", "n1"]);
        text.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let [usable, broken] = ["10.244.0.5", "10.244.0.300"].map(asked);
    assert!(usable.contains("a pod of Service default/web answers"), "{usable}");
    assert!(broken.contains("not known") && !broken.contains("because of Service default/web"), "{broken}");
}

/// On n1: the pod `shop/cart` with a failing container that declares port 8000. In the agent's scan, a connection in
/// the pod's network has this port.
fn with_pod(node: &str) -> String {
    let mut world: Value = serde_json::from_str(&snapshot(node, 30000)).expect("JSON");
    if node != "n1" {
        return world.to_string();
    }
    let pod = json!({
        "namespace": "shop", "name": "cart", "uid": "uid-cart", "config_hash": null, "node": "n1", "host_network": false,
        "finished": false, "ready": false, "failing": true, "ips": ["10.1.0.9"], "ports": [], "ip_local_port_range": null,
        "own_ports": [{"port": 8000, "host_port": null, "host_ip": null, "protocol": "tcp"}],
    });
    let mut socket = world["kernel"]["listeners"]["seen"][0].clone();
    for (field, value) in [
        ("state", json!("ESTABLISHED")),
        ("local", json!("10.1.0.9")),
        ("local_port", json!(8000)),
        ("remote", json!("198.51.100.7")),
        ("remote_port", json!(443)),
    ] {
        socket[field] = value;
    }
    socket["owner"]["held"]["process"]["seen"]["command"] = json!("envoy");
    let network = json!({
        "pod_uid": "uid-cart", "ephemeral": {"seen": {"at_most": 1, "busiest": []}}, "needed": {"seen": [socket]},
    });
    world["cluster"]["pods"]["seen"].as_array_mut().expect("pods").push(pod);
    world["kernel"]["pod_namespaces"]["seen"].as_array_mut().expect("networks").push(network);
    world.to_string()
}

#[test]
fn a_port_in_a_pod_is_reported_for_its_node_as_far_as_its_agent_scanned() {
    let (fake, plugin) = (
        cluster(&["n1", "n2"], |node, path, _| match path {
            "/snapshot" => Reply::Json(with_pod(node)),
            _ => Reply::Status(404, "not found"),
        }),
        Plugin::new(),
    );
    let (code, text, stderr) = plugin.run(&fake, &["owner", "8000", "--pod", "shop/cart"]);
    assert_eq!(code, 0, "{text}{stderr}");
    assert!(
        text.starts_with("node n1\n8000/tcp in the network of pod shop/cart\n  no process listens on this port\n"),
        "{text}"
    );
    assert!(text.contains("process envoy") && !text.contains("n2"), "{text}");
    let (code, text, _) = plugin.run(&fake, &["owner", "8001", "--pod", "shop/cart"]);
    assert!(code == 2 && text.contains("this scan did not read the sockets on the port"), "{text}");
    let (code, _, stderr) = plugin.run(&fake, &["owner", "8000", "--pod", "shop/till"]);
    assert!(code == 2 && stderr.contains("pod shop/till is on no queried node"), "{stderr}");
}

#[test]
fn a_suggested_port_is_free_on_every_node() {
    let (fake, plugin) = (seen(), Plugin::new());
    let (code, stdout, stderr) = plugin.run(&fake, &["suggest", "--count", "2"]);
    assert_eq!((code, stdout.as_str()), (2, "30002\n30003\n"), "{stderr}");
    assert!(stderr.contains("scope: 3 agents of namespace portreeve"), "{stderr}");
    assert!(stderr.contains("the oldest scan is "), "{stderr}");
    assert!(stderr.contains("not known of odd: the agent's answer is not a snapshot"), "{stderr}");
    let (_, _, stderr) = plugin.run(&fake, &["suggest", "--node", "n1"]);
    assert!(stderr.contains("scope: 1 agent of namespace portreeve; other nodes are not included"), "{stderr}");
    let (code, stdout, _) = plugin.run(&fake, &["suggest", "--host"]);
    assert_eq!((code, stdout.as_str()), (2, "10000\n"), "a port for the nodes themselves");
}

#[test]
fn a_snapshot_and_a_map_are_of_the_named_node() {
    let (fake, plugin) = (seen(), Plugin::new());
    let (code, stdout, _) = plugin.run(&fake, &["snapshot", "n2"]);
    assert_eq!(code, 0);
    let document: Value = serde_json::from_str(&stdout).expect("JSON");
    assert_eq!(document, serde_json::from_str::<Value>(&snapshot("n2", 30001)).expect("JSON"), "unchanged");
    let (code, _, stderr) = plugin.run(&fake, &["snapshot", "odd"]);
    assert_eq!(code, 2);
    assert!(stderr.contains("the answer of pod portreeve-odd is not a snapshot"), "{stderr}");
    let (code, map, stderr) = plugin.run(&fake, &["map", "--node", "n1"]);
    assert!(code == 0 && stderr.contains("the oldest scan is ") && stderr.contains(" s old (n1)"), "{stderr}");
    assert!(map.contains("30000  process kubelet listens"), "{map}");
    let (code, _, stderr) = plugin.run(&fake, &["map"]);
    assert_eq!(code, 2);
    assert!(stderr.contains("choose one with --node"), "{stderr}");
}

#[test]
fn a_snapshot_that_lacks_an_input_is_printed_and_is_not_clear() {
    let with = |place: &'static str, value: Value| {
        let fake = cluster(&["n1"], move |node, _, _| {
            let mut world: Value = serde_json::from_str(&snapshot(node, 30000)).expect("JSON");
            *world.pointer_mut(place).expect("an input") = value.clone();
            Reply::Json(world.to_string())
        });
        Plugin::new().run(&fake, &["snapshot", "n1"])
    };
    let gap = |source, why| json!({"gap": {"source": source, "why": why, "detail": "it was not read"}});
    for (place, value, wanted) in [
        ("/cluster/services", gap("services", "not-permitted"), 2),
        ("/kernel/listeners", gap("listeners", "torn"), 2),
        ("/kernel/netfilter", gap("netfilter", "not-permitted"), 0),
        ("/kernel/netfilter", json!({"added later": []}), 2),
    ] {
        let (code, stdout, stderr) = with(place, value.clone());
        let document: Value = serde_json::from_str(&stdout).expect("JSON");
        assert_eq!((code, document.pointer(place)), (wanted, Some(&value)), "{stderr}");
    }
}

#[test]
fn kubectl_gets_the_completions() {
    let (fake, plugin) = (seen(), Plugin::new());
    let complete = |words: &[&str]| {
        let (code, stdout, stderr) = ended(plugin.command("kubectl_complete-portreeve", &fake, words));
        assert_eq!((code, stderr.as_str()), (0, ""));
        stdout
    };
    assert_eq!(complete(&["che"]), "check\tList the findings of all nodes, and set the exit code\n:4\n");
    assert_eq!(complete(&["check", "--agent-n"]), "--agent-namespace\tThe namespace of the agents\n:4\n");
    assert!(complete(&["check", "-o", "j"]).starts_with("json\t"));
    assert_eq!(complete(&["snapshot", ""]), "n1\nn2\nodd\n:4\n");
    assert_eq!(complete(&["owner", "30080", "--node", "n"]), "n1\nn2\n:4\n");
    assert!(complete(&["explain", "host-network"]).starts_with("host-network-port-taken\t"));
    assert_eq!(complete(&["check", "--kubeconfig", ""]), ":0\n", "the shell completes files");
    assert_eq!(complete(&["no", "such"]), ":4\n");
}

#[test]
fn no_request_is_made_without_a_cluster() {
    let plugin = Plugin::new();
    let fake = cluster(&[], misbehave);
    let mut command = plugin.command("kubectl-portreeve", &fake, &["check"]);
    command.env_remove("KUBECONFIG");
    let (code, _, stderr) = ended(command);
    assert_eq!(code, 2);
    assert!(stderr.contains("no cluster is configured"), "{stderr}");
    let (code, _, stderr) = plugin.run(&fake, &["check", "--as-group", "g"]);
    assert_eq!(code, 64, "{stderr}");
}
