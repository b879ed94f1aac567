use super::*;
use crate::expectations::{expect_healthy, expect_problem, expect_unknown};
use portreeve_facts::{
    ContainerPort, ContainerPorts, Controller, Mode, Protocol, Reading, Service, ServiceKind, Snapshot, State,
    healthy::{World, gap, held, objects, seen},
};

const REMOTE: &str = "192.0.2.9:443";

fn balanced(it: World) -> World {
    it.local().with(|service| {
        service.kind = ServiceKind::LoadBalancer;
        service.health_check_node_port = Some(30999);
    })
}

fn checked() -> Snapshot {
    Snapshot::healthy().service("lb", balanced).connects(State::Established, "192.0.2.1:30999", REMOTE)
}

fn service() -> Subject {
    Subject::service(&checked().cluster.services.seen().expect("services")[0])
}

fn unready(change: impl FnOnce(&mut Pod)) -> (Snapshot, Subject) {
    let world = Snapshot::healthy().connects(State::Established, "192.0.2.1:8443", REMOTE).pod("ingress", |pod| {
        (pod.host_network, pod.ready) = (true, false);
        pod.ports.push(ContainerPort { port: 8443, host_port: Some(8443), host_ip: None, protocol: Protocol::Tcp });
        change(pod);
    });
    let subject = Subject::pod(&world.cluster.pods.seen().expect("pods")[0]);
    (world, subject)
}

#[test]
fn a_health_check_cannot_listen_where_a_connection_is() {
    let evidence = expect_problem(&RULE, &checked(), &service());
    assert_eq!(evidence.severity, Severity::Warning);
    let found = format!("{evidence:?}");
    assert!(found.contains("Process nginx has an outgoing connection from port 30999/tcp"), "{found}");
    assert!(found.contains("tcp ESTAB 192.0.2.1:30999 -> 192.0.2.9:443") && found.contains("pid 4242"), "{found}");
    let steps = &evidence.remedies[0].steps;
    assert_eq!(steps[0].text, "sysctl -w net.ipv4.ip_local_reserved_ports=\"30999\"");
    assert_eq!(steps.last(), Some(&Step::advice("restart process nginx, or make it reconnect")));
}

#[test]
fn time_wait_has_no_owner_and_ends_by_itself() {
    let world = Snapshot::healthy().service("lb", balanced);
    let world =
        world.socket(Protocol::Tcp, State::TimeWait, "192.0.2.1:30999", REMOTE, |it| it.owner = Owner::TimeWait);
    let found = format!("{:?}", expect_problem(&RULE, &world, &service()));
    assert!(
        found.contains("A connection in TIME_WAIT has port 30999/tcp") && found.contains("wait a minute"),
        "{found}"
    );
}

#[test]
fn without_this_nodes_name_an_unready_pod_of_any_node_may_lack_the_port_of_a_connection() {
    let unnamed = |change: fn(&mut Pod)| unready(change).0.unnamed();
    let node = Subject::this_node(&unnamed(|_| ()));
    assert_eq!(expect_unknown(&RULE, &unnamed(|_| ()), &node).source, Source::Nodes);
    expect_healthy(&RULE, &unnamed(|pod| pod.ready = true), &node);
    expect_healthy(&RULE, &unnamed(|pod| pod.ports[0].port = 8444), &node);
}

#[test]
fn an_unready_host_network_pod_cannot_listen_where_a_connection_is() {
    let (world, subject) = unready(|_| ());
    let evidence = expect_problem(&RULE, &world, &subject);
    assert!(
        evidence.summary.contains("hostNetwork pod default/ingress cannot listen on this port"),
        "{}",
        evidence.summary
    );
    assert!(evidence.remedies[0].steps[0].text.ends_with("=\"8443\""), "{:?}", evidence.remedies);
}

fn left(local: &str, remote: &str, change: impl FnOnce(&mut Socket)) -> (Snapshot, Subject) {
    let (mut world, subject) = unready(|_| ());
    seen(&mut world.kernel.clients).sockets.clear();
    (world.socket(Protocol::Tcp, State::Established, local, remote, change), subject)
}

