//! How long `lint` takes does not grow faster than what it reads.

use std::process::Command;

use super::{folder, service};
use crate::cli::ended;

/// So many documents in one file, of which each has a number of its own where the range has as many.
fn documents(count: usize) -> String {
    (0..count).map(|index| service(&format!("s{index}"), &format!("nodePort: {}", 30000 + index % 2768))).collect()
}

#[test]
fn ten_times_the_documents_take_nothing_like_a_hundred_times_as_long() {
    let measure = |count| {
        let folder = folder(&[("a.yaml", &documents(count))]);
        // Processor time: other tests take as much of the clock as they like.
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
    // The smaller one is so long that starting the program is a small part of it.
    let (few, many) = (measure(250), measure(2_500));
    // On a busy machine ten times as much took fifteen times as long: caches are shared too.
    assert!(few > 0.0 && many <= few * 30.0, "{few} s for 250 documents, {many} s for 2500");
}
