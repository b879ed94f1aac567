//! Events: what `kubectl get events` and `kubectl describe` show of a finding.
//!
//! [`Plan`] decides, purely, what is to be written and when; [`Recorder`] writes it. An Event's name is a hash of what the
//! finding is, never of a word, and everything of it but its series is immutable: a restarted agent, or the agent of
//! another node, that writes the same one again gets the answer that it is there already.

mod budget;
mod event_state;
mod finding_events;
mod hash;
mod incident;
mod object;
mod pause;
mod place;
mod plan;
mod recorder;
mod release;
mod request;
mod spread;
mod voice;

pub use incident::{AGENT_NAMESPACE, Mark, VOICE, VOICES};
pub use object::{NOTE, PlannedEvent};
pub use place::Place;
pub use plan::{Counters, Plan};
pub use recorder::{Recorder, VERBS};
pub use request::{Hold, Reply, Request, Seen, Series, Write};
