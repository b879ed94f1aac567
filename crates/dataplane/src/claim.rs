//! The kinds of claims to a port of this node, and the claims with their objects.

use std::{iter, ptr};

use super::external_address::ExternalAddress;
use portreeve_facts::{ContainerPort, Pod, Redirection, Service, ServicePort, Socket};

/// The kind of a claim to a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClaimKind {
    /// An address of this node is a Service's external IP or load balancer address, and the Service has this `port`.
    ExternalIp,
    /// A Service's nodePort.
    NodePort,
    /// A pod's hostPort.
    HostPort,
    /// A redirection of a hostPort whose pod is not known to be on this node.
    Redirection,
    /// A listening socket.
    Listener,
    /// A listening socket of the proxy itself, for a NodePort or a health check.
    Proxy,
}

impl ClaimKind {
    /// The word for this kind in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::ExternalIp => "external-ip",
            Self::NodePort => "node-port",
            Self::HostPort => "host-port",
            Self::Redirection => "redirection",
            Self::Listener => "listener",
            Self::Proxy => "proxy",
        }
    }
}

/// A claim to one port and protocol, with the object that claims it.
#[derive(Clone, Copy, Debug)]
pub enum Claim<'a> {
    /// An external address, and a port of the Service.
    External(ExternalAddress<'a>, &'a ServicePort),
    /// A nodePort.
    NodePort(&'a Service, &'a ServicePort),
    /// A hostPort.
    HostPort(&'a Pod, &'a ContainerPort),
    /// A redirection of a hostPort whose pod is not known to be on this node.
    Redirection(&'a Redirection),
    /// A listener, and the number of sockets with its address and port.
    Listener(&'a Socket, usize),
}

impl Claim<'_> {
    /// This claim, then the other claims. Another claim of the same Service port is left out, because both claims lead
    /// to the same endpoints.
    pub fn first_of(self, claims: impl IntoIterator<Item = Self>) -> Vec<Self> {
        let port = |it: &Self| match it {
            Self::External(_, port) | Self::NodePort(_, port) => Some(ptr::from_ref(*port)),
            _ => None,
        };
        let is_other = |it: &Self| port(it).is_none() || port(it) != port(&self);
        iter::once(self).chain(claims.into_iter().filter(is_other)).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_right_has_a_word_of_its_own() {
        let all = [
            ClaimKind::ExternalIp,
            ClaimKind::NodePort,
            ClaimKind::HostPort,
            ClaimKind::Redirection,
            ClaimKind::Listener,
            ClaimKind::Proxy,
        ];
        let words: BTreeSet<&str> = all.into_iter().map(ClaimKind::name).collect();
        assert_eq!(words.len(), all.len(), "{words:?}");
    }
}
