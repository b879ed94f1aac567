//! Reads the declarations in the comments of tests. A declaration is deleted together with its test.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// The attributes of tests. The comment of a test is above the attribute.
const TESTS: [&str; 2] = ["#[test]", "#[tokio::test]"];

pub(super) struct Commented<'a> {
    pub(super) comment: Vec<&'a str>,
    pub(super) test: Option<&'a str>,
    /// The text of the file from the item to the end.
    pub(super) rest: &'a str,
}

impl<'a> Commented<'a> {
    /// Every line that is not a comment or an attribute begins an item.
    pub(super) fn all(text: &'a str) -> Vec<Self> {
        let mut found = Vec::new();
        let (mut comment, mut is_test, mut at) = (Vec::new(), false, 0);
        for whole in text.split_inclusive('\n') {
            let line = whole.trim();
            if let Some(words) = line.strip_prefix("///") {
                comment.push(words.trim());
            } else if TESTS.contains(&line) {
                is_test = true;
            } else if !line.starts_with("#[") {
                let name = line.trim_start_matches("async ").strip_prefix("fn ").filter(|_| is_test);
                let test = name.and_then(|rest| rest.split('(').next());
                found.push(Self { comment: std::mem::take(&mut comment), test, rest: &text[at..] });
                is_test = false;
            }
            at += whole.len();
        }
        found
    }

    pub(super) fn line(&self) -> &'a str {
        self.rest.lines().next().unwrap_or_default()
    }

    /// The entries in the item's comment. Each entry begins with the first of `words`, and ends at an empty line or at
    /// the next entry. A line that begins with none of `words` continues the line before.
    pub(super) fn entries(&self, words: &[&str]) -> Vec<Vec<String>> {
        let mut entries: Vec<Vec<String>> = Vec::new();
        let mut is_open = false;
        for line in &self.comment {
            let begins = |word: &&str| line.starts_with(*word);
            if words.first().is_some_and(begins) {
                entries.push(Vec::new());
                is_open = true;
            }
            is_open &= !line.is_empty();
            let Some(entry) = entries.last_mut().filter(|_| is_open) else { continue };
            match entry.last_mut() {
                Some(last) if !words.iter().any(begins) => *last = format!("{last} {line}"),
                _ => entry.push((*line).to_owned()),
            }
        }
        entries
    }
}

pub(super) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The path and the text of each source file below a folder of the package, in the same order on every machine.
pub(super) fn sources(folder: &str) -> Vec<(String, String)> {
    let read = |path: PathBuf| {
        let text = fs::read_to_string(&path).expect("a source file is UTF-8");
        (path.strip_prefix(root()).expect("it lies below the root").display().to_string(), text)
    };
    files(&root().join(folder)).into_iter().map(read).collect()
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).expect("a folder can be listed");
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
    paths.sort();
    let below = paths.into_iter().flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] });
    below.filter(|path| path.extension().is_some_and(|it| it == "rs")).collect()
}

/// If the environment variable `UPDATE` is set, the function writes the page first.
pub(super) fn is_up_to_date(page: &str, wanted: &str) -> bool {
    let path = root().join(page);
    if std::env::var_os("UPDATE").is_some() {
        fs::write(&path, wanted).expect("a document");
    }
    fs::read_to_string(&path).unwrap_or_default() == wanted
}
