//! A pod wants a port of the node that a daemon of most nodes has.

use super::{Linted, rule::LintRule};
use crate::findings::{
    Evidence, PlacedFinding,
    Severity::{self, Info, Warning},
    Step,
};
use crate::ids;
use portreeve_facts::Protocol::{self, Tcp, Udp};

pub(super) const RULE: LintRule = LintRule::new(&ids::HOST_NETWORK_PORT_TAKEN, &["daemon"], check);

/// Ports that daemons have unless they are told others, by the documents of each.
const DAEMONS: [(u16, Protocol, &str, Severity); 38] = [
    (22, Tcp, "sshd", Info),
    (179, Tcp, "a BGP speaker (Calico, MetalLB)", Info),
    (2379, Tcp, "etcd", Info),
    (2380, Tcp, "etcd", Info),
    (2381, Tcp, "etcd, for its metrics", Info),
    (4240, Tcp, "Cilium's health check", Info),
    (4244, Tcp, "Hubble of Cilium", Info),
    (4789, Udp, "VXLAN of Calico", Info),
    (5473, Tcp, "Typha of Calico", Info),
    (6081, Udp, "Geneve of Antrea, Cilium or OVN-Kubernetes", Info),
    (6443, Tcp, "kube-apiserver", Info),
    (7472, Tcp, "MetalLB, for its metrics", Info),
    (7473, Tcp, "FRR of MetalLB, for its metrics", Info),
    (7946, Tcp, "MetalLB's speaker", Info),
    (7946, Udp, "MetalLB's speaker", Info),
    (8472, Udp, "VXLAN of flannel or Cilium", Info),
    (9091, Tcp, "Felix of Calico, for its metrics", Info),
    (9098, Tcp, "Typha of Calico", Info),
    (9099, Tcp, "Felix of Calico", Info),
    (9100, Tcp, "the node exporter of Prometheus", Info),
    (9878, Tcp, "Envoy of Cilium", Info),
    (9879, Tcp, "Cilium, for its health", Info),
    (9890, Tcp, "Cilium, for gops", Info),
    (9891, Tcp, "the operator of Cilium, for gops", Info),
    (9962, Tcp, "Cilium, for its metrics", Info),
    (9963, Tcp, "the operator of Cilium, for its metrics", Info),
    (9964, Tcp, "Envoy of Cilium, for its metrics", Info),
    (9965, Tcp, "Hubble of Cilium, for its metrics", Info),
    (10248, Tcp, "kubelet", Warning),
    (10249, Tcp, "kube-proxy", Info),
    (10250, Tcp, "kubelet", Warning),
    (10255, Tcp, "kubelet, where its read-only port is on", Info),
    (10256, Tcp, "kube-proxy", Info),
    (10257, Tcp, "kube-controller-manager", Info),
    (10258, Tcp, "cloud-controller-manager", Info),
    (10259, Tcp, "kube-scheduler", Info),
    (51820, Udp, "WireGuard of Calico or flannel", Info),
    (51871, Udp, "WireGuard of Cilium", Info),
];

fn check(linted: &Linted) -> Vec<PlacedFinding> {
    let mut findings = Vec::new();
    for (manifest, claim) in linted.claims() {
        let Some(wanted) = claim.what.of_pods() else { continue };
        let daemon = DAEMONS.iter().find(|(number, protocol, ..)| (*number, *protocol) == wanted);
        let Some((number, protocol, name, severity)) = daemon else { continue };
        let summary =
            format!("port {number}/{protocol} of {manifest} is the node's, and where {name} runs, it has that port.");
        let evidence = Evidence::new(*severity, summary)
            .value("daemon", name)
            .remedy(Step::advice(format!("give {manifest} another port of the node than {number}/{protocol}")));
        findings.push(linted.finding(RULE.name(), (manifest, claim), evidence));
    }
    findings
}
