//! Who has or wants a port of this node, and by what right.

use super::external_address::ExternalAddress;
use portreeve_facts::{ContainerPort, Pod, Redirection, Service, ServicePort, Socket};

/// By what right a port is claimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClaimKind {
    /// A Service's external IP or load balancer address is an address of this node, and its `port` is this one.
    ExternalIp,
    /// A Service's nodePort.
    NodePort,
    /// A pod's hostPort.
    HostPort,
    /// A redirection that was made for a hostPort.
    Redirection,
    /// A listening socket.
    Listener,
    /// A listening socket of the proxy itself: a held NodePort, a health check.
    Proxy,
}

impl ClaimKind {
    /// Its word in JSON.
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

/// A claim of one port and protocol, with what it rests on.
#[derive(Clone, Copy, Debug)]
pub enum Claim<'a> {
    /// An external address, and a port of the Service.
    External(ExternalAddress<'a>, &'a ServicePort),
    /// A nodePort.
    NodePort(&'a Service, &'a ServicePort),
    /// A hostPort.
    HostPort(&'a Pod, &'a ContainerPort),
    /// A redirection that a CNI plugin made for a hostPort.
    Redirection(&'a Redirection),
    /// A listener, and how many share its address and port.
    Listener(&'a Socket, usize),
}
