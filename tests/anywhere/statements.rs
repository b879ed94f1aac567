//! Statements of the written documents that the program or the measured rows can contradict.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use portreeve::{cli::generated_documents, rules::RULES};

/// The documents that people write: what the program writes about itself is not among them.
fn written() -> Vec<(String, String)> {
    let mut paths: Vec<PathBuf> = ["README.md", "CONTRIBUTING.md", "SECURITY.md", "deploy/chart/README.md"]
        .map(|name| root().join(name))
        .to_vec();
    let made: BTreeSet<PathBuf> =
        generated_documents().into_iter().map(|(name, _)| root().join("docs").join(name)).collect();
    for folder in ["docs", "docs/runbooks"] {
        let pages =
            files(&root().join(folder)).into_iter().filter(|path| path.extension().is_some_and(|it| it == "md"));
        paths.extend(pages.filter(|path| !made.contains(path)));
    }
    paths.into_iter().map(|path| (path.display().to_string(), text(&path))).collect()
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn text(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The files of one folder.
fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    entries.map(|entry| entry.expect("an entry").path()).filter(|path| path.is_file()).collect()
}

/// The files of the program below a folder, without those that only tests are in.
fn sources(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let (folders, files): (Vec<PathBuf>, Vec<PathBuf>) =
        entries.map(|entry| entry.expect("an entry").path()).partition(|path| path.is_dir());
    let is_tested = |path: &PathBuf| !path.ends_with("tests.rs") && path.extension().is_some_and(|it| it == "rs");
    files.into_iter().filter(is_tested).chain(folders.iter().flat_map(|folder| sources(folder))).collect()
}

/// The sentence parts "`rule` is `severity` at most" of a text: the rule and the severity.
fn ceilings(text: &str) -> Vec<(String, String)> {
    let words: Vec<&str> = text.split('`').collect();
    let named = words.windows(4).filter(|it| it[1].trim() == "is" && it[3].trim_start().starts_with("at most"));
    named.map(|it| (it[0].to_owned(), it[2].to_owned())).collect()
}

#[test]
fn the_ceiling_that_a_document_names_for_a_rule_is_the_ceiling_of_the_rule() {
    let mut seen = 0;
    for (path, text) in written() {
        for (name, severity) in ceilings(&text) {
            let rule = RULES.iter().find(|rule| rule.id.0 == name);
            let rule = rule.unwrap_or_else(|| panic!("{path}: there is no rule {name}"));
            assert_eq!(rule.ceiling.to_string(), severity, "{path}: {name}");
            seen += 1;
        }
    }
    assert!(seen > 0, "no document names a ceiling");
}

#[test]
fn a_wrong_ceiling_is_seen() {
    let text = "Not today. `listener-in-node-port-range` is `warning` at most: `x` is `y`.";
    assert_eq!(ceilings(text), [("listener-in-node-port-range".to_owned(), "warning".to_owned())]);
}

#[test]
fn only_the_demo_starts_programs_and_only_itself() {
    let src = root().join("src");
    let demo = src.join("cli/demo");
    let mut starters = BTreeSet::new();
    for path in sources(&src) {
        let text = text(&path);
        for started in text.split("Command::new(").skip(1) {
            let is_itself = path.starts_with(&demo) && started.starts_with("\"/proc/self/exe\")");
            // clap has a `Command` too, of arguments.
            let is_program = |line: &str| line.contains("process::") && line.contains("Command");
            if !is_itself && text.lines().any(is_program) {
                starters.insert(path.strip_prefix(&src).expect("below src").display().to_string());
            }
        }
    }
    // The login program of a kubeconfig. README.md and SECURITY.md name all that is started.
    assert_eq!(starters, BTreeSet::from(["cluster/credential_plugin.rs".to_owned()]));
    for document in ["README.md", "SECURITY.md"] {
        let text = text(&root().join(document)).split_whitespace().collect::<Vec<_>>().join(" ");
        for words in ["*exec plugin*", "`demo` starts copies of Portreeve itself"] {
            assert!(text.contains(words), "{document} does not say: {words}");
        }
    }
}

#[test]
fn on_the_node_only_the_proxy_and_the_health_checks_are_called() {
    let kernel = root().join("src/kernel");
    let callers: BTreeSet<PathBuf> =
        sources(&kernel).into_iter().filter(|path| text(path).contains("http::get(")).collect();
    let named = [kernel.join("health.rs"), kernel.join("proxy/mod.rs")];
    assert_eq!(callers, named.into(), "README.md and SECURITY.md name who is called");
    for document in ["README.md", "SECURITY.md"] {
        let text = text(&root().join(document));
        assert!(text.contains("healthCheckNodePorts") && text.contains("kube-proxy"), "{document}");
    }
}

#[test]
fn whoever_is_advised_to_widen_the_ephemeral_range_reads_what_else_has_ports_there() {
    let mut seen = 0;
    for (path, text) in written().into_iter().filter(|(_, text)| text.contains("65535")) {
        assert!(text.contains("NodePortLocal"), "{path}: 65535 covers the ports of Antrea's NodePortLocal");
        seen += 1;
    }
    assert!(seen > 2, "documents speak of the ephemeral port range");
}

/// The median in the cell of a row, like `10.8`.
fn median(rows: &str, name: &str, column: usize) -> String {
    let start = format!("| {name} |");
    let row = rows.lines().find(|line| line.starts_with(&start)).unwrap_or_else(|| panic!("no row {name}"));
    let cell = row.split('|').map(str::trim).nth(column).expect("a cell");
    cell.split(' ').next().expect("a number").to_owned()
}

#[test]
fn the_first_numbers_about_cost_are_those_of_the_rows() {
    let page = text(&root().join("docs/performance.md"));
    let (answers, _) = page.split_once("\n## ").expect("sections");
    let (_, rows) = page.split_once("<!-- generated by `UPDATE=1 make bench` -->").expect("rows");
    let check = "every rule, 500k sockets, process, vs ss";
    let listeners = "listeners on NodePorts, 500k sockets, process, vs ss";
    for (question, row, column, unit) in [
        ("memory with 5,000 Services", "resident memory, 5k Services, 2k sockets", 2, "MiB**"),
        ("memory with 5,000 Services", "resident memory, 50k Services, 0 sockets", 2, "MiB with 50,000"),
        ("memory with 5,000 Services", "resident memory of kube-proxy, 5k Services, to compare with", 2, "MiB)"),
        ("processor time", "processor time, 5k Services, 2k sockets", 2, "** thousandths"),
        ("time of one", "every rule, 10k sockets, process, vs ss", 2, "ms** with 10,000"),
        ("time of one", "every rule, 100k sockets, process, vs ss", 2, "ms with 100,000"),
        ("cost with 500,000", listeners, 2, "ms**, `ss`"),
        ("cost with 500,000", listeners, 4, "ms. Every rule"),
        ("cost with 500,000", check, 2, "ms |"),
        ("load on the API server", "watches of an agent", 2, "open watches"),
        ("load on the API server", "reads of an agent at rest", 2, "** reads"),
        ("load on the API server", "traffic of an agent at rest", 2, "KiB**"),
        ("load on the API server", "writes of an agent at rest", 2, "writes |"),
    ] {
        let start = format!("| {question}");
        let answer = answers.lines().find(|line| line.starts_with(&start)).expect("an answer");
        let number = median(rows, row, column);
        // Two watches are two, and not 2.0.
        let number = number.strip_suffix(".0").unwrap_or(&number);
        let said = format!("{number} {unit}").replace(" **", "**");
        assert!(answer.contains(&said), "docs/performance.md: the row {row} has {said}, and the answer is {answer}");
    }
}

#[test]
fn the_watches_that_a_fleet_renews_are_those_that_its_agents_do() {
    let page = text(&root().join("docs/performance.md"));
    let watch_duration = portreeve::cluster::WatchTiming::default().watch_duration.as_secs();
    // Each lasts up to twice as long by chance.
    let renewed = 10_000 * 2 / (3 * watch_duration);
    let said = format!("10,000 open watches; {renewed} of them are renewed each second");
    assert!(page.contains(&said), "docs/performance.md: {said}");
    assert_eq!(watch_duration, 300, "docs/performance.md: each watch is renewed after five to ten minutes");
}

#[test]
fn the_page_about_data_planes_names_every_field_of_one() {
    let source = text(&root().join("src/dataplane/plane.rs"));
    let (_, body) = source.split_once("struct DataPlane {\n").expect("the shape of a data plane");
    let (body, _) = body.split_once("\n}").expect("its end");
    let fields = body.lines().filter_map(|line| line.trim().strip_prefix("pub(super) ")?.split_once(':'));
    let fields: Vec<&str> = fields.map(|(name, _)| name).collect();
    let page = text(&root().join("docs/adding-a-data-plane.md"));
    let named = page.lines().filter_map(|line| line.strip_prefix("| `")?.split_once('`'));
    let named: Vec<&str> = named.map(|(name, _)| name).collect();
    assert_eq!(named, fields, "the rows of docs/adding-a-data-plane.md");
}
