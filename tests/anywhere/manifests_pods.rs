//! The facts that Portreeve reads from Pods: pods of this node, pods that end or crash, and pods that wait for a node.

use portreeve_facts::{ClusterFacts, Pod, Protocol, Source, WaitingPod, Why};

use crate::manifests::facts_of;

const NODE: &str = "kind: Node\nmetadata: {name: n1}\n---\n";
const REFUSED: &str = "phase: Pending, conditions: [{type: PodScheduled, status: 'False', reason: Unschedulable, \
    lastTransitionTime: '2026-03-01T10:00:00Z', message: \"0/1 nodes are available: 1 node(s) didn't have free ports \
    for the requested pod ports. preemption: not helpful\"}]";

/// A Pod with these additions to its metadata, spec and status, in YAML's flow style.
fn pod(metadata: &str, spec: &str, status: &str) -> String {
    format!("kind: Pod\nmetadata: {{name: p, namespace: d{metadata}}}\nspec: {{{spec}}}\nstatus: {{{status}}}\n")
}

fn here(metadata: &str, status: &str) -> Pod {
    let facts = facts_of(&[format!("{NODE}{}", pod(metadata, "nodeName: n1", status))]);
    assert_eq!(facts.rejected, []);
    let pods = facts.pods.get().expect("pods");
    Pod::clone(&pods[0])
}

fn waiting(facts: &ClusterFacts) -> Vec<WaitingPod> {
    let waiting = facts.waiting_pods.get().expect("an answer");
    waiting.iter().map(|pod| WaitingPod::clone(pod)).collect()
}

#[test]
fn a_pod_says_who_made_it_and_until_when_it_may_take_to_end() {
    let owners = ", ownerReferences: [{kind: Owner, name: other}, {kind: DaemonSet, name: web, controller: true}]";
    let pod = here(&format!("{owners}, deletionTimestamp: '2026-03-01T10:00:30Z'"), "");
    let controller = pod.controller.expect("a controller");
    assert_eq!((controller.kind.as_str(), controller.name.as_str()), ("DaemonSet", "web"));
    assert_eq!(pod.ends.map(|ends| ends.to_string()).as_deref(), Some("2026-03-01T10:00:30Z"));
    assert_eq!((pod.running, pod.failing, pod.service_lb_of), (None, false, None));
    let lived = here(", ownerReferences: [{kind: DaemonSet, name: web}]", "");
    assert_eq!((lived.controller, lived.ends), (None, None));
}

#[test]
fn only_the_mirror_of_a_static_pod_says_which_uid_its_cgroup_has() {
    let hash = |annotations: &str, kind: &str| {
        let owners = format!("ownerReferences: [{{kind: {kind}, name: n1, controller: true}}]");
        here(&format!(", annotations: {{kubernetes.io/config.hash: abc{annotations}}}, {owners}"), "").config_hash
    };
    let mirror = ", kubernetes.io/config.mirror: abc";
    assert_eq!(hash(mirror, "Node").as_deref(), Some("abc"));
    assert_eq!(hash("", "Node"), None);
    assert_eq!(hash(mirror, "DaemonSet"), None, "a tenant annotates his pods as he likes");
}

#[test]
fn a_pod_says_that_it_has_more_networks() {
    assert!(here(", annotations: {k8s.v1.cni.cncf.io/networks: storage}", "").more_networks);
    assert!(!here("", "").more_networks);
}

