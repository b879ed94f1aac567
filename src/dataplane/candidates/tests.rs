use std::sync::Arc;

use super::{
    super::{backing::Backing, local_address::LocalAddress, outcome::Outcome},
    *,
};
use crate::facts::{
    CiliumConfig, Family, NodeAddress, NodeAddressKind, Protocol, Vantage, WithoutBackend,
    healthy::{PRIMARY, SECOND, gap, ip, objects, seen},
};

fn candidates(world: &Snapshot) -> Candidates {
    Candidates::of(world, world.kernel.interfaces.seen().expect("interfaces"), 60)
}

fn captured(world: &Snapshot, address: &str) -> Option<bool> {
    candidates(world).agree(|candidate| candidate.captures(LocalAddress { ip: ip(address), vrf: false }))
}

#[test]
fn each_mode_captures_what_it_captures_by_default() {
    let world = Snapshot::healthy();
    for (mode, primary, second, loopback) in
        [(Mode::Iptables, true, true, true), (Mode::Nftables, true, false, false), (Mode::Ipvs, true, true, false)]
    {
        let world = world.with_mode(mode);
        assert_eq!(captured(&world, PRIMARY[0]), Some(primary), "{mode} primary");
        assert_eq!(captured(&world, SECOND[1]), Some(second), "{mode} second");
        assert_eq!(captured(&world, "127.0.0.1"), Some(loopback), "{mode} loopback");
        assert_eq!(captured(&world, "::1"), Some(false), "{mode} IPv6 loopback");
    }
}

#[test]
fn a_proxy_that_stopped_programming_is_said_to_be_behind() {
    let mut world = Snapshot::healthy();
    assert!(!candidates(&world).mode_in_words().contains("queued"));
    let (at, metrics) = (world.at, seen(&mut world.kernel.proxy.metrics));
    metrics.last_queued = Some(at - jiff::SignedDuration::from_secs(30));
    metrics.last_sync = Some(at - jiff::SignedDuration::from_secs(300));
    assert!(!candidates(&world).mode_in_words().contains("queued"), "it may be at it");
    world.at = at + jiff::SignedDuration::from_secs(60);
    assert!(candidates(&world).mode_in_words().contains("queued"));
}

#[test]
fn a_family_without_a_cidr_is_served_on_all_its_addresses() {
    let world = Snapshot::healthy().with_config(|it| it.node_port_addresses = vec!["192.0.2.2/32".to_owned()]);
    assert_eq!(captured(&world, PRIMARY[0]), Some(false));
    assert_eq!(captured(&world, SECOND[0]), Some(true));
    assert_eq!(captured(&world, PRIMARY[1]), Some(true));
    assert_eq!(captured(&world, "127.0.0.1"), Some(false), "a list without loopback turns localhostNodePorts off");
}

#[test]
fn an_unknown_mode_leaves_only_what_all_modes_share() {
    let world = Snapshot::healthy().without_proxy();
    assert_eq!(captured(&world, PRIMARY[0]), Some(true));
    assert_eq!(captured(&world, SECOND[0]), None);
    assert_eq!(candidates(&world).ambiguity().source, Source::ProxyMode);
}

#[test]
fn without_a_node_object_any_address_may_be_the_primary_one() {
    let mut world = Snapshot::healthy().with_mode(Mode::Nftables);
    seen(&mut world.cluster.nodes).clear();
    assert_eq!(captured(&world, PRIMARY[0]), None);
    world.cluster.nodes = gap(Source::Nodes, Why::NotAsked);
    assert_eq!(candidates(&world).ambiguity().source, Source::Nodes);
}

#[test]
fn asking_about_iptables_on_an_nftables_node_does_not_keep_the_nftables_default() {
    let mut world = Snapshot::healthy().with_mode(Mode::Nftables);
    world.overrides.proxy_mode = Some(Learned { value: Mode::Iptables, place: "--set".to_owned() });
    assert_eq!(captured(&world, SECOND[0]), Some(true));
}

