//! Events: what `kubectl get events` and `kubectl describe` show of a finding.
//!
//! `plan` decides, purely, what is to be written and when; [`Recorder`] writes it. An Event's name (`name`) is a hash of what the
//! finding is, the hour, and a slot of the node. Who creates it has told; who is answered that it is there is silent for that
//! hour. So nothing has to be remembered or agreed upon.

mod budget;
mod hash;
mod name;
mod object;
mod pause;
mod place;
mod plan;
mod recorder;
mod request;
mod spread;
mod telling;

pub use object::{AGENT_NAMESPACE, NOTE};
pub use place::Place;
pub use plan::Counters;
pub use recorder::{Recorder, VERBS};
