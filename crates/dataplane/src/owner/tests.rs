mod cilium;

use std::net::IpAddr;

use super::{
    super::{cases::Stratum, claim::ClaimKind, outcome::Outcome},
    *,
};

use portreeve_facts::{
    CiliumConfig, ContainerPort, Controller, Endpoint, Family, ForCilium, KernelFacts, Learned, Mode, Netfilter,
    OwnPort, Owner, Pod, PortSet, ProxyConfig, RangeClaim, Reading, Redirection, Service, ServiceKind, Snapshot,
    Socket, Source, State, Vantage, WaitingPod, Why, WithoutBackend,
    healthy::{PRIMARY, SECOND, World, daemon, gap, held, interfaces_of, ip, objects, proxy_holder, seen, squatter},
};

fn ask(world: &Snapshot, from: Vantage, to: &str) -> (Result<Outcome, Gap>, Option<ClaimKind>, Option<ClaimKind>) {
    let ownership = owner(&Round::of(world, None, 60), Protocol::Tcp, 30080).expect("it is known");
    let claim = |index: Option<usize>| index.map(|index| ownership.claimants[index].claim);
    let answered = ownership.answers.iter().find(|it| it.from == from && it.to == ip(to)).expect("an answer");
    (answered.outcome.clone(), claim(answered.by), claim(answered.losers.first().copied()))
}

fn web() -> Snapshot {
    Snapshot::healthy().service("web", |it| it.node_port(30080))
}

#[test]
fn a_free_port_is_refused_and_a_listener_answers() {
    let world = Snapshot::healthy();
    assert_eq!(ask(&world, Vantage::Remote, PRIMARY[0]), (Ok(Outcome::Refused), None, None));
    let world = world.listens("0.0.0.0:30080");
    let listener = Some(ClaimKind::Listener);
    assert_eq!(ask(&world, Vantage::Loopback, "127.0.0.1"), (Ok(Outcome::Listener), listener, None));
    assert_eq!(ask(&world, Vantage::Remote, PRIMARY[1]), (Ok(Outcome::Refused), None, None), "it is of IPv4");
}

#[test]
fn without_addresses_the_claims_are_known_and_the_answers_are_not() {
    let mut world = web().listens("0.0.0.0:30080");
    let named = |it: &Ownership| it.claimants.iter().map(|it| (it.claim, it.name.clone())).collect::<Vec<_>>();
    let whole = found(&world);
    world.kernel.interfaces = gap(Source::Addresses, Why::TimedOut);
    let claims = found(&world);
    assert_eq!(named(&claims), named(&whole));
    assert_eq!((claims.claimants.len(), claims.answers.len()), (2, 0));
    assert!(claims.unread.iter().any(|it| it.source == Source::Addresses), "{:?}", claims.unread);
    assert!(whole.unread.is_empty() && !whole.answers.is_empty(), "{whole:?}");
}

/// The outcomes for a remote client at the two IPv4 addresses of the node.
fn at_both(world: &Snapshot) -> [Result<Outcome, Source>; 2] {
    [PRIMARY[0], SECOND[0]].map(|to| ask(world, Vantage::Remote, to).0.map_err(|gap| gap.source))
}

#[test]
fn an_unread_service_may_get_the_connections_that_no_claim_gets_and_may_have_the_number_of_a_process_as_node_port() {
    let mut alone = Snapshot::healthy();
    alone.cluster.services = gap(Source::Services, Why::NotRequested);
    alone.cluster.configured = false;
    let unknown: Result<Outcome, Source> = Err(Source::Services);
    for world in [alone, Snapshot::healthy().rejects(Source::Services)] {
        assert_eq!(at_both(&world), [unknown; 2]);
        let mut listens = world.listens("192.0.2.1:30080");
        assert_eq!(at_both(&listens), [unknown; 2]);
        let outside = listens.clone().node_port_range("20000-22767");
        assert_eq!(at_both(&outside), [Ok(Outcome::Listener), unknown], "it is no NodePort");
        listens.cluster.node_port_range = gap(Source::NodePortRange, Why::Malformed);
        assert_eq!(at_both(&listens), [unknown; 2]);
    }
    let edge = Snapshot::healthy().rejects(Source::Services).pod("edge", |pod| pod.host_port(80, 30080));
    assert_eq!(at_both(&edge), [unknown; 2]);
    assert_eq!(at_both(&edge.node_port_range("20000-22767")), [Ok(Outcome::Pod); 2]);
    let allocated = web().listens("0.0.0.0:30080").with_mode(Mode::Nftables).rejects(Source::Services);
    assert_eq!(at_both(&allocated), [Ok(Outcome::Pod), Ok(Outcome::Listener)], "no other Service can have the number");
}

#[test]
fn an_unread_host_port_or_redirection_may_get_the_connections_of_a_process_and_those_that_no_claim_gets() {
    let mut refused = Snapshot::healthy();
    refused.cluster.pods = gap(Source::Pods, Why::NotPermitted);
    let mut torn = Snapshot::healthy();
    torn.kernel.netfilter = gap(Source::Netfilter, Why::Torn);
    let rejected = Snapshot::healthy().rejects(Source::Pods);
    for (world, source) in [(refused, Source::Pods), (rejected.clone(), Source::Pods), (torn, Source::Netfilter)] {
        assert_eq!(at_both(&world), [Err(source); 2]);
        assert_eq!(at_both(&world.clone().listens("0.0.0.0:30080")), [Err(source); 2]);
        let served = world.service("web", |it| it.node_port(30080)).listens("0.0.0.0:30080");
        assert_eq!(at_both(&served), [Ok(Outcome::Pod); 2], "the Service is first");
        let of_listener = if source == Source::Pods { Ok(Outcome::Listener) } else { Err(source) };
        assert_eq!(at_both(&served.with_mode(Mode::Cilium)), [Ok(Outcome::Pod), of_listener]);
        assert_eq!(at_both(&served.with_mode(Mode::Ipvs)), [Err(source); 2], "a hostPort is first");
        assert_eq!(at_both(&served.with_mode(Mode::Nftables)), [Err(source); 2], "the order is not defined");
        let mut empty = served.with_mode(Mode::Ipvs);
        assert_eq!(ask(&empty, Vantage::Remote, PRIMARY[0]).2, Some(ClaimKind::Listener), "whichever is first");
        seen(&mut empty.cluster.endpoint_slices).clear();
        assert_eq!(at_both(&empty.with_mode(Mode::Iptables)), [Err(source); 2], "a hostPort is before a refusal");
    }
    assert_eq!(found(&rejected).unread, rejected.cluster.rejected);
    let edge = Snapshot::healthy().rejects(Source::Services).pod("edge", |pod| pod.host_port(80, 30080));
    assert_eq!(
        at_both(&edge.with_mode(Mode::Ipvs)),
        [Ok(Outcome::Pod); 2],
        "in ipvs mode, no NodePort is before a hostPort"
    );
    let listens = rejected.clone().listens("0.0.0.0:30080").with_mode(Mode::Cilium);
    assert_eq!(at_both(&listens), [Ok(Outcome::Listener); 2], "Cilium ignores each hostPort of its range");
    let mut sysctl = Snapshot::healthy().listens("0.0.0.0:30080");
    let detail = "Pod t/evil: spec.securityContext.sysctls[0].value is \"abc\"";
    sysctl.cluster.rejected.push(Gap::new(Source::Pods, Why::Malformed, detail));
    assert_eq!(at_both(&sysctl), [Ok(Outcome::Listener); 2], "any user can write a wrong value in this field");
    let mut none = Snapshot::healthy();
    none.cluster.pods = gap(Source::Pods, Why::NotRequested);
    for why in [Why::NotPermitted, Why::NotSupported] {
        none.kernel.netfilter = gap(Source::Netfilter, why);
        assert_eq!(at_both(&none), [Ok(Outcome::Refused); 2], "{why:?}");
        let served = none.clone().service("web", |it| it.node_port(30080)).with_mode(Mode::Ipvs);
        assert_eq!(at_both(&served), [Ok(Outcome::Pod); 2], "{why:?}");
    }
}

fn beside_at(world: &Snapshot, (protocol, number): (Protocol, u16)) -> Vec<(BesideKind, String, String)> {
    let ownership = owner(&Round::of(world, None, 60), protocol, number).expect("it is known");
    ownership.beside.into_iter().map(|it| (it.kind, it.name, it.detail)).collect()
}

fn beside(world: &Snapshot) -> Vec<(BesideKind, String, String)> {
    beside_at(world, (Protocol::Tcp, 30080))
}

fn possible(world: &Snapshot) -> Vec<(BesideKind, String, String)> {
    beside(world).into_iter().filter(|(kind, ..)| *kind == BesideKind::Possible).collect()
}

fn container_port(port: u16) -> ContainerPort {
    ContainerPort { port, host_port: None, host_ip: None, protocol: Protocol::Tcp }
}

