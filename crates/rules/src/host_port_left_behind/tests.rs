use std::net::IpAddr;

use super::*;
use crate::expectations::{expect_certain, expect_healthy, expect_problem, expect_unknown};
use portreeve_facts::{
    Address, Mode, Netfilter, Protocol, Reading, Why,
    healthy::{PRIMARY, SECOND, World, daemon, gap, interfaces_of, seen},
};

fn node() -> Subject {
    Subject::node("n1", None)
}

fn redirection(port: u16, to: &str) -> Redirection {
    let to: SocketAddr = to.parse().expect("an address with a port");
    let family = if to.is_ipv4() { "ip" } else { "ip6" };
    let chain = format!("{family} nat CNI-DN-{port}");
    Redirection { protocol: Protocol::Tcp, port, ip: None, to: to.ip(), to_port: to.port(), chain, handle: 7 }
}

fn with(mut world: Snapshot, redirections: &[Redirection]) -> Snapshot {
    let redirections = Reading::Seen(redirections.to_vec());
    world.kernel.netfilter = Reading::Seen(Netfilter { redirections, ..Netfilter::default() });
    world
}

fn world() -> Snapshot {
    let at = |ip: &str| vec![ip.parse().expect("an address")];
    Snapshot::healthy()
        .pod("edge", |pod| {
            pod.ips = at("10.1.0.8");
            pod.host_port(80, 8080);
        })
        .pod("other", |pod| pod.ips = at("10.1.0.9"))
}

#[test]
fn an_address_that_no_pod_has_is_a_warning() {
    let evidence = expect_problem(&RULE, &with(world(), &[redirection(9090, "10.1.0.7:80")]), &node());
    assert_eq!(evidence.severity, Severity::Warning);
    assert_eq!(evidence.summary, "hostPort 9090/tcp leads to 10.1.0.7:80, an address that no pod of this node has.");
    assert!(evidence.affects.is_empty());
    let [look, delete] = &evidence.remedies[0].steps[..] else { panic!("{:?}", evidence.remedies) };
    assert!(look.text.contains("10.1.0.7 is the address of no container of nerdctl or Podman"), "{look:?}");
    assert_eq!(delete.text, "nft delete rule ip nat CNI-DN-9090 handle 7");
    let evidence = expect_problem(&RULE, &with(world(), &[redirection(9090, "10.1.0.9:80")]), &node());
    assert_eq!(evidence.remedies[0].steps[0].text, "nft delete rule ip nat CNI-DN-9090 handle 7");
    assert_eq!(evidence.severity, Severity::Warning);
    assert!(evidence.summary.contains("pod default/other, which declares no such hostPort"), "{}", evidence.summary);
}

#[test]
fn while_a_pod_has_networks_of_multus_an_unknown_address_may_be_its() {
    let multus = |finished: bool| {
        world()
            .pod("vm", |pod| (pod.more_networks, pod.finished) = (true, finished))
            .listens_as("0.0.0.0:9090", daemon("x", 9))
    };
    let judge = |world: Snapshot| expect_problem(&RULE, &with(world, &[redirection(9090, "10.99.1.5:80")]), &node());
    let evidence = judge(multus(false));
    assert_eq!(evidence.severity, Severity::Warning);
    assert!(evidence.remedies[0].steps[0].text.contains("by Multus"), "{:?}", evidence.remedies);
    assert_eq!(judge(multus(true)).severity, Severity::Critical);
}

#[test]
fn the_redirection_of_a_pod_is_healthy() {
    expect_healthy(&RULE, &with(world(), &[redirection(8080, "10.1.0.8:80")]), &node());
    let mut other = redirection(8080, "10.1.0.8:80");
    other.protocol = Protocol::Udp;
    expect_problem(&RULE, &with(world(), &[other]), &node());
    let finished = world().pod("job", |pod| {
        (pod.finished, pod.ips) = (true, vec!["10.1.0.5".parse().expect("an address")]);
        pod.host_port(80, 7070);
    });
    expect_healthy(&RULE, &with(finished, &[redirection(7070, "10.1.0.5:80")]), &node());
}

