//! The wall time and the processor time of each reader.

use std::{
    cell::RefCell,
    collections::BTreeMap,
    time::{Duration, Instant},
};

use nix::time::{ClockId, clock_gettime};
use portreeve_facts::Source;

/// The time of each reader in one scan. The times can overlap, because several readers may wait at the same time.
pub type Took = BTreeMap<Source, Spent>;

/// The time of one reader.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spent {
    /// The time from the beginning of the reader to its end.
    pub wall: Duration,
    /// The processor time of the reader's thread. Zero for a reader that waits for an answer while other readers run.
    pub processor: Duration,
}

#[derive(Debug, Default)]
pub(super) struct Stopwatch(RefCell<Took>);

impl Stopwatch {
    pub(super) fn on<T>(&self, source: Source, reader: impl FnOnce() -> T) -> T {
        self.on_each(&[source], reader)
    }

    /// Runs one `reader` for several sources. Each source gets an equal part of the reader's time.
    pub(super) fn on_each<T>(&self, sources: &[Source], reader: impl FnOnce() -> T) -> T {
        let (begun, processor) = (Instant::now(), thread_cpu_time());
        let read = reader();
        let (wall, processor) = (begun.elapsed(), thread_cpu_time().saturating_sub(processor));
        let number = u32::try_from(sources.len()).unwrap_or(u32::MAX);
        let part = |of: Duration| of.checked_div(number).unwrap_or_default();
        sources.iter().for_each(|source| self.add(*source, Spent { wall: part(wall), processor: part(processor) }));
        read
    }

    pub(super) async fn awaiting<T>(&self, source: Source, reader: impl Future<Output = T>) -> T {
        let begun = Instant::now();
        let read = reader.await;
        self.add(source, Spent { wall: begun.elapsed(), processor: Duration::ZERO });
        read
    }

    /// The times are added, because a source may be read in several places.
    fn add(&self, source: Source, spent: Spent) {
        let mut took = self.0.borrow_mut();
        let sum = took.entry(source).or_default();
        sum.wall += spent.wall;
        sum.processor += spent.processor;
    }

    pub(super) fn stop(self) -> Took {
        self.0.into_inner()
    }
}

/// The processor time of the calling thread. `getrusage` would miss short work, because many kernels update it only at
/// a tick.
pub fn thread_cpu_time() -> Duration {
    // Agents run only on Linux. Other systems use the clock of the whole process.
    #[cfg(not(target_os = "linux"))]
    let clock = ClockId::CLOCK_PROCESS_CPUTIME_ID;
    #[cfg(target_os = "linux")]
    let clock = ClockId::CLOCK_THREAD_CPUTIME_ID;
    clock_gettime(clock).map_or(Duration::ZERO, Duration::from)
}

#[cfg(test)]
mod tests {
    use std::thread::sleep;

    use super::*;

    const SOME: Duration = Duration::from_millis(20);

    #[test]
    fn a_waiting_reader_takes_time_and_almost_no_processor_time() {
        let watch = Stopwatch::default();
        watch.on(Source::Netfilter, || sleep(SOME));
        watch.on_each(&[Source::Clients, Source::EphemeralUse], || {
            let begun = thread_cpu_time();
            while thread_cpu_time() - begun < SOME {}
        });
        let took = watch.stop();
        let waited = took[&Source::Netfilter];
        assert!(waited.wall >= SOME && waited.processor < SOME / 2, "{waited:?}");
        assert!(took[&Source::Clients].processor >= SOME / 2, "{took:?}");
        assert_eq!(took[&Source::Clients], took[&Source::EphemeralUse]);
    }
}
