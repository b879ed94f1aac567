use super::*;
use crate::expectations::{expect_healthy, expect_problem, expect_unknown};
use portreeve_facts::{
    IpVsConnection, ServiceKind, VirtualServer,
    healthy::{PRIMARY, SECOND, World, gap, ip, objects, seen},
};

const LOCAL: &str = "192.0.2.1:30080";
const REMOTE: &str = "192.0.2.9:8080";

fn web() -> Snapshot {
    Snapshot::healthy().service("web", |it| it.node_port(30080)).ephemeral("1024 65535", "")
}

fn subject() -> Subject {
    Subject::service(&web().cluster.services.seen().expect("services")[0])
}

fn hanging() -> Snapshot {
    web().socket(Protocol::Tcp, State::SynSent, LOCAL, REMOTE, |socket| socket.retransmits = 2)
}

fn with_table(mut world: Snapshot, servers: &[(Protocol, &str, u16)]) -> Snapshot {
    world.kernel.ip_vs = Reading::Seen(
        servers
            .iter()
            .map(|(protocol, address, port)| VirtualServer {
                protocol: *protocol,
                ip: ip(address),
                port: *port,
                real_servers: 1,
            })
            .collect(),
    );
    world
}

fn severity(world: &Snapshot) -> Severity {
    expect_problem(&RULE, world, &subject()).severity
}

#[test]
fn a_hanging_connection_is_critical_in_ipvs_mode_and_info_elsewhere() {
    let world = hanging();
    assert_eq!(severity(&world.with_mode(Mode::Ipvs)), Severity::Critical);
    for mode in [Mode::Iptables, Mode::Nftables] {
        let evidence = expect_problem(&RULE, &world.with_mode(mode), &subject());
        assert_eq!(evidence.severity, Severity::Info, "{mode}");
        assert!(evidence.affects.is_empty());
    }
}

#[test]
fn the_order_of_the_sockets_does_not_decide_which_are_named() {
    let ports = 8080..8080 + 2 * u16::try_from(MOST_SOCKETS).expect("a few");
    let hanging = |world: Snapshot, port| {
        world
            .socket(Protocol::Tcp, State::SynSent, LOCAL, &format!("192.0.2.9:{port}"), |socket| socket.retransmits = 2)
    };
    let [up, down] = [ports.clone().fold(web(), hanging), ports.rev().fold(web(), hanging)];
    let [up, down] = [up, down].map(|world| expect_problem(&RULE, &world.with_mode(Mode::Ipvs), &subject()).values);
    assert_eq!(up, down);
}

#[test]
fn a_udp_client_is_critical_and_an_established_connection_survives() {
    let udp = Snapshot::healthy().service("web", |it| it.node_port(30080).protocol(Protocol::Udp)).socket(
        Protocol::Udp,
        State::Established,
        LOCAL,
        REMOTE,
        |_| (),
    );
    assert_eq!(severity(&udp.with_mode(Mode::Ipvs)), Severity::Critical);
    assert_eq!(severity(&udp), Severity::Info);
    let established = web().connects(State::Established, LOCAL, REMOTE).with_mode(Mode::Ipvs);
    assert_eq!(severity(&established), Severity::Info);
    let beginning = web().connects(State::SynSent, LOCAL, REMOTE).with_mode(Mode::Ipvs);
    assert_eq!(severity(&beginning), Severity::Warning, "not proven before it asked again");
}

