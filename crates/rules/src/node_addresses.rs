//! The Nodes, by their addresses.

use std::{
    collections::{BTreeSet, HashMap},
    net::IpAddr,
    sync::Arc,
};

use portreeve_dataplane::{is_link_local, local_addresses};
use portreeve_facts::{Address, Family, Interfaces, Node, NodeAddressKind, Snapshot, Unread};

pub(super) type NodesByAddress<'a> = HashMap<IpAddr, Vec<(&'a Node, NodeAddressKind)>>;

pub(super) fn nodes_by_address(nodes: &[Arc<Node>]) -> NodesByAddress<'_> {
    let mut by_address = NodesByAddress::new();
    for node in nodes {
        for address in &node.addresses {
            by_address.entry(address.ip).or_default().push((node, address.kind));
        }
    }
    for owners in by_address.values_mut() {
        owners.sort_by(|(a, _), (b, _)| a.name.cmp(&b.name));
    }
    by_address
}

pub(super) struct OnLinks<'a>(HashMap<IpAddr, Vec<&'a Address>>);

impl<'a> OnLinks<'a> {
    /// The addresses of a snapshot, or none if the addresses were not read.
    pub(super) fn of(snapshot: &'a Snapshot) -> Self {
        let mut by_ip = HashMap::<IpAddr, Vec<&Address>>::new();
        let interfaces = snapshot.kernel.interfaces.known(Unread::Reported("whoever asks"));
        for address in interfaces.into_iter().flat_map(|it| &it.addresses) {
            by_ip.entry(address.ip).or_default().push(address);
        }
        Self(by_ip)
    }

    /// The link with the address. The device of an ipvs proxy is ignored.
    pub(super) fn link(&self, ip: IpAddr) -> Option<&'a str> {
        self.at(ip).iter().find(|it| !it.is_ipvs()).map(|it| &*it.link)
    }

    /// Whether a program added the address to the node's own addresses: the prefix has full length (/32 or /128).
    /// Callers pass only addresses that the status of this node's Node does not list.
    pub(super) fn stands_alone(&self, ip: IpAddr) -> bool {
        self.at(ip).iter().all(|it| it.is_alone())
    }

    fn at(&self, ip: IpAddr) -> &[&'a Address] {
        self.0.get(&ip).map_or(&[], Vec::as_slice)
    }
}

/// Whether the kubelet and the API server use this address of a Node: the first InternalIP of each family.
pub(super) fn is_main(node: &Node, ip: IpAddr) -> bool {
    let mut internal = node.addresses.iter().filter(|it| it.kind == NodeAddressKind::InternalIp);
    internal.find(|it| Family::of(it.ip) == Family::of(ip)).is_some_and(|first| first.ip == ip)
}

/// The addresses that the kernel treats as this node's own, without the addresses of an ipvs proxy and of VRFs.
pub(super) fn reachable(interfaces: &Interfaces) -> impl Iterator<Item = &Address> {
    let main: BTreeSet<IpAddr> =
        local_addresses(interfaces).into_iter().filter(|local| !local.vrf).map(|local| local.ip).collect();
    let addresses = interfaces.addresses.iter().filter(|address| !address.is_ipvs());
    addresses
        .filter(move |address| main.contains(&address.ip) && !address.ip.is_loopback() && !is_link_local(address.ip))
}

/// Whether an address is on `lo` or on a dummy link. Servers behind a load balancer usually have the load balancer's
/// address on such a link.
pub(super) fn is_shared(interfaces: &Interfaces, address: &Address) -> bool {
    let link = interfaces.links.iter().find(|link| link.name == *address.link);
    *address.link == *"lo" || link.is_some_and(|link| link.kind.as_deref() == Some("dummy"))
}

/// Whether an address looks like the node's own address: the first address of its link and family, with a prefix
/// shorter than /32 or /128. Programs that move an address between nodes add the address later, usually with the prefix
/// /32 or /128.
pub(super) fn is_configured(interfaces: &Interfaces, address: &Address) -> bool {
    let family = Family::of(address.ip);
    let mut of_link = interfaces.addresses.iter().filter(|it| it.link == address.link && Family::of(it.ip) == family);
    !address.is_alone() && of_link.find(|it| !is_link_local(it.ip)) == Some(address)
}

pub(super) fn kind_in_words(kind: NodeAddressKind) -> &'static str {
    match kind {
        NodeAddressKind::InternalIp => "InternalIP",
        NodeAddressKind::ExternalIp => "ExternalIP",
        NodeAddressKind::Hostname => "Hostname address",
    }
}