#[test]
fn what_a_listener_that_has_ended_accepted_is_silent() {
    for state in [State::Established, State::TimeWait, State::FinWait1, State::LastAck] {
        let (world, subject) = left("192.0.2.1:8443", "198.51.100.7:51811", |it| it.state = state);
        expect_healthy(&RULE, &world, &subject);
    }
    let (world, subject) = left("192.0.2.1:8443", "192.0.2.9:443", |it| it.state = State::SynRecv);
    expect_healthy(&RULE, &world, &subject);
    let own = |socket: &mut Socket| {
        let Owner::Held(holder) = &mut socket.owner else { panic!("held") };
        let Reading::Seen(cgroup) = &mut holder.cgroup else { panic!("seen") };
        cgroup.pod.as_mut().expect("a pod").pod_uid = "uid-ingress".to_owned();
    };
    let (world, subject) = left("192.0.2.1:8443", "198.51.100.7:51811", own);
    expect_healthy(&RULE, &world.ephemeral("1024 65535", ""), &subject);
}

#[test]
fn what_this_node_opened_is_told_whatever_its_ports_are() {
    let sent = |it: &mut Socket| it.state = State::SynSent;
    let udp = |it: &mut Socket| it.protocol = Protocol::Udp;
    let (world, subject) = left("192.0.2.1:8443", "198.51.100.7:51811", sent);
    expect_problem(&RULE, &world, &subject);
    let (mut world, subject) = left("192.0.2.1:8443", "198.51.100.7:51811", udp);
    objects(&mut world.cluster.pods)[0].ports[0].protocol = Protocol::Udp;
    expect_problem(&RULE, &world, &subject);
    let of_peer = |port: u16| left("192.0.2.1:8443", &format!("198.51.100.7:{port}"), |_| ());
    let (world, subject) = of_peer(664);
    expect_problem(&RULE, &world, &subject);
    // Behind NAT, a client may have any port above 1023.
    for port in [665, 6443, 51820] {
        expect_healthy(&RULE, &of_peer(port).0, &subject);
    }
    let wide = |port| of_peer(port).0.ephemeral("1024 65535", "");
    expect_problem(&RULE, &wide(6443), &subject);
    expect_unknown(&RULE, &wide(51820), &subject);
}

#[test]
fn who_opened_a_connection_is_unknown_where_the_kernel_may_have_chosen_its_port() {
    let (world, subject) = left("192.0.2.1:8443", "198.51.100.7:51811", |_| ());
    let wide = world.clone().ephemeral("1024 65535", "");
    assert_eq!(expect_unknown(&RULE, &wide, &subject).why, Why::Ambiguous);
    expect_healthy(&RULE, &world.clone().ephemeral("1024 65535", "8443"), &subject);
    let supposed = wide.clone().supposing("1024 65535", "8443");
    assert_eq!(expect_unknown(&RULE, &supposed, &subject).why, Why::Ambiguous, "it is open already");
    let both = wide.connects(State::Established, "192.0.2.1:8443", REMOTE);
    expect_problem(&RULE, &both, &subject);
    let mut unread = world;
    unread.kernel.sysctls.ip_local_port_range = gap(Source::Sysctls, Why::NotPermitted);
    assert_eq!(expect_unknown(&RULE, &unread, &subject).source, Source::Sysctls);
}

#[test]
fn ready_finished_foreign_pending_and_other_pods_are_silent() {
    let changes: [fn(&mut Pod); 7] = [
        |pod| pod.node = None,
        |pod| pod.ends = Some(jiff::Timestamp::UNIX_EPOCH),
        |pod| pod.ready = true,
        |pod| pod.finished = true,
        |pod| pod.node = Some("n2".to_owned()),
        |pod| pod.host_network = false,
        |pod| pod.ports[0].protocol = Protocol::Udp,
    ];
    for change in changes {
        let (world, subject) = unready(change);
        expect_healthy(&RULE, &world, &subject);
    }
}

