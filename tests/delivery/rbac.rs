//! The chart must grant exactly the rights that the program needs.

use std::collections::BTreeSet;

use portreeve_cluster::Resource;
use serde_json::Value;

use crate::{
    helm::{objects, render},
    permissions::{ACCESS, Grant, REVIEWS, optional},
};

const EVENTS: Grant = optional("events.k8s.io", "events", &["create", "patch"]);

/// An agent queries whether the user of a token has this right. The ServiceAccount of readers has this right.
const READ: Grant = optional("", "/portreeve/findings", &["get"]);

/// An agent with `--node-condition` needs this right.
const CONDITION: Grant = optional("", "nodes/status", &["patch"]);

const SWITCHED_OFF: [&str; 3] = [
    "rbac.events=false",
    "reader.enabled=false",
    r#"rbac.optional={"configMaps":false,"flagz":false,"calico":false,"openshift":false}"#,
];

/// The API group, the resource or the path, the name (empty for any name), and the verb.
type Permission = (String, String, String, String);

fn asked<'a>(grants: impl Iterator<Item = &'a Grant>) -> BTreeSet<Permission> {
    let mut all = BTreeSet::new();
    for grant in grants {
        let names = if grant.names.is_empty() { &[""] } else { grant.names };
        for (name, verb) in names.iter().flat_map(|name| grant.verbs.iter().map(move |verb| (name, verb))) {
            let words = [grant.group, grant.resource, name, verb].map(str::to_owned);
            assert!(all.insert(words.into()), "{} {} is asked for twice", verb, grant.resource);
        }
    }
    all
}

/// The words of a list in a rule, or one empty word if the rule lacks the list.
fn words<'a>(rule: &'a Value, list: &str) -> Vec<&'a str> {
    rule.get(list).map_or(vec![""], |list| list.as_array().expect("a list").iter().filter_map(Value::as_str).collect())
}

fn granted(objects: &[Value]) -> BTreeSet<Permission> {
    let mut all = BTreeSet::new();
    for rule in objects.iter().filter_map(|object| object["rules"].as_array()).flatten() {
        let resources = if rule.get("resources").is_some() { "resources" } else { "nonResourceURLs" };
        for group in words(rule, "apiGroups") {
            for resource in words(rule, resources) {
                for name in words(rule, "resourceNames") {
                    for verb in words(rule, "verbs") {
                        all.insert([group, resource, name, verb].map(str::to_owned).into());
                    }
                }
            }
        }
    }
    all
}

#[test]
fn the_roles_grant_exactly_what_is_asked() {
    let read = [READ, Grant { resource: "/portreeve/snapshot", ..READ }];
    assert_eq!(granted(&objects(&render(&[]))), asked(ACCESS.iter().chain(REVIEWS).chain([&EVENTS]).chain(&read)));
}

