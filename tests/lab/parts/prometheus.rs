//! Debian's Prometheus, with the project's alerts.

use std::path::Path;

use serde_json::Value;

use super::{directory::Directory, process::Process, talk::http_get};

const PLACE: &str = "127.0.0.1:9090";

/// A Prometheus that scrapes the agent of node `n1` every second, as the chart's PodMonitor would have it; it ends with this
/// value.
pub struct Prometheus {
    process: Process,
    _directory: Directory,
}

impl Prometheus {
    /// One that scrapes an address and has asked it once.
    #[track_caller]
    pub fn start(target: &str) -> Self {
        let directory = Directory::new();
        let alerts = Path::new(env!("CARGO_MANIFEST_DIR")).join("dashboards");
        let config = directory.write(
            "prometheus.yaml",
            &format!(
                "global: {{scrape_interval: 1s, evaluation_interval: 1s}}\n\
                 rule_files: ['{0}/alerts.yaml', '{0}/alerts-without-agent.yaml']\n\
                 scrape_configs:\n\
                 - job_name: portreeve/portreeve\n\
                 \x20 static_configs: [{{targets: ['{target}'], labels: {{node: n1}}}}]\n",
                alerts.display()
            ),
        );
        let arguments = [format!("--config.file={config}"), format!("--web.listen-address={PLACE}")];
        let process = Process::start("/usr/bin/prometheus", &arguments, directory.path());
        let mut started = Self { process, _directory: directory };
        let asked = || answer("/api/v1/query?query=up").filter(|up| up["result"][0]["value"][1] == "1");
        started.process.wait_for("first scrape", asked);
        started
    }

    /// The series that a query has now.
    ///
    /// # Panics
    /// When it is no query, or Prometheus does not answer.
    #[track_caller]
    pub fn query(&self, query: &str) -> Vec<Value> {
        let encoded: String = query.bytes().map(|byte| format!("%{byte:02x}")).collect();
        let data = answer(&format!("/api/v1/query?query={encoded}")).unwrap_or_else(|| panic!("no answer to {query}"));
        data["result"].as_array().expect("series").clone()
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

/// The data in the answer of its API.
fn answer(path: &str) -> Option<Value> {
    let mut answer: Value = serde_json::from_str(&http_get(PLACE, path)?).expect("JSON");
    Some(answer["data"].take())
}
