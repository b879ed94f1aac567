//! Cilium masquerades connections in eBPF, and may choose the number of a hostPort as source port.

use super::{
    Limits, Round, Rule, capped::Capped, ids, masquerade_uses_node_ports::unclear, node_ports::ports_in_words,
};
use crate::findings::{Evidence, Judgement, Judgements, Severity, Step, Subject, Vantage, Verdict};
use portreeve_dataplane::{cilium_range, mode_in_words};
use portreeve_facts::{ContainerPort, Gap, Mode, Pod, PortRange, PortSet, Protocol, Snapshot, Source, Why};

pub(super) static RULE: Rule = Rule::of(&ids::MASQUERADE_SOURCE_PORTS, &["host-port"], &[Source::Pods], check);

fn check(round: &Round<'_>, _: &Limits) -> Judgements {
    let snapshot = round.now;
    let host_ports = round.host_ports().get()?;
    let (drawn, masquerades) = (drawn(snapshot), masquerades(snapshot));
    let masquerades = match (snapshot.proxy_mode(), masquerades) {
        (Ok(mode), _) if mode.value != Mode::Cilium => return Ok(Vec::new()),
        // Cilium masquerades in eBPF only if Cilium replaces kube-proxy.
        (Err(gap), Ok(true)) => Err(gap),
        (Err(_), Err(gap)) if matches!(gap.why, Why::NotRequested | Why::NotYet | Why::Ambiguous) => {
            return Ok(Vec::new());
        }
        (_, masquerades) => masquerades,
    };
    let mut capped = Capped::of(snapshot, Source::Pods);
    for (pod, port) in host_ports.iter() {
        let Some(number) = port.host_port.filter(|_| can_meet(port)) else { continue };
        let is_drawn = drawn.as_ref().map_or(true, |drawn| drawn.contains(number));
        let verdict = match (&drawn, &masquerades) {
            _ if !is_drawn => continue,
            (_, Ok(false)) => Verdict::Healthy,
            (Ok(drawn), Ok(true)) => Verdict::Problem(evidence(snapshot, drawn, pod, port, number)),
            (Err(gap), _) | (_, Err(gap)) => Verdict::Unknown(gap.clone()),
        };
        capped.push(Judgement::on_port(Subject::pod(pod), (port.protocol, number), verdict));
    }
    Ok(capped.all())
}

/// Whether an answer to a masqueraded connection can reach this hostPort. The hostPort must have an address other than
/// loopback, and a protocol that Cilium translates.
fn can_meet(port: &ContainerPort) -> bool {
    port.protocol != Protocol::Sctp && !port.host_ip.is_some_and(|ip| ip.is_loopback())
}

/// The source ports from which Cilium chooses: the ports above Cilium's NodePort range (cilium
/// `bpf/include/bpf/config/global.h`, `NODEPORT_PORT_MIN_NAT`). A connection whose source port is one of these ports
/// keeps its port.
fn drawn(snapshot: &Snapshot) -> Result<PortSet, Gap> {
    let above = cilium_range(snapshot)?.ranges().last().map_or(0, |range| range.last);
    Ok(above.checked_add(1).map(|first| PortSet::from(PortRange { first, last: u16::MAX })).unwrap_or_default())
}

fn masquerades(snapshot: &Snapshot) -> Result<bool, Gap> {
    let config = snapshot.cluster.proxy_config.get()?;
    config.cilium.as_ref().map(|cilium| cilium.masquerades).ok_or_else(|| unclear(config))
}

