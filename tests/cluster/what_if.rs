//! `kubectl portreeve what-if` judges the snapshots of agents with other settings.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::{
    fake::{Fake, Reply},
    named::is_of,
    plugin::{Plugin, cluster, seen, snapshot},
};

#[test]
fn losses_in_another_mode_are_reported_once_for_all_nodes() {
    let (fake, plugin) = (seen(), Plugin::new());
    let (code, text, notes) = plugin.run(&fake, &["what-if", "--set", "proxy_mode=nftables"]);
    assert_eq!(code, 1, "{text}{notes}");
    assert!(text.starts_with("what if proxy_mode=nftables; 2 of 3 nodes judged"), "{text}");
    let lost = "Service default/web, port 30080/tcp, stays, on 2 of 2 nodes: n1, n2\n  \
                Answers   from its loopback to 127.0.0.1: pod now, then refused\n";
    assert!(text.contains(lost), "{text}");
    assert!(notes.contains("odd could not be judged") && notes.contains("the oldest scan is "), "{notes}");

    let (code, text, _) = plugin.run(&fake, &["what-if", "--set", "proxy_mode=iptables", "--node", "n1"]);
    assert!(code == 0 && text.contains("\nnothing would change\n"), "{text}");
    assert!(text.ends_with("leaves in the kernel or removes.\n"), "{text}");
    // The only requested node could not be judged.
    let (code, text, _) = plugin.run(&fake, &["what-if", "--set", "proxy_mode=iptables", "--node", "odd"]);
    assert!(code == 2 && text.contains("nothing is known: no node could be judged\n"), "{text}");
    assert!(text.contains("    1 of 1 nodes: odd\n"), "{text}");
    let (code, text, _) = plugin.run(&fake, &["what-if", "--set", "proxy_mode=nftables", "-o", "json"]);
    let document: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!((code, &document["claims"][0]["nodes"]), (1, &json!(["n1", "n2"])), "{text}");
    let (code, _, error) = plugin.run(&fake, &["what-if", "--set", "proxy_mode=nftable"]);
    assert!(code == 64 && error.contains("nftable"), "{error}");
}

fn one(change: fn(&mut Value)) -> Fake {
    cluster(&["n1"], move |node, path, _| match path {
        "/snapshot" => {
            let mut document: Value = serde_json::from_str(&snapshot(node, 29999)).expect("JSON");
            change(&mut document);
            Reply::Json(document.to_string())
        }
        _ => Reply::Status(404, "not found"),
    })
}

#[test]
fn a_finding_that_would_be_less_severe_is_neither_new_nor_over() {
    // In ipvs mode, connections with a NodePort as source port hang. In nftables mode, a listener may not get its port.
    let fake = one(|snapshot| {
        snapshot["kernel"]["sysctls"]["ip_local_port_range"]["seen"] = json!({"first": 1024, "last": 65535});
        snapshot["kernel"]["proxy"]["mode"]["seen"]["value"] = json!("ipvs");
    });
    let (_, text, _) = Plugin::new().run(&fake, &["what-if", "--set", "proxy_mode=nftables", "-o", "json"]);
    let document: Value = serde_json::from_str(&text).expect("JSON");
    let changes: Vec<&Value> = findings(&document).filter(|it| is_of(&it["then"], "ephemeral-range-overlap")).collect();
    let words =
        "warning ephemeral-range-overlap/node-ports: warning instead of critical; this node is not affected any more";
    assert!(changes.len() == 1 && changes[0]["how"] == "stays" && changes[0]["difference"] == words, "{text}");
}

fn findings(document: &Value) -> impl Iterator<Item = &Value> {
    let claims = document["claims"].as_array().expect("a list").iter();
    claims.flat_map(|claim| claim["findings"].as_array().expect("a list"))
}

#[test]
fn an_unknown_fact_is_no_loss_and_clears_nothing() {
    let fake = one(|snapshot| {
        let why = json!({"source": "endpoint-slices", "why": "not-permitted", "detail": "may not be listed"});
        snapshot["cluster"]["endpoint_slices"] = json!({"gap": why});
    });
    let (code, text, _) = Plugin::new().run(&fake, &["what-if", "--set", "proxy_mode=nftables"]);
    assert!(text.contains("\nNot known\n") && text.contains(": may not be listed\n"), "{code}\n{text}");
    assert_eq!(text.matches("may not be listed").count(), 1, "{text}");
    assert!(!text.contains("unknown"), "{text}");
}

