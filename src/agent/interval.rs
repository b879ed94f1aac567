//! The interval between scans, stretched so that scans stay within their share of a core.

use std::time::Duration;

use super::Config;

/// The longest interval, however much a scan costs.
const LONGEST: Duration = Duration::from_secs(600);

/// The interval for scans of such a cost: processor time of the last two, of which the cheaper one counts.
pub(super) fn stretched(config: &Config, costs: [Duration; 2]) -> Duration {
    let [a, b] = costs;
    let affordable = a.min(b).as_secs_f64() * 100.0 / config.cpu_percent;
    let affordable = Duration::try_from_secs_f64(affordable).unwrap_or(LONGEST);
    config.interval.max(affordable.min(LONGEST))
}