#[test]
fn a_pod_that_has_no_address_yet_is_waited_for() {
    let starts = |ips: &[&str]| {
        world().pod("next", |pod| {
            pod.ips = ips.iter().map(|ip| ip.parse().expect("an address")).collect();
            pod.host_port(80, 9090);
        })
    };
    let left = [redirection(9090, "10.1.0.7:80")];
    expect_healthy(&RULE, &with(starts(&[]), &left), &node());
    expect_problem(&RULE, &with(starts(&["10.1.0.6"]), &left), &node());
    expect_problem(&RULE, &with(starts(&[]), &[redirection(9091, "10.1.0.7:80")]), &node());
}

#[test]
fn what_is_asked_before_a_living_pod_takes_its_connections() {
    let (left, alive) = (redirection(8080, "10.1.0.7:80"), redirection(8080, "10.1.0.8:80"));
    let first = expect_problem(&RULE, &with(world(), &[left.clone(), alive.clone()]), &node());
    assert_eq!(first.severity, Severity::Critical);
    assert!(first.summary.ends_with(": pod default/edge gets no connections."), "{}", first.summary);
    assert!(first.affects.contains(&Vantage::Loopback) && first.affects.contains(&Vantage::Remote));
    let behind = expect_problem(&RULE, &with(world(), &[alive.clone(), left.clone()]), &node());
    assert_eq!(behind.severity, Severity::Info);
    assert!(behind.affects.is_empty() && !behind.summary.contains("gets no"), "{}", behind.summary);
    let of = |ip: &str, redirection: &Redirection| Redirection {
        ip: Some(ip.parse().expect("an address")),
        ..redirection.clone()
    };
    let one = expect_problem(&RULE, &with(world(), &[of("192.0.2.9", &left), alive.clone()]), &node());
    assert_eq!(one.severity, Severity::Critical, "connections to that address");
    assert!(!one.affects.contains(&Vantage::Loopback) && one.affects.contains(&Vantage::Node));
    assert!(one.values.contains(&("hostIP", "192.0.2.9".to_owned())), "{one:#?}");
    let tables = Redirection { chain: "ip cni_hostport hostports".to_owned(), ..left };
    assert_eq!(
        expect_problem(&RULE, &with(world(), &[alive, tables]), &node()).severity,
        Severity::Warning,
        "which table is asked first is not known"
    );
}

#[test]
fn a_pod_on_one_address_is_found_by_it() {
    let at = |ip: Option<&str>| {
        let ip = ip.map(|ip| ip.parse().expect("an address"));
        let world = Snapshot::healthy().pod("edge", |pod| {
            pod.ips = vec!["10.1.0.8".parse().expect("an address")];
            pod.host_port(80, 8080);
            pod.ports[0].host_ip = ip;
        });
        let ip = ip.filter(|ip: &IpAddr| !ip.is_unspecified());
        (world, Redirection { ip, ..redirection(8080, "10.1.0.8:80") })
    };
    for ip in [None, Some("0.0.0.0"), Some("192.0.2.1")] {
        let (world, own) = at(ip);
        expect_healthy(&RULE, &with(world, &[own]), &node());
    }
    let (world, own) = at(Some("192.0.2.1"));
    let before = |ip: Option<&str>| {
        let left = Redirection { ip: ip.map(|ip| ip.parse().expect("an address")), ..redirection(8080, "10.1.0.7:80") };
        expect_problem(&RULE, &with(world.clone(), &[left, own.clone()]), &node()).severity
    };
    assert_eq!(before(None), Severity::Critical, "every address is this one too");
    assert_eq!(before(Some("192.0.2.1")), Severity::Critical);
    assert_eq!(before(Some("192.0.2.2")), Severity::Warning, "the pod is on another address");
    expect_problem(&RULE, &with(world, &[redirection(8080, "10.1.0.8:80")]), &node());
}

