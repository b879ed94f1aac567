use super::*;
use crate::{
    expectations::{expect_certain, expect_healthy, expect_problem, expect_unknown, wanting},
    findings::Vantage,
};
use portreeve_facts::{
    Family, Mode, Netfilter, Reading, Redirection, ServiceKind, State, Why,
    healthy::{PRIMARY, SECOND, World, daemon, gap, ip, objects, proxy_holder},
};

fn edge(change: fn(&mut Pod)) -> Snapshot {
    Snapshot::healthy().pod("edge", |pod| {
        pod.host_port(8080, 80);
        change(pod);
    })
}

fn subject() -> Subject {
    Subject::pod(&edge(|_| ()).cluster.pods.seen().expect("pods")[0])
}

#[test]
fn a_process_on_a_host_port_is_told_with_its_pod() {
    let evidence = expect_problem(&RULE, &edge(|_| ()).listens("[::]:80"), &subject());
    assert_eq!((evidence.severity, evidence.affects.len()), (Severity::Warning, Vantage::ALL.len()));
    assert!(evidence.summary.contains("nginx listens on [::]:80/tcp, the hostPort of pod default/edge"));
    let [process, pod] = &evidence.remedies[..] else { panic!("{:?}", evidence.remedies) };
    assert!(process.steps[0].text.contains("move process nginx") && pod.steps[0].text.contains("another hostPort"));
}

#[test]
fn beside_a_redirection_of_a_deleted_pod_it_is_not_said_that_the_pod_gets_the_connections() {
    let redirection = |chain: &str, to: &str| Redirection {
        protocol: Protocol::Tcp,
        port: 80,
        ip: None,
        to: ip(to),
        to_port: 8080,
        chain: chain.to_owned(),
        handle: 7,
    };
    let world = edge(|pod| pod.ips = vec![ip("10.1.0.8")]).listens("0.0.0.0:80");
    let taker = |redirections: Reading<Netfilter>| {
        let mut world = world.clone();
        world.kernel.netfilter = redirections;
        let summary = expect_problem(&RULE, &world, &subject()).summary;
        summary.rsplit_once(": ").expect("a result").1.to_owned()
    };
    let seen =
        |redirections| Reading::Seen(Netfilter { redirections: Reading::Seen(redirections), ..Netfilter::default() });
    let own = redirection("ip nat CNI-DN-1", "10.1.0.8");
    assert_eq!(taker(seen(vec![own.clone()])), "new connections go to the pod instead.");
    let left = redirection("ip cni_hostport hostports", "10.1.0.7");
    let either = "new connections go to the pod or to the target of another redirection instead.";
    assert_eq!(taker(seen(vec![own, left])), either);
    assert_eq!(taker(gap(Source::Netfilter, Why::Torn)), either);
    assert_eq!(taker(gap(Source::Netfilter, Why::NotPermitted)), "new connections go to the pod instead.");
}

#[test]
fn only_what_both_claim_is_lost() {
    let on_loopback = edge(|pod| pod.ports[0].host_ip = Some(ip("127.0.0.1")));
    let evidence = expect_problem(&RULE, &on_loopback.clone().listens("0.0.0.0:80"), &subject());
    assert_eq!(evidence.affects, Affected::from([Vantage::Loopback]));
    expect_healthy(&RULE, &on_loopback.clone().listens("127.0.0.53:80"), &subject());
    let of_ipv4 = edge(|pod| pod.ips.retain(std::net::IpAddr::is_ipv4));
    expect_healthy(&RULE, &of_ipv4.listens("[::1]:80"), &subject());
    let other = expect_problem(&RULE, &edge(|_| ()).listens("127.0.0.53:80"), &subject());
    assert_eq!(other.affects, Affected::from([Vantage::Loopback]));
    expect_healthy(&RULE, &on_loopback.listens(&format!("{}:80", PRIMARY[0])), &subject());
    expect_healthy(&RULE, &edge(|_| ()).listens_udp("0.0.0.0:80"), &subject());
}