#[test]
fn where_somebody_listens_connections_are_accepted_ones() {
    expect_healthy(&RULE, &checked().listens("0.0.0.0:30999"), &service());
    let mut other_family = checked().listens("[::]:30999");
    seen(&mut other_family.kernel.listeners).last_mut().expect("a listener").v6only = Some(true);
    expect_problem(&RULE, &other_family, &service());
    let changed = |change: fn(&mut Service)| {
        let world = Snapshot::healthy().service("lb", |it| balanced(it).with(change));
        world.connects(State::Established, "192.0.2.1:30999", REMOTE)
    };
    expect_healthy(&RULE, &changed(|service| service.external_local = false), &service());
    expect_healthy(&RULE, &changed(|service| service.proxy_name = Some("other".to_owned())), &service());
}

#[test]
fn kube_proxys_own_ports_count_where_there_is_a_kube_proxy() {
    let node = Subject::node("n1", None);
    let blocked = |port: u16| {
        let mut world =
            Snapshot::healthy().connects(State::Established, &format!("127.0.0.1:{port}"), "127.0.0.1:6443");
        world = world.ephemeral("1024 65535", "");
        seen(&mut world.kernel.listeners).retain(|socket| socket.local_port != port);
        world
    };
    let evidence = expect_problem(&RULE, &blocked(10256), &node);
    assert!(evidence.summary.contains("kube-proxy cannot listen on this port"), "{}", evidence.summary);
    expect_healthy(&RULE, &blocked(10249), &node);
    let configured = |port: u16, at: &str| {
        let mut world = blocked(port);
        let Reading::Seen(config) = &mut world.kernel.proxy.config else { panic!("a configuration") };
        config.healthz_bind_address = Some(at.to_owned());
        world
    };
    expect_healthy(&RULE, &configured(10256, "0.0.0.0:10356"), &node);
    expect_healthy(&RULE, &configured(10256, ""), &node);
    expect_healthy(&RULE, &configured(10256, "192.0.2.1:10256"), &node);
    expect_problem(&RULE, &configured(10256, "127.0.0.1:10256"), &node);
    expect_problem(&RULE, &configured(10356, "0.0.0.0:10356"), &node);
    let mut silent = blocked(10249);
    silent.kernel.proxy.mode = gap(Source::ProxyMode, Why::Unreachable);
    expect_problem(&RULE, &silent, &node);
    assert_eq!(expect_unknown(&RULE, &blocked(10249).without_proxy(), &node).source, Source::ProxyMode);
    expect_healthy(&RULE, &blocked(10256).with_mode(Mode::Cilium), &node);
}

#[test]
fn unread_is_unknown() {
    let without = |blind: fn(&mut Snapshot)| {
        let mut world = checked();
        blind(&mut world);
        expect_unknown(&RULE, &world, &service()).source
    };
    assert_eq!(without(|it| it.kernel.clients = gap(Source::Clients, Why::Torn)), Source::Clients);
    assert_eq!(without(|it| it.kernel.listeners = gap(Source::Listeners, Why::Torn)), Source::Listeners);
    assert_eq!(without(|it| it.cluster.services = gap(Source::Services, Why::Unreachable)), Source::Services);
    assert_eq!(without(|it| it.cluster.pods = gap(Source::Pods, Why::Unreachable)), Source::Pods);
}

