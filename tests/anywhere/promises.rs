//! What `SECURITY.md` promises is tested: every test that it names is there.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Every Rust file below a folder.
fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let paths = entries.map(|entry| entry.expect("an entry").path());
    paths
        .flat_map(|path| match path.is_dir() {
            true => files(&path),
            false => vec![path],
        })
        .filter(|path| path.extension().is_some_and(|extension| extension == "rs"))
        .collect()
}

/// The names of the tests in a file: functions under an attribute `test`.
fn tests(source: &str) -> impl Iterator<Item = &str> {
    let after = source.split("test]\n").skip(1);
    after.filter_map(|rest| rest.split_once("fn ")?.1.split_once('(').map(|(name, _)| name))
}

/// Words between backticks that can be nothing but the names of tests.
fn named(document: &str) -> impl Iterator<Item = &str> {
    let is_sentence = |word: &&str| {
        word.matches('_').count() >= 3
            && word.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_')
    };
    document.split('`').skip(1).step_by(2).filter(is_sentence)
}

#[test]
fn every_test_that_the_threat_model_names_is_there() {
    let sources: Vec<String> = ["src", "tests"]
        .into_iter()
        .flat_map(|folder| files(&root().join(folder)))
        .map(|path| fs::read_to_string(path).expect("a source"))
        .collect();
    let known: BTreeSet<&str> = sources.iter().flat_map(|source| tests(source)).collect();
    let document = fs::read_to_string(root().join("SECURITY.md")).expect("a document");
    let named: Vec<&str> = named(&document).collect();
    assert!(named.len() >= 15, "{named:?}");
    let missing: Vec<&&str> = named.iter().filter(|name| !known.contains(**name)).collect();
    assert!(missing.is_empty(), "SECURITY.md names tests that are not there: {missing:#?}");
}

#[test]
fn a_test_that_is_gone_would_be_missed() {
    let source = "#[test]\nfn a_thing_that_holds() {}\n#[tokio::test]\n#[track]\nasync fn another_thing_that_holds() {}\nfn no_test_at_all() {}";
    assert_eq!(tests(source).collect::<Vec<_>>(), ["a_thing_that_holds", "another_thing_that_holds"]);
    let document = "`a_thing_that_holds`, `pods/proxy`, `endpoints_of`, `--cpu-percent`, `no_test_at_all`";
    assert_eq!(named(document).collect::<Vec<_>>(), ["a_thing_that_holds", "no_test_at_all"]);
}
