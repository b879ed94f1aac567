//! A document about a look, made once for everybody who is reading it: clients that are slow, or many, cost one copy.

use std::{
    io,
    sync::{Arc, Mutex, PoisonError, Weak},
};

use axum::body::Bytes;

use crate::facts::Snapshot;

/// The document that was made last, as long as somebody reads it.
#[derive(Debug, Default)]
pub(super) struct Document(Mutex<Option<Made>>);

/// Of which look, and what.
type Made = (Weak<Snapshot>, Weak<Vec<u8>>);

/// One reader's share in a document.
struct Share(Arc<Vec<u8>>);

impl AsRef<[u8]> for Share {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Document {
    /// The document about a look: what another one is reading, or else what `make` makes.
    pub(super) fn of(&self, look: &Arc<Snapshot>, make: impl FnOnce() -> io::Result<Vec<u8>>) -> io::Result<Bytes> {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let of_this_look = last.as_ref().filter(|(of, _)| std::ptr::eq(of.as_ptr(), Arc::as_ptr(look)));
        let document = match of_this_look.and_then(|(_, document)| document.upgrade()) {
            Some(document) => document,
            None => {
                let document = Arc::new(make()?);
                *last = Some((Arc::downgrade(look), Arc::downgrade(&document)));
                document
            }
        };
        Ok(Bytes::from_owner(Share(document)))
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn whoever_reads_at_the_same_time_reads_the_same_and_nothing_is_kept() {
        let (document, made) = (Document::default(), Cell::new(0));
        let read = |look| {
            let make = || {
                made.set(made.get() + 1);
                Ok(format!("number {}", made.get()).into_bytes())
            };
            document.of(look, make).expect("a document")
        };
        let (look, next) = (Arc::new(Snapshot::healthy()), Arc::new(Snapshot::healthy()));
        let first = read(&look);
        assert_eq!((read(&look), read(&look)), (first.clone(), first.clone()), "it is being read");
        assert_eq!(read(&next), "number 2", "another look");
        assert_eq!(read(&next), "number 3", "nobody was reading it any more");
    }
}
