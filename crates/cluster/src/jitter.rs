//! Random numbers, so that many agents do not act at the same time.

use std::{
    hash::{BuildHasher, Hasher, RandomState},
    time::Duration,
};

/// A number from 0 to 1. The number differs between agents and between calls, because std gives each hasher a new seed.
pub fn jitter() -> f64 {
    let bits = RandomState::new().build_hasher().finish() >> 11;
    bits as f64 / (1_u64 << 53) as f64
}

/// The time to wait before the next request, if a server demands a pause of `wanted`. The server names the same time to
/// all clients. So a random factor from 1 to 2 spreads the requests.
pub(super) fn spread(wanted: Duration, jitter: f64) -> Duration {
    wanted.saturating_add(wanted.mul_f64(jitter.clamp(0.0, 1.0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chance_is_from_0_to_1_and_not_always_the_same() {
        let throws: Vec<_> = std::iter::repeat_with(jitter).take(64).collect();
        assert!(throws.iter().all(|throw| (0.0..1.0).contains(throw)), "{throws:?}");
        assert!(throws.iter().any(|throw| *throw < 0.5) && throws.iter().any(|throw| *throw >= 0.5), "{throws:?}");
    }

    #[test]
    fn clients_with_the_same_retry_time_come_back_at_different_times_and_never_earlier() {
        let waits = [0.0, 0.5, 1.0].map(|jitter| spread(Duration::from_secs(1), jitter).as_millis());
        assert_eq!(waits, [1000, 1500, 2000]);
    }
}
