//! The alerts and dashboards in the chart must be equal to the files of `dashboards/`.

use std::{fs, path::Path};

use serde_json::{Value, json};

use crate::helm::{objects, render, try_render};

const ALERTS: &str = "prometheusRule.enabled=true";
const CONFIG_MAPS: &str = "dashboards.configMaps.enabled=true";
const GRAFANA_DASHBOARDS: &str = "dashboards.grafanaDashboard.enabled=true";
const DASHBOARDS: [&str; 4] = ["agent", "fleet", "incident", "node"];

fn file(name: &str) -> Value {
    let path = format!("{}/dashboards/{name}", env!("CARGO_MANIFEST_DIR"));
    let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    serde_saphyr::from_str(&text).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn added(settings: &[&str]) -> Vec<Value> {
    let usual = objects(&render(&[]));
    objects(&render(settings)).into_iter().filter(|object| !usual.contains(object)).collect()
}

fn names(objects: &[Value]) -> Vec<&str> {
    objects.iter().map(|object| object["metadata"]["name"].as_str().expect("a name")).collect()
}

#[test]
fn the_alerts_arrive_as_they_were_tested() {
    let rules = added(&[ALERTS, r#"prometheusRule.labels={"release":"prometheus"}"#]);
    assert_eq!(names(&rules), ["portreeve"]);
    assert_eq!(rules[0]["kind"], "PrometheusRule");
    assert_eq!(rules[0]["metadata"]["labels"]["release"], "prometheus");
    assert_eq!(rules[0]["spec"], file("alerts.yaml"));
    assert!(rules[0].to_string().contains("{{ $labels.rule }}"), "Prometheus' own templates are left alone");
}

#[test]
fn the_alerts_that_need_no_agent_come_when_asked_for() {
    let rules = added(&[ALERTS, "prometheusRule.withoutAgent=true"]);
    assert_eq!(names(&rules), ["portreeve", "portreeve-without-agent"]);
    assert_eq!(rules[1]["spec"], file("alerts-without-agent.yaml"));
    assert!(added(&["prometheusRule.withoutAgent=true"]).is_empty(), "not alone");
}

#[test]
fn dashboards_are_config_maps_that_a_sidecar_finds() {
    let maps = added(&[CONFIG_MAPS, r#"dashboards.configMaps.annotations={"grafana_folder":"Network"}"#]);
    assert_eq!(names(&maps), ["portreeve-agent", "portreeve-fleet", "portreeve-incident", "portreeve-node"]);
    for (map, name) in maps.iter().zip(DASHBOARDS) {
        assert_eq!(map["kind"], "ConfigMap");
        assert_eq!(map["metadata"]["labels"]["grafana_dashboard"], "1");
        assert_eq!(map["metadata"]["annotations"], json!({"grafana_folder": "Network"}));
        let data = map["data"].as_object().expect("data");
        assert_eq!(
            data.keys().collect::<Vec<_>>(),
            [&format!("portreeve-{name}.json")],
            "a sidecar has one folder for all"
        );
        let text = data.values().next().and_then(Value::as_str).expect("a file");
        assert_eq!(serde_json::from_str::<Value>(text).expect("JSON"), file(&format!("{name}.json")));
    }
}

#[test]
fn dashboards_are_objects_of_the_operator_when_asked_for() {
    let labels = r#"dashboards.grafanaDashboard.instanceSelector={"matchLabels":{"a":"b"}}"#;
    let objects = added(&[GRAFANA_DASHBOARDS, labels, r#"dashboards.grafanaDashboard.folder="Network""#]);
    assert_eq!(names(&objects), ["portreeve-agent", "portreeve-fleet", "portreeve-incident", "portreeve-node"]);
    for (object, name) in objects.iter().zip(DASHBOARDS) {
        assert_eq!(object["kind"], "GrafanaDashboard");
        assert_eq!(object["spec"]["instanceSelector"], json!({"matchLabels": {"a": "b"}}));
        assert_eq!(object["spec"]["folder"], "Network");
        let text = object["spec"]["json"].as_str().expect("a dashboard");
        assert_eq!(serde_json::from_str::<Value>(text).expect("JSON"), file(&format!("{name}.json")));
    }
    let plain = added(&[GRAFANA_DASHBOARDS]);
    assert_eq!((&plain[0]["spec"]["instanceSelector"], &plain[0]["spec"]["folder"]), (&json!({}), &Value::Null));
}

#[test]
fn every_link_leads_to_where_the_documentation_is_read() {
    let place = r#"documentation="https://docs.example/portreeve/""#;
    for switches in [[ALERTS, "prometheusRule.withoutAgent=true"], [CONFIG_MAPS, GRAFANA_DASHBOARDS]] {
        let text = render(&[switches[0], switches[1], place]);
        let links: Vec<&str> = text.split("https://docs.example/portreeve/").skip(1).collect();
        assert!(links.len() > 20 && !text.contains("docs/"), "{links:?}");
        for link in links {
            // Prometheus or Grafana replaces a part of the link by the name of a rule or of a runbook.
            let page = link.split(".html").next().expect("a page").replace("index", "README");
            let page = match page.split_once('/') {
                Some((folder, name)) if folder == "rules" || name.contains('$') => format!("{folder}/README"),
                _ => page,
            };
            let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("docs/{page}.md"));
            assert!(path.is_file(), "{}", path.display());
        }
    }
    let refused = try_render(&[r#"documentation="docs.example""#]).expect_err("a name is no address");
    assert!(refused.contains("/documentation"), "{refused}");
}

#[test]
fn the_tests_of_the_alerts_stay_at_home() {
    let folder = tempfile::tempdir().expect("a folder");
    let to = format!("--destination={}", folder.path().display());
    crate::helm::run(["package", "deploy/chart", &to].into_iter()).expect("helm packages the chart");
    let package = fs::read_dir(folder.path()).expect("a folder").next().expect("a package").expect("a package").path();
    let list = std::process::Command::new("tar").arg("-tzf").arg(package).output().expect("tar runs");
    let list = String::from_utf8(list.stdout).expect("names");
    let files: Vec<&str> = list.lines().filter_map(|line| line.strip_prefix("portreeve/files/")).collect();
    assert_eq!(
        files,
        ["agent.json", "alerts-without-agent.yaml", "alerts.yaml", "fleet.json", "incident.json", "node.json"]
    );
}
