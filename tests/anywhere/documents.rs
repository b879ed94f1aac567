//! The written documents: their links work, and the commands and figures that users rely on are right.

use std::{
    fs,
    path::{Path, PathBuf},
};

use portreeve_cluster::WatchTiming;

/// Written documents, and other files that people read.
const READ: [&str; 18] = [
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "GOVERNANCE.md",
    "README.md",
    "SECURITY.md",
    "SUPPORT.md",
    "fuzz/README.md",
    "deploy/chart/README.md",
    "deploy/chart/values.yaml",
    ".goreleaser.yaml",
    "dashboards/alerts.yaml",
    "dashboards/alerts-without-agent.yaml",
    "Cargo.toml",
    "Dockerfile",
    "Makefile",
    ".ci/run",
    "deny.toml",
];

/// Folders whose pages are all read.
const FOLDERS: [&str; 6] =
    ["docs", "docs/platforms", "docs/rules", "docs/runbooks", "docs/symptoms", "docs/who-answers"];

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

/// Linked files that do not exist.
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

/// The anchors of a page: its headings, in GitHub's form.
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

/// Kept beside the tests of links: users type this range, and it can take the ports of another program.
#[test]
fn whoever_is_advised_to_widen_the_ephemeral_range_reads_what_else_has_ports_there() {
    // A page of a rule shows a range as a value, and is no advice. `cli.md` has the flag's grammar.
    let advises = |path: &String| !path.starts_with("docs/rules/") && path != "docs/cli.md" && path.ends_with(".md");
    let pages: Vec<String> = documents().into_iter().filter(advises).filter(|it| text(it).contains("65535")).collect();
    for page in &pages {
        assert!(text(page).contains("NodePortLocal"), "{page}: 65535 covers the ports of Antrea's NodePortLocal");
    }
    assert!(pages.len() > 2, "documents speak of the ephemeral port range: {pages:?}");
}

/// The median in a field of a table row, like `10.8`.
fn median<'a>(rows: &'a str, name: &str, column: usize) -> &'a str {
    let start = format!("| {name} |");
    let row = rows.lines().find(|line| line.starts_with(&start)).unwrap_or_else(|| panic!("no row {name}"));
    let number = row.split('|').nth(column).and_then(|cell| cell.split_whitespace().next()).expect("a number");
    // A count is `2`, not `2.0`.
    number.strip_suffix(".0").unwrap_or(number)
}

/// Users plan with these figures. `UPDATE=1 make bench` writes the rows; a person writes the answers of docs/cost.md.
#[test]
fn the_first_numbers_about_cost_are_those_of_the_rows() {
    let (page, answers) = (text("docs/performance.md"), text("docs/cost.md"));
    let (_, rows) = page.split_once("<!-- generated by `UPDATE=1 make bench` -->").expect("rows");
    let listeners = "listeners on NodePorts, 500k sockets, process, compared with ss";
    for (question, row, column, unit) in [
        ("memory with 5,000 Services", "resident memory, 5k Services, 2k sockets", 2, " MiB**"),
        ("memory with 5,000 Services", "resident memory, 50k Services, 0 sockets", 2, " MiB with 50,000"),
        ("memory with 5,000 Services", "resident memory of kube-proxy, 5k Services, to compare with", 2, " MiB)"),
        ("processor time", "processor time, 5k Services, 2k sockets", 2, "** thousandths"),
        ("time of one", "`portreeve check` with 10k sockets, whole process, compared with ss", 2, " ms** with 10,000"),
        ("time of one", "`portreeve check` with 100k sockets, whole process, compared with ss", 2, " ms with 100,000"),
        ("cost with 500,000", listeners, 2, " ms**, `ss`"),
        ("cost with 500,000", listeners, 4, " ms. Every rule"),
        ("cost with 500,000", "`portreeve check` with 500k sockets, whole process, compared with ss", 2, " ms |"),
        ("load on the API server", "watches of an agent", 2, " open watches"),
        ("load on the API server", "reads of an agent at rest", 2, "** reads"),
        ("load on the API server", "traffic of an agent at rest", 2, " KiB**"),
        ("load on the API server", "writes of an agent at rest", 2, " writes |"),
    ] {
        let start = format!("| {question}");
        let answer = answers.lines().find(|line| line.starts_with(&start)).expect("an answer");
        let said = format!("{}{unit}", median(rows, row, column));
        let begins = |at: usize| answer[..at].ends_with([' ', '*', '(']);
        assert!(
            answer.match_indices(&said).any(|(at, _)| begins(at)),
            "docs/cost.md: the row {row} has {said}, and the answer is {answer}"
        );
    }
}

/// A figure with which users plan their API server.
#[test]
fn the_watches_that_a_fleet_renews_are_those_that_its_agents_do() {
    let watch_duration = WatchTiming::default().watch_duration.as_secs();
    assert_eq!(watch_duration, 300, "each watch is renewed after five to ten minutes");
    // By chance, a run may last up to twice as long.
    let said = format!("10,000 open watches; {} of them are renewed each second", 10_000 * 2 / (3 * watch_duration));
    assert!(text("docs/cost.md").contains(&said), "docs/cost.md: {said}");
}
