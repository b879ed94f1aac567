//! The kernel may give a NodePort to an outgoing connection: the ephemeral port range covers the NodePort range.
//!
//! ## Why it hurts
//! Nothing holds a NodePort on the node, so the kernel hands it to any connection that asks for a free port. In ipvs
//! mode the answer to such a connection is taken for a new client of the Service and sent to a pod: the connection
//! hangs, now and then, and nothing points at a sysctl. In the other modes it works as long as conntrack remembers
//! it, but a listener that needs the port (a health check, a hostNetwork pod) cannot have it meanwhile.
//!
//! ## Silent when
//! the two ranges do not meet, or `net.ipv4.ip_local_reserved_ports` covers every port where they do, in one entry or
//! in several.
//!
//! ## Fix
//! Reserve the NodePort range. `ip_local_reserved_ports` is one value, and writing it replaces the whole list, so the
//! command below contains what is reserved already. Or let the ephemeral range begin above the NodePorts:
//! `32768 65535` has more ports than the default. Then restart what is connected from a NodePort now.

use super::{
    Limits, Patience, Rule,
    ephemeral::{effective_ephemeral, ranges_in_words},
    node_ports::{at_most, counted, reserve},
};
use crate::{
    dataplane::served_node_ports,
    facts::{Gap, Learned, Mode, NodePortRange, PortRange, PortSet, Snapshot, Source, View},
    findings::{Evidence, Judgement, Judgements, RuleId, Severity, Subject, Vantage, Verdict},
};

pub(super) static RULE: Rule = Rule {
    id: RuleId("ephemeral-range-overlaps-node-ports"),
    title: "Outgoing connections may take NodePorts",
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
    let verdict = match ephemeral.intersection(range.range) {
        Some(overlap) if !uncovered.is_empty() => {
            Verdict::Problem(Overlap { snapshot, range, overlap, choosable, uncovered }.evidence())
        }
        _ => Verdict::Healthy,
    };
    Ok(vec![Judgement { subject: Subject::this_node(snapshot), port: None, protocol: None, verdict }])
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
    fn evidence(&self) -> Evidence {
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
        evidence = reserve(self.snapshot, &self.range.range.into()).into_iter().fold(evidence, Evidence::remedy);
        match self.above() {
            Some(above) => evidence.remedy(format!("or `sysctl -w net.ipv4.ip_local_port_range=\"{above}\"`")),
            None => evidence,
        }
    }

    /// The NodePorts of Services that the kernel may choose.
    fn allocated(&self) -> Result<PortSet, Gap> {
        let services = self.snapshot.cluster.services.get()?;
        let ports: PortSet = served_node_ports(services).map(|(_, _, port)| port).collect();
        Ok(ports.intersection(&self.uncovered))
    }

    /// An ephemeral range above the NodePorts, where there is one of at least the default's size.
    fn above(&self) -> Option<String> {
        let first = self.range.range.last.checked_add(1)?;
        let above = PortRange::new(first, u16::MAX)?;
        (above.size() >= PortRange::DEFAULT_EPHEMERAL.size()).then(|| format!("{} {}", above.first, above.last))
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
        assert_eq!(evidence.remedy[0], "sysctl -w net.ipv4.ip_local_reserved_ports=\"2703,30000-32767\"");
        assert!(evidence.remedy[1].contains("/etc/sysctl.d/"), "{:?}", evidence.remedy);
        assert!(evidence.remedy[2].contains("\"32768 65535\""), "{:?}", evidence.remedy);
    }

    #[test]
    fn apart_or_covered_is_healthy_however_many_entries_cover() {
        expect_healthy(&RULE, &web(), &subject());
        for reserved in ["30000-32767", "1-65535", "30000-30999,31000-31999,32000-32767"] {
            expect_healthy(&RULE, &web().ephemeral("1024 65535", reserved).with_mode(Mode::Ipvs), &subject());
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
