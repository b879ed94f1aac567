//! Turns the crank: gathers the facts of the cluster and of the node, has them judged, and keeps the board.
//!
//! Never: parses or judges.

mod crank;
mod wanted;

pub use crank::{Crank, Step, judge};
pub use wanted::wanted;
