//! What takes the objects of an answer, one by one.

use super::{facts_builder::FactsBuilder, slim_object::SlimObject};

/// Takes objects as they are parsed, so that no list is held as objects of Kubernetes.
pub trait ObjectSink: Default + Send + 'static {
    /// Adds one object; `place` is where it was read. Returns how much memory is kept of it, roughly, in bytes: 0 where
    /// nothing is.
    fn add(&mut self, place: &str, object: SlimObject) -> usize;
}

impl ObjectSink for FactsBuilder {
    fn add(&mut self, place: &str, object: SlimObject) -> usize {
        let before = self.counts();
        self.add(place, object);
        self.memory_since(&before)
    }
}
