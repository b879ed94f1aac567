use super::*;
use crate::{
    expectations::{expect_healthy, expect_problem, expect_unknown},
    findings::Scope,
};
use portreeve_facts::{
    Announced, NodeAddress, Protocol, State, Why,
    healthy::{PEER, PRIMARY, SECOND, World, daemon, gap, interfaces_of, ip, objects, proxy_holder, seen},
};

fn trap(address: &str) -> Snapshot {
    Snapshot::healthy().service("trap", |it| it.external_ip(address))
}

fn subject() -> Subject {
    Subject::service(&trap(PEER).cluster.services.seen().expect("services")[0])
}

fn severity(world: &Snapshot) -> Severity {
    expect_problem(&RULE, world, &subject()).severity
}

fn value(evidence: &Evidence, name: &str) -> String {
    evidence.values.iter().find(|(it, _)| *it == name).expect("this value").1.clone()
}

fn peer_is(mut world: Snapshot, kind: NodeAddressKind) -> Snapshot {
    objects(&mut world.cluster.nodes)[1].addresses[0].kind = kind;
    world
}

#[test]
fn in_ipvs_mode_a_cluster_ip_service_takes_another_node_down() {
    let evidence = expect_problem(&RULE, &trap(PEER).with_mode(Mode::Ipvs), &subject());
    assert_eq!(evidence.severity, Severity::Critical);
    assert_eq!(
        evidence.summary,
        "Service default/trap claims 192.0.2.9, the InternalIP of Node n2, as externalIP: every other node in ipvs mode treats the address as local and cannot reach that Node."
    );
    assert!(evidence.affects.contains(&Vantage::Remote));
    assert_eq!(value(&evidence, "service"), "default/trap type ClusterIP, ports 6666/tcp");
    assert_eq!(value(&evidence, "held on this node"), "no");
    assert!(
        evidence.remedies[0].steps[0].text.starts_with("kubectl -n default patch service trap"),
        "{:?}",
        evidence.remedies
    );
}

#[test]
fn an_address_that_is_held_already_is_told_in_any_mode() {
    for mode in Mode::KUBE_PROXY {
        let evidence = expect_problem(&RULE, &trap(PEER).address("kube-ipvs0", PEER).with_mode(mode), &subject());
        assert_eq!(evidence.severity, Severity::Critical, "{mode}");
        assert_eq!(value(&evidence, "held on this node"), "yes, 192.0.2.9 is on kube-ipvs0");
    }
}

#[test]
fn an_external_or_hostname_address_is_a_warning() {
    for kind in [NodeAddressKind::ExternalIp, NodeAddressKind::Hostname] {
        assert_eq!(severity(&peer_is(trap(PEER).with_mode(Mode::Ipvs), kind)), Severity::Warning, "{kind:?}");
    }
}

#[test]
fn this_nodes_own_address_is_information_unless_it_is_behind_nat() {
    assert_eq!(severity(&trap(PRIMARY[0]).with_mode(Mode::Ipvs)), Severity::Info);
    let mut world = trap("198.51.100.1").with_mode(Mode::Ipvs);
    let address = NodeAddress { kind: NodeAddressKind::ExternalIp, ip: ip("198.51.100.1") };
    objects(&mut world.cluster.nodes)[0].addresses.push(address);
    assert_eq!(severity(&world), Severity::Warning);
    seen(&mut world.cluster.nodes).truncate(1);
    assert_eq!(severity(&world), Severity::Info, "nothing to lose in a cluster of one Node");
}

#[test]
fn outside_ipvs_it_is_information_as_long_as_nothing_listens_there() {
    for mode in [Mode::Iptables, Mode::Nftables, Mode::Cilium] {
        for address in [PEER, PRIMARY[0]] {
            let evidence = expect_problem(&RULE, &trap(address).with_mode(mode), &subject());
            assert_eq!((evidence.severity, evidence.affects.len()), (Severity::Info, 0), "{mode} {address}");
            assert!(
                evidence.summary.ends_with("redirects only the Service's ports of that address."),
                "{}",
                evidence.summary
            );
        }
    }
}

#[test]
fn of_two_services_with_the_address_and_port_one_without_endpoints_takes_nothing_from_a_listener() {
    let taker = |it: World| it.external_ip(PRIMARY[0]).with(|service| service.ports[0].port = 22);
    let two = |change: fn(World) -> World| {
        let world = Snapshot::healthy().service("trap", |it| change(taker(it))).service("other", taker);
        world.listens_as("0.0.0.0:22", daemon("sshd", 600))
    };
    assert_eq!(severity(&two(World::without_endpoints)), Severity::Info);
    let summary = expect_problem(&RULE, &two(|it| it), &subject()).summary;
    assert!(summary.contains("port 22/tcp go to this Service or another claim, and not to process sshd"), "{summary}");
}

