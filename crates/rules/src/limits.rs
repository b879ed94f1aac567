//! Every threshold of all rules.

use serde::{Deserialize, Serialize};

use portreeve_dataplane::Round;
use portreeve_facts::Snapshot;

/// The thresholds of rules. The documentation names the default of each threshold.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// A rule warns if connections to one destination use this percentage of the ephemeral ports. Default 80.
    pub ephemeral_warning_percent: u32,
    /// The problem is critical if connections to one destination use this percentage of the ephemeral ports. Default
    /// 95.
    pub ephemeral_critical_percent: u32,
    /// A rule warns if NodePorts need this percentage of the proxy's limit of file descriptors. Default 80.
    pub fds_warning_percent: u64,
    /// The problem is critical if NodePorts need this percentage of the proxy's limit of file descriptors. Default 95.
    pub fds_critical_percent: u64,
    /// A rule warns if Services use this percentage of the dynamic band of NodePorts. Default 80.
    pub band_warning_percent: u32,
    /// A proxy is treated as frozen if a queued change was not applied for this number of seconds. Default 60.
    pub proxy_lag_seconds: i64,
}

impl Limits {
    /// One round: a snapshot, and the snapshot before it, if there is one.
    pub fn round<'a>(&self, now: &'a Snapshot, before: Option<&'a Snapshot>) -> Round<'a> {
        Round::of(now, before, self.proxy_lag_seconds)
    }

    /// The first invalid limit, and its error.
    pub fn impossible(&self) -> Option<(&'static str, String)> {
        let Self { ephemeral_warning_percent, ephemeral_critical_percent, fds_warning_percent, .. } = *self;
        let Self { fds_critical_percent, band_warning_percent, proxy_lag_seconds, .. } = *self;
        let percents = [
            ("ephemeral_warning_percent", u64::from(ephemeral_warning_percent)),
            ("ephemeral_critical_percent", u64::from(ephemeral_critical_percent)),
            ("fds_warning_percent", fds_warning_percent),
            ("fds_critical_percent", fds_critical_percent),
            ("band_warning_percent", u64::from(band_warning_percent)),
        ];
        let wrong = percents.into_iter().find(|(_, percent)| !(1..=100).contains(percent));
        let wrong = wrong.map(|(name, percent)| (name, format!("{percent}, wanted 1 to 100")));
        let lag = (!(1..=86_400).contains(&proxy_lag_seconds))
            .then(|| ("proxy_lag_seconds", format!("{proxy_lag_seconds}, wanted 1 to 86400")));
        let in_order = |name, warning: u64, critical: u64| {
            (warning > critical).then(|| (name, format!("{warning}, wanted no more than the critical one, {critical}")))
        };
        let ephemeral = (ephemeral_warning_percent.into(), ephemeral_critical_percent.into());
        let order = in_order("ephemeral_warning_percent", ephemeral.0, ephemeral.1);
        wrong.or(lag).or(order).or_else(|| in_order("fds_warning_percent", fds_warning_percent, fds_critical_percent))
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            ephemeral_warning_percent: 80,
            ephemeral_critical_percent: 95,
            fds_warning_percent: 80,
            fds_critical_percent: 95,
            band_warning_percent: 80,
            proxy_lag_seconds: 60,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_limits_are_possible_and_each_wrong_limit_is_named() {
        let limits = Limits::default();
        assert_eq!(limits.impossible(), None);
        let wrong = [
            (Limits { ephemeral_warning_percent: 0, ..limits }, "ephemeral_warning_percent", "0, wanted 1 to 100"),
            (Limits { fds_critical_percent: 101, ..limits }, "fds_critical_percent", "101, wanted 1 to 100"),
            (Limits { proxy_lag_seconds: 86_401, ..limits }, "proxy_lag_seconds", "86401, wanted 1 to 86400"),
            (
                Limits { fds_warning_percent: 96, ..limits },
                "fds_warning_percent",
                "96, wanted no more than the critical one, 95",
            ),
        ];
        for (limits, name, error) in wrong {
            assert_eq!(limits.impossible(), Some((name, error.to_owned())));
        }
        let equal = Limits { fds_warning_percent: 95, ephemeral_warning_percent: 95, ..limits };
        assert_eq!(equal.impossible(), None);
    }
}
