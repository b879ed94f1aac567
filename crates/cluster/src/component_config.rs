//! The configuration of kube-proxy and of kubeadm in ConfigMaps. `k8s_openapi` has no types for this configuration.
//! Only the keys that rules use are read.

use std::collections::BTreeMap;

use serde::{Deserialize, de::DeserializeOwned};

use super::{
    flags::RANGE_FLAG,
    objects::{Notes, NumberOrText, Text, decode, lenient_ip},
    tree::Node,
    yaml_options,
};
use portreeve_facts::ProxyConfig;

/// The settings in a `kubeproxy.config.k8s.io/v1alpha1` KubeProxyConfiguration, from its text.
pub fn proxy_configuration(place: String, yaml: &str, notes: &mut Notes) -> Option<ProxyConfig> {
    let written: ProxyDocument = embedded(yaml, "data[config.conf]", notes)?;
    let text = |text: Option<Text>| text.map(|Text(text)| text);
    Some(ProxyConfig {
        place,
        mode: text(written.mode),
        node_port_addresses: written.node_port_addresses.into_iter().flatten().map(|Text(cidr)| cidr).collect(),
        localhost_node_ports: written.iptables.and_then(|iptables| iptables.localhost_node_ports),
        bind_address: written.bind_address.as_deref().and_then(lenient_ip),
        detect_local_mode: text(written.detect_local_mode),
        cluster_cidr: text(written.cluster_cidr),
        // kube-proxy treats an empty value in its file as the default.
        healthz_bind_address: text(written.healthz_bind_address).filter(|address| !address.is_empty()),
        nftables_localhost: written.feature_gates.and_then(|gates| gates.nftables_localhost),
        iptables_masquerade: None,
        cilium: None,
    })
}

/// The NodePort range in `apiServer.extraArgs` of a kubeadm ClusterConfiguration. `extraArgs` is a mapping up to
/// v1beta3, and a list since v1beta4.
pub fn range_argument(yaml: &str, notes: &mut Notes) -> Option<String> {
    let written: ClusterDocument = embedded(yaml, "data[ClusterConfiguration]", notes)?;
    let NumberOrText(range) = match written.api_server?.extra_args? {
        ExtraArguments::Mapping(mut arguments) => arguments.remove(RANGE_FLAG),
        // If a flag occurs several times, kubeadm uses the last value.
        ExtraArguments::List(list) => list.into_iter().rfind(|it| it.name == RANGE_FLAG).map(|it| it.value),
    }?;
    Some(range)
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ProxyDocument {
    mode: Option<Text>,
    node_port_addresses: Option<Vec<Text>>,
    iptables: Option<Iptables>,
    bind_address: Option<Text>,
    detect_local_mode: Option<Text>,
    #[serde(rename = "clusterCIDR")]
    cluster_cidr: Option<Text>,
    healthz_bind_address: Option<Text>,
    feature_gates: Option<FeatureGates>,
}

#[derive(Deserialize)]
struct FeatureGates {
    #[serde(rename = "KubeProxyNFTablesLocalhostNodePorts")]
    nftables_localhost: Option<bool>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Iptables {
    localhost_node_ports: Option<bool>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ClusterDocument {
    api_server: Option<ApiServer>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ApiServer {
    extra_args: Option<ExtraArguments>,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "a mapping or a list of names and values")]
enum ExtraArguments {
    Mapping(BTreeMap<String, NumberOrText>),
    List(Vec<Argument>),
}

#[derive(Deserialize)]
struct Argument {
    name: String,
    value: NumberOrText,
}

fn embedded<T: DeserializeOwned>(yaml: &str, path: &str, notes: &mut Notes) -> Option<T> {
    let document: Result<Node, _> = serde_saphyr::from_str_with_options(yaml, yaml_options::embedded());
    match document {
        Ok(document) => decode(&document).map_err(|why| notes.add(format!("{path}: {why}"))).ok(),
        Err(error) => {
            let place = error.location().map(|at| format!("broken at line {}, column {}", at.line(), at.column()));
            notes.note(path, place.unwrap_or_else(|| "broken".to_owned()), "a YAML document");
            None
        }
    }
}
