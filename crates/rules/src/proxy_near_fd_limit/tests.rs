use super::*;
use crate::{
    expectations::{expect_healthy, expect_problem, expect_unknown},
    findings::Subject,
};
use portreeve_facts::{
    FdUse, Owner, ProxyMetrics, ServicePort,
    healthy::{World, daemon, gap, proxy_holder, seen},
};

fn proxy(mut world: Snapshot, version: &str, limit: u64) -> Snapshot {
    let metrics: &mut ProxyMetrics = seen(&mut world.kernel.proxy.metrics);
    metrics.version = Some(version.to_owned());
    metrics.max_fds = Some(limit);
    metrics.open_fds = Some(12);
    world
}

fn many(count: u16) -> Snapshot {
    Snapshot::healthy().service("one", |it| it.node_port(32000).with(ipv4)).service("many", |it| ports(it, count - 1))
}

fn ports(world: World, count: u16) -> World {
    world.with(|service| {
        ipv4(service);
        service.ports = (0..count)
            .map(|index| ServicePort {
                name: format!("p{index}"),
                protocol: Protocol::Tcp,
                port: 1 + index,
                target: None,
                node_port: Some(30000 + index),
                fixed: Some(false),
            })
            .collect();
    })
}

fn ipv4(service: &mut Service) {
    service.families = &[Family::V4];
}

fn each(service: &mut Service, protocol: Protocol) {
    service.ports.iter_mut().for_each(|port| port.protocol = protocol);
}

fn subject() -> Subject {
    Subject::node("n1", None)
}

fn severity(world: &Snapshot) -> Severity {
    expect_problem(&RULE, world, &subject()).severity
}

#[test]
fn ports_opened_during_a_look_are_not_what_the_proxy_needs_otherwise() {
    let before = proxy(many(800), "v1.23.6", 1024);
    let mut now = before.clone();
    // The proxy opened its sockets after Portreeve listed the sockets of the node.
    seen(&mut now.kernel.proxy.metrics).open_fds = Some(812);
    let judge = |before| RULE.judge(&Round::of(&now, before, 60), &Limits::default()).expect("it can be judged");
    assert!(matches!(judge(None)[0].verdict, Verdict::Problem(_)), "one look cannot tell");
    assert!(matches!(judge(Some(&before))[0].verdict, Verdict::Healthy));
}

#[test]
fn one_service_too_many_for_an_old_proxy() {
    let evidence = expect_problem(&RULE, &proxy(many(1025), "v1.23.6", 1024), &subject());
    assert_eq!(evidence.severity, Severity::Critical);
    assert!(evidence.affects.contains(&Vantage::Remote));
    assert!(evidence.summary.contains("needs more file descriptors than allowed"));
    for (name, value) in [
        ("demand", "1037 file descriptors: 1025 for NodePorts, 12 otherwise"),
        ("limit", "1024 (process_max_fds of the proxy's /metrics)"),
        ("open now", "12"),
        ("most nodePorts", "default/many with 1024"),
    ] {
        assert!(evidence.values.contains(&(name, value.to_owned())), "{name} in {evidence:?}");
    }
    assert!(evidence.remedies[0].steps[0].text.contains("LimitNOFILE"));
}

#[test]
fn it_is_seen_coming_at_eighty_and_ninety_five_per_cent() {
    for (count, expected) in [(788, Severity::Warning), (937, Severity::Warning), (938, Severity::Critical)] {
        assert_eq!(severity(&proxy(many(count), "v1.22.9", 1000)), expected, "{count}");
    }
    expect_healthy(&RULE, &proxy(many(787), "v1.22.9", 1000), &subject());
    let near = expect_problem(&RULE, &proxy(many(1000), "v1.22.9", 1024), &subject());
    assert_eq!((near.severity, near.affects.len()), (Severity::Critical, 0), "nobody loses yet");
}

