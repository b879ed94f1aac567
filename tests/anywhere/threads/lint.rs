//! Manifests that the API server refuses. The objects of these manifests never exist, so only `lint` can find the
//! problems.

use serde_json::Value;

use super::served::{Named, Served};
use crate::{
    cli::{binary, ended},
    lint::{containers, folder, workload},
    named::is_of,
};

fn lint(manifest: &str, cluster: &str) -> String {
    let files = folder(&[("rendered.yaml", manifest), ("cluster.yaml", cluster)]);
    let arguments = ["lint", "rendered.yaml", "--against", "cluster.yaml"];
    let (code, stdout, stderr) = ended(binary().current_dir(files.path()).args(arguments));
    assert_eq!((code, stderr.as_str()), (1, ""), "{stdout}");
    // The output wraps long lines: join them.
    stdout.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn service(name: &str, uid: &str, ports: &str) -> String {
    let (namespace, name) = name.split_once('/').expect("namespace/name");
    format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: {name}, namespace: {namespace}{uid}}}\nspec:\n  type: NodePort\n  \
         ports:\n  - {ports}\n---\n"
    )
}

/// The manifest of ansible/awx-operator#814, before the operator creates the Service. `lint` prints the line of the
/// nodePort, the Service that has the same nodePort, and free nodePorts.
#[test]
fn a_number_that_somebody_has_is_found_where_it_is_written() {
    let wanted = service("awx/awx-service", "", "{name: http, port: 80, nodePort: 30080}");
    let there = service("shop/frontend", ", uid: u1", "{name: http, port: 80, nodePort: 30080}");
    let said = lint(&wanted, &there);
    assert!(said.contains("rendered.yaml:7:38 WARNING Service awx/awx-service, port 30080/tcp"), "{said}");
    assert!(said.contains("also nodePort of shop/frontend port http: the"), "{said}");
    assert!(said.contains("no listed Service has 30000, 30001, 30002"), "{said}");
}

/// The manifest of redpanda-data/helm-charts#1124. `lint` reports the problem at both ports of the Service.
#[test]
fn a_number_that_is_written_twice_is_found_at_both_places() {
    let ports = "{name: http-default, port: 8083, nodePort: 30082}\n  - {name: http-own, port: 30082, nodePort: 30082}";
    let there = service("shop/web", ", uid: u1", "{name: http, port: 80, nodePort: 30080}");
    let said = lint(&service("redpanda/redpanda-external", "", ports), &there);
    assert_eq!(said.matches(" WARNING ").count(), 2, "{said}");
    for (place, other) in [("7:48", "http-own"), ("8:45", "http-default")] {
        let title = format!("rendered.yaml:{place} WARNING Service redpanda/redpanda-external, port 30082/tcp");
        assert!(said.contains(&title), "{said}");
        assert!(said.contains(&format!("also nodePort of redpanda/redpanda-external port {other}: the API")), "{said}");
    }
}

#[test]
fn what_was_refused_is_found_where_it_is_written() {
    let of = |name: &str, ports: &str| service(name, "", ports);
    let there = |name: &str, port: u16| service(name, ", uid: u", &format!("{{name: p, port: 80, nodePort: {port}}}"));
    for (thread, manifest, cluster, says) in [
        (
            "connect-helm-charts#22",
            of("b/onepassword", "{port: 8080, nodePort: 31080}"),
            there("a/onepassword", 31080),
            "a/onepassword",
        ),
        (
            "istio#6050",
            of("istio/gateway", "{port: 80, nodePort: 31380}"),
            there("shop/backend", 31380),
            "shop/backend",
        ),
        ("KubeCube#285", of("kubecube/nginx", "{port: 80, nodePort: 30080}"), there("nginx/web", 30080), "nginx/web"),
        ("rancher#18989", of("a/app", "{port: 80, nodePort: 30500}"), there("b/app", 30500), "b/app"),
        ("velero#1950", of("istio/gateway", "{port: 80, nodePort: 30001}"), there("shop/web", 30001), "shop/web"),
        (
            "coturn-chart#75",
            of("a/tcp", "{port: 30030, nodePort: 30030}")
                + &of("a/udp", "{port: 30030, protocol: UDP, nodePort: 30030}"),
            there("shop/web", 30000),
            "a/udp",
        ),
        (
            "bitnami/charts#2564",
            of("a/mysql", "{port: 3306, nodePort: 32001}") + &of("a/mysql-slave", "{port: 3306, nodePort: 32001}"),
            there("shop/web", 30000),
            "a/mysql-slave",
        ),
        (
            "kubernetes#135439",
            of(
                "a/dns",
                "{name: u, port: 53, protocol: UDP, nodePort: 30053}\n  - {name: t, port: 5353, nodePort: 30053}",
            ),
            there("shop/web", 30000),
            "a/dns port u",
        ),
    ] {
        let said = lint(&manifest, &cluster);
        assert!(said.contains("WARNING") && said.contains("Rule node-port-claimed-twice"), "{thread}: {said}");
        assert!(said.contains(&format!("is also nodePort of {says}")), "{thread}: {said}");
    }
}

