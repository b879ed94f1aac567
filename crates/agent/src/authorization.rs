//! Decides whether a client may read private documents over the network. The API server must accept the client's token.
//! The user of the token needs the right to `get` the path of the document.
//!
//! Even many tokens cause few requests to the API server: the agent refuses texts without the form of a token, and
//! caches the answers of the API server. All clients together cause at most four reviews a second, after a first burst.

use std::{
    collections::{BTreeMap, hash_map::RandomState},
    hash::BuildHasher as _,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use axum::http::{HeaderMap, header};
use tokio::sync::Semaphore;
use tracing::warn;

use super::{bucket::Bucket, refusal::Refusal};
use portreeve_cluster::{Review, Reviewer, TOKEN_HEADER};

/// The longest token that is reviewed, in bytes. Tokens of ServiceAccounts have about 1,200 bytes.
const LONGEST_TOKEN: usize = 4 << 10;
const AT_ONCE: usize = 4;
const BURST: u32 = 12;
const EVERY: Duration = Duration::from_millis(250);

pub(super) struct Authorization {
    reviewer: Option<Reviewer>,
    known: Mutex<ReviewCache>,
    reviews: Mutex<Bucket>,
    under_way: Semaphore,
    /// Whether the last review failed. If reviews fail again and again, the agent logs only the first failure.
    failing: Mutex<bool>,
}

impl Authorization {
    /// If `reviewer` is `None`, every request is refused.
    pub(super) fn new(reviewer: Option<Reviewer>) -> Self {
        Self {
            reviewer,
            known: Mutex::default(),
            reviews: Mutex::new(Bucket::new(BURST, EVERY, Instant::now())),
            under_way: Semaphore::new(AT_ONCE),
            failing: Mutex::new(false),
        }
    }

    pub(super) async fn check(&self, headers: &HeaderMap, node: &str, path: &str) -> Result<(), Refusal> {
        let reviewer = self.reviewer.as_ref().ok_or(Refusal::NoApiServer)?;
        let token = token(headers).ok_or(Refusal::NoToken)?;
        if !is_shaped_like_a_token(token) {
            return Err(Refusal::BadToken);
        }
        let known = locked(&self.known).get(token, path, Instant::now());
        let review = match known {
            Some(review) => review,
            None => self.review(reviewer, token, node, path).await?,
        };
        match review {
            Review::Allowed => Ok(()),
            Review::Unauthenticated => Err(Refusal::BadToken),
            Review::Forbidden { user } => Err(Refusal::Forbidden { user, path: path.to_owned() }),
        }
    }

    async fn review(&self, reviewer: &Reviewer, token: &str, node: &str, path: &str) -> Result<Review, Refusal> {
        let Ok(_permit) = self.under_way.try_acquire() else { return Err(Refusal::TooManyReviews) };
        if !locked(&self.reviews).take(Instant::now()) {
            return Err(Refusal::TooManyReviews);
        }
        let reviewed = reviewer.review(token, node, path).await;
        let failed_before = std::mem::replace(&mut *locked(&self.failing), reviewed.is_err());
        match reviewed {
            Ok(review) => {
                locked(&self.known).put(token, path, review.clone(), Instant::now());
                Ok(review)
            }
            Err(error) => {
                if !failed_before {
                    warn!(%error, "the API server does not review tokens: no client can read findings and snapshots over the network");
                }
                Err(Refusal::NotReviewed)
            }
        }
    }
}

/// The token. `TOKEN_HEADER` has priority, because a proxy in front of the agent may use `Authorization` for itself.
fn token(headers: &HeaderMap) -> Option<&str> {
    let own = headers.get(TOKEN_HEADER).map(|value| value.to_str().unwrap_or_default());
    let usual = || headers.get(header::AUTHORIZATION)?.to_str().ok()?.strip_prefix("Bearer ");
    own.or_else(usual).map(str::trim)
}

/// Whether the text has three parts of base64url, as the token of a ServiceAccount has.
fn is_shaped_like_a_token(token: &str) -> bool {
    let is_part = |part: &str| {
        part.len() >= 16 && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
    };
    token.len() <= LONGEST_TOKEN && token.split('.').count() == 3 && token.split('.').all(is_part)
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How long the cache keeps a permission. If a person withdraws the right, the client can still read for this time.
const ALLOWED: Duration = Duration::from_secs(60);
/// How long the cache keeps a refusal. If a person grants the right, the client waits for this time at most.
const REFUSED: Duration = Duration::from_secs(5);
const ENTRIES: usize = 128;

/// The hashes of a token and a path under two secret keys. Without the keys, a client cannot make two tokens with equal
/// hashes.
type Key = (u64, u64);

/// The answers of the API server. The cache keeps hashes of the tokens, and not the tokens.
#[derive(Debug, Default)]
struct ReviewCache {
    hashers: (RandomState, RandomState),
    entries: BTreeMap<Key, (Instant, Review)>,
}

impl ReviewCache {
    fn get(&self, token: &str, path: &str, now: Instant) -> Option<Review> {
        let (until, review) = self.entries.get(&self.key(token, path))?;
        (now < *until).then(|| review.clone())
    }

    fn put(&mut self, token: &str, path: &str, review: Review, now: Instant) {
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

    const SHAPED: &str = "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJub2JvZHkifQ.c2lnbmF0dXJlLXNpZ25hdHVyZQ";

    #[test]
    fn a_text_without_the_shape_of_a_token_is_refused_without_a_request() {
        assert!(is_shaped_like_a_token(SHAPED));
        let long = format!("{SHAPED}{}", "a".repeat(LONGEST_TOKEN));
        for wrong in ["", "a", "a.b.c", &SHAPED.replace('.', ":"), &format!("{SHAPED}.{SHAPED}"), &long, "é.é.é"] {
            assert!(!is_shaped_like_a_token(wrong), "{wrong}");
        }
        assert!(!is_shaped_like_a_token(&SHAPED.replace('J', " ")));
    }

    #[test]
    fn a_token_is_taken_from_its_own_header_or_the_usual_one() {
        let mut headers = HeaderMap::new();
        assert_eq!(token(&headers), None);
        headers.insert(header::AUTHORIZATION, "Basic abc".parse().expect("a value"));
        assert_eq!(token(&headers), None);
        headers.insert(header::AUTHORIZATION, "Bearer usual".parse().expect("a value"));
        assert_eq!(token(&headers), Some("usual"));
        headers.insert(TOKEN_HEADER, "own".parse().expect("a value"));
        assert_eq!(token(&headers), Some("own"));
    }

    #[tokio::test]
    async fn without_an_api_server_every_request_is_refused() {
        let mut headers = HeaderMap::new();
        headers.insert(TOKEN_HEADER, SHAPED.parse().expect("a value"));
        let refused = Authorization::new(None).check(&headers, "n1", "/portreeve/findings").await;
        assert_eq!(refused, Err(Refusal::NoApiServer));
    }

    #[test]
    fn an_answer_is_valid_for_its_token_and_path_and_for_a_short_time() {
        let (mut cache, now) = (ReviewCache::default(), Instant::now());
        cache.put("a", "/x", Review::Allowed, now);
        cache.put("b", "/x", Review::Unauthenticated, now);
        assert_eq!(cache.get("a", "/x", now), Some(Review::Allowed));
        assert_eq!(cache.get("a", "/y", now), None);
        assert_eq!(cache.get("b", "/x", now), Some(Review::Unauthenticated));
        assert_eq!(cache.get("b", "/x", now + REFUSED), None, "a refused right may soon be granted");
        assert_eq!(cache.get("a", "/x", now + ALLOWED), None, "a granted right may be withdrawn");
    }

    #[test]
    fn a_flood_of_tokens_is_bounded_and_pushes_out_no_answer_that_is_valid_longer() {
        let (mut cache, now) = (ReviewCache::default(), Instant::now());
        cache.put("good", "/x", Review::Allowed, now);
        for number in 0..10_000 {
            cache.put(&format!("junk {number}"), "/x", Review::Unauthenticated, now);
        }
        assert!(cache.entries.len() <= ENTRIES);
        assert_eq!(cache.get("good", "/x", now), Some(Review::Allowed));
    }
}
