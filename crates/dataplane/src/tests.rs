//! The behaviour matrix, and properties of every data plane.

use super::{
    plane::{Connection, DATA_PLANES, DataPlane},
    settings::{Localhost, Setting, Settings},
    *,
};
use portreeve_facts::{
    CiliumConfig, Mode, Protocol, Reading, Snapshot, Vantage, WithoutBackend,
    healthy::{PRIMARY, SECOND, ip, seen},
};

const WEB: Port = (Protocol::Tcp, 30080);

/// The rows of the behaviour matrix: mode, `nodePortAddresses`, `localhostNodePorts`, and three texts. The texts are
/// for three Services: a Service with usable endpoints, a Service without endpoints, and a Service with only remote
/// endpoints. Each text has the outcomes on four addresses: the primary address, the second address, and loopback of
/// IPv4 and IPv6. L is the listener, P a pod, R refused, T timed out. An address other than loopback has two letters,
/// for remote clients and for the node.
const MATRIX: &[(Mode, &[&str], bool, [&str; 3])] = &[
    (Mode::Iptables, &[], true, ["PP PP P L", "RR RR R R", "TP TP P T"]),
    (Mode::Iptables, &[], false, ["PP PP L L", "RR RR R R", "TP TP T T"]),
    (Mode::Iptables, &["primary"], true, ["PP LL L L", "RR RR R R", "TP TT T T"]),
    (Mode::Nftables, &[], true, ["PP LL L L", "RR LL L L", "TP LL L L"]),
    (Mode::Nftables, &["0.0.0.0/0", "::/0"], true, ["PP PP L L", "RR RR L L", "TP TP L L"]),
    (Mode::Ipvs, &[], true, ["PP PP L L", "RR RR L L", "TP TP L L"]),
    (Mode::Ipvs, &["192.0.2.2/32", "2001:db8::2/128"], true, ["LL PP L L", "LL RR L L", "LL TP L L"]),
];

#[test]
fn the_matrix_holds_in_both_families() {
    for (mode, addresses, localhost, rows) in MATRIX {
        let world = Snapshot::healthy().with_mode(*mode).with_config(|config| {
            config.node_port_addresses = addresses.iter().map(|it| (*it).to_owned()).collect();
            config.localhost_node_ports = Some(*localhost);
        });
        let assumptions = Assumptions::of(&world, world.kernel.interfaces.seen().expect("interfaces"), 60);
        let [assumption] = &assumptions.iter().collect::<Vec<_>>()[..] else {
            panic!("one assumption, not {assumptions:?}")
        };
        for (row, backing) in rows.iter().zip(Backing::ALL) {
            for family in [0, 1] {
                let ask = |address: &str, vantage| {
                    let to = LocalAddress { ip: ip(address), vrf: false };
                    let outcome = assumption.outcome((to, WEB), vantage, backing);
                    ["L", "P", "R", "T", "N"][outcome as usize]
                };
                let pair = |address| [Vantage::Remote, Vantage::Node].map(|vantage| ask(address, vantage)).concat();
                let found = format!(
                    "{} {} {} {}",
                    pair(PRIMARY[family]),
                    pair(SECOND[family]),
                    ask("127.0.0.1", Vantage::Loopback),
                    ask("::1", Vantage::Loopback),
                );
                assert_eq!(&found, row, "{mode} {addresses:?} localhost={localhost} {backing:?}");
            }
        }
    }
}

#[test]
fn what_leaves_loopback_for_a_pod_needs_route_localnet_and_ipv4() {
    let mut world = Snapshot::healthy();
    let outcomes = |world: &Snapshot| {
        let interfaces = world.kernel.interfaces.seen().expect("interfaces");
        let assumptions = Assumptions::of(world, interfaces, 60);
        let assumption = assumptions.iter().next().expect("an assumption");
        ["127.0.0.1", "::1", PRIMARY[0]].map(|address| {
            let to = LocalAddress { ip: ip(address), vrf: false };
            assumption.outcome((to, WEB), Vantage::Loopback, Backing::Ready)
        })
    };
    assert_eq!(outcomes(&world), [Outcome::Pod, Outcome::Listener, Outcome::Pod]);
    world.kernel.sysctls.route_localnet = Reading::Seen(false);
    assert_eq!(outcomes(&world), [Outcome::TimedOut, Outcome::Listener, Outcome::Pod]);
    for (version, of_six) in
        [("v1.25.16", Outcome::TimedOut), ("v1.26.0", Outcome::Listener), ("v2.0.0", Outcome::Listener)]
    {
        seen(&mut world.kernel.proxy.metrics).version = Some(version.to_owned());
        assert_eq!(outcomes(&world)[1], of_six, "{version}");
    }
    assert_eq!(outcomes(&world.with_mode(Mode::Nftables))[..2], [Outcome::Listener; 2]);
}

