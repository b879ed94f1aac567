//! From wire objects to facts. Each conversion is total: what has the wrong shape is noted and left out, the rest stays.

use std::fmt;

use ipnet::IpNet;

use super::{
    field::{Field, Misfits, quoted},
    managed::Managed,
    values::{
        NODE_PORT, PORT, address, addresses, each, families, lenient_ip, name, namespace, optional_port, port, protocol,
    },
    wire::{self, Object},
};
use crate::facts::{
    ContainerPort, Endpoint, EndpointPort, EndpointSlice, Family, Node, NodeAddress, NodeAddressKind, Pod, PortRange,
    Service, ServiceKind, ServicePort,
};

/// A Service; `None` for ExternalName and headless ones, which no proxy serves, and for impossible ones.
pub(super) fn service(object: Object, misfits: &mut Misfits) -> Option<Service> {
    let metadata = object.metadata.take("metadata", misfits).unwrap_or_default();
    let spec = object.spec.take("spec", misfits).unwrap_or_default();
    let status = object.status.take("status", misfits);

    let kind = match spec.kind.take("spec.type", misfits).as_deref() {
        None | Some("ClusterIP") => ServiceKind::ClusterIp,
        Some("NodePort") => ServiceKind::NodePort,
        Some("LoadBalancer") => ServiceKind::LoadBalancer,
        Some("ExternalName") => return None,
        Some(other) => {
            misfits.note("spec.type", quoted(other), "ClusterIP, NodePort, LoadBalancer or ExternalName");
            return None;
        }
    };
    let cluster_ip = spec.cluster_ip.take("spec.clusterIP", misfits).filter(|ip| !ip.is_empty());
    if cluster_ip.as_deref() == Some("None") {
        return None;
    }
    let mut cluster_ips = addresses(spec.cluster_ips, "spec.clusterIPs", misfits);
    if cluster_ips.is_empty() {
        cluster_ips.extend(cluster_ip.and_then(|ip| address(&ip, "spec.clusterIP", misfits)));
    }
    let load_balancer = status.and_then(|status| status.load_balancer.take("status.loadBalancer", misfits));
    let ingress = load_balancer.unwrap_or_default().ingress;

    Some(Service {
        families: families(spec.ip_families, &cluster_ips, misfits),
        cluster_ips,
        external_ips: addresses(spec.external_ips, "spec.externalIPs", misfits),
        load_balancer_ips: each(ingress, "status.loadBalancer.ingress", misfits, |entry, path, misfits| {
            let proxied = entry.ip_mode.seen().is_some_and(|mode| mode == "Proxy");
            let ip = entry.ip.take(format_args!("{path}.ip"), misfits).filter(|ip| !ip.is_empty() && !proxied)?;
            address(&ip, format_args!("{path}.ip"), misfits)
        }),
        external_local: spec.external_traffic_policy.take("spec.externalTrafficPolicy", misfits).as_deref()
            == Some("Local"),
        health_check_node_port: optional_port(
            spec.health_check_node_port,
            "spec.healthCheckNodePort",
            NODE_PORT,
            misfits,
        ),
        ports: service_ports(spec.ports, metadata.managed_fields.seen(), misfits),
        proxy_name: metadata
            .labels
            .take("metadata.labels", misfits)
            .and_then(|labels| labels.proxy_name.seen().cloned()),
        namespace: namespace(metadata.namespace, misfits),
        name: name(metadata.name, misfits)?,
        uid: metadata.uid.take("metadata.uid", misfits),
        kind,
    })
}

