//! The kernel may give a port that a server needs to an outgoing connection: the ephemeral port range covers the NodePort
//! range, or ports of servers on this node.
//!
//! ## Why it hurts
//! Nothing holds a NodePort on the node, so the kernel hands it to any connection that asks for a free port. In ipvs
//! mode the answer to such a connection is taken for a new client of the Service and sent to a pod: the connection
//! hangs, now and then, and nothing points at a sysctl. In the other modes it works as long as conntrack remembers
//! it, but a listener that needs the port (a health check, a hostNetwork pod) cannot have it meanwhile.
//!
//! A range that begins lower than the default, as `1024 65535` does, also covers ports of servers: of the kubelet, of
//! hostNetwork pods, of daemons. While one listens, its port is its own. When it restarts or moves here, an outgoing
//! connection may have the port, and it cannot begin: *address already in use*, for as long as that connection lasts.
//!
//! ## Silent when
//! - the two ranges do not meet, or `net.ipv4.ip_local_reserved_ports` covers every port where they do, in one entry or
//!   in several;
//! - the kernel chooses no port that a server of this node needs: ports of hostNetwork pods, hostPorts that a socket holds, and, outside
//!   of the default range 32768-60999, the well-known ports on which a daemon listens now. Any other listener may have its
//!   port by chance.
//!
//! ## Fix
//! Reserve the NodePort range, and the ports of servers that the finding lists. `ip_local_reserved_ports` is one value, and writing it replaces the whole list, so the
//! command below contains what is reserved already. Or let the ephemeral range begin above the NodePorts:
//! `32768 60999` is the default. `32768 65535` has more ports, but covers those of Antrea's NodePortLocal (61000-62000 by
//! default): reserve these where it is used. Then restart what is connected from a NodePort now.

use super::{
    Limits, Patience, Rule,
    ephemeral::{effective_ephemeral, ranges_in_words},
    needed_ports::NeededPorts,
    node_ports::{at_most, counted},
    remedies::{LAST_BY_DEFAULT, choose_from, reserve},
};
use crate::{
    dataplane::served_node_ports,
    facts::{Gap, Learned, Mode, NodePortRange, PortRange, PortSet, Snapshot, Source, View},
    findings::{Evidence, Judgement, Judgements, RuleId, Severity, Subject, Vantage, Verdict},
};

pub(super) static RULE: Rule = Rule {
    id: RuleId("ephemeral-range-overlaps-node-ports"),
    title: "Outgoing connections may take NodePorts, or ports of servers",
    ceiling: Severity::Critical,
    needs: &[Source::Sysctls, Source::NodePortRange],
    uses: &[],
    socket_needs: &[],
    patience: Patience::One,
    page: include_str!("ephemeral_range_overlaps_node_ports.rs"),
    check,
};

fn check(view: View<'_>, _: &Limits) -> Judgements {
    let snapshot = view.now;
    let range = snapshot.cluster.node_port_range.get()?;
    let ephemeral = *snapshot.kernel.sysctls.ip_local_port_range.get()?;
    let choosable = effective_ephemeral(snapshot)?;
    let uncovered = choosable.intersection(&range.range.into());
    let needed = NeededPorts::among(&choosable, snapshot);
    let verdict = match (ephemeral.intersection(range.range), needed.unread()) {
        (Some(overlap), _) if !uncovered.is_empty() => {
            Verdict::Problem(Overlap { snapshot, range, overlap, choosable, uncovered }.evidence(&needed))
        }
        _ if !needed.ports().is_empty() => Verdict::Problem(servers(snapshot, &needed)),
        (_, Some(gap)) => Verdict::Unknown(gap.clone()),
        (_, None) => Verdict::Healthy,
    };
    Ok(vec![Judgement { subject: Subject::this_node(snapshot), port: None, protocol: None, verdict }])
}

