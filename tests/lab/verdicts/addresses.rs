//! A Service has the address of another Node as external IP. The tests send packets to this Node before, during and
//! after this claim.

use std::{collections::BTreeMap, net::SocketAddr};

use portreeve_facts::Protocol;
use portreeve_rules::findings::Vantage;
use serde_json::{Value, json};

use super::{
    Ask, Held,
    asks::ask_all,
    binds::BINDS,
    claims::{Behind, serve, service},
    forget_flows,
};
use crate::{
    look::Look,
    parts::{Answer, ControlPlane, PRIMARY, Proxy, Wired, objects},
};

/// The addresses of the Node `n2`, which is the test's client.
const PEER: [&str; 2] = ["192.0.2.100", "2001:db8::100"];
/// The port of the Service, and a port that only the Node `n2` uses.
const PORTS: [u16; 2] = [10250, 22];

#[track_caller]
pub fn agrees(mode: &str) {
    let wired = Wired::enter();
    let _pods = serve(&wired);
    let protocols = [Protocol::Tcp, Protocol::Udp];
    let cells = protocols.iter().flat_map(|protocol| PORTS.map(|port| (*protocol, port)));
    let _daemons: Vec<Held> = cells
        .map(|(protocol, port)| wired.client.run(move || Held::on(&BINDS[1], protocol, port, Answer::Process)))
        .collect();
    let cluster = ControlPlane::start();
    cluster.api().create(&objects::node("n1", &PRIMARY));
    cluster.api().create(&objects::node("n2", &PEER));
    let mut proxy = Proxy::start(&cluster, mode, &json!({}));
    let observe = || {
        forget_flows();
        let findings = Look::check(&cluster.kubeconfig("admin"));
        let findings =
            findings.findings("external-ip-conflict/node-address").into_iter().cloned().collect::<Vec<Value>>();
        (ask_all(&wired, &asks()), findings)
    };
    let all = |answers: &BTreeMap<Ask, Answer>, port: u16, answer| {
        answers.iter().filter(|((_, _, to), _)| to.port() == port).all(|(_, it)| *it == answer)
    };

    let (answers, findings) = observe();
    assert!(PORTS.iter().all(|port| all(&answers, *port, Answer::Process)), "{mode}: {answers:?}");
    assert_eq!(findings, Vec::<Value>::new());

    let traps: Vec<Value> = protocols
        .iter()
        .map(|protocol| {
            let mut trap = service(&format!("trap-{protocol}"), *protocol, PORTS[0], None);
            trap["spec"]["type"] = json!("ClusterIP");
            trap["spec"]["externalIPs"] = json!(PEER);
            Behind::Ready.create(cluster.api(), trap, Wired::PORT)
        })
        .collect();
    proxy.settle(&cluster);
    let (answers, findings) = observe();
    assert!(all(&answers, PORTS[0], Answer::Pod), "{mode}: the Service's port: {answers:?}");
    let spared = all(&answers, PORTS[1], Answer::Process);
    assert_eq!(findings.len(), traps.len(), "{findings:#?}");
    for finding in findings {
        let ends = finding["summary"].as_str().expect("a sentence");
        assert_eq!(finding["severity"] == "info", spared, "{mode}: {finding:#}");
        assert_eq!(ends.contains("redirects only the Service's ports of that address"), spared, "{mode}: {ends}");
    }

    for trap in &traps {
        cluster.api().delete(trap);
    }
    proxy.settle(&cluster);
    let (answers, findings) = observe();
    assert!(PORTS.iter().all(|port| all(&answers, *port, Answer::Process)), "{mode}: {answers:?}");
    assert_eq!(findings, Vec::<Value>::new());
}

fn asks() -> Vec<Ask> {
    let places = PEER.iter().flat_map(|ip| PORTS.map(|port| SocketAddr::new(ip.parse().expect("an address"), port)));
    let from = |place| [Vantage::Node, Vantage::Pods].map(|vantage| (vantage, place));
    let questions = places.flat_map(from);
    questions.flat_map(|(vantage, place)| [Protocol::Tcp, Protocol::Udp].map(|it| (vantage, it, place))).collect()
}
