use super::*;
use crate::{
    expectations::{expect_healthy, expect_problem, expect_unknown},
    findings::Subject,
};
use portreeve_facts::{
    Mode, Why,
    healthy::{PEER, World, gap, ip, seen},
};

fn ipvs() -> Snapshot {
    Snapshot::healthy().with_mode(Mode::Ipvs).service("web", |it| it.node_port(30080))
}

fn holding(address: &str) -> Snapshot {
    ipvs().address("kube-ipvs0", "10.96.0.10").address("kube-ipvs0", address)
}

fn subject() -> Subject {
    Subject::node("n1", None)
}

#[test]
fn a_peers_address_ends_at_home() {
    let evidence = expect_problem(&RULE, &holding(PEER), &subject());
    assert_eq!(evidence.severity, Severity::Critical);
    assert_eq!(
        evidence.summary,
        "kube-ipvs0 has 192.0.2.9, the InternalIP of Node n2: traffic from this node to this address does not leave this node."
    );
    assert!(evidence.affects.contains(&Vantage::Remote));
    assert_eq!(evidence.remedies.len(), 1);
    assert_eq!(evidence.remedies[0].steps[0].text, "ip addr del 192.0.2.9/32 dev kube-ipvs0");
}

#[test]
fn so_does_the_gateway_a_nameserver_and_an_api_server() {
    for (address, whose) in [("192.0.2.254", "the default gateway"), ("198.51.100.53", "a nameserver of this node")] {
        let evidence = expect_problem(&RULE, &holding(address), &subject());
        assert!(evidence.summary.contains(whose), "{}", evidence.summary);
    }
    let api = |it: portreeve_facts::healthy::World| {
        it.each_slice(|slice| slice.endpoints[0].addresses = vec![ip("198.51.100.6")])
    };
    let world = holding("198.51.100.6").service("kubernetes", api);
    assert!(expect_problem(&RULE, &world, &subject()).summary.contains("an API server"));
}

#[test]
fn kube_routers_device_counts_and_a_claiming_service_is_named() {
    let world = ipvs().address("kube-dummy-if", "192.0.2.254").service("trap", |it| it.external_ip("192.0.2.254"));
    let evidence = expect_problem(&RULE, &world, &subject());
    assert!(evidence.values.contains(&("claimed by", "default/trap (externalIP)".to_owned())));
    assert!(evidence.remedies[0].steps[0].text.contains("patch service trap"), "{:?}", evidence.remedies);
}

#[test]
fn every_service_with_the_address_gives_it_back_and_of_one_the_last_entry_first() {
    let both = |it: World| it.with(|service| service.external_ips = vec![ip("192.0.2.254"), ip("192.0.2.253")]);
    let world = holding("192.0.2.254").service("one", |it| it.external_ip("192.0.2.254")).service("two", both);
    let mut world = world.address("kube-ipvs0", "192.0.2.253");
    seen(&mut world.kernel.nameservers).push(ip("192.0.2.253"));
    let steps = &expect_problem(&RULE, &world, &subject()).remedies[0].steps;
    let found = |words: [&str; 2]| steps.iter().position(|step| words.iter().all(|word| step.text.contains(word)));
    assert_eq!(steps.len(), 3, "{steps:?}");
    assert!(found(["service one ", "externalIPs/0"]).is_some(), "{steps:?}");
    let last = found(["service two ", "externalIPs/1"]).expect("a step");
    assert!(found(["service two ", "externalIPs/0"]).expect("a step") > last, "{steps:?}");
}

#[test]
fn several_addresses_are_one_problem() {
    let evidence = expect_problem(&RULE, &holding(PEER).address("kube-ipvs0", "192.0.2.254"), &subject());
    assert!(evidence.summary.contains("192.0.2.9, 192.0.2.254"), "{}", evidence.summary);
    assert_eq!((evidence.remedies.len(), evidence.remedies[0].steps.len()), (1, 2), "both have to go");
}

#[test]
fn cluster_ips_however_important_and_what_the_other_rule_tells_are_silent() {
    let mut world = holding("198.51.100.7");
    seen(&mut world.kernel.nameservers).push(ip("10.96.0.10"));
    expect_healthy(&RULE, &world, &subject());
    expect_healthy(&RULE, &holding(PEER).service("trap", |it| it.external_ip(PEER)), &subject());
    expect_healthy(&RULE, &Snapshot::healthy().address("eth0", PEER), &subject());
    expect_healthy(&RULE, &holding("192.0.2.1"), &subject());
}

