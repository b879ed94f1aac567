//! `kubectl portreeve what-if`: agents' snapshots, judged as they might be.

use serde_json::{Value, json};

use crate::plugin::{Plugin, seen};

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
