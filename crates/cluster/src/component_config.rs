//! Component configuration inside ConfigMaps: kube-proxy's and kubeadm's, which `k8s_openapi` does not have. Only the
//! keys that are used are read.

use serde::de::{MapAccess, SeqAccess};

use super::{
    field_values::{each, lenient_ip},
    flags::RANGE_FLAG,
    mapping::mappings,
    slim_object::NameValue,
    tolerant_field::{Field, FieldErrors, FieldType, NumberOrText},
    yaml_options,
};
use portreeve_facts::ProxyConfig;

/// `kubeproxy.config.k8s.io/v1alpha1` KubeProxyConfiguration, as text.
pub fn proxy_configuration(place: String, yaml: &str, errors: &mut FieldErrors) -> Option<ProxyConfig> {
    let written: ProxyDocument = embedded(yaml, "data[config.conf]", errors)?;
    let iptables = written.iptables.take("iptables", errors).unwrap_or_default();
    let gates = written.feature_gates.take("featureGates", errors).unwrap_or_default();
    let path = "nodePortAddresses";
    Some(ProxyConfig {
        place,
        mode: written.mode.take("mode", errors),
        node_port_addresses: each(written.node_port_addresses, path, errors, |cidr, _, _| Some(cidr)),
        localhost_node_ports: iptables.localhost_node_ports.take("iptables.localhostNodePorts", errors),
        bind_address: written.bind_address.take("bindAddress", errors).as_deref().and_then(lenient_ip),
        detect_local_mode: written.detect_local_mode.take("detectLocalMode", errors),
        cluster_cidr: written.cluster_cidr.take("clusterCIDR", errors),
        // kube-proxy takes an empty one in its file for the default.
        healthz_bind_address: written
            .healthz_bind_address
            .take("healthzBindAddress", errors)
            .filter(|address| !address.is_empty()),
        nftables_localhost: gates.nftables_localhost.take("featureGates", errors),
        iptables_masquerade: None,
        cilium: None,
    })
}

/// `apiServer.extraArgs` of a kubeadm ClusterConfiguration: a mapping until v1beta3, then a list.
pub fn range_argument(yaml: &str, errors: &mut FieldErrors) -> Option<String> {
    let written: ClusterDocument = embedded(yaml, "data[ClusterConfiguration]", errors)?;
    written.api_server.take("apiServer", errors)?.extra_args.take("apiServer.extraArgs", errors)?.0
}

mappings! {
    ProxyDocument {
        mode: String = "mode",
        node_port_addresses: Vec<Field<String>> = "nodePortAddresses",
        iptables: Iptables = "iptables",
        bind_address: String = "bindAddress",
        detect_local_mode: String = "detectLocalMode",
        cluster_cidr: String = "clusterCIDR",
        healthz_bind_address: String = "healthzBindAddress",
        feature_gates: FeatureGates = "featureGates",
    }
    FeatureGates {
        nftables_localhost: bool = "KubeProxyNFTablesLocalhostNodePorts",
    }
    Iptables {
        localhost_node_ports: bool = "localhostNodePorts",
    }
    ClusterDocument {
        api_server: ApiServer = "apiServer",
    }
    ApiServer {
        extra_args: ExtraArguments = "extraArgs",
    }
}

/// The value of `service-node-port-range`.
#[derive(Debug, Default)]
pub struct ExtraArguments(Option<String>);

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
fn embedded<T: FieldType>(yaml: &str, path: &str, errors: &mut FieldErrors) -> Option<T> {
    let read: Result<Field<T>, _> = serde_saphyr::from_str_with_options(yaml, yaml_options::embedded());
    match read {
        Ok(field) => field.take(path, errors),
        Err(error) => {
            let place = error.location().map(|at| format!("broken at line {}, column {}", at.line(), at.column()));
            errors.note(path, place.unwrap_or_else(|| "broken".to_owned()), "a YAML document");
            None
        }
    }
}
