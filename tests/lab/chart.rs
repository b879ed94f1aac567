//! The chart, installed as its README says, with the image of the Dockerfile, on a node that runs pods.

use std::{
    collections::BTreeSet,
    fs,
    net::{SocketAddr, TcpListener},
    path::Path,
    thread,
    time::Duration,
};

use serde_json::{Value, json};

use crate::parts::{
    Answer, ControlPlane, PORTREEVE, Person, Plugin, WholeNode, ask, enter_alone, events, reasons, until,
};

/// The chart's README has these commands for the namespace.
const PREPARE: [&str; 2] = [
    "kubectl create namespace portreeve",
    "kubectl label namespace portreeve pod-security.kubernetes.io/enforce=privileged",
];
pub const INSTALL: &str =
    "helm install portreeve deploy/chart -n portreeve --set image.repository=registry.example/portreeve";
/// Grants the user `observer` only the rights that `kubectl portreeve` needs.
const READER: &str = "--set reader.create=true --set reader.subjects[0].kind=User \
                      --set reader.subjects[0].apiGroup=rbac.authorization.k8s.io --set reader.subjects[0].name=observer";
pub const UNINSTALL: &str = "helm uninstall portreeve -n portreeve";
pub const UPGRADE: &str = "helm upgrade portreeve deploy/chart -n portreeve --reset-then-reuse-values";
/// Installs the chart of the commit c2f01163. This copy lacks the README and the files that the defaults leave out:
/// dashboards, alerts and policies.
pub const INSTALL_BEFORE: &str = "helm install portreeve tests/lab/chart-before -n portreeve";

pub const PLACE: &str = "192.0.2.1:29517";

pub fn prepare(person: &Person<'_>) {
    for line in PREPARE {
        person.types(line);
    }
}

/// Waits until the newly installed agent is ready: an agent is ready after its first scan.
pub fn roll_out(person: &Person<'_>) {
    person.types("kubectl -n portreeve rollout status daemonset/portreeve --timeout=2m");
}

#[track_caller]
fn has_status(node: &WholeNode, pid: u32, wanted: &[&str]) {
    let status = fs::read_to_string(node.machine.file(&format!("/proc/{pid}/status"))).expect("a process");
    for line in wanted {
        assert!(status.lines().any(|it| it == *line), "{line}: {status}");
    }
}

/// A process listens on a nodePort. Two commands without an agent must find the process: the command of docs/try.md,
/// and the command that `owner --no-agent` prints.
#[track_caller]
fn found_without_an_agent(node: &WholeNode, port: u64) {
    let person = node.person();
    let page = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/try.md")).expect("a page");
    let line = page.split("```").nth(1).and_then(|it| it.strip_prefix("console\n")).expect("its first command");
    let line = line.replace("NODE", "n1").replace("IMAGE", PORTREEVE);
    let found = person.pipes(&line);
    for words in ["listener-on-node-port/loses", "Service shop/web"] {
        assert!(found.contains(words), "{line}{found}");
    }
    // Starts the same debug pod with a program that keeps running, so that the test can read the rights of the process.
    let (_, debug) = line.split_once("| ").expect("a pipe");
    let stays = debug.replace(" -i ", " ").replace("check --services -", "agent --listen 127.0.0.1:29600");
    assert_ne!(stays, debug);
    person.pipes(&stays);
    let is_it = |words: &Vec<String>| words[0] == "/portreeve" && words.iter().any(|word| word.ends_with(":29600"));
    let pid = until("process", || Some(node.machine.processes().into_iter().find(|(_, words)| is_it(words))?.0));
    has_status(node, pid, &["Uid:\t65534\t65534\t65534\t65534", "CapEff:\t0000000000000000"]);
    let pods = person.types("kubectl get pods -o name");
    assert_eq!(pods.matches("pod/node-debugger-n1-").count(), 2, "{pods}");
    for pod in pods.lines() {
        person.types(&format!("kubectl delete --now {pod}"));
    }

    let asked = format!("kubectl portreeve owner {port}/tcp --no-agent --node n1 --image {PORTREEVE}");
    let (code, text, error) = Plugin::of(&node.cluster.kubeconfig("admin")).types(&asked);
    assert_eq!(code, 0, "{error}");
    let found = person.pipes(text.lines().last().expect("a command"));
    for words in ["node-port, ", "listener, ", "who answers"] {
        assert!(found.contains(words), "{text}{found}");
    }
    assert!(!person.types("kubectl -n portreeve get pods").contains("portreeve-look"), "it deletes its pod");
}

