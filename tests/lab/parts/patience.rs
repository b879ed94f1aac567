//! How long is too long, here.

use std::{env, time::Duration};

/// A variable with the factor by which everything takes longer than on a machine of its own.
pub const FACTOR: &str = "PORTREEVE_SLOWNESS";

/// A time-out that suits where this runs.
pub fn patience(usual: Duration) -> Duration {
    let factor = env::var(FACTOR).map_or(1, |text| text.parse().expect("a factor"));
    usual * factor
}
