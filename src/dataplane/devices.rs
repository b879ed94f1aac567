//! Which devices Cilium serves (cilium 1.20 pkg/datapath/linux/devices_controller.go and pkg/datapath/tables).

use std::net::IpAddr;

use ipnet::IpNet;

use super::local_address::is_link_local;
use crate::facts::{Address, CILIUM_HOST, CiliumConfig, Interfaces, Link};

/// What Cilium never chooses by itself.
const NEVER_CHOSEN: [&str; 3] = ["bridge", "openvswitch", "ipoib"];

/// Its devices, as far as its settings and the links of a node show them.
pub(super) struct Devices<'a> {
    config: &'a CiliumConfig,
    interfaces: &'a Interfaces,
    primary: [Option<IpAddr>; 2],
    /// A name of the list is none of a link: it may be another name of one.
    has_stranger: bool,
}

impl<'a> Devices<'a> {
    /// By what `devices` names, or else by the Node's addresses.
    pub(super) fn of(config: &'a CiliumConfig, primary: [Option<IpAddr>; 2], interfaces: &'a Interfaces) -> Self {
        let is_link =
            |name: &str| interfaces.links.iter().any(|link| link.name == name) || interfaces.of(name).next().is_some();
        let is_stranger = |entry: &String| !entry.starts_with('!') && !entry.ends_with('+') && !is_link(entry);
        Self { config, interfaces, primary, has_stranger: config.devices.iter().any(is_stranger) }
    }

    /// Whether an address is one of its devices, or of `lo`; nothing where that is not known.
    pub(super) fn have(&self, address: &Address) -> Option<bool> {
        // The address of its own device is one of the node, whatever `devices` says, and serves nobody from outside.
        if [CILIUM_HOST, "lo"].contains(&&*address.link) {
            return Some(true);
        }
        match self.chosen(&address.link) {
            Some(true) if is_link_local(address.ip) => None,
            // Those of a dummy count though it is none of its devices.
            Some(false) if self.kind(&address.link) == Some("dummy") => None,
            chosen => chosen,
        }
    }

    /// Whether a device is one of Cilium's.
    fn chosen(&self, link: &str) -> Option<bool> {
        match self.named(link) {
            Some(named) => Some(named),
            None if self.config.devices.is_empty() || self.config.detects_devices => {
                self.detected(link).then_some(true)
            }
            None => (!self.has_stranger).then_some(false),
        }
    }

    /// What the first entry says that a name fits.
    fn named(&self, link: &str) -> Option<bool> {
        self.config.devices.iter().find_map(|entry| {
            let name = entry.strip_prefix('!').unwrap_or(entry);
            let fits = name.strip_suffix('+').map_or(name == link, |start| link.starts_with(start));
            fits.then_some(name.len() == entry.len())
        })
    }

    /// Whether Cilium finds a device by itself for certain: that of the Node's address, unless it is of a kind, or a part of
    /// another one, that it passes over.
    fn detected(&self, link: &str) -> bool {
        let has_primary = self.interfaces.of(link).any(|address| self.primary.contains(&Some(address.ip)));
        let is_part = || {
            let master = self.link(link).and_then(|link| link.master);
            let master = master.and_then(|index| self.interfaces.links.iter().find(|link| link.index == index));
            master.is_some_and(|master| master.kind.as_deref() != Some("vrf"))
        };
        // One of another CNI, which may be left over, unless `devices` names any.
        let is_stray = self.kind(link) == Some("veth") && self.config.devices.is_empty() && !self.has_gateway(link);
        has_primary && !self.kind(link).is_some_and(|kind| NEVER_CHOSEN.contains(&kind)) && !is_stray && !is_part()
    }

    /// Whether a default route leads by a link for certain: its gateway is in a network of the link.
    fn has_gateway(&self, link: &str) -> bool {
        let networks = self.interfaces.of(link).filter_map(|address| IpNet::new(address.ip, address.prefix).ok());
        networks.into_iter().any(|network| self.interfaces.gateways.iter().any(|gateway| network.contains(gateway)))
    }

    fn link(&self, name: &str) -> Option<&Link> {
        self.interfaces.links.iter().find(|link| link.name == name)
    }

    fn kind(&self, name: &str) -> Option<&str> {
        self.link(name)?.kind.as_deref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::{
        Snapshot,
        healthy::{PRIMARY, ip, seen},
    };

    /// Whether the address of a second link of this kind is one of Cilium's, and the Node's own, with these entries.
    fn have(link: &str, kind: Option<&str>, devices: &[&str], detects: bool) -> [Option<bool>; 2] {
        let mut world = Snapshot::healthy().address(link, "198.51.100.1");
        let interfaces = seen(&mut world.kernel.interfaces);
        let interfaces = std::sync::Arc::make_mut(interfaces);
        for other in interfaces.links.iter_mut().filter(|it| it.name == link) {
            other.kind = kind.map(str::to_owned);
        }
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
        assert_eq!(have("ens5", None, &["eth0"], true), [None, Some(true)], "it may find more");
    }

    #[test]
    fn its_own_device_always_counts_and_a_dummy_perhaps() {
        assert_eq!(have("cilium_host", None, &["eth0"], false)[0], Some(true));
        assert_eq!(have("dummy0", Some("dummy"), &["eth0"], false)[0], None);
        assert_eq!(have("dummy0", Some("dummy"), &["dummy0"], false)[0], Some(true));
        assert_eq!(have("ens5", None, &[], false), [None, Some(true)]);
    }

    #[test]
    fn what_it_never_finds_by_itself_may_be_one_though_it_has_the_nodes_address() {
        for kind in ["bridge", "openvswitch", "ipoib", "veth"] {
            let mut world = Snapshot::healthy();
            let interfaces = std::sync::Arc::make_mut(seen(&mut world.kernel.interfaces));
            let link = interfaces.addresses.iter().find(|it| it.ip == ip(PRIMARY[0])).expect("the Node's").link.clone();
            let of_node = interfaces.links.iter_mut().find(|it| it.name == *link).expect("its link");
            of_node.kind = Some(kind.to_owned());
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
