//! Parses a part of PromQL, to compare the names in a query with the catalogue of metrics. promtool checks the syntax.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
    process::Command,
};

/// Labels that Prometheus, the chart's monitors or the operator of several clusters adds to each metric.
pub(crate) const TARGET: [&str; 4] = ["cluster", "node", "instance", "job"];

const AGGREGATED_BY: [&str; 6] = ["by", "without", "on", "ignoring", "group_left", "group_right"];
const OPERATORS: [&str; 5] = ["and", "or", "unless", "offset", "bool"];

#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Query {
    pub(crate) selectors: Vec<Selector>,
    pub(crate) grouped: BTreeSet<String>,
}

#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Selector {
    pub(crate) metric: String,
    pub(crate) matchers: Vec<(String, String)>,
    /// The function around the metric and the range, for example `rate` and `5m`. `None` if the query has no range.
    pub(crate) range: Option<(String, String)>,
}

#[derive(Debug)]
pub(crate) struct Metric {
    pub(crate) is_counter: bool,
    pub(crate) labels: BTreeSet<String>,
}

impl Query {
    pub(crate) fn of(text: &str) -> Self {
        let tokens = tokens(text);
        let is = |at: usize, wanted: &str| tokens.get(at).is_some_and(|token| token == wanted);
        let mut query = Self::default();
        let mut function = String::new();
        let mut at = 0;
        while let Some(token) = tokens.get(at) {
            at += 1;
            if AGGREGATED_BY.contains(&token.as_str()) {
                if is(at, "(") {
                    let end = at + tokens[at..].iter().position(|token| token == ")").expect("a parenthesis closes");
                    query.grouped.extend(tokens[at + 1..end].iter().filter(|token| *token != ",").cloned());
                    at = end + 1;
                }
            } else if !is_name(token) {
                continue;
            } else if is(at, "(") || is(at, "by") || is(at, "without") {
                function.clone_from(token);
            } else {
                let mut selector = Selector { metric: token.clone(), ..Selector::default() };
                if is(at, "{") {
                    let end = at + tokens[at..].iter().position(|token| token == "}").expect("a brace closes");
                    let matchers = tokens[at + 1..end].split(|token| token == ",");
                    let pair =
                        |it: &[String]| (it[0].clone(), it.last().expect("a value").trim_matches('"').to_owned());
                    selector.matchers = matchers.filter(|it| !it.is_empty()).map(pair).collect();
                    at = end + 1;
                }
                if let Some(range) = tokens.get(at).and_then(|token| token.strip_prefix('[')) {
                    selector.range = Some((function.clone(), range.to_owned()));
                }
                query.selectors.push(selector);
            }
        }
        query
    }

    pub(crate) fn strange(&self, catalogue: &BTreeMap<String, Metric>) -> Vec<String> {
        let mut strange = Vec::new();
        let mut known: BTreeSet<&str> = TARGET.into();
        for Selector { metric, matchers, .. } in &self.selectors {
            let Some(Metric { labels, .. }) = catalogue.get(metric) else {
                strange.push(metric.clone());
                continue;
            };
            known.extend(labels.iter().map(String::as_str));
            let foreign = |label: &&String| !labels.contains(*label) && !TARGET.contains(&label.as_str());
            let foreign = matchers.iter().map(|(label, _)| label).filter(foreign);
            strange.extend(foreign.map(|label| format!("{metric}{{{label}}}")));
        }
        strange.extend(self.grouped.iter().filter(|label| !known.contains(label.as_str())).cloned());
        strange
    }
}

/// Every metric in `docs/metrics.md`, which the program itself writes, and the metric `up` of Prometheus.
pub(crate) fn catalogue() -> BTreeMap<String, Metric> {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/metrics.md");
    let page = fs::read_to_string(&page).unwrap_or_else(|error| panic!("{}: {error}", page.display()));
    let mut all = BTreeMap::from([("up".to_owned(), Metric { is_counter: false, labels: BTreeSet::new() })]);
    for row in page.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let quoted = |cell: &str| cell.split('`').skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>();
        let (name, kind) = (quoted(cells[1]).remove(0), cells[2]);
        let labels: BTreeSet<String> = quoted(cells[3]).into_iter().collect();
        if kind == "histogram" {
            let with_bound = BTreeSet::from(["le".to_owned()]);
            for part in ["_sum", "_count"] {
                all.insert(name.clone() + part, Metric { is_counter: true, labels: labels.clone() });
            }
            all.insert(name + "_bucket", Metric { is_counter: true, labels: &labels | &with_bound });
        } else {
            all.insert(name, Metric { is_counter: kind == "counter", labels });
        }
    }
    all
}

/// # Panics
/// Panics if promtool is not installed: no other program can check the rules.
pub(crate) fn promtool(folder: &Path, arguments: &[&str]) -> Result<String, String> {
    let output = Command::new("promtool").args(arguments).current_dir(folder).output();
    let output = output.unwrap_or_else(|error| panic!("promtool, of Debian's package prometheus: {error}"));
    let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    if output.status.success() { Ok(said) } else { Err(said) }
}

fn is_name(token: &str) -> bool {
    token.starts_with(|first: char| first.is_ascii_alphabetic()) && !OPERATORS.contains(&token)
}

/// A token is a word, a string with its quotes, a range from `[` without its end, or one other character.
fn tokens(text: &str) -> Vec<String> {
    let mut tokens = Vec::new();
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        let inside = |end: char| 1 + rest[1..].find(end).expect("what is opened is closed");
        let word = |it: char| it.is_ascii_alphanumeric() || matches!(it, '_' | ':' | '.');
        let length = match first {
            '"' => inside('"') + 1,
            '[' => inside(']'),
            _ if word(first) => rest.find(|it| !word(it)).unwrap_or(rest.len()),
            _ => first.len_utf8(),
        };
        tokens.push(rest[..length].to_owned());
        let closed = if first == '[' { length + 1 } else { length };
        rest = rest[closed..].trim_start();
    }
    tokens
}

#[test]
fn a_query_is_taken_apart() {
    let query = Query::of("1e3 * max by (a, b) (rate(x{l=~\"u|v\", m=\"\"}[5m:1m] offset 1m)) and on (c) y > bool 0.5");
    let pair = |label: &str, value: &str| (label.to_owned(), value.to_owned());
    let x = Selector {
        metric: "x".to_owned(),
        matchers: vec![pair("l", "u|v"), pair("m", "")],
        range: Some(("rate".to_owned(), "5m:1m".to_owned())),
    };
    let y = Selector { metric: "y".to_owned(), ..Selector::default() };
    let grouped = ["a", "b", "c"].map(str::to_owned).into();
    assert_eq!(query, Query { selectors: vec![x, y], grouped });
}

#[test]
fn what_the_catalogue_does_not_have_is_found() {
    let query = "sum by (node, severity, shoe) (portreeve_findings{rule=\"x\", port=\"1\"}) / portreeve_shoes";
    let wanted = ["portreeve_findings{port}", "portreeve_shoes", "shoe"];
    assert_eq!(Query::of(query).strange(&catalogue()), wanted);
}

#[test]
fn the_catalogue_has_counters_gauges_and_buckets() {
    let catalogue = catalogue();
    assert!(catalogue["portreeve_scans_total"].is_counter);
    assert!(!catalogue["portreeve_findings"].is_counter);
    assert!(catalogue["portreeve_scan_duration_seconds_bucket"].labels.contains("le"));
    assert!(catalogue.len() > 30);
}
