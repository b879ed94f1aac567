//! The names of the Events of one finding. A name is made of the identity of the finding, the hour, and the slot of the
//! node that reports it.

use jiff::{SignedDuration, Timestamp};

use super::place::Place;
use portreeve_rules::findings::{Finding, Impact, Key, Scope, SubjectKind};

/// The greatest number of nodes that report an incident of a shared object in one hour.
pub(super) const SLOTS: u8 = 5;
/// The time for which a name is used. kube-apiserver keeps an Event for the same time by default (`--event-ttl`).
pub(super) const HOUR: SignedDuration = SignedDuration::from_hours(1);

/// Many nodes can find the same problem. In each slot, one node reports the problem in an hour.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Slot {
    /// All nodes share one slot, because the finding is about the cluster.
    Cluster,
    /// Only this node has the slot, because the finding is about its Node.
    Own(String),
    /// One of [`SLOTS`] slots, chosen by a hash of the node's name.
    Shared(u8),
}

/// The parts of a name. A changed text, counter or suggested free port does not change the name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Names {
    incident: u128,
    slot: Slot,
}

impl Names {
    pub(super) fn of(finding: &Finding, uid: &str, place: &Place) -> Self {
        let Key { rule, variant, subject, port, protocol } = &finding.key;
        let Impact { severity, scope, outcome } = finding.evidence.impact();
        let port = port.map(|port| port.to_string()).unwrap_or_default();
        let protocol = protocol.map(|protocol| protocol.to_string()).unwrap_or_default();
        let incident = hash(&[rule.0, variant, uid, &port, &protocol, scope.name(), severity.name(), outcome]);
        let slot = match scope {
            Scope::Cluster => Slot::Cluster,
            Scope::Node if subject.kind == SubjectKind::Node && subject.name == place.node => {
                Slot::Own(place.node.clone())
            }
            Scope::Node => Slot::Shared((hash(&[&place.node]) % u128::from(SLOTS)) as u8),
        };
        Self { incident, slot }
    }

    pub(super) fn is_shared(&self) -> bool {
        matches!(self.slot, Slot::Shared(_))
    }

    pub(super) fn is_of_cluster(&self) -> bool {
        matches!(self.slot, Slot::Cluster)
    }

    /// Each incident has its own hours. The hour of each slot begins a fifth of an hour after the hour of the previous
    /// slot. So the slots write their Events at different times.
    pub(super) fn hour(&self, at: Timestamp) -> Timestamp {
        let after = match self.slot {
            Slot::Cluster | Slot::Own(_) => 0,
            Slot::Shared(slot) => i64::from(slot) * HOUR.as_secs() / i64::from(SLOTS),
        };
        let point = (self.incident % u128::from(HOUR.as_secs().unsigned_abs())) as i64 + after;
        let now = at.as_second();
        let begun = now - (now - point).rem_euclid(HOUR.as_secs());
        // The conversion fails only if `begun` is earlier than the earliest possible timestamp.
        Timestamp::from_second(begun).unwrap_or(at)
    }

    pub(super) fn in_hour(&self, hour: Timestamp) -> String {
        let slot = match &self.slot {
            Slot::Cluster => String::new(),
            Slot::Own(node) => node.clone(),
            Slot::Shared(slot) => slot.to_string(),
        };
        format!("portreeve.{:032x}", hash(&[&self.incident(), &hour.as_second().to_string(), &slot]))
    }

    /// Returns the same text on every node.
    pub(super) fn incident(&self) -> String {
        format!("{:032x}", self.incident)
    }
}

