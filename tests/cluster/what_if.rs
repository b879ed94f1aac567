//! `kubectl portreeve what-if`: agents' snapshots, judged as they might be.

use serde_json::{Value, json};

use crate::{
    fake::{Fake, Reply},
    plugin::{Plugin, cluster, seen, snapshot},
};

#[test]
fn what_would_be_lost_in_another_mode_is_told_once_for_all_nodes() {
    let (fake, plugin) = (seen(), Plugin::new());
    let (code, text, notes) = plugin.run(&fake, &["what-if", "--set", "proxy_mode=nftables"]);
    assert_eq!(code, 1, "{text}{notes}");
    assert!(text.starts_with("what if proxy_mode=nftables; 2 of 3 nodes judged"), "{text}");
    let lost = "30080/tcp (Service default/web), from its loopback to 127.0.0.1: pod now, then refused\n    2 of 2 nodes: n1, n2";
    assert!(text.contains(lost), "{text}");
    assert!(notes.contains("odd could not be judged"), "{notes}");

    let (code, text, _) = plugin.run(&fake, &["what-if", "--set", "proxy_mode=iptables", "--node", "n1"]);
    assert!(code == 0 && text.ends_with("nothing would be otherwise\n"), "{text}");
    // None of the nodes that were asked for could be judged.
    let (code, text, _) = plugin.run(&fake, &["what-if", "--set", "proxy_mode=iptables", "--node", "odd"]);
    assert!(code == 2 && text.ends_with("nothing is known: no node could be judged\n"), "{text}");
    let (code, text, _) = plugin.run(&fake, &["what-if", "--set", "proxy_mode=nftables", "-o", "json"]);
    let document: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!((code, &document["answers"][0]["nodes"]), (1, &json!(["n1", "n2"])), "{text}");
    let (code, _, error) = plugin.run(&fake, &["what-if", "--set", "proxy_mode=nftable"]);
    assert!(code == 64 && error.contains("nftable"), "{error}");
}

/// One node, whose snapshot is changed.
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
fn what_would_be_less_bad_is_neither_new_nor_over() {
    // In ipvs mode connections that are given NodePorts hang; in nftables mode a listener may be refused its port.
    let fake = one(|snapshot| {
        snapshot["kernel"]["sysctls"]["ip_local_port_range"]["seen"] = json!({"first": 1024, "last": 65535});
        snapshot["kernel"]["proxy"]["mode"]["seen"]["value"] = json!("ipvs");
    });
    let (_, text, _) = Plugin::new().run(&fake, &["what-if", "--set", "proxy_mode=nftables", "-o", "json"]);
    let document: Value = serde_json::from_str(&text).expect("JSON");
    let rules = |key: &str| -> Vec<&str> {
        document[key].as_array().expect("a list").iter().filter_map(|it| it["rule"].as_str()).collect()
    };
    let rule = "ephemeral-range-overlaps-node-ports";
    assert!(rules("milder").contains(&rule), "{text}");
    assert!(!rules("begins").contains(&rule) && !rules("ends").contains(&rule), "{text}");
}

#[test]
fn what_is_not_known_is_no_loss_and_makes_nothing_clear() {
    let fake = one(|snapshot| {
        let why = json!({"source": "endpoint-slices", "why": "not-permitted", "detail": "may not be listed"});
        snapshot["cluster"]["endpoint_slices"] = json!({"gap": why});
    });
    let (code, text, _) = Plugin::new().run(&fake, &["what-if", "--set", "proxy_mode=nftables"]);
    assert!(text.contains("\nNot known\n") && text.contains(": may not be listed\n"), "{code}\n{text}");
    assert!(!text.contains("unknown"), "{text}");
}
