use super::*;
use crate::{
    capped::MOST_JUDGED,
    expectations::{expect_certain, expect_healthy, expect_problem, expect_unknown},
    findings::Affected,
};
use portreeve_facts::{
    CiliumConfig, Claimant, Link, PortRange, Protocol, ProxyConfig, RangeClaim, Reading, ServiceKind, State, Why,
    WithoutBackend,
    healthy::{PRIMARY, SECOND, World, daemon, gap, interfaces_of, ip, objects, proxy_holder, seen},
};

fn web(port: u16) -> Snapshot {
    Snapshot::healthy().service("web", |it| it.node_port(port))
}

fn subject() -> Subject {
    Subject::service(&web(30080).cluster.services.seen().expect("services")[0])
}

fn affects(world: &Snapshot) -> (Severity, Vec<Vantage>) {
    let evidence = expect_problem(&RULE, world, &subject());
    (evidence.severity, evidence.affects.into_iter().collect())
}

#[test]
fn a_wildcard_listener_loses_new_connections_from_everywhere() {
    use Vantage::{Loopback, Node, Pods, Remote};
    let world = web(30080).listens("0.0.0.0:30080");
    for (mode, lost) in [
        (Mode::Iptables, vec![Remote, Node, Loopback, Pods]),
        (Mode::Nftables, vec![Remote, Node, Pods]),
        (Mode::Ipvs, vec![Remote, Node, Pods]),
    ] {
        assert_eq!(affects(&world.with_mode(mode)), (Severity::Critical, lost), "{mode}");
    }
}

#[test]
fn a_loopback_listener_is_hijacked_in_iptables_mode_only() {
    let node = web(30080).listens("127.0.0.1:30080");
    assert_eq!(affects(&node), (Severity::Warning, vec![Vantage::Loopback]));
    expect_healthy(&RULE, &node.with_mode(Mode::Nftables), &subject());
    expect_healthy(&RULE, &node.with_mode(Mode::Ipvs), &subject());
    expect_healthy(&RULE, &node.with_config(|it| it.localhost_node_ports = Some(false)), &subject());
}

#[test]
fn another_address_of_loopback_fares_like_the_first() {
    let node = web(30080).listens("127.0.0.53:30080");
    let evidence = expect_problem(&RULE, &node, &subject());
    assert_eq!((evidence.severity, &evidence.affects), (Severity::Warning, &Affected::from([Vantage::Loopback])));
    let found = ("from loopback", "to 127.0.0.53 are answered by a pod of the Service".to_owned());
    assert!(evidence.values.contains(&found), "{evidence:#?}");
    expect_healthy(&RULE, &node.with_mode(Mode::Nftables), &subject());
}

#[test]
fn a_listener_on_loopback_times_out_where_nothing_leaves_it() {
    let mut node = web(30080).listens("127.0.0.1:30080");
    node.kernel.sysctls.route_localnet = Reading::Seen(false);
    let evidence = expect_problem(&RULE, &node, &subject());
    assert_eq!((evidence.severity, evidence.affects), (Severity::Warning, Affected::from([Vantage::Loopback])));
    assert!(evidence.summary.ends_with("nothing that leaves loopback here reaches a pod."), "{}", evidence.summary);
}

#[test]
fn a_service_without_endpoints_takes_every_loopback_listener_in_iptables_mode() {
    let world = Snapshot::healthy().service("web", |it| it.node_port(30080).without_endpoints());
    for local in ["127.0.0.1:30080", "[::1]:30080"] {
        assert_eq!(affects(&world.clone().listens(local)), (Severity::Warning, vec![Vantage::Loopback]), "{local}");
    }
}

#[test]
fn an_address_outside_node_port_addresses_is_a_trap_in_iptables_mode() {
    let world = web(30080)
        .listens(&format!("{}:30080", SECOND[0]))
        .with_config(|it| it.node_port_addresses = vec!["primary".to_owned()]);
    assert_eq!(affects(&world), (Severity::Info, vec![]));
    assert_eq!(expect_problem(&RULE, &world, &subject()).variant, "trap");
    expect_healthy(&RULE, &world.with_mode(Mode::Nftables), &subject());
}

#[test]
fn a_dual_stack_wildcard_loses_in_both_families_and_v6only_in_one() {
    let evidence = expect_problem(&RULE, &web(30080).listens("[::]:30080"), &subject());
    let found = format!("{:?}", evidence.values);
    assert!(found.contains(PRIMARY[0]) && found.contains(PRIMARY[1]), "{found}");
    let only = web(30080).socket(Protocol::Tcp, State::Listen, "[::]:30080", "[::]:0", |it| it.v6only = Some(true));
    let found = format!("{:?}", expect_problem(&RULE, &only, &subject()).values);
    assert!(!found.contains(&format!("to {}", PRIMARY[0])) && found.contains(PRIMARY[1]), "{found}");
}

#[test]
fn a_service_of_the_other_family_or_protocol_is_no_conflict() {
    let v6 = |it: World| it.node_port(30080).with(|service| service.families = &[Family::V6]);
    expect_healthy(&RULE, &Snapshot::healthy().service("web", v6).listens("0.0.0.0:30080"), &subject());
    let udp = |it: World| it.node_port(30080).protocol(Protocol::Udp);
    expect_healthy(&RULE, &Snapshot::healthy().service("web", udp).listens("0.0.0.0:30080"), &subject());
}

