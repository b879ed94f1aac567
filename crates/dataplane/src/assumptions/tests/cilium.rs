//! The addresses that Cilium serves, for each of its settings.

use super::*;
use crate::ExternalAddress;
use portreeve_facts::{CiliumConfig, Claimant, RangeClaim, Reading, WithoutBackend};

/// Who answers on a node with Cilium, as three groups of letters: for clients outside, clients on the node, and pods of
/// the node. Each group has three letters: the answers with a usable endpoint, without an endpoint, and with only
/// remote endpoints. `?` means unknown.
fn under_cilium(world: &Snapshot, address: &str) -> String {
    under_cilium_at(world, address, WEB)
}

fn under_cilium_at(world: &Snapshot, address: &str, port: Port) -> String {
    let assumptions = assumptions(world);
    let to = LocalAddress { ip: ip(address), vrf: false };
    let ask = |from, backing| {
        let mut outcomes = assumptions.iter().map(|assumption| assumption.outcome((to, port), from, backing));
        let first = outcomes.next().expect("an assumption");
        let letter = ["L", "P", "R", "T", "N", "U"][first as usize];
        if outcomes.all(|outcome| outcome == first) { letter } else { "?" }
    };
    let backings = [Backing::Ready, Backing::Empty, Backing::Elsewhere];
    let row = |from| backings.map(|backing| ask(from, backing)).concat();
    [Vantage::Remote, Vantage::Node, Vantage::Pods].map(row).join(" ")
}

fn cilium(change: impl FnOnce(&mut ProxyConfig)) -> Snapshot {
    let mut world = Snapshot::healthy().address("lo", "203.0.113.1").address("eth1", "198.51.100.1");
    let interfaces = Arc::make_mut(seen(&mut world.kernel.interfaces));
    interfaces.default_links = None;
    interfaces.links.iter_mut().filter(|it| it.name == "eth1").for_each(|it| it.kind = Some("veth".to_owned()));
    world.with_mode(Mode::Cilium).with_config(change)
}

#[test]
fn cilium_serves_one_address_to_outsiders_and_all_of_its_devices_to_the_node() {
    let world = cilium(|_| {});
    for address in [PRIMARY[0], PRIMARY[1], "203.0.113.1"] {
        assert_eq!(under_cilium(&world, address), "PRR PUP PUP", "{address}");
    }
    for address in SECOND {
        assert_eq!(under_cilium(&world, address), "LLL PUP PUP", "{address}");
    }
    assert_eq!(under_cilium(&world, "198.51.100.1"), "??? ??? ???", "whether the device is Cilium's is not known");
    assert_eq!(captured(&world, "127.0.0.1"), Some(true));
    assert!(assumptions(&world).ambiguity().detail.starts_with("it is not known which devices cilium serves"));
    // If a user sets only the mode, all other settings have their defaults.
    let said = Snapshot::healthy().with_user_mode(Mode::Cilium);
    assert_eq!(under_cilium(&said, PRIMARY[0]), "PRR PUP PUP");
}

#[test]
fn the_list_of_cilium_counts_for_outsiders_only_and_for_the_families_in_it() {
    let world = cilium(|it| it.node_port_addresses = vec!["192.0.2.2/32".to_owned()]);
    assert_eq!(under_cilium(&world, SECOND[0]), "PRR PUP PUP");
    for address in [PRIMARY[0], PRIMARY[1], SECOND[1], "203.0.113.1"] {
        assert_eq!(under_cilium(&world, address), "LLL PUP PUP", "{address}");
    }
    let all = cilium(|it| it.node_port_addresses = vec!["0.0.0.0/0".to_owned(), "::/0".to_owned()]);
    for address in [PRIMARY[0], SECOND[0], SECOND[1], "203.0.113.1"] {
        assert_eq!(under_cilium(&all, address), "PRR PUP PUP", "{address}");
    }
    assert_eq!(under_cilium(&all, "198.51.100.1"), "??? ??? ???");
}

