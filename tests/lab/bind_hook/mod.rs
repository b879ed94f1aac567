//! The bind hook is a kernel program that reports binds of NodePorts and hostPorts, and can refuse binds of NodePorts.
//! The tests run the hook in an older kernel, in `portreeve guard`, and in the guard of the chart. `make nightly
//! SHARD=hook` runs the tests, and passes the path of the test program of the crate `bind-hook`.

#[cfg(feature = "bind-hook")]
mod of_chart;
#[cfg(feature = "bind-hook")]
mod of_guard;

use crate::parts::guest::pass_in_a_guest;

const TESTS: &str = "BIND_HOOK_TESTS";

#[test]
fn the_bind_hook_reports_and_refuses_under_debians_kernel() {
    let tests = std::env::var(TESTS).unwrap_or_else(|_| panic!("no {TESTS}: run `make nightly SHARD=hook`"));
    pass_in_a_guest(&tests);
}