#[test]
fn the_proxys_own_socket_an_endpoint_and_another_proxys_service_are_silent() {
    expect_healthy(&RULE, &web(30080).listens_as("0.0.0.0:30080", proxy_holder()), &subject());
    let endpoint = |it: World| {
        it.node_port(30080).each_slice(|slice| {
            slice.ports[0].port = Some(30080);
            slice.endpoints[0].addresses = vec![ip(PRIMARY[0])];
        })
    };
    let own = Snapshot::healthy().service("web", endpoint).listens("0.0.0.0:30080");
    expect_healthy(&RULE, &own, &subject());
    let own = own.with_mode(Mode::Nftables);
    expect_healthy(&RULE, &own, &subject());
    let refused = own.with_config(|config| config.nftables_localhost = Some(true));
    assert_eq!(affects(&refused), (Severity::Warning, vec![Vantage::Loopback]), "loopback refuses an endpoint too");
    let other = |it: World| it.node_port(30080).with(|service| service.proxy_name = Some("other".to_owned()));
    expect_healthy(&RULE, &Snapshot::healthy().service("web", other).listens("0.0.0.0:30080"), &subject());
}

#[test]
fn a_listener_beside_the_endpoint_and_an_endpoint_that_is_not_local_lose() {
    let endpoint = |it: World, node: Option<&str>| {
        it.node_port(30080).each_slice(|slice| {
            slice.ports[0].port = Some(30080);
            slice.endpoints[0].addresses = vec![ip(PRIMARY[0])];
            slice.endpoints[0].node = node.map(str::to_owned);
        })
    };
    let own = Snapshot::healthy().service("web", |it| endpoint(it, Some("n1")));
    let beside = own.listens("192.0.2.1:30080").listens_as("0.0.0.0:30080", daemon("other", 7));
    let evidence = expect_problem(&RULE, &beside, &subject());
    assert!(evidence.summary.contains("0.0.0.0:30080"), "{}", evidence.summary);
    let local = |node| Snapshot::healthy().service("web", |it| endpoint(it.local(), node)).listens("0.0.0.0:30080");
    assert_eq!(affects(&local(None)), (Severity::Critical, vec![Vantage::Remote]));
    expect_healthy(&RULE, &local(Some("n1")), &subject());
}

#[test]
fn an_endpoint_of_one_family_loses_the_connections_of_the_other_family() {
    let web = |it: World| {
        it.node_port(30080).each_slice(|slice| {
            slice.ports[0].port = Some(30080);
            if slice.family == Family::V6 {
                slice.endpoints[0].addresses = vec![ip(PRIMARY[1])];
            }
        })
    };
    let world = Snapshot::healthy().service("web", web).listens("[::]:30080");
    let evidence = expect_problem(&RULE, &world, &subject());
    let found = format!("{:?}", evidence.values);
    assert_eq!(evidence.severity, Severity::Critical);
    assert!(found.contains(SECOND[0]) && !found.contains(SECOND[1]), "{found}");
}

#[test]
fn a_host_port_of_another_address_node_or_pod_excuses_nobody() {
    let edge = |address: &str, node: &str, finished| {
        web(30080).listens_as("192.0.2.1:30080", daemon("crio", 5)).pod("edge", |pod| {
            pod.host_port(80, 30080);
            pod.ports[0].host_ip = Some(ip(address));
            (pod.node, pod.finished) = (Some(node.to_owned()), finished);
        })
    };
    expect_healthy(&RULE, &with_cri_o(edge("192.0.2.1", "n1", false)), &subject());
    expect_problem(&RULE, &with_cri_o(edge("0.0.0.0", "n1", false)), &subject());
    for other in [edge("192.0.2.2", "n1", false), edge("192.0.2.1", "n2", false), edge("192.0.2.1", "n1", true)] {
        expect_problem(&RULE, &other, &subject());
    }
}

#[test]
fn where_endpoints_are_not_known_everything_that_may_come_of_it_is_told() {
    let mut world = web(30080).listens("192.0.2.1:30080");
    world.cluster.endpoint_slices = gap(portreeve_facts::Source::EndpointSlices, Why::Unreachable);
    let evidence = expect_problem(&RULE, &world, &subject());
    assert!(evidence.summary.ends_with("new connections are refused or go elsewhere."), "{}", evidence.summary);
    let found = ("from elsewhere", "to 192.0.2.1 are answered by a pod of the Service or are refused".to_owned());
    assert!(evidence.values.contains(&found), "{evidence:#?}");
}

#[test]
fn a_slice_that_was_not_understood_may_have_the_endpoints_of_a_service_without_one() {
    let world = Snapshot::healthy().service("web", |it| it.node_port(30080).without_endpoints());
    let world = world.listens("192.0.2.1:30080").rejects(Source::EndpointSlices);
    let evidence = expect_problem(&RULE, &world, &subject());
    assert!(evidence.summary.ends_with("new connections are refused or go elsewhere."), "{}", evidence.summary);
}

#[test]
fn of_two_services_with_the_number_one_without_endpoints_takes_nothing_and_one_of_two_with_endpoints_is_not_named() {
    let two = |change: fn(World) -> World, local: &str| {
        let world = Snapshot::healthy().service("web", |it| change(it.node_port(30080)));
        world.service("api", |it| it.node_port(30080)).listens(local)
    };
    for local in ["0.0.0.0:30080", "192.0.2.1:30080"] {
        expect_healthy(&RULE, &two(World::without_endpoints, local), &subject());
        let evidence = expect_problem(&RULE, &two(|it| it, local), &subject());
        assert_eq!(evidence.severity, Severity::Critical);
        assert!(evidence.summary.ends_with("new connections are refused or go elsewhere."), "{}", evidence.summary);
    }
    let beyond = two(World::without_endpoints, &format!("{}:30080", SECOND[0]));
    let beyond = beyond.with_config(|it| it.node_port_addresses = vec!["primary".to_owned()]);
    let evidence = expect_problem(&RULE, &beyond, &subject());
    assert!(evidence.summary.ends_with("are refused, since the Service has no endpoints."), "{}", evidence.summary);
}

#[test]
fn a_holder_of_a_pods_host_port_is_left_to_the_host_port_rule() {
    let world = web(30080).pod("edge", |pod| pod.host_port(80, 30080)).listens_as("0.0.0.0:30080", daemon("crio", 5));
    let world = with_cri_o(world);
    expect_healthy(&RULE, &world, &subject());
    expect_healthy(&RULE, &world.rejects(Source::Pods), &subject());
    let unused = web(30080).listens_as("0.0.0.0:30080", daemon("crio", 5)).rejects(Source::Pods);
    assert_eq!(expect_unknown(&RULE, &unused, &subject()).source, Source::Pods, "its pod could not be used, perhaps");
}

