//! Connections from a pod to another host. iptables or Cilium itself masquerades the connections: the node's address
//! replaces the pod's address.

use std::{net::SocketAddr, os::fd::OwnedFd};

use portreeve_facts::Protocol;
use serde_json::json;

use super::{FAR, live::Behind};
use crate::{
    look::Look,
    parts::{Answer, PRIMARY, Wired, ask, objects, until},
    verdicts::{
        binds::{Held, to},
        claims::OTHER,
        outgoing::{ECHO, begin, echo, works},
    },
};

const RULE: &str = "masquerade-source-ports/cilium";
const OF_HOST_PORTS: &str = "masquerade-source-ports/host-port";

/// The local port of the first connection becomes the NodePort of a Service. The second connection has another local
/// port.
struct Connections {
    node: Behind,
    sockets: [OwnedFd; 2],
    _far: Held,
}

impl Connections {
    /// Begins the connections before any Service exists, and checks that the connections work.
    #[track_caller]
    fn begun(in_ebpf: &'static str) -> Self {
        let mut node = Behind::start_with(&[("enable-bpf-masquerade", in_ebpf)]);
        // Masquerade keeps the source port if possible.
        let sockets = begun_from(&node, [30400, 30401]);
        let far = node.far();
        node.serve(&[("web", Protocol::Tcp, 30400, Wired::PORT, FAR)]);
        Self { node, sockets, _far: far }
    }

    #[track_caller]
    fn look(&self) -> Look {
        Look::check_with(&["--rule", RULE], &self.node.cluster.kubeconfig("observer"))
    }
}

/// Begins a connection of the pod from each port, and checks that the connections work.
#[track_caller]
fn begun_from<const N: usize>(node: &Behind, ports: [u16; N]) -> [OwnedFd; N] {
    node.wired.client.run(echo);
    let pod = node.addresses[0].parse().expect("an address");
    let sockets = ports.map(|port| {
        let from = SocketAddr::new(pod, port);
        node.pod.run(move || begin(Protocol::Tcp, from, ECHO))
    });
    assert!(sockets.iter().all(works), "no Service and no pod has the port yet");
    sockets
}

#[test]
fn an_answer_to_what_iptables_masqueraded_goes_to_the_service_and_is_told() {
    let begun = Connections::begun("false");
    let [taken, other] = &begun.sockets;
    assert!(!works(taken), "Cilium looks before conntrack");
    assert!(works(other), "no Service has its port");
    let look = begun.look();
    let [finding] = &look.findings(RULE)[..] else { panic!("{:#}", look.json) };
    assert_eq!(finding["severity"], json!("warning"), "{finding}");
    assert!(finding.to_string().contains("enable-bpf-masquerade"), "{finding}");
}

#[test]
fn what_cilium_masquerades_by_itself_keeps_off_the_range_and_nothing_is_told() {
    let begun = Connections::begun("true");
    assert!(begun.sockets.iter().all(works), "it was given a port beside the range");
    let look = begun.look();
    assert!(look.findings(RULE).is_empty(), "{:#}", look.json);
}

#[test]
fn an_answer_to_the_number_of_a_host_port_goes_to_the_pod_and_is_told() {
    let node = Behind::start_with(&[("enable-bpf-masquerade", "true")]);
    let _served = node.pod.run(|| Held::on(&to("::"), Protocol::Tcp, OTHER, Answer::OtherPod));
    let [taken, beside, below] = begun_from(&node, [40317, 40318, 8317]);
    let addresses: Vec<&str> = node.addresses.iter().map(String::as_str).collect();
    for port in [40317, 8317] {
        let pod = objects::host_port_pod(&format!("edge-{port}"), "TCP", port, None);
        node.cluster.api().create_running(&pod, &addresses);
        let at = SocketAddr::new(PRIMARY[0].parse().expect("an address"), port);
        until("hostPort", || (node.wired.client.run(move || ask(at)) == Answer::OtherPod).then_some(()));
    }
    assert!(!works(&taken), "the connection kept its port, so the answer goes to the pod with the hostPort");
    assert!(works(&beside), "no pod has its port");
    assert!(works(&below), "Cilium gave the connection a port above the NodePort range");

    let look = Look::check_with(&["--rule", OF_HOST_PORTS], &node.cluster.kubeconfig("observer"));
    let [finding] = &look.findings(OF_HOST_PORTS)[..] else { panic!("{:#}", look.json) };
    assert_eq!((&finding["severity"], &finding["port"]), (&json!("warning"), &json!(40317)));
    assert_eq!(finding["subject"]["name"], json!("edge-40317"));
}