/// Packets showed these results with Cilium 1.19 and 1.20 (`tests/lab/behind_cilium/before.rs`).
#[test]
fn outside_of_its_range_cilium_serves_the_node_and_its_pods_where_it_serves_outsiders() {
    let with = |ranges: Option<Reading<Vec<PortRange>>>| {
        let mut world = cilium(|_| {});
        let claim = |ranges| RangeClaim { by: Claimant::Cilium, ranges, place: String::new() };
        world.cluster.range_claims.extend(ranges.map(claim));
        world
    };
    let high = (Protocol::Tcp, 33000);
    let (default, wide) = (with(None), with(Some(Reading::Seen(vec!["30000-34095".parse().expect("a range")]))));
    for address in [PRIMARY[0], PRIMARY[1], "203.0.113.1"] {
        assert_eq!(under_cilium_at(&default, address, high), "PRR PUP PUP", "{address}");
    }
    for address in SECOND {
        let at = |world| under_cilium_at(world, address, high);
        assert_eq!([at(&default), at(&wide)], ["LLL LLL LLL", "LLL PUP PUP"], "{address}");
    }
    let unread = with(Some(gap(Source::ConfigMaps, Why::Malformed)));
    assert_eq!(under_cilium_at(&unread, PRIMARY[0], high), "PRR PUP PUP");
    for world in [&unread, &with(Some(Reading::Seen(Vec::new())))] {
        assert_eq!(under_cilium_at(world, SECOND[0], high), "LLL ??? ???");
    }
    assert_eq!(assumptions(&unread).ambiguity().source, Source::ConfigMaps);
    assert_eq!(under_cilium(&unread.with_user_mode(Mode::Cilium), SECOND[0]), "LLL PUP PUP", "the mode's default");
    let unnamed = assumptions(&Snapshot::healthy().without_proxy().address("cilium_host", "10.244.0.1"));
    let of_cilium = || unnamed.iter().filter(|it| it.mode() == Mode::Cilium);
    for is_any in [true, false] {
        assert!(of_cilium().any(|it| it.settings.node_port_range.is_none() == is_any), "no setting was read");
    }
}

#[test]
fn cilium_answers_without_an_endpoint_as_it_is_set() {
    let with = |without_backend, host_namespace_only| {
        let config = CiliumConfig { without_backend, host_namespace_only, ..CiliumConfig::default() };
        under_cilium(&cilium(|it| it.cilium = Some(config)), PRIMARY[0])
    };
    assert_eq!(with(WithoutBackend::Reject, false), "PRR PUP PUP");
    assert_eq!(with(WithoutBackend::Drop, false), "PTT PUP PUP");
    assert_eq!(with(WithoutBackend::Pass, false), "PLT PLP PLP");
    assert_eq!(with(WithoutBackend::Reject, true), "PRR PUP PRP");
}

#[test]
fn before_1_20_cilium_serves_pods_whose_sockets_it_leaves_alone_where_it_serves_outsiders() {
    let with = |wildcard_entries, address| {
        let config = CiliumConfig { host_namespace_only: true, wildcard_entries, ..CiliumConfig::default() };
        under_cilium(&cilium(|it| it.cilium = Some(config)), address)
    };
    assert_eq!([Some(true), Some(false), None].map(|it| with(it, PRIMARY[0])), ["PRR PUP PRP"; 3]);
    let seconds = [Some(true), Some(false), None].map(|it| with(it, SECOND[0]));
    assert_eq!(seconds, ["LLL PUP PRP", "LLL PUP LLL", "LLL PUP ???"]);
    let unclear = [Some(true), Some(false), None].map(|wildcard_entries| {
        let config = CiliumConfig { host_namespace_only: true, wildcard_entries, ..CiliumConfig::default() };
        assumptions(&cilium(|it| it.cilium = Some(config))).ambiguity().detail
    });
    assert_eq!(unclear.map(|it| it.contains("whether its version serves pods")), [false, false, true]);
}