fn with_cri_o(mut world: Snapshot) -> Snapshot {
    objects(&mut world.cluster.nodes)[0].container_runtime = Some("cri-o://1.30.6".to_owned());
    world
}

#[test]
fn a_process_without_a_socket_on_each_host_port_keeps_none_for_a_runtime_that_is_not_known() {
    let world = |sockets: &[&str], process: &str| {
        let world = web(30080).pod("edge", |pod| {
            pod.host_port(80, 30080);
            pod.host_port(443, 8443);
        });
        let mut world = sockets.iter().fold(world, |world, local| world.listens_as(local, daemon(process, 5)));
        objects(&mut world.cluster.nodes)[0].container_runtime = None;
        world
    };
    expect_problem(&RULE, &world(&["0.0.0.0:30080"], "nginx"), &subject());
    let both = ["0.0.0.0:30080", "0.0.0.0:8443"];
    expect_healthy(&RULE, &world(&both, "crio"), &subject());
    let runtime = |runtime: Option<&str>| {
        let mut world = world(&both, "nginx");
        objects(&mut world.cluster.nodes)[0].container_runtime = runtime.map(str::to_owned);
        world
    };
    for unknown in [None, Some("docker://24.0.9")] {
        let gap = expect_unknown(&RULE, &runtime(unknown), &subject());
        assert_eq!((gap.source, gap.why), (Source::Nodes, Why::Ambiguous), "{unknown:?}");
    }
    expect_problem(&RULE, &runtime(Some("containerd://2.1.4")), &subject());
    for (why, wanted) in [(Why::NotPermitted, Why::NotPermitted), (Why::NotRequested, Why::Ambiguous)] {
        let mut unread = world(&both, "nginx");
        unread.cluster.nodes = gap(Source::Nodes, why);
        assert_eq!(expect_unknown(&RULE, &unread, &subject()).why, wanted);
    }
}

#[test]
fn beside_a_host_port_a_process_that_keeps_it_for_no_runtime_loses_where_the_service_comes_first() {
    let both = || web(30080).pod("edge", |pod| pod.host_port(80, 30080));
    let of_containerd = both().listens_as("0.0.0.0:30080", daemon("nginx", 5));
    for world in [of_containerd, with_cri_o(both().listens("0.0.0.0:30080"))] {
        let evidence = expect_problem(&RULE, &world, &subject());
        assert_eq!(evidence.severity, Severity::Critical);
        assert!(evidence.summary.ends_with("go to the Service's pods instead."), "{}", evidence.summary);
        let evidence = expect_problem(&RULE, &world.with_mode(Mode::Nftables), &subject());
        assert!(evidence.summary.ends_with("are refused or go elsewhere."), "{}", evidence.summary);
        expect_healthy(&RULE, &world.with_mode(Mode::Ipvs), &subject());
    }
}

#[test]
fn a_process_on_a_node_port_loses_to_the_service_or_to_a_pod_that_starts() {
    let world = web(30080).listens("0.0.0.0:30080").pod("edge", |pod| {
        pod.host_port(80, 30080);
        pod.ready = false;
        pod.ips.clear();
    });
    for mode in Mode::KUBE_PROXY {
        assert_eq!(affects(&world.with_mode(mode)).0, Severity::Critical, "{mode}");
    }
}

#[test]
fn without_this_nodes_name_both_ends_of_a_local_service_are_told() {
    let local = |it: World| it.node_port(30080).local();
    let world = Snapshot::healthy().service("web", local).listens("0.0.0.0:30080").unnamed();
    let evidence = expect_problem(&RULE, &world, &subject());
    assert!(evidence.summary.ends_with("time out or go to the Service's pods instead."), "{}", evidence.summary);
    let of_pod = |number| world.clone().pod("edge", |pod| pod.host_port(80, number));
    expect_problem(&RULE, &of_pod(9100), &subject());
    assert_eq!(expect_unknown(&RULE, &of_pod(30080), &subject()).source, Source::Nodes, "the pod may be here");
}

#[test]
fn without_this_nodes_name_it_is_unknown_whether_a_listener_is_a_local_endpoint() {
    let unready = |it: World| {
        it.node_port(30080).local().each_slice(|slice| {
            slice.ports[0].port = Some(30080);
            slice.endpoints[0].addresses = vec![ip(PRIMARY[0])];
            (slice.endpoints[0].ready, slice.endpoints[0].serving) = (false, false);
        })
    };
    let world = Snapshot::healthy().service("web", unready).listens("0.0.0.0:30080").unnamed();
    let evidence = expect_problem(&RULE, &world, &subject());
    assert_eq!(evidence.affects, Affected::from([Vantage::Loopback]), "loopback refuses an endpoint too");
    assert!(evidence.values.contains(&("other connections", "unknown: test".to_owned())), "{evidence:#?}");
    assert!(evidence.summary.contains(": some new connections are refused"), "{}", evidence.summary);
    assert_eq!(expect_unknown(&RULE, &world.with_mode(Mode::Nftables), &subject()).source, Source::Nodes);
}

#[test]
fn an_unconnected_udp_socket_in_the_ephemeral_range_is_a_client() {
    let udp = Snapshot::healthy()
        .service("web", |it| it.node_port(30080).protocol(Protocol::Udp))
        .listens_udp("0.0.0.0:30080");
    expect_problem(&RULE, &udp, &subject());
    expect_healthy(&RULE, &udp.clone().ephemeral("1024 65535", ""), &subject());
    let mut unread = udp;
    unread.kernel.sysctls.ip_local_port_range = gap(Source::Sysctls, Why::NotPermitted);
    assert_eq!(expect_unknown(&RULE, &unread, &subject()).source, Source::Sysctls);
}

