//! A LIST in brief: the Table that `kubectl get --output wide` prints, read as the objects it tells of.
//!
//! A Node is 10 KB or more, most of it images, and its row a few hundred bytes. Of several addresses of one kind a row has the
//! first (Kubernetes, pkg/printers/internalversion/printers.go `printNode`).

use std::fmt;

use serde::{
    Deserialize, Deserializer,
    de::{DeserializeSeed, Error, SeqAccess, Visitor},
};

use super::{
    field::Field,
    wire::{Address, Metadata, NodeInfo, Object, Status},
};

/// What stands in a cell that has nothing to tell.
const NOTHING: &str = "<none>";

/// One of `columnDefinitions`.
#[derive(Deserialize)]
pub(super) struct Column {
    name: String,
}

#[derive(Deserialize)]
struct Row {
    cells: Vec<Field<String>>,
}

/// The `rows` of a Table of Nodes, each of which goes to `sink` as a Node.
pub(super) struct Rows<'a> {
    pub(super) columns: &'a [Column],
    pub(super) sink: &'a mut dyn FnMut(Object),
}

impl<'de> DeserializeSeed<'de> for Rows<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Rows<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the rows of a Table")
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        let at = |name: &str| {
            let found = self.columns.iter().position(|column| column.name == name);
            found.ok_or_else(|| A::Error::custom(format!("a Table of Nodes has no column {name}")))
        };
        let [name, version, internal, external] = [at("Name")?, at("Version")?, at("Internal-IP")?, at("External-IP")?];
        while let Some(Row { mut cells }) = list.next_element()? {
            let mut cell = |at: usize| match cells.get_mut(at).map(std::mem::take) {
                Some(Field::Is(text)) if text == NOTHING => Field::Absent,
                cell => cell.unwrap_or_default(),
            };
            let metadata = Metadata { name: cell(name), ..Metadata::default() };
            let node_info = NodeInfo { kubelet_version: cell(version) };
            let addresses = [("InternalIP", cell(internal)), ("ExternalIP", cell(external))];
            let address = |(kind, address): (&str, Field<String>)| {
                let kind = Field::Is(kind.to_owned());
                (!matches!(address, Field::Absent)).then(|| Field::Is(Address { kind, address, ..Address::default() }))
            };
            let status = Status {
                addresses: Field::Is(addresses.into_iter().filter_map(address).collect()),
                node_info: Field::Is(node_info),
                ..Status::default()
            };
            (self.sink)(Object {
                kind: Field::Is("Node".to_owned()),
                metadata: Field::Is(Box::new(metadata)),
                status: Field::Is(Box::new(status)),
                ..Object::default()
            });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{super::gathered::Gathered, *};
    use crate::{
        cluster::document::{Document, Outcome},
        facts::NodeAddressKind,
    };

    fn read(text: &str) -> Result<(Gathered, Outcome), serde_json::Error> {
        let mut gathered = Gathered::default();
        let mut sink = |object| gathered.accept("here", object);
        let document = Document { kind: Some("Node"), closed: true, sink: &mut sink };
        let outcome = document.deserialize(&mut serde_json::Deserializer::from_str(text))?;
        Ok((gathered, outcome))
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
        let (gathered, outcome) = read(&text).expect("a Table");
        assert_eq!((outcome.list, outcome.version.as_deref(), outcome.next_page), (true, Some("71"), None));
        let facts = gathered.finish("here".to_owned(), true, None);
        let nodes = facts.nodes.seen().expect("Nodes");
        let told: Vec<_> = nodes
            .iter()
            .flat_map(|node| node.addresses.iter().map(|it| (node.name.as_str(), it.kind, it.ip.to_string())))
            .collect();
        assert_eq!(
            told,
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
            let (gathered, outcome) = read(&text).expect("a Table");
            assert!(gathered.nodes.is_empty() && outcome.list, "{text}");
        }
    }

    #[test]
    fn rows_of_something_else_are_passed_over() {
        let (gathered, _) = read(r#"{"kind":"Node","metadata":{"name":"n1"},"rows":5}"#).expect("a Node");
        assert_eq!(gathered.nodes.len(), 1);
    }
}
