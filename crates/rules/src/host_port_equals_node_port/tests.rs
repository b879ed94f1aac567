use super::*;
use crate::expectations::{expect_healthy, expect_problem, expect_unknown};
use portreeve_facts::{
    Claimant, Mode, Protocol, RangeClaim, Reading, ServiceName, Why,
    healthy::{PRIMARY, SECOND, World, gap, ip, objects, seen},
};

fn clash(change: impl FnOnce(World) -> World) -> Snapshot {
    Snapshot::healthy().service("web", |it| change(it.node_port(30080))).pod("edge", |pod| pod.host_port(80, 30080))
}

fn subject() -> Subject {
    Subject::pod(&clash(|it| it).cluster.pods.seen().expect("pods")[0])
}

fn severity(world: &Snapshot) -> Severity {
    expect_problem(&RULE, world, &subject()).severity
}

fn with_host_ip(address: &str) -> Snapshot {
    Snapshot::healthy().service("web", |it| it.node_port(30080)).pod("edge", |pod| {
        pod.host_port(80, 30080);
        pod.ports[0].host_ip = Some(ip(address));
    })
}

#[test]
fn who_wins_depends_on_the_mode_and_on_endpoints() {
    for (mode, with, without) in [
        (Mode::Iptables, Severity::Critical, Severity::Warning),
        (Mode::Ipvs, Severity::Critical, Severity::Warning),
        (Mode::Nftables, Severity::Warning, Severity::Warning),
        (Mode::Cilium, Severity::Critical, Severity::Critical),
    ] {
        assert_eq!(severity(&clash(|it| it).with_mode(mode)), with, "{mode} with endpoints");
        let without_endpoints = clash(World::without_endpoints).with_mode(mode);
        assert_eq!(severity(&without_endpoints), without, "{mode} without");
    }
}

#[test]
fn a_pod_without_a_network_may_become_an_endpoint_only_at_the_target_port_of_the_service() {
    for (mode, target) in Mode::ALL.into_iter().flat_map(|mode| [(mode, true), (mode, false)]) {
        let mut world = clash(|it| it).with_mode(mode);
        objects(&mut world.cluster.pods)[0].ready = false;
        objects(&mut world.cluster.pods)[0].ports[0].port = if target { 8080 } else { 80 };
        expect_problem(&RULE, &world, &subject());
        objects(&mut world.cluster.pods)[0].ips.clear();
        if target || [Mode::Ipvs, Mode::Nftables].contains(&mode) {
            assert_eq!(expect_unknown(&RULE, &world, &subject()).source, Source::Pods, "{mode}");
        } else {
            expect_problem(&RULE, &world, &subject());
        }
    }
}

#[test]
fn behind_cilium_a_number_outside_of_its_range_is_unknown_where_cilium_does_not_serve_the_node_port() {
    let behind = |ranges, host_ip: Option<&str>| {
        let mut world = clash(|it| it).with_mode(Mode::Cilium);
        objects(&mut world.cluster.pods)[0].ports[0].host_ip = host_ip.map(ip);
        world.cluster.range_claims.push(RangeClaim { by: Claimant::Cilium, ranges, place: String::new() });
        world
    };
    let outside = || Reading::Seen(vec!["31000-31999".parse().expect("a range")]);
    let evidence = expect_problem(&RULE, &behind(outside(), None), &subject());
    assert_eq!((evidence.severity, evidence.outcome), (Severity::Critical, "unknown"));
    let ends = "on some addresses it is not known which of the two gets connections.";
    assert!(evidence.summary.ends_with(ends), "{}", evidence.summary);
    let on_primary = [Vantage::Remote, Vantage::Node, Vantage::Pods];
    assert_eq!(evidence.affects, Affected::from(on_primary), "the Service gets these connections to primary addresses");
    let gap_of = |world: &Snapshot| expect_unknown(&RULE, world, &subject());
    let elsewhere = gap_of(&behind(outside(), None));
    assert!(elsewhere.detail.contains("Cilium does not serve the NodePort there"), "{elsewhere:?}");
    assert_eq!(severity(&behind(outside(), Some(PRIMARY[0]))), Severity::Critical);
    let unread = behind(gap(Source::ConfigMaps, Why::NotPermitted), None);
    assert_eq!(gap_of(&unread).source, Source::ConfigMaps);
    for world in [unread, behind(outside(), Some("0.0.0.0"))] {
        let judged = check(&Round::of(&world, None, 60), &Limits::default()).expect("judged");
        assert!(judged.iter().all(|it| matches!(it.verdict, Verdict::Unknown(_))), "{judged:?}");
    }
}