#[test]
fn on_the_hosts_network_a_probe_names_a_port_that_no_container_declares() {
    let probed = |network: &str, containers: &str| {
        let spec = format!("nodeName: n1, hostNetwork: {network}, {containers}");
        let facts = facts_of(&[format!("{NODE}{}", pod("", &spec, ""))]);
        assert_eq!(facts.rejected, []);
        let pod = facts.pods.get().expect("pods")[0].clone();
        pod.probed.iter().map(|it| (it.port, it.host_ip.map(|ip| ip.to_string()))).collect::<Vec<_>>()
    };
    let ports = "ports: [{name: web, containerPort: 80}]";
    let all = format!(
        "containers: [{{{ports}, startupProbe: {{httpGet: {{port: web}}}}, livenessProbe: {{tcpSocket: {{port: 81}}}}, \
         readinessProbe: {{grpc: {{port: 82}}}}}}]"
    );
    assert_eq!(probed("true", &all), [(81, None), (82, None)]);
    assert_eq!(probed("false", &all), [], "its ports are its own");
    let one =
        |probe: &str| probed("true", &format!("containers: [{{{ports}, livenessProbe: {{httpGet: {{{probe}}}}}}}]"));
    assert_eq!(one("port: 80"), [], "it is declared");
    assert_eq!(one("port: '83'"), [(83, None)]);
    assert_eq!(one("port: 84, host: 127.0.0.1"), [(84, Some("127.0.0.1".to_owned()))]);
    assert_eq!(one("port: 84, host: localhost"), [(84, None)]);
    for elsewhere in ["port: 84, host: 192.0.2.9", "port: 84, host: example.org", "port: 0", "port: 70000"] {
        assert_eq!(one(elsewhere), [], "{elsewhere}");
    }
    let beside = "livenessProbe: {tcpSocket: {port: 85}}";
    assert_eq!(probed("true", &format!("initContainers: [{{restartPolicy: Always, {beside}}}]")), [(85, None)]);
    assert_eq!(probed("true", &format!("initContainers: [{{{beside}}}]")), [], "it ends before the others begin");
    let probe = |port: u16| format!("{{livenessProbe: {{tcpSocket: {{port: {port}}}}}}}");
    let many: Vec<String> = (1..=40).chain(1..=40).map(probe).collect();
    assert_eq!(probed("true", &format!("containers: [{}]", many.join(","))).len(), 40);
}

#[test]
fn no_port_of_a_failing_pod_and_of_its_containers_is_left_out() {
    let ports: Vec<String> = (9001..=9020).map(|port| format!("{{containerPort: {port}}}")).collect();
    let spec =
        format!("nodeName: n1, containers: [{{name: server, ports: [{}]}}, {{name: sidecar}}]", ports.join(", "));
    let status = "phase: Running, containerStatuses: [\
                  {name: server, containerID: 'containerd://c1', ready: false, state: {terminated: {exitCode: 1}}}, \
                  {name: sidecar, containerID: 'containerd://c2', ready: true}]";
    let facts = facts_of(&[format!("{NODE}{}", pod("", &spec, status))]);
    let pod = &facts.pods.get().expect("pods")[0];
    assert_eq!(pod.own_ports.len(), 20);
    assert_eq!((pod.container_needs("c1", 9020), pod.container_needs("c2", 9020)), (Some(true), Some(false)));
}

#[test]
fn of_a_failing_pod_with_its_own_network_the_ports_of_its_servers_are_kept() {
    let own = |network: &str, state: &str, phase: &str| {
        let containers = "containers: [{ports: [{containerPort: 8000, hostPort: 80, hostIP: 192.0.2.1}, {containerPort: 53, protocol: UDP}]}, \
                          {ports: [{containerPort: 8000}], livenessProbe: {tcpSocket: {port: 9000, host: 127.0.0.1}}}]";
        let spec = format!("nodeName: n1, hostNetwork: {network}, {containers}");
        let status = format!("phase: {phase}, containerStatuses: [{{ready: false, state: {{{state}}}}}]");
        let facts = facts_of(&[format!("{NODE}{}", pod("", &spec, &status))]);
        let pod = facts.pods.get().expect("pods")[0].clone();
        let ports = pod.own_ports.iter().map(|it| (it.port, it.protocol.to_string(), it.host_port, it.host_ip));
        (ports.collect::<Vec<_>>(), pod.ports.len(), pod.probed.len())
    };
    let fails = "terminated: {exitCode: 1}";
    let tcp = |port, host_ip: Option<std::net::IpAddr>| (port, "tcp".to_owned(), None, host_ip);
    let all = vec![tcp(8000, None), (53, "udp".to_owned(), None, None), tcp(9000, Some([127, 0, 0, 1].into()))];
    assert_eq!(own("false", fails, "Running"), (all, 1, 0), "each once, and without an address of the node");
    assert_eq!(own("false", "running: {}", "Running"), (vec![], 1, 0), "nobody needs to know");
    assert_eq!(own("false", fails, "Failed"), (vec![], 1, 0), "it is not tried again");
    assert_eq!(own("true", fails, "Running").0, [], "its ports are the node's");
}

