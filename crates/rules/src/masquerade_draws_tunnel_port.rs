//! Masquerading may give a connection the port of a tunnel. If rules keep packets of this port out of conntrack, the
//! answers are lost.

use std::collections::BTreeMap;

use super::{Limits, Round, Rule, ids, masquerade_uses_node_ports::unclear, remedies::untracked, wording::listed};
use crate::findings::{Evidence, Judgement, Judgements, Remedy, Severity, Step, Subject, Vantage, Verdict};
use portreeve_dataplane::mode_in_words;
use portreeve_facts::{Gap, Mode, Protocol, Snapshot, Source, Why};

pub(super) static RULE: Rule =
    Rule::of(&ids::MASQUERADE_SOURCE_PORTS, &["tunnel"], &[Source::Addresses], check).uses(&[Source::Netfilter]);

/// The lowest port that masquerading chooses for a connection from port 1024 or above (Linux
/// net/netfilter/nf_nat_core.c).
const FIRST_DRAWN: u16 = 1024;

fn check(round: &Round<'_>, _: &Limits) -> Judgements {
    let snapshot = round.now;
    let links = &snapshot.kernel.interfaces.get()?.links;
    let untracked = snapshot.kernel.netfilter.get().and_then(|it| it.untracked.get());
    // If the agent has no right to read nft rules, the result is healthy instead of unknown, because the finding would
    // be information.
    if untracked.as_ref().is_err_and(|gap| matches!(gap.why, Why::NotRequested | Why::NotPermitted | Why::NotSupported))
    {
        return Ok(Vec::new());
    }
    let mut tunnels: BTreeMap<u16, Vec<&str>> = BTreeMap::new();
    for link in links.iter().filter(|link| link.up) {
        if let Some(port) = link.udp_port.filter(|port| *port >= FIRST_DRAWN) {
            tunnels.entry(port).or_default().push(&link.name);
        }
    }
    if tunnels.is_empty() {
        return Ok(Vec::new());
    }
    let untracked = untracked?;
    tunnels.retain(|port, _| untracked.contains(&(Protocol::Udp, *port)));
    let judgement = |(port, mut names): (u16, Vec<&str>)| {
        names.sort_unstable();
        let verdict = match masquerades(snapshot) {
            Ok(true) => Verdict::Problem(evidence(snapshot, port, &names)),
            Ok(false) => Verdict::Healthy,
            Err(gap) => Verdict::Unknown(gap),
        };
        Judgement::on_port(Subject::this_node(snapshot), (Protocol::Udp, port), verdict)
    };
    Ok(tunnels.into_iter().map(judgement).collect())
}

/// Whether netfilter masquerades: with kube-proxy in every mode, and with Cilium unless Cilium masquerades in eBPF.
fn masquerades(snapshot: &Snapshot) -> Result<bool, Gap> {
    if snapshot.proxy_mode()?.value != Mode::Cilium {
        return Ok(true);
    }
    let config = snapshot.cluster.proxy_config.get()?;
    config.iptables_masquerade.or(config.cilium.as_ref().map(|_| true)).ok_or_else(|| unclear(config))
}

