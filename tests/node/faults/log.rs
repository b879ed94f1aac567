//! Whoever reads the agent's log goes away, or stops reading.

use nix::sys::signal::Signal;

use super::{Incident, SQUATTED, after_looks, finds_it, is_alive};
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

/// Fault (disk): nobody reads its log, and the pipe is full
/// Does: looks and answers on; leaves when it is told to
/// Right again: all the time
/// Lost: lines of the log
#[test]
fn a_log_that_is_full_delays_no_look_and_no_end() {
    let Incident { mut agent, squatter, stage: _stage } = Incident::start(&[]);
    agent.narrow_log();
    // Each is at least a line of more than a hundred bytes.
    for _ in 0..10 {
        for _ in 0..20 {
            agent.signal(Signal::SIGUSR1);
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        after_looks(0);
    }
    drop(squatter);
    wait_for("/metrics", |text| !text.contains(SQUATTED));
    assert!(is_alive());
    agent.signal(Signal::SIGTERM);
    let ended = agent.ended();
    assert!(ended.success(), "{ended:?}");
}