#[test]
fn a_daemon_on_the_claimed_port_of_this_node_loses_it() {
    let ssh = |address| {
        Snapshot::healthy()
            .service("trap", |it| it.external_ip(address).with(|service| service.ports[0].port = 22))
            .listens_as("0.0.0.0:22", daemon("sshd", 600))
    };
    for mode in Mode::KUBE_PROXY {
        let evidence = expect_problem(&RULE, &ssh(PRIMARY[0]).with_mode(mode), &subject());
        assert_eq!((evidence.severity, evidence.variant), (Severity::Critical, "takes-listener"), "{mode}");
        assert!(
            evidence.summary.contains("port 22/tcp go to the Service, and not to process sshd"),
            "{}",
            evidence.summary
        );
    }
    assert_eq!(severity(&ssh(PRIMARY[1])), Severity::Info, "the listener is IPv4 only");
    // A cloud translates the address before packets arrive, so the address is on no link.
    let mut behind_nat = ssh("203.0.113.1");
    let mut nodes = objects(&mut behind_nat.cluster.nodes);
    nodes[0].addresses.push(NodeAddress { kind: NodeAddressKind::ExternalIp, ip: ip("203.0.113.1") });
    assert_eq!(severity(&behind_nat), Severity::Info);
    let mut unread = ssh(PRIMARY[0]);
    unread.kernel.interfaces = gap(Source::Addresses, Why::Torn);
    assert_eq!(expect_unknown(&RULE, &unread, &subject()).source, Source::Addresses);
    // A socket on `::` may also listen on IPv4.
    let mut untold = ssh(PRIMARY[0]);
    for socket in seen(&mut untold.kernel.listeners).iter_mut().filter(|socket| socket.local_port == 22) {
        (socket.local, socket.v6only) = (ip("::"), None);
    }
    assert_eq!(expect_unknown(&RULE, &untold, &subject()).why, Why::Ambiguous);
    assert_eq!(severity(&ssh(PEER)), Severity::Info, "what listens on the peer cannot be seen from here");
}

#[test]
fn a_socket_that_answers_nobody_hides_no_process_that_loses_the_address() {
    for (kind, local) in [("dummy", "192.0.2.1"), ("veth", "192.0.2.1"), ("dummy", "0.0.0.0")] {
        let mut world = trap(PRIMARY[0]).address("br0", "198.51.100.7");
        let link = interfaces_of(&mut world).links.last_mut().expect("a link");
        link.kind = Some(kind.to_owned());
        let device = link.index;
        let bound = |it: &mut Socket| (it.device, it.inode, it.owner) = (device, 1, daemon("bound", 66));
        let world = world.socket(Protocol::Tcp, State::Listen, &format!("{local}:6666"), "0.0.0.0:0", bound);
        let evidence = expect_problem(&RULE, &world.listens_as("0.0.0.0:6666", daemon("nginx", 9)), &subject());
        assert_eq!(evidence.severity, Severity::Critical, "{kind} {local}");
        assert!(evidence.summary.contains("and not to process nginx"), "{}", evidence.summary);
    }
}

#[test]
fn of_a_service_without_endpoints_a_host_port_takes_the_connections() {
    let of_service = |it: World| it.external_ip(PRIMARY[0]).without_endpoints();
    let trap = Snapshot::healthy().service("trap", of_service).with_mode(Mode::Iptables);
    let world = trap.listens_as("0.0.0.0:6666", daemon("nginx", 7));
    assert_eq!(severity(&world), Severity::Critical);
    assert_eq!(severity(&world.clone().pod("edge", |pod| pod.host_port(8080, 6666))), Severity::Info);
    let mut unread = world.clone();
    unread.cluster.pods = gap(Source::Pods, Why::NotPermitted);
    for unread in [unread, world.rejects(Source::Pods)] {
        let assumed = value(&expect_problem(&RULE, &unread, &subject()), "assumed");
        assert!(assumed.starts_with("no unread pod has this hostPort"), "{assumed}");
    }
}

