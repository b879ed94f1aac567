use super::*;
use portreeve_facts::{
    Holder, Learned, State,
    healthy::{daemon, gap, held, objects, proxy_holder, seen},
};

fn owns(world: &Snapshot) -> Own {
    let socket = world.kernel.listeners.seen().expect("listeners").last().expect("one");
    Proxy::of(world).owns(socket)
}

#[test]
fn a_socket_of_the_process_that_answers_proxy_mode_is_the_proxys_own() {
    let world = Snapshot::healthy().service("web", |it| it.node_port(30080));
    assert_eq!(owns(&world.clone().listens_as("0.0.0.0:30080", proxy_holder())), Own::Yes);
    assert_eq!(owns(&world.listens("0.0.0.0:30080")), Own::No);
}

#[test]
fn a_kube_proxy_that_serves_loopback_in_nftables_mode_may_hold_its_node_ports_there() {
    let world = |local: &str, owner: Owner, gate| {
        let world = Snapshot::healthy().service("web", |it| it.node_port(30080)).listens_as(local, owner);
        let mut world = world.with_mode(Mode::Nftables).with_config(|config| config.nftables_localhost = gate);
        // Without the proxy's cgroup, no owner's cgroup can be compared.
        world.kernel.proxy.cgroup = gap(Source::Cgroups, Why::NotPermitted);
        world.kernel.proxy.process = gap(Source::Processes, Why::NotPermitted);
        owns(&world)
    };
    let other = || daemon("other", 9);
    assert_eq!(world("127.0.0.1:30080", other(), Some(true)), Own::Unknown);
    assert_eq!(world("127.0.0.1:30080", other(), None), Own::No);
    assert_eq!(world("192.0.2.1:30080", other(), Some(true)), Own::No);
    let compared = Snapshot::healthy().service("web", |it| it.node_port(30080)).listens_as("127.0.0.1:30080", other());
    let compared = compared.with_mode(Mode::Nftables).with_config(|config| config.nftables_localhost = Some(true));
    assert_eq!(owns(&compared), Own::No, "it is certainly another process");
    let udp = compared.with_config(|_| ()).listens_udp("127.0.0.1:30080");
    assert_eq!(owns(&udp), Own::No);
}

#[test]
fn a_daemons_port_is_a_conflict_even_inside_the_proxys_process() {
    let world = Snapshot::healthy().service("web", |it| it.node_port(6443));
    assert_eq!(owns(&world.listens_as("0.0.0.0:6443", proxy_holder())), Own::No);
}

#[test]
fn a_proxy_opens_no_node_port_if_its_version_its_kind_or_the_kubelet_shows_it() {
    let never = |world: &Snapshot| Proxy::of(world).never_holds();
    let of_version = |version: &str| {
        let mut world = Snapshot::healthy();
        seen(&mut world.kernel.proxy.metrics).version = Some(version.to_owned());
        world
    };
    assert_eq!(["v1.23.6", "v1.24.0"].map(|version| never(&of_version(version))), [false, true]);
    let of_gate = |gate| Snapshot::healthy().with_mode(Mode::Nftables).with_config(|it| it.nftables_localhost = gate);
    assert_eq!([Some(true), None].map(|gate| never(&of_gate(gate))), [false, true]);

    let silent = Snapshot::healthy().without_proxy();
    assert!(!never(&silent));
    let of_mode = |mode, kubelet: &str| {
        let mut world = silent.clone();
        world.overrides.proxy_mode = Some(Learned { value: mode, place: "--proxy-mode".to_owned() });
        objects(&mut world.cluster.nodes)[0].kubelet_version = Some(kubelet.to_owned());
        never(&world)
    };
    assert_eq!(["v1.26.0", "v1.27.0"].map(|kubelet| of_mode(Mode::Iptables, kubelet)), [false, true]);
    assert!(!of_mode(Mode::Nftables, "v1.37.0") && of_mode(Mode::Cilium, "v1.26.0"));
}

fn without_proxy(last: u16) -> Snapshot {
    (30080..=last).fold(Snapshot::healthy().without_proxy(), |world, port| {
        world.service(&format!("s{port}"), |it| it.node_port(port))
    })
}

