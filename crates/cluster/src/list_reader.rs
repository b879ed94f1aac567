//! Reads the answer to a LIST. Each item is read by itself and passed on. So the whole list is never in memory, and a
//! wrong item does not affect the other items.

use std::fmt;

use serde::{
    Deserialize, Deserializer,
    de::{DeserializeSeed, Error, IgnoredAny, MapAccess, SeqAccess, Visitor},
};
use serde_json::{
    json,
    value::{RawValue, to_raw_value},
};

/// The text of an empty cell in a Table.
const NOTHING: &str = "<none>";

/// Reads a List of one kind, or a Table of Nodes. Each row of the Table is converted to a Node.
///
/// A Node has 10 KB or more, mostly names of images. A row has a few hundred bytes. If a Node has several addresses of
/// one kind, its row has only the first of them (Kubernetes, pkg/printers/internalversion/printers.go `printNode`).
pub(super) struct ListReader<'a> {
    /// Receives each item. Returns an error if no more items should be read.
    pub(super) sink: &'a mut dyn FnMut(&RawValue) -> Result<(), String>,
}

/// The kind and the metadata of a list whose answer was read to the end.
#[derive(Debug, Default)]
pub struct ListSummary {
    pub(super) list: bool,
    pub(super) kind: Option<String>,
    pub(super) metadata: ListMeta,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ListMeta {
    #[serde(rename = "continue")]
    pub(super) next_page: Option<String>,
    pub(super) remaining_item_count: Option<i64>,
    pub(super) resource_version: Option<String>,
}

impl<'de> DeserializeSeed<'de> for ListReader<'_> {
    type Value = ListSummary;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<ListSummary, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for ListReader<'_> {
    type Value = ListSummary;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of Kubernetes objects")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<ListSummary, A::Error> {
        let mut summary = ListSummary::default();
        let mut columns: Vec<Column> = Vec::new();
        while let Some(key) = map.next_key::<String>()? {
            match key.as_str() {
                "kind" => summary.kind = map.next_value()?,
                "metadata" => summary.metadata = map.next_value::<Option<_>>()?.unwrap_or_default(),
                "items" => {
                    summary.list = true;
                    map.next_value_seed(Items { each: &mut *self.sink })?;
                }
                "columnDefinitions" => columns = map.next_value::<Option<_>>()?.unwrap_or_default(),
                // The server sends `kind` and `columnDefinitions` before `rows`, so their values are known here.
                "rows" if summary.kind.as_deref() == Some("Table") => {
                    summary.list = true;
                    let each = |row: &RawValue| (self.sink)(&node_of_row(&columns, row)?);
                    map.next_value_seed(Items { each })?;
                }
                _ => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(summary)
    }
}

/// The items of a List. The value may be null.
struct Items<F> {
    each: F,
}

impl<'de, F: FnMut(&RawValue) -> Result<(), String>> DeserializeSeed<'de> for Items<F> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de, F: FnMut(&RawValue) -> Result<(), String>> Visitor<'de> for Items<F> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of Kubernetes objects")
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut list: A) -> Result<(), A::Error> {
        while let Some(item) = list.next_element::<Box<RawValue>>()? {
            (self.each)(&item).map_err(A::Error::custom)?;
        }
        Ok(())
    }
}

#[derive(Deserialize)]
struct Column {
    name: String,
}

fn node_of_row(columns: &[Column], row: &RawValue) -> Result<Box<RawValue>, String> {
    #[derive(Deserialize)]
    struct Row {
        cells: Vec<serde_json::Value>,
    }
    let mut row: Row = serde_json::from_str(row.get()).map_err(|error| error.to_string())?;
    let mut cell = |name: &str| {
        let at = columns.iter().position(|column| column.name == name);
        let at = at.ok_or_else(|| format!("a Table of Nodes has no column {name}"))?;
        let cell = row.cells.get_mut(at).map(serde_json::Value::take).filter(|cell| cell != NOTHING);
        Ok::<_, String>(cell.unwrap_or_default())
    };
    let [name, version] = [cell("Name")?, cell("Version")?];
    let mut addresses = vec![("InternalIP", cell("Internal-IP")?), ("ExternalIP", cell("External-IP")?)];
    addresses.retain(|(_, address)| !address.is_null());
    let addresses: Vec<_> =
        addresses.into_iter().map(|(kind, address)| json!({"type": kind, "address": address})).collect();
    let status = json!({"addresses": addresses, "nodeInfo": {"kubeletVersion": version}});
    to_raw_value(&json!({"metadata": {"name": name}, "status": status})).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{facts_builder::FactsBuilder, objects};
    use portreeve_facts::NodeAddressKind;

    fn read(text: &str) -> Result<(FactsBuilder, ListSummary), serde_json::Error> {
        let mut facts = FactsBuilder::default();
        let mut sink = |object: &RawValue| {
            facts.add::<objects::Node>("here", object);
            Ok(())
        };
        let summary = ListReader { sink: &mut sink }.deserialize(&mut serde_json::Deserializer::from_str(text))?;
        Ok((facts, summary))
    }

    /// A Table as kube-apiserver 1.36 sends it, but with fewer columns.
    fn table(columns: &[&str], rows: &[&[&str]]) -> String {
        let columns: Vec<_> =
            columns.iter().map(|name| json!({"name": name, "type": "string", "priority": 1})).collect();
        let rows: Vec<_> = rows.iter().map(|cells| json!({"cells": cells, "object": null})).collect();
        let metadata = json!({"resourceVersion": "71"});
        // The server sends the keys in this order. A `serde_json` map would sort the keys.
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
        let ListMeta { next_page, resource_version, .. } = summary.metadata;
        assert_eq!((summary.list, resource_version.as_deref(), next_page), (true, Some("71"), None));
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
    fn a_table_without_the_addresses_is_refused() {
        let error = read(&table(&["Name", "Version"], &[&["n1", "v1.36.3"]])).expect_err("columns are missing");
        assert!(error.to_string().contains("no column Internal-IP"), "{error}");
    }

    #[test]
    fn an_empty_table_may_have_null_rows() {
        for (columns, rows) in [("[]", "null"), ("null", "null"), (r#"[{"name":"Name"}]"#, "null")] {
            let text = format!(r#"{{"kind":"Table","metadata":{{}},"columnDefinitions":{columns},"rows":{rows}}}"#);
            let (facts, summary) = read(&text).expect("a Table");
            assert!(facts.nodes.is_empty() && summary.list, "{text}");
        }
    }

    #[test]
    fn an_item_that_is_no_object_does_not_affect_the_others() {
        let items = r#"[5, {"metadata":{"name":"n1"}}, {"metadata":{"name":"A"}}, null, {"metadata":{"name":"n2"}}]"#;
        let (facts, _) = read(&format!(r#"{{"kind":"NodeList","items":{items}}}"#)).expect("a List");
        assert_eq!(facts.nodes.iter().map(|node| node.name.as_str()).collect::<Vec<_>>(), ["n1", "n2"]);
        assert_eq!(facts.rejected().len(), 3, "{:?}", facts.rejected());
    }
}
