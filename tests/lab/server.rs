//! The facts that a real API server returns to users with different rights, and the results of Portreeve.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use portreeve_cluster::{Access, Credentials, Resource, Watch, WatchTiming};
use portreeve_facts::{Family, PortRange, RangeSource, Service};
use serde_json::{Value, json};
use tokio::{sync::watch, time::timeout};

use crate::{
    look::{Look, snapshot, table},
    parts::{ControlPlane, PRIMARY, Plugin, Role, enter_alone, objects},
};

/// 128 ports. The first 16 ports are the static band.
const RANGE: PortRange = PortRange { first: 30000, last: 30127 };

#[track_caller]
pub fn small_cluster() -> ControlPlane {
    enter_alone();
    let cluster = ControlPlane::with(&["--service-node-port-range=30000-30127"]);
    cluster.api().create(&objects::node("n1", &PRIMARY));
    cluster
}

pub fn node_ports(service: &Value) -> Vec<u16> {
    let ports = service["spec"]["ports"].as_array().expect("ports").iter();
    ports.map(|port| port["nodePort"].as_u64().and_then(|it| u16::try_from(it).ok()).expect("a nodePort")).collect()
}

#[test]
fn services_endpoints_nodes_and_the_range_are_what_the_server_has() {
    let cluster = small_cluster();
    cluster.api().create(&objects::node("n2", &["192.0.2.9"]));
    let made: Vec<Value> = [("high", Some(30100)), ("low", Some(30005)), ("automatic", None)]
        .map(|(name, port)| cluster.api().create(&objects::service(name, &[objects::port(80, port)])))
        .to_vec();
    for (family, address) in [("IPv4", "10.244.0.5"), ("IPv6", "fd00:244::5")] {
        cluster.api().create(&objects::endpoint_slice(&made[2], Some((address, "n2")), family));
    }
    let mut headless = objects::service("headless", &[objects::port(80, None)]);
    headless["spec"]["type"] = json!("ClusterIP");
    headless["spec"]["clusterIP"] = json!("None");
    cluster.api().create(&headless);

    let facts = snapshot(&cluster.kubeconfig("admin")).cluster;
    let services = facts.services.seen().expect("Services");
    let services: BTreeMap<&str, &Service> = services.iter().map(|it| (it.name.as_str(), &**it)).collect();
    assert_eq!(services.keys().copied().collect::<Vec<_>>(), ["automatic", "high", "kubernetes", "low"]);
    for (service, fixed) in made.iter().zip([true, true, false]) {
        let read = services[service["metadata"]["name"].as_str().expect("a name")];
        assert_eq!(serde_json::to_value(&read.uid).expect("JSON"), service["metadata"]["uid"]);
        assert_eq!(read.ports.iter().filter_map(|port| port.node_port).collect::<Vec<_>>(), node_ports(service));
        assert_eq!(read.ports[0].fixed, Some(fixed), "{service:#}");
        assert_eq!(read.families, Family::BOTH);
        assert_eq!(json!(read.cluster_ips), service["spec"]["clusterIPs"]);
    }
    let mut slices: Vec<_> = facts.endpoint_slices.seen().expect("EndpointSlices").iter().collect();
    slices.sort_by_key(|slice| slice.family);
    assert_eq!(slices.iter().map(|slice| slice.family).collect::<Vec<_>>(), Family::BOTH);
    assert!(slices.iter().all(|it| it.service == "automatic" && it.endpoints[0].node.as_deref() == Some("n2")));
    let nodes: Vec<&str> = facts.nodes.seen().expect("Nodes").iter().map(|node| node.name.as_str()).collect();
    assert_eq!(nodes, ["n1", "n2"]);
    let range = facts.node_port_range.seen().expect("a range");
    assert_eq!((range.range, range.source), (RANGE, RangeSource::Flagz));
    assert_eq!(range.place, "https://127.0.0.1:6443/flagz");
    assert_eq!(facts.rejected, []);
}

#[test]
fn of_a_key_that_is_there_twice_kubectl_sends_the_last_and_lint_judges_the_last() {
    let cluster = small_cluster();
    let admin = Plugin::of(&cluster.kubeconfig("admin"));
    let other = admin.write("other.yaml", &objects::service("other", &[objects::port(80, Some(30006))]).to_string());
    let yaml = "apiVersion: v1\nkind: ConfigMap\nkind: Service\nmetadata: {name: first, name: last}\nspec: {type: ClusterIP}\n\
                spec:\n  type: ClusterIP\n  type: NodePort\n  ports: [{port: 80, nodePort: 30005, nodePort: 30006}]\n";
    let json = r#"{"apiVersion": "v1", "kind": "ConfigMap", "kind": "Service", "metadata": {"name": "first", "name": "last"},
        "spec": {"type": "ClusterIP"}, "spec": {"type": "ClusterIP", "type": "NodePort",
        "ports": [{"port": 80, "nodePort": 30005, "nodePort": 30006}]}}"#;
    for (name, text) in [("twice.yaml", yaml), ("twice.json", json)] {
        let file = admin.write(name, text);
        let (_, made, refusal) = admin.types(&format!("kubectl create --dry-run=server -o json -f {file}"));
        let made: Value = serde_json::from_str(&made).unwrap_or_else(|_| panic!("{name}: {refusal}"));
        assert_eq!((&made["kind"], &made["metadata"]["name"]), (&json!("Service"), &json!("last")), "{made:#}");
        assert_eq!((&made["spec"]["type"], node_ports(&made)), (&json!("NodePort"), vec![30006]), "{made:#}");
        let (code, said, error) = admin.types(&format!("kubectl portreeve lint {file} {other}"));
        assert!(code == 1 && said.contains("default/last") && error.is_empty(), "{name}: {said}{error}");
    }
}

