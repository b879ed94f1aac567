//! The parts of a Service that nodes serve.

use std::fmt;

/// A part of a Service that nodes serve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The nodePorts.
    NodePorts,
    /// The healthCheckNodePort.
    HealthCheck,
    /// An address in this field of the Service.
    Address(Field),
}

/// The field of a Service that has an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field {
    /// `spec.externalIPs`, at this index.
    ExternalIps(usize),
    /// `status.loadBalancer.ingress`.
    LoadBalancer,
    /// `spec.clusterIPs`. Portreeve uses these addresses only to compare them with addresses of other Services.
    ClusterIps,
}

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::ExternalIps(_) => "externalIP",
            Self::LoadBalancer => "load balancer address",
            Self::ClusterIps => "cluster IP",
        })
    }
}
