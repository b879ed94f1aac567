//! The node's clock changes while the agent runs: a person or NTP sets the clock, or the host is broken.
//!
//! A time namespace does not change the time of day, and the test must not set the machine's clock. So the agent loads
//! a library that changes only the agent's time of day. The library does not change the agent's clock since boot. If a
//! person sets the time of day on a real machine, the clock since boot does not change either.

use std::{fs, process::Command};

use super::{Incident, MODE, SQUATTED, after_scans, finds_it, is_alive, web};
use crate::{
    agent::{Agent, wait_for},
    stage::Stage,
};

/// The library that changes the clock, from the Debian package libfaketime. The package has another file for programs
/// without threads.
const LIBRARY: &str = "libfaketimeMT.so.1";

fn with_clock(stage: &Stage, offset: &str) -> Agent {
    let is_there = Command::new("faketime").args(["-f", "+0", "true"]).status();
    assert!(is_there.is_ok_and(|status| status.success()), "faketime is installed");
    set(stage, offset);
    let root = stage.command("agent");
    let mut agent = Command::new("env");
    agent.arg(format!("LD_PRELOAD=/usr/$LIB/faketime/{LIBRARY}"));
    agent.arg(format!("FAKETIME_TIMESTAMP_FILE={}", stage.path("clock").display()));
    agent.args(["FAKETIME_NO_CACHE=1", "FAKETIME_DONT_FAKE_MONOTONIC=1", "NO_FAKE_STAT=1"]);
    agent.args(["--unset=KUBECONFIG", "--unset=KUBERNETES_SERVICE_HOST", "HOME=/nonexistent"]);
    agent.arg(root.get_program()).args(root.get_args());
    Agent::of(agent, stage, &MODE)
}

/// Sets the clock of all agents of this stage. `+3600` is one hour ahead, and `@1970-01-01 00:00:10` is a time.
fn set(stage: &Stage, clock: &str) {
    let next = stage.path("clock.next");
    fs::write(&next, format!("{clock}\n")).expect("a file");
    fs::rename(&next, stage.path("clock")).expect("a swap");
}

fn told(metrics: &str) -> f64 {
    let line = metrics.lines().find_map(|line| line.strip_prefix("portreeve_last_scan_timestamp_seconds "));
    line.and_then(|time| time.parse().ok()).expect("a time")
}

/// `is_there` compares the agent's times before and after the change. If the change has no effect, the test fails.
#[track_caller]
fn survives(clock: &str, is_there: fn(f64, f64) -> bool) {
    let stage = web();
    let agent = with_clock(&stage, "+0");
    let Incident { agent, squatter, stage } = Incident::with(agent, stage);
    let before = told(&wait_for("/metrics", |_| true));
    set(&stage, clock);
    let metrics = wait_for("/metrics", |text| is_there(before, told(text)));
    assert!(metrics.contains(SQUATTED), "a known finding stays: {metrics}");
    assert!(finds_it(), "later scans find it too");
    drop(squatter);
    let metrics = after_scans(4);
    assert!(!metrics.contains(SQUATTED), "the finding ends: {metrics}");
    let next = Incident::with(agent, stage);
    assert!(is_alive());
    set(&next.stage, "+0");
    wait_for("/metrics", |text| !is_there(before, told(text)));
    drop(next.squatter);
    assert!(!after_scans(4).contains(SQUATTED));
}

/// Fault (clock): the clock is set an hour ahead, then back
/// Does: scans as often as before; every finding stays
/// Right again: a change is found within four scans, whatever time the clock shows
/// Lost: nothing
#[test]
fn an_hour_ahead_and_back_changes_no_finding_and_delays_none() {
    survives("+3600", |before, now| now > before + 3500.0);
}

/// Fault (clock): the clock is set an hour back, and forward again
/// Does: scans as often as before; every finding stays
/// Right again: a change is found within four scans, whatever time the clock shows
/// Lost: nothing
#[test]
fn an_hour_back_and_forth_changes_no_finding_and_delays_none() {
    survives("-3600", |before, now| now < before - 3500.0);
}

/// Fault (clock): the clock is set to 1970
/// Does: scans as often as before; every finding stays
/// Right again: a change is found within four scans, whatever time the clock shows
/// Lost: nothing
#[test]
fn the_year_1970_changes_no_finding_and_delays_none() {
    survives("@1970-01-01 00:00:10", |_, now| now < 1e6);
}

/// Fault (clock): the clock is set 150 years ahead
/// Does: scans as often as before; every finding stays
/// Right again: a change is found within four scans, whatever time the clock shows
/// Lost: nothing
#[test]
fn a_clock_far_ahead_changes_no_finding_and_delays_none() {
    survives("+150y", |before, now| now > before + 4e9);
}