#[test]
fn the_socket_of_a_runtime_that_keeps_a_host_port_loses_nothing() {
    let world = trap(PRIMARY[0]).pod("edge", |pod| pod.host_port(8080, 6666));
    let of = |world: &Snapshot, process: &str, runtime: &str| {
        let mut world = world.clone().listens_as("[::]:6666", daemon(process, 9));
        objects(&mut world.cluster.nodes)[0].container_runtime = Some(runtime.to_owned());
        world
    };
    assert_eq!(severity(&of(&world, "crio", "cri-o://1.30.6")), Severity::Info);
    assert_eq!(severity(&of(&world, "crio", "containerd://2.1.4")), Severity::Critical);
    assert_eq!(severity(&of(&trap(PRIMARY[0]), "crio", "cri-o://1.30.6")), Severity::Critical, "no pod has the port");
    let mut starts = world.clone();
    let pod = &mut objects(&mut starts.cluster.pods)[0];
    (pod.ready, pod.ips) = (false, Vec::new());
    assert_eq!(severity(&of(&starts, "crio", "cri-o://1.30.6")), Severity::Info);
    assert_eq!(severity(&of(&starts, "nginx", "cri-o://1.30.6")), Severity::Critical, "the pod waits for the port");
    let of_ipv4 = trap(PRIMARY[1]).pod("edge", |pod| {
        pod.host_port(8080, 6666);
        pod.ips.retain(IpAddr::is_ipv4);
    });
    let mut of_ipv4 = of_ipv4.listens_as(&format!("[{}]:6666", PRIMARY[1]), daemon("nginx", 9));
    objects(&mut of_ipv4.cluster.nodes)[0].container_runtime = Some("cri-o://1.30.6".to_owned());
    assert_eq!(severity(&of_ipv4), Severity::Critical, "the pod has no IPv6 address");
    let mut unread = world;
    unread.cluster.pods = gap(Source::Pods, Why::Unreachable);
    let unread = of(&unread, "crio", "cri-o://1.30.6");
    assert_eq!(severity(&unread), Severity::Info);
    assert_eq!(expect_unknown(&RULE, &unread, &subject()).source, Source::Pods);
}

#[test]
fn of_a_service_without_endpoints_another_services_node_port_takes_the_connections() {
    let taken = |change: fn(World) -> World| {
        let of_service = |it: World| change(it.external_ip(PRIMARY[0]).with(|service| service.ports[0].port = 30080));
        let trap = Snapshot::healthy().service("trap", of_service).service("web", |it| it.node_port(30080));
        severity(&trap.with_mode(Mode::Iptables).listens_as("0.0.0.0:30080", daemon("nginx", 7)))
    };
    assert_eq!(taken(|it| it), Severity::Critical);
    assert_eq!(taken(World::without_endpoints), Severity::Info);
}

#[test]
fn more_services_than_are_compared_are_unknown() {
    let of_service = |it: World| it.external_ip(PRIMARY[0]).node_port(30080).without_endpoints();
    let trap = Snapshot::healthy().service("trap", |it| of_service(it).with(|trap| trap.ports[0].port = 30080));
    let other = |world: Snapshot, n| world.service(&format!("web-{n}"), |it| it.node_port(30080).without_endpoints());
    let world = (1..=8).fold(trap, other).service("last", |it| it.node_port(30080));
    let world = world.listens_as("0.0.0.0:30080", daemon("nginx", 7));
    assert_eq!(severity(&world), Severity::Info);
    assert_eq!(expect_unknown(&RULE, &world, &subject()).source, Source::ProxyConfig);
}

#[test]
fn each_of_several_processes_on_one_address_and_port_is_named() {
    let world = ["nginx", "haproxy"]
        .into_iter()
        .zip(7..)
        .fold(trap(PRIMARY[0]), |world, (name, pid)| world.listens_as("0.0.0.0:6666", daemon(name, pid)));
    let evidence = expect_problem(&RULE, &world, &subject());
    for name in ["nginx", "haproxy"] {
        assert!(evidence.values.iter().any(|(_, value)| value.contains(name)), "{name}: {evidence:?}");
    }
}

#[test]
fn of_many_processes_on_one_address_and_port_some_are_judged_and_the_others_are_unknown() {
    let daemons = (100..120).map(|pid| daemon(&format!("daemon-{pid}"), pid));
    let world = daemons.fold(trap(PRIMARY[0]), |world, owner| world.listens_as("0.0.0.0:6666", owner));
    expect_problem(&RULE, &world, &subject());
    assert_eq!(expect_unknown(&RULE, &world, &subject()).source, Source::Listeners);
}

#[test]
fn without_the_nodes_addresses_it_is_unknown_who_loses_and_who_holds_an_address() {
    let ssh = |mode| {
        let trap = |it: World| it.external_ip(PRIMARY[0]).with(|service| service.ports[0].port = 22);
        let world = Snapshot::healthy().service("trap", trap).with_mode(mode);
        let mut world = world.listens_as(&format!("{}:22", PRIMARY[0]), daemon("sshd", 600));
        assert_eq!(severity(&world), Severity::Critical);
        world.kernel.interfaces = gap(Source::Addresses, Why::Torn);
        world
    };
    for mode in [Mode::Iptables, Mode::Cilium] {
        assert_eq!(severity(&ssh(mode)), Severity::Info, "{mode}");
        assert_eq!(expect_unknown(&RULE, &ssh(mode), &subject()).source, Source::Addresses, "{mode}");
    }
    // A former proxy in ipvs mode may have left the peer's address on this node.
    let mut left = trap(PEER).address("kube-ipvs0", PEER).with_mode(Mode::Iptables);
    assert_eq!(severity(&left), Severity::Critical);
    left.kernel.interfaces = gap(Source::Addresses, Why::Torn);
    let evidence = expect_problem(&RULE, &left, &subject());
    assert_eq!(evidence.severity, Severity::Info);
    let summary = &evidence.summary;
    assert!(summary.ends_with("redirects at least the Service's ports of that address."), "{summary}");
    assert_eq!(expect_unknown(&RULE, &left, &subject()).source, Source::Addresses);
}

