use super::*;
use crate::{
    expectations::{expect_healthy, expect_problem, expect_unknown},
    findings::StepKind,
};
use portreeve_facts::{
    Announced, NodeAddress, NodeAddressKind, Snapshot,
    healthy::{PEER, PRIMARY, gap, ip, objects, seen},
};

const VIP: &str = "192.0.2.50";

fn subject() -> Subject {
    Subject::node("n1", None)
}

fn announced(world: Snapshot, name: &str, address: &str, host: &str) -> Snapshot {
    world.service(name, |it| {
        it.node_port(30080).with(|service| {
            service.load_balancer_ips = vec![ip(address)];
            service.announced = Some(Box::new(Announced { host: Some(host.to_owned()), pool: None }));
        })
    })
}

fn held(link: &str, address: &str, host: &str) -> Snapshot {
    announced(Snapshot::healthy(), "front", address, host).address(link, address)
}

fn value<'a>(evidence: &'a Evidence, name: &str) -> &'a str {
    &evidence.values.iter().find(|(it, _)| *it == name).expect("this value").1
}

fn deletes(evidence: &Evidence) -> Vec<&str> {
    let steps = evidence.remedies.iter().flat_map(|it| &it.steps);
    steps.filter(|step| step.kind == StepKind::Command).map(|step| &*step.text).collect()
}

#[test]
fn an_address_that_another_node_announces_is_a_warning_and_deleted_after_a_look() {
    let evidence = expect_problem(&RULE, &held("eth0", VIP, "n2"), &subject());
    assert_eq!(evidence.severity, Severity::Warning);
    assert_eq!(
        evidence.summary,
        "eth0 has 192.0.2.50 of Service default/front, and kube-vip announces the address on Node n2: clients reach one of the two nodes."
    );
    assert_eq!(evidence.affects, [Vantage::Remote].into());
    assert_eq!(value(&evidence, "not known"), "whether Node n2 has 192.0.2.50: only the links of that node show");
    let [remedy] = &evidence.remedies[..] else { panic!("one remedy: {:?}", evidence.remedies) };
    assert!(remedy.steps[0].text.starts_with("check on Node n2 that"), "the look comes first: {remedy:?}");
    assert_eq!(deletes(&evidence), ["ip addr del 192.0.2.50/32 dev eth0"]);
    let v6 = expect_problem(&RULE, &held("eth0", "2001:db8::50", "n2"), &subject());
    assert_eq!(deletes(&v6), ["ip addr del 2001:db8::50/128 dev eth0"]);
}

#[test]
fn the_traffic_policy_changes_nothing() {
    let mut world = held("eth0", VIP, "n2");
    objects(&mut world.cluster.services)[0].external_local = true;
    assert_eq!(expect_problem(&RULE, &world, &subject()).severity, Severity::Warning);
}

#[test]
fn several_addresses_are_one_problem_with_each_node() {
    let world = announced(held("eth0", VIP, "n2"), "back", "192.0.2.51", "n2").address("eth0", "192.0.2.51");
    let evidence = expect_problem(&RULE, &world, &subject());
    assert_eq!(
        evidence.summary,
        "eth0 has addresses that kube-vip announces elsewhere, 192.0.2.50 on Node n2, 192.0.2.51 on Node n2: clients reach one of the two nodes."
    );
    assert_eq!(deletes(&evidence).len(), 2);
}

#[test]
fn what_this_node_announces_and_what_is_on_no_link_is_silent() {
    expect_healthy(&RULE, &Snapshot::healthy(), &subject());
    expect_healthy(&RULE, &held("eth0", VIP, "n1"), &subject());
    expect_healthy(&RULE, &announced(Snapshot::healthy(), "front", VIP, "n2"), &subject());
    // Two Services share the address, and this node announces one of the Services.
    expect_healthy(&RULE, &announced(held("eth0", VIP, "n2"), "shared", VIP, "n1"), &subject());
    let both = announced(held("eth0", VIP, "n2"), "shared", VIP, "n2");
    let evidence = expect_problem(&RULE, &both, &subject());
    assert!(evidence.summary.contains("Service default/front, default/shared"), "{}", evidence.summary);
    // The annotation is left over. The Service now has another address, or no address.
    let mut other = held("eth0", VIP, "n2");
    objects(&mut other.cluster.services)[0].load_balancer_ips = Vec::new();
    expect_healthy(&RULE, &other, &subject());
    objects(&mut other.cluster.services)[0].external_ips = vec![ip(VIP)];
    expect_healthy(&RULE, &other, &subject());
}

#[test]
fn an_address_of_bgp_is_on_every_node() {
    for link in ["lo", "dummy0", "kube-ipvs0"] {
        let mut world = held(link, VIP, "n2");
        expect_healthy(&RULE, &world, &subject());
        let interfaces = Arc::make_mut(seen(&mut world.kernel.interfaces));
        interfaces.addresses.last_mut().expect("an address").prefix = 24;
        expect_healthy(&RULE, &world, &subject());
    }
    // eth0 has no address in the network of 198.51.100.50, so no neighbour sends ARP requests for 198.51.100.50.
    expect_healthy(&RULE, &held("eth0", "198.51.100.50", "n2"), &subject());
}

