//! The memory of the objects of one resource: of those that are known, and of those that somebody else still holds.

use std::sync::Arc;

use super::cached_object::{CachedObject, memory_of_entry};
use crate::allowance::{Allowance, Share};

/// Memory that is taken for the objects of one resource.
#[derive(Debug)]
pub(super) struct HeldMemory {
    known: Share,
    /// Let go since facts were made, and since the ones before: the looks that were made of these hold it still.
    let_go: [Share; 2],
}

impl HeldMemory {
    /// Of no object.
    pub(super) fn of(allowance: &Arc<Allowance>) -> Self {
        let share = || Share::of(allowance);
        Self { known: share(), let_go: [share(), share()] }
    }

    /// An object is known now. Whoever brought it asked for the room.
    pub(super) fn add(&mut self, title: &str, object: &CachedObject) {
        self.known.add(memory_of_entry(title, Some(object)));
    }

    /// An object that was known is not any more.
    pub(super) fn let_go(&mut self, title: &str, object: &CachedObject) {
        let bytes = memory_of_entry(title, Some(object));
        self.known.shrink(bytes);
        if object.is_shared() {
            self.let_go[0].add(bytes);
        }
    }

    /// Facts are made anew: what was let go before the last ones is free soon.
    pub(super) fn facts_are_made(&mut self) {
        let [now, before] = &mut self.let_go;
        std::mem::swap(now, before);
        now.clear();
    }
}