fn holds(world: Snapshot, ports: &[u16], owner: &Owner) -> Snapshot {
    ports.iter().fold(world, |world, port| world.listens_as(&format!("0.0.0.0:{port}"), owner.clone()))
}

#[test]
fn where_no_proxy_answers_whoever_holds_every_node_port_may_be_one() {
    let one = holds(without_proxy(30081), &[30080], &daemon("ovnkube", 9));
    assert_eq!(owns(&one), Own::No);
    let both = holds(one, &[30081], &daemon("ovnkube", 9));
    assert_eq!(owns(&both), Own::Unknown);
    assert_eq!(owns(&both.with_mode(Mode::Cilium)), Own::No, "Cilium holds no port with a socket");
    let mut supposed = both.clone();
    supposed.suppose_mode(Mode::Nftables, "--set");
    assert_eq!(owns(&supposed), Own::Unknown, "nobody stated that another proxy runs");
    assert_eq!(owns(&both.with_user_mode(Mode::Nftables)), Own::No);
}

#[test]
fn whoever_is_not_root_holds_no_node_ports_for_a_proxy() {
    let mut world = holds(without_proxy(30081), &[30080, 30081], &daemon("nginx", 9));
    assert_eq!(owns(&world), Own::Unknown);
    seen(&mut world.kernel.listeners).iter_mut().for_each(|socket| socket.uid = 65534);
    assert_eq!(owns(&world), Own::No);
    assert!(Proxy::of(&world).owner_of_node_ports().is_none());
}

#[test]
fn a_foreign_listener_on_one_node_port_makes_no_conflict_of_the_others() {
    let (ovnkube, nginx) = (daemon("ovnkube", 9), daemon("nginx", 10));
    let world = holds(holds(without_proxy(30082), &[30082], &nginx), &[30080, 30081], &ovnkube);
    let proxy = Proxy::of(&world);
    let found = |port| {
        let listeners = world.kernel.listeners.seen().expect("listeners");
        proxy.owns(listeners.iter().find(|it| it.local_port == port).expect("one"))
    };
    assert_eq!([30080, 30081, 30082].map(found), [Own::Unknown, Own::Unknown, Own::No]);
    assert_eq!(proxy.owner_of_node_ports().map(|socket| socket.local_port), Some(30080));
}

#[test]
fn whoever_leaves_node_ports_free_holds_none_but_one_may_just_have_been_allocated() {
    let nginx = daemon("nginx", 9);
    assert_eq!(owns(&holds(without_proxy(30082), &[30080, 30081], &nginx)), Own::Unknown);
    let three_of_five = holds(without_proxy(30084), &[30080, 30081, 30082], &nginx);
    assert_eq!(owns(&three_of_five), Own::No);
    assert!(Proxy::of(&three_of_five).owner_of_node_ports().is_none());
    let (away, udp) =
        (three_of_five.clone().listens("0.0.0.0:30085"), three_of_five.clone().listens_udp("0.0.0.0:30084"));
    for world in [away, udp] {
        assert!(Proxy::of(&world).owner_of_node_ports().is_none(), "the other one holds another port");
    }
    let connected = three_of_five.connects(State::Established, "192.0.2.1:30084", "192.0.2.9:443");
    assert_eq!(owns(&connected), Own::Unknown, "a connection keeps it off");
}

#[test]
fn of_many_node_ports_a_few_may_just_have_been_allocated() {
    let ports: Vec<u16> = (30080..30096).collect();
    assert_eq!(owns(&holds(without_proxy(30097), &ports, &daemon("ovnkube", 9))), Own::Unknown);
    assert_eq!(owns(&holds(without_proxy(30098), &ports, &daemon("ovnkube", 9))), Own::No);
    assert_eq!(owns(&holds(without_proxy(30097), &ports[1..], &daemon("ovnkube", 9))), Own::No);
}

