//! Time limits that fit the speed of this machine.

use std::{env, time::Duration};

/// The environment variable with the factor by which this machine is slower than a machine that runs nothing else.
pub const FACTOR: &str = "PORTREEVE_SLOWNESS";

/// A time limit that fits the speed of this machine.
pub fn patience(usual: Duration) -> Duration {
    usual * slowness()
}

/// The factor by which time limits are longer on this machine.
pub fn slowness() -> u32 {
    env::var(FACTOR).map_or(1, |text| text.parse().expect("a factor"))
}
