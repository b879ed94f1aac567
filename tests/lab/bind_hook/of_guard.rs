//! The Events of `portreeve guard --bind` about processes in the test's control group, with a real API server.

use std::{
    fs::{self, File},
    net::TcpListener,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread::sleep,
    time::Duration,
};

use serde_json::{Value, json};

use crate::parts::{
    Agent, ControlPlane, Group, PRIMARY, Proxy, Role, all_events, enter_alone, http_get, objects, sysctl, until,
};

const PLACE: &str = "127.0.0.1:29518";
/// The exit code of this script is the errno of the bind.
const SQUATTER: &str = r#"
    use Socket;
    $0 = "squatter";
    socket(my $socket, PF_INET, SOCK_STREAM, 0) or die "socket: $!";
    bind($socket, sockaddr_in(30080, INADDR_ANY)) or exit($! + 0);
    select(undef, undef, undef, 0.05);
"#;
const EADDRINUSE: i32 = 98;
/// Starts a program as a runtime starts a container: the program sees only the control groups below its own group.
const IN_A_CONTAINER: &str = "umount -R /sys/fs/cgroup && mount -t cgroup2 cgroup2 /sys/fs/cgroup && exec \"$@\"";

/// Runs `SQUATTER` in `group`, and returns the errno of the bind. 0 means that the bind succeeded.
fn squat(group: &Path) -> i32 {
    squat_on(30080, group)
}

fn squat_on(port: u16, group: &Path) -> i32 {
    let [shell, entering @ ..] = Group::entering(group);
    let script = SQUATTER.replace("30080", &port.to_string());
    let squatter = Command::new(shell).args(entering).args(["perl", "-e", &script]).status();
    squatter.expect("sh and perl").code().expect("an exit code")
}

struct Guard {
    child: Child,
    directory: tempfile::TempDir,
}

impl Guard {
    fn start(arguments: &[&str]) -> Self {
        Self::start_by(&["env"], arguments)
    }

    /// Starts the guard: runs `command`, followed by the guard's program and arguments.
    fn start_by(command: &[&str], arguments: &[&str]) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let log = File::create(directory.path().join("log")).expect("a log");
        let (by, words) = command.split_first().expect("a command");
        let mut command = Command::new(by);
        command.args(words).arg(env!("CARGO_BIN_EXE_portreeve"));
        command.args(["guard", "--node", "n1", "--proxy-mode", "iptables", "--listen", PLACE, "--state"]);
        command.arg(directory.path().join("guard.json")).args(arguments);
        command.env_remove("KUBECONFIG").env("HOME", "/nonexistent").stdin(Stdio::null()).stderr(log);
        Self { child: command.spawn().expect("portreeve runs"), directory }
    }

    /// Returns `None` if the guard does not answer yet.
    fn value(series: &str) -> Option<f64> {
        http_get(PLACE, "/metrics")?.lines().find_map(|line| line.strip_prefix(series)?.trim().parse().ok())
    }

    #[track_caller]
    fn wait_for(&self, series: &str, least: f64) {
        until(series, || (Self::value(series)? >= least).then_some(()));
        assert!(self.is_attached(), "{}", self.log());
    }

    fn is_attached(&self) -> bool {
        ["report", "refuse"]
            .iter()
            .any(|mode| Self::value(&format!("portreeve_guard_bind_hook{{mode=\"{mode}\"}}")) == Some(1.0))
    }

    fn log(&self) -> String {
        fs::read_to_string(self.directory.path().join("log")).expect("a log")
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
        eprintln!("{}", self.log());
    }
}

pub(super) fn events(cluster: &ControlPlane, namespace: &str, action: &str) -> Vec<Value> {
    let list = cluster.api().text(&format!("/apis/events.k8s.io/v1/namespaces/{namespace}/events")).expect("a list");
    let list: Value = serde_json::from_str(&list).expect("JSON");
    let items = list["items"].as_array().expect("Events").clone();
    items.into_iter().filter(|event| event["action"] == action).collect()
}

/// A Node of a Kubernetes version whose kube-proxy opens no sockets for NodePorts.
fn node() -> Value {
    node_of("v1.36.3")
}

fn node_of(kubelet: &str) -> Value {
    let mut node = objects::node("n1", &PRIMARY);
    node["status"]["nodeInfo"] = objects::node_info(kubelet);
    node
}

fn cluster() -> (ControlPlane, Value) {
    cluster_of(&node())
}