#[test]
fn a_proxy_that_does_not_hold_ports_is_healthy() {
    expect_healthy(&RULE, &proxy(many(1025), "v1.36.3", 1024), &subject());
    expect_healthy(&RULE, &proxy(many(1025), "v1.36.3", 1024).listens("0.0.0.0:30001"), &subject());
    expect_healthy(&RULE, &proxy(many(1025), "v1.23.6", 1024).with_mode(Mode::Cilium), &subject());
    expect_healthy(&RULE, &proxy(Snapshot::healthy(), "v1.23.6", 8), &subject());
}

#[test]
fn holding_is_seen_from_the_sockets_whatever_the_version_says() {
    let holds = |version| proxy(many(1025), version, 1024).listens_as("0.0.0.0:30001", proxy_holder());
    let evidence = expect_problem(&RULE, &holds("devel"), &subject());
    assert!(evidence.values.contains(&("held now", "1 sockets on NodePorts".to_owned())), "{evidence:?}");
    assert!(
        evidence.values.contains(&("demand", "1036 file descriptors: 1025 for NodePorts, 11 otherwise".to_owned()))
    );
    assert_eq!(severity(&holds("v1.37.0")), Severity::Critical, "the localhost proxy of nftables mode");
}

fn listed(world: &Snapshot, cidrs: &[&str]) -> Snapshot {
    world.clone().with_config(|it| it.node_port_addresses = cidrs.iter().map(|it| (*it).into()).collect())
}

fn demanded(world: &Snapshot) -> u64 {
    let proxy = Proxy::of(world);
    let descriptors = Descriptors::of(world, &proxy).expect("a limit");
    let services = world.cluster.services.seen().expect("services");
    let holding = Holding::of(world, &proxy, &node_ports(world, services));
    Demand::of(world, services, &descriptors, &holding).expect("a demand").sockets
}

#[test]
fn both_families_and_every_listed_address_cost_a_socket() {
    let both = |it: World| ports(it, 100).with(|service| service.families = &Family::BOTH);
    let world = proxy(Snapshot::healthy().service("many", both), "v1.23.6", 1024);
    let demand = |cidrs: &[&str]| demanded(&listed(&world, cidrs));
    assert_eq!(demand(&[]), 200);
    assert_eq!(demand(&["0.0.0.0/0"]), 200);
    assert_eq!(demand(&["192.0.2.0/24"]), 300, "two IPv4 addresses, one IPv6 wildcard");
    assert_eq!(demand(&["192.0.2.0/24", "127.0.0.0/8", "2001:db8::1/128"]), 400);
}

#[test]
fn udp_costs_a_socket_and_sctp_and_other_proxies_services_do_not() {
    let udp = |it: World| ports(it, 1025).with(|service| each(service, Protocol::Udp));
    let sctp = |it: World| ports(it, 1025).with(|service| each(service, Protocol::Sctp));
    let other = |it: World| ports(it, 1025).with(|service| service.proxy_name = Some("other".to_owned()));
    assert_eq!(severity(&proxy(Snapshot::healthy().service("many", udp), "v1.23.6", 1024)), Severity::Critical);
    expect_healthy(&RULE, &proxy(Snapshot::healthy().service("many", sctp), "v1.23.6", 1024), &subject());
    expect_healthy(&RULE, &proxy(Snapshot::healthy().service("many", other), "v1.23.6", 1024), &subject());
}

#[test]
fn the_limit_comes_from_proc_where_metrics_do_not_tell() {
    let mut world = proxy(many(1025), "v1.23.6", 1024);
    seen(&mut world.kernel.proxy.metrics).max_fds = None;
    world.kernel.proxy.fds = Reading::Seen(FdUse { open: 12, limit: 1024 });
    let evidence = expect_problem(&RULE, &world, &subject());
    assert!(evidence.values.contains(&("limit", "1024 (the limits of its process in /proc)".to_owned())));
}

