//! Component configuration inside ConfigMaps: kube-proxy's and kubeadm's, which `k8s_openapi` does not have. Only the
//! keys that are used are read.

use serde::{
    Deserialize,
    de::{DeserializeOwned, MapAccess, SeqAccess},
};

use super::{
    field_values::{each, lenient_ip},
    flags::RANGE_FLAG,
    slim_object::NameValue,
    tolerant_field::{Field, FieldErrors, FieldType, NumberOrText, mapping},
};
use crate::facts::ProxyConfig;

/// `kubeproxy.config.k8s.io/v1alpha1` KubeProxyConfiguration, as text.
pub(super) fn proxy_configuration(place: String, yaml: &str, errors: &mut FieldErrors) -> Option<ProxyConfig> {
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
    let written: Written = embedded(yaml, "data[config.conf]", errors)?;
    let iptables = written.iptables.take("iptables", errors).unwrap_or_default();
    let path = "nodePortAddresses";
    Some(ProxyConfig {
        place,
        mode: written.mode.take("mode", errors),
        node_port_addresses: each(written.node_port_addresses, path, errors, |cidr, _, _| Some(cidr)),
        localhost_node_ports: iptables.localhost_node_ports.take("iptables.localhostNodePorts", errors),
        bind_address: written.bind_address.take("bindAddress", errors).as_deref().and_then(lenient_ip),
        detect_local_mode: written.detect_local_mode.take("detectLocalMode", errors),
        cluster_cidr: written.cluster_cidr.take("clusterCIDR", errors),
    })
}

/// `apiServer.extraArgs` of a kubeadm ClusterConfiguration: a mapping until v1beta3, then a list.
pub(super) fn range_argument(yaml: &str, errors: &mut FieldErrors) -> Option<String> {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Written {
        #[serde(rename = "apiServer")]
        api_server: Field<ApiServer>,
    }
    let written: Written = embedded(yaml, "data[ClusterConfiguration]", errors)?;
    written.api_server.take("apiServer", errors)?.extra_args.take("apiServer.extraArgs", errors)?.0
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

impl FieldType for ExtraArguments {
    const EXPECTED: &'static str = "a mapping or a list of names and values";

    fn from_map<'de, A: MapAccess<'de>>(mut map: A) -> Result<Result<Self, String>, A::Error> {
        let mut found = None;
        while let Some((name, value)) = map.next_entry::<String, Field<NumberOrText>>()? {
            if name == RANGE_FLAG {
                found = value.seen().map(|NumberOrText(text)| text.clone());
            }
        }
        Ok(Ok(Self(found)))
    }

    fn from_list<'de, A: SeqAccess<'de>>(mut list: A) -> Result<Result<Self, String>, A::Error> {
        let mut found = None;
        while let Some(entry) = list.next_element::<Field<NameValue>>()? {
            if let Field::Value(NameValue { name: Field::Value(name), value: Field::Value(NumberOrText(text)) }) = entry
                && name == RANGE_FLAG
            {
                found = Some(text);
            }
        }
        Ok(Ok(Self(found)))
    }
}

/// A YAML document inside a ConfigMap.
fn embedded<T: DeserializeOwned>(yaml: &str, path: &str, errors: &mut FieldErrors) -> Option<T> {
    match serde_saphyr::from_str(yaml) {
        Ok(value) => Some(value),
        Err(error) => {
            let place = error.location().map(|at| format!("broken at line {}, column {}", at.line(), at.column()));
            errors.note(path, place.unwrap_or_else(|| "broken".to_owned()), "a YAML document");
            None
        }
    }
}
