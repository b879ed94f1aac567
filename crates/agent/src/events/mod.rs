//! Events: `kubectl get events` and `kubectl describe` show them.
//!
//! `plan` decides which requests are due, purely. [`Recorder`] sends them. The name of an Event (`name`) is a hash of the finding's
//! identity, the hour, and a slot of the node. If a create succeeds, this node has reported the finding. If the Event exists
//! already, this node is silent for that hour. So agents need no memory of Events and no agreement.

mod finding_events;
mod name;
mod object;
mod place;
mod plan;
mod recorder;
mod spread;

pub(crate) use name::hash;
pub(crate) use object::reference;
pub use object::{AGENT_NAMESPACE, NOTE};
pub use place::Place;
pub use plan::Counters;
pub use recorder::Recorder;
pub(crate) use recorder::is_refusal;
pub(crate) use spread::Spread;