#[track_caller]
fn findings(manifest: &str) -> Vec<Value> {
    let files = folder(&[("rendered.yaml", manifest)]);
    let (_, stdout, stderr) = ended(binary().current_dir(files.path()).args(["lint", "rendered.yaml", "-o", "json"]));
    let mut document: Value = serde_json::from_str(&stdout).unwrap_or_else(|error| panic!("{error}: {stdout}{stderr}"));
    assert_eq!(document["failures"], serde_json::json!([]));
    document["findings"].as_array_mut().expect("findings").drain(..).collect()
}

/// Fails if no finding names the owner. The owner is an object of the manifest, or the kubelet.
#[track_caller]
fn finds(manifest: &str, rule: &str, severity: &str, object: &str, owner: &str) -> Named {
    let all = findings(manifest);
    let somebody = all.iter().filter_map(|it| it["object"].as_str()?.split_once(' ')).map(|(_, name)| name.to_owned());
    let somebody: Vec<String> = somebody.chain(["kubelet".to_owned()]).collect();
    let mut reported = all.iter().filter(|it| is_of(it, rule) && it["severity"] == severity && it["object"] == object);
    let reported = reported.next().unwrap_or_else(|| panic!("no {severity} {rule} of {object}: {all:#?}"));
    Named::of_finding(reported, owner, &somebody).unwrap_or_else(|why| panic!("{why}"))
}

#[track_caller]
fn finds_no(manifest: &str, rule: &str) {
    let found: Vec<Value> = findings(manifest).into_iter().filter(|it| is_of(it, rule)).collect();
    assert!(found.is_empty(), "{found:#?}");
}

/// Thread: kubernetes-sigs/network-policy-api#341
/// Symptom: a server on the host's network sometimes cannot start, because the kernel may give its ports to connections
/// Says: `ephemeral-range-overlap/workload` names the port in the manifest, and the setting that reserves the port
#[test]
fn network_policy_api_341() -> Served {
    let rule = "ephemeral-range-overlap/workload";
    let of = |port: u16| {
        let pods = format!("hostNetwork: true, {}", containers(&format!("containerPort: {port}")));
        workload("StatefulSet", "probes", "", &pods)
    };
    finds_no(&of(24_100), rule);
    finds(&of(41_200), rule, "info", "StatefulSet default/probes", "default/probes")
        .advises("reserve 41200 in net.ipv4.ip_local_reserved_ports")
}

/// Thread: dash0hq/dash0-operator#1359
/// Symptom: a chart's hostPort lies in the ephemeral range; behind Cilium, connections of other pods hang
/// Says: `ephemeral-range-overlap/workload` finds the problem in the manifest, before there is a pod
#[test]
fn dash0_operator_1359() -> Served {
    let rule = "ephemeral-range-overlap/workload";
    let of =
        |port: u16| workload("DaemonSet", "spans", "", &containers(&format!("containerPort: 4317, hostPort: {port}")));
    finds_no(&of(14_317), rule);
    finds(&of(44_317), rule, "info", "DaemonSet default/spans", "default/spans").advises("another port")
}

