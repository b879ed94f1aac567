//! Objects of manifests, and their fields that claim ports and addresses. Each field has its place in the file.

use std::{fmt, net::IpAddr, ops::Deref, path::PathBuf, sync::Arc};

use super::Protocol;

/// A file: a name that is safe to print, and the path for other programs. The printed names of two files may be equal.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileName(Arc<(String, PathBuf)>);

impl FileName {
    /// A file with this name at this path.
    pub fn new(name: String, path: PathBuf) -> Self {
        Self(Arc::new((name, path)))
    }

    /// The path, byte for byte.
    pub fn path(&self) -> &[u8] {
        self.0.1.as_os_str().as_encoded_bytes()
    }
}

impl Deref for FileName {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0.0
    }
}

impl fmt::Display for FileName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self)
    }
}

/// A place in a file, in the form that editors and compilers use.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// The file as the user named it, or `standard input`.
    pub file: FileName,
    /// The line, from 1.
    pub line: u64,
    /// The column in characters, from 1.
    pub column: u64,
    /// The number of characters of a value on one line. For other values, 1.
    pub width: u64,
    /// The template from which helm rendered this part of standard input, for example `shop/templates/web.yaml`. The
    /// name begins with the name of the chart. `line` is a line of the rendered text, not of the template.
    pub template: Option<FileName>,
}

impl Place {
    /// The file in which a user would change the field: the template if helm rendered the text, or else `file`.
    pub fn file(&self) -> &FileName {
        self.template.as_ref().unwrap_or(&self.file)
    }
}

impl fmt::Display for Place {
    /// Prints a place such as `deploy/web.yaml:12:17`. For rendered text, prints `shop/templates/web.yaml (standard
    /// input:12:17)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file, line, column, template, .. } = self;
        match template {
            None => write!(f, "{file}:{line}:{column}"),
            Some(template) => write!(f, "{template} ({file}:{line}:{column})"),
        }
    }
}

/// An annotation with the names of rules of `lint`, as `RULE,RULE`. The user accepts the findings of these rules about
/// the object.
pub const ACCEPT: &str = "portreeve/accept";

/// The rules that the user accepts for an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Accepts {
    /// The names of rules, as written in the annotation.
    pub rules: Vec<String>,
    /// The place of the annotation.
    pub place: Place,
}

/// A Service, a Pod, or an object with a pod template in a manifest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manifest {
    /// `kind`.
    pub kind: &'static str,
    /// `metadata.namespace`, or the default namespace if the object has none.
    pub namespace: String,
    /// `metadata.name`.
    pub name: String,
    /// The annotation [`ACCEPT`], if the object has it.
    pub accepts: Option<Accepts>,
    /// The fields that claim a port or an address, in the order of the file.
    pub claims: Vec<Claim>,
    /// The fields that the API server refuses. They claim no port.
    pub refused: Vec<Refused>,
}

impl Manifest {
    /// The fields that claim a port or an address, and the fields that the API server refuses.
    pub fn fields(&self) -> impl Iterator<Item = &Claim> {
        self.claims.iter().chain(self.refused.iter().map(|refused| &refused.claim))
    }
}

impl fmt::Display for Manifest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}/{}", self.kind, self.namespace, self.name)
    }
}

/// A field that claims a port or an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// The path of the field, for example `spec.ports[0].nodePort`.
    pub path: String,
    /// The place of the value.
    pub place: Place,
    /// The claimed port or address.
    pub what: Claimed,
    /// For a nodePort: the `name` and the `port` of its Service port.
    pub of_port: Option<(String, u16)>,
}

/// A field that the API server refuses, even if the cluster has no other objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// The field and its claim.
    pub claim: Claim,
    /// The reason.
    pub why: Refusal,
}

/// The reason why the API server refuses a field (Kubernetes 1.36 `pkg/apis/core/validation/validation.go`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// A `nodePort` in a Service of type ClusterIP.
    NodePort,
    /// A `healthCheckNodePort` in a Service that is not a LoadBalancer with `externalTrafficPolicy: Local`.
    HealthCheck,
    /// A new `healthCheckNodePort` in an update. The Service keeps its old number (this value) while it stays a
    /// LoadBalancer with `externalTrafficPolicy: Local` (`pkg/registry/core/service/storage/alloc.go`). Only lint uses
    /// this variant.
    HealthCheckReplaced(u16),
    /// A port of the node that another container of the pod also has, with the same protocol and `hostIP`.
    Twice,
    /// Like `Twice`, but a pod template lacks one of the two hostPorts. In the host network, the API server adds the
    /// missing hostPort to pods, not to templates (`pkg/apis/core/v1/defaults.go` `SetDefaults_Pod`).
    TwiceInPods,
    /// A `port` of a Service that another entry of the Service also has, with the same protocol (`ValidateService`).
    PortTwice,
    /// The name of a Service's port that another port of the Service also has (`validateServicePort`).
    NameTwice,
    /// A `hostPort` that differs from its `containerPort` (this value). In the host network, `hostPort` and
    /// `containerPort` must be equal.
    NotThePort(u16),
}

/// The port or address that a field claims.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claimed {
    /// `spec.ports[].nodePort`.
    NodePort(u16, Protocol),
    /// `spec.healthCheckNodePort`.
    HealthCheckNodePort(u16),
    /// `spec.externalIPs[]`.
    ExternalIp(IpAddr),
    /// `hostPort` of a container, and its `hostIP`.
    HostPort(u16, Protocol, Option<IpAddr>),
    /// `containerPort` of a container in the host network.
    HostNetworkPort(u16, Protocol),
    /// The refused `port` or `name` of an entry in `spec.ports`. The field claims no port of a node.
    ServicePort(u16, Protocol),
}

impl Claimed {
    /// The port of a node and its protocol. For a health check, the protocol is TCP.
    pub fn port(self) -> Option<(u16, Protocol)> {
        match self {
            Self::NodePort(port, protocol)
            | Self::HostPort(port, protocol, _)
            | Self::HostNetworkPort(port, protocol)
            | Self::ServicePort(port, protocol) => Some((port, protocol)),
            Self::HealthCheckNodePort(port) => Some((port, Protocol::Tcp)),
            Self::ExternalIp(_) => None,
        }
    }

    /// The port of a node that pods need, with its protocol.
    pub fn of_pods(self) -> Option<(u16, Protocol)> {
        match self {
            Self::HostPort(..) | Self::HostNetworkPort(..) => self.port(),
            _ => None,
        }
    }

    /// The address of the node on which pods need a port. `None` means all addresses.
    pub fn host_ip(self) -> Option<IpAddr> {
        if let Self::HostPort(_, _, ip) = self { ip.filter(|ip| !ip.is_unspecified()) } else { None }
    }

    /// Whether pods need a port only on loopback. If pods need only loopback, sockets on other addresses of the node do
    /// not conflict.
    pub fn is_at_loopback(self) -> bool {
        self.host_ip().is_some_and(|ip| ip.is_loopback())
    }

    /// The port that a Service claims on each node, with its protocol.
    pub fn of_service(self) -> Option<(u16, Protocol)> {
        match self {
            Self::NodePort(..) | Self::HealthCheckNodePort(_) => self.port(),
            _ => None,
        }
    }
}
