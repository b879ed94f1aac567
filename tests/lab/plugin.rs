//! A user types `kubectl portreeve` with the real kubectl. Two nodes run pods, and the user has only three rights.

use crate::parts::named::is_of;
use std::{fs, os::unix::fs::PermissionsExt as _};

use serde_json::{Value, json};

use crate::{
    chart::an_incident_on_each_node,
    parts::{Plugin, SecondNode, WholeNode, find, until},
};

pub fn two_findings(observer: &Plugin) -> Value {
    until("finding on each node", || {
        let (_, stdout, _) = observer.types("kubectl portreeve check -o json");
        let document: Value = serde_json::from_str(&stdout).ok()?;
        let nodes = document["nodes"].as_array()?;
        let found = |node: &Value| node["findings"].as_array().is_some_and(|findings| !findings.is_empty());
        (nodes.len() == 2 && nodes.iter().all(found)).then_some(document)
    })
}

#[test]
fn an_incident_on_each_of_two_nodes_is_seen_by_who_has_the_rights_of_a_reader_and_no_others() {
    let node = WholeNode::start();
    let second = SecondNode::join(&node);
    let port = an_incident_on_each_node(&node);

    let observer = Plugin::of(&node.cluster.kubeconfig("observer"));
    let document = two_findings(&observer);
    for (number, place, pod) in [(0, "n1", "printer"), (1, "n2", "scanner")] {
        let told = &document["nodes"][number];
        let finding = &told["findings"][0];
        assert_eq!((&told["node"], is_of(finding, "listener-on-node-port/loses")), (&json!(place), true));
        assert!(finding["summary"].to_string().contains(&format!("office/{pod} listens")), "{finding:#}");
    }
    let (code, table, _) = observer.types("kubectl portreeve check -n shop");
    assert_eq!(code, 1, "{table}");
    let row = |line: &str| {
        line.starts_with("critical  listener-on-node-port/loses  Service shop/web")
            && line.ends_with("2 of 2 nodes: n1, n2")
    };
    assert!(table.lines().any(row), "{table}");
    let words = table.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains("On n1: ") && words.contains("Differs on other nodes than n1: "), "{table}");
    assert!(table.contains("This report is about 2 agents of namespace portreeve."), "{table}");

    other_commands(&node, &observer, port);
    other_credentials(&node, &observer);
    nothing_else_is_granted(&observer);

    let processes = second.machine.processes();
    let agent = processes.iter().find(|(_, words)| words[0] == "/portreeve" && !words.contains(&"--probe".to_owned()));
    let (pid, _) = agent.expect("an agent");
    second.machine.run(&["kill", "-STOP", &pid.to_string()]);
    let asked = "kubectl portreeve check --request-timeout 3s";
    let (code, table, _) = observer.types(asked);
    assert_eq!(code, 1, "what is known is told: {table}");
    assert!(table.contains("1 agent queried, 1 could not be queried"), "{table}");
    let (code, table, _) = observer.types(&format!("{asked} -n office"));
    assert_eq!(code, 2, "nothing was found, but not everybody was asked: {table}");
    let silent = table.lines().find(|line| line.starts_with("  n2 ")).unwrap_or_else(|| panic!("{table}"));
    assert!(silent.contains("took too long"), "{table}");
}

fn other_commands(node: &WholeNode, observer: &Plugin, port: u64) {
    let (code, owner, _) = observer.types(&format!("kubectl portreeve owner {port}/tcp --node n2"));
    assert_eq!(code, 0);
    assert!(
        owner.starts_with("node n2\n") && owner.contains("shop/web") && owner.contains("office/scanner"),
        "{owner}"
    );
    let (code, map, _) = observer.types("kubectl portreeve map --node n1");
    assert_eq!(code, 0);
    assert!(map.contains(&format!("{port}  pod office/printer listens, owned by Service shop/web")), "{map}");
    let (code, snapshot, _) = observer.types("kubectl portreeve snapshot n2");
    assert_eq!(code, 0);
    let file = observer.write("n2.json", &snapshot);
    let (code, replayed, _) = observer.types(&format!("kubectl portreeve check --snapshot {file} -o json"));
    assert_eq!(code, 1);
    assert!(replayed.contains("office/scanner"), "{replayed}");

    open_report(node, observer);

    let (code, free, remark) = observer.types("kubectl portreeve suggest");
    assert_eq!(code, 0, "{remark}");
    let free: u64 = free.trim().parse().expect("a port");
    node.cluster.api().create(&json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "suggested", "namespace": "shop"},
        "spec": {"type": "NodePort", "ports": [{"port": 80, "nodePort": free}]},
    }));
    let (_, next, _) = observer.types("kubectl __complete portreeve snapshot n");
    assert_eq!(next, "n1\nn2\n:4\n");
}