/// NodePorts are safe, and ports of servers are not.
fn servers(snapshot: &Snapshot, needed: &NeededPorts) -> Evidence {
    let sentence = "The ephemeral port range covers ports that servers of this node need, not all of them reserved: while an \
                    outgoing connection has one, its server cannot start.";
    let mut evidence = Evidence::new(Severity::Warning, sentence).outcome("servers");
    evidence.values = ranges_in_words(snapshot);
    let evidence = needed.add_to(evidence).remedy(reserve(snapshot, &needed.ports()));
    // It helps where it leaves them all out.
    let by_default = PortSet::from(PortRange::DEFAULT_EPHEMERAL);
    match needed.ports().intersection(&by_default).is_empty() {
        true => evidence.remedy(choose_from(PortRange::DEFAULT_EPHEMERAL)),
        false => evidence,
    }
}

/// Two ranges that meet.
struct Overlap<'a> {
    snapshot: &'a Snapshot,
    range: &'a NodePortRange,
    /// The ports that both ranges hold.
    overlap: PortRange,
    /// The ports that the kernel may choose by itself.
    choosable: PortSet,
    /// Those of them that are in the NodePort range.
    uncovered: PortSet,
}

impl Overlap<'_> {
    fn evidence(&self, needed: &NeededPorts) -> Evidence {
        let mode = self.snapshot.proxy_mode();
        let taken = self.allocated();
        let some_taken = taken.as_ref().is_ok_and(|taken| !taken.is_empty());
        let hangs = some_taken && mode.as_ref().is_ok_and(|mode| mode.value == Mode::Ipvs);
        let severity = at_most(self.range, if hangs { Severity::Critical } else { Severity::Warning });
        let consequence = if hangs {
            "in ipvs mode some new connections of this node hang"
        } else {
            "an outgoing connection may take a NodePort"
        };
        let sentence = format!(
            "The ephemeral port range covers {} of the NodePort range, not all of it reserved: {consequence}.",
            self.overlap
        );
        let mut evidence = Evidence::new(severity, sentence);
        evidence.values = ranges_in_words(self.snapshot);
        evidence = evidence
            .value("in both ranges", counted(&self.overlap.into()))
            .value("not reserved", counted(&self.uncovered));
        evidence = match &taken {
            Ok(taken) => evidence
                .value("allocated of these", counted(taken))
                .value("chance per connection", chance(taken.len(), self.choosable.len())),
            Err(gap) => evidence.value("allocated of these", format!("unknown: {}", gap.detail)),
        };
        evidence = evidence.value("proxy mode", mode_and_stakes(&mode));
        if hangs {
            evidence = evidence.affects([Vantage::Node]);
        }
        evidence = needed.add_to(evidence).remedy(reserve(self.snapshot, &self.range.range.into()));
        match self.above() {
            Some(above) => evidence.remedy(choose_from(above)),
            None => evidence,
        }
    }

    /// The NodePorts of Services that the kernel may choose.
    fn allocated(&self) -> Result<PortSet, Gap> {
        let services = self.snapshot.cluster.services.get()?;
        let ports: PortSet = served_node_ports(services).map(|(_, _, port)| port).collect();
        Ok(ports.intersection(&self.uncovered))
    }

    /// An ephemeral range above the NodePorts of at least the default's size: to the default's end, if that is enough.
    fn above(&self) -> Option<PortRange> {
        let first = self.range.range.last.checked_add(1)?;
        let ends = [LAST_BY_DEFAULT, u16::MAX].into_iter();
        let mut above = ends.filter_map(|last| PortRange::new(first, last));
        above.find(|range| range.size() >= PortRange::DEFAULT_EPHEMERAL.size())
    }
}

/// `3 of 64512 (0.005 %)`.
fn chance(taken: u32, choosable: u32) -> String {
    format!("{taken} of {choosable} ({:.3} %)", f64::from(taken) * 100.0 / f64::from(choosable))
}

