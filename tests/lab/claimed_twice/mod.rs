//! Two claims to one port or address, with the real kube-proxy, API server and scheduler. The tests show which claim
//! gets the connections, and which objects get an Event.

mod address;
mod host_port;
mod node_port;

use crate::parts::named::is_of;
use std::{collections::BTreeSet, net::SocketAddr};

use serde_json::{Value, json};

use crate::{
    look::{Look, owner},
    parts::{Answer, ControlPlane, Directory, Wired, ask},
};

#[track_caller]
fn answers(wired: &Wired, to: &str) -> BTreeSet<Answer> {
    let to: SocketAddr = to.parse().expect("an address");
    let asks = move || (0..4).map(|_| ask(to)).collect::<Vec<_>>();
    [asks(), wired.client.run(asks), wired.pod.run(asks)].concat().into_iter().collect()
}

#[track_caller]
fn one_answers(wired: &Wired, to: &str) {
    let both = answers(wired, to);
    assert!(both.len() == 1 && both.is_subset(&[Answer::Pod, Answer::OtherPod].into()), "{both:?}");
}

#[track_caller]
fn about(cluster: &ControlPlane, rule: &str, name: &str) -> Vec<Value> {
    let look = Look::check_with(&["--rule", rule], &cluster.kubeconfig("observer"));
    assert!(!look.unknown().iter().any(|it| is_of(it, rule)), "{:#}", look.json);
    look.findings(rule).into_iter().filter(|it| it["subject"]["name"] == name).cloned().collect()
}

/// Returns the finding about the first Service.
#[track_caller]
fn each_is_told(cluster: &ControlPlane, rule: &str, (severity, port): (&str, u16), both: [&str; 2]) -> Value {
    let [first, second] = both;
    let told = [(first, second), (second, first)].map(|(name, other)| {
        let [finding] = &about(cluster, rule, name)[..] else { panic!("{name} is told once") };
        assert_eq!((&finding["severity"], &finding["port"]), (&json!(severity), &json!(port)));
        let other = format!("default/{other}");
        assert!(finding["summary"].as_str().is_some_and(|it| it.contains(&other)), "{finding:#}");
        finding.clone()
    });
    let [told, _] = told;
    told
}

/// The claims to a TCP port in the output of `owner`: the kind of each claim, and the object's name.
#[track_caller]
fn claimants(cluster: &ControlPlane, port: u16) -> BTreeSet<(String, String)> {
    let owned = owner(port, &cluster.kubeconfig("observer"));
    let claimants = owned["nodes"][0]["protocols"][0]["claimants"].as_array().expect("claimants").iter();
    let word = |it: &Value| it.as_str().expect("a word").to_owned();
    claimants.map(|it| (word(&it["claim"]), word(&it["name"]))).collect()
}

/// Returns the findings about manifests of objects that do not exist in a cluster yet.
#[track_caller]
fn before(rule: &str, manifests: &[Value]) -> Vec<Value> {
    let list = json!({"apiVersion": "v1", "kind": "List", "items": manifests}).to_string();
    let directory = Directory::new();
    let look = Look::before(rule, &directory.write("manifests.json", &list));
    look.findings(rule).into_iter().cloned().collect()
}