#[test]
fn a_mapping_that_is_merged_is_for_lint_what_it_is_for_kubectl() {
    let cluster = small_cluster();
    let admin = Plugin::of(&cluster.kubeconfig("admin"));
    let other = admin.write("other.yaml", &objects::service("other", &[objects::port(80, Some(30006))]).to_string());
    for (name, port, number) in [
        ("after", "{port: 80, nodePort: 30005, <<: *six}", 30006),
        ("before", "{<<: *six, port: 80, nodePort: 30005}", 30005),
        ("several", "{port: 80, <<: [*six, *seven]}", 30006),
        ("again", "{port: 80, <<: *six, <<: *seven}", 30007),
        ("quoted", "{port: 80, nodePort: 30005, \"<<\": *six}", 30005),
        ("single", "{port: 80, nodePort: 30005, '<<': 5}", 30005),
        ("chained", "*chained", 30006),
        ("named", "*n", 30005),
    ] {
        let file = admin.write(
            &format!("{name}.yaml"),
            &format!(
                "six: &six {{nodePort: 30006}}\nseven: &seven {{nodePort: 30007}}\nchained: &chained {{port: 80, <<: *six}}\n\
             named: &n {{port: 80, nodePort: 30005, \"<<\": *six}}\napiVersion: v1\nkind: Service\n\
             metadata: {{name: {name}}}\nspec: {{type: NodePort, ports: [{port}]}}\n"
            ),
        );
        // Without `--validate=false`, the API server would refuse the unknown fields in the file.
        let words = format!("kubectl create --dry-run=server --validate=false -o json -f {file}");
        let (_, made, refusal) = admin.types(&words);
        let made: Value = serde_json::from_str(&made).unwrap_or_else(|_| panic!("{name}: {refusal}"));
        assert_eq!(node_ports(&made), [number], "{name}");
        let (code, said, error) = admin.types(&format!("kubectl portreeve lint {file} {other}"));
        assert_eq!((code, error.as_str()), (i32::from(number == 30006), ""), "{name}: {said}");
    }
}