/// The hash FNV-1a with 128 bits. Equal parts have an equal hash in every build, on every node and after every restart.
pub(crate) fn hash(parts: &[&str]) -> u128 {
    // The byte 0xff never occurs in UTF-8, so it separates the parts.
    let bytes = parts.iter().flat_map(|part| part.bytes().chain([0xff]));
    bytes.fold(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d, |hash, byte| {
        (hash ^ u128::from(byte)).wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b)
    })
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use proptest::prelude::*;

    use super::*;
    use crate::events::spread::Spread;
    use portreeve_rules::findings::{Evidence, RuleId, Severity, Subject};

    fn second(second: i64) -> Timestamp {
        Timestamp::from_second(1_700_000_000 + second).expect("a time")
    }

    fn names(object: &str, node: &str) -> Names {
        let subject = Subject { kind: SubjectKind::Service, ..Subject::node("web", Some(object)) };
        let key =
            Key { rule: RuleId("listener-on-node-port"), variant: "loses", subject, port: Some(30080), protocol: None };
        let evidence = Evidence::new(Severity::Critical, "it is wrong.");
        let place = Place { node: node.to_owned(), node_uid: None, kubernetes_uid: None, nodes: None, agents: None };
        Names::of(&Finding { key, evidence, since: second(0) }, object, &place)
    }

    #[test]
    fn the_nodes_of_a_cluster_are_spread_over_five_slots() {
        let mut nodes = BTreeMap::new();
        for node in 0..1000 {
            *nodes.entry(names("a", &format!("node-{node}")).in_hour(second(0))).or_insert(0) += 1;
        }
        assert!(nodes.len() == 5 && nodes.values().all(|count| (150..250).contains(count)), "{nodes:?}");
    }

    #[test]
    fn the_hours_of_incidents_and_of_slots_begin_at_different_times() {
        let begin = |object: usize, node: usize| names(&object.to_string(), &node.to_string()).hour(second(0));
        let incidents: BTreeSet<Timestamp> = (0..100).map(|object| begin(object, 0)).collect();
        assert!(incidents.len() > 90, "{}", incidents.len());
        let slots: Vec<Timestamp> = (0..100).map(|node| begin(0, node)).collect::<BTreeSet<_>>().into_iter().collect();
        let apart: Vec<i64> = slots.windows(2).map(|pair| pair[1].duration_since(pair[0]).as_secs()).collect();
        assert_eq!(apart, [720; 4]);
    }

    proptest! {
        #[test]
        fn an_hour_has_begun_and_lasts_an_hour(object in ".{0,8}", node in ".{0,8}", now in 0i64..1_000_000) {
            let names = names(&object, &node);
            let hour = names.hour(second(now));
            prop_assert!(hour <= second(now) && second(now) < hour + HOUR);
            prop_assert_eq!(names.hour(hour), hour);
            prop_assert_eq!(names.hour(hour + HOUR), hour + HOUR);
            prop_assert_ne!(names.in_hour(hour), names.in_hour(hour + HOUR));
        }
    }

    #[test]
    fn on_up_to_fifty_thousand_nodes_that_come_and_go_five_an_hour_report_and_one_event_is_always_there() {
        const DAY: i64 = 24 * 3600;
        for nodes in [1, 2, 5, 120, 5_000, 50_000] {
            let spread = Spread::default().over(Some(nodes));
            let mut random = 1_u64;
            let mut chance = |most: i64| {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (random >> 33) as i64 % most
            };
            let mut affected = Vec::new();
            // The value is the hour of the Event, and the time at which the Event was created.
            let mut events: BTreeMap<String, (Timestamp, Timestamp)> = BTreeMap::new();
            for node in (0..nodes).map(|number| format!("node-{number}")) {
                let names = names("uid", &node);
                let wait = spread.wait(&node, &names.incident());
                let mut from = chance(DAY / 4);
                while from < DAY {
                    let until = from + 60 + chance(4 * 3600);
                    affected.push((second(from) + spread.longest() * 2, second(until)));
                    let mut hour = names.hour(second(from));
                    while hour.max(second(from)) + wait < second(until) {
                        let asked = hour.max(second(from)) + wait;
                        if names.hour(asked) == hour {
                            let (_, first) = events.entry(names.in_hour(hour)).or_insert((hour, asked));
                            *first = asked.min(*first);
                        }
                        hour += HOUR;
                    }
                    from = until + 60 + chance(6 * 3600);
                }
            }

            for now in (0..DAY).step_by(60).map(second) {
                let is_now = |(hour, _): &&(Timestamp, Timestamp)| (*hour..*hour + HOUR).contains(&now);
                let reports = events.values().filter(is_now).count();
                assert!(reports <= usize::from(SLOTS), "{reports} Events in an hour, of {nodes} nodes");
            }
            let mut created: Vec<Timestamp> = events.into_values().map(|(_, created)| created).collect();
            created.sort_unstable();
            let mut alive = second(0);
            for from in created.into_iter().chain([second(2 * DAY)]) {
                // The time during which the node was affected but no Event existed.
                let without = |(start, end): &(Timestamp, Timestamp)| from.min(*end).duration_since(alive.max(*start));
                let longest = affected.iter().map(without).max().unwrap_or_default();
                assert!(longest <= spread.longest(), "{longest:#} without an Event, of {nodes} nodes");
                alive = from + SignedDuration::from_hours(1);
            }
        }
    }
}
