//! `lint --against` compares manifests with a file of objects, with a snapshot, and with a cluster that does not
//! answer.

use std::ops::Deref;

use portreeve_facts::{Cgroup, Gap, Owner, Pod, PodContainer, Reading, Snapshot, Source, Why};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::{containers, found, lint, sentence, service, workload};
use crate::cli::{binary, ended, healthy};

const CLUSTER: &str = "kind: Service\napiVersion: v1\nmetadata: {name: web, namespace: shop, uid: u1}\nspec:\n  \
    type: NodePort\n  clusterIP: 10.96.0.10\n  ports: [{port: 80, nodePort: 30080}, {port: 81, nodePort: 31081}]\n---\n\
    kind: Pod\napiVersion: v1\nmetadata: {name: log-x, namespace: kube-system, uid: u2, ownerReferences: [{kind: DaemonSet, \
    name: log, controller: true}]}\nspec: {nodeName: n1, containers: [{ports: [{containerPort: 2020, hostPort: 2020}]}]}\n\
    ---\nkind: Service\napiVersion: v1\nmetadata: {name: kubernetes, uid: u5}\nspec: {clusterIP: 10.96.0.1, ports: [{port: 443}]}\n\
    ---\nkind: Node\nmetadata: {name: n1, uid: u3}\nstatus: {addresses: [{type: InternalIP, address: 192.0.2.1}]}\n---\n\
    kind: Node\nmetadata: {name: n2, uid: u4}\nstatus: {addresses: [{type: InternalIP, address: 192.0.2.2}]}\n";

fn write(text: &str) -> Around {
    let folder = super::folder(&[("around", text)]);
    let path = folder.path().join("around").to_str().expect("UTF-8").to_owned();
    Around { _folder: folder, path }
}

/// The file is deleted when this value is dropped.
struct Around {
    _folder: TempDir,
    path: String,
}

impl Deref for Around {
    type Target = str;

    fn deref(&self) -> &str {
        &self.path
    }
}

#[track_caller]
fn with_cluster(manifest: &str) -> Vec<String> {
    found(manifest, &["--against", &write(CLUSTER)])
}

#[test]
fn a_file_of_objects_is_no_snapshot_whatever_its_annotations_say() {
    let annotated = CLUSTER.replace("uid: u1}", "uid: u1, annotations: {note: portreeve.snapshot/v1}}");
    let lines = found(&service("api", "nodePort: 30080"), &["--against", &write(&annotated)]);
    assert_eq!(lines, ["6:32 warning node-port-claimed-twice/refused Service default/api 30080/tcp"]);
}

#[test]
fn a_number_that_the_cluster_has_is_named_with_its_owner_and_free_ones() {
    let files = [("a.yaml", service("api", "nodePort: 30080")), ("cluster.yaml", CLUSTER.to_owned())];
    let files: Vec<(&str, &str)> = files.iter().map(|(name, text)| (*name, text.as_str())).collect();
    let (code, stdout, stderr) = lint(&files, &["a.yaml", "--against", "cluster.yaml"]);
    assert_eq!((code, stderr.as_str()), (1, ""), "{stdout}");
    assert!(stdout.contains("a.yaml:6:32  WARNING  Service default/api, port 30080/tcp"), "{stdout}");
    assert!(stdout.contains("is also nodePort of shop/web: the API server refuses"), "{stdout}");
    assert!(stdout.contains("no Service has  30000, 30001, 30002"), "{stdout}");
    assert!(stdout.contains("compared with    cluster.yaml"), "{stdout}");
    assert_eq!(with_cluster(&service("api", "nodePort: 30079")), [""; 0]);
    // A problem between objects of the cluster is not a problem of the manifests.
    assert_eq!(with_cluster(&service("api", "name: x")), [""; 0]);
}

