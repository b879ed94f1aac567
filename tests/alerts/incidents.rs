//! One mistake makes one alert, on one node and on hundreds of nodes.

use std::fs;

use serde_json::{Value, json};

use crate::promql::promtool;

const SIZES: [usize; 3] = [1, 3, 500];

fn node(number: usize) -> String {
    format!("n{number:03}")
}

/// In `labels`, `{node}` stands for the name of the node.
fn on_each(size: usize, metric: &str, labels: &str, values: &str) -> Vec<Value> {
    let series = |number| {
        let labels = labels.replace("{node}", &node(number));
        json!({"series": format!("{metric}{{node=\"{}\", {labels}}}", node(number)), "values": values})
    };
    (1..=size).map(series).collect()
}

/// The names of the nodes, as an alert's description lists them.
fn names(size: usize) -> String {
    let first: Vec<String> = (1..=size.min(5)).map(node).collect();
    let more = if size > 5 { format!(" and {} more", size - 5) } else { String::new() };
    format!("({}{more})", first.join(", "))
}

fn nodes(size: usize) -> String {
    if size == 1 { "1 node".to_owned() } else { format!("{size} nodes") }
}

#[track_caller]
fn run(series: &[Value], cases: &[Value]) {
    let folder = tempfile::tempdir().expect("a folder");
    let alerts = concat!(env!("CARGO_MANIFEST_DIR"), "/dashboards/alerts.yaml");
    let test = json!({"interval": "1m", "input_series": series, "alert_rule_test": cases});
    let file = json!({"rule_files": [alerts], "evaluation_interval": "1m", "tests": [test]});
    fs::write(folder.path().join("tests.yaml"), file.to_string()).expect("a file");
    promtool(folder.path(), &["test", "rules", "tests.yaml"]).unwrap_or_else(|error| panic!("{error}"));
}

fn firing(alert: &str, labels: &Value, annotations: &Value) -> Value {
    let mut annotations = annotations.clone();
    annotations["runbook_url"] = format!("docs/runbooks/{alert}.md").into();
    let wanted = [json!({"exp_labels": labels, "exp_annotations": annotations})];
    json!({"eval_time": "30m", "alertname": alert, "exp_alerts": wanted})
}

fn silent(alert: &str) -> Value {
    json!({"eval_time": "30m", "alertname": alert})
}

fn fleet() -> Vec<Value> {
    let mut series = on_each(1000, "portreeve_build_info", "version=\"0.1.0\"", "1x40");
    series.extend(on_each(1000, "portreeve_scans_total", "pod=\"{node}\"", "0+4x40"));
    series
}

#[test]
fn a_listener_on_the_node_port_of_a_service_is_one_alert_on_any_number_of_nodes() {
    let of_service = "rule=\"listener-on-node-port\", variant=\"loses\", severity=\"critical\", scope=\"node\", subject_kind=\"Service\", \
                      subject_namespace=\"shop\", subject_name=\"web\", port=\"30080\", protocol=\"tcp\"";
    for size in SIZES {
        let mut series = fleet();
        series.extend(on_each(size, "portreeve_finding_info", of_service, "1x40"));
        let labels = json!({
            "severity": "critical", "rule": "listener-on-node-port", "variant": "loses", "subject_kind": "Service",
            "subject_namespace": "shop", "subject_name": "web", "port": "30080", "protocol": "tcp",
        });
        let description = format!(
            "Service shop/web, port 30080/tcp, on {size} of 1000 nodes {}: clients on other machines get a wrong \
             answer or no answer, now or very soon. An Event names the cause and the remedy: kubectl get events -A \
             --field-selector reportingComponent=portreeve. All nodes: kubectl portreeve check -o wide. The rule and its \
             fix: docs/rules/listener-on-node-port.md",
            names(size),
        );
        let summary = format!("listener-on-node-port/loses is critical for Service shop/web on {}", nodes(size));
        let annotations = json!({"summary": summary, "description": description});
        let cases = [
            firing("PortreeveCriticalFinding", &labels, &annotations),
            silent("PortreeveWarningFinding"),
            silent("PortreeveAgentAbsent"),
        ];
        run(&series, &cases);
    }
}