#[test]
fn the_kernels_own_lines_prove_it() {
    let mut world = with_table(hanging().with_mode(Mode::Ipvs), &[(Protocol::Tcp, PRIMARY[0], 30080)]);
    let connection = |from: &str| IpVsConnection {
        protocol: Protocol::Tcp,
        from: (ip(from), 8080),
        to: (ip(PRIMARY[0]), 30080),
        destination: (ip("10.244.0.5"), 8080),
        state: "SYN_RECV".to_owned(),
    };
    world.kernel.ip_vs_connections = Reading::Seen(vec![connection("192.0.2.9"), connection("203.0.113.5")]);
    let evidence = expect_problem(&RULE, &world, &subject());
    let text = |name| {
        let found = evidence.values.iter().filter(|(it, _)| *it == name).map(|(_, value)| value.as_str());
        found.collect::<Vec<_>>()
    };
    assert_eq!(text("socket"), ["tcp SYN-SENT 192.0.2.1:30080 -> 192.0.2.9:8080 retransmitting"]);
    assert_eq!(text("ip_vs virtual server"), ["192.0.2.1:30080/tcp"]);
    assert_eq!(text("ip_vs connection"), ["tcp 192.0.2.9:8080 -> 192.0.2.1:30080 -> 10.244.0.5:8080 SYN_RECV"]);
    assert_eq!(text("process"), ["nginx (pid 4242)"]);
    assert!(evidence.affects.contains(&Vantage::Node));
    assert!(evidence.summary.starts_with("Process nginx sends from 192.0.2.1:30080/tcp, the NodePort of default/web"));
    let steps = &evidence.remedies[0].steps;
    assert_eq!(steps[0].text, "sysctl -w net.ipv4.ip_local_reserved_ports=\"10249-10250,10256,30000-32767\"");
    assert!(steps[2].text.contains("restart process nginx"), "{steps:?}");
}

#[test]
fn the_table_decides_where_it_can_be_read_and_is_predicted_where_not() {
    let world = hanging().with_mode(Mode::Ipvs);
    let elsewhere = with_table(world.clone(), &[(Protocol::Tcp, SECOND[0], 30080), (Protocol::Udp, PRIMARY[0], 30080)]);
    expect_healthy(&RULE, &elsewhere, &subject());
    let predicted = format!("{:?}", expect_problem(&RULE, &world, &subject()));
    assert!(predicted.contains("192.0.2.1:30080/tcp expected in ipvs mode: so the test says"), "{predicted}");
    let second = world.with_config(|config| config.node_port_addresses = vec!["192.0.2.2/32".to_owned()]);
    expect_healthy(&RULE, &second, &subject());
}

#[test]
fn where_the_settings_are_assumed_the_table_is_proof_and_a_prediction_is_not() {
    let said = hanging().with_user_mode(Mode::Ipvs);
    assert_eq!(severity(&said), Severity::Warning);
    assert_eq!(severity(&with_table(said, &[(Protocol::Tcp, PRIMARY[0], 30080)])), Severity::Critical);
}

#[test]
fn an_address_that_a_service_claims_is_served_with_any_settings() {
    let external = |it: World| it.with(|service| service.external_ips = vec![ip(PRIMARY[0])]);
    let world = Snapshot::healthy().service("web", external);
    let local = format!("{}:80", PRIMARY[0]);
    let hangs = world.socket(Protocol::Tcp, State::SynSent, &local, REMOTE, |socket| socket.retransmits = 1);
    assert_eq!(severity(&hangs.with_user_mode(Mode::Ipvs)), Severity::Critical);
}

#[test]
fn a_socket_that_harms_nobody_is_told_of_whatever_list_there_is() {
    let mut world = web().connects(State::Established, LOCAL, REMOTE).with_mode(Mode::Nftables);
    world.kernel.proxy.config = gap(Source::ProxyConfig, Why::Unreachable);
    assert_eq!(severity(&world), Severity::Info);
}

#[test]
fn an_empty_table_is_of_a_proxy_that_has_yet_to_program_it() {
    let world = with_table(hanging(), &[]).with_mode(Mode::Ipvs);
    assert_eq!(severity(&world), Severity::Critical);
    let text = format!("{:?}", expect_problem(&RULE, &world, &subject()));
    assert!(text.contains("expected in ipvs mode: /proc/net/ip_vs is empty"), "{text}");
}

#[test]
fn a_virtual_server_at_an_external_address_counts_and_one_without_a_service_too() {
    let external = |it: World| it.with(|service| service.external_ips = vec![ip(PRIMARY[0])]);
    let socket = |world: Snapshot, local: &str| {
        world.socket(Protocol::Tcp, State::SynSent, local, REMOTE, |socket| socket.retransmits = 1)
    };
    let world = socket(Snapshot::healthy().service("web", external), "192.0.2.1:80").with_mode(Mode::Ipvs);
    let evidence = expect_problem(&RULE, &world, &subject());
    assert_eq!(evidence.severity, Severity::Critical);
    assert!(evidence.summary.contains("an external address and port of default/web"), "{}", evidence.summary);
    assert!(evidence.remedies[0].steps[0].text.ends_with("=\"80\""), "{:?}", evidence.remedies);

    let stale = socket(Snapshot::healthy(), LOCAL).with_mode(Mode::Ipvs);
    let node = Subject::node("n1", None);
    expect_healthy(&RULE, &stale, &node);
    let stale = with_table(stale, &[(Protocol::Tcp, PRIMARY[0], 30080)]);
    assert_eq!(expect_problem(&RULE, &stale, &node).severity, Severity::Critical);
}