#[test]
fn a_supposed_range_changes_no_open_socket() {
    let server = Snapshot::healthy()
        .service("web", |it| it.node_port(30080).protocol(Protocol::Udp))
        .listens_udp("0.0.0.0:30080");
    expect_problem(&RULE, &server.clone().supposing("1024 65535", ""), &subject());
    let client = server.ephemeral("1024 65535", "");
    expect_healthy(&RULE, &client.clone().supposing("1024 65535", "30000-32767"), &subject());
    expect_healthy(&RULE, &client.supposing("32768 60999", ""), &subject());
}

#[test]
fn a_socket_on_a_reserved_port_is_assumed_to_be_a_servers() {
    let assumed = |world: Snapshot, range: &str| {
        let world = world.service("web", |it| it.node_port(30080).protocol(Protocol::Udp));
        let evidence = expect_problem(&RULE, &world.ephemeral(range, "30000-32767"), &subject());
        assert_eq!(evidence.severity, Severity::Critical);
        evidence.values.into_iter().find(|(name, _)| *name == "assumed").map(|(_, value)| value)
    };
    let udp = || Snapshot::healthy().listens_udp("0.0.0.0:30080");
    let words = "30080/udp was reserved before the socket was opened; an older socket may belong to a client";
    assert_eq!(assumed(udp(), "1024 65535").as_deref(), Some(words));
    assert_eq!(assumed(udp(), "32768 60999"), None, "the kernel does not choose the port");
}

#[test]
fn what_an_unknown_input_could_change_is_unknown_and_the_rest_is_told() {
    let elsewhere = |world: Snapshot| world.service("other", |it| it.node_port(30099)).without_proxy();
    assert_eq!(affects(&elsewhere(web(30080)).listens("0.0.0.0:30080")).0, Severity::Critical);
    let unknown = expect_unknown(&RULE, &elsewhere(web(30080)).listens("127.0.0.1:30080"), &subject());
    assert_eq!(unknown.source, Source::ProxyMode);

    let mut blind = web(30080).listens(&format!("{}:30080", SECOND[0])).with_mode(Mode::Iptables);
    blind.cluster.endpoint_slices = gap(Source::EndpointSlices, Why::NotRequested);
    assert_eq!(affects(&blind).0, Severity::Critical, "lost with and without endpoints");
    let blind = blind.with_config(|it| it.node_port_addresses = vec!["primary".to_owned()]);
    assert_eq!(expect_unknown(&RULE, &blind, &subject()).source, Source::EndpointSlices);
}

/// The assumed settings serve some address of the node. The real `nodePortAddresses` may not have the listener's
/// address.
#[test]
fn of_settings_that_are_assumed_an_address_is_a_warning_and_of_unread_ones_unknown() {
    let listens = |address: &str| web(30080).listens(&format!("{address}:30080"));
    for mode in Mode::KUBE_PROXY {
        let evidence = expect_problem(&RULE, &listens(PRIMARY[0]).with_user_mode(mode), &subject());
        assert_eq!(evidence.severity, Severity::Warning, "{mode}");
        assert!(evidence.values.iter().any(|(name, value)| *name == "assumed" && value.contains("settings")));
        let evidence = expect_problem(&RULE, &listens("0.0.0.0").with_user_mode(mode), &subject());
        assert_eq!(evidence.severity, Severity::Critical, "{mode}");
        assert!(evidence.values.iter().any(|(name, value)| *name == "assumed" && value.contains("defaults")));

        let unread = |address: &str| {
            let mut world = listens(address).with_mode(mode);
            world.kernel.proxy.config = gap(Source::ProxyConfig, Why::Unreachable);
            world
        };
        assert_eq!(expect_unknown(&RULE, &unread(PRIMARY[0]), &subject()).source, Source::ProxyConfig, "{mode}");
        let evidence = expect_problem(&RULE, &unread("0.0.0.0"), &subject());
        assert_eq!(evidence.severity, Severity::Critical, "{mode}");
        assert!(evidence.values.iter().any(|(_, value)| value.contains("the proxy may serve other addresses")));
        assert!(evidence.values.iter().any(|(name, value)| *name == "assumed" && value.contains("has an address")));
    }
}

/// The listener loses connections on every served address.
#[test]
fn without_its_node_a_listener_on_every_address_is_told_where_somebody_said_the_mode() {
    let mut world = web(30080).listens("0.0.0.0:30080").with_user_mode(Mode::Iptables);
    seen(&mut world.cluster.nodes).clear();
    let evidence = expect_problem(&RULE, &world, &subject());
    assert_eq!(evidence.severity, Severity::Critical);
    assert!(
        evidence.values.iter().any(|(name, value)| *name == "assumed" && value.contains("defaults")),
        "{evidence:?}"
    );
}

/// Without endpoints, kube-proxy in iptables mode refuses connections to the NodePort on all addresses, with any
/// `nodePortAddresses`.
#[test]
fn what_holds_with_any_settings_is_told_as_if_they_were_read() {
    let world = Snapshot::healthy().service("web", |it| it.node_port(30080).without_endpoints());
    let world = world.listens(&format!("{}:30080", PRIMARY[0]));
    let evidence = expect_problem(&RULE, &world.clone().with_user_mode(Mode::Iptables), &subject());
    assert_eq!(evidence.severity, Severity::Critical);
    assert!(!evidence.values.iter().any(|(name, _)| *name == "assumed"), "{evidence:#?}");
    assert_eq!(expect_problem(&RULE, &world.with_user_mode(Mode::Ipvs), &subject()).severity, Severity::Warning);
    // The listener is bound to one device, so the listener loses only connections to the addresses of this device.
    let of_device = |it: &mut Socket| it.device = 2;
    let device = web(30080).socket(Protocol::Tcp, State::Listen, "0.0.0.0:30080", "0.0.0.0:0", of_device);
    assert_eq!(expect_problem(&RULE, &device.with_user_mode(Mode::Ipvs), &subject()).severity, Severity::Warning);
}