fn mode_and_stakes(mode: &Result<Learned<Mode>, Gap>) -> String {
    match mode {
        Ok(mode) => mode.to_string(),
        Err(_) => "unknown: in ipvs mode, connections from an allocated NodePort hang".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        facts::{
            Why,
            healthy::{World, gap},
        },
        findings::Subject,
        rules::expectations::{expect_healthy, expect_problem, expect_unknown},
    };

    fn subject() -> Subject {
        Subject::node("n1", None)
    }

    fn web() -> Snapshot {
        Snapshot::healthy().service("web", |it| it.node_port(30080))
    }

    fn problem(world: &Snapshot) -> Evidence {
        expect_problem(&RULE, world, &subject())
    }

    fn value(evidence: &Evidence, name: &str) -> String {
        let found = evidence.values.iter().find(|(it, _)| *it == name);
        found.map_or_else(|| panic!("no {name} in {evidence:#?}"), |(_, value)| value.clone())
    }

    #[test]
    fn an_uncovered_allocated_port_is_critical_in_ipvs_mode_and_a_warning_elsewhere() {
        let wide = web().ephemeral("1024 65535", "");
        let ipvs = problem(&wide.with_mode(Mode::Ipvs));
        assert_eq!(ipvs.severity, Severity::Critical);
        assert!(ipvs.affects.contains(&Vantage::Node));
        for mode in [Mode::Iptables, Mode::Nftables, Mode::Cilium] {
            assert_eq!(problem(&wide.with_mode(mode)).severity, Severity::Warning, "{mode}");
        }
        assert_eq!(problem(&wide.without_proxy()).severity, Severity::Warning, "that much holds in every mode");
    }

    #[test]
    fn only_free_ports_uncovered_is_a_warning_in_ipvs_mode_too() {
        let free = web().ephemeral("1024 65535", "30000-30999").with_mode(Mode::Ipvs);
        assert_eq!(problem(&free).severity, Severity::Warning);
        let other = |it: World| it.node_port(30080).with(|service| service.proxy_name = Some("other".to_owned()));
        let other = Snapshot::healthy().service("web", other).ephemeral("1024 65535", "").with_mode(Mode::Ipvs);
        assert_eq!(problem(&other).severity, Severity::Warning, "kube-proxy does not serve that Service");
    }

    #[test]
    fn the_evidence_has_the_numbers_and_the_remedy_keeps_what_was_reserved() {
        let evidence = problem(&web().ephemeral("1024 65535", "2703,30000-30079").with_mode(Mode::Ipvs));
        assert_eq!(value(&evidence, "in both ranges"), "30000-32767 (2768 ports)");
        assert_eq!(value(&evidence, "not reserved"), "30080-32767 (2688 ports)");
        assert_eq!(value(&evidence, "allocated of these"), "30080 (1 port)");
        assert_eq!(value(&evidence, "chance per connection"), "1 of 64431 (0.002 %)");
        assert_eq!(value(&evidence, "NodePort range"), "30000-32767 (kube-apiserver /flagz)");
        let [reserve, move_away] = &evidence.remedies[..] else { panic!("{:?}", evidence.remedies) };
        assert_eq!(
            reserve.steps[0].text,
            "sysctl -w net.ipv4.ip_local_reserved_ports=\"2703,10249-10250,10256,30000-32767\""
        );
        assert!(reserve.steps[1].text.contains("/etc/sysctl.d/"), "{reserve:?}");
        assert_eq!(move_away.steps[0].text, "sysctl -w net.ipv4.ip_local_port_range=\"32768 60999\"");
        assert_eq!(move_away.steps.len(), 2, "it leaves out NodePortLocal: {move_away:?}");
    }

    #[test]
    fn a_range_up_to_the_end_comes_with_a_word_about_node_port_local() {
        let evidence = problem(&web().node_port_range("30000-34095").ephemeral("1024 65535", "").with_mode(Mode::Ipvs));
        let away = evidence.remedies.last().expect("a remedy");
        assert_eq!(away.steps[0].text, "sysctl -w net.ipv4.ip_local_port_range=\"34096 65535\"");
        assert!(away.steps[2].text.contains("NodePortLocal, reserve its ports too: 61000-62000"), "{away:?}");
    }

    #[test]
    fn apart_or_covered_is_healthy_however_many_entries_cover() {
        expect_healthy(&RULE, &web(), &subject());
        for reserved in ["30000-32767", "1-65535", "30000-30999,31000-31999,32000-32767"] {
            expect_healthy(&RULE, &web().ephemeral("11000 65535", reserved).with_mode(Mode::Ipvs), &subject());
        }
    }

    #[test]
    fn an_assumed_range_is_never_critical_and_says_that_it_is_assumed() {
        let assumed = problem(&web().ephemeral("1024 65535", "").with_mode(Mode::Ipvs).assumed_range());
        assert_eq!(assumed.severity, Severity::Warning);
        assert!(value(&assumed, "NodePort range").contains("assumed"));
    }

    #[test]
    fn without_services_the_overlap_is_still_told() {
        let mut world = web().ephemeral("1024 65535", "").with_mode(Mode::Ipvs);
        world.cluster.services = gap(Source::Services, Why::NotAsked);
        let evidence = problem(&world);
        assert_eq!(evidence.severity, Severity::Warning);
        assert!(value(&evidence, "allocated of these").starts_with("unknown"));
    }

    #[test]
    fn ports_of_servers_are_a_warning_where_node_ports_are_safe() {
        let world = web().ephemeral("1024 65535", "10249,30000-32767").with_mode(Mode::Ipvs);
        let evidence = problem(&world);
        assert_eq!((evidence.severity, evidence.affects.len()), (Severity::Warning, 0));
        assert!(evidence.summary.contains("ports that servers of this node need"), "{}", evidence.summary);
        assert_eq!(value(&evidence, "needed by daemons"), "10250,10256 (2 ports)");
        let reserve = &evidence.remedies[0].steps[0].text;
        assert_eq!(reserve, "sysctl -w net.ipv4.ip_local_reserved_ports=\"10249-10250,10256,30000-32767\"");
        assert_eq!(evidence.remedies[1].steps[0].text, "sysctl -w net.ipv4.ip_local_port_range=\"32768 60999\"");
        let both = problem(&web().ephemeral("1024 65535", ""));
        assert!(both.summary.contains("covers 30000-32767 of the NodePort range"), "{}", both.summary);
        assert_eq!(value(&both, "needed by daemons"), "10249-10250,10256 (3 ports)");
        assert_ne!(both.impact(), evidence.impact(), "it is not the same problem");
    }

    #[test]
    fn a_pod_on_the_hosts_network_needs_its_port() {
        let port = crate::facts::ContainerPort {
            port: 40000,
            host_port: None,
            host_ip: None,
            protocol: crate::facts::Protocol::Udp,
        };
        let world = web().pod("media", |pod| {
            pod.host_network = true;
            pod.ports.push(port);
        });
        let evidence = problem(&world);
        assert_eq!(value(&evidence, "needed by a pod"), "40000/udp of pod default/media");
        assert_eq!(evidence.remedies.len(), 1, "the default range has the port too: {evidence:#?}");
        expect_healthy(&RULE, &world.ephemeral("32768 60999", "40000"), &subject());
    }

    #[test]
    fn without_pods_ports_that_are_known_are_told_and_no_others_are_believed_safe() {
        let mut world = web();
        world.cluster.pods = gap(Source::Pods, Why::Unreachable);
        assert_eq!(expect_unknown(&RULE, &world, &subject()).source, Source::Pods);
        problem(&world.clone().ephemeral("1024 65535", "30000-32767"));
        problem(&world.ephemeral("1024 65535", ""));
    }

    #[test]
    fn unread_is_unknown() {
        let mut world = web().ephemeral("1024 65535", "");
        world.kernel.sysctls.ip_local_reserved_ports = gap(Source::Sysctls, Why::NotPermitted);
        assert_eq!(expect_unknown(&RULE, &world, &subject()).source, Source::Sysctls);
        let mut world = web().ephemeral("1024 65535", "");
        world.cluster.node_port_range = gap(Source::NodePortRange, Why::Unreachable);
        assert_eq!(expect_unknown(&RULE, &world, &subject()).source, Source::NodePortRange);
    }

    #[test]
    fn the_sentence_says_what_it_leads_to() {
        let world = web().ephemeral("1024 65535", "");
        assert!(problem(&world.with_mode(Mode::Ipvs)).summary.contains("some new connections of this node hang"));
        assert!(problem(&world).summary.contains("an outgoing connection may take a NodePort"));
    }
}
