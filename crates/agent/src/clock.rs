//! The system's clock, which may be set to any time. A time beyond the limits of a timestamp becomes the nearest timestamp.

use std::time::SystemTime;

use jiff::Timestamp;

/// The time now.
pub fn now() -> Timestamp {
    timestamp(SystemTime::now())
}

fn timestamp(time: SystemTime) -> Timestamp {
    let nearest = if time < SystemTime::UNIX_EPOCH { Timestamp::MIN } else { Timestamp::MAX };
    Timestamp::try_from(time).unwrap_or(nearest)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_clock_that_is_off_by_millennia_is_no_reason_to_end() {
        let years = |count: u64| Duration::from_secs(count * 366 * 24 * 3600);
        assert_eq!(timestamp(SystemTime::UNIX_EPOCH + years(9000)), Timestamp::MAX);
        assert_eq!(timestamp(SystemTime::UNIX_EPOCH), Timestamp::UNIX_EPOCH);
        assert_eq!(timestamp(SystemTime::UNIX_EPOCH - years(13_000)), Timestamp::MIN);
    }
}