#[test]
fn accepted_connections_are_no_clients() {
    let world = hanging().with_mode(Mode::Ipvs);
    for listener in ["0.0.0.0:30080", "192.0.2.1:30080", "[::]:30080"] {
        expect_healthy(&RULE, &world.clone().listens(listener), &subject());
    }
    for listener in ["192.0.2.2:30080", "127.0.0.1:30080", "0.0.0.0:30081"] {
        assert_eq!(severity(&world.clone().listens(listener)), Severity::Critical, "{listener} is another one");
    }
    let v6only =
        |only| world.clone().socket(Protocol::Tcp, State::Listen, "[::]:30080", "[::]:0", |it| it.v6only = only);
    assert_eq!(severity(&v6only(Some(true))), Severity::Critical);
    assert_eq!(expect_unknown(&RULE, &v6only(None), &subject()).source, Source::Listeners);
    let mapped =
        web().socket(Protocol::Tcp, State::SynSent, "[::ffff:192.0.2.1]:30080", "[::ffff:192.0.2.9]:8080", |it| {
            it.retransmits = 1;
        });
    assert_eq!(severity(&mapped.with_mode(Mode::Ipvs)), Severity::Critical, "IPv4 over an IPv6 socket");
    expect_healthy(&RULE, &mapped.with_mode(Mode::Ipvs).listens("0.0.0.0:30080"), &subject());
}

#[test]
fn loopback_other_families_protocols_and_finished_connections_are_silent() {
    let connects = |local: &str, remote: &str| web().connects(State::SynSent, local, remote);
    let loopback = connects("127.0.0.1:30080", "127.0.0.1:8080");
    expect_healthy(&RULE, &loopback.with_mode(Mode::Ipvs), &subject());
    expect_healthy(&RULE, &loopback.with_mode(Mode::Nftables), &subject());
    expect_healthy(&RULE, &web().connects(State::TimeWait, LOCAL, REMOTE).with_mode(Mode::Ipvs), &subject());
    expect_healthy(&RULE, &connects("192.0.2.1:30081", REMOTE).with_mode(Mode::Ipvs), &subject());
    let mut v4_only = connects("[2001:db8::1]:30080", "[2001:db8::9]:8080").with_mode(Mode::Ipvs);
    assert_eq!(severity(&v4_only), Severity::Warning);
    objects(&mut v4_only.cluster.services)[0].families = &[Family::V4];
    expect_healthy(&RULE, &v4_only, &subject());
}

#[test]
fn an_unconnected_udp_socket_in_the_ephemeral_range_may_wait_for_answers() {
    let world = Snapshot::healthy()
        .service("web", |it| it.node_port(30080).protocol(Protocol::Udp))
        .listens_udp("0.0.0.0:30080")
        .with_mode(Mode::Ipvs);
    expect_healthy(&RULE, &world, &subject());
    let wide = world.ephemeral("1024 65535", "");
    assert_eq!(severity(&wide), Severity::Warning);
    assert_eq!(severity(&with_table(wide.clone(), &[(Protocol::Udp, SECOND[0], 30080)])), Severity::Warning);
    assert_eq!(severity(&wide.with_mode(Mode::Iptables)), Severity::Info);
}

#[test]
fn many_sockets_of_one_service_are_one_finding_with_the_worst_first() {
    let many =
        (0..20).fold(web(), |world, n| world.connects(State::Established, LOCAL, &format!("192.0.2.9:{}", 9000 + n)));
    let many = many.socket(Protocol::Tcp, State::SynSent, LOCAL, REMOTE, |socket| socket.retransmits = 1);
    let judgements = RULE.judge(&Round::of(&many.with_mode(Mode::Ipvs), None, 60), &Limits::default());
    assert_eq!(judgements.expect("judged").len(), 1);
    let evidence = expect_problem(&RULE, &many.with_mode(Mode::Ipvs), &subject());
    assert_eq!(evidence.severity, Severity::Critical);
    assert!(evidence.values[0].1.starts_with("tcp SYN-SENT"), "{:?}", evidence.values);
    assert!(evidence.values.contains(&("socket", "and 13 more".to_owned())), "{:?}", evidence.values);
}

