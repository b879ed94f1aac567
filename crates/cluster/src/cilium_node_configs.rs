//! Cilium's settings of this node: what CiliumNodeConfigs put over its ConfigMap (cilium
//! `pkg/option/resolver/resolver.go`).
//!
//! Not read: annotations and labels `config.cilium.io/KEY` of the Node, which the chart's `daemon.configSources` has to name,
//! and lists of keys that may not be put over others (`daemon.allowedConfigOverrides`, `daemon.blockedConfigOverrides`).

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};
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

/// Where they are, in the namespace of the ConfigMap. `v2` is served by Cilium 1.16 and newer, and only `v2alpha1` by 1.13 to
/// 1.15.
const PATHS: [&str; 2] = [
    "/apis/cilium.io/v2/namespaces/kube-system/ciliumnodeconfigs",
    "/apis/cilium.io/v2alpha1/namespaces/kube-system/ciliumnodeconfigs",
];

/// What applies to `node`. Nothing where the cluster has no such objects.
///
/// # Errors
/// When it cannot be told: `Ok(Err(why))` where this node's name is what is missing.
pub(super) async fn read(server: &Server, node: Option<&str>) -> Result<Result<NodeSettings, String>, Error> {
    let Some(configs) = list(server).await? else { return Ok(Ok(NodeSettings::default())) };
    let mut configs: Vec<_> = configs.into_iter().filter_map(Selected::of).collect();
    if configs.is_empty() {
        return Ok(Ok(NodeSettings::default()));
    }
    let Some(node) = node else {
        let names: Vec<_> = configs.iter().map(|config| config.name.as_str()).take(3).collect();
        return Ok(Err(format!("{CILIUM_NODE_CONFIG} {}: which node this is is not known", names.join(", "))));
    };
    let labels = labels(server, node).await?;
    configs.retain(|config| selects(&config.selector, &labels));
    configs.sort_by(|one, other| one.name.cmp(&other.name));
    let names = configs.iter().map(|config| config.name.clone()).collect();
    Ok(Ok(NodeSettings { names, values: configs.into_iter().flat_map(|config| config.values).collect() }))
}

/// All of them; `None` where the cluster does not know the kind.
async fn list(server: &Server) -> Result<Option<Vec<CiliumNodeConfig>>, Error> {
    for path in PATHS {
        match server.only::<CiliumNodeConfigs>(path).await {
            // Another list would be one without settings.
            Ok(list) if list.kind.strip_suffix("List") != Some(CILIUM_NODE_CONFIG) => {
                return Err(server.not_a_list(path, &format!("it is a {}", short(&list.kind))));
            }
            Ok(list) if list.metadata.next_page.as_ref().is_some_and(|token| !token.is_empty()) => {
                return Err(server.not_a_list(path, "it goes on with another page"));
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
    // Without its Node an agent of Cilium does not start there.
    Ok(labels.unwrap_or_default())
}

#[derive(Deserialize)]
struct CiliumNodeConfigs {
    kind: String,
    #[serde(default)]
    metadata: ListMeta,
    items: Vec<CiliumNodeConfig>,
}

/// Nodes with all their labels: a selector may name any.
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

/// One that puts something over the ConfigMap of some nodes.
struct Selected {
    name: String,
    values: BTreeMap<String, String>,
    selector: LabelSelector,
}

impl Selected {
    /// One without a selector applies to no node, and one without settings changes none.
    fn of(CiliumNodeConfig { metadata, spec }: CiliumNodeConfig) -> Option<Self> {
        let name = metadata.and_then(|metadata| metadata.name).map(|Name(name)| name).unwrap_or_default();
        let spec = spec?;
        let values = spec.defaults.filter(|values| !values.is_empty())?;
        Some(Self { name, values, selector: spec.node_selector? })
    }
}

/// Whether a selector takes what has these labels; an empty one takes everything.
fn selects(selector: &LabelSelector, labels: &BTreeMap<String, String>) -> bool {
    let equal = |(key, value): (&String, &String)| labels.get(key) == Some(value);
    selector.match_labels.iter().flatten().all(equal)
        && selector.match_expressions.iter().flatten().all(|it| is_met(it, labels))
}

/// `NotIn` takes what has no such label, too (apimachinery `pkg/labels/selector.go`).
fn is_met(requirement: &LabelSelectorRequirement, labels: &BTreeMap<String, String>) -> bool {
    let LabelSelectorRequirement { key, operator, values } = requirement;
    let value = labels.get(key);
    let among = value.is_some_and(|value| values.iter().flatten().any(|it| it == value));
    match operator.as_str() {
        "In" => among,
        "NotIn" => !among,
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        // The API server takes no other, and with one an agent of Cilium does not start.
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_selector_takes_a_node_as_kubernetes_takes_it() {
        let labels: BTreeMap<_, _> =
            [("pool", "edge"), ("zone", "a")].map(|(k, v)| (k.to_owned(), v.to_owned())).into();
        let selects = |selector| selects(&serde_json::from_value(selector).expect("a selector"), &labels);
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
