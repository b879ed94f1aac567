//! A LIST as a Table, which `kubectl get --output wide` prints: each row is read as an object.
//!
//! A Node is 10 KB or more, most of it images, and its row a few hundred bytes. Of several addresses of one kind a row has the
//! first (Kubernetes, pkg/printers/internalversion/printers.go `printNode`).

use std::fmt;

use serde::{
    Deserialize, Deserializer,
    de::{DeserializeSeed, Error, SeqAccess, Visitor},
};

use super::{
    slim_object::{Address, Metadata, NodeInfo, SlimObject, Status},
    tolerant_field::Field,
};

/// What stands in a cell without a value.
const NOTHING: &str = "<none>";

/// One of `columnDefinitions`.
#[derive(Deserialize)]
pub(super) struct TableColumn {
    name: String,
}

#[derive(Deserialize)]
struct TableRow {
    cells: Vec<Field<String>>,
}

/// The `rows` of a Table of Nodes, each of which goes to `sink` as a Node.
pub(super) struct TableRows<'a> {
    pub(super) columns: &'a [TableColumn],
    pub(super) sink: &'a mut dyn FnMut(SlimObject),
}

impl<'de> DeserializeSeed<'de> for TableRows<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for TableRows<'_> {
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
        while let Some(TableRow { mut cells }) = list.next_element()? {
            let mut cell = |at: usize| match cells.get_mut(at).map(std::mem::take) {
                Some(Field::Value(text)) if text == NOTHING => Field::Absent,
                cell => cell.unwrap_or_default(),
            };
            let metadata = Metadata { name: cell(name).into_name(), ..Metadata::default() };
            let node_info = NodeInfo { kubelet_version: cell(version), ..NodeInfo::default() };
            let addresses = [("InternalIP", cell(internal)), ("ExternalIP", cell(external))];
            let address = |(kind, address): (&str, Field<String>)| {
                let kind = Field::Value(kind.to_owned());
                (!matches!(address, Field::Absent))
                    .then(|| Field::Value(Address { kind, address, ..Address::default() }))
            };
            let status = Status {
                addresses: Field::Value(addresses.into_iter().filter_map(address).collect()),
                node_info: Field::Value(node_info),
                ..Status::default()
            };
            (self.sink)(SlimObject {
                kind: Field::Value("Node".to_owned()),
                metadata: Field::Value(Box::new(metadata)),
                status: Field::Value(Box::new(status)),
                ..SlimObject::default()
            });
        }
        Ok(())
    }
}
