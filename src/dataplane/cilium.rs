//! Cilium's eBPF replacement of kube-proxy, judged where its documentation and what was measured agree.
//!
//! From outside it serves one address of each of its devices, or those of `nodeport-addresses`; from the node and its pods
//! almost every address. Which devices are its own is not known here. So an address is certain only where it is taken
//! either way.

use super::{
    backing::Backing,
    claim::Claim,
    kube_proxy::{node_port_addresses, only_elsewhere},
    local_address::LocalAddress,
    outcome::Outcome,
    plane::{Connection, DataPlane},
    settings::{Setting, Settings},
};
use crate::facts::{Mode, ProxyConfig};

pub(super) static PLANE: DataPlane = DataPlane {
    mode: Mode::Cilium,
    settings: &[Setting::NodePortAddresses, Setting::LocalDetector],
    unread,
    read,
    node_port_addresses,
    captures,
    outcome,
    external_ip_or_node_port,
    node_port_or_host_port,
    masquerades_own_link_local: false,
};

/// Every address, and the primary one.
fn unread() -> Vec<ProxyConfig> {
    read(&ProxyConfig::default())
}

/// The addresses that are listed, or else the primary one; and every address.
fn read(config: &ProxyConfig) -> Vec<ProxyConfig> {
    let of = |addresses: Vec<String>| ProxyConfig { node_port_addresses: addresses, ..config.clone() };
    let listed = match node_port_addresses(config) {
        none if none.is_empty() => vec!["primary".to_owned()],
        listed => listed,
    };
    vec![of(listed), of(Vec::new())]
}

/// Its socket load balancer takes what goes to loopback.
fn captures(settings: &Settings, address: LocalAddress) -> bool {
    address.ip.is_loopback() || settings.lists(address.ip)
}

fn outcome(settings: &Settings, connection: Connection) -> Outcome {
    match (connection.backing, connection.captured) {
        (_, false) => Outcome::Listener,
        (Backing::Ready, true) => Outcome::Pod,
        (Backing::Empty, true) => Outcome::Refused,
        (Backing::Elsewhere, true) => only_elsewhere(settings, connection),
    }
}

/// One entry of its map, which has the endpoints of whichever Service was programmed last.
fn external_ip_or_node_port(_: Outcome, _: Outcome) -> Option<Claim> {
    None
}

/// It ignores a hostPort in the NodePort range.
fn node_port_or_host_port(_: Outcome) -> Option<Claim> {
    Some(Claim::NodePort)
}
