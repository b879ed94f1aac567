//! Makes an Event of events.k8s.io/v1 from a finding.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::{
    api::{core::v1::ObjectReference, events::v1::Event},
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta},
};

use super::{name::Names, place::Place};
use portreeve_facts::text::clean;
use portreeve_rules::findings::{Finding, Key, Scope, Severity, Step, Subject, SubjectKind};

/// The longest note in bytes. The API server refuses longer notes.
pub const NOTE: usize = 1024;
/// The longest reason, action and reporting instance, in bytes.
const WORD: usize = 128;
const ACTION: &str = "CheckPorts";
const REMEDY: &str = " Remedy: ";
/// The annotation with the id and the variant of the finding, as `--rule` takes them.
const FINDING: &str = "portreeve/finding";
const CONTROLLER: &str = "portreeve";

const END: &str = ".resolved";
/// The namespace in which the plugin expects agents by default.
pub const AGENT_NAMESPACE: &str = "portreeve";

#[derive(Clone, Debug, PartialEq)]
pub(super) struct PlannedEvent {
    /// The namespace of the Event: the namespace of the object, or `default`.
    pub(super) namespace: String,
    pub(super) names: Names,
    /// The reporting instance of the Event: `portreeve-<node>`.
    pub(super) reporter: String,
    pub(super) node: String,
    /// The note of the Event that reports the end of the finding.
    over: String,
    /// The Event without its name and its time.
    event: Event,
}