#[test]
fn what_is_local_inside_is_so_for_the_node_and_its_pods_under_cilium() {
    let ask = |without_backend, host_namespace_only, backing| {
        let config = CiliumConfig { without_backend, host_namespace_only, ..CiliumConfig::default() };
        let assumptions = assumptions(&cilium(|it| it.cilium = Some(config)));
        let to = LocalAddress { ip: ip(PRIMARY[0]), vrf: false };
        let assumption = assumptions.iter().next().expect("an assumption");
        [Vantage::Remote, Vantage::Node, Vantage::Pods].map(|from| assumption.outcome((to, WEB), from, backing))
    };
    let (pod, refused, unreachable) = (Outcome::Pod, Outcome::Refused, Outcome::Unreachable);
    let (reject, pass) = (WithoutBackend::Reject, WithoutBackend::Pass);
    assert_eq!(ask(reject, false, Backing::ReadyOutside), [pod, unreachable, unreachable]);
    assert_eq!(ask(reject, true, Backing::ReadyOutside), [pod, unreachable, refused]);
    assert_eq!(ask(pass, false, Backing::ReadyOutside), [pod, Outcome::Listener, Outcome::Listener]);
    assert_eq!(ask(reject, false, Backing::ElsewhereOutside), [refused, unreachable, unreachable]);
    assert_eq!(ask(reject, true, Backing::ElsewhereOutside), [refused, unreachable, refused]);
    assert_eq!(ask(pass, false, Backing::ElsewhereOutside), [Outcome::TimedOut, unreachable, unreachable]);
}

#[test]
fn where_cilium_chooses_among_several_addresses_of_a_device_it_is_not_known_which() {
    let two = cilium(|_| {}).address("lo", "203.0.113.2");
    for address in ["203.0.113.1", "203.0.113.2"] {
        assert_eq!(under_cilium(&two, address), "??? PUP PUP", "{address} of lo");
    }
    // Whether Cilium serves the Node's public or private address depends on Cilium's version.
    let public = "2001:db8:1::5";
    let mut world = cilium(|_| {}).address("eth0", public).address("eth0", "2001:db8:1::6");
    let addresses = &mut objects(&mut world.cluster.nodes)[0].addresses;
    addresses.iter_mut().filter(|it| Family::of(it.ip) == Family::V6).for_each(|it| it.ip = ip(public));
    for address in [public, PRIMARY[1]] {
        assert_eq!(under_cilium(&world, address), "??? PUP PUP", "{address}");
    }
    assert_eq!(under_cilium(&world, "2001:db8:1::6"), "LLL PUP PUP", "it is neither");
    // If a device has two public addresses, every version of Cilium serves the Node's address.
    let mut world = cilium(|_| {}).address("eth1", public).address("eth1", "2001:db8:1::6");
    Arc::make_mut(seen(&mut world.kernel.interfaces)).default_links = Some(vec![2, 3, 4]);
    let addresses = &mut objects(&mut world.cluster.nodes)[0].addresses;
    addresses.iter_mut().filter(|it| Family::of(it.ip) == Family::V6).for_each(|it| it.ip = ip(public));
    assert_eq!(under_cilium(&world, public), "PRR PUP PUP");
    assert_eq!(under_cilium(&world, "2001:db8:1::6"), "LLL PUP PUP");
}

/// SCTP was not measured. Cilium's source code gives the results.
#[test]
fn cilium_serves_sctp_only_where_it_is_told_to_and_not_as_the_node_connects() {
    let to = (LocalAddress { ip: ip(PRIMARY[0]), vrf: false }, (Protocol::Sctp, 30080));
    let ask = |change: &dyn Fn(&mut ProxyConfig)| {
        let assumptions = assumptions(&cilium(|it| change(it)));
        [Vantage::Remote, Vantage::Node, Vantage::Pods].map(|from| {
            let outcomes: Vec<_> = assumptions.iter().map(|it| it.outcome(to, from, Backing::Ready)).collect();
            outcomes.windows(2).all(|pair| pair[0] == pair[1]).then(|| outcomes[0])
        })
    };
    let of = |sctp| move |it: &mut ProxyConfig| it.cilium = Some(CiliumConfig { sctp, ..CiliumConfig::default() });
    let (pod, listener) = (Some(Outcome::Pod), Some(Outcome::Listener));
    assert_eq!(ask(&of(false)), [listener; 3]);
    assert_eq!(ask(&of(true)), [pod, listener, pod]);
}

#[test]
fn cilium_leaves_a_family_alone_that_is_turned_off() {
    let config = CiliumConfig { families_off: vec![Family::V6], ..CiliumConfig::default() };
    let world = cilium(|it| it.cilium = Some(config));
    assert_eq!(under_cilium(&world, PRIMARY[0]), "PRR PUP PUP");
    assert_eq!(under_cilium(&world, PRIMARY[1]), "LLL LLL LLL");
    assert_eq!([captured(&world, "127.0.0.1"), captured(&world, "::1")], [Some(true), Some(false)]);
}