#[test]
fn an_address_of_a_family_that_the_service_has_not_is_left_out_by_kube_proxy() {
    let single = |mode| {
        let it = |it: World| it.external_ip(PRIMARY[1]).with(|service| service.families = &[Family::V4]);
        Snapshot::healthy().service("trap", it).listens("[::]:6666").with_mode(mode)
    };
    for mode in Mode::KUBE_PROXY {
        expect_healthy(&RULE, &single(mode), &subject());
    }
    assert_eq!(severity(&single(Mode::Cilium)), Severity::Critical);
}

#[test]
fn the_sockets_of_an_old_proxy_and_of_an_endpoint_lose_nothing() {
    let world = trap(PRIMARY[0]);
    assert_eq!(severity(&world.clone().listens_as("192.0.2.1:6666", proxy_holder())), Severity::Info);
    let endpoint = |it: World| {
        it.external_ip(PRIMARY[0]).each_slice(|slice| {
            slice.ports[0].port = Some(6666);
            slice.endpoints[0].addresses = vec![ip(PRIMARY[0])];
        })
    };
    let mine = Snapshot::healthy().service("trap", endpoint);
    assert_eq!(severity(&mine.clone().listens("0.0.0.0:6666")), Severity::Info);
    // The process listens on several addresses, and is an endpoint at each address.
    let elsewhere = |it: World| endpoint(it).with(|service| service.external_ips = vec![ip(SECOND[0])]);
    let mine = Snapshot::healthy().service("trap", elsewhere);
    assert_eq!(severity(&mine.clone().listens("0.0.0.0:6666")), Severity::Info);
    assert_ne!(severity(&mine.listens(&format!("{}:6666", SECOND[0]))), Severity::Info);
}

#[test]
fn with_a_local_policy_an_endpoint_without_a_node_loses_connections_and_a_closer_socket_is_the_endpoint() {
    let endpoint = |node: Option<&str>| {
        Snapshot::healthy().service("trap", |it| {
            it.external_ip(PRIMARY[0]).local().each_slice(|slice| {
                slice.ports[0].port = Some(6666);
                slice.endpoints[0].addresses = vec![ip(PRIMARY[0])];
                slice.endpoints[0].node = node.map(str::to_owned);
            })
        })
    };
    assert_eq!(severity(&endpoint(None).listens("0.0.0.0:6666")), Severity::Critical);
    let closer = endpoint(Some("n1")).listens("192.0.2.1:6666");
    assert_eq!(severity(&closer), Severity::Info);
    assert_eq!(severity(&closer.listens_as("0.0.0.0:6666", daemon("other", 7))), Severity::Info);
}

#[test]
fn a_load_balancers_address_counts_in_ipvs_mode_and_where_a_process_listens() {
    let world = Snapshot::healthy().service("trap", |it| it.with(|service| service.load_balancer_ips = vec![ip(PEER)]));
    assert_eq!(severity(&world.with_mode(Mode::Ipvs)), Severity::Critical);
    expect_healthy(&RULE, &world, &subject());
    let unread = world.without_proxy();
    assert_eq!(expect_unknown(&RULE, &unread, &subject()).source, Source::ProxyMode);
    let judgements = RULE.judge(&Round::of(&unread, None, 60), &Limits::default()).expect("it can judge");
    assert!(!judgements.iter().any(|it| matches!(it.verdict, Verdict::Problem(_))), "{judgements:#?}");
    let own = |it: World| {
        it.with(|service| {
            service.load_balancer_ips = vec![ip(PRIMARY[0])];
            service.ports[0].port = 6666;
        })
    };
    let world = Snapshot::healthy().service("trap", own);
    expect_healthy(&RULE, &world, &subject());
    assert_eq!(severity(&world.listens("0.0.0.0:6666")), Severity::Critical);
}