#[test]
fn an_unreadable_list_of_reserved_ports_is_none_and_a_long_one_is_not_cut() {
    let reserved = |value: &str| {
        let sysctls =
            format!("securityContext: {{sysctls: [{{name: net.ipv4.ip_local_reserved_ports, value: '{value}'}}]}}");
        let facts = facts_of(&[format!("{NODE}{}", pod("", &format!("nodeName: n1, {sysctls}"), ""))]);
        let read = facts
            .pods
            .get()
            .expect("pods")
            .first()
            .and_then(|pod| pod.ip_local_reserved_ports.as_ref()?.to_string().into());
        (read, facts.rejected.len())
    };
    assert_eq!(reserved("8000,9000-9009"), (Some("8000,9000-9009".to_owned()), 0));
    assert_eq!(reserved("all of them"), (None, 1));
    let long: Vec<String> = (0..60).map(|it| (10_000 + 2 * it).to_string()).collect();
    assert_eq!(reserved(&long.join(",")), (None, 1));
}

#[test]
fn the_labels_of_service_lb_name_the_service() {
    for program in ["k3s", "rke2"] {
        let label = |key: &str, value: &str| format!("svccontroller.{program}.cattle.io/{key}: {value}");
        let labels = format!(", labels: {{{}, {}}}", label("svcname", "web"), label("svcnamespace", "shop"));
        let of = |namespace: &str, labels: &str| {
            let pod = pod(labels, "nodeName: n1", "").replace("namespace: d", &format!("namespace: {namespace}"));
            facts_of(&[format!("{NODE}{pod}")]).pods.get().expect("pods")[0].service_lb_of.clone()
        };
        assert_eq!(of("kube-system", &labels).expect("a Service").to_string(), "shop/web");
        assert_eq!(of("kube-system", &format!(", labels: {{{}}}", label("svcname", "web"))), None);
        assert_eq!(of("tenant", &labels), None, "a tenant labels his pods as he likes");
    }
}

#[test]
fn containers_show_whether_a_pod_runs_and_whether_it_fails() {
    let states = |list: &str| {
        let pod = here("", &format!("containerStatuses: [{list}]"));
        (pod.running, pod.failing)
    };
    assert_eq!(states("{ready: true, state: {running: {startedAt: null}}}"), (Some(true), false));
    assert_eq!(states("{ready: false, state: {waiting: {reason: ContainerCreating}}}"), (Some(false), false));
    let crashes =
        "{ready: false, state: {waiting: {reason: CrashLoopBackOff}}, lastState: {terminated: {exitCode: 1}}}";
    assert_eq!(states(crashes), (Some(false), true));
    assert_eq!(states(&format!("{{ready: true, state: {{running: {{}}}}}}, {crashes}")), (Some(true), true));
    assert_eq!(states("{ready: false, state: {terminated: {exitCode: 2}}}"), (Some(false), true));
    assert_eq!(states("{ready: false, state: {terminated: {exitCode: 0}}}"), (Some(false), false));
    let beside = |state: &str| {
        let init = format!("initContainerStatuses: [{{ready: false, state: {{{state}: {{exitCode: 1}}}}}}]");
        let pod = here("", &format!("containerStatuses: [{crashes}], {init}"));
        (pod.running, pod.failing)
    };
    assert_eq!(beside("running"), (Some(true), true), "an init container that runs beside the others");
    assert_eq!(beside("terminated"), (Some(false), true));
    let recovered = "{ready: true, state: {running: {}}, lastState: {terminated: {exitCode: 1}}}";
    assert_eq!(states(recovered), (Some(true), false));
    let restarted = |list: &str| here("", &format!("containerStatuses: [{list}]")).restarted.map(|at| at.to_string());
    let again = recovered.replace("ready: true", "ready: false").replace("{}", "{startedAt: '2026-03-01T10:00:00Z'}");
    assert_eq!(restarted(&again).as_deref(), Some("2026-03-01T10:00:00Z"));
    assert_eq!(restarted(&format!("{again}, {crashes}")), None, "one of them does not run");
    assert_eq!(restarted(recovered), None);
}