#[test]
fn a_listener_at_the_target_port_may_be_an_endpoint_that_was_not_read() {
    let world = |target: Option<u16>| {
        let mut world =
            Snapshot::healthy().service("web", |it| it.node_port(30080).with(|it| it.ports[0].target = target));
        world.cluster.endpoint_slices = gap(Source::EndpointSlices, Why::NotPermitted);
        world.listens("0.0.0.0:30080")
    };
    for target in [Some(30080), None] {
        assert_eq!(expect_unknown(&RULE, &world(target), &subject()).source, Source::EndpointSlices, "{target:?}");
    }
    assert_eq!(affects(&world(Some(8080))).0, Severity::Critical, "the Service sends elsewhere");
}

#[test]
fn workers_on_one_port_are_one_finding_with_a_count() {
    let world = web(30080).listens("0.0.0.0:30080").listens("0.0.0.0:30080");
    let evidence = expect_problem(&RULE, &world, &subject());
    assert!(evidence.values.iter().any(|(name, value)| *name == "workers" && value.starts_with("2 ")));
    assert_eq!(evidence.values.iter().filter(|(name, _)| *name == "listener").count(), 1);
}

#[test]
fn a_socket_on_a_device_hears_that_device_and_its_own_node() {
    let world = web(30080).socket(Protocol::Tcp, State::Listen, "0.0.0.0:30080", "0.0.0.0:0", |it| it.device = 2);
    assert_eq!(affects(&world), (Severity::Critical, vec![Vantage::Remote, Vantage::Node]));
}

#[test]
fn many_sockets_that_perhaps_answer_do_not_hide_what_another_socket_certainly_loses() {
    let world = (1..=300).fold(web(30080).listens_as("0.0.0.0:30080", daemon("sshd", 600)), |world, n| {
        let mut world = world.address(&format!("br{n}"), &format!("198.51.{}.{}", n / 250, n % 250));
        let link = interfaces_of(&mut world).links.last_mut().expect("a link");
        link.kind = Some("bridge".to_owned());
        let device = link.index;
        let bound = |it: &mut Socket| (it.device, it.owner) = (device, daemon(&format!("vm{n}"), n));
        world.socket(Protocol::Tcp, State::Listen, "0.0.0.0:30080", "0.0.0.0:0", bound)
    });
    let judgements = RULE.judge(&Round::of(&world, None, 60), &Limits::default()).expect("it can judge");
    let is_of_sshd = |it: &Judgement| matches!(&it.verdict, Verdict::Problem(evidence) if evidence.values.contains(&("held by", "process sshd".to_owned())));
    assert!(judgements.iter().any(is_of_sshd), "{judgements:?}");
}

#[test]
fn many_sockets_on_addresses_that_the_node_does_not_have_hide_no_loss() {
    let world = (0..=MOST_JUDGED).fold(web(30080), |world, n| {
        world.listens_as(&format!("203.0.{}.{}:30080", n / 250, n % 250), daemon("vm", 7))
    });
    let bound = |it: &mut Socket| (it.device, it.owner) = (2, daemon("sshd", 600));
    let world = world.socket(Protocol::Tcp, State::Listen, "192.0.2.1:30080", "0.0.0.0:0", bound);
    assert_eq!(affects(&world).0, Severity::Critical);
}

#[test]
fn many_sockets_that_are_alike_hide_no_loss() {
    let on = |world: Snapshot, (local, device): (&str, u32), name: &str| {
        let bound = |it: &mut Socket| (it.device, it.owner) = (device, daemon(name, 7));
        world.socket(Protocol::Tcp, State::Listen, local, "0.0.0.0:0", bound)
    };
    let alike = |world, n| on(world, ("0.0.0.0:30080", 3), &format!("vm{n}"));
    let world = (0..=MOST_JUDGED).fold(web(30080).address("veth1", "198.51.100.1"), alike);
    assert_eq!(affects(&on(world, ("192.0.2.1:30080", 2), "sshd")).0, Severity::Critical);
}

#[test]
fn a_loss_to_other_services_at_an_address_without_node_ports_is_no_loss_to_the_node_port() {
    let taker = |it: World| it.external_ip(SECOND[0]).with(|service| service.ports[0].port = 30080);
    let world = web(30080).service("a", taker).service("b", taker).listens(&format!("{}:30080", SECOND[0]));
    let world = world.with_config(|it| it.node_port_addresses = vec!["primary".to_owned()]);
    assert_eq!(expect_problem(&RULE, &world, &subject()).variant, "trap");
    expect_healthy(&RULE, &world.with_mode(Mode::Nftables), &subject());
}

#[test]
fn many_sockets_on_the_device_lo_do_not_hide_what_a_socket_on_another_device_loses() {
    let on = |world: Snapshot, device: u32, name: &str| {
        let bound = |it: &mut Socket| (it.device, it.owner) = (device, daemon(name, device));
        world.socket(Protocol::Tcp, State::Listen, "0.0.0.0:30080", "0.0.0.0:0", bound)
    };
    let world = (1..=40).fold(web(30080), |world, n| on(world, 1, &format!("daemon-{n}")));
    assert_eq!(affects(&world).0, Severity::Warning);
    assert_eq!(affects(&on(world, 2, "sshd")).0, Severity::Critical);
}

#[test]
fn of_many_sockets_the_worst_are_reported_and_the_others_are_unknown() {
    let world = (1..=40).fold(web(30080).with_mode(Mode::Iptables), |world, n| {
        world.listens_as(&format!("127.0.0.{n}:30080"), daemon(&format!("daemon-{n}"), n))
    });
    for local in ["0.0.0.0", "[::]", "192.0.2.1"] {
        let world = world.clone().listens_as(&format!("{local}:30080"), daemon("sshd", 600));
        let evidence = expect_problem(&RULE, &world, &subject());
        assert!(evidence.summary.starts_with("Process sshd"), "{local}: {}", evidence.summary);
        assert_eq!(evidence.severity, Severity::Critical, "{local}");
        assert_eq!(evidence.values.iter().filter(|(name, _)| *name == "listener").count(), MOST_LISTED);
        assert_eq!(expect_unknown(&RULE, &world, &subject()).why, Why::TooMuch, "{local}");
    }
}

