//! What the panels of the dashboards ask.

use std::{fs, path::Path};

use serde_json::Value;

/// Panels that are empty while nothing fails, and say so.
pub const EMPTY_WHEN_WELL: [&str; 4] =
    ["Panics", "Failures to read the cluster", "Sources that could not be read", "Verdicts that could not be given"];
/// Panels that are empty for hours, and say so.
pub const EMPTY_WHEN_NEW: [&str; 2] = ["Free automatic NodePorts in three days", "Ephemeral ports in four hours"];
/// What stands for the dashboards' variables. One may begin like another that comes after it.
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

/// One query of a panel.
pub struct Question {
    pub dashboard: &'static str,
    pub panel: String,
    pub title: String,
    /// The panel's own name of the query.
    pub target: String,
    /// As Grafana would send it.
    pub query: String,
    /// Whether it is a query about now, and not about a span of time.
    pub is_instant: bool,
}

/// Every query of every panel, about node `n1` where it is about one; rates are over so much time, and so
/// much is shown.
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
