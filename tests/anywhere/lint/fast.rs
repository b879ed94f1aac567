//! The time of `lint` does not grow faster than its input.

use std::process::Command;

use super::{folder, service};
use crate::cli::ended;

/// A file with so many documents. Each has its own number, as far as the range has enough.
fn documents(count: usize) -> String {
    (0..count).map(|index| service(&format!("s{index}"), &format!("nodePort: {}", 30000 + index % 2768))).collect()
}

/// One Service with so many ports, each with a nodePort.
fn ports(count: usize) -> String {
    let head = "apiVersion: v1\nkind: Service\nmetadata: {name: web}\nspec:\n  type: NodePort\n  ports:\n";
    let port = |index| format!("  - {{name: p{index}, port: {}, nodePort: {}}}\n", index + 1, 30000 + index);
    head.to_owned() + &(0..count).map(port).collect::<String>()
}

/// Ten times the input may take at most thirty times as long.
#[track_caller]
fn expect_linear(input: fn(usize) -> String) {
    let measure = |count| {
        let folder = folder(&[("a.yaml", &input(count))]);
        // Processor time, because other tests use the processors too.
        let script = "TIMEFORMAT=%U; time \"$0\" lint a.yaml -o json > /dev/null";
        let mut command = Command::new("bash");
        command.args(["-c", script, env!("CARGO_BIN_EXE_portreeve")]).current_dir(folder.path()).env("LC_ALL", "C");
        let run = || {
            let (code, _, seconds) = ended(&mut command);
            let seconds = seconds.trim().parse::<f64>();
            assert!(code == 0 && seconds.is_ok(), "{seconds:?}");
            seconds.unwrap_or_default()
        };
        std::iter::repeat_with(run).take(5).fold(f64::INFINITY, f64::min)
    };
    // 250 is large enough that the start of the program is a small part.
    let (few, many) = (measure(250), measure(2_500));
    // On a busy machine ten times as much took fifteen times as long: programs share the caches.
    assert!(few > 0.0 && many <= few * 30.0, "{few} s for 250, {many} s for 2500");
}

#[test]
fn the_time_grows_with_the_documents() {
    expect_linear(documents);
}

#[test]
fn the_time_grows_with_the_ports_of_one_service() {
    expect_linear(ports);
}
