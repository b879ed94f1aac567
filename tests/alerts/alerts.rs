//! The alerts in `dashboards/`. promtool accepts them and runs their tests, their metrics exist, and each alert has a
//! runbook.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use portreeve_facts::Why;
use portreeve_rules::{findings::Scope, ids::IDS};
use serde_json::{Value, json};

use crate::promql::{Metric, Query, catalogue, promtool};

const FILES: [&str; 2] = ["alerts", "alerts-without-agent"];

/// Metrics of other programs: kube-state-metrics, the API server, kube-proxy and node_exporter.
const FOREIGN: [(&str, &[&str]); 11] = [
    ("kube_service_spec_external_ip", &["namespace", "service", "uid", "external_ip"]),
    ("kube_node_status_addresses", &["node", "type", "address"]),
    ("kube_apiserver_nodeport_allocator_allocated_ports", &[]),
    ("kube_apiserver_nodeport_allocator_available_ports", &[]),
    ("kube_apiserver_nodeport_allocator_allocation_errors_total", &["scope"]),
    ("process_open_fds", &[]),
    ("process_max_fds", &[]),
    ("node_filefd_allocated", &[]),
    ("node_filefd_maximum", &[]),
    ("node_nf_conntrack_entries", &[]),
    ("node_nf_conntrack_entries_limit", &[]),
];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn dashboards() -> PathBuf {
    root().join("dashboards")
}