#[test]
fn nodes_with_one_wrong_setting_and_pods_of_one_daemon_set_are_one_alert_each() {
    let of_node = "rule=\"ephemeral-range-overlap\", variant=\"node-ports\", severity=\"warning\", scope=\"node\", \
                   subject_kind=\"Node\", subject_name=\"{node}\"";
    let of_pod = "rule=\"host-port-conflict\", variant=\"node-port\", severity=\"critical\", scope=\"node\", subject_kind=\"Pod\", \
                  subject_namespace=\"shop\", subject_name=\"edge-{node}\", port=\"30080\", protocol=\"tcp\"";
    for size in SIZES {
        let mut series = fleet();
        series.extend(on_each(size, "portreeve_finding_info", of_node, "1x40"));
        series.extend(on_each(size, "portreeve_finding_info", of_pod, "1x40"));
        let of_nodes = json!({
            "severity": "warning", "rule": "ephemeral-range-overlap", "variant": "node-ports", "subject_kind": "Node",
        });
        let of_pods = json!({
            "severity": "critical", "rule": "host-port-conflict", "variant": "node-port", "subject_kind": "Pod",
            "subject_namespace": "shop", "port": "30080", "protocol": "tcp",
        });
        let description = |subject: &str, effect: &str, rule: &str| {
            format!(
                "{subject}{size} of 1000 nodes {}: {effect} and the remedy: kubectl get events -A --field-selector \
                 reportingComponent=portreeve. All nodes: kubectl portreeve check -o wide. The rule and its fix: \
                 docs/rules/{rule}.md",
                names(size)
            )
        };
        let lost = "some connections fail, or will fail after the next change. An Event names the cause";
        let node_words = json!({
            "summary": format!("ephemeral-range-overlap/node-ports is a warning on {}", nodes(size)),
            "description": description("", lost, "ephemeral-range-overlap"),
        });
        let wrong =
            "clients on other machines get a wrong answer or no answer, now or very soon. An Event names the cause";
        let pod_words = json!({
            "summary": format!("host-port-conflict/node-port is critical for pods in shop on {}", nodes(size)),
            "description": description("Pods in shop, port 30080/tcp, on ", wrong, "host-port-conflict"),
        });
        let cases = [
            firing("PortreeveWarningFinding", &of_nodes, &node_words),
            firing("PortreeveCriticalFinding", &of_pods, &pod_words),
        ];
        run(&series, &cases);
    }
}

#[test]
fn a_finding_about_the_cluster_does_not_count_nodes() {
    let of_cluster = "rule=\"node-port-range-crowded\", variant=\"full\", severity=\"critical\", scope=\"cluster\", \
                      subject_kind=\"Cluster\", subject_name=\"cluster\"";
    for size in SIZES {
        let labels = json!({
            "severity": "critical", "scope": "cluster", "rule": "node-port-range-crowded", "variant": "full", "subject_kind": "Cluster",
            "subject_name": "cluster",
        });
        let annotations = json!({
            "summary": "node-port-range-crowded/full is critical for the cluster",
            "description": "The cluster: clients on other machines get a wrong answer or no answer, now or very \
                            soon. An Event names the cause and the remedy: kubectl get events -A --field-selector \
                            reportingComponent=portreeve. The rule and its fix: docs/rules/node-port-range-crowded.md",
        });
        let series = on_each(size, "portreeve_finding_info", of_cluster, "1x40");
        run(&series, &[firing("PortreeveCriticalFinding", &labels, &annotations)]);
    }
}

#[test]
fn agents_that_do_not_answer_or_cannot_read_are_one_alert() {
    for size in SIZES {
        let mut series = fleet();
        let target = "job=\"portreeve/portreeve\", instance=\"{node}:29517\"";
        series.extend(on_each(size, "up", target, "0x40"));
        series.push(json!({"series": format!("portreeve_build_info{{{}}}", target.replace("{node}", "last")), "values": "1x40"}));
        let unread = "rule=\"listener-on-node-port\", source=\"services\", why=\"unreachable\"";
        series.extend(on_each(size, "portreeve_unknown", unread, "1x40"));
        let those = format!("{} {}", nodes(size), names(size));
        let absent = json!({
            "summary": format!("The agents of {} do not answer", nodes(size)),
            "description": format!(
                "For 10 minutes Prometheus got no metrics from the agents of {those}: new problems are not in the \
                 metrics. An agent may still write Events: if another program has its port, the agent continues without \
                 metrics (host-network-port-taken/agent).",
            ),
        });
        let blind = json!({
            "summary": format!("The agents of {} cannot read services: unreachable", nodes(size)),
            "description": format!(
                "For 15 minutes, some rules could not judge {those}: the agents cannot read services (unreachable). \
                 Open findings stay open. New problems can be missed. The log of an agent and its document \
                 /findings have the details.",
            ),
        });
        let unreachable = json!({"severity": "warning", "source": "services", "why": "unreachable"});
        let cases = [
            firing("PortreeveAgentAbsent", &json!({"severity": "warning", "job": "portreeve/portreeve"}), &absent),
            firing("PortreeveAgentBlind", &unreachable, &blind),
            silent("PortreeveAgentStuck"),
        ];
        run(&series, &cases);
    }
}

#[test]
fn a_short_finding_on_each_of_hundreds_of_nodes_raises_no_alert() {
    let of_service = "rule=\"listener-on-node-port\", variant=\"loses\", severity=\"critical\", scope=\"node\", subject_kind=\"Service\", \
                      subject_namespace=\"shop\", subject_name=\"web\", port=\"30080\", protocol=\"tcp\"";
    for size in SIZES {
        let mut series = fleet();
        series.extend(on_each(size, "portreeve_finding_info", of_service, "_x30 1 stale _x9"));
        run(&series, &[silent("PortreeveCriticalFinding"), silent("PortreeveWarningFinding")]);
    }
}
