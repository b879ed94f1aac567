//! What takes the objects of an answer, one by one.

use super::{facts_builder::FactsBuilder, slim_object::SlimObject};

/// Takes objects as they are parsed, so that no list is held as objects of Kubernetes.
pub(super) trait ObjectSink: Default + Send + 'static {
    /// Adds one object; `place` is where it was read.
    fn add(&mut self, place: &str, object: SlimObject);
    /// Adds the objects of another page.
    fn merge(&mut self, other: Self);
}

impl ObjectSink for FactsBuilder {
    fn add(&mut self, place: &str, object: SlimObject) {
        self.add(place, object);
    }

    fn merge(&mut self, other: Self) {
        self.merge(other);
    }
}
