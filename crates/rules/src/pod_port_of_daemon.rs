//! A pod that is still to come wants a port of the node that a daemon of most nodes has.

use super::{
    Limits, Patience, Round, Rule, ids,
    pods::{PortOf, to_come},
};
use crate::findings::{
    Evidence, Judgement, Judgements,
    Severity::{self, Info, Warning},
    Step, Subject, Verdict,
};
use portreeve_facts::Protocol::{self, Tcp, Udp};

/// It needs nothing but workloads, which are read from files.
pub(super) static RULE: Rule = Rule {
    id: &ids::HOST_NETWORK_PORT_TAKEN,
    variants: &["daemon"],
    needs: &[],
    uses: &[],
    socket_needs: &[],
    patience: Patience::TwoScans,
    check,
};

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

fn check(round: &Round<'_>, _: &Limits) -> Judgements {
    let mut judgements = Vec::new();
    for workload in to_come(round.now) {
        for (wanted, port) in workload.node_ports() {
            let is_it = |(number, protocol, ..): &&(u16, Protocol, &str, Severity)| {
                (*number, *protocol) == (wanted, port.protocol)
            };
            let Some((number, protocol, name, severity)) = DAEMONS.iter().find(is_it) else { continue };
            let summary = format!(
                "port {number}/{protocol} of {workload} is the node's, and where {name} runs, it has that port."
            );
            let evidence = PortOf::Workload(workload)
                .named_in(Evidence::new(*severity, summary), *number, *protocol)
                .in_cluster()
                .value("daemon", name)
                .remedy(Step::advice(format!("give {workload} another port of the node than {number}/{protocol}")));
            judgements.push(Judgement {
                subject: Subject::cluster(),
                port: Some(*number),
                protocol: Some(*protocol),
                verdict: Verdict::Problem(evidence),
            });
        }
    }
    Ok(judgements)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::expectations::{expect_healthy, expect_problem, wanting};
    use portreeve_facts::{Controller, Snapshot, Workload};

    fn of(number: u16, change: impl FnOnce(&mut Workload)) -> Snapshot {
        let mut world = Snapshot::healthy();
        world.cluster.workloads.push(wanting(number, change).into());
        world
    }

    #[test]
    fn a_port_of_kubelet_is_a_warning_and_those_of_daemons_that_a_node_may_lack_are_information() {
        let evidence = expect_problem(&RULE, &of(10250, |_| ()), &Subject::cluster());
        assert_eq!(evidence.severity, Warning);
        assert_eq!(
            evidence.summary,
            "port 10250/tcp of DaemonSet default/agent is the node's, and where kubelet runs, it has that port."
        );
        assert_eq!(expect_problem(&RULE, &of(9100, |_| ()), &Subject::cluster()).severity, Info);
        let in_the_hosts_network = |it: &mut Workload| {
            (it.host_network, it.ports[0].port, it.ports[0].host_port) = (true, 9100, None);
        };
        expect_problem(&RULE, &of(9100, in_the_hosts_network), &Subject::cluster());
    }

    #[test]
    fn another_port_or_protocol_a_pods_own_port_and_pods_that_are_there_are_silent() {
        let changes: [fn(&mut Workload); 3] = [
            |it| it.ports[0].host_port = Some(9101),
            |it| it.ports[0].protocol = Udp,
            |it| (it.ports[0].port, it.ports[0].host_port) = (9100, None),
        ];
        for change in changes {
            expect_healthy(&RULE, &of(9100, change), &Subject::cluster());
        }
        let controller = Controller { kind: "DaemonSet".to_owned(), name: "agent".to_owned() };
        let there = of(9100, |_| ()).pod("agent-1", |pod| pod.controller = Some(controller));
        expect_healthy(&RULE, &there, &Subject::cluster());
    }
}
