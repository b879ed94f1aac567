//! A pod that does not exist yet wants a port that a daemon has on most nodes.

use super::{
    Limits, Round, Rule, ids,
    pods::{PortOf, to_come},
};
use crate::findings::{
    Evidence, Judgement, Judgements,
    Severity::{Info, Warning},
    Step, Subject, Verdict,
};
use portreeve_dataplane::{Role, UsualPort, is_usual, usual_ports};
use portreeve_facts::Workload;

/// This rule needs only workloads, which are read from files.
pub(super) static RULE: Rule = Rule::of(&ids::HOST_NETWORK_PORT_TAKEN, &["daemon"], &[], check);

/// Projects with several programs. A project's chart puts the project's word into the name of each program.
const PROJECTS: [&str; 6] = ["antrea", "calico", "cilium", "flannel", "metallb", "ovn"];

/// Whether the workload is the daemon itself, by its name or namespace. A word inside a longer name is not enough:
/// `etcd-backup` and `my-etcd-ui` are not etcd. In namespaces `kube-*`, which Kubernetes reserves, a word inside the
/// name is enough, for example `etcd-n1`.
fn is_itself(Workload { namespace, name, .. }: &Workload, daemon: &UsualPort) -> bool {
    let is_its = |end: &str| matches!(end, "" | "-system");
    let is_whole = |start: &str| start.is_empty() || start.ends_with('-');
    daemon.words.iter().any(|&word| {
        let is_project = PROJECTS.contains(&word) && name.split('-').any(|part| part.starts_with(word));
        name.strip_suffix(word).is_some_and(is_whole)
            || namespace.strip_prefix(word).is_some_and(is_its)
            || is_project
            || (namespace.starts_with("kube-") && name.contains(word))
    })
}

fn check(round: &Round<'_>, _: &Limits) -> Judgements {
    let mut judgements = Vec::new();
    for workload in to_come(round.now) {
        for (wanted, port) in workload.node_ports() {
            let mut usual = usual_ports(Role::Noted);
            let daemon = usual.find(|it| (it.number, it.protocol) == (wanted, port.protocol));
            let Some(daemon) = daemon.filter(|it| !is_itself(workload, it)) else { continue };
            let UsualPort { number, protocol, of, .. } = *daemon;
            let severity = if is_usual(number, Role::Vital) { Warning } else { Info };
            let comma = if of.contains(',') { "," } else { "" };
            let summary = format!(
                "{workload} wants port {number}/{protocol} of the node, but {of}{comma} has this port on each node on which it runs."
            );
            let evidence = PortOf::Workload(workload)
                .named_in(Evidence::new(severity, summary), number, protocol)
                .in_cluster()
                .value("daemon", of)
                .remedy(Step::advice(format!("give {workload} another port of the node than {number}/{protocol}")));
            judgements.push(Judgement::on_port(Subject::cluster(), (protocol, number), Verdict::Problem(evidence)));
        }
    }
    Ok(judgements)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::expectations::{expect_healthy, expect_problem, wanting};
    use portreeve_facts::{Controller, Protocol, Snapshot};

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
            "DaemonSet default/agent wants port 10250/tcp of the node, but kubelet has this port on each node on which it runs."
        );
        assert_eq!(expect_problem(&RULE, &of(9100, |_| ()), &Subject::cluster()).severity, Info);
        let metrics = expect_problem(&RULE, &of(7472, |_| ()), &Subject::cluster()).summary;
        assert!(metrics.contains("but MetalLB, for its metrics, has this port"), "{metrics}");
        let in_the_hosts_network = |it: &mut Workload| {
            (it.host_network, it.ports[0].port, it.ports[0].host_port) = (true, 9100, None);
        };
        expect_problem(&RULE, &of(9100, in_the_hosts_network), &Subject::cluster());
    }

    #[test]
    fn another_port_or_protocol_a_pods_own_port_and_pods_that_are_there_are_silent() {
        let changes: [fn(&mut Workload); 3] = [
            |it| it.ports[0].host_port = Some(9101),
            |it| it.ports[0].protocol = Protocol::Udp,
            |it| (it.ports[0].port, it.ports[0].host_port) = (9100, None),
        ];
        for change in changes {
            expect_healthy(&RULE, &of(9100, change), &Subject::cluster());
        }
        let controller = Controller { kind: "DaemonSet".to_owned(), name: "agent".to_owned() };
        let there = of(9100, |_| ()).pod("agent-1", |pod| pod.controller = Some(controller));
        expect_healthy(&RULE, &there, &Subject::cluster());
    }

    #[test]
    fn the_daemon_itself_is_silent() {
        let called = |number, namespace: &str, name: &str| {
            of(number, |it| (it.namespace, it.name) = (namespace.to_owned(), name.to_owned()))
        };
        for (number, namespace, name) in [
            (6443, "kube-system", "kube-apiserver"),
            (7946, "metallb-system", "speaker"),
            (9100, "monitoring", "shop-prometheus-node-exporter"),
            (5473, "kube-system", "calico-typha"),
            (9099, "calico-system", "calico-node"),
            (2379, "backup", "etcd"),
            (2379, "kube-system", "etcd-n1"),
            (6443, "kube-system", "kube-apiserver-n1"),
            (7472, "default", "release-name-metallb-speaker"),
            (9099, "shop", "calico-node"),
            (9964, "shop", "cilium-envoy"),
            (6081, "ovn-kubernetes", "ovnkube-node"),
        ] {
            expect_healthy(&RULE, &called(number, namespace, name), &Subject::cluster());
        }
        for (number, namespace, name) in [
            (6443, "kube-system", "etcd"),
            (9100, "kube-system", "exporter"),
            (2379, "etcd-backup", "shop"),
            (2379, "shop", "my-etcd-ui"),
            (2379, "shop", "myetcd"),
            (9100, "shop", "node-exporter-ui"),
            (6443, "shop", "kube-apiserver-proxy"),
        ] {
            expect_problem(&RULE, &called(number, namespace, name), &Subject::cluster());
        }
    }
}