#[test]
fn host_network_finished_foreign_and_pending_pods_are_silent() {
    let changes: [fn(&mut Pod); 4] = [
        |pod| pod.host_network = true,
        |pod| pod.finished = true,
        |pod| pod.node = Some("n2".to_owned()),
        |pod| pod.node = None,
    ];
    for change in changes {
        expect_healthy(&RULE, &edge(change).listens("0.0.0.0:80"), &subject());
    }
    // A pod in a manifest has no Node, so it may run on this node.
    let written = |pod: &mut Pod| (pod.node, pod.uid) = (None, None);
    expect_problem(&RULE, &edge(written).listens("0.0.0.0:80"), &subject());
}

#[test]
fn a_node_port_is_another_rules() {
    let world = edge(|pod| pod.ports[0].host_port = Some(30080)).listens("0.0.0.0:30080");
    expect_problem(&RULE, &world, &subject());
    expect_healthy(&RULE, &world.service("web", |it| it.node_port(30080)), &subject());
}

#[test]
fn a_node_port_whose_service_does_not_get_the_connections_is_told() {
    let world = |world: Snapshot, mode: Mode, change: fn(World) -> World| {
        world.service("web", |it| change(it.node_port(30080))).with_mode(mode)
    };
    let both = || edge(|pod| pod.ports[0].host_port = Some(30080));
    let listens = || both().listens("0.0.0.0:30080");
    expect_problem(&RULE, &world(listens(), Mode::Ipvs, |it| it), &subject());
    expect_problem(&RULE, &world(listens(), Mode::Iptables, World::without_endpoints), &subject());
    let primary = both().listens(&format!("{}:30080", PRIMARY[0]));
    expect_healthy(&RULE, &world(primary, Mode::Nftables, |it| it), &subject());
    let of_proxy = both().listens_as("0.0.0.0:30080", proxy_holder());
    expect_healthy(&RULE, &world(of_proxy, Mode::Ipvs, |it| it), &subject());
    let kept = with_runtime(both().listens_as("0.0.0.0:30080", daemon("crio", 9)), Some("cri-o://1.30.6"));
    expect_healthy(&RULE, &world(kept, Mode::Ipvs, |it| it), &subject());
}

#[test]
fn a_service_with_an_external_address_and_endpoints_takes_the_connections() {
    let world = |change: fn(World) -> World| {
        let of_service = |it: World| change(it.external_ip(PRIMARY[0]).with(|service| service.ports[0].port = 80));
        let world = edge(|_| ()).service("trap", of_service).with_mode(Mode::Iptables);
        world.listens(&format!("{}:80", PRIMARY[0]))
    };
    expect_healthy(&RULE, &world(|it| it), &subject());
    expect_problem(&RULE, &world(World::without_endpoints), &subject());
}

#[test]
fn where_the_order_of_a_pod_and_an_external_address_is_not_defined_the_process_certainly_loses() {
    let of_service = |it: World| {
        it.with(|lb| {
            (lb.kind, lb.load_balancer_ips) = (ServiceKind::LoadBalancer, vec![ip("198.51.100.7")]);
            lb.ports[0].port = 80;
        })
    };
    let changes: [fn(&mut Pod); 2] = [
        |pod| (pod.ready, pod.running, pod.ips) = (false, None, Vec::new()),
        |pod| pod.ports[0].host_ip = Some(ip("198.51.100.7")),
    ];
    let worlds = changes.map(|change| {
        let world = edge(change).service("lb", of_service).address("eth0", "198.51.100.7");
        world.with_mode(Mode::Nftables).listens("0.0.0.0:80")
    });
    for world in worlds {
        let evidence = expect_problem(&RULE, &world, &subject());
        let summary = &evidence.summary;
        assert!(summary.ends_with(": new connections go to the pod or to a Service instead."), "{summary}");
        assert_eq!(evidence.affects, Affected::from([Vantage::Remote, Vantage::Node, Vantage::Pods]));
        expect_certain(&RULE, &world, &subject());
    }
}

#[test]
fn where_the_order_of_a_pod_and_a_node_port_is_not_defined_an_external_address_elsewhere_changes_nothing() {
    let of_service = |it: World| it.external_ip(PRIMARY[0]).with(|service| service.ports[0].port = 30080);
    let world = edge(|pod| pod.ports[0].host_port = Some(30080)).service("web", |it| it.node_port(30080));
    let world = world.service("trap", of_service).with_mode(Mode::Nftables);
    let world = world.with_config(|it| it.node_port_addresses = vec![format!("{}/32", SECOND[0])]);
    expect_healthy(&RULE, &world.listens(&format!("{}:30080", SECOND[0])), &subject());
}