#[test]
fn a_process_that_has_the_port_now_gets_no_connections() {
    let left = redirection(9090, "10.1.0.7:80");
    let listens = |address: &str| with(world().listens_as(address, daemon("nginx", 9)), std::slice::from_ref(&left));
    for address in ["0.0.0.0:9090", "192.0.2.1:9090"] {
        let evidence = expect_problem(&RULE, &listens(address), &node());
        assert_eq!(evidence.severity, Severity::Critical, "{address}");
        assert!(evidence.summary.ends_with(": process nginx gets no connections."), "{}", evidence.summary);
        assert!(evidence.affects.contains(&Vantage::Remote));
    }
    let evidence = expect_problem(&RULE, &listens("127.0.0.1:9090"), &node());
    assert_eq!(evidence.affects, [Vantage::Loopback].into_iter().collect());
    for address in ["0.0.0.0:9091", "[::1]:9090"] {
        assert_eq!(expect_problem(&RULE, &listens(address), &node()).severity, Severity::Warning, "{address}");
    }
    let one = Redirection { ip: Some("192.0.2.1".parse().expect("an address")), ..left };
    let severity = |address: &str| {
        let world = with(world().listens_as(address, daemon("nginx", 9)), std::slice::from_ref(&one));
        expect_problem(&RULE, &world, &node()).severity
    };
    assert_eq!(severity("192.0.2.1:9090"), Severity::Critical);
    assert_eq!(severity("0.0.0.0:9090"), Severity::Critical);
    assert_eq!(severity("192.0.2.2:9090"), Severity::Warning);
}

#[test]
fn an_address_outside_the_pods_network_may_be_of_a_container_that_is_no_pod() {
    let world = || {
        let mut world = world();
        let interfaces = std::sync::Arc::make_mut(seen(&mut world.kernel.interfaces));
        for (ip, prefix, link) in
            [("10.1.0.1", 24, "cni0"), ("10.88.0.1", 16, "podman0"), ("2001:db8:1::1", 64, "podman0")]
        {
            interfaces.addresses.push(Address { ip: ip.parse().expect("an address"), prefix, link: link.into() });
        }
        world
    };
    let severity = |world: Snapshot, to: &str| {
        expect_problem(&RULE, &with(world.listens("0.0.0.0:9090"), &[redirection(9090, to)]), &node()).severity
    };
    let of_podman = with(world().listens("0.0.0.0:9090"), &[redirection(9090, "10.88.0.7:80")]);
    let evidence = expect_problem(&RULE, &of_podman, &node());
    assert_eq!(evidence.severity, Severity::Warning);
    assert!(evidence.summary.ends_with(" may get no connections."), "{}", evidence.summary);
    assert!(evidence.affects.contains(&Vantage::Remote), "{evidence:#?}");
    for to in ["10.1.0.7:80", "10.2.9.7:80", "10.87.0.7:80"] {
        assert_eq!(severity(world(), to), Severity::Critical, "{to}: a pod's network may be wide, or no link's");
    }
    let mut unread = world();
    unread.kernel.interfaces = gap(Source::Addresses, Why::Torn);
    assert_eq!(severity(unread, "10.1.0.7:80"), Severity::Info);
    let (of_podman, alive) = (redirection(8080, "10.88.0.7:80"), redirection(8080, "10.1.0.8:80"));
    let evidence = expect_problem(&RULE, &with(world(), &[of_podman, alive]), &node());
    assert_eq!(evidence.severity, Severity::Critical, "whoever it is, the pod loses");
    let left = redirection(9090, "[2001:db8:1::7]:80");
    assert_eq!(expect_problem(&RULE, &with(world(), std::slice::from_ref(&left)), &node()).severity, Severity::Info);
    let near = world().pod("six", |pod| pod.ips = vec!["2001:db8:1::8".parse().expect("an address")]);
    assert_eq!(expect_problem(&RULE, &with(near, &[left]), &node()).severity, Severity::Warning);
}

