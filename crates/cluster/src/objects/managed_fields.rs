//! Reads `metadata.managedFields`, and finds whether a client or the API server chose a nodePort.
//!
//! When a client creates a Service, the API server records the fields of the request. The API server allocates
//! nodePorts afterwards. So `f:nodePort` is below `f:spec/f:ports/k:{"port":80,"protocol":"TCP"}` only if a client set
//! the nodePort.
//!
//! All entries are searched, because the `operation` of a create may also be `Update`. A write that changes nothing
//! owns no field.

use std::collections::BTreeMap;

use serde::{Deserialize, de::IgnoredAny};

#[derive(Debug, Default, Deserialize)]
pub(crate) struct ManagedFields(Vec<Entry>);

#[derive(Debug, Deserialize)]
struct Entry {
    #[serde(rename = "fieldsV1")]
    fields: Option<Fields>,
}

#[derive(Debug, Deserialize)]
struct Fields {
    #[serde(rename = "f:spec")]
    spec: Option<Spec>,
}

#[derive(Debug, Deserialize)]
struct Spec {
    /// Each key is a port such as `k:{"port":80,"protocol":"TCP"}`, or `.` for the list itself.
    #[serde(rename = "f:ports")]
    ports: Option<BTreeMap<String, OwnedPort>>,
}

#[derive(Debug, Deserialize)]
struct OwnedPort {
    #[serde(rename = "f:nodePort")]
    node_port: Option<IgnoredAny>,
}

impl ManagedFields {
    /// Whether a client chose the nodePort. `None` if managedFields do not contain the port.
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
