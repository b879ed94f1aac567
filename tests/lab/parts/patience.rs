//! Time limits for slow machines.

use std::{env, time::Duration};

/// The environment variable with the factor by which tests run slower on this machine than on an idle machine.
pub const FACTOR: &str = "PORTREEVE_SLOWNESS";

pub fn patience(usual: Duration) -> Duration {
    usual * slowness()
}

pub fn slowness() -> u32 {
    env::var(FACTOR).map_or(1, |text| text.parse().expect("a factor"))
}
