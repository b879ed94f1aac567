//! The type of a data plane, the functions that each data plane's file defines, and the list of all data planes.

use std::net::IpAddr;

use super::{
    backing::Backing,
    cilium,
    claim::ClaimKind,
    iptables, ipvs,
    local_address::LocalAddress,
    nftables,
    outcome::Outcome,
    part::Field,
    settings::{Setting, Settings},
};
use portreeve_facts::{Mode, Protocol, ProxyConfig, Vantage};

#[derive(Debug)]
pub(super) struct DataPlane {
    pub(super) mode: Mode,
    /// The settings on which the answers depend. Every other setting has the same value in all assumptions.
    pub(super) settings: &'static [Setting],
    /// The possible configurations if the configuration was not read.
    pub(super) unread: fn() -> Vec<ProxyConfig>,
    /// The complete configurations that an incomplete configuration may mean. The configuration itself is first.
    pub(super) read: fn(&ProxyConfig) -> Vec<ProxyConfig>,
    /// `nodePortAddresses` of a configuration, or the data plane's default. An empty list means every address.
    pub(super) node_port_addresses: fn(&ProxyConfig) -> Vec<String>,
    /// Whether the data plane serves NodePorts on an address of this node for a vantage point, regardless of endpoints.
    pub(super) captures: fn(&Settings, LocalAddress, Vantage) -> bool,
    /// Whether the data plane serves an external IP or a load balancer's address on this node for a vantage point. The
    /// `Field` is the Service's field with the address. An error is the reason why the answer is not known.
    pub(super) captures_external: fn(&Settings, IpAddr, Vantage, Field) -> Result<bool, &'static str>,
    /// Who answers a connection. [`super::Assumption`] corrects the outcome for link-local addresses, and
    /// [`Outcome::over`] corrects the outcome for the client's protocol.
    pub(super) outcome: fn(&Settings, Connection) -> Outcome,
    /// The claim that gets the connection if an external IP and a NodePort have the same address and port. The
    /// arguments are the outcomes of the two claims. `None` if either claim may get the connection. To compare two
    /// claims of one kind, the caller passes their outcomes in both orders.
    pub(super) external_ip_or_node_port: fn(external_ip: Outcome, node_port: Outcome) -> Option<ClaimKind>,
    /// The claim that gets the connection if a NodePort and a hostPort have the same port. The argument is the outcome
    /// of the NodePort. `None` if either claim may get the connection.
    pub(super) node_port_or_host_port: fn(node_port: Outcome) -> Option<ClaimKind>,
    /// Whether the node's own connections to a NodePort on a link-local address leave with another source address, even
    /// if the NodePort is served only on other addresses of the family.
    pub(super) masquerades_own_link_local: bool,
}

/// Compares addresses in memory, because each data plane is one static value.
impl PartialEq for DataPlane {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self, other)
    }
}

impl Eq for DataPlane {}

pub(super) static DATA_PLANES: [&DataPlane; 4] = [&iptables::PLANE, &ipvs::PLANE, &nftables::PLANE, &cilium::PLANE];

#[derive(Clone, Copy, Debug)]
pub(super) struct Connection {
    pub(super) to: LocalAddress,
    pub(super) from: Vantage,
    pub(super) protocol: Protocol,
    pub(super) backing: Backing,
    /// Whether the data plane sends the connections for this address to the Service.
    pub(super) captured: bool,
}
