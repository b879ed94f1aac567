//! Links, addresses and gateways of the last look, for as long as the kernel reports no change.
//!
//! In ipvs mode a node has an address for every Service. To read ten thousand takes some 5 ms, nearly all of it in
//! the kernel; that nothing changed is known in microseconds.

use std::sync::Arc;

use super::{freshness::LookCounter, netlink::InterfaceChanges, route};
use portreeve_facts::{Gap, Interfaces};

/// What was read last, and the notifications of changes.
#[derive(Debug, Default)]
pub(super) struct WatchedInterfaces {
    looks: LookCounter,
    changes: Option<InterfaceChanges>,
    last: Option<Arc<Interfaces>>,
}

impl WatchedInterfaces {
    /// As [`route::read`], in the network namespace of the calling thread, which must be the same at every look.
    ///
    /// # Errors
    /// As [`route::read`].
    pub(super) fn read(&mut self) -> Result<Arc<Interfaces>, Gap> {
        let changed = self.changes.as_mut().is_none_or(InterfaceChanges::receive_all);
        if let (false, false, Some(last)) = (changed, self.looks.advance(), &self.last) {
            return Ok(Arc::clone(last));
        }
        // A single look has no use for notifications. A change while we read is notified, and read at the next look.
        if self.changes.is_none() && self.last.is_some() {
            self.changes = InterfaceChanges::subscribe().ok();
        }
        self.last = None;
        let read = Arc::new(route::read()?);
        self.last = Some(Arc::clone(&read));
        Ok(read)
    }
}
