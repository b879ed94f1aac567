//! The time that each reader takes.

use std::{
    cell::RefCell,
    collections::BTreeMap,
    time::{Duration, Instant},
};

use portreeve_facts::Source;

/// What the readers of one look took, each by itself; readers that wait may have done so at the same time.
pub type Took = BTreeMap<Source, Duration>;

/// Times the readers of one look.
#[derive(Debug, Default)]
pub(super) struct Stopwatch(RefCell<Took>);

impl Stopwatch {
    /// What `reader` returns.
    pub(super) fn on<T>(&self, source: Source, reader: impl FnOnce() -> T) -> T {
        let begun = Instant::now();
        let read = reader();
        self.add(source, begun);
        read
    }

    /// What `reader` returns, which reads for several sources at once: each has an equal part of its time.
    pub(super) fn on_each<T>(&self, sources: &[Source], reader: impl FnOnce() -> T) -> T {
        let begun = Instant::now();
        let read = reader();
        let part = begun.elapsed().checked_div(u32::try_from(sources.len()).unwrap_or(u32::MAX)).unwrap_or_default();
        sources.iter().for_each(|source| *self.0.borrow_mut().entry(*source).or_default() += part);
        read
    }

    /// What `reader` returns in the end.
    pub(super) async fn awaiting<T>(&self, source: Source, reader: impl Future<Output = T>) -> T {
        let begun = Instant::now();
        let read = reader.await;
        self.add(source, begun);
        read
    }

    /// A source may be read in several places.
    fn add(&self, source: Source, begun: Instant) {
        *self.0.borrow_mut().entry(source).or_default() += begun.elapsed();
    }

    /// What each reader took.
    pub(super) fn stop(self) -> Took {
        self.0.into_inner()
    }
}