#[test]
fn where_no_node_was_looked_at_each_node_of_the_cluster_has_its_addresses() {
    let unseen = |address| {
        let mut world = trap(address).without_proxy();
        world.cluster.node_name = None;
        world.kernel = portreeve_facts::KernelFacts::not_requested();
        world
    };
    let evidence = expect_problem(&RULE, &unseen(PEER), &subject());
    assert_eq!((evidence.severity, evidence.variant), (Severity::Info, "node-address"));
    assert_eq!(expect_unknown(&RULE, &unseen(PEER), &subject()).why, Why::NotRequested, "the mode decides");
    assert_eq!(expect_unknown(&RULE, &unseen("198.51.100.7"), &subject()).source, Source::Addresses);
    let mut failed = unseen(PEER);
    failed.kernel.interfaces = gap(Source::Addresses, Why::Torn);
    assert_eq!(expect_unknown(&RULE, &failed, &subject()).why, Why::Torn);
}

#[test]
fn an_address_of_no_node_and_another_proxys_service_are_silent() {
    expect_healthy(&RULE, &trap("198.51.100.7").with_mode(Mode::Ipvs), &subject());
    let other = Snapshot::healthy()
        .service("trap", |it| it.external_ip(PEER).with(|service| service.proxy_name = Some("other".to_owned())));
    expect_healthy(&RULE, &other.with_mode(Mode::Ipvs), &subject());
}

/// sshd listens on the address `sshd`. Service `trap` claims port 22 of 198.51.100.7, which is on a link but in no
/// Node's status.
fn virtual_address(prefix: u8, load_balancer: bool, sshd: &str) -> Snapshot {
    let claim = |it: World| {
        it.external_ip("198.51.100.7").with(|service| {
            service.ports[0].port = 22;
            if load_balancer {
                service.load_balancer_ips = std::mem::take(&mut service.external_ips);
            }
        })
    };
    let mut world = Snapshot::healthy().service("trap", claim).address("eth0", "198.51.100.7");
    let interfaces = std::sync::Arc::make_mut(seen(&mut world.kernel.interfaces));
    interfaces.addresses.last_mut().expect("an address").prefix = prefix;
    world.listens_as(sshd, daemon("sshd", 600))
}

#[test]
fn an_address_that_is_here_for_the_service_takes_nothing_from_who_listens_everywhere() {
    expect_healthy(&RULE, &virtual_address(32, true, "0.0.0.0:22"), &subject());
    expect_healthy(&RULE, &virtual_address(24, true, "0.0.0.0:22"), &subject());
    assert_eq!(severity(&virtual_address(32, true, "198.51.100.7:22")), Severity::Critical);
    let mut of_a_node = virtual_address(32, true, "0.0.0.0:22");
    let address = NodeAddress { kind: NodeAddressKind::ExternalIp, ip: ip("198.51.100.7") };
    objects(&mut of_a_node.cluster.nodes)[0].addresses.push(address);
    assert_eq!(severity(&of_a_node), Severity::Critical);
}

#[test]
fn an_external_ip_beside_the_nodes_own_is_information_to_who_listens_everywhere() {
    assert_eq!(severity(&virtual_address(32, false, "0.0.0.0:22")), Severity::Info);
    assert_eq!(severity(&virtual_address(24, false, "0.0.0.0:22")), Severity::Critical);
    assert_eq!(severity(&virtual_address(32, false, "198.51.100.7:22")), Severity::Critical);
    let mut of_a_node = virtual_address(32, false, "0.0.0.0:22");
    let address = NodeAddress { kind: NodeAddressKind::InternalIp, ip: ip("198.51.100.7") };
    objects(&mut of_a_node.cluster.nodes)[0].addresses.push(address);
    assert_eq!(severity(&of_a_node), Severity::Critical);
}

#[test]
fn a_process_loses_an_address_of_this_node_that_another_node_lists() {
    let world = trap(PEER).address("eth0", PEER).listens_as("0.0.0.0:6666", daemon("nginx", 9));
    for mode in Mode::KUBE_PROXY {
        let evidence = expect_problem(&RULE, &world.with_mode(mode), &subject());
        assert_eq!(evidence.severity, Severity::Critical, "{mode}");
        let lost = ": new connections to its port 6666/tcp go to the Service, and not to process nginx, which listens on this node.";
        assert!(evidence.summary.ends_with(lost), "{mode}: {}", evidence.summary);
        assert_eq!(value(&evidence, "held on this node"), "yes, 192.0.2.9 is on eth0");
    }
}

#[test]
fn a_virtual_address_that_another_node_still_lists_is_beside_the_nodes_own() {
    let moved = |prefix: u8, load_balancer: bool, sshd: &str| {
        let mut world = virtual_address(prefix, load_balancer, sshd);
        let address = NodeAddress { kind: NodeAddressKind::InternalIp, ip: ip("198.51.100.7") };
        objects(&mut world.cluster.nodes)[1].addresses.push(address);
        world
    };
    expect_healthy(&RULE, &moved(32, true, "0.0.0.0:22"), &subject());
    assert_eq!(severity(&moved(32, true, "198.51.100.7:22")), Severity::Critical);
    assert_eq!(severity(&moved(32, false, "0.0.0.0:22")), Severity::Info);
    assert_eq!(severity(&moved(24, false, "0.0.0.0:22")), Severity::Critical);
}

