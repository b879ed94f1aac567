//! The names that findings had when the snapshots in `v1` were recorded. The recorded findings keep these names.

use serde_json::Value;

/// The old name, the present id, and the variants of this id that had the old name.
const RENAMED: [(&str, &str, &[&str]); 31] = [
    ("client-socket-blocks-port", "connection-on-port", &["blocks"]),
    ("client-socket-on-node-port", "connection-on-port", &["answers-taken"]),
    ("ephemeral-ports-near-exhaustion", "ephemeral-ports-near-exhaustion", &["node", "pod"]),
    ("ephemeral-range-overlaps-node-ports", "ephemeral-range-overlap", &["node-ports", "servers", "no-start"]),
    ("external-address-claimed-twice", "external-ip-conflict", &["claimed-twice", "cluster-ip"]),
    ("external-ip-is-node-address", "external-ip-conflict", &["node-address", "takes-listener"]),
    ("external-ip-shadows-node-port", "external-ip-conflict", &["takes-node-port"]),
    ("fixed-node-port-in-dynamic-band", "node-port-range-mismatch", &["band"]),
    ("health-check-node-port-unserved", "health-check-unserved", &["nobody", "other", "one-family"]),
    ("host-port-claimed-twice", "pod-waits-for-port", &["workloads", "replicas"]),
    ("host-port-equals-node-port", "host-port-conflict", &["node-port"]),
    ("host-port-in-node-port-range", "host-port-conflict", &["latent", "ignored", "health-check"]),
    ("host-port-left-behind", "stale-redirection", &["host-port"]),
    ("host-port-takes-listener", "host-port-conflict", &["takes-listener", "no-network"]),
    ("ipvs-holds-foreign-address", "address-held-twice", &["ipvs"]),
    ("listener-blocks-host-network-pod", "host-network-port-taken", &["listener", "refused"]),
    ("listener-in-node-port-range", "listener-on-node-port", &["latent"]),
    ("listener-on-node-port", "listener-on-node-port", &["loses", "trap", "no-return"]),
    ("masquerade-uses-node-ports", "masquerade-source-ports", &["taken", "cilium"]),
    ("node-holds-peer-address", "address-held-twice", &["link"]),
    ("node-port-claimed-twice", "node-port-claimed-twice", &["lost", "refused", "anew", "pods", "own"]),
    ("node-port-outside-range", "node-port-range-mismatch", &["outside"]),
    ("node-port-range-covers-daemons", "node-port-range-mismatch", &["daemons"]),
    ("node-port-range-crowded", "node-port-range-crowded", &["crowded", "spilled", "full"]),
    ("node-port-range-disagreement", "node-port-range-mismatch", &["component", "reserved"]),
    ("own-port-taken", "host-network-port-taken", &["agent"]),
    ("pod-port-of-daemon", "host-network-port-taken", &["daemon"]),
    ("pod-waits-for-host-port", "pod-waits-for-port", &["pod"]),
    ("proxy-health-port-taken", "health-check-unserved", &["proxy"]),
    ("proxy-left-behind", "stale-redirection", &["proxy"]),
    ("proxy-near-fd-limit", "proxy-near-fd-limit", &["near"]),
];

/// Converts the output of this version to the old structure and the old names. Names of newer rules do not change.
pub(super) fn as_it_was(mut document: Value) -> Value {
    let node = document["nodes"][0].take();
    for (now, then) in [("node", "node"), ("lookedAt", "at"), ("proxy", "proxy"), ("nodePortRange", "nodePortRange")] {
        document[then] = node[now].clone();
    }
    document["schema"] = "portreeve/v1".into();
    for list in ["findings", "unknown"] {
        for entry in document[list].as_array_mut().into_iter().flatten().filter_map(Value::as_object_mut) {
            entry.remove("nodes");
            entry.remove("node");
            let variants = entry.remove("variants").or_else(|| entry.remove("variant"));
            let variants = variants.map(|it| it.as_array().cloned().unwrap_or_else(|| vec![it]));
            let Some(first) = variants.as_ref().and_then(|it| it.first()?.as_str()) else { continue };
            let then = RENAMED.iter().find(|(_, id, all)| entry["rule"] == *id && all.contains(&first));
            if let Some((then, ..)) = then {
                entry.insert("rule".to_owned(), (*then).into());
            }
        }
    }
    document
}

/// Rules that are newer than the recordings have no old name.
#[test]
fn every_name_of_then_is_one_rule_of_now() {
    for (then, id, variants) in RENAMED {
        let is_it = |rule: &&&portreeve_rules::Rule| rule.name().0 == id && rule.variants == variants;
        assert_eq!(portreeve_rules::RULES.iter().filter(is_it).count(), 1, "{then}");
    }
}
