//! The doors of the fuzzers are closed in whatever is shipped, and every target has a line in the list and in the document.

use std::{fs, path::Path};

fn read(path: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path))
        .unwrap_or_else(|error| panic!("{path}: {error}"))
}

#[test]
fn nothing_that_is_shipped_has_the_feature() {
    let manifest = read("Cargo.toml");
    assert!(manifest.contains("\nfuzzing = []\n") && !manifest.contains("\ndefault = ["));
    for file in ["Makefile", "Dockerfile", ".ci/run"] {
        let text = read(file);
        assert!(!text.contains("--features") && !text.contains("--all-features"), "{file}");
    }
}

#[test]
fn every_target_is_run_and_explained() {
    let (program, list, page) = (read("fuzz/src/main.rs"), read("fuzz/targets"), read("docs/fuzzing.md"));
    let named = program.lines().filter_map(|line| line.trim().strip_prefix("(\"")?.split('"').next());
    let listed = list.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.split_whitespace().next());
    let listed: Vec<&str> = listed.collect();
    assert_eq!(named.collect::<Vec<_>>(), listed);
    assert!(listed.len() >= 14);
    for target in listed {
        assert!(page.contains(&format!("| `{target}` |")), "docs/fuzzing.md has no row of {target}");
    }
}
