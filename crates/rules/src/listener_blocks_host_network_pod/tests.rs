mod cilium;
mod probes;

use super::*;
use crate::{
    findings::StepKind,
    {
        expectations::{expect_certain, expect_healthy, expect_problem, expect_unknown, wanting},
        pods::{LONGEST_BACK_OFF, OVERDUE},
    },
};
use portreeve_facts::{
    Cgroup, Controller, Gap, Mode, Owner, Reading, State, Why,
    healthy::{PRIMARY, SECOND, daemon, gap, held, interfaces_of, ip, objects, seen, squatter},
};

fn exporter(change: impl FnOnce(&mut Pod)) -> Snapshot {
    Snapshot::healthy().pod("exporter", |pod| {
        (pod.host_network, pod.ready) = (true, false);
        pod.ips = PRIMARY.map(ip).into();
        pod.ports.push(ContainerPort { port: 9100, host_port: Some(9100), host_ip: None, protocol: Protocol::Tcp });
        change(pod);
    })
}

fn subject() -> Subject {
    Subject::pod(&exporter(|_| ()).cluster.pods.seen().expect("pods")[0])
}

fn process() -> Owner {
    daemon("node_exporter", 700)
}

#[track_caller]
fn severity(world: &Snapshot) -> Severity {
    expect_problem(&RULE, world, &subject()).severity
}

#[test]
fn a_process_on_the_port_of_a_pod_that_is_not_ready_is_told() {
    let world = exporter(|_| ()).listens_as("[::]:9100", process());
    let evidence = expect_problem(&RULE, &world, &subject());
    assert_eq!(evidence.severity, Severity::Warning);
    assert_eq!(
        evidence.summary,
        "Process node_exporter listens on [::]:9100/tcp, a port of hostNetwork pod default/exporter, which is not \
         ready: the pod can listen on 9100/tcp only if the process and the pod share the port (SO_REUSEPORT)."
    );
    let failing = exporter(|pod| pod.failing = true).listens_as("[::]:9100", process());
    let summary = expect_problem(&RULE, &failing, &subject()).summary;
    assert!(summary.ends_with("ready: the pod cannot listen on 9100/tcp."), "{summary}");
    assert!(evidence.values.contains(&("process", "node_exporter (pid 700)".to_owned())), "{evidence:#?}");
    let texts: Vec<_> = evidence.remedies.iter().map(|remedy| remedy.steps[0].text.as_str()).collect();
    assert!(texts[0].starts_with("move process node_exporter off port 9100/tcp, or, if it is not needed"), "{texts:?}");
    assert!(texts[1].contains("give pod default/exporter another port"), "{texts:?}");
    let at_kubelets = |pod: &mut Pod| pod.ports.iter_mut().for_each(|port| port.port = 10250);
    let evidence = expect_problem(&RULE, &exporter(at_kubelets).listens_as("0.0.0.0:10250", process()), &subject());
    assert!(evidence.remedies[0].steps[0].text.starts_with("give pod"), "kubelet stays: {:?}", evidence.remedies);
    expect_problem(&RULE, &exporter(|_| ()).listens("0.0.0.0:9100"), &subject());
    let of_kernel = |link: &str| exporter(|_| ()).listens_as("0.0.0.0:9100", Owner::Kernel { link: link.to_owned() });
    expect_problem(&RULE, &of_kernel("vxlan0"), &subject());
    assert_eq!(expect_unknown(&RULE, &of_kernel(""), &subject()).why, Why::Ambiguous, "perhaps for this pod");
}

#[test]
fn of_two_owners_that_share_a_port_the_worse_is_told() {
    let named = |pod: &mut Pod| pod.controller = Some(Controller { kind: "DaemonSet".into(), name: "exporter".into() });
    let sibling = held("/kubepods/poduid-old/c", Some("uid-old"), "exporter", 9);
    let world = exporter(named).pod("old", named).listens_as("0.0.0.0:9100", sibling);
    assert_eq!(severity(&world), Severity::Info);
    let both = world.listens_as("0.0.0.0:9100", process());
    let evidence = expect_problem(&RULE, &both, &subject());
    assert_eq!(evidence.severity, Severity::Warning);
    assert!(evidence.summary.starts_with("Process node_exporter"), "{evidence:#?}");
    let workers = both.clone().listens_as("0.0.0.0:9100", process());
    let listeners = |world: &Snapshot| {
        expect_problem(&RULE, world, &subject()).values.iter().filter(|(name, _)| *name == "listener").count()
    };
    assert_eq!((listeners(&both), listeners(&workers)), (2, 2), "workers are one");
}

