use super::*;
use crate::{
    expectations::{expect_healthy, expect_problem, expect_unknown},
    findings::Subject,
};
use portreeve_facts::{
    CiliumConfig, Claimant, Family, RangeClaim, Reading, Why,
    healthy::{World, gap, objects},
};

fn subject() -> Subject {
    Subject::node("n1", None)
}

fn web() -> Snapshot {
    Snapshot::healthy().service("web", |it| it.node_port(30080))
}

fn problem(world: &Snapshot) -> Evidence {
    expect_problem(&RULE, world, &subject())
}

fn value(evidence: &Evidence, name: &str) -> String {
    let found = evidence.values.iter().find(|(it, _)| *it == name);
    found.map_or_else(|| panic!("no {name} in {evidence:#?}"), |(_, value)| value.clone())
}

#[test]
fn an_uncovered_allocated_port_is_critical_where_connections_hang_and_a_warning_elsewhere() {
    let wide = web().ephemeral("1024 65535", "");
    for mode in [Mode::Ipvs, Mode::Cilium] {
        let evidence = problem(&wide.with_mode(mode));
        assert_eq!(evidence.severity, Severity::Critical, "{mode}");
        assert!(evidence.summary.ends_with(&format!("in {mode} mode some new connections of this node hang.")));
        assert!(evidence.affects.contains(&Vantage::Node));
    }
    let listed = wide.with_mode(Mode::Cilium).with_config(|it| it.node_port_addresses = vec!["192.0.2.2/32".into()]);
    assert_eq!(problem(&listed).severity, Severity::Warning);
    let mut unread = wide.with_mode(Mode::Cilium);
    unread.kernel.proxy.config = gap(Source::ProxyConfig, Why::TimedOut);
    let evidence = problem(&unread);
    assert_eq!(evidence.severity, Severity::Warning);
    assert!(value(&evidence, "addresses with NodePorts").starts_with("unknown: "));
    for mode in [Mode::Iptables, Mode::Nftables] {
        assert_eq!(problem(&wide.with_mode(mode)).severity, Severity::Warning, "{mode}");
    }
    assert_eq!(problem(&wide.without_proxy()).severity, Severity::Warning, "that much holds in every mode");
}

#[test]
fn what_the_agent_of_cilium_does_at_its_next_start_is_told() {
    let cilium = |ephemeral: &str, reserved: &str, reserves_nothing: bool| {
        let world = web().ephemeral(ephemeral, reserved).with_mode(Mode::Cilium);
        let settings = CiliumConfig { reserves_nothing, ..CiliumConfig::default() };
        world.with_config(|it| it.cilium = Some(settings))
    };
    let agent = |world: &Snapshot| value(&problem(world), "agent of Cilium");
    for ephemeral in ["1024 65535", "32767 60999"] {
        assert_eq!(agent(&cilium(ephemeral, "", false)), "reserves 30000-32767 when it starts next", "{ephemeral}");
    }
    assert!(agent(&cilium("1024 65535", "", true)).starts_with("does not start again: the ephemeral port range"));
    let above_all = cilium("20000 29999", "", false);
    let above = problem(&above_all);
    assert_eq!(above.variant, "no-start");
    assert_eq!(
        above.summary,
        "The agent of Cilium cannot restart on this node: its NodePort range 30000-32767 is above \
         the ephemeral port range 20000-29999."
    );
    assert_eq!(above.severity, Severity::Warning);
    let mut claimed = cilium("1024 65535", "", false);
    for (by, range) in [(Claimant::Calico, "31000-31999"), (Claimant::Cilium, "30000-30999")] {
        let ranges = Reading::Seen(vec![range.parse().expect("a range")]);
        claimed.cluster.range_claims.push(RangeClaim { by, ranges, place: "a setting".to_owned() });
    }
    assert_eq!(agent(&claimed), "reserves 30000-30999 when it starts next", "its own setting counts");
    for (ephemeral, world) in [("1024 65535", &claimed), ("20000 29999", &above_all)] {
        for ranges in [gap(Source::ConfigMaps, Why::Malformed), Reading::Seen(Vec::new())] {
            let mut unread = world.clone().ephemeral(ephemeral, "");
            let claim = RangeClaim { by: Claimant::Cilium, ranges, place: "a setting".to_owned() };
            unread.cluster.range_claims = vec![claim];
            match ephemeral {
                "1024 65535" => assert!(agent(&unread).starts_with("unknown: ")),
                _ => assert_eq!(expect_unknown(&RULE, &unread, &subject()).source, Source::ConfigMaps),
            }
        }
    }
    let mut contested = above_all.with_mode(Mode::Iptables);
    contested.cluster.proxy_config = above_all.kernel.proxy.config.clone();
    assert!(contested.proxy_mode().is_err(), "kube-proxy answers, and Cilium's settings replace kube-proxy");
    expect_unknown(&RULE, &contested, &subject());
    for content in [
        cilium("32768 60999", "", true),
        cilium("1024 65535", "1024-32767", true),
        cilium("20000 29999", "20000-29999", false).with_mode(Mode::Nftables),
    ] {
        expect_healthy(&RULE, &content, &subject());
    }
}