#[test]
fn many_traps_hide_no_loss_and_are_counted() {
    let traps = (1..=20).fold(web(30080).with_mode(Mode::Iptables), |world, n| {
        let address = format!("10.0.0.{n}");
        world.address("eth1", &address).listens_as(&format!("{address}:30080"), daemon("dns", 7))
    });
    let traps = traps.with_config(|it| it.node_port_addresses = vec!["192.0.2.0/24".to_owned()]);
    let evidence = expect_problem(&RULE, &traps, &subject());
    assert_eq!((evidence.severity, evidence.variant), (Severity::Info, "trap"));
    assert!(evidence.values.contains(&("listener", "and 4 more".to_owned())), "{evidence:#?}");
    expect_certain(&RULE, &traps, &subject());
    let loses = traps.listens_as("192.0.2.1:30080", daemon("dns", 7));
    assert_eq!(affects(&loses).0, Severity::Critical);
    expect_certain(&RULE, &loses, &subject());
}

#[test]
fn sockets_on_addresses_without_node_ports_are_judged_last() {
    let web = Snapshot::healthy().service("web", |it| it.node_port(30080).without_endpoints());
    let many = (1..=20).fold(web, |world, n| {
        let address = format!("10.0.0.{n}");
        world.address("eth1", &address).listens_as(&format!("{address}:30080"), daemon("dns", 7))
    });
    let many = many.with_config(|it| it.node_port_addresses = vec!["192.0.2.0/24".to_owned()]);
    let world = ["192.0.2.1:30080", "0.0.0.0:30080"].into_iter().fold(many, Snapshot::listens);
    let evidence = expect_problem(&RULE, &world, &subject());
    let listeners = evidence.values.iter().filter(|(name, _)| *name == "listener");
    let listeners: Vec<&str> = listeners.map(|(_, socket)| &**socket).collect();
    assert_eq!(listeners[..2], ["tcp LISTEN 0.0.0.0:30080", "tcp LISTEN 192.0.2.1:30080"], "{listeners:?}");
    assert_eq!(listeners.len(), MOST_LISTED);
}

#[test]
fn a_bounded_number_of_sockets_without_losses_is_judged() {
    let many = |all: usize| {
        (0..all).fold(web(30080).with_mode(Mode::Nftables), |world, n| {
            world.listens_as(&format!("127.0.{}.{}:30080", n / 250, 1 + n % 250), daemon("dns", 7))
        })
    };
    expect_healthy(&RULE, &many(MOST_JUDGED), &subject());
    assert_eq!(expect_unknown(&RULE, &many(MOST_JUDGED + 1), &subject()).why, Why::TooMuch);
}

#[test]
fn an_external_address_of_another_service_takes_the_connections_to_the_node_port() {
    let taker = |it: World| it.external_ip(PRIMARY[0]).with(|service| service.ports[0].port = 30080);
    let taken = |change: fn(World) -> World| {
        let world = web(30080).service("taker", |it| change(taker(it))).with_mode(Mode::Iptables);
        world.listens(&format!("{}:30080", PRIMARY[0]))
    };
    expect_healthy(&RULE, &taken(|it| it), &subject());
    expect_problem(&RULE, &taken(World::without_endpoints), &subject());
}

#[test]
fn a_socket_on_a_device_without_node_ports_loses_nothing() {
    let of_device = |it: &mut Socket| it.device = 3;
    let world = web(30080).address("eth1", "198.51.100.1");
    let world = world.socket(Protocol::Tcp, State::Listen, "0.0.0.0:30080", "0.0.0.0:0", of_device);
    assert_eq!(affects(&world), (Severity::Critical, vec![Vantage::Remote, Vantage::Node]));
    expect_healthy(&RULE, &world.with_mode(Mode::Nftables), &subject());
}

#[test]
fn unread_is_unknown() {
    let mut world = web(30080).listens("0.0.0.0:30080");
    world.kernel.listeners = gap(Source::Listeners, Why::Torn);
    assert_eq!(expect_unknown(&RULE, &world, &subject()).why, Why::Torn);
}

#[test]
fn each_way_to_lose_is_told_with_its_addresses_and_no_other() {
    let found = |evidence: &Evidence, name: &str| -> Vec<String> {
        evidence.values.iter().filter(|(it, _)| *it == name).map(|(_, value)| value.clone()).collect()
    };
    let evidence = expect_problem(&RULE, &web(30080).listens("0.0.0.0:30080"), &subject());
    assert_eq!(found(&evidence, "from elsewhere"), ["to 192.0.2.1, 192.0.2.2 are answered by a pod of the Service"]);
    assert_eq!(found(&evidence, "from loopback"), ["to 127.0.0.1 are answered by a pod of the Service"]);
    assert!(evidence.summary.ends_with("new connections go to the Service's pods instead."), "{}", evidence.summary);
    assert_eq!(found(&evidence, "nodePortAddresses"), ["the mode's default (from 127.0.0.1:10249/configz)"]);
    assert!(found(&evidence, "service")[0].ends_with("externalTrafficPolicy Cluster"));

    let local = |it: World| it.node_port(30080).local().elsewhere();
    let world = Snapshot::healthy().service("web", local).listens("0.0.0.0:30080");
    let evidence = expect_problem(&RULE, &world, &subject());
    assert!(evidence.summary.ends_with("time out or go to the Service's pods instead."), "{}", evidence.summary);
    assert!(found(&evidence, "service")[0].ends_with("externalTrafficPolicy Local"));
    let listed = world.with_config(|it| it.node_port_addresses = vec!["primary".to_owned()]);
    let evidence = expect_problem(&RULE, &listed, &subject());
    assert_eq!(found(&evidence, "nodePortAddresses"), ["primary (from 127.0.0.1:10249/configz)"]);

    let gate = Snapshot::healthy().service("web", |it| it.node_port(30080)).listens("127.0.0.1:30080");
    let gate = gate.with_mode(Mode::Nftables).with_config(|config| config.nftables_localhost = Some(true));
    let evidence = expect_problem(&RULE, &gate, &subject());
    assert_eq!((evidence.severity, evidence.outcome), (Severity::Warning, "refused"));
    let words = "to loopback are refused, since kube-proxy refuses NodePorts on loopback.";
    assert!(evidence.summary.ends_with(words), "{}", evidence.summary);

    let empty = Snapshot::healthy().service("web", |it| it.node_port(30080).without_endpoints());
    let evidence = expect_problem(&RULE, &empty.listens("0.0.0.0:30080"), &subject());
    assert_eq!(found(&evidence, "from this node"), ["to 192.0.2.1, 192.0.2.2 are refused"]);
    assert!(evidence.summary.ends_with("are refused, since the Service has no endpoints."), "{}", evidence.summary);
}