#[test]
fn ready_ending_finished_foreign_and_other_pods_are_silent() {
    let changes: [fn(&mut Pod); 7] = [
        |pod| pod.ready = true,
        |pod| pod.finished = true,
        |pod| pod.ends = Some(jiff::Timestamp::UNIX_EPOCH),
        |pod| pod.node = Some("n2".to_owned()),
        |pod| pod.host_network = false,
        |pod| pod.ports[0].protocol = Protocol::Sctp,
        |pod| pod.ports[0].port = 9101,
    ];
    for change in changes {
        expect_healthy(&RULE, &exporter(change).listens_as("[::]:9100", process()), &subject());
    }
}

#[test]
fn without_this_nodes_name_an_unready_pod_of_any_node_may_be_blocked_here() {
    let world = |change: fn(&mut Pod)| exporter(change).listens_as("[::]:9100", process()).unnamed();
    let node = Subject::this_node(&world(|_| ()));
    assert_eq!(expect_unknown(&RULE, &world(|_| ()), &node).source, Source::Nodes);
    let silent: [fn(&mut Pod); 4] =
        [|pod| pod.ready = true, |pod| pod.node = None, |pod| pod.host_network = false, |pod| pod.ports[0].port = 9101];
    for change in silent {
        expect_healthy(&RULE, &world(change), &node);
    }
    let unused = Snapshot::healthy().rejects(Source::Pods);
    assert_eq!(expect_unknown(&RULE, &unused, &Subject::this_node(&unused)).source, Source::Pods);
}

#[test]
fn a_pod_that_has_its_port_lacks_something_else() {
    let own = |uid: &str| held(&format!("/kubepods/pod{uid}/c"), Some(uid), "exporter", 9);
    for mine in ["uid-exporter", "hash"] {
        let world = exporter(|pod| {
            pod.config_hash = Some("hash".to_owned());
            // The status of the pod may be older than the socket.
            pod.running = Some(false);
        });
        let world = world.listens_as("127.0.0.1:9100", own(mine)).listens_as("192.0.2.2:9100", process());
        expect_healthy(&RULE, &world, &subject());
        expect_certain(&RULE, &world, &subject());
    }
    expect_problem(&RULE, &exporter(|_| ()).listens_as("0.0.0.0:9100", own("uid-other")), &subject());
}

#[test]
fn a_process_that_outlived_its_container_is_in_the_way_of_the_next() {
    let own = held("/kubepods/poduid-exporter/c", Some("uid-exporter"), "exporter", 9);
    let world = exporter(|pod| {
        (pod.running, pod.failing) = (Some(false), true);
        pod.controller = Some(Controller { kind: "DaemonSet".to_owned(), name: "exporter".to_owned() });
    });
    let evidence = expect_problem(&RULE, &world.listens_as("0.0.0.0:9100", own.clone()), &subject());
    assert_eq!(evidence.severity, Severity::Warning);
    assert!(evidence.summary.starts_with("A process that outlived its container listens on 0.0.0.0:9100/tcp"));
    assert!(evidence.remedies[0].steps[0].text.contains("or delete pod default/exporter"), "{evidence:#?}");
    for (running, failing) in [(true, true), (false, false)] {
        let world = exporter(|pod| (pod.running, pod.failing) = (Some(running), failing));
        expect_healthy(&RULE, &world.listens_as("0.0.0.0:9100", own.clone()), &subject());
    }
}

#[test]
fn an_error_that_is_long_over_says_nothing_of_today() {
    let now = Snapshot::healthy().at.as_second();
    let restarted = |ago: i64| {
        exporter(|pod| {
            (pod.running, pod.failing) = (Some(true), true);
            pod.restarted = jiff::Timestamp::from_second(now - ago).ok();
        })
        .listens_as("127.0.0.1:9100", process())
    };
    assert_eq!(severity(&restarted(LONGEST_BACK_OFF - 1)), Severity::Warning);
    let evidence = expect_problem(&RULE, &restarted(LONGEST_BACK_OFF), &subject());
    assert_eq!(evidence.severity, Severity::Info);
    assert!(evidence.values.contains(&("pod", "default/exporter: not ready".to_owned())), "{evidence:#?}");
}

