//! A setting names a NodePort range that differs from the API server's range.

use super::{
    Limits, Round, Rule,
    ephemeral::effective_ephemeral,
    ids,
    node_ports::{known_range, ports_in_words, range_in_words},
    reservation::reserve,
    wording::listed,
};
use crate::findings::{Evidence, Judgement, Judgements, Severity, Step, Subject, Verdict};
use portreeve_dataplane::mode_in_words;
use portreeve_facts::{
    Claimant, Gap, Mode, NodePortRange, PortRange, PortSet, RangeClaim, Reading, Snapshot, Source, Unread,
};

pub(super) static RULE: Rule =
    Rule::of(&ids::NODE_PORT_RANGE_MISMATCH, &["component", "reserved"], &[Source::NodePortRange], check);

fn check(round: &Round<'_>, _: &Limits) -> Judgements {
    let snapshot = round.now;
    snapshot.cluster.node_port_range.get()?;
    let claims: Vec<&RangeClaim> =
        snapshot.cluster.range_claims.iter().filter(|claim| may_matter(snapshot, claim.by)).collect();
    let range = match known_range(snapshot) {
        Ok(range) => range,
        Err(_) if claims.is_empty() => return Ok(Vec::new()),
        Err(gap) => return Err(gap),
    };
    let by_default = default_of_cilium(snapshot);
    let verdict = |found: Result<Evidence, Gap>| found.map_or_else(Verdict::Unknown, Verdict::Problem);
    let claims = claims.into_iter().chain(&by_default).filter_map(|claim| claimed(round, range, claim).transpose());
    let mut judgements = Judgement::each(&Subject::cluster(), claims.map(verdict));
    // Each node has its own reserved ports, so the subject is this node.
    let reserved = reserved(round, range).transpose();
    judgements.extend(Judgement::each(&Subject::this_node(snapshot), reserved.map(verdict)));
    Ok(judgements)
}

/// Whether the other component's range has an effect in the proxy's mode. True if the mode is not known.
fn may_matter(snapshot: &Snapshot, by: Claimant) -> bool {
    let matters = match by {
        Claimant::Cilium => Mode::Cilium,
        Claimant::Calico => Mode::Ipvs,
    };
    snapshot.proxy_mode().map_or(true, |mode| mode.value == matters)
}

/// Cilium's default range, if Cilium replaces kube-proxy and no setting names a range. Cilium does not read the API
/// server's range.
fn default_of_cilium(snapshot: &Snapshot) -> Option<RangeClaim> {
    let serves = snapshot.is_in(Mode::Cilium);
    let config = snapshot.proxy_config().ok().filter(|config| serves && config.cilium.is_some())?;
    let named = snapshot.cluster.range_claims.iter().any(|claim| claim.by == Claimant::Cilium);
    (!named).then(|| RangeClaim {
        by: Claimant::Cilium,
        ranges: Reading::Seen(vec![PortRange::DEFAULT_NODE_PORTS]),
        place: format!("{}, which keeps the default", config.place),
    })
}

/// The finding about ports that the API server allocates, but that are not in the range of another component.
fn claimed(round: &Round<'_>, range: &NodePortRange, claim: &RangeClaim) -> Result<Option<Evidence>, Gap> {
    let theirs: PortSet = claim.ranges.get()?.iter().copied().collect();
    let lacking = PortSet::from(range.range).minus(&theirs);
    if lacking.is_empty() {
        return Ok(None);
    }
    let mode = Ok(round.now.proxy_mode()?);
    let (who, setting, lost) = match claim.by {
        Claimant::Cilium => ("Cilium", "node-port-range", "are served only on the addresses for remote clients"),
        Claimant::Calico => ("Calico", "kubeNodePortRanges", "are treated as ports of the host in its policies"),
    };
    let summary = format!(
        "{who} uses the NodePort range {}, but the API server uses {}: NodePorts {} {lost}.",
        ports_in_words(&theirs),
        range.range,
        ports_in_words(&lacking)
    );
    let evidence = Evidence::new(Severity::Warning, summary)
        .in_cluster()
        .value("NodePort range", range_in_words(range))
        .value(who, format!("{setting} {} ({})", ports_in_words(&theirs), claim.place))
        .value("proxy mode", mode_in_words(&mode));
    let remedy = Step::advice(format!("set {setting} of {who} to {} ({})", range.range, claim.place));
    Ok(Some(with_allocated(round, evidence, &lacking).remedy(remedy)))
}

