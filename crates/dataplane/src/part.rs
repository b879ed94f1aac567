//! The parts of what a Service has its nodes serve.

use std::fmt;

/// A part of what a Service has its nodes serve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Its nodePorts.
    NodePorts,
    /// Its healthCheckNodePort.
    HealthCheck,
    /// An address of this field.
    Address(Field),
}

/// The field in which a Service names an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field {
    /// `spec.externalIPs`, at this index.
    ExternalIps(usize),
    /// `status.loadBalancer.ingress`.
    LoadBalancer,
    /// `spec.clusterIPs`, with which another Service's address is compared.
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