/// Thread: KBVE/kbve#10005
/// Symptom: each update of a game server waits forever, because the old pod keeps the hostPort on the only node
/// Says: `pod-waits-for-port/replicas` finds the problem in the manifest, and names the strategy that ends the old pod
/// first
#[test]
fn kbve_10005() -> Served {
    let rule = "pod-waits-for-port/replicas";
    let of = |strategy: &str| {
        let pods = format!(
            "nodeSelector: {{kubernetes.io/hostname: play-1}}, {}",
            containers("containerPort: 7777, hostPort: 7777")
        );
        workload("Deployment", "arena", &format!("replicas: 1, strategy: {{{strategy}}}, "), &pods)
    };
    finds_no(&of("type: Recreate"), rule);
    finds_no(&of("rollingUpdate: {maxSurge: 0, maxUnavailable: 1}"), rule);
    finds(&of("type: RollingUpdate"), rule, "warning", "Deployment default/arena", "default/arena")
        .advises("strategy `type: Recreate`, or maxSurge 0 and maxUnavailable 1")
}

/// Thread: kubernetes/kubernetes#106417
/// Symptom: each update of a DaemonSet with maxSurge waits forever, because the old pod keeps the hostPort
/// Says: `pod-waits-for-port/replicas` finds the problem in the manifest, and names the strategy that ends the old pod
/// first
#[test]
fn kubernetes_106417() -> Served {
    let rule = "pod-waits-for-port/replicas";
    let of = |surge: u16, unavailable: u16| {
        let update = format!("rollingUpdate: {{maxSurge: {surge}, maxUnavailable: {unavailable}}}");
        let pods = containers("containerPort: 8300, hostPort: 8323");
        workload("DaemonSet", "relay", &format!("updateStrategy: {{{update}}}, "), &pods)
    };
    finds_no(&of(0, 1), rule);
    finds(&of(2, 0), rule, "warning", "DaemonSet default/relay", "default/relay")
        .advises("maxSurge 0 and maxUnavailable 1")
}

/// Thread: kubernetes-sigs/karpenter#2083
/// Symptom: a pod stays Pending although new nodes are added, because a DaemonSet has the pod's hostPort on every node
/// Says: `pod-waits-for-port/workloads` finds the problem in the manifests, and names both workloads
#[test]
fn karpenter_2083() -> Served {
    let rule = "pod-waits-for-port/workloads";
    let of = |kind: &str, name: &str, port: u16| {
        workload(kind, name, "", &containers(&format!("containerPort: {port}, hostPort: {port}")))
    };
    finds_no(&(of("DaemonSet", "relay", 8300) + &of("Deployment", "broker", 8301)), rule);
    let both = of("DaemonSet", "relay", 8300) + &of("Deployment", "broker", 8300);
    finds(&both, rule, "warning", "Deployment default/broker", "default/relay")
        .advises("another port of the node than 8300")
}

/// Thread: cozystack/cozystack#3361
/// Symptom: an add-on on the host's network never runs, because it declares the kubelet's port 10250
/// Says: `host-network-port-taken/daemon` finds the problem in the manifest: the kubelet has the port on every node
#[test]
fn cozystack_3361() -> Served {
    let rule = "host-network-port-taken/daemon";
    let of = |port: u16| {
        let pods = format!("hostNetwork: true, {}", containers(&format!("containerPort: {port}")));
        workload("Deployment", "usage", "", &pods)
    };
    finds_no(&of(10_251), rule);
    finds(&of(10_250), rule, "warning", "Deployment default/usage", "kubelet").advises("another port of the node")
}

/// Thread: kubernetes/kubernetes#133564
/// Symptom: only the API server finds that a Service has one port twice, or one name twice
/// Says: `port-field-refused/twice` finds the problem in the manifest, at the port
#[test]
fn kubernetes_133564() -> Served {
    let rule = "port-field-refused/twice";
    let of = |second: &str| service("shop/till", "", &format!("{{name: a, port: 80}}\n  - {second}"));
    finds_no(&of("{name: b, port: 80, protocol: UDP}"), rule);
    finds(&of("{name: a, port: 81}"), rule, "warning", "Service shop/till", "shop/till").advises("a name of its own");
    finds(&of("{name: b, port: 80}"), rule, "warning", "Service shop/till", "shop/till").advises("another")
}
