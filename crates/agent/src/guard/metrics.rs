//! The guard's metrics.

use std::{fmt, time::Duration};

use prometheus_client::{collector::Collector, encoding::DescriptorEncoder};

use super::{
    GuardState,
    connections::ports_of,
    hook::{ANSWERS, HookState, mode_in_words},
};
use crate::metrics::{Family, Metric, counter, gauge};

pub(crate) static GUARD_METRICS: [Metric; 13] = [
    gauge("portreeve_guard_reserved_ports", &["reason"], "Reserved ports that this node needs"),
    gauge(
        "portreeve_guard_left_out_ports",
        &[],
        "Needed ports that the guard does not reserve, to keep enough ports for outgoing connections",
    ),
    gauge(
        "portreeve_guard_missing_ports",
        &[],
        "Ports that another program removed from the list; the guard adds such ports at most once a minute",
    ),
    counter(
        "portreeve_guard_overwritten",
        &[],
        "Runs in which the guard found that another program had removed ports from the list",
    ),
    gauge("portreeve_guard_unread", &[], "1 if the guard could not read a part of its input, otherwise 0"),
    gauge(
        "portreeve_guard_given_up_ports",
        &[],
        "Ports of the guard that count as another program's, because another program wrote the list",
    ),
    gauge(
        "portreeve_guard_connection_ports",
        &[],
        "Reserved ports that outgoing connections used at the last search. A search lists at most 4,096 connections. The series is absent before the first search, or if connections are not read",
    ),
    gauge(
        "portreeve_guard_last_success_timestamp_seconds",
        &[],
        "Time at which the guard last compared the list without an error; 0 before the first comparison",
    ),
    gauge(
        "portreeve_guard_cluster_view_age_seconds",
        &[],
        "Time since the API server last confirmed the Services and the Pods of this node. Before the first confirmation, time since the guard's start",
    ),
    gauge(
        "portreeve_guard_bind_hook",
        &["mode"],
        "1 if the bind hook is attached and follows the cluster, otherwise 0; only with `--bind`",
    ),
    counter("portreeve_guard_binds", &["answer"], "Binds of claimed ports that the bind hook reported"),
    counter(
        "portreeve_guard_unreported_binds",
        &["reason"],
        "Binds of claimed ports without an Event: the kernel's buffer was full (`lost`), the minute's limit was reached (`limit`), or an input was unread (`unread`)",
    ),
    counter(
        "portreeve_guard_unwritten_events",
        &[],
        "Events that the API server refused, or that the guard could not write in 200 seconds",
    ),
];

/// The guard's state, and the age of its facts: the age of Services or of pods, whichever is greater.
#[derive(Debug)]
pub(super) struct Exported {
    pub(super) state: GuardState,
    pub(super) view_age: Duration,
}

impl Collector for Exported {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let Self { state, view_age } = self;
        let one = |value: f64| vec![(Vec::new(), value)];
        let samples: [Vec<(Vec<String>, f64)>; 13] = [
            state.reserved.iter().map(|(class, count)| (vec![(*class).to_owned()], *count as f64)).collect(),
            one(state.left_out as f64),
            one(f64::from(state.missing)),
            one(state.overwritten.into()),
            one(f64::from(u8::from(state.is_unread))),
            one(f64::from(state.given_up.len())),
            state.connections.iter().map(|it| (Vec::new(), f64::from(ports_of(it).len()))).collect(),
            one(state.last_success.map_or(0.0, |at| at.as_duration().as_secs_f64())),
            one(view_age.as_secs_f64()),
            of_hook(state.hook, |hook| {
                vec![(mode_in_words(hook.mode), u64::from(hook.is_attached && !hook.is_behind))]
            }),
            of_hook(state.hook, |hook| ANSWERS.iter().map(|(_, name)| *name).zip(hook.binds).collect()),
            of_hook(state.hook, |hook| vec![("lost", hook.lost), ("limit", hook.unreported), ("unread", hook.unread)]),
            one(state.unwritten_events as f64),
        ];
        for (metric, samples) in GUARD_METRICS.iter().zip(samples) {
            Family { metric, samples }.encode(&mut encoder)?;
        }
        Ok(())
    }
}

fn of_hook(
    hook: Option<HookState>,
    samples: impl Fn(HookState) -> Vec<(&'static str, u64)>,
) -> Vec<(Vec<String>, f64)> {
    let samples = hook.map(samples).unwrap_or_default();
    samples.into_iter().map(|(label, count)| (vec![label.to_owned()], count as f64)).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::{
        BindMode,
        metrics::{Exposition, metrics},
    };

    #[test]
    fn each_metric_is_in_both_forms_before_the_first_success_too() {
        let state = GuardState { overwritten: 3, left_out: 2, unwritten_events: 4, ..GuardState::default() };
        let state = GuardState { reserved: [("node_port", 7)].into(), ..state };
        let text = metrics(Exported { state: state.clone(), view_age: Duration::from_secs(5) }, Exposition::Text)
            .expect("metrics");
        for line in [
            "portreeve_guard_reserved_ports{reason=\"node_port\"} 7",
            "portreeve_guard_overwritten_total 3",
            "portreeve_guard_left_out_ports 2",
            "portreeve_guard_unwritten_events_total 4",
            "portreeve_guard_unread 0",
            "portreeve_guard_given_up_ports 0",
            "portreeve_guard_last_success_timestamp_seconds 0",
            "portreeve_guard_cluster_view_age_seconds 5",
        ] {
            assert!(text.lines().any(|it| it.starts_with(line)), "{line} in {text}");
        }
        let view_age = Duration::from_secs(9);
        let text = metrics(Exported { state, view_age }, Exposition::OpenMetrics).expect("metrics");
        assert!(text.contains("portreeve_guard_cluster_view_age_seconds 9"), "{text}");
        assert!(text.ends_with("# EOF\n"), "{text}");
        assert!(!text.lines().any(|line| line.starts_with("portreeve_guard_bind")), "no hook was asked for: {text}");
    }

    /// Every client that reaches the guard's port can read the metrics.
    #[test]
    fn no_label_of_the_guards_metrics_has_a_name_that_a_user_chose() {
        let labels: BTreeSet<&str> = GUARD_METRICS.iter().flat_map(|metric| metric.labels).copied().collect();
        assert_eq!(labels, BTreeSet::from(["answer", "mode", "reason"]));
    }

    #[test]
    fn a_hook_that_is_not_attached_is_no_absent_series() {
        let none_yet = HookState::of(BindMode::Refuse);
        let hook = HookState { binds: [1, 2, 3, 4], lost: 5, unreported: 6, unread: 7, ..none_yet };
        let state = GuardState { hook: Some(hook), ..GuardState::default() };
        let text = metrics(Exported { state, view_age: Duration::ZERO }, Exposition::Text).expect("metrics");
        for line in [
            "portreeve_guard_bind_hook{mode=\"refuse\"} 0",
            "portreeve_guard_binds_total{answer=\"refused\"} 2",
            "portreeve_guard_unreported_binds_total{reason=\"lost\"} 5",
            "portreeve_guard_unreported_binds_total{reason=\"limit\"} 6",
            "portreeve_guard_unreported_binds_total{reason=\"unread\"} 7",
        ] {
            assert!(text.lines().any(|it| it.starts_with(line)), "{line} in {text}");
        }
    }
}