#[test]
fn only_free_ports_uncovered_is_a_warning_in_ipvs_mode_too() {
    let free = web().ephemeral("1024 65535", "30000-30999").with_mode(Mode::Ipvs);
    assert_eq!(problem(&free).severity, Severity::Warning);
    let other = |it: World| it.node_port(30080).with(|service| service.proxy_name = Some("other".to_owned()));
    let other = Snapshot::healthy().service("web", other).ephemeral("1024 65535", "").with_mode(Mode::Ipvs);
    assert_eq!(problem(&other).severity, Severity::Warning, "kube-proxy does not serve that Service");
}

#[test]
fn the_evidence_has_the_numbers_and_the_remedy_keeps_what_was_reserved() {
    let evidence = problem(&web().ephemeral("1024 65535", "2703,30000-30079").with_mode(Mode::Ipvs));
    assert_eq!(value(&evidence, "in both ranges"), "30000-32767 (2768 ports)");
    assert_eq!(value(&evidence, "not reserved"), "30080-32767 (2688 ports)");
    assert_eq!(value(&evidence, "allocated of these"), "30080 (1 port)");
    assert_eq!(value(&evidence, "chance of an allocated NodePort"), "1 of 64431 (0.002 %)");
    assert_eq!(value(&evidence, "NodePort range"), "30000-32767 (kube-apiserver /flagz)");
    let [reserve, move_away] = &evidence.remedies[..] else { panic!("{:?}", evidence.remedies) };
    assert_eq!(
        reserve.steps[0].text,
        "sysctl -w net.ipv4.ip_local_reserved_ports=\"2703,10249-10250,10256,30000-32767\""
    );
    assert!(reserve.steps[1].text.contains("/etc/sysctl.d/"), "{reserve:?}");
    assert_eq!(move_away.steps[0].text, "sysctl -w net.ipv4.ip_local_port_range=\"32768 60999\"");
    assert_eq!(move_away.steps.len(), 2, "it leaves out NodePortLocal: {move_away:?}");
}

#[test]
fn a_range_up_to_the_end_comes_with_a_word_about_node_port_local() {
    let evidence = problem(&web().node_port_range("30000-34095").ephemeral("1024 65535", "").with_mode(Mode::Ipvs));
    let away = evidence.remedies.last().expect("a remedy");
    assert_eq!(away.steps[0].text, "sysctl -w net.ipv4.ip_local_port_range=\"34096 65535\"");
    assert!(away.steps[2].text.contains("NodePortLocal, reserve its ports too: 61000-62000"), "{away:?}");
}

