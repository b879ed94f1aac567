//! A masqueraded connection has a NodePort as source port, so a Service gets the answers.

use std::{
    collections::{BTreeMap, HashSet},
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use super::{Limits, Round, Rule, ids, node_ports::range_in_words, remedies::untracked, wording::MOST_SOCKETS};
use crate::findings::{Evidence, Judgement, Judgements, Remedy, Severity, Step, Subject, Vantage, Verdict};
use portreeve_dataplane::{mode_in_words, served_node_ports, service_port};
use portreeve_facts::{
    Gap, Interfaces, IpVsConnection, MasqueradedFlow, Mode, Protocol, ProxyConfig, Reading, Service, Snapshot, Source,
    Unread, VirtualServer, Why,
};

pub(super) static RULE: Rule =
    Rule::of(&ids::MASQUERADE_SOURCE_PORTS, &["taken", "cilium"], &[Source::Services], check).uses(&[
        Source::IpVs,
        Source::IpVsConn,
        Source::Conntrack,
    ]);

fn check(round: &Round<'_>, _: &Limits) -> Judgements {
    let snapshot = round.now;
    let services = snapshot.cluster.services.get()?;
    match snapshot.proxy_mode() {
        Ok(mode) if mode.value == Mode::Cilium => return Ok(cilium(snapshot, services)),
        Ok(mode) if mode.value != Mode::Ipvs => return Ok(Vec::new()),
        Ok(_) | Err(_) => {}
    }
    let servers = match &snapshot.kernel.ip_vs {
        Reading::Gap(gap) if gap.why == Why::NotSupported => {
            return Ok(may_be_cilium(snapshot, services).into_iter().collect());
        }
        servers => servers.get()?,
    };
    let verdict = if servers.is_empty() { Verdict::Healthy } else { verdict(snapshot, services, servers)? };
    let own = Judgement::of(Subject::this_node(snapshot), verdict);
    Ok(std::iter::once(own).chain(may_be_cilium(snapshot, services)).collect())
}

/// An unknown result, if no mode is known and the unread settings may name Cilium.
fn may_be_cilium(snapshot: &Snapshot, services: &[Arc<Service>]) -> Option<Judgement> {
    let failed = |gap: &&Gap| !matches!(gap.why, Why::NotRequested | Why::NotYet | Why::NotSupported);
    let gap = snapshot.cluster.proxy_config.gap().filter(failed)?;
    let is_at_stake = snapshot.proxy_mode().is_err() && served_node_ports(snapshot, services).next().is_some();
    is_at_stake.then(|| Judgement::of(Subject::cluster(), Verdict::Unknown(gap.clone())))
}

/// The judgements for Cilium, which looks for a Service before conntrack sees a packet. No table shows these
/// connections, so the judgement uses Cilium's configuration.
fn cilium(snapshot: &Snapshot, services: &[Arc<Service>]) -> Vec<Judgement> {
    if served_node_ports(snapshot, services).next().is_none() {
        return Vec::new();
    }
    let config = snapshot.cluster.proxy_config.get();
    let verdict = match config.map(|config| (config, config.iptables_masquerade)) {
        Ok((config, Some(true))) => Verdict::Problem(by_iptables(snapshot, Severity::Warning, "false", &config.place)),
        Ok((_, Some(false))) => Verdict::Healthy,
        // Connections nearly always work with the default of this setting, so the severity is information.
        Ok((config, None)) if config.cilium.is_some() => {
            Verdict::Problem(by_iptables(snapshot, Severity::Info, "not set to true", &config.place))
        }
        Ok((config, None)) => Verdict::Unknown(unclear(config)),
        Err(gap) => Verdict::Unknown(gap),
    };
    vec![Judgement::of(Subject::cluster(), verdict)]
}

/// The reason why it is unknown whether Cilium masquerades.
pub(super) fn unclear(config: &ProxyConfig) -> Gap {
    let detail = format!("{} does not show whether Cilium masquerades by itself", config.place);
    Gap::new(Source::ConfigMaps, Why::Ambiguous, detail)
}

fn by_iptables(snapshot: &Snapshot, severity: Severity, value: &str, place: &str) -> Evidence {
    let summary = "iptables may masquerade a pod's connection with a NodePort as source port: Cilium then sends the answers \
                   to the Service, and the connection times out.";
    Evidence::new(severity, summary)
        .in_cluster()
        .variant("cilium")
        .value("enable-bpf-masquerade", format!("{value} (from {place})"))
        .each("NodePort range", snapshot.cluster.node_port_range.known(Unread::Adds).map(range_in_words))
        .value("proxy mode", mode_in_words(&snapshot.proxy_mode()))
        .remedy(Remedy::from(Step::advice(
            "make Cilium masquerade: set enable-bpf-masquerade to \"true\" (in Helm's values: bpf.masquerade)",
        ))
        .then(Step::advice("restart Cilium's agents, node by node")))
        .remedy(Step::advice(
            "before Cilium's rules, add a rule with --to-ports that masquerades the same connections to ports outside the NodePort range",
        ))
}

fn verdict(snapshot: &Snapshot, services: &[Arc<Service>], servers: &[VirtualServer]) -> Result<Verdict, Gap> {
    let masquerade = snapshot.kernel.masquerade.get()?;
    let served: HashSet<(Protocol, IpAddr, u16)> = servers.iter().map(|it| (it.protocol, it.ip, it.port)).collect();
    let is_served = |flow: &&MasqueradedFlow| {
        let (ip, port) = flow.translated;
        served.contains(&(flow.protocol, ip, port))
    };
    let hanging: Vec<&MasqueradedFlow> = masquerade.unanswered.iter().filter(is_served).collect();
    let connections = match &snapshot.kernel.ip_vs_connections {
        connections if !hanging.is_empty() => connections.get()?.as_slice(),
        _ => &[],
    };
    let answer = |flow: &MasqueradedFlow| {
        let key = (flow.protocol, flow.server, flow.translated);
        connections.iter().find(|it| (it.protocol, it.from, it.to) == key)
    };
    let taken: Vec<Taken<'_>> = hanging.iter().filter_map(|flow| Some((*flow, answer(flow)?))).collect();
    let unknown = |detail: String| Verdict::Unknown(Gap::new(Source::Conntrack, Why::Ambiguous, detail));
    Ok(match hanging.first() {
        _ if !taken.is_empty() => Verdict::Problem(evidence(snapshot, services, &taken)),
        Some(flow) => unknown(format!(
            "a masqueraded connection from {}, a NodePort, has no answer: the server is silent, or ipvs sent the answer to a pod and has no record",
            place(flow.translated)
        )),
        None if masquerade.beyond > 0 => {
            unknown("the list of masqueraded connections on NodePorts without an answer is full".to_owned())
        }
        None => Verdict::Healthy,
    })
}

/// A masqueraded connection that hangs, and the connection that IPVS made from the server's answer.
type Taken<'a> = (&'a MasqueradedFlow, &'a IpVsConnection);

fn evidence(snapshot: &Snapshot, services: &[Arc<Service>], taken: &[Taken<'_>]) -> Evidence {
    let owners: BTreeMap<(Protocol, u16), String> = served_node_ports(snapshot, services)
        .map(|(service, port, node_port)| ((port.protocol, node_port), service_port(service, &port.name)))
        .collect();
    let interfaces = snapshot.kernel.interfaces.known(Unread::Adds);
    let is_own = |ip: IpAddr, it: &Interfaces| it.addresses.iter().any(|address| address.ip == ip);
    let summary = "Some masqueraded connections have a NodePort as source port: ipvs treats the answers as new connections to the Service, and the masqueraded connections hang.";
    let mut evidence = Evidence::new(Severity::Critical, summary);
    for (flow, connection) in taken.iter().take(MOST_SOCKETS) {
        let MasqueradedFlow { protocol, source, translated, server } = flow;
        let owner = owners.get(&(*protocol, translated.1)).map_or("belongs to no known Service", String::as_str);
        evidence = evidence
            .value(
                "connection",
                format!("{protocol} {} as {} -> {}", place(*source), place(*translated), place(*server)),
            )
            .value(
                "ip_vs connection",
                format!(
                    "{protocol} {} -> {} -> {} {}",
                    place(connection.from),
                    place(connection.to),
                    place(connection.destination),
                    connection.state
                ),
            )
            .value("service", owner);
    }
    // Without this node's addresses, the owner of a connection (the node or a pod) is not known.
    let whose = |(flow, _): &Taken<'_>| {
        let is_own = is_own(flow.source.0, interfaces?);
        Some(if is_own { Vantage::Node } else { Vantage::Pods })
    };
    evidence
        .and_more("connection", taken.len(), MOST_SOCKETS)
        .each("NodePort range", snapshot.cluster.node_port_range.known(Unread::Adds).map(range_in_words))
        .value("proxy mode", mode_in_words(&snapshot.proxy_mode()))
        .affects(taken.iter().filter_map(whose))
        .remedy(Remedy::from(untracked()).then(Step::advice(
            "remove such rules for the NodePort range: conntrack does not translate an untracked answer back to its sender",
        )))
        .remedy(Step::advice(
            "if the network plugin can limit the source ports of masquerade, do so, for example with natPortRange of Calico's FelixConfiguration",
        ))
}

fn place((ip, port): (IpAddr, u16)) -> SocketAddr {
    SocketAddr::new(ip, port)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        expectations::{expect_healthy, expect_problem, expect_unknown},
        findings::{Scope, Subject},
    };
    use portreeve_facts::{
        CiliumConfig, Masquerade,
        healthy::{PRIMARY, gap, ip, seen},
    };

    const SERVER: (&str, u16) = ("198.51.100.7", 443);

    fn hanging(source: &str) -> Snapshot {
        let mut world = Snapshot::healthy().with_mode(Mode::Ipvs).service("web", |it| it.node_port(30080));
        let (primary, server) = (ip(PRIMARY[0]), (ip(SERVER.0), SERVER.1));
        let flow = |port| MasqueradedFlow {
            protocol: Protocol::Tcp,
            source: (ip(source), 40000),
            translated: (primary, port),
            server,
        };
        world.kernel.masquerade = Reading::Seen(Masquerade {
            flows: gap(Source::Conntrack, Why::NotRequested),
            unanswered: vec![flow(30080), flow(30081)],
            beyond: 0,
        });
        let web = VirtualServer { protocol: Protocol::Tcp, ip: primary, port: 30080, real_servers: 1 };
        world.kernel.ip_vs = Reading::Seen(vec![web]);
        world.kernel.ip_vs_connections = Reading::Seen(Vec::new());
        world
    }

    /// The same node, but the server answered the first flow, and IPVS sent this answer to a pod.
    fn taken(source: &str) -> Snapshot {
        let mut world = hanging(source);
        seen(&mut world.kernel.ip_vs_connections).push(IpVsConnection {
            protocol: Protocol::Tcp,
            from: (ip(SERVER.0), SERVER.1),
            to: (ip(PRIMARY[0]), 30080),
            destination: (ip("10.244.0.5"), 8080),
            state: "SYN_RECV".to_owned(),
        });
        world
    }

    fn subject() -> Subject {
        Subject::node("n1", Some("uid-n1"))
    }

    #[test]
    fn an_answer_that_ipvs_took_is_shown_with_both_connections() {
        let evidence = expect_problem(&RULE, &taken("10.244.0.9"), &subject());
        assert_eq!(evidence.severity, Severity::Critical);
        assert_eq!(evidence.affects, [Vantage::Pods].into());
        for value in [
            ("connection", "tcp 10.244.0.9:40000 as 192.0.2.1:30080 -> 198.51.100.7:443"),
            ("ip_vs connection", "tcp 198.51.100.7:443 -> 192.0.2.1:30080 -> 10.244.0.5:8080 SYN_RECV"),
            ("service", "default/web"),
        ] {
            assert!(evidence.values.contains(&(value.0, value.1.to_owned())), "{value:?}: {evidence:#?}");
        }
        assert!(!evidence.summary.contains("30080"), "the next connection has another port: {}", evidence.summary);
        assert_eq!(expect_problem(&RULE, &taken(PRIMARY[0]), &subject()).affects, [Vantage::Node].into());
        let mut unread = taken(PRIMARY[0]);
        unread.kernel.interfaces = gap(Source::Addresses, Why::Torn);
        assert!(expect_problem(&RULE, &unread, &subject()).affects.is_empty(), "it may be this node's own");
    }

    #[test]
    fn hundreds_of_them_are_one_problem_of_bounded_length() {
        let mut world = taken("10.244.0.9");
        let flows = &mut seen(&mut world.kernel.masquerade).unanswered;
        *flows = vec![flows[0].clone(); 64];
        let evidence = expect_problem(&RULE, &world, &subject());
        assert!(evidence.values.contains(&("connection", "and 56 more".to_owned())), "{evidence:#?}");
    }

    #[test]
    fn other_modes_and_what_ipvs_does_not_serve_are_silent() {
        for mode in [Mode::Iptables, Mode::Nftables, Mode::Cilium] {
            expect_healthy(&RULE, &taken("10.244.0.9").with_mode(mode), &subject());
        }
        let mut world = taken("10.244.0.9");
        seen(&mut world.kernel.ip_vs).clear();
        expect_healthy(&RULE, &world, &subject());
        let mut world = taken("10.244.0.9");
        seen(&mut world.kernel.ip_vs)[0].ip = ip("10.96.0.10");
        expect_healthy(&RULE, &world, &subject());
        let mut world = taken("10.244.0.9");
        world.kernel.ip_vs = gap(Source::IpVs, Why::NotSupported);
        expect_healthy(&RULE, &world, &subject());
    }

    fn cilium_world(iptables_masquerade: Option<bool>) -> Snapshot {
        let mut world = Snapshot::healthy().with_mode(Mode::Cilium).service("web", |it| it.node_port(30080));
        world.cluster.proxy_config = Reading::Seen(ProxyConfig {
            place: "ConfigMap kube-system/cilium-config".to_owned(),
            mode: Some("cilium".to_owned()),
            iptables_masquerade,
            ..ProxyConfig::default()
        });
        world
    }

    #[test]
    fn iptables_that_masquerades_for_cilium_is_a_warning_about_the_cluster() {
        let evidence = expect_problem(&RULE, &cilium_world(Some(true)), &Subject::cluster());
        assert_eq!((evidence.severity, evidence.scope), (Severity::Warning, Scope::Cluster));
        assert_eq!(evidence.variant, "cilium");
        let place = "false (from ConfigMap kube-system/cilium-config)".to_owned();
        assert!(evidence.values.contains(&("enable-bpf-masquerade", place)), "{evidence:#?}");
    }

    #[test]
    fn cilium_that_masquerades_by_itself_or_has_no_node_port_is_silent_and_so_is_kube_proxy() {
        expect_healthy(&RULE, &cilium_world(Some(false)), &Subject::cluster());
        for mode in Mode::KUBE_PROXY {
            expect_healthy(&RULE, &cilium_world(Some(true)).with_mode(mode), &Subject::cluster());
        }
        let mut world = cilium_world(Some(true));
        seen(&mut world.cluster.services).clear();
        expect_healthy(&RULE, &world, &Subject::cluster());
    }

    #[test]
    fn who_masquerades_for_cilium_is_unknown_where_its_settings_do_not_tell() {
        assert_eq!(expect_unknown(&RULE, &cilium_world(None), &Subject::cluster()).why, Why::Ambiguous);
        let mut by_default = cilium_world(None);
        seen(&mut by_default.cluster.proxy_config).cilium = Some(CiliumConfig::default());
        let evidence = expect_problem(&RULE, &by_default, &Subject::cluster());
        assert_eq!(evidence.severity, Severity::Info);
        let place = "not set to true (from ConfigMap kube-system/cilium-config)".to_owned();
        assert!(evidence.values.contains(&("enable-bpf-masquerade", place)), "{evidence:#?}");
        let mut world = cilium_world(Some(true));
        world.cluster.proxy_config = gap(Source::ConfigMaps, Why::NotPermitted);
        assert_eq!(expect_unknown(&RULE, &world, &Subject::cluster()).why, Why::NotPermitted);
    }

    #[test]
    fn a_connection_that_has_its_answer_is_silent() {
        let mut world = taken("10.244.0.9");
        seen(&mut world.kernel.masquerade).unanswered.clear();
        expect_healthy(&RULE, &world, &subject());
        world.kernel.ip_vs_connections = gap(Source::IpVsConn, Why::Malformed);
        expect_healthy(&RULE, &world, &subject());
    }

    #[test]
    fn one_that_hangs_without_a_trace_in_ipvs_is_unknown() {
        let gap = expect_unknown(&RULE, &hanging("10.244.0.9"), &subject());
        assert!(gap.detail.contains("192.0.2.1:30080"), "{}", gap.detail);
        let mut world = taken("10.244.0.9");
        seen(&mut world.kernel.ip_vs_connections)[0].from.1 = 80;
        assert_eq!(expect_unknown(&RULE, &world, &subject()).why, Why::Ambiguous, "another server's connection");
        let mut world = hanging("10.244.0.9");
        let masquerade = seen(&mut world.kernel.masquerade);
        (masquerade.unanswered, masquerade.beyond) = (Vec::new(), 1);
        assert!(expect_unknown(&RULE, &world, &subject()).detail.contains("the list of masqueraded connections"));
    }

    #[test]
    fn unread_is_unknown_in_ipvs_mode_and_where_the_mode_is_not_known() {
        let mut world = taken("10.244.0.9");
        world.kernel.masquerade = gap(Source::Conntrack, Why::NotPermitted);
        assert_eq!(expect_unknown(&RULE, &world, &subject()).source, Source::Conntrack);
        assert_eq!(expect_unknown(&RULE, &world.without_proxy(), &subject()).source, Source::Conntrack);
        let mut world = taken("10.244.0.9");
        world.kernel.ip_vs_connections = gap(Source::IpVsConn, Why::Malformed);
        assert_eq!(expect_unknown(&RULE, &world, &subject()).source, Source::IpVsConn);
        world.kernel.ip_vs = gap(Source::IpVs, Why::Malformed);
        assert_eq!(expect_unknown(&RULE, &world, &subject()).source, Source::IpVs);
    }
}
