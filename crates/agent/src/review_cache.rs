//! What the API server said of tokens lately. Tokens themselves are not kept.

use std::{
    collections::{BTreeMap, hash_map::RandomState},
    hash::BuildHasher as _,
    time::{Duration, Instant},
};

use portreeve_cluster::Review;

/// How long an answer counts. A right that is taken away ends after this time.
const ALLOWED: Duration = Duration::from_secs(60);
/// How long a refusal counts: a right that was just granted is seen soon.
const REFUSED: Duration = Duration::from_secs(5);
/// How many answers are kept.
const ENTRIES: usize = 128;

/// A token and a path under two keys that nobody else knows, so that nobody can make two tokens that are alike.
type Key = (u64, u64);

/// Answers and until when they count.
#[derive(Debug, Default)]
pub(super) struct ReviewCache {
    hashers: (RandomState, RandomState),
    entries: BTreeMap<Key, (Instant, Review)>,
}

impl ReviewCache {
    pub(super) fn get(&self, token: &str, path: &str, now: Instant) -> Option<Review> {
        let (until, review) = self.entries.get(&self.key(token, path))?;
        (now < *until).then(|| review.clone())
    }

    pub(super) fn put(&mut self, token: &str, path: &str, review: Review, now: Instant) {
        self.entries.retain(|_, (until, _)| now < *until);
        if self.entries.len() >= ENTRIES {
            let first = self.entries.iter().min_by_key(|(_, (until, _))| *until).map(|(key, _)| *key);
            first.and_then(|key| self.entries.remove(&key));
        }
        let valid = if review == Review::Allowed { ALLOWED } else { REFUSED };
        self.entries.insert(self.key(token, path), (now + valid, review));
    }

    fn key(&self, token: &str, path: &str) -> Key {
        (self.hashers.0.hash_one((token, path)), self.hashers.1.hash_one((token, path)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_counts_for_its_token_and_path_and_not_for_long() {
        let (mut cache, now) = (ReviewCache::default(), Instant::now());
        cache.put("a", "/x", Review::Allowed, now);
        cache.put("b", "/x", Review::Unauthenticated, now);
        assert_eq!(cache.get("a", "/x", now), Some(Review::Allowed));
        assert_eq!(cache.get("a", "/y", now), None);
        assert_eq!(cache.get("b", "/x", now), Some(Review::Unauthenticated));
        assert_eq!(cache.get("b", "/x", now + REFUSED), None, "what is refused may soon be granted");
        assert_eq!(cache.get("a", "/x", now + ALLOWED), None, "what is granted may be taken away");
    }

    #[test]
    fn a_flood_of_tokens_is_bounded_and_pushes_out_no_answer_that_counts_longer() {
        let (mut cache, now) = (ReviewCache::default(), Instant::now());
        cache.put("good", "/x", Review::Allowed, now);
        for number in 0..10_000 {
            cache.put(&format!("junk {number}"), "/x", Review::Unauthenticated, now);
        }
        assert!(cache.entries.len() <= ENTRIES);
        assert_eq!(cache.get("good", "/x", now), Some(Review::Allowed));
    }
}