#[test]
fn the_only_node_port_is_held_by_no_proxy_where_one_that_holds_none_is_configured() {
    let mut world = without_proxy(30080);
    world.cluster.proxy_config = Snapshot::healthy().kernel.proxy.config;
    let held = |world: &Snapshot| owns(&holds(world.clone(), &[30080], &in_a_pod()));
    assert_eq!(held(&world), Own::No);
    for (version, own) in [("v1.27.0", Own::No), ("v1.26.9", Own::Unknown), ("devel", Own::Unknown)] {
        objects(&mut world.cluster.nodes)[0].kubelet_version = Some(version.to_owned());
        assert_eq!(held(&world), own, "{version}");
    }
    world.cluster.nodes = gap(Source::Nodes, Why::NotRequested);
    assert_eq!(held(&world), Own::Unknown);
    let mut two = without_proxy(30081);
    two.cluster.proxy_config = world.cluster.proxy_config;
    assert_eq!(owns(&holds(two, &[30080, 30081], &daemon("ovnkube", 9))), Own::Unknown, "it may be left of another");
}

#[test]
fn whoever_has_no_more_than_half_of_the_node_ports_holds_none() {
    let world = holds(without_proxy(30083), &[30082, 30083], &daemon("nginx", 9));
    assert_eq!(owns(&holds(world, &[30080, 30081], &daemon("apache2", 10))), Own::No);
}

#[test]
fn the_node_ports_of_another_proxy_and_those_of_sctp_are_nobodys_to_hold() {
    let world = without_proxy(30080)
        .service("sctp", |it| it.node_port(30081).protocol(Protocol::Sctp))
        .service("other", |it| it.node_port(30082).with(|service| service.proxy_name = Some("other".to_owned())));
    assert_eq!(owns(&holds(world, &[30080], &in_a_pod())), Own::Unknown);
}

#[test]
fn the_only_node_port_is_no_sign_of_a_proxy_where_its_holder_is_in_no_pod() {
    assert_eq!(owns(&holds(without_proxy(30080), &[30080], &daemon("python3", 9))), Own::No);
    assert_eq!(owns(&holds(without_proxy(30080), &[30080], &in_a_pod())), Own::Unknown);
    assert_eq!(owns(&holds(without_proxy(30081), &[30080, 30081], &daemon("python3", 9))), Own::Unknown);
}

#[test]
fn a_pod_on_all_node_ports_is_no_excuse_for_settings_whose_reading_failed() {
    let world = holds(without_proxy(30080), &[30080], &in_a_pod());
    let reason = |why| {
        let mut world = world.clone();
        world.cluster.proxy_config = gap(Source::ConfigMaps, why);
        let socket = world.kernel.listeners.seen().expect("listeners").last().expect("one");
        Proxy::of(&world).is_own(socket).map_err(|gap| (gap.source, gap.why))
    };
    assert_eq!(reason(Why::Torn), Err((Source::ConfigMaps, Why::Torn)));
    assert_eq!(reason(Why::NotPermitted), Err((Source::ProxyProcess, Why::Ambiguous)));
}

fn in_a_pod() -> Owner {
    held("/kubepods/burstable/poduid-ovn/c1", Some("uid-ovn"), "ovnkube", 9)
}

#[test]
fn whoever_holds_the_proxys_port_and_does_not_answer_may_be_the_proxy() {
    let mut world = Snapshot::healthy().service("a", |it| it.node_port(30080)).service("b", |it| it.node_port(30081));
    for why in [Why::TimedOut, Why::Unreachable] {
        world = world.without_proxy();
        world.kernel.proxy.mode = gap(Source::ProxyMode, why);
        let its = world.clone().listens_as("0.0.0.0:30080", proxy_holder());
        assert_eq!(owns(&its), if why == Why::TimedOut { Own::Unknown } else { Own::No }, "{why:?}");
        assert_eq!(owns(&its.listens("0.0.0.0:30081")), Own::No);
    }
}

fn hangs(world: &Snapshot) -> bool {
    let socket = world.kernel.listeners.seen().expect("listeners").last().expect("one");
    Proxy::of(world).hangs(socket)
}

fn silent() -> Snapshot {
    let mut world = Snapshot::healthy().without_proxy();
    world.kernel.proxy.mode = gap(Source::ProxyMode, Why::TimedOut);
    seen(&mut world.kernel.listeners).clear();
    world
}

