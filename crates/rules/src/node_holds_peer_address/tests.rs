use std::sync::Arc;

use super::*;
use crate::expectations::{expect_healthy, expect_problem, expect_unknown};
use portreeve_facts::{
    NodeAddress, Service,
    healthy::{PEER, PRIMARY, gap, ip, objects, seen},
};

fn subject() -> Subject {
    Subject::node("n1", None)
}

fn holding() -> Snapshot {
    Snapshot::healthy().address("eth0", PEER)
}

fn named(mut world: Snapshot, node: usize, kind: NodeAddressKind, address: &str) -> Snapshot {
    objects(&mut world.cluster.nodes)[node].addresses.push(NodeAddress { kind, ip: ip(address) });
    world
}

#[test]
fn a_peers_internal_ip_on_a_link_is_critical_and_deleted_only_where_it_does_not_move() {
    let evidence = expect_problem(&RULE, &holding(), &subject());
    assert_eq!(evidence.severity, Severity::Critical);
    assert_eq!(
        evidence.summary,
        "eth0 has 192.0.2.9, the InternalIP of Node n2: traffic from this node to this address does not leave this node."
    );
    assert_eq!(evidence.affects, [Vantage::Remote, Vantage::Node, Vantage::Pods].into());
    let [peer, remedy] = &evidence.remedies[..] else { panic!("two remedies: {:?}", evidence.remedies) };
    assert!(peer.steps[0].text.contains("give Node n2 an address that no other machine has"), "{peer:?}");
    let [find, delete] = &remedy.steps[..] else { panic!("two steps: {remedy:?}") };
    assert!(find.text.starts_with("if the address does not move between nodes"), "{}", find.text);
    assert_eq!(delete.text, "ip addr del 192.0.2.9/32 dev eth0");
    let deletes = |world: &Snapshot| {
        let remedies = expect_problem(&RULE, world, &subject()).remedies;
        remedies.iter().flat_map(|it| &it.steps).any(|step| step.text.starts_with("ip addr del"))
    };
    let mut unread = holding();
    unread.cluster.services = gap(Source::Services, Why::NotRequested);
    assert!(deletes(&unread));
    unread.cluster.services = gap(Source::Services, Why::Unreachable);
    assert!(!deletes(&unread), "it may be the address of a load balancer");
    assert!(!deletes(&holding().rejects(Source::Services)));
}

#[test]
fn an_address_that_this_node_was_given_is_not_to_be_deleted() {
    let with = |prefix: u8, link: &str| {
        let mut world =
            named(Snapshot::healthy(), 1, NodeAddressKind::InternalIp, "10.0.2.15").address(link, "10.0.2.15");
        let addresses = &mut Arc::make_mut(seen(&mut world.kernel.interfaces)).addresses;
        addresses.last_mut().expect("an address").prefix = prefix;
        let remedies = expect_problem(&RULE, &world, &subject()).remedies;
        let deletes = remedies.iter().flat_map(|it| &it.steps).any(|step| step.text.starts_with("ip addr del"));
        (remedies[0].steps[0].text.contains("--node-ip"), deletes)
    };
    assert_eq!(with(24, "nat0"), (true, false));
    assert_eq!(with(24, "eth0"), (false, true));
    assert_eq!(with(32, "nat0"), (true, true), "it may move");
    let claimed = |claim: fn(&mut Service)| {
        let world =
            named(Snapshot::healthy(), 1, NodeAddressKind::InternalIp, "10.0.2.15").address("nat0", "10.0.2.15");
        let mut world = world.service("lb", |it| it.with(claim));
        let addresses = &mut Arc::make_mut(seen(&mut world.kernel.interfaces)).addresses;
        addresses.last_mut().expect("an address").prefix = 24;
        let remedies = expect_problem(&RULE, &world, &subject()).remedies;
        remedies.iter().flat_map(|it| &it.steps).any(|step| step.text.contains("default/lb"))
    };
    assert!(claimed(|it| it.load_balancer_ips = vec![ip("10.0.2.15")]), "its controller may have put it there");
    assert!(!claimed(|it| it.external_ips = vec![ip("10.0.2.15")]), "no Service puts it there");
}