fn cluster_of(node: &Value) -> (ControlPlane, Value) {
    enter_alone();
    let cluster = ControlPlane::with(&[]);
    cluster.api().create(node);
    let service = cluster.api().create(&objects::selecting_service("web", &[objects::port(80, Some(30080))]));
    (cluster, service)
}

/// A pod of `n1` on the host's network, and the pod's control group.
fn pod(cluster: &ControlPlane, group: &Group) -> (Value, PathBuf) {
    cluster.api().create(&json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop"}}));
    cluster.api().create(
        &json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default", "namespace": "shop"}}),
    );
    let pod = cluster.api().create(&json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "edge", "namespace": "shop"},
        "spec": {
            "nodeName": "n1",
            "hostNetwork": true,
            "automountServiceAccountToken": false,
            "containers": [{"name": "edge", "image": "edge"}],
        },
    }));
    let uid = pod["metadata"]["uid"].as_str().expect("a uid");
    let container = group.below(&format!("kubepods/besteffort/pod{uid}/{}", "5f7bb1c1d5b0"));
    (pod, container)
}

#[test]
fn a_squatter_that_lives_50_ms_is_an_event_on_its_service_with_its_name_and_its_pod() {
    let (cluster, service) = cluster();
    let group = Group::new();
    let (pod, container) = pod(&cluster, &group);
    let own = group.path.to_str().expect("UTF-8").to_owned();
    let kubeconfig = cluster.kubeconfig("admin");
    let arguments = ["--bind=report", "--cgroup", &own, "--kubeconfig", kubeconfig.to_str().expect("UTF-8")];
    let guard = Guard::start(&arguments);
    // The hook starts to report binds as soon as the kernel has the claims.
    until("a claim", || {
        assert_eq!(squat(&container), 0, "a bind that is reported succeeds");
        Guard::value("portreeve_guard_binds_total{answer=\"allowed\"}").filter(|count| *count >= 1.0)
    });
    assert!(guard.is_attached());
    let event = until("an Event", || events(&cluster, "default", "ReportBind").into_iter().next());
    assert_eq!(event["reason"], "ListenerOnNodePort");
    assert_eq!(event["metadata"]["annotations"]["portreeve/finding"], "listener-on-node-port/loses");
    assert_eq!(event["regarding"]["uid"], service["metadata"]["uid"]);
    assert_eq!(event["related"]["uid"], pod["metadata"]["uid"]);
    let note = event["note"].as_str().expect("a note");
    let wanted = "On node n1: 30080/tcp is the NodePort of Service default/web port p80, and process squatter of pod shop/edge \
                  called bind for 0.0.0.0:30080/tcp";
    assert!(note.starts_with(wanted), "{note}");
    // Repeated equal binds, and binds of other processes, add no further Event.
    for place in [&container, &group.below("other")] {
        for _ in 0..3 {
            assert_eq!(squat(place), 0);
        }
    }
    guard.wait_for("portreeve_guard_binds_total{answer=\"allowed\"}", 7.0);
    assert_eq!(events(&cluster, "default", "ReportBind"), [event]);
    assert_eq!(events(&cluster, "shop", "ReportBind"), [] as [Value; 0]);
}

