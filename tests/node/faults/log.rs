//! The reader of the agent's log ends or stops reading.

use nix::sys::signal::Signal;

use super::{Incident, SQUATTED, after_scans, finds_it, is_alive};
use crate::agent::wait_for;

/// Fault (disk): no program reads the log, and the pipe is closed
/// Does: runs without a log
/// Right again: always
/// Lost: the log
#[test]
fn a_log_without_a_reader_does_not_end_the_agent() {
    let Incident { mut agent, squatter, stage: _stage } = Incident::start(&[]);
    agent.hang_up();
    drop(squatter);
    // The agent writes the end of the finding into its log, but the log has no reader.
    wait_for("/metrics", |text| !text.contains(SQUATTED));
    assert!(!finds_it() && is_alive());
}

/// Fault (disk): no program reads the log, and the pipe is full
/// Does: scans and answers; a signal ends the agent
/// Right again: always
/// Lost: lines of the log
#[test]
fn a_full_log_delays_no_scan_and_no_end() {
    let Incident { mut agent, squatter, stage: _stage } = Incident::start(&[]);
    agent.narrow_log();
    // For each signal, the agent writes a line of more than a hundred bytes.
    for _ in 0..10 {
        for _ in 0..20 {
            agent.signal(Signal::SIGUSR1);
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        after_scans(0);
    }
    drop(squatter);
    wait_for("/metrics", |text| !text.contains(SQUATTED));
    assert!(is_alive());
    agent.signal(Signal::SIGTERM);
    let ended = agent.ended();
    assert!(ended.success(), "{ended:?}");
}
