//! kube-proxy with IPVS virtual servers. Deprecated since Kubernetes 1.35 (KEP-5495). Measured with kube-proxy 1.36.3.

use std::net::IpAddr;

use super::{
    backing::Backing,
    claim::ClaimKind,
    kube_proxy::{complete_configuration, node_port_addresses, with_any_node_port_addresses},
    local_address::LocalAddress,
    outcome::Outcome,
    plane::{Connection, DataPlane},
    settings::{Setting, Settings},
};
use portreeve_facts::{Family, Mode, Vantage};

pub(super) static PLANE: DataPlane = DataPlane {
    mode: Mode::Ipvs,
    settings: &[Setting::NodePortAddresses],
    unread: with_any_node_port_addresses,
    read: complete_configuration,
    node_port_addresses,
    captures,
    captures_external: |_, _, _, _| Ok(true),
    outcome,
    external_ip_or_node_port,
    node_port_or_host_port,
    // ipvs mode marks packets to a NodePort for masquerading. Measured with kube-proxy 1.36.3 on Linux 6.1.
    masquerades_own_link_local: true,
};

fn captures(settings: &Settings, address: LocalAddress, _: Vantage) -> bool {
    match address.ip {
        ip if ip.is_loopback() => false,
        IpAddr::V6(ip) if settings.lists_every(Family::V6) => !ip.is_unicast_link_local(),
        ip => settings.lists(ip),
    }
}

fn outcome(_: &Settings, connection: Connection) -> Outcome {
    match (connection.backing, connection.captured) {
        (_, false) => Outcome::Listener,
        (Backing::Empty, true) => Outcome::Refused,
        // If all endpoints are on other nodes, ipvs mode still sends connections to these endpoints, and does not
        // masquerade the connections. The pod answers from its own address, so a remote client discards the answer
        // (kubernetes pkg/proxy/ipvs/proxier.go, syncEndpoint).
        (Backing::Elsewhere | Backing::ElsewhereOutside, true) if connection.from == Vantage::Remote => {
            Outcome::TimedOut
        }
        (_, true) => Outcome::Pod,
    }
}

/// An external IP and a NodePort share one virtual server. The virtual server has the endpoints of the Service that was
/// programmed last.
fn external_ip_or_node_port(_: Outcome, _: Outcome) -> Option<ClaimKind> {
    None
}

/// The rules of portmap come before IPVS.
fn node_port_or_host_port(_: Outcome) -> Option<ClaimKind> {
    Some(ClaimKind::HostPort)
}
