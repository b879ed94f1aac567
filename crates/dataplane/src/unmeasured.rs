//! An unmeasured data plane: kube-router, OVN-Kubernetes, Antrea, or Calico's eBPF. In their source code, each of these
//! data planes serves the Node's own address if a Service has an endpoint for this node. The data planes differ on
//! other addresses, and for Services without endpoints. This module describes only the common behaviour. Portreeve also
//! assumes each possible mode of kube-proxy, and these assumptions cover the differences.

use super::{
    backing::Backing,
    local_address::LocalAddress,
    outcome::Outcome,
    plane::{Connection, DataPlane},
    settings::{Setting, Settings},
};
use portreeve_facts::{Family, Mode, Protocol, ProxyConfig, Vantage};

pub(super) static PLANE: DataPlane = DataPlane {
    // A placeholder. A user cannot configure an unmeasured data plane, so this data plane has no mode.
    mode: Mode::Iptables,
    settings: &[Setting::NodePortAddresses],
    unread: || vec![ProxyConfig::default()],
    read: |_| vec![ProxyConfig::default()],
    node_port_addresses: |_| vec!["primary".to_owned()],
    captures,
    captures_external: |_, _, _, _| Ok(true),
    outcome,
    external_ip_or_node_port: |_, _| None,
    node_port_or_host_port: |_| None,
    masquerades_own_link_local: false,
};

fn captures(settings: &Settings, address: LocalAddress, _: Vantage) -> bool {
    !settings.lists_every(Family::of(address.ip)) && settings.lists(address.ip)
}

fn outcome(_: &Settings, Connection { from, protocol, backing, captured, .. }: Connection) -> Outcome {
    let has_one = backing == Backing::Ready || backing == Backing::ReadyOutside && from == Vantage::Remote;
    if captured && has_one && protocol != Protocol::Sctp { Outcome::Pod } else { Outcome::Listener }
}