#[test]
fn the_proxys_socket_for_a_health_check_is_left_to_the_rule_of_health_checks() {
    let checked = |world: Snapshot| {
        world.service("lb", |it| {
            it.local().with(|lb| (lb.kind, lb.health_check_node_port) = (ServiceKind::LoadBalancer, Some(30999)))
        })
    };
    let world = checked(edge(|pod| pod.ports[0].host_port = Some(30999)));
    expect_healthy(&RULE, &world.clone().listens_as("[::]:30999", proxy_holder()), &subject());
    expect_problem(&RULE, &world.listens("[::]:30999"), &subject());
}

#[test]
fn without_this_nodes_name_a_pod_of_any_node_may_be_here() {
    let world = edge(|_| ()).listens("0.0.0.0:80").unnamed();
    assert_eq!(expect_unknown(&RULE, &world, &Subject::this_node(&world)).source, Source::Nodes);
    let nowhere = edge(|pod| pod.node = None).listens("0.0.0.0:80").unnamed();
    expect_healthy(&RULE, &nowhere, &Subject::this_node(&nowhere));
}

#[test]
fn what_cilium_leaves_out_goes_to_the_process() {
    let at = |number: u16, mode: Mode| {
        let mut world = edge(|_| ()).with_mode(mode).listens(&format!("0.0.0.0:{number}"));
        objects(&mut world.cluster.pods)[0].ports[0].host_port = Some(number);
        world
    };
    expect_healthy(&RULE, &at(30080, Mode::Cilium), &subject());
    expect_problem(&RULE, &at(80, Mode::Cilium), &subject());
    expect_problem(&RULE, &at(30080, Mode::Iptables), &subject());
    let unknown = |number: u16| at(number, Mode::Cilium).without_proxy().address("cilium_host", "10.244.0.1");
    expect_problem(&RULE, &unknown(80), &subject());
    expect_unknown(&RULE, &unknown(30080), &subject());
    // Cilium's agent makes the device `cilium_host` on every node on which it runs.
    expect_problem(&RULE, &at(30080, Mode::Cilium).without_proxy(), &subject());
}

#[test]
fn cilium_serves_it_for_others_on_one_address_of_each_device() {
    let on = |address: &str, mode: Mode| {
        let world = edge(|_| ()).with_mode(mode).listens(&format!("{address}:80"));
        expect_problem(&RULE, &world, &subject()).affects
    };
    let all: Affected = [Vantage::Remote, Vantage::Node, Vantage::Pods].into_iter().collect();
    assert_eq!(on(SECOND[0], Mode::Iptables), all);
    assert_eq!(on(PRIMARY[0], Mode::Cilium), all);
    assert_eq!(on(SECOND[0], Mode::Cilium), [Vantage::Node, Vantage::Pods].into_iter().collect());
    let other = edge(|_| ()).with_mode(Mode::Cilium).listens("198.51.100.7:80");
    expect_healthy(&RULE, &other, &subject());
}

#[test]
fn whether_a_pod_without_a_network_takes_connections_already_is_unknown() {
    let starts = |pod: &mut Pod| {
        pod.ready = false;
        pod.ips.clear();
    };
    assert_eq!(expect_unknown(&RULE, &edge(starts).listens("0.0.0.0:80"), &subject()).source, Source::Pods);
    expect_healthy(&RULE, &edge(starts), &subject());
    let of = |process: &str| cri_o(edge(starts).listens_as("0.0.0.0:80", daemon(process, 9)));
    expect_healthy(&RULE, &of("crio"), &subject());
    assert_eq!(expect_unknown(&RULE, &of("nginx"), &subject()).source, Source::Pods, "no name of a runtime");
    // In ipvs mode, the pod or the Service gets the connections to the external address.
    let beside = |process: &str| {
        let of_service = |it: World| it.external_ip(PRIMARY[0]).with(|service| service.ports[0].port = 80);
        of(process).service("trap", of_service).with_mode(Mode::Ipvs)
    };
    expect_healthy(&RULE, &beside("crio"), &subject());
    expect_problem(&RULE, &beside("nginx"), &subject());
    let crio = |socket: &mut Socket| socket.owner = daemon("crio", 9);
    let mut unread = cri_o(edge(starts).socket(Protocol::Udp, State::Close, "0.0.0.0:40000", "0.0.0.0:0", crio));
    let pod = &mut objects(&mut unread.cluster.pods)[0];
    (pod.ports[0].host_port, pod.ports[0].protocol) = (Some(40000), Protocol::Udp);
    unread.kernel.sysctls.ip_local_port_range = gap(Source::Sysctls, Why::NotPermitted);
    assert_eq!(expect_unknown(&RULE, &unread, &subject()).source, Source::Sysctls, "another input is unread");
    expect_problem(&RULE, &edge(|pod| pod.ready = false).listens("0.0.0.0:80"), &subject());
}

