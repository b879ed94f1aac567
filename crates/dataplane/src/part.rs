//! The parts of a Service that nodes serve.

use std::fmt;

/// A part of a Service that nodes serve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The nodePorts.
    NodePorts,
    /// The healthCheckNodePort.
    HealthCheck,
    /// An address in this field.
    Address(Field),
}

/// The field of a Service that has an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field {
    /// `spec.externalIPs`, at this index.
    ExternalIps(usize),
    /// `status.loadBalancer.ingress`.
    LoadBalancer,
    /// `spec.clusterIPs`, for a comparison with another Service's address.
    ClusterIps,
}

impl fmt::Display for Field {
    /// `externalIP`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::ExternalIps(_) => "externalIP",
            Self::LoadBalancer => "load balancer address",
            Self::ClusterIps => "cluster IP",
        })
    }
}
