//! The owner of a port on a node with Cilium.

use super::*;
use crate::cilium::ONE_ADDRESS;

#[test]
fn that_cilium_serves_one_address_of_each_device_is_said_where_no_list_says_which() {
    let detail = |world: &Snapshot| {
        let ownership = owner(&Round::of(world, None, 60), Protocol::Tcp, 30080).expect("it is known");
        ownership.claimants.into_iter().find(|it| it.claim == ClaimKind::NodePort).expect("a NodePort").detail
    };
    let says = |world: &Snapshot| detail(world).contains(ONE_ADDRESS);
    let listed =
        |world: Snapshot| world.with_config(|config| config.node_port_addresses = vec!["0.0.0.0/0".to_owned()]);
    assert!(says(&web().with_mode(Mode::Cilium)));
    assert!(!says(&listed(web().with_mode(Mode::Cilium))) && !says(&web()) && !says(&listed(web())));
}

#[test]
fn behind_cilium_a_host_port_is_where_node_ports_are_and_none_in_their_range() {
    let at = |host_ip: Option<&str>, range: &str| {
        let mut world = Snapshot::healthy().with_mode(Mode::Cilium).pod("edge", |pod| {
            pod.host_port(80, 30080);
            pod.ports[0].host_ip = host_ip.map(ip);
        });
        let ranges = Reading::Seen(vec![range.parse().expect("a range")]);
        world.cluster.range_claims.push(RangeClaim {
            by: portreeve_facts::Claimant::Cilium,
            ranges,
            place: String::new(),
        });
        world
    };
    let pod = (Ok(Outcome::Pod), Some(ClaimKind::HostPort), None);
    let none = (Ok(Outcome::Refused), None, None);
    let beside = at(None, "31000-31999");
    assert_eq!(ask(&beside, Vantage::Remote, PRIMARY[0]), pod);
    assert_eq!(ask(&beside, Vantage::Remote, SECOND[0]), none, "one address of each device");
    assert_eq!(ask(&beside, Vantage::Node, SECOND[0]), pod);
    assert_eq!(ask(&at(Some(SECOND[0]), "31000-31999"), Vantage::Remote, SECOND[0]), pod);
    for vantage in [Vantage::Remote, Vantage::Node] {
        assert_eq!(ask(&at(None, "30000-32767"), vantage, PRIMARY[0]), none, "left out");
    }
    let detail = |world: &Snapshot| {
        let ownership = owner(&Round::of(world, None, 60), Protocol::Tcp, 30080).expect("it is known");
        ownership.claimants.into_iter().find(|it| it.claim == ClaimKind::HostPort).expect("a hostPort").detail
    };
    let mut without_address = at(None, "30000-32767");
    let pod = objects(&mut without_address.cluster.pods).pop().expect("edge");
    (pod.ready, pod.ips) = (false, Vec::new());
    for world in [at(None, "30000-32767"), without_address] {
        let words = "; Cilium does not serve it: the number is in the NodePort range";
        assert!(detail(&world).ends_with(words), "{}", detail(&world));
    }
    assert!(!detail(&beside).contains("Cilium"));
    // If a Service has no endpoint, no process gets the Service's connections.
    let empty = at(None, "30000-32767").service("web", |it| it.node_port(30080).without_endpoints());
    let passing = CiliumConfig { without_backend: WithoutBackend::Pass, ..CiliumConfig::default() };
    let passing = empty.with_config(|it| it.cilium = Some(passing));
    let by_node_port = (Ok(Outcome::Refused), Some(ClaimKind::NodePort), None);
    assert_eq!(ask(&passing, Vantage::Remote, PRIMARY[0]), by_node_port);
    assert_eq!(ask(&passing, Vantage::Remote, SECOND[0]), none, "neither is served there");
    let mut unread = at(None, "30000-32767");
    unread.cluster.range_claims[0].ranges = gap(Source::NodePortRange, Why::Malformed);
    assert!(ask(&unread, Vantage::Remote, PRIMARY[0]).0.is_err());
}

