//! Who answers on a port, before and after the change.

use std::{collections::BTreeMap, net::IpAddr};

use schemars::JsonSchema;
use serde::Serialize;

use crate::terminal::tidy;
use portreeve_dataplane::{Answered, Ownership};
use portreeve_facts::{Gap, Snapshot, Vantage};

/// The destination of a connection, in words that fit every node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Place {
    /// An address of loopback, such as 127.0.0.1.
    Loopback,
    /// The address of the Node object.
    NodeAddress,
    /// Another address of the node.
    OtherAddress,
}

impl Place {
    fn of(snapshot: &Snapshot, ip: IpAddr) -> Self {
        match snapshot.own_node() {
            _ if ip.is_loopback() => Self::Loopback,
            Some(node) if node.addresses.iter().any(|it| it.ip == ip) => Self::NodeAddress,
            _ => Self::OtherAddress,
        }
    }
}

/// Connections to a port whose answer would change.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Answer {
    /// The place of the client.
    pub(crate) from: Vantage,
    /// The target.
    pub(crate) to: Place,
    /// Who answers now: `process`, `pod`, `refused`, `timed-out`, `nowhere` or `unreachable`.
    pub(crate) now: &'static str,
    /// The claim that gets the connections now, as text: a Service, a pod with a hostPort, or a process; absent without
    /// a claim.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) now_by: Option<String>,
    /// Who would answer after the change.
    pub(crate) then: &'static str,
    /// The claim that would get the connections after the change, as text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) then_by: Option<String>,
}

impl Answer {
    /// Whether a client would lose its answer, or would get the answer of another program.
    pub(crate) fn is_loss(&self) -> bool {
        is_answer(self.now)
    }
}

/// The answers that change. For an unknown answer, `unknown` is called with the place of the client and the reason.
pub(super) fn changes(
    snapshot: &Snapshot,
    now: &Ownership,
    then: &Ownership,
    mut unknown: impl FnMut(Vantage, &Gap),
) -> Vec<(Answer, IpAddr)> {
    let after: BTreeMap<(Vantage, IpAddr), &Answered> = then.answers.iter().map(|it| ((it.from, it.to), it)).collect();
    let mut changed = Vec::new();
    for before in &now.answers {
        let Some(after) = after.get(&(before.from, before.to)) else { continue };
        if let Err(gap) = after.outcome.as_ref().and(before.outcome.as_ref()) {
            unknown(before.from, gap);
            continue;
        }
        let by = |of: &Ownership, it: &Answered| Some(tidy(&of.claimants.get(it.by?)?.name));
        let (now_by, then_by) = (by(now, before), by(then, after));
        let (was, is) = (word(before), word(after));
        // Equal words can hide a change: if two Services have the port, connections may move to the other Service.
        if was == is && (now_by == then_by || !is_answer(was)) {
            continue;
        }
        let to = Place::of(snapshot, before.to);
        changed.push((Answer { from: before.from, to, now: was, now_by, then: is, then_by }, before.to));
    }
    changed
}

/// The answers at addresses outside the Node object that are certainly lost after the change.
pub(super) fn lost_elsewhere<'a>(snapshot: &Snapshot, now: &'a Ownership, then: &Ownership) -> Vec<&'a Answered> {
    let is_elsewhere = |it: &&Answered| Place::of(snapshot, it.to) == Place::OtherAddress && is_answer(word(it));
    let is_lost = |it: &&Answered| {
        let mut after = then.answers.iter().filter(|after| (after.from, after.to) == (it.from, it.to));
        after.any(|after| after.outcome.is_ok() && !is_answer(word(after)))
    };
    now.answers.iter().filter(is_elsewhere).filter(is_lost).collect()
}

pub(super) fn is_answered(of: &Ownership, at: &Answered) -> bool {
    of.answers.iter().any(|it| (it.from, it.to) == (at.from, at.to) && is_answer(word(it)))
}

fn word(answered: &Answered) -> &'static str {
    answered.outcome.as_ref().map_or("unknown", |outcome| outcome.name())
}

fn is_answer(word: &str) -> bool {
    matches!(word, "pod" | "process")
}