#[test]
fn a_pod_that_could_not_be_used_may_have_a_hostport_that_is_a_node_port() {
    let node = Subject::node("n1", None);
    let web = || Snapshot::healthy().service("web", |it| it.node_port(30080));
    assert_eq!(expect_unknown(&RULE, &web().rejects(Source::Pods), &node).source, Source::Pods);
    assert_eq!(expect_unknown(&RULE, &clash(|it| it).rejects(Source::Pods), &node).source, Source::Pods);
    assert_eq!(severity(&clash(|it| it).rejects(Source::Pods)), Severity::Critical, "one that was read has it");
    expect_healthy(&RULE, &web().rejects(Source::Services), &node);
    expect_healthy(&RULE, &Snapshot::healthy().rejects(Source::Pods), &node);
}

#[test]
fn each_family_has_its_own_endpoints() {
    for (family, primary) in [Family::V4, Family::V6].into_iter().zip(PRIMARY) {
        let mut world = with_host_ip(primary);
        assert_eq!(severity(&world), Severity::Critical);
        seen(&mut world.cluster.endpoint_slices).retain(|slice| slice.family != family);
        assert_eq!(severity(&world), Severity::Warning, "{family}: the other one's are of no use here");
    }
}

#[test]
fn endpoints_elsewhere_take_what_comes_from_the_node() {
    let evidence = expect_problem(&RULE, &clash(|it| it.local().elsewhere()), &subject());
    assert_eq!(evidence.severity, Severity::Warning);
    assert_eq!(evidence.affects, Affected::from([Vantage::Node, Vantage::Loopback, Vantage::Pods]));
}

#[test]
fn only_who_loses_with_every_setting_that_may_be_is_affected() {
    let mut world = clash(|it| it);
    world.kernel.proxy.config = gap(Source::ProxyConfig, Why::Unreachable);
    let evidence = expect_problem(&RULE, &world, &subject());
    let certain = [Vantage::Remote, Vantage::Node, Vantage::Pods];
    assert_eq!(evidence.affects, Affected::from(certain), "localhostNodePorts may be off");
}

#[test]
fn the_evidence_names_both_and_how_to_part_them() {
    let evidence = expect_problem(&RULE, &clash(|it| it).with_mode(Mode::Ipvs), &subject());
    let found = format!("{evidence:?}");
    assert!(found.contains("the pod gets the Service's connections"), "{found}");
    assert!(found.contains("30080/tcp on every address to container port 80"), "{found}");
    assert!(found.contains("ipvs (from 127.0.0.1:10249/proxyMode)"), "{found}");
    assert!(found.contains("another hostPort") && found.contains("/spec/ports/0/nodePort"), "{found}");
    assert_eq!(evidence.affects, Affected::from([Vantage::Remote, Vantage::Node, Vantage::Pods]));
}

#[test]
fn the_port_that_service_lb_sends_to_a_lost_node_port_is_lost_too() {
    let of = || ServiceName { namespace: "default".to_owned(), name: "web".to_owned() };
    let balancer = |pod: &mut Pod| (pod.host_port(80, 80), pod.service_lb_of = Some(of())).1;
    let world = |mode| clash(World::local).with_mode(mode).pod("svclb", balancer);
    let found = |mode| format!("{:?}", expect_problem(&RULE, &world(mode), &subject()));
    assert!(found(Mode::Ipvs).contains("port 80/tcp of this node, which ServiceLB sends to this NodePort"));
    assert!(!found(Mode::Iptables).contains("lost too"), "the Service gets what is sent there");
}

