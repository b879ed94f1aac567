//! The subject of a finding.

use std::{
    cmp::Ordering,
    fmt,
    hash::{Hash, Hasher},
};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use portreeve_facts::{Pod, Service, Snapshot};

/// A Kubernetes object, or the cluster as a whole. The comparison ignores the uid: if a user deletes an object and
/// creates the object again, the findings stay open.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Subject {
    /// The subject's kind.
    pub kind: SubjectKind,
    /// The subject's namespace, if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// The subject's name.
    pub name: String,
    /// The subject's uid, if the source of the object has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
}

/// The kind of a subject.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[allow(missing_docs, reason = "Kubernetes' own names")]
pub enum SubjectKind {
    Service,
    Pod,
    Node,
    Cluster,
}

impl SubjectKind {
    /// Whether the subject is one object, not the whole node or cluster.
    pub fn is_object(self) -> bool {
        matches!(self, Self::Service | Self::Pod)
    }

    /// The name of this kind in Kubernetes.
    pub fn name(self) -> &'static str {
        match self {
            Self::Service => "Service",
            Self::Pod => "Pod",
            Self::Node => "Node",
            Self::Cluster => "Cluster",
        }
    }
}

impl Subject {
    /// A Service.
    pub fn service(service: &Service) -> Self {
        Self {
            kind: SubjectKind::Service,
            namespace: Some(service.namespace.clone()),
            name: service.name.clone(),
            uid: service.uid.as_ref().map(ToString::to_string),
        }
    }

    /// A Pod.
    pub fn pod(pod: &Pod) -> Self {
        Self {
            kind: SubjectKind::Pod,
            namespace: Some(pod.namespace.clone()),
            name: pod.name.clone(),
            uid: pod.uid.clone(),
        }
    }

    /// A Node by its name, with its uid if the Node object was read.
    pub fn node(name: &str, uid: Option<&str>) -> Self {
        Self { kind: SubjectKind::Node, namespace: None, name: name.to_owned(), uid: uid.map(str::to_owned) }
    }

    /// The Node that was scanned.
    pub fn this_node(snapshot: &Snapshot) -> Self {
        Self::node(snapshot.node_name(), snapshot.own_node().and_then(|node| node.uid.as_deref()))
    }

    /// The cluster.
    pub fn cluster() -> Self {
        Self { kind: SubjectKind::Cluster, namespace: None, name: "cluster".to_owned(), uid: None }
    }

    /// How many ports and objects a judgement about this subject covers: 0 for a whole node or cluster.
    pub fn claims(&self, port: Option<u16>) -> usize {
        usize::from(port.is_some() || self.kind.is_object())
    }

    fn identity(&self) -> (SubjectKind, Option<&str>, &str) {
        (self.kind, self.namespace.as_deref(), &self.name)
    }
}

impl fmt::Display for Subject {
    /// `Service default/web`, `Node n1`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ", self.kind.name())?;
        if let Some(namespace) = &self.namespace {
            write!(f, "{namespace}/")?;
        }
        f.write_str(&self.name)
    }
}

impl PartialEq for Subject {
    fn eq(&self, other: &Self) -> bool {
        self.identity() == other.identity()
    }
}

impl Eq for Subject {}

impl PartialOrd for Subject {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Subject {
    fn cmp(&self, other: &Self) -> Ordering {
        self.identity().cmp(&other.identity())
    }
}

impl Hash for Subject {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.identity().hash(state);
    }
}