#[test]
fn one_program_that_hangs_has_each_socket_that_was_queried() {
    let exporter = || daemon("exporter", 9);
    let proxy = silent().listens_as("127.0.0.1:10249", proxy_holder());
    let with_health = |world: &Snapshot, owner| world.clone().listens_as("[::]:10256", owner);
    assert!(hangs(&with_health(&proxy, proxy_holder())));
    assert!(!hangs(&with_health(&proxy, exporter())));
    let beside = proxy.clone().listens_as("192.0.2.1:10249", exporter());
    assert!(hangs(&with_health(&beside, proxy_holder())));
    assert!(!hangs(&with_health(&beside, exporter())), "nobody queried 192.0.2.1");
    let two = proxy.listens_as("[::1]:10249", exporter());
    assert!(!hangs(&with_health(&two, proxy_holder())), "either may be the one that hangs");
    let elsewhere = silent().listens_as("192.0.2.1:10249", proxy_holder());
    assert!(hangs(&with_health(&elsewhere, proxy_holder())), "no process listens on loopback");
    assert!(!hangs(&with_health(&silent(), proxy_holder())));
}

#[test]
fn two_processes_are_one_program_in_a_container_and_elsewhere_only_if_one_of_them_is_unknown() {
    let world = |path: &str, pod, pids: [u32; 2]| {
        let [one, other] = pids.map(|pid| held(path, pod, "a", pid));
        silent().listens_as("127.0.0.1:10249", one).listens_as("[::]:10256", other)
    };
    let unnamed =
        |world: &Snapshot| with_holder(world, |holder| holder.process = gap(Source::Processes, Why::NotPermitted));
    for (path, pod, has_one_program) in [
        ("/user.slice/user-0.slice/session-1.scope", None, false),
        ("/", None, false),
        ("/system.slice/k3s.service", None, true),
        ("/kubepods/burstable/poduid-kube-proxy/p1", Some("uid-kube-proxy"), true),
    ] {
        assert!(hangs(&world(path, pod, [901, 901])), "{path}");
        let two = world(path, pod, [901, 902]);
        assert_eq!(hangs(&two), pod.is_some(), "{path}");
        assert_eq!(hangs(&unnamed(&two)), has_one_program, "{path}");
    }
}

#[test]
fn another_program_in_the_proxys_session_or_service_is_not_the_proxy() {
    let world = |path: &str, pid| {
        let Owner::Held(proxy) = held(path, None, "kube-proxy", 900) else { unreachable!("a process") };
        let mut world = Snapshot::healthy().service("web", |it| it.node_port(30080));
        (world.kernel.proxy.cgroup, world.kernel.proxy.process) = (proxy.cgroup, proxy.process);
        world.listens_as("0.0.0.0:30080", held(path, None, "nc", pid))
    };
    let unread =
        |world: &Snapshot| with_holder(world, |holder| holder.process = gap(Source::Processes, Why::NotPermitted));
    let session = "/user.slice/user-0.slice/session-3.scope";
    let docker = format!("/system.slice/docker-{}.scope", "0a".repeat(32));
    for (path, another, own) in [
        (session, Own::No, Own::Unknown),
        ("/system.slice/k3s.service", Own::No, Own::Yes),
        (&*docker, Own::Yes, Own::Yes),
    ] {
        assert_eq!(owns(&world(path, 900)), Own::Yes, "{path}: the same process");
        assert_eq!(owns(&world(path, 901)), another, "{path}: another process");
        assert_eq!(owns(&unread(&world(path, 901))), own, "{path}");
    }
    let unread = unread(&world(session, 901));
    let socket = unread.kernel.listeners.seen().expect("listeners").last().expect("one");
    assert_eq!(Proxy::of(&unread).is_own(socket).map_err(|gap| gap.source), Err(Source::Processes));
}