fn agents(node: &WholeNode) -> Vec<u32> {
    let processes = node.machine.processes().into_iter();
    let ours = processes.filter(|(_, words)| words[0] == "/portreeve" && !words.iter().any(|word| word == "--probe"));
    ours.map(|(pid, _)| pid).collect()
}

#[track_caller]
fn the_agent(node: &WholeNode) -> u32 {
    match agents(node)[..] {
        [pid] => pid,
        _ => panic!("{:?}", node.machine.processes()),
    }
}

pub fn told(node: &WholeNode) -> Option<Value> {
    Some(serde_json::from_str(&node.findings()?).expect("JSON"))
}

fn not_permitted(told: &Value) -> BTreeSet<&str> {
    let unknown = told["unknown"].as_array().expect("a list").iter();
    unknown.filter(|it| it["why"] == "not-permitted").filter_map(|it| it["source"].as_str()).collect()
}

/// Returns the Service, and the nodePort that the API server chose.
pub(crate) fn served(node: &WholeNode) -> (Value, u64) {
    let service = node.cluster.api().create(&json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "web", "namespace": "shop"},
        "spec": {"type": "NodePort", "selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": 8080}]},
    }));
    node.stranger("shop", "web", &["0.0.0.0:8080", "pod"], &json!({"nodeName": "n1"}));
    let port = service["spec"]["ports"][0]["nodePort"].as_u64().expect("a nodePort");
    (service, port)
}

/// Installs the chart with the reader, a user who may read the agents. On each of two nodes, a pod then listens on a
/// Service's nodePort. Returns the nodePort.
pub(crate) fn an_incident_on_each_node(node: &WholeNode) -> u64 {
    for name in ["shop", "office"] {
        node.namespace(name);
    }
    let person = node.person();
    prepare(&person);
    person.types(&format!("{INSTALL} {READER}"));
    roll_out(&person);
    let (_, port) = served(node);
    for (name, place) in [("printer", "n1"), ("scanner", "n2")] {
        let more = json!({"hostNetwork": true, "nodeName": place});
        node.stranger("office", name, &[&format!("0.0.0.0:{port}"), "process"], &more);
    }
    port
}

