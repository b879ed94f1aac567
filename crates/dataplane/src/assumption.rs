//! One assumption: a data plane with one value for each setting. The module also has the answers of this data plane.

use super::{
    backing::Backing,
    by_port::Port,
    cilium,
    claim::ClaimKind,
    external_address::ExternalAddress,
    local_address::{LocalAddress, is_link_local},
    outcome::Outcome,
    plane::{Connection, DataPlane},
    served::{covers, may_have},
    settings::{Localhost, Settings},
    vantage::vantage_points,
};
use portreeve_facts::{ContainerPort, Family, Gap, Mode, Pod, Protocol, Source, Vantage, Why};

const UNDEFINED: &str = "the nftables chains of kube-proxy and of the hostPort have equal priority: the newest chains come first, and each start of kube-proxy makes new chains";

const NOT_SERVED: &str = "Cilium does not serve the NodePort there, and may serve the hostPort";

/// One complete assumption about this node's data plane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assumption {
    pub(super) plane: &'static DataPlane,
    pub(super) settings: Settings,
}

impl Assumption {
    /// The mode of the data plane.
    pub fn mode(&self) -> Mode {
        self.plane.mode
    }

    /// Whether a NodePort with this number is served on an address of this node for any client, regardless of
    /// endpoints.
    pub fn captures(&self, address: LocalAddress, number: u16) -> bool {
        vantage_points(address.ip).iter().any(|from| self.captures_from((address, number), *from))
    }

    /// Whether a NodePort with this number is served on an address of this node for one vantage point, regardless of
    /// endpoints.
    pub(super) fn captures_from(&self, (address, number): (LocalAddress, u16), from: Vantage) -> bool {
        let in_range = self.settings.node_port_range.as_ref().is_none_or(|range| range.contains(number));
        (self.plane.captures)(&self.settings, address, if in_range { from } else { Vantage::Remote })
    }

    /// Whether NodePorts are served on an address of this node for remote clients.
    pub fn captures_from_outside(&self, address: LocalAddress) -> bool {
        !address.ip.is_loopback() && (self.plane.captures)(&self.settings, address, Vantage::Remote)
    }

    /// Whether a pod's hostPort is served on an address of this node for one vantage point. A pod serves only the IP
    /// families of its own addresses. The plugin `portmap` serves the port's `hostIP`, or every address if there is no
    /// `hostIP`.
    ///
    /// # Errors
    /// Fails if the data plane's answer is not known.
    pub fn serves_host_port(
        &self,
        (pod, port): (&Pod, &ContainerPort),
        address: LocalAddress,
        from: Vantage,
    ) -> Result<bool, Gap> {
        match self.mode() {
            _ if !may_have(pod, Family::of(address.ip)) => Ok(false),
            Mode::Cilium => cilium::serves_host_port(&self.settings, port, address, from).map_err(unclear),
            _ => Ok(covers(port, address.ip)),
        }
    }

    /// Whether the data plane refuses connections to NodePorts on loopback, even if the Service has endpoints.
    pub fn refuses_on_loopback(&self) -> bool {
        self.settings.localhost.iter().any(|it| *it != Localhost::Untouched)
    }

    /// Whether a NodePort at `address` takes new connections away from a listener, for at least one [`Backing`].
    pub fn may_take(&self, address: LocalAddress, port: Port) -> bool {
        vantage_points(address.ip).iter().any(|from| self.may_take_from((address, port), *from))
    }

    /// Like [`Self::may_take`], but only for clients at the vantage point `from`.
    pub fn may_take_from(&self, to: (LocalAddress, Port), from: Vantage) -> bool {
        Backing::ALL.into_iter().any(|backing| self.outcome(to, from, backing) != Outcome::Listener)
    }

    /// Who answers a client at `from` that connects to a NodePort at the address `to`. [`Outcome::over`] gives the
    /// outcome that the client sees with a protocol.
    pub fn outcome(&self, (to, (protocol, number)): (LocalAddress, Port), from: Vantage, backing: Backing) -> Outcome {
        let captured = self.captures_from((to, number), from);
        let outcome = (self.plane.outcome)(&self.settings, Connection { to, from, protocol, backing, captured });
        match (outcome, from) {
            (Outcome::Pod, _) | (Outcome::Refused | Outcome::TimedOut, Vantage::Node) if is_link_local(to.ip) => {
                Outcome::Nowhere
            }
            (outcome, _) => outcome,
        }
    }

    /// Who answers a client on an external address of a Service, if the data plane serves this address.
    /// `nodePortAddresses` has no effect on external addresses.
    pub fn outcome_of_external_ip(
        &self,
        (to, protocol): (LocalAddress, Protocol),
        from: Vantage,
        backing: Backing,
    ) -> Outcome {
        (self.plane.outcome)(&self.settings, Connection { to, from, protocol, backing, captured: true })
    }

    /// Whether the data plane serves an external address of this node for a vantage point.
    ///
    /// # Errors
    /// Fails if the answer is not known.
    pub fn captures_external(&self, claim: &ExternalAddress<'_>, from: Vantage) -> Result<bool, Gap> {
        (self.plane.captures_external)(&self.settings, claim.ip, from, claim.field).map_err(unclear)
    }

    /// The claim that gets the connection if an external IP and a NodePort have the same address and port. `None` if
    /// either claim may get the connection.
    pub(super) fn external_ip_or_node_port(&self, external_ip: Outcome, node_port: Outcome) -> Option<ClaimKind> {
        (self.plane.external_ip_or_node_port)(external_ip, node_port)
    }

    /// Whether the claim `one` gets the connection, even if the proxy writes the rules of the claim `other` first. Both
    /// claims have the same kind. kube-proxy goes through its Services in random order (kubernetes pkg/proxy,
    /// `svcPortMap`).
    pub(super) fn outranks(&self, one: Outcome, other: Outcome) -> bool {
        let first = self.plane.external_ip_or_node_port;
        (first(one, other), first(other, one)) == (Some(ClaimKind::ExternalIp), Some(ClaimKind::NodePort))
    }

    /// The claim that gets the connection if a NodePort and a hostPort have the same port. `is_left` is true if the
    /// redirection of the hostPort belongs to no known pod of this node.
    ///
    /// # Errors
    /// The reason why either claim may get the connection.
    pub(super) fn node_port_or_host_port(&self, node_port: Outcome, is_left: bool) -> Result<ClaimKind, &'static str> {
        match (self.plane.node_port_or_host_port)(node_port) {
            // Where Cilium does not serve the NodePort, netfilter redirects the connection, and Cilium may serve a
            // hostPort outside of Cilium's range.
            Some(ClaimKind::NodePort) if node_port == Outcome::Listener => {
                is_left.then_some(ClaimKind::HostPort).ok_or(NOT_SERVED)
            }
            first => first.ok_or(UNDEFINED),
        }
    }
}

pub(super) fn unclear(why: &str) -> Gap {
    Gap::new(Source::ProxyConfig, Why::Ambiguous, why)
}