/// A node in iptables mode with many NodePorts. The node has the address 192.0.2.2, but its Node object does not have
/// this address.
fn with_many_ports(snapshot: &mut Value) {
    snapshot["kernel"]["proxy"]["mode"]["seen"]["value"] = json!("iptables");
    let copy = |list: &mut Value, of: (&str, &str), change: &mut dyn FnMut(&mut Value)| {
        let list = list.as_array_mut().expect("a list");
        let mut copy = list.iter().find(|it| it[of.0] == of.1).unwrap_or_else(|| panic!("{of:?}")).clone();
        change(&mut copy);
        list.push(copy);
    };
    for number in 31000..31060 {
        let name = format!("s{number}");
        copy(&mut snapshot["cluster"]["services"]["seen"], ("name", "web"), &mut |it| {
            (it["name"], it["uid"]) = (json!(name), json!(name));
            it["ports"][0]["node_port"] = json!(number);
        });
        let slices = &mut snapshot["cluster"]["endpoint_slices"]["seen"];
        copy(slices, ("service", "web"), &mut |it| it["service"] = json!(name));
    }
}

#[test]
fn losses_of_many_ports_with_one_cause_are_reported_once_with_their_remedy() {
    let run = |more: &[&str]| {
        let words = [&["what-if", "--set", "proxy_mode=nftables"], more].concat();
        Plugin::new().run(&one(with_many_ports), &words)
    };
    let (code, text, _) = run(&[]);
    assert_eq!(code, 1, "{text}");
    let many = "61 ports of Services stay, on n1\n  Service default/s31000 31000/tcp, Service default/s31001 31001/tcp, \
                Service default/s31002 31002/tcp and 58 more\n";
    assert!(text.contains(many), "{text}");
    let answers = "from remote clients, this node, its pods to other addresses, such as 192.0.2.2: pod";
    assert!(text.matches(answers).count() == 1 && text.matches("31000/tcp").count() == 1, "{text}");
    assert!(text.contains("--set node_port_addresses=0.0.0.0/0,::/0"), "{text}");
    let (_, text, _) = run(&["--set", "node_port_addresses=0.0.0.0/0,::/0"]);
    assert!(!text.contains("192.0.2.2") && !text.contains("To keep the other addresses"), "{text}");
    let (_, json, _) = run(&["-o", "json"]);
    let document: Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(document["claims"].as_array().map(Vec::len), Some(61), "each port has its own entry: {json}");
}

#[test]
fn an_unknown_mode_is_reported_once_for_all_ports_with_the_flag_that_sets_it() {
    let fake = one(|snapshot| {
        with_many_ports(snapshot);
        let why =
            json!({"source": "proxy-mode", "why": "unreachable", "detail": "no process listens on 127.0.0.1:10249"});
        snapshot["kernel"]["proxy"]["mode"] = json!({"gap": why});
        snapshot["kernel"]["proxy"]["config"] = json!({"gap": why});
    });
    let (_, text, _) = Plugin::new().run(&fake, &["what-if", "--set", "proxy_mode=nftables"]);
    let wanted = "  the proxy mode is not known: no process listens on 127.0.0.1:10249; set --proxy-mode of the agent";
    assert_eq!(text.matches(wanted).count(), 1, "{text}");
    assert!(text.contains("\n    61 ports: 30080/tcp, 31000/tcp, 31001/tcp and 58 more\n"), "{text}");
}

#[test]
fn files_are_judged_like_agents_with_one_file_for_each_node() {
    let folder = tempfile::TempDir::new().expect("a directory");
    let write = |name: &str, node: &str| {
        let path = folder.path().join(name);
        let mut world: Value = serde_json::from_str(&snapshot(node, 29999)).expect("JSON");
        // The snapshot in a file may have any age.
        world["at"] = json!("2026-03-01T10:00:00Z");
        std::fs::write(&path, world.to_string()).expect("a file");
        path.to_str().expect("UTF-8").to_owned()
    };
    let [one, other, again] =
        [("1.json", "n1"), ("2.json", "n2"), ("3.json", "n1")].map(|(name, node)| write(name, node));
    let fake = Fake::new(|path, _| panic!("no request is expected: {path}"));
    let run =
        |words: &[&str]| Plugin::new().run(&fake, &[&["what-if", "--set", "proxy_mode=nftables"], words].concat());
    let (code, text, error) = run(&["--snapshot", &one, "--snapshot", &other]);
    assert!(code == 1 && error.is_empty(), "{text}{error}");
    assert!(text.starts_with("what if proxy_mode=nftables; 2 of 2 nodes judged\n"), "{text}");
    assert!(text.contains("30080/tcp, stays, on 2 of 2 nodes: n1, n2\n  Answers "), "{text}");
    assert!(!text.contains("Not known"), "{text}");
    let (code, _, error) = run(&["--snapshot", &one, "--snapshot", &again]);
    assert!(code == 2 && error.contains("a second snapshot of node n1"), "{error}");
    assert_eq!(run(&["--snapshot", &one, "--kubeconfig", "k"]).0, 64);
}

