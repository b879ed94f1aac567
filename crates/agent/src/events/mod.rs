//! Events: `kubectl get events` and `kubectl describe` show them.
//!
//! The module `plan`, which is pure, decides which requests are due. [`Recorder`] sends the requests. The name of an
//! Event (`name`) is a hash of the finding's identity, the hour, and a slot of the node. If the server accepts a create
//! request, this node has reported the finding. If the Event exists already, this node writes no Event in that hour. So
//! agents work without a memory of Events and without messages to each other.

mod finding_events;
mod name;
mod object;
mod place;
mod plan;
mod recorder;
mod spread;

pub(crate) use name::hash;
pub use object::{AGENT_NAMESPACE, NOTE};
pub(crate) use object::{annotations, finding_event, reference};
pub use place::Place;
pub use plan::Counters;
pub use recorder::Recorder;
pub(crate) use recorder::is_refusal;
pub(crate) use spread::Spread;
