//! Records the pictures of five hundred nodes: twelve hours of invented metrics in a real Prometheus, because one
//! machine cannot run so many agents.

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::{keep, now};
use crate::{
    panels::questions,
    parts::{Prometheus, Wired},
};

const NODES: usize = 500;
/// The seconds between two samples. Prometheus needs less than five minutes, because a series is stale after five
/// minutes.
const STEP: u64 = 240;
const STEPS: u64 = 180;

/// The value of a series at each step. `None` means that the sample is missing.
type Course = Box<dyn Fn(u64) -> Option<f64>>;

struct Family {
    name: &'static str,
    kind: &'static str,
    series: Vec<(String, Course)>,
}

impl Family {
    fn gauge(name: &'static str) -> Self {
        Self { name, kind: "gauge", series: Vec::new() }
    }

    fn add(&mut self, node: usize, labels: &str, course: impl Fn(u64) -> Option<f64> + 'static) {
        let target = format!("job=\"portreeve/portreeve\",node=\"n{node:03}\",instance=\"192.0.2.{node}:29517\"");
        let labels = if labels.is_empty() { target } else { format!("{target},{labels}") };
        self.series.push((labels, Box::new(course)));
    }
}

fn always(value: f64) -> impl Fn(u64) -> Option<f64> {
    move |_| Some(value)
}

fn from(first: u64, value: f64) -> impl Fn(u64) -> Option<f64> {
    move |step| (step >= first).then_some(value)
}

/// The step at which a process on this node begins to listen on the NodePort of `web`. `None` on two of three nodes.
/// All listeners begin within half an hour.
fn squatted(node: usize) -> Option<u64> {
    node.is_multiple_of(3).then(|| 150 + u64::try_from(node / 60).expect("a small number"))
}

fn series(count: u64) -> f64 {
    f64::from(u32::try_from(count).expect("a small number"))
}

fn findings() -> [Family; 2] {
    let mut counts = Family::gauge("portreeve_findings");
    let mut single = Family::gauge("portreeve_finding_info");
    for node in 1..=NODES {
        let mut tell = |rule: &str, severity: &str, subject: &str, first: Option<u64>| {
            let (rule, variant) = rule.split_once('/').expect("an id and a variant");
            let labels = format!("rule=\"{rule}\",variant=\"{variant}\",severity=\"{severity}\"");
            counts.add(node, &labels, move |step| Some(first.map_or(0.0, |first| f64::from(u8::from(step >= first)))));
            if let Some(first) = first {
                single.add(node, &format!("{labels},{subject}"), from(first, 1.0));
            }
        };
        let service = "scope=\"node\",subject_kind=\"Service\",subject_namespace=\"default\",subject_name=\"web\",port=\"30080\",protocol=\"tcp\"";
        tell("listener-on-node-port/loses", "critical", service, squatted(node));
        let this = format!("scope=\"node\",subject_kind=\"Node\",subject_name=\"n{node:03}\"");
        tell("ephemeral-range-overlap/node-ports", "warning", &this, (node > 380).then_some(0));
        tell("ephemeral-ports-near-exhaustion/node", "warning", &this, (node <= 4).then_some(130));
        let pod = format!(
            "scope=\"node\",subject_kind=\"Pod\",subject_namespace=\"edge\",subject_name=\"proxy-{node}\",port=\"30443\",protocol=\"tcp\""
        );
        tell("host-port-conflict/node-port", "critical", &pod, (60..72).contains(&node).then_some(120));
        let cluster = "scope=\"cluster\",subject_kind=\"Service\",subject_namespace=\"shop\",subject_name=\"api\",port=\"31000\",protocol=\"tcp\"";
        tell("node-port-range-mismatch/band", "info", cluster, (node % 2 == 0).then_some(80));
    }
    [counts, single]
}

fn others() -> Vec<Family> {
    let mut build = Family::gauge("portreeve_build_info");
    let mut unknown = Family::gauge("portreeve_unknown");
    let mut ports = Family::gauge("portreeve_node_ports");
    let mut used = Family::gauge("portreeve_ephemeral_ports_used_max");
    let mut capacity = Family::gauge("portreeve_ephemeral_ports_capacity");
    let mut events = Family { name: "portreeve_events", kind: "counter", series: Vec::new() };
    let mut memory = Family::gauge("process_resident_memory_bytes");
    for node in 1..=NODES {
        let share = series(u64::try_from(node).expect("a small number"));
        build.add(node, "version=\"0.1.0\"", always(1.0));
        capacity.add(node, "scope=\"host\"", always(28_232.0));
        memory.add(node, "", always(12e6 + 1e4 * share));
        if node <= 8 {
            used.add(node, "scope=\"host\"", move |step| Some(14_500.0 + (70.0 - 5.0 * share) * series(step)));
            events.add(node, "result=\"written\"", move |step| Some(series(step / 30)));
        }
        if node <= 20 {
            let free = |step| 1300.0 - 0.8 * series(step);
            ports.add(node, "state=\"free\",band=\"dynamic\"", move |step| Some(free(step)));
            ports.add(node, "state=\"automatic\",band=\"dynamic\"", move |step| Some(2682.0 - free(step)));
            ports.add(node, "state=\"free\",band=\"static\"", always(60.0));
            ports.add(node, "state=\"fixed\",band=\"static\"", always(26.0));
        }
        if (200..203).contains(&node) {
            unknown.add(node, "rule=\"listener-on-node-port\",source=\"services\",why=\"unreachable\"", from(150, 1.0));
        }
    }
    vec![build, unknown, ports, used, capacity, events, memory]
}

/// `last` is the Unix time of the last step.
fn text(last: u64) -> String {
    let mut text = String::new();
    for Family { name, kind, series } in findings().into_iter().chain(others()) {
        writeln!(text, "# TYPE {name} {kind}").expect("a string takes everything");
        let suffix = if kind == "counter" { "_total" } else { "" };
        for (labels, course) in series {
            for step in 0..=STEPS {
                let at = last - (STEPS - step) * STEP;
                if let Some(value) = course(step) {
                    writeln!(text, "{name}{suffix}{{{labels}}} {value} {at}").expect("a string takes everything");
                }
            }
        }
    }
    text + "# EOF\n"
}

#[test]
fn five_hundred_nodes_with_four_mistakes_are_four_rows() {
    let _wired = Wired::enter();
    let last = now();
    let span = [last - 5 * 3600, last];
    let prometheus = Prometheus::remembering(&text(last));
    let mut answers = json!({});
    for it in questions("15m", "5h") {
        let series = match it.is_instant {
            true => prometheus.query_at(&it.query, last),
            false => prometheus.query_over(&it.query, span, 180),
        };
        if it.title == "Incidents" {
            assert_eq!(series.len(), 5, "{}: {series:#?}", it.query);
        }
        answers[it.dashboard][&it.panel][&it.target] = Value::Array(series);
    }
    keep("answers-500.json", &json!({"from": span[0], "to": span[1], "answers": answers}).to_string());
}