/// An EndpointSlice; `None` for those of no Service and for FQDN slices, which no proxy uses.
pub(super) fn endpoint_slice(object: Object, misfits: &mut Misfits) -> Option<EndpointSlice> {
    let metadata = object.metadata.take("metadata", misfits).unwrap_or_default();
    let labels = metadata.labels.take("metadata.labels", misfits).unwrap_or_default();
    let service = labels.service_name.take("metadata.labels[kubernetes.io/service-name]", misfits)?;
    let family = match object.address_type.take("addressType", misfits).as_deref() {
        Some("IPv4") => Family::V4,
        Some("IPv6") => Family::V6,
        Some("FQDN") => return None,
        other => {
            misfits.note("addressType", other.map_or_else(|| "absent".to_owned(), quoted), "IPv4, IPv6 or FQDN");
            return None;
        }
    };
    Some(EndpointSlice {
        namespace: namespace(metadata.namespace, misfits),
        service,
        family,
        ports: each(object.ports, "ports", misfits, |port, path, misfits| {
            Some(EndpointPort {
                protocol: protocol(port.protocol, format_args!("{path}.protocol"), misfits)?,
                name: port.name.take(format_args!("{path}.name"), misfits).unwrap_or_default(),
                port: optional_port(port.port, format_args!("{path}.port"), PORT, misfits),
            })
        }),
        endpoints: each(object.endpoints, "endpoints", misfits, |endpoint, path, misfits| {
            let conditions = endpoint.conditions.take(format_args!("{path}.conditions"), misfits).unwrap_or_default();
            let mut flag = |field: Field<bool>, name| field.take(format_args!("{path}.conditions.{name}"), misfits);
            let ready = flag(conditions.ready, "ready").unwrap_or(true);
            Some(Endpoint {
                ready,
                serving: flag(conditions.serving, "serving").unwrap_or(ready),
                terminating: flag(conditions.terminating, "terminating").unwrap_or(false),
                // An endpoint whose address cannot be read still counts as one.
                addresses: addresses(endpoint.addresses, format_args!("{path}.addresses"), misfits),
                node: endpoint.node_name.take(format_args!("{path}.nodeName"), misfits),
            })
        }),
    })
}

/// A Pod.
pub(super) fn pod(object: Object, misfits: &mut Misfits) -> Option<Pod> {
    let metadata = object.metadata.take("metadata", misfits).unwrap_or_default();
    let spec = object.spec.take("spec", misfits).unwrap_or_default();
    let status = object.status.take("status", misfits).unwrap_or_default();

    let host_network = spec.host_network.take("spec.hostNetwork", misfits).unwrap_or(false);
    let containers = each(spec.containers, "spec.containers", misfits, |container, path, misfits| {
        Some(each(container.ports, format_args!("{path}.ports"), misfits, container_port))
    });
    let ports = containers.into_iter().flatten().filter(|port| host_network || port.host_port.is_some()).collect();
    let mut ips = each(status.pod_ips, "status.podIPs", misfits, |entry, path, misfits| {
        let ip = entry.ip.take(format_args!("{path}.ip"), misfits)?;
        address(&ip, format_args!("{path}.ip"), misfits)
    });
    if ips.is_empty() {
        let ip = status.pod_ip.take("status.podIP", misfits).filter(|ip| !ip.is_empty());
        ips.extend(ip.and_then(|ip| address(&ip, "status.podIP", misfits)));
    }
    let conditions = each(status.conditions, "status.conditions", misfits, |condition, _, _| Some(condition));
    let annotations = metadata.annotations.take("metadata.annotations", misfits).unwrap_or_default();
    let security = spec.security_context.take("spec.securityContext", misfits).unwrap_or_default();

    Some(Pod {
        namespace: namespace(metadata.namespace, misfits),
        name: name(metadata.name, misfits)?,
        uid: metadata.uid.take("metadata.uid", misfits),
        config_hash: annotations.config_hash.take("metadata.annotations[kubernetes.io/config.hash]", misfits),
        node: spec.node_name.take("spec.nodeName", misfits).filter(|node| !node.is_empty()),
        host_network,
        finished: matches!(status.phase.take("status.phase", misfits).as_deref(), Some("Succeeded" | "Failed")),
        ready: conditions.iter().any(|condition| {
            condition.kind.seen().is_some_and(|kind| kind == "Ready")
                && condition.status.seen().is_some_and(|status| status == "True")
        }),
        ips,
        ports,
        ip_local_port_range: each(security.sysctls, "spec.securityContext.sysctls", misfits, local_port_range).pop(),
    })
}

