use std::sync::Arc;

use super::{
    super::{backing::Backing, by_port::Port, local_address::LocalAddress, outcome::Outcome},
    *,
};
use portreeve_facts::{
    Family, NodeAddress, NodeAddressKind, Protocol, Service, Vantage,
    healthy::{PRIMARY, SECOND, gap, ip, objects, seen},
};

mod cilium;

/// A NodePort in the default range.
const WEB: Port = (Protocol::Tcp, 30080);

fn assumptions(world: &Snapshot) -> Assumptions {
    Assumptions::of(world, world.kernel.interfaces.seen().expect("interfaces"), 60)
}

fn captured(world: &Snapshot, address: &str) -> Option<bool> {
    assumptions(world).agree(|assumption| assumption.captures(LocalAddress { ip: ip(address), vrf: false }, 30080))
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
fn no_primary_address_is_tried_only_if_there_are_more_addresses_than_are_tried() {
    let mut world = Snapshot::healthy();
    world.cluster.nodes = gap(Source::Nodes, Why::NotRequested);
    for number in 0..=MOST_PRIMARIES {
        world = world.address("ens9", &format!("198.51.100.{}", number + 1));
        let interfaces = world.kernel.interfaces.seen().expect("interfaces");
        let (all, _) = primaries(&world, interfaces, &ProxyConfig::default());
        let local = |it: &&LocalAddress| it.ip.is_ipv4() && !it.ip.is_loopback() && !is_link_local(it.ip);
        let addresses = local_addresses(interfaces).iter().filter(local).count();
        let with_none = all.contains(&[None, None]);
        assert_eq!(
            (all.len() - usize::from(with_none), with_none),
            (addresses.min(MOST_PRIMARIES), addresses > MOST_PRIMARIES)
        );
    }
}

#[test]
fn a_proxy_that_stopped_programming_is_said_to_be_behind() {
    let mut world = Snapshot::healthy();
    assert!(!assumptions(&world).mode_in_words().contains("queued"));
    let (at, metrics) = (world.at, seen(&mut world.kernel.proxy.metrics));
    metrics.last_queued = Some(at - jiff::SignedDuration::from_secs(30));
    metrics.last_sync = Some(at - jiff::SignedDuration::from_secs(300));
    assert!(!assumptions(&world).mode_in_words().contains("queued"), "it may be at it");
    world.at = at + jiff::SignedDuration::from_secs(60);
    assert!(assumptions(&world).mode_in_words().contains("queued"));
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
    let assumptions = assumptions(&world);
    for address in [PRIMARY[0], SECOND[0]] {
        assert_eq!(captured(&world, address), None, "a list may have it or not");
    }
    assert_eq!(captured(&world, "fe80::1"), None);
    assert_eq!(assumptions.ambiguity().source, Source::ProxyMode);
    // A socket on every address gets only assumptions in which the node serves NodePorts at one of its addresses.
    let primary = LocalAddress { ip: ip(PRIMARY[0]), vrf: false };
    assert!(assumptions.at(true).iter().all(|it| it.captures(primary, 30080)));
    assert!(assumptions.at(false).len() > assumptions.at(true).len());
    let mut bare = Snapshot::healthy().without_proxy();
    Arc::make_mut(seen(&mut bare.kernel.interfaces)).addresses.clear();
    let bare = self::assumptions(&bare);
    assert_eq!(bare.at(true).len(), bare.at(false).len(), "none has an address: all of them");
}

#[test]
fn without_a_node_object_any_address_may_be_the_primary_one() {
    let mut world = Snapshot::healthy().with_mode(Mode::Nftables);
    seen(&mut world.cluster.nodes).clear();
    assert_eq!(captured(&world, PRIMARY[0]), None);
    world.cluster.nodes = gap(Source::Nodes, Why::NotRequested);
    assert_eq!(assumptions(&world).ambiguity().source, Source::Nodes);
}

#[test]
fn of_very_many_addresses_each_may_be_the_primary_one() {
    let mut world = Snapshot::healthy().with_mode(Mode::Nftables);
    seen(&mut world.cluster.nodes).clear();
    let world = (1..=40).fold(world, |world, host| world.address("eth0", &format!("192.0.2.{}", 100 + host)));
    for address in [PRIMARY[0], "192.0.2.101", "192.0.2.140"] {
        assert_eq!(captured(&world, address), None, "{address}");
    }
}

#[test]
fn asking_about_iptables_on_an_nftables_node_does_not_keep_the_nftables_default() {
    let mut world = Snapshot::healthy().with_mode(Mode::Nftables);
    world.overrides.proxy_mode = Some(Learned { value: Mode::Iptables, place: "--set".to_owned() });
    assert_eq!(captured(&world, SECOND[0]), Some(true));
}

#[test]
fn settings_nobody_could_read_are_the_modes_own_only_where_somebody_said_the_mode() {
    let world = Snapshot::healthy().without_proxy();
    assert!(assumptions(&world).settings.starts_with("unknown"));
    let world = world.with_user_mode(Mode::Nftables);
    assert_eq!(assumptions(&world).settings, "the mode's defaults");
    assert_eq!(captured(&world, SECOND[0]), Some(false));
}

/// kube-proxy turned route_localnet on, but another program may have turned the sysctl off. A kube-proxy before 1.26
/// serves more addresses.
#[test]
fn a_sysctl_and_a_version_that_are_not_known_may_be_either() {
    let to = LocalAddress { ip: ip("127.0.0.1"), vrf: false };
    let outcomes = |world: &Snapshot| -> Vec<Outcome> {
        let ask = |it: &Assumption| it.outcome((to, WEB), Vantage::Loopback, Backing::Ready);
        assumptions(world).iter().map(ask).collect()
    };
    let mut world = Snapshot::healthy();
    assert_eq!(outcomes(&world), [Outcome::Pod]);
    world.kernel.sysctls.route_localnet = gap(Source::Sysctls, Why::NotPermitted);
    assert_eq!(outcomes(&world), [Outcome::Pod, Outcome::TimedOut]);
    assert_eq!(assumptions(&world).ambiguity().source, Source::Sysctls);

    let mut world = Snapshot::healthy();
    assert_eq!(captured(&world, "::1"), Some(false));
    world.kernel.proxy.metrics = gap(Source::ProxyMetrics, Why::Unreachable);
    assert_eq!(captured(&world, "::1"), Some(false), "beside this kubelet there is no old one");
    objects(&mut world.cluster.nodes)[0].kubelet_version = Some("v1.28.9".to_owned());
    assert_eq!(captured(&world, "::1"), None);
    assert_eq!(assumptions(&world).ambiguity().source, Source::ProxyMetrics);
    objects(&mut world.cluster.nodes)[0].kubelet_version = Some("v1.29.0".to_owned());
    assert_eq!(captured(&world, "::1"), Some(false));
}

#[test]
fn the_gate_for_loopback_may_be_on_where_kube_proxy_may_have_it() {
    let refuses = |metrics: Option<&str>, kubelet: &str| {
        let mut world = Snapshot::healthy().with_mode(Mode::Nftables);
        world.kernel.proxy.config = gap(Source::ProxyConfig, Why::Unreachable);
        match metrics {
            Some(version) => seen(&mut world.kernel.proxy.metrics).version = Some(version.to_owned()),
            None => world.kernel.proxy.metrics = gap(Source::ProxyMetrics, Why::Unreachable),
        }
        objects(&mut world.cluster.nodes)[0].kubelet_version = Some(kubelet.to_owned());
        assumptions(&world).iter().any(Assumption::refuses_on_loopback)
    };
    assert_eq!(["v1.36.9", "v1.37.0"].map(|version| refuses(Some(version), "v1.36.0")), [false, true]);
    assert_eq!(["v1.33.9", "v1.34.0"].map(|kubelet| refuses(None, kubelet)), [false, true]);
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
        assumptions(world).agree(|assumption| assumption.captures(LocalAddress { ip: ip(SECOND[0]), vrf: true }, 30080))
    };
    let world = Snapshot::healthy();
    assert_eq!(ask(&world), Some(false));
    assert_eq!(ask(&world.with_config(|it| it.node_port_addresses = vec!["192.0.2.0/24".to_owned()])), Some(true));
}