#[test]
fn a_scan_that_lists_no_bound_sockets_assumes_that_none_has_the_port_of_an_absent_server() {
    let pod = |port, ready| {
        let world = Snapshot::healthy().pod("edge", |pod| {
            (pod.host_network, pod.ready) = (true, ready);
            pod.ports.push(container_port(port));
        });
        on_linux(world, "6.1.0-56-amd64")
    };
    let [(_, name, detail)] = &possible(&pod(30080, false))[..] else { panic!("one line") };
    assert_eq!(name, "perhaps a socket that is bound and does not listen");
    let words = "assumed: no socket is bound to 30080/tcp without listening; Linux lists such sockets since 6.8, and this node has 6.1.0-56-amd64";
    assert_eq!(detail, words);
    assert_eq!(possible(&on_linux(pod(30080, false), "6.8.0")), [], "the kernel lists them");
    let since_6_8 = |change: fn(&mut KernelFacts)| {
        let mut world = on_linux(pod(30080, false), "6.8.0");
        change(&mut world.kernel);
        let words = "assumed: no socket is bound to 30080/tcp without listening; ";
        let details = beside(&world).into_iter().filter_map(|it| it.2.strip_prefix(words).map(str::to_owned));
        details.collect::<Vec<_>>()
    };
    assert_eq!(
        since_6_8(|kernel| seen(&mut kernel.clients).passed_over = true),
        ["the scan did not search such sockets, because the node has many connections"]
    );
    assert_eq!(
        since_6_8(|kernel| seen(&mut kernel.clients).bound_unlisted = true),
        ["the scan could not list all such sockets"]
    );
    let unread = since_6_8(|kernel| kernel.clients = gap(Source::Clients, Why::NotRequested));
    assert!(matches!(&unread[..], [words] if words.starts_with("such sockets were not read: ")), "{unread:?}");
    for free in [pod(30081, false), pod(30080, true)] {
        let [(_, _, detail)] = &possible(&free)[..] else { panic!("{:?}", possible(&free)) };
        assert_eq!(detail, "not known: Linux lists such sockets since 6.8, and this node has 6.1.0-56-amd64");
    }
    assert_eq!(possible(&pod(30081, false).service("web", |it| it.node_port(30080))), [], "a Service claims the port");
    assert_eq!(possible(&pod(30080, false).listens("127.0.0.1:30080")), [], "a process has the port");
}

#[test]
fn a_port_on_which_no_connection_or_bound_socket_was_searched_is_not_called_free() {
    let [nothing, some]: [PortSet; 2] = ["", "30080"].map(|it| it.parse().expect("ports"));
    let possible = |searched: &PortSet, bound_searched: &PortSet, port| {
        let mut world = Snapshot::healthy();
        let clients = seen(&mut world.kernel.clients);
        (clients.searched, clients.bound_searched) = (searched.clone(), bound_searched.clone());
        beside_at(&world, port)
    };
    let (tcp, udp) = ((Protocol::Tcp, 30080), (Protocol::Udp, 30080));
    assert_eq!(possible(&some, &some, tcp), []);
    let [(BesideKind::Possible, name, detail)] = &possible(&nothing, &nothing, tcp)[..] else { panic!("one line") };
    assert_eq!(name, "perhaps an outgoing connection");
    assert!(detail.ends_with("the scan did not search the port; `portreeve owner 30080` on the node does"), "{detail}");
    assert_eq!(possible(&nothing, &nothing, udp), possible(&nothing, &nothing, tcp), "one line is true of both");
    let [(BesideKind::Possible, name, detail)] = &possible(&some, &nothing, tcp)[..] else { panic!("one line") };
    assert_eq!(name, "perhaps a socket that is bound and does not listen");
    assert!(detail.starts_with("not known: the scan did not search the port"), "{detail}");
    assert_eq!(possible(&some, &nothing, udp), []);
}

#[test]
fn the_connections_of_a_snapshot_from_before_the_searched_ports_were_recorded_are_named_without_a_doubt() {
    let mut world = Snapshot::healthy().connects(State::Established, "192.0.2.1:30080", "198.51.100.7:8443");
    let clients = seen(&mut world.kernel.clients);
    (clients.searched, clients.bound_searched) = Default::default();
    assert!(matches!(&beside(&world)[..], [(BesideKind::Connection, ..)]), "{:?}", beside(&world));
}

/// A node with a hostNetwork pod that is not ready.
fn needing(change: impl FnOnce(&mut Pod)) -> Snapshot {
    Snapshot::healthy().pod("edge", |pod| {
        (pod.host_network, pod.ready) = (true, false);
        change(pod);
    })
}

#[test]
fn each_kind_of_need_without_a_listener_is_named() {
    let waits = |world: &mut Snapshot| {
        let waits = WaitingPod {
            namespace: "default".to_owned(),
            name: "waits".to_owned(),
            uid: None,
            controller: None,
            service_lb_of: None,
            meant_for: None,
            everywhere: false,
            rejected: false,
            ports: vec![ContainerPort { host_port: Some(30080), ..container_port(80) }],
            since: None,
        };
        world.cluster.waiting_pods = Reading::Seen(vec![waits.into()]);
    };
    let checked = |service: &mut Service| {
        (service.kind, service.external_local) = (ServiceKind::LoadBalancer, true);
        (service.ports[0].node_port, service.health_check_node_port) = (None, Some(30080));
    };
    let own_port = OwnPort { address: "192.0.2.1:30080".parse().expect("an address"), taken: false };
    let mut worlds = [(); 5].map(|()| Snapshot::healthy());
    let [waiting, agent, metrics, health, tunnel] = &mut worlds;
    waits(waiting);
    agent.own_port = Reading::Seen(own_port);
    metrics.kernel.proxy.mode = gap(Source::ProxyMode, Why::TimedOut);
    metrics.overrides.proxy_mode = Some(Learned { value: Mode::Iptables, place: "--proxy-mode".to_owned() });
    seen(&mut metrics.kernel.listeners).clear();
    *health = health.clone().with_config(|it| it.healthz_bind_address = Some("0.0.0.0:30080".to_owned()));
    *tunnel = tunnel.clone().tunnel("vxlan.calico", "vxlan", 30080, |link| link.up = false);
    let lb = Snapshot::healthy().service("lb", |it| it.node_port(30081).with(checked));
    let (tcp, udp) = ((Protocol::Tcp, 30080), (Protocol::Udp, 30080));
    let [waiting, agent, metrics, health, tunnel] = worlds;
    for (world, port, name, reason) in [
        (needing(|pod| pod.ports = vec![container_port(30080)]), tcp, "hostNetwork pod default/edge", "declares"),
        (needing(|pod| pod.probed = vec![container_port(30080)]), tcp, "hostNetwork pod default/edge", "a probe names"),
        (
            needing(|pod| pod.reported_in_use = vec![container_port(30080)]),
            tcp,
            "hostNetwork pod default/edge",
            "reported",
        ),
        (waiting, tcp, "waiting pod default/waits", "the scheduler may choose this node"),
        (lb, tcp, "the health check of Service default/lb", "has to answer"),
        (agent, tcp, "the agent of Portreeve", "metrics"),
        (metrics, (Protocol::Tcp, 10249), "kube-proxy", "metrics"),
        (health, tcp, "kube-proxy", "health"),
        (tunnel, udp, "tunnel vxlan.calico", "when the tunnel comes up"),
    ] {
        let found = beside_at(&world, port);
        let [(BesideKind::Need, of, detail)] = &found[..] else { panic!("{name}: {found:?}") };
        assert!(of == name && detail.contains(reason), "{name}: {found:?}");
        assert!(detail.ends_with("and no process listens on this port"), "{found:?}");
        let another = (port.0, port.1 + 1);
        assert!(beside_at(&world, another).iter().all(|(kind, ..)| *kind != BesideKind::Need), "{name}");
    }
}

#[test]
fn a_server_that_listens_on_its_port_is_a_claimant_only_and_another_process_is_beside_the_need() {
    let held = |uid: &str| {
        let world = needing(|pod| pod.ports = vec![container_port(30080)]);
        beside(&world.listens_as("0.0.0.0:30080", held("/kubepods/besteffort/pod/c1", Some(uid), "edge", 5)))
    };
    assert_eq!(held("uid-edge"), []);
    let [(BesideKind::Need, _, detail)] = &held("uid-other")[..] else { panic!("one need") };
    assert_eq!(detail, "a container declares the port");
    assert_eq!(beside_at(&Snapshot::healthy(), (Protocol::Tcp, 10256)), [], "kube-proxy listens");
}

#[test]
fn a_need_whose_listener_has_no_known_owner_is_possible_and_no_need_beside_another_process() {
    let possible = |mut world: Snapshot, number: u16| {
        let listeners = seen(&mut world.kernel.listeners).iter_mut();
        for socket in listeners.filter(|it| it.local_port == number) {
            let Owner::Held(holder) = &mut socket.owner else { panic!("a holder") };
            holder.cgroup = gap(Source::Cgroups, Why::NotPermitted);
            holder.process = gap(Source::Processes, Why::NotPermitted);
        }
        let all = beside_at(&world, (Protocol::Tcp, number));
        let [(BesideKind::Possible, name, detail)] = &all[..] else { panic!("one line: {all:?}") };
        format!("{name}: {detail}")
    };
    let pod = needing(|pod| pod.ports = vec![container_port(30080)]).listens("0.0.0.0:30080");
    assert_eq!(possible(pod, 30080), "perhaps hostNetwork pod default/edge: not known: so the test says");
    let words = "perhaps kube-proxy: not known: the process that listens, or the proxy's own process, was not read";
    assert_eq!(possible(Snapshot::healthy(), 10256), words);
}

#[test]
fn more_needs_than_are_listed_are_counted_and_one_that_is_not_known_is_said() {
    let many = (1..=6).fold(Snapshot::healthy(), |world, n| {
        world.pod(&format!("p{n}"), |pod| {
            pod.host_network = true;
            pod.ports = vec![container_port(30080), container_port(30080)];
        })
    });
    let names: Vec<String> = beside(&many).into_iter().map(|(_, name, _)| name).collect();
    assert_eq!((names.len(), &*names[4]), (5, "2 more servers"), "{names:?}");
    let mut unread = Snapshot::healthy();
    unread.cluster.waiting_pods = gap(Source::WaitingPods, Why::TimedOut);
    let [(_, name, detail)] = &possible(&unread)[..] else { panic!("{:?}", possible(&unread)) };
    assert_eq!((&**name, &**detail), ("perhaps a server that needs the port", "not known: so the test says"));
    unread.cluster.waiting_pods = gap(Source::WaitingPods, Why::NotRequested);
    assert_eq!(beside(&unread), []);
    unread.kernel.interfaces = gap(Source::Addresses, Why::TimedOut);
    assert_eq!(beside(&unread), [], "no tunnel needs a port of TCP");
    let [(_, name, _)] = &beside_at(&unread, (Protocol::Udp, 30080))[..] else { panic!("perhaps a tunnel") };
    assert_eq!(name, "perhaps a tunnel that needs the port");
    let metrics = (Protocol::Tcp, 10249);
    let mut silent = Snapshot::healthy().without_proxy();
    seen(&mut silent.kernel.listeners).clear();
    let [(BesideKind::Possible, name, _)] = &beside_at(&silent, metrics)[..] else { panic!("perhaps kube-proxy") };
    assert_eq!(name, "perhaps kube-proxy");
}

