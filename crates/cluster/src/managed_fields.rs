//! Who chose a nodePort, from `metadata.managedFields`.
//!
//! The API server records the fields of a create before it allocates, so `f:nodePort` below
//! `f:spec/f:ports/k:{"port":80,"protocol":"TCP"}` is there exactly when a client set it. `operation` says `Update` for
//! a create too, and a write that changes nothing owns nothing, so the presence in any entry is the whole answer.

use std::fmt;

use serde::{
    Deserialize, Deserializer,
    de::{IgnoredAny, MapAccess, SeqAccess, Visitor},
};

use super::{
    mapping::mappings,
    tolerant_field::{Field, FieldType, Present},
};

/// The port entries of a Service in its managedFields: (port, protocol), and whether a client set its nodePort.
#[derive(Clone, Debug, Default)]
pub(super) struct ManagedPorts(Vec<(i64, String, bool)>);

impl ManagedPorts {
    /// Whether a client chose the nodePort of this entry; `None` when managedFields do not have the entry.
    pub(super) fn chose_node_port(&self, port: u16, protocol: &str) -> Option<bool> {
        let mut entries = self.0.iter().filter(|(number, name, _)| *number == i64::from(port) && name == protocol);
        let (_, _, first) = entries.next()?;
        Some(*first || entries.any(|(_, _, chosen)| *chosen))
    }
}

impl FieldType for ManagedPorts {
    const EXPECTED: &'static str = "a list";

    fn from_list<'de, A: SeqAccess<'de>>(mut list: A) -> Result<Result<Self, String>, A::Error> {
        let mut managed = Self::default();
        while let Some(entry) = list.next_element::<Field<Entry>>()? {
            if let Field::Value(Entry {
                fields: Field::Value(Fields { spec: Field::Value(Spec { ports: Field::Value(ports) }) }),
            }) = entry
            {
                managed.0.extend(ports.0);
            }
        }
        Ok(Ok(managed))
    }
}

mappings! {
    Entry {
        fields: Fields = "fieldsV1",
    }
    Fields {
        spec: Spec = "f:spec",
    }
    Spec {
        ports: Ports = "f:ports",
    }
    OwnedPort {
        node_port: Present = "f:nodePort",
    }
}

#[derive(Debug)]
pub(super) struct Ports(Vec<(i64, String, bool)>);

impl FieldType for Ports {
    const EXPECTED: &'static str = "a mapping";

    fn from_map<'de, A: MapAccess<'de>>(mut map: A) -> Result<Result<Self, String>, A::Error> {
        let mut ports = Vec::new();
        while let Some(PortKey(key)) = map.next_key()? {
            match key {
                Some((port, protocol)) => {
                    let owned: Field<OwnedPort> = map.next_value()?;
                    let chosen = owned.seen().is_some_and(|owned| owned.node_port.seen().is_some());
                    ports.push((port, protocol, chosen));
                }
                None => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(Ok(Self(ports)))
    }
}

/// `k:{"port":80,"protocol":"TCP"}`; `.` and anything else is no port.
struct PortKey(Option<(i64, String)>);

impl<'de> Deserialize<'de> for PortKey {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(PortKeyVisitor)
    }
}

struct PortKeyVisitor;

impl Visitor<'_> for PortKeyVisitor {
    type Value = PortKey;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a field path")
    }

    fn visit_str<E>(self, key: &str) -> Result<PortKey, E> {
        #[derive(Deserialize)]
        struct Key {
            port: i64,
            protocol: String,
        }
        let key = key.strip_prefix("k:").and_then(|key| serde_json::from_str::<Key>(key).ok());
        Ok(PortKey(key.map(|key| (key.port, key.protocol))))
    }
}