impl PlannedEvent {
    /// If the object was not read in this scan, the Event takes the object's uid from `last`, the last Event about the
    /// finding. `None` if the object has no uid, because `kubectl describe` would not show the Event.
    pub(super) fn of(last: Option<&Self>, finding: &Finding, place: &Place) -> Option<Self> {
        let Finding { key, evidence, .. } = finding;
        let mut regarding = regarding(&key.subject, place);
        let known = || last?.event.regarding.as_ref()?.uid.clone();
        let object = regarding.uid.take().or_else(known)?;
        regarding.uid = Some(object.clone());
        let namespace = regarding.namespace.clone().unwrap_or_else(|| "default".to_owned());
        let names = Names::of(finding, &object, place);
        let reporter = clean(&format!("{CONTROLLER}-{}", place.node), WORD);
        let related = match evidence.scope {
            Scope::Node => Some(reference("Node", None, &place.node, place.node_uid.as_deref())),
            Scope::Cluster => None,
        };
        // Another node or a later scan may write this note, too. So the note must not depend on choices of this scan.
        let first_step = evidence.remedies.first().and_then(|remedy| remedy.steps.first());
        let remedy = first_step.map(Step::in_lasting_words);
        let summary = &evidence.summary;
        let (says, over) = if names.is_shared() {
            let (node, all) = (&place.node, how_to_see_all(key, place));
            let every = format!(" All affected nodes: `{all}` (at most five nodes write an Event in an hour).");
            let still = format!(" Nodes that are still affected: `{all}`");
            let over = with(&format!("Resolved on node {node}: {summary}"), &still);
            let text = format!("On node {node}: {summary}");
            let of_port = how_to_see_the_port(key, place);
            let longer = of_port.map(|command| format!("{every} Who answers on the port: `{command}`."));
            // The sentence and the remedy are more important than the second command.
            let of_remedy = remedy.map_or(0, |remedy| REMEDY.len() + remedy.len());
            let end = longer.filter(|end| text.len() + end.len() + of_remedy <= NOTE).unwrap_or(every);
            (note(&with(&text, &end), remedy), over)
        } else {
            (note(summary, remedy), note(&format!("Resolved: {summary}"), None))
        };
        let event = Event {
            metadata: ObjectMeta {
                namespace: Some(namespace.clone()),
                annotations: annotations(key),
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
        Some(Self { namespace, names, reporter, node: place.node.clone(), over, event })
    }

    pub(super) fn is_same_as(&self, other: &Self) -> bool {
        (&self.namespace, &self.names) == (&other.namespace, &other.names)
    }

    pub(super) fn open(&self, name: &str, at: Timestamp) -> Event {
        let mut event = Event { event_time: Some(MicroTime(at)), ..self.event.clone() };
        event.metadata.name = Some(name.to_owned());
        event
    }

    pub(super) fn over(&self, name: &str, at: Timestamp) -> Event {
        let reason = self.event.reason.as_ref().map(|reason| clean(&format!("{reason}Resolved"), WORD));
        let (note, kind) = (Some(self.over.clone()), Some("Normal".to_owned()));
        Event { reason, note, type_: kind, ..self.open(&name_of_end(name), at) }
    }
}

/// The Event that an agent writes about a new finding. `None` if the object of the finding has no uid.
pub(crate) fn finding_event(finding: &Finding, place: &Place, at: Timestamp) -> Option<Event> {
    let planned = PlannedEvent::of(None, finding, place)?;
    Some(planned.open(&planned.names.in_hour(planned.names.hour(at)), at))
}

pub(super) fn name_of_end(name: &str) -> String {
    format!("{name}{END}")
}

/// The annotations of an Event about the finding with this key.
pub(crate) fn annotations(key: &Key) -> Option<BTreeMap<String, String>> {
    Some(BTreeMap::from([(FINDING.to_owned(), key.name())]))
}

fn how_to_see_all(key: &Key, place: &Place) -> String {
    let of = key.subject.namespace.as_ref().map(|namespace| format!(" -n {namespace}")).unwrap_or_default();
    format!("kubectl portreeve check{of} --rule {} -o wide{}", key.name(), namespace_of_agents(place))
}

/// The command that shows who answers on the port. `None` if the finding is not about one port.
fn how_to_see_the_port(key: &Key, place: &Place) -> Option<String> {
    let protocol = key.protocol.map(|protocol| format!("/{protocol}")).unwrap_or_default();
    Some(format!("kubectl portreeve owner {}{protocol}{}", key.port?, namespace_of_agents(place)))
}

fn namespace_of_agents(place: &Place) -> String {
    let elsewhere = place.agents.as_deref().filter(|namespace| *namespace != AGENT_NAMESPACE);
    elsewhere.map(|namespace| format!(" --agent-namespace {namespace}")).unwrap_or_default()
}

pub(super) fn is_worth_an_event(severity: Severity) -> bool {
    match severity {
        Severity::Info => false,
        Severity::Warning | Severity::Critical => true,
    }
}

pub(super) fn note(summary: &str, remedy: Option<&str>) -> String {
    let text = match remedy {
        Some(remedy) => format!("{summary}{REMEDY}{remedy}"),
        None => summary.to_owned(),
    };
    // Line ends become spaces. The function `clean` would delete the line end and join two words.
    clean(&text.replace(['\n', '\t'], " "), NOTE)
}

/// Cuts `text` if needed, and appends the whole `end`.
fn with(text: &str, end: &str) -> String {
    let end = note(end, None);
    let text = clean(&text.replace(['\n', '\t'], " "), NOTE.saturating_sub(end.len()));
    format!("{text}{end}")
}

/// An Event about the cluster refers to the Service of the cluster's API server.
fn regarding(subject: &Subject, place: &Place) -> ObjectReference {
    let Subject { kind, namespace, name, uid } = subject;
    match kind {
        SubjectKind::Cluster => reference("Service", Some("default"), "kubernetes", place.kubernetes_uid.as_deref()),
        SubjectKind::Service | SubjectKind::Pod | SubjectKind::Node => {
            reference(kind.name(), namespace.as_deref(), name, uid.as_deref())
        }
    }
}

/// A reference to an object. `kubectl describe` finds Events only by the object's uid.
pub(crate) fn reference(kind: &str, namespace: Option<&str>, name: &str, uid: Option<&str>) -> ObjectReference {
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
