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
    let measure = |count| {
        let folder = folder(&[("a.yaml", &documents(count))]);
        let run = || {
            let begin = Instant::now();
            let (code, stdout, stderr) =
                ended(binary().current_dir(folder.path()).args(["lint", "a.yaml", "-o", "json"]));
            assert_eq!(code, 0, "{stdout:.500}{stderr}");
            begin.elapsed()
        };
        (0..3).map(|_| run()).min().expect("a run")
    };
    // The smaller one is so long that starting the program is a small part of it.
    let (few, many) = (measure(250), measure(2_500));
    assert!(many <= few * 15, "{few:?} for 250 documents, {many:?} for 2500");
}