#[test]
fn host_network_finished_and_foreign_pods_are_silent() {
    type Change = fn(&mut Pod);
    let changes: [Change; 3] =
        [|pod| pod.host_network = true, |pod| pod.finished = true, |pod| pod.node = Some("n2".to_owned())];
    for change in changes {
        let world = Snapshot::healthy().service("web", |it| it.node_port(30080)).pod("edge", |pod| {
            pod.host_port(80, 30080);
            change(pod);
        });
        expect_healthy(&RULE, &world, &subject());
    }
}

#[test]
fn another_protocol_port_family_or_proxy_is_silent() {
    expect_healthy(&RULE, &clash(|it| it.protocol(Protocol::Udp)), &subject());
    expect_healthy(&RULE, &clash(|it| it.node_port(30081)), &subject());
    let other = |it: World| it.with(|service| service.proxy_name = Some("other".to_owned()));
    expect_healthy(&RULE, &clash(other), &subject());
    let mut v4_only = with_host_ip(PRIMARY[1]).with_mode(Mode::Ipvs);
    objects(&mut v4_only.cluster.services)[0].families = &[Family::V4];
    expect_healthy(&RULE, &v4_only, &subject());
}

#[test]
fn a_host_ip_where_no_node_port_is_served_is_silent() {
    assert_eq!(severity(&with_host_ip(SECOND[0]).with_mode(Mode::Ipvs)), Severity::Critical);
    assert_eq!(severity(&with_host_ip("0.0.0.0")), Severity::Critical);
    expect_healthy(&RULE, &with_host_ip(SECOND[0]).with_mode(Mode::Nftables), &subject());
    let loopback = with_host_ip("127.0.0.1");
    assert_eq!(severity(&loopback), Severity::Warning, "only the node itself loses");
    expect_healthy(&RULE, &loopback.with_mode(Mode::Ipvs), &subject());
}

#[test]
fn what_every_mode_and_every_backing_share_is_told_and_the_rest_is_unknown() {
    assert_eq!(severity(&clash(|it| it).without_proxy()), Severity::Warning);
    let second = with_host_ip(SECOND[0]).without_proxy();
    assert_eq!(expect_unknown(&RULE, &second, &subject()).source, Source::ProxyMode);
    let mut blind = clash(|it| it);
    blind.cluster.endpoint_slices = gap(Source::EndpointSlices, Why::NotRequested);
    assert_eq!(severity(&blind), Severity::Warning);
    assert_eq!(severity(&blind.with_mode(Mode::Cilium)), Severity::Critical, "whatever is behind the Service");
}

#[test]
fn one_address_is_a_warning_where_the_settings_are_assumed_and_every_address_is_not() {
    let every = clash(|it| it).with_user_mode(Mode::Ipvs);
    assert_eq!(severity(&every), Severity::Critical);
    assert_eq!(severity(&with_host_ip(PRIMARY[0]).with_user_mode(Mode::Ipvs)), Severity::Warning);
    assert_eq!(severity(&with_host_ip(PRIMARY[0]).with_mode(Mode::Ipvs)), Severity::Critical);
}

#[test]
fn where_endpoints_were_not_read_the_service_may_send_to_the_pod_itself() {
    let world = |container: u16| {
        let world = Snapshot::healthy().service("web", |it| it.node_port(30080));
        let mut world = world.pod("edge", |pod| pod.host_port(container, 30080));
        world.cluster.endpoint_slices = gap(Source::EndpointSlices, Why::NotPermitted);
        world.with_mode(Mode::Ipvs)
    };
    assert_eq!(expect_unknown(&RULE, &world(8080), &subject()).source, Source::EndpointSlices);
    expect_problem(&RULE, &world(80), &subject());
}

