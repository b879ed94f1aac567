//! Other causes of lost connections: a load balancer's address on the node, and a redirection without a Kubernetes
//! object. docker without its userland proxy, podman and firewalld make such redirections.

use std::{collections::BTreeSet, net::IpAddr, process::Command, sync::Arc};

use portreeve_facts::{Protocol, Reading, Snapshot};
use portreeve_rules::findings::Severity;
use serde_json::json;

use super::{
    Ask, Held,
    asks::{ask_all, questions},
    binds::BINDS,
    claims::{Behind, OTHER, balance, balanced_service, said, serve, service, told},
    forget_flows,
    record::letter,
};
use crate::{
    look::snapshot,
    parts::{Answer, ControlPlane, PRIMARY, Proxy, Wired, objects},
};

/// The node's second addresses, which a load balancer has also given to Services.
const BALANCED: [&str; 2] = ["192.0.2.2", "2001:db8::2"];
/// The first port of the Services with an address of `BALANCED`, and the first nodePort of the other Services. The
/// nodePorts are in the static band, from which the API server chooses no healthCheckNodePort.
const FIRST: [u16; 2] = [8100, 30020];

#[track_caller]
pub fn agrees(mode: &str) {
    let wired = Wired::enter();
    let _pods = serve(&wired);
    let behind = [Protocol::Tcp, Protocol::Udp].into_iter().flat_map(|it| Behind::ALL.map(|behind| (it, behind)));
    let rows: Vec<(u16, Protocol, Behind)> =
        (0..).zip(behind).map(|(index, (it, behind))| (index, it, behind)).collect();
    let balanced = rows.iter().map(|(index, protocol, _)| (*protocol, FIRST[0] + index));
    let _processes: Vec<Held> =
        balanced.clone().map(|(protocol, port)| Held::on(&BINDS[1], protocol, port, Answer::Process)).collect();
    let cluster = ControlPlane::start();
    cluster.api().create(&objects::node("n1", &[PRIMARY, BALANCED].concat()));
    cluster.api().create(&objects::node("n2", &["192.0.2.9"]));
    cluster.api().create(&objects::service_account());
    for (index, protocol, behind) in &rows {
        let [port, node_port] = FIRST.map(|first| first + index);
        behind.create(cluster.api(), balanced_service(&format!("lb-{port}"), *protocol, port), OTHER);
        balance(&cluster, &format!("lb-{port}"), &BALANCED);
        behind.create(cluster.api(), service(&format!("web-{node_port}"), *protocol, 80, Some(node_port)), Wired::PORT);
        redirect(*protocol, node_port);
    }
    let proxy = Proxy::start(&cluster, mode, &json!({}));
    let node_ports = rows.iter().map(|(index, protocol, _)| (*protocol, FIRST[1] + index));
    let asks: Vec<Ask> =
        balanced.clone().chain(node_ports.clone()).flat_map(|(it, port)| questions(it, port)).collect();
    forget_flows();
    let answers = ask_all(&wired, &asks);
    let shown = |ask: &Ask| letter(ask, answers[ask]);
    let mut wrong = Vec::new();

    let seen = snapshot(&cluster.kubeconfig("admin"));
    let virtually = without_balanced(seen.clone());
    for (protocol, port) in balanced {
        let told = told(&seen, protocol, port);
        let differs = |ask: &Ask| shown(ask) != told[&(ask.0, ask.2.ip())];
        wrong.extend(questions(protocol, port).iter().filter(|ask| differs(ask)).map(|ask| format!("{ask:?}")));
        let lost = questions(protocol, port).iter().filter(|ask| shown(ask) != 'L').map(|ask| ask.0).collect();
        let said = said(&seen, "external-ip-conflict/takes-listener", protocol, port);
        if said != (Some(Severity::Critical), lost) {
            wrong.push(format!("{port}/{protocol}: {said:?}"));
        }
        // No finding reports the lost connections of the second address. The address is on the node only for the
        // Service, so a listener on all addresses does not need the address.
        let said = super::claims::said(&virtually, "external-ip-conflict/takes-listener", protocol, port);
        if said != (None, BTreeSet::new()) {
            wrong.push(format!("{port}/{protocol} of a virtual address: {said:?}"));
        }
    }

    // Adds Pods with hostPorts for the same redirections, so that Portreeve knows a reason for the rules.
    for (protocol, port) in node_ports.clone() {
        let upper = protocol.to_string().to_uppercase();
        let pod = objects::host_port_pod(&format!("edge-{port}"), &upper, port, None);
        cluster.api().create_running(&pod, &Wired::HERE);
    }
    let seen = snapshot(&cluster.kubeconfig("admin"));
    for (protocol, port) in node_ports {
        let told = told(&seen, protocol, port);
        let is_redirected = |ask: &&Ask| ask.2.is_ipv4() && !ask.2.ip().is_loopback();
        for ask in questions(protocol, port).iter().filter(is_redirected) {
            let told = told[&(ask.0, ask.2.ip())];
            if ![shown(ask), '?'].contains(&told) {
                wrong.push(format!("{ask:?}: {} and not {told}", shown(ask)));
            }
        }
    }
    assert!(wrong.is_empty(), "{mode}:\n{}", wrong.join("\n"));
    proxy.clean_up();
}

/// The snapshot of the node without the second addresses in the Node's status, as if kube-vip or keepalived had put
/// them on the node.
fn without_balanced(mut seen: Snapshot) -> Snapshot {
    let balanced = BALANCED.map(|ip| ip.parse::<IpAddr>().expect("an address"));
    let Reading::Seen(nodes) = &mut seen.cluster.nodes else { panic!("Nodes were read") };
    nodes.iter_mut().for_each(|node| Arc::make_mut(node).addresses.retain(|it| !balanced.contains(&it.ip)));
    seen
}

#[track_caller]
fn redirect(protocol: Protocol, port: u16) {
    for chain in ["PREROUTING", "OUTPUT"] {
        let rule = format!(
            "-t nat -A {chain} ! -d 127.0.0.0/8 -m addrtype --dst-type LOCAL -p {protocol} --dport {port} -j DNAT --to {}:{OTHER}",
            Wired::HERE[0]
        );
        let status = Command::new("iptables").arg("--wait").args(rule.split(' ')).status();
        assert!(status.expect("iptables is installed").success(), "{rule}");
    }
}
