//! An Event as events.k8s.io/v1 has it, and what a finding makes of one.

use jiff::Timestamp;
use serde::{Serialize, Serializer};

use crate::{
    facts::{Snapshot, text::clean},
    findings::{Finding, Severity, Step, SubjectKind},
    rules::Scope,
};

/// The longest note, in bytes: the API server refuses longer ones.
pub const NOTE: usize = 1024;
/// The longest reason, action and reporting instance, in bytes.
const WORD: usize = 128;
/// What was done when it was found.
const ACTION: &str = "CheckPorts";
const CONTROLLER: &str = "portreeve";

/// Where an agent speaks from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// This node's name.
    pub node: String,
    /// The uid of its Node, where that was seen.
    pub node_uid: Option<String>,
    /// The uid of the Service `default/kubernetes`, which stands for the cluster, where it was seen.
    pub kubernetes_uid: Option<String>,
}

impl Place {
    /// The place of a look.
    pub fn of(snapshot: &Snapshot) -> Self {
        let mut services = snapshot.cluster.services.seen().into_iter().flatten();
        let kubernetes = services.find(|service| service.namespace == "default" && service.name == "kubernetes");
        Self {
            node: snapshot.node_name().to_owned(),
            node_uid: snapshot.own_node().and_then(|node| node.uid.clone()),
            kubernetes_uid: kubernetes.and_then(|service| service.uid.clone()),
        }
    }
}

/// An Event without its series, as it is created. Serializes as the API server takes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Event {
    api_version: &'static str,
    kind: &'static str,
    /// Its name and namespace.
    pub metadata: Metadata,
    /// When it is first told.
    #[serde(serialize_with = "micro_time")]
    pub event_time: Timestamp,
    reporting_controller: &'static str,
    reporting_instance: String,
    action: &'static str,
    reason: String,
    #[serde(rename = "type")]
    kind_of_news: &'static str,
    /// What is told, for people.
    pub note: String,
    /// Whom it is about.
    pub regarding: ObjectReference,
    /// The Node on which it is so.
    #[serde(skip_serializing_if = "Option::is_none")]
    related: Option<ObjectReference>,
    /// The finding's sentence: what is over, once it is.
    #[serde(skip)]
    summary: String,
}

/// An Event's name and namespace.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Metadata {
    /// A hash of what the Event says.
    pub name: String,
    /// That of the object, or `default`.
    pub namespace: String,
}

/// An object of the core API group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ObjectReference {
    api_version: &'static str,
    kind: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    namespace: Option<String>,
    name: String,
    /// Its real uid: `kubectl describe` looks for nothing else.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
}

/// How often an Event was told, and when last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Series {
    /// 1 is an Event without a series; the API server takes 2 and more.
    pub count: u32,
    /// When it was last told.
    #[serde(rename = "lastObservedTime", serialize_with = "micro_time")]
    pub last: Timestamp,
}

/// Whom a finding is about has no uid, so that no Event can be found by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NoUid;

impl Event {
    /// The Event of an open finding.
    pub(super) fn of(finding: &Finding, scope: Scope, place: &Place) -> Result<Self, NoUid> {
        let regarding = regarding(finding, place)?;
        let related = (scope == Scope::Node).then(|| ObjectReference {
            api_version: "v1",
            kind: "Node",
            namespace: None,
            name: place.node.clone(),
            uid: place.node_uid.clone(),
        });
        // What is repeated later, or by another node, must not hang on what this look chose.
        let remedy = finding.evidence.remedies.first().and_then(|remedy| remedy.steps.first());
        let note = note(&finding.evidence.summary, remedy.map(Step::in_lasting_words));
        let key = &finding.key;
        let uid = regarding.uid.as_deref().unwrap_or_default();
        let port = key.port.map(|port| port.to_string()).unwrap_or_default();
        let protocol = key.protocol.map(|protocol| protocol.to_string()).unwrap_or_default();
        let speaker = related.as_ref().map_or("", |node| node.name.as_str());
        let said = [key.rule.0, uid, &port, &protocol, speaker, finding.evidence.severity.name(), &note];
        Ok(Self {
            api_version: "events.k8s.io/v1",
            kind: "Event",
            metadata: Metadata {
                name: format!("portreeve.{:032x}", hash(&said)),
                namespace: regarding.namespace.clone().unwrap_or_else(|| "default".to_owned()),
            },
            event_time: finding.since,
            reporting_controller: CONTROLLER,
            reporting_instance: clean(&format!("{CONTROLLER}-{}", place.node), WORD),
            action: ACTION,
            reason: clean(&key.rule.reason(), WORD),
            kind_of_news: "Warning",
            note,
            regarding,
            related,
            summary: finding.evidence.summary.clone(),
        })
    }

    /// The Event that says that this one is over.
    pub(super) fn resolved(&self) -> Self {
        Self {
            metadata: Metadata { name: format!("{}.resolved", self.metadata.name), ..self.metadata.clone() },
            reason: clean(&format!("{}Resolved", self.reason), WORD),
            kind_of_news: "Normal",
            note: note(&format!("Resolved: {}", self.summary), None),
            ..self.clone()
        }
    }

    /// Who reports it: `portreeve-<node>`.
    pub(super) fn reporter(&self) -> &str {
        &self.reporting_instance
    }

    /// The same, told at another time.
    pub(super) fn told(&self, at: Timestamp) -> Self {
        Self { event_time: at, ..self.clone() }
    }
}

/// Whether a finding is worth an Event.
pub(super) fn is_told(severity: Severity) -> bool {
    match severity {
        Severity::Info => false,
        Severity::Warning | Severity::Critical => true,
    }
}

/// The summary and the first remedy in one line of at most [`NOTE`] bytes.
pub(super) fn note(summary: &str, remedy: Option<&str>) -> String {
    let text = match remedy {
        Some(remedy) => format!("{summary} Remedy: {remedy}"),
        None => summary.to_owned(),
    };
    // Lines are joined by a space; as control characters they would vanish, and words run together.
    clean(&text.replace(['\n', '\t'], " "), NOTE)
}

/// The object an Event hangs on. No object stands for the cluster but the Service that its API server is reached by.
fn regarding(finding: &Finding, place: &Place) -> Result<ObjectReference, NoUid> {
    let subject = &finding.key.subject;
    let reference = match subject.kind {
        SubjectKind::Cluster => ObjectReference {
            api_version: "v1",
            kind: "Service",
            namespace: Some("default".to_owned()),
            name: "kubernetes".to_owned(),
            uid: place.kubernetes_uid.clone(),
        },
        kind @ (SubjectKind::Service | SubjectKind::Pod | SubjectKind::Node) => ObjectReference {
            api_version: "v1",
            kind: kind.name(),
            namespace: subject.namespace.clone(),
            name: subject.name.clone(),
            uid: subject.uid.clone(),
        },
    };
    if reference.uid.is_some() { Ok(reference) } else { Err(NoUid) }
}

/// FNV-1a of 128 bits: the same in every build, on every node and after every restart.
pub(super) fn hash(parts: &[&str]) -> u128 {
    // 0xff is in no UTF-8 text: it keeps the parts apart.
    let bytes = parts.iter().flat_map(|part| part.bytes().chain([0xff]));
    bytes.fold(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d, |hash, byte| {
        (hash ^ u128::from(byte)).wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b)
    })
}

/// Kubernetes' MicroTime: exactly six digits of a second.
fn micro_time<S: Serializer>(time: &Timestamp, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&format_args!("{time:.6}"))
}

#[cfg(test)]
mod tests;