#[test]
fn a_host_ip_is_met_by_its_own_address_and_by_every_address_of_its_family() {
    let with = |host_ip: &str, local: &str, v6only: Option<bool>| {
        let mut world = exporter(|pod| pod.ports[0].host_ip = Some(ip(host_ip))).listens_as(local, process());
        seen(&mut world.kernel.listeners).last_mut().expect("a listener").v6only = v6only;
        world
    };
    for (host_ip, local, v6only) in [
        (SECOND[0], "192.0.2.2:9100", None),
        (SECOND[0], "0.0.0.0:9100", None),
        (SECOND[0], "[::]:9100", Some(false)),
        ("0.0.0.0", "0.0.0.0:9100", None),
    ] {
        assert_eq!(severity(&with(host_ip, local, v6only)), Severity::Warning, "{host_ip} {local}");
    }
    assert_eq!(severity(&with("0.0.0.0", "127.0.0.1:9100", None)), Severity::Info);
    assert_eq!(severity(&with(SECOND[0], "[::]:9100", None)), Severity::Info, "it may be of IPv6 only");
    for (host_ip, local, v6only) in [
        (SECOND[0], "192.0.2.1:9100", None),
        (SECOND[0], "[::]:9100", Some(true)),
        ("0.0.0.0", "[::1]:9100", None),
        ("::", "0.0.0.0:9100", None),
    ] {
        expect_healthy(&RULE, &with(host_ip, local, v6only), &subject());
    }
}

#[test]
fn one_address_is_in_the_way_of_servers_that_want_all() {
    for local in ["127.0.0.1:9100", "[::1]:9100", "192.0.2.2:9100"] {
        let listens = |failing| exporter(|pod| pod.failing = failing).listens_as(local, process());
        let evidence = expect_problem(&RULE, &listens(false), &subject());
        assert_eq!(evidence.severity, Severity::Info, "{local}");
        assert!(
            evidence.summary.ends_with("cannot listen on 9100/tcp with a socket for all addresses."),
            "{}",
            evidence.summary
        );
        let evidence = expect_problem(&RULE, &listens(true), &subject());
        assert_eq!(evidence.severity, Severity::Warning, "{local}");
        assert!(evidence.values.iter().any(|(_, value)| value.contains("ended with an error")), "{evidence:#?}");
    }
    assert_eq!(severity(&exporter(|_| ()).listens_as("192.0.2.1:9100", process())), Severity::Warning);
}

/// systemd-resolved has port 53, so the kernel refuses the port to a DNS server that wants all addresses.
#[test]
fn the_stub_of_the_nodes_resolver_alone_is_reason_enough_to_fail() {
    let dns = |pod: &mut Pod| (pod.failing, pod.ports[0].port) = (true, 53);
    let stub = || daemon("systemd-resolve", 9);
    let both = exporter(dns).listens_as("127.0.0.53:53", stub()).listens_as("127.0.0.54:53", stub());
    for world in [exporter(dns).listens_as("127.0.0.53:53", stub()), both.clone()] {
        let evidence = expect_problem(&RULE, &world, &subject());
        assert_eq!(evidence.severity, Severity::Warning);
        assert!(
            evidence.summary.ends_with("cannot listen on 53/tcp with a socket for all addresses."),
            "{}",
            evidence.summary
        );
        let texts = evidence.remedies.iter().flat_map(|it| &it.steps).map(|it| it.text.as_str()).collect::<Vec<_>>();
        assert!(
            texts[0].starts_with("check whether the log of pod default/exporter"),
            "it may fail otherwise: {texts:?}"
        );
        assert!(
            texts[1].starts_with("configure the server of pod default/exporter to listen only on the addresses"),
            "{texts:?}"
        );
        assert!(texts[2].contains("/run/systemd/resolve/resolv.conf"), "first, the node keeps its DNS: {texts:?}");
        assert!(texts[3].starts_with("set `DNSStubListener=no`") && texts.len() == 4, "{texts:?}");
    }
    let runs = exporter(|pod| pod.ports[0].port = 53).listens_as("127.0.0.53:53", stub());
    assert_eq!(severity(&runs), Severity::Info, "it may want addresses of its own");
    expect_healthy(
        &RULE,
        &exporter(|pod| (pod.ready, pod.ports[0].port) = (true, 53)).listens_as("127.0.0.53:53", stub()),
        &subject(),
    );
    let one = |pod: &mut Pod| (pod.failing, pod.ports[0].port, pod.ports[0].host_ip) = (true, 53, Some(ip(SECOND[0])));
    expect_healthy(&RULE, &exporter(one).listens_as("127.0.0.53:53", stub()), &subject());
}