#[test]
fn settings_nobody_could_read_are_the_modes_own_only_where_somebody_said_the_mode() {
    let mut world = Snapshot::healthy().without_proxy();
    assert_eq!(candidates(&world).settings, "unknown");
    world.overrides.proxy_mode = Some(Learned { value: Mode::Nftables, place: "--set".to_owned() });
    assert_eq!(candidates(&world).settings, "the mode's defaults");
    assert_eq!(captured(&world, SECOND[0]), Some(false));
}

#[test]
fn localhost_is_served_where_a_list_has_it_or_there_is_none() {
    let listed = |cidrs: &[&str]| {
        let cidrs = cidrs.iter().map(|it| (*it).to_owned()).collect();
        captured(&Snapshot::healthy().with_config(|it| it.node_port_addresses = cidrs), "127.0.0.1")
    };
    assert_eq!(listed(&[]), Some(true));
    assert_eq!(listed(&["127.0.0.0/8", "192.0.2.0/24"]), Some(true));
    assert_eq!(
        listed(&["2001:db8::/64"]),
        Some(false),
        "IPv4 is served on all addresses, but none listed is localhost"
    );
}

#[test]
fn an_address_in_a_vrf_is_served_where_it_is_listed() {
    let ask = |world: &Snapshot| {
        candidates(world).agree(|candidate| candidate.captures(LocalAddress { ip: ip(SECOND[0]), vrf: true }))
    };
    let world = Snapshot::healthy();
    assert_eq!(ask(&world), Some(false));
    assert_eq!(ask(&world.with_config(|it| it.node_port_addresses = vec!["192.0.2.0/24".to_owned()])), Some(true));
}

/// Who answers under Cilium with a usable, no, and only remote endpoints: from outside, on the node and in its pods.
/// `?` where that is not known.
fn under_cilium(world: &Snapshot, address: &str) -> String {
    let candidates = candidates(world);
    let to = LocalAddress { ip: ip(address), vrf: false };
    let ask = |from, backing| {
        let mut outcomes = candidates.iter().map(|candidate| candidate.outcome((to, Protocol::Tcp), from, backing));
        let first = outcomes.next().expect("a candidate");
        let letter = ["L", "P", "R", "T", "N", "U"][first as usize];
        if outcomes.all(|outcome| outcome == first) { letter } else { "?" }
    };
    let backings = [Backing::Ready, Backing::Empty, Backing::Elsewhere];
    let row = |from| backings.map(|backing| ask(from, backing)).concat();
    [Vantage::Remote, Vantage::Node, Vantage::Pods].map(row).join(" ")
}

/// With a link of which it is not known whether Cilium finds it by itself.
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
    assert!(candidates(&world).ambiguity().detail.starts_with("which devices cilium serves is not known"));
    // A person who says the mode says no more.
    let mut said = Snapshot::healthy().without_proxy();
    said.overrides.proxy_mode = Some(Learned { value: Mode::Cilium, place: "--proxy-mode".to_owned() });
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
}