#[test]
fn behind_cilium_a_node_port_outside_of_its_range_is_where_remote_clients_are_served_and_nowhere_else() {
    let in_range = |world: &Snapshot, ranges| {
        let (mut world, by) = (world.with_mode(Mode::Cilium), portreeve_facts::Claimant::Cilium);
        world.cluster.range_claims.push(RangeClaim { by, ranges, place: String::new() });
        world
    };
    let of = |range: &str| Reading::Seen(vec![range.parse().expect("a range")]);
    let web = web().listens("0.0.0.0:30080");
    let (inside, outside) = (in_range(&web, of("30000-32767")), in_range(&web, of("31000-31999")));
    let unread = in_range(&web, gap(Source::ConfigMaps, Why::Malformed));
    for from in [Vantage::Remote, Vantage::Node, Vantage::Pods] {
        for world in [&inside, &outside, &unread] {
            assert_eq!(ask(world, from, PRIMARY[0]).0, Ok(Outcome::Pod), "{from:?}");
        }
    }
    for (from, to) in [(Vantage::Node, SECOND[0]), (Vantage::Pods, SECOND[0]), (Vantage::Loopback, "127.0.0.1")] {
        assert_eq!(ask(&inside, from, to).0, Ok(Outcome::Pod), "{from:?}");
        assert_eq!(ask(&outside, from, to), (Ok(Outcome::Listener), Some(ClaimKind::Listener), None), "{from:?}");
        assert_eq!(ask(&unread, from, to).0.expect_err("unread").source, Source::ConfigMaps, "{from:?}");
    }
    let beside = |host_ip: &str| {
        let world = outside.clone().pod("edge", |pod| {
            pod.host_port(80, 30080);
            pod.ports[0].host_ip = Some(ip(host_ip));
        });
        ask(&world, Vantage::Node, host_ip).0
    };
    assert_eq!(beside(PRIMARY[0]), Ok(Outcome::Pod));
    assert!(beside(SECOND[0]).expect_err("unknown").detail.contains("may serve the hostPort"));
    let taker = |it: World| it.external_ip(SECOND[0]).with(|service| service.ports[0].port = 30080);
    let external = (Ok(Outcome::Pod), Some(ClaimKind::ExternalIp), Some(ClaimKind::Listener));
    assert_eq!(ask(&outside.service("taker", taker), Vantage::Node, SECOND[0]), external, "beside it no NodePort");
    assert!(ask(&inside.service("taker", taker), Vantage::Node, SECOND[0]).0.is_err());
}

#[test]
fn behind_cilium_a_narrowed_service_may_be_served_or_not() {
    let narrowed = |it: World| it.node_port(30080).with(|service| service.for_cilium.on_some_nodes = true);
    let world = Snapshot::healthy().service("web", narrowed);
    assert_eq!(ask(&world, Vantage::Remote, PRIMARY[0]).0, Ok(Outcome::Pod));
    let gap = ask(&world.with_mode(Mode::Cilium), Vantage::Remote, PRIMARY[0]).0.expect_err("unknown");
    assert!(gap.detail.contains("service.cilium.io/type"), "{gap:?}");
    let mut left_out = world.listens("0.0.0.0:30080").with_mode(Mode::Cilium);
    objects(&mut left_out.cluster.services)[0].for_cilium =
        ForCilium { only: Some(ServiceKind::ClusterIp), ..ForCilium::default() };
    assert_eq!(ask(&left_out, Vantage::Remote, PRIMARY[0]).0, Ok(Outcome::Listener));
}

/// A node with two links: Cilium serves the device eth0, but not eth1 with 198.51.100.9.
fn two_devices(world: Snapshot, change: impl FnOnce(&mut CiliumConfig)) -> Snapshot {
    let mut config = CiliumConfig { devices: vec!["eth0".to_owned()], ..CiliumConfig::default() };
    change(&mut config);
    let mut world = world.address("eth1", "198.51.100.9").with_mode(Mode::Cilium);
    let interfaces = std::sync::Arc::make_mut(seen(&mut world.kernel.interfaces));
    interfaces.links.last_mut().expect("eth1").kind = None;
    world.with_config(|it| it.cilium = Some(config))
}

