//! kube-proxy with nftables rules (KEP-3866). Measured with kube-proxy 1.36.3, and with kube-proxy 1.37.2, which has a
//! feature gate for NodePorts on loopback (KEP-6032).

use super::{
    backing::Backing,
    claim::ClaimKind,
    kube_proxy::{complete_configuration, only_elsewhere, with_any_node_port_addresses},
    local_address::LocalAddress,
    outcome::Outcome,
    plane::{Connection, DataPlane},
    settings::{Localhost, Setting, Settings},
};
use portreeve_facts::{Family, Mode, Protocol, ProxyConfig, Vantage};

pub(super) static PLANE: DataPlane = DataPlane {
    mode: Mode::Nftables,
    settings: &[Setting::NodePortAddresses, Setting::NftablesLocalhost, Setting::LocalDetector],
    unread,
    read: complete_configuration,
    node_port_addresses,
    captures,
    captures_external: |_, _, _, _| Ok(true),
    outcome,
    external_ip_or_node_port,
    node_port_or_host_port,
    masquerades_own_link_local: false,
};

fn unread() -> Vec<ProxyConfig> {
    let gate = |config: &ProxyConfig| ProxyConfig { nftables_localhost: Some(true), ..config.clone() };
    let lists = with_any_node_port_addresses();
    let with_gate: Vec<_> = lists.iter().map(gate).collect();
    lists.into_iter().chain(with_gate).collect()
}

fn node_port_addresses(config: &ProxyConfig) -> Vec<String> {
    match &config.node_port_addresses[..] {
        [] => vec!["primary".to_owned()],
        configured => configured.to_vec(),
    }
}

fn captures(settings: &Settings, address: LocalAddress, _: Vantage) -> bool {
    match address.ip.is_loopback() {
        true => settings.localhost[Family::of(address.ip).index()] != Localhost::Untouched,
        false => settings.lists(address.ip),
    }
}

fn outcome(settings: &Settings, connection: Connection) -> Outcome {
    let localhost = settings.localhost[Family::of(connection.to.ip).index()];
    match (connection.backing, connection.captured) {
        (_, false) => Outcome::Listener,
        // On loopback, kube-proxy answers with a listener of its own. A connection to this listener also has the
        // outcome `Listener`, because only one process can listen on the port.
        (_, true) if connection.to.ip.is_loopback() => match (localhost, connection.protocol) {
            (Localhost::Proxied, Protocol::Tcp) => Outcome::Listener,
            _ => Outcome::Refused,
        },
        (Backing::Ready | Backing::ReadyOutside, true) => Outcome::Pod,
        (Backing::Empty, true) => Outcome::Refused,
        (Backing::Elsewhere | Backing::ElsewhereOutside, true) => only_elsewhere(settings, connection),
    }
}

/// A claim that redirects the connection comes before a claim that refuses the connection.
fn external_ip_or_node_port(external_ip: Outcome, node_port: Outcome) -> Option<ClaimKind> {
    match (external_ip, node_port) {
        (Outcome::Pod, _) => Some(ClaimKind::ExternalIp),
        // Both claims send the packet to a chain, and the external IP's chain comes first. From this chain, the packet
        // does not return to the NodePort's rules.
        (Outcome::TimedOut, Outcome::Pod | Outcome::Nowhere) => Some(ClaimKind::ExternalIp),
        (_, Outcome::Listener) => Some(ClaimKind::ExternalIp),
        _ => Some(ClaimKind::NodePort),
    }
}

/// Among chains with equal priority, the kernel evaluates the newest chain first.
fn node_port_or_host_port(node_port: Outcome) -> Option<ClaimKind> {
    match node_port {
        Outcome::Listener | Outcome::Refused | Outcome::TimedOut => Some(ClaimKind::HostPort),
        Outcome::Pod | Outcome::Nowhere | Outcome::Unreachable => None,
    }
}
