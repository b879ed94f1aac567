//! Values of flags and of the environment, in our types.

use std::{env, ops::RangeInclusive, path::PathBuf, time::Duration};

use jiff::SignedDuration;

use crate::{
    cluster::Environment,
    facts::{NodePortRange, PortRange, RangeSource},
};

/// Where a cluster may be found.
pub(super) fn environment() -> Environment {
    Environment {
        kubeconfig: env::var_os("KUBECONFIG"),
        home: env::var_os("HOME").map(PathBuf::from),
        in_cluster: env::var_os("KUBERNETES_SERVICE_HOST").is_some(),
    }
}

/// The shortest duration of a flag, and the longest: no clock ends within it.
const DURATIONS: RangeInclusive<Duration> = Duration::from_millis(1)..=Duration::from_secs(3600);

/// `10s`, `1m30s`, `500ms`.
pub(super) fn duration(text: &str) -> Result<Duration, String> {
    let duration: Option<SignedDuration> = text.parse().ok();
    duration
        .and_then(|duration| Duration::try_from(duration).ok())
        .filter(|duration| DURATIONS.contains(duration))
        .ok_or_else(|| format!("{text:?} is not a duration from 1ms to 1h, like 10s or 1m30s"))
}

/// A NodePort range that a person configured.
pub(super) fn configured_range(range: PortRange, place: &str) -> NodePortRange {
    NodePortRange { range, source: RangeSource::Flag, place: place.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_longer_than_nothing_and_at_most_an_hour() {
        assert_eq!(duration("1m30s"), Ok(Duration::from_secs(90)));
        for wrong in ["0s", "-1s", "ten", "10", "", "1000h", "3601s", "1ns", "9223372036854775807s", "1y"] {
            assert!(duration(wrong).is_err(), "{wrong:?}");
        }
    }
}