#[test]
fn a_squatter_that_stays_is_one_event_of_the_guard_and_the_agent_and_the_agent_writes_its_end() {
    let (mut cluster, service) = cluster();
    cluster.api().create(&objects::endpoint_slice(&service, Some(("10.244.0.5", "n2")), "IPv4"));
    cluster.api().create(&objects::selecting_service("first", &[objects::port(80, Some(30081))]));
    Role::of_chart().grant(&mut cluster);
    let group = Group::new();
    let own = group.path.to_str().expect("UTF-8").to_owned();
    let kubeconfig = cluster.kubeconfig("admin");
    let arguments = ["--bind=report", "--cgroup", &own, "--kubeconfig", kubeconfig.to_str().expect("UTF-8")];
    let _guard = Guard::start(&arguments);
    // The kernel gets the claims of all NodePorts at the same moment.
    until("a claim", || {
        assert_eq!(squat_on(30081, &group.below("first")), 0);
        Guard::value("portreeve_guard_binds_total{answer=\"allowed\"}").filter(|count| *count >= 1.0)
    });

    let about = |kind: &str| {
        let mut events = all_events(&cluster);
        events.retain(|event| event["regarding"]["uid"] == service["metadata"]["uid"] && event["type"] == kind);
        events
    };
    let squatter = TcpListener::bind("0.0.0.0:30080").expect("the port is free");
    let event = until("an Event", || about("Warning").into_iter().next());
    assert_eq!(event["action"], "ReportBind");
    let agent = Agent::start(&cluster, &["--proxy-mode", "iptables"]);
    until("the agent's request", || {
        let count = Agent::value(&agent.metrics(), r#"portreeve_events_total{result="deduplicated"}"#);
        count.filter(|count| *count >= 1.0)
    });
    drop(squatter);
    let end = until("its end", || about("Normal").into_iter().next());
    let name = event["metadata"]["name"].as_str().expect("a name");
    assert_eq!(end["metadata"]["name"], format!("{name}.resolved"));
    assert_eq!(about("Warning"), [event]);
}

#[test]
fn a_refused_bind_fails_and_its_event_names_the_service_and_what_is_allowed_passes() {
    let (cluster, _) = cluster();
    let group = Group::new();
    let (_, container) = pod(&cluster, &group);
    let allowed = group.below("allowed");
    let (own, folder) = (group.path.to_str().expect("UTF-8").to_owned(), Group::folder(&allowed));
    let kubeconfig = cluster.kubeconfig("admin");
    let arguments = ["--bind=refuse", "--stale=3600", "--cgroup", &own, "--allow", &folder, "--kubeconfig"];
    let guard = Guard::start(&[&arguments[..], &[kubeconfig.to_str().expect("UTF-8")]].concat());
    until("a refusal", || (squat(&container) == EADDRINUSE).then_some(()));
    let event = until("an Event", || events(&cluster, "shop", "RefuseBind").into_iter().next());
    assert_eq!((&event["regarding"]["name"], &event["reason"]), (&json!("edge"), &json!("ListenerOnNodePort")));
    let note = event["note"].as_str().expect("a note");
    let wanted = "30080/tcp is the NodePort of Service default/web port p80: the guard refused the bind of process squatter of \
                  pod shop/edge to 0.0.0.0:30080/tcp. Remedy: ";
    assert!(note.starts_with(wanted), "{note}");
    assert_eq!(squat(&allowed), 0, "a person allowed this group");
    guard.wait_for("portreeve_guard_binds_total{answer=\"refused\"}", 1.0);
    assert_eq!(events(&cluster, "default", "RefuseBind"), [] as [Value; 0], "what is allowed has no Event");
}

fn facts(directory: &Path) -> (PathBuf, Value) {
    let mut service = objects::service("web", &[objects::port(80, Some(30080))]);
    service["spec"]["clusterIP"] = json!("10.96.0.10");
    service["spec"]["ipFamilies"] = json!(["IPv4"]);
    // The guard knows the pods of the node, because the file has a Pod.
    let pod = objects::host_port_pod("edge", "TCP", 8080, None);
    let api_server = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "kubernetes"}, "spec": {}});
    let list = json!({"apiVersion": "v1", "kind": "List", "items": [node(), api_server, service, pod]});
    let file = directory.join("cluster.json");
    fs::write(&file, list.to_string()).expect("a file");
    (file, list)
}

/// Whether a process of this network namespace listens on the port with all IPv4 addresses.
fn is_held(port: u16) -> bool {
    let sockets = fs::read_to_string("/proc/thread-self/net/tcp").expect("sockets");
    sockets.contains(&format!(" 00000000:{port:04X} 00000000:0000 0A "))
}

#[test]
fn a_kube_proxy_that_holds_node_ports_is_never_refused_also_after_a_restart() {
    let (cluster, _) = cluster_of(&node_of("v1.26.0"));
    let group = Group::new();
    let (place, next, other) = (group.below("proxy"), group.below("next"), group.below("other"));
    let holding = |place: &Path| Proxy::start_holding_by(&Group::entering(place), &cluster, 1024);
    let proxy = holding(&place);
    until("its socket", || is_held(30080).then_some(()));
    let own = group.path.to_str().expect("UTF-8").to_owned();
    let kubeconfig = cluster.kubeconfig("admin");
    let arguments = ["--bind=refuse", "--stale=3600", "--cgroup", &own, "--kubeconfig"];
    let guard = Guard::start(&[&arguments[..], &[kubeconfig.to_str().expect("UTF-8")]].concat());
    until("a claim", || {
        squat(&other);
        Guard::value("portreeve_guard_unreported_binds_total{reason=\"unread\"}").filter(|count| *count >= 1.0)
    });

    drop(proxy);
    assert!(!is_held(30080));
    // The node now has no proxy. The guard reserves the NodePort after it has read the node again.
    sysctl("net.ipv4.ip_local_port_range", "30000 60999");
    until("another reading", || {
        Guard::value("portreeve_guard_reserved_ports{reason=\"node_port\"}").filter(|count| *count >= 1.0)
    });
    sleep(Duration::from_secs(1));
    // A new pod of the proxy has a new control group.
    let _proxy = holding(&next);
    until("its socket", || is_held(30080).then_some(()));
    cluster.api().create(&objects::selecting_service("late", &[objects::port(80, Some(30081))]));
    until("the socket of another Service", || is_held(30081).then_some(()));
    assert_eq!(Guard::value("portreeve_guard_binds_total{answer=\"refused\"}"), Some(0.0));
    assert!(guard.is_attached());
    assert!(!guard.log().contains("process kube-proxy"), "{}", guard.log());
}