fn watched(cluster: &ControlPlane, own: &str) -> Vec<String> {
    let access = Access {
        credentials: Credentials::Kubeconfig { paths: vec![cluster.kubeconfig("admin")], context: None },
        api_server: None,
        request_timeout: Duration::from_secs(20),
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let nodes = runtime.block_on(async {
        let (_asks, endpoints_of) = watch::channel(Arc::default());
        let (own, hostname) = (Some(own.to_owned()), "elsewhere".to_owned());
        let (_watch, mut views) =
            Watch::start(access, &Resource::ALL, own, hostname, endpoints_of, WatchTiming::default());
        let known = async {
            while views.facts().nodes.seen().is_none() {
                views.changed().await.expect("the watches run");
            }
        };
        timeout(Duration::from_secs(60), known).await.expect("in time");
        views.facts().nodes.seen().expect("Nodes").clone()
    });
    let mut told: Vec<String> = nodes
        .iter()
        .flat_map(|node| {
            let version = node.kubelet_version.as_deref().unwrap_or("?");
            node.addresses.iter().map(move |it| format!("{} {:?} {} {version}", node.name, it.kind, it.ip))
        })
        .collect();
    told.sort();
    told
}

#[test]
fn other_nodes_in_brief_are_what_they_are_as_a_whole() {
    enter_alone();
    let cluster = ControlPlane::start();
    let alone = cluster.api().create(&objects::node("alone", &["192.0.2.4"]));
    assert_eq!(watched(&cluster, "alone"), ["alone InternalIp 192.0.2.4 "]);
    cluster.api().delete(&alone);
    for (name, internal) in
        [("n1", &["192.0.2.1"][..]), ("n2", &["192.0.2.2"]), ("both", &["192.0.2.3", "2001:db8::3"])]
    {
        let mut node = objects::node(name, internal);
        node["status"]["nodeInfo"] = objects::node_info("v1.36.3");
        if name == "n2" {
            let addresses = node["status"]["addresses"].as_array_mut().expect("addresses");
            addresses.push(json!({"type": "ExternalIP", "address": "203.0.113.2"}));
        }
        cluster.api().create(&node);
    }
    let n2 = ["n2 ExternalIp 203.0.113.2 v1.36.3", "n2 InternalIp 192.0.2.2 v1.36.3"];
    // An agent reads Nodes as table rows. In a table row, a Node has one address of each kind. An agent on a node with
    // both families reads complete Nodes.
    let first = ["both InternalIp 192.0.2.3 v1.36.3", "n1 InternalIp 192.0.2.1 v1.36.3"];
    assert_eq!(watched(&cluster, "n1"), [&first[..], &n2].concat());
    let second = "both InternalIp 2001:db8::3 v1.36.3";
    assert_eq!(watched(&cluster, "both"), [&[first[0], second, first[1]][..], &n2].concat());
}

#[test]
fn a_written_port_in_the_dynamic_band_is_worth_knowing_and_no_alarm() {
    let cluster = small_cluster();
    for (name, port) in [("high", Some(30100)), ("low", Some(30005)), ("automatic", None)] {
        cluster.api().create(&objects::service(name, &[objects::port(80, port)]));
    }
    let look = Look::check(&cluster.kubeconfig("admin"));
    let findings = look.findings("node-port-range-mismatch/band");
    let told: Vec<_> = findings.iter().map(|it| (&it["subject"]["name"], &it["severity"], &it["port"])).collect();
    assert_eq!(told, [(&json!("high"), &json!("info"), &json!(30100))]);
    assert_eq!((look.alarms(), look.code), (vec![], 0));
    assert_eq!(look.json["nodes"][0]["nodePortRange"]["sourceKind"], "flagz");
}

#[test]
fn a_range_that_spills_and_fills_is_told_as_it_does() {
    let cluster = small_cluster();
    let severity = || {
        let look = Look::check(&cluster.kubeconfig("admin"));
        let findings = look.findings("node-port-range-crowded");
        findings.first().map(|it| it["severity"].as_str().expect("a severity").to_owned())
    };
    let many = |name: &str, count: u16| {
        let ports: Vec<Value> = (1..=count).map(|number| objects::port(number, None)).collect();
        objects::service(name, &ports)
    };
    let dynamic = |ports: Vec<u16>| ports.into_iter().all(|port| port >= 30016);

    assert!(dynamic(node_ports(&cluster.api().create(&many("some", 80)))));
    assert_eq!(severity(), None);
    assert!(dynamic(node_ports(&cluster.api().create(&many("more", 31)))));
    assert_eq!(severity().as_deref(), Some("warning"), "one port of the dynamic band is left");
    let spilled = node_ports(&cluster.api().create(&many("spilled", 2)));
    assert!(!dynamic(spilled), "the server had one port left in the dynamic band");
    assert_eq!(severity().as_deref(), Some("warning"));
    cluster.api().create(&many("rest", 15));
    assert_eq!(severity().as_deref(), Some("critical"));
    let refused = cluster.api().try_create(&many("late", 1)).expect_err("no port is left");
    assert!(refused.contains("range is full"), "{refused}");
}

#[test]
fn the_roles_of_the_chart_see_everything_and_nobody_else_anything() {
    let mut cluster = small_cluster();
    cluster.api().create(&objects::service("web", &[objects::port(80, None)]));
    Role::of_chart().grant(&mut cluster);

    let [everything, granted] = ["admin", "observer"].map(|user| snapshot(&cluster.kubeconfig(user)).cluster);
    assert_eq!(granted, everything);
    assert_eq!(Look::check(&cluster.kubeconfig("observer")).code, 0);

    let look = Look::check(&cluster.kubeconfig("nobody"));
    assert_eq!((look.alarms(), look.code), (vec![], 2));
    let services: Vec<_> = look.unknown().into_iter().filter(|it| it["source"] == "services").collect();
    assert!(!services.is_empty() && services.iter().all(|it| it["why"] == "not-permitted"), "{services:#?}");
    assert!(services[0]["detail"].as_str().is_some_and(|it| it.contains("forbidden")), "{services:#?}");
}

/// Fault (API server): the server does not run when `check` begins
/// Does: reports one unread source, and exits with 2
/// Right again: with the next `check`
/// Lost: the scan
#[test]
fn a_server_that_is_gone_is_one_gap_and_not_no_findings() {
    let mut cluster = small_cluster();
    let kubeconfig = cluster.kubeconfig("admin");
    assert_eq!(Look::check(&kubeconfig).code, 0);
    cluster.kill();
    let look = Look::check(&kubeconfig);
    assert_eq!((look.alarms(), look.code), (vec![], 2));
    let gaps: Vec<_> = look.unknown().into_iter().filter(|it| it["source"] == "services").collect();
    assert!(!gaps.is_empty() && gaps.iter().all(|it| it["why"] == "unreachable"), "{gaps:#?}");
    let table = table(&kubeconfig);
    assert_eq!(table.matches("https://127.0.0.1:6443").count(), 1, "{table}");
    assert!(table.contains("not everything was checked: ") && table.contains("Connection refused"), "{table}");
}
