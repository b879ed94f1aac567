//! From a Node of `k8s_openapi` to facts.

use ipnet::IpNet;
use k8s_openapi::api::core::v1;

use crate::{
    field_values::{address, lenient_ip, short},
    tolerant_field::{FieldErrors, quoted},
};
use portreeve_facts::{Family, Node, NodeAddress, NodeAddressKind, names};

/// The label of a Node that external load balancers leave out.
pub(crate) const EXCLUDED: &str = "node.kubernetes.io/exclude-from-external-load-balancers";

/// A Node; `None` without a name.
pub(crate) fn node(node: v1::Node, errors: &mut FieldErrors) -> Option<Node> {
    let v1::Node { metadata, spec, status } = node;
    let (spec, status) = (spec.unwrap_or_default(), status.unwrap_or_default());
    let name = metadata.name.filter(|name| !name.is_empty());
    match &name {
        None => errors.note("metadata.name", "absent", "a name"),
        Some(name) if !names::is_subdomain(name) => {
            errors.note("metadata.name", quoted(name), names::SUBDOMAIN);
            return None;
        }
        Some(_) => {}
    }
    let info = status.node_info.as_ref();
    // An absent one is an empty text.
    let runtime = info.map(|info| short(&info.container_runtime_version)).filter(|runtime| !runtime.is_empty());
    Some(Node {
        name: name?,
        uid: metadata.uid.as_deref().map(short),
        addresses: addresses(status.addresses.unwrap_or_default(), errors),
        excluded_from_load_balancers: metadata.labels.is_some_and(|labels| labels.contains_key(EXCLUDED)),
        kubelet_version: info.map(|info| short(&info.kubelet_version)),
        container_runtime: runtime,
        pod_families: pod_families(&spec.pod_cidrs.unwrap_or_default(), errors),
    })
}

/// The host name of a Node where it is not also the Node's name.
pub(crate) fn other_hostname(node: &v1::Node) -> Option<&str> {
    let name = node.metadata.name.as_deref()?;
    let addresses = node.status.as_ref()?.addresses.iter().flatten();
    let mut hostnames = addresses.filter(|it| it.type_ == "Hostname").map(|it| it.address.as_str());
    hostnames.rfind(|hostname| !hostname.eq_ignore_ascii_case(name))
}

fn addresses(list: Vec<v1::NodeAddress>, errors: &mut FieldErrors) -> Vec<NodeAddress> {
    let convert = |(index, v1::NodeAddress { type_, address: text }): (usize, v1::NodeAddress)| {
        let kind = match type_.as_str() {
            "InternalIP" => NodeAddressKind::InternalIp,
            "ExternalIP" => NodeAddressKind::ExternalIp,
            "Hostname" => NodeAddressKind::Hostname,
            _ => return None,
        };
        let ip = match kind {
            // A host name need not be an address.
            NodeAddressKind::Hostname => lenient_ip(&text)?,
            _ => address(&text, format_args!("status.addresses[{index}].address"), errors)?,
        };
        Some(NodeAddress { kind, ip })
    };
    list.into_iter().enumerate().filter_map(convert).collect()
}

fn pod_families(cidrs: &[String], errors: &mut FieldErrors) -> Vec<Family> {
    let convert = |(index, cidr): (usize, &String)| {
        let parsed: Result<IpNet, _> = cidr.parse();
        if parsed.is_err() {
            errors.note(format_args!("spec.podCIDRs[{index}]"), quoted(cidr), "a range of addresses");
        }
        parsed.ok().map(|cidr| Family::of(cidr.addr()))
    };
    cidrs.iter().enumerate().filter_map(convert).collect()
}