fn on_linux(mut world: Snapshot, release: &str) -> Snapshot {
    world.kernel.release = release.to_owned();
    world
}

#[test]
fn a_connection_with_the_port_is_named_unless_a_listener_may_have_accepted_it() {
    let connects = |world: Snapshot| world.connects(State::Established, "192.0.2.1:30080", "198.51.100.7:8443");
    let world = connects(Snapshot::healthy());
    let [(BesideKind::Connection, name, detail)] = &beside(&world)[..] else { panic!("{:?}", beside(&world)) };
    assert_eq!(name, "process nginx from 192.0.2.1:30080/tcp");
    assert!(detail.contains("-> 198.51.100.7:8443") && detail.contains("EADDRINUSE"), "{detail}");
    assert!(detail.contains("if the connection is outgoing"), "a server that has ended may have accepted it: {detail}");
    let hangs = Snapshot::healthy().connects(State::SynSent, "192.0.2.1:30080", "198.51.100.7:8443");
    assert!(!beside(&hangs)[0].2.contains("if the connection is outgoing"), "{:?}", beside(&hangs));
    for accepting in ["0.0.0.0:30080", "192.0.2.1:30080"] {
        assert_eq!(beside(&connects(Snapshot::healthy().listens(accepting))), [], "{accepting}");
    }
    let elsewhere = beside(&connects(Snapshot::healthy().listens("192.0.2.2:30080")));
    assert!(matches!(&elsewhere[..], [(BesideKind::Connection, ..)]), "{elsewhere:?}");
    let unread = |world: Snapshot, why| {
        let mut world = world;
        world.kernel.clients = gap(Source::Clients, why);
        beside(&world)
    };
    let [(BesideKind::Possible, name, detail)] = &unread(world.clone(), Why::Torn)[..] else { panic!("one") };
    assert!(name.starts_with("perhaps ") && detail.starts_with("not known"), "{name}: {detail}");
    let [(BesideKind::Possible, _, detail)] = &unread(world.clone(), Why::NotRequested)[..] else { panic!("one") };
    assert!(detail.contains("the scan did not search the port"), "{detail}");
    assert_eq!(unread(world.clone().listens("0.0.0.0:30080"), Why::Torn), []);
    let beside_it = unread(world.clone().listens("192.0.2.2:30080"), Why::Torn);
    assert!(matches!(&beside_it[..], [(BesideKind::Possible, ..)]), "a process on another address: {beside_it:?}");
    let full = |mut world: Snapshot, outgoing| {
        let clients = seen(&mut world.kernel.clients);
        (clients.sockets, clients.beyond, clients.outgoing) = (Vec::new(), 7, outgoing);
        beside(&world)
    };
    let [(BesideKind::Possible, _, detail)] = &full(world.clone(), 4097)[..] else { panic!("one") };
    assert!(detail.ends_with("the list of connections on these ports is full; connections that hang are listed first"));
    assert_eq!(full(world.clone(), 4096), [], "accepted connections alone are missing");
    assert_eq!(full(world.clone().listens("0.0.0.0:30080"), 4097), [], "a process has the port");
    let mut ended = world;
    seen(&mut ended.kernel.clients).sockets[0].state = State::TimeWait;
    assert!(beside(&ended)[0].2.contains("up to a minute"));
}

#[test]
fn more_users_of_a_number_than_are_listed_are_counted() {
    let world = (1..=6).fold(Snapshot::healthy(), |world, n| {
        let world = world.service(&format!("s{n}"), |it| it.with(|service| service.ports[0].port = 30080));
        world.connects(State::Established, "192.0.2.1:30080", &format!("198.51.100.{n}:8443"))
    });
    let names: Vec<String> = beside(&world).into_iter().map(|(_, name, _)| name).collect();
    assert_eq!((names.len(), &*names[4], &*names[9]), (10, "2 more connections", "2 more Services"), "{names:?}");
}

#[test]
fn a_service_of_another_proxy_is_named_as_not_served_here() {
    let web = |label: Option<&str>| {
        Snapshot::healthy()
            .service("web", |it| it.node_port(30080).with(|web| web.proxy_name = label.map(str::to_owned)))
    };
    for label in ["other", Service::OF_NO_PROXY] {
        let [(BesideKind::NotServed, name, detail)] = &beside(&web(Some(label)))[..] else { panic!("{label}") };
        assert_eq!(name, "Service default/web at its nodePort");
        assert!(detail.starts_with("this node's proxy does not serve the Service"), "{detail}");
        assert_eq!(found(&web(Some(label))).claimants, []);
    }
    assert_eq!(beside(&web(None)), []);
    let mut unread = web(Some("other")).with_mode(Mode::Cilium);
    unread.cluster.proxy_config = gap(Source::ConfigMaps, Why::Unreachable);
    assert!(beside(&unread)[0].2.contains("it is not known whether Cilium serves"), "{:?}", beside(&unread));
    let many = (1..=6).fold(Snapshot::healthy(), |world, n| {
        let other = |it: World| it.node_port(30080).with(|service| service.proxy_name = Some("other".to_owned()));
        world.service(&format!("s{n}"), other)
    });
    let names: Vec<String> = beside(&many).into_iter().map(|(_, name, _)| name).collect();
    assert_eq!((names.len(), &*names[4]), (5, "2 more ports of Services"), "{names:?}");
}

#[test]
fn an_external_address_of_another_proxys_service_is_named_as_not_served_here() {
    let web = |label: Option<&str>, change: fn(&mut Service)| {
        let web = |it: World| it.with(|web| web.proxy_name = label.map(str::to_owned)).with(change);
        Snapshot::healthy().service("web", web)
    };
    let changes: [fn(&mut Service); 2] = [
        |web| (web.external_ips, web.ports[0].port) = (vec![ip(PRIMARY[0])], 30080),
        |web| (web.load_balancer_ips, web.ports[0].port) = (vec![ip("203.0.113.7")], 30080),
    ];
    for change in changes {
        let world = web(Some("other"), change).node_port_range("20000-22767");
        let [(BesideKind::NotServed, name, detail)] = &beside(&world)[..] else { panic!("{:?}", beside(&world)) };
        assert_eq!(name, "Service default/web at its external addresses");
        assert!(detail.ends_with("another proxy may answer"), "{detail}");
        assert_eq!(beside(&web(None, change).node_port_range("20000-22767")), [], "this node's proxy serves it");
    }
    let inner = web(Some("other"), |web| web.ports[0].port = 30080).node_port_range("20000-22767");
    assert_eq!(beside(&inner), [], "it has no external address");
}

#[test]
fn a_cluster_ip_with_the_number_is_no_conflict_and_only_named_where_node_ports_are() {
    let clustered = |number: u16| web().service("inner", |it| it.with(|service| service.ports[0].port = number));
    let world = clustered(30080);
    let [(BesideKind::ClusterIp, name, detail)] = &beside(&world)[..] else { panic!("{:?}", beside(&world)) };
    assert!(name.starts_with("Service default/inner") && detail.ends_with("no conflict"), "{name}: {detail}");
    assert_eq!(beside(&clustered(30081)), []);
    assert_eq!(beside(&world.node_port_range("20000-22767")), [], "a number of many Services, as 443");
}

#[test]
fn a_node_port_stands_before_a_listener_where_the_mode_says_so() {
    let world = web().listens("0.0.0.0:30080");
    let (node_port, listener) = (Some(ClaimKind::NodePort), Some(ClaimKind::Listener));
    assert_eq!(ask(&world, Vantage::Remote, SECOND[0]), (Ok(Outcome::Pod), node_port, listener));
    let world = world.with_mode(Mode::Nftables);
    assert_eq!(ask(&world, Vantage::Remote, PRIMARY[0]), (Ok(Outcome::Pod), node_port, listener));
    assert_eq!(ask(&world, Vantage::Loopback, "127.0.0.1"), (Ok(Outcome::Listener), listener, None));
}

#[test]
fn an_address_of_loopback_that_no_interface_has_is_listed_where_a_socket_is_bound_to_it() {
    let (node_port, listener) = (Some(ClaimKind::NodePort), Some(ClaimKind::Listener));
    let world = web().listens("127.0.0.53:30080");
    assert_eq!(ask(&world, Vantage::Loopback, "127.0.0.53"), (Ok(Outcome::Pod), node_port, listener));
    let nftables = world.with_mode(Mode::Nftables);
    assert_eq!(ask(&nftables, Vantage::Loopback, "127.0.0.53"), (Ok(Outcome::Listener), listener, None));
    let elsewhere = owner(&Round::of(&world, None, 60), Protocol::Tcp, 30081).expect("it is known");
    assert!(elsewhere.answers.iter().all(|it| it.to != ip("127.0.0.53")));
}

#[test]
fn an_external_ip_stands_before_a_node_port_on_its_address_only() {
    let world = web().service("taker", |it| it.external_ip(PRIMARY[0]).with(|service| service.ports[0].port = 30080));
    assert_eq!(ask(&world, Vantage::Remote, PRIMARY[0]), (Ok(Outcome::Pod), Some(ClaimKind::ExternalIp), None));
    assert_eq!(ask(&world, Vantage::Remote, SECOND[0]), (Ok(Outcome::Pod), Some(ClaimKind::NodePort), None));
}

fn at_primary(config: &mut ProxyConfig) {
    config.node_port_addresses = vec![format!("{}/32", PRIMARY[0])];
}

