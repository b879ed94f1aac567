//! Objects of manifests, reduced to the fields that claim ports and addresses, and where each of them is written.

use std::{fmt, net::IpAddr, sync::Arc};

use super::Protocol;

/// Where something is written, as editors and compilers name it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// The file as a person named it; `standard input`.
    pub file: Arc<str>,
    /// The line, from 1.
    pub line: u64,
    /// The column in characters, from 1.
    pub column: u64,
    /// How many characters a value has that stands on one line; of others 1.
    pub width: u64,
    /// The template that standard input was rendered from, as helm names it: the line is one of what was rendered.
    pub template: Option<Arc<str>>,
}

impl fmt::Display for Place {
    /// `deploy/web.yaml:12:17`, or `shop/templates/web.yaml (standard input:12:17)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file, line, column, template, .. } = self;
        match template {
            None => write!(f, "{file}:{line}:{column}"),
            Some(template) => write!(f, "{template} ({file}:{line}:{column})"),
        }
    }
}

/// The annotation of an object that names rules of `lint` whose findings its owner accepts: `RULE,RULE`.
pub const ACCEPT: &str = "portreeve/accept";

/// What an object accepts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Accepts {
    /// Names of rules, as they are written.
    pub rules: Vec<String>,
    /// Where they are written.
    pub place: Place,
}

/// A Service, a Pod, or an object with the template of pods, as somebody wrote it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manifest {
    /// `kind`.
    pub kind: &'static str,
    /// `metadata.namespace`, or where an object without one goes.
    pub namespace: String,
    /// `metadata.name`.
    pub name: String,
    /// `spec.replicas`, where a workload says it.
    pub replicas: Option<i64>,
    /// What [`ACCEPT`] says, where the object has it.
    pub accepts: Option<Accepts>,
    /// Its fields that claim something, in their order.
    pub claims: Vec<Claim>,
}

impl fmt::Display for Manifest {
    /// `DaemonSet default/agent`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}/{}", self.kind, self.namespace, self.name)
    }
}

/// A field that claims a port or an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// The way to the field, `spec.ports[0].nodePort`.
    pub path: String,
    /// Where its value is written.
    pub place: Place,
    /// What it claims.
    pub what: Claimed,
}

/// What a field claims.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claimed {
    /// `spec.ports[].nodePort`.
    NodePort(u16, Protocol),
    /// `spec.healthCheckNodePort`.
    HealthCheckNodePort(u16),
    /// `spec.externalIPs[]`.
    ExternalIp(IpAddr),
    /// `hostPort` of a container.
    HostPort(u16, Protocol),
    /// `containerPort` of a container in the host's network.
    HostNetworkPort(u16, Protocol),
}

impl Claimed {
    /// The port and its protocol. Health checks are HTTP.
    pub fn port(self) -> Option<(u16, Protocol)> {
        match self {
            Self::NodePort(port, protocol) | Self::HostPort(port, protocol) | Self::HostNetworkPort(port, protocol) => {
                Some((port, protocol))
            }
            Self::HealthCheckNodePort(port) => Some((port, Protocol::Tcp)),
            Self::ExternalIp(_) => None,
        }
    }

    /// The port of a node that pods want, and its protocol.
    pub fn of_pods(self) -> Option<(u16, Protocol)> {
        match self {
            Self::HostPort(..) | Self::HostNetworkPort(..) => self.port(),
            _ => None,
        }
    }

    /// The port of a Service, and its protocol.
    pub fn of_service(self) -> Option<(u16, Protocol)> {
        match self {
            Self::NodePort(..) | Self::HealthCheckNodePort(_) => self.port(),
            _ => None,
        }
    }
}
