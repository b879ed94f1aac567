//! An incident: one finding on any number of nodes, of which at most five tell.
//!
//! Each node belongs to one of five voices of the incident, by a hash of its name. A voice is held by the node that wrote its
//! Event first, the *gate*, which says in an annotation who holds the voice and whether it is over there.

use std::fmt;

use super::{hash::hash, place::Place};
use portreeve_rules::findings::{Finding, Impact, Key, Scope, Subject, SubjectKind};

/// How many nodes tell of one incident at a time.
pub const VOICES: u128 = 5;
/// The annotation of a gate that says who holds the voice.
pub const VOICE: &str = "portreeve/voice";

/// Who writes the Events of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Teller {
    /// Any agent that sees it: it is about the cluster.
    AnyAgent,
    /// The agent of the Node that it is about.
    ThisNode,
    /// Those who hold a voice of the incident.
    Incident,
}

impl Teller {
    /// Who writes about this finding.
    pub(super) fn of(finding: &Finding, place: &Place) -> Self {
        let Subject { kind, name, .. } = &finding.key.subject;
        match finding.evidence.scope {
            Scope::Cluster => Self::AnyAgent,
            Scope::Node if *kind == SubjectKind::Node && *name == place.node => Self::ThisNode,
            Scope::Node => Self::Incident,
        }
    }
}

/// The name of the gate of this node's voice: the same for every node of the voice.
pub(super) fn gate_name(finding: &Finding, uid: &str, node: &str) -> String {
    let Impact { severity, scope, outcome } = finding.evidence.impact();
    let port = finding.key.port.map(|port| port.to_string()).unwrap_or_default();
    let protocol = finding.key.protocol.map(|protocol| protocol.to_string()).unwrap_or_default();
    let voice = (hash(&[node]) % VOICES).to_string();
    let Key { rule, variant, .. } = &finding.key;
    let parts = [rule.0, variant, uid, &port, &protocol, scope.name(), severity.name(), outcome, "voice", &voice];
    format!("portreeve.{:032x}", hash(&parts))
}

/// Where the plugin looks for agents, unless it is told otherwise.
pub const AGENT_NAMESPACE: &str = "portreeve";

/// What to type to see every node of an incident.
pub(super) fn how_to_see_all(key: &Key, place: &Place) -> String {
    let of = key.subject.namespace.as_ref().map(|namespace| format!(" -n {namespace}")).unwrap_or_default();
    let elsewhere = place.agents.as_deref().filter(|namespace| *namespace != AGENT_NAMESPACE);
    let agents = elsewhere.map(|namespace| format!(" --agent-namespace {namespace}")).unwrap_or_default();
    format!("kubectl portreeve findings{of} --rule {} -o wide{agents}", key.name())
}

/// Who holds a voice, as the gate's annotation says it: `open n1`, or `over n1`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mark {
    /// The node that tells, or told last.
    pub node: String,
    /// Whether it is over on that node, so that another one may tell.
    pub over: bool,
}

impl Mark {
    /// What an annotation says; nothing where it says something else.
    pub fn parse(text: &str) -> Option<Self> {
        let (state, node) = text.split_once(' ')?;
        let over = match state {
            "open" => false,
            "over" => true,
            _ => return None,
        };
        Some(Self { node: node.to_owned(), over })
    }
}

impl fmt::Display for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = if self.over { "over" } else { "open" };
        write!(f, "{state} {}", self.node)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use portreeve_rules::findings::RuleId;

    #[test]
    fn a_mark_is_read_as_it_was_written_and_nothing_else_is_one() {
        for over in [false, true] {
            let mark = Mark { node: "n1".to_owned(), over };
            assert_eq!(Mark::parse(&mark.to_string()), Some(mark));
        }
        for other in ["", "open", "closed n1"] {
            assert_eq!(Mark::parse(other), None, "{other:?}");
        }
    }

    #[test]
    fn the_command_names_the_agents_namespace_where_it_is_another() {
        let subject = Subject { namespace: Some("shop".to_owned()), ..Subject::node("web", None) };
        let key = Key { rule: RuleId("listener-on-node-port"), variant: "loses", subject, port: None, protocol: None };
        let place = |agents: Option<&str>| Place {
            node: "n1".to_owned(),
            node_uid: None,
            kubernetes_uid: None,
            nodes: None,
            agents: agents.map(str::to_owned),
        };
        let usual = "kubectl portreeve findings -n shop --rule listener-on-node-port/loses -o wide";
        assert_eq!(how_to_see_all(&key, &place(None)), usual);
        assert_eq!(how_to_see_all(&key, &place(Some("portreeve"))), usual);
        let there = format!("{usual} --agent-namespace monitoring");
        assert_eq!(how_to_see_all(&key, &place(Some("monitoring"))), there);
    }

    #[test]
    fn the_nodes_of_a_cluster_are_spread_over_five_voices() {
        let mut nodes = [0; VOICES as usize];
        for node in 0..1000 {
            nodes[(hash(&[&format!("node-{node}")]) % VOICES) as usize] += 1;
        }
        assert!(nodes.iter().all(|count| (150..250).contains(count)), "{nodes:?}");
    }
}