#[test]
fn an_earlier_process_of_the_proxys_service_may_be_the_proxy_before_a_restart() {
    let world = |path: &str, started: u64| {
        let Owner::Held(mut proxy) = held(path, None, "kube-proxy", 900) else { unreachable!("a process") };
        seen(&mut proxy.process).started = 700;
        let mut world = Snapshot::healthy().service("web", |it| it.node_port(30080));
        (world.kernel.proxy.cgroup, world.kernel.proxy.process) = (proxy.cgroup, proxy.process);
        world = world.listens_as("0.0.0.0:30080", held(path, None, "kube-proxy", 800));
        with_holder(&world, |holder| seen(&mut holder.process).started = started)
    };
    let service = "/system.slice/kube-proxy.service";
    let restarted = world(service, 600);
    assert_eq!(owns(&restarted), Own::Unknown);
    let socket = restarted.kernel.listeners.seen().expect("listeners").last().expect("one");
    let torn = Proxy::of(&restarted).is_own(socket).expect_err("it is not known");
    assert_eq!((torn.source, torn.why), (Source::ProxyProcess, Why::Torn));
    assert_eq!(owns(&world(service, 800)), Own::No, "a later process is another program of the service");
    assert_eq!(owns(&world("/user.slice/session-3.scope", 600)), Own::No, "the group is no service");
    let reason = |path: &str, started: u64, change: fn(&mut Snapshot)| {
        let mut world = with_holder(&world(path, started), |holder| holder.cgroup = gap(Source::Cgroups, Why::Stale));
        change(&mut world);
        let socket = world.kernel.listeners.seen().expect("listeners").last().expect("one");
        Proxy::of(&world).is_own(socket).map_err(|gap| (gap.source, gap.why))
    };
    let docker = format!("/system.slice/docker-{}.scope", "0a".repeat(32));
    for path in [service, &*docker] {
        assert_eq!(reason(path, 600, |_| ()), Err((Source::Cgroups, Why::Stale)), "{path}");
        assert_eq!(reason(path, 800, |_| ()), Ok(false), "{path}: a later process");
    }
    assert_eq!(reason("/user.slice/session-3.scope", 600, |_| ()), Ok(false));
    let of_pod = |world: &mut Snapshot| {
        let Owner::Held(proxy) = proxy_holder() else { unreachable!("a process") };
        world.kernel.proxy.cgroup = proxy.cgroup;
    };
    assert_eq!(reason(service, 600, of_pod), Ok(false), "a restarted container of a pod has a new group");
    let of_none = |world: &mut Snapshot| world.kernel.proxy.cgroup = gap(Source::Cgroups, Why::NotSupported);
    assert_eq!(reason(service, 600, of_none), Ok(false), "the kernel reports no groups");
    let mut unread = world(service, 600);
    unread.kernel.proxy.cgroup = gap(Source::ProxyProcess, Why::TimedOut);
    let socket = unread.kernel.listeners.seen().expect("listeners").last().expect("one");
    let failed = Proxy::of(&unread).is_own(socket).expect_err("it is not known");
    assert_eq!((failed.source, failed.why), (Source::Cgroups, Why::TimedOut), "the proxy's group was not read");
}

fn with_holder(world: &Snapshot, change: impl FnOnce(&mut Holder)) -> Snapshot {
    let mut world = world.clone();
    let socket = seen(&mut world.kernel.listeners).last_mut().expect("one");
    let Owner::Held(holder) = &mut socket.owner else { panic!("held") };
    change(holder);
    world
}

fn rootless(holder: &mut Holder) {
    let Reading::Seen(cgroup) = &mut holder.cgroup else { panic!("seen") };
    (cgroup.path, cgroup.pod) = ("/".to_owned(), None);
}

#[test]
fn the_root_cgroup_makes_nobody_the_same_and_a_pid_alone_neither() {
    let mut world = Snapshot::healthy().service("web", |it| it.node_port(30080));
    world = world.listens_as("0.0.0.0:30080", proxy_holder());
    let later = |holder: &mut Holder| {
        let Reading::Seen(process) = &mut holder.process else { panic!("seen") };
        process.started += 1;
    };
    let other = |holder: &mut Holder| {
        rootless(holder);
        later(holder);
    };
    assert_eq!(owns(&with_holder(&world, later)), Own::Yes, "another process of the proxy's cgroup");
    rootless_proxy(&mut world);
    assert_eq!(owns(&with_holder(&world, rootless)), Own::Yes, "the same process");
    assert_eq!(owns(&with_holder(&world, other)), Own::No, "the pid was given away again");
}