#[test]
fn a_guard_that_starts_while_such_a_kube_proxy_is_absent_refuses_nothing() {
    let (cluster, _) = cluster_of(&node_of("v1.26.0"));
    let group = Group::new();
    let (place, other) = (group.below("proxy"), group.below("other"));
    let own = group.path.to_str().expect("UTF-8").to_owned();
    let kubeconfig = cluster.kubeconfig("admin");
    let arguments = ["--bind=refuse", "--stale=3600", "--cgroup", &own, "--kubeconfig"];
    let guard = Guard::start(&[&arguments[..], &[kubeconfig.to_str().expect("UTF-8")]].concat());
    until("a claim", || {
        assert_eq!(squat(&other), 0);
        Guard::value("portreeve_guard_unreported_binds_total{reason=\"unread\"}").filter(|count| *count >= 1.0)
    });
    let _proxy = Proxy::start_holding_by(&Group::entering(&place), &cluster, 1024);
    until("its socket", || is_held(30080).then_some(()));
    assert_eq!(Guard::value("portreeve_guard_binds_total{answer=\"refused\"}"), Some(0.0));
    assert!(!guard.log().contains("process kube-proxy"), "{}", guard.log());
}

#[test]
fn a_view_that_the_api_server_does_not_confirm_refuses_nothing() {
    let (cluster, _) = cluster();
    let group = Group::new();
    let own = group.path.to_str().expect("UTF-8").to_owned();
    let kubeconfig = cluster.kubeconfig("admin");
    let arguments = ["--bind=refuse", "--stale=10", "--cgroup", &own, "--kubeconfig"];
    let guard = Guard::start(&[&arguments[..], &[kubeconfig.to_str().expect("UTF-8")]].concat());
    until("a refusal", || (squat(&group.path) == EADDRINUSE).then_some(()));
    // While no object changes, the API server confirms a watch only once a minute. Meanwhile the claims become older
    // than `--stale`.
    until("a bind that passes", || (squat(&group.path) == 0).then_some(()));
    until("its count", || {
        Guard::value("portreeve_guard_binds_total{answer=\"too_old\"}").filter(|count| *count >= 1.0)
    });
    assert!(guard.is_attached(), "the claims are as they were read");
    // One change of Pods and one change of Services confirm the facts about Pods and Services.
    pod(&cluster, &group);
    cluster.api().create(&objects::selecting_service("late", &[objects::port(80, Some(30081))]));
    until("a refusal", || (squat(&group.path) == EADDRINUSE).then_some(()));
}

#[test]
fn in_a_container_that_sees_its_own_control_groups_alone_a_person_names_the_group() {
    enter_alone();
    let group = Group::new();
    let (unit, allowed) = (group.below("unit"), group.below("allowed"));
    let directory = tempfile::tempdir().expect("a directory");
    let (file, _) = facts(directory.path());
    let container = ["unshare", "--cgroup", "--mount", "sh", "-c", IN_A_CONTAINER, "sh"];
    let arguments = ["--bind=refuse", "--stale=3600", "--allow=allowed", "--services", file.to_str().expect("UTF-8")];
    let guard = Guard::start_by(&container, &arguments);
    let expected = "/sys/fs/cgroup has only the control groups of this container; pass --cgroup";
    until("the cause", || guard.log().contains(expected).then_some(()));
    until("its metrics", || Guard::value("portreeve_guard_bind_hook{mode=\"refuse\"}").filter(|value| *value == 0.0));
    assert_eq!(squat(&unit), 0);
    drop(guard);

    let guard = Guard::start_by(&container, &[&arguments[..], &["--cgroup=/sys/fs/cgroup"]].concat());
    until("a refusal", || (squat(&unit) == EADDRINUSE).then_some(()));
    assert_eq!(squat(&allowed), 0, "a path below the mount that the guard sees");
    assert!(guard.is_attached());
    until("its line", || guard.log().contains("the guard refused the bind of process squatter").then_some(()));
}