/// The finding if the reserved ports of the kernel cover only an older NodePort range: the kernel may choose NodePorts
/// of the present range.
fn reserved(round: &Round<'_>, range: &NodePortRange) -> Result<Option<Evidence>, Gap> {
    let snapshot = round.now;
    let unread = Unread::Reported("the verdict about the claim itself");
    let claims = snapshot.cluster.range_claims.iter().flat_map(|claim| claim.ranges.known_part(unread)).copied();
    let mut older: Vec<PortRange> =
        claims.chain([PortRange::DEFAULT_NODE_PORTS]).filter(|it| *it != range.range).collect();
    older.sort_unstable();
    if older.is_empty() {
        return Ok(None);
    }
    let reserved = snapshot.kernel.sysctls.ip_local_reserved_ports.get()?;
    let covered = older.into_iter().find(|old| PortSet::from(*old).minus(reserved).is_empty());
    let Some(old) = covered else { return Ok(None) };
    let open = effective_ephemeral(snapshot)?.intersection(&PortSet::from(range.range));
    if open.is_empty() {
        return Ok(None);
    }
    let summary = format!(
        "The reserved ports of this node cover {old}, but the API server allocates from {}: the kernel may use NodePorts {} for outgoing connections.",
        range.range,
        ports_in_words(&open)
    );
    let evidence = Evidence::new(Severity::Warning, summary)
        .variant("reserved")
        .value("ip_local_reserved_ports", ports_in_words(reserved))
        .value("NodePort range", range_in_words(range));
    let evidence = with_allocated(round, evidence, &open);
    Ok(Some(evidence.remedy(reserve(round, &range.range.into()))))
}

