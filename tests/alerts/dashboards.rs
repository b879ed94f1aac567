//! The dashboards in `dashboards/` pass the checks of Grafana's linter, and the metrics in their queries exist.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use serde_json::{Value, json};

use crate::promql::{Query, catalogue, promtool};

const NAMES: [&str; 4] = ["fleet", "incident", "node", "agent"];
/// The labels that select an incident, each with an example.
const CHOICE: [(&str, &str); 7] = [
    ("rule", "listener-on-node-port"),
    ("variant", "loses"),
    ("kind", "Service"),
    ("namespace", "shop"),
    ("name", "web"),
    ("port", "30080"),
    ("protocol", "tcp"),
];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn file(name: &str) -> PathBuf {
    root().join("dashboards").join(name).with_extension("json")
}

fn dashboard(name: &str) -> Value {
    let path = file(name);
    let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn word<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_else(|| panic!("no {key} in {value}"))
}

fn list<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value[key].as_array().unwrap_or_else(|| panic!("no {key} in {value}"))
}

fn panels() -> Vec<(String, Value)> {
    let panels = NAMES.into_iter().flat_map(|name| {
        let dashboard = dashboard(name);
        let panels = list(&dashboard, "panels").iter().filter(|panel| panel["type"] != "row").cloned();
        panels.map(|panel| (format!("{name}: {}", word(&panel, "title")), panel)).collect::<Vec<_>>()
    });
    panels.collect()
}

fn queries() -> Vec<(String, Value)> {
    let targets = panels().into_iter().flat_map(|(name, panel)| {
        let targets = list(&panel, "targets").to_vec();
        assert!(!targets.is_empty(), "{name} has no query");
        targets.into_iter().map(move |target| (name.clone(), target))
    });
    targets.collect()
}

pub(crate) fn all_queries() -> impl Iterator<Item = String> {
    queries().into_iter().map(|(_, target)| word(&target, "expr").to_owned())
}

fn substituted(query: &str) -> String {
    let mut query = query.to_owned();
    let usual = [("__rate_interval", "5m"), ("__interval", "1m"), ("__range", "6h"), ("cluster", ".*"), ("node", "n1")];
    for (variable, value) in usual.into_iter().chain(CHOICE) {
        query = query.replace(&format!("\"${variable}\""), &format!("\"{value}\""));
        query = query.replace(&format!("${variable}:"), &format!("{value}:"));
        query = query.replace(&format!(":${variable}]"), &format!(":{value}]"));
        query = query.replace(&format!("[${variable}]"), &format!("[{value}]"));
    }
    query
}

#[test]
fn a_dashboard_keeps_its_address_and_is_not_edited_in_place() {
    for name in NAMES {
        let dashboard = dashboard(name);
        assert_eq!(dashboard["uid"], format!("portreeve-{name}"));
        assert_eq!(dashboard["editable"], false);
        assert!(word(&dashboard, "title").starts_with("Portreeve / "));
        assert!(!word(&dashboard, "description").is_empty());
        assert!(dashboard.get("id").is_none(), "the id is the server's");
    }
    let there = fs::read_dir(root().join("dashboards")).expect("dashboards");
    let there =
        there.map(|entry| entry.expect("a file").path()).filter(|it| it.extension().is_some_and(|it| it == "json"));
    assert_eq!(there.collect::<BTreeSet<_>>(), NAMES.map(file).into());
}

