//! Whoever reads the agent's log goes away, or stops reading.

use super::{Incident, SQUATTED, finds_it, is_alive};
use crate::agent::wait_for;

/// Fault (disk): whoever read its log is gone
/// Does: goes on without a log
/// Right again: all the time
/// Lost: the log
#[test]
fn a_log_that_nobody_reads_any_more_ends_nothing() {
    let Incident { mut agent, squatter, stage: _stage } = Incident::start(&[]);
    agent.hang_up();
    drop(squatter);
    // Its end is a line of the log.
    wait_for("/metrics", |text| !text.contains(SQUATTED));
    assert!(!finds_it() && is_alive());
}