#[test]
fn a_pod_on_one_address_is_blocked_by_what_is_on_that_address() {
    let local: std::net::SocketAddr = {
        let (world, _) = unready(|_| ());
        let socket = &world.kernel.clients.seen().expect("clients").sockets[0];
        std::net::SocketAddr::new(socket.local, socket.local_port)
    };
    let at = |ip: std::net::IpAddr| unready(|pod| pod.ports[0].host_ip = Some(ip));
    let (world, subject) = at(local.ip());
    expect_problem(&RULE, &world, &subject);
    expect_problem(&RULE, &world.clone().listens("127.0.0.1:8443"), &subject);
    expect_healthy(&RULE, &world.clone().listens(&local.to_string()), &subject);
    expect_healthy(&RULE, &world.clone().listens("0.0.0.0:8443"), &subject);
    let of_six = |v6only| {
        let mut world = world.clone().listens("[::]:8443");
        seen(&mut world.kernel.listeners).last_mut().expect("one").v6only = v6only;
        world
    };
    expect_problem(&RULE, &of_six(Some(true)), &subject);
    expect_healthy(&RULE, &of_six(Some(false)), &subject);
    expect_healthy(&RULE, &of_six(None), &subject);
    let (world, subject) = at("127.0.0.1".parse().expect("an address"));
    expect_healthy(&RULE, &world, &subject);
    let (world, subject) = at("0.0.0.0".parse().expect("an address"));
    expect_problem(&RULE, &world, &subject);
    expect_problem(&RULE, &world.clone().listens("[::1]:8443"), &subject);
    expect_healthy(&RULE, &world.listens("127.0.0.1:8443"), &subject);
}

const CLIENT: &str = "198.51.100.7:51811";

fn undecided(uid: &str, container: Option<&str>) -> (Snapshot, Subject) {
    let (world, subject) = left("192.0.2.1:8443", CLIENT, |it| it.owner = of_pod(uid, container));
    let mut world = world.ephemeral("1024 65535", "");
    objects(&mut world.cluster.pods)[0].failing = true;
    (world, subject)
}

fn of_pod(uid: &str, container: Option<&str>) -> Owner {
    let mut owner = held("/kubepods/besteffort/pod/c", Some(uid), "app", 4244);
    if let Owner::Held(holder) = &mut owner
        && let Reading::Seen(cgroup) = &mut holder.cgroup
    {
        cgroup.pod.as_mut().expect("a pod").container = container.map(str::to_owned);
    }
    owner
}

#[test]
fn what_the_container_of_the_port_holds_was_accepted_and_what_another_one_holds_was_not() {
    let of = |container: Option<&str>| {
        let (mut world, subject) = undecided("uid-ingress", container);
        let ports = |id: &str, ports: &[u16]| ContainerPorts { id: id.to_owned(), ports: ports.to_vec() };
        objects(&mut world.cluster.pods)[0].containers = vec![ports("server", &[8443]), ports("sidecar", &[9901])];
        (world, subject)
    };
    for accepted in [Some("server"), Some("one that is gone"), None] {
        let (world, subject) = of(accepted);
        expect_healthy(&RULE, &world, &subject);
    }
    let (world, subject) = of(Some("sidecar"));
    expect_problem(&RULE, &world, &subject);
    let mut not_failing = world;
    objects(&mut not_failing.cluster.pods)[0].failing = false;
    assert_eq!(expect_unknown(&RULE, &not_failing, &subject).why, Why::Ambiguous);
}

#[test]
fn a_pod_that_needs_no_server_there_has_accepted_nothing() {
    let with = |change: fn(&mut Pod)| {
        let (world, subject) = undecided("uid-api", None);
        let world = world.pod("api", |pod| {
            pod.host_network = true;
            change(pod);
        });
        (world, subject)
    };
    let (world, subject) = with(|_| ());
    let evidence = expect_problem(&RULE, &world, &subject);
    let sentence = "Pod default/api has an outgoing connection from port 8443/tcp, on which no process listens: hostNetwork pod default/ingress cannot listen on this port.";
    assert_eq!(evidence.summary, sentence);
    let mut not_failing = world;
    objects(&mut not_failing.cluster.pods)[0].failing = false;
    expect_unknown(&RULE, &not_failing, &subject);
    let declares = with(|pod| pod.ports.push(ContainerPort { port: 8443, ..PORT }));
    expect_unknown(&RULE, &declares.0, &subject);
    let probed = with(|pod| pod.probed.push(ContainerPort { port: 8443, ..PORT }));
    expect_unknown(&RULE, &probed.0, &subject);
    let inside = with(|pod| pod.host_network = false);
    expect_unknown(&RULE, &inside.0, &subject);
    let (mut siblings, subject) = with(|_| ());
    let controller = Controller { kind: "DaemonSet".to_owned(), name: "ingress".to_owned() };
    objects(&mut siblings.cluster.pods).into_iter().for_each(|pod| pod.controller = Some(controller.clone()));
    expect_unknown(&RULE, &siblings, &subject);
}