#[test]
fn a_node_port_outside_the_node_port_range_is_not_left_to_connections() {
    let high = || Snapshot::healthy().service("web", |it| it.node_port(32800));
    let world = |reserved: &str| high().ephemeral("32768 60999", reserved);
    let evidence = problem(&world("").with_mode(Mode::Ipvs));
    assert_eq!(
        evidence.summary,
        "The ephemeral port range covers NodePorts outside the NodePort range, and some of these ports are not \
         reserved: in ipvs mode some new connections of this node hang."
    );
    assert_eq!((evidence.severity, evidence.variant), (Severity::Critical, "node-ports"));
    assert_eq!(value(&evidence, "not reserved"), "32800 (1 port)");
    assert_eq!(value(&evidence, "allocated of these"), "32800 (1 port)");
    let [reserve] = &evidence.remedies[..] else { panic!("the range above has the port: {:?}", evidence.remedies) };
    assert_eq!(reserve.steps[0].text, "sysctl -w net.ipv4.ip_local_reserved_ports=\"32800\"");
    assert_eq!(problem(&world("")).severity, Severity::Warning);
    expect_healthy(&RULE, &world("32800").with_mode(Mode::Ipvs), &subject());
    expect_healthy(&RULE, &world("").ephemeral("33000 60999", ""), &subject());
    let both = world("").ephemeral("20000 60999", "30000-32767");
    assert_eq!(value(&problem(&both), "in both ranges"), "30000-32767 (2768 ports)");
    assert!(problem(&both).summary.contains("covers NodePorts outside the NodePort range"));
    // The proxy listens on the port of a health check.
    let health = |it: World| it.node_port(30080).with(|service| service.health_check_node_port = Some(32800));
    assert_eq!(value(&problem(&Snapshot::healthy().service("web", health)), "not reserved"), "32800 (1 port)");
    // The remedy for servers does not move the range to a NodePort.
    let wide = world("").ephemeral("1024 20000", "");
    let of_servers = problem(&wide);
    assert_eq!((of_servers.variant, of_servers.remedies.len()), ("servers", 1), "{of_servers:?}");
}

#[test]
fn an_assumed_range_that_a_node_port_disproves_is_never_healthy() {
    let world = |reserved: &str| {
        let world = Snapshot::healthy().service("web", |it| it.node_port(32800));
        world.ephemeral("32768 60999", reserved).with_mode(Mode::Ipvs).assumed_range()
    };
    assert_eq!(problem(&world("")).severity, Severity::Warning);
    let gap = expect_unknown(&RULE, &world("32800"), &subject());
    assert_eq!((gap.source, gap.why), (Source::NodePortRange, Why::Ambiguous));
    expect_healthy(&RULE, &web().assumed_range(), &subject());
    let mut to_come = world("32800");
    objects(&mut to_come.cluster.services)[0].uid = None;
    expect_healthy(&RULE, &to_come, &subject());
}

#[test]
fn an_unread_service_may_have_a_node_port_outside_the_range() {
    let unread = |why| {
        let mut world = web();
        world.cluster.services = gap(Source::Services, why);
        world
    };
    assert_eq!(expect_unknown(&RULE, &unread(Why::Unreachable), &subject()).source, Source::Services);
    expect_healthy(&RULE, &unread(Why::NotRequested), &subject());
    assert_eq!(expect_unknown(&RULE, &web().rejects(Source::Services), &subject()).source, Source::Services);
}

#[test]
fn apart_or_covered_is_healthy_however_many_entries_cover() {
    expect_healthy(&RULE, &web(), &subject());
    for reserved in ["30000-32767", "1-65535", "30000-30999,31000-31999,32000-32767"] {
        expect_healthy(&RULE, &web().ephemeral("11000 65535", reserved).with_mode(Mode::Ipvs), &subject());
    }
}

#[test]
fn an_assumed_range_is_never_critical_and_says_that_it_is_assumed() {
    let assumed = problem(&web().ephemeral("1024 65535", "").with_mode(Mode::Ipvs).assumed_range());
    assert_eq!(assumed.severity, Severity::Warning);
    assert!(value(&assumed, "NodePort range").contains("assumed"));
}