#[test]
fn a_node_whose_kernel_refuses_the_value_is_not_known_and_the_others_are_judged() {
    let fake = cluster(&["n1", "n2"], |node, path, _| match path {
        "/snapshot" => {
            let mut document: Value = serde_json::from_str(&snapshot(node, 29999)).expect("JSON");
            let start = if node == "n1" { 1024 } else { 40_000 };
            document["kernel"]["sysctls"]["ip_unprivileged_port_start"]["seen"] = json!(start);
            Reply::Json(document.to_string())
        }
        _ => Reply::Status(404, "not found"),
    });
    let run = |range: &str, words: &[&str]| {
        let setting = format!("ip_local_port_range={range}");
        Plugin::new().run(&fake, &[&["what-if", "--set", &setting], words].concat())
    };
    let words = "the kernel of n2 refuses ip_local_port_range=33000-60000 with ip_unprivileged_port_start=40000";
    let (code, text, notes) = run("33000 60000", &[]);
    assert_eq!(code, 2, "{text}{notes}");
    assert!(text.starts_with("what if ip_local_port_range=33000 60000; 1 of 2 nodes judged"), "{text}");
    let unknown = text.split_once("\nNot known\n").expect("a part").1.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(unknown.contains(words) && unknown.contains("1 of 2 nodes: n2"), "{text}");
    assert!(notes.contains("n2 could not be judged: the kernel of n2 refuses"), "{notes}");
    // No node accepts the value, so the value is wrong, even if some agent does not answer.
    let silent = cluster(&["n1", "n2"], |node, path, _| match path {
        "/snapshot" if node == "n1" => Reply::Json(snapshot(node, 29999)),
        _ => Reply::Status(503, "later"),
    });
    let of_silent = Plugin::new().run(&silent, &["what-if", "--set", "ip_local_port_range=1023 60000"]);
    for (code, text, error) in [run("33000 60000", &["--node", "n2"]), run("1023 60000", &[]), of_silent] {
        assert!(code == 64 && error.contains("refuses ip_local_port_range") && text.is_empty(), "{text}{error}");
    }
}

fn of_recorded(name: &str, setting: &str) -> Value {
    let recorded = format!("{}/tests/anywhere/snapshots/v1/{name}.json", env!("CARGO_MANIFEST_DIR"));
    let nobody = Fake::new(|_, _| Reply::Status(404, "no agent is queried"));
    let words = ["what-if", "--set", setting, "-o", "json", "--snapshot", &recorded];
    let (_, text, _) = Plugin::new().run(&nobody, &words);
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

#[test]
fn leftovers_of_a_switch_are_not_predicted_and_a_future_finding_has_no_start() {
    for (name, setting) in [("lab-iptables", "proxy_mode=nftables"), ("lab-ipvs", "proxy_mode=iptables")] {
        let document = of_recorded(name, setting);
        let is_left = |it: &Value| ["now", "then"].iter().any(|world| is_of(&it[world], "stale-redirection/proxy"));
        assert!(!findings(&document).any(is_left), "{name}: {document:#}");
        assert!(document["notPredicted"].as_str().is_some_and(|it| it.contains("conntrack")), "{document:#}");
    }
    let document = of_recorded("lab-ipvs", "proxy_mode=iptables");
    assert!(findings(&document).any(|it| it["how"] == "begins"), "{document:#}");
    assert!(findings(&document).all(|it| it["then"].get("since").is_none()), "{document:#}");
}

#[test]
fn each_claim_of_a_node_is_one_row_with_a_difference() {
    let mut rows = 0;
    for name in ["lab-iptables", "lab-ipvs", "lab-nftables", "iptables", "ipvs", "nftables", "cilium", "mode-not-read"]
    {
        for setting in ["proxy_mode=nftables", "proxy_mode=ipvs", "proxy_mode=cilium", "node_port_range=20000-40000"] {
            let document = of_recorded(name, setting);
            let mut claims = BTreeSet::new();
            for row in document["claims"].as_array().expect("a list") {
                assert!(claims.insert(row["claim"].to_string()), "{name}, {setting}: {:#}", row["claim"]);
                let is_empty = |list: &str| row[list].as_array().is_none_or(Vec::is_empty);
                assert!(!is_empty("findings") || !is_empty("answers"), "{name}, {setting}: {row:#}");
            }
            rows += claims.len();
        }
    }
    assert!(rows > 100, "{rows} rows");
}