#[test]
fn without_this_nodes_name_its_links_tell_what_is_its_own() {
    let mut world = trap(PRIMARY[0]).with_mode(Mode::Ipvs);
    world.cluster.node_name = Some("n7".to_owned());
    assert_eq!(severity(&world), Severity::Info);
    world.kernel.interfaces = gap(Source::Addresses, Why::Torn);
    assert_eq!(expect_unknown(&RULE, &world, &subject()).source, Source::Addresses);
}

#[test]
fn unread_is_unknown() {
    let known = trap(PEER);
    let world = known.clone().without_proxy();
    assert_eq!(expect_unknown(&RULE, &world, &subject()).source, Source::ProxyMode);
    assert_eq!(severity(&world), Severity::Info, "it is at least this in every mode");
    let mut world = known.clone();
    world.cluster.nodes = gap(Source::Nodes, Why::NotRequested);
    assert_eq!(expect_unknown(&RULE, &world, &subject()).source, Source::Nodes);
    let mut world = known;
    world.cluster.services = gap(Source::Services, Why::NotPermitted);
    assert_eq!(expect_unknown(&RULE, &world, &subject()).source, Source::Services);
    let mut world = trap(PRIMARY[0]);
    world.kernel.listeners = gap(Source::Listeners, Why::Torn);
    assert_eq!(expect_unknown(&RULE, &world, &subject()).source, Source::Listeners);
}

fn own(port: u16, protocol: Protocol) -> Snapshot {
    let claim = |it: World| it.protocol(protocol).external_ip(PRIMARY[0]).with(|service| service.ports[0].port = port);
    Snapshot::healthy().service("trap", claim)
}

#[test]
fn a_proxy_that_holds_the_external_ip_itself_is_no_victim_even_on_a_daemons_port() {
    let world = own(443, Protocol::Tcp);
    let holds = |local: &str| world.clone().listens_as(local, proxy_holder());
    assert_ne!(severity(&holds("192.0.2.1:443")), Severity::Critical);
    assert_eq!(severity(&holds("0.0.0.0:443")), Severity::Critical, "a daemon in the proxy's own process");
}

#[test]
fn an_unconnected_udp_socket_in_the_ephemeral_range_is_a_client_and_no_victim() {
    let worst = |world: &Snapshot| severity(&world.clone().ephemeral("32768 60999", ""));
    assert_ne!(worst(&own(40000, Protocol::Udp).listens_udp("0.0.0.0:40000")), Severity::Critical);
    assert_eq!(worst(&own(30000, Protocol::Udp).listens_udp("0.0.0.0:30000")), Severity::Critical);
    assert_eq!(worst(&own(40000, Protocol::Tcp).listens("0.0.0.0:40000")), Severity::Critical);
    let reserved = own(40000, Protocol::Udp).listens_udp("0.0.0.0:40000").ephemeral("32768 60999", "40000");
    let reserved = expect_problem(&RULE, &reserved, &subject());
    assert_eq!(reserved.severity, Severity::Critical);
    assert!(value(&reserved, "assumed").ends_with("an older socket may belong to a client"), "{reserved:?}");
}

#[test]
fn without_udp_listeners_a_udp_port_is_unknown() {
    let mut world = own(30000, Protocol::Udp);
    world.kernel.no_udp = Some(Gap::new(Source::Listeners, Why::TooMuch, "so the test says"));
    assert_eq!(expect_unknown(&RULE, &world, &subject()).source, Source::Listeners);
}

#[test]
fn an_address_that_nobody_else_could_lose_is_told_as_such() {
    let mut alone = trap(PRIMARY[0]).with_mode(Mode::Ipvs);
    let summary = |world: &Snapshot| expect_problem(&RULE, world, &subject()).summary;
    assert!(!summary(&alone).contains("no other Node"), "{}", summary(&alone));
    seen(&mut alone.cluster.nodes).truncate(1);
    assert!(
        summary(&alone).contains("the cluster has no other Node, so no Node loses its address"),
        "{}",
        summary(&alone)
    );
}

#[test]
fn of_several_owners_the_one_that_loses_most_is_named() {
    let mut world = trap(PEER).with_mode(Mode::Ipvs);
    let address = |kind| NodeAddress { kind, ip: ip(PEER) };
    let mut third = seen(&mut world.cluster.nodes)[1].as_ref().clone();
    (third.name, third.addresses) = ("a3".to_owned(), vec![address(NodeAddressKind::ExternalIp)]);
    objects(&mut world.cluster.nodes)[0].addresses.push(address(NodeAddressKind::InternalIp));
    seen(&mut world.cluster.nodes).push(third.into());
    let summary = expect_problem(&RULE, &world, &subject()).summary;
    assert!(summary.contains("the InternalIP of Node n2,"), "{summary}");
}