fn evidence(snapshot: &Snapshot, port: u16, names: &[&str]) -> Evidence {
    let tunnels = listed(names);
    let sentence = format!(
        "Masquerade may give a UDP connection the port {port} of tunnel {tunnels}: NOTRACK rules hide this port from conntrack, and the answers are lost."
    );
    Evidence::new(Severity::Info, sentence)
        .variant("tunnel")
        .value("tunnel", format!("{tunnels} has {port}/udp"))
        .value("not tracked", format!("packets to {port}/udp (NOTRACK)"))
        .value("masquerade", format!("by netfilter, with source ports {FIRST_DRAWN}-65535"))
        .value("proxy mode", mode_in_words(&snapshot.proxy_mode()))
        .affects([Vantage::Pods])
        .remedy(Remedy::from(untracked()).then(Step::advice(format!(
            "before the other rules, add a rule with --to-ports that masquerades UDP to other ports than {port}"
        ))))
        .remedy(Step::advice(
            "if the network plugin can masquerade in eBPF, enable this, for example bpf.masquerade of Cilium",
        ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::expectations::{expect_healthy, expect_problem, expect_unknown};
    use portreeve_facts::{
        CiliumConfig, Link, Netfilter, ProxyConfig, Reading,
        healthy::{gap, seen},
    };

    fn world(untracked: u16, up: bool) -> Snapshot {
        let mut world = Snapshot::healthy();
        let interfaces = std::sync::Arc::make_mut(seen(&mut world.kernel.interfaces));
        let link = Link { name: "overlay".to_owned(), kind: Some("vxlan".to_owned()), ..interfaces.links[0].clone() };
        interfaces.links.push(Link { index: 99, udp_port: Some(8472), up, ..link });
        let untracked = Reading::Seen(vec![(Protocol::Udp, untracked)]);
        world.kernel.netfilter = Reading::Seen(Netfilter { untracked, ..Netfilter::default() });
        world
    }

    fn subject() -> Subject {
        Subject::node("n1", Some("uid-n1"))
    }

    fn cilium(mut world: Snapshot, change: fn(&mut ProxyConfig)) -> Snapshot {
        let mut config =
            ProxyConfig { place: "ConfigMap kube-system/cilium-config".to_owned(), ..ProxyConfig::default() };
        change(&mut config);
        world.cluster.proxy_config = Reading::Seen(config);
        world.with_mode(Mode::Cilium)
    }

    #[test]
    fn a_tunnels_port_that_is_not_tracked_and_may_be_drawn_is_information() {
        for mode in Mode::KUBE_PROXY {
            let evidence = expect_problem(&RULE, &world(8472, true).with_mode(mode), &subject());
            assert_eq!((evidence.severity, evidence.variant), (Severity::Info, "tunnel"));
            assert!(evidence.summary.contains("8472") && evidence.summary.contains("overlay"), "{}", evidence.summary);
        }
        let by_iptables = |config: &mut ProxyConfig| config.iptables_masquerade = Some(true);
        expect_problem(&RULE, &cilium(world(8472, true), by_iptables), &subject());
        let by_default = |config: &mut ProxyConfig| config.cilium = Some(CiliumConfig::default());
        expect_problem(&RULE, &cilium(world(8472, true), by_default), &subject());
    }

    #[test]
    fn another_port_a_tunnel_that_is_down_and_masquerade_in_ebpf_are_silent() {
        expect_healthy(&RULE, &world(8473, true), &subject());
        expect_healthy(&RULE, &world(8472, false), &subject());
        let in_ebpf = |config: &mut ProxyConfig| config.iptables_masquerade = Some(false);
        expect_healthy(&RULE, &cilium(world(8472, true), in_ebpf), &subject());
        let mut of_tcp = world(8472, true);
        seen(&mut of_tcp.kernel.netfilter).untracked = Reading::Seen(vec![(Protocol::Tcp, 8472)]);
        expect_healthy(&RULE, &of_tcp, &subject());
        let mut low = world(1023, true);
        let interfaces = std::sync::Arc::make_mut(seen(&mut low.kernel.interfaces));
        interfaces.links.last_mut().expect("the tunnel").udp_port = Some(1023);
        expect_healthy(&RULE, &low, &subject());
    }

    #[test]
    fn whoever_may_not_read_rules_is_told_nothing_and_what_failed_is_unknown() {
        let mut world = world(8472, true);
        for why in [Why::NotRequested, Why::NotPermitted, Why::NotSupported] {
            world.kernel.netfilter = gap(Source::Netfilter, why);
            expect_healthy(&RULE, &world, &subject());
        }
        world.kernel.netfilter = gap(Source::Netfilter, Why::Torn);
        assert_eq!(expect_unknown(&RULE, &world, &subject()).source, Source::Netfilter);
        let mut without = Snapshot::healthy();
        without.kernel.netfilter = gap(Source::Netfilter, Why::Torn);
        expect_healthy(&RULE, &without, &subject());
        world.kernel.interfaces = gap(Source::Addresses, Why::Torn);
        assert_eq!(expect_unknown(&RULE, &world, &subject()).source, Source::Addresses);
    }

    #[test]
    fn who_masquerades_is_unknown_where_the_mode_or_ciliums_settings_are() {
        let undecided = cilium(world(8472, true), |_| ());
        assert_eq!(expect_unknown(&RULE, &undecided, &subject()).why, Why::Ambiguous);
        assert_eq!(expect_unknown(&RULE, &world(8472, true).without_proxy(), &subject()).source, Source::ProxyMode);
    }
}
