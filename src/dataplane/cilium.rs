//! Cilium's eBPF replacement of kube-proxy. Measured with cilium-agent 1.20.2.
//!
//! What arrives from outside is served on one address of each of its devices, or on those of `nodeport-addresses`. What the
//! node and its pods connect to is translated in `connect`, on every address of these devices and of loopback.

use super::{
    backing::Backing,
    claim::Claim,
    kube_proxy::node_port_addresses,
    local_address::LocalAddress,
    outcome::Outcome,
    plane::{Connection, DataPlane},
    settings::{Setting, Settings},
};
use crate::facts::{CiliumConfig, Mode, ProxyConfig, Vantage, WithoutBackend};

pub(super) static PLANE: DataPlane = DataPlane {
    mode: Mode::Cilium,
    settings: &[Setting::NodePortAddresses, Setting::Devices, Setting::WithoutBackend, Setting::HostNamespaceOnly],
    unread,
    read,
    node_port_addresses,
    captures,
    outcome,
    external_ip_or_node_port,
    node_port_or_host_port,
    masquerades_own_link_local: false,
};

/// What a person who asks another address has to know, where no list says otherwise.
pub(super) const ONE_ADDRESS: &str =
    ", for remote clients on one address of each device; set nodeport-addresses to have others served";

/// Each way to answer without an endpoint.
fn unread() -> Vec<ProxyConfig> {
    let ways = [WithoutBackend::Reject, WithoutBackend::Drop, WithoutBackend::Pass];
    let of = |without_backend| CiliumConfig { without_backend, host_namespace_only: true };
    ways.into_iter().map(|way| ProxyConfig { cilium: Some(of(way)), ..ProxyConfig::default() }).collect()
}

/// It is complete but for the devices.
fn read(config: &ProxyConfig) -> Vec<ProxyConfig> {
    vec![config.clone()]
}

/// Whether a connection is translated where its client connects, and not where its packets arrive.
fn by_socket(settings: &Settings, from: Vantage) -> bool {
    match from {
        Vantage::Remote => false,
        Vantage::Pods => !settings.host_namespace_only,
        Vantage::Node | Vantage::Loopback => true,
    }
}

fn captures(settings: &Settings, address: LocalAddress, from: Vantage) -> bool {
    let ip = address.ip;
    settings.is_of_devices(ip) && (by_socket(settings, from) || settings.lists(ip) && !ip.is_loopback())
}

fn outcome(settings: &Settings, connection: Connection) -> Outcome {
    let by_socket = by_socket(settings, connection.from);
    let refused = match settings.without_backend {
        WithoutBackend::Reject => Outcome::Refused,
        WithoutBackend::Drop | WithoutBackend::Pass => Outcome::TimedOut,
    };
    match (connection.backing, connection.captured) {
        (_, false) => Outcome::Listener,
        (Backing::Ready, true) => Outcome::Pod,
        (Backing::Empty, true) if settings.without_backend == WithoutBackend::Pass => Outcome::Listener,
        (Backing::Empty, true) if by_socket => Outcome::Unreachable,
        (Backing::Elsewhere, true) if by_socket => Outcome::Pod,
        (Backing::Empty | Backing::Elsewhere, true) => refused,
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