#[test]
fn what_is_local_inside_is_so_for_the_node_and_its_pods_under_cilium() {
    let ask = |without_backend, host_namespace_only, backing| {
        let config = CiliumConfig { without_backend, host_namespace_only, ..CiliumConfig::default() };
        let candidates = candidates(&cilium(|it| it.cilium = Some(config)));
        let to = LocalAddress { ip: ip(PRIMARY[0]), vrf: false };
        let candidate = candidates.iter().next().expect("a candidate");
        [Vantage::Remote, Vantage::Node, Vantage::Pods]
            .map(|from| candidate.outcome((to, Protocol::Tcp), from, backing))
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
    // A Node with a public address beside a private one: the version of Cilium decides.
    let public = "2001:db8:1::5";
    let mut world = cilium(|_| {}).address("eth0", public).address("eth0", "2001:db8:1::6");
    let addresses = &mut objects(&mut world.cluster.nodes)[0].addresses;
    addresses.iter_mut().filter(|it| Family::of(it.ip) == Family::V6).for_each(|it| it.ip = ip(public));
    for address in [public, PRIMARY[1]] {
        assert_eq!(under_cilium(&world, address), "??? PUP PUP", "{address}");
    }
    assert_eq!(under_cilium(&world, "2001:db8:1::6"), "LLL PUP PUP", "it is neither");
}

/// By Cilium's sources; SCTP was not measured.
#[test]
fn cilium_serves_sctp_only_where_it_is_told_to_and_not_as_the_node_connects() {
    let ask = |change: &dyn Fn(&mut ProxyConfig)| {
        let candidates = candidates(&cilium(|it| change(it)));
        let to = LocalAddress { ip: ip(PRIMARY[0]), vrf: false };
        [Vantage::Remote, Vantage::Node, Vantage::Pods].map(|from| {
            let outcomes = candidates.iter().map(|it| it.outcome((to, Protocol::Sctp), from, Backing::Ready));
            outcomes.collect::<Vec<_>>().windows(2).all(|pair| pair[0] == pair[1]).then(|| {
                candidates.iter().next().expect("a candidate").outcome((to, Protocol::Sctp), from, Backing::Ready)
            })
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
    assert_eq!(candidates(&unknown).mode_in_words(), "unknown: this holds in iptables, ipvs and nftables mode");
    assert!(candidates(&with_link).mode_in_words().ends_with("mode, and with Cilium in kube-proxy's place"));
    assert_eq!(captured(&with_link, PRIMARY[0]), captured(&unknown, PRIMARY[0]));
    let known = Snapshot::healthy().address("cilium_host", "10.244.0.1");
    assert!(candidates(&known).iter().all(|it| it.mode() == Mode::Iptables), "it is there beside kube-proxy too");
}

#[test]
fn a_kube_proxy_beside_cilium_leaves_only_what_both_share() {
    let mut world = cilium(|_| ());
    let of_cilium = world.kernel.proxy.config.seen().cloned().expect("settings");
    assert_eq!(of_cilium.mode_if_known(), Some(Mode::Cilium));
    world = world.with_mode(Mode::Iptables);
    world.cluster.proxy_config = crate::facts::Reading::Seen(ProxyConfig {
        place: "ConfigMap kube-system/cilium-config".to_owned(),
        node_port_addresses: vec![format!("{}/32", SECOND[0])],
        ..of_cilium
    });
    assert_eq!(world.proxy_mode().map_err(|gap| gap.why), Err(Why::Ambiguous));
    let both = candidates(&world);
    let modes: std::collections::BTreeSet<_> = both.iter().map(|it| it.plane.mode.name()).collect();
    assert_eq!(modes.into_iter().collect::<Vec<_>>(), ["cilium", "iptables"]);
    assert!(both.mode_in_words().contains("by ConfigMap kube-system/cilium-config Cilium is in its place; this holds"));
    // Each is judged by its own settings, and so is what somebody says.
    let said = |mode: Mode| {
        let mut world = world.clone();
        world.overrides.proxy_mode = Some(Learned { value: mode, place: "--proxy-mode".to_owned() });
        candidates(&world).node_port_addresses
    };
    assert_eq!(said(Mode::Cilium), Some(vec![format!("{}/32", SECOND[0])]));
    assert_ne!(said(Mode::Iptables), said(Mode::Cilium));
    world.cluster.proxy_config = gap(Source::ConfigMaps, Why::NotAsked);
    world.overrides.proxy_mode = Some(Learned { value: Mode::Cilium, place: "--proxy-mode".to_owned() });
    assert_eq!(candidates(&world).settings, "the mode's defaults", "those of kube-proxy are none of Cilium's");
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

#[test]
fn a_proxy_that_does_not_tell_its_times_is_not_behind() {
    let mut world = Snapshot::healthy();
    let metrics = seen(&mut world.kernel.proxy.metrics);
    (metrics.last_sync, metrics.last_queued) = (None, None);
    assert!(!candidates(&world).mode_in_words().contains("queued"));
    world.kernel.proxy.metrics = gap(Source::ProxyMetrics, Why::NotAsked);
    assert!(!candidates(&world).mode_in_words().contains("queued"));
}

#[test]
fn the_primary_address_is_bound_or_the_nodes_internal_one() {
    let mut world = Snapshot::healthy().with_mode(Mode::Nftables);
    let external = NodeAddress { kind: NodeAddressKind::ExternalIp, ip: ip(SECOND[0]) };
    objects(&mut world.cluster.nodes)[0].addresses.insert(0, external);
    let bound = |bind: Option<&str>| {
        let world = world.clone().with_config(|it| it.bind_address = bind.map(ip));
        [PRIMARY[0], SECOND[0], PRIMARY[1], SECOND[1]].map(|address| captured(&world, address) == Some(true))
    };
    for wildcard in [None, Some("0.0.0.0"), Some("::")] {
        assert_eq!(bound(wildcard), [true, false, true, false], "{wildcard:?}");
    }
    assert_eq!(bound(Some(SECOND[0])), [false, true, true, false]);
    assert_eq!(bound(Some(SECOND[1])), [true, false, false, true]);
    let mut external_only = world.clone();
    objects(&mut external_only.cluster.nodes)[0].addresses.retain(|it| it.kind == NodeAddressKind::ExternalIp);
    assert_eq!(captured(&external_only, SECOND[0]), Some(true));
    assert_eq!(captured(&external_only, PRIMARY[0]), Some(false));
}

#[test]
fn without_a_node_object_no_loopback_and_no_link_local_address_is_the_primary_one() {
    let mut world = Snapshot::healthy().with_mode(Mode::Nftables).address("eth0", "fe80::1");
    seen(&mut world.cluster.nodes).clear();
    for (address, primary) in [(PRIMARY[0], None), (SECOND[1], None), ("fe80::1", Some(false)), ("::1", Some(false))] {
        let local = LocalAddress { ip: ip(address), vrf: false };
        let listed = |candidate: &Candidate| {
            let networks = &candidate.settings.networks[Family::of(local.ip).index()];
            networks.as_ref().is_some_and(|networks| networks.contains(&local.ip.into()))
        };
        assert_eq!(candidates(&world).agree(listed), primary, "{address}");
    }
}

#[test]
fn pods_are_told_apart_in_families_with_a_cidr_and_in_every_other_mode_of_detection() {
    let detects = |mode: Option<&str>, cidr: Option<&str>| {
        let world = Snapshot::healthy().with_config(|config| {
            config.detect_local_mode = mode.map(str::to_owned);
            config.cluster_cidr = cidr.map(str::to_owned);
        });
        Family::BOTH.map(|family| candidates(&world).list[0].settings.detects_pods(family))
    };
    assert_eq!(detects(None, Some("10.244.0.0/16")), [true, false]);
    assert_eq!(detects(Some("ClusterCIDR"), Some("fd00:244::/48")), [false, true]);
    assert_eq!(detects(Some("BridgeInterface"), None), [true, true]);
}

#[test]
fn pods_are_told_apart_by_the_cidrs_of_their_node_where_the_proxy_goes_by_them() {
    let mut world = Snapshot::healthy().with_config(|config| config.detect_local_mode = Some("NodeCIDR".to_owned()));
    let detects = |world: &Snapshot| {
        Family::BOTH.map(|family| candidates(world).agree(|candidate| candidate.settings.detects_pods(family)))
    };
    for (families, detected) in [
        (&[Family::V4][..], [Some(true), Some(false)]),
        (&[Family::V6], [Some(false), Some(true)]),
        (&Family::BOTH, [Some(true); 2]),
        (&[], [None; 2]),
    ] {
        objects(&mut world.cluster.nodes)[0].pod_families = families.to_vec();
        assert_eq!(detects(&world), detected, "{families:?}");
    }
    assert_eq!(candidates(&world).ambiguity().source, Source::Nodes);
    assert_eq!(captured(&world, PRIMARY[0]), Some(true), "which addresses are served is known all the same");
    world.cluster.nodes = gap(Source::Nodes, Why::Unreachable);
    assert_eq!((detects(&world), candidates(&world).ambiguity().why), ([None; 2], Why::Unreachable));
}

#[test]
fn whether_pods_are_told_apart_is_not_known_without_the_settings() {
    let mut world = Snapshot::healthy();
    world.kernel.proxy.config = gap(Source::ProxyConfig, Why::Unreachable);
    assert_eq!(candidates(&world).agree(|candidate| candidate.settings.detects_pods(Family::V4)), None);
    assert_eq!(candidates(&world).ambiguity().source, Source::ProxyConfig);
}