/// A Node.
pub(super) fn node(object: Object, misfits: &mut Misfits) -> Option<Node> {
    let metadata = object.metadata.take("metadata", misfits).unwrap_or_default();
    let spec = object.spec.take("spec", misfits).unwrap_or_default();
    let status = object.status.take("status", misfits).unwrap_or_default();
    let labels = metadata.labels.take("metadata.labels", misfits).unwrap_or_default();
    let info = status.node_info.take("status.nodeInfo", misfits).unwrap_or_default();
    Some(Node {
        name: name(metadata.name, misfits)?,
        uid: metadata.uid.take("metadata.uid", misfits),
        addresses: each(status.addresses, "status.addresses", misfits, |entry, path, misfits| {
            let kind = match entry.kind.take(format_args!("{path}.type"), misfits)?.as_str() {
                "InternalIP" => NodeAddressKind::InternalIp,
                "ExternalIP" => NodeAddressKind::ExternalIp,
                "Hostname" => NodeAddressKind::Hostname,
                _ => return None,
            };
            let text = entry.address.take(format_args!("{path}.address"), misfits)?;
            // A host name that is no address is what it should be.
            let ip = match kind {
                NodeAddressKind::Hostname => lenient_ip(&text)?,
                _ => address(&text, format_args!("{path}.address"), misfits)?,
            };
            Some(NodeAddress { kind, ip })
        }),
        excluded_from_load_balancers: labels.excluded.seen().is_some(),
        kubelet_version: info.kubelet_version.take("status.nodeInfo.kubeletVersion", misfits),
        pod_families: each(spec.pod_cidrs, "spec.podCIDRs", misfits, |cidr: String, path, misfits| {
            let parsed: Result<IpNet, _> = cidr.parse();
            if parsed.is_err() {
                misfits.note(path, quoted(&cidr), "a range of addresses");
            }
            parsed.ok().map(|cidr| Family::of(cidr.addr()))
        }),
    })
}

fn service_ports(
    list: Field<Vec<Field<wire::Port>>>,
    managed: Option<&Managed>,
    misfits: &mut Misfits,
) -> Vec<ServicePort> {
    each(list, "spec.ports", misfits, |entry, path, misfits| {
        if matches!(entry.port, Field::Absent) {
            misfits.note(format_args!("{path}.port"), "absent", PORT);
        }
        let number = entry.port.take(format_args!("{path}.port"), misfits)?;
        let number = port(number, format_args!("{path}.port"), PORT, misfits)?;
        // A nodePort that cannot be read makes the entry useless: nobody could tell what it captures.
        let odd = matches!(entry.node_port, Field::Odd(_));
        let written = entry.node_port.seen().is_some_and(|port| *port != 0);
        let node_port = optional_port(entry.node_port, format_args!("{path}.nodePort"), NODE_PORT, misfits);
        if odd || (written && node_port.is_none()) {
            return None;
        }
        let protocol = protocol(entry.protocol, format_args!("{path}.protocol"), misfits)?;
        Some(ServicePort {
            name: entry.name.take(format_args!("{path}.name"), misfits).unwrap_or_default(),
            fixed: managed
                .filter(|_| node_port.is_some())
                .and_then(|managed| managed.chose_node_port(number, &protocol.to_string().to_uppercase())),
            protocol,
            port: number,
            node_port,
        })
    })
}

fn container_port(entry: wire::Port, path: fmt::Arguments<'_>, misfits: &mut Misfits) -> Option<ContainerPort> {
    let number = entry.container_port.take(format_args!("{path}.containerPort"), misfits)?;
    let host_ip = entry.host_ip.take(format_args!("{path}.hostIP"), misfits).filter(|ip| !ip.is_empty());
    Some(ContainerPort {
        port: port(number, format_args!("{path}.containerPort"), PORT, misfits)?,
        host_port: optional_port(entry.host_port, format_args!("{path}.hostPort"), NODE_PORT, misfits),
        host_ip: host_ip.and_then(|ip| address(&ip, format_args!("{path}.hostIP"), misfits)),
        protocol: protocol(entry.protocol, format_args!("{path}.protocol"), misfits)?,
    })
}

fn local_port_range(sysctl: wire::NameValue, path: fmt::Arguments<'_>, misfits: &mut Misfits) -> Option<PortRange> {
    let wanted = ["net.ipv4.ip_local_port_range", "net/ipv4/ip_local_port_range"];
    if !sysctl.name.seen().is_some_and(|name| wanted.contains(&name.as_str())) {
        return None;
    }
    let text = sysctl.value.take(format_args!("{path}.value"), misfits)?.0;
    let range = text.parse().ok();
    if range.is_none() {
        misfits.note(format_args!("{path}.value"), quoted(&text), "two ports");
    }
    range
}