const PORT: ContainerPort = ContainerPort { port: 1, host_port: None, host_ip: None, protocol: Protocol::Tcp };

#[test]
fn a_peer_to_which_more_leads_or_that_is_a_listener_or_a_service_is_a_server() {
    let (world, subject) = left("192.0.2.1:8443", CLIENT, |_| ());
    expect_healthy(&RULE, &world, &subject);
    let mut more = world;
    seen(&mut more.kernel.clients).servers = vec![CLIENT.parse().expect("an address")];
    expect_problem(&RULE, &more, &subject);
    seen(&mut more.kernel.clients).servers = vec!["198.51.100.7:51812".parse().expect("an address")];
    expect_healthy(&RULE, &more, &subject);
    let (world, subject) = left("127.0.0.1:8443", "127.0.0.1:51811", |_| ());
    expect_healthy(&RULE, &world, &subject);
    expect_problem(&RULE, &world.listens("127.0.0.1:51811"), &subject);
    let at = |service: &mut Service| {
        service.cluster_ips = vec![[10, 96, 0, 77].into()];
        service.ports[0].port = 51811;
    };
    let (world, subject) = left("192.0.2.1:8443", "10.96.0.77:51811", |_| ());
    expect_healthy(&RULE, &world, &subject);
    let mut rejected = world.clone();
    rejected.cluster.rejected.push(Gap::new(Source::Services, Why::Malformed, "of Service default/store, its ports"));
    assert_eq!(expect_unknown(&RULE, &rejected, &subject).source, Source::Services);
    expect_problem(&RULE, &world.service("store", |it| it.with(at)), &subject);
}

#[test]
fn a_listener_whose_address_was_not_read_may_be_the_peer_of_a_server() {
    let own = |socket: &mut Socket| socket.owner = of_pod("uid-ingress", None);
    let (world, subject) = left("192.0.2.2:8443", "192.0.2.1:7777", own);
    expect_healthy(&RULE, &world, &subject);
    let mut world = world.listens("0.0.0.0:7777");
    expect_problem(&RULE, &world, &subject);
    world.kernel.interfaces = gap(Source::Addresses, Why::Torn);
    expect_unknown(&RULE, &world, &subject);
}

#[test]
fn what_stays_open_is_said_with_both_answers() {
    let (world, subject) = left("192.0.2.1:8443", CLIENT, |_| ());
    let mut world = world.ephemeral("1024 65535", "");
    let gap = expect_unknown(&RULE, &world, &subject);
    let both = "process nginx has a connection on port 8443/tcp: if this node opened the connection, hostNetwork pod default/ingress cannot listen; if an old server accepted the connection and has ended, the port is free";
    assert_eq!(gap.detail, both);
    world.kernel.release = "6.7.12".to_owned();
    let assumed = ", assumed that no socket is bound to 8443/tcp without listening; Linux lists such sockets since 6.8, and this node has 6.7.12";
    assert_eq!(expect_unknown(&RULE, &world, &subject).detail, format!("{both}{assumed}"));
}

#[test]
fn a_process_that_is_bound_and_does_not_listen_is_in_the_way_of_a_pod_that_fails() {
    let bound = |owner: Owner| {
        let (mut world, subject) = left("0.0.0.0:8443", "0.0.0.0:0", |it| {
            it.state = State::Close;
            it.owner = owner;
        });
        objects(&mut world.cluster.pods)[0].failing = true;
        (world, subject)
    };
    let (world, subject) = bound(held("/system.slice/app.service", None, "app", 9));
    let evidence = expect_problem(&RULE, &world, &subject);
    let sentence = "Process app is bound to port 8443/tcp, and does not listen: hostNetwork pod default/ingress cannot listen on this port.";
    assert_eq!(evidence.summary, sentence);
    assert!(evidence.values.contains(&("socket", "tcp BOUND 0.0.0.0:8443".to_owned())), "{evidence:#?}");
    expect_healthy(&RULE, &world.clone().listens("0.0.0.0:8443"), &subject);
    let mut starts = world;
    objects(&mut starts.cluster.pods)[0].failing = false;
    expect_healthy(&RULE, &starts, &subject);
    let (own, subject) = bound(of_pod("uid-ingress", None));
    expect_healthy(&RULE, &own, &subject);
}

