//! Manifests together with what is there: a file of objects, a snapshot, and a cluster that does not answer.

use portreeve::facts::Reading;

use super::{containers, found, lint, sentence, service, workload};
use crate::cli::healthy;

/// What a cluster has: a Service, a pod with a hostPort, and two Nodes.
const CLUSTER: &str = "kind: Service\napiVersion: v1\nmetadata: {name: web, namespace: shop, uid: u1}\nspec:\n  \
    type: NodePort\n  clusterIP: 10.96.0.10\n  ports: [{port: 80, nodePort: 30080}, {port: 81, nodePort: 31081}]\n---\n\
    kind: Pod\napiVersion: v1\nmetadata: {name: log-x, namespace: kube-system, uid: u2, ownerReferences: [{kind: DaemonSet, \
    name: log, controller: true}]}\nspec: {nodeName: n1, containers: [{ports: [{containerPort: 2020, hostPort: 2020}]}]}\n\
    ---\nkind: Node\nmetadata: {name: n1, uid: u3}\nstatus: {addresses: [{type: InternalIP, address: 192.0.2.1}]}\n---\n\
    kind: Node\nmetadata: {name: n2, uid: u4}\nstatus: {addresses: [{type: InternalIP, address: 192.0.2.2}]}\n";

/// What is found with [`CLUSTER`] around the manifest.
#[track_caller]
fn with_cluster(manifest: &str) -> Vec<String> {
    let folder = super::folder(&[("cluster.yaml", CLUSTER)]);
    let path = folder.path().join("cluster.yaml");
    found(manifest, &["--against", path.to_str().expect("UTF-8")])
}

#[test]
fn a_number_that_the_cluster_has_is_named_with_its_owner_and_free_ones() {
    let files = [("a.yaml", service("api", "nodePort: 30080")), ("cluster.yaml", CLUSTER.to_owned())];
    let files: Vec<(&str, &str)> = files.iter().map(|(name, text)| (*name, text.as_str())).collect();
    let (code, stdout, stderr) = lint(&files, &["a.yaml", "--against", "cluster.yaml"]);
    assert_eq!((code, stderr.as_str()), (1, ""), "{stdout}");
    assert!(stdout.contains("a.yaml:6:32  WARNING  Service default/api, port 30080/tcp"), "{stdout}");
    assert!(stdout.contains("is also nodePort of shop/web: the API server refuses"), "{stdout}");
    assert!(stdout.contains("free  30000, 30001, 30002"), "{stdout}");
    assert!(stdout.contains("compared with    cluster.yaml"), "{stdout}");
    assert_eq!(with_cluster(&service("api", "nodePort: 30079")), [""; 0]);
    // What is wrong in the cluster alone is not about the manifests.
    assert_eq!(with_cluster(&service("api", "name: x")), [""; 0]);
}

#[test]
fn an_object_of_the_same_name_is_an_update() {
    assert_eq!(with_cluster(&service("shop/web", "nodePort: 30080")), [""; 0]);
    assert_eq!(with_cluster(&service("other/web", "nodePort: 30080")).len(), 1);
    // It keeps the numbers that it leaves out, by the names of its ports, while it has NodePorts.
    let left_out = |port: &str| service("shop/web", port) + &service("api", "nodePort: 30080");
    let told = |port: &str| with_cluster(&left_out(port));
    assert_eq!(told("targetPort: 8080"), ["13:32 warning node-port-claimed-twice Service default/api 30080/tcp"]);
    assert_eq!(told("name: other"), [""; 0]);
    assert_eq!(told("nodePort: 30081"), [""; 0]);
    assert_eq!(with_cluster(&left_out("targetPort: 8080").replacen("type: NodePort", "type: ClusterIP", 1)), [""; 0]);
    let log = |port: &str| {
        workload("DaemonSet", "log", "", &containers(port)).replace("name: log", "name: log, namespace: kube-system")
    };
    assert_eq!(with_cluster(&log("containerPort: 2020, hostPort: 2020")), [""; 0]);
}

#[test]
fn a_host_port_that_a_pod_has_is_told() {
    let other = |pods: &str| workload("DaemonSet", "ship", "", pods);
    let port = containers("containerPort: 80, hostPort: 2020");
    assert_eq!(with_cluster(&other(&port)), ["5:74 info host-port-taken DaemonSet default/ship 2020/tcp"]);
    let everywhere = other(&format!("{port}, tolerations: [{{operator: Exists}}]"));
    assert_eq!(with_cluster(&everywhere), ["5:74 warning host-port-taken DaemonSet default/ship 2020/tcp"]);
    let some = other(&format!("{port}, tolerations: [{{operator: Exists, effect: NoSchedule}}]"));
    assert_eq!(with_cluster(&some).len(), 1);
    assert!(with_cluster(&some)[0].contains(" info "), "a node may have a taint that keeps it away");
    assert_eq!(with_cluster(&other(&format!("nodeSelector: {{pool: a}}, {port}"))), [""; 0]);
    assert_eq!(with_cluster(&other(&containers("containerPort: 80, hostPort: 2021"))), [""; 0]);
    assert_eq!(with_cluster(&workload("Deployment", "ship", "", &port)), [""; 0]);
    let udp = containers("containerPort: 80, hostPort: 2020, protocol: UDP");
    assert_eq!(with_cluster(&other(&udp)), [""; 0]);
}

