//! Whether a client or the API server chose a nodePort, according to `metadata.managedFields`.
//!
//! The API server records the fields of a create before it allocates numbers. So `f:nodePort` below
//! `f:spec/f:ports/k:{"port":80,"protocol":"TCP"}` exists exactly if a client set the nodePort. A create may also have
//! the `operation` `Update`, and a write without a change owns no field. So a nodePort is a client's choice if any
//! entry has `f:nodePort`.

use std::collections::BTreeMap;

use serde::{Deserialize, de::IgnoredAny};

#[derive(Debug, Default, Deserialize)]
pub(crate) struct ManagedFields(Vec<Entry>);

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Entry {
    #[serde(rename = "fieldsV1")]
    fields: Option<Fields>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Fields {
    #[serde(rename = "f:spec")]
    spec: Option<Spec>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Spec {
    /// A key such as `k:{"port":80,"protocol":"TCP"}` is a port. The key `.` is not.
    #[serde(rename = "f:ports")]
    ports: Option<BTreeMap<String, OwnedPort>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct OwnedPort {
    #[serde(rename = "f:nodePort")]
    node_port: Option<IgnoredAny>,
}

impl ManagedFields {
    /// `None` if managedFields do not have the port.
    pub(super) fn chose_node_port(&self, port: u16, protocol: &str) -> Option<bool> {
        #[derive(Deserialize)]
        struct Key<'a> {
            port: i64,
            protocol: &'a str,
        }
        let specs = self.0.iter().filter_map(|entry| entry.fields.as_ref()?.spec.as_ref()?.ports.as_ref());
        let of_port = specs.flatten().filter(|(key, _)| {
            let key = key.strip_prefix("k:").and_then(|key| serde_json::from_str::<Key<'_>>(key).ok());
            key.is_some_and(|key| key.port == i64::from(port) && key.protocol == protocol)
        });
        of_port.map(|(_, owned)| owned.node_port.is_some()).reduce(|one, other| one || other)
    }
}