#[test]
fn without_services_the_overlap_is_still_told() {
    let mut world = web().ephemeral("1024 65535", "").with_mode(Mode::Ipvs);
    world.cluster.services = gap(Source::Services, Why::NotRequested);
    let evidence = problem(&world);
    assert_eq!(evidence.severity, Severity::Warning);
    assert!(value(&evidence, "allocated of these").starts_with("unknown"));
}

#[test]
fn ports_of_servers_are_a_warning_where_node_ports_are_safe() {
    let world = web().ephemeral("1024 65535", "10249,30000-32767").with_mode(Mode::Ipvs);
    let evidence = problem(&world);
    assert_eq!((evidence.severity, evidence.affects.len()), (Severity::Warning, 0));
    assert!(evidence.summary.contains("unreserved ports of servers on this node"), "{}", evidence.summary);
    assert_eq!(value(&evidence, "needed by daemons"), "10250,10256 (2 ports)");
    let reserve = &evidence.remedies[0].steps[0].text;
    assert_eq!(reserve, "sysctl -w net.ipv4.ip_local_reserved_ports=\"10249-10250,10256,30000-32767\"");
    assert_eq!(evidence.remedies[1].steps[0].text, "sysctl -w net.ipv4.ip_local_port_range=\"32768 60999\"");
    let both = problem(&web().ephemeral("1024 65535", ""));
    assert!(both.summary.contains("covers 30000-32767 of the NodePort range"), "{}", both.summary);
    assert_eq!(value(&both, "needed by daemons"), "10249-10250,10256 (3 ports)");
    assert_eq!((evidence.variant, both.variant), ("servers", "node-ports"), "it is not the same problem");
}

#[test]
fn a_pod_on_the_hosts_network_needs_its_port() {
    let port = portreeve_facts::ContainerPort {
        port: 40000,
        host_port: None,
        host_ip: None,
        protocol: portreeve_facts::Protocol::Udp,
    };
    let world = web().pod("media", |pod| {
        pod.host_network = true;
        pod.ports.push(port);
    });
    let evidence = problem(&world);
    assert_eq!(value(&evidence, "needed by a pod"), "40000/udp of pod default/media");
    assert_eq!(evidence.remedies.len(), 1, "the default range has the port too: {evidence:#?}");
    let remedies = |reserved: &str| problem(&world.clone().ephemeral("1024 65535", reserved)).remedies.len();
    assert_eq!((remedies(""), remedies("40000")), (1, 2), "nor does a range above the NodePorts leave it out");
    expect_healthy(&RULE, &world.ephemeral("32768 60999", "40000"), &subject());
}

#[test]
fn a_tunnel_needs_its_port_and_wireguards_default_port_is_no_finding() {
    let world = web().tunnel("vxlan.own", "vxlan", 7789, |link| link.up = false).ephemeral("7000 9999", "");
    let evidence = problem(&world);
    assert_eq!((evidence.variant, value(&evidence, "needed by daemons").as_str()), ("servers", "7789 (1 port)"));
    expect_healthy(&RULE, &world.clone().ephemeral("7000 9999", "7789"), &subject());
    let by_default = problem(&web().tunnel("vxlan.own", "vxlan", 40789, |link| link.up = false));
    assert_eq!((by_default.variant, value(&by_default, "needed by daemons").as_str()), ("servers", "40789 (1 port)"));
    let wireguard = web().tunnel("cilium_wg0", "wireguard", 1, |link| (link.up, link.udp_port) = (false, None));
    expect_healthy(&RULE, &wireguard, &subject());
    let widened = problem(&wireguard.ephemeral("1024 65535", ""));
    let list = &widened.remedies[0].steps[0].text;
    assert!(list.ends_with(",30000-32767,51871\""), "a remedy reserves the port: {list}");
    // If listeners are unread, only the default port of a device that is up is unknown.
    let mut unread = web().tunnel("cilium_wg0", "wireguard", 1, |link| link.udp_port = None);
    unread.kernel.listeners = gap(Source::Listeners, Why::TimedOut);
    expect_healthy(&RULE, &unread, &subject());
    // A link that was not read may have a port of its own in the default range, too.
    let mut unread = web();
    unread.kernel.interfaces = gap(Source::Addresses, Why::Torn);
    assert_eq!(expect_unknown(&RULE, &unread, &subject()).source, Source::Addresses);
}

