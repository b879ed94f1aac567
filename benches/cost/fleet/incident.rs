//! A process takes a NodePort on all nodes at the same moment. Then the process releases the port, first on most nodes,
//! then on the last nodes.

use std::{collections::BTreeMap, net::TcpListener, thread, time::Duration};

use serde_json::Value;

use super::{FIRST, Fleet, OBSERVER, PATIENCE, name};
use crate::{
    parts::{events, until, until_within},
    row::{Promise, Row},
};

/// The time in which each agent scans at least twice.
const LOOKS: Duration = Duration::from_secs(75);
/// The greatest number of requests about Events in one second of an incident, by all agents together.
const BUSIEST: f64 = 250.0;
/// The greatest number of Events of an incident: one for each of the five slots, and one more. The hours of two slots
/// begin 12 minutes apart. So in the time `LOOKS`, a new hour begins for at most one slot.
const EVENTS: f64 = 6.0;

impl Fleet<'_> {
    pub(super) fn incident(&mut self) {
        let (before, asked) = (events(&self.cluster).len(), self.asked());
        let take = || TcpListener::bind(("0.0.0.0", FIRST)).expect("a free port");
        let (here, left) = (take(), self.apart.run(take));
        self.during("in an incident on every node", |fleet| {
            thread::sleep(LOOKS);
            until("Events", || (events(&fleet.cluster).len() > before).then_some(()));
        });
        self.tell_of_events(before, asked);

        let asked = self.asked();
        drop(here);
        self.during("while an incident ends but on a few nodes", |fleet| {
            let healthy = |told: &[String]| told.iter().filter(|node| !fleet.is_left(node)).count();
            until_within(PATIENCE, "ends", || {
                let [open, over] = fleet.told(before);
                (over.len() >= healthy(&open)).then_some(())
            });
        });
        let of_affected = self.told(before)[1].iter().filter(|node| self.is_left(node)).count();
        drop(left);
        self.during("while it ends on these", |fleet| {
            until_within(PATIENCE, "ends", || {
                let [open, over] = fleet.told(before);
                (over.len() >= open.len()).then_some(())
            });
            // After this time, the agents have reported everything.
            thread::sleep(LOOKS);
        });
        let [open, over] = self.told(before);
        let promised = [
            ("Resolved Events from nodes that the incident still affects", "Events", of_affected as f64, 0.0),
            (
                "Resolved Events for each node that reported the incident",
                "Events",
                over.len() as f64 / open.len() as f64,
                1.0,
            ),
            ("requests about Events in the busiest second of a repair", "requests", self.busiest(asked), BUSIEST),
        ];
        self.promise(promised);
        self.tell("nodes that told of an incident until it was over", "nodes", [open.len() as f64]);
    }

    fn asked(&self) -> usize {
        self.audit.of(OBSERVER).len()
    }

    /// The names of the nodes in the Events after the first `before` Events. The first list is about the beginning of
    /// the incident, the second list is about its end.
    fn told(&self, before: usize) -> [Vec<String>; 2] {
        let all = events(&self.cluster);
        ["Warning", "Normal"].map(|kind| {
            let of_kind = all[before..].iter().filter(|event| event["type"] == kind);
            of_kind.map(|event| event["related"]["name"].as_str().expect("a node").to_owned()).collect()
        })
    }

    fn is_left(&self, node: &str) -> bool {
        (0..self.size).any(|number| self.is_apart(number) && name(number) == node)
    }

    fn tell_of_events(&mut self, before: usize, asked: usize) {
        let all = events(&self.cluster);
        let seconds = |event: &Value| -> f64 {
            let at: jiff::Timestamp = event["eventTime"].as_str().expect("a time").parse().expect("a time");
            at.as_duration().as_secs_f64()
        };
        let mut times: Vec<f64> = all[before..].iter().map(seconds).collect();
        times.sort_by(f64::total_cmp);
        let first = times[0];
        for event in &all[before..] {
            eprintln!("{} {}", event["related"]["name"], event["note"]);
        }
        self.promise([
            ("Events of an incident on every node", "Events", times.len() as f64, EVENTS),
            ("requests about Events in the busiest second of an incident", "requests", self.busiest(asked), BUSIEST),
        ]);
        let after = times.into_iter().map(|time| time - first);
        self.rows.push(Row::alone("an Event after the first of all agents", "s", after, Promise::None));
    }

    /// The greatest number of requests about Events in one second. The first `asked` requests do not count.
    fn busiest(&self, asked: usize) -> f64 {
        let since = self.audit.of(OBSERVER).split_off(asked);
        let mut each_second: BTreeMap<u64, u32> = BTreeMap::new();
        for asked in since.iter().filter(|it| it.uri.starts_with("/apis/events.k8s.io/")) {
            *each_second.entry(asked.at).or_default() += 1;
        }
        f64::from(each_second.into_values().max().unwrap_or(0))
    }

    fn promise<const N: usize>(&mut self, rows: [(&str, &str, f64, f64); N]) {
        for (what, unit, value, most) in rows {
            self.rows.push(Row::alone(what, unit, [value], Promise::AtMost(most)));
        }
    }
}