#[test]
fn a_proxy_that_does_not_tell_its_times_is_not_behind() {
    let mut world = Snapshot::healthy();
    let metrics = seen(&mut world.kernel.proxy.metrics);
    (metrics.last_sync, metrics.last_queued) = (None, None);
    assert!(!assumptions(&world).mode_in_words().contains("queued"));
    world.kernel.proxy.metrics = gap(Source::ProxyMetrics, Why::NotRequested);
    assert!(!assumptions(&world).mode_in_words().contains("queued"));
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
        let listed = |assumption: &Assumption| {
            let networks = &assumption.settings.networks[Family::of(local.ip).index()];
            networks.as_ref().is_some_and(|networks| networks.contains(&local.ip.into()))
        };
        assert_eq!(assumptions(&world).agree(listed), primary, "{address}");
    }
}

#[test]
fn pods_are_told_apart_in_families_with_a_cidr_and_in_every_other_mode_of_detection() {
    let detects = |mode: Option<&str>, cidr: Option<&str>| {
        let world = Snapshot::healthy().with_config(|config| {
            config.detect_local_mode = mode.map(str::to_owned);
            config.cluster_cidr = cidr.map(str::to_owned);
        });
        Family::BOTH.map(|family| assumptions(&world).at(false)[0].settings.detects_pods(family))
    };
    assert_eq!(detects(None, Some("10.244.0.0/16")), [true, false]);
    assert_eq!(detects(Some("ClusterCIDR"), Some("fd00:244::/48")), [false, true]);
    assert_eq!(detects(Some("BridgeInterface"), None), [true, true]);
}

#[test]
fn pods_are_told_apart_by_the_cidrs_of_their_node_where_the_proxy_goes_by_them() {
    let mut world = Snapshot::healthy().with_config(|config| config.detect_local_mode = Some("NodeCIDR".to_owned()));
    let detects = |world: &Snapshot| {
        Family::BOTH.map(|family| assumptions(world).agree(|assumption| assumption.settings.detects_pods(family)))
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
    assert_eq!(assumptions(&world).ambiguity().source, Source::Nodes);
    assert_eq!(captured(&world, PRIMARY[0]), Some(true), "which addresses are served is known all the same");
    world.cluster.nodes = gap(Source::Nodes, Why::Unreachable);
    assert_eq!((detects(&world), assumptions(&world).ambiguity().why), ([None; 2], Why::Unreachable));
}

#[test]
fn whether_pods_are_told_apart_is_not_known_without_the_settings() {
    let mut world = Snapshot::healthy();
    world.kernel.proxy.config = gap(Source::ProxyConfig, Why::Unreachable);
    assert_eq!(assumptions(&world).agree(|assumption| assumption.settings.detects_pods(Family::V4)), None);
    assert_eq!(assumptions(&world).ambiguity().source, Source::ProxyConfig);
}
