//! An API server that knows Events only: who writes first, what has been written since, and what has expired.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};

use crate::events::{Mark, Reply, Request, Seen, Series, VOICE, Write};

/// An Event, as the server keeps it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Kept {
    pub(super) series: Series,
    pub(super) node: Option<String>,
    pub(super) mark: Option<Mark>,
    version: u64,
    /// When it was last written, by the server's clock.
    pub(super) touched: Timestamp,
}

/// The Events by name.
#[derive(Default)]
pub(super) struct Server {
    pub(super) events: BTreeMap<String, Kept>,
    /// How long an Event is kept; for ever where nothing is said.
    lifetime: Option<SignedDuration>,
    version: u64,
}

impl Server {
    /// One that keeps Events for an hour.
    pub(super) fn that_forgets() -> Self {
        Self::that_forgets_after(SignedDuration::from_hours(1))
    }

    /// One that keeps Events for so long.
    pub(super) fn that_forgets_after(lifetime: SignedDuration) -> Self {
        Self { lifetime: Some(lifetime), ..Self::default() }
    }

    pub(super) fn reply(&mut self, at: Timestamp, write: &Write) -> Reply {
        self.expire(at);
        let series = match &write.request {
            Request::Create(event) => {
                if self.events.contains_key(&write.name) {
                    return Reply::Exists;
                }
                let annotations = event.metadata.annotations.as_ref();
                let mark = annotations.and_then(|all| Mark::parse(all.get(VOICE)?));
                let node = event.related.as_ref().and_then(|node| node.name.clone());
                let series = Series { count: 1, last: event.event_time.as_ref().expect("a time").0 };
                self.version += 1;
                let kept = Kept { series, node, mark, version: self.version, touched: at };
                self.events.insert(write.name.clone(), kept);
                return Reply::Written;
            }
            Request::Repeat(series) => Some(*series),
            Request::Hold(hold) => hold.series,
            Request::Find | Request::Look => None,
        };
        let Some(kept) = self.events.get_mut(&write.name) else { return Reply::Missing };
        if let Request::Hold(hold) = &write.request {
            if hold.version != kept.version.to_string() {
                return Reply::Overtaken;
            }
            kept.mark = Some(hold.mark.clone());
        } else if series.is_none() {
            let Kept { series, node, mark, version, .. } = kept.clone();
            return Reply::Current(Seen { series, version: version.to_string(), node, mark });
        }
        if let Some(series) = series {
            assert!(series.count >= 2, "the server refuses less");
            kept.series = series;
        }
        self.version += 1;
        (kept.version, kept.touched) = (self.version, at);
        Reply::Written
    }

    /// Those that say that something is wrong.
    pub(super) fn openings(&self) -> impl Iterator<Item = (&String, &Kept)> {
        self.events.iter().filter(|(name, _)| !name.ends_with(".resolved"))
    }

    pub(super) fn expire(&mut self, at: Timestamp) {
        if let Some(lifetime) = self.lifetime {
            self.events.retain(|_, kept| kept.touched + lifetime > at);
        }
    }
}
