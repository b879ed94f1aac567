//! Every fuzz target is in `fuzz/targets` and in `fuzz/README.md`. Every crate that `fuzz/counting-rustc` names exists.

use std::{collections::BTreeSet, fs, path::Path};

fn read(path: impl AsRef<Path>) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn every_target_is_run_and_explained() {
    let (list, page) = (read("fuzz/targets"), read("fuzz/README.md"));
    let listed = list.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.split_whitespace().next());
    let listed: BTreeSet<&str> = listed.collect();
    let programs = fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/src/bin")).expect("programs");
    let programs: BTreeSet<String> = programs
        .map(|entry| entry.expect("a program").file_name().to_string_lossy().trim_end_matches(".rs").to_owned())
        .collect();
    assert_eq!(programs.iter().map(String::as_str).collect::<BTreeSet<_>>(), listed);
    assert!(!listed.is_empty(), "fuzz/targets lists targets");
    for target in listed {
        assert!(page.contains(&format!("| `{target}` |")), "fuzz/README.md has no row of {target}");
    }
}

#[test]
fn every_crate_that_has_counters_is_one() {
    let (wrapper, lock) = (read("fuzz/counting-rustc"), read("fuzz/Cargo.lock"));
    let (_, list) = wrapper.split_once("case \"$name\" in\n").expect("a list of crates");
    let (list, _) = list.split_once(')').expect("the end of the list");
    for name in list.split(['|', '\\']).map(str::trim).filter(|name| !name.is_empty()) {
        let is_there = [name.to_owned(), name.replace('_', "-")].map(|it| lock.contains(&format!("name = \"{it}\"\n")));
        assert!(is_there.contains(&true), "no crate is called {name}");
    }
}