/// The old pod of the DNS server listens on one address, although systemd-resolved listens on another address. So
/// systemd-resolved is not the reason why the new pod fails.
#[test]
fn of_two_in_the_way_the_one_that_leaves_addresses_is_not_the_reason() {
    let named = |pod: &mut Pod| pod.controller = Some(Controller { kind: "DaemonSet".into(), name: "dns".into() });
    let dns = |pod: &mut Pod| {
        (pod.failing, pod.ports[0].port) = (true, 53);
        named(pod);
    };
    let sibling = held("/kubepods/poduid-old/c", Some("uid-old"), "dns", 9);
    let world = exporter(dns).pod("old", named).listens_as("192.0.2.1:53", sibling);
    assert_eq!(severity(&world), Severity::Info);
    let beside = world.listens_as("127.0.0.53:53", daemon("systemd-resolve", 9));
    assert_eq!(severity(&beside), Severity::Info, "the sibling is in the way, and replaced");
    let of_device = |device| {
        exporter(dns)
            .socket(Protocol::Tcp, State::Listen, "127.0.0.1:53", "0.0.0.0:0", |it| it.device = device)
            .listens_as("192.0.2.2:53", process())
    };
    let summary = |world: &Snapshot| expect_problem(&RULE, world, &subject()).summary;
    assert!(summary(&of_device(1)).starts_with("Process node_exporter"), "{}", summary(&of_device(1)));
    assert!(!summary(&of_device(0)).starts_with("Process node_exporter"), "{}", summary(&of_device(0)));
}

#[test]
fn a_family_of_which_the_pod_has_no_address_is_another_address() {
    let of_v4 = |local: &str| exporter(|pod| pod.ips.truncate(1)).listens_as(local, process());
    let mut six = of_v4("[::]:9100");
    seen(&mut six.kernel.listeners).last_mut().expect("a listener").v6only = Some(true);
    assert_eq!(severity(&six), Severity::Info);
    assert_eq!(severity(&of_v4("[::]:9100")), Severity::Warning);
    assert_eq!(severity(&of_v4("0.0.0.0:9100")), Severity::Warning);
}

#[test]
fn servers_of_udp_and_of_interfaces_may_share_a_port() {
    let of_udp = |failing| {
        let world = exporter(|pod| {
            pod.ports[0].protocol = Protocol::Udp;
            pod.failing = failing;
        });
        world.listens_udp("0.0.0.0:9100")
    };
    let summary = expect_problem(&RULE, &of_udp(true), &subject()).summary;
    assert!(
        summary.ends_with(
            "with a socket for all addresses only if the process and the pod share the port (SO_REUSEPORT or SO_REUSEADDR)."
        ),
        "{summary}"
    );
    assert_eq!((severity(&of_udp(false)), severity(&of_udp(true))), (Severity::Info, Severity::Warning));
    let on_interface =
        exporter(|_| ()).socket(Protocol::Tcp, State::Listen, "0.0.0.0:9100", "0.0.0.0:0", |it| it.device = 2);
    assert_eq!(severity(&on_interface), Severity::Info);
}

#[test]
fn a_server_in_a_vrf_may_leave_its_port_to_the_pod() {
    let of_device = |it: &mut Socket| it.device = 3;
    let mut world = exporter(|_| ()).address("blue", "198.51.100.1");
    world = world.socket(Protocol::Tcp, State::Listen, "0.0.0.0:9100", "0.0.0.0:0", of_device);
    assert_eq!(severity(&world), Severity::Info);
    interfaces_of(&mut world).links[2].kind = Some("vrf".to_owned());
    assert_eq!(expect_unknown(&RULE, &world, &subject()).source, Source::Sysctls);
    let beside = world.listens_as("192.0.2.2:9100", process());
    assert!(expect_problem(&RULE, &beside, &subject()).summary.starts_with("Process node_exporter"), "outside the VRF");
}