#[test]
fn a_udp_client_is_silent_and_unknown_where_clients_are_not_told_apart() {
    let mut world = edge(|pod| {
        pod.ports[0].host_port = Some(40000);
        pod.ports[0].protocol = Protocol::Udp;
    });
    world = world.listens_udp("0.0.0.0:40000");
    expect_healthy(&RULE, &world, &subject());
    let reserved = expect_problem(&RULE, &world.clone().ephemeral("32768 60999", "40000"), &subject());
    assert!(reserved.values.iter().any(|(name, _)| *name == "assumed"), "{reserved:?}");
    world.kernel.sysctls.ip_local_port_range = gap(Source::Sysctls, Why::NotPermitted);
    assert_eq!(expect_unknown(&RULE, &world, &subject()).source, Source::Sysctls);
}

fn with_runtime(mut world: Snapshot, runtime: Option<&str>) -> Snapshot {
    objects(&mut world.cluster.nodes)[0].container_runtime = runtime.map(str::to_owned);
    world
}

#[test]
fn cri_o_up_to_1_30_may_have_the_socket_and_is_not_to_be_moved() {
    let world = edge(|_| ()).listens_as("0.0.0.0:80", daemon("nginx", 9));
    let found = |world: &Snapshot, runtime: Option<&str>| {
        expect_problem(&RULE, &with_runtime(world.clone(), runtime), &subject())
    };
    for runtime in ["containerd://2.1.4", "cri-o://1.31.0"] {
        assert_eq!(found(&world, Some(runtime)).severity, Severity::Warning, "{runtime}");
    }
    let held = found(&world, Some("cri-o://1.30.6"));
    assert_eq!(held.severity, Severity::Info);
    assert!(held.values.iter().any(|(name, words)| *name == "container runtime" && words.contains("may keep")));
    let moved = &held.remedies[0].steps[0].text;
    assert!(moved.starts_with("unless the container runtime listens, and keeps the port for the pod, move"), "{moved}");
    let of_a_pod = edge(|_| ()).listens("0.0.0.0:80").pod("web", |_| ());
    assert_eq!(found(&of_a_pod, Some("cri-o://1.30.6")).severity, Severity::Warning, "no runtime is in a pod");
    let mut unread = with_runtime(of_a_pod, Some("cri-o://1.30.6"));
    let sockets = portreeve_facts::healthy::seen(&mut unread.kernel.listeners);
    let Owner::Held(holder) = &mut sockets.last_mut().expect("one").owner else { panic!("a holder") };
    holder.cgroup = gap(Source::Cgroups, Why::TimedOut);
    assert_eq!(expect_unknown(&RULE, &unread, &subject()).source, Source::Cgroups, "a pod may have it");
    assert_eq!(found(&unread, Some("containerd://2.1.4")).severity, Severity::Warning);
    let sctp = |pod: &mut Pod| pod.ports[0].protocol = Protocol::Sctp;
    let mut world = edge(sctp).listens_as("0.0.0.0:80", daemon("amf", 9));
    portreeve_facts::healthy::seen(&mut world.kernel.listeners).last_mut().expect("one").protocol = Protocol::Sctp;
    assert_eq!(found(&world, Some("cri-o://1.30.6")).severity, Severity::Warning, "it opens none for SCTP");
}