#[test]
fn assumed_settings_cap_the_severity() {
    let mut world = proxy(many(1025), "v1.23.6", 1024);
    world.kernel.proxy.config = gap(Source::ProxyConfig, Why::Unreachable);
    assert_eq!(severity(&world), Severity::Warning);
    let mut world = proxy(many(100), "v1.23.6", 1024);
    world.kernel.proxy.config = gap(Source::ProxyConfig, Why::Unreachable);
    assert_eq!(expect_unknown(&RULE, &world, &subject()).source, Source::ProxyConfig);
}

#[test]
fn unread_is_unknown() {
    let world = many(1025).without_proxy();
    assert_eq!(expect_unknown(&RULE, &world, &subject()).source, Source::ProxyMetrics);
    let ovn = Snapshot::healthy().without_proxy().service("web", |it| it.node_port(30080));
    let ovn = ovn.service("api", |it| it.node_port(30081)).listens_as("0.0.0.0:30080", daemon("ovnkube", 9));
    let ovn = ovn.listens_as("0.0.0.0:30081", daemon("ovnkube", 9));
    let found = expect_unknown(&RULE, &ovn, &subject());
    assert_eq!(found.source, Source::ProxyProcess);
    assert!(found.detail.starts_with("process ovnkube listens on NodePorts"), "{}", found.detail);

    let devel = proxy(many(1025), "devel", 1024);
    assert_eq!(expect_unknown(&RULE, &devel, &subject()).why, Why::Ambiguous);
    let mut world = proxy(many(1025), "v1.36.3", 1024);
    world.kernel.listeners = gap(Source::Listeners, Why::Torn);
    assert_eq!(expect_unknown(&RULE, &world, &subject()).source, Source::Listeners);
    let mut world = proxy(many(1025), "v1.23.6", 1024);
    seen(&mut world.kernel.proxy.metrics).max_fds = None;
    assert_eq!(expect_unknown(&RULE, &world, &subject()).source, Source::ProxyMetrics);
    world.cluster.services = gap(Source::Services, Why::NotPermitted);
    assert_eq!(expect_unknown(&RULE, &world, &subject()).source, Source::Services);
}

#[test]
fn sockets_that_nobody_can_attribute_count_as_open_already() {
    let nobody = || {
        let Owner::Held(mut holder) = proxy_holder() else { unreachable!("a process") };
        holder.cgroup = gap(Source::Cgroups, Why::NotPermitted);
        holder.process = gap(Source::Processes, Why::NotPermitted);
        Owner::Held(holder)
    };
    let world = proxy(many(1025), "v1.23.6", 1024).listens_as("0.0.0.0:30001", nobody());
    let evidence = expect_problem(&RULE, &world, &subject());
    assert!(
        evidence.values.contains(&("demand", "1036 file descriptors: 1025 for NodePorts, 11 otherwise".to_owned()))
    );
}

#[test]
fn addresses_of_one_family_cost_nothing_in_the_other_and_sctp_nothing_at_all() {
    let world = proxy(many(100), "v1.23.6", 1024);
    assert_eq!(demanded(&listed(&world, &["192.0.2.0/24"])), 200);
    assert_eq!(demanded(&listed(&world, &["2001:db8::/64"])), 100);
    let sctp = |it: World| ports(it, 50).with(|service| each(service, Protocol::Sctp));
    assert_eq!(demanded(&world.service("sctp", sctp)), 100);
}

#[test]
fn the_evidence_says_on_which_addresses_ports_are_held() {
    let world = proxy(many(1025), "v1.23.6", 1024);
    let addresses = |world: &Snapshot| {
        let evidence = expect_problem(&RULE, world, &subject());
        evidence.values.iter().find(|(name, _)| *name == "nodePortAddresses").expect("a value").1.clone()
    };
    assert!(addresses(&world).starts_with("the default, one socket a family"), "{}", addresses(&world));
    let listed = addresses(&listed(&world, &["192.0.2.0/24"]));
    assert!(listed.starts_with("192.0.2.0/24 (from "), "{listed}");
}