fn evidence(snapshot: &Snapshot, drawn: &PortSet, pod: &Pod, port: &ContainerPort, number: u16) -> Evidence {
    let Pod { namespace, name, .. } = pod;
    let summary = format!(
        "Cilium may give a masqueraded connection the source port {number}, the hostPort of pod {namespace}/{name}: the answers \
         go to that pod, and the connection times out."
    );
    let first = drawn.ranges().first().map_or(1024, |range| range.first);
    Evidence::new(Severity::Warning, summary)
        .variant("host-port")
        .value("pod", format!("{namespace}/{name}"))
        .value("hostPort", format!("{number}/{} to container port {}", port.protocol, port.port))
        .value("masquerade", format!("by Cilium in eBPF, with source ports {}", ports_in_words(drawn)))
        .value("proxy mode", mode_in_words(&snapshot.proxy_mode()))
        .affects([Vantage::Pods])
        .remedy(Step::advice(format!(
            "give pod {namespace}/{name} a hostPort below {first}: a reservation on the node does not help, because the source port comes from a pod's own network settings"
        )))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::expectations::{expect_healthy, expect_problem, expect_unknown};
    use portreeve_facts::{
        CiliumConfig, Claimant, ProxyConfig, RangeClaim, Reading,
        healthy::{gap, objects},
    };

    fn world(number: u16, masquerades: bool) -> Snapshot {
        let mut world = Snapshot::healthy().with_mode(Mode::Cilium).pod("otel", |pod| pod.host_port(4317, number));
        world.cluster.proxy_config = Reading::Seen(ProxyConfig {
            place: "ConfigMap kube-system/cilium-config".to_owned(),
            mode: Some("cilium".to_owned()),
            cilium: Some(CiliumConfig { masquerades, ..CiliumConfig::default() }),
            ..ProxyConfig::default()
        });
        world
    }

    fn subject() -> Subject {
        Subject::pod(&world(40317, false).cluster.pods.seen().expect("pods")[0])
    }

    #[test]
    fn a_host_port_that_cilium_may_draw_is_a_warning_about_the_pod() {
        let evidence = expect_problem(&RULE, &world(40317, true), &subject());
        assert_eq!((evidence.severity, evidence.variant), (Severity::Warning, "host-port"));
        assert_eq!(evidence.affects, [Vantage::Pods].into());
        let drawn = ("masquerade", "by Cilium in eBPF, with source ports 32768-65535".to_owned());
        assert!(evidence.values.contains(&drawn), "{evidence:#?}");
        assert!(evidence.remedies[0].steps[0].text.contains("below 32768"), "{evidence:#?}");
    }

    #[test]
    fn what_cilium_does_not_draw_is_silent() {
        expect_healthy(&RULE, &world(4317, true), &subject());
        expect_healthy(&RULE, &world(32767, true), &subject());
        expect_healthy(&RULE, &world(40317, false), &subject());
        for mode in Mode::KUBE_PROXY {
            let mut by_kube_proxy = Snapshot::healthy().pod("otel", |pod| pod.host_port(4317, 40317)).with_mode(mode);
            by_kube_proxy.cluster.proxy_config = gap(Source::ConfigMaps, Why::NotRequested);
            expect_healthy(&RULE, &by_kube_proxy, &subject());
        }
        let but = |change: fn(&mut ContainerPort)| {
            let mut world = world(40317, true);
            objects(&mut world.cluster.pods)[0].ports.iter_mut().for_each(change);
            world
        };
        expect_healthy(&RULE, &but(|port| port.host_ip = Some("127.0.0.1".parse().expect("an address"))), &subject());
        expect_healthy(&RULE, &but(|port| port.protocol = Protocol::Sctp), &subject());
    }

    #[test]
    fn it_draws_above_the_range_that_cilium_was_told() {
        let mut wide = world(40317, true);
        let mut claim = |ranges| {
            let place = "ConfigMap kube-system/cilium-config".to_owned();
            wide.cluster.range_claims = vec![RangeClaim { by: Claimant::Cilium, ranges, place }];
            wide.clone()
        };
        expect_healthy(&RULE, &claim(Reading::Seen(vec!["30000-45000".parse().expect("a range")])), &subject());
        expect_healthy(&RULE, &claim(Reading::Seen(vec!["30000-65535".parse().expect("a range")])), &subject());
        expect_problem(&RULE, &claim(Reading::Seen(vec!["20000-22767".parse().expect("a range")])), &subject());
        assert_eq!(
            expect_unknown(&RULE, &claim(gap(Source::ConfigMaps, Why::Malformed)), &subject()).why,
            Why::Malformed
        );
    }

    #[test]
    fn unread_is_unknown() {
        let mut world = world(40317, true);
        if let Reading::Seen(config) = &mut world.cluster.proxy_config {
            config.cilium = None;
        }
        assert_eq!(expect_unknown(&RULE, &world, &subject()).why, Why::Ambiguous);
        world.cluster.proxy_config = gap(Source::ConfigMaps, Why::NotPermitted);
        assert_eq!(expect_unknown(&RULE, &world, &subject()).why, Why::NotPermitted);
        let mut unknown_mode = world.without_proxy();
        unknown_mode.cluster.proxy_config = gap(Source::ConfigMaps, Why::Torn);
        assert_eq!(expect_unknown(&RULE, &unknown_mode, &subject()).why, Why::Torn);
        unknown_mode.cluster.proxy_config = gap(Source::ConfigMaps, Why::NotRequested);
        expect_healthy(&RULE, &unknown_mode, &subject());
        let mut world = unknown_mode;
        world.cluster.pods = gap(Source::Pods, Why::Unreachable);
        assert_eq!(expect_unknown(&RULE, &world, &subject()).source, Source::Pods);
    }
}
