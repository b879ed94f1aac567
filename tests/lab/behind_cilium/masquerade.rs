//! Connections from a pod to another host. iptables or Cilium itself masquerades the connections: the node's address
//! replaces the pod's address.

use std::{net::SocketAddr, os::fd::OwnedFd};

use portreeve_facts::Protocol;
use serde_json::json;

use super::{FAR, live::Behind};
use crate::{
    look::Look,
    parts::Wired,
    verdicts::{
        binds::Held,
        outgoing::{ECHO, begin, echo, works},
    },
};

const RULE: &str = "masquerade-source-ports/cilium";

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
        node.wired.client.run(echo);
        let pod = node.addresses[0].parse().expect("an address");
        // Masquerade keeps the source port if possible.
        let sockets = [30400, 30401].map(|port| {
            let from = SocketAddr::new(pod, port);
            node.pod.run(move || begin(Protocol::Tcp, from, ECHO))
        });
        assert!(sockets.iter().all(works), "there is no Service yet");
        let far = node.far();
        node.serve(&[("web", Protocol::Tcp, 30400, Wired::PORT, FAR)]);
        Self { node, sockets, _far: far }
    }

    #[track_caller]
    fn look(&self) -> Look {
        Look::check_with(&["--rule", RULE], &self.node.cluster.kubeconfig("observer"))
    }
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