#[test]
fn the_data_source_the_cluster_and_the_node_are_variables() {
    for name in NAMES {
        let dashboard = dashboard(name);
        let variables = list(&dashboard["templating"], "list");
        let names: Vec<&str> = variables.iter().map(|variable| word(variable, "name")).collect();
        assert_eq!(names[..3], ["datasource", "cluster", "node"], "{name}");
        let chosen = if name == "incident" { CHOICE.map(|(variable, _)| variable).to_vec() } else { Vec::new() };
        assert_eq!(names[3..], chosen, "{name}");
        assert_eq!((&variables[0]["type"], &variables[0]["query"]), (&json!("datasource"), &json!("prometheus")));
        for variable in &variables[1..3] {
            assert_eq!(variable["datasource"], json!({"type": "prometheus", "uid": "${datasource}"}));
            assert_eq!(variable["definition"], variable["query"]["query"]);
            let query = word(variable, "definition").strip_prefix("label_values(").and_then(|it| it.strip_suffix(')'));
            let (metric, label) = query.and_then(|it| it.rsplit_once(", ")).expect("a metric and a label");
            assert_eq!(label, word(variable, "name"));
            assert_eq!(Query::of(metric).strange(&catalogue()), Vec::<String>::new());
        }
    }
}

#[test]
fn a_panel_has_a_description_and_a_unit() {
    for (name, panel) in panels() {
        assert_eq!(panel["datasource"], json!({"type": "prometheus", "uid": "${datasource}"}), "{name}");
        assert!(!word(&panel, "title").is_empty());
        assert!(word(&panel, "description").contains('.'), "{name} is not described in a sentence");
        assert!(!word(&panel["fieldConfig"]["defaults"], "unit").is_empty(), "{name}");
        let is_plain = ["short", "none"].contains(&word(&panel["fieldConfig"]["defaults"], "unit"));
        let has_axis = panel["fieldConfig"]["defaults"]["custom"]["axisLabel"].is_string();
        assert!(!is_plain || panel["type"] != "timeseries" || has_axis, "{name}: numbers of what?");
        let no_label = json!({"id": "custom.axisLabel", "value": ""});
        let of_time = json!({"matcher": {"id": "byType", "options": "time"}, "properties": [no_label]});
        let overrides = list(&panel["fieldConfig"], "overrides");
        assert!(!has_axis || overrides.contains(&of_time), "{name}: the time axis has the name of the values");
        let has_words = panel["fieldConfig"]["defaults"]["noValue"].is_string();
        assert!(has_words || !["stat", "table", "bargauge"].contains(&word(&panel, "type")), "{name} may be empty");
    }
}

#[test]
fn panels_have_numbers_and_places_of_their_own() {
    for name in NAMES {
        let (mut ids, mut cells) = (BTreeSet::new(), BTreeSet::new());
        for panel in list(&dashboard(name), "panels") {
            assert!(ids.insert(panel["id"].as_u64().expect("a number")), "{name}: {}", panel["id"]);
            let [x, y, w, h] = ["x", "y", "w", "h"].map(|key| panel["gridPos"][key].as_u64().expect("a place"));
            assert!(x + w <= 24, "{name}: {} is wider than the grid", panel["title"]);
            for cell in (y..y + h).flat_map(|row| (x..x + w).map(move |column| (row, column))) {
                assert!(cells.insert(cell), "{name}: {} lies on another", panel["title"]);
            }
        }
    }
}

#[test]
fn every_query_is_promql() {
    let record = |(number, (_, target)): (usize, (String, Value))| json!({"record": format!("query_{number}"), "expr": substituted(word(&target, "expr"))});
    let rules: Vec<Value> = queries().into_iter().enumerate().map(record).collect();
    let folder = tempfile::tempdir().expect("a folder");
    let file = json!({"groups": [{"name": "queries", "rules": rules}]}).to_string();
    // `$1` is not a variable of Grafana: it is the first group in a `label_replace`.
    let variable = file.replace("$1", "").split_once('$').map(|(_, rest)| rest.chars().take(40).collect::<String>());
    assert_eq!(variable, None, "a variable is not known");
    fs::write(folder.path().join("queries.yaml"), file).expect("a file");
    promtool(folder.path(), &["check", "rules", "queries.yaml"]).unwrap_or_else(|said| panic!("{said}"));
}

