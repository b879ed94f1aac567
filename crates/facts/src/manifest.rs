//! Objects of manifests: the fields that claim ports and addresses, and the place of each field.

use std::{fmt, net::IpAddr, ops::Deref, path::PathBuf, sync::Arc};

use super::Protocol;

/// A file: a name that is safe to print, and the path for other programs. Two files may have equal printed names.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileName(Arc<(String, PathBuf)>);

impl FileName {
    /// A file with this name at this path.
    pub fn new(name: String, path: PathBuf) -> Self {
        Self(Arc::new((name, path)))
    }

    /// The path, without changes.
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
    /// The number of characters of the value, if it is on one line; otherwise 1.
    pub width: u64,
    /// The template from which helm rendered this part of standard input, for example `shop/templates/web.yaml`. The
    /// name begins with the name of the chart. `line` counts lines of the rendered text, not of the template.
    pub template: Option<FileName>,
}

impl Place {
    /// The file that a user would change: the template, otherwise the file.
    pub fn file(&self) -> &FileName {
        self.template.as_ref().unwrap_or(&self.file)
    }
}

impl fmt::Display for Place {
    /// `deploy/web.yaml:12:17`. For rendered text, `shop/templates/web.yaml (standard input:12:17)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file, line, column, template, .. } = self;
        match template {
            None => write!(f, "{file}:{line}:{column}"),
            Some(template) => write!(f, "{template} ({file}:{line}:{column})"),
        }
    }
}

/// The annotation that lists rules of `lint`, as `RULE,RULE`. The user accepts the findings of these rules about the
/// annotated object.
pub const ACCEPT: &str = "portreeve/accept";

/// The accepted rules of an object.
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
    /// The fields whose ports the API server refuses. They claim no port.
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
    /// The path of the field, `spec.ports[0].nodePort`.
    pub path: String,
    /// The place of the value.
    pub place: Place,
    /// The claim.
    pub what: Claimed,
    /// For a nodePort: the `name` and the `port` of its Service port.
    pub of_port: Option<(String, u16)>,
}

/// A field that the API server refuses, whatever other objects exist.
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
    /// A `healthCheckNodePort` in a Service that is no LoadBalancer with `externalTrafficPolicy: Local`.
    HealthCheck,
    /// A port of the node that another container port of the pod already has, for the same protocol and `hostIP`.
    Twice,
    /// Like `Twice`, in a template that lacks one of the two hostPorts. In the host's network, the API server adds the
    /// hostPort to the pods, not to the template (`pkg/apis/core/v1/defaults.go` `SetDefaults_Pod`).
    TwiceInPods,
    /// A `port` of a Service, if another entry of the Service has the same number and protocol (`ValidateService`).
    PortTwice,
    /// The name of a Service's port, if another port of the Service has this name (`validateServicePort`).
    NameTwice,
    /// A `hostPort` in the host's network that differs from this `containerPort`.
    NotThePort(u16),
}

/// The claim of a field.
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
    /// `containerPort` of a container in the host's network.
    HostNetworkPort(u16, Protocol),
    /// `spec.ports[]` of a Service, if the API server refuses the entry. The entry claims no port of a node.
    ServicePort(u16, Protocol),
}

impl Claimed {
    /// The port and its protocol. Health checks use TCP.
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

    /// The port of a node that pods need, and its protocol.
    pub fn of_pods(self) -> Option<(u16, Protocol)> {
        match self {
            Self::HostPort(..) | Self::HostNetworkPort(..) => self.port(),
            _ => None,
        }
    }

    /// The node's address on which pods need a port. `None` means all addresses.
    pub fn host_ip(self) -> Option<IpAddr> {
        if let Self::HostPort(_, _, ip) = self { ip.filter(|ip| !ip.is_unspecified()) } else { None }
    }

    /// Whether pods need a port on loopback only. If so, sockets on all other addresses of the node do not conflict.
    pub fn is_at_loopback(self) -> bool {
        self.host_ip().is_some_and(|ip| ip.is_loopback())
    }

    /// The port of a Service, and its protocol.
    pub fn of_service(self) -> Option<(u16, Protocol)> {
        match self {
            Self::NodePort(..) | Self::HealthCheckNodePort(_) => self.port(),
            _ => None,
        }
    }
}