#[test]
fn a_process_that_may_be_the_runtime_of_a_container_outside_kubernetes_is_no_warning() {
    let world = |owner: Owner| {
        let mut world = world().address("podman0", "10.88.0.1").listens_as("0.0.0.0:9090", owner);
        interfaces_of(&mut world).addresses.last_mut().expect("an address of podman0").prefix = 16;
        with(world, &[redirection(9090, "10.88.0.7:80")])
    };
    let judge = |world: &Snapshot| {
        let evidence = expect_problem(&RULE, world, &node());
        (evidence.severity, evidence.summary.ends_with(" may get no connections."))
    };
    assert_eq!(judge(&world(daemon("nginx", 9))), (Severity::Warning, true));
    assert_eq!(judge(&world(Owner::NotRead)), (Severity::Info, true));
    expect_certain(&RULE, &world(Owner::NotRead), &node());
    assert_eq!(judge(&world(daemon("conmon", 9))), (Severity::Info, false), "Podman keeps the port");
    let mut unread = world(daemon("nginx", 9));
    if let Owner::Held(holder) = &mut seen(&mut unread.kernel.listeners).last_mut().expect("a listener").owner {
        holder.process = gap(Source::Processes, Why::Torn);
    }
    assert_eq!(judge(&unread), (Severity::Info, true));
    assert_eq!(expect_unknown(&RULE, &unread, &node()).source, Source::Processes);
    let mut unread = world(daemon("nginx", 9));
    unread.kernel.listeners = gap(Source::Listeners, Why::Torn);
    assert_eq!(judge(&unread), (Severity::Info, false));
    assert_eq!(expect_unknown(&RULE, &unread, &node()).source, Source::Listeners);
}

#[test]
fn a_finished_pods_redirection_is_left_behind_where_somebody_else_wants_the_port() {
    let job = |name: &str, ip: &str, finished: bool, world: Snapshot| {
        world.pod(name, |pod| {
            (pod.finished, pod.ips) = (finished, vec![ip.parse().expect("an address")]);
            pod.host_port(80, 7070);
        })
    };
    let ended = || job("first", "10.1.0.5", true, world());
    let (old, new) = (redirection(7070, "10.1.0.5:80"), redirection(7070, "10.1.0.6:80"));
    expect_healthy(&RULE, &with(ended(), std::slice::from_ref(&old)), &node());
    let both = with(job("second", "10.1.0.6", false, ended()), &[old.clone(), new.clone()]);
    let evidence = expect_problem(&RULE, &both, &node());
    assert_eq!(evidence.severity, Severity::Critical);
    assert_eq!(
        evidence.summary,
        "hostPort 7070/tcp leads to 10.1.0.5:80, an address that pod default/first had until it ended: pod \
         default/second gets no connections."
    );
    let process = with(ended().listens("0.0.0.0:7070"), std::slice::from_ref(&old));
    assert_eq!(expect_problem(&RULE, &process, &node()).severity, Severity::Critical);
    let behind = with(ended(), &[old.clone(), redirection(7070, "10.1.0.4:80")]);
    assert_eq!(expect_problem(&RULE, &behind, &node()).severity, Severity::Warning, "nobody alive is asked first");
    let reused = with(job("second", "10.1.0.5", false, ended()), &[old]);
    expect_healthy(&RULE, &reused, &node());
}

#[test]
fn pods_of_the_hosts_network_and_of_other_nodes_have_no_redirection() {
    type Change = fn(&mut Pod);
    let changes: [Change; 2] = [|pod| pod.host_network = true, |pod| pod.node = Some("n2".to_owned())];
    for change in changes {
        let world = world().pod("third", |pod| {
            pod.ips = vec!["10.1.0.7".parse().expect("an address")];
            pod.host_port(80, 9090);
            change(pod);
        });
        expect_problem(&RULE, &with(world, &[redirection(9090, "10.1.0.7:80")]), &node());
    }
}