#[test]
fn behind_cilium_an_address_of_another_device_is_taken_where_cilium_sees_who_connects() {
    let world = |field: fn(&mut Service, IpAddr)| {
        let taker = |it: World| {
            it.with(|service| {
                service.ports[0].port = 30080;
                field(service, ip("198.51.100.9"));
            })
        };
        Snapshot::healthy().service("taker", taker).listens("0.0.0.0:30080")
    };
    let external = world(|service, ip| service.external_ips = vec![ip]);
    let balanced = world(|service, ip| service.load_balancer_ips = vec![ip]);
    let process = Ok(Outcome::Listener);
    let asked = |world: &Snapshot, from| ask(world, from, "198.51.100.9").0;
    for (name, world, inside) in [
        ("external IP", two_devices(external.clone(), |_| ()), process.clone()),
        ("anywhere", two_devices(external.clone(), |it| it.external_ips_anywhere = true), Ok(Outcome::Pod)),
        ("load balancer", two_devices(balanced, |_| ()), Ok(Outcome::Pod)),
    ] {
        assert_eq!(asked(&world, Vantage::Node), inside, "{name}");
        assert_eq!(asked(&world, Vantage::Pods), inside, "{name}");
        let remote = asked(&world, Vantage::Remote).expect_err("by which device they come");
        assert!(remote.detail.contains("device"), "{name}: {remote:?}");
    }
    let at_packets = two_devices(external.clone(), |it| it.host_namespace_only = true);
    assert!(asked(&at_packets, Vantage::Pods).is_err() && asked(&at_packets, Vantage::Node) == process);
    assert_eq!(asked(&external.address("eth1", "198.51.100.9"), Vantage::Remote), Ok(Outcome::Pod), "kube-proxy");
}

#[test]
fn behind_cilium_an_external_ip_of_a_family_that_the_service_has_not_leads_nowhere() {
    let taker = |it: World| {
        it.external_ip(PRIMARY[1])
            .with(|service| {
                service.ports[0].port = 30080;
                service.families = &[Family::V4];
            })
            .each_slice(|slice| {
                if slice.family == Family::V6 {
                    slice.endpoints.clear();
                }
            })
    };
    let world = Snapshot::healthy().service("taker", taker).listens("[::]:30080");
    assert_eq!(ask(&world, Vantage::Remote, PRIMARY[1]).0, Ok(Outcome::Listener), "kube-proxy leaves it out");
    let lost = (Some(ClaimKind::ExternalIp), Some(ClaimKind::Listener));
    let behind = world.with_mode(Mode::Cilium);
    assert_eq!(ask(&behind, Vantage::Remote, PRIMARY[1]), (Ok(Outcome::Refused), lost.0, lost.1));
    assert_eq!(ask(&behind, Vantage::Node, PRIMARY[1]), (Ok(Outcome::Unreachable), lost.0, lost.1));
}

#[test]
fn behind_cilium_a_host_ip_of_every_address_is_unknown_and_one_of_loopback_is_all_of_it() {
    let world = |host_ip: &str| {
        let mut world = two_devices(Snapshot::healthy().listens("127.0.0.53:30080"), |_| ()).pod("edge", |pod| {
            pod.host_port(80, 30080);
            pod.ports[0].host_ip = Some(ip(host_ip));
        });
        let ranges = Reading::Seen(vec!["31000-31999".parse().expect("a range")]);
        let by = portreeve_facts::Claimant::Cilium;
        world.cluster.range_claims.push(RangeClaim { by, ranges, place: String::new() });
        world
    };
    let every = world("0.0.0.0");
    assert!(ask(&every, Vantage::Remote, PRIMARY[0]).0.expect_err("by version").detail.contains("hostIP 0.0.0.0"));
    assert_eq!(ask(&every, Vantage::Remote, SECOND[0]).0, Ok(Outcome::Refused), "no version serves it there");
    assert_eq!(ask(&every, Vantage::Remote, PRIMARY[1]).0, Ok(Outcome::Refused));
    let loopback = world("127.0.0.1");
    assert_eq!(ask(&loopback, Vantage::Loopback, "127.0.0.53").1, Some(ClaimKind::HostPort));
    assert_eq!(ask(&loopback, Vantage::Node, PRIMARY[0]).0, Ok(Outcome::Refused));
    let other = world("198.51.100.9");
    assert_eq!(ask(&other, Vantage::Node, "198.51.100.9").0, Ok(Outcome::Refused), "no device of Cilium has it");
    assert!(ask(&other, Vantage::Remote, "198.51.100.9").0.is_err());
}

