use super::*;
use crate::{
    expectations::{expect_healthy, expect_problem, expect_unknown},
    findings::Subject,
};
use portreeve_facts::{
    Protocol,
    healthy::{gap, ip, seen},
};

fn node(mode: Mode, tables: &[&str], chains: &[&str]) -> Snapshot {
    let owned = |names: &[&str]| names.iter().map(|it| (*it).to_owned()).collect();
    let mut world = Snapshot::healthy().with_mode(mode).service("web", |it| it.node_port(30080));
    world.kernel.netfilter =
        Reading::Seen(Netfilter { tables: owned(tables), chains: owned(chains), ..Netfilter::default() });
    world
}

fn virtual_server(address: &str) -> VirtualServer {
    VirtualServer { protocol: Protocol::Tcp, ip: ip(address), port: 80, real_servers: 1 }
}

fn subject() -> Subject {
    Subject::node("n1", None)
}

#[test]
fn each_mode_explains_its_own_traces() {
    let kubelet = ["ip mangle KUBE-IPTABLES-HINT", "ip mangle KUBE-KUBELET-CANARY", "ip nat KUBE-MARK-DROP"];
    expect_healthy(&RULE, &node(Mode::Nftables, &["ip kube-proxy", "ip6 kube-proxy"], &kubelet), &subject());
    expect_healthy(
        &RULE,
        &node(Mode::Iptables, &["ip nat"], &["ip nat KUBE-NODEPORTS", "ip nat KUBE-SERVICES"]),
        &subject(),
    );
    let mut ipvs = node(Mode::Ipvs, &[], &["ip nat KUBE-NODE-PORT", "ip nat KUBE-SERVICES"])
        .address("kube-ipvs0", "10.96.0.10")
        .address("kube-ipvs0", "fd00:96::10");
    ipvs.kernel.ip_vs = Reading::Seen(vec![virtual_server("10.96.0.10")]);
    expect_healthy(&RULE, &ipvs, &subject());
}

#[test]
fn the_device_of_ipvs_is_left_over_in_every_other_mode() {
    for mode in [Mode::Iptables, Mode::Nftables, Mode::Cilium] {
        let world = node(mode, &[], &[]).address("kube-ipvs0", "10.96.0.10");
        let evidence = expect_problem(&RULE, &world, &subject());
        assert_eq!(evidence.severity, Severity::Warning);
        assert_eq!(
            evidence.summary,
            format!("The proxy runs in {mode} mode, but the kernel still has rules of ipvs mode.")
        );
        assert!(evidence.values.contains(&("device", "kube-ipvs0 with 10.96.0.10".to_owned())));
        let steps = &evidence.remedies[0].steps;
        assert!(steps[0].text.starts_with("kube-proxy --cleanup"), "{steps:?}");
        let restarts = steps.iter().any(|step| step.text.contains("restart kube-proxy"));
        assert_eq!(restarts, mode != Mode::Cilium, "there is none to restart: {steps:?}");
    }
}

#[test]
fn so_are_virtual_servers_of_services_but_not_somebody_elses() {
    let mut world = node(Mode::Iptables, &[], &[]);
    world.kernel.ip_vs = Reading::Seen(vec![virtual_server("192.0.2.200")]);
    expect_healthy(&RULE, &world, &subject());
    seen(&mut world.kernel.ip_vs).push(virtual_server("10.96.0.10"));
    let evidence = expect_problem(&RULE, &world, &subject());
    assert!(evidence.values.contains(&("virtual servers", "10.96.0.10:80/tcp".to_owned())), "{evidence:?}");
}

