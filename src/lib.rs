//! Portreeve finds, explains and foretells port conflicts on Kubernetes nodes.
//!
//! The rooms, in reading order; `ARCHITECTURE.md` says who may know whom.

pub mod facts; // what was seen
pub mod findings; // what is wrong
pub mod ledger; // since when
pub mod rules; // why it is wrong
pub mod sinks; // tells
