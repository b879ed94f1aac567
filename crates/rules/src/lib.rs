//! Finds problems, and the time when each problem started. Each rule is a pure function from a [`Round`] to judgements,
//! in a file of its own. The crate also has the types of findings, the ledger that keeps findings from round to round,
//! and lint.
//!
//! Rules read only [`Round`] and [`Limits`]. Only the ledger keeps state between rounds. The crate does not log.
//!
//! To add a rule, copy the shortest rule, `own_port_taken.rs`, and add its `mod` line, its entry in [`RULES`], and its
//! variant or its id in `ids.rs`. CONTRIBUTING.md lists the other files.

pub mod findings; // the types of findings
pub mod ids; // the list of problems
pub mod ledger; // the open findings
pub mod lint; // problems in manifests

mod address_announced_elsewhere;
mod assumed;
mod capped;
mod client_socket_blocks_pod;
mod client_socket_blocks_port;
mod client_socket_on_node_port;
mod endpoints_needed;
mod ephemeral;
mod ephemeral_ports_near_exhaustion;
mod ephemeral_range_overlaps_node_ports;
mod external_address_claimed_twice;
mod external_ip_is_node_address;
mod external_ip_shadows_node_port;
mod fixed_node_port_in_dynamic_band;
mod fleet_reservation;
mod free_ports;
mod health_check_node_port_unserved;
mod host_port_claimed_twice;
mod host_port_equals_node_port;
mod host_port_in_node_port_range;
mod host_port_left_behind;
mod host_port_takes_listener;
mod ipvs_holds_foreign_address;
mod limits;
mod listener_blocks_host_network_pod;
mod listener_in_node_port_range;
mod listener_on_node_port;
mod masquerade_draws_host_port;
mod masquerade_draws_tunnel_port;
mod masquerade_pool_near_exhaustion;
mod masquerade_uses_node_ports;
mod needed_ports;
mod node_addresses;
mod node_holds_peer_address;
mod node_port_claimed_twice;
mod node_port_outside_range;
mod node_port_range_covers_daemons;
mod node_port_range_crowded;
mod node_port_range_disagreement;
mod node_port_winner;
mod node_ports;
mod node_query;
mod opener;
mod own_port_taken;
mod pod_port_in_ephemeral_range;
mod pod_port_of_daemon;
mod pod_waits_for_host_port;
mod pods;
mod policy_parameters;
mod port_advice;
mod port_usage;
mod proxy_health_port_taken;
mod proxy_left_behind;
mod proxy_near_fd_limit;
mod remedies;
mod reservation;
mod rule;
mod socket_needs;
mod tunnel_port_conflict;
mod wording;

use std::{
    collections::BTreeSet,
    panic::{AssertUnwindSafe, catch_unwind},
};

pub use endpoints_needed::endpoints_needed;
pub use fleet_reservation::{FleetReservation, GuardRun, NodeGuard, NodeReservation, ReservedList};
pub use free_ports::{FreePort, FreePorts, free_port};
pub use limits::Limits;
pub use node_ports::{ASSUMED_RANGE, counted, ports_in_words, range_in_words};
pub use node_query::{limit_to_pod, node_query};
pub use opener::NFS_CLIENT_PORTS;
pub use pods::workload as made_by;
pub use policy_parameters::PolicyParameters;
pub use port_advice::{Advice, pod_port_advice, port_advice};
pub use port_usage::{Choice, PortUsage, PortUse, port_usage};
pub use rule::Rule;
pub use socket_needs::{Ports, SocketNeed, node_ports_or_default};

use crate::findings::{Judgement, Judgements, Subject, Verdict};
pub use portreeve_dataplane::Round;
use portreeve_facts::{Gap, Protocol, Snapshot, Source};

