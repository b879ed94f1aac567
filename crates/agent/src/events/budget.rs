//! How often may be written: about one object, and by this agent altogether.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};

/// About one object: 25 at once, then one each 5 minutes.
const OBJECT: Rate = Rate { burst: 25, interval: SignedDuration::from_mins(5) };
/// By this agent: 10 at once, then one each 10 seconds.
const NODE: Rate = Rate { burst: 10, interval: SignedDuration::from_secs(10) };
/// What this agent reads of Events, and marks in them: 20 at once, then one each 5 seconds.
const LOOKS: Rate = Rate { burst: 20, interval: SignedDuration::from_secs(5) };

/// So many at once, and another one each interval.
#[derive(Clone, Copy, Debug)]
struct Rate {
    burst: i32,
    interval: SignedDuration,
}

/// A token bucket, kept as the time at which it is full again.
#[derive(Clone, Copy, Debug)]
struct Bucket {
    rate: Rate,
    full: Timestamp,
}

impl Bucket {
    fn new(rate: Rate) -> Self {
        Self { rate, full: Timestamp::MIN }
    }

    /// From when on it has a token.
    fn ready(&self, at: Timestamp) -> Timestamp {
        self.full_after(at) - self.rate.interval * (self.rate.burst - 1)
    }

    fn take(&mut self, at: Timestamp) {
        self.full = self.full_after(at) + self.rate.interval;
    }

    /// When it is full again, if nothing is taken from `at` on. Further away than an empty bucket's is a time from before
    /// the clock was set back.
    fn full_after(&self, at: Timestamp) -> Timestamp {
        if self.full > at + self.rate.interval * self.rate.burst { at } else { self.full.max(at) }
    }
}

/// What this agent may still write. Objects are distinguished by their uids.
#[derive(Debug)]
pub(super) struct Budget {
    node: Bucket,
    looks: Bucket,
    /// Those that are not full. The node's own budget bounds how many there can be.
    objects: BTreeMap<String, Bucket>,
}

impl Budget {
    pub(super) fn new() -> Self {
        Self { node: Bucket::new(NODE), looks: Bucket::new(LOOKS), objects: BTreeMap::new() }
    }

    /// From when on an Event may be read or marked: `at`, or later.
    pub(super) fn ready_to_look(&self, at: Timestamp) -> Timestamp {
        self.looks.ready(at).max(at)
    }

    /// An Event is read or marked.
    pub(super) fn take_look(&mut self, at: Timestamp) {
        self.looks.take(at);
    }

    /// From when on something may be written about this object: `at`, or later.
    pub(super) fn ready(&self, object: &str, at: Timestamp) -> Timestamp {
        let object = self.objects.get(object).map_or(at, |bucket| bucket.ready(at));
        object.max(self.node.ready(at)).max(at)
    }

    /// Something is written about this object.
    pub(super) fn take(&mut self, object: &str, at: Timestamp) {
        self.objects.retain(|_, bucket| bucket.full > at);
        self.node.take(at);
        self.objects.entry(object.to_owned()).or_insert_with(|| Bucket::new(OBJECT)).take(at);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn second(second: i64) -> Timestamp {
        Timestamp::from_second(second).expect("a time")
    }

    /// The seconds at which one that always wants to write may, as long as its budget says.
    fn spent(object: impl Fn(usize) -> String, until: i64) -> Vec<i64> {
        let mut budget = Budget::new();
        let mut spent = Vec::new();
        for now in 0..until {
            while budget.ready(&object(spent.len()), second(now)) <= second(now) {
                budget.take(&object(spent.len()), second(now));
                spent.push(now);
            }
        }
        spent
    }

    #[test]
    fn a_node_writes_ten_at_once_and_then_one_each_ten_seconds() {
        let mut expected = vec![0; 10];
        expected.extend([10, 20, 30]);
        assert_eq!(spent(|index| format!("uid-{index}"), 35), expected);
    }

    #[test]
    fn an_object_gets_twenty_five_at_once_and_then_one_each_five_minutes() {
        let spent = spent(|_| "uid".to_owned(), 1300);
        assert_eq!(spent.iter().filter(|at| **at < 300).count(), 25, "{spent:?}");
        assert_eq!(spent[25..], [300, 600, 900, 1200]);
    }

    #[test]
    fn a_clock_that_was_set_back_does_not_silence_it() {
        let mut budget = Budget::new();
        budget.take("uid", second(2_000_000_000));
        assert!(budget.ready("uid", second(0)) <= second(300));
    }
}