#[test]
fn of_init_containers_those_that_run_beside_the_others_have_ports() {
    let init = "initContainers: [{ports: [{containerPort: 1, hostPort: 1}]}, \
                {restartPolicy: Always, ports: [{containerPort: 2, hostPort: 2}]}, \
                {restartPolicy: OnFailure, ports: [{containerPort: 3, hostPort: 3}]}]";
    let spec = format!("nodeName: n1, containers: [{{ports: [{{containerPort: 80, hostPort: 80}}]}}], {init}");
    let facts = facts_of(&[format!("{NODE}{}", pod("", &spec, ""))]);
    let pod = &facts.pods.get().expect("pods")[0];
    assert_eq!(pod.ports.iter().filter_map(|port| port.host_port).collect::<Vec<_>>(), [80, 2]);
}

#[test]
fn a_pod_that_is_refused_for_its_ports_waits_and_is_on_no_node() {
    let spec = "hostNetwork: true, containers: [{ports: [{containerPort: 80}, {containerPort: 81, hostPort: 81, protocol: UDP}]}]";
    let facts = facts_of(&[format!("{NODE}{}", pod(", uid: u", spec, REFUSED))]);
    assert_eq!(facts.rejected, []);
    assert_eq!(facts.pods.get().map(Vec::len), Ok(0));
    let [pod] = &waiting(&facts)[..] else { panic!("{facts:#?}") };
    assert_eq!((pod.namespace.as_str(), pod.name.as_str(), pod.uid.as_deref()), ("d", "p", Some("u")));
    assert_eq!(pod.since.map(|since| since.to_string()).as_deref(), Some("2026-03-01T10:00:00Z"));
    let ports: Vec<_> = pod.ports.iter().map(|port| (port.host_port, port.protocol)).collect();
    assert_eq!(ports, [(Some(80), Protocol::Tcp), (Some(81), Protocol::Udp)]);
    assert_eq!(pod.meant_for, None);
}

#[test]
fn a_pod_that_waits_for_something_else_is_nowhere_and_one_without_a_status_may_be_here() {
    // The files have no Node of this host, so Portreeve does not know which pods are on this host.
    let other = "phase: Pending, conditions: [{type: PodScheduled, status: 'False', message: 0/1 nodes are available}]";
    let scheduled = REFUSED.replace("'False'", "'True'");
    for status in ["phase: Pending", other, scheduled.as_str()] {
        let facts = facts_of(&[pod("", "", status), pod(", uid: here", "nodeName: n1", "")]);
        let pods = facts.pods.get().expect("pods");
        assert_eq!(pods.iter().filter_map(|pod| pod.uid.as_deref()).collect::<Vec<_>>(), ["here"], "{status}");
        assert_eq!((pods.len(), waiting(&facts).len()), (1, 0), "{status}");
        let wants = |network: &str| {
            let containers = "containers: [{ports: [{containerPort: 80, hostPort: 10000}, {containerPort: 81}], \
                              livenessProbe: {tcpSocket: {port: 82}}}]";
            let spec = format!("hostNetwork: {network}, {containers}");
            facts_of(&[pod(", uid: u", &spec, status)]).pending_ports.to_string()
        };
        assert_eq!((wants("false").as_str(), wants("true").as_str()), ("10000", "81-82,10000"), "{status}");
    }
    for status in ["", "phase: Running"] {
        assert_eq!(facts_of(&[pod("", "", status)]).pods.get().map(Vec::len), Ok(1), "{status}");
    }
    let pending_here = facts_of(&[pod("", "nodeName: n1", REFUSED)]);
    assert_eq!((pending_here.pods.get().map(Vec::len), waiting(&pending_here).len()), (Ok(1), 0));
}