#[test]
fn an_unknown_mode_leaves_what_every_mode_shares() {
    let evidence = expect_problem(&RULE, &hanging().without_proxy(), &subject());
    assert_eq!(evidence.severity, Severity::Info);
    assert!(evidence.summary.ends_with("in other modes the connection may hang."), "{}", evidence.summary);
    let second = |state| web().connects(state, "192.0.2.2:30080", REMOTE).without_proxy();
    assert_eq!(expect_unknown(&RULE, &second(State::SynSent), &subject()).source, Source::ProxyMode);
    assert_eq!(severity(&second(State::Established)), Severity::Info, "it is harmless wherever it is served");
}

#[test]
fn a_reserved_port_was_chosen_on_purpose_or_before() {
    let reserved = hanging().ephemeral("1024 65535", "30000-32767").with_mode(Mode::Ipvs);
    let evidence = expect_problem(&RULE, &reserved, &subject());
    let [remedy] = &evidence.remedies[..] else { panic!("{:?}", evidence.remedies) };
    assert!(remedy.steps[0].text.contains("reserved now") && remedy.steps.len() == 1, "{remedy:?}");
}

#[test]
fn sockets_that_were_not_listed_are_unknown_unless_only_accepted_ones_are_missing() {
    let mut crowded = hanging();
    let clients = seen(&mut crowded.kernel.clients);
    (clients.beyond, clients.outgoing) = (7, 4097);
    assert_eq!(expect_unknown(&RULE, &crowded, &Subject::node("n1", None)).source, Source::Clients);
    seen(&mut crowded.kernel.clients).outgoing = 4096;
    expect_healthy(&RULE, &crowded, &Subject::node("n1", None));
}

#[test]
fn unread_is_unknown() {
    let without = |blind: fn(&mut Snapshot)| {
        let mut world = hanging();
        blind(&mut world);
        expect_unknown(&RULE, &world, &subject()).source
    };
    assert_eq!(without(|it| it.kernel.clients = gap(Source::Clients, Why::Torn)), Source::Clients);
    assert_eq!(without(|it| it.kernel.listeners = gap(Source::Listeners, Why::Torn)), Source::Listeners);
    assert_eq!(without(|it| it.kernel.interfaces = gap(Source::Addresses, Why::Torn)), Source::Addresses);
    assert_eq!(without(|it| it.cluster.services = gap(Source::Services, Why::Unreachable)), Source::Services);
}

#[test]
fn a_load_balancers_address_is_an_external_one_too() {
    let balanced = |it: World| it.with(|service| service.load_balancer_ips = vec![ip(SECOND[0])]);
    let world = Snapshot::healthy().service("web", balanced);
    let world = world.connects(State::Established, &format!("{}:80", SECOND[0]), REMOTE);
    let evidence = expect_problem(&RULE, &world, &subject());
    assert!(evidence.summary.contains("an external address and port of default/web"), "{}", evidence.summary);
}

#[test]
fn a_wildcard_client_meets_a_service_of_either_family() {
    let v4 = |it: World| it.node_port(30080).protocol(Protocol::Udp).with(|service| service.families = &[Family::V4]);
    let world = Snapshot::healthy().service("web", v4).ephemeral("1024 65535", "");
    assert_eq!(severity(&world.listens_udp("[::]:30080")), Severity::Info);
}

#[test]
fn in_cilium_mode_answers_from_outside_do_not_arrive() {
    let tcp = |retransmits| {
        let change = |socket: &mut Socket| socket.retransmits = retransmits;
        severity(&web().socket(Protocol::Tcp, State::Established, LOCAL, REMOTE, change).with_mode(Mode::Cilium))
    };
    assert_eq!((tcp(0), tcp(2)), (Severity::Warning, Severity::Critical));
    let udp = Snapshot::healthy().service("web", |it| it.node_port(30080).protocol(Protocol::Udp));
    let udp = udp.socket(Protocol::Udp, State::Established, LOCAL, REMOTE, |_| ());
    assert_eq!(severity(&udp.with_mode(Mode::Cilium)), Severity::Warning);
    for (retransmits, ends) in [(0, "answers from outside this node do not arrive"), (2, "the connection hangs")] {
        let change = |socket: &mut Socket| socket.retransmits = retransmits;
        let world = web().socket(Protocol::Tcp, State::Established, LOCAL, REMOTE, change).with_mode(Mode::Cilium);
        let summary = expect_problem(&RULE, &world, &subject()).summary;
        assert!(summary.contains(ends), "{summary}");
    }
}