#[test]
fn the_service_that_claims_it_is_named_and_gives_it_back() {
    let claim = |field: bool| {
        holding().service("traefik", |it| {
            it.with(|service| {
                let list = if field { &mut service.external_ips } else { &mut service.load_balancer_ips };
                list.push(ip(PEER));
            })
        })
    };
    let evidence = expect_problem(&RULE, &claim(false), &subject());
    let claimed = ("claimed by", "default/traefik (load balancer address 192.0.2.9)".to_owned());
    assert!(evidence.values.contains(&claimed), "{:?}", evidence.values);
    let evidence = expect_problem(&RULE, &claim(true), &subject());
    let steps = |evidence: &Evidence| -> Vec<String> {
        assert!(
            evidence.remedies[0].steps[0].text.contains("give Node n2"),
            "a claim turns nothing round: {evidence:?}"
        );
        evidence.remedies[1].steps.iter().map(|step| step.text.clone()).collect()
    };
    assert!(steps(&evidence)[1].contains("patch service traefik"), "{:?}", evidence.remedies);
    let balanced = steps(&expect_problem(&RULE, &claim(false), &subject()));
    assert!(!balanced.iter().any(|step| step.starts_with("ip addr del")), "its controller put it there: {balanced:?}");
    let another = claim(true).service("nginx", |it| it.with(|service| service.external_ips = vec![ip("192.0.2.9")]));
    let steps = steps(&expect_problem(&RULE, &another, &subject()));
    for name in ["traefik", "nginx"] {
        assert!(steps.iter().any(|step| step.contains(&format!("patch service {name}"))), "{steps:?}");
    }
    let unread = |world: &mut Snapshot| world.cluster.services = gap(Source::Services, Why::NotRequested);
    let mut world = claim(true);
    unread(&mut world);
    assert_eq!(expect_problem(&RULE, &world, &subject()).severity, Severity::Critical, "Services only explain it");
}

#[test]
fn several_addresses_are_one_problem() {
    let world = named(holding(), 1, NodeAddressKind::ExternalIp, "198.51.100.9").address("eth0", "198.51.100.9");
    let evidence = expect_problem(&RULE, &world, &subject());
    assert!(evidence.summary.contains("192.0.2.9 of n2, 198.51.100.9 of n2"), "{}", evidence.summary);
    assert_eq!(evidence.severity, Severity::Critical, "one of them is an InternalIP");
    assert_eq!(evidence.remedies[1].steps.len(), 3, "{:?}", evidence.remedies);
}

#[test]
fn an_external_ip_is_a_warning_and_on_lo_or_a_dummy_link_shared_on_purpose() {
    let world = |link: &str| {
        named(Snapshot::healthy(), 1, NodeAddressKind::ExternalIp, "198.51.100.9").address(link, "198.51.100.9")
    };
    let mut configured = world("eth0");
    Arc::make_mut(seen(&mut configured.kernel.interfaces)).addresses.last_mut().expect("an address").prefix = 24;
    assert_eq!(expect_problem(&RULE, &configured, &subject()).severity, Severity::Warning);
    for link in ["lo", "dummy0"] {
        expect_healthy(&RULE, &world(link), &subject());
        let internal = Snapshot::healthy().address(link, PEER);
        assert_eq!(expect_problem(&RULE, &internal, &subject()).severity, Severity::Critical, "{link}");
    }
}

#[test]
fn a_virtual_address_that_no_node_names_is_silent() {
    expect_healthy(&RULE, &Snapshot::healthy(), &subject());
    let vip = Snapshot::healthy()
        .address("eth0", "198.51.100.7")
        .service("lb", |it| it.with(|service| service.load_balancer_ips = vec![ip("198.51.100.7")]));
    expect_healthy(&RULE, &vip, &subject());
}

#[test]
fn this_machine_under_an_older_name_is_silent_and_a_common_external_ip_is_no_proof_of_it() {
    let old = named(holding(), 1, NodeAddressKind::InternalIp, PRIMARY[0]);
    expect_healthy(&RULE, &old, &subject());
    // Both machines are behind NAT with one address, and each kubelet registered the address.
    let vagrant =
        [0, 1].into_iter().fold(holding(), |world, node| named(world, node, NodeAddressKind::InternalIp, "10.0.2.15"));
    expect_healthy(&RULE, &vagrant, &subject());
    let vagrant = named(vagrant, 1, NodeAddressKind::InternalIp, "192.168.56.11");
    assert_eq!(expect_problem(&RULE, &vagrant, &subject()).severity, Severity::Critical);
    let both = named(holding(), 0, NodeAddressKind::ExternalIp, PEER);
    expect_healthy(&RULE, &both, &subject());
    let nat = [0, 1]
        .into_iter()
        .fold(holding(), |world, node| named(world, node, NodeAddressKind::ExternalIp, "203.0.113.1"));
    assert_eq!(expect_problem(&RULE, &nat, &subject()).severity, Severity::Critical);
}