#[test]
fn a_service_whose_external_address_has_the_number_of_its_node_port_answers_alone() {
    let world = |address: &str| {
        let both = |it: World| {
            it.node_port(30080).external_ip(address).with(|web| {
                (web.kind, web.ports[0].port) = (ServiceKind::LoadBalancer, 30080);
            })
        };
        Snapshot::healthy().service("web", both).with_config(at_primary)
    };
    for (mode, address) in Mode::ALL.into_iter().flat_map(|mode| [(mode, PRIMARY[0]), (mode, SECOND[0])]) {
        let (outcome, ..) = ask(&world(address).with_mode(mode), Vantage::Remote, address);
        assert_eq!(outcome, Ok(Outcome::Pod), "{mode}, {address}");
    }
}

#[test]
fn an_external_ip_answers_alone_at_an_address_without_node_ports() {
    let taker = |it: World| it.external_ip(SECOND[0]).with(|service| service.ports[0].port = 30080);
    let world = web().service("taker", taker).with_config(at_primary);
    let by_taker = (Ok(Outcome::Pod), Some(ClaimKind::ExternalIp), None);
    assert_eq!(ask(&world.with_mode(Mode::Ipvs), Vantage::Remote, SECOND[0]), by_taker);
}

#[test]
fn a_load_balancers_address_with_source_ranges_is_claimed_for_some_clients_only() {
    let limit = |world: Snapshot, address: &str, source_ranges: &'static [Family]| {
        let world = world.service("web", |it| {
            it.with(|web| (web.load_balancer_ips, web.ports[0].port) = (vec![ip(address)], 30080))
                .with(|web| web.source_ranges = source_ranges)
        });
        let detail = &found(&world).claimants[0].detail;
        let (claim, _) = detail.split_once(';').expect("endpoints");
        claim.strip_prefix(&format!("load balancer address {address}")).expect("the address").to_owned()
    };
    let kube_proxy = Snapshot::healthy;
    let limited = ", only for clients that loadBalancerSourceRanges allows";
    assert_eq!(limit(kube_proxy(), PRIMARY[0], &[Family::V4]), limited);
    assert_eq!(limit(kube_proxy(), PRIMARY[0], &[]), "");
    assert_eq!(limit(kube_proxy(), PRIMARY[1], &[Family::V4]), "", "kube-proxy keeps ranges of one family");
    assert_eq!(limit(kube_proxy(), PRIMARY[1], &Family::BOTH), limited);
    let cilium = kube_proxy().with_mode(Mode::Cilium);
    assert_eq!(limit(cilium, PRIMARY[1], &[Family::V4]), limited, "Cilium serves no client");
    let unknown = kube_proxy().without_proxy().address("cilium_host", "10.244.0.1");
    assert_eq!(limit(unknown, PRIMARY[1], &[Family::V4]), limited.replace("only", "perhaps only"));
}

#[test]
fn the_proxys_socket_on_the_port_of_a_health_check_names_the_service() {
    let checked = |owner| {
        let world = Snapshot::healthy().service("web", |it| it.with(|web| web.health_check_node_port = Some(31999)));
        let world = world.listens_as("[::]:31999", owner).listens_as("[::]:31998", proxy_holder());
        [31999, 31998].map(|port| {
            let ownership = super::owner(&Round::of(&world, None, 60), Protocol::Tcp, port).expect("it is known");
            ownership.claimants[0].detail.clone()
        })
    };
    let [checks, other] = checked(proxy_holder());
    assert!(checks.starts_with("health check of Service default/web; "), "{checks}");
    assert!(!other.contains("health check"), "{other}");
    let [taken, _] = checked(squatter());
    assert!(!taken.contains("health check"), "whoever took the port answers for nobody: {taken}");
}

#[test]
fn a_host_port_and_a_node_port_are_asked_in_the_modes_order() {
    let world = web().pod("edge", |pod| pod.host_port(80, 30080));
    assert_eq!(ask(&world, Vantage::Remote, PRIMARY[0]).1, Some(ClaimKind::NodePort));
    assert_eq!(ask(&world.clone().with_mode(Mode::Ipvs), Vantage::Remote, PRIMARY[0]).1, Some(ClaimKind::HostPort));
    let nftables = world.with_mode(Mode::Nftables);
    let undefined = ask(&nftables, Vantage::Remote, PRIMARY[0]).0;
    assert!(undefined.is_err(), "{undefined:?}");
    assert_eq!(ask(&nftables, Vantage::Remote, SECOND[0]).1, Some(ClaimKind::HostPort), "no NodePort is served there");
}

#[test]
fn a_listener_below_two_claims_loses_whichever_of_them_comes_first() {
    let loser = |world: Snapshot| {
        let (outcome, by, loser) = ask(&world, Vantage::Remote, PRIMARY[0]);
        assert!(outcome.is_err() && by.is_none(), "{outcome:?}");
        loser
    };
    let listener = Some(ClaimKind::Listener);
    let edge = || web().pod("edge", |pod| pod.host_port(80, 30080)).with_mode(Mode::Nftables);
    assert_eq!(loser(edge().listens("0.0.0.0:30080")), listener, "a NodePort or a hostPort");
    assert_eq!(loser(edge().listens("[fd00::9]:30080")), None, "no process listens on this address");
    let taker = |it: World| it.external_ip(PRIMARY[0]).with(|service| service.ports[0].port = 30080);
    let two = || web().service("taker", taker).listens("0.0.0.0:30080");
    assert_eq!(loser(two().with_mode(Mode::Ipvs)), listener, "a NodePort or an external IP");
    assert_eq!(loser(two().with_mode(Mode::Cilium)), listener);
}

#[test]
fn a_listener_below_two_claims_of_which_one_leads_to_it_may_lose() {
    let taker = |it: World| it.external_ip(PRIMARY[0]).with(|service| service.ports[0].port = 30080);
    let world = Snapshot::healthy().service("web", |it| it.node_port(30080).without_endpoints());
    let world = world.service("taker", taker).listens("0.0.0.0:30080").with_mode(Mode::Cilium);
    let passing = CiliumConfig { without_backend: WithoutBackend::Pass, ..CiliumConfig::default() };
    let world = world.with_config(|it| it.cilium = Some(passing));
    let (outcome, _, loser) = ask(&world, Vantage::Remote, PRIMARY[0]);
    assert!(outcome.is_err() && loser.is_none(), "a NodePort without an endpoint is left to who listens: {loser:?}");
}

#[test]
fn a_host_port_takes_what_no_service_redirects() {
    let world = Snapshot::healthy().pod("edge", |pod| pod.host_port(80, 30080)).listens("[::]:30080");
    let (host_port, listener) = (Some(ClaimKind::HostPort), Some(ClaimKind::Listener));
    assert_eq!(ask(&world, Vantage::Remote, PRIMARY[1]), (Ok(Outcome::Pod), host_port, listener));
    assert_eq!(ask(&world, Vantage::Loopback, "::1"), (Ok(Outcome::TimedOut), host_port, listener));
    let empty = world.service("web", |it| it.node_port(30080).without_endpoints());
    for mode in Mode::KUBE_PROXY {
        let empty = empty.clone().with_mode(mode);
        assert_eq!(ask(&empty, Vantage::Remote, PRIMARY[0]), (Ok(Outcome::Pod), host_port, listener), "{mode}");
    }
}

#[test]
fn whether_a_pod_without_a_network_gets_the_connections_of_its_host_port_is_not_known() {
    let starting = || {
        Snapshot::healthy().pod("edge", |pod| {
            pod.host_port(80, 30080);
            pod.ready = false;
            pod.ips.clear();
        })
    };
    for world in [starting(), starting().listens("0.0.0.0:30080")] {
        let (outcome, by, loser) = ask(&world, Vantage::Remote, PRIMARY[0]);
        let gap = outcome.expect_err("the pod, or another");
        assert!(gap.source == Source::Pods && gap.detail.contains("default/edge"), "{gap:?}");
        assert_eq!((by, loser), (None, None));
    }
    let both = starting().listens("0.0.0.0:30080").service("web", |it| it.node_port(30080));
    let (node_port, listener) = (Some(ClaimKind::NodePort), Some(ClaimKind::Listener));
    assert_eq!(
        ask(&both, Vantage::Remote, PRIMARY[0]),
        (Ok(Outcome::Pod), node_port, listener),
        "the Service is first"
    );
    let (outcome, _, loser) = ask(&both.with_mode(Mode::Ipvs), Vantage::Remote, PRIMARY[0]);
    assert!(outcome.is_err() && loser == listener, "the process loses to the Service or to the pod: {outcome:?}");
    let settled = starting().pod("web", |pod| pod.host_port(80, 30080));
    assert_eq!(ask(&settled, Vantage::Remote, PRIMARY[0]).0, Ok(Outcome::Pod), "a pod with a network answers");
}

/// A Service with two endpoints: the listener on this node, and an endpoint on another node.
fn leads_home(it: World, change: fn(&mut Endpoint)) -> World {
    it.each_slice(|slice| {
        slice.ports[0].port = Some(30080);
        slice.endpoints.push(slice.endpoints[0].clone());
        slice.endpoints[0].addresses = vec![ip(PRIMARY[0])];
        change(&mut slice.endpoints[0]);
    })
}

#[test]
fn the_only_server_of_an_external_ip_or_a_node_port_loses_nothing_to_its_own_service() {
    let taker = |it: World| it.external_ip(PRIMARY[0]).with(|service| service.ports[0].port = 30080);
    let world = |change: fn(World) -> World| Snapshot::healthy().service("web", change).listens("0.0.0.0:30080");
    let external = world(|it| leads_home(it.external_ip(PRIMARY[0]).with(|web| web.ports[0].port = 30080), |_| ()));
    let answer = |claim| (Ok(Outcome::Listener), Some(claim), None);
    assert_eq!(ask(&external, Vantage::Remote, PRIMARY[0]), answer(ClaimKind::ExternalIp));
    let node_port = world(|it| leads_home(it.node_port(30080), |_| ()));
    assert_eq!(ask(&node_port, Vantage::Remote, PRIMARY[0]), answer(ClaimKind::NodePort));
    let elsewhere = Snapshot::healthy().service("web", taker).listens("0.0.0.0:30080");
    let listener = Some(ClaimKind::Listener);
    let taken = (Ok(Outcome::Pod), Some(ClaimKind::ExternalIp), listener);
    assert_eq!(ask(&elsewhere, Vantage::Remote, PRIMARY[0]), taken);
}