#[test]
fn a_trap_is_on_an_address_of_this_node_outside_vrfs() {
    let primary = |it: &mut ProxyConfig| it.node_port_addresses = vec!["primary".to_owned()];
    let second = web(30080).listens(&format!("{}:30080", SECOND[0])).with_config(primary);
    assert_eq!(affects(&second).0, Severity::Info);
    let nowhere = web(30080).listens("203.0.113.7:30080").with_config(primary);
    expect_healthy(&RULE, &nowhere, &subject());
    let mut enslaved = second;
    let interfaces = std::sync::Arc::make_mut(seen(&mut enslaved.kernel.interfaces));
    let link = interfaces.addresses.iter().find(|it| it.ip == ip(SECOND[0])).expect("an address").link.clone();
    let vrf = Link { index: 99, name: "red".to_owned(), kind: Some("vrf".to_owned()), ..interfaces.links[0].clone() };
    interfaces.links.iter_mut().find(|it| *it.name == *link).expect("a link").master = Some(99);
    interfaces.links.push(vrf);
    expect_healthy(&RULE, &enslaved, &subject());
}

#[test]
fn where_an_annotation_has_cilium_serve_a_service_elsewhere_it_is_unknown() {
    let narrowed = |it: World| it.node_port(30080).with(|service| service.for_cilium.on_some_nodes = true);
    let world = Snapshot::healthy().service("web", narrowed).listens("0.0.0.0:30080");
    expect_problem(&RULE, &world, &subject());
    let unknown = expect_unknown(&RULE, &world.with_mode(Mode::Cilium), &subject());
    assert!(unknown.detail.contains("service.cilium.io/type"), "{unknown:?}");
    expect_healthy(&RULE, &Snapshot::healthy().service("web", narrowed).with_mode(Mode::Cilium), &subject());
    let only =
        |it: World| it.node_port(30080).with(|service| service.for_cilium.only = Some(ServiceKind::LoadBalancer));
    let left_out = Snapshot::healthy().service("web", only).listens("0.0.0.0:30080");
    expect_problem(&RULE, &left_out, &subject());
    expect_healthy(&RULE, &left_out.with_mode(Mode::Cilium), &subject());
}

#[test]
fn where_cilium_refuses_bind_a_listener_is_told_that_it_cannot_return() {
    let after = |world: &Snapshot| {
        let values = expect_problem(&RULE, world, &subject()).values;
        values.into_iter().find(|(name, _)| *name == "after a restart").map(|(_, words)| words)
    };
    let allowed = |world: &Snapshot| {
        let allows = CiliumConfig { allows_bind: true, ..CiliumConfig::default() };
        world.clone().with_config(|it| it.cilium = Some(allows))
    };
    for local in ["0.0.0.0:30080", "192.0.2.1:30080", "127.0.0.1:30080"] {
        let world = web(30080).listens(local);
        let cilium = world.with_mode(Mode::Cilium);
        assert!(after(&cilium).is_some_and(|words| words.contains("EADDRINUSE")), "{local}");
        assert_eq!((after(&world), after(&allowed(&cilium))), (None, None), "{local}");
    }
    let single = |it: World| it.node_port(30080).with(|service| service.families = &[Family::V4]);
    let single = Snapshot::healthy().service("web", single).listens("[::]:30080").with_mode(Mode::Cilium);
    assert_eq!(after(&single), None, "of a Service of IPv4 it refuses 0.0.0.0, and not ::");
    let both = web(30080).listens("[::]:30080").with_mode(Mode::Cilium);
    assert!(after(&both).is_some());
    let off = CiliumConfig { families_off: vec![Family::V6], ..CiliumConfig::default() };
    assert_eq!(after(&both.with_config(|it| it.cilium = Some(off))), None, "nor with IPv6 turned off");

    let own = |it: World| {
        it.node_port(30080).each_slice(|slice| {
            slice.ports[0].port = Some(30080);
            slice.endpoints[0].addresses = vec![ip(PRIMARY[0])];
        })
    };
    let own = Snapshot::healthy().service("web", own).listens("0.0.0.0:30080").with_mode(Mode::Cilium);
    let evidence = expect_problem(&RULE, &own, &subject());
    assert_eq!((evidence.severity, evidence.affects.is_empty()), (Severity::Warning, true));
    assert_eq!(evidence.variant, "no-return");
    assert!(evidence.summary.ends_with("the process cannot listen again after a restart."), "{}", evidence.summary);
    expect_healthy(&RULE, &allowed(&own), &subject());
    let elsewhere = |it: World| {
        it.node_port(30080).each_slice(|slice| {
            slice.ports[0].port = Some(30080);
            slice.endpoints[0].addresses = vec![ip("198.51.100.7")];
        })
    };
    let elsewhere = Snapshot::healthy().address("eth1", "198.51.100.7").service("web", elsewhere);
    let elsewhere = elsewhere.listens("198.51.100.7:30080").with_mode(Mode::Cilium);
    for (device, refused) in [("eth+", true), ("eth0", false)] {
        let named = CiliumConfig { devices: vec![device.to_owned()], ..CiliumConfig::default() };
        let world = elsewhere.clone().with_config(|it| it.cilium = Some(named));
        match refused {
            true => assert!(after(&world).is_some(), "{device}"),
            false => expect_healthy(&RULE, &world, &subject()),
        }
    }

    // With `Pass`, Cilium passes the connections to the process if the Service has no endpoint.
    let pass = CiliumConfig { without_backend: WithoutBackend::Pass, ..CiliumConfig::default() };
    let empty = Snapshot::healthy().service("web", |it| it.node_port(30080).without_endpoints());
    let empty = empty.listens("0.0.0.0:30080").with_mode(Mode::Cilium).with_config(|it| it.cilium = Some(pass));
    assert_eq!(affects(&empty), (Severity::Info, vec![]));
}