#[test]
fn the_only_node_that_a_pod_may_run_on_is_in_its_affinity() {
    let meant_for = |terms: &str| {
        let affinity = format!(
            "affinity: {{nodeAffinity: {{requiredDuringSchedulingIgnoredDuringExecution: {{nodeSelectorTerms: [{terms}]}}}}}}"
        );
        let facts = facts_of(&[pod("", &affinity, REFUSED)]);
        assert_eq!(facts.rejected, []);
        waiting(&facts).remove(0).meant_for
    };
    let named = |key: &str, operator: &str, values: &str| {
        format!("{{matchFields: [{{key: {key}, operator: {operator}, values: [{values}]}}]}}")
    };
    let one = named("metadata.name", "In", "n1");
    assert_eq!(meant_for(&one).as_deref(), Some("n1"));
    assert_eq!(meant_for(&format!("{one}, {one}")).as_deref(), Some("n1"));
    for terms in [
        String::new(),
        named("metadata.name", "NotIn", "n1"),
        named("metadata.namespace", "In", "n1"),
        named("metadata.name", "In", "n1, n2"),
        format!("{one}, {}", named("metadata.name", "In", "n2")),
        format!("{one}, {{matchExpressions: []}}"),
    ] {
        assert_eq!(meant_for(&terms), None, "{terms}");
    }
    // If a pod can run only on another node, the facts of this node do not include the pod.
    let affinity = |node: &str| {
        let terms = named("metadata.name", "In", node);
        let required = format!("requiredDuringSchedulingIgnoredDuringExecution: {{nodeSelectorTerms: [{terms}]}}");
        let facts =
            facts_of(&[format!("{NODE}{}", pod("", &format!("affinity: {{nodeAffinity: {{{required}}}}}"), REFUSED))]);
        waiting(&facts).len()
    };
    assert_eq!([affinity("n1"), affinity("n2")], [1, 0]);
}

#[test]
fn a_host_name_in_a_selector_and_a_nomination_say_the_node_too() {
    let meant_for = |spec: &str, status: &str| {
        let facts = facts_of(&[pod("", spec, status)]);
        assert_eq!(facts.rejected, []);
        waiting(&facts).remove(0).meant_for
    };
    let selector = "nodeSelector: {disk: ssd, kubernetes.io/hostname: n1}";
    assert_eq!(meant_for(selector, REFUSED).as_deref(), Some("n1"));
    assert_eq!(meant_for("nodeSelector: {disk: ssd}", REFUSED), None);
    let term = "{matchExpressions: [{key: disk, operator: Exists}, \
                {key: kubernetes.io/hostname, operator: In, values: [n1]}]}";
    let required = format!("requiredDuringSchedulingIgnoredDuringExecution: {{nodeSelectorTerms: [{term}]}}");
    assert_eq!(meant_for(&format!("affinity: {{nodeAffinity: {{{required}}}}}"), REFUSED).as_deref(), Some("n1"));
    assert_eq!(meant_for("", &format!("{REFUSED}, nominatedNodeName: n2")).as_deref(), Some("n2"));
    assert_eq!(meant_for("", &format!("{REFUSED}, nominatedNodeName: --all")), None, "it is no name");
}

#[test]
fn the_scheduler_says_whether_each_node_lacks_the_port() {
    let everywhere = |counts: &str| {
        let status = REFUSED.replace("0/1 nodes are available: 1 node(s)", counts);
        waiting(&facts_of(&[pod("", "", &status)])).remove(0).everywhere
    };
    assert!(everywhere("0/1 nodes are available: 1 node(s)") && everywhere("0/12 nodes are available: 12 node(s)"));
    assert!(everywhere("0/3 nodes are available: 3 node(s)"));
    assert!(!everywhere("0/3 nodes are available: 1 node(s)"));
    assert!(!everywhere("0/3 nodes are available: 2 node(s) had untolerated taint {a: }, 1 node(s)"));
}

#[test]
fn a_pod_that_the_kubelet_refuses_for_its_ports_is_one_that_waits() {
    let spec = "nodeName: n1, containers: [{ports: [{containerPort: 80, hostPort: 80}]}]";
    let read = |reason: &str| {
        let status = format!("phase: Failed, reason: {reason}, startTime: '2026-03-01T10:00:00Z'");
        facts_of(&[format!("{NODE}{}", pod(", uid: u", spec, &status))])
    };
    let [pod] = &waiting(&read("NodePorts"))[..] else { panic!("{:#?}", read("NodePorts")) };
    assert!(pod.rejected && pod.meant_for.as_deref() == Some("n1") && pod.since.is_some(), "{pod:?}");
    let evicted = read("Evicted");
    assert_eq!((waiting(&evicted).len(), evicted.pods.get().map(Vec::len)), (0, Ok(1)));
}

