//! A Node.

use serde::Deserialize;

use super::{
    FieldError, Metadata, Notes, Object,
    values::{Cidr, Text, lenient_ip, quoted},
};
use crate::facts_builder::FactsBuilder;
use portreeve_facts::{self as facts, Family, NodeAddressKind, Source};

/// A Node of the API server.
#[derive(Debug, Deserialize)]
pub struct Node {
    pub(crate) metadata: Option<Metadata>,
    pub(crate) spec: Option<NodeSpec>,
    pub(crate) status: Option<NodeStatus>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct NodeSpec {
    #[serde(rename = "podCIDRs")]
    pub(crate) pod_cidrs: Option<Vec<Cidr>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct NodeStatus {
    pub(crate) addresses: Option<Vec<NodeAddress>>,
    pub(crate) node_info: Option<NodeInfo>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct NodeAddress {
    #[serde(rename = "type")]
    pub(crate) kind: Option<Text>,
    pub(crate) address: Option<Text>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct NodeInfo {
    pub(crate) kubelet_version: Option<Text>,
    pub(crate) container_runtime_version: Option<Text>,
}

impl Object for Node {
    const KIND: &'static str = "Node";
    const GROUP: &'static str = "/api/v1";
    const PLURAL: &'static str = "nodes";
    const SOURCE: Source = Source::Nodes;

    fn metadata(&self) -> Option<&Metadata> {
        self.metadata.as_ref()
    }

    fn add_to(mut self, facts: &mut FactsBuilder, notes: &mut Notes) -> Result<(), FieldError> {
        let metadata = self.metadata.take().unwrap_or_default();
        let name = metadata.name()?;
        facts.settings.node_arguments(&name, metadata.annotations.as_ref(), notes);
        if let Some(hostname) = self.other_hostname(&name) {
            facts.hostnames.push((hostname.to_ascii_lowercase(), name.clone()));
        }
        let status = self.status.unwrap_or_default();
        let info = status.node_info.as_ref();
        let text = |text: &Option<Text>| text.clone().map(|Text(text)| text);
        let pod_cidrs = self.spec.and_then(|spec| spec.pod_cidrs).into_iter().flatten();
        facts.nodes.push(
            facts::Node {
                name,
                uid: metadata.uid(),
                addresses: addresses(status.addresses.as_deref().unwrap_or_default(), notes),
                excluded_from_load_balancers: metadata.labels.is_some_and(|labels| labels.excluded.is_some()),
                kubelet_version: info.map(|info| text(&info.kubelet_version).unwrap_or_default()),
                // The API field is an empty text if the runtime is not known.
                container_runtime: info
                    .and_then(|info| text(&info.container_runtime_version))
                    .filter(|it| !it.is_empty()),
                pod_families: pod_cidrs.map(|Cidr(cidr)| Family::of(cidr.addr())).collect(),
            }
            .into(),
        );
        Ok(())
    }
}

impl Node {
    fn other_hostname(&self, name: &str) -> Option<&str> {
        let addresses = self.status.as_ref()?.addresses.iter().flatten();
        let mut hostnames =
            addresses.filter(|it| it.kind.as_deref() == Some("Hostname")).filter_map(|it| it.address.as_deref());
        hostnames.rfind(|hostname| !hostname.eq_ignore_ascii_case(name))
    }
}

/// Converts addresses of a Node. The API server accepts any text as an address. For a text that is not an IP address, a
/// note is added.
fn addresses(list: &[NodeAddress], notes: &mut Notes) -> Vec<facts::NodeAddress> {
    let convert = |(index, address): (usize, &NodeAddress)| {
        let kind = match address.kind.as_deref()? {
            "InternalIP" => NodeAddressKind::InternalIp,
            "ExternalIP" => NodeAddressKind::ExternalIp,
            "Hostname" => NodeAddressKind::Hostname,
            _ => return None,
        };
        let text = address.address.as_deref().unwrap_or_default();
        let ip = lenient_ip(text);
        if ip.is_none() && kind != NodeAddressKind::Hostname {
            notes.note(format_args!("status.addresses[{index}].address"), quoted(text), "an IP address");
        }
        Some(facts::NodeAddress { kind, ip: ip? })
    };
    list.iter().enumerate().filter_map(convert).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_unusable_value_that_the_api_server_accepts_is_named_and_the_node_is_kept() {
        let mut facts = FactsBuilder::default();
        let addresses = json!([{"type": "InternalIP", "address": "x"}, {"type": "Hostname", "address": "N1.example"}]);
        let spec = json!({"podCIDRs": ["010.0.0.0/8", "fd00::/64"]});
        let metadata = json!({"name": "n1", "annotations": {"k3s.io/node-args": "server"}});
        let node = json!({"metadata": metadata, "spec": spec, "status": {"addresses": addresses}});
        facts.add::<Node>("here", &node);
        assert_eq!(facts.nodes[0].pod_families, Family::BOTH);
        let said: Vec<_> = facts.rejected().iter().map(|gap| gap.detail.as_str()).collect();
        let paths = ["metadata.annotations[k3s.io/node-args] is", "status.addresses[0].address is"];
        assert_eq!(said.len(), paths.len(), "{said:?}");
        assert!(paths.iter().all(|path| said.iter().any(|said| said.contains(path))), "{said:?}");
        facts.add::<Node>("here", &json!({"metadata": {"name": "n2"}, "spec": {"podCIDRs": [5]}}));
        assert_eq!(facts.nodes.len(), 1, "the API server refuses such a Node");
    }
}
