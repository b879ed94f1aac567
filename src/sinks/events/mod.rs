//! Events: what `kubectl get events` and `kubectl describe` show of a finding.
//!
//! [`Events`] decides, purely, what is to be written and when; [`Recorder`] writes it. An Event's name is a hash of what
//! it says, and everything of it but its series is immutable: whoever writes the same again, a restarted agent or the
//! agent of another node, is told that it is there already.

mod budget;
mod object;
mod plan;
mod recorder;

use jiff::SignedDuration;

pub use object::{Event, NOTE, ObjectReference, Place, Series};
pub use plan::{Counters, Events, Reply, Request, Write};
pub use recorder::{Recorder, VERBS};

/// How long the API server keeps an Event that nobody touches: kube-apiserver's `--event-ttl` by default.
const LIFETIME: SignedDuration = SignedDuration::from_hours(1);