#[test]
fn without_pods_ports_that_are_known_are_told_and_no_others_are_believed_safe() {
    let mut world = web();
    world.cluster.pods = gap(Source::Pods, Why::Unreachable);
    assert_eq!(expect_unknown(&RULE, &world, &subject()).source, Source::Pods);
    problem(&world.clone().ephemeral("1024 65535", "30000-32767"));
    problem(&world.ephemeral("1024 65535", ""));
}

#[test]
fn unread_is_unknown() {
    let mut world = web().ephemeral("1024 65535", "");
    world.kernel.sysctls.ip_local_reserved_ports = gap(Source::Sysctls, Why::NotPermitted);
    assert_eq!(expect_unknown(&RULE, &world, &subject()).source, Source::Sysctls);
    let mut world = web().ephemeral("1024 65535", "");
    world.cluster.node_port_range = gap(Source::NodePortRange, Why::Unreachable);
    assert_eq!(expect_unknown(&RULE, &world, &subject()).source, Source::NodePortRange);
}

#[test]
fn the_sentence_says_what_it_leads_to() {
    let world = web().ephemeral("1024 65535", "");
    assert!(problem(&world.with_mode(Mode::Ipvs)).summary.contains("some new connections of this node hang"));
    assert!(problem(&world).summary.contains("an outgoing connection may use a NodePort"));
}

#[test]
fn connections_hang_only_if_node_ports_are_served_at_some_address() {
    let ipvs = || web().ephemeral("1024 65535", "").with_mode(Mode::Ipvs);
    let listed = |list: &[&str]| {
        let list = list.iter().map(|it| (*it).to_owned()).collect();
        problem(&ipvs().with_config(|it| it.node_port_addresses = list))
    };
    let nowhere = listed(&["203.0.113.0/24", "2001:dead::/64"]);
    assert_eq!((nowhere.severity, nowhere.affects.len()), (Severity::Warning, 0));
    assert!(nowhere.summary.ends_with("an outgoing connection may use a NodePort."), "{}", nowhere.summary);
    assert_eq!(listed(&["192.0.2.2/32", "2001:dead::/64"]).severity, Severity::Critical);
    let of_ipv4 = |list: &str| {
        let world = Snapshot::healthy().service("web", |it| it.node_port(30080).with(|it| it.families = &[Family::V4]));
        let world = world.ephemeral("1024 65535", "").with_mode(Mode::Ipvs);
        problem(&world.with_config(|it| it.node_port_addresses = vec![list.to_owned()])).severity
    };
    assert_eq!(
        of_ipv4("203.0.113.0/24"),
        Severity::Warning,
        "without an IPv6 network, each IPv6 address has NodePorts"
    );
    assert_eq!(of_ipv4("192.0.2.0/24"), Severity::Critical);
    let mut unread = ipvs();
    unread.kernel.proxy.config = gap(Source::ProxyConfig, Why::TimedOut);
    let assumed = problem(&unread);
    assert_eq!(assumed.severity, Severity::Critical);
    assert_eq!(value(&assumed, "assumed"), "that nodePortAddresses has an address of this node in each family");
    unread.kernel.interfaces = gap(Source::Addresses, Why::Torn);
    assert_eq!(problem(&unread).severity, Severity::Warning);
    let mut everywhere = ipvs();
    everywhere.kernel.interfaces = gap(Source::Addresses, Why::Torn);
    assert_eq!(problem(&everywhere).severity, Severity::Critical, "without a list, the addresses do not matter");
    let nowhere = CiliumConfig { families_off: Family::BOTH.to_vec(), ..CiliumConfig::default() };
    let cilium = web().ephemeral("1024 65535", "").with_mode(Mode::Cilium).with_config(|it| it.cilium = Some(nowhere));
    assert_eq!(problem(&cilium).severity, Severity::Warning);
}
