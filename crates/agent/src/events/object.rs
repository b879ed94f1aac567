//! What a finding makes of an Event of events.k8s.io/v1.

use jiff::Timestamp;
use k8s_openapi::{
    api::{core::v1::ObjectReference, events::v1::Event},
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta},
};

use super::{
    hash::hash,
    incident::{Mark, Teller, VOICE, gate_name, how_to_see_all},
    place::Place,
};
use portreeve_facts::text::clean;
use portreeve_rules::findings::{Finding, Impact, Key, Scope, Severity, Step, Subject, SubjectKind};

/// The longest note, in bytes: the API server refuses longer ones.
pub const NOTE: usize = 1024;
/// The longest reason, action and reporting instance, in bytes.
const WORD: usize = 128;
/// What was done when it was found.
const ACTION: &str = "CheckPorts";
const CONTROLLER: &str = "portreeve";

/// An Event as it will be written, and what the plan goes by.
#[derive(Clone, Debug, PartialEq)]
pub struct PlannedEvent {
    /// That of the object, or `default`.
    pub namespace: String,
    /// A hash of what the finding is.
    pub name: String,
    /// The uid of the object it is about.
    pub object: String,
    /// Who reports it: `portreeve-<node>`.
    pub(super) reporter: String,
    /// The node that reports it.
    pub(super) node: String,
    /// Who writes it.
    pub(super) teller: Teller,
    /// The name of the gate of this node's voice, where it is an incident.
    gate: Option<String>,
    /// What the end says: what is over, and where.
    over: String,
    /// All of it but its time.
    event: Event,
}

/// The object of a finding has no uid, so that no Event can be found by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NoUid;

impl PlannedEvent {
    /// The Event of an open finding.
    pub(super) fn of(finding: &Finding, place: &Place) -> Result<Self, NoUid> {
        let Finding { key, evidence, .. } = finding;
        let regarding = regarding(&key.subject, place);
        let object = regarding.uid.clone().ok_or(NoUid)?;
        let namespace = regarding.namespace.clone().unwrap_or_else(|| "default".to_owned());
        let name = name(key, &object, evidence.impact(), place);
        let reporter = clean(&format!("{CONTROLLER}-{}", place.node), WORD);
        let related = match evidence.scope {
            Scope::Node => Some(reference("Node", None, &place.node, place.node_uid.as_deref())),
            Scope::Cluster => None,
        };
        let teller = Teller::of(finding, place);
        // What is repeated later, or by another node, must not depend on what this look chose.
        let first_step = evidence.remedies.first().and_then(|remedy| remedy.steps.first());
        let remedy = first_step.map(Step::in_lasting_words);
        let (says, over, gate) = match teller {
            Teller::AnyAgent | Teller::ThisNode => {
                (note(&evidence.summary, remedy), note(&format!("Resolved: {}", evidence.summary), None), None)
            }
            Teller::Incident => {
                let (node, summary, all) = (&place.node, &evidence.summary, how_to_see_all(key, place));
                let every = format!(" `{all}` names every affected node, of which at most five tell.");
                let says = with(&format!("On node {node}: {summary}"), &every);
                let still = format!(" `{all}` names the nodes that are still affected, if any.");
                let over = with(&format!("On node {node} this was so, and is over: {summary}"), &still);
                (note(&says, remedy), over, Some(gate_name(finding, &object, node)))
            }
        };
        let event = Event {
            metadata: ObjectMeta {
                name: Some(name.clone()),
                namespace: Some(namespace.clone()),
                ..ObjectMeta::default()
            },
            reporting_controller: Some(CONTROLLER.to_owned()),
            reporting_instance: Some(reporter.clone()),
            action: Some(ACTION.to_owned()),
            reason: Some(clean(&key.rule.reason(), WORD)),
            type_: Some("Warning".to_owned()),
            note: Some(says),
            regarding: Some(regarding),
            related,
            ..Event::default()
        };
        Ok(Self { namespace, name, object, reporter, node: place.node.clone(), teller, gate, over, event })
    }

    /// The same as the gate of this node's voice, which it holds; nothing where it is no incident.
    pub(super) fn as_gate(&self) -> Option<Self> {
        let mut gate = self.clone();
        gate.name.clone_from(self.gate.as_ref()?);
        gate.event.metadata.name = Some(gate.name.clone());
        gate.event.metadata.annotations = Some([(VOICE.to_owned(), self.mark(false).to_string())].into());
        Some(gate)
    }

    /// That this node holds its voice, or that it is over there.
    pub(super) fn mark(&self, over: bool) -> Mark {
        Mark { node: self.node.clone(), over }
    }

    /// The Event that says that this one is over.
    pub(super) fn resolved(&self) -> Self {
        let mut over = self.clone();
        over.name.push_str(".resolved");
        over.event.metadata.name = Some(over.name.clone());
        over.event.reason = self.event.reason.as_ref().map(|reason| clean(&format!("{reason}Resolved"), WORD));
        over.event.type_ = Some("Normal".to_owned());
        over.event.note = Some(self.over.clone());
        over
    }

    /// Whether both are one on the server.
    pub(super) fn is_same_as(&self, other: &Self) -> bool {
        (&self.namespace, &self.name) == (&other.namespace, &other.name)
    }

    /// As the API server takes it, created at this time.
    pub(super) fn at(&self, at: Timestamp) -> Event {
        Event { event_time: Some(MicroTime(at)), ..self.event.clone() }
    }
}

/// What makes two findings one Event: data alone, so that it stays the same while nothing but a word, a counter or a free
/// port changes. What is about a node bears the node's name, what is about the cluster is the same from every node.
fn name(key: &Key, uid: &str, impact: Impact, place: &Place) -> String {
    let Impact { severity, scope, outcome } = impact;
    let port = key.port.map(|port| port.to_string()).unwrap_or_default();
    let protocol = key.protocol.map(|protocol| protocol.to_string()).unwrap_or_default();
    let node = match scope {
        Scope::Node => place.node.as_str(),
        Scope::Cluster => "",
    };
    let parts = [key.rule.0, key.variant, uid, &port, &protocol, scope.name(), node, severity.name(), outcome];
    format!("portreeve.{:032x}", hash(&parts))
}

/// Whether a finding is worth an Event.
pub(super) fn is_worth_an_event(severity: Severity) -> bool {
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

/// A text that ends with these words whole, in one line of at most [`NOTE`] bytes.
fn with(text: &str, end: &str) -> String {
    let end = note(end, None);
    let text = clean(&text.replace(['\n', '\t'], " "), NOTE.saturating_sub(end.len()));
    format!("{text}{end}")
}

/// The object an Event hangs on. No object stands for the cluster but the Service that its API server is reached by.
fn regarding(subject: &Subject, place: &Place) -> ObjectReference {
    let Subject { kind, namespace, name, uid } = subject;
    match kind {
        SubjectKind::Cluster => reference("Service", Some("default"), "kubernetes", place.kubernetes_uid.as_deref()),
        SubjectKind::Service | SubjectKind::Pod | SubjectKind::Node => {
            reference(kind.name(), namespace.as_deref(), name, uid.as_deref())
        }
    }
}

/// An object of the core API group. `kubectl describe` looks for Events by its uid alone.
fn reference(kind: &str, namespace: Option<&str>, name: &str, uid: Option<&str>) -> ObjectReference {
    ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some(kind.to_owned()),
        namespace: namespace.map(str::to_owned),
        name: Some(name.to_owned()),
        uid: uid.map(str::to_owned),
        ..ObjectReference::default()
    }
}

#[cfg(test)]
mod tests;