#[test]
fn who_listens_without_a_name_may_be_the_pod_itself() {
    let unnamed = |change: fn(&mut Pod), cgroup: Reading<Cgroup>| {
        let mut owner = process();
        if let Owner::Held(holder) = &mut owner {
            holder.cgroup = cgroup;
        }
        exporter(change).listens_as("0.0.0.0:9100", owner)
    };
    let cgroup = |path: &str| Reading::Seen(Cgroup { path: path.to_owned(), pod: None });
    let unread = || Reading::Gap(Gap::new(Source::Cgroups, Why::NotPermitted, ""));
    let root = expect_unknown(&RULE, &unnamed(|_| (), cgroup("/")), &subject());
    assert_eq!((root.source, root.why), (Source::Cgroups, Why::Ambiguous));
    assert_eq!(expect_unknown(&RULE, &unnamed(|_| (), unread()), &subject()).why, Why::NotPermitted);
    expect_problem(&RULE, &unnamed(|_| (), cgroup("/system.slice/x.service")), &subject());
    for nothing_runs in
        [unnamed(|pod| pod.running = Some(false), cgroup("/")), unnamed(|pod| pod.running = Some(false), unread())]
    {
        expect_problem(&RULE, &nothing_runs, &subject());
    }
    expect_unknown(&RULE, &unnamed(|pod| pod.running = None, cgroup("/")), &subject());
    let two = unnamed(|_| (), unread()).listens_as("127.0.0.1:9100", process());
    expect_unknown(&RULE, &two, &subject());
    let not_requested = exporter(|_| ()).listens_as("0.0.0.0:9100", Owner::NotRead);
    assert_eq!(expect_unknown(&RULE, &not_requested, &subject()).why, Why::NotRequested);
}

#[test]
fn a_pod_without_a_uid_may_be_one_that_nobody_knows() {
    let nameless = || exporter(|pod| pod.uid = None);
    assert_eq!(expect_unknown(&RULE, &nameless().listens("0.0.0.0:9100"), &subject()).why, Why::Ambiguous);
    let known = nameless().pod("squatter", |_| ()).listens("0.0.0.0:9100");
    assert!(expect_problem(&RULE, &known, &subject()).summary.starts_with("Pod default/squatter listens"));
    expect_problem(&RULE, &nameless().listens_as("0.0.0.0:9100", process()), &subject());
}

#[test]
fn a_pod_that_is_deleted_gives_its_port_back_in_time() {
    let ends_in = |seconds: i64| {
        let world = exporter(|_| ());
        let ends = jiff::Timestamp::from_second(world.at.as_second() + seconds).expect("a time");
        world.pod("squatter", |pod| pod.ends = Some(ends)).listens_as("0.0.0.0:9100", squatter())
    };
    for in_time in [30, -OVERDUE] {
        expect_healthy(&RULE, &ends_in(in_time), &subject());
    }
    assert_eq!(severity(&ends_in(-OVERDUE - 1)), Severity::Warning);
}

#[test]
fn a_pod_of_the_same_controller_is_replaced_by_it() {
    let of = |kind: &str, name: &str| Some(Controller { kind: kind.to_owned(), name: name.to_owned() });
    let world = |mine: Option<Controller>, other: Option<Controller>, namespace: &str| {
        let world = exporter(|pod| pod.controller = mine).pod("squatter", |pod| {
            pod.controller = other;
            pod.namespace = namespace.to_owned();
        });
        severity(&world.listens_as("0.0.0.0:9100", squatter()))
    };
    let set = || of("DaemonSet", "exporter");
    assert_eq!(world(set(), set(), "default"), Severity::Info);
    assert_eq!(world(set(), set(), "other"), Severity::Warning);
    assert_eq!(world(set(), of("DaemonSet", "other"), "default"), Severity::Warning);
    assert_eq!(world(None, None, "default"), Severity::Warning);
}

#[test]
fn the_worst_of_several_is_named_first_and_all_are_listed() {
    let world =
        exporter(|_| ()).listens_as("127.0.0.1:9100", daemon("local", 1)).listens_as("192.0.2.1:9100", process());
    let evidence = expect_problem(&RULE, &world, &subject());
    assert!(evidence.summary.starts_with("Process node_exporter"), "{}", evidence.summary);
    assert_eq!(evidence.values.iter().filter(|(name, _)| *name == "listener").count(), 2);
    let judged = RULE.judge(&Round::of(&world, None, 60), &Limits::default()).expect("judged");
    assert_eq!(judged.len(), 1);
    let twice = exporter(|pod| pod.ports.push(pod.ports[0].clone())).listens_as("0.0.0.0:9100", process());
    assert_eq!(RULE.judge(&Round::of(&twice, None, 60), &Limits::default()).expect("judged").len(), 1);
}

