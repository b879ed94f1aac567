//! `portreeve agent` with a real API server and a real kube-proxy, and with the rights of the chart's role only.

use std::{
    net::TcpListener,
    process::{Child, Command, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use crate::{
    parts::{ControlPlane, PRIMARY, Proxy, Wired, http_get, objects},
    server::grant,
};

/// How long something may take that takes two looks; far more than it needs on a busy machine.
const SOON: Duration = Duration::from_secs(60);
const PLACE: &str = "127.0.0.1:29517";

/// An agent on this thread's node; it ends with this value.
struct Agent(Child);

impl Agent {
    #[track_caller]
    fn start(cluster: &ControlPlane) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_portreeve"));
        command.arg("agent").arg("--kubeconfig").arg(cluster.kubeconfig("observer"));
        command.args(["--node", "n1", "--interval", "500ms", "--cpu-percent", "100", "--listen", PLACE]);
        let agent = Self(command.stdin(Stdio::null()).spawn().expect("portreeve runs"));
        until("a first look", || http_get(PLACE, "/readyz"));
        agent
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.0.kill().expect("it is ours to end");
        self.0.wait().expect("it ended");
    }
}

#[track_caller]
fn until<T>(what: &str, mut probe: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + SOON;
    while Instant::now() < end {
        if let Some(answer) = probe() {
            return answer;
        }
        sleep(Duration::from_millis(200));
    }
    panic!("no {what} within {SOON:?}");
}

/// The Events of this project, oldest first.
fn events(cluster: &ControlPlane) -> Vec<Value> {
    let text = cluster.api().text("/apis/events.k8s.io/v1/namespaces/default/events").expect("events can be listed");
    let list: Value = serde_json::from_str(&text).expect("JSON");
    let mut events = list["items"].as_array().expect("items").clone();
    events.retain(|event| event["reportingController"] == "portreeve");
    events.sort_by_key(|event| event["eventTime"].as_str().map(str::to_owned));
    events
}

fn reasons(cluster: &ControlPlane) -> Vec<String> {
    events(cluster).iter().filter_map(|event| event["reason"].as_str().map(str::to_owned)).collect()
}

#[test]
fn a_squatter_is_an_event_on_its_service_once_and_one_more_when_it_is_gone() {
    let _wired = Wired::enter();
    let mut cluster = ControlPlane::start();
    let node = cluster.api().create(&objects::node("n1", &PRIMARY));
    let service = cluster.api().create(&objects::service("web", &[objects::port(80, Some(30080))]));
    cluster.api().create(&objects::endpoint_slice(&service, Some((Wired::HERE[0], "n1")), "IPv4"));
    grant(
        &mut cluster,
        &[json!({"apiGroups": ["events.k8s.io"], "resources": ["events"], "verbs": ["create", "patch"]})],
    );
    let _proxy = Proxy::start(&cluster, "iptables", &json!({}));
    let agent = Agent::start(&cluster);
    assert!(events(&cluster).is_empty(), "nothing is wrong yet");

    let squatter = TcpListener::bind("0.0.0.0:30080").expect("the port is free");
    until("Event", || (reasons(&cluster) == ["ListenerOnNodePort"]).then_some(()));
    let event = &events(&cluster)[0];
    assert_eq!(event["type"], "Warning");
    assert_eq!(event["regarding"]["kind"], "Service");
    assert_eq!(event["regarding"]["uid"], service["metadata"]["uid"], "`kubectl describe` finds it by the real uid");
    assert_eq!(event["related"]["uid"], node["metadata"]["uid"]);
    assert_eq!(event["reportingInstance"], "portreeve-n1");
    let metrics = http_get(PLACE, "/metrics").expect("metrics");
    assert!(metrics.contains(r#"portreeve_findings{rule="listener-on-node-port",severity="critical"} 1"#), "{metrics}");

    drop(agent);
    let agent = Agent::start(&cluster);
    until("finding again", || {
        http_get(PLACE, "/metrics")?.contains(r#"portreeve_events_total{result="deduplicated"} 1"#).then_some(())
    });
    assert_eq!(reasons(&cluster), ["ListenerOnNodePort"], "a restart writes nothing new");

    drop(squatter);
    until("resolution", || (reasons(&cluster) == ["ListenerOnNodePort", "ListenerOnNodePortResolved"]).then_some(()));
    assert_eq!(events(&cluster)[1]["type"], "Normal");
    drop(agent);
}
