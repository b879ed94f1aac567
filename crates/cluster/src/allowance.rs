//! How much memory there is for what is kept of the cluster: one sum for every kind of object, and for lists that arrive.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::Relaxed},
};

/// Memory that several may take parts of, in bytes.
#[derive(Debug)]
pub struct Allowance {
    most: usize,
    taken: AtomicUsize,
}

impl Allowance {
    /// For all that an agent keeps: half as much again as 50,000 Services take. The rest of the memory limit of its pod, which
    /// is three times that, is for the program, for judging and for answers.
    pub const OF_AGENT: usize = 40 << 20;
    /// For one list, where nothing else is kept for long.
    pub const OF_LIST: usize = 128 << 20;

    /// So many bytes, of which nothing is taken.
    pub fn of(most: usize) -> Arc<Self> {
        Arc::new(Self { most, taken: AtomicUsize::new(0) })
    }

    /// How much is taken.
    #[cfg(test)]
    pub fn taken(&self) -> usize {
        self.taken.load(Relaxed)
    }

    /// How much there is altogether, for people.
    pub fn in_words(&self) -> String {
        format!("more than {} MiB of what is kept of the cluster", self.most >> 20)
    }
}

/// There is not so much left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UsedUp;

/// A part that is taken, until it is dropped.
#[derive(Debug)]
pub struct Share {
    of: Arc<Allowance>,
    bytes: usize,
}

impl Share {
    /// An empty part.
    pub fn of(allowance: &Arc<Allowance>) -> Self {
        Self { of: Arc::clone(allowance), bytes: 0 }
    }

    /// Takes more, if there is so much.
    pub fn grow(&mut self, bytes: usize) -> Result<(), UsedUp> {
        let enough = |taken: usize| taken.checked_add(bytes).filter(|sum| *sum <= self.of.most);
        self.of.taken.fetch_update(Relaxed, Relaxed, enough).map_err(|_| UsedUp)?;
        self.bytes += bytes;
        Ok(())
    }

    /// Counts what is there already.
    pub fn add(&mut self, bytes: usize) {
        self.of.taken.fetch_add(bytes, Relaxed);
        self.bytes += bytes;
    }

    /// Gives a part back.
    pub fn shrink(&mut self, bytes: usize) {
        let bytes = bytes.min(self.bytes);
        self.of.taken.fetch_sub(bytes, Relaxed);
        self.bytes -= bytes;
    }

    /// Gives everything back.
    pub fn clear(&mut self) {
        self.shrink(self.bytes);
    }

    /// Whose part it is.
    pub fn allowance(&self) -> &Arc<Allowance> {
        &self.of
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_together_are_never_more_than_there_is_and_come_back() {
        let allowance = Allowance::of(10);
        let (mut first, mut second) = (Share::of(&allowance), Share::of(&allowance));
        assert_eq!((first.grow(6), second.grow(4), second.grow(1)), (Ok(()), Ok(()), Err(UsedUp)));
        first.shrink(2);
        assert_eq!((second.grow(2), second.grow(1)), (Ok(()), Err(UsedUp)));
        drop(second);
        assert_eq!((first.grow(6), first.grow(usize::MAX)), (Ok(()), Err(UsedUp)));
        first.add(5);
        assert_eq!(Share::of(&allowance).grow(0), Err(UsedUp), "what is there counts, also beyond it");
    }
}
