//! Time limits for this machine.

use std::{env, time::Duration};

/// A variable with the factor by which everything takes longer than on a machine of its own.
pub const FACTOR: &str = "PORTREEVE_SLOWNESS";

/// A time-out that suits this machine.
pub fn patience(usual: Duration) -> Duration {
    usual * slowness()
}

/// The factor of all times on this machine.
pub fn slowness() -> u32 {
    env::var(FACTOR).map_or(1, |text| text.parse().expect("a factor"))
}