#[test]
fn whoever_has_a_socket_on_each_host_port_may_be_a_runtime_that_is_not_known() {
    let two = |world: Snapshot| {
        world.pod("other", |pod| pod.host_port(8443, 443)).listens_as("0.0.0.0:80", daemon("crio", 9))
    };
    let severity = |world: &Snapshot, runtime: Option<&str>| {
        expect_problem(&RULE, &with_runtime(world.clone(), runtime), &subject()).severity
    };
    let held = two(edge(|_| ())).listens_as("0.0.0.0:443", daemon("crio", 9));
    for runtime in [None, Some("docker://20.10.24")] {
        assert_eq!(severity(&two(edge(|_| ())), runtime), Severity::Warning);
        assert_eq!(severity(&held, runtime), Severity::Info);
    }
    assert_eq!(severity(&held, Some("containerd://2.1.4")), Severity::Warning);
    let third = |change: fn(&mut Pod)| {
        let world = held.clone().pod("third", |pod| {
            pod.host_port(8125, 8125);
            pod.ready = false;
            change(pod);
        });
        severity(&world, None)
    };
    assert_eq!(third(|pod| pod.ips.clear()), Severity::Info, "it is about to start");
    assert_eq!(third(|pod| pod.ports[0].protocol = Protocol::Sctp), Severity::Info, "nobody holds those");
    assert_eq!(third(|_| ()), Severity::Warning);
    assert_eq!(third(|pod| (pod.uid, pod.ips) = (None, Vec::new())), Severity::Warning);
    let mut unread = with_runtime(two(edge(|_| ())), None);
    let sockets = portreeve_facts::healthy::seen(&mut unread.kernel.listeners);
    let Owner::Held(holder) = &mut sockets.last_mut().expect("one").owner else { panic!("a holder") };
    (holder.cgroup, holder.process) =
        (gap(Source::Cgroups, Why::NotPermitted), gap(Source::Processes, Why::NotPermitted));
    assert_eq!(expect_unknown(&RULE, &unread, &subject()).source, Source::Processes);
}

#[test]
fn on_a_node_port_a_process_that_may_be_an_unknown_runtime_is_unknown_and_a_runtime_by_name_is_silent() {
    let judged = |process: &str, runtime: Option<&str>| {
        let world = edge(|pod| pod.ports[0].host_port = Some(30080)).service("web", |it| it.node_port(30080));
        with_runtime(world.listens_as("0.0.0.0:30080", daemon(process, 9)).with_mode(Mode::Ipvs), runtime)
    };
    assert_eq!(expect_unknown(&RULE, &judged("anne", None), &subject()).source, Source::Nodes);
    let of_docker = expect_unknown(&RULE, &judged("anne", Some("docker://24.0.9")), &subject());
    assert!(of_docker.detail.ends_with("it is not known whether the runtime of this node opens them"), "{of_docker:?}");
    expect_healthy(&RULE, &judged("cri-dockerd", None), &subject());
}

/// A node on which a pod with a hostPort has no network, some seconds after the scheduler chose the node.
fn stuck(seconds: i64) -> Snapshot {
    let now = Snapshot::healthy().at;
    Snapshot::healthy().pod("edge", |pod| {
        pod.host_port(8080, 80);
        (pod.ready, pod.running) = (false, None);
        pod.ips.clear();
        pod.scheduled = Some(now - jiff::SignedDuration::from_secs(seconds));
    })
}

fn cri_o(world: Snapshot) -> Snapshot {
    with_runtime(world, Some("cri-o://1.29.1"))
}

#[test]
fn a_pod_that_gets_no_network_is_told_where_its_runtime_has_to_open_the_port() {
    let listens = |seconds| stuck(seconds).listens("192.0.2.1:80");
    let evidence = expect_problem(&RULE, &cri_o(listens(121)), &subject());
    assert_eq!(evidence.variant, "no-network");
    assert_eq!(evidence.severity, Severity::Warning);
    assert_eq!(
        evidence.summary,
        "Process nginx listens on 192.0.2.1:80/tcp, the hostPort of pod default/edge: the pod gets no network, because the container runtime cannot open the port."
    );
    for runtime in [None, Some("docker://26.1.4")] {
        let world = with_runtime(listens(121), runtime);
        let unknown = expect_problem(&RULE, &world, &subject());
        assert_eq!(unknown.severity, Severity::Info);
        assert!(unknown.summary.ends_with(": the pod gets no network if the container runtime has to open the port."));
        assert_eq!(expect_unknown(&RULE, &world, &subject()).source, Source::Pods, "the pod may have a redirection");
    }
    expect_certain(&RULE, &cri_o(listens(121)), &subject());
    let late: [fn(&mut Pod); 2] = [|pod| pod.running = Some(true), |pod| pod.scheduled = None];
    let late = late.map(|change| {
        let mut world = cri_o(listens(121));
        change(objects(&mut world.cluster.pods)[0]);
        world
    });
    for world in late.into_iter().chain([listens(121), cri_o(listens(120))]) {
        assert_eq!(expect_unknown(&RULE, &world, &subject()).source, Source::Pods, "the pod may have its network");
    }
}

