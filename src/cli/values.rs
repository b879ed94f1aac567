//! Values of flags and of the environment, in our types.

use std::{env, path::PathBuf, time::Duration};

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

/// `10s`, `1m30s`, `500ms`.
pub(super) fn duration(text: &str) -> Result<Duration, String> {
    let wanted = "a duration longer than nothing, like 10s or 1m30s";
    let duration: SignedDuration = text.parse().map_err(|_| format!("{text:?} is not {wanted}"))?;
    Duration::try_from(duration)
        .ok()
        .filter(|duration| !duration.is_zero())
        .ok_or_else(|| format!("{text:?} is not {wanted}"))
}

/// A NodePort range that a person configured.
pub(super) fn configured_range(range: PortRange, place: &str) -> NodePortRange {
    NodePortRange { range, source: RangeSource::Flag, place: place.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_out_is_a_duration_longer_than_nothing() {
        assert_eq!(duration("1m30s"), Ok(Duration::from_secs(90)));
        for wrong in ["0s", "-1s", "ten", "10", ""] {
            assert!(duration(wrong).is_err(), "{wrong:?}");
        }
    }
}
