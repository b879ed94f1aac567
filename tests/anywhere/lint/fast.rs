//! The time of `lint` grows at most in proportion to its input.

use std::process::Command;

use super::{folder, service};
use crate::cli::ended;

/// Each Service has its own nodePort, until the range has no number left.
fn documents(count: usize) -> String {
    (0..count).map(|index| service(&format!("s{index}"), &format!("nodePort: {}", 30000 + index % 2768))).collect()
}

fn ports(count: usize) -> String {
    let head = "apiVersion: v1\nkind: Service\nmetadata: {name: web}\nspec:\n  type: NodePort\n  ports:\n";
    let port = |index| format!("  - {{name: p{index}, port: {}, nodePort: {}}}\n", index + 1, 30000 + index);
    head.to_owned() + &(0..count).map(port).collect::<String>()
}

/// Compares one run of `lint` on a large input with ten runs on an input of a tenth of this size. The one run may take
/// at most three times as long as the ten runs.
#[track_caller]
fn expect_linear(input: fn(usize) -> String) {
    let measure = |count: usize, runs: usize| {
        let folder = folder(&[("a.yaml", &input(count))]);
        // The test measures processor time, because other tests use the processors too. The kernel counts processor
        // time in steps of some milliseconds. One run can be shorter than a step, so the test measures ten runs
        // together.
        let script =
            "TIMEFORMAT=%U; time for run in $(seq \"$1\"); do \"$0\" lint a.yaml -o json > /dev/null || exit; done";
        let mut command = Command::new("bash");
        command.args(["-c", script, env!("CARGO_BIN_EXE_portreeve"), &runs.to_string()]);
        command.current_dir(folder.path()).env("LC_ALL", "C");
        let run = || {
            let (code, _, seconds) = ended(&mut command);
            let seconds = seconds.trim().parse::<f64>();
            assert!(code == 0 && seconds.is_ok(), "{seconds:?}");
            seconds.unwrap_or_default()
        };
        std::iter::repeat_with(run).take(5).fold(f64::INFINITY, f64::min)
    };
    let (few, many) = (measure(250, 10), measure(2_500, 1));
    assert!(few > 0.0 && many <= few * 3.0, "{few} s for 10 times 250, {many} s for 2500");
}

#[test]
fn the_time_grows_with_the_documents() {
    expect_linear(documents);
}

#[test]
fn the_time_grows_with_the_ports_of_one_service() {
    expect_linear(ports);
}