#[test]
fn what_other_rules_report_and_what_is_not_in_the_main_table_is_silent() {
    expect_healthy(&RULE, &Snapshot::healthy().address("kube-ipvs0", PEER), &subject());
    let mut vrf = Snapshot::healthy().address("blue", "198.51.100.1").address("eth7", PEER);
    let links = &mut Arc::make_mut(seen(&mut vrf.kernel.interfaces)).links;
    let blue = links.iter_mut().find(|link| link.name == "blue").expect("a link");
    blue.kind = Some("vrf".to_owned());
    let index = blue.index;
    links.iter_mut().find(|link| link.name == "eth7").expect("a link").master = Some(index);
    expect_healthy(&RULE, &vrf, &subject());
    for address in ["169.254.1.1", "127.0.0.9", "fe80::9"] {
        let world = named(Snapshot::healthy(), 1, NodeAddressKind::InternalIp, address).address("eth0", address);
        expect_healthy(&RULE, &world, &subject());
    }
}

#[test]
fn without_this_nodes_object_addresses_of_one_node_are_its_own_and_those_of_two_are_unknown() {
    let unnamed = |mut world: Snapshot| {
        world.cluster.node_name = Some("n7".to_owned());
        world
    };
    let subject = Subject::node("n7", None);
    expect_healthy(&RULE, &unnamed(Snapshot::healthy()), &subject);
    let gap = expect_unknown(&RULE, &unnamed(holding()), &subject);
    assert_eq!((gap.source, gap.why), (Source::Nodes, Why::Ambiguous));
    assert!(gap.detail.contains("addresses of n1, n2"), "{}", gap.detail);
    let nat = named(Snapshot::healthy(), 1, NodeAddressKind::ExternalIp, PRIMARY[0]);
    expect_healthy(&RULE, &unnamed(nat), &subject);
}

#[test]
fn unread_is_unknown() {
    let mut world = holding();
    world.cluster.nodes = gap(Source::Nodes, Why::NotRequested);
    assert_eq!(expect_unknown(&RULE, &world, &subject()).source, Source::Nodes);
    let mut world = holding();
    world.kernel.interfaces = gap(Source::Addresses, Why::Torn);
    assert_eq!(expect_unknown(&RULE, &world, &subject()).source, Source::Addresses);
}

/// Cloud providers also report addresses that kube-vip added to a machine.
#[test]
fn a_virtual_address_that_the_status_of_another_node_still_names_is_information() {
    for kind in [NodeAddressKind::InternalIp, NodeAddressKind::ExternalIp] {
        let world = named(Snapshot::healthy(), 1, kind, "198.51.100.9").address("eth0", "198.51.100.9");
        let evidence = expect_problem(&RULE, &world, &subject());
        assert_eq!(evidence.severity, Severity::Info, "{kind:?}");
        assert!(evidence.remedies[0].steps[0].text.contains("keep 198.51.100.9 out of the status of Node n2"));
        assert!(evidence.values.iter().any(|(name, _)| *name == "not known"), "{evidence:?}");
    }
}

#[test]
fn of_one_services_list_the_last_entry_goes_first_and_each_node_gets_an_address_of_its_own() {
    let mut world = holding()
        .address("eth0", "192.0.2.10")
        .service("trap", |it| it.with(|service| service.external_ips = vec![ip(PEER), ip("192.0.2.10")]));
    let mut third = objects(&mut world.cluster.nodes)[1].clone();
    third.name = "n3".to_owned();
    third.addresses = vec![NodeAddress { kind: NodeAddressKind::InternalIp, ip: ip("192.0.2.10") }];
    seen(&mut world.cluster.nodes).push(third.into());
    let evidence = expect_problem(&RULE, &world, &subject());
    let [peers, remedy] = &evidence.remedies[..] else { panic!("two remedies: {:?}", evidence.remedies) };
    assert!(remedy.steps[1].text.contains("/spec/externalIPs/1"), "{remedy:?}");
    assert!(remedy.steps[2].text.contains("/spec/externalIPs/0"), "{remedy:?}");
    assert!(peers.steps[0].text.contains("give Node n2") && peers.steps[1].text.contains("give Node n3"), "{peers:?}");
    assert!(evidence.summary.contains("192.0.2.9 of n2, 192.0.2.10 of n3"), "{}", evidence.summary);
}

#[test]
fn with_the_name_of_another_node_nothing_is_known() {
    let mut doubted = holding();
    expect_problem(&RULE, &doubted, &subject());
    doubted.cluster.rejected.push(Gap::new(Source::Nodes, Why::Ambiguous, "this host may be another node"));
    assert_eq!(expect_unknown(&RULE, &doubted, &subject()), doubted.cluster.rejected[0]);
}
