//! The unknown results of many nodes, grouped by reason. A result is unknown if an agent could not be queried, or if an
//! agent could not read an input.

use std::{cmp::Reverse, collections::BTreeMap, sync::Arc};

use crate::{findings_document::Unknown, likeness::likeness};
use portreeve_facts::{Source, Why};

/// A reason why a result is unknown, and the nodes with this reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reason {
    /// The missing source, as the first node reports it.
    pub source: Source,
    pub why: Why,
    /// The details, as the first node reports them.
    pub detail: String,
    /// The agent's pod on the first node.
    pub pod: Arc<str>,
    pub nodes: Vec<Arc<str>>,
    /// Whether this reason could hide a finding that sets the result of the command.
    pub is_failure: bool,
    /// Whether this reason prevented a rule from judging.
    pub of_rule: bool,
    /// How many times nodes reported this reason.
    pub count: usize,
    /// The number of ports and objects that rules could not judge because of this reason.
    pub claims: usize,
}

/// The reasons. Unknown results that differ only in addresses and in names of nodes and pods have one key.
#[derive(Debug, Default)]
pub(crate) struct Reasons(BTreeMap<(bool, Why, String), Reason>);

impl Reasons {
    pub(crate) fn take(&mut self, node: &Arc<str>, pod: &Arc<str>, unknown: &Unknown, is_failure: bool) {
        let Unknown { rule, claims, source, why, detail, .. } = unknown;
        let none = || Reason {
            source: *source,
            why: *why,
            detail: detail.clone(),
            pod: Arc::clone(pod),
            nodes: Vec::new(),
            is_failure,
            of_rule: false,
            count: 0,
            claims: 0,
        };
        // The name of the agent's pod is removed. Only the generated ends of other pod names are removed.
        let common = likeness(&detail.replace(&**pod, ""), node);
        let reason = self.0.entry((is_failure, *why, common)).or_insert_with(none);
        reason.count += 1;
        reason.claims = reason.claims.saturating_add(*claims);
        reason.of_rule |= rule.is_some();
        if reason.nodes.last() == Some(node) {
            return;
        }
        if reason.nodes.iter().all(|other| node < other) {
            (reason.source, reason.detail, reason.pod) = (*source, detail.clone(), Arc::clone(pod));
        }
        reason.nodes.push(Arc::clone(node));
    }

    pub(crate) fn finish(self) -> Vec<Reason> {
        let mut reasons: Vec<Reason> = self.0.into_values().collect();
        for reason in &mut reasons {
            reason.nodes.sort();
            reason.nodes.dedup();
        }
        reasons.sort_by(|a, b| {
            let order = |it: &Reason| (Reverse(it.nodes.len()), it.nodes.first().cloned());
            order(a).cmp(&order(b))
        });
        reasons
    }
}
