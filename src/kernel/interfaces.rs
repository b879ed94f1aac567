//! Links and addresses as they were read last, for as long as the kernel tells of no change.
//!
//! In ipvs mode a node has an address for every Service. To read ten thousand takes some 5 ms, nearly all of it in
//! the kernel; that nothing changed is known in microseconds.

use std::sync::Arc;

use super::{known::Looks, route, wire::News};
use crate::facts::{Gap, Interfaces};

/// The groups of everything that [`route::read`] reads (include/uapi/linux/rtnetlink.h): `RTNLGRP_LINK`,
/// `RTNLGRP_IPV4_IFADDR`, `RTNLGRP_IPV4_ROUTE`, `RTNLGRP_IPV6_IFADDR`, `RTNLGRP_IPV6_ROUTE`. Anybody may hear them.
const GROUPS: [u32; 5] = [1, 5, 7, 9, 11];

/// What was read, and what tells that it changed.
#[derive(Debug, Default)]
pub(super) struct Watched {
    looks: Looks,
    news: Option<News>,
    told: Option<Arc<Interfaces>>,
}

impl Watched {
    /// As [`route::read`], in the network namespace of the calling thread, which must be the same at every look.
    ///
    /// # Errors
    /// As [`route::read`].
    pub(super) fn read(&mut self) -> Result<Arc<Interfaces>, Gap> {
        let changed = self.news.as_mut().is_none_or(News::arrived);
        if let (false, false, Some(told)) = (changed, self.looks.is_anew(), &self.told) {
            return Ok(Arc::clone(told));
        }
        // Who looks once has no use for news. What changes while it is read will be news at the next look.
        if self.news.is_none() && self.told.is_some() {
            self.news = News::of(&GROUPS).ok();
        }
        self.told = None;
        let told = Arc::new(route::read()?);
        self.told = Some(Arc::clone(&told));
        Ok(told)
    }
}