#[test]
fn the_role_of_the_guard_grants_the_objects_that_its_watch_reads() {
    let [on, off] = [&[r#"guard={"enabled":true}"#, "rbac.events=false"][..], &["rbac.events=false"]].map(render);
    let off = objects(&off);
    let added: Vec<Value> = objects(&on).into_iter().filter(|object| !off.contains(object)).collect();
    let is_read = |grant: &&Grant| Resource::OF_GUARD.iter().any(|it| it.name() == grant.resource);
    assert_eq!(granted(&added), asked(ACCESS.iter().filter(is_read)));
}

#[test]
fn every_optional_grant_can_be_switched_off_and_nothing_else() {
    assert_eq!(granted(&objects(&render(&SWITCHED_OFF))), asked(ACCESS.iter().filter(|grant| !grant.optional)));
}

#[test]
fn the_node_condition_adds_one_flag_and_one_right() {
    let [off, on] = [&[][..], &["rbac.nodeCondition=true"]].map(render);
    assert!(!off.contains("node-condition") && !off.contains("nodes/status"));
    let [off, on] = [off, on].map(|manifest| objects(&manifest));
    let added: BTreeSet<Permission> = granted(&on).difference(&granted(&off)).cloned().collect();
    assert_eq!(added, asked([&CONDITION].into_iter()));
    let words = |objects: &[Value]| {
        let pods = objects.iter().find(|object| object["kind"] == "DaemonSet").expect("pods");
        pods["spec"]["template"]["spec"]["containers"][0]["args"].as_array().expect("words").clone()
    };
    assert_eq!(words(&on), [words(&off), vec!["--node-condition".into()]].concat());
}

/// The rights that `kubectl portreeve` needs in the agents' namespace. Each right has a resource, a name and a verb.
const PLUGIN: [(&str, &str, &str); 3] =
    [("pods", "", "list"), ("pods/proxy", "", "get"), ("serviceaccounts/token", "portreeve-reader", "create")];

#[test]
fn a_reader_is_granted_three_things_in_the_agents_namespace() {
    let subject = r#"{"apiGroup":"rbac.authorization.k8s.io","kind":"Group","name":"operators"}"#;
    let subjects = format!("[{subject}]");
    let settings = [format!(r#"reader={{"create":true,"subjects":{subjects}}}"#), "rbac.create=false".to_owned()];
    let objects = objects(&render(&settings.each_ref().map(String::as_str)));
    let wanted = PLUGIN.map(|(resource, name, verb)| ["", resource, name, verb].map(str::to_owned).into());
    assert_eq!(granted(&objects), BTreeSet::from(wanted));
    let of_kind = |kind: &str| objects.iter().find(|object| object["kind"] == kind).expect("one").clone();
    let (role, binding) = (of_kind("Role"), of_kind("RoleBinding"));
    assert_eq!(binding["roleRef"]["name"], role["metadata"]["name"]);
    assert_eq!(binding["subjects"].to_string(), subjects);
    assert!([role, binding].iter().all(|object| object["metadata"]["namespace"] == "portreeve"));
}

#[test]
fn the_readers_account_is_there_whoever_makes_that_of_the_pods() {
    let accounts = |settings: &[&str]| -> Vec<String> {
        let objects = objects(&render(settings)).into_iter().filter(|object| object["kind"] == "ServiceAccount");
        objects.map(|account| account["metadata"]["name"].as_str().expect("a name").to_owned()).collect()
    };
    let own = r#"serviceAccount={"create":false,"name":"ours"}"#;
    assert_eq!(accounts(&[own]), ["portreeve-reader"]);
    assert_eq!(accounts(&[own, "reader.enabled=false"]), Vec::<String>::new());
}

#[test]
fn without_roles_nothing_is_granted_and_nothing_is_bound() {
    let objects = objects(&render(&["rbac.create=false"]));
    assert!(granted(&objects).is_empty());
    assert!(objects.iter().all(|object| object.get("roleRef").is_none()));
}

#[test]
fn settings_are_granted_in_kube_system_only() {
    for object in objects(&render(&[])) {
        let granted = granted(std::slice::from_ref(&object));
        if granted.iter().any(|(_, resource, ..)| resource == "configmaps" || resource == "ciliumnodeconfigs") {
            assert_eq!((&object["kind"], &object["metadata"]["namespace"]), (&"Role".into(), &"kube-system".into()));
        }
    }
}

#[test]
fn every_role_is_bound_to_the_account_of_the_pods_and_reading_to_the_readers() {
    let objects = objects(&render(&[r#"serviceAccount={"create":true,"name":"reeve"}"#]));
    let place = |object: &Value| object["metadata"]["namespace"].clone();
    let roles = objects.iter().filter(|object| object.get("rules").is_some());
    let mut roles: Vec<_> = roles.map(|role| (&role["kind"], &role["metadata"]["name"], place(role))).collect();
    let bindings: Vec<&Value> = objects.iter().filter(|object| object.get("roleRef").is_some()).collect();
    let mut bound: Vec<_> =
        bindings.iter().map(|it| (&it["roleRef"]["kind"], &it["roleRef"]["name"], place(it))).collect();
    assert_eq!(roles.len(), 3);
    roles.sort_by_key(|role| format!("{role:?}"));
    bound.sort_by_key(|role| format!("{role:?}"));
    assert_eq!(bound, roles);
    let accounts = objects.iter().filter(|object| object["kind"] == "ServiceAccount");
    let accounts: Vec<_> = accounts.map(|account| account["metadata"]["name"].as_str().expect("a name")).collect();
    assert_eq!(accounts, ["portreeve-reader", "reeve"]);
    let pods = objects.iter().find(|object| object["kind"] == "DaemonSet").expect("pods");
    assert_eq!(pods["spec"]["template"]["spec"]["serviceAccountName"], "reeve");
    for binding in bindings {
        let subject = &binding["subjects"][0];
        let account = if binding["roleRef"]["name"] == "portreeve-reader" { "portreeve-reader" } else { "reeve" };
        assert_eq!(binding["subjects"].as_array().map(Vec::len), Some(1));
        assert_eq!(["kind", "name", "namespace"].map(|it| &subject[it]), ["ServiceAccount", account, "portreeve"]);
    }
}