#[test]
fn a_claim_is_about_the_cluster_and_what_only_this_node_has_is_about_this_node() {
    let scope = |world: &Snapshot| expect_problem(&RULE, world, &subject()).scope;
    for address in [PEER, PRIMARY[0]] {
        for mode in Mode::KUBE_PROXY {
            assert_eq!(scope(&trap(address).with_mode(mode)), Scope::Cluster, "{address} {mode}");
        }
    }
    let listener = trap(PRIMARY[0]).listens("0.0.0.0:6666");
    assert_eq!(scope(&listener), Scope::Node, "a process of this node loses its port");
    let unnamed = trap("198.51.100.7").address("eth0", "198.51.100.7");
    for mode in [Mode::Ipvs, Mode::Nftables] {
        assert_eq!(scope(&unnamed.clone().with_mode(mode)), Scope::Node, "no Node object names it: {mode}");
    }
    let left = trap(PEER).address("kube-ipvs0", PEER);
    assert_eq!(scope(&left.clone().with_mode(Mode::Nftables)), Scope::Node, "bound by a proxy of another mode");
    assert_eq!(scope(&left.with_mode(Mode::Ipvs)), Scope::Cluster);
}

#[test]
fn the_claim_and_what_it_does_to_a_listener_are_two_findings_of_two_scopes() {
    let world = trap(PRIMARY[0]).listens("0.0.0.0:6666");
    let judgements = RULE.judge(&Round::of(&world, None, 60), &Limits::default()).expect("it can judge");
    let problems = judgements.into_iter().filter_map(|it| match it.verdict {
        Verdict::Problem(evidence) => Some((it.port, evidence.scope, evidence.severity)),
        _ => None,
    });
    let expected = [(Some(6666), Scope::Node, Severity::Critical), (None, Scope::Cluster, Severity::Info)];
    assert_eq!(problems.collect::<Vec<_>>(), expected);
}

#[test]
fn of_several_addresses_of_one_service_the_last_is_taken_back_first() {
    let world = trap(PEER).with_mode(Mode::Ipvs);
    let mut world = world;
    objects(&mut world.cluster.services)[0].external_ips.push(ip(PRIMARY[0]));
    let evidence = expect_problem(&RULE, &world, &subject());
    let [remedy] = &evidence.remedies[..] else { panic!("one remedy, not {:?}", evidence.remedies) };
    let paths: Vec<bool> = remedy.steps.iter().map(|step| step.text.contains("/spec/externalIPs/1")).collect();
    assert_eq!(paths, [true, false, false], "{remedy:?}");
    assert!(remedy.steps[1].text.contains("/spec/externalIPs/0"), "{remedy:?}");
}

#[test]
fn of_many_addresses_of_nodes_a_few_are_told_and_those_of_this_node_first() {
    let mut world = trap(PEER).listens("0.0.0.0:6666");
    let many = (0..200).map(|n| ip(&format!("198.51.100.{n}")));
    let mut nodes = objects(&mut world.cluster.nodes);
    let kind = NodeAddressKind::InternalIp;
    nodes[1].addresses.extend(many.clone().map(|ip| NodeAddress { kind, ip }));
    objects(&mut world.cluster.services)[0].external_ips = many.chain([ip(PRIMARY[0])]).collect();
    let judgements = RULE.judge(&Round::of(&world, None, 60), &Limits::default()).expect("it can judge");
    assert_eq!(judgements.len(), 2 + MOST_LISTED, "the listener, the address of this node, and those of other Nodes");
    let evidence = expect_problem(&RULE, &world, &subject());
    assert_eq!(evidence.severity, Severity::Critical, "what a process of this node loses");
    let more = format!("and {} more", 200 - MOST_LISTED);
    assert!(evidence.values.iter().any(|(name, value)| *name == "address" && *value == more), "{:?}", evidence.values);
    assert!(evidence.remedies.iter().all(|it| it.steps.len() <= 3 + MOST_LISTED), "{:?}", evidence.remedies);
}

