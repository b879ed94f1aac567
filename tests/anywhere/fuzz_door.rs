//! The doors of the fuzzers are closed in whatever is shipped, and every target has a line in the list and in the document.

use std::{collections::BTreeSet, fs, path::Path};

fn read(path: impl AsRef<Path>) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
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
    let (list, page) = (read("fuzz/targets"), read("docs/fuzzing.md"));
    let listed = list.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.split_whitespace().next());
    let listed: BTreeSet<&str> = listed.collect();
    let programs = fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/src/bin")).expect("programs");
    let programs: BTreeSet<String> = programs
        .map(|entry| entry.expect("a program").file_name().to_string_lossy().trim_end_matches(".rs").to_owned())
        .collect();
    assert_eq!(programs.iter().map(String::as_str).collect::<BTreeSet<_>>(), listed);
    assert!(listed.len() >= 20);
    for target in listed {
        assert!(page.contains(&format!("| `{target}` |")), "docs/fuzzing.md has no row of {target}");
    }
}

#[test]
fn every_door_is_opened_by_a_target() {
    let programs = fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/src/bin")).expect("programs");
    let programs: String =
        programs.map(|entry| read(entry.expect("a program").path().to_str().expect("a path of text"))).collect();
    for room in ["kernel", "cluster", "cli"] {
        let doors = read(format!("src/{room}/fuzzing.rs"));
        let doors = doors.lines().filter_map(|line| line.strip_prefix("pub fn ")?.split('(').next());
        for door in doors {
            assert!(programs.contains(&format!("portreeve::{room}::fuzzing::{door}(bytes)")), "{room}: {door}");
        }
    }
}

#[test]
fn every_crate_that_has_counters_is_one() {
    let (wrapper, lock) = (read("fuzz/counting-rustc"), read("fuzz/Cargo.lock"));
    let crates = wrapper.lines().find(|line| line.contains("portreeve |")).expect("a list of crates");
    for name in crates.trim().trim_end_matches(')').split(" | ") {
        let is_there = [name.to_owned(), name.replace('_', "-")].map(|it| lock.contains(&format!("name = \"{it}\"\n")));
        assert!(is_there.contains(&true), "no crate is called {name}");
    }
}