#[test]
fn rules_that_refuse_and_rules_that_drop_are_written_in_no_order_by_iptables_mode_alone() {
    let first = |mode, external_ip| {
        let world = Snapshot::healthy().with_mode(mode);
        let interfaces = world.kernel.interfaces.seen().expect("interfaces");
        let assumptions = Assumptions::of(&world, interfaces, 60);
        let assumption = assumptions.iter().next().expect("an assumption");
        assumption.external_ip_or_node_port(external_ip, Outcome::Refused)
    };
    assert_eq!(first(Mode::Iptables, Outcome::Refused), Some(ClaimKind::NodePort));
    assert_eq!(first(Mode::Iptables, Outcome::TimedOut), None);
    assert_eq!(first(Mode::Nftables, Outcome::TimedOut), Some(ClaimKind::NodePort));
}

#[test]
fn what_is_translated_at_a_link_local_address_leads_nowhere() {
    let world = Snapshot::healthy();
    let interfaces = world.kernel.interfaces.seen().expect("interfaces");
    let assumptions = Assumptions::of(&world, interfaces, 60);
    let assumption = assumptions.iter().next().expect("an assumption");
    let address = LocalAddress { ip: ip("fe80::1"), vrf: false };
    assert_eq!(assumption.outcome((address, WEB), Vantage::Remote, Backing::Ready), Outcome::Nowhere);
    assert_eq!(assumption.outcome((address, WEB), Vantage::Remote, Backing::Empty), Outcome::Refused);
    assert_eq!(assumption.outcome((address, WEB), Vantage::Node, Backing::Empty), Outcome::Nowhere);
}

#[test]
fn without_a_local_detector_pods_time_out_like_outsiders() {
    let world = Snapshot::healthy().with_config(|config| config.cluster_cidr = None);
    let assumptions = Assumptions::of(&world, world.kernel.interfaces.seen().expect("interfaces"), 60);
    let address = LocalAddress { ip: ip(PRIMARY[0]), vrf: false };
    let assumption = assumptions.iter().next().expect("an assumption");
    assert_eq!(assumption.outcome((address, WEB), Vantage::Pods, Backing::Elsewhere), Outcome::TimedOut);
    assert_eq!(assumption.outcome((address, WEB), Vantage::Node, Backing::Elsewhere), Outcome::Pod);
}

fn changed(setting: Setting) -> Settings {
    let mut settings = Settings::NOT_NEEDED;
    match setting {
        Setting::NodePortAddresses => settings.serve_on(&["203.0.113.0/24".to_owned()], [None; 2]),
        Setting::LocalhostNodePorts => settings.localhost_node_ports = true,
        Setting::LocalDetector => settings.local_detector = [false; 2],
        Setting::RouteLocalnet => settings.route_localnet = false,
        Setting::NftablesLocalhost => settings.localhost = [Localhost::Rejected; 2],
        Setting::Version => settings.before_1_26 = true,
        Setting::Devices => settings.of_devices = Some(vec![ip(SECOND[0])]),
        Setting::WithoutBackend => settings.without_backend = WithoutBackend::Drop,
        Setting::HostNamespaceOnly => (settings.host_namespace_only, settings.pods_by_list) = (true, true),
    }
    settings
}

fn answers(plane: &DataPlane, settings: &Settings) -> Vec<(bool, Outcome)> {
    let mut answers = Vec::new();
    for address in [PRIMARY[0], PRIMARY[1], SECOND[0], "127.0.0.1", "::1", "fe80::1"] {
        for (from, backing) in Vantage::ALL.into_iter().flat_map(|from| Backing::ALL.map(|backing| (from, backing))) {
            for to in [false, true].map(|vrf| LocalAddress { ip: ip(address), vrf }) {
                let captures = (plane.captures)(settings, to, from);
                for captured in [captures, true] {
                    answers.push((
                        captures,
                        (plane.outcome)(settings, Connection { to, from, protocol: Protocol::Tcp, backing, captured }),
                    ));
                }
            }
        }
    }
    answers
}

#[test]
fn a_data_plane_answers_by_the_settings_that_it_names_and_by_no_others() {
    for plane in DATA_PLANES {
        for setting in Setting::ALL {
            // `localhostNodePorts` and the version change answers only on loopback, so [`answers`] also includes
            // loopback addresses.
            let differs = answers(plane, &changed(setting)) != answers(plane, &Settings::NOT_NEEDED);
            assert_eq!(differs, plane.settings.contains(&setting), "{} and {setting:?}", plane.mode);
        }
    }
}