fn with_allocated(round: &Round<'_>, evidence: Evidence, ports: &PortSet) -> Evidence {
    let Some(allocated) = round.allocated().known(Unread::Adds) else { return evidence };
    let inside: Vec<_> = allocated
        .ports()
        .filter(|(number, _)| ports.contains(*number))
        .filter_map(|(number, holders)| Some((number, holders.first()?)))
        .map(|(number, (service, _))| format!("{number} ({}/{})", service.namespace, service.name))
        .collect();
    match inside.is_empty() {
        true => evidence.value("affected allocated ports", "none yet"),
        false => evidence.value("affected allocated ports", listed(inside)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        expectations::{expect_healthy, expect_problem, expect_unknown},
        findings::Scope,
    };
    use portreeve_facts::{CiliumConfig, Why, healthy::gap};

    fn claimed(by: Claimant, ranges: &[&str], mode: Mode) -> Snapshot {
        let mut world = Snapshot::healthy().with_mode(mode).node_port_range("30000-34095");
        let ranges = Reading::Seen(ranges.iter().map(|range| range.parse().expect("a range")).collect());
        world.cluster.range_claims.push(RangeClaim {
            by,
            ranges,
            place: "ConfigMap kube-system/cilium-config".to_owned(),
        });
        world
    }

    fn cluster() -> Subject {
        Subject::cluster()
    }

    fn node() -> Subject {
        Subject::node("n1", None)
    }

    #[test]
    fn cilium_has_its_default_where_its_settings_name_no_range() {
        let world = |range: &str| {
            let world = Snapshot::healthy().with_mode(Mode::Cilium).node_port_range(range);
            world.with_config(|it| it.cilium = Some(CiliumConfig::default()))
        };
        let evidence = expect_problem(&RULE, &world("20000-32767"), &cluster());
        assert!(evidence.summary.contains("NodePorts 20000-29999 are served only on"), "{}", evidence.summary);
        let (_, words) = evidence.values.iter().find(|(name, _)| *name == "Cilium").expect("its range");
        assert!(words.ends_with("which keeps the default)"), "{words}");
        expect_healthy(&RULE, &world("30000-32767"), &cluster());
        expect_healthy(&RULE, &world("20000-32767").with_mode(Mode::Nftables), &cluster());
    }

    #[test]
    fn cilium_serves_what_its_own_range_lacks_on_fewer_addresses() {
        let world = claimed(Claimant::Cilium, &["30000-32767"], Mode::Cilium).service("web", |it| it.node_port(33000));
        let evidence = expect_problem(&RULE, &world, &cluster());
        assert_eq!((evidence.severity, evidence.scope), (Severity::Warning, Scope::Cluster));
        assert_eq!(
            evidence.summary,
            "Cilium uses the NodePort range 30000-32767, but the API server uses 30000-34095: NodePorts 32768-34095 are served only on the addresses for remote clients."
        );
        assert!(
            evidence.values.contains(&("affected allocated ports", "33000 (default/web)".to_owned())),
            "{evidence:?}"
        );
        assert!(
            evidence.remedies[0].steps[0].text.contains("set node-port-range of Cilium to 30000-34095"),
            "{:?}",
            evidence.remedies
        );
    }

    #[test]
    fn calico_matters_in_ipvs_mode_and_its_ranges_add_up() {
        let problem = expect_problem(&RULE, &claimed(Claimant::Calico, &["30000-32767"], Mode::Ipvs), &cluster());
        assert!(problem.summary.contains("Calico"), "{}", problem.summary);
        expect_healthy(&RULE, &claimed(Claimant::Calico, &["30000-31000", "31001-40000"], Mode::Ipvs), &cluster());
    }

    #[test]
    fn what_is_not_in_use_does_not_matter() {
        for mode in Mode::KUBE_PROXY {
            expect_healthy(&RULE, &claimed(Claimant::Cilium, &["30000-32767"], mode), &cluster());
        }
        expect_healthy(&RULE, &claimed(Claimant::Calico, &["30000-32767"], Mode::Iptables), &cluster());
    }

    #[test]
    fn a_reserved_list_of_the_old_range_leaves_the_rest_to_the_kernel() {
        let extended = Snapshot::healthy().node_port_range("30000-34095").ephemeral("32768 60999", "2703,30000-32767");
        let evidence = expect_problem(&RULE, &extended, &node());
        assert_eq!((evidence.severity, evidence.scope), (Severity::Warning, Scope::Node));
        assert_eq!(evidence.variant, "reserved");
        assert!(evidence.summary.contains("NodePorts 32768-34095"), "{}", evidence.summary);
        assert_eq!(
            evidence.remedies[0].steps[0].text,
            "sysctl -w net.ipv4.ip_local_reserved_ports=\"2703,30000-34095\""
        );
        expect_healthy(&RULE, &extended.clone().ephemeral("32768 60999", "30000-33000,33001-34095"), &node());
        expect_healthy(&RULE, &extended.clone().ephemeral("40000 60999", "30000-32767"), &node());
        expect_healthy(&RULE, &extended.ephemeral("32768 60999", "2703"), &node());
    }

    #[test]
    fn a_list_that_never_covered_another_range_is_no_disagreement() {
        expect_healthy(&RULE, &Snapshot::healthy().ephemeral("1024 65535", "30000-30999"), &node());
    }

    #[test]
    fn unread_is_unknown() {
        let known = claimed(Claimant::Cilium, &["30000-32767"], Mode::Cilium);
        assert_eq!(expect_unknown(&RULE, &known.clone().without_proxy(), &cluster()).source, Source::ProxyMode);
        assert_eq!(expect_unknown(&RULE, &known.clone().assumed_range(), &node()).why, Why::Ambiguous);
        let mut world = known.clone();
        world.kernel.sysctls.ip_local_reserved_ports = gap(Source::Sysctls, Why::NotPermitted);
        assert_eq!(expect_unknown(&RULE, &world, &node()).source, Source::Sysctls);
        let mut world = known.ephemeral("32768 60999", "30000-32767");
        world.kernel.sysctls.ip_local_port_range = gap(Source::Sysctls, Why::NotPermitted);
        assert_eq!(expect_unknown(&RULE, &world, &node()).source, Source::Sysctls);
    }

    #[test]
    fn an_idea_of_the_range_that_could_not_be_read_is_unknown_where_it_would_matter() {
        let unread = |by, mode| {
            let mut world = claimed(by, &[], mode);
            world.cluster.range_claims[0].ranges = gap(Source::ConfigMaps, Why::NotPermitted);
            world
        };
        for (by, mode) in [(Claimant::Cilium, Mode::Cilium), (Claimant::Calico, Mode::Ipvs)] {
            let world = unread(by, mode);
            assert_eq!(expect_unknown(&RULE, &world, &cluster()).source, Source::ConfigMaps, "{mode}");
            expect_unknown(&RULE, &world.clone().without_proxy(), &cluster());
            expect_unknown(&RULE, &world.assumed_range(), &cluster());
            expect_healthy(&RULE, &unread(by, Mode::Iptables), &cluster());
            expect_healthy(&RULE, &unread(by, Mode::Iptables).assumed_range(), &cluster());
        }
        let mut world = unread(Claimant::Calico, Mode::Iptables).ephemeral("32768 60999", "30000-32767");
        assert!(expect_problem(&RULE, &world, &node()).summary.contains("32768-34095"), "the default is an older one");
        world.cluster.range_claims.clear();
        expect_problem(&RULE, &world, &node());
    }

    #[test]
    fn health_is_said_where_nothing_was_found() {
        let world = Snapshot::healthy();
        let judgements = check(&Round::of(&world, None, 60), &Limits::default()).expect("the rule can judge");
        assert!(judgements.iter().all(|it| it.verdict == Verdict::Healthy) && !judgements.is_empty(), "{judgements:?}");
    }
}