#[test]
fn of_many_addresses_none_of_this_node_is_left_out_and_internal_ips_come_before_others() {
    let many = || (0..2 * MOST_LISTED).map(|n| format!("198.51.100.{n}"));
    let last = many().next_back().expect("an address");
    let mut world = many().fold(trap(PEER), |world, address| world.address("eth0", &address));
    objects(&mut world.cluster.services)[0].external_ips = many().map(|it| ip(&it)).collect();
    let evidence = expect_problem(&RULE, &world.listens(&format!("{last}:6666")), &subject());
    assert_eq!((evidence.severity, evidence.variant), (Severity::Critical, "takes-listener"));
    let mut world = trap(PEER).with_mode(Mode::Ipvs);
    let kind = NodeAddressKind::ExternalIp;
    objects(&mut world.cluster.nodes)[1].addresses.extend(many().map(|it| NodeAddress { kind, ip: ip(&it) }));
    objects(&mut world.cluster.services)[0].external_ips = many().map(|it| ip(&it)).chain([ip(PEER)]).collect();
    assert_eq!(severity(&world), Severity::Critical, "the InternalIP of the peer is the last one");
    let world = many().fold(world, |world, address| world.address("eth0", &address));
    assert_eq!(severity(&world), Severity::Critical, "addresses of this node do not use the number up");
}

fn balanced(address: &str, host: Option<&str>, pool: Option<&str>) -> Snapshot {
    let announced = Announced { host: host.map(str::to_owned), pool: pool.map(str::to_owned) };
    Snapshot::healthy().service("trap", |it| {
        it.with(|service| {
            service.load_balancer_ips = vec![ip(address)];
            service.announced = (announced != Announced::default()).then(|| Box::new(announced));
        })
    })
}

#[test]
fn a_controller_that_announces_the_address_of_a_node_is_a_warning_in_any_mode() {
    for mode in [Mode::Iptables, Mode::Nftables, Mode::Cilium] {
        let evidence = expect_problem(&RULE, &balanced(PEER, None, Some("lan")).with_mode(mode), &subject());
        assert_eq!(
            (evidence.severity, evidence.scope, evidence.variant),
            (Severity::Warning, Scope::Cluster, "node-address")
        );
        assert_eq!(
            evidence.summary,
            "Service default/trap claims 192.0.2.9, the InternalIP of Node n2, as load balancer address, and MetalLB \
             announces the address: traffic to that Node may reach another node."
        );
        assert_eq!(
            value(&evidence, "not known"),
            "which node announces it: MetalLB does not write the node on the Service"
        );
        let steps: Vec<&str> = evidence.remedies.iter().flat_map(|it| &it.steps).map(|step| &*step.text).collect();
        assert_eq!(
            steps,
            [
                "remove the addresses of Nodes from MetalLB's pool lan",
                "give Service default/trap a load balancer address that no Node has"
            ]
        );
    }
    let evidence = expect_problem(&RULE, &balanced(PRIMARY[0], Some("n2"), None), &subject());
    assert_eq!(value(&evidence, "announced by"), "kube-vip, on n2");
    assert!(evidence.values.iter().all(|(name, _)| *name != "not known"), "{evidence:?}");
    let ipvs = balanced(PEER, None, Some("lan")).with_mode(Mode::Ipvs);
    let held = expect_problem(&RULE, &ipvs, &subject());
    assert_eq!(held.severity, Severity::Critical, "each other node takes it");
    assert_eq!(value(&held, "announced by"), "MetalLB, from pool lan");
    assert_eq!(held.remedies[0].steps[0].text, "remove the addresses of Nodes from MetalLB's pool lan");
    let unknown = balanced(PEER, None, Some("lan")).without_proxy();
    assert_eq!(severity(&unknown), Severity::Warning, "in any mode");
    assert_eq!(expect_unknown(&RULE, &unknown, &subject()).source, Source::ProxyMode);
}

#[test]
fn an_address_that_nobody_announces_or_by_which_no_node_is_known_is_no_pools_mistake() {
    expect_healthy(&RULE, &balanced(PEER, None, None), &subject());
    expect_healthy(&RULE, &balanced("198.51.100.7", None, Some("lan")), &subject());
    let external = peer_is(balanced(PEER, None, Some("lan")), NodeAddressKind::ExternalIp);
    expect_healthy(&RULE, &external, &subject());
    // A cloud provider lists the virtual address of a machine after the machine's own addresses.
    let mut listed = balanced("192.0.2.50", Some("n2"), None);
    let virtual_address = NodeAddress { kind: NodeAddressKind::InternalIp, ip: ip("192.0.2.50") };
    objects(&mut listed.cluster.nodes)[1].addresses.push(virtual_address);
    expect_healthy(&RULE, &listed, &subject());
    let mut alone = balanced(PRIMARY[0], None, Some("lan"));
    seen(&mut alone.cluster.nodes).truncate(1);
    expect_healthy(&RULE, &alone, &subject());
    // A user wrote the external IP, and no controller announces it.
    let mut typed = balanced(PEER, None, Some("lan"));
    for service in objects(&mut typed.cluster.services) {
        service.external_ips = std::mem::take(&mut service.load_balancer_ips);
    }
    assert_eq!(severity(&typed), Severity::Info);
}
