use super::*;
use crate::facts_builder::FactsBuilder;
use portreeve_facts::NodeAddressKind;

fn read(text: &str) -> Result<(FactsBuilder, DocumentSummary), serde_json::Error> {
    let mut facts = FactsBuilder::default();
    let mut sink = |object| facts.add("here", object);
    let document = ObjectReader { kind: Some("Node"), closed: true, sink: &mut sink };
    let summary = document.deserialize(&mut serde_json::Deserializer::from_str(text))?;
    Ok((facts, summary))
}

/// What kube-apiserver 1.36 answers, with fewer columns.
fn table(columns: &[&str], rows: &[&[&str]]) -> String {
    let columns: Vec<_> =
        columns.iter().map(|name| serde_json::json!({"name": name, "type": "string", "priority": 1})).collect();
    let rows: Vec<_> = rows.iter().map(|cells| serde_json::json!({"cells": cells, "object": null})).collect();
    let metadata = serde_json::json!({"resourceVersion": "71"});
    // In this order, whatever a map does.
    format!(
        r#"{{"kind":"Table","apiVersion":"meta.k8s.io/v1","metadata":{metadata},"columnDefinitions":{},"rows":{}}}"#,
        serde_json::Value::from(columns),
        serde_json::Value::from(rows)
    )
}

#[test]
fn a_row_is_a_node_with_one_address_of_each_kind() {
    let text = table(
        &["Name", "Status", "Version", "Internal-IP", "External-IP"],
        &[
            &["n1", "Ready", "v1.36.3", "10.0.0.1", "203.0.113.1"],
            &["n2", "NotReady", "v1.36.3", "2001:db8::2", "<none>"],
            &["n3", "Ready", "v1.36.3", "nonsense", "<none>"],
        ],
    );
    let (facts, summary) = read(&text).expect("a Table");
    assert_eq!((summary.list, summary.version.as_deref(), summary.next_page), (true, Some("71"), None));
    let facts = facts.finish("here".to_owned(), true, None);
    let nodes = facts.nodes.seen().expect("Nodes");
    let addresses: Vec<_> = nodes
        .iter()
        .flat_map(|node| node.addresses.iter().map(|it| (node.name.as_str(), it.kind, it.ip.to_string())))
        .collect();
    assert_eq!(
        addresses,
        [
            ("n1", NodeAddressKind::InternalIp, "10.0.0.1".to_owned()),
            ("n1", NodeAddressKind::ExternalIp, "203.0.113.1".to_owned()),
            ("n2", NodeAddressKind::InternalIp, "2001:db8::2".to_owned()),
        ]
    );
    assert!(nodes.iter().all(|node| node.kubelet_version.as_deref() == Some("v1.36.3")));
    assert_eq!(facts.rejected.len(), 1, "{:?}", facts.rejected);
}

#[test]
fn a_table_without_the_addresses_is_no_answer() {
    let error = read(&table(&["Name", "Version"], &[&["n1", "v1.36.3"]])).expect_err("columns are missing");
    assert!(error.to_string().contains("no column Internal-IP"), "{error}");
}

#[test]
fn a_table_of_nothing_may_say_so_with_null() {
    for (columns, rows) in [("[]", "null"), ("null", "null"), (r#"[{"name":"Name"}]"#, "null")] {
        let text = format!(r#"{{"kind":"Table","metadata":{{}},"columnDefinitions":{columns},"rows":{rows}}}"#);
        let (facts, summary) = read(&text).expect("a Table");
        assert!(facts.nodes.is_empty() && summary.list, "{text}");
    }
}

#[test]
fn rows_of_something_else_are_passed_over() {
    let (facts, _) = read(r#"{"kind":"Node","metadata":{"name":"n1"},"rows":5}"#).expect("a Node");
    assert_eq!(facts.nodes.len(), 1);
}

#[test]
fn a_list_in_a_list_that_goes_on_or_was_cut_is_said_of_the_outer_one() {
    let item = r#"{"kind":"Node","metadata":{"name":"n1"}}"#;
    let outer = |inner: &str| format!(r#"{{"kind":"List","items":[{{"kind":"List","items":[{inner}]}},{item}]}}"#);
    let inner = |metadata: &str| format!(r#"{{"kind":"NodeList","metadata":{{{metadata}}},"items":[{item}]}}"#);
    for metadata in [r#""continue":"t1""#, r#""remainingItemCount":3"#, r#""continue":7"#] {
        for text in [outer(&inner(metadata)), format!("[{}]", inner(metadata))] {
            let (_, summary) = read(&text).expect("a List");
            assert!(summary.next_page_unread && summary.is_part(), "{text}");
            assert_eq!(summary.next_page, None, "the token belongs to another List: {text}");
        }
    }
    let (facts, summary) = read(&outer(&inner(r#""resourceVersion":"1""#))).expect("a List");
    assert_eq!((summary.is_part(), summary.cut, facts.nodes.len()), (false, false, 2));
}
