//! Ports on which Cilium refuses `bind`.

use super::*;
use portreeve_facts::{CiliumConfig, Claimant, PortRange, RangeClaim};

#[test]
fn where_cilium_refuses_bind_a_node_port_is_in_the_way_of_a_pod() {
    let of = |protocol: Protocol, change: fn(&mut Pod)| {
        exporter(change).service("web", |it| it.node_port(9100).protocol(protocol)).with_mode(Mode::Cilium)
    };
    let world = of(Protocol::Tcp, |_| ());
    let evidence = expect_problem(&RULE, &world, &subject());
    assert_eq!(
        evidence.summary,
        "HostNetwork pod default/exporter, which is not ready, cannot listen on 9100/tcp: it is the NodePort of \
         default/web, and Cilium refuses bind() on this NodePort."
    );
    assert_eq!((evidence.severity, evidence.variant, evidence.remedies.len()), (Severity::Warning, "refused", 2));
    expect_problem(&RULE, &of(Protocol::Tcp, |pod| pod.ports[0].host_ip = Some(ip(PRIMARY[0]))), &subject());
    for (failing, severity) in [(false, Severity::Info), (true, Severity::Warning)] {
        let single = exporter(|pod| pod.failing = failing)
            .service("web", |it| it.node_port(9100).with(|service| service.families = &[Family::V4]));
        let evidence = expect_problem(&RULE, &single.with_mode(Mode::Cilium), &subject());
        assert_eq!(evidence.severity, severity, "a server on :: may have it");
        assert!(evidence.summary.contains("cannot listen on 9100/tcp of IPv4:"), "{}", evidence.summary);
    }
    let of_ipv6 = exporter(|pod| pod.ports[0].host_ip = Some(ip(PRIMARY[0])))
        .service("web", |it| it.node_port(9100).with(|service| service.families = &[Family::V6]));
    let allows = CiliumConfig { allows_bind: true, ..CiliumConfig::default() };
    for silent in [
        of_ipv6.with_mode(Mode::Cilium),
        of(Protocol::Udp, |_| ()),
        of(Protocol::Sctp, |pod| pod.ports[0].protocol = Protocol::Sctp),
        of(Protocol::Tcp, |pod| pod.ready = true),
        of(Protocol::Tcp, |pod| pod.ports[0].host_ip = Some(ip("203.0.113.9"))),
        world.with_mode(Mode::Iptables),
        world.with_config(|it| it.cilium = Some(allows)),
    ] {
        expect_healthy(&RULE, &silent, &subject());
    }
}

#[test]
fn what_cilium_refuses_is_unknown_where_it_could_not_be_read() {
    let world = |port: u16, mode: Mode| {
        let mut world = exporter(|_| ()).service("web", |it| it.node_port(port)).with_mode(mode);
        objects(&mut world.cluster.pods)[0].ports[0].port = port;
        world
    };
    let without = |blind: fn(&mut Snapshot), port: u16, mode: Mode| {
        let mut world = world(port, mode);
        blind(&mut world);
        world
    };
    let services: fn(&mut Snapshot) = |it| it.cluster.services = gap(Source::Services, Why::NotPermitted);
    assert_eq!(expect_unknown(&RULE, &without(services, 30100, Mode::Cilium), &subject()).source, Source::Services);
    expect_healthy(&RULE, &without(services, 9100, Mode::Cilium), &subject());
    expect_healthy(&RULE, &without(services, 30100, Mode::Iptables), &subject());
    let not_requested: fn(&mut Snapshot) = |it| it.cluster.services = gap(Source::Services, Why::NotRequested);
    expect_healthy(&RULE, &without(not_requested, 30100, Mode::Cilium), &subject());
    let unknown_mode = world(30100, Mode::Cilium).without_proxy();
    assert_eq!(expect_unknown(&RULE, &unknown_mode, &subject()).source, Source::ProxyMode);
    let narrowed: fn(&mut Snapshot) = |it| objects(&mut it.cluster.services)[0].for_cilium.on_some_nodes = true;
    assert_eq!(expect_unknown(&RULE, &without(narrowed, 30100, Mode::Cilium), &subject()).source, Source::Services);
    let addresses: fn(&mut Snapshot) = |it| {
        it.kernel.interfaces = gap(Source::Addresses, Why::Torn);
        objects(&mut it.cluster.pods)[0].ports[0].host_ip = Some(ip(PRIMARY[0]));
    };
    assert_eq!(expect_unknown(&RULE, &without(addresses, 30100, Mode::Cilium), &subject()).source, Source::Addresses);
}

