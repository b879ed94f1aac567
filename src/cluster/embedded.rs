//! Documents inside ConfigMaps: kube-proxy's and kubeadm's configuration. Only the keys that matter are kept.

use serde::{
    Deserialize,
    de::{DeserializeOwned, MapAccess, SeqAccess},
};

use super::{
    field::{Field, Misfits, Scalar, Shape, mapping},
    flags::RANGE_FLAG,
    values::{each, lenient_ip},
    wire::NameValue,
};
use crate::facts::ProxyConfig;

/// `kubeproxy.config.k8s.io/v1alpha1` KubeProxyConfiguration, as text.
pub(super) fn proxy_configuration(place: String, yaml: &str, misfits: &mut Misfits) -> Option<ProxyConfig> {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Written {
        mode: Field<String>,
        #[serde(rename = "nodePortAddresses")]
        node_port_addresses: Field<Vec<Field<String>>>,
        iptables: Field<Iptables>,
        #[serde(rename = "bindAddress")]
        bind_address: Field<String>,
        #[serde(rename = "detectLocalMode")]
        detect_local_mode: Field<String>,
        #[serde(rename = "clusterCIDR")]
        cluster_cidr: Field<String>,
    }
    let written: Written = embedded(yaml, "data[config.conf]", misfits)?;
    let iptables = written.iptables.take("iptables", misfits).unwrap_or_default();
    let path = "nodePortAddresses";
    Some(ProxyConfig {
        place,
        mode: written.mode.take("mode", misfits),
        node_port_addresses: each(written.node_port_addresses, path, misfits, |cidr, _, _| Some(cidr)),
        localhost_node_ports: iptables.localhost_node_ports.take("iptables.localhostNodePorts", misfits),
        bind_address: written.bind_address.take("bindAddress", misfits).as_deref().and_then(lenient_ip),
        detect_local_mode: written.detect_local_mode.take("detectLocalMode", misfits),
        cluster_cidr: written.cluster_cidr.take("clusterCIDR", misfits),
    })
}

/// `apiServer.extraArgs` of a kubeadm ClusterConfiguration: a mapping until v1beta3, then a list.
pub(super) fn range_argument(yaml: &str, misfits: &mut Misfits) -> Option<String> {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Written {
        #[serde(rename = "apiServer")]
        api_server: Field<ApiServer>,
    }
    let written: Written = embedded(yaml, "data[ClusterConfiguration]", misfits)?;
    written.api_server.take("apiServer", misfits)?.extra_args.take("apiServer.extraArgs", misfits)?.0
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Iptables {
    #[serde(rename = "localhostNodePorts")]
    localhost_node_ports: Field<bool>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ApiServer {
    #[serde(rename = "extraArgs")]
    extra_args: Field<ExtraArguments>,
}

mapping!(Iptables, ApiServer);

/// The value of `service-node-port-range`.
#[derive(Default)]
struct ExtraArguments(Option<String>);

impl Shape for ExtraArguments {
    const WANTED: &'static str = "a mapping or a list of names and values";

    fn from_map<'de, A: MapAccess<'de>>(mut map: A) -> Result<Result<Self, String>, A::Error> {
        let mut found = None;
        while let Some((name, value)) = map.next_entry::<String, Field<Scalar>>()? {
            if name == RANGE_FLAG {
                found = value.seen().map(|Scalar(text)| text.clone());
            }
        }
        Ok(Ok(Self(found)))
    }

    fn from_list<'de, A: SeqAccess<'de>>(mut list: A) -> Result<Result<Self, String>, A::Error> {
        let mut found = None;
        while let Some(entry) = list.next_element::<Field<NameValue>>()? {
            if let Field::Is(NameValue { name: Field::Is(name), value: Field::Is(Scalar(text)) }) = entry
                && name == RANGE_FLAG
            {
                found = Some(text);
            }
        }
        Ok(Ok(Self(found)))
    }
}

/// A YAML document inside a ConfigMap.
fn embedded<T: DeserializeOwned>(yaml: &str, path: &str, misfits: &mut Misfits) -> Option<T> {
    match serde_saphyr::from_str(yaml) {
        Ok(value) => Some(value),
        Err(error) => {
            let place = error.location().map(|at| format!("broken at line {}, column {}", at.line(), at.column()));
            misfits.note(path, place.unwrap_or_else(|| "broken".to_owned()), "a YAML document");
            None
        }
    }
}