#[test]
fn what_cannot_be_read_is_unknown_where_a_pod_has_a_host_port() {
    let mut unread = world();
    unread.kernel.netfilter = gap(Source::Netfilter, Why::NotPermitted);
    assert_eq!(expect_unknown(&RULE, &unread, &node()).why, Why::NotPermitted);
    let legacy = |mut world: Snapshot, table: &str| {
        let legacy_tables = vec!["ip filter".to_owned(), table.to_owned()];
        world.kernel.netfilter = Reading::Seen(Netfilter { legacy_tables, ..Netfilter::default() });
        world
    };
    assert_eq!(expect_unknown(&RULE, &legacy(world(), "ip6 nat"), &node()).why, Why::NotSupported);
    expect_healthy(&RULE, &legacy(world(), "ip mangle"), &node());
    let mut without = Snapshot::healthy();
    without.kernel.netfilter = gap(Source::Netfilter, Why::NotPermitted);
    expect_healthy(&RULE, &without, &node());
    expect_healthy(&RULE, &legacy(Snapshot::healthy(), "ip nat"), &node());
    without.kernel.netfilter = gap(Source::Netfilter, Why::NotRequested);
    expect_healthy(&RULE, &without, &node());
    let mut world = with(world(), &[redirection(9090, "10.1.0.7:80")]);
    world.cluster.pods = gap(Source::Pods, Why::Unreachable);
    assert_eq!(expect_unknown(&RULE, &world, &node()).source, Source::Pods);
}

#[test]
fn a_failure_is_unknown_after_the_last_host_port_too() {
    for why in [Why::Unreachable, Why::TimedOut, Why::Torn, Why::Stale, Why::Malformed, Why::TooMuch] {
        let mut unread = Snapshot::healthy();
        unread.kernel.netfilter = gap(Source::Netfilter, why);
        assert_eq!(expect_unknown(&RULE, &unread, &node()).why, why);
        let redirections = gap(Source::Netfilter, why);
        unread.kernel.netfilter = Reading::Seen(Netfilter { redirections, ..Netfilter::default() });
        assert_eq!(expect_unknown(&RULE, &unread, &node()).why, why);
    }
}

#[test]
fn whether_anybody_loses_the_port_is_unknown_where_that_was_not_read() {
    let left = [redirection(30080, "10.1.0.7:80")];
    let web = || with(world().service("web", |it| it.node_port(30080)).with_mode(Mode::Ipvs), &left);
    let process = || with(world().listens_as("0.0.0.0:30080", daemon("nginx", 9)), &left);
    type Case = (Snapshot, fn(&mut Snapshot), Source, Severity);
    let takes: [Case; 5] = [
        (process(), |it| it.kernel.listeners = gap(Source::Listeners, Why::Torn), Source::Listeners, Severity::Warning),
        (process(), |it| it.kernel.interfaces = gap(Source::Addresses, Why::Torn), Source::Addresses, Severity::Info),
        (web(), |it| it.kernel.interfaces = gap(Source::Addresses, Why::Torn), Source::Addresses, Severity::Info),
        (
            web(),
            |it| it.cluster.services = gap(Source::Services, Why::Unreachable),
            Source::Services,
            Severity::Warning,
        ),
        (
            with(world().listens("[::]:30080"), &left),
            |it| seen(&mut it.kernel.listeners).iter_mut().for_each(|it| it.v6only = None),
            Source::Listeners,
            Severity::Warning,
        ),
    ];
    for (mut world, take, source, severity) in takes {
        expect_certain(&RULE, &world, &node());
        assert_eq!(expect_problem(&RULE, &world, &node()).severity, Severity::Critical, "{source:?}");
        take(&mut world);
        assert_eq!(expect_problem(&RULE, &world, &node()).severity, severity, "{source:?}");
        assert_eq!(expect_unknown(&RULE, &world, &node()).source, source);
    }
    // If Services were not requested, no NodePort is judged. Whether a process loses the port does not depend on
    // Services.
    let mut world = web();
    world.cluster.services = gap(Source::Services, Why::NotRequested);
    expect_certain(&RULE, &world, &node());
    let mut world = process();
    world.cluster.services = gap(Source::Services, Why::Unreachable);
    expect_certain(&RULE, &world, &node());
}