#[test]
fn without_this_nodes_name_a_pod_of_any_node_may_be_refused_here() {
    let world = |mode: Mode| exporter(|_| ()).service("web", |it| it.node_port(9100)).with_mode(mode).unnamed();
    let node = Subject::this_node(&world(Mode::Cilium));
    assert_eq!(expect_unknown(&RULE, &world(Mode::Cilium), &node).source, Source::Nodes);
    expect_healthy(&RULE, &world(Mode::Iptables), &node);
    let unread = |port: u16, why: Why| {
        let mut world = exporter(|pod| pod.ports[0].port = port).with_mode(Mode::Cilium).unnamed();
        world.cluster.services = gap(Source::Services, why);
        world
    };
    assert_eq!(expect_unknown(&RULE, &unread(30100, Why::NotPermitted), &node).source, Source::Nodes);
    expect_healthy(&RULE, &unread(9100, Why::NotPermitted), &node);
    expect_healthy(&RULE, &unread(30100, Why::NotRequested), &node);
}

#[test]
fn outside_of_its_range_cilium_refuses_no_address_on_which_it_serves_no_remote_clients() {
    let world = |host_ip: &str, ranges: Reading<Vec<PortRange>>| {
        let host_ip = Some(ip(host_ip));
        let mut world = exporter(|pod| pod.ports[0].host_ip = host_ip)
            .service("web", |it| it.node_port(9100))
            .with_mode(Mode::Cilium);
        world.cluster.range_claims.push(RangeClaim { by: Claimant::Cilium, ranges, place: String::new() });
        world
    };
    let of = |range: &str| Reading::Seen(vec![range.parse().expect("a range")]);
    for host_ip in ["127.0.0.1", SECOND[0]] {
        expect_problem(&RULE, &world(host_ip, of("9000-9999")), &subject());
        expect_healthy(&RULE, &world(host_ip, of("30000-32767")), &subject());
        let unread = world(host_ip, gap(Source::ConfigMaps, Why::Malformed));
        assert_eq!(expect_unknown(&RULE, &unread, &subject()).source, Source::ConfigMaps, "{host_ip}");
        expect_healthy(&RULE, &unread.with_user_mode(Mode::Cilium), &subject());
    }
    expect_problem(&RULE, &world(PRIMARY[0], of("30000-32767")), &subject());
}

#[test]
fn a_listener_does_not_hide_what_cilium_refuses() {
    let of = |host_ip: Option<&str>| {
        let host_ip = host_ip.map(ip);
        exporter(|pod| pod.ports[0].host_ip = host_ip).service("web", |it| it.node_port(9100)).with_mode(Mode::Cilium)
    };
    let refused = |world: &Snapshot| {
        let evidence = expect_problem(&RULE, world, &subject());
        assert!(evidence.summary.contains("Cilium refuses bind()"), "{}", evidence.summary);
        assert!(evidence.remedies[0].steps[0].text.starts_with("give pod default/exporter another port"));
        evidence.values.iter().any(|(name, _)| *name == "listener")
    };
    assert!(!refused(&of(Some(PRIMARY[0])).listens_as("127.0.0.1:9100", process())), "not in its way");
    assert!(refused(&of(None).listens_as("127.0.0.1:9100", process())));
    let own = held("/kubepods/poduid-exporter/c", Some("uid-exporter"), "exporter", 9);
    expect_healthy(&RULE, &of(None).listens_as("0.0.0.0:9100", own), &subject());
    let nfs = of(None).listens_as("0.0.0.0:9100", Owner::Kernel { link: String::new() });
    assert!(!refused(&nfs), "whose that is cannot be told");
}