#[test]
fn what_a_container_said_names_the_connection_and_claims_nothing() {
    let said = |port: u16| {
        let (mut world, subject) = left("192.0.2.1:8443", REMOTE, |_| ());
        let pod = objects(&mut world.cluster.pods).remove(0);
        (pod.ports, pod.failing) = (Vec::new(), true);
        pod.reported_in_use = vec![ContainerPort { port, ..PORT }];
        (world, subject)
    };
    let (world, subject) = said(8443);
    let evidence = expect_problem(&RULE, &world, &subject);
    let end = "a container of hostNetwork pod default/ingress reported at its end that the port is in use.";
    assert!(evidence.summary.ends_with(end), "{}", evidence.summary);
    assert!(evidence.values.contains(&("message of a container", "*:8443/tcp is in use".to_owned())), "{evidence:#?}");
    let (world, subject) = said(8444);
    expect_healthy(&RULE, &world, &subject);
    let (mut declared, subject) = unready(|pod| pod.reported_in_use = vec![ContainerPort { port: 8443, ..PORT }]);
    objects(&mut declared.cluster.pods)[0].failing = true;
    let evidence = expect_problem(&RULE, &declared, &subject);
    assert!(
        evidence.summary.ends_with("cannot listen on this port."),
        "what is declared is a claim: {}",
        evidence.summary
    );
    assert!(evidence.values.iter().any(|(name, _)| *name == "message of a container"), "{evidence:#?}");
}

#[test]
fn a_port_that_only_a_probe_names_counts_after_a_container_of_the_pod_failed() {
    let probed = |failing: bool| {
        let (mut world, subject) = left("192.0.2.1:8443", REMOTE, |_| ());
        let pod = objects(&mut world.cluster.pods).remove(0);
        (pod.ports, pod.probed) = (Vec::new(), vec![ContainerPort { port: 8443, ..PORT }]);
        pod.failing = failing;
        (world, subject)
    };
    let (world, subject) = probed(true);
    let evidence = expect_problem(&RULE, &world, &subject);
    assert_eq!(evidence.severity, Severity::Warning);
    let end = "a probe of hostNetwork pod default/ingress names this port, and no process can listen on the port.";
    assert!(evidence.summary.ends_with(end), "{}", evidence.summary);
    expect_healthy(&RULE, &world.listens("0.0.0.0:8443"), &subject);
    let (starts, subject) = probed(false);
    expect_healthy(&RULE, &starts, &subject);
}

#[test]
fn a_connection_that_was_not_listed_may_have_the_port() {
    let crowded = |(world, subject): (Snapshot, Subject)| {
        let mut world = world;
        let clients = seen(&mut world.kernel.clients);
        (clients.sockets, clients.beyond, clients.outgoing) = (Vec::new(), 7, 4097);
        (world, subject)
    };
    for (world, subject) in [(checked(), service()), unready(|_| ())].map(crowded) {
        let gap = expect_unknown(&RULE, &world, &subject);
        assert_eq!((gap.source, gap.why), (Source::Clients, Why::TooMuch), "{subject}");
        let mut listed = world.clone();
        seen(&mut listed.kernel.clients).outgoing = 4096;
        expect_healthy(&RULE, &listed, &subject);
    }
    let (world, subject) = crowded(unready(|_| ()));
    expect_healthy(&RULE, &world.listens("0.0.0.0:8443"), &subject);
}