#[test]
fn where_cilium_has_its_link_and_nobody_tells_the_mode_what_it_shares_with_kube_proxy_is_known() {
    let unknown = Snapshot::healthy().without_proxy();
    let with_link = unknown.clone().address("cilium_host", "10.244.0.1");
    assert_eq!(
        assumptions(&unknown).mode_in_words(),
        "unknown: each known result is the same in iptables, ipvs and nftables mode"
    );
    assert!(assumptions(&with_link).mode_in_words().ends_with("mode, and with Cilium instead of kube-proxy"));
    let primary = LocalAddress { ip: ip(PRIMARY[0]), vrf: false };
    for world in [&unknown, &with_link] {
        assert!(assumptions(world).at(true).iter().all(|it| it.captures(primary, 30080)));
    }
    let known = Snapshot::healthy().address("cilium_host", "10.244.0.1");
    assert!(assumptions(&known).iter().all(|it| it.mode() == Mode::Iptables), "it is there beside kube-proxy too");
}

#[test]
fn settings_of_cilium_that_were_not_read_may_leave_an_address_or_a_family_out() {
    let mut world = cilium(|_| {});
    world.kernel.proxy.config = gap(Source::ProxyConfig, Why::NotPermitted);
    world.kernel.proxy.mode =
        portreeve_facts::Reading::Seen(Learned { value: Mode::Cilium, place: "a test".to_owned() });
    let of = |family: usize, everywhere: bool| -> Vec<Outcome> {
        let to = LocalAddress { ip: ip(PRIMARY[family]), vrf: false };
        let assumptions = assumptions(&world);
        let outcomes = assumptions.at(everywhere).iter();
        let mut outcomes: Vec<_> = outcomes.map(|it| it.outcome((to, WEB), Vantage::Remote, Backing::Ready)).collect();
        outcomes.sort();
        outcomes.dedup();
        outcomes
    };
    for family in [0, 1] {
        assert_eq!(of(family, true), [Outcome::Pod]);
        assert_eq!(of(family, false), [Outcome::Listener, Outcome::Pod]);
    }
    let node = |off: Family| {
        let to = LocalAddress { ip: ip(PRIMARY[off.index()]), vrf: false };
        let assumptions = assumptions(&world);
        let mut off = assumptions.iter().filter(|it| it.settings.families_off == [off]);
        off.all(|it| it.outcome((to, WEB), Vantage::Node, Backing::Ready) == Outcome::Listener)
    };
    assert!(Family::BOTH.into_iter().all(node), "where a family is off, the node is not served either");
}

#[test]
fn a_kube_proxy_beside_cilium_leaves_only_what_both_share() {
    let mut world = cilium(|_| ());
    let of_cilium = world.kernel.proxy.config.seen().cloned().expect("settings");
    assert_eq!(of_cilium.mode_if_known(), Some(Mode::Cilium));
    world = world.with_mode(Mode::Iptables);
    world.cluster.proxy_config = portreeve_facts::Reading::Seen(ProxyConfig {
        place: "ConfigMap kube-system/cilium-config".to_owned(),
        node_port_addresses: vec![format!("{}/32", SECOND[0])],
        ..of_cilium
    });
    assert_eq!(world.proxy_mode().map_err(|gap| gap.why), Err(Why::Ambiguous));
    let both = assumptions(&world);
    let modes: std::collections::BTreeSet<_> = both.iter().map(|it| it.plane.mode.name()).collect();
    assert_eq!(modes.into_iter().collect::<Vec<_>>(), ["cilium", "iptables"]);
    let words = both.mode_in_words();
    assert!(words.contains("cilium-config Cilium replaces it; the result is"), "{words}");
    // If a user configures the mode, only the settings of that mode's data plane are used.
    let said = |mode: Mode| {
        let mut world = world.clone();
        world.overrides.proxy_mode = Some(Learned { value: mode, place: "--proxy-mode".to_owned() });
        assumptions(&world).node_port_addresses
    };
    assert_eq!(said(Mode::Cilium), Some(vec![format!("{}/32", SECOND[0])]));
    assert_ne!(said(Mode::Iptables), said(Mode::Cilium));
    world.cluster.proxy_config = gap(Source::ConfigMaps, Why::NotRequested);
    world.overrides.proxy_mode = Some(Learned { value: Mode::Cilium, place: "--proxy-mode".to_owned() });
    assert_eq!(assumptions(&world).settings, "the mode's defaults", "those of kube-proxy are none of Cilium's");
}

