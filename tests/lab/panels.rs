//! The queries in the panels of the dashboards.

use std::{fs, path::Path};

use serde_json::Value;

/// These panels are empty in a healthy cluster. An empty panel shows a text.
pub const EMPTY_WHEN_WELL: [&str; 4] =
    ["Panics", "Failed requests per minute", "Nodes on which a source could not be read", "Rules that could not judge"];
pub const EMPTY_WHEN_NEW: [&str; 2] = ["Free automatic NodePorts in three days", "Ephemeral ports in four hours"];
/// Values for the dashboards' variables. Longer names come first: `$name` is also the beginning of `$namespace`.
const CHOSEN: [(&str, &str); 9] = [
    ("$__interval", "15s"),
    ("$cluster", ".*"),
    ("$rule", "listener-on-node-port"),
    ("$variant", "loses"),
    ("$kind", "Service"),
    ("$namespace", "default"),
    ("$name", "web"),
    ("$port", "30080"),
    ("$protocol", "tcp"),
];

pub struct Question {
    pub dashboard: &'static str,
    pub panel: String,
    pub title: String,
    pub target: String,
    /// The query in the form in which Grafana sends it.
    pub query: String,
    pub is_instant: bool,
}

/// The queries of all panels. A query about one node is about `n1`.
pub fn questions(rate_interval: &str, range: &str) -> Vec<Question> {
    let of = |(dashboard, node)| {
        let panels = panels(dashboard);
        let targets = panels.into_iter().flat_map(|panel| {
            let targets = panel["targets"].as_array().cloned().unwrap_or_default();
            targets.into_iter().map(move |target| (panel.clone(), target))
        });
        let questions = targets.map(|(panel, target)| Question {
            dashboard,
            panel: panel["id"].to_string(),
            title: word(&panel, "title"),
            target: word(&target, "refId"),
            query: substituted(
                &word(&target, "expr"),
                &[("$__rate_interval", rate_interval), ("$__range", range), ("$node", node)],
            ),
            is_instant: target["instant"] == true,
        });
        questions.collect::<Vec<_>>()
    };
    [("fleet", ".*"), ("incident", ".*"), ("node", "n1"), ("agent", ".*")].into_iter().flat_map(of).collect()
}

fn panels(dashboard: &str) -> Vec<Value> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("dashboards").join(dashboard).with_extension("json");
    let text = fs::read_to_string(file).expect("a dashboard");
    let mut dashboard: Value = serde_json::from_str(&text).expect("JSON");
    serde_json::from_value(dashboard["panels"].take()).expect("panels")
}

fn substituted(query: &str, own: &[(&str, &str)]) -> String {
    own.iter().chain(&CHOSEN).fold(query.to_owned(), |query, (name, value)| query.replace(name, value))
}

fn word(value: &Value, key: &str) -> String {
    value[key].as_str().unwrap_or_else(|| panic!("no {key}: {value:#}")).to_owned()
}