/// A proxy in the root cgroup, which many programs share.
fn rootless_proxy(world: &mut Snapshot) {
    seen(&mut world.kernel.proxy.cgroup).path = "/".to_owned();
}

#[test]
fn who_differs_from_the_proxy_is_told_by_cgroups_only_where_both_tell() {
    let world = Snapshot::healthy().service("web", |it| it.node_port(30080)).listens("0.0.0.0:30080");
    let lacks = |world: &Snapshot| {
        Proxy::of(world).certainly_lacks(world.kernel.listeners.seen().expect("listeners").last().expect("one"))
    };
    let unnamed = with_holder(&world, |holder| holder.process = gap(Source::Processes, Why::NotPermitted));
    assert!(lacks(&world) && lacks(&unnamed));
    let mut blind = with_holder(&unnamed, rootless);
    assert!(!lacks(&blind));
    seen(&mut blind.kernel.listeners).last_mut().expect("one").owner = Owner::NotRead;
    assert!(!lacks(&blind));
    let mut rootless = unnamed;
    rootless_proxy(&mut rootless);
    assert!(!lacks(&rootless));
}

#[test]
fn where_a_proxy_answers_whether_it_may_hold_everything_depends_on_its_version() {
    let mut world = Snapshot::healthy().service("web", |it| it.node_port(30080)).listens("0.0.0.0:30080");
    world.kernel.proxy.cgroup = gap(Source::Cgroups, Why::NotPermitted);
    world.kernel.proxy.process = gap(Source::Processes, Why::NotPermitted);
    assert_eq!(owns(&world), Own::No, "1.36 holds nothing");
    seen(&mut world.kernel.proxy.metrics).version = Some("v1.23.6".to_owned());
    assert_eq!(owns(&world), Own::Unknown);
}

#[test]
fn processes_of_one_cgroup_are_one_holder_and_those_of_the_root_are_not() {
    let world = Snapshot::healthy().without_proxy();
    let world = world.service("a", |it| it.node_port(30080)).service("b", |it| it.node_port(30081));
    let two =
        world.listens_as("0.0.0.0:30080", daemon("ovnkube", 9)).listens_as("0.0.0.0:30081", daemon("ovnkube", 10));
    assert_eq!(owns(&two), Own::Unknown);
    let mut apart = two;
    for socket in seen(&mut apart.kernel.listeners) {
        let Owner::Held(holder) = &mut socket.owner else { panic!("held") };
        rootless(holder);
    }
    assert_eq!(owns(&apart), Own::No);
}

#[test]
fn what_keeps_a_holder_off_and_which_node_ports_there_are_is_not_taken_for_nothing_where_it_was_not_read() {
    let three_of_five = holds(without_proxy(30084), &[30080, 30081, 30082], &daemon("ovnkube", 9));
    let without = |why, clients: bool| {
        let mut world = three_of_five.clone();
        match clients {
            true => world.kernel.clients = gap(Source::Clients, why),
            false => world.cluster.services = gap(Source::Services, why),
        }
        let socket = world.kernel.listeners.seen().expect("listeners").last().cloned().expect("one");
        (owns(&world), Proxy::of(&world).unknown(&socket).source)
    };
    assert_eq!(without(Why::Torn, true), (Own::Unknown, Source::ProxyMode), "a connection may keep it off the others");
    assert_eq!(without(Why::NotRequested, true).0, Own::No);
    let of = |outgoing| {
        let mut world = three_of_five.clone();
        let clients = seen(&mut world.kernel.clients);
        (clients.beyond, clients.outgoing) = (7, outgoing);
        owns(&world)
    };
    assert_eq!((of(4097), of(4096)), (Own::Unknown, Own::No), "an unlisted connection may keep it off the others");
    assert_eq!(without(Why::Unreachable, false), (Own::Unknown, Source::Services));
    assert_eq!(without(Why::NotRequested, false).0, Own::No, "without a cluster nobody has a NodePort");
    let mut known = three_of_five;
    known.kernel.proxy = Snapshot::healthy().kernel.proxy;
    known.cluster.services = gap(Source::Services, Why::Unreachable);
    assert_eq!(owns(&known), Own::No, "another process is the proxy");
}
