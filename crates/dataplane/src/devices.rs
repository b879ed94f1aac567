//! Which devices Cilium serves (cilium 1.18 to 1.20 pkg/datapath/linux/devices_controller.go and pkg/datapath/tables).

use std::net::IpAddr;

use super::local_address::is_link_local;
use portreeve_facts::{Address, CILIUM_HOST, CiliumConfig, Interfaces, Link};

/// Links that Cilium does not detect as devices: kinds of links, and prefixes of names.
const NEVER_CHOSEN: [&str; 3] = ["bridge", "openvswitch", "ipoib"];
const NEVER_CHOSEN_NAMES: [&str; 5] = ["cilium_", "lo", "lxc", "cni", "docker"];

pub(super) struct Devices<'a> {
    config: &'a CiliumConfig,
    interfaces: &'a Interfaces,
    primary: [Option<IpAddr>; 2],
    /// Whether `devices` has an entry that is not the name of a link. The entry may be an alternative name of a link.
    has_stranger: bool,
}

impl<'a> Devices<'a> {
    /// Cilium's devices: the devices that the setting `devices` names, or that Cilium detects.
    pub(super) fn of(config: &'a CiliumConfig, primary: [Option<IpAddr>; 2], interfaces: &'a Interfaces) -> Self {
        let is_link = |name: &str| interfaces.has_link(name) || interfaces.of(name).next().is_some();
        let is_stranger = |entry: &String| !entry.starts_with('!') && !entry.ends_with('+') && !is_link(entry);
        Self { config, interfaces, primary, has_stranger: config.devices.iter().any(is_stranger) }
    }

    pub(super) fn have(&self, address: &Address) -> Option<bool> {
        // Cilium treats the addresses of `cilium_host` as addresses of the node, for every value of `devices`. But
        // Cilium does not serve remote clients on these addresses.
        if [CILIUM_HOST, "lo"].contains(&&*address.link) {
            return Some(true);
        }
        match self.chosen(&address.link) {
            Some(true) if is_link_local(address.ip) => None,
            // A dummy link is no device, but Cilium serves its addresses. So the answer is unknown.
            Some(false) if self.link(&address.link).is_some_and(|it| it.kind.as_deref() == Some("dummy")) => None,
            chosen => chosen,
        }
    }

    fn chosen(&self, link: &str) -> Option<bool> {
        // Cilium compares the name of a link with `devices` only if the link is up (`isSelectedDevice`).
        if self.link(link).is_some_and(|it| !it.up) {
            return Some(false);
        }
        let named = self.named(link);
        if named.is_some() {
            return named;
        }
        let detects = self.config.devices.is_empty() || self.config.detects_devices;
        let chosen = if detects { self.detected(link) } else { Some(false) };
        // An entry of `devices` that is not the name of a link may be an alternative name of this link.
        chosen.filter(|chosen| *chosen || !self.has_stranger)
    }

    fn named(&self, link: &str) -> Option<bool> {
        self.config.devices.iter().find_map(|entry| {
            let name = entry.strip_prefix('!').unwrap_or(entry);
            let fits = name.strip_suffix('+').map_or(name == link, |start| link.starts_with(start));
            fits.then_some(name.len() == entry.len())
        })
    }

    /// Whether Cilium detects a link as a device, if the link is up and has an address, and `devices` does not name the
    /// link.
    fn detected(&self, name: &str) -> Option<bool> {
        let link = self.link(name)?;
        let kind = link.kind.as_deref();
        let finds = match kind {
            _ if NEVER_CHOSEN_NAMES.iter().any(|start| name.starts_with(start)) => Some(false),
            Some(kind) if NEVER_CHOSEN.contains(&kind) => Some(false),
            _ if link.master.is_some() => self.detects_part(link),
            // If `devices` is empty, Cilium chooses a veth link only if the link has a default route.
            Some("veth") if self.config.devices.is_empty() => has_default_route(self.interfaces, link),
            _ => Some(true),
        };
        // Cilium serves the node's own address. If the link of this address seems to be no device, the result is
        // unknown.
        let has_primary = || self.interfaces.of(name).any(|address| self.primary.contains(&Some(address.ip)));
        finds.filter(|finds| *finds || !has_primary())
    }

