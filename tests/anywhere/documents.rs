//! The written documents: their links lead somewhere.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// Written documents, and files that people read like them.
const READ: [&str; 15] = [
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "README.md",
    "SECURITY.md",
    "deploy/chart/README.md",
    "deploy/chart/values.yaml",
    "deploy/krew/manifest",
    "dashboards/alerts.yaml",
    "dashboards/alerts-without-agent.yaml",
    "Cargo.toml",
    "Dockerfile",
    "Makefile",
    ".ci/run",
    "deny.toml",
];

/// Folders whose pages are all read.
const FOLDERS: [&str; 3] = ["docs", "docs/rules", "docs/runbooks"];

fn documents() -> Vec<String> {
    let pages = FOLDERS.into_iter().flat_map(|folder| {
        let entries = fs::read_dir(root().join(folder)).unwrap_or_else(|error| panic!("{folder}: {error}"));
        let names = entries.map(|entry| entry.expect("an entry").file_name().display().to_string());
        names.filter(|name| name.ends_with(".md")).map(move |name| format!("{folder}/{name}"))
    });
    READ.map(str::to_owned).into_iter().chain(pages).collect()
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn text(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The targets of `[text](target)`, without their anchors.
fn links(text: &str) -> impl Iterator<Item = &str> {
    let targets = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    targets.map(|target| target.split('#').next().unwrap_or(target))
}

/// The files a document links to that are not there.
fn broken(folder: &Path, text: &str) -> Vec<PathBuf> {
    let inside = links(text).filter(|target| !target.is_empty() && !target.contains("://"));
    inside.map(|target| folder.join(target)).filter(|path| !path.exists()).collect()
}

#[test]
fn links_lead_to_files_that_are_there() {
    for document in documents().iter().filter(|path| path.ends_with(".md")) {
        let path = root().join(document);
        let folder = path.parent().expect("a document lies in a folder");
        assert_eq!(broken(folder, &text(document)), Vec::<PathBuf>::new(), "linked from {document}");
    }
}

#[test]
fn a_broken_link_is_caught() {
    let document = "[a](https://a.example/b) [b](README.md#using-it) [c](#top) [d](docs/nowhere.md)";
    assert_eq!(broken(root(), document), [root().join("docs/nowhere.md")]);
}

/// The anchors that a page has: its headings, as GitHub writes them.
fn anchors(text: &str) -> Vec<String> {
    let headings = text.lines().filter(|line| line.starts_with('#'));
    let anchor = |heading: &str| {
        let kept = |it: &char| it.is_alphanumeric() || matches!(it, ' ' | '-' | '_');
        heading.trim_start_matches('#').trim().to_lowercase().chars().filter(kept).collect::<String>().replace(' ', "-")
    };
    headings.map(anchor).collect()
}

#[test]
fn links_to_a_section_lead_to_one_that_is_there() {
    let mut seen = 0;
    for document in documents().iter().filter(|path| path.ends_with(".md")) {
        let (path, page) = (root().join(document), text(document));
        let targets =
            page.split("](").skip(1).filter_map(|rest| rest.split(')').next()).filter(|it| !it.contains("://"));
        for (file, section) in targets.filter_map(|target| target.split_once('#')) {
            let other = path.parent().expect("a folder").join(file);
            let linked = if file.is_empty() { page.clone() } else { fs::read_to_string(other).expect("a page") };
            assert!(anchors(&linked).iter().any(|it| it == section), "{document} links to {file}#{section}");
            seen += 1;
        }
    }
    assert!(seen > 10, "documents link to sections");
}

#[test]
fn a_heading_has_the_anchor_that_links_use() {
    assert_eq!(anchors("# A\ntext\n## What it asks, of *us* (API)\n"), ["a", "what-it-asks-of-us-api"]);
}