#[test]
fn a_nameserver_is_this_clusters_own_where_its_load_balancer_address_answers_dns() {
    let world = |port, external: bool| {
        ipvs().address("kube-ipvs0", "198.51.100.53").service("dns", |it| {
            it.with(|service| {
                service.ports[0].port = port;
                let field = if external { &mut service.external_ips } else { &mut service.load_balancer_ips };
                field.push(ip("198.51.100.53"));
            })
        })
    };
    expect_healthy(&RULE, &world(53, false), &subject());
    expect_problem(&RULE, &world(80, false), &subject());
    expect_problem(&RULE, &world(53, true), &subject());
    let mut gateway = world(53, false);
    Arc::make_mut(seen(&mut gateway.kernel.interfaces)).gateways.push(ip("198.51.100.53"));
    expect_problem(&RULE, &gateway, &subject());
}

#[test]
fn unread_is_unknown() {
    let mut world = holding("198.51.100.7");
    let unread = Gap::new(Source::Addresses, Why::Malformed, "routes");
    Arc::make_mut(seen(&mut world.kernel.interfaces)).gateways_gap = Some(unread.clone());
    assert_eq!(expect_unknown(&RULE, &world, &subject()), unread, "it may be a gateway's");
    let mut world = holding(PEER);
    world.cluster.nodes = gap(Source::Nodes, Why::NotRequested);
    assert_eq!(expect_unknown(&RULE, &world, &subject()).source, Source::Nodes);
    let mut world = holding(PEER);
    world.cluster.services = gap(Source::Services, Why::NotRequested);
    assert_eq!(expect_unknown(&RULE, &world, &subject()).source, Source::Services);
    let mut world = holding("198.51.100.53");
    world.kernel.nameservers = gap(Source::ResolvConf, Why::Malformed);
    assert_eq!(expect_unknown(&RULE, &world, &subject()).source, Source::ResolvConf);
    let mut world = holding("198.51.100.6");
    world.cluster.endpoint_slices = gap(Source::EndpointSlices, Why::NotRequested);
    assert_eq!(expect_unknown(&RULE, &world, &subject()).source, Source::EndpointSlices);
    world.kernel.interfaces = gap(Source::Addresses, Why::Torn);
    assert_eq!(expect_unknown(&RULE, &world, &subject()).source, Source::Addresses);
    let world = holding("198.51.100.7").rejects(Source::EndpointSlices);
    assert_eq!(expect_unknown(&RULE, &world, &subject()).source, Source::EndpointSlices, "it may be an API server's");
}

#[test]
fn the_gateway_is_told_even_without_a_cluster() {
    let mut world = holding("192.0.2.254");
    world.cluster.services = gap(Source::Services, Why::NotRequested);
    world.cluster.nodes = gap(Source::Nodes, Why::NotRequested);
    assert_eq!(expect_problem(&RULE, &world, &subject()).severity, Severity::Critical);
}

#[test]
fn health_is_said_of_what_could_be_told_and_only_then() {
    let verdicts = |world: &Snapshot| -> Vec<Verdict> {
        let judgements = check(&Round::of(world, None, 60), &Limits::default()).expect("the rule can judge");
        judgements.into_iter().map(|it| it.verdict).collect()
    };
    let mut world = holding("10.96.0.10");
    assert_eq!(verdicts(&world), [Verdict::Healthy]);
    world.cluster.nodes = gap(Source::Nodes, Why::Unreachable);
    assert!(matches!(verdicts(&world)[..], [Verdict::Unknown(_)] | [Verdict::Healthy]));
    let foreign = holding(PEER);
    assert!(matches!(verdicts(&foreign)[..], [Verdict::Problem(_)]));
}

#[test]
fn no_address_is_deleted_that_a_service_may_have_which_was_not_read() {
    let world = ipvs().address("kube-ipvs0", PEER);
    let step = |world: &Snapshot| expect_problem(&RULE, world, &Subject::node("n1", None)).remedies[0].steps[0].clone();
    assert!(step(&world).text.starts_with("ip addr del"), "{:?}", step(&world));
    let unread = world.rejects(Source::Services);
    assert!(step(&unread).text.starts_with("find the Service that has"), "{:?}", step(&unread));
}
