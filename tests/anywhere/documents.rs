//! The written documents: their links work, and the commands and figures that users rely on are right.

use std::{
    collections::BTreeSet,
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

/// The rows of SUPPORT.md whose last column has versions of programs: the row, and those programs of `tools/versions`, oldest first.
const RUN: [(&str, &[&str]); 8] = [
    ("kube-apiserver", &["kube-apiserver"]),
    ("kubelet", &["kubelet"]),
    ("kubectl", &["kubectl"]),
    ("kube-proxy", &["kube-proxy-1.23.6", "kube-proxy", "kube-proxy-1.37.2"]),
    ("Cilium as the proxy", &["cilium-agent-before", "cilium-agent"]),
    ("portmap, for hostPorts", &["portmap-1.9.0"]),
    ("Helm", &["helm-3", "helm"]),
    ("krew", &["krew"]),
];

/// The folder of the module that has a program of `tools/versions`, and the version there.
fn pinned(program: &str) -> (String, String) {
    let tools = text("tools/versions");
    let mut rows = tools.lines().map(|row| row.split_whitespace().collect::<Vec<_>>());
    let row = rows.find(|row| row.get(1) == Some(&"go") && row.get(2) == Some(&program));
    let row = row.unwrap_or_else(|| panic!("tools/versions has no {program}"));
    let (_, module) = row[5].split_once('/').expect("a place, and a module");
    (row[3].to_owned(), required(row[3], module))
}

/// The version of a module that the `go.mod` of a folder requires.
fn required(folder: &str, module: &str) -> String {
    let modules = text(&format!("{folder}/go.mod"));
    let mut lines = modules.lines().map(|line| line.trim().trim_start_matches("require "));
    let version = lines.find_map(|line| line.strip_prefix(module)?.strip_prefix(" v")?.split(' ').next());
    version.unwrap_or_else(|| panic!("{folder}/go.mod does not require {module}")).to_owned()
}

/// The words of a table field that begin with a digit.
fn versions(cell: &str) -> Vec<&str> {
    cell.split([' ', ',']).filter(|word| word.starts_with(|it: char| it.is_ascii_digit())).collect()
}

#[test]
fn the_supported_versions_are_those_that_tests_run() {
    let page = text("SUPPORT.md");
    let row = |part: &str| -> [String; 2] {
        let start = format!("| {part} | ");
        let rest = page.lines().find_map(|line| line.strip_prefix(&start));
        let cells = rest.and_then(|rest| rest.strip_suffix(" |")?.split_once(" | "));
        let (supported, run) = cells.unwrap_or_else(|| panic!("SUPPORT.md has no row {part}"));
        [supported.to_owned(), run.to_owned()]
    };
    let mut folders = BTreeSet::new();
    for (part, programs) in RUN {
        let (of_part, pins): (Vec<String>, Vec<String>) = programs.iter().map(|program| pinned(program)).unzip();
        let [supported, run] = row(part);
        let shown: Vec<&str> = versions(&run).into_iter().filter(|it| it.contains('.')).collect();
        assert_eq!(shown, pins, "{part}: the pinned versions");
        folders.extend(of_part);
        // A range ends with the newest version that was run, and begins with the oldest of several.
        let ends = versions(&supported);
        if let (Some(first), Some(last), false) = (ends.first(), ends.last(), supported.ends_with("or later")) {
            let is_of = |end: &str, pin: &String| pin.starts_with(&format!("{end}."));
            assert!(is_of(last, &pins[pins.len() - 1]), "{part}: {supported}, and {run} is run");
            assert!(pins.len() == 1 || is_of(first, &pins[0]), "{part}: {supported}, and {run} is run");
        }
    }

    let reports = "tests/lab/openreports";
    let [_, definitions] = row("OpenReports");
    assert_eq!(versions(&definitions), [required(reports, "github.com/openreports/reports-api")]);
    folders.insert(reports.to_owned());
    let modules = fs::read_dir(root().join("tests/lab")).expect("a folder").map(|entry| entry.expect("an entry"));
    let modules = modules.filter(|entry| entry.path().join("go.mod").exists());
    let mut modules: BTreeSet<String> =
        modules.map(|entry| format!("tests/lab/{}", entry.file_name().display())).collect();
    modules.insert("tests/lab".to_owned());
    assert_eq!(folders, modules, "SUPPORT.md has a row for the program of each module");

    let script = text("tests/lab/before");
    let commit = script.lines().find_map(|line| line.strip_prefix("commit=")).expect("a commit");
    let [_, before] = row("plugin and agents");
    assert_eq!(before, format!("the program of commit {}", &commit[..8]));
}

#[test]
fn the_oldest_kubernetes_is_one_in_the_program_the_chart_and_the_documents() {
    let (manifest, chart) = (text("Cargo.toml"), text("deploy/chart/Chart.yaml"));
    let (_, feature) = manifest.split_once("k8s-openapi = { version = ").expect("the crate");
    let (_, feature) = feature.split_once("features = [\"v").expect("a feature");
    let (oldest, _) = feature.split_once('"').expect("its end");
    let oldest = oldest.replace('_', ".");
    assert!(chart.contains(&format!("\nkubeVersion: \">={oldest}.0-0\"\n")), "Chart.yaml: {oldest}");
    for (page, said) in [
        ("SUPPORT.md", format!("| kube-apiserver | {oldest} or later |")),
        ("deploy/chart/README.md", format!("Kubernetes {oldest} or later")),
    ] {
        assert!(text(page).contains(&said), "{page}: {said}");
    }
}
