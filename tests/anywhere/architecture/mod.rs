//! The house rules, read from the source itself. Every check is a function from a tree of files to complaints,
//! and has a test which shows that it complains.

mod checks;
mod circles;
mod source;
mod table;

use std::{fs, path::Path};

pub(crate) use checks::names_machine;
use checks::{Complaint, File};

/// Every Rust file of the package.
fn tree() -> Vec<File> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = Vec::new();
    for top in ["src", "tests", "benches"] {
        collect(root, &root.join(top), &mut files);
    }
    assert!(files.iter().any(|file| file.path == "src/lib.rs"), "no source below {}", root.display());
    files
}

fn collect(root: &Path, folder: &Path, files: &mut Vec<File>) {
    if !folder.exists() {
        return;
    }
    for entry in fs::read_dir(folder).expect("a folder can be listed") {
        let path = entry.expect("a folder can be listed").path();
        if path.is_dir() {
            collect(root, &path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path).expect("a source file is UTF-8");
            let path = path.strip_prefix(root).expect("it lies below the root").display().to_string();
            files.push(File { path, text });
        }
    }
}

/// What is known and not mended yet, by a part of its complaint. Has to become empty, and go.
const OPEN: &[&str] = &[];

#[track_caller]
fn holds(check: fn(&[File]) -> Vec<Complaint>) {
    let mut complaints = check(&tree());
    complaints.retain(|complaint| !OPEN.iter().any(|open| complaint.contains(open)));
    assert!(complaints.is_empty(), "\n{}", complaints.join("\n"));
}

#[test]
fn rooms_know_only_whom_they_may() {
    holds(checks::edges);
}

#[test]
fn every_room_says_its_job_and_its_never() {
    holds(checks::rooms);
}

#[test]
fn foreign_crates_stop_at_the_door() {
    holds(checks::doors);
}

#[test]
fn every_file_is_compiled() {
    holds(checks::orphans);
}

#[test]
fn no_file_is_too_long() {
    holds(checks::length);
}

#[test]
fn half_of_the_files_are_short() {
    holds(checks::median);
}

#[test]
fn no_file_uses_one_that_uses_it() {
    holds(circles::circles);
}

#[test]
fn the_table_of_rooms_in_the_document_is_the_one_that_is_held() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("ARCHITECTURE.md");
    let document = fs::read_to_string(path).expect("the document");
    assert_eq!(table::complaints(&document), Vec::<Complaint>::new());
}

#[test]
fn every_rule_is_registered_and_tested_in_all_three_ways() {
    holds(checks::rules);
}

#[test]
fn no_test_is_ignored() {
    holds(checks::ignored);
}

#[test]
fn names_and_imports_keep_to_the_style() {
    holds(checks::style);
}