#[test]
fn queries_use_only_metrics_of_the_catalogue_and_of_the_selected_nodes() {
    let catalogue = catalogue();
    for (name, target) in queries() {
        let query = Query::of(&substituted(word(&target, "expr")));
        assert_eq!(query.strange(&catalogue), Vec::<String>::new(), "{name}");
        for selector in &query.selectors {
            let labels: BTreeSet<&str> = selector.matchers.iter().map(|(label, _)| label.as_str()).collect();
            assert!(labels.is_superset(&["cluster", "node"].into()), "{name}: {} of every node", selector.metric);
        }
        let legend = target["legendFormat"].as_str().unwrap_or_default();
        for label in legend.split("{{").skip(1).filter_map(|rest| rest.split("}}").next()) {
            assert!(query.grouped.contains(label), "{name}: no {label} for the legend");
        }
        let is_table = target["format"] == "table";
        assert!(is_table || !legend.is_empty(), "{name} has a line without a name");
    }
}

#[test]
fn counters_are_rates_over_the_interval_that_grafana_chooses() {
    let catalogue = catalogue();
    for (name, target) in queries() {
        let raw = word(&target, "expr");
        for selector in Query::of(&raw.replace("$__", "").replace('$', "")).selectors {
            let rate = selector.range.as_ref().filter(|(by, _)| ["rate", "increase"].contains(&by.as_str()));
            if catalogue[&selector.metric].is_counter {
                let (_, range) = rate.unwrap_or_else(|| panic!("{name}: {} as it is", selector.metric));
                assert_eq!(range, "rate_interval", "{name}");
                assert!(raw.contains("sum by (") || raw.contains("sum("), "{name}: a counter for each process");
            } else {
                assert_eq!(rate, None, "{name}: the rate of a gauge");
            }
        }
    }
}

#[test]
fn links_lead_to_pages_and_runbooks() {
    let mut seen = 0;
    for name in NAMES {
        let text = dashboard(name).to_string();
        let targets = text.split("docs/").skip(1).map(|rest| rest.split(".md").next().unwrap_or_default());
        for target in targets {
            // Grafana replaces the two variables with the rule and the runbook of a row.
            let target = target
                .replace("${__data.fields.Rule}", "listener-on-node-port")
                .replace("${__data.fields.Runbook}", "PortreeveInfoFinding");
            assert!(root().join(format!("docs/{target}.md")).is_file(), "{name}: docs/{target}.md");
            seen += 1;
        }
        let links = dashboard(name);
        let runbooks =
            list(&links, "links").iter().find(|link| link["type"] == "link").expect("a link to the runbooks");
        assert_eq!(runbooks["url"], "docs/runbooks/README.md");
    }
    assert!(seen > 20, "panels name their runbooks");
}

#[test]
fn a_port_in_a_table_is_no_quantity_and_an_empty_cell_no_good_news() {
    let mut seen = 0;
    for (name, panel) in panels().into_iter().filter(|(_, panel)| panel["type"] == "table") {
        let last = list(&panel, "transformations").last().expect("an order of columns");
        let columns = last["options"]["indexByName"].as_object().expect("columns");
        let set = |column: &str, property: &str| {
            let of_column = |it: &&Value| {
                it["matcher"]["options"]
                    .as_str()
                    .is_some_and(|of| of.trim_matches(['/', '^', '$', '(', ')']).split('|').any(|it| it == column))
            };
            let overrides = list(&panel["fieldConfig"], "overrides").iter().filter(of_column);
            let mut properties = overrides.flat_map(|it| list(it, "properties")).filter(|it| it["id"] == property);
            properties.next().map(|it| it["value"].clone())
        };
        if columns.contains_key("port") {
            assert_eq!(set("Port", "unit"), Some(json!("string")), "{name}: 30080 is not 30.1 K");
            // A link to the incident uses the values in the row of the panel.
            let nothing = if name.starts_with("fleet") { "" } else { "-" };
            for column in ["Namespace", "Port", "Protocol"] {
                assert_eq!(set(column, "noValue"), Some(json!(nothing)), "{name}: {column} may be empty");
            }
            assert_eq!(
                set("Severity", "mappings").expect("words")[0]["options"]["1"]["text"],
                "critical",
                "{name}: the worst first"
            );
            seen += 1;
        }
    }
    assert_eq!(seen, 3, "the tables of the fleet, of an incident and of a node");
}

