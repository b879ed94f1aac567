//! Cilium's settings of this node from CiliumNodeConfigs, which override the ConfigMap (cilium
//! `pkg/option/resolver/resolver.go`).
//!
//! Portreeve does not read two inputs of Cilium:
//!
//! - The Node's annotations and labels `config.cilium.io/KEY`. Cilium uses these annotations and labels only if the
//!   chart's `daemon.configSources` names them.
//! - The lists of keys that a node may override (`daemon.allowedConfigOverrides`) or must not override
//!   (`daemon.blockedConfigOverrides`).

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::core::{Selector, SelectorExt as _};
use serde::Deserialize;

use super::{
    collection::Collection,
    error::Error,
    list_reader::ListMeta,
    objects::{CiliumNodeConfig, Name, Node, short},
    requests::{Server, encoded},
    settings::{CILIUM_NODE_CONFIG, NodeSettings},
};
use portreeve_facts::Why;

/// Cilium 1.16 and newer serve `v2`. Cilium 1.13 to 1.15 serve only `v2alpha1`.
const PATHS: [&str; 2] = [
    "/apis/cilium.io/v2/namespaces/kube-system/ciliumnodeconfigs",
    "/apis/cilium.io/v2alpha1/namespaces/kube-system/ciliumnodeconfigs",
];

/// The settings that apply to `node`. Empty if the cluster has no CiliumNodeConfigs.
///
/// # Errors
/// Fails if the settings cannot be known. Returns `Ok(Err(why))` if the cluster has CiliumNodeConfigs, but this node's
/// name is not known.
pub(super) async fn read(server: &Server, node: Option<&str>) -> Result<Result<NodeSettings, String>, Error> {
    let Some(configs) = list(server).await? else { return Ok(Ok(NodeSettings::default())) };
    let mut configs: Vec<_> = configs.into_iter().filter_map(Selected::of).collect();
    if configs.is_empty() {
        return Ok(Ok(NodeSettings::default()));
    }
    let Some(node) = node else {
        let names: Vec<_> = configs.iter().map(|config| config.name.as_str()).take(3).collect();
        return Ok(Err(format!("{CILIUM_NODE_CONFIG} {}: the name of this node is not known", names.join(", "))));
    };
    let labels = labels(server, node).await?;
    configs.retain(|config| selects(config.selector.clone(), &labels));
    configs.sort_by(|one, other| one.name.cmp(&other.name));
    let names = configs.iter().map(|config| config.name.clone()).collect();
    Ok(Ok(NodeSettings { names, values: configs.into_iter().flat_map(|config| config.values).collect() }))
}

/// All CiliumNodeConfigs; `None` if the cluster does not have the kind.
async fn list(server: &Server) -> Result<Option<Vec<CiliumNodeConfig>>, Error> {
    for path in PATHS {
        match server.only::<CiliumNodeConfigs>(path).await {
            // If a list of another kind were parsed, it would look like a list without settings.
            Ok(list) if list.kind.strip_suffix("List") != Some(CILIUM_NODE_CONFIG) => {
                return Err(server.not_a_list(path, &format!("the answer is a {}", short(&list.kind))));
            }
            Ok(list) if list.metadata.next_page.as_ref().is_some_and(|token| !token.is_empty()) => {
                return Err(server.not_a_list(path, "it has another page"));
            }
            Ok(list) => return Ok(Some(list.items)),
            Err(error) if error.why() == Why::NotSupported => {}
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

async fn labels(server: &Server, node: &str) -> Result<BTreeMap<String, String>, Error> {
    let named = encoded(&format!("metadata.name={node}"));
    let path = format!("{}?resourceVersion=0&fieldSelector={named}", Collection::of::<Node>().path);
    let nodes: LabelledNodes = server.only(&path).await?;
    let labels = nodes.items.into_iter().next().and_then(|node| node.metadata.labels);
    // If the Node does not exist, Cilium's agent does not start on this node.
    Ok(labels.unwrap_or_default())
}

#[derive(Deserialize)]
struct CiliumNodeConfigs {
    kind: String,
    #[serde(default)]
    metadata: ListMeta,
    items: Vec<CiliumNodeConfig>,
}

/// Nodes with all labels, because a selector may use any label.
#[derive(Deserialize)]
struct LabelledNodes {
    items: Vec<LabelledNode>,
}

#[derive(Deserialize)]
struct LabelledNode {
    metadata: LabelledMetadata,
}

#[derive(Deserialize)]
struct LabelledMetadata {
    labels: Option<BTreeMap<String, String>>,
}

struct Selected {
    name: String,
    values: BTreeMap<String, String>,
    selector: LabelSelector,
}

impl Selected {
    /// `None` if the CiliumNodeConfig has no selector or no settings. Such an object changes nothing.
    fn of(CiliumNodeConfig { metadata, spec }: CiliumNodeConfig) -> Option<Self> {
        let name = metadata.and_then(|metadata| metadata.name).map(|Name(name)| name).unwrap_or_default();
        let spec = spec?;
        let values = spec.defaults.filter(|values| !values.is_empty())?;
        Some(Self { name, values, selector: spec.node_selector? })
    }
}

/// An empty selector matches every node. If a selector has an operator that Kubernetes does not know, Cilium's agent
/// does not start.
fn selects(selector: LabelSelector, labels: &BTreeMap<String, String>) -> bool {
    Selector::try_from(selector).is_ok_and(|selector| selector.matches(labels))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_selector_matches_nodes_as_in_kubernetes() {
        let labels: BTreeMap<_, _> =
            [("pool", "edge"), ("zone", "a")].map(|(k, v)| (k.to_owned(), v.to_owned())).into();
        let selects = |selector| selects(serde_json::from_value(selector).expect("a selector"), &labels);
        let expression = |key: &str, operator: &str, values: &[&str]| {
            selects(json!({"matchExpressions": [{"key": key, "operator": operator, "values": values}]}))
        };
        assert!(selects(json!({})));
        assert!(selects(json!({"matchLabels": {"pool": "edge", "zone": "a"}})));
        assert!(!selects(json!({"matchLabels": {"pool": "edge", "zone": "b"}})));
        assert!(!selects(
            json!({"matchLabels": {"pool": "edge"}, "matchExpressions": [{"key": "rack", "operator": "Exists"}]})
        ));
        assert!(expression("pool", "In", &["core", "edge"]) && !expression("pool", "In", &["core"]));
        assert!(!expression("rack", "In", &["1"]) && expression("rack", "NotIn", &["1"]));
        assert!(!expression("pool", "NotIn", &["edge"]) && expression("pool", "Exists", &[]));
        assert!(expression("rack", "DoesNotExist", &[]) && !expression("pool", "DoesNotExist", &[]));
        assert!(!expression("pool", "Gt", &["edge"]));
    }
}