#[test]
fn more_pods_than_nodes_are_a_warning() {
    let of = |replicas: u8| {
        let replicas = format!("replicas: {replicas}, ");
        workload("Deployment", "web", &replicas, &containers("containerPort: 80, hostPort: 8080"))
    };
    assert_eq!(with_cluster(&of(3)), ["5:87 warning host-port-with-replicas Deployment default/web 8080/tcp"]);
    assert_eq!(with_cluster(&of(2)), ["5:87 info host-port-with-replicas Deployment default/web 8080/tcp"]);
}

#[test]
fn an_external_ip_is_compared_with_nodes_and_cluster_ips() {
    let of = |ip: &str| {
        let claim = format!("  externalIPs: [{ip}]\n  type: NodePort");
        service("edge", "name: x").replace("  type: NodePort", &claim)
    };
    assert_eq!(with_cluster(&of("192.0.2.2")), ["5:17 warning external-ip-in-cluster Service default/edge"]);
    assert_eq!(with_cluster(&of("10.96.0.10")).len(), 1);
    assert_eq!(with_cluster(&of("192.0.2.77")), [""; 0]);
    assert_eq!(found(&of("192.0.2.2"), &[]), [""; 0]);
    let in_network =
        |network: &str| found(&of("192.0.2.2"), &["--service-cidr", "fd00::/112", "--service-cidr", network]);
    assert_eq!(in_network("192.0.2.0/24").len(), 1);
    assert_eq!(in_network("192.0.3.0/24"), [""; 0]);
    let (code, _, stderr) = lint(&[("a.yaml", "")], &["a.yaml", "--service-cidr", "10.96.0.0/40"]);
    assert_eq!(code, 64, "{stderr}");
}

#[test]
fn a_snapshot_shows_who_listens() {
    let mut world = healthy();
    let Reading::Seen(listeners) = &mut world.kernel.listeners else { panic!("listeners were recorded") };
    listeners.last_mut().expect("the kubelet listens").local_port = 30099;
    let text = serde_json::to_string(&world).expect("a snapshot is JSON");
    let folder = super::folder(&[("snapshot.json", &text)]);
    let path = folder.path().join("snapshot.json");
    let against = ["--against", path.to_str().expect("UTF-8")];
    let manifest = service("api", "nodePort: 30099");
    let line = sentence(&manifest, "listener-on-port", &against);
    assert!(
        line.contains("kubelet") && line.contains("nodePort 30099/tcp of Service default/api, on node n1"),
        "{line}"
    );
    assert_eq!(found(&service("api", "nodePort: 30001"), &against), [""; 0]);
    // The Service of the snapshot has this number.
    assert_eq!(found(&service("api", "nodePort: 30080"), &against).len(), 1);
    // An update may meet its own listener.
    let own = service("web", "nodePort: 30099");
    let lines = found(&own, &against);
    assert!(!lines.iter().any(|line| line.contains("listener-on-port")), "{lines:?}");
}

#[test]
fn what_cannot_be_compared_with_is_no_silence() {
    let manifest = service("web", "nodePort: 30080");
    let files = [("a.yaml", manifest.as_str()), ("kubeconfig", "apiVersion: v1\nkind: Config\n"), ("empty.yaml", "")];
    for (arguments, says) in [
        (&["--against", "nowhere.yaml"][..], "--against nowhere.yaml: No such file"),
        (&["--against", "empty.yaml"], "empty.yaml: holds nothing"),
        (&["--against", "cluster", "--kubeconfig", "kubeconfig"], "so nothing is compared with Services, Pods, Nodes"),
        (&["--against", "cluster"], "no cluster is configured"),
    ] {
        let (code, _, stderr) = lint(&files, &[&["a.yaml"], arguments].concat());
        assert_eq!(code, 2, "{arguments:?}: {stderr}");
        assert!(stderr.starts_with("error: ") && stderr.contains(says), "{arguments:?}: {stderr}");
    }
    // Nor is a number free that nobody has read of.
    let two = manifest.clone() + &service("api", "nodePort: 30080");
    let broken = CLUSTER.to_owned() + "---\na: [\n";
    let files = [
        ("a.yaml", two.as_str()),
        ("kubeconfig", "apiVersion: v1\nkind: Config\n"),
        ("broken.yaml", &broken),
        ("whole.yaml", CLUSTER),
    ];
    for (arguments, free) in [
        (&["--against", "cluster", "--kubeconfig", "kubeconfig"][..], 0),
        (&["--against", "broken.yaml"], 0),
        (&["--against", "whole.yaml"], 2),
    ] {
        let (code, stdout, _) = lint(&files, &[&["a.yaml"], arguments].concat());
        assert_eq!((code, stdout.matches("free  3").count()), (1, free), "{arguments:?}: {stdout}");
    }
    let (code, _, stderr) = lint(&files, &["a.yaml", "--context", "x"]);
    assert_eq!(code, 64, "{stderr}");
}
