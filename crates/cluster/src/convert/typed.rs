//! From slim objects to types of `k8s_openapi`, for the kinds whose conversion takes these: Nodes and ConfigMaps.
//!
//! A file or a list is read in slim form, whatever it holds. Only the fields that are read there are set here; one of the
//! wrong type is noted and left out.

use k8s_openapi::{
    api::core::v1::{ConfigMap, Node, NodeAddress, NodeSpec, NodeStatus, NodeSystemInfo},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};

use super::node::EXCLUDED;
use crate::{
    field_values::{each, reference, short},
    slim_object::{Metadata, SlimObject},
    tolerant_field::{Field, FieldErrors, LongText, NumberOrText},
};

/// The annotations of k3s and RKE2 with the arguments of a Node.
pub(crate) const K3S_ARGUMENTS: &str = "k3s.io/node-args";
pub(crate) const RKE2_ARGUMENTS: &str = "rke2.io/node-args";

/// A slim Node as `k8s_openapi` has it.
pub(crate) fn typed_node(object: SlimObject, errors: &mut FieldErrors) -> Node {
    let metadata = object.metadata.take("metadata", errors).unwrap_or_default();
    let spec = object.spec.take("spec", errors).unwrap_or_default();
    let status = object.status.take("status", errors).unwrap_or_default();
    let info = status.node_info.take("status.nodeInfo", errors).unwrap_or_default();
    let addresses = each(status.addresses, "status.addresses", errors, |entry, path, errors| {
        let type_ = entry.kind.take(format_args!("{path}.type"), errors);
        let address = entry.address.take(format_args!("{path}.address"), errors);
        // An incomplete entry keeps its place, so that the others are named by their own index.
        let entry = type_.zip(address).map(|(type_, address)| NodeAddress { type_, address });
        Some(entry.unwrap_or_default())
    });
    let pod_cidrs = each(spec.pod_cidrs, "spec.podCIDRs", errors, |cidr, _, _| Some(cidr));
    let kubelet_version = info.kubelet_version.take("status.nodeInfo.kubeletVersion", errors).unwrap_or_default();
    let runtime = info.runtime_version.take("status.nodeInfo.containerRuntimeVersion", errors).unwrap_or_default();
    Node {
        metadata: typed_metadata(*metadata, errors),
        spec: Some(NodeSpec { pod_cidrs: Some(pod_cidrs), ..NodeSpec::default() }),
        status: Some(NodeStatus {
            addresses: Some(addresses),
            node_info: Some(NodeSystemInfo {
                kubelet_version,
                container_runtime_version: runtime,
                ..NodeSystemInfo::default()
            }),
            ..NodeStatus::default()
        }),
    }
}

