//! `kubectl portreeve owner --no-agent` reads the facts about a port from the API server, without an agent.

use std::{fs, path::Path, process::Command};

use serde_json::{Value, json};

use crate::{
    api::list,
    fake::{Fake, Reply},
    plugin::Plugin,
};

fn pod(name: &str, node: &str, host_network: bool, ports: &Value) -> String {
    json!({
        "metadata": {"name": name, "namespace": "office"},
        "spec": {"nodeName": node, "hostNetwork": host_network, "containers": [{"name": "one", "ports": ports}]},
        "status": {"phase": "Running"},
    })
    .to_string()
}

fn cluster(may_list_pods: bool) -> Fake {
    Fake::new(move |path, _| match path.split('?').next().expect("a path") {
        "/api/v1/services" => {
            let service = json!({
                "metadata": {"name": "web", "namespace": "shop"},
                "spec": {"type": "LoadBalancer", "clusterIP": "10.96.0.10", "healthCheckNodePort": 30081,
                         "externalTrafficPolicy": "Local", "ports": [{"port": 80, "nodePort": 30080, "protocol": "TCP"}]},
            });
            list("Service", &[&service.to_string()])
        }
        "/api/v1/pods" if may_list_pods => {
            let edge = pod("edge", "n1", false, &json!([{"containerPort": 80, "hostPort": 30080}]));
            let metal = pod("metal", "n2", true, &json!([{"containerPort": 30080, "protocol": "UDP"}]));
            let inside = pod("inside", "n2", false, &json!([{"containerPort": 30080}]));
            list("Pod", &[&edge, &metal, &inside])
        }
        "/api/v1/pods" => Reply::Status(403, "pods is forbidden"),
        _ => Reply::Status(404, "not found"),
    })
}

#[test]
fn claims_on_a_port_are_listed_without_an_agent_with_the_command_for_a_scan() {
    let (fake, plugin) = (cluster(true), Plugin::new());
    let (code, text, _) = plugin.run(&fake, &["owner", "30080", "--no-agent"]);
    assert_eq!(code, 0, "{text}");
    let wanted = "port 30080: the objects that declare it; no node was scanned\n  \
                  tcp   Service shop/web, nodePort on each node\n  \
                  tcp   Pod office/edge, hostPort on node n1\n  \
                  udp   Pod office/metal, hostNetwork on node n2\n\n";
    assert!(text.starts_with(wanted), "{text}");
    assert!(!fake.requests().iter().any(|path| path.contains("portreeve")), "no agent is requested");
    let command = text.lines().last().expect("a command").trim();
    assert!(command.contains("--rm ") && command.ends_with("-- owner 30080 --services - --node n1"), "{command}");
    let (_, text, _) = plugin.run(&fake, &["owner", "30081", "--no-agent"]);
    assert!(text.contains("  tcp   Service shop/web, healthCheckNodePort on each node\n"), "{text}");
    let (_, text, _) =
        plugin.run(&fake, &["owner", "30080/udp", "--no-agent", "--node", "n1", "--image", "r.test/x:1"]);
    assert!(
        text.contains("no object that was read claims this port") && text.contains("--image=r.test/x:1 "),
        "{text}"
    );
    assert!(text.trim_end().ends_with("-- owner 30080/udp --services - --node n1"), "{text}");
    assert_eq!(plugin.run(&fake, &["owner", "30080", "--image", "r.test/x:1"]).0, 64);
    let (code, _, text) = plugin.run(&fake, &["owner", "30080", "--no-agent", "--image", "r/x:1"]);
    assert!(code == 64 && text.contains("an image has a registry, like "), "{code}: {text}");
}

fn words(line: &str) -> Vec<String> {
    let script = format!("kubectl() {{ printf '%s\\0' \"$@\"; }}; {line}");
    let output = Command::new("sh").args(["-c", &script]).output().expect("a shell");
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    text.split_terminator('\0').map(str::to_owned).collect()
}

#[test]
fn the_command_for_one_scan_is_safe_in_a_shell_for_any_node_name() {
    let plugin = Plugin::new();
    for node in ["n1", "it's $(reboot) \"n1\""] {
        let asked = ["owner", "30080", "--no-agent", "--node", node, "-o", "json"];
        let (_, stdout, _) = plugin.run(&cluster(true), &asked);
        let document: Value = serde_json::from_str(&stdout).expect("JSON");
        let words = words(document["declared"]["command"].as_str().expect("a command"));
        assert_eq!(words[..2], ["run", "portreeve-look"]);
        assert_eq!(words.last().map(String::as_str), Some(node));
        let overrides = words.iter().find_map(|word| word.strip_prefix("--overrides=")).expect("overrides");
        let pod: Value = serde_json::from_str(overrides).expect("JSON");
        assert_eq!((&pod["spec"]["nodeName"], &pod["spec"]["hostNetwork"]), (&json!(node), &json!(true)));
    }
}

#[test]
fn objects_that_may_not_be_listed_are_unknown_and_the_document_fits_its_schema() {
    let (fake, plugin) = (cluster(false), Plugin::new());
    let (code, stdout, _) = plugin.run(&fake, &["owner", "30080", "--no-agent", "-o", "json"]);
    let document: Value = serde_json::from_str(&stdout).expect("JSON");
    assert_eq!((code, &document["declared"]["unknown"][0]["source"]), (2, &json!("pods")), "{document:#}");
    assert_eq!(document["declared"]["claims"][0]["field"], "nodePort");
    let schema = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/schema/owner.schema.json"));
    let schema: Value = serde_json::from_str(&schema.expect("a schema")).expect("JSON");
    jsonschema::validate(&schema, &document).unwrap_or_else(|error| panic!("{error}"));
    let nothing = Fake::new(|_, _| Reply::Status(403, "forbidden"));
    let (code, stdout, notes) = plugin.run(&nothing, &["owner", "30080", "--no-agent"]);
    assert!((code, stdout.as_str()) == (2, "") && notes.contains("nothing was read"), "{notes}");
}
