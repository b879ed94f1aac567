//! What every question about one snapshot is judged against, each part made when it is asked for, and once.

use std::cell::OnceCell;

use super::{
    candidates::Candidates,
    endpoints::Endpoints,
    local_address::{LocalAddress, local_addresses},
    proxy_sockets::Proxy,
};
use portreeve_facts::{Gap, Interfaces, Snapshot};

/// One round: this snapshot, the one before where there is one, and what both rules and `owner` derive from it.
pub struct Round<'a> {
    /// This round.
    pub now: &'a Snapshot,
    /// The round before; `check` has none.
    pub before: Option<&'a Snapshot>,
    /// A proxy whose last sync is so many seconds late counts as behind.
    lag_seconds: i64,
    addressed: OnceCell<Addressed<'a>>,
    endpoints: OnceCell<Endpoints<'a>>,
    proxy: OnceCell<Proxy<'a>>,
}

/// What follows from the addresses of a node.
pub struct Addressed<'a> {
    /// Its links and addresses.
    pub interfaces: &'a Interfaces,
    /// What may be true of its data plane.
    pub candidates: Candidates,
    /// Its addresses, sorted.
    pub locals: Vec<LocalAddress>,
}

impl<'a> Round<'a> {
    /// Of a snapshot, and perhaps of the one before.
    pub fn of(now: &'a Snapshot, before: Option<&'a Snapshot>, lag_seconds: i64) -> Self {
        let (addressed, endpoints, proxy) = Default::default();
        Self { now, before, lag_seconds, addressed, endpoints, proxy }
    }

    /// What follows from the addresses of this node.
    ///
    /// # Errors
    /// When these were not read.
    pub fn addressed(&self) -> Result<&Addressed<'a>, Gap> {
        let interfaces = self.now.kernel.interfaces.get()?;
        Ok(self.addressed.get_or_init(|| Addressed {
            interfaces,
            candidates: Candidates::of(self.now, interfaces, self.lag_seconds),
            locals: local_addresses(interfaces),
        }))
    }

    /// The endpoints of Services.
    pub fn endpoints(&self) -> &Endpoints<'a> {
        self.endpoints.get_or_init(|| Endpoints::of(self.now))
    }

    /// Which sockets are the proxy's own.
    pub fn proxy(&self) -> &Proxy<'a> {
        self.proxy.get_or_init(|| Proxy::of(self.now))
    }
}