#[test]
fn whoever_else_uses_ipvs_is_not_cleared_without_a_word() {
    let caution = |world: &Snapshot| {
        let evidence = expect_problem(&RULE, world, &subject());
        let steps = &evidence.remedies[0].steps;
        (steps[0].text.contains("ipvsadm --list"), evidence.remedies[1].steps[1].text.clone())
    };
    let mut world = node(Mode::Iptables, &[], &[]).address("kube-ipvs0", "10.96.0.10");
    world.kernel.ip_vs = Reading::Seen(vec![virtual_server("10.96.0.10")]);
    assert_eq!(caution(&world), (false, "ipvsadm --clear && ip link delete kube-ipvs0".to_owned()));
    seen(&mut world.kernel.ip_vs).push(virtual_server("192.0.2.200"));
    assert!(caution(&world).0, "keepalived's");
    world.kernel.ip_vs = gap(Source::IpVs, Why::NotPermitted);
    assert!(caution(&world).0);
    let mut router = node(Mode::Iptables, &[], &[]).address("kube-dummy-if", "10.96.0.10");
    router.kernel.ip_vs = Reading::Seen(vec![virtual_server("10.96.0.10")]);
    assert_eq!(caution(&router), (true, "ipvsadm --clear && ip link delete kube-dummy-if".to_owned()));
}

#[test]
fn tables_and_chains_of_another_mode_are_left_over() {
    for (mode, tables, chains, left) in [
        (Mode::Iptables, vec!["ip kube-proxy"], vec!["ip nat KUBE-NODEPORTS"], "nftables"),
        (Mode::Nftables, vec!["ip kube-proxy"], vec!["ip nat KUBE-NODEPORTS"], "iptables"),
        (Mode::Iptables, vec![], vec!["ip filter KUBE-IPVS-FILTER"], "ipvs"),
        (Mode::Ipvs, vec![], vec!["ip6 filter KUBE-EXTERNAL-SERVICES"], "iptables"),
    ] {
        let evidence = expect_problem(&RULE, &node(mode, &tables, &chains), &subject());
        assert!(evidence.summary.contains(&format!("rules of {left} mode")), "{}", evidence.summary);
    }
}

#[test]
fn an_address_that_no_service_explains_is_stale_in_ipvs_mode_too() {
    let mut world = node(Mode::Ipvs, &[], &[]).address("kube-ipvs0", "10.96.0.10").address("kube-ipvs0", "10.96.0.99");
    let evidence = expect_problem(&RULE, &world, &subject());
    assert_eq!(evidence.summary, "kube-ipvs0 has 10.96.0.99, which no Service has.");
    assert_eq!(evidence.remedies.len(), 1);
    assert_eq!(evidence.remedies[0].steps[0].text, "ip addr del 10.96.0.99/32 dev kube-ipvs0");
    let explained = world.clone().service("lb", |it| it.external_ip("10.96.0.99"));
    expect_healthy(&RULE, &explained, &subject());
    let unread = world.clone().rejects(Source::Services);
    assert_eq!(expect_unknown(&RULE, &unread, &subject()).source, Source::Services);
    world.cluster.services = gap(Source::Services, Why::NotRequested);
    assert_eq!(expect_unknown(&RULE, &world, &subject()).source, Source::Services);
}

#[test]
fn an_ipvs_proxy_without_a_virtual_server_programs_nothing() {
    let mut world = node(Mode::Ipvs, &[], &[]);
    world.kernel.ip_vs = Reading::Seen(Vec::new());
    assert!(expect_problem(&RULE, &world, &subject()).summary.contains("does not serve any Service"));
}

#[test]
fn of_an_unknown_mode_two_generations_are_one_too_many() {
    let one = node(Mode::Iptables, &["ip kube-proxy"], &[]).without_proxy();
    assert_eq!(expect_unknown(&RULE, &one, &subject()).source, Source::ProxyMode);
    let mut unread = one;
    for (why, source) in [(Why::NotPermitted, Source::ProxyMode), (Why::Torn, Source::ConfigMaps)] {
        unread.cluster.proxy_config = gap(Source::ConfigMaps, why);
        assert_eq!(expect_unknown(&RULE, &unread, &subject()).source, source, "{why:?}");
    }
    let two = node(Mode::Iptables, &["ip kube-proxy"], &["ip nat KUBE-NODEPORTS"]).without_proxy();
    let evidence = expect_problem(&RULE, &two, &subject());
    assert!(evidence.summary.contains("iptables and nftables mode"), "{}", evidence.summary);
    expect_healthy(&RULE, &node(Mode::Iptables, &[], &[]).without_proxy(), &subject());
}

