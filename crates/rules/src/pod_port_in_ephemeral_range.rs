//! A pod that does not exist yet wants a port of the node that the kernel may choose for outgoing connections.

use std::ptr;

use super::{
    Limits, Round, Rule,
    ephemeral::effective_ephemeral,
    ids,
    pods::{PortOf, to_come},
};
use crate::findings::{Evidence, Judgement, Judgements, Severity, Step, Subject, Verdict};
use portreeve_facts::{ContainerPort, Gap, Mode, PortRange, PortSet, Protocol, Snapshot, Why, Workload};

/// The rule needs only workloads, which are read from files. If no node was scanned, the rule uses the default range.
pub(super) static RULE: Rule = Rule::of(&ids::EPHEMERAL_RANGE_OVERLAP, &["workload"], &[], check);

fn check(round: &Round<'_>, _: &Limits) -> Judgements {
    let snapshot = round.now;
    let wanted = to_come(snapshot).flat_map(|it| it.needed_ports().map(move |port| (it, port)));
    let mut wanted = wanted.peekable();
    if wanted.peek().is_none() {
        return Ok(Vec::new());
    }
    let (chosen, place) = chosen(snapshot)?;
    let is_met = |(workload, (number, port)): &(&Workload, (u16, &ContainerPort))| {
        chosen.contains(*number) && (workload.host_network || may_be_masqueraded(snapshot, port))
    };
    let judgement = |(workload, (number, port)): (&Workload, (u16, &ContainerPort))| {
        let protocol = port.protocol;
        // Another program may answer the probe.
        let is_probed = workload.probed.iter().any(|probed| ptr::eq(probed, port));
        let wants = if is_probed { format!("A probe of {workload} names") } else { format!("{workload} wants") };
        let consequence = match workload.host_network {
            true if is_probed => "while a connection uses the port, no server can listen on the port",
            true => "while a connection uses the port, the pod cannot start",
            false => "behind Cilium, a masqueraded connection with this source port gets no answer",
        };
        let summary = format!(
            "{wants} port {number}/{protocol} of the node, which the kernel may give to an outgoing connection: {consequence}."
        );
        let reserve =
            format!("or reserve {number} in net.ipv4.ip_local_reserved_ports of every node on which the pod may run");
        let another = format!("give {workload} another port, which `suggest --host` prints");
        let advice = if workload.host_network { format!("{another}, {reserve}") } else { another };
        let evidence = PortOf::Workload(workload)
            .named_in(Evidence::new(Severity::Info, summary), number, protocol)
            .variant("workload")
            .in_cluster()
            .value("ephemeral port range", place)
            .remedy(Step::advice(advice));
        let verdict = Verdict::Problem(evidence);
        Judgement::on_port(Subject::cluster(), (protocol, number), verdict)
    };
    Ok(wanted.filter(is_met).map(judgement).collect())
}

/// The ports that the kernel chooses: on this node, or by default if no node was scanned.
fn chosen(snapshot: &Snapshot) -> Result<(PortSet, &'static str), Gap> {
    match effective_ephemeral(snapshot) {
        Err(gap) if gap.why == Why::NotRequested => {
            Ok((PortRange::DEFAULT_EPHEMERAL.into(), "32768-60999 (assumed: the default)"))
        }
        chosen => Ok((chosen?, "as on this node, without its reserved ports")),
    }
}

/// Whether Cilium may choose the hostPort as a source port when Cilium masquerades in eBPF (cilium/cilium#34041). If
/// the mode is not known, Cilium may run. Before the pod exists, it is not known whether the pod's container runtime
/// will listen on the hostPort.
fn may_be_masqueraded(snapshot: &Snapshot, port: &ContainerPort) -> bool {
    let is_another = snapshot.proxy_mode().is_ok_and(|mode| mode.value != Mode::Cilium);
    !is_another && port.protocol != Protocol::Sctp && !port.host_ip.is_some_and(|ip| ip.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::expectations::{expect_healthy, expect_problem, expect_unknown, wanting};
    use portreeve_facts::{
        Controller, Source,
        healthy::{gap, ip},
    };

    fn of(number: u16, change: impl FnOnce(&mut Workload)) -> Snapshot {
        let mut world = Snapshot::healthy().with_mode(Mode::Cilium);
        world.cluster.workloads.push(wanting(number, change).into());
        world
    }

    fn in_hosts_network(it: &mut Workload) {
        (it.host_network, it.ports[0].port, it.ports[0].host_port) = (true, 40_317, None);
    }

    fn unread(mut world: Snapshot, why: Why) -> Snapshot {
        world.kernel.sysctls.ip_local_port_range = gap(Source::Sysctls, why);
        world
    }

    #[test]
    fn a_port_that_the_kernel_may_choose_is_told_before_its_pod_is_there() {
        let evidence = expect_problem(&RULE, &of(40_317, |_| ()), &Subject::cluster());
        assert_eq!((evidence.severity, evidence.variant), (Severity::Info, "workload"));
        assert!(
            evidence.summary.ends_with("a masqueraded connection with this source port gets no answer."),
            "{evidence:?}"
        );
        assert!(!evidence.remedies[0].steps[0].text.contains("reserve"), "a pod's own kernel settings choose it");
        let host = expect_problem(&RULE, &of(0, in_hosts_network).with_mode(Mode::Iptables), &Subject::cluster());
        assert!(host.summary.ends_with("the pod cannot start."), "{host:?}");
        assert!(host.remedies[0].steps[0].text.contains("reserve 40317"), "{host:?}");
        let alone = expect_problem(&RULE, &unread(of(40_317, |_| ()), Why::NotRequested), &Subject::cluster());
        assert!(alone.values.iter().any(|(_, value)| value.contains("assumed")), "{alone:?}");
    }

    #[test]
    fn a_port_that_only_a_probe_names_is_told_too() {
        let probed = |it: &mut Workload| {
            (it.host_network, it.probed) = (true, std::mem::take(&mut it.ports));
            it.probed[0].port = 40_317;
        };
        let evidence = expect_problem(&RULE, &of(0, probed), &Subject::cluster());
        assert!(
            evidence.summary.starts_with("A probe of DaemonSet default/agent names port 40317/tcp"),
            "{evidence:?}"
        );
        assert!(evidence.summary.ends_with("no server can listen on the port."), "{evidence:?}");
    }

    #[test]
    fn what_the_kernel_does_not_choose_and_pods_that_are_there_are_silent() {
        let silent = |world: &Snapshot| expect_healthy(&RULE, world, &Subject::cluster());
        silent(&of(4317, |_| ()));
        silent(&of(40_317, |_| ()).ephemeral("32768 60999", "40317"));
        silent(&of(40_317, |_| ()).ephemeral("50000 60999", ""));
        silent(&of(40_317, |_| ()).with_mode(Mode::Iptables));
        silent(&of(40_317, |it| it.ports[0].protocol = Protocol::Sctp));
        silent(&of(40_317, |it| it.ports[0].host_ip = Some(ip("127.0.0.1"))));
        silent(&unread(of(4317, |_| ()), Why::NotRequested));
        let controller = Controller { kind: "DaemonSet".to_owned(), name: "agent".to_owned() };
        silent(&of(40_317, |_| ()).pod("agent-1", |pod| pod.controller = Some(controller)));
    }

    #[test]
    fn a_range_that_could_not_be_read_is_not_the_default() {
        let unread = unread(of(40_317, |_| ()), Why::Malformed);
        assert_eq!(expect_unknown(&RULE, &unread, &Subject::cluster()).source, Source::Sysctls);
    }
}