    /// Since 1.20, Cilium chooses a link in a VRF. Cilium does not choose a link in another master, such as a bridge.
    fn detects_part(&self, link: &Link) -> Option<bool> {
        let master = self.interfaces.links.iter().find(|other| Some(other.index) == link.master)?;
        (master.kind.as_deref() != Some("vrf")).then_some(false)
    }

    fn link(&self, name: &str) -> Option<&Link> {
        self.interfaces.links.iter().find(|link| link.name == name)
    }
}

pub(super) fn has_default_route(interfaces: &Interfaces, link: &Link) -> Option<bool> {
    match &interfaces.default_links {
        Some(links) => Some(links.contains(&link.index)),
        None => {
            let has_gateway = |it: &Address| interfaces.gateways.iter().any(|gateway| it.network_has(*gateway));
            interfaces.of(&link.name).any(has_gateway).then_some(true)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use portreeve_facts::{
        Snapshot,
        healthy::{PRIMARY, ip, seen},
    };

    /// Returns two values for these entries of `devices`: whether Cilium serves the address of this link, and whether
    /// Cilium serves the Node's address.
    fn have(link: &str, kind: Option<&str>, devices: &[&str], detects: bool) -> [Option<bool>; 2] {
        have_in(link, kind, devices, detects, |_| ())
    }

    fn have_in(
        link: &str,
        kind: Option<&str>,
        devices: &[&str],
        detects: bool,
        change: impl FnOnce(&mut Interfaces),
    ) -> [Option<bool>; 2] {
        let mut world = Snapshot::healthy().address(link, "198.51.100.1");
        let interfaces = seen(&mut world.kernel.interfaces);
        let interfaces = std::sync::Arc::make_mut(interfaces);
        for other in interfaces.links.iter_mut().filter(|it| it.name == link) {
            other.kind = kind.map(str::to_owned);
        }
        change(interfaces);
        let devices = devices.iter().map(|it| (*it).to_owned()).collect();
        let config = CiliumConfig { devices, detects_devices: detects, ..CiliumConfig::default() };
        let devices = Devices::of(&config, PRIMARY.map(|it| Some(ip(it))), interfaces);
        ["198.51.100.1", PRIMARY[0]].map(|wanted| {
            let address = interfaces.addresses.iter().find(|address| address.ip == ip(wanted));
            devices.have(address.expect("an address"))
        })
    }

    #[test]
    fn a_list_of_names_is_read_as_cilium_reads_it() {
        assert_eq!(have("ens5", None, &["eth0"], false), [Some(false), Some(true)]);
        assert_eq!(have("ens5", None, &["!ens5", "e+"], false), [Some(false), Some(true)]);
        assert_eq!(have("ens5", None, &["e+", "!ens5"], false), [Some(true), Some(true)]);
        assert_eq!(have("ens5", None, &["enp3s0"], false), [None, None], "another name of one of them");
        assert_eq!(have("ens5", None, &["ens5"], true), [Some(true), Some(true)]);
        assert_eq!(have("ens5", None, &["eth0"], true), [Some(true), Some(true)], "it finds more");
        assert_eq!(have("docker0", None, &["enp3s0"], true), [None, Some(true)], "what it does not find may be named");
        let unread = |interfaces: &mut Interfaces| interfaces.links.clear();
        assert_eq!(have_in("ens5", None, &["eth0"], false, unread), [Some(false), Some(true)], "its address names it");
        let down = |interfaces: &mut Interfaces| {
            let down = Link { name: "net1".to_owned(), ..interfaces.links[0].clone() };
            interfaces.links.push(down);
        };
        assert_eq!(
            have_in("ens5", None, &["net1"], false, down),
            [Some(false); 2],
            "a link without addresses is a link"
        );
    }

    #[test]
    fn its_own_device_always_counts_and_a_dummy_perhaps() {
        assert_eq!(have("cilium_host", None, &["eth0"], false)[0], Some(true));
        assert_eq!(have("dummy0", Some("dummy"), &["eth0"], false)[0], None);
        assert_eq!(have("dummy0", Some("dummy"), &["dummy0"], false)[0], Some(true));
    }

    #[test]
    fn it_finds_what_is_up_but_for_some_kinds_names_and_parts() {
        let found = |link: &str, kind, change: fn(&mut Interfaces)| have_in(link, kind, &[], false, change)[0];
        for kind in [None, Some("vlan"), Some("macvlan"), Some("dummy")] {
            assert_eq!(found("ens5", kind, |_| ()), Some(true), "{kind:?}");
        }
        for kind in NEVER_CHOSEN {
            assert_eq!(found("ens5", Some(kind), |_| ()), Some(false), "{kind}");
        }
        for name in ["docker0", "cni0", "lxc1", "loop"] {
            assert_eq!(found(name, None, |_| ()), Some(false), "{name}");
        }
        assert_eq!(found("ens5", None, is_down), Some(false));
    }

    fn is_down(interfaces: &mut Interfaces) {
        interfaces.links.last_mut().expect("a link").up = false;
    }

    #[test]
    fn a_link_that_is_down_is_no_device_though_devices_names_it() {
        for devices in [&["ens5"][..], &["ens+"], &["eth0", "ens5"], &["ens5", "enp3s0"]] {
            assert_eq!(have_in("ens5", None, devices, false, is_down)[0], Some(false), "{devices:?}");
            assert_eq!(have("ens5", None, devices, false)[0], Some(true), "{devices:?}");
        }
    }

    #[test]
    fn it_finds_a_veth_by_its_default_route_where_no_device_is_named() {
        let found = |devices: &[&str], routes: fn(u32) -> Option<Vec<u32>>| {
            let change = |links: &mut Interfaces| {
                links.default_links = routes(links.links.last().expect("a link").index);
            };
            have_in("net1", Some("veth"), devices, true, change)[0]
        };
        assert_eq!(found(&[], |index| Some(vec![2, index])), Some(true));
        assert_eq!(found(&[], |_| Some(vec![2])), Some(false));
        assert_eq!(found(&[], |_| None), None);
        assert_eq!(found(&["eth0"], |_| Some(vec![2])), Some(true));
    }

    #[test]
    fn it_finds_no_part_of_another_link_but_perhaps_of_a_vrf() {
        let found = |kind: &'static str| {
            let change = |links: &mut Interfaces| {
                let link =
                    Link { kind: Some(kind.to_owned()), index: 77, name: "whole".to_owned(), ..links.links[0].clone() };
                links.links.last_mut().expect("a link").master = Some(77);
                links.links.push(link);
            };
            have_in("ens5", None, &[], false, change)[0]
        };
        assert_eq!((found("bond"), found("vrf")), (Some(false), None));
    }

    #[test]
    fn what_it_never_finds_by_itself_may_be_one_though_it_has_the_nodes_address() {
        for kind in ["bridge", "openvswitch", "ipoib", "veth"] {
            let mut world = Snapshot::healthy();
            let interfaces = std::sync::Arc::make_mut(seen(&mut world.kernel.interfaces));
            let link = interfaces.addresses.iter().find(|it| it.ip == ip(PRIMARY[0])).expect("the Node's").link.clone();
            let of_node = interfaces.links.iter_mut().find(|it| it.name == *link).expect("its link");
            of_node.kind = Some(kind.to_owned());
            // Snapshots of earlier Portreeve versions have gateways, but no default links.
            interfaces.default_links = None;
            let gateways = std::mem::take(&mut interfaces.gateways);
            let config = CiliumConfig::default();
            let devices = Devices::of(&config, PRIMARY.map(|it| Some(ip(it))), interfaces);
            let address = interfaces.addresses.iter().find(|it| it.ip == ip(PRIMARY[0])).expect("the Node's");
            assert_eq!(devices.have(address), None, "{kind}");
            let routed = Interfaces { gateways, ..Interfaces::clone(interfaces) };
            let devices = Devices::of(&config, PRIMARY.map(|it| Some(ip(it))), &routed);
            assert_eq!(devices.have(address), (kind == "veth").then_some(true), "{kind} with a default route");
        }
    }
}