#[test]
fn in_cilium_mode_an_address_that_serves_nobody_outside_and_a_peer_here_are_silent() {
    let second = format!("{}:30080", SECOND[0]);
    for (local, remote) in [(second.as_str(), REMOTE), (LOCAL, "192.0.2.1:8080"), (LOCAL, &second)] {
        let world = web().connects(State::Established, local, remote);
        expect_healthy(&RULE, &world.with_mode(Mode::Cilium), &subject());
        expect_problem(&RULE, &world, &subject());
    }
}

#[test]
fn where_an_annotation_has_cilium_serve_a_service_elsewhere_it_is_unknown() {
    let narrowed = |it: World| it.node_port(30080).with(|service| service.for_cilium.on_some_nodes = true);
    let world = |change: fn(World) -> World, local: &str| {
        let world = Snapshot::healthy().service("web", |it| change(narrowed(it))).ephemeral("1024 65535", "");
        world.socket(Protocol::Tcp, State::SynSent, local, REMOTE, |socket| socket.retransmits = 2)
    };
    let by_node_port = world(|it| it, LOCAL);
    expect_problem(&RULE, &by_node_port, &subject());
    assert_eq!(expect_unknown(&RULE, &by_node_port.with_mode(Mode::Cilium), &subject()).source, Source::Services);
    let external = |it: World| it.with(|service| service.external_ips = vec![ip(PRIMARY[0])]);
    let by_address = world(external, &format!("{}:80", PRIMARY[0]));
    expect_problem(&RULE, &by_address, &subject());
    assert_eq!(expect_unknown(&RULE, &by_address.with_mode(Mode::Cilium), &subject()).source, Source::Services);
}

/// The annotation `service.cilium.io/type` limits a Service to one kind of ports. Cilium serves external IPs with every
/// value of the annotation.
#[test]
fn in_cilium_mode_a_socket_meets_the_part_of_a_service_that_an_annotation_leaves() {
    let world = |only: ServiceKind, change: fn(World) -> World, port: u16| {
        let world = Snapshot::healthy().service("web", |it| change(it).with(|it| it.for_cilium.only = Some(only)));
        let local = format!("{}:{port}", PRIMARY[0]);
        world.socket(Protocol::Tcp, State::SynSent, &local, REMOTE, |it| it.retransmits = 2).with_mode(Mode::Cilium)
    };
    let by_number: fn(World) -> World = |it| it.node_port(30080);
    let typed: fn(World) -> World = |it| it.with(|service| service.external_ips = vec![ip(PRIMARY[0])]);
    let balanced: fn(World) -> World = |it| it.with(|service| service.load_balancer_ips = vec![ip(PRIMARY[0])]);
    for (only, change, port) in [
        (ServiceKind::NodePort, by_number, 30080),
        (ServiceKind::LoadBalancer, balanced, 80),
        (ServiceKind::ClusterIp, typed, 80),
    ] {
        expect_problem(&RULE, &world(only, change, port), &subject());
    }
    for (only, change, port) in [
        (ServiceKind::ClusterIp, by_number, 30080),
        (ServiceKind::LoadBalancer, by_number, 30080),
        (ServiceKind::NodePort, balanced, 80),
    ] {
        expect_healthy(&RULE, &world(only, change, port), &subject());
    }
}

#[test]
fn the_sentence_says_for_how_long_it_works() {
    let world = web().connects(State::Established, LOCAL, REMOTE);
    for (mode, ends) in [
        (Mode::Ipvs, "until the program has to reconnect"),
        (Mode::Nftables, "conntrack has an entry for the connection"),
    ] {
        let summary = expect_problem(&RULE, &world.with_mode(mode), &subject()).summary;
        assert!(summary.contains(ends), "{summary}");
    }
}