#[test]
fn a_socket_that_the_kernel_does_not_choose_at_the_endpoints_address_is_not_the_endpoint() {
    let home = || Snapshot::healthy().service("web", |it| leads_home(it.node_port(30080), |_| ()));
    let loses = (Ok(Outcome::Pod), Some(ClaimKind::NodePort), Some(ClaimKind::Listener));
    let other = home().listens_as("0.0.0.0:30080", daemon("other", 7));
    assert_eq!(ask(&other, Vantage::Remote, SECOND[0]).0, Ok(Outcome::Listener));
    let closer = other.listens("192.0.2.1:30080");
    assert_eq!(ask(&closer, Vantage::Remote, SECOND[0]), loses, "another socket is on the endpoint's address");
    assert_eq!(ask(&closer, Vantage::Remote, PRIMARY[0]).0, Ok(Outcome::Listener));
    let device = |socket: &mut Socket| socket.device = 3;
    let bound = home().address("eth1", "198.51.100.1");
    let bound = bound.socket(Protocol::Tcp, State::Listen, "0.0.0.0:30080", "0.0.0.0:0", device);
    assert_eq!(ask(&bound, Vantage::Node, "198.51.100.1"), loses, "the endpoint's address is on another device");
    let both = home().address("eth1", "198.51.100.1").listens_as("0.0.0.0:30080", daemon("other", 7));
    let both = both.socket(Protocol::Tcp, State::Listen, "[::]:30080", "0.0.0.0:0", device);
    let unknown = ask(&both, Vantage::Node, "198.51.100.1").0.map_err(|gap| gap.source);
    assert_eq!(unknown, Err(Source::Listeners), "the socket without a device is the endpoint");
    let away = |it: World| {
        it.node_port(30080).each_slice(|slice| {
            slice.ports[0].port = Some(30080);
            if slice.family == Family::V6 {
                slice.endpoints[0].addresses = vec![ip(PRIMARY[1])];
            }
        })
    };
    let away = Snapshot::healthy().service("web", away).listens("[::]:30080");
    assert_eq!(ask(&away, Vantage::Remote, PRIMARY[0]), loses, "the endpoint is of IPv6");
    assert_eq!(ask(&away, Vantage::Remote, PRIMARY[1]).0, Ok(Outcome::Listener));
}

#[test]
fn with_a_local_policy_a_listener_gets_nothing_from_an_endpoint_without_a_node() {
    let of = |node: Option<&str>| {
        let world = Snapshot::healthy().service("web", |it| {
            it.node_port(30080).local().each_slice(|slice| {
                slice.ports[0].port = Some(30080);
                slice.endpoints[0].addresses = vec![ip(PRIMARY[0])];
                slice.endpoints[0].node = node.map(str::to_owned);
            })
        });
        world.listens("0.0.0.0:30080")
    };
    let lost = (Ok(Outcome::TimedOut), Some(ClaimKind::NodePort), Some(ClaimKind::Listener));
    assert_eq!(ask(&of(None), Vantage::Remote, PRIMARY[0]), lost);
    assert_eq!(ask(&of(Some("n2")), Vantage::Remote, PRIMARY[0]), lost);
    assert_eq!(ask(&of(None), Vantage::Node, PRIMARY[0]).0, Ok(Outcome::Listener), "the policy is for other clients");
    assert_eq!(ask(&of(Some("n1")), Vantage::Remote, PRIMARY[0]).0, Ok(Outcome::Listener));
    for mode in [Mode::Ipvs, Mode::Cilium] {
        let (outcome, ..) = ask(&of(None).with_mode(mode), Vantage::Remote, PRIMARY[0]);
        assert_eq!(outcome, Ok(Outcome::Listener), "{mode}");
    }
}

#[test]
fn a_listener_that_is_an_endpoint_and_not_ready_gets_no_connection_of_its_service() {
    let taken = |change: fn(&mut Endpoint)| {
        let world = Snapshot::healthy().service("web", |it| leads_home(it.node_port(30080), change));
        ask(&world.listens("0.0.0.0:30080"), Vantage::Remote, PRIMARY[0])
    };
    let unready = (Ok(Outcome::Pod), Some(ClaimKind::NodePort), Some(ClaimKind::Listener));
    assert_eq!(taken(|it| (it.ready, it.serving) = (false, false)), unready);
    assert_eq!(taken(|it| (it.ready, it.terminating) = (false, true)), unready, "another endpoint is ready");
    assert_eq!(taken(|_| ()).0, Ok(Outcome::Listener));
}

#[test]
fn an_endpoint_of_this_node_that_ends_gets_only_connections_to_which_the_local_policy_applies() {
    let world = Snapshot::healthy().service("web", |it| {
        let it = leads_home(it.node_port(30080).local(), |it| (it.ready, it.terminating) = (false, true));
        it.each_slice(|slice| slice.endpoints[1].node = Some("n2".to_owned()))
    });
    let world = world.listens("0.0.0.0:30080");
    let taken = (Ok(Outcome::Pod), Some(ClaimKind::NodePort), Some(ClaimKind::Listener));
    assert_eq!(ask(&world, Vantage::Node, PRIMARY[0]), taken);
    assert_eq!(ask(&world, Vantage::Pods, PRIMARY[0]), taken);
    assert_eq!(ask(&world, Vantage::Remote, PRIMARY[0]).0, Ok(Outcome::Listener));
    let ipvs = ask(&world.with_mode(Mode::Ipvs), Vantage::Node, PRIMARY[0]).0;
    assert_eq!(ipvs, Ok(Outcome::Listener), "its virtual server is for every client");
    let undetected = world.with_config(|it| it.cluster_cidr = None);
    assert_eq!(ask(&undetected, Vantage::Pods, PRIMARY[0]).0, Ok(Outcome::Listener), "pods are outside");
}

#[test]
fn without_this_nodes_name_who_answers_at_a_local_service_and_which_pods_are_here_is_not_known() {
    let local = Snapshot::healthy().service("web", |it| it.node_port(30080).local()).unnamed();
    let (outcome, ..) = ask(&local, Vantage::Remote, PRIMARY[0]);
    assert_eq!(outcome.map_err(|gap| gap.source), Err(Source::Nodes), "a pod, or nobody");
    assert_eq!(ask(&local, Vantage::Node, PRIMARY[0]).0, Ok(Outcome::Pod));
    let pod = Snapshot::healthy().pod("edge", |pod| pod.host_port(80, 30080)).listens("0.0.0.0:30080");
    assert_eq!(found(&pod).unread, []);
    let pod = pod.unnamed();
    assert_eq!(found(&pod).unread.len(), 1);
    let another = Snapshot::healthy().pod("edge", |pod| pod.host_port(80, 30081)).unnamed();
    assert_eq!([found(&another).unread, found(&local).unread], [vec![], vec![]], "no Pod has the port");
    let (outcome, _, loser) = ask(&pod, Vantage::Remote, PRIMARY[0]);
    let gap = outcome.expect_err("the pod, or the process");
    assert!(gap.source == Source::Nodes && gap.detail.contains("pod default/edge"), "{gap:?}");
    assert_eq!((loser, &*found(&pod).claimants[0].name), (None, "pod default/edge"));
    let of = |pod: &mut Pod, kind: &str, name: &str| {
        pod.host_port(80, 30080);
        pod.controller = Some(Controller { kind: kind.to_owned(), name: name.to_owned() });
    };
    let same = (0..9).fold(pod, |world, n| {
        let world = world.pod(&format!("e{n}"), |pod| of(pod, "DaemonSet", "e"));
        world.pod(&format!("static-n{n}"), |pod| of(pod, "Node", &format!("n{n}")))
    });
    let claimants = found(&same).claimants;
    let names: Vec<&str> = claimants.iter().map(|it| &*it.name).take(3).collect();
    assert_eq!(names, ["pod default/edge", "pod default/e0", "pod default/static-n0"]);
    assert_eq!(claimants.len(), 4, "a pod of each controller, and the process");
    let other = Snapshot::healthy().pod("edge", |pod| pod.host_port(80, 9100)).listens("0.0.0.0:30080").unnamed();
    assert_eq!(ask(&other, Vantage::Remote, PRIMARY[0]).0, Ok(Outcome::Listener));
}

#[test]
fn an_external_ip_without_an_endpoint_lets_the_node_port_answer() {
    let taker = |it: World| it.external_ip(PRIMARY[0]).with(|service| service.ports[0].port = 30080);
    let world = web().service("taker", |it| taker(it).without_endpoints());
    assert_eq!(ask(&world, Vantage::Remote, PRIMARY[0]).1, Some(ClaimKind::NodePort));
    let ipvs = ask(&world.with_mode(Mode::Ipvs), Vantage::Remote, PRIMARY[0]).0;
    assert!(ipvs.is_err(), "one virtual server: {ipvs:?}");
    let world = web().service("taker", |it| taker(it).local().elsewhere());
    assert_eq!(ask(&world, Vantage::Remote, PRIMARY[0]).1, Some(ClaimKind::NodePort));
    assert_eq!(ask(&world, Vantage::Node, PRIMARY[0]).1, Some(ClaimKind::ExternalIp));
    let nftables = ask(&world.with_mode(Mode::Nftables), Vantage::Remote, PRIMARY[0]);
    assert_eq!(nftables, (Ok(Outcome::TimedOut), Some(ClaimKind::ExternalIp), None));
}

fn two(one: fn(World) -> World, other: fn(World) -> World) -> Snapshot {
    let world = Snapshot::healthy().service("api", |it| one(it.node_port(30080)));
    world.service("web", |it| other(it.node_port(30080)))
}