#[test]
fn a_link_in_a_vrf_is_silent() {
    let mut world = held("eth0", VIP, "n2");
    let interfaces = Arc::make_mut(seen(&mut world.kernel.interfaces));
    let mut vrf = interfaces.links[0].clone();
    (vrf.index, vrf.name, vrf.kind) = (9, "red".to_owned(), Some("vrf".to_owned()));
    interfaces.links.push(vrf);
    interfaces.links.iter_mut().find(|it| it.name == "eth0").expect("a link").master = Some(9);
    expect_healthy(&RULE, &world, &subject());
}

#[test]
fn an_address_that_a_node_has_by_its_status_is_another_rules() {
    for address in [PRIMARY[0], PEER] {
        expect_healthy(&RULE, &held("eth0", address, "n2"), &subject());
    }
    // A cloud provider may write the virtual address into the status of each Node.
    let mut world = held("eth0", VIP, "n2");
    for node in objects(&mut world.cluster.nodes) {
        node.addresses.push(NodeAddress { kind: NodeAddressKind::InternalIp, ip: ip(VIP) });
    }
    assert_eq!(expect_problem(&RULE, &world, &subject()).severity, Severity::Warning);
}

#[test]
fn an_address_that_this_node_was_given_is_not_to_be_deleted() {
    let with = |prefix: u8, link: &str| {
        let mut world = held(link, VIP, "n2");
        let interfaces = Arc::make_mut(seen(&mut world.kernel.interfaces));
        interfaces.links.iter_mut().for_each(|link| link.kind = None);
        interfaces.addresses.last_mut().expect("an address").prefix = prefix;
        deletes(&expect_problem(&RULE, &world, &subject())).len()
    };
    assert_eq!(with(24, "eth1"), 0, "it is the first one of its link");
    assert_eq!(with(24, "eth0"), 1, "kube-vip has vip_subnet 24");
}

#[test]
fn the_name_of_a_host_is_a_nodes_with_a_domain_or_without() {
    expect_healthy(&RULE, &held("eth0", VIP, "n1.example.com"), &subject());
    let evidence = expect_problem(&RULE, &held("eth0", VIP, "n2.example.com"), &subject());
    assert_eq!(value(&evidence, "kube-vip.io/vipHost"), "Node n2");
    // Two Nodes match the host name. The Node with exactly this name counts.
    let mut both = held("eth0", VIP, "n2.example.com");
    let mut full = Node::clone(&seen(&mut both.cluster.nodes)[1]);
    full.name += ".example.com";
    seen(&mut both.cluster.nodes).push(full.into());
    let evidence = expect_problem(&RULE, &both, &subject());
    assert_eq!(value(&evidence, "kube-vip.io/vipHost"), "Node n2.example.com");
    let mut long = held("eth0", VIP, "n1");
    for node in objects(&mut long.cluster.nodes) {
        node.name += ".example.com";
    }
    long.cluster.node_name = Some("n1.example.com".to_owned());
    expect_healthy(&RULE, &long, &Subject::node("n1.example.com", None));
    let mut other = held("eth0", VIP, "metal-7");
    other.kernel.hostname = "metal-7".to_owned();
    other.cluster.node_name = Some("n1".to_owned());
    expect_healthy(&RULE, &other, &subject());
}

#[test]
fn a_host_that_is_no_node_leaves_it_unknown() {
    for host in ["n9", "n9.example.com", "n", "n11"] {
        let gap = expect_unknown(&RULE, &held("eth0", VIP, host), &subject());
        assert_eq!((gap.source, gap.why), (Source::Nodes, Why::Ambiguous));
        let detail = format!("kube-vip.io/vipHost of Service default/front is {host}, and no Node has this name");
        assert_eq!(gap.detail, detail);
    }
    let world = announced(held("eth0", VIP, "n9"), "back", "192.0.2.51", "n2").address("eth0", "192.0.2.51");
    expect_unknown(&RULE, &world, &subject());
    assert_eq!(deletes(&expect_problem(&RULE, &world, &subject())), ["ip addr del 192.0.2.51/32 dev eth0"]);
}

#[test]
fn unread_is_unknown_where_an_address_is_at_stake() {
    let unread = |change: fn(&mut Snapshot)| {
        let mut world = held("eth0", VIP, "n2");
        change(&mut world);
        expect_unknown(&RULE, &world, &subject()).source
    };
    assert_eq!(unread(|it| it.kernel.interfaces = gap(Source::Addresses, Why::Unreachable)), Source::Addresses);
    assert_eq!(unread(|it| it.cluster.services = gap(Source::Services, Why::Unreachable)), Source::Services);
    assert_eq!(unread(|it| it.cluster.nodes = gap(Source::Nodes, Why::Unreachable)), Source::Nodes);
    assert_eq!(unread(|it| objects(&mut it.cluster.nodes)[0].name = "another".to_owned()), Source::Nodes);
    let rejected = |it: &mut Snapshot| it.cluster.rejected.push(Gap::new(Source::Services, Why::Malformed, "one"));
    assert_eq!(unread(rejected), Source::Services, "it may have the address");
    // If no link has an announced address, the rule needs no Nodes.
    let mut world = held("eth0", VIP, "n1");
    rejected(&mut world);
    expect_healthy(&RULE, &world, &subject());
    let mut world = Snapshot::healthy();
    world.kernel.interfaces = gap(Source::Addresses, Why::Unreachable);
    world.cluster.nodes = gap(Source::Nodes, Why::Unreachable);
    expect_healthy(&RULE, &world, &subject());
}