/// Every rule.
pub static RULES: &[&Rule] = &[
    &listener_on_node_port::RULE,
    &client_socket_on_node_port::RULE,
    &client_socket_blocks_port::RULE,
    &client_socket_blocks_pod::RULE,
    &listener_blocks_host_network_pod::RULE,
    &external_ip_is_node_address::RULE,
    &external_ip_shadows_node_port::RULE,
    &ipvs_holds_foreign_address::RULE,
    &node_holds_peer_address::RULE,
    &address_announced_elsewhere::RULE,
    &external_address_claimed_twice::RULE,
    &node_port_claimed_twice::RULE,
    &host_port_claimed_twice::RULE,
    &masquerade_uses_node_ports::RULE,
    &masquerade_draws_host_port::RULE,
    &masquerade_draws_tunnel_port::RULE,
    &masquerade_pool_near_exhaustion::RULE,
    &ephemeral_range_overlaps_node_ports::RULE,
    &ephemeral_ports_near_exhaustion::RULE,
    &host_port_equals_node_port::RULE,
    &host_port_takes_listener::RULE,
    &host_port_left_behind::RULE,
    &pod_waits_for_host_port::RULE,
    &host_port_in_node_port_range::RULE,
    &health_check_node_port_unserved::RULE,
    &proxy_health_port_taken::RULE,
    &proxy_near_fd_limit::RULE,
    &proxy_left_behind::RULE,
    &node_port_range_crowded::RULE,
    &node_port_range_disagreement::RULE,
    &node_port_outside_range::RULE,
    &fixed_node_port_in_dynamic_band::RULE,
    &listener_in_node_port_range::RULE,
    &node_port_range_covers_daemons::RULE,
    &own_port_taken::RULE,
    &tunnel_port_conflict::RULE,
    &pod_port_of_daemon::RULE,
    &pod_port_in_ephemeral_range::RULE,
];

/// Rules that also judge manifests. The results of these rules about Services and workloads are true before the objects
/// exist. The evidence of these rules names the fields of the manifests.
pub static OF_MANIFESTS: &[&Rule] = &[
    &node_port_claimed_twice::RULE,
    &host_port_claimed_twice::RULE,
    &pod_waits_for_host_port::RULE,
    &external_ip_is_node_address::RULE,
    &external_ip_shadows_node_port::RULE,
    &external_address_claimed_twice::RULE,
    &listener_on_node_port::RULE,
    &health_check_node_port_unserved::RULE,
    &host_port_equals_node_port::RULE,
    &host_port_takes_listener::RULE,
    &listener_blocks_host_network_pod::RULE,
    &host_port_in_node_port_range::RULE,
    &listener_in_node_port_range::RULE,
    &pod_port_of_daemon::RULE,
    &pod_port_in_ephemeral_range::RULE,
    &node_port_outside_range::RULE,
    &fixed_node_port_in_dynamic_band::RULE,
];

/// Facts that take long to read, or that only few rules use.
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

/// The facts that are not read if only these rules run.
pub fn skipped(rules: &[&Rule]) -> BTreeSet<Source> {
    SELDOM.into_iter().filter(|source| !rules.iter().any(|rule| rule.reads(*source))).collect()
}

/// The facts that are not read for a list of the users of ports. Redirections of hostPorts are read, because
/// redirections use ports.
pub fn skipped_for_users() -> BTreeSet<Source> {
    skipped(&[&host_port_left_behind::RULE])
}

/// The judgements of one rule in a round. If the rule panicked, there are no judgements.
#[derive(Clone, Debug)]
pub struct Opinion {
    /// The rule.
    pub rule: &'static Rule,
    /// The rule's judgements; `None` when it panicked.
    pub judgements: Option<Judgements>,
}

impl Opinion {
    fn of(rule: &'static Rule, round: &Round<'_>, limits: &Limits) -> Self {
        let judgements = catch_unwind(AssertUnwindSafe(|| rule.judge(round, limits))).ok();
        let no_udp = round.now.kernel.no_udp.as_ref().filter(|_| rule.reads(Source::Listeners));
        let judgements = judgements.map(|it| match no_udp {
            Some(gap) => it.map(|judged| without_udp(round.now, judged, gap)),
            None => it,
        });
        Self { rule, judgements }
    }
}

/// Adapts the judgements of a rule to a scan without UDP listeners. The function leaves out the judgements that UDP
/// listeners could change, and adds an unknown result.
fn without_udp(now: &Snapshot, mut judged: Vec<Judgement>, gap: &Gap) -> Vec<Judgement> {
    judged
        .retain(|it| it.protocol != Some(Protocol::Udp) && !(it.protocol.is_none() && it.verdict == Verdict::Healthy));
    let subject = Subject::node(now.node_name(), None);
    judged.push(Judgement::of(subject, Verdict::Unknown(gap.clone())));
    judged
}

/// Runs each rule when the caller takes its result, so that only one rule's judgements are in memory. If a rule panics,
/// the other rules still run.
pub fn run_rules(rules: &[&'static Rule], round: &Round<'_>, limits: &Limits) -> impl Iterator<Item = Opinion> {
    rules.iter().map(move |rule| Opinion::of(rule, round, limits))
}

#[cfg(test)]
pub mod expectations;
#[cfg(test)]
mod tests;