/// The outcome of a connection from a remote client, and the name of the claimant.
fn remote(world: &Snapshot, to: &str) -> Option<(Outcome, String)> {
    let ownership = found(world);
    let answered = ownership.answers.iter().find(|it| (it.from, it.to) == (Vantage::Remote, ip(to)));
    let Answered { outcome, by, .. } = answered.expect("an answer");
    match outcome {
        Ok(outcome) => Some((*outcome, ownership.claimants[by.expect("a claimant")].name.clone())),
        Err(gap) => {
            assert!(gap.detail.contains("order is not defined"), "{gap:?}");
            None
        }
    }
}

#[test]
fn of_two_services_with_one_node_port_the_one_that_alone_redirects_answers_and_otherwise_nobody_knows() {
    type Change = fn(World) -> World;
    let [ready, empty, elsewhere]: [Change; 3] = [|it| it, World::without_endpoints, |it| it.local().elsewhere()];
    let is = |outcome, name: &str| Some((outcome, format!("Service default/{name}")));
    for mode in Mode::ALL {
        let first = |one, other| remote(&two(one, other).with_mode(mode), PRIMARY[0]);
        let of_empty = |name| is(Outcome::Pod, name).filter(|_| [Mode::Iptables, Mode::Nftables].contains(&mode));
        let of_local = |name| is(Outcome::Pod, name).filter(|_| mode == Mode::Iptables);
        assert_eq!(first(ready, ready), None, "{mode}");
        assert_eq!([first(empty, ready), first(ready, empty)], [of_empty("web"), of_empty("api")], "{mode}");
        assert_eq!([first(elsewhere, ready), first(ready, elsewhere)], [of_local("web"), of_local("api")], "{mode}");
        assert_eq!(first(empty, empty), is(Outcome::Refused, "api"), "{mode}");
    }
    assert_eq!(remote(&two(elsewhere, empty), PRIMARY[0]), None, "rules that drop and rules that refuse");
    let beyond = two(ready, empty).with_config(|it| it.node_port_addresses = vec!["primary".to_owned()]);
    assert_eq!(remote(&beyond, SECOND[0]), is(Outcome::Refused, "web"));
    for mode in Mode::KUBE_PROXY {
        let listens = two(ready, ready).listens("0.0.0.0:30080").with_mode(mode);
        let (_, by, loser) = ask(&listens, Vantage::Remote, PRIMARY[0]);
        assert_eq!((by, loser), (None, Some(ClaimKind::Listener)), "{mode}: in any order");
    }
    let copy = Snapshot::healthy().service("web", |it| it.node_port(30080)).service("web", |it| it.node_port(30080));
    assert_eq!(remote(&copy, PRIMARY[0]), is(Outcome::Pod, "web"), "a file has it twice");
    let many = (0..9)
        .fold(web(), |world, n| world.service(&format!("empty{n}"), |it| it.node_port(30080).without_endpoints()));
    assert_eq!(remote(&many, PRIMARY[0]), None, "they are too many to compare");
}

#[test]
fn of_two_services_with_one_external_ip_and_port_the_one_that_alone_redirects_answers() {
    let taker = |it: World| it.external_ip(PRIMARY[0]).with(|service| service.ports[0].port = 30080);
    let empty = Snapshot::healthy().service("aaa", |it| taker(it).without_endpoints()).service("mmm", taker);
    assert_eq!(remote(&empty, PRIMARY[0]), Some((Outcome::Pod, "Service default/mmm".to_owned())));
    assert_eq!(remote(&Snapshot::healthy().service("aaa", taker).service("mmm", taker), PRIMARY[0]), None);
    let beside = empty.service("web", |it| it.node_port(30080));
    assert_eq!(remote(&beside, PRIMARY[0]), Some((Outcome::Pod, "Service default/mmm".to_owned())));
}

#[test]
fn a_slice_that_was_not_understood_is_no_lack_of_endpoints() {
    let empty = Snapshot::healthy().service("web", |it| it.node_port(30080).without_endpoints());
    let unread = ask(&empty.rejects(Source::EndpointSlices), Vantage::Remote, PRIMARY[0]).0;
    assert_eq!(unread.expect_err("a pod, or nobody").source, Source::EndpointSlices);
    assert_eq!(ask(&web().rejects(Source::EndpointSlices), Vantage::Remote, PRIMARY[0]).0, Ok(Outcome::Pod));
}

#[test]
fn endpoints_that_were_not_read_are_the_reason_on_the_address_of_their_service_only() {
    let taker = |it: World| it.external_ip(PRIMARY[0]).with(|service| service.ports[0].port = 30080);
    let mut world = Snapshot::healthy().service("taker", taker).listens("0.0.0.0:30080");
    world.cluster.endpoint_slices = gap(Source::EndpointSlices, Why::NotPermitted);
    let unread = ask(&world, Vantage::Remote, PRIMARY[0]).0.expect_err("a process, or an endpoint");
    assert_eq!(unread.source, Source::EndpointSlices);
    assert_eq!(ask(&world, Vantage::Remote, SECOND[0]).0, Ok(Outcome::Listener));
}

#[test]
fn what_is_not_known_is_unknown_only_where_it_matters() {
    let world = web().listens("0.0.0.0:30080").without_proxy();
    let unknown = ask(&world, Vantage::Remote, SECOND[0]);
    assert!(unknown.0.is_err() && unknown.2.is_none(), "nobody is said to lose: {unknown:?}");
    // If `nodePortAddresses` has no address of this node, Portreeve treats the list as a mistake.
    let ownership = found(&world);
    let primary = ownership.answers.iter().find(|it| (it.from, it.to) == (Vantage::Remote, ip(PRIMARY[0])));
    let primary = primary.expect("an answer");
    assert_eq!((&primary.outcome, primary.assumed), (&Ok(Outcome::Pod), Stratum::Served));
    assert!(ownership.answers.iter().filter(|it| it.outcome.is_err()).all(|it| it.assumed == Stratum::Any));
    let empty = Snapshot::healthy().service("web", |it| it.node_port(30080).without_endpoints());
    let empty = empty.listens("0.0.0.0:30080").with_mode(Mode::Iptables);
    let mut unread = empty.clone();
    unread.kernel.proxy.config = gap(Source::ProxyConfig, Why::Unreachable);
    assert_eq!(ask(&unread, Vantage::Remote, SECOND[0]).0, Ok(Outcome::Refused), "whatever list it has");
    let mut world = web();
    world.cluster.services = gap(Source::Services, Why::NotPermitted);
    assert_eq!(
        owner(&Round::of(&world, None, 60), Protocol::Tcp, 30080).map(|_| ()),
        Err(world.cluster.services.get().expect_err("a gap"))
    );
}

#[test]
fn an_answer_that_the_defaults_share_is_known_though_a_process_loses_with_every_setting() {
    let elsewhere = |it: World| it.node_port(30080).local().elsewhere();
    let world = Snapshot::healthy().service("web", elsewhere).listens("0.0.0.0:30080").with_user_mode(Mode::Iptables);
    let answers = found(&world).answers;
    let at = |from, to: &str| answers.iter().find(|it| (it.from, it.to) == (from, ip(to))).expect("an answer");
    for (from, to) in [(Vantage::Node, SECOND[0]), (Vantage::Loopback, "127.0.0.1")] {
        assert_eq!((&at(from, to).outcome, at(from, to).assumed), (&Ok(Outcome::Pod), Stratum::Defaults), "{from}");
        assert_eq!(at(from, to).losers, [1], "{from}");
    }
    assert_eq!(at(Vantage::Remote, SECOND[0]).outcome, Ok(Outcome::TimedOut));
    let gap = at(Vantage::Pods, SECOND[0]).outcome.as_ref().expect_err("clusterCIDR decides");
    assert!(gap.source == Source::ProxyConfig && gap.detail.contains("clusterCIDR"), "{gap:?}");
}

#[test]
fn without_the_sockets_of_udp_ports_of_udp_alone_are_not_known() {
    let mut world = web().listens("0.0.0.0:30080");
    world.kernel.no_udp = Some(Gap::new(Source::Listeners, Why::TooMuch, "more than are read"));
    let is_known = |protocol| owner(&Round::of(&world, None, 60), protocol, 30080).is_ok();
    assert_eq!([Protocol::Tcp, Protocol::Udp].map(is_known), [true, false]);
}

#[test]
fn endpoints_that_were_not_read_are_why_it_is_not_known_who_answers() {
    let mut world = web();
    world.cluster.endpoints_of = Some(std::sync::Arc::default());
    let (outcome, ..) = ask(&world, Vantage::Remote, PRIMARY[0]);
    let gap = outcome.expect_err("nobody knows what is behind it");
    assert!(gap.source == Source::EndpointSlices && gap.detail.contains("web"), "{gap:?}");
}

fn found(world: &Snapshot) -> Ownership {
    owner(&Round::of(world, None, 60), Protocol::Tcp, 30080).expect("it is known")
}

#[test]
fn of_two_listeners_the_one_bound_closer_answers() {
    let world = Snapshot::healthy().listens("0.0.0.0:30080").listens("192.0.2.1:30080");
    assert!(found(&world).claimants[0].detail.contains("192.0.2.1:30080"), "{:?}", found(&world).claimants);
    let device = |socket: &mut Socket| socket.device = 2;
    let world = Snapshot::healthy().listens("0.0.0.0:30080");
    let world = world.socket(Protocol::Tcp, State::Listen, "0.0.0.0:30080", "0.0.0.0:0", device);
    assert!(found(&world).claimants[0].detail.contains("on interface 2"), "{:?}", found(&world).claimants);
}

