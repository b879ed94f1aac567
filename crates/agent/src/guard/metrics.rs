//! The guard's metrics.

use std::{fmt, time::Duration};

use prometheus_client::{collector::Collector, encoding::DescriptorEncoder};

use super::GuardState;
use crate::metrics::{Exposition, Family, Metric, counter, exposed, gauge};

/// Every metric of the guard.
pub(crate) static GUARD_METRICS: [Metric; 6] = [
    gauge("portreeve_guard_reserved_ports", &["reason"], "Ports that this node needs and that are reserved"),
    gauge("portreeve_guard_left_out_ports", &[], "Ports that this node needs and for which the bound leaves no room"),
    gauge(
        "portreeve_guard_missing_ports",
        &[],
        "Ports that another program removed from the list; the guard adds such ports at most once a minute",
    ),
    counter("portreeve_guard_overwritten", &[], "Runs that found ports removed from the list by another program"),
    gauge(
        "portreeve_guard_last_success_timestamp_seconds",
        &[],
        "When the guard last compared the list without an error",
    ),
    gauge(
        "portreeve_guard_cluster_view_age_seconds",
        &[],
        "Since when the API server has not confirmed the Services and the Pods of this node",
    ),
];

/// The state, and the age of the older view.
#[derive(Debug)]
pub(super) struct Exported {
    pub(super) state: GuardState,
    pub(super) view_age: Option<Duration>,
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
        let samples: [Vec<(Vec<String>, f64)>; 6] = [
            state.reserved.iter().map(|(class, count)| (vec![(*class).to_owned()], f64::from(*count))).collect(),
            one(f64::from(state.left_out)),
            one(f64::from(state.missing)),
            one(state.overwritten.into()),
            state.last_success.map(|at| one(at.as_duration().as_secs_f64())).unwrap_or_default(),
            view_age.map(|age| one(age.as_secs_f64())).unwrap_or_default(),
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
    fn each_metric_is_in_both_forms_and_what_is_unknown_has_no_sample() {
        let state = GuardState { overwritten: 3, left_out: 2, ..GuardState::default() };
        let state = GuardState { reserved: [("node_port", 7)].into(), ..state };
        let text = metrics(Exported { state: state.clone(), view_age: None }, Exposition::Text).expect("metrics");
        for line in [
            "portreeve_guard_reserved_ports{reason=\"node_port\"} 7",
            "portreeve_guard_overwritten_total 3",
            "portreeve_guard_left_out_ports 2",
        ] {
            assert!(text.lines().any(|it| it.starts_with(line)), "{line} in {text}");
        }
        assert!(!text.contains("portreeve_guard_cluster_view_age_seconds "), "{text}");
        let view_age = Some(Duration::from_secs(9));
        let text = metrics(Exported { state, view_age }, Exposition::OpenMetrics).expect("metrics");
        assert!(text.contains("portreeve_guard_cluster_view_age_seconds 9"), "{text}");
        assert!(text.ends_with("# EOF\n"), "{text}");
    }
}