fn open_report(node: &WholeNode, observer: &Plugin) {
    let admin = Plugin::of(&node.cluster.kubeconfig("admin"));
    let definition = find("openreports.io_clusterreports.yaml");
    let (code, out, error) = admin.types(&format!("kubectl apply -f {}", definition.display()));
    assert_eq!(code, 0, "{out}{error}");
    let established = "kubectl wait --for=condition=Established --timeout=60s crd/clusterreports.openreports.io";
    assert_eq!(admin.types(established).0, 0);
    let (code, report, _) = observer.types("kubectl portreeve check -o openreports");
    assert_eq!(code, 1);
    let file = admin.write("report.json", &report);
    let (code, out, error) = admin.types(&format!("kubectl apply --server-side --validate=strict -f {file}"));
    assert_eq!(code, 0, "{out}{error}{report}");
    let (_, stored, _) = admin.types("kubectl get clusterreports portreeve -o json");
    let stored: Value = serde_json::from_str(&stored).expect("a ClusterReport");
    assert!(stored["summary"]["fail"].as_u64() >= Some(1), "{stored:#}");
    let of_service = |it: &&Value| it["policy"] == "listener-on-node-port" && it["resources"][0]["name"] == "web";
    let result = stored["results"].as_array().and_then(|all| all.iter().find(of_service)).expect("the finding");
    assert_eq!((&result["result"], &result["properties"]["nodes"]), (&json!("fail"), &json!("n1, n2")));
}

fn other_credentials(node: &WholeNode, observer: &Plugin) {
    let credential = json!({
        "apiVersion": "client.authentication.k8s.io/v1",
        "kind": "ExecCredential",
        "status": {"token": "observer"},
    });
    let script = observer.write("log-in", &format!("#!/bin/sh\ncat <<END\n{credential}\nEND\n"));
    fs::set_permissions(&script, fs::Permissions::from_mode(0o700)).expect("our file");
    let admin = fs::read_to_string(node.cluster.kubeconfig("admin")).expect("a kubeconfig");
    let exec =
        format!("{{exec: {{apiVersion: client.authentication.k8s.io/v1, command: {script}, interactiveMode: Never}}}}");
    assert!(admin.contains("{token: admin}"), "{admin}");
    let with_exec = observer.write("exec.kubeconfig", &admin.replace("{token: admin}", &exec));
    let (code, _, stderr) = observer.types(&format!("kubectl portreeve check --kubeconfig {with_exec}"));
    assert_eq!(code, 1, "{stderr}");

    let admin = Plugin::of(&node.cluster.kubeconfig("admin"));
    assert_eq!(admin.types("kubectl portreeve check --context lab --as observer").0, 1);
    let (code, _, refusal) = admin.types("kubectl portreeve check --as nobody --as-group lab");
    assert_eq!(code, 2);
    assert!(refusal.contains(r#"User "nobody" cannot list resource "pods""#), "{refusal}");
}

fn nothing_else_is_granted(observer: &Plugin) {
    for question in [
        "list services -A",
        "list nodes",
        "list pods -n shop",
        "get pods/log -n portreeve",
        "create pods/proxy -n portreeve",
        "create serviceaccounts/portreeve --subresource=token -n portreeve",
        "create serviceaccounts/portreeve-reader --subresource=token -n kube-system",
    ] {
        let (_, answer, _) = observer.types(&format!("kubectl auth can-i {question}"));
        assert_eq!(answer.trim(), "no", "{question}");
    }
}
