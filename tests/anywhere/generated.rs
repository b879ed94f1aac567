//! What the program writes about itself is what is committed below `docs/`. `make docs` writes it anew.

mod comments;
mod faults;
mod threads;
mod worlds;

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use portreeve::cli::generated_documents;

fn docs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("docs")
}

#[test]
fn the_generated_documents_are_up_to_date() {
    let update = std::env::var_os("UPDATE").is_some();
    let mut old = Vec::new();
    for (name, wanted) in generated_documents() {
        let path = docs().join(&name);
        if update {
            fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
            fs::write(&path, &wanted).expect("a document");
        }
        // A page that is not there yet is old too.
        if !fs::read_to_string(&path).is_ok_and(|found| found == wanted) {
            old.push(format!("docs/{name}"));
        }
    }
    assert!(old.is_empty(), "`make docs` writes anew: {}", old.join(", "));
}

#[test]
fn no_page_is_left_of_a_rule_that_is_gone() {
    let wanted: BTreeSet<PathBuf> = generated_documents().into_iter().map(|(name, _)| docs().join(name)).collect();
    for entry in fs::read_dir(docs().join("rules")).expect("pages") {
        let page = entry.expect("a page").path();
        assert!(wanted.contains(&page), "{} is of no rule", page.display());
    }
}