#[test]
fn a_pod_that_may_be_on_another_node_is_not_said_to_get_no_network() {
    let mut world = cri_o(stuck(121).listens("192.0.2.1:80")).unnamed();
    world.kernel.hostname = "n1".to_owned();
    assert_eq!(expect_unknown(&RULE, &world, &subject()).source, Source::Nodes);
}

#[test]
fn a_pod_without_a_network_is_silent_if_no_process_has_its_host_port() {
    expect_healthy(&RULE, &cri_o(stuck(121)), &subject());
    let changes: [fn(&mut Pod); 2] =
        [|pod| pod.ports[0].host_ip = Some(ip(SECOND[0])), |pod| pod.ports[0].protocol = Protocol::Sctp];
    for change in changes {
        let mut world = cri_o(stuck(121).listens("192.0.2.1:80"));
        change(objects(&mut world.cluster.pods)[0]);
        expect_healthy(&RULE, &world, &subject());
    }
    let mut everywhere = cri_o(stuck(121).listens("[::]:80"));
    objects(&mut everywhere.cluster.pods)[0].ports[0].host_ip = Some(ip(SECOND[0]));
    expect_problem(&RULE, &everywhere, &subject());
    let mut of_six = cri_o(stuck(121).listens("[::]:80"));
    objects(&mut of_six.cluster.pods)[0].ports[0].host_ip = Some(ip(PRIMARY[0]));
    portreeve_facts::healthy::seen(&mut of_six.kernel.listeners).last_mut().expect("one").v6only = Some(true);
    expect_healthy(&RULE, &of_six, &subject());
}

#[test]
fn whether_it_takes_ipv4_too_may_not_be_told() {
    let mut world = edge(|pod| pod.ports[0].host_ip = Some(ip(PRIMARY[0]))).listens("[::]:80");
    let listeners = portreeve_facts::healthy::seen(&mut world.kernel.listeners);
    listeners.iter_mut().filter(|it| it.local_port == 80).for_each(|it| it.v6only = None);
    assert_eq!(expect_unknown(&RULE, &world, &subject()).why, Why::Ambiguous);
}

#[test]
fn beside_a_service_of_the_other_family_unread_input_is_not_silent() {
    let both = edge(|pod| (pod.ports[0].host_port, pod.ports[0].host_ip) = (Some(30080), Some(ip(PRIMARY[0]))));
    let of_six = |it: World| it.node_port(30080).with(|web| web.families = &[Family::V6]);
    let mut world = both.service("web", of_six).listens("[::]:30080");
    expect_problem(&RULE, &world, &subject());
    portreeve_facts::healthy::seen(&mut world.kernel.listeners).last_mut().expect("one").v6only = None;
    assert_eq!(expect_unknown(&RULE, &world, &subject()).source, Source::Listeners);
}

#[test]
fn unread_is_unknown() {
    let without = |blind: fn(&mut Snapshot)| {
        let mut world = edge(|_| ()).listens("0.0.0.0:80");
        blind(&mut world);
        expect_unknown(&RULE, &world, &subject()).source
    };
    assert_eq!(without(|it| it.kernel.listeners = gap(Source::Listeners, Why::Torn)), Source::Listeners);
    assert_eq!(without(|it| it.cluster.pods = gap(Source::Pods, Why::Unreachable)), Source::Pods);
    assert_eq!(without(|it| it.cluster.services = gap(Source::Services, Why::Unreachable)), Source::Services);
    assert_eq!(without(|it| it.kernel.interfaces = gap(Source::Addresses, Why::Torn)), Source::Addresses);
    let unused = Snapshot::healthy().rejects(Source::Pods);
    assert_eq!(expect_unknown(&RULE, &unused, &Subject::node("n1", None)).source, Source::Pods);
}