#[test]
fn a_pod_that_could_not_be_used_may_have_the_redirection() {
    let world =
        with(world(), &[redirection(9090, "10.1.0.7:80"), redirection(8080, "10.1.0.8:80")]).rejects(Source::Pods);
    let judged = check(&Round::of(&world, None, 60), &Limits::default()).expect("judged");
    let [Judgement { port: Some(9090), verdict: Verdict::Unknown(gap), .. }] = &judged[..] else {
        panic!("{judged:?}")
    };
    assert_eq!((gap.source, gap.why), (Source::Pods, Why::Malformed));
}

#[test]
fn of_a_pod_that_ended_it_is_unknown_whether_somebody_else_has_the_port() {
    let mut world = with(
        world().pod("job", |pod| {
            (pod.finished, pod.ips) = (true, vec!["10.1.0.5".parse().expect("an address")]);
            pod.host_port(80, 7070);
        }),
        &[redirection(7070, "10.1.0.5:80")],
    );
    expect_healthy(&RULE, &world, &node());
    world.kernel.listeners = gap(Source::Listeners, Why::Torn);
    assert_eq!(expect_unknown(&RULE, &world, &node()).source, Source::Listeners);
}

#[test]
fn several_of_one_port_are_one_finding_and_the_worst_comes_first() {
    let left = [redirection(9090, "10.1.0.6:80"), redirection(9090, "10.1.0.7:80"), redirection(9091, "10.1.0.7:80")];
    let world = with(world(), &left);
    let judgements = check(&Round::of(&world, None, 60), &Limits::default()).expect("judged");
    assert_eq!(judgements.iter().map(|it| it.port).collect::<Vec<_>>(), [Some(9090), Some(9091)]);
    let Verdict::Problem(evidence) = &judgements[0].verdict else { panic!("{judgements:?}") };
    assert_eq!(evidence.values.iter().filter(|(name, _)| *name == "redirection").count(), 2);
}

#[test]
fn of_many_left_behind_so_many_are_told_the_worst_among_them() {
    let mut left: Vec<_> = (0..40).map(|handle| Redirection { handle, ..redirection(8080, "10.1.0.7:80") }).collect();
    left.insert(30, redirection(8080, "10.1.0.8:80"));
    let evidence = expect_problem(&RULE, &with(world(), &left), &node());
    assert_eq!(evidence.severity, Severity::Critical);
    assert!(evidence.values.contains(&("redirection", "and 24 more".to_owned())), "{evidence:#?}");
    assert_eq!(evidence.values.iter().filter(|(name, _)| *name == "redirection").count(), MOST_LISTED + 1);
}

#[test]
fn a_node_port_is_lost_as_the_proxy_has_it() {
    let judge = |mode: Mode, change: fn(World) -> World| {
        let world = world().service("web", |it| change(it.node_port(30080))).with_mode(mode);
        expect_problem(&RULE, &with(world, &[redirection(30080, "10.1.0.7:80")]), &node())
    };
    let lost = judge(Mode::Ipvs, |it| it);
    assert_eq!(lost.severity, Severity::Critical);
    assert!(lost.summary.ends_with(": Service default/web gets no connections."), "{}", lost.summary);
    assert!(lost.affects.contains(&Vantage::Remote), "{lost:#?}");
    assert_eq!(lost.remedies[0].steps.len(), 1, "{lost:#?}");
    let either = judge(Mode::Nftables, |it| it);
    assert_eq!(either.severity, Severity::Warning);
    assert!(either.summary.ends_with(": Service default/web may get no connections."), "{}", either.summary);
    assert!(either.affects.is_empty() && either.remedies[0].steps.len() == 2, "{either:#?}");
    for mode in [Mode::Iptables, Mode::Cilium] {
        let kept = judge(mode, |it| it);
        assert_eq!((kept.severity, kept.summary.contains("Service")), (Severity::Warning, false), "{mode}");
    }
    let changes: [fn(World) -> World; 2] =
        [|it| it.protocol(Protocol::Udp), |it| it.with(|web| web.families = &[Family::V6])];
    for change in changes {
        assert!(!judge(Mode::Ipvs, change).summary.contains("Service"));
    }
}

