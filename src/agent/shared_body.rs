//! The body of an HTTP response about one snapshot, made once for all clients that read it at the same time: slow or
//! many clients cost one copy.

use std::{
    io,
    sync::{Arc, Mutex, PoisonError, Weak},
};

use axum::body::Bytes;

use crate::facts::Snapshot;

/// The body that was made last, as long as a client reads it.
#[derive(Debug, Default)]
pub(super) struct SharedBody(Mutex<Option<Made>>);

/// Of which snapshot, and the bytes.
type Made = (Weak<Snapshot>, Weak<Vec<u8>>);

/// One client's share in a body.
struct Share(Arc<Vec<u8>>);

impl AsRef<[u8]> for Share {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl SharedBody {
    /// The body about a snapshot: the one that another client is reading, or else what `make` makes.
    pub(super) fn of(&self, snapshot: &Arc<Snapshot>, make: impl FnOnce() -> io::Result<Vec<u8>>) -> io::Result<Bytes> {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let of_this_snapshot = last.as_ref().filter(|(of, _)| std::ptr::eq(of.as_ptr(), Arc::as_ptr(snapshot)));
        let body = match of_this_snapshot.and_then(|(_, body)| body.upgrade()) {
            Some(body) => body,
            None => {
                let body = Arc::new(make()?);
                *last = Some((Arc::downgrade(snapshot), Arc::downgrade(&body)));
                body
            }
        };
        Ok(Bytes::from_owner(Share(body)))
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn clients_at_the_same_time_share_a_body_and_nothing_is_kept() {
        let (body, made) = (SharedBody::default(), Cell::new(0));
        let read = |look| {
            let make = || {
                made.set(made.get() + 1);
                Ok(format!("number {}", made.get()).into_bytes())
            };
            body.of(look, make).expect("a body")
        };
        let (look, next) = (Arc::new(Snapshot::healthy()), Arc::new(Snapshot::healthy()));
        let first = read(&look);
        assert_eq!((read(&look), read(&look)), (first.clone(), first.clone()), "it is being read");
        assert_eq!(read(&next), "number 2", "another snapshot");
        assert_eq!(read(&next), "number 3", "no client was reading it any more");
    }
}
