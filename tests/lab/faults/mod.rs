//! Faults of the real API server, etcd and kube-proxy. The tests' comments are the entries of `docs/faults.md`.

mod busy;
mod clock;
mod deleted;
mod etcd;
mod fleet;
mod outage;
mod proxy;
mod refusals;
mod way;

use std::{collections::BTreeSet, net::TcpListener};

use serde_json::Value;

use crate::parts::{Agent, ControlPlane, PRIMARY, Role, enter_alone, events, objects, until};

const RULE: &str = "listener-on-node-port/loses";
const SERIES: &str = r#"portreeve_findings{rule="listener-on-node-port",variant="loses",severity="critical"}"#;
/// The arguments set the proxy mode, because no proxy runs in these tests.
const MODE: [&str; 2] = ["--proxy-mode", "iptables"];
const FOUND: &str = "ListenerOnNodePort";
const RESOLVED: &str = "ListenerOnNodePortResolved";

/// A node without other hosts. A Service has a pod on another node, and a process listens on the Service's nodePort.
struct Node {
    cluster: ControlPlane,
    _squatter: TcpListener,
}

impl Node {
    #[track_caller]
    fn enter() -> Self {
        Self::with(&[])
    }

    #[track_caller]
    fn with(flags: &[&str]) -> Self {
        enter_alone();
        let mut cluster = ControlPlane::with(flags);
        cluster.api().create(&objects::node("n1", &PRIMARY));
        Role::of_chart().grant(&mut cluster);
        serve(&cluster, "web", 30080);
        Self { cluster, _squatter: squat(30080) }
    }

    #[track_caller]
    fn agent(&self, arguments: &[&str]) -> Agent {
        let agent = Agent::start(&self.cluster, &[&MODE, arguments].concat());
        until_found(&agent, &[30080]);
        until_told(&self.cluster, &[("web", FOUND)]);
        agent
    }
}

/// A pod on another node serves the Service.
#[track_caller]
fn serve(cluster: &ControlPlane, name: &str, port: u16) -> Value {
    let service = cluster.api().create(&objects::selecting_service(name, &[objects::port(80, Some(port))]));
    cluster.api().create(&objects::endpoint_slice(&service, Some(("10.244.0.5", "n2")), "IPv4"));
    service
}

#[track_caller]
fn squat(port: u16) -> TcpListener {
    TcpListener::bind(("0.0.0.0", port)).expect("the port is free")
}

#[track_caller]
fn until_found(agent: &Agent, ports: &[u64]) {
    until(&format!("findings on {ports:?}"), || (agent.found(RULE) == ports).then_some(()));
}

/// Waits until the Events are exactly these pairs of a Service's name and a reason. Equal pairs count once: an agent
/// may report a finding again when it knows the endpoints.
#[track_caller]
fn until_told(cluster: &ControlPlane, wanted: &[(&str, &str)]) {
    let word = |value: &Value| value.as_str().expect("a word").to_owned();
    let wanted: BTreeSet<_> = wanted.iter().map(|(name, reason)| ((*name).to_owned(), (*reason).to_owned())).collect();
    until(&format!("such Events: {wanted:?}"), || {
        let told = events(cluster).iter().map(|it| (word(&it["regarding"]["name"]), word(&it["reason"]))).collect();
        (wanted == told).then_some(())
    });
}

#[track_caller]
fn until_told_also(cluster: &ControlPlane, (name, reason): (&str, &str)) {
    until(&format!("an Event {reason} about {name}"), || {
        let is_it = |it: &Value| it["regarding"]["name"] == name && it["reason"] == reason;
        events(cluster).iter().any(is_it).then_some(())
    });
}

fn age(metrics: &str) -> f64 {
    age_of(metrics, "services")
}

fn age_of(metrics: &str, resource: &str) -> f64 {
    let series = format!("portreeve_watch_age_seconds{{resource=\"{resource}\"}}");
    Agent::value(metrics, &series).unwrap_or(f64::INFINITY)
}

fn errors(agent: &Agent, code: &str) -> f64 {
    let series = format!("portreeve_watch_errors_total{{resource=\"services\",code=\"{code}\"}}");
    Agent::value(&agent.metrics(), &series).unwrap_or_default()
}

#[track_caller]
fn until_young(agent: &Agent) {
    let before = age(&agent.metrics());
    until("young view", || (age(&agent.metrics()) < before).then_some(()));
}