#[test]
fn the_agents_own_port_is_another_rules() {
    let world = |taken, protocol| {
        let mut world = exporter(|pod| {
            pod.ports[0].port = 29517;
            pod.ports[0].protocol = protocol;
        });
        seen(&mut world.own_port).taken = taken;
        world.listens_as("0.0.0.0:29517", process()).listens_udp("0.0.0.0:29517")
    };
    expect_healthy(&RULE, &world(true, Protocol::Tcp), &subject());
    expect_problem(&RULE, &world(false, Protocol::Tcp), &subject());
    expect_problem(&RULE, &world(true, Protocol::Udp), &subject());
}

#[test]
fn a_port_that_the_kernel_may_choose_is_reserved_first() {
    let world = |reserved: &str| {
        exporter(|pod| pod.ports[0].port = 40123)
            .ephemeral("32768 60999", reserved)
            .listens_as("0.0.0.0:40123", daemon("containerd", 800))
    };
    let commands = |world: &Snapshot| {
        let evidence = expect_problem(&RULE, world, &subject());
        let steps = evidence.remedies[0].steps.clone().into_iter();
        steps.filter(|step| step.kind == StepKind::Command).map(|step| step.text).collect::<Vec<_>>()
    };
    let chosen = commands(&world(""));
    assert_eq!(chosen[0], "sysctl -w net.ipv4.ip_local_reserved_ports=\"40123\"");
    assert_eq!(commands(&world("40123")), Vec::<String>::new());
}

#[test]
fn unread_is_unknown() {
    let without = |blind: fn(&mut Snapshot)| {
        let mut world = exporter(|_| ()).listens_as("0.0.0.0:9100", process());
        blind(&mut world);
        expect_unknown(&RULE, &world, &subject()).source
    };
    assert_eq!(without(|it| it.kernel.listeners = gap(Source::Listeners, Why::Torn)), Source::Listeners);
    assert_eq!(without(|it| it.cluster.pods = gap(Source::Pods, Why::Unreachable)), Source::Pods);
}

#[test]
fn a_pod_to_come_in_the_hosts_network_cannot_listen_where_a_process_does() {
    let of = |change: fn(&mut portreeve_facts::Workload)| {
        let mut world = Snapshot::healthy().listens_as("[::]:9100", process());
        let workload = wanting(9100, |it| {
            (it.host_network, it.ports[0].port, it.ports[0].host_port) = (true, 9100, None);
            change(it);
        });
        world.cluster.workloads.push(workload.into());
        world
    };
    let node = Subject::this_node(&of(|_| ()));
    let evidence = expect_problem(&RULE, &of(|_| ()), &node);
    assert_eq!((evidence.severity, evidence.variant), (Severity::Warning, "listener"));
    assert_eq!(
        evidence.summary,
        "Process node_exporter listens on [::]:9100/tcp, a port of DaemonSet default/agent in the host's network: the pod \
         can listen on 9100/tcp only if the process and the pod share the port (SO_REUSEPORT)."
    );
    let texts: Vec<_> = evidence.remedies.iter().map(|remedy| remedy.steps[0].text.as_str()).collect();
    assert_eq!(
        texts,
        [
            "move process node_exporter off port 9100/tcp, or, if it is not needed, `systemctl disable \
             --now node_exporter.service`",
            "give DaemonSet default/agent another port of the node"
        ]
    );
    let silent: [fn(&mut portreeve_facts::Workload); 3] =
        [|it| it.ports[0].port = 9101, |it| it.ports[0].protocol = Protocol::Udp, |it| it.host_network = false];
    for change in silent {
        expect_healthy(&RULE, &of(change), &node);
    }
    let controller = Controller { kind: "DaemonSet".to_owned(), name: "agent".to_owned() };
    expect_healthy(&RULE, &of(|_| ()).pod("agent-1", |pod| pod.controller = Some(controller)), &node);
    // A process may belong to an unread pod if its control group is unknown.
    let mut hidden = of(|_| ());
    let socket = seen(&mut hidden.kernel.listeners).last_mut().expect("one");
    socket.owner = held("/", None, "node_exporter", 700);
    expect_problem(&RULE, &hidden, &node);
    hidden.cluster.pods = gap(Source::Pods, Why::NotRequested);
    assert_eq!(expect_unknown(&RULE, &hidden, &node).source, Source::Cgroups);
    hidden.cluster.pods = gap(Source::Pods, Why::Unreachable);
    assert_eq!(expect_unknown(&RULE, &hidden, &node).source, Source::Pods);
}