#[test]
fn behind_cilium_a_node_port_outside_of_its_range_takes_nothing_where_remote_clients_are_not_served() {
    use Vantage::{Node, Pods, Remote};
    let world = |local: &str, ranges: Reading<Vec<PortRange>>| {
        let mut world = web(30080).listens(local).with_mode(Mode::Cilium);
        world.cluster.range_claims.push(RangeClaim { by: Claimant::Cilium, ranges, place: String::new() });
        world
    };
    let of = |range: &str| Reading::Seen(vec![range.parse().expect("a range")]);
    for local in ["127.0.0.1:30080", "127.0.0.53:30080", "192.0.2.2:30080"] {
        expect_problem(&RULE, &world(local, of("30000-32767")), &subject());
        expect_healthy(&RULE, &world(local, of("31000-31999")), &subject());
        let unread = world(local, gap(Source::ConfigMaps, Why::Malformed));
        assert_eq!(expect_unknown(&RULE, &unread, &subject()).source, Source::ConfigMaps, "{local}");
    }
    let everywhere = world("0.0.0.0:30080", of("31000-31999"));
    assert_eq!(affects(&everywhere), (Severity::Critical, vec![Remote, Node, Pods]));
    let assumed = world("127.0.0.53:30080", gap(Source::ConfigMaps, Why::NotPermitted)).with_user_mode(Mode::Cilium);
    for (world, address) in [(everywhere, "the wildcard address"), (assumed, "loopback in the default range")] {
        let evidence = expect_problem(&RULE, &world, &subject());
        assert!(evidence.values.iter().any(|(name, _)| *name == "after a restart"), "Cilium refuses {address}");
    }
}

/// Sockets of Go servers on `::` also serve IPv4, but `/proc/net` does not show this.
#[test]
fn a_listener_of_which_nobody_told_whether_it_takes_ipv4_is_not_passed_over() {
    let with = |families: &'static [Family], v6only| {
        let single = |it: World| it.node_port(30080).with(move |service| service.families = families);
        let mut world = Snapshot::healthy().service("web", single).listens("[::]:30080").with_mode(Mode::Nftables);
        let listeners = seen(&mut world.kernel.listeners);
        listeners.iter_mut().filter(|it| it.local_port == 30080).for_each(|it| it.v6only = v6only);
        world
    };
    assert_eq!(expect_unknown(&RULE, &with(&[Family::V4], None), &subject()).source, Source::Listeners);
    expect_problem(&RULE, &with(&[Family::V4], Some(false)), &subject());
    expect_healthy(&RULE, &with(&[Family::V4], Some(true)), &subject());
    expect_problem(&RULE, &with(&Family::BOTH, None), &subject());
}

/// Without the Nodes, Cilium may serve remote clients on any address of a device.
#[test]
fn without_nodes_what_remote_clients_lose_behind_cilium_is_told_as_unknown() {
    let world = web(30080).address("eth0", "192.0.2.77").listens("0.0.0.0:30080").with_mode(Mode::Cilium);
    let of_one = CiliumConfig { devices: vec!["eth0".to_owned()], ..CiliumConfig::default() };
    let mut world = world.with_config(|it| it.cilium = Some(of_one));
    let unknown = |world: &Snapshot| {
        let evidence = expect_problem(&RULE, world, &subject());
        let values = evidence.values.into_iter().filter(|(name, _)| *name == "other connections");
        (evidence.severity, values.map(|(_, words)| words).collect::<Vec<_>>())
    };
    assert_eq!(unknown(&world), (Severity::Critical, Vec::new()));
    let unread = Gap::new(Source::Nodes, Why::Torn, "changed");
    world.cluster.nodes = Reading::Gap(unread);
    assert_eq!(unknown(&world), (Severity::Warning, vec!["unknown: changed".to_owned()]));
}

#[test]
fn settings_of_cilium_that_were_not_read_may_list_the_address_of_the_listener() {
    let mut world = web(33000).listens(&format!("{}:33000", SECOND[0])).with_mode(Mode::Cilium);
    let ranges = Reading::Seen(vec![PortRange::DEFAULT_NODE_PORTS]);
    world.cluster.range_claims.push(RangeClaim { by: Claimant::Cilium, ranges, place: String::new() });
    expect_healthy(&RULE, &world, &subject());
    let every = vec!["0.0.0.0/0".to_owned(), "::/0".to_owned()];
    let listed = world.clone().with_config(|it| it.node_port_addresses = every);
    assert_eq!(affects(&listed).0, Severity::Critical);
    world.kernel.proxy.config = gap(Source::ProxyConfig, Why::TimedOut);
    assert_eq!(expect_unknown(&RULE, &world, &subject()).source, Source::ProxyConfig);
}
