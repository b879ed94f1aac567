//! kube-proxy with iptables rules. Measured with kube-proxy 1.36.3 and 1.23.6.

use std::net::IpAddr;

use super::{
    backing::Backing,
    claim::ClaimKind,
    kube_proxy::{complete_configuration, node_port_addresses, only_elsewhere, with_any_node_port_addresses},
    local_address::LocalAddress,
    outcome::Outcome,
    plane::{Connection, DataPlane},
    settings::{Setting, Settings},
};
use portreeve_facts::{Family, Mode, ProxyConfig, Vantage};

pub(super) static PLANE: DataPlane = DataPlane {
    mode: Mode::Iptables,
    settings: &[
        Setting::NodePortAddresses,
        Setting::LocalhostNodePorts,
        Setting::LocalDetector,
        Setting::RouteLocalnet,
        Setting::Version,
    ],
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
    let no_localhost = ProxyConfig { localhost_node_ports: Some(false), ..ProxyConfig::default() };
    with_any_node_port_addresses().into_iter().chain([no_localhost]).collect()
}

fn captures(settings: &Settings, address: LocalAddress, _: Vantage) -> bool {
    let listed = settings.lists(address.ip);
    match address.ip {
        IpAddr::V6(ip) if ip.is_loopback() => settings.before_1_26 && listed,
        ip if ip.is_loopback() => settings.localhost_node_ports && listed,
        ip => listed && !(settings.lists_every(Family::of(ip)) && address.vrf),
    }
}

fn outcome(settings: &Settings, connection: Connection) -> Outcome {
    let outcome = match (connection.backing, connection.captured) {
        // nodePortAddresses and localhostNodePorts have no effect on kube-proxy's filter rules (kubernetes
        // pkg/proxy/iptables/proxier.go, KUBE-EXTERNAL-SERVICES).
        (Backing::Empty, _) => Outcome::Refused,
        (Backing::Elsewhere | Backing::ElsewhereOutside, false) => Outcome::TimedOut,
        (Backing::Ready | Backing::ReadyOutside, false) => Outcome::Listener,
        (Backing::Ready | Backing::ReadyOutside, true) => Outcome::Pod,
        (Backing::Elsewhere | Backing::ElsewhereOutside, true) => only_elsewhere(settings, connection),
    };
    match outcome {
        Outcome::Pod if is_stuck(settings, connection.to.ip) => Outcome::TimedOut,
        outcome => outcome,
    }
}

/// Whether the kernel cannot send a packet from this address to a pod: always for `::1`, and for 127.0.0.1 unless
/// `route_localnet` is on.
fn is_stuck(settings: &Settings, address: IpAddr) -> bool {
    address.is_loopback() && (address.is_ipv6() || !settings.route_localnet)
}

/// A claim that redirects the connection comes before a claim that refuses the connection.
fn external_ip_or_node_port(external_ip: Outcome, node_port: Outcome) -> Option<ClaimKind> {
    match (external_ip, node_port) {
        (Outcome::Pod | Outcome::Nowhere, _) => Some(ClaimKind::ExternalIp),
        (_, Outcome::Pod | Outcome::Nowhere) => Some(ClaimKind::NodePort),
        (_, Outcome::Listener) => Some(ClaimKind::ExternalIp),
        (Outcome::Listener, _) => Some(ClaimKind::NodePort),
        // kube-proxy writes rules that refuse connections and rules that drop packets. The order of these rules is not
        // fixed.
        _ if external_ip != node_port => None,
        _ => Some(ClaimKind::NodePort),
    }
}

/// kube-proxy inserts its rules before the rules that portmap appends.
fn node_port_or_host_port(node_port: Outcome) -> Option<ClaimKind> {
    match node_port {
        Outcome::Listener | Outcome::Refused | Outcome::TimedOut => Some(ClaimKind::HostPort),
        Outcome::Pod | Outcome::Nowhere | Outcome::Unreachable => Some(ClaimKind::NodePort),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proxy_whose_settings_were_not_read_may_leave_out_loopback() {
        assert!(unread().iter().any(|config| config.localhost_node_ports == Some(false)));
        assert!(unread().iter().any(|config| config.localhost_node_ports.is_none()));
    }
}