#[test]
fn the_squatting_pod_is_named_without_a_capability_and_its_process_with_the_attribution_profile() {
    let node = WholeNode::start();
    for name in ["shop", "office"] {
        node.namespace(name);
    }
    let (service, port) = served(&node);
    let address: SocketAddr = format!("192.0.2.1:{port}").parse().expect("an address");
    let who_answers = || node.wired.client.run(move || ask(address));
    until("answer of the pod", || (who_answers() == Answer::Pod).then_some(()));

    let person = node.person();
    prepare(&person);
    let notes = person.types(INSTALL);
    roll_out(&person);
    let commands: Vec<&str> = notes.lines().map(str::trim).filter(|line| line.starts_with("kubectl ")).collect();
    assert_eq!(commands.len(), 4, "{notes}");
    for command in commands {
        person.types(command);
    }
    has_status(
        &node,
        the_agent(&node),
        &["Uid:\t65534\t65534\t65534\t65534", "CapPrm:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2"],
    );
    assert!(events(&node.cluster).is_empty(), "nothing is wrong yet");

    let arguments = [format!("0.0.0.0:{port}"), "process".to_owned()];
    node.stranger("office", "printer", &arguments.each_ref().map(String::as_str), &json!({"hostNetwork": true}));
    assert_eq!(who_answers(), Answer::Pod, "the Service takes what is meant for the printer");
    until("Event", || (reasons(&node.cluster) == ["ListenerOnNodePort"]).then_some(()));
    let event = &events(&node.cluster)[0];
    assert_eq!(event["regarding"]["uid"], service["metadata"]["uid"]);
    let note = format!(
        "On node n1: Pod office/printer listens on 0.0.0.0:{port}/tcp, the NodePort of shop/web: new connections go to the \
         Service's pods instead. All affected nodes: `kubectl portreeve check -n shop --rule listener-on-node-port/loses -o wide` \
         (at most five nodes write an Event in an hour). Who answers on the port: `kubectl portreeve owner {port}/tcp \
         --node n1`. Remedy: move pod office/printer off port {port}/tcp"
    );
    assert_eq!(event["note"], json!(note));

    let listed = person.types("kubectl get events -A");
    let line = listed.lines().find(|line| line.ends_with(&note)).unwrap_or_else(|| panic!("{listed}"));
    let words: Vec<&str> = line.split_whitespace().collect();
    assert_eq!((words[0], &words[2..5]), ("shop", &["Warning", "ListenerOnNodePort", "service/web"][..]));
    let described = person.types("kubectl describe service web -n shop");
    let line = described.lines().find(|line| line.ends_with(&note)).unwrap_or_else(|| panic!("{described}"));
    let words: Vec<&str> = line.split_whitespace().collect();
    assert_eq!((&words[..2], words[3]), (&["Warning", "ListenerOnNodePort"][..], "portreeve"));
    let with_minimal = told(&node).expect("an answer");
    assert!(with_minimal.to_string().contains("only processes of this pid namespace are visible"));
    let hidden = ["netfilter", "pod-namespaces", "processes", "proxy-process"];
    assert_eq!(not_permitted(&with_minimal), BTreeSet::from(hidden));
    found_without_an_agent(&node, port);

    person.types(&format!("{UPGRADE} --set profile=attribution"));
    roll_out(&person);
    let with_attribution = until("name of the process", || {
        told(&node).filter(|told| told["findings"][0]["evidence"].to_string().contains(r#""stranger (pid "#))
    });
    assert_eq!(not_permitted(&with_attribution), BTreeSet::from(["netfilter"]));

    person.types(&format!("{UPGRADE} --set profile=netfilter"));
    roll_out(&person);
    let with_netfilter = until("finding", || told(&node).filter(|told| told["findings"][0].is_object()));
    assert_eq!(with_netfilter["unknown"], json!([]), "this profile sees everything");
}

/// All objects of the cluster, except Events and the leases that kubelets renew.
pub(crate) fn objects(person: &Person<'_>) -> BTreeSet<String> {
    let kinds = person.types("kubectl api-resources --verbs=list -o name");
    let kinds: Vec<&str> = kinds.lines().filter(|kind| !kind.starts_with("events")).collect();
    let names = r#"-o=jsonpath={range.items[*]}{.kind}/{.metadata.namespace}/{.metadata.name}{"\n"}{end}"#;
    let listed = person.types(&format!("kubectl get -A {names} {}", kinds.join(",")));
    listed.lines().filter(|name| !name.starts_with("Lease/kube-node-lease/")).map(str::to_owned).collect()
}

/// Fault (operator): an administrator upgrades the chart, then uninstalls the chart
/// Does: a node has at most one agent; no object remains
/// Right again: with the roll-out
/// Lost: nothing
#[test]
fn an_upgrade_never_runs_two_agents_and_uninstalling_leaves_nothing_behind() {
    let node = WholeNode::start();
    let person = node.person();
    prepare(&person);
    until("authority for pods", || node.read("/api/v1/namespaces/portreeve/configmaps/kube-root-ca.crt"));
    let objects_before = objects(&person);

    person.types(INSTALL);
    roll_out(&person);
    let first = the_agent(&node);
    assert!(objects(&person).contains("DaemonSet/portreeve/portreeve"));
    assert!(!node.machine.pods().is_empty());
    let most = thread::scope(|scope| {
        let upgrading = scope.spawn(|| {
            person.types(&format!("{UPGRADE} --set resources.requests.cpu=20m"));
            roll_out(&person);
        });
        let mut most = 0;
        while !upgrading.is_finished() {
            most = most.max(agents(&node).len());
            thread::sleep(Duration::from_millis(5));
        }
        upgrading.join().expect("an upgrade");
        most
    });
    assert_eq!(most, 1, "two would share a port");
    assert_ne!(the_agent(&node), first);

    person.types(UNINSTALL);
    until("end of the agent", || agents(&node).is_empty().then_some(()));
    until("end of its objects", || (objects(&person) == objects_before).then_some(()));
    until("end of its control groups", || node.machine.pods().is_empty().then_some(()));
    assert_eq!(fs::read_dir(node.machine.file("/dev/shm")).expect("shared memory").count(), 0);
    let volumes = || fs::read_dir(node.machine.file("/var/lib/kubelet/pods")).expect("pods").count();
    until("end of its volumes", || (volumes() == 0).then_some(()));
}

/// The labels and the spec of the agent's DaemonSet.
fn daemon_set(person: &Person<'_>) -> Value {
    let text = person.types("kubectl -n portreeve get daemonset portreeve -o json");
    let mut object: Value = serde_json::from_str(&text).expect("JSON");
    let labels = object["metadata"]["labels"].take();
    json!({"labels": labels, "spec": object["spec"].take()})
}

/// Fault (operator): an administrator upgrades an old chart, rolls back and uninstalls
/// Does: keeps the values that were set, takes the new defaults, and leaves no object behind
/// Right again: with the command
/// Lost: nothing
#[test]
fn an_old_release_is_upgraded_with_its_values_and_rolled_back_and_leaves_nothing() {
    enter_alone();
    let cluster = ControlPlane::start();
    let person = Person::of(&cluster);
    prepare(&person);
    let objects_before = objects(&person);
    person.types(&format!(
        "{INSTALL_BEFORE} --set image.repository=registry.example/portreeve --set port=29600 --set profile=guard"
    ));
    let (set_before, all_before) = (daemon_set(&person), objects(&person));
    let pod_before = &set_before["spec"]["template"]["spec"];
    assert_eq!(pod_before["affinity"], Value::Null, "it is the old one");
    assert_eq!(pod_before["containers"][0]["ports"][0]["containerPort"], 29600, "it takes values");

    let refused = person.tries(UPGRADE).expect_err("the profile has another name now");
    assert!(refused.contains("/profile") && refused.contains("netfilter"), "{refused}");
    let reused = UPGRADE.replace("--reset-then-reuse-values", "--reuse-values --set profile=netfilter");
    person.tries(&reused).expect_err("old defaults lack the new values");
    assert_eq!(daemon_set(&person), set_before, "what is refused changes nothing");

    person.types(&format!("{UPGRADE} --set profile=netfilter"));
    let set = daemon_set(&person);
    let (pod, container) = (&set["spec"]["template"]["spec"], &set["spec"]["template"]["spec"]["containers"][0]);
    assert_eq!(container["ports"][0]["containerPort"], 29600, "what was set is kept");
    assert_eq!(container["image"], concat!("registry.example/portreeve:", env!("CARGO_PKG_VERSION")));
    assert!(pod["affinity"]["nodeAffinity"].is_object(), "what is new has its default");
    assert_eq!(set["labels"]["app.kubernetes.io/managed-by"], "Helm");
    let values: Value =
        serde_json::from_str(&person.types("helm get values portreeve -n portreeve -o json")).expect("JSON");
    assert_eq!(
        values,
        json!({"image": {"repository": "registry.example/portreeve"}, "port": 29600, "profile": "netfilter"})
    );

    person.types("helm rollback portreeve -n portreeve");
    assert_eq!(daemon_set(&person)["spec"]["template"]["spec"], set_before["spec"]["template"]["spec"]);
    let others = |all: &BTreeSet<String>| -> BTreeSet<String> {
        all.iter().filter(|name| !name.starts_with("Secret/portreeve/sh.helm.release")).cloned().collect()
    };
    assert_eq!(others(&objects(&person)), others(&all_before));
    person.types(&format!("{UPGRADE} --set profile=netfilter"));
    person.types(UNINSTALL);
    until("end of its objects", || (objects(&person) == objects_before).then_some(()));
}

#[test]
fn helm_takes_over_what_kubectl_applied() {
    enter_alone();
    let cluster = ControlPlane::start();
    let person = Person::of(&cluster);
    let objects_before = objects(&person);
    person.types("kubectl apply -f deploy/install.yaml");
    let again = person.types("kubectl apply -f deploy/install.yaml");
    let changed: Vec<&str> = again.lines().filter(|line| !line.ends_with(" unchanged")).collect();
    assert_eq!(changed, Vec::<&str>::new());
    person.tries(INSTALL).expect_err("it is not of Helm");
    person.types(&format!("{INSTALL} --take-ownership"));
    assert_eq!(daemon_set(&person)["labels"]["app.kubernetes.io/managed-by"], "Helm");
    person.types(UNINSTALL);
    let left = || &objects(&person) - &objects_before;
    until("end of its objects", || (left() == BTreeSet::from(["Namespace//portreeve".to_owned()])).then_some(()));
}

fn found_alive(node: &WholeNode) -> u32 {
    let metrics = node.cluster.api().text("/api/v1/nodes/n1/proxy/metrics/probes").expect("the kubelet's metrics");
    let words =
        ["prober_probe_total{", r#"container="portreeve""#, r#"probe_type="Liveness""#, r#"result="successful""#];
    let ours = metrics.lines().filter(|line| words.iter().all(|word| line.contains(word)));
    let counts = ours.map(|line| line.rsplit(' ').next().and_then(|count| count.parse::<u32>().ok()).expect("a count"));
    counts.sum()
}

/// Whether the agent's container is ready, and how often the container was restarted.
fn standing(node: &WholeNode) -> (bool, u64) {
    let pods = node.read("/api/v1/namespaces/portreeve/pods").expect("pods");
    let container = &pods["items"][0]["status"]["containerStatuses"][0];
    (container["ready"].as_bool().expect("a word"), container["restartCount"].as_u64().expect("a count"))
}

/// Fault (node): the agent hangs for good (SIGSTOP)
/// Does: fails the liveness probe, and the kubelet restarts the agent
/// Right again: after kubelet’s probes have failed
/// Lost: nothing; the agent finds its Events again
#[test]
fn a_stranger_on_the_agents_port_is_no_reason_to_restart_it_but_that_it_hangs_is_one() {
    let node = WholeNode::start();
    let stranger = TcpListener::bind(PLACE).expect("the port is free");
    let person = node.person();
    prepare(&person);
    let every_second = "--set livenessProbe.periodSeconds=1 --set readinessProbe.periodSeconds=1";
    person.types(&format!("{INSTALL} {every_second}"));
    until("Event", || (reasons(&node.cluster) == ["HostNetworkPortTaken"]).then_some(()));
    let before = found_alive(&node);
    until("five more probes", || (found_alive(&node) >= before + 5).then_some(()));
    assert_eq!(standing(&node), (false, 0), "it lives, but nobody can ask it");

    drop(stranger);
    roll_out(&person);
    assert_eq!(standing(&node), (true, 0));

    node.machine.run(&["kill", "-STOP", &the_agent(&node).to_string()]);
    let restarted =
        "pod -l app.kubernetes.io/name=portreeve --for=jsonpath={.status.containerStatuses[0].restartCount}=1";
    person.types(&format!("kubectl -n portreeve wait {restarted} --timeout=3m"));
    roll_out(&person);
}
