//! The commands of each runbook. The test types the commands while the runbook's problem exists.

use std::{fs, net::TcpStream, path::Path};

use serde_json::{Value, json};

use crate::{
    chart::{INSTALL, prepare, roll_out},
    parts::{
        AGENT, ControlPlane, Reader, WholeNode, Wired, enter_alone, http_get, named::is_of, objects, reasons, sysctl,
        until,
    },
};

fn service(name: &str, more: &Value) -> Value {
    let mut spec = json!({"type": "NodePort", "selector": {"app": "web"}});
    for (key, value) in more.as_object().expect("fields") {
        spec[key] = value.clone();
    }
    json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": "shop"}, "spec": spec})
}

fn node_port(port: u16) -> Value {
    json!({"ports": [{"port": 80, "targetPort": 8080, "nodePort": port}]})
}

#[track_caller]
fn until_told(node: &WholeNode, words: &str) {
    until(words, || node.findings().filter(|text| text.contains(words)));
}

#[test]
fn what_a_runbook_has_people_type_prints_what_it_says() {
    let readme = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/runbooks/README.md"));
    assert!(readme.expect("a page").contains(&format!("{AGENT}\n")), "the pages speak of $agent");
    let mut node = WholeNode::start();
    for name in ["shop", "office"] {
        node.namespace(name);
    }
    node.cluster.api().create(&service("web", &node_port(30080)));
    node.stranger("shop", "web", &["0.0.0.0:8080", "pod"], &json!({}));
    let person = node.person();
    prepare(&person);
    person.types(INSTALL);
    roll_out(&person);
    drop(person);
    // Breaks the agent's configuration early, because the kubelet needs a minute or two to update the file. The agent
    // keeps its last valid configuration.
    let wrong = json!({"data": {"agent.yaml": "intervall: 30s\n"}});
    let map = "/api/v1/namespaces/portreeve/configmaps/portreeve";
    node.cluster.api().send("PATCH", map, "application/merge-patch+json", &wrong).expect("a patch");
    let reader = |node: &WholeNode, page: &str| Reader::of(&node.cluster).follows(page);
    for page in
        ["PortreeveAgentAbsent", "PortreeveAgentStuck", "PortreeveClusterViewStale", "PortreeveProxyFdsNearLimit"]
    {
        reader(&node, page);
    }
    for page in ["KubeProxyFdsNearLimit", "NodeFdsNearLimit", "NodeConntrackNearlyFull"] {
        reader(&node, page);
    }

    node.stranger("office", "printer", &["0.0.0.0:30080", "process"], &json!({"hostNetwork": true}));
    until("Event", || reasons(&node.cluster).contains(&"ListenerOnNodePort".to_owned()).then_some(()));
    reader(&node, "PortreeveCriticalFinding");

    node.cluster.api().create(&service("api", &node_port(31000)));
    let is_told = |text: &String| {
        let document: Value = serde_json::from_str(text).expect("JSON");
        document["findings"]
            .as_array()
            .is_some_and(|all| all.iter().any(|it| is_of(it, "node-port-range-mismatch/band")))
    };
    until("finding", || node.findings().filter(is_told));
    reader(&node, "PortreeveInfoFinding");
    reader(&node, "PortreeveNodePortRangeFilling");

    sysctl("net.ipv4.ip_local_port_range", "20000 60999");
    until("Event", || reasons(&node.cluster).contains(&"EphemeralRangeOverlap".to_owned()).then_some(()));
    reader(&node, "PortreeveWarningFinding");

    sysctl("net.ipv4.ip_local_port_range", "40000 40099");
    let connect = |_| TcpStream::connect((Wired::HERE[0], Wired::PORT)).expect("a connection");
    let connections: Vec<TcpStream> = (0..90).map(connect).collect();
    reader(&node, "PortreeveEphemeralPortsRunOut");
    drop(connections);
    sysctl("net.ipv4.ip_local_port_range", "32768 60999");

    let external = json!({"ports": [{"port": 8443, "targetPort": 8080}], "externalIPs": ["192.0.2.1"]});
    node.cluster.api().create(&service("shortcut", &external));
    reader(&node, "ServiceExternalIPIsNodeAddress");

    node.stop_proxy();
    until_told(&node, "\"unreachable\"");
    reader(&node, "PortreeveAgentBlind");

    until("word about the configuration", || {
        let metrics = http_get("192.0.2.1:29517", "/metrics")?;
        metrics.contains("portreeve_config_last_reload_successful 0").then_some(())
    });
    reader(&node, "PortreeveConfigInvalid");
}

#[test]
fn what_a_runbook_about_a_full_range_has_people_type_prints_what_it_says() {
    enter_alone();
    let cluster = ControlPlane::with(&["--service-node-port-range=30000-30001"]);
    for name in ["a", "b"] {
        cluster.api().create(&objects::service(name, &[objects::port(80, None)]));
    }
    Reader::of(&cluster).follows("NodePortRangeNearlyFull");
    let refused = cluster.api().try_create(&objects::service("c", &[objects::port(80, None)]));
    assert!(refused.is_err_and(|refusal| refusal.contains("range is full")));
    Reader::of(&cluster).follows("NodePortAllocationFails");
}
