//! The Prometheus of Debian, with the alerts of this project.

use std::{path::Path, process::Command};

use serde_json::{Value, json};

use super::{copies::Copies, directory::Directory, process::Process, talk::http_get};

const PLACE: &str = "127.0.0.1:9090";
/// The name of the job that the chart's PodMonitor makes in the namespace `portreeve`.
const JOB: &str = "portreeve/portreeve";

/// A Prometheus that scrapes agents every second. The series have the labels that the chart's PodMonitor adds.
pub struct Prometheus {
    process: Process,
    _directory: Directory,
}

impl Prometheus {
    /// Waits until each agent has been scraped once.
    #[track_caller]
    pub fn start(agents: &[(&str, &str)]) -> Self {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("dashboards");
        let files = ["alerts.yaml", "alerts-without-agent.yaml"].map(|name| folder.join(name));
        Self::run(Directory::new(), agents, &json!({"rule_files": files}))
    }

    #[track_caller]
    pub fn telling(alertmanager: &str, rules: &Value, agents: &[(&str, &str)]) -> Self {
        let directory = Directory::new();
        let file = directory.write("rules.yaml", &rules.to_string());
        let told = json!({"alertmanagers": [{"static_configs": [{"targets": [alertmanager]}]}]});
        Self::run(directory, agents, &json!({"rule_files": [file], "alerting": told}))
    }

    #[track_caller]
    pub fn of_copies(alertmanager: &str, rules: &Value, nodes: &[String]) -> Self {
        let directory = Directory::new();
        let file = directory.write("rules.yaml", &rules.to_string());
        let told = json!({"alertmanagers": [{"static_configs": [{"targets": [alertmanager]}]}]});
        let target = |node: &String| {
            let labels = json!({"node": node, "__metrics_path__": format!("/{node}")});
            json!({"targets": [Copies::PLACE], "labels": labels})
        };
        let targets: Vec<Value> = nodes.iter().map(target).collect();
        Self::asking(directory, &targets, "5s", &json!({"rule_files": [file], "alerting": told}))
    }

    /// Starts a Prometheus with the samples in `text` (OpenMetrics). This Prometheus scrapes nothing.
    #[track_caller]
    pub fn remembering(text: &str) -> Self {
        let directory = Directory::new();
        let file = directory.write("told", text);
        let series = directory.path().join("series");
        let made =
            Command::new("promtool").args(["tsdb", "create-blocks-from", "openmetrics", &file]).arg(&series).output();
        let made = made.expect("promtool, of Debian's package prometheus");
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let mut started = Self::process(directory, &json!({}));
        started.process.wait_for("Prometheus", || http_get(PLACE, "/-/ready"));
        started
    }

    #[track_caller]
    fn run(directory: Directory, agents: &[(&str, &str)], settings: &Value) -> Self {
        let target = |(node, place): &(&str, &str)| json!({"targets": [place], "labels": {"node": node}});
        let targets: Vec<Value> = agents.iter().map(target).collect();
        Self::asking(directory, &targets, "1s", settings)
    }

    #[track_caller]
    fn asking(directory: Directory, targets: &[Value], interval: &str, settings: &Value) -> Self {
        let mut config = settings.clone();
        config["global"] = json!({"scrape_interval": interval, "evaluation_interval": "1s"});
        config["scrape_configs"] = json!([{"job_name": JOB, "static_configs": targets}]);
        let mut started = Self::process(directory, &config);
        let all = targets.len().to_string();
        let asked = || answer("/api/v1/query?query=sum(up)").filter(|up| up["result"][0]["value"][1] == all.as_str());
        started.process.wait_for("first scrape", asked);
        started
    }

    #[track_caller]
    fn process(directory: Directory, config: &Value) -> Self {
        let config = directory.write("prometheus.yaml", &config.to_string());
        let arguments = [
            format!("--config.file={config}"),
            // Each test has its own folder. In Debian's default folder, all tests would share their samples.
            format!("--storage.tsdb.path={}", directory.path().join("series").display()),
            format!("--web.listen-address={PLACE}"),
        ];
        let process = Process::start("/usr/bin/prometheus", &arguments, directory.path());
        Self { process, _directory: directory }
    }

    #[track_caller]
    pub fn query(&self, query: &str) -> Vec<Value> {
        series("query", query, "")
    }

    /// The series that a query returned at a moment in Unix time.
    #[track_caller]
    pub fn query_at(&self, query: &str, moment: u64) -> Vec<Value> {
        series("query", query, &format!("&time={moment}"))
    }

    /// The series that a query returned at each second of a span of Unix time.
    #[track_caller]
    pub fn query_range(&self, query: &str, span: [u64; 2]) -> Vec<Value> {
        self.query_over(query, span, 1)
    }

    /// The series that a query returned in a span of Unix time, with steps of `step` seconds.
    #[track_caller]
    pub fn query_over(&self, query: &str, [from, to]: [u64; 2], step: u64) -> Vec<Value> {
        series("query_range", query, &format!("&start={from}&end={to}&step={step}"))
    }

    pub fn firing(&self, severity: &str) -> Vec<String> {
        let data = answer("/api/v1/alerts").expect("alerts");
        let all = data["alerts"].as_array().expect("alerts").iter();
        let firing = all.filter(|it| it["labels"]["severity"] == severity && it["state"] == "firing");
        firing.map(|it| it["annotations"]["description"].as_str().expect("a description").to_owned()).collect()
    }

    /// The names of the alerts that Prometheus has loaded, each with its health.
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

fn answer(path: &str) -> Option<Value> {
    let mut answer: Value = serde_json::from_str(&http_get(PLACE, path)?).expect("JSON");
    Some(answer["data"].take())
}
