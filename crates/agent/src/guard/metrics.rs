//! The guard's metrics.

use std::{fmt, time::Duration};

use prometheus_client::{collector::Collector, encoding::DescriptorEncoder};

use super::GuardState;
use crate::metrics::{Exposition, Family, Metric, counter, exposed, gauge};

/// Every metric of the guard.
pub(crate) static GUARD_METRICS: [Metric; 8] = [
    gauge("portreeve_guard_reserved_ports", &["reason"], "Ports that this node needs and that are reserved"),
    gauge(
        "portreeve_guard_left_out_ports",
        &[],
        "Ports that this node needs, and that the bound keeps out of the reservation",
    ),
    gauge(
        "portreeve_guard_missing_ports",
        &[],
        "Ports that another program removed from the list; the guard adds such ports at most once a minute",
    ),
    counter("portreeve_guard_overwritten", &[], "Runs that found ports removed from the list by another program"),
    gauge("portreeve_guard_unread", &[], "Whether input was not read"),
    gauge("portreeve_guard_given_up_ports", &[], "Ports of the guard that another program wrote too"),
    gauge(
        "portreeve_guard_last_success_timestamp_seconds",
        &[],
        "When the guard last compared the list without an error; 0 before the first time",
    ),
    gauge(
        "portreeve_guard_cluster_view_age_seconds",
        &[],
        "Since when the API server has not confirmed the Services and the Pods of this node; at first, since the start",
    ),
];

/// The state, and the age of the older view.
#[derive(Debug)]
pub(super) struct Exported {
    pub(super) state: GuardState,
    pub(super) view_age: Duration,
}

/// The metrics in one of the two forms.
///
/// # Errors
/// When they cannot be written, which a string never refuses.
pub(super) fn metrics(exported: Exported, form: Exposition) -> Result<String, fmt::Error> {
    exposed(exported, form)
}

impl Collector for Exported {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let Self { state, view_age } = self;
        let one = |value: f64| vec![(Vec::new(), value)];
        let samples: [Vec<(Vec<String>, f64)>; 8] = [
            state.reserved.iter().map(|(class, count)| (vec![(*class).to_owned()], f64::from(*count))).collect(),
            one(f64::from(state.left_out)),
            one(f64::from(state.missing)),
            one(state.overwritten.into()),
            one(f64::from(u8::from(state.is_unread))),
            one(f64::from(state.given_up.len())),
            one(state.last_success.map_or(0.0, |at| at.as_duration().as_secs_f64())),
            one(view_age.as_secs_f64()),
        ];
        for (metric, samples) in GUARD_METRICS.iter().zip(samples) {
            Family { metric, samples }.encode(&mut encoder)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_metric_is_in_both_forms_before_the_first_success_too() {
        let state = GuardState { overwritten: 3, left_out: 2, ..GuardState::default() };
        let state = GuardState { reserved: [("node_port", 7)].into(), ..state };
        let text = metrics(Exported { state: state.clone(), view_age: Duration::from_secs(5) }, Exposition::Text)
            .expect("metrics");
        for line in [
            "portreeve_guard_reserved_ports{reason=\"node_port\"} 7",
            "portreeve_guard_overwritten_total 3",
            "portreeve_guard_left_out_ports 2",
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
    }
}
