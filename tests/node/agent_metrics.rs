//! The metrics of `portreeve agent`: Prometheus' linter checks them, and a Prometheus server scrapes the agent.

use std::{
    fs::{self, File},
    io::Write as _,
    process::{Child, Command, Stdio},
};

use serde_json::Value;

use crate::{
    agent::{Agent, ask, exchange_with, until, wait_for, web},
    proxy::Squatter,
    stage::Stage,
};

const PROMETHEUS: &str = "127.0.0.1:9090";
const OPEN_METRICS: &str = "Accept: application/openmetrics-text;version=1.0.0\r\n";

/// If this value is dropped, Prometheus ends.
struct Prometheus {
    child: Child,
    log: std::path::PathBuf,
}

impl Prometheus {
    #[track_caller]
    fn start(stage: &Stage) -> Self {
        let (config, log) = (stage.path("prometheus.yaml"), stage.path("prometheus.log"));
        let scrape = "global: {scrape_interval: 1s, scrape_timeout: 1s}\nscrape_configs:\n- job_name: portreeve\n  \
                      static_configs: [{targets: ['127.0.0.1:29517']}]\n";
        fs::write(&config, scrape).expect("a file");
        let option = |name: &str, value: &std::path::Path| format!("--{name}={}", value.display());
        let child = Command::new("prometheus")
            .args([option("config.file", &config), option("storage.tsdb.path", &stage.path("tsdb"))])
            .arg(format!("--web.listen-address={PROMETHEUS}"))
            .stdout(Stdio::null())
            .stderr(File::create(&log).expect("a file"))
            .spawn()
            .expect("`prometheus` of the Debian package is installed: `make test` does that");
        Self { child, log }
    }

    #[track_caller]
    fn says<T>(&self, query: &str, fits: impl Fn(&Value) -> Option<T>) -> T {
        let answer = || {
            let (head, body) = exchange_with(PROMETHEUS, "GET", &format!("/api/v1/{query}"), "")?;
            fits(&serde_json::from_str::<Value>(&body).ok().filter(|_| head.contains(" 200 "))?["data"])
        };
        until(answer).unwrap_or_else(|| panic!("{query}: {}", fs::read_to_string(&self.log).unwrap_or_default()))
    }

    /// Waits until the value of the expression fits. The expression must have one series.
    #[track_caller]
    fn is(&self, expression: &str, fits: impl Fn(f64) -> bool) {
        let one = |data: &Value| data["result"][0]["value"][1].as_str()?.parse().ok().filter(|value| fits(*value));
        self.says(&format!("query?query={expression}"), one);
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        self.child.kill().expect("a child that can be killed");
        self.child.wait().expect("a child that can be waited for");
    }
}

fn samples(text: &str) -> f64 {
    text.lines().filter(|line| !line.starts_with('#')).count() as f64
}

#[test]
fn promtool_accepts_the_metrics() {
    let stage = web();
    let _agent = Agent::start(&stage, &["--proxy-mode", "iptables"]);
    let _squatter = Squatter::on("0.0.0.0:30080");
    let text = wait_for("/metrics", |text| text.contains("portreeve_finding_info{"));
    let mut promtool = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("`promtool` of the Debian package prometheus is installed: `make test` does that");
    promtool.stdin.take().expect("a pipe").write_all(text.as_bytes()).expect("promtool reads");
    let output = promtool.wait_with_output().expect("promtool ends");
    let words = [output.stdout, output.stderr].concat();
    assert!(output.status.success() && words.is_empty(), "{}\n{text}", String::from_utf8_lossy(&words));
}

#[test]
fn prometheus_scrapes_every_sample_in_openmetrics_and_knows_types_and_units() {
    let stage = web();
    let _agent = Agent::start(&stage, &["--proxy-mode", "iptables"]);
    let _squatter = Squatter::on("0.0.0.0:30080");
    wait_for("/metrics", |text| text.contains("portreeve_finding_info{"));
    let prometheus = Prometheus::start(&stage);
    prometheus.is("up", |up| up == 1.0);
    // While the agent starts, the number of series changes, so a scrape and a request may differ.
    let all = || samples(&ask("/metrics", OPEN_METRICS).expect("an answer").1);
    prometheus.is("scrape_samples_scraped", |scraped| scraped == all());
    prometheus.is("scrape_samples_post_metric_relabeling", |kept| kept == all());
    prometheus.is("portreeve_scans_total", |scans| scans >= 1.0);
    prometheus.is("sum(portreeve_findings)", |findings| findings >= 1.0);
    for (metric, kind, unit) in [
        ("portreeve_scan_duration_seconds", "histogram", "seconds"),
        ("portreeve_source_duration_seconds", "gauge", "seconds"),
        ("process_resident_memory_bytes", "gauge", "bytes"),
        ("portreeve_findings", "gauge", ""),
    ] {
        let told = |data: &Value| {
            let told = &data[metric][0];
            Some((told["type"].as_str()?.to_owned(), told["unit"].as_str()?.to_owned()))
        };
        let told = prometheus.says(&format!("metadata?metric={metric}"), told);
        assert_eq!(told, (kind.to_owned(), unit.to_owned()), "{metric}");
    }
    let health = |data: &Value| Some(data["activeTargets"][0]["lastError"].as_str()?.to_owned());
    assert_eq!(prometheus.says("targets", health), "");
}

#[test]
fn every_reader_exposes_whether_it_can_read_and_its_time() {
    let stage = web();
    let _agent = Agent::start(&stage, &[]);
    let text = wait_for("/metrics", |text| text.contains("portreeve_source_duration_seconds{"));
    for source in ["listeners", "clients", "sysctls", "addresses", "sockstat", "processes", "pod-namespaces"] {
        assert!(text.contains(&format!("portreeve_source_up{{source=\"{source}\"}} 1")), "{source}: {text}");
        let took = format!("portreeve_source_duration_seconds{{source=\"{source}\"}} ");
        let took = text.lines().find_map(|line| line.strip_prefix(&took)).unwrap_or_else(|| panic!("{source}: {text}"));
        assert!(took.parse::<f64>().is_ok_and(|took| took > 0.0), "{source}: {took}");
    }
    assert!(text.contains("portreeve_source_up{source=\"proxy-mode\"} 0"), "no proxy answers: {text}");
    assert!(samples(&text) <= 200.0, "{} series", samples(&text));
}

#[test]
fn masqueraded_flows_with_a_port_of_the_range_are_counted() {
    let stage = web();
    for port in [30080, 30081, 32767, 32768, 1024] {
        let flow = format!(
            "-I -p tcp -s 10.244.0.5 -d 198.51.100.7 --sport {port} --dport 443 --src-nat 192.0.2.1:{port} -t 600 \
             --state ESTABLISHED -u SEEN_REPLY,ASSURED"
        );
        let entered = Command::new("conntrack").args(flow.split_ascii_whitespace()).output();
        let entered = entered.expect("`conntrack` of the Debian package is installed: `make test` does that");
        assert!(entered.status.success(), "{}", String::from_utf8_lossy(&entered.stderr));
    }
    let _agent = Agent::start(&stage, &["--proxy-mode", "iptables"]);
    wait_for("/metrics", |text| text.contains("\nportreeve_masqueraded_flows_in_node_port_range 3.0\n"));
}