#[test]
fn of_many_host_ports_of_one_pod_a_few_are_told_and_that_there_are_more() {
    let all = |world: Snapshot| check(&Round::of(&world, None, 60), &Limits::default()).expect("judged");
    let world = Snapshot::healthy().pod("edge", |pod| (1000..1020).for_each(|port| pod.host_port(80, port)));
    let judged = all((1000..1020).fold(world, |world, port| world.listens(&format!("0.0.0.0:{port}"))));
    assert!(matches!(&judged.last().expect("some").verdict, Verdict::Unknown(gap) if gap.why == Why::TooMuch));
    assert_eq!(judged.len(), crate::capped::OF_SUBJECT + 1);
}

#[test]
fn many_sockets_on_loopback_do_not_hide_a_process_that_loses_connections_from_elsewhere() {
    let world = (1..=40).fold(edge(|_| ()), |world, n| world.listens(&format!("127.0.0.{n}:80")));
    let world = world.listens_as(&format!("{}:80", PRIMARY[0]), daemon("web", 7));
    let evidence = expect_problem(&RULE, &world, &subject());
    assert!(evidence.summary.starts_with("Process web"), "{}", evidence.summary);
}

#[test]
fn many_sockets_that_are_alike_do_not_hide_a_process_on_another_address() {
    let on_all = |world: Snapshot, n| world.listens_as("0.0.0.0:80", daemon(&format!("vm{n}"), n));
    let world = (1..=40).fold(edge(|_| ()), on_all).listens_as(&format!("{}:80", SECOND[0]), daemon("web", 7));
    let evidence = expect_problem(&RULE, &world, &subject());
    assert!(evidence.values.contains(&("held by", "process web".to_owned())), "{evidence:#?}");
}

#[test]
fn a_pod_to_come_takes_the_connections_of_who_listens_here() {
    let of = |change: fn(&mut portreeve_facts::Workload)| {
        let mut world = Snapshot::healthy().listens("0.0.0.0:80");
        world.cluster.workloads.push(wanting(80, change).into());
        world
    };
    let node = Subject::this_node(&of(|_| ()));
    let evidence = expect_problem(&RULE, &of(|_| ()), &node);
    assert_eq!((evidence.severity, evidence.variant), (Severity::Warning, "takes-listener"));
    assert_eq!(
        evidence.summary,
        "Process nginx listens on 0.0.0.0:80/tcp, the hostPort of DaemonSet default/agent: new connections go to the pod \
         instead."
    );
    assert!(evidence.remedies[1].steps[0].text.starts_with("give DaemonSet default/agent another hostPort"));
    let silent: [fn(&mut portreeve_facts::Workload); 3] = [
        |it| it.ports[0].host_port = Some(81),
        |it| it.ports[0].host_ip = Some(ip("192.0.2.77")),
        |it| (it.host_network, it.ports[0].port) = (true, 80),
    ];
    for change in silent {
        expect_healthy(&RULE, &of(change), &node);
    }
    let controller = portreeve_facts::Controller { kind: "DaemonSet".to_owned(), name: "agent".to_owned() };
    expect_healthy(&RULE, &of(|_| ()).pod("agent-1", |pod| pod.controller = Some(controller)), &node);
    expect_healthy(&RULE, &of(|_| ()).service("web", |it| it.node_port(80)), &node);
}

#[test]
fn a_runtime_has_its_socket_on_every_address_or_on_the_host_ip() {
    for (host_ip, local, severity) in [
        (None, "0.0.0.0", Severity::Info),
        (Some(PRIMARY[0]), PRIMARY[0], Severity::Info),
        (None, PRIMARY[0], Severity::Warning),
        (Some("0.0.0.0"), PRIMARY[0], Severity::Warning),
    ] {
        let mut world = edge(|_| ()).listens_as(&format!("{local}:80"), daemon("nginx", 9));
        objects(&mut world.cluster.pods)[0].ports[0].host_ip = host_ip.map(ip);
        for runtime in [None, Some("cri-o://1.29.1")] {
            let found = expect_problem(&RULE, &with_runtime(world.clone(), runtime), &subject());
            assert_eq!(found.severity, severity, "{host_ip:?} {local} {runtime:?}");
        }
    }
}