#[test]
fn cilium_serves_the_devices_that_are_named_and_loopbacks_interface() {
    let mut world = Snapshot::healthy().address("pod0", "10.244.0.1").address("lo", "198.51.100.7");
    let interfaces = std::sync::Arc::make_mut(seen(&mut world.kernel.interfaces));
    interfaces.links.iter_mut().filter(|it| it.name == "pod0").for_each(|it| it.kind = Some("veth".to_owned()));
    let served = |devices: &[&str], address: &str| {
        let mut settings = Settings::NOT_NEEDED;
        let devices = devices.iter().map(ToString::to_string).collect();
        let config = CiliumConfig { devices, ..CiliumConfig::default() };
        settings.serve_devices((&[], &config), PRIMARY.map(|it| Some(ip(it))), interfaces, false);
        (settings.lists(ip(address)), settings.is_of_devices(ip(address)))
    };
    let (all, none) = ((true, true), (false, false));
    for (devices, pod, primary) in
        [(&[][..], none, all), (&["pod+"], all, none), (&["pod0"], all, none), (&["po"], none, none)]
    {
        assert_eq!((served(devices, "10.244.0.1"), served(devices, PRIMARY[0])), (pod, primary), "{devices:?}");
        assert_eq!(served(devices, "198.51.100.7"), all, "{devices:?}");
    }
    assert_eq!(served(&["eth+"], SECOND[0]), (false, true), "of several it is the Node's");
}

#[test]
fn behind_its_gate_nftables_mode_decides_about_node_ports_of_loopback() {
    let outcomes = |gate: Option<bool>, addresses: &[&str], to: &str| {
        let world = Snapshot::healthy().with_mode(Mode::Nftables).with_config(|config| {
            config.nftables_localhost = gate;
            config.node_port_addresses = addresses.iter().map(ToString::to_string).collect();
        });
        let assumptions = Assumptions::of(&world, world.kernel.interfaces.seen().expect("interfaces"), 60);
        let assumption = assumptions.iter().next().expect("an assumption");
        let to = LocalAddress { ip: ip(to), vrf: false };
        let of = |protocol| assumption.outcome((to, (protocol, WEB.1)), Vantage::Loopback, Backing::Ready);
        [of(Protocol::Tcp), of(Protocol::Udp)]
    };
    let (listener, refused) = (Outcome::Listener, Outcome::Refused);
    for gate in [None, Some(false)] {
        assert_eq!(outcomes(gate, &["primary", "localhost"], "127.0.0.1"), [listener; 2]);
    }
    for addresses in [&[][..], &["0.0.0.0/0"], &["all"], &["primary"]] {
        assert_eq!(outcomes(Some(true), addresses, "127.0.0.53"), [refused; 2], "{addresses:?}");
    }
    for addresses in [["primary", "localhost"], ["192.0.2.0/24", "127.0.0.0/8"]] {
        assert_eq!(outcomes(Some(true), &addresses, "127.0.0.1"), [listener, refused]);
    }
    assert_eq!(outcomes(Some(true), &["primary", "127.0.0.0/8"], "::1"), [refused; 2], "each family by itself");
    let elsewhere = |addresses: &[&str]| outcomes(Some(true), addresses, PRIMARY[0])[0];
    assert_eq!((elsewhere(&["all"]), elsewhere(&["localhost"])), (Outcome::Pod, listener));
}

#[test]
fn every_mode_has_one_data_plane() {
    for mode in Mode::ALL {
        assert_eq!(DATA_PLANES.iter().filter(|plane| plane.mode == mode).count(), 1, "{mode}");
    }
    let possible = |world: Snapshot| {
        let interfaces = world.kernel.interfaces.seen().expect("interfaces").clone();
        unknown::possible(&world, &interfaces).map(|plane| plane.mode).collect::<Vec<_>>()
    };
    assert_eq!(possible(Snapshot::healthy()), Mode::KUBE_PROXY);
    let with_cilium = Snapshot::healthy().address("cilium_host", "10.244.0.1");
    assert_eq!(possible(with_cilium.clone()), [&Mode::KUBE_PROXY[..], &[Mode::Cilium]].concat());
    let mut told = with_cilium;
    told.cluster.cilium_replaces = Some(false);
    assert_eq!(possible(told), Mode::KUBE_PROXY, "its settings leave kube-proxy in its place");
}
