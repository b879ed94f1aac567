//! What one scrape is made of: the last judged look, and what the agent counts of itself.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use jiff::Timestamp;

use super::super::events::Counters;
use portreeve_facts::{Snapshot, Source};
use portreeve_rules::ledger::Board;

/// Upper bounds of the buckets of `portreeve_scan_duration_seconds`: few, because each is a series of every node.
pub const BUCKETS: [f64; 3] = [0.005, 0.05, 0.5];

/// Everything that a scrape tells.
#[derive(Clone, Debug)]
pub struct Telling {
    /// The last look; nothing before the first.
    pub look: Option<(Arc<Snapshot>, Arc<Board>)>,
    /// The crank's own work.
    pub work: Work,
    /// How old the view of each kind of object is.
    pub views: Vec<ViewAge>,
    /// What became of Events; nothing where none are written.
    pub events: Option<Counters>,
    /// What this process uses.
    pub process: ProcessUse,
}

/// The crank's own work since the start.
#[derive(Clone, Debug, Default)]
pub struct Work {
    /// Looks that were judged.
    pub scans: u64,
    /// Looks by duration; the last is above all of [`BUCKETS`].
    pub buckets: [u64; BUCKETS.len() + 1],
    /// What all looks took together, in seconds.
    pub seconds: f64,
    /// When the last look ended.
    pub last: Option<Timestamp>,
    /// What each reader of the node took in the last look.
    pub took: BTreeMap<Source, Duration>,
    /// Panics that were contained, by the rule's name or `reader`.
    pub panics: Vec<(&'static str, u64)>,
}

/// How old the view of one kind of object is.
#[derive(Clone, Debug)]
pub struct ViewAge {
    /// The plural, e.g. `services`.
    pub resource: &'static str,
    /// Since it was last seen whole; nothing where it never was.
    pub age: Option<Duration>,
    /// Failures by their code, a closed set of words or numbers.
    pub errors: Vec<(String, u64)>,
}

/// What the agent's process uses; what could not be read is not reported.
#[derive(Clone, Copy, Debug, Default)]
pub struct ProcessUse {
    /// User and system time in seconds.
    pub cpu_seconds: Option<f64>,
    /// Resident memory in bytes.
    pub resident_bytes: Option<u64>,
    /// Virtual memory in bytes.
    pub virtual_bytes: Option<u64>,
    /// Open file descriptors.
    pub open_fds: Option<u64>,
    /// How many may be open.
    pub max_fds: Option<u64>,
    /// When it started.
    pub started: Option<Timestamp>,
}