#[test]
fn of_two_owners_of_one_address_and_port_no_one_certainly_answers_and_both_lose() {
    let world = |local: &str, device| {
        let haproxy = |socket: &mut Socket| (socket.owner, socket.device) = (daemon("haproxy", 7), device);
        Snapshot::healthy().listens("0.0.0.0:30080").socket(Protocol::Tcp, State::Listen, local, "0.0.0.0:0", haproxy)
    };
    let shared = world("0.0.0.0:30080", 0);
    assert_eq!(ask(&shared, Vantage::Remote, PRIMARY[0]).0.map_err(|gap| gap.source), Err(Source::Listeners));
    let home = shared.clone().service("web", |it| leads_home(it.node_port(30080), |_| ()));
    assert_eq!(ask(&home, Vantage::Remote, PRIMARY[0]).0.map_err(|gap| gap.source), Err(Source::Listeners));
    let taken = found(&shared.service("web", |it| it.node_port(30080)));
    let remote = taken.answers.iter().find(|it| (it.from, it.to) == (Vantage::Remote, ip(PRIMARY[0])));
    let remote = remote.expect("an answer");
    let losers: Vec<&str> = remote.losers.iter().map(|it| &*taken.claimants[*it].name).collect();
    assert_eq!((&remote.outcome, losers.len()), (&Ok(Outcome::Pod), 2), "{losers:?}");
    for preferred in [world("0.0.0.0:30080", 2), world("192.0.2.1:30080", 0), world("[::]:30080", 0)] {
        assert_eq!(ask(&preferred, Vantage::Remote, PRIMARY[0]).0, Ok(Outcome::Listener));
    }
    assert!(ask(&world("[::]:30080", 2), Vantage::Remote, PRIMARY[0]).0.is_err(), "a device counts as IPv4 does");
}

#[test]
fn many_sockets_that_perhaps_answer_do_not_hide_that_a_service_answers() {
    let world = (1..=20).fold(web().listens_as("0.0.0.0:30080", daemon("sshd", 600)), |world, n| {
        let mut world = world.address(&format!("br{n}"), &format!("198.51.100.{n}"));
        let link = interfaces_of(&mut world).links.last_mut().expect("a link");
        link.kind = Some("bridge".to_owned());
        let device = link.index;
        let bound = |it: &mut Socket| (it.device, it.owner) = (device, daemon(&format!("vm{n}"), n));
        world.socket(Protocol::Tcp, State::Listen, "0.0.0.0:30080", "0.0.0.0:0", bound)
    });
    let taken = |loser| (Ok(Outcome::Pod), Some(ClaimKind::NodePort), loser);
    assert_eq!(ask(&world, Vantage::Remote, PRIMARY[0]), taken(None), "who loses is not known");
    assert_eq!(ask(&world, Vantage::Node, PRIMARY[0]), taken(Some(ClaimKind::Listener)));
}

#[test]
fn whether_a_socket_without_a_device_answers_in_a_vrf_is_not_known() {
    let world = Snapshot::healthy().address("blue", "203.0.113.9").address("eth1", "198.51.100.1");
    let mut world = world.listens("0.0.0.0:30080");
    let links = &mut interfaces_of(&mut world).links;
    (links[2].kind, links[3].master) = (Some("vrf".to_owned()), Some(3));
    for to in ["203.0.113.9", "198.51.100.1"] {
        assert_eq!(ask(&world, Vantage::Remote, to).0.map_err(|gap| gap.source), Err(Source::Sysctls), "{to}");
    }
    assert_eq!(ask(&world, Vantage::Remote, PRIMARY[0]).0, Ok(Outcome::Listener));
    seen(&mut world.kernel.listeners).last_mut().expect("a listener").device = 3;
    assert_eq!(ask(&world, Vantage::Remote, "198.51.100.1").0, Ok(Outcome::Listener));
    assert_eq!(ask(&world, Vantage::Remote, PRIMARY[0]).0, Ok(Outcome::Refused));
}

#[test]
fn workers_are_counted() {
    let world = Snapshot::healthy().listens("0.0.0.0:30080");
    assert!(!found(&world).claimants[0].detail.contains("workers"));
    assert!(found(&world.listens("0.0.0.0:30080")).claimants[0].detail.ends_with(", 2 workers"));
}

#[test]
fn a_host_port_is_on_its_host_ip_and_on_no_ipv6_loopback() {
    let at = |host_ip: Option<&str>| {
        Snapshot::healthy().pod("edge", |pod| {
            pod.host_port(80, 30080);
            pod.ports[0].host_ip = host_ip.map(ip);
        })
    };
    let pod = (Ok(Outcome::Pod), Some(ClaimKind::HostPort), None);
    let none = (Ok(Outcome::Refused), None, None);
    for everywhere in [at(None), at(Some("0.0.0.0"))] {
        assert_eq!(ask(&everywhere, Vantage::Remote, SECOND[0]), pod);
        assert_eq!(ask(&everywhere, Vantage::Loopback, "127.0.0.1"), pod);
    }
    assert_eq!(ask(&at(None), Vantage::Remote, PRIMARY[1]), pod);
    assert_eq!(ask(&at(Some(PRIMARY[0])), Vantage::Remote, PRIMARY[0]), pod);
    assert_eq!(ask(&at(Some(PRIMARY[0])), Vantage::Remote, SECOND[0]), none);
}

#[test]
fn a_host_port_is_of_the_families_of_its_pod() {
    let world = Snapshot::healthy().listens("[::]:30080").pod("edge", |pod| {
        pod.host_port(80, 30080);
        pod.ips.retain(std::net::IpAddr::is_ipv4);
    });
    for world in [world.clone(), world.with_mode(Mode::Ipvs)] {
        assert_eq!(ask(&world, Vantage::Remote, PRIMARY[0]).1, Some(ClaimKind::HostPort));
        assert_eq!(ask(&world, Vantage::Loopback, "::1"), (Ok(Outcome::Listener), Some(ClaimKind::Listener), None));
    }
}

#[test]
fn in_ipvs_mode_a_node_loses_its_own_link_local_address() {
    let mut world = web().listens("[::]:30080").with_mode(Mode::Ipvs);
    let addresses = &mut std::sync::Arc::make_mut(seen(&mut world.kernel.interfaces)).addresses;
    let mut link_local = addresses.iter().find(|it| it.ip == ip(PRIMARY[1])).expect("an address").clone();
    link_local.ip = ip("fe80::1");
    addresses.push(link_local);
    let process = (Ok(Outcome::Listener), Some(ClaimKind::Listener), None);
    let nowhere = (Ok(Outcome::Nowhere), Some(ClaimKind::NodePort), Some(ClaimKind::Listener));
    assert_eq!(ask(&world, Vantage::Node, "fe80::1"), nowhere);
    assert_eq!(ask(&world, Vantage::Remote, "fe80::1"), process, "others on the link reach it");
    for (listed, answer) in [(SECOND[1], nowhere), ("2001:dead::1", process.clone())] {
        let listed = world.clone().with_config(|it| it.node_port_addresses = vec![format!("{listed}/128")]);
        assert_eq!(ask(&listed, Vantage::Node, "fe80::1"), answer);
    }
    let mut unread = world.clone();
    unread.kernel.proxy.config = gap(Source::ProxyConfig, Why::TimedOut);
    let answers = found(&unread).answers;
    let own = answers.iter().find(|it| (it.from, it.to) == (Vantage::Node, ip("fe80::1"))).expect("an answer");
    assert_eq!((&own.outcome, own.assumed), (&Ok(Outcome::Nowhere), Stratum::Served));
    let mut local = world.clone();
    objects(&mut local.cluster.services)[0].external_local = true;
    assert_eq!(ask(&local, Vantage::Node, "fe80::1"), process, "nothing is masqueraded");
    let mut datagrams = world.clone();
    objects(&mut datagrams.cluster.services)[0].ports[0].protocol = Protocol::Udp;
    seen(&mut datagrams.kernel.listeners).last_mut().expect("a listener").protocol = Protocol::Udp;
    let answers = owner(&Round::of(&datagrams, None, 60), Protocol::Udp, 30080).expect("it is known").answers;
    let at_home = answers.iter().find(|it| (it.from, it.to) == (Vantage::Node, ip("fe80::1"))).expect("an answer");
    assert_eq!(at_home.outcome, Ok(Outcome::Listener), "a datagram arrives");
    let mut bound = world;
    seen(&mut bound.kernel.listeners).last_mut().expect("a listener").device = 2;
    assert_eq!(ask(&bound, Vantage::Node, "fe80::1"), process);
}

#[test]
fn of_many_sockets_on_every_address_each_is_behind_the_socket_of_an_address_only_at_this_address() {
    let world = (1..50).fold(web(), |world, n| {
        let world = world.listens(&format!("127.1.0.{n}:30080"));
        world.listens("192.0.2.1:30080").listens_as("0.0.0.0:30080", daemon("other", n))
    });
    let round = Round::of(&world, None, 60);
    let all = round.listeners().get().expect("listeners").at((Protocol::Tcp, 30080));
    for socket in all {
        let is_behind = |to| round.is_behind(socket, (Vantage::Remote, LocalAddress { ip: ip(to), vrf: false }));
        assert_eq!(is_behind(PRIMARY[0]), Ok(socket.local.is_unspecified()), "{}", socket.local);
        assert_eq!(is_behind(SECOND[0]), Ok(false), "{}", socket.local);
    }
}

#[test]
fn a_silent_kube_proxy_is_named_unless_another_program_may_serve_services() {
    let is_named = |world: &Snapshot| found(world).no_proxy.is_some();
    let silent = web().without_proxy();
    let mut configured = silent.clone();
    let config = ProxyConfig { mode: Some("iptables".to_owned()), ..ProxyConfig::default() };
    configured.cluster.proxy_config = Reading::Seen(config);
    assert!(is_named(&silent) && is_named(&configured));
    for (link, without_mode, with_mode) in [
        ("antrea-gw0", false, true),
        ("kube-bridge", false, true),
        ("cilium_host", false, false),
        ("kube-dummy-if", false, false),
    ] {
        assert_eq!(is_named(&silent.clone().address(link, "10.9.0.1")), without_mode, "{link}");
        assert_eq!(is_named(&configured.clone().address(link, "10.9.0.1")), with_mode, "{link}");
    }
    let mut beside = silent.address("cilium_host", "10.9.0.1");
    beside.cluster.cilium_replaces = Some(false);
    assert!(is_named(&beside), "Cilium does not replace kube-proxy");
}