#[test]
fn unread_is_unknown() {
    let mut world = clash(|it| it);
    world.cluster.pods = gap(Source::Pods, Why::Unreachable);
    assert_eq!(expect_unknown(&RULE, &world, &subject()).source, Source::Pods);
    let mut world = clash(|it| it);
    world.cluster.services = gap(Source::Services, Why::Unreachable);
    assert_eq!(expect_unknown(&RULE, &world, &subject()).source, Source::Services);
    let mut world = clash(|it| it);
    world.kernel.interfaces = gap(Source::Addresses, Why::Torn);
    assert_eq!(expect_unknown(&RULE, &world, &subject()).source, Source::Addresses);
}

#[test]
fn a_host_ip_of_every_address_is_of_its_own_family_only() {
    let mut world = with_host_ip("0.0.0.0");
    objects(&mut world.cluster.services)[0].families = &[Family::V6];
    expect_healthy(&RULE, &world, &subject());
}

#[test]
fn an_annotation_for_cilium_hides_nothing_where_cilium_cannot_be() {
    let world = clash(|it| it.with(|service| service.for_cilium.on_some_nodes = true)).without_proxy();
    expect_problem(&RULE, &world, &subject());
    expect_unknown(&RULE, &world.address("cilium_host", "10.244.0.1"), &subject());
}

#[test]
fn a_pod_to_which_the_service_sends_loses_nothing() {
    let own = |port: u16| {
        let mut world = Snapshot::healthy().service("web", |it| it.node_port(30080)).pod("edge", |pod| {
            pod.host_port(port, 30080);
        });
        let (pod, slices) = (objects(&mut world.cluster.pods), &world.cluster.endpoint_slices);
        let slice = &slices.seen().expect("slices")[0];
        let endpoint = slice.endpoints[0].addresses[0];
        pod.into_iter().for_each(|pod| pod.ips = vec![endpoint]);
        (slice.ports[0].port.expect("a port"), world)
    };
    let (target, _) = own(1);
    let evidence = expect_problem(&RULE, &own(target).1, &subject());
    assert_eq!((evidence.severity, evidence.affects.len()), (Severity::Info, 0));
    assert!(evidence.summary.ends_with("the Service also sends its connections to this pod."), "{}", evidence.summary);
    assert_eq!(severity(&own(target + 1).1), Severity::Critical, "to another of its ports");
}

#[test]
fn another_number_for_the_service_is_no_remedy_if_cilium_ignores_the_host_port() {
    let remedies = |world: &Snapshot| expect_problem(&RULE, world, &subject()).remedies.len();
    assert_eq!(remedies(&clash(|it| it)), 2);
    let mut behind = clash(|it| it).with_mode(Mode::Cilium);
    assert_eq!(remedies(&behind), 1);
    let ranges = Reading::Seen(vec!["31000-31999".parse().expect("a range")]);
    behind.cluster.range_claims.push(RangeClaim { by: Claimant::Cilium, ranges, place: String::new() });
    assert_eq!(remedies(&behind), 2, "the hostPort is outside of Cilium's range");
}

#[test]
fn behind_cilium_the_service_takes_nothing_from_the_pod_where_its_node_port_is_not_served() {
    let world = clash(|it| it).with_mode(Mode::Cilium);
    let affects = |world: &Snapshot| expect_problem(&RULE, world, &subject()).affects;
    assert!(affects(&world).contains(&Vantage::Remote));
    let listed = world.with_config(|it| it.node_port_addresses = vec!["198.51.100.0/24".to_owned()]);
    assert_eq!(affects(&listed), Affected::from([Vantage::Node, Vantage::Loopback, Vantage::Pods]));
    assert_eq!(severity(&listed), Severity::Warning);
}
