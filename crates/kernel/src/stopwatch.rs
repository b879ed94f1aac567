//! What each reader takes of the time and of the processor.

use std::{
    cell::RefCell,
    collections::BTreeMap,
    time::{Duration, Instant},
};

use nix::time::{ClockId, clock_gettime};
use portreeve_facts::Source;

/// What the readers of one look took, each by itself; readers that wait may have done so at the same time.
pub type Took = BTreeMap<Source, Spent>;

/// What a reader took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spent {
    /// From its beginning to its end.
    pub wall: Duration,
    /// Processor time of its thread. Zero where it waits for an answer, and others read meanwhile.
    pub processor: Duration,
}

/// Times the readers of one look.
#[derive(Debug, Default)]
pub(super) struct Stopwatch(RefCell<Took>);

impl Stopwatch {
    /// What `reader` returns.
    pub(super) fn on<T>(&self, source: Source, reader: impl FnOnce() -> T) -> T {
        self.on_each(&[source], reader)
    }

    /// What `reader` returns, which reads for several sources at once: each has an equal part of its time.
    pub(super) fn on_each<T>(&self, sources: &[Source], reader: impl FnOnce() -> T) -> T {
        let (begun, processor) = (Instant::now(), thread_cpu_time());
        let read = reader();
        let (wall, processor) = (begun.elapsed(), thread_cpu_time().saturating_sub(processor));
        let number = u32::try_from(sources.len()).unwrap_or(u32::MAX);
        let part = |of: Duration| of.checked_div(number).unwrap_or_default();
        sources.iter().for_each(|source| self.add(*source, Spent { wall: part(wall), processor: part(processor) }));
        read
    }

    /// What `reader` returns in the end.
    pub(super) async fn awaiting<T>(&self, source: Source, reader: impl Future<Output = T>) -> T {
        let begun = Instant::now();
        let read = reader.await;
        self.add(source, Spent { wall: begun.elapsed(), processor: Duration::ZERO });
        read
    }

    /// A source may be read in several places.
    fn add(&self, source: Source, spent: Spent) {
        let mut took = self.0.borrow_mut();
        let sum = took.entry(source).or_default();
        sum.wall += spent.wall;
        sum.processor += spent.processor;
    }

    /// What each reader took.
    pub(super) fn stop(self) -> Took {
        self.0.into_inner()
    }
}

/// Processor time of the calling thread. Not by `getrusage`, which many kernels bring up to date at a tick only: of short
/// pieces of work it sees next to nothing.
pub fn thread_cpu_time() -> Duration {
    // Only on Linux does an agent run.
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
    fn a_reader_that_waits_takes_time_and_next_to_nothing_of_the_processor() {
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