#[test]
fn a_click_on_an_incident_selects_all_of_it_and_leads_to_its_nodes() {
    let links = |name: &str, panel: &str| {
        let dashboard = dashboard(name);
        let panel = list(&dashboard, "panels").iter().find(|it| it["title"] == panel).expect("the panel").to_string();
        let urls =
            panel.split("\"url\":\"/d/").skip(1).map(|rest| rest.split('"').next().unwrap_or_default().to_owned());
        urls.collect::<Vec<_>>()
    };
    let [incident] = links("fleet", "Incidents").try_into().expect("one link");
    assert!(incident.starts_with("portreeve-incident?"), "{incident}");
    for (variable, _) in CHOICE {
        let column = variable[..1].to_uppercase() + &variable[1..];
        assert!(incident.contains(&format!("&var-{variable}=${{__data.fields.{column}}}")), "{variable}: {incident}");
    }
    for (name, panel) in [("fleet", "Nodes by worst finding"), ("fleet", "All nodes"), ("incident", "Affected nodes")] {
        let [node] = links(name, panel).try_into().expect("one link");
        assert!(node.starts_with("portreeve-node?") && node.contains("&var-node=${__"), "{node}");
    }
}

#[test]
fn no_panel_of_the_fleet_has_a_row_or_a_line_for_each_node() {
    let fleet = dashboard("fleet");
    for panel in list(&fleet, "panels").iter().filter(|panel| panel["type"] != "row") {
        for target in list(panel, "targets") {
            let (query, legend) = (word(target, "expr"), target["legendFormat"].as_str().unwrap_or_default());
            let outer = query.trim_start_matches('(').split(['(', ' ']).next().unwrap_or_default();
            let folds = ["count", "sum", "max", "min", "label_replace", "clamp_min", "sort_desc"].contains(&outer);
            assert!(folds, "{}: {query}", panel["title"]);
            let bound = match word(panel, "title") {
                "Nodes by worst finding" => Some("topk(30, "),
                "All nodes" => Some("topk(500, "),
                _ => None,
            };
            assert!(bound.is_some() || !legend.contains("node}}"), "{}: {legend}", panel["title"]);
            assert!(bound.is_none_or(|bound| query.contains(bound)), "a map of thousands");
        }
    }
}

#[test]
fn every_dashboard_and_the_page_have_pictures_in_the_documents() {
    let page = fs::read_to_string(root().join("docs/dashboards.md")).expect("docs/dashboards.md");
    let readme = fs::read_to_string(root().join("README.md")).expect("README.md");
    let mut wanted = BTreeSet::new();
    for name in ["fleet", "fleet-500", "incident-500", "node", "agent", "page-desktop", "page-phone"] {
        for mode in ["light", "dark"] {
            let picture = root().join(format!("docs/pictures/{name}-{mode}.png"));
            let bytes =
                fs::read(&picture).unwrap_or_else(|error| panic!("{}: {error}: `make pictures`", picture.display()));
            assert!(bytes.starts_with(b"\x89PNG\r\n"), "{name}-{mode} is a picture");
            assert!(bytes.len() < 150_000, "{name}-{mode} has {} bytes", bytes.len());
            assert!(page.contains(&format!("\"pictures/{name}-{mode}.png\"")), "{name}-{mode} is in no document");
            wanted.insert(picture);
        }
    }
    for named in readme.split("\"docs/pictures/").skip(1).filter_map(|rest| rest.split('"').next()) {
        assert!(wanted.contains(&root().join("docs/pictures").join(named)), "{named} is not there");
    }
    let there =
        fs::read_dir(root().join("docs/pictures")).expect("pictures").map(|entry| entry.expect("a file").path());
    assert_eq!(there.collect::<BTreeSet<_>>(), wanted, "each picture is of a dashboard or page");
}
