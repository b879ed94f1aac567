//! Masqueraded connections to one destination use most of the source ports that masquerading may choose.

use std::net::SocketAddr;

use super::{Limits, Round, Rule, ids};
use crate::findings::{Evidence, Judgement, Judgements, Severity, Step, Subject, Vantage, Verdict};
use portreeve_facts::{MasqueradePool, PortRange, Reading, Snapshot, Source, Unread, Why};

pub(super) static RULE: Rule = Rule::of(&ids::MASQUERADE_SOURCE_PORTS, &["pool"], &[Source::Conntrack], check);

/// The source ports that masquerading may give to a connection from an ephemeral port. A rule with `--to-ports` has
/// other source ports (net/netfilter/nf_nat_core.c, `nf_nat_l4proto_unique_tuple`).
const CHOOSABLE: PortRange = PortRange { first: 1024, last: u16::MAX };
/// If this percentage of the source ports is in use, some new connections fail. The kernel tries about 240 ports: 128,
/// 64, 32 and 16 ports from random places (`attempts` in `nf_nat_l4proto_unique_tuple`). If all tried ports are in use,
/// the kernel drops the packet. If 98 % of the source ports are in use, one of 100 connections fails. If 99 % are in
/// use, one of 10 connections fails. If 95 % are in use, none of 100,000 connections fails.
const FULL: u32 = 98;
/// If this percentage of an assumed range is in use, the range is nearly used up. The assumed range is from the lowest
/// to the highest used port. The percentage is high, because a few used ports may be neighbours by chance.
const DENSE: u32 = 95;

fn check(round: &Round<'_>, limits: &Limits) -> Judgements {
    let snapshot = round.now;
    let pools = match &snapshot.kernel.masquerade_pools {
        // If the table was not requested, no counter shows a shortage of source ports.
        Reading::Gap(gap) if gap.why == Why::NotRequested => return Ok(Vec::new()),
        pools => pools.get()?,
    };
    let problems = pools.iter().filter_map(|pool| Some(evidence(snapshot, pool, nearly_used(pool, limits)?)));
    let verdict = problems.reduce(Evidence::merge).map_or(Verdict::Healthy, Verdict::Problem);
    Ok(vec![Judgement::of(Subject::this_node(snapshot), verdict)])
}

/// The range that is nearly used up. If most flows have a port that their client did not choose, and these ports are
/// close together, a rule with `--to-ports` chose the ports. The range of this rule contains at least these ports.
fn nearly_used(pool: &MasqueradePool, limits: &Limits) -> Option<PortRange> {
    let is_chosen = pool.moved * 2 > pool.used;
    let of_all = Some(CHOOSABLE).filter(|range| has(pool, range, limits.ephemeral_warning_percent));
    of_all.or_else(|| Some(pool.ports).filter(|range| is_chosen && has(pool, range, DENSE)))
}

fn has(pool: &MasqueradePool, range: &PortRange, percent: u32) -> bool {
    u64::from(pool.used) * 100 >= u64::from(range.size()) * u64::from(percent)
}

fn evidence(snapshot: &Snapshot, pool: &MasqueradePool, range: PortRange) -> Evidence {
    let MasqueradePool { protocol, translated, server: (ip, port), used, senders, .. } = pool;
    let to = SocketAddr::new(*ip, *port);
    let is_known = range == CHOOSABLE;
    let is_full = is_known && has(pool, &range, FULL);
    let severity = if is_full { Severity::Critical } else { Severity::Warning };
    let end = if is_full { "fail" } else { "may soon fail" };
    let summary = format!(
        "Masquerade has given {used} of its source ports {range} to connections to {to}/{protocol}: new connections of pods on this node \
         to that destination {end}."
    );
    let whence =
        if is_known { "the range of masquerade" } else { "assumed: from the lowest to the highest port in use" };
    Evidence::new(severity, summary)
        .variant("pool")
        .value("connections", format!("{protocol} as {translated} -> {to}"))
        .value("source ports used", format!("{used} of {} ({range}, {whence})", range.size()))
        .each("used by", senders.iter().map(|(sender, flows)| format!("{}: {flows}", whose(snapshot, *sender))))
        .affects(is_full.then_some(Vantage::Pods))
        .remedy(Step::advice("make the programs reuse connections: keep-alive, a connection pool, fewer retries"))
        .remedy(Step::advice(
            "spread the pods over more nodes, or give the node's outgoing connections more addresses: each address has its own source ports",
        ))
        .remedy(Step::advice(
            "if the network plugin limits the source ports, widen that range: natPortRange of Calico's FelixConfiguration, --to-ports of iptables",
        ))
}

