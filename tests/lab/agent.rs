//! `portreeve agent` with a real API server and a real kube-proxy. The agent has only the rights of the chart's roles.

use std::{collections::BTreeSet, net::TcpListener};

use serde_json::{Value, json};

use crate::parts::{
    Agent, Api, Audit, ControlPlane, PRIMARY, Proxy, Role, Wired, enter_alone, events, kubectl, objects, reasons,
    sysctl, until,
};

const SQUATTERS: &str = r#"portreeve_findings{rule="listener-on-node-port",variant="loses",severity="critical"}"#;

fn value(agent: &Agent, series: &str) -> Option<f64> {
    Agent::value(&agent.metrics(), series)
}

/// Fault (operator): the agent is killed (SIGKILL) and started again
/// Does: finds its Event by name, and writes no second Event
/// Right again: with its first scans
/// Lost: nothing
#[test]
fn a_squatter_is_an_event_on_its_service_once_and_one_more_when_it_is_gone() {
    let _wired = Wired::enter();
    let mut cluster = ControlPlane::start();
    let node = cluster.api().create(&objects::node("n1", &PRIMARY));
    let service = cluster.api().create(&objects::service("web", &[objects::port(80, Some(30080))]));
    cluster.api().create(&objects::endpoint_slice(&service, Some((Wired::HERE[0], "n1")), "IPv4"));
    Role::of_chart().grant(&mut cluster);
    let _proxy = Proxy::start(&cluster, "iptables", &json!({}));
    let agent = Agent::start(&cluster, &[]);
    assert!(events(&cluster).is_empty(), "nothing is wrong yet");

    let squatter = TcpListener::bind("0.0.0.0:30080").expect("the port is free");
    until("Event", || (reasons(&cluster) == ["ListenerOnNodePort"]).then_some(()));
    let event = &events(&cluster)[0];
    assert_eq!(event["type"], "Warning");
    assert_eq!(event["regarding"]["kind"], "Service");
    assert_eq!(event["regarding"]["uid"], service["metadata"]["uid"], "`kubectl describe` finds it by the real uid");
    assert_eq!(event["related"]["uid"], node["metadata"]["uid"]);
    assert_eq!(event["reportingInstance"], "portreeve-n1");
    assert_eq!(value(&agent, SQUATTERS), Some(1.0), "{}", agent.metrics());

    drop(agent);
    let agent = Agent::start(&cluster, &[]);
    until("finding again", || {
        (value(&agent, r#"portreeve_events_total{result="deduplicated"}"#) == Some(1.0)).then_some(())
    });
    assert_eq!(reasons(&cluster), ["ListenerOnNodePort"], "a restart writes nothing new");

    drop(squatter);
    until("resolution", || (reasons(&cluster) == ["ListenerOnNodePort", "ListenerOnNodePortResolved"]).then_some(()));
    assert_eq!(events(&cluster)[1]["type"], "Normal");
    drop(agent);
}

/// A process listens on the Service's nodePort, and the kernel may choose NodePorts for connections.
pub struct Trouble {
    pub cluster: ControlPlane,
    service: Value,
    pub squatter: TcpListener,
}

impl Trouble {
    /// Flags that give the agent the proxy mode, because no proxy runs that could report the mode.
    pub const MODE: [&str; 2] = ["--proxy-mode", "iptables"];

    #[track_caller]
    pub fn make(flags: &[String], role: &Role) -> Self {
        enter_alone();
        let mut cluster = ControlPlane::with(&flags.iter().map(String::as_str).collect::<Vec<_>>());
        cluster.api().create(&objects::node("n1", &PRIMARY));
        let service = cluster.api().create(&objects::service("web", &[objects::port(80, Some(30080))]));
        cluster.api().create(&objects::endpoint_slice(&service, Some(("10.244.0.5", "n2")), "IPv4"));
        role.grant(&mut cluster);
        sysctl("net.ipv4.ip_local_port_range", "20000 60999");
        let squatter = TcpListener::bind("0.0.0.0:30080").expect("the port is free");
        Self { cluster, service, squatter }
    }
}

fn rows<'a>(text: &'a str, head: &str) -> Vec<Vec<&'a str>> {
    let lines = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    lines.skip_while(|words| words.first() != Some(&head)).skip(1).collect()
}