#[test]
fn unread_is_unknown() {
    assert_eq!(expect_unknown(&RULE, &Snapshot::healthy(), &subject()).source, Source::Netfilter);
    let mut world = node(Mode::Nftables, &[], &[]);
    seen(&mut world.kernel.netfilter).legacy_tables.push("ip nat".to_owned());
    assert_eq!(expect_unknown(&RULE, &world, &subject()).why, Why::NotSupported);
    world.kernel.interfaces = gap(Source::Addresses, Why::Torn);
    assert_eq!(expect_unknown(&RULE, &world, &subject()).source, Source::Addresses);
}

fn verdicts(world: &Snapshot) -> Vec<Verdict> {
    let judgements = check(&Round::of(world, None, 60), &Limits::default()).expect("the rule can judge");
    judgements.into_iter().map(|it| it.verdict).collect()
}

#[test]
fn health_is_said_where_nothing_was_found_and_everything_read() {
    assert_eq!(verdicts(&node(Mode::Iptables, &[], &[])), [Verdict::Healthy]);
    let found = verdicts(&node(Mode::Iptables, &["ip kube-proxy"], &[]));
    assert!(matches!(found[..], [Verdict::Problem(_)]), "{found:?}");
    let unread = verdicts(&Snapshot::healthy());
    assert!(!unread.is_empty() && unread.iter().all(|it| matches!(it, Verdict::Unknown(_))), "{unread:?}");
}

#[test]
fn a_virtual_server_on_the_device_of_ipvs_was_made_for_a_service() {
    let mut world = node(Mode::Iptables, &[], &[]).address("kube-ipvs0", "10.96.9.9");
    world.kernel.ip_vs = Reading::Seen(vec![virtual_server("10.96.9.9"), virtual_server("192.0.2.1")]);
    let evidence = expect_problem(&RULE, &world, &subject());
    assert!(evidence.values.contains(&("virtual servers", "10.96.9.9:80/tcp".to_owned())), "{evidence:?}");
}

#[test]
fn services_that_were_not_read_may_have_what_is_left_behind() {
    let mut left = node(Mode::Iptables, &[], &[]);
    let ip = left.cluster.services.seen().expect("Services")[0].cluster_ips[0];
    left.kernel.ip_vs = Reading::Seen(vec![virtual_server(&ip.to_string())]);
    expect_problem(&RULE, &left, &subject());
    let mut nothing = node(Mode::Ipvs, &[], &[]);
    nothing.kernel.ip_vs = Reading::Seen(Vec::new());
    expect_problem(&RULE, &nothing, &subject());
    let mut untold = nothing.clone();
    for why in [Why::Malformed, Why::Unreachable] {
        untold.kernel.proxy.mode = gap(Source::ProxyMode, why);
        assert_eq!(expect_unknown(&RULE, &untold, &subject()).source, Source::ProxyMode, "{why:?}");
    }
    assert_eq!(verdicts(&nothing.clone().without_proxy()), [Verdict::Healthy], "nobody would program anything");
    for world in [&mut left, &mut nothing] {
        world.cluster.services = gap(Source::Services, Why::Unreachable);
        assert_eq!(expect_unknown(&RULE, world, &subject()).source, Source::Services);
    }
    left.kernel.ip_vs = Reading::Seen(Vec::new());
    expect_healthy(&RULE, &left, &subject());
    assert_eq!(verdicts(&nothing.with_mode(Mode::Iptables)), [Verdict::Healthy]);
}
