//! The admission policies of `deploy/policies` on a real API server. For each policy: the objects that it admits, warns
//! about and denies.

use std::{fs, path::Path};

use serde_json::{Value, json};

use crate::parts::{ControlPlane, Plugin, enter_alone, objects, until};

const POLICIES: [&str; 4] =
    ["portreeve-host-ports", "portreeve-external-ips", "portreeve-dynamic-band", "portreeve-fixed-node-ports"];

struct Stage {
    cluster: ControlPlane,
    admin: Plugin,
}

impl Stage {
    fn with(before: &[Value]) -> Self {
        enter_alone();
        let cluster = ControlPlane::start();
        let admin = Plugin::of(&cluster.kubeconfig("admin"));
        let namespace = |name: &str| json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
        for name in ["portreeve", "shop", "big"] {
            cluster.api().create(&namespace(name));
        }
        cluster.api().create(&objects::service_account());
        for object in before {
            cluster.api().create(object);
        }
        Self { cluster, admin }
    }

    fn enforce_with(&self, action: &str, addresses: &str) {
        let text = committed(action);
        let own = [
            (r#""nodeAddresses": """#, format!(r#""nodeAddresses": "{addresses}""#)),
            (
                r#""keptFreeOfExternalIPs": """#,
                r#""keptFreeOfExternalIPs": "198.51.100.0/24 fd00:96::/112""#.to_owned(),
            ),
            (
                r#"{"fixedNodePorts": "0-65535"}"#,
                r#"{"fixedNodePorts": "", "fixedNodePorts.shop": "30010-30019,32700", "fixedNodePorts.big": "0-65535"}"#
                    .to_owned(),
            ),
        ];
        let text = own.iter().fold(text, |text, (default, own)| {
            assert!(text.contains(default), "{default}");
            text.replace(default, own)
        });
        let file = self.admin.write("policies.yaml", &text);
        let (code, _, refusal) = self.admin.types(&format!("kubectl apply -f {file}"));
        assert_eq!(code, 0, "{refusal}");
    }

    fn enforce(&self, action: &str) {
        self.enforce_with(action, "192.0.2.1 2001:db8::1");
        until("policies in force", || {
            // One object for each policy, because a message about an object names only one policy.
            let tried = [
                pod("probe", json!({"containers": [container(&json!([{"containerPort": 1, "hostPort": 30001}]))]})),
                with_external_ip(service("probe", "default", &[(80, None)]), "192.0.2.1"),
                service("probe", "shop", &[(80, Some(32700))]),
                service("probe", "default", &[(80, Some(30010))]),
            ];
            let told: String = tried.iter().map(|object| self.told("create --dry-run=server", object).1).collect();
            POLICIES.iter().all(|name| told.contains(&format!("'{name}'"))).then_some(())
        });
    }

    #[track_caller]
    fn waits_until_nothing_is_judged(&self) {
        until("no violation", || {
            let (taken, _) = self.told("create --dry-run=server", &pod("new", with_port("hostPort", 30500)));
            taken.then_some(())
        });
    }

    fn told(&self, verb: &str, object: &Value) -> (bool, String) {
        let file = self.admin.write("object.json", &object.to_string());
        let (code, _, words) = self.admin.types(&format!("kubectl {verb} -f {file}"));
        (code == 0, words)
    }

    #[track_caller]
    fn admits(&self, verb: &str, object: &Value) {
        let (taken, words) = self.told(verb, object);
        assert!(taken && !words.contains("portreeve-"), "{words}");
    }

    #[track_caller]
    fn warns(&self, object: &Value, policy: &str, words: &str) {
        let (taken, told) = self.told("create --dry-run=server", object);
        assert!(taken && told.contains(&format!("'{policy}'")) && told.contains(words), "{told}");
    }

    #[track_caller]
    fn denies(&self, verb: &str, object: &Value, policy: &str, words: &str) {
        let (taken, told) = self.told(verb, object);
        assert!(!taken && told.contains(&format!("'{policy}'")) && told.contains(words), "{told}");
    }
}

pub fn committed(action: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/policies/policies.yaml");
    fs::read_to_string(path).expect("the policies").replace("[Warn]", &format!("[{action}]"))
}

pub fn service(name: &str, namespace: &str, ports: &[(u16, Option<u16>)]) -> Value {
    let ports: Vec<Value> = ports.iter().map(|(number, node_port)| objects::port(*number, *node_port)).collect();
    let mut service = objects::service(name, &ports);
    service["metadata"]["namespace"] = json!(namespace);
    service
}

fn with_external_ip(mut service: Value, address: &str) -> Value {
    service["spec"]["externalIPs"] = json!([address]);
    service
}

fn container(ports: &Value) -> Value {
    json!({"name": "one", "image": "one", "ports": ports})
}

fn pod(name: &str, mut spec: Value) -> Value {
    spec["automountServiceAccountToken"] = json!(false);
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default"}, "spec": spec})
}

fn workload(kind: &str, version: &str, mut pods: Value) -> Value {
    let labels = json!({"app": "one"});
    let mut spec = json!({});
    match kind {
        "Job" | "CronJob" => pods["restartPolicy"] = json!("Never"),
        "ReplicationController" => spec["selector"] = labels.clone(),
        _ => spec["selector"] = json!({"matchLabels": labels}),
    }
    spec["template"] = json!({"metadata": {"labels": labels}, "spec": pods});
    if kind == "CronJob" {
        spec = json!({"schedule": "0 0 * * *", "jobTemplate": {"spec": spec}});
    }
    json!({"apiVersion": version, "kind": kind, "metadata": {"name": "one", "namespace": "default"}, "spec": spec})
}

const KINDS: [(&str, &str); 7] = [
    ("Deployment", "apps/v1"),
    ("DaemonSet", "apps/v1"),
    ("StatefulSet", "apps/v1"),
    ("ReplicaSet", "apps/v1"),
    ("ReplicationController", "v1"),
    ("Job", "batch/v1"),
    ("CronJob", "batch/v1"),
];

fn with_port(kind: &str, number: u16) -> Value {
    match kind {
        "hostPort" => json!({"containers": [container(&json!([{"containerPort": 80, "hostPort": number}]))]}),
        "initContainer" => json!({"containers": [container(&json!([]))], "initContainers": [
            {"name": "first", "image": "one", "ports": [{"containerPort": 80, "hostPort": number}]}]}),
        _ => json!({"hostNetwork": true, "containers": [container(&json!([{"containerPort": number}]))]}),
    }
}

#[test]
fn each_policy_warns_of_what_it_is_about_and_says_nothing_of_the_rest() {
    let stage = Stage::with(&[]);
    stage.enforce("Warn");
    for kind in ["hostPort", "initContainer", "hostNetwork"] {
        stage.warns(
            &pod("one", with_port(kind, 30500)),
            POLICIES[0],
            "port 30500 of the node is in the NodePort range",
        );
        stage.admits("create --dry-run=server", &pod("one", with_port(kind, 29999)));
    }
    stage.admits(
        "create --dry-run=server",
        &pod("one", json!({"containers": [container(&json!([{"containerPort": 30500}]))]})),
    );
    for (kind, version) in KINDS {
        stage.warns(&workload(kind, version, with_port("hostPort", 32767)), POLICIES[0], "port 32767");
        stage.admits("create --dry-run=server", &workload(kind, version, with_port("hostNetwork", 32768)));
    }
    let automatic = service("web", "default", &[(80, None)]);
    for (address, words) in [
        ("192.0.2.1", "192.0.2.1 is the address of a node"),
        ("2001:DB8:0::1", "2001:db8::1 is the address of a node"),
        ("198.51.100.7", "is in a network that is kept free"),
        ("fd00:96::7", "is in a network that is kept free"),
    ] {
        stage.warns(&with_external_ip(automatic.clone(), address), POLICIES[1], words);
    }
    stage.admits("create --dry-run=server", &with_external_ip(automatic.clone(), "203.0.113.9"));
    stage.admits("create --dry-run=server", &automatic);
    stage.warns(
        &service("web", "shop", &[(80, Some(32700))]),
        POLICIES[2],
        "nodePort 32700 is in the band 30086-32767, from which the API server chooses for others: choose one of 30000-30085",
    );
    stage.warns(&service("web", "default", &[(80, Some(30010))]), POLICIES[3], "it may choose none");
    stage.warns(&service("web", "shop", &[(80, Some(30020))]), POLICIES[3], "it may choose 30010-30019,32700");
    stage.admits("create --dry-run=server", &service("web", "shop", &[(80, Some(30019)), (81, None)]));
}

/// Returns the pod with an owner reference, as a controller writes it. A user can write the same owner reference.
fn made_by(kind: &str, mut pod: Value) -> Value {
    pod["metadata"]["ownerReferences"] =
        json!([{"apiVersion": "example.org/v1", "kind": kind, "name": "old", "uid": "u", "controller": true}]);
    pod
}

/// Three objects from the time before the policies. Each object violates one policy.
fn from_before() -> [Value; 3] {
    let old = with_external_ip(service("old", "default", &[(80, Some(31000))]), "192.0.2.1");
    [old, pod("old", with_port("hostPort", 30600)), workload("Deployment", "apps/v1", with_port("hostNetwork", 30700))]
}

#[test]
fn what_is_denied_is_new_and_what_was_there_before_can_be_updated() {
    let stage = Stage::with(&from_before());
    stage.enforce("Deny");
    stage.denies("create", &pod("new", with_port("hostPort", 30500)), POLICIES[0], "port 30500");
    // A pod that the controller of an older workload makes again, for example after a node failed.
    let again = |kind: &str| made_by(kind, pod("again", with_port("hostPort", 30500)));
    for user in ["system:serviceaccount:kube-system:replicaset-controller", "system:kube-controller-manager"] {
        // Members of the group `system:masters` have all rights. So only a policy can deny the request.
        let verb = format!("create --dry-run=server --as={user} --as-group=system:masters");
        stage.admits(&verb, &again("ReplicaSet"));
        stage.denies(&verb, &again("Own"), POLICIES[0], "port 30500");
    }
    // These users also name a workload as owner, but they are no controllers.
    for user in ["", " --as=system:serviceaccount:shop:ci --as-group=system:masters"] {
        stage.denies(&format!("create{user}"), &again("ReplicaSet"), POLICIES[0], "port 30500");
    }
    let automatic = service("new", "default", &[(80, None)]);
    stage.denies("create", &with_external_ip(automatic.clone(), "192.0.2.1"), POLICIES[1], "of a node");
    stage.denies("create", &service("new", "shop", &[(80, Some(32700))]), POLICIES[2], "32700");
    stage.denies("create", &service("new", "default", &[(80, Some(30010))]), POLICIES[3], "30010");
    stage.admits("create", &automatic);

    for (kind, name) in [("service", "old"), ("pod", "old"), ("deployment", "one")] {
        let (code, _, words) = stage.admin.types(&format!("kubectl label {kind} {name} touched=yes"));
        assert_eq!(code, 0, "{words}");
    }
    let patch = |what: &str, patch: &Value| {
        let file = stage.admin.write("patch.json", &patch.to_string());
        let (code, _, words) = stage.admin.types(&format!("kubectl patch {what} --patch-file {file}"));
        (code == 0, words)
    };
    let (taken, words) = patch("deployment one", &json!({"spec": {"replicas": 3}}));
    assert!(taken, "{words}");
    let (taken, words) = patch("service old", &json!({"spec": {"ports": [{"port": 81, "name": "p81"}]}}));
    assert!(taken, "a port that nobody chose comes beside the old one: {words}");
    let (taken, words) =
        patch("service old", &json!({"spec": {"ports": [{"port": 82, "name": "p82", "nodePort": 31001}]}}));
    assert!(!taken && words.contains("nodePort 31001"), "{words}");
    let (taken, words) = patch("service old", &json!({"spec": {"externalIPs": ["192.0.2.1", "198.51.100.1"]}}));
    assert!(!taken && words.contains("198.51.100.1") && !words.contains("192.0.2.1 is"), "{words}");
    let more =
        json!({"spec": {"template": {"spec": {"containers": [{"name": "one", "ports": [{"containerPort": 30701}]}]}}}});
    let (taken, words) = patch("deployment one", &more);
    assert!(!taken && words.contains("port 30701"), "{words}");

    // A policy judges nothing if its parameters are missing or are not numbers.
    for parameters in ["{}", r#"{"nodePortFirst": "first", "nodePortLast": "32767"}"#] {
        let text = committed("Deny");
        let text: Vec<&str> =
            text.lines().map(|line| if line.starts_with("        {\"nodePort") { parameters } else { line }).collect();
        let text = text.join("\n").replace(&format!("\n{parameters}"), &format!("\n        {parameters}"));
        let file = stage.admin.write("without.yaml", &text);
        assert_eq!(stage.admin.types(&format!("kubectl apply -f {file}")).0, 0);
        stage.waits_until_nothing_is_judged();
    }
}

/// After a time without a binding of a policy, kube-apiserver loses the ConfigMaps that are the policy's parameters
/// (kubernetes#141015).
#[test]
fn policies_that_are_made_anew_judge_as_before() {
    let stage = Stage::with(&[]);
    for _ in 0..2 {
        stage.enforce("Deny");
        let file = stage.admin.write("again.yaml", &committed("Deny"));
        assert_eq!(stage.admin.types(&format!("kubectl delete -f {file}")).0, 0);
        stage.waits_until_nothing_is_judged();
    }
}

#[test]
fn as_many_addresses_as_the_plugin_lists_are_within_the_servers_bounds() {
    let stage = Stage::with(&[]);
    let mut addresses: Vec<String> = (0..).map(|it| format!("2001:db8::{it:x}")).take(3_000).collect();
    addresses.insert(0, "192.0.2.1".to_owned());
    let list = addresses.join(" ");
    assert!(list.len() > 40_000, "{}", list.len());
    stage.enforce_with("Deny", &list);
    let last = addresses.last().expect("addresses");
    let object = with_external_ip(service("probe", "default", &[(80, None)]), last);
    until("the last of them is denied", || {
        let (taken, told) = stage.told("create --dry-run=server", &object);
        (!taken && told.contains(last.as_str())).then_some(())
    });
}

#[test]
fn objects_with_a_thousand_ports_are_judged_within_the_servers_bound() {
    let many = |first: u16| -> Vec<(u16, Option<u16>)> { (0..1000).map(|n| (n + 1, Some(first + n))).collect() };
    let ports: Vec<Value> = (0..1000).map(|n| json!({"containerPort": 30000 + n})).collect();
    let ports = json!({"hostNetwork": true, "containers": [container(&json!(ports))]});
    let old = service("big", "big", &many(30100));
    let stage = Stage::with(&[old.clone(), workload("Deployment", "apps/v1", ports.clone())]);
    stage.enforce("Deny");
    stage.denies("create", &pod("big", ports), POLICIES[0], "port 30000 of the node");
    stage.denies("create", &service("bigger", "big", &many(31500)), POLICIES[2], "nodePort 31500 is");
    for what in ["service big -n big", "deployment one"] {
        let (code, _, words) = stage.admin.types(&format!("kubectl label {what} touched=yes"));
        assert_eq!(code, 0, "{words}");
    }
    stage.admits("replace", &old);
    let mut moved = old;
    moved["spec"]["ports"][999]["nodePort"] = json!(32600);
    stage.denies("replace", &moved, POLICIES[2], "nodePort 32600 is");
    drop(stage.cluster);
}