#[test]
fn behind_cilium_outsiders_may_be_dropped_at_other_ports_of_a_load_balancers_address() {
    let balanced = |address: &str| {
        let taker = |it: World| it.with(|service| service.load_balancer_ips = vec![ip(address)]);
        Snapshot::healthy().service("taker", taker).listens("0.0.0.0:30080")
    };
    let asked = |world: &Snapshot, from, to| ask(world, from, to).0;
    let process = Ok(Outcome::Listener);
    let beyond = two_devices(balanced("198.51.100.9"), |_| ());
    let gap = asked(&beyond, Vantage::Remote, "198.51.100.9").expect_err("by who assigns it");
    assert!(gap.detail.contains("the address's other ports"), "{gap:?}");
    assert_eq!(asked(&beyond, Vantage::Node, "198.51.100.9"), process);
    assert_eq!(asked(&beyond, Vantage::Pods, "198.51.100.9"), process);
    assert_eq!(asked(&beyond, Vantage::Remote, PRIMARY[0]), process, "another address");
    let turned_off = two_devices(balanced("198.51.100.9"), |it| it.wildcard_entries = Some(false));
    assert_eq!(asked(&turned_off, Vantage::Remote, "198.51.100.9"), process);
    let own = two_devices(balanced(SECOND[0]), |_| ());
    assert_eq!(asked(&own, Vantage::Remote, SECOND[0]), process, "of a device of its own");
    let external = two_devices(Snapshot::healthy().listens("0.0.0.0:30080"), |_| ());
    let external = external.service("taker", |it| it.external_ip("198.51.100.9"));
    assert_eq!(asked(&external, Vantage::Remote, "198.51.100.9"), process, "no address of a load balancer");
    let elsewhere = |service: &mut Service| service.for_cilium.only = Some(ServiceKind::ClusterIp);
    let narrowed = |it: World| {
        it.with(|service| {
            service.load_balancer_ips = vec![ip("198.51.100.9")];
            elsewhere(service);
        })
    };
    let narrowed = Snapshot::healthy().service("taker", narrowed).listens("0.0.0.0:30080");
    assert_eq!(asked(&two_devices(narrowed, |_| ()), Vantage::Remote, "198.51.100.9"), process, "kept off");
}

#[test]
fn behind_cilium_services_of_the_proxy_name_that_it_was_told_are_served_and_no_others() {
    let world = |label: Option<&str>| {
        Snapshot::healthy()
            .listens("0.0.0.0:30080")
            .service("web", |it| it.node_port(30080).with(|service| service.proxy_name = label.map(str::to_owned)))
    };
    let behind = |label, told: Option<&str>| {
        let world = two_devices(world(label), |it| it.proxy_name = told.map(str::to_owned));
        ask(&world, Vantage::Remote, PRIMARY[0]).0
    };
    for (label, told, served) in [
        (None, None, true),
        (Some("cilium"), None, false),
        (None, Some("cilium"), false),
        (Some("cilium"), Some("cilium"), true),
        (Some("other"), Some("cilium"), false),
    ] {
        let expected = if served { Outcome::Pod } else { Outcome::Listener };
        assert_eq!(behind(label, told), Ok(expected), "{label:?} {told:?}");
    }
    assert_eq!(ask(&world(Some("cilium")), Vantage::Remote, PRIMARY[0]).0, Ok(Outcome::Listener), "kube-proxy");
}