fn text(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn yaml(path: &str) -> Value {
    serde_saphyr::from_str(&text(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn rules(file: &str) -> Vec<Value> {
    let file = yaml(&format!("dashboards/{file}.yaml"));
    let groups = file["groups"].as_array().expect("groups");
    groups.iter().flat_map(|group| group["rules"].as_array().expect("rules")).cloned().collect()
}

fn all() -> Vec<Value> {
    FILES.into_iter().flat_map(rules).collect()
}

fn word<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_else(|| panic!("no {key} in {value}"))
}

#[test]
fn promtool_accepts_the_rules() {
    for file in FILES {
        promtool(&dashboards(), &["check", "rules", &format!("{file}.yaml")]).unwrap_or_else(|said| panic!("{said}"));
    }
}

#[test]
fn the_alerts_fire_when_they_should_and_only_then() {
    for file in FILES {
        let tests = format!("{file}_test.yaml");
        promtool(&dashboards(), &["test", "rules", &tests]).unwrap_or_else(|said| panic!("{said}"));
    }
}

#[test]
fn an_alert_that_never_fires_or_for_everything_or_too_soon_or_too_short_fails_its_tests() {
    for file in FILES {
        for (number, rule) in rules(file).iter().enumerate() {
            let query = Query::of(word(rule, "expr"));
            let labels: Vec<&str> = query.grouped.iter().map(String::as_str).collect();
            let metrics: Vec<&str> = query.selectors.iter().map(|it| it.metric.as_str()).collect();
            let everything = format!("group by ({}) ({{__name__=~\"{}\"}})", labels.join(", "), metrics.join("|"));
            let with = |key: &str, value: &str| changed(file, number, key, value);
            assert_eq!(with("alert", word(rule, "alert")), Ok(()), "as it is, it passes");
            let wrong = [("expr", "vector(0) > 1"), ("expr", &everything), ("for", "0s"), ("keep_firing_for", "0s")];
            for (key, value) in wrong.into_iter().filter(|(key, _)| rule[key].is_string()) {
                let said = with(key, value).expect_err(&format!("{} passes with {key}: {value}", rule["alert"]));
                assert!(said.contains("FAILED"), "{said}");
            }
        }
    }
}

fn changed(file: &str, number: usize, key: &str, value: &str) -> Result<(), String> {
    let mut rule = rules(file).remove(number);
    rule[key] = value.into();
    let name = word(&rule, "alert");
    let mut tests = yaml(&format!("dashboards/{file}_test.yaml"));
    for test in tests["tests"].as_array_mut().expect("tests") {
        for kind in ["alert_rule_test", "promql_expr_test"] {
            let Some(cases) = test[kind].as_array_mut() else { continue };
            cases.retain(|case| case.to_string().contains(name));
        }
    }
    let folder = tempfile::tempdir().expect("a folder");
    let write = |name: &str, content: &Value| fs::write(folder.path().join(name), content.to_string()).expect("a file");
    write(&format!("{file}.yaml"), &json!({"groups": [{"name": "changed", "rules": [rule]}]}));
    write("tests.yaml", &tests);
    promtool(folder.path(), &["test", "rules", "tests.yaml"]).map(drop)
}

#[test]
fn an_alert_says_how_bad_it_is_and_what_to_do() {
    let mut names = BTreeSet::new();
    for rule in all() {
        let name = word(&rule, "alert");
        assert!(names.insert(name.to_owned()), "{name} is there twice");
        assert!(["critical", "info", "warning"].contains(&word(&rule["labels"], "severity")), "{name}");
        for annotation in ["summary", "description"] {
            assert!(!word(&rule["annotations"], annotation).is_empty(), "{name} has no {annotation}");
        }
        assert_eq!(word(&rule["annotations"], "runbook_url"), format!("docs/runbooks/{name}.md"));
    }
}

#[test]
fn each_alert_has_its_page_and_no_page_is_left_over() {
    let index = text("docs/runbooks/README.md");
    let mut wanted = BTreeSet::from(["README.md".to_owned()]);
    for rule in all() {
        let name = word(&rule, "alert");
        let page = text(&format!("docs/runbooks/{name}.md"));
        assert!(page.starts_with(&format!("# {name}\n")), "{name}");
        let sections: Vec<&str> = page.lines().filter_map(|line| line.strip_prefix("## ")).collect();
        assert_eq!(sections, ["Meaning", "Impact", "Diagnosis", "Mitigation"], "{name}");
        let row = format!("| [{name}]({name}.md) | {} | ", word(&rule["labels"], "severity"));
        assert!(index.contains(&row), "{name} is not in the index");
        wanted.insert(format!("{name}.md"));
    }
    let there = fs::read_dir(root().join("docs/runbooks")).expect("runbooks");
    let there = there.map(|entry| entry.expect("a page").file_name().into_string().expect("a name"));
    assert_eq!(there.collect::<BTreeSet<_>>(), wanted);
}

/// Users copy this part of the configuration of Alertmanager.
#[test]
fn the_runbooks_group_and_inhibit_by_labels_that_the_alerts_have() {
    let page = text("docs/runbooks/README.md");
    let (_, part) = page.split_once("```yaml\n").expect("the part");
    let (part, _) = part.split_once("```").expect("its end");
    let part: Value = serde_saphyr::from_str(part).unwrap_or_else(|error| panic!("{part}: {error}"));
    let labels = |rule: &Value| Query::of(word(rule, "expr")).grouped;
    let alerts = rules(FILES[0]);
    for kind in ["source_matchers", "target_matchers"] {
        let matcher = part["inhibit_rules"][0][kind][0].as_str().expect("a matcher");
        let alert = alerts.iter().find(|rule| matcher == format!("alertname=\"{}\"", word(rule, "alert")));
        let known = labels(alert.unwrap_or_else(|| panic!("no alert for {matcher}")));
        for used in [&part["route"]["routes"][0]["group_by"], &part["inhibit_rules"][0]["equal"]] {
            for label in used.as_array().expect("labels") {
                assert!(known.contains(label.as_str().expect("a label")), "{matcher} has no {label}");
            }
        }
    }
    for rule in &alerts {
        assert!(word(rule, "alert").starts_with("Portreeve"), "the route leaves out {rule}");
        assert!(!labels(rule).contains("namespace"), "the page denies this label: {rule}");
    }
}

#[test]
fn whatever_rule_an_alert_names_its_page_is_there() {
    let mut seen = 0;
    for rule in all() {
        let description = word(&rule["annotations"], "description").to_owned();
        let targets = description.split("docs/").skip(1).filter_map(|rest| rest.split(".md").next());
        for target in targets {
            for id in IDS.iter().map(|id| id.name.0) {
                let page = format!("docs/{}.md", target.replace("{{ $labels.rule }}", id));
                assert!(root().join(&page).is_file(), "{page} of {}", word(&rule, "alert"));
                seen += 1;
            }
        }
    }
    assert!(seen > IDS.len(), "the descriptions name pages");
}

#[test]
fn alerts_ask_for_what_agents_tell_only() {
    ask_only(FILES[0], &catalogue());
}

#[test]
fn alerts_without_an_agent_ask_for_what_others_tell_only() {
    let reported = |(name, labels): (&str, &[&str])| {
        let labels = labels.iter().map(|label| (*label).to_owned()).collect();
        (name.to_owned(), Metric { is_counter: name.ends_with("_total"), labels })
    };
    let mut known = BTreeMap::from(FOREIGN.map(reported));
    // In a query, `label_replace` adds this label with the node's address.
    known.get_mut("kube_node_status_addresses").expect("it is foreign").labels.insert("external_ip".to_owned());
    ask_only(FILES[1], &known);
}

#[track_caller]
fn ask_only(file: &str, known: &BTreeMap<String, Metric>) {
    for rule in rules(file) {
        let query = Query::of(word(&rule, "expr"));
        assert!(!query.selectors.is_empty());
        assert_eq!(query.strange(known), Vec::<String>::new(), "{}", word(&rule, "alert"));
    }
}

#[test]
fn an_annotation_uses_labels_that_the_alert_has() {
    for rule in all() {
        let query = Query::of(word(&rule, "expr"));
        for annotation in ["summary", "description"] {
            let used = word(&rule["annotations"], annotation).split("$labels.").skip(1);
            for rest in used {
                let label = rest.split(|it: char| !it.is_ascii_alphanumeric() && it != '_').next().unwrap_or_default();
                assert!(query.grouped.contains(label), "{label} in {annotation} of {}", word(&rule, "alert"));
            }
        }
    }
}

#[test]
fn a_problem_of_the_cluster_is_one_alert_by_its_scope() {
    let mut compared = 0;
    for rule in rules(FILES[0]) {
        let selectors = Query::of(word(&rule, "expr")).selectors;
        let singles: Vec<_> = selectors.iter().filter(|it| it.metric == "portreeve_finding_info").collect();
        for selector in &singles {
            let (_, scope) = selector.matchers.iter().find(|(label, _)| label == "scope").expect("a scope");
            assert_eq!(scope, Scope::Cluster.name(), "it is this, or it is not: {}", word(&rule, "alert"));
        }
        compared += singles.len();
    }
    assert_eq!(compared, 8, "two alerts, of objects, pods, nodes and the cluster");
}

#[test]
fn no_query_names_a_rule_of_the_agents() {
    let queries = all().into_iter().map(|rule| word(&rule, "expr").to_owned());
    for query in queries.chain(crate::dashboards::all_queries()) {
        let named = IDS.iter().map(|id| id.name.0).find(|id| query.contains(id));
        assert_eq!(named, None, "a rule that is renamed or new would be missing: {query}");
    }
}

#[test]
fn an_agent_is_blind_for_reasons_that_there_are() {
    let rule = rules(FILES[0]).into_iter().find(|rule| rule["alert"] == "PortreeveAgentBlind").expect("the alert");
    let query = Query::of(word(&rule, "expr"));
    let (label, reasons) = &query.selectors[0].matchers[0];
    assert_eq!(label, "why");
    for reason in reasons.split('|') {
        let why = serde_json::from_value::<Why>(reason.into()).unwrap_or_else(|error| panic!("{reason}: {error}"));
        let expected = [Why::NotPermitted, Why::NotSupported, Why::NotRequested, Why::Ambiguous];
        assert!(!expected.contains(&why), "{reason} is nobody's failure");
    }
}