/// A slim ConfigMap as `k8s_openapi` has it.
pub(crate) fn typed_config_map(object: SlimObject, errors: &mut FieldErrors) -> ConfigMap {
    let metadata = object.metadata.take("metadata", errors).unwrap_or_default();
    let data = object.data.take("data", errors).unwrap_or_default();
    let long = |text: Option<LongText>| text.map(|LongText(text)| text);
    let scalar = |text: Option<NumberOrText>| text.map(|NumberOrText(text)| text);
    let values = [
        ("config.conf", long(data.proxy_config.take("data[config.conf]", errors))),
        ("ClusterConfiguration", long(data.cluster_configuration.take("data[ClusterConfiguration]", errors))),
        ("kube-proxy-replacement", scalar(data.proxy_replacement.take("data[kube-proxy-replacement]", errors))),
        ("nodeport-addresses", long(data.node_port_addresses.take("data[nodeport-addresses]", errors))),
        ("node-port-range", scalar(data.node_port_range.take("data[node-port-range]", errors))),
        ("enable-bpf-masquerade", scalar(data.bpf_masquerade.take("data[enable-bpf-masquerade]", errors))),
        ("devices", long(data.devices.take("data[devices]", errors))),
        ("force-device-detection", scalar(data.detects_devices.take("data[force-device-detection]", errors))),
        (
            "disable-external-ip-mitigation",
            scalar(data.external_ips_anywhere.take("data[disable-external-ip-mitigation]", errors)),
        ),
        ("k8s-service-proxy-name", scalar(data.proxy_name.take("data[k8s-service-proxy-name]", errors))),
        ("enable-node-port", scalar(data.node_port.take("data[enable-node-port]", errors))),
        ("enable-host-port", scalar(data.host_port.take("data[enable-host-port]", errors))),
        ("enable-external-ips", scalar(data.external_ips.take("data[enable-external-ips]", errors))),
        ("service-no-backend-response", scalar(data.no_backend.take("data[service-no-backend-response]", errors))),
        (
            "enable-no-service-endpoints-routable",
            scalar(data.no_endpoints_routable.take("data[enable-no-service-endpoints-routable]", errors)),
        ),
        ("bpf-lb-sock-hostns-only", scalar(data.sockets_of_host_only.take("data[bpf-lb-sock-hostns-only]", errors))),
        (
            "bpf-lb-enable-wildcard-entries",
            scalar(data.wildcard_entries.take("data[bpf-lb-enable-wildcard-entries]", errors)),
        ),
        ("enable-datapath-plugins", scalar(data.datapath_plugins.take("data[enable-datapath-plugins]", errors))),
        ("node-port-bind-protection", scalar(data.bind_protection.take("data[node-port-bind-protection]", errors))),
        (
            "enable-auto-protect-node-port-range",
            scalar(data.auto_protect.take("data[enable-auto-protect-node-port-range]", errors)),
        ),
        ("enable-sctp", scalar(data.sctp.take("data[enable-sctp]", errors))),
        ("enable-ipv4", scalar(data.ipv4.take("data[enable-ipv4]", errors))),
        ("enable-ipv6", scalar(data.ipv6.take("data[enable-ipv6]", errors))),
        ("enable-ipv4-masquerade", scalar(data.ipv4_masquerade.take("data[enable-ipv4-masquerade]", errors))),
        ("enable-ipv6-masquerade", scalar(data.ipv6_masquerade.take("data[enable-ipv6-masquerade]", errors))),
        ("masquerade", scalar(data.masquerade.take("data[masquerade]", errors))),
    ];
    ConfigMap {
        metadata: typed_metadata(*metadata, errors),
        data: Some(values.into_iter().filter_map(|(key, text)| Some((key.to_owned(), text?))).collect()),
        ..ConfigMap::default()
    }
}

fn typed_metadata(metadata: Metadata, errors: &mut FieldErrors) -> ObjectMeta {
    let labels = metadata.labels.take("metadata.labels", errors).unwrap_or_default();
    let annotations = metadata.annotations.take("metadata.annotations", errors).unwrap_or_default();
    let arguments = [(K3S_ARGUMENTS, annotations.k3s_args), (RKE2_ARGUMENTS, annotations.rke2_args)];
    let text = |(key, field): (&str, Field<LongText>)| {
        let LongText(text) = field.take(format_args!("metadata.annotations[{key}]"), errors)?;
        Some((key.to_owned(), text))
    };
    let annotations = arguments.into_iter().filter_map(text).collect();
    ObjectMeta {
        name: reference(metadata.name, "metadata.name", errors),
        namespace: reference(metadata.namespace, "metadata.namespace", errors),
        uid: metadata.uid.take("metadata.uid", errors),
        labels: labels.excluded.seen().map(|_| [(EXCLUDED.to_owned(), String::new())].into()),
        annotations: Some(annotations),
        ..ObjectMeta::default()
    }
}

/// `namespace/name`, or `name`; empty without one.
pub(crate) fn title(metadata: &ObjectMeta) -> String {
    let name = metadata.name.as_deref().map(short).unwrap_or_default();
    metadata.namespace.as_deref().map_or_else(|| name.clone(), |namespace| [&short(namespace), "/", &name].concat())
}