/// Fault (API server): a deleted Service is made again with the same name
/// Does: writes an Event about the new Service
/// Right again: with the scan that the change starts
/// Lost: nothing
#[test]
fn kubectl_shows_events_in_its_list_and_where_it_describes_their_objects() {
    let Trouble { cluster, service, .. } = &Trouble::make(&[], &Role::of_chart());
    let _agent = Agent::start(cluster, &Trouble::MODE);
    let both: BTreeSet<_> = ["ListenerOnNodePort", "EphemeralRangeOverlap"].map(str::to_owned).into();
    until("Events", || (reasons(cluster).into_iter().collect::<BTreeSet<_>>() == both).then_some(()));

    let list = kubectl(cluster, &["get", "events", "--all-namespaces"]);
    let lines = rows(&list, "NAMESPACE");
    for (reason, object) in [("ListenerOnNodePort", "service/web"), ("EphemeralRangeOverlap", "node/n1")] {
        let line = lines.iter().find(|words| words[3] == reason).unwrap_or_else(|| panic!("no {reason}: {list}"));
        assert_eq!([line[0], line[2], line[4]], ["default", "Warning", object]);
        assert!(line.len() > 10, "a message: {list}");
    }

    let told = events(cluster);
    let note = |reason: &str| {
        let event = told.iter().find(|event| event["reason"] == reason).expect("an Event");
        let note = event["note"].as_str().expect("a note");
        note.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let shown = |object: &[&str], reason: &str| {
        let text = kubectl(cluster, &[&["describe"], object].concat());
        let lines = rows(&text, "Events:");
        let lines: Vec<_> = lines.iter().filter(|words| words.get(1) == Some(&reason)).collect();
        let [line] = lines[..] else { panic!("{} Events: {text}", lines.len()) };
        assert_eq!((line[0], line[3]), ("Warning", "portreeve"), "type and reporter: {text}");
        assert_eq!(line[4..].join(" "), note(reason), "the whole note is shown");
    };
    shown(&["service", "web"], "ListenerOnNodePort");
    shown(&["node", "n1"], "EphemeralRangeOverlap");

    // The second Service with this name has another uid. So the Event about the first Service does not belong to the
    // second Service.
    kubectl(cluster, &["delete", "service", "web"]);
    let anew = cluster.api().create(&objects::service("web", &[objects::port(80, Some(30080))]));
    assert_ne!(anew["metadata"]["uid"], service["metadata"]["uid"]);
    until("Event about the new Service", || {
        let about = |event: &Value| event["regarding"]["uid"] == anew["metadata"]["uid"];
        events(cluster).iter().find(|event| about(event)).map(drop)
    });
    shown(&["service", "web"], "ListenerOnNodePort");
}

#[test]
fn the_roles_of_the_chart_are_all_that_an_agent_needs() {
    let audit = Audit::new();
    let Trouble { cluster, .. } = &Trouble::make(&audit.flags(), &Role::of_chart());
    let agent = Agent::start(cluster, &Trouble::MODE);
    until("Events", || (events(cluster).len() == 2).then_some(()));
    cluster.api().create(&objects::service("other", &[objects::port(80, None)]));
    until("other Service", || {
        (value(&agent, r#"portreeve_node_ports{state="automatic",band="dynamic"}"#) == Some(1.0)).then_some(())
    });
    drop(agent);

    // The API server logs a request a moment after it has sent the answer.
    let has = |verb: &str, path: &str| {
        let asked = || audit.of("observer").into_iter().find(|it| it.verb == verb && it.uri.starts_with(path));
        until(path, asked)
    };
    // The first lines of a watch are the existing objects, so the agent sends no list request for them.
    for path in ["/api/v1/services", "/api/v1/pods", "/apis/discovery.k8s.io/v1/endpointslices"] {
        assert_eq!(has("watch", path).code, 200, "{path}");
    }
    for path in ["/api/v1/nodes", "/api/v1/pods?resourceVersion=0&fieldSelector=spec.nodeName%3D%2C"] {
        assert_eq!(has("list", path).code, 200, "{path}");
    }
    assert_eq!(has("create", "/apis/events.k8s.io/v1/namespaces/default/events").code, 201);
    assert_eq!(has("get", "/flagz").code, 200);
    // These objects do not exist. The code 404 shows that the role allows the request.
    for path in [
        "/api/v1/namespaces/kube-system/configmaps/kube-proxy",
        "/api/v1/namespaces/kube-system/configmaps/kubeadm-config",
        "/api/v1/namespaces/kube-system/configmaps/cilium-config",
        "/apis/crd.projectcalico.org/v1/felixconfigurations/default",
        "/apis/config.openshift.io/v1/networks/cluster",
    ] {
        assert_eq!(has("get", path).code, 404, "{path}");
    }
    let refused: Vec<_> = audit.of("observer").into_iter().filter(|it| matches!(it.code, 401 | 403)).collect();
    assert!(refused.is_empty(), "{refused:#?}");
}

/// Fault (API server): the server forbids Events
/// Does: counts the refusals, does not try again, still scans
/// Right again: metrics report all the time
/// Lost: Events
#[test]
fn an_agent_that_may_not_write_events_counts_it_and_goes_on() {
    let audit = Audit::new();
    let Trouble { cluster, .. } = &Trouble::make(&audit.flags(), &Role::of_chart().without("events"));
    let agent = Agent::start(cluster, &Trouble::MODE);
    until("failures", || (value(&agent, r#"portreeve_events_total{result="failed"}"#) == Some(2.0)).then_some(()));
    assert!(events(cluster).is_empty());
    let metrics = agent.metrics();
    assert_eq!(Agent::value(&metrics, SQUATTERS), Some(1.0), "{metrics}");
    let looks = |metrics: &str| Agent::value(metrics, "portreeve_scans_total").expect("looks");
    until("looks", || (looks(&agent.metrics()) > looks(&metrics) + 3.0).then_some(()));
    let refused = audit.of("observer").into_iter().filter(|it| it.code == 403).map(|it| it.verb);
    let mut refused: Vec<_> = refused.collect();
    refused.sort_unstable();
    assert_eq!(refused, ["create", "create"], "of the Node, and of the Service");
}

/// Fault (API server): the server forbids ConfigMaps and /flagz
/// Does: lists each rule with an unread input; the other rules still judge
/// Right again: with the first scans of an agent that starts after the refusals end
/// Lost: the findings of rules with an unread input
#[test]
fn settings_that_an_agent_may_not_read_are_listed_and_the_rest_goes_on() {
    let Trouble { cluster, .. } = &Trouble::make(&[], &Role::of_chart().without("configmaps").without("/flagz"));
    let agent = Agent::start(cluster, &Trouble::MODE);
    until("Event", || reasons(cluster).contains(&"ListenerOnNodePort".to_owned()).then_some(()));
    let findings = agent.findings();
    assert_eq!(findings["nodes"][0]["nodePortRange"]["sourceKind"], "assumed");
    let unknown = findings["unknown"].as_array().expect("a list");
    let about = |source: &str| {
        let gap = unknown.iter().find(|it| it["source"] == source);
        gap.unwrap_or_else(|| panic!("no {source}: {unknown:#?}"))
    };
    let settings = about("config-maps");
    assert_eq!(settings["why"], "not-permitted");
    assert!(settings["detail"].as_str().is_some_and(|it| it.contains("configmaps")), "{settings:#}");
    assert_eq!(about("node-port-range")["rule"], "node-port-range-crowded");

    drop(agent);
    let rules = json!([
        {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get"]},
        {"nonResourceURLs": ["/flagz"], "verbs": ["get"]},
    ]);
    let group = "rbac.authorization.k8s.io";
    let version = format!("{group}/v1");
    let meta = json!({"name": "settings"});
    cluster.api().create(&json!({"apiVersion": version, "kind": "ClusterRole", "metadata": meta, "rules": rules}));
    cluster.api().create(&json!({
        "apiVersion": version,
        "kind": "ClusterRoleBinding",
        "metadata": meta,
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "settings"},
        "subjects": [{"apiGroup": group, "kind": "User", "name": "observer"}],
    }));
    let observer = Api::unrepeated(&cluster.kubeconfig("observer"));
    until("role in force", || {
        // The ConfigMap does not exist. So *NotFound*, not *Forbidden*, shows that the user has the right.
        observer.answer("/api/v1/namespaces/kube-system/configmaps/kube-proxy").contains("NotFound").then_some(())
    });
    let agent = Agent::start(cluster, &Trouble::MODE);
    let unknown = agent.findings_after(2)["unknown"].clone();
    let refused = unknown.as_array().expect("a list").iter().filter(|it| it["source"] == "config-maps").count();
    assert_eq!(refused, 0, "{unknown:#}");
}

#[test]
fn endpoints_are_read_when_something_is_on_a_port_and_no_request_makes_an_agent_read_more() {
    let audit = Audit::new();
    let trouble = Trouble::make(&audit.flags(), &Role::of_chart());
    drop(trouble.squatter);
    let cluster = &trouble.cluster;
    let quiet = cluster.api().create(&objects::service("quiet", &[objects::port(80, Some(30081))]));
    cluster.api().create(&objects::endpoint_slice(&quiet, Some(("10.244.0.6", "n2")), "IPv4"));
    let agent = Agent::start(cluster, &Trouble::MODE);
    let asked = || {
        let asked = audit.of("observer").into_iter().map(|it| it.uri);
        asked.filter(|uri| uri.contains("endpointslices")).collect::<Vec<_>>()
    };
    let looked = agent.looks();
    until("further looks", || (agent.looks() > looked + 3).then_some(()));
    assert_eq!(asked(), [""; 0], "nothing is on a NodePort");

    for _ in 0..5 {
        let snapshot = agent.snapshot();
        assert_eq!(snapshot["cluster"]["endpoints_of"], json!([]), "it says whose endpoints it has");
    }
    let looked = agent.looks();
    until("further looks", || (agent.looks() > looked + 3).then_some(()));
    assert_eq!(asked(), [""; 0], "a person has asked");

    let squatter = TcpListener::bind("0.0.0.0:30080").expect("the port is free");
    until("finding", || (agent.found("listener-on-node-port/loses") == [30080]).then_some(()));
    let known: BTreeSet<String> =
        serde_json::from_value(agent.snapshot()["cluster"]["endpoints_of"].take()).expect("names");
    assert_eq!(known, BTreeSet::from(["web".to_owned()]));
    drop((squatter, agent));
    until("end of the watches", || asked().first().map(drop));
    assert!(asked().iter().all(|uri| uri.contains("%28web%29")), "nothing else was ever asked for: {:?}", asked());
}