#[test]
fn without_the_nodes_object_and_settings_little_is_known_of_cilium() {
    let mut world = cilium(|_| {});
    seen(&mut world.cluster.nodes).clear();
    assert_eq!(under_cilium(&world, PRIMARY[0]), "??? PUP PUP", "eth0 alone has IPv6");
    assert_eq!(captured(&world, "127.0.0.1"), Some(true));
    let mut world = cilium(|_| {});
    objects(&mut world.cluster.nodes)[0].addresses.retain(|it| Family::of(it.ip) == Family::V4);
    assert_eq!(under_cilium(&world, PRIMARY[0]), "PRR PUP PUP");
    assert_eq!(under_cilium(&world, PRIMARY[1]), "??? PUP PUP", "Cilium chooses one by itself");
    assert_eq!(under_cilium(&cilium(|_| {}).address("eth0", "fe80::1"), "fe80::1").chars().next(), Some('?'));
}

/// `eth1` is not a device of Cilium, but has a load balancer's address. Cilium serves this address for the node, and
/// for packets from outside that arrive on a device of Cilium.
#[test]
fn what_cilium_takes_for_certain_is_taken_whatever_else_is_not_known() {
    let world =
        cilium(|it| it.cilium = Some(CiliumConfig { devices: vec!["eth0".to_owned()], ..CiliumConfig::default() }));
    let claim = |change: fn(&mut Service)| {
        let world = world.clone().service("web", |it| it.with(change));
        let service = &world.cluster.services.seen().expect("services")[0];
        let claim = ExternalAddress::of(&world, service).next().expect("an address");
        let assumptions = assumptions(&world);
        let is_taken = |from: &Vantage| assumptions.iter().all(|it| it.captures_external(&claim, *from) == Ok(true));
        [Vantage::Remote, Vantage::Node].into_iter().filter(is_taken).collect::<Vec<_>>()
    };
    assert_eq!(claim(|it| it.external_ips = vec![ip(SECOND[0])]), [Vantage::Remote, Vantage::Node]);
    assert_eq!(claim(|it| it.load_balancer_ips = vec![ip("198.51.100.1")]), [Vantage::Node]);
    assert_eq!(claim(|it| it.external_ips = vec![ip("198.51.100.1")]), []);
}

#[test]
fn settings_of_cilium_that_were_not_read_may_make_cilium_serve_every_address() {
    let mut world = cilium(|_| {}).address("docker0", "172.17.0.1");
    let interfaces = Arc::make_mut(seen(&mut world.kernel.interfaces));
    interfaces.links.iter_mut().filter(|it| it.name == "docker0").for_each(|it| it.kind = Some("bridge".to_owned()));
    let ranges = Reading::Seen(vec![PortRange::DEFAULT_NODE_PORTS]);
    world.cluster.range_claims.push(RangeClaim { by: Claimant::Cilium, ranges, place: String::new() });
    world.kernel.proxy.config = gap(Source::ProxyConfig, Why::TimedOut);
    let assumptions = assumptions(&world);
    for protocol in [Protocol::Tcp, Protocol::Sctp] {
        for address in [SECOND[0], SECOND[1], "172.17.0.1"] {
            // The second port is outside of Cilium's range.
            for (from, number) in [(Vantage::Remote, 30080), (Vantage::Pods, 33000)] {
                let to = LocalAddress { ip: ip(address), vrf: false };
                let ask = |it: &Assumption| it.outcome((to, (protocol, number)), from, Backing::Ready);
                for outcome in [Outcome::Listener, Outcome::Pod] {
                    assert!(assumptions.iter().any(|it| ask(it) == outcome), "{protocol} {address}: {outcome:?}");
                }
            }
        }
    }
}