fn whose(snapshot: &Snapshot, ip: std::net::IpAddr) -> String {
    let pods = snapshot.cluster.pods.known_part(Unread::Adds).iter();
    let mut pods = pods.filter(|pod| !pod.host_network && !pod.finished && pod.ips.contains(&ip));
    pods.next().map_or_else(|| ip.to_string(), |pod| format!("pod {}/{} ({ip})", pod.namespace, pod.name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::expectations::{expect_healthy, expect_problem, expect_unknown};
    use portreeve_facts::{
        Masquerade, Protocol,
        healthy::{PRIMARY, gap, ip},
    };

    fn world(used: u32, ports: &str, moved: u32) -> Snapshot {
        let mut world = Snapshot::healthy().pod("app", |pod| pod.ips = vec![ip("10.244.1.7")]);
        let pool = MasqueradePool {
            protocol: Protocol::Tcp,
            translated: ip(PRIMARY[0]),
            server: (ip("198.51.100.7"), 443),
            used,
            ports: ports.parse().expect("a range"),
            moved,
            senders: vec![(ip("10.244.1.7"), used - 1), (ip("10.244.2.9"), 1)],
        };
        world.kernel.masquerade_pools = Reading::Seen(vec![pool]);
        world
    }

    fn subject() -> Subject {
        Subject::this_node(&Snapshot::healthy())
    }

    #[test]
    fn most_of_the_ports_in_use_are_critical_with_destination_and_senders() {
        let evidence = expect_problem(&RULE, &world(63_222, "1024-65535", 12), &subject());
        assert_eq!((evidence.severity, evidence.variant), (Severity::Critical, "pool"));
        assert!(evidence.summary.ends_with("to that destination fail."), "{}", evidence.summary);
        assert_eq!(evidence.affects, [Vantage::Pods].into());
        assert!(evidence.summary.contains("198.51.100.7:443/tcp"), "{}", evidence.summary);
        for value in ["pod default/app (10.244.1.7): 63221", "10.244.2.9: 1"] {
            assert!(evidence.values.contains(&("used by", value.to_owned())), "{value}: {evidence:#?}");
        }
        for used in [51_610, 63_221] {
            let evidence = expect_problem(&RULE, &world(used, "1024-65535", 12), &subject());
            assert_eq!(evidence.severity, Severity::Warning);
            assert!(
                evidence.summary.ends_with("may soon fail.") && evidence.affects.is_empty(),
                "{}",
                evidence.summary
            );
        }
        expect_healthy(&RULE, &world(51_609, "1024-65535", 12), &subject());
    }

    #[test]
    fn a_narrow_range_that_a_rule_chose_is_a_warning_for_it_is_assumed() {
        let evidence = expect_problem(&RULE, &world(190, "40000-40199", 96), &subject());
        assert_eq!(evidence.severity, Severity::Warning);
        let used = "190 of 200 (40000-40199, assumed: from the lowest to the highest port in use)".to_owned();
        assert!(evidence.values.contains(&("source ports used", used)), "{evidence:#?}");
        expect_healthy(&RULE, &world(189, "40000-40199", 189), &subject());
        // One client chose its ports in sequence.
        expect_healthy(&RULE, &world(190, "40000-40199", 95), &subject());
    }

    #[test]
    fn while_nothing_shows_that_ports_lack_it_is_silent_and_unread_is_unknown() {
        let mut world = world(51_610, "1024-65535", 12);
        world.kernel.masquerade_pools = Masquerade::pools_not_requested();
        expect_healthy(&RULE, &world, &subject());
        world.kernel.masquerade_pools = gap(Source::Conntrack, Why::NotPermitted);
        assert_eq!(expect_unknown(&RULE, &world, &subject()).why, Why::NotPermitted);
    }
}