#[test]
fn where_the_proxys_settings_were_not_read_a_node_port_is_lost_on_every_address_and_may_be_on_one() {
    let judge = |redirected: Option<&str>, world: Snapshot| {
        let mut redirection = redirection(30080, "10.1.0.7:80");
        redirection.ip = redirected.map(|it| it.parse().expect("an address"));
        let evidence = expect_problem(&RULE, &with(world, &[redirection]), &node());
        (evidence.severity, evidence.values.iter().any(|(name, _)| *name == "assumed"))
    };
    let world = || world().service("web", |it| it.node_port(30080));
    let mut unread = world().with_mode(Mode::Ipvs);
    unread.kernel.proxy.config = gap(Source::ProxyConfig, Why::Unreachable);
    for unread in [unread, world().with_user_mode(Mode::Ipvs)] {
        assert_eq!(judge(None, unread.clone()), (Severity::Critical, true));
        assert_eq!(judge(Some(PRIMARY[0]), unread), (Severity::Warning, false));
    }
    assert_eq!(judge(Some(PRIMARY[0]), world().with_mode(Mode::Ipvs)), (Severity::Critical, false));
}

#[test]
fn a_node_port_is_lost_where_the_redirection_takes_connections_only() {
    let judge = |redirected: Option<&str>, to: &str, served: &str| {
        let world = world().service("web", |it| it.node_port(30080)).with_mode(Mode::Ipvs);
        let world = world.with_config(|it| it.node_port_addresses = vec![served.to_owned()]);
        let mut redirection = redirection(30080, to);
        redirection.ip = redirected.map(|it| it.parse().expect("an address"));
        expect_problem(&RULE, &with(world, &[redirection]), &node()).summary.contains("Service default/web")
    };
    let (v4, v6, second) = ("10.1.0.7:80", "[fd00:1::7]:80", SECOND[0]);
    assert!(judge(None, v4, "192.0.2.0/24"), "on each address");
    assert!(judge(Some(second), v4, "192.0.2.2/32"), "on the one that is served");
    assert!(!judge(Some(PRIMARY[0]), v4, "192.0.2.2/32"), "on another one");
    // The node has no address in 203.0.113.0/24. If the list had no IPv4 network, kube-proxy would serve every IPv4
    // address.
    assert!(!judge(None, v4, "203.0.113.0/24"), "nowhere");
    assert!(judge(None, v6, "203.0.113.0/24"));
    assert!(!judge(None, v6, "2001:db8:ffff::/64"));
}

#[test]
fn a_redirection_of_a_pod_that_ended_may_still_be_deleted_before_a_node_port_is_lost() {
    let world = |mode| {
        let ended = world().pod("job", |pod| {
            (pod.finished, pod.ips) = (true, vec!["10.1.0.5".parse().expect("an address")]);
            pod.host_port(80, 30080);
        });
        with(ended.service("web", |it| it.node_port(30080)).with_mode(mode), &[redirection(30080, "10.1.0.5:80")])
    };
    expect_healthy(&RULE, &world(Mode::Nftables), &node());
    assert_eq!(expect_problem(&RULE, &world(Mode::Ipvs), &node()).severity, Severity::Critical);
}

#[test]
fn a_listener_loses_nothing_to_a_redirection_behind_a_node_port_and_hides_no_service_that_does() {
    let judge = |mode, listener: &str| {
        let world = world().service("web", |it| it.node_port(30080)).listens_as(listener, daemon("nginx", 9));
        expect_problem(&RULE, &with(world.with_mode(mode), &[redirection(30080, "10.1.0.7:80")]), &node())
    };
    let behind = judge(Mode::Iptables, "0.0.0.0:30080");
    assert_eq!(behind.severity, Severity::Warning, "the Service's pods answer");
    assert!(behind.affects.is_empty() && !behind.summary.contains("nginx"), "{behind:?}");
    for listener in ["0.0.0.0:30080", "127.0.0.1:30080"] {
        let lost = judge(Mode::Ipvs, listener);
        assert_eq!(lost.severity, Severity::Critical);
        assert!(lost.summary.contains("Service default/web") && lost.affects.contains(&Vantage::Remote), "{lost:?}");
    }
}