#[test]
fn a_hook_whose_group_is_missing_is_attached_once_it_is_there() {
    enter_alone();
    let group = Group::new();
    let directory = tempfile::tempdir().expect("a directory");
    let (file, place) = (facts(directory.path()).0, directory.path().join("group"));
    let cgroup = format!("--cgroup={}", place.display());
    let guard = Guard::start(&["--bind=refuse", "--stale=3600", &cgroup, "--services", file.to_str().expect("UTF-8")]);
    let line = "no bind hook; the guard reserves ports without it";
    until("the cause", || guard.log().contains(line).then_some(()));
    // Waits for a second attempt to attach the hook, which fails too.
    sleep(Duration::from_secs(2));
    assert!(!guard.is_attached());
    symlink(&group.path, &place).expect("a link");
    until("a refusal", || (squat(&group.path) == EADDRINUSE).then_some(()));
    assert!(guard.is_attached());
    assert_eq!(guard.log().matches(line).count(), 1, "a cause that lasts is logged once: {}", guard.log());
}

#[test]
fn an_event_that_the_api_server_refuses_is_counted_and_the_next_one_is_written_once_that_is_permitted() {
    let (cluster, _) = cluster();
    let group = Group::new();
    let grant = |name: &str, rules: Value| {
        let role = "rbac.authorization.k8s.io";
        let api = format!("{role}/v1");
        cluster
            .api()
            .create(&json!({"apiVersion": api, "kind": "ClusterRole", "metadata": {"name": name}, "rules": rules}));
        cluster.api().create(&json!({
            "apiVersion": api,
            "kind": "ClusterRoleBinding",
            "metadata": {"name": name},
            "roleRef": {"apiGroup": role, "kind": "ClusterRole", "name": name},
            "subjects": [{"apiGroup": role, "kind": "User", "name": "observer"}],
        }));
    };
    grant("read", json!([{"apiGroups": [""], "resources": ["services", "pods", "nodes"], "verbs": ["list", "watch"]}]));
    let own = group.path.to_str().expect("UTF-8").to_owned();
    let kubeconfig = cluster.kubeconfig("observer");
    let arguments = ["--bind=report", "--cgroup", &own, "--kubeconfig", kubeconfig.to_str().expect("UTF-8")];
    let guard = Guard::start(&arguments);
    until("a claim", || {
        assert_eq!(squat(&group.path), 0);
        Guard::value("portreeve_guard_binds_total{answer=\"allowed\"}").filter(|count| *count >= 1.0)
    });
    until("its line", || guard.log().contains("a process called bind for a claimed port").then_some(()));
    guard.wait_for("portreeve_guard_unwritten_events_total", 1.0);
    assert!(guard.log().contains("cannot write an Event, and will not try again"), "{}", guard.log());
    grant("write", json!([{"apiGroups": ["events.k8s.io"], "resources": ["events"], "verbs": ["create"]}]));
    let mut groups = 0..;
    until("the Event of another group", || {
        // Until the new role is in force, the API server refuses Events, and the guard does not write them again. So
        // each attempt binds in a new control group, about which the guard writes a new Event.
        let another = groups.next().map(|number| group.below(&format!("g{number}"))).expect("endless");
        assert_eq!(squat(&another), 0);
        events(&cluster, "default", "ReportBind").into_iter().next()
    });
}

#[test]
fn facts_that_are_too_old_refuse_nothing_and_the_hook_ends_with_the_guard() {
    enter_alone();
    let group = Group::new();
    let directory = tempfile::tempdir().expect("a directory");
    let (file, list) = facts(directory.path());
    let own = group.path.to_str().expect("UTF-8").to_owned();
    let path = file.to_str().expect("UTF-8");
    let guard = Guard::start(&["--bind=refuse", "--stale=4", "--cgroup", &own, "--services", path]);
    until("a refusal", || (squat(&group.path) == EADDRINUSE).then_some(()));
    fs::remove_file(&file).expect("removed");
    until("a bind that passes", || (squat(&group.path) == 0).then_some(()));
    until("its count", || {
        Guard::value("portreeve_guard_binds_total{answer=\"too_old\"}").filter(|count| *count >= 1.0)
    });
    assert!(!guard.is_attached(), "a hook that does not follow the cluster is not in order");
    fs::write(&file, list.to_string()).expect("a file");
    until("a refusal", || (squat(&group.path) == EADDRINUSE).then_some(()));
    until("a hook that follows", || guard.is_attached().then_some(()));
    drop(guard);
    assert_eq!(squat(&group.path), 0, "nothing stays in the kernel");
}
