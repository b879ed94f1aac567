//! A field that claims a port or an address. Two fields are equal if their objects and their values are equal. The
//! places of the fields in files do not matter.

use std::net::IpAddr;

use super::{Claim, Claimed, Manifest, Protocol, Service, ServicePort, Workload};

/// A field of an object that claims a port or an address.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ClaimOf {
    /// `kind`.
    pub kind: &'static str,
    /// `metadata.namespace`.
    pub namespace: String,
    /// `metadata.name`.
    pub name: String,
    /// The field.
    pub field: ClaimField,
}

/// A field of an object.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ClaimField {
    /// A `nodePort`, with the name, `port` and protocol of its Service port. The nodePort alone does not identify the
    /// field: a Service may use one nodePort in two entries.
    NodePort(Option<u16>, String, u16, Protocol),
    /// A `healthCheckNodePort`.
    HealthCheckNodePort(Option<u16>),
    /// An address of `externalIPs`.
    ExternalIp(IpAddr),
    /// A port of a node that pods of the object need.
    PodPort(u16, Protocol),
}

impl ClaimOf {
    /// The nodePort of a Service's port, or the Service's healthCheckNodePort if `port` is `None`.
    pub fn node_port(service: &Service, port: Option<&ServicePort>) -> Self {
        let field = match port {
            Some(port) => ClaimField::NodePort(port.node_port, port.name.clone(), port.port, port.protocol),
            None => ClaimField::HealthCheckNodePort(service.health_check_node_port),
        };
        Self::of_service(service, field)
    }

    /// An external IP of a Service.
    pub fn external_ip(service: &Service, ip: IpAddr) -> Self {
        Self::of_service(service, ClaimField::ExternalIp(ip))
    }

    /// A port of a node that the pods of a workload want.
    pub fn pod_port(workload: &Workload, number: u16, protocol: Protocol) -> Self {
        Self {
            kind: workload.kind.name(),
            namespace: workload.namespace.clone(),
            name: workload.name.clone(),
            field: ClaimField::PodPort(number, protocol),
        }
    }

    fn of_service(service: &Service, field: ClaimField) -> Self {
        Self { kind: "Service", namespace: service.namespace.clone(), name: service.name.clone(), field }
    }

    /// The field of a claim in a manifest.
    pub fn written(manifest: &Manifest, claim: &Claim) -> Self {
        let field = match claim.what {
            Claimed::NodePort(number, protocol) => {
                let (name, port) = claim.of_port.clone().unwrap_or_default();
                ClaimField::NodePort(Some(number), name, port, protocol)
            }
            Claimed::HealthCheckNodePort(number) => ClaimField::HealthCheckNodePort(Some(number)),
            Claimed::ExternalIp(ip) => ClaimField::ExternalIp(ip),
            Claimed::HostPort(number, protocol, _)
            | Claimed::HostNetworkPort(number, protocol)
            // A `ServicePort` is only in refused fields, which claim no port.
            | Claimed::ServicePort(number, protocol) => ClaimField::PodPort(number, protocol),
        };
        let Manifest { kind, namespace, name, .. } = manifest;
        Self { kind, namespace: namespace.clone(), name: name.clone(), field }
    }

    /// Whether the field is a port that pods need.
    pub fn is_of_pods(&self) -> bool {
        matches!(self.field, ClaimField::PodPort(..))
    }
}
