//! Why it is wrong: pure functions from a [`View`] to judgements, one file a rule.
//!
//! Never: reads anything but `View` and [`Limits`]; remembers; logs.
//!
//! To add a rule, copy the shortest file here, add its `mod` line and its entry in [`RULES`].

mod addresses;
mod census;
mod client_socket_blocks_port;
mod client_socket_on_node_port;
mod concern;
mod endpoints;
mod ephemeral_ports_near_exhaustion;
mod ephemeral_range_overlaps_node_ports;
mod external_ip_is_node_address;
mod external_ip_shadows_node_port;
mod fate;
mod fixed_node_port_in_dynamic_band;
mod health_check_node_port_unserved;
mod holders;
mod host_port_equals_node_port;
mod host_port_takes_listener;
mod host_ports;
mod ipvs_holds_foreign_address;
mod limits;
mod listener_in_node_port_range;
mod listener_on_node_port;
mod masquerade_uses_node_ports;
mod node_port_outside_range;
mod node_port_range_covers_daemons;
mod node_port_range_crowded;
mod node_port_range_disagreement;
mod own_port_taken;
mod owner;
mod proxy_left_behind;
mod proxy_near_fd_limit;
mod range;
mod reach;
mod remedies;
mod setup;
mod spare;

use std::{
    collections::BTreeSet,
    panic::{AssertUnwindSafe, catch_unwind},
};

pub use census::{Census, Choice, Use, census};
pub use concern::endpoints_of_concern;
pub use limits::Limits;
pub use owner::{Answer, Answered, Claim, Claimant, Ownership, owner};
pub use spare::Spare;

use crate::{
    facts::{Snapshot, Source, View},
    findings::{Judgements, RuleId, Severity, Subject},
};

/// Every rule, in the order in which a person should read them.
pub static RULES: &[&Rule] = &[
    &listener_on_node_port::RULE,
    &client_socket_on_node_port::RULE,
    &client_socket_blocks_port::RULE,
    &external_ip_is_node_address::RULE,
    &external_ip_shadows_node_port::RULE,
    &ipvs_holds_foreign_address::RULE,
    &masquerade_uses_node_ports::RULE,
    &ephemeral_range_overlaps_node_ports::RULE,
    &ephemeral_ports_near_exhaustion::RULE,
    &host_port_equals_node_port::RULE,
    &host_port_takes_listener::RULE,
    &health_check_node_port_unserved::RULE,
    &proxy_near_fd_limit::RULE,
    &proxy_left_behind::RULE,
    &node_port_range_crowded::RULE,
    &node_port_range_disagreement::RULE,
    &node_port_outside_range::RULE,
    &fixed_node_port_in_dynamic_band::RULE,
    &listener_in_node_port_range::RULE,
    &node_port_range_covers_daemons::RULE,
    &own_port_taken::RULE,
];

/// One rule: a value, not a trait.
#[derive(Debug)]
pub struct Rule {
    /// Its name.
    pub id: RuleId,
    /// Its title: what is wrong, in a few words.
    pub title: &'static str,
    /// The worst it can say.
    pub ceiling: Severity,
    /// The facts without which it cannot say anything at all.
    pub needs: &'static [Source],
    /// What else it looks at of [`SELDOM`].
    pub uses: &'static [Source],
    /// How long a problem must last before an agent tells it.
    pub patience: Patience,
    /// Whether it uses no fact of the node, so that one voice in the cluster suffices.
    pub scope: Scope,
    /// Its own source file, whose head is its documentation page.
    pub page: &'static str,
    /// The rule itself.
    pub check: fn(View<'_>, &Limits) -> Judgements,
}

impl Rule {
    /// Whether it looks at these facts, as far as they are among those that few rules look at.
    pub fn looks_at(&self, source: Source) -> bool {
        self.needs.contains(&source) || self.uses.contains(&source)
    }

    /// Its documentation in Markdown: the head of its source file.
    pub fn documentation(&self) -> String {
        self.page.lines().map_while(|line| line.strip_prefix("//!")).fold(String::new(), |mut text, line| {
            text.push_str(line.strip_prefix(' ').unwrap_or(line));
            text.push('\n');
            text
        })
    }
}

/// How long a problem must last before an agent tells it. `check` has no patience: one look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patience {
    /// Two consecutive scans: creation, roll-out and restarts pass by.
    TwoScans,
    /// One: the problem is permanent state.
    One,
}

/// Whose facts a rule judges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// This node's: each node tells its own.
    Node,
    /// The cluster's: one voice suffices. What such a rule says of a Node is that Node's own.
    Cluster,
}

/// Facts that take long to read, or that few rules look at.
pub const SELDOM: [Source; 9] = [
    Source::Clients,
    Source::EphemeralUse,
    Source::Sockstat,
    Source::PodNamespaces,
    Source::ResolvConf,
    Source::IpVs,
    Source::IpVsConn,
    Source::Conntrack,
    Source::Netfilter,
];

/// What need not be read where only these rules are asked.
pub fn spared(rules: &[&Rule]) -> BTreeSet<Source> {
    SELDOM.into_iter().filter(|source| !rules.iter().any(|rule| rule.looks_at(*source))).collect()
}

/// The rule of a name.
pub fn find(id: &str) -> Option<&'static Rule> {
    RULES.iter().copied().find(|rule| rule.id.0 == id)
}

/// What one rule said in a round, or that it panicked.
#[derive(Debug)]
pub struct Opinion {
    /// The rule.
    pub rule: &'static Rule,
    /// What it said; nothing when it panicked.
    pub judgements: Option<Judgements>,
}

impl Opinion {
    /// Asks one rule; its panic stays here.
    fn of(rule: &'static Rule, view: View<'_>, limits: &Limits) -> Self {
        let judgements = catch_unwind(AssertUnwindSafe(|| (rule.check)(view, limits))).ok();
        Self { rule, judgements }
    }
}

/// Asks rules, each when its opinion is wanted: what one says of thousands of NodePorts need not be there while the next
/// speaks. A rule that panics is contained: the others are heard.
pub fn ask(rules: &[&'static Rule], view: View<'_>, limits: &Limits) -> impl Iterator<Item = Opinion> {
    rules.iter().map(move |rule| Opinion::of(rule, view, limits))
}

/// The node that was looked at, as whom a finding is about.
fn this_node(snapshot: &Snapshot) -> Subject {
    Subject::node(snapshot.node_name(), snapshot.own_node().and_then(|node| node.uid.as_deref()))
}

#[cfg(test)]
pub(crate) mod expect;
#[cfg(test)]
mod tests;