/// A pod at 10.1.0.8 with hostPort 30080, and its redirections in this order: the target address and the table.
fn redirected(redirections: &[(&str, &str)]) -> Snapshot {
    let world = Snapshot::healthy().pod("edge", |pod| {
        pod.host_port(80, 30080);
        pod.ips = vec![ip("10.1.0.8")];
    });
    with_redirections(world, redirections)
}

fn with_redirections(mut world: Snapshot, redirections: &[(&str, &str)]) -> Snapshot {
    let redirection = |(to, table): &(&str, &str)| Redirection {
        protocol: Protocol::Tcp,
        port: 30080,
        ip: None,
        to: ip(to),
        to_port: 80,
        chain: format!("{table} CNI-DN-1"),
        handle: 7,
    };
    let redirections = Reading::Seen(redirections.iter().map(redirection).collect());
    world.kernel.netfilter = Reading::Seen(Netfilter { redirections, ..Netfilter::default() });
    world
}

const LEFT: (&str, &str) = ("10.1.0.7", "ip nat");
const ALIVE: (&str, &str) = ("10.1.0.8", "ip nat");

#[test]
fn a_redirection_that_was_left_behind_takes_what_a_pod_of_today_wants() {
    let left = (Ok(Outcome::Nowhere), Some(ClaimKind::Redirection), None);
    let pod = (Ok(Outcome::Pod), Some(ClaimKind::HostPort), None);
    let world = redirected(&[LEFT, ALIVE]);
    for (from, to) in [(Vantage::Remote, PRIMARY[0]), (Vantage::Pods, SECOND[0]), (Vantage::Loopback, "127.0.0.1")] {
        assert_eq!(ask(&world, from, to), left);
    }
    let first = &found(&world).claimants[0];
    assert!(first.name.ends_with("to 10.1.0.7:80") && first.detail.contains("no pod of this node has"), "{first:?}");
    assert_eq!(ask(&redirected(&[ALIVE, LEFT]), Vantage::Remote, PRIMARY[0]), pod);
    assert_eq!(found(&redirected(&[ALIVE, LEFT])).claimants[1].claim, ClaimKind::Redirection);
    assert_eq!(ask(&redirected(&[ALIVE]), Vantage::Remote, PRIMARY[0]), pod);
    let mut cilium = world.with_mode(Mode::Cilium);
    let beside = cilium.clone().service("web", |it| it.node_port(30080));
    assert_eq!(ask(&beside, Vantage::Remote, SECOND[0]), left, "Cilium does not serve the NodePort there");
    assert_eq!(ask(&cilium, Vantage::Remote, PRIMARY[0]), left, "Cilium does not serve it for its number");
    let ranges = Reading::Seen(vec!["31000-31999".parse().expect("a range")]);
    let by = portreeve_facts::Claimant::Cilium;
    cilium.cluster.range_claims.push(RangeClaim { by, ranges, place: String::new() });
    assert_eq!(ask(&cilium, Vantage::Remote, PRIMARY[0]), pod);
    let in_two_tables = redirected(&[("10.1.0.7", "ip cni_hostport"), ALIVE]);
    assert!(ask(&in_two_tables, Vantage::Remote, PRIMARY[0]).0.is_err(), "the order of the tables was not read");
    let (outcome, _, loser) = ask(&in_two_tables.listens("0.0.0.0:30080"), Vantage::Remote, PRIMARY[0]);
    assert!(outcome.is_err() && loser == Some(ClaimKind::Listener), "each redirection takes its connections");
}

#[test]
fn without_this_nodes_name_the_redirection_of_a_pod_is_not_called_leftover() {
    let first = |world: Snapshot| found(&world.unnamed()).claimants.remove(0);
    let alive = first(redirected(&[ALIVE]));
    assert_eq!(alive.name, "a redirection of a hostPort, to 10.1.0.8:80");
    assert_eq!(alive.detail, "an address of pod default/edge, which may be on this node");
    let mut other = redirected(&[ALIVE]);
    objects(&mut other.cluster.pods)[0].ports[0].host_port = Some(9100);
    let left = first(other);
    assert!(left.name.starts_with("a leftover redirection") && left.detail.contains("pod default/edge"), "{left:?}");
    assert!(ask(&redirected(&[ALIVE]).unnamed(), Vantage::Remote, PRIMARY[0]).0.is_err());
}

#[test]
fn thousands_of_pods_and_redirections_of_one_port_are_ordered_as_a_few_are() {
    let address = |n: u32| std::net::Ipv4Addr::from(0x0a01_0000 + n).to_string();
    let world = (0..2_000).fold(Snapshot::healthy(), |world, n| {
        world.pod(&format!("p{n}"), |pod| {
            pod.host_port(80, 30080);
            pod.ips = vec![ip(&address(n))];
        })
    });
    // Half of these redirections lead to a living pod. The kernel evaluates the first redirection first, and this
    // redirection leads to no pod.
    let targets: Vec<String> = std::iter::once(9_000).chain(1_000..3_000).map(address).collect();
    let targets: Vec<(&str, &str)> = targets.iter().map(|it| (it.as_str(), "ip nat")).collect();
    let world = with_redirections(world, &targets);
    let claims: Vec<ClaimKind> = found(&world).claimants.into_iter().map(|it| it.claim).collect();
    let of = |kind, count| std::iter::repeat_n(kind, count);
    let wanted =
        of(ClaimKind::Redirection, 1).chain(of(ClaimKind::HostPort, 2_000)).chain(of(ClaimKind::Redirection, 1_000));
    assert!(claims.into_iter().eq(wanted));
}

#[test]
fn without_a_pod_that_wants_the_port_it_takes_what_a_listener_would_have_and_stands_where_a_host_port_stands() {
    let (left, listener) = (Some(ClaimKind::Redirection), Some(ClaimKind::Listener));
    let world = || with_redirections(Snapshot::healthy(), &[LEFT]);
    assert_eq!(ask(&world(), Vantage::Remote, PRIMARY[0]), (Ok(Outcome::Nowhere), left, None));
    assert_eq!(ask(&world(), Vantage::Remote, PRIMARY[1]), (Ok(Outcome::Refused), None, None), "it is of IPv4");
    let listens = world().listens("0.0.0.0:30080");
    assert_eq!(ask(&listens, Vantage::Remote, PRIMARY[0]), (Ok(Outcome::Nowhere), left, listener));
    let web = |mode| world().service("web", |it| it.node_port(30080)).with_mode(mode);
    assert_eq!(ask(&web(Mode::Iptables), Vantage::Remote, PRIMARY[0]).1, Some(ClaimKind::NodePort));
    assert_eq!(ask(&web(Mode::Ipvs), Vantage::Remote, PRIMARY[0]).1, left);
    assert!(ask(&web(Mode::Nftables), Vantage::Remote, PRIMARY[0]).0.is_err(), "whichever chain was made last");
}

#[test]
fn where_a_redirection_leads_is_told_only_where_no_other_container_may_be_there() {
    let world = |change: fn(&mut portreeve_facts::Pod)| {
        let world = Snapshot::healthy().pod("other", |pod| {
            pod.ips = vec![ip("10.1.0.7")];
            change(pod);
        });
        with_redirections(world, &[LEFT])
    };
    let answer = |world: &Snapshot| ask(world, Vantage::Remote, PRIMARY[0]).0;
    assert_eq!(answer(&world(|_| {})), Ok(Outcome::Pod), "another pod has the address");
    assert_eq!(answer(&world(|pod| pod.finished = true)), Ok(Outcome::Nowhere));
    let multus = world(|pod| (pod.more_networks, pod.ips) = (true, vec![ip("10.1.0.9")]));
    assert!(answer(&multus).is_err());
    let (outcome, _, loser) = ask(&multus.clone().listens("0.0.0.0:30080"), Vantage::Remote, PRIMARY[0]);
    assert!(outcome.is_err() && loser == Some(ClaimKind::Listener), "whoever has the address, the process loses");
    let served = multus.service("web", |it| it.node_port(30080)).with_mode(Mode::Iptables);
    assert_eq!(ask(&served, Vantage::Remote, PRIMARY[0]).1, Some(ClaimKind::NodePort), "the Service is first");
    let unread = with_redirections(Snapshot::healthy(), &[LEFT]).rejects(Source::Pods);
    assert!(answer(&unread).is_err(), "a pod that was not read may have it");
    let awaited = world(|pod| {
        pod.ips.clear();
        pod.host_port(80, 30080);
    });
    assert_eq!(ask(&awaited, Vantage::Remote, PRIMARY[0]).1, Some(ClaimKind::HostPort), "the address may become its");
}

#[test]
fn redirections_that_were_not_read_are_named_once_and_without_a_right_doubt_no_answer() {
    let closed = |mut world: Snapshot, why| {
        world.kernel.netfilter = gap(Source::Netfilter, why);
        world
    };
    let of_pod = closed(redirected(&[]), Why::NotPermitted);
    assert_eq!(found(&of_pod).redirections.map(|gap| gap.why), Some(Why::NotPermitted));
    assert_eq!(ask(&of_pod, Vantage::Remote, PRIMARY[0]).0, Ok(Outcome::Pod));
    assert_eq!(found(&closed(redirected(&[]), Why::NotRequested)).redirections, None);
    for why in [Why::NotPermitted, Why::NotSupported, Why::TimedOut, Why::TooMuch] {
        let after_the_last_host_port = found(&closed(web(), why));
        assert_eq!(after_the_last_host_port.redirections.map(|gap| gap.why), Some(why));
        assert_eq!(after_the_last_host_port.unread, []);
    }
    let mut of_no_pods = closed(web(), Why::TimedOut);
    of_no_pods.cluster.pods = gap(Source::Pods, Why::NotPermitted);
    assert_eq!(found(&of_no_pods).redirections.map(|gap| gap.source), Some(Source::Netfilter), "beside the pods");
    assert_eq!(found(&redirected(&[ALIVE])).redirections, None);
}
