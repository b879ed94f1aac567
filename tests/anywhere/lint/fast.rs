//! How long `lint` takes does not grow faster than what it reads.

use std::time::Instant;

use super::{folder, service};
use crate::cli::{binary, ended};

/// So many documents in one file, of which each has a number of its own where the range has as many.
fn documents(count: usize) -> String {
    (0..count).map(|index| service(&format!("s{index}"), &format!("nodePort: {}", 30000 + index % 2768))).collect()
}

#[test]
fn ten_times_the_documents_take_no_more_than_ten_times_as_long_and_a_half() {
    let files = [250, 2_500].map(|count| folder(&[("a.yaml", &documents(count))]));
    let run = |index: usize| {
        let begin = Instant::now();
        let (code, stdout, stderr) =
            ended(binary().current_dir(files[index].path()).args(["lint", "a.yaml", "-o", "json"]));
        assert_eq!(code, 0, "{stdout:.500}{stderr}");
        begin.elapsed()
    };
    // In turn, so that what else the machine does slows both down. The smaller one is so long that starting the program is a
    // small part of it.
    let runs: Vec<_> = (0..6).map(|_| (run(0), run(1))).collect();
    let few = runs.iter().map(|(few, _)| *few).min().expect("a run");
    let many = runs.iter().map(|(_, many)| *many).min().expect("a run");
    assert!(many <= few * 15, "{few:?} for 250 documents, {many:?} for 2500");
}
