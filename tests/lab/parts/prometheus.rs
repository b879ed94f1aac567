//! Debian's Prometheus, with the project's alerts.

use std::path::Path;

use serde_json::{Value, json};

use super::{directory::Directory, process::Process, talk::http_get};

const PLACE: &str = "127.0.0.1:9090";
/// As the chart's PodMonitor in the namespace `portreeve` calls it.
const JOB: &str = "portreeve/portreeve";

/// A Prometheus that scrapes agents every second, with the labels that the chart's PodMonitor adds; it ends with this value.
pub struct Prometheus {
    process: Process,
    _directory: Directory,
}

impl Prometheus {
    /// One that scrapes the agents of these nodes at these addresses, has asked each once, and knows every alert.
    #[track_caller]
    pub fn start(agents: &[(&str, &str)]) -> Self {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("dashboards");
        let files = ["alerts.yaml", "alerts-without-agent.yaml"].map(|name| folder.join(name));
        Self::run(Directory::new(), agents, &json!({"rule_files": files}))
    }

    /// The same with these rules, and an Alertmanager at an address that is told of what they find.
    #[track_caller]
    pub fn telling(alertmanager: &str, rules: &Value, agents: &[(&str, &str)]) -> Self {
        let directory = Directory::new();
        let file = directory.write("rules.yaml", &rules.to_string());
        let told = json!({"alertmanagers": [{"static_configs": [{"targets": [alertmanager]}]}]});
        Self::run(directory, agents, &json!({"rule_files": [file], "alerting": told}))
    }

    #[track_caller]
    fn run(directory: Directory, agents: &[(&str, &str)], settings: &Value) -> Self {
        let target = |(node, place): &(&str, &str)| json!({"targets": [place], "labels": {"node": node}});
        let targets: Vec<Value> = agents.iter().map(target).collect();
        let mut config = settings.clone();
        config["global"] = json!({"scrape_interval": "1s", "evaluation_interval": "1s"});
        config["scrape_configs"] = json!([{"job_name": JOB, "static_configs": targets}]);
        let config = directory.write("prometheus.yaml", &config.to_string());
        let arguments = [
            format!("--config.file={config}"),
            // Debian's own would be one for all tests, and remember the last run.
            format!("--storage.tsdb.path={}", directory.path().join("series").display()),
            format!("--web.listen-address={PLACE}"),
        ];
        let process = Process::start("/usr/bin/prometheus", &arguments, directory.path());
        let mut started = Self { process, _directory: directory };
        let all = agents.len().to_string();
        let asked = || answer("/api/v1/query?query=sum(up)").filter(|up| up["result"][0]["value"][1] == all.as_str());
        started.process.wait_for("first scrape", asked);
        started
    }

    /// The series that a query has now.
    ///
    /// # Panics
    /// When it is no query, or Prometheus does not answer.
    #[track_caller]
    pub fn query(&self, query: &str) -> Vec<Value> {
        series("query", query, "")
    }

    /// The series that a query had at every second of a span of Unix time.
    ///
    /// # Panics
    /// As [`Self::query`].
    #[track_caller]
    pub fn query_range(&self, query: &str, [from, to]: [u64; 2]) -> Vec<Value> {
        series("query_range", query, &format!("&start={from}&end={to}&step=1"))
    }

    /// The names of the alerts that it has loaded, each with its health.
    pub fn alerts(&self) -> Vec<(String, String)> {
        let data = answer("/api/v1/rules?type=alert").expect("rules");
        let groups = data["groups"].as_array().expect("groups").iter();
        let rules = groups.flat_map(|group| group["rules"].as_array().expect("rules"));
        let word = |rule: &Value, key: &str| rule[key].as_str().expect("a word").to_owned();
        rules.map(|rule| (word(rule, "name"), word(rule, "health"))).collect()
    }
}

#[track_caller]
fn series(kind: &str, query: &str, span: &str) -> Vec<Value> {
    let encoded: String = query.bytes().map(|byte| format!("%{byte:02x}")).collect();
    let data =
        answer(&format!("/api/v1/{kind}?query={encoded}{span}")).unwrap_or_else(|| panic!("no answer to {query}"));
    data["result"].as_array().expect("series").clone()
}

/// The data in the answer of its API.
fn answer(path: &str) -> Option<Value> {
    let mut answer: Value = serde_json::from_str(&http_get(PLACE, path)?).expect("JSON");
    Some(answer["data"].take())
}