#[test]
fn a_file_that_may_lack_namespaces_is_no_whole_cluster() {
    let compared = |services: &[(&str, &str)]| {
        let item = |(namespace, name): &(&str, &str)| json!({"kind": "Service", "metadata": {"namespace": namespace, "name": name}, "spec": {"clusterIP": "10.96.0.1"}});
        let items: Vec<_> = services.iter().map(item).collect();
        let list = json!({"kind": "List", "apiVersion": "v1", "items": items}).to_string();
        let files = [("a.yaml", service("api", "nodePort: 30080")), ("list.json", list)];
        let files = files.each_ref().map(|(name, text)| (*name, text.as_str()));
        let (code, stdout, _) = lint(&files, &["a.yaml", "--against", "list.json"]);
        assert_eq!(code, 0, "{stdout}");
        let words = stdout.split_once("list.json").expect("the headline names the list").1;
        words.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let (ours, other, api) = (("shop", "web"), ("office", "db"), ("default", "kubernetes"));
    for (services, words) in [
        (&[ours][..], "(only Services of namespace shop: ports of other namespaces were not judged), without its Pods"),
        (
            &[ours, other],
            "(without Service default/kubernetes: ports of Services that the input lacks were not judged), without its Pods",
        ),
        (&[api], "(assumed: only namespace default has Services), without its Pods"),
        (&[api, ours], ", without its Pods"),
    ] {
        let said = compared(services);
        assert!(said.starts_with(words), "{services:?}: {said}");
    }
}

#[test]
fn an_object_of_the_same_name_is_an_update() {
    assert_eq!(with_cluster(&service("shop/web", "nodePort: 30080")), [""; 0]);
    assert_eq!(with_cluster(&service("other/web", "nodePort: 30080")).len(), 1);
    // If a manifest leaves out a nodePort, the port keeps its present nodePort, as long as the type of the Service has
    // NodePorts. The API server matches the ports by their names.
    let left_out = |port: &str| service("shop/web", port) + &service("api", "nodePort: 30080");
    let reported = |port: &str| with_cluster(&left_out(port));
    assert_eq!(
        reported("targetPort: 8080"),
        ["13:32 warning node-port-claimed-twice/refused Service default/api 30080/tcp"]
    );
    // kubectl's merge matches the ports by the number `port`.
    assert_eq!(reported("name: other").len(), 1);
    assert_eq!(reported("name: other, targetPort: 8080").len(), 1);
    assert_eq!(reported("nodePort: 30081"), [""; 0]);
    assert_eq!(with_cluster(&left_out("targetPort: 8080").replacen("type: NodePort", "type: ClusterIP", 1)), [""; 0]);
    let log = |port: &str| {
        workload("DaemonSet", "log", "", &containers(port)).replace("name: log", "name: log, namespace: kube-system")
    };
    assert_eq!(with_cluster(&log("containerPort: 2020, hostPort: 2020")), [""; 0]);
}

#[test]
fn a_number_that_a_service_of_the_cluster_keeps_is_refused_only_to_others() {
    let (web, api) = (service("shop/web", "nodePort: 30080"), service("api", "nodePort: 30080"));
    let line = "warning node-port-claimed-twice/refused Service default/api 30080/tcp";
    assert_eq!(with_cluster(&[&*web, &*api].concat()), [format!("13:32 {line}")]);
    assert_eq!(with_cluster(&[api, web].concat()), [format!("6:32 {line}")]);
    let both = "name: h, nodePort: 30080}, {name: d, port: 53, protocol: UDP, nodePort: 30080";
    let lines = with_cluster(&service("shop/web", both));
    let anew = " warning node-port-claimed-twice/anew Service shop/web 30080/";
    assert!(lines.len() == 2 && lines.iter().all(|line| line.contains(anew)), "{lines:?}");
    let health = "type: LoadBalancer\n  externalTrafficPolicy: Local\n  healthCheckNodePort: 30083";
    let front = service("shop/front", "nodePort: 30082").replace("type: NodePort", health);
    let api = service("api", "nodePort: 30083");
    let cluster = write(&[CLUSTER, "---\n", &front].concat());
    let line = "warning node-port-claimed-twice/refused Service default/api 30083/tcp";
    for (order, place) in [([&*front, &*api], "15:32"), ([&*api, &*front], "6:32")] {
        assert_eq!(found(&order.concat(), &["--against", &cluster]), [format!("{place} {line}")]);
    }
    let daemon = workload("DaemonSet", "edge", "", &containers("containerPort: 80, hostPort: 30083"));
    let unwritten = front.replace("\n  healthCheckNodePort: 30083", "");
    for front in [&*front, &*unwritten] {
        let lines = found(&[front, &*api, &*daemon].concat(), &["--against", &cluster]);
        let count = |variant: &str| lines.iter().filter(|it| it.contains(variant)).count();
        assert_eq!((count("claimed-twice/refused"), count("claimed-twice/pods")), (1, 1), "{lines:?}");
    }
    let cluster = write(&[CLUSTER, "---\n", &*front, &*api].concat());
    let lost = "7:24 critical node-port-claimed-twice/lost Service shop/front 30083/tcp";
    assert_eq!(found(&front, &["--against", &cluster]), [lost]);
}

#[test]
fn another_health_check_port_than_a_service_has_is_refused_and_the_service_keeps_its_numbers() {
    let front = |number: u16, node_port: u16| {
        let health = format!("type: LoadBalancer\n  externalTrafficPolicy: Local\n  healthCheckNodePort: {number}");
        service("shop/front", &format!("nodePort: {node_port}")).replace("type: NodePort", &health)
    };
    let cluster = write(&[CLUSTER, "---\n", &front(30083, 30082)].concat());
    let with = |manifests: &[&str]| found(&manifests.concat(), &["--against", &cluster]);
    let line = "7:24 warning port-field-refused/node-port Service shop/front 30084/tcp";
    let update = front(30084, 30082);
    assert_eq!(with(&[&update]), [line]);
    assert_eq!(
        sentence(&update, "port-field-refused", &["--against", &cluster]),
        "healthCheckNodePort 30084 of Service shop/front would replace 30083, which the Service has: the API server refuses the object."
    );
    assert_eq!(with(&[&front(30083, 30082)]), [""; 0]);
    assert_eq!(with(&[&update, &service("api", "nodePort: 30084")]), [line], "nobody else has this number");
    let refused =
        |number: u16| format!("15:32 warning node-port-claimed-twice/refused Service default/api {number}/tcp");
    assert_eq!(with(&[&update, &service("api", "nodePort: 30083")]), [line, &*refused(30083)]);
    let api = service("api", "nodePort: 30082");
    assert_eq!(with(&[&front(30084, 30081), &api]), [line, &*refused(30082)], "the nodePort does not move either");
    assert_eq!(with(&[&front(30083, 30081), &api]), [""; 0]);
}

#[test]
fn a_service_that_is_refused_for_a_field_of_its_own_keeps_its_numbers() {
    let web = |name: &str| {
        service("shop/web", &format!("name: a, nodePort: 30079}}, {{port: 81, name: {name}, nodePort: 31081"))
    };
    let api = service("api", "nodePort: 30080");
    assert_eq!(with_cluster(&(web("b") + &api)), [""; 0]);
    let lines = with_cluster(&(web("a") + &api));
    let refused = "13:32 warning node-port-claimed-twice/refused Service default/api 30080/tcp";
    assert!(lines.len() == 2 && lines[0].contains("port-field-refused/twice") && lines[1] == refused, "{lines:?}");
}

#[test]
fn a_service_with_a_new_number_outside_of_the_range_keeps_its_numbers() {
    let against = write(&CLUSTER.replace("31081", "8443"));
    let refused = |number: u16| {
        let web = service("shop/web", &format!("name: a, nodePort: {number}}}, {{port: 81, name: b, nodePort: 8443"));
        let both = web + &service("api", "nodePort: 30080");
        let lines = found(&both, &["--against", &against, "--node-port-range", "30000-32767"]);
        lines.iter().filter(|it| it.ends_with("claimed-twice/refused Service default/api 30080/tcp")).count()
    };
    assert_eq!((refused(30079), refused(29999)), (0, 1), "the Service has 8443 already");
}

#[test]
fn only_a_number_that_a_service_does_not_have_yet_is_in_danger_in_the_dynamic_band() {
    assert_eq!(with_cluster(&service("shop/web", "nodePort: 31081")), [""; 0]);
    let chosen = with_cluster(&service("shop/web", "nodePort: 31082"));
    assert_eq!(chosen, ["6:32 info node-port-range-mismatch/band Service shop/web 31082/tcp"]);
}

#[test]
fn the_uid_of_a_manifest_does_not_show_that_its_service_exists() {
    for (name, port, line) in [
        ("default/api", 30080, "warning node-port-claimed-twice/refused"),
        ("default/api", 40000, "warning node-port-range-mismatch/outside"),
        ("shop/web", 31082, "info node-port-range-mismatch/band"),
    ] {
        let written = service(name, &format!("nodePort: {port}")).replace("{name: ", "{uid: u, name: ");
        assert_eq!(with_cluster(&written), [format!("6:32 {line} Service {name} {port}/tcp")]);
    }
}

#[test]
fn a_number_that_another_service_loses_later_is_refused() {
    let cluster = write(&(CLUSTER.to_owned() + "---\n" + &service("shop/api", "nodePort: 30081")));
    let with = |manifests: &[&str]| found(&manifests.concat(), &["--against", &cluster]);
    let line = |place: &str, name: &str, number: u16| {
        format!("{place} warning node-port-claimed-twice/refused Service shop/{name} {number}/tcp")
    };
    let (web, api) = (service("shop/web", "nodePort: 30081"), service("shop/api", "nodePort: 30080"));
    assert_eq!(with(&[&web, &api]), [line("6:32", "web", 30081), line("13:32", "api", 30080)], "no order works");
    let front = service("shop/front", "nodePort: 30080");
    let without = service("shop/web", "name: x").replace("type: NodePort", "type: ClusterIP");
    assert_eq!(with(&[&front, &without]), [line("6:32", "front", 30080)]);
    assert_eq!(with(&[&without, &front]), [""; 0]);
    assert_eq!(
        sentence(&[front, without].concat(), "node-port-claimed-twice", &["--against", &cluster]),
        "nodePort 30080/tcp of Service shop/front is still nodePort of Service shop/web in the order of the input: the API server refuses the object."
    );
    let health = "type: LoadBalancer\n  externalTrafficPolicy: Local\n  healthCheckNodePort: 30080";
    let own = service("shop/web", "nodePort: 30082").replace("type: NodePort", health);
    assert_eq!(with(&[&own]), [line("7:24", "web", 30080)], "the Service has this number as nodePort");
}

#[test]
fn a_number_that_two_services_of_the_cluster_have_is_not_refused_to_the_one_that_keeps_it() {
    let cluster = write(&(CLUSTER.to_owned() + "---\n" + &service("shop/api", "nodePort: 30080")));
    let (web, api) = (service("shop/web", "nodePort: 30082"), service("shop/api", "nodePort: 30080"));
    for order in [[&*api, &*web], [&*web, &*api]] {
        assert_eq!(found(&order.concat(), &["--against", &cluster]), [""; 0], "{order:?}");
    }
}

#[test]
fn a_number_that_a_sibling_port_keeps_is_refused_if_nobody_chose_it() {
    let update = service("shop/web", "name: a, nodePort: 31081}, {name: b, port: 81");
    let with = |update: &str, metadata: &str| {
        let cluster = CLUSTER.replace("uid: u1}", metadata);
        let files = [("a.yaml", update), ("cluster.yaml", &cluster)];
        let (code, stdout, _) = lint(&files, &["a.yaml", "--against", "cluster.yaml", "-o", "json"]);
        (code, stdout)
    };
    let (code, stdout) = with(&update, "uid: u1}");
    assert!(code == 2 && stdout.contains("unless a person chose this number"), "{code}: {stdout}");
    let accepting = "namespace: shop, annotations: {portreeve/accept: node-port-claimed-twice}}";
    let (code, stdout) = with(&update.replace("namespace: shop}", accepting), "uid: u1}");
    assert_eq!(code, 0, "{stdout}");
    let (code, stdout) = with(
        &update,
        "uid: u1, managedFields: [{fieldsV1: {'f:spec': {'f:ports': {'k:{\"port\":81,\"protocol\":\"TCP\"}': {}}}}}]}",
    );
    assert!(code == 1 && stdout.contains("is also nodePort of shop/web port b"), "{code}: {stdout}");
}

#[test]
fn a_host_port_that_a_pod_has_is_told() {
    let other = |pods: &str| workload("DaemonSet", "ship", "", pods);
    let port = containers("containerPort: 80, hostPort: 2020");
    assert_eq!(with_cluster(&other(&port)), ["5:74 info pod-waits-for-port/pod DaemonSet default/ship 2020/tcp"]);
    let everywhere = other(&format!("{port}, tolerations: [{{operator: Exists}}]"));
    assert_eq!(with_cluster(&everywhere), ["5:74 warning pod-waits-for-port/pod DaemonSet default/ship 2020/tcp"]);
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
fn a_node_port_that_a_pod_has_is_told() {
    let with = |manifest: &str| found(manifest, &["--against", &write(CLUSTER), "--node-port-range", "2000-5000"]);
    let line = "6:32 warning node-port-claimed-twice/pods Service default/web 2020/tcp";
    assert_eq!(with(&service("web", "nodePort: 2020")), [line]);
    assert_eq!(with(&service("web", "nodePort: 2021")), [""; 0]);
    assert_eq!(with(&service("web", "protocol: UDP, nodePort: 2020")), [""; 0]);
    // The pod probably belongs to the Service, because namespace and target port are the same.
    let own_without_selector =
        |target: &str| service("kube-system/web", &format!("targetPort: {target}, nodePort: 2020"));
    let own = |target: &str| {
        with(&(own_without_selector(target).trim_end_matches("---\n").to_owned() + "  selector: {app: web}\n"))
    };
    assert!(with(&own_without_selector("8080"))[0].contains(" info "), "its endpoints may have any port");
    assert!(own("2020")[0].contains(" info node-port-claimed-twice/own "), "{:?}", own("2020"));
    assert!(own("http")[0].contains(" info node-port-claimed-twice/own "), "{:?}", own("http"));
    assert!(own("8080")[0].contains(" warning node-port-claimed-twice/pods "), "{:?}", own("8080"));
    // If the pod's workload is in the manifests, another rule reports the problem at the same field.
    let log = workload("DaemonSet", "log", "", &containers("containerPort: 2020, hostPort: 2020"));
    let log = log.replace("name: log", "name: log, namespace: kube-system");
    let lines = with(&(service("web", "nodePort: 2020") + &log));
    assert_eq!(lines, ["6:32 warning node-port-claimed-twice/pods Service default/web 2020/tcp"]);
    for (other, silent) in [
        ("hostPort: 2020", false),
        ("hostPort: 2020, hostIP: 127.0.0.1", true),
        ("hostPort: 2020, hostIP: 192.0.2.1", false),
    ] {
        let cluster = CLUSTER.replace("hostPort: 2020", other);
        let lines = found(
            &service("web", "nodePort: 2020"),
            &["--against", &write(&cluster), "--node-port-range", "2000-5000"],
        );
        assert_eq!(lines.is_empty(), silent, "{other}: {lines:?}");
    }
    let made_for = |name: &str| {
        let labels = format!(
            "name: log-x, labels: {{svccontroller.k3s.cattle.io/svcname: {name}, svccontroller.k3s.cattle.io/svcnamespace: \
             default}}"
        );
        let cluster = CLUSTER.replace("name: log-x", &labels);
        found(&service("web", "nodePort: 2020"), &["--against", &write(&cluster), "--node-port-range", "2000-5000"])
    };
    assert_eq!((made_for("web").len(), made_for("other").len()), (0, 1));
}

#[test]
fn a_range_that_the_cluster_puts_in_doubt_is_not_judged_by() {
    let cluster = CLUSTER.replace("nodePort: 31081", "nodePort: 8443");
    let folder = super::folder(&[
        ("cluster.yaml", &cluster),
        ("a.yaml", &service("shop/web", "nodePort: 8443")),
        ("plain.yaml", &workload("Deployment", "plain", "", "containers: [{name: web}]")),
    ]);
    let run = |arguments: &[&str]| {
        let mut command = binary();
        ended(command.current_dir(folder.path()).args(["lint", "a.yaml", "--against", "cluster.yaml"]).args(arguments))
    };
    let mut command = binary();
    let (code, stdout, _) =
        ended(command.current_dir(folder.path()).args(["lint", "plain.yaml", "--against", "cluster.yaml"]));
    assert_eq!(code, 0, "no port depends on the range: {stdout}");
    let (code, stdout, _) = run(&[]);
    assert!(stdout.contains("Service shop/web has nodePort 8443: name the range with --node-port-range"), "{stdout}");
    assert_eq!(code, 2, "{stdout}");
    assert!(!stdout.contains("refuses to create"), "{stdout}");
    let of_rule = |rule: &str| run(&["--rule", rule]).0;
    assert_eq!((of_rule("node-port-claimed-twice"), of_rule("node-port-range-mismatch/outside")), (0, 2));
    let (code, stdout, _) = run(&["--node-port-range", "8000-32767"]);
    assert_eq!(code, 0, "{stdout}");
}

#[test]
fn whose_a_listener_is_nobody_knows_without_pods() {
    let exporter =
        workload("DaemonSet", "exporter", "", "hostNetwork: true, containers: [{ports: [{containerPort: 30100}]}]");
    let mut world = healthy();
    let Reading::Seen(listeners) = &mut world.kernel.listeners else { panic!("listeners were recorded") };
    let mut socket = listeners.iter().find(|it| it.local_port == 10250).expect("kubelet listens").clone();
    let Owner::Held(holder) = &mut socket.owner else { panic!("the kubelet holds it") };
    holder.cgroup = Reading::Seen(Cgroup { path: "/".to_owned(), pod: None });
    socket.local_port = 30100;
    listeners.push(socket);
    let reported = |world: &Snapshot| {
        let against = write(&serde_json::to_string(world).expect("a snapshot is JSON"));
        found(&exporter, &["--against", &against]).iter().any(|it| it.contains("host-network-port-taken/listener"))
    };
    assert!(reported(&world), "no pod of the exporter is there");
    world.cluster.pods = Reading::Gap(Gap::new(Source::Pods, Why::NotRequested, "a file without Pods"));
    assert!(!reported(&world), "it may be there already");
}

#[test]
fn a_range_that_could_not_be_read_is_no_clear_result() {
    let lint_with = |why, arguments: &[&str]| {
        let mut world = healthy();
        world.cluster.node_port_range = Reading::Gap(Gap::new(Source::NodePortRange, why, "the API server"));
        let against = write(&serde_json::to_string(&world).expect("a snapshot is JSON"));
        let service = service("api", "nodePort: 30001");
        lint(&[("a.yaml", &service)], &[&["a.yaml", "--against", &against], arguments].concat())
    };
    let (code, stdout, stderr) = lint_with(Why::TimedOut, &[]);
    let words = "the API server: the NodePort range is not known, so lint assumes the default";
    assert!(code == 2 && stderr.contains(words), "{stdout}{stderr}");
    assert_eq!(lint_with(Why::TimedOut, &["--node-port-range", "30000-32767"]).0, 0);
    let (code, stdout, _) = lint_with(Why::NotPermitted, &[]);
    assert!(code == 0 && stdout.contains("30000-32767 (assumed: the default of kube-apiserver)"), "{stdout}");
}

#[test]
fn a_port_that_was_not_judged_is_no_clear_result() {
    let code_of = |world: Snapshot, metadata: &str| {
        let against = write(&serde_json::to_string(&world.service("kubernetes", |it| it)).expect("JSON"));
        let selects = service("api", "nodePort: 30099").replace("ports:", "selector: {app: x}\n  ports:");
        let selects = selects.replace("namespace: default", metadata);
        lint(&[("a.yaml", &selects)], &["a.yaml", "--against", &against])
    };
    let code = |world| code_of(world, "namespace: default");
    let two = |world: Snapshot| world.service("web", |it| it.node_port(30080)).service("dns", |it| it.node_port(30053));
    let unknown = || two(Snapshot::healthy().without_proxy());
    let (clear, stdout, _) = code(unknown());
    assert_eq!(clear, 0, "{stdout}");
    let (open, stdout, _) = code(unknown().listens("192.0.2.2:30099"));
    assert_eq!(open, 2, "in nftables mode, the proxy does not serve this address: {stdout}");
    for (accepted, wanted) in [("listener-on-node-port", 0), ("listener-on-node-port/loses", 2)] {
        let metadata = format!("annotations: {{portreeve/accept: {accepted}}}");
        let (code, stdout, _) = code_of(unknown().listens("192.0.2.2:30099"), &metadata);
        assert_eq!(code, wanted, "{accepted}: {stdout}");
    }
}

#[test]
fn a_port_that_was_not_judged_is_an_error_in_the_forms_for_pipelines() {
    let world = || {
        let world = Snapshot::healthy().without_proxy().service("web", |it| it.node_port(30080));
        world.service("dns", |it| it.node_port(30053)).service("kubernetes", |it| it)
    };
    let selects = service("api", "nodePort: 30099").replace("ports:", "selector: {app: x}\n  ports:");
    for (world, wanted) in [(world(), (0, false)), (world().listens("192.0.2.2:30099"), (2, true))] {
        let against = write(&serde_json::to_string(&world).expect("a snapshot is JSON"));
        for (form, error) in [
            ("sarif", "\"executionSuccessful\": false"),
            ("junit", "<error "),
            ("github", "::error title=listener-on-node-port"),
        ] {
            let (code, stdout, _) = lint(&[("a.yaml", &selects)], &["a.yaml", "--against", &against, "-o", form]);
            assert_eq!((code, stdout.contains(error)), wanted, "{form}: {stdout}");
        }
    }
}

#[test]
fn of_copies_of_a_service_the_first_is_compared() {
    let copy = |port: &str| service("kube-system/web", port).replace("ports:", "selector: {app: web}\n  ports:");
    let (own, other) = (copy("targetPort: 2020, nodePort: 2020"), copy("targetPort: 8080, nodePort: 2021"));
    let foreign = copy("targetPort: 8080, nodePort: 2020");
    let severities = |files: [&str; 2]| {
        let files = [("a.yaml", files[0]), ("b.yaml", files[1]), ("around", CLUSTER)];
        let arguments = ["a.yaml", "b.yaml", "--no-headers", "--against", "around", "--node-port-range", "2000-5000"];
        let (_, rows, _) = lint(
            &files,
            &[&arguments[..], &["--rule", "node-port-claimed-twice/pods", "--rule", "node-port-claimed-twice/own"]]
                .concat(),
        );
        rows.lines().map(|row| row.split(": ").nth(1).expect("a severity").to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(severities([&own, &other]), ["info"]);
    assert_eq!(severities([&other, &own]), [""; 0], "its number is that of the first copy");
    assert_eq!(severities([&foreign, &own]), ["warning", "warning"]);
    assert_eq!(severities([&own, &foreign]), ["info", "info"]);
}

#[test]
fn a_node_port_that_a_pod_of_a_snapshot_has_is_told() {
    let mut world = healthy();
    let Reading::Seen(pods) = &mut world.cluster.pods else { panic!("pods were recorded") };
    pods.push(pod("log-x", "Node", 30099).into());
    let against = write(&serde_json::to_string(&world).expect("a snapshot is JSON"));
    let selects = |port: &str| service("api", port).replace("ports:", "selector: {app: api}\n  ports:");
    let other = selects("targetPort: 8080, nodePort: 30099");
    let says = sentence(&other, "host-port-conflict/node-port", &["--against", &against]);
    assert!(says.contains("hostPort 30099/tcp of pod default/x"), "{says}");
    // The pod may belong to the Service.
    let own = [("a.yaml", &*selects("targetPort: 80, nodePort: 30099"))];
    let (_, stdout, _) = lint(&own, &["a.yaml", "--against", &against]);
    assert!(stdout.contains("host-port-conflict/node-port (EndpointSlices of Services with the name api"), "{stdout}");
}

#[test]
fn a_host_port_that_a_service_of_the_cluster_has_is_told_at_the_workload() {
    let agent = workload("DaemonSet", "agent", "", &containers("containerPort: 80, hostPort: 30080"));
    assert_eq!(with_cluster(&agent), ["5:74 warning node-port-claimed-twice/pods DaemonSet default/agent 30080/tcp"]);
    // If the manifests also have the Service, the finding appears once.
    let both = service("shop/web", "nodePort: 30080") + &agent;
    assert_eq!(with_cluster(&both), ["6:32 warning node-port-claimed-twice/pods Service shop/web 30080/tcp"]);
}

#[test]
fn more_pods_than_nodes_are_a_warning() {
    let of = |replicas: u8| {
        let replicas = format!("replicas: {replicas}, ");
        workload("Deployment", "web", &replicas, &containers("containerPort: 80, hostPort: 8080"))
    };
    assert_eq!(with_cluster(&of(3)), ["5:87 warning pod-waits-for-port/replicas Deployment default/web 8080/tcp"]);
    // During a roll-out both old pods remain, one on each of the two nodes. So a new pod finds no node.
    assert_eq!(with_cluster(&of(2)), ["5:87 warning pod-waits-for-port/replicas Deployment default/web 8080/tcp"]);
    let recreated = of(2).replace("replicas: 2, ", "replicas: 2, strategy: {type: Recreate}, ");
    assert_eq!(with_cluster(&recreated), ["5:115 info pod-waits-for-port/replicas Deployment default/web 8080/tcp"]);
}

#[test]
fn an_external_ip_is_compared_with_nodes_and_cluster_ips() {
    let of = |ip: &str| {
        let claim = format!("  externalIPs: [{ip}]\n  type: NodePort");
        service("edge", "name: x").replace("  type: NodePort", &claim)
    };
    assert_eq!(with_cluster(&of("192.0.2.2")), ["5:17 info external-ip-conflict/node-address Service default/edge"]);
    let shared = "5:17 warning external-ip-conflict/claimed-twice Service default/edge";
    assert_eq!(with_cluster(&of("10.96.0.10")), [shared]);
    assert_eq!(with_cluster(&of("192.0.2.77")), [""; 0]);
    assert_eq!(found(&of("192.0.2.2"), &[]), [""; 0]);
    let in_network =
        |network: &str| found(&of("192.0.2.2"), &["--service-cidr", "fd00::/112", "--service-cidr", network]);
    let line = "5:17 warning external-ip-conflict/cluster-ip Service default/edge";
    assert_eq!(in_network("192.0.2.0/24"), [line]);
    assert_eq!(in_network("192.0.3.0/24"), [""; 0]);
    let (code, _, stderr) = lint(&[("a.yaml", "")], &["a.yaml", "--service-cidr", "10.96.0.0/40"]);
    assert_eq!(code, 64, "{stderr}");
}

#[test]
fn a_document_has_the_time_of_a_snapshot_and_no_time_of_a_file_of_objects() {
    let world = healthy();
    let snapshot = serde_json::to_string(&world).expect("a snapshot is JSON");
    let manifest = service("api", "nodePort: 30001");
    let files = [("a.yaml", manifest.as_str()), ("node.json", snapshot.as_str()), ("cluster.yaml", CLUSTER)];
    let looked_at = |against: &str| {
        let (_, stdout, stderr) = lint(&files, &["a.yaml", "-o", "json", "--against", against]);
        let document: Value = serde_json::from_str(&stdout).unwrap_or_else(|error| panic!("{error}: {stdout}{stderr}"));
        document["lookedAt"].clone()
    };
    assert_eq!(looked_at("node.json"), format!("{:.0}", world.at));
    assert_eq!(looked_at("cluster.yaml"), Value::Null);
}

#[test]
fn a_snapshot_shows_who_listens() {
    let mut world = healthy();
    let Reading::Seen(listeners) = &mut world.kernel.listeners else { panic!("listeners were recorded") };
    listeners.last_mut().expect("the kubelet listens").local_port = 30099;
    let snapshot = write(&serde_json::to_string(&world).expect("a snapshot is JSON"));
    let against = ["--against", &*snapshot];
    let selects = |name: &str, port: &str| service(name, port).replace("ports:", "selector: {app: x}\n  ports:");
    let line = sentence(&selects("api", "nodePort: 30099"), "listener-on-node-port/loses", &against);
    assert!(
        line.contains("kubelet listens on ") && line.contains("30099/tcp, the NodePort of default/api: "),
        "{line}"
    );
    assert_eq!(found(&service("api", "nodePort: 30001"), &against), [""; 0]);
    assert_eq!(found(&service("api", "nodePort: 30080"), &against).len(), 1);
    // The manifest moves a Service of the snapshot to another nodePort, on which the kubelet listens.
    let moved = found(&selects("web", "nodePort: 30099"), &against);
    assert_eq!(moved[0], "7:32 critical listener-on-node-port/loses Service default/web 30099/tcp");
    // The Service keeps its present nodePort, and the kubelet already listens on this port.
    let Reading::Seen(listeners) = &mut world.kernel.listeners else { panic!("listeners were recorded") };
    listeners.last_mut().expect("the kubelet listens").local_port = 30080;
    let snapshot = write(&serde_json::to_string(&world).expect("a snapshot is JSON"));
    let kept = found(&selects("web", "nodePort: 30080"), &["--against", &snapshot]);
    assert_eq!(kept, ["7:32 critical listener-on-node-port/loses Service default/web 30080/tcp"]);
}

#[test]
fn a_health_check_of_a_port_that_somebody_has_is_told_and_not_one_that_nobody_serves_yet() {
    let mut world = healthy();
    let Reading::Seen(listeners) = &mut world.kernel.listeners else { panic!("listeners were recorded") };
    listeners.last_mut().expect("the kubelet listens").local_port = 30099;
    let against = write(&serde_json::to_string(&world).expect("a snapshot is JSON"));
    let checked = |port: u16| {
        let fields = format!("type: LoadBalancer\n  externalTrafficPolicy: Local\n  healthCheckNodePort: {port}");
        service("api", "name: x").replace("type: NodePort", &fields)
    };
    let line = "7:24 critical health-check-unserved/other Service default/api 30099/tcp";
    assert_eq!(found(&checked(30099), &["--against", &against]), [line]);
    assert_eq!(found(&checked(30098), &["--against", &against]), [""; 0]);
}

fn pod(controller: &str, kind: &str, host_port: u16) -> Pod {
    serde_json::from_value(json!({
        "namespace": "default", "name": "x", "uid": "0d1c", "config_hash": null, "node": "n1", "host_network": false,
        "finished": false, "ready": true, "ips": [], "ip_local_port_range": null,
        "controller": { "kind": kind, "name": controller },
        "ports": [{ "port": 80, "host_port": host_port, "host_ip": null, "protocol": "tcp" }],
    }))
    .expect("a pod")
}

#[test]
fn a_workload_that_is_updated_may_meet_its_own_listener_and_nobody_elses() {
    let mut world = healthy();
    let Reading::Seen(pods) = &mut world.cluster.pods else { panic!("pods were recorded") };
    pods.push(pod("agent", "DaemonSet", 9998).into());
    let agent = workload("DaemonSet", "agent", "", &containers("containerPort: 80, hostPort: 9999"));
    let line = ["5:74 warning host-port-conflict/takes-listener DaemonSet default/agent 9999/tcp"];
    let mut held = |cgroup: Cgroup, manifest: &str| {
        let Reading::Seen(listeners) = &mut world.kernel.listeners else { panic!("listeners were recorded") };
        let socket = listeners.last_mut().expect("the kubelet listens");
        socket.local_port = 9999;
        let Owner::Held(holder) = &mut socket.owner else { panic!("the kubelet holds it") };
        holder.cgroup = Reading::Seen(cgroup);
        found(manifest, &["--against", &write(&serde_json::to_string(&world).expect("a snapshot is JSON"))])
    };
    let of = |path: &str, pod: Option<&str>| Cgroup {
        path: path.to_owned(),
        pod: pod.map(|uid| PodContainer { pod_uid: uid.to_owned(), container: None }),
    };
    assert_eq!(held(of("/kubepods/pod0d1c", Some("0d1c")), &agent), [""; 0]);
    assert_eq!(held(of("/", None), &agent), line, "a pod with a network of its own has no socket here");
    assert_eq!(held(of("/kubepods/pod77", Some("77")), &agent), line);
    assert_eq!(held(of("/system.slice/x", None), &agent), line);
    let other = agent.replace("name: agent", "name: other");
    assert_eq!(held(of("/", None), &other).len(), 1, "who is not there yet has no listener");
    let elsewhere = agent.replace("hostPort: 9999", "hostPort: 9999, hostIP: 127.0.0.1");
    assert_eq!(
        held(of("/system.slice/x", None), &elsewhere).len(),
        1,
        "a process that listens on every address also listens on this address"
    );
}

#[test]
fn a_number_is_called_free_only_if_every_input_was_read_that_may_use_it() {
    type Change = fn(&mut Snapshot);
    fn gap(source: Source) -> Gap {
        Gap::new(source, Why::TimedOut, "no answer")
    }
    let says = |change: Change| {
        let world = Snapshot::healthy().service("web", |it| it.node_port(30080)).listens("0.0.0.0:30000");
        let mut world = world.service("kubernetes", |it| it);
        change(&mut world);
        let snapshot = serde_json::to_string(&world).expect("JSON");
        let files =
            [("a.yaml", service("api", "nodePort: 30081") + &service("b", "nodePort: 30081")), ("node.json", snapshot)];
        let files = files.each_ref().map(|(name, text)| (*name, text.as_str()));
        let (_, text, _) = lint(&files, &["a.yaml", "--against", "node.json"]);
        let words = |line: &str| Some(line.trim().strip_prefix("Evidence  ")?.trim().to_owned());
        assert!(text.contains("30081/tcp"), "{text}");
        text.lines().find_map(words).unwrap_or_default()
    };
    let (free, of_services) = ("free  30001, 30002, 30003 on node n1", "no Service has  30001, 30002, 30003");
    let inputs: [(&str, &str, Change); 13] = [
        ("nothing", free, |_| {}),
        ("EndpointSlices", free, |it| it.cluster.endpoint_slices = Reading::Gap(gap(Source::EndpointSlices))),
        ("listeners", "no Service has  30000, 30001, 30002", |it| {
            it.kernel.listeners = Reading::Gap(gap(Source::Listeners));
        }),
        ("UDP listeners", of_services, |it| it.kernel.no_udp = Some(gap(Source::Listeners))),
        ("the ephemeral range", of_services, |it| {
            it.kernel.sysctls.ip_local_port_range = Reading::Gap(gap(Source::Sysctls));
        }),
        ("reserved ports", of_services, |it| {
            it.kernel.sysctls.ip_local_reserved_ports = Reading::Gap(gap(Source::Sysctls));
        }),
        ("redirections", of_services, |it| it.kernel.netfilter = Reading::Gap(gap(Source::Netfilter))),
        ("Pods", of_services, |it| it.cluster.pods = Reading::Gap(gap(Source::Pods))),
        ("waiting Pods", of_services, |it| it.cluster.waiting_pods = Reading::Gap(gap(Source::WaitingPods))),
        ("a namespace", "no listed Service has  30001, 30002, 30003", |it| {
            let Reading::Seen(services) = &mut it.cluster.services else { panic!("Services were recorded") };
            services.retain(|it| it.name != "kubernetes");
        }),
        ("a Pod", of_services, |it| it.cluster.rejected.push(gap(Source::Pods))),
        ("a Service", "", |it| it.cluster.rejected.push(gap(Source::Services))),
        ("Services", "", |it| it.cluster.services = Reading::Gap(gap(Source::Services))),
    ];
    for (unread, wanted, change) in inputs {
        assert_eq!(says(change), wanted, "without {unread}");
    }
}

#[test]
fn a_node_port_whose_connections_an_external_ip_takes_is_told() {
    let world = Snapshot::healthy()
        .service("ext", |it| it.external_ip("192.0.2.1").with(|service| service.ports[0].port = 30001));
    let around = write(&serde_json::to_string(&world).expect("JSON"));
    let takes = "6:32 critical external-ip-conflict/takes-node-port Service default/api 30001/tcp";
    assert_eq!(found(&service("api", "nodePort: 30001"), &["--against", &around]), [takes]);
    assert_eq!(found(&service("api", "nodePort: 30002"), &["--against", &around]), [""; 0]);
}

#[test]
fn what_cannot_be_compared_with_is_no_silence() {
    let manifest = service("web", "nodePort: 30080");
    let files = [("a.yaml", manifest.as_str()), ("kubeconfig", "apiVersion: v1\nkind: Config\n"), ("empty.yaml", "")];
    let files = [&files[..], &[("none.json", r#"{"kind":"List","apiVersion":"v1","items":[]}"#)]].concat();
    for (arguments, says) in [
        (&["--against", "nowhere.yaml"][..], "--against nowhere.yaml: No such file"),
        (&["--against", "empty.yaml"], "empty.yaml: is empty"),
        (
            &["--against", "none.json"],
            "none.json: has no Service but for example List, wanted all Services of the cluster",
        ),
        (&["--against", "cluster", "--kubeconfig", "kubeconfig"], "nothing was compared with Services, Pods, Nodes"),
        (&["--against", "cluster"], "no cluster is configured"),
    ] {
        let (code, _, stderr) = lint(&files, &[&["a.yaml"], arguments].concat());
        assert_eq!(code, 2, "{arguments:?}: {stderr}");
        assert!(stderr.starts_with("error: ") && stderr.contains(says), "{arguments:?}: {stderr}");
    }
    // An unread Service may have any nodePort, so `lint` suggests no free nodePort.
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
        assert_eq!((code, stdout.matches("no Service has  3").count()), (1, free), "{arguments:?}: {stdout}");
    }
    for arguments in [
        &["--context", "x"][..],
        &["--against", "whole.yaml", "--context", "x"],
        &["--against", "whole.yaml", "--kubeconfig", "kubeconfig"],
        &["--against", "whole.yaml", "--apiserver", "https://192.0.2.1:6443"],
        &["--against", "-"],
    ] {
        let (code, _, stderr) = lint(&files, &[&["a.yaml"], arguments].concat());
        assert_eq!(code, 64, "{arguments:?}: {stderr}");
    }
}