#[test]
fn a_pod_that_a_person_wrote_may_run_on_every_node() {
    let facts = facts_of(&[format!("{NODE}{}", pod("", "", "")), pod(", uid: u", "", "phase: Running")]);
    assert_eq!(facts.pods.get().map(Vec::len), Ok(1), "one of the API server is on its node");
}

#[test]
fn without_a_pod_nobody_knows_which_ones_wait() {
    let facts = facts_of(&[NODE]);
    let gap = facts.waiting_pods.gap().expect("a gap");
    assert_eq!((gap.source, gap.why), (Source::WaitingPods, Why::NotRequested));
    let one = facts_of(&[pod("", "nodeName: n1", "")]);
    assert_eq!(waiting(&one), []);
}

#[test]
fn a_wrong_time_is_named_and_loses_no_other_pod() {
    let other = pod("", "nodeName: n1", "").replace("name: p", "name: other");
    let facts = facts_of(&[format!("{NODE}{}---\n{other}", pod(", deletionTimestamp: soon", "nodeName: n1", ""))]);
    let names = facts.pods.get().expect("pods").iter().map(|pod| pod.name.clone()).collect::<Vec<_>>();
    assert_eq!(names, ["other"]);
    assert!(facts.rejected[0].detail.ends_with(r#"metadata.deletionTimestamp is "soon", wanted a time"#), "{facts:#?}");
}

#[test]
fn of_a_failing_pod_on_the_hosts_network_ids_of_containers_and_what_they_said_is_kept() {
    let spec = "nodeName: n1, hostNetwork: true, containers: [{name: a, ports: [{containerPort: 8162}], livenessProbe: {tcpSocket: \
                {port: 8163}}}, {name: b, ports: [{containerPort: 61678}]}]";
    let status = |code: u8, second: &str| {
        format!(
            "phase: Running, conditions: [{{type: Ready, status: 'False'}}], containerStatuses: [{{name: a, ready: false, \
             containerID: 'containerd://aa', state: {{waiting: {{reason: CrashLoopBackOff}}}}, lastState: {{terminated: {{exitCode: \
             {code}, message: 'listen tcp 127.0.0.1:50052: bind: address already in use'}}}}}}{second}]"
        )
    };
    let read = |spec: &str, status: &str| {
        let facts = facts_of(&[format!("{NODE}{}", pod(", uid: u", spec, status))]);
        assert_eq!(facts.rejected, []);
        let pod = Pod::clone(&facts.pods.get().expect("pods")[0]);
        let containers = pod.containers.into_iter().map(|it| (it.id, it.ports)).collect::<Vec<_>>();
        (
            containers,
            pod.reported_in_use.iter().map(|it| (it.host_ip.map(|ip| ip.to_string()), it.port)).collect::<Vec<_>>(),
        )
    };
    let second = ", {name: b, ready: true, containerID: 'containerd://bb', state: {running: {}}}";
    let ids = vec![("aa".to_owned(), vec![8162, 8163]), ("bb".to_owned(), vec![61678])];
    let said = vec![(Some("127.0.0.1".to_owned()), 50052)];
    assert_eq!(read(spec, &status(1, second)), (ids.clone(), said.clone()));
    assert_eq!(read(spec, &status(1, "")), (vec![], said), "one container has no other");
    assert_eq!(read(spec, &status(0, second)), (ids.clone(), vec![]), "it ended well");
    let own = spec.replace("hostNetwork: true, ", "");
    assert_eq!(read(&own, &status(1, second)), (ids, vec![]), "an address of its own network");
    assert_eq!(read(&own, &status(0, second)), (vec![], vec![]));
    let ready = status(1, second).replace("'False'", "'True'").replace("exitCode: 1", "exitCode: 0");
    assert_eq!(read(spec, &ready), (vec![], vec![]));
}
