//! From objects of Kubernetes to facts. No conversion fails: a wrong field is noted and left out, and the rest is kept.

mod node;
mod pod;
mod typed;
mod workload;

use std::{collections::HashSet, net::IpAddr};

pub(super) use self::{
    node::{node, other_hostname},
    pod::{PodFacts, pod},
    typed::{K3S_ARGUMENTS, RKE2_ARGUMENTS, title, typed_config_map, typed_node},
    workload::workload,
};
use super::{
    field_values::{
        NODE_PORT, PORT, address, addresses, each, families, label, namespace, optional_port, port, protocol, reference,
    },
    managed_fields::ManagedPorts,
    slim_object::{self, SlimObject},
    tolerant_field::{Field, FieldErrors, quoted},
};
use portreeve_facts::{
    Announced, Endpoint, EndpointPort, EndpointSlice, Family, ForCilium, Service, ServiceKind, ServicePort,
};

/// A Service; `None` for ExternalName and headless ones, which no proxy serves, and for impossible ones.
pub(super) fn service(object: SlimObject, errors: &mut FieldErrors) -> Option<Service> {
    let metadata = object.metadata.take("metadata", errors).unwrap_or_default();
    // Without its spec it would be a Service that captures nothing, and nobody would know.
    if matches!(object.spec, Field::Absent) {
        errors.note("spec", "absent", "a mapping");
    }
    let spec = object.spec.take("spec", errors)?;
    let labels = metadata.labels.take("metadata.labels", errors).unwrap_or_default();
    let annotations = metadata.annotations.take("metadata.annotations", errors).unwrap_or_default();
    let status = object.status.take("status", errors);

    let kind = match spec.kind.take("spec.type", errors).as_deref() {
        None => ServiceKind::ClusterIp,
        Some("ExternalName") => return None,
        Some(text) if let Some(kind) = service_kind(text) => kind,
        Some(other) => {
            errors.note("spec.type", quoted(other), "ClusterIP, NodePort, LoadBalancer or ExternalName");
            return None;
        }
    };
    let cluster_ip = spec.cluster_ip.take("spec.clusterIP", errors).filter(|ip| !ip.is_empty());
    if cluster_ip.as_deref() == Some("None") {
        return None;
    }
    let mut cluster_ips = addresses(spec.cluster_ips, "spec.clusterIPs", errors);
    if cluster_ips.is_empty() {
        cluster_ips.extend(cluster_ip.and_then(|ip| address(&ip, "spec.clusterIP", errors)));
    }
    let load_balancer = status.and_then(|status| status.load_balancer.take("status.loadBalancer", errors));
    let ingress = load_balancer.unwrap_or_default().ingress;

    Some(Service {
        families: families(spec.ip_families, &cluster_ips, errors),
        cluster_ips,
        external_ips: addresses(spec.external_ips, "spec.externalIPs", errors),
        load_balancer_ips: distinct(each(ingress, "status.loadBalancer.ingress", errors, |entry, path, errors| {
            let proxied = entry.ip_mode.seen().is_some_and(|mode| mode == "Proxy");
            let ip = entry.ip.take(format_args!("{path}.ip"), errors).filter(|ip| !ip.is_empty() && !proxied)?;
            address(&ip, format_args!("{path}.ip"), errors)
        })),
        external_local: spec.external_traffic_policy.take("spec.externalTrafficPolicy", errors).as_deref()
            == Some("Local"),
        internal_local: spec.internal_traffic_policy.take("spec.internalTrafficPolicy", errors).as_deref()
            == Some("Local"),
        health_check_node_port: optional_port(
            spec.health_check_node_port,
            "spec.healthCheckNodePort",
            NODE_PORT,
            errors,
        ),
        ports: service_ports(spec.ports, (spec.selector.seen().is_some(), metadata.managed_fields.seen()), errors),
        for_cilium: for_cilium(&annotations, &labels),
        announced: announced(&annotations),
        // With the label of headless ones no proxy serves it, whatever it has (kubernetes cmd/kube-proxy/app/server.go).
        proxy_name: match labels.headless.seen() {
            Some(_) => Some(Service::OF_NO_PROXY.to_owned()),
            None => labels.proxy_name.seen().cloned(),
        },
        namespace: namespace(metadata.namespace, errors)?,
        name: label(metadata.name, errors)?,
        uid: metadata.uid.take("metadata.uid", errors),
        kind,
    })
}

/// The addresses of a list in their order, each once: nothing keeps the author of a Service from writing one a thousand times,
/// and rules compare each of a list with each port.
fn distinct(mut addresses: Vec<IpAddr>) -> Vec<IpAddr> {
    let mut seen = HashSet::new();
    addresses.retain(|ip| seen.insert(*ip));
    addresses
}

/// An EndpointSlice; `None` for those of no Service and for FQDN slices, which no proxy uses.
pub(super) fn endpoint_slice(object: SlimObject, errors: &mut FieldErrors) -> Option<EndpointSlice> {
    let metadata = object.metadata.take("metadata", errors).unwrap_or_default();
    let labels = metadata.labels.take("metadata.labels", errors).unwrap_or_default();
    let service = labels.service_name.take("metadata.labels[kubernetes.io/service-name]", errors)?;
    let family = match object.address_type.take("addressType", errors).as_deref() {
        Some("IPv4") => Family::V4,
        Some("IPv6") => Family::V6,
        Some("FQDN") => return None,
        other => {
            errors.note("addressType", other.map_or_else(|| "absent".to_owned(), quoted), "IPv4, IPv6 or FQDN");
            return None;
        }
    };
    Some(EndpointSlice {
        namespace: namespace(metadata.namespace, errors)?,
        service,
        family,
        ports: each(object.ports, "ports", errors, |port, path, errors| {
            Some(EndpointPort {
                protocol: protocol(port.protocol, format_args!("{path}.protocol"), errors)?,
                name: port.name.take(format_args!("{path}.name"), errors).unwrap_or_default(),
                port: optional_port(port.port, format_args!("{path}.port"), PORT, errors),
            })
        }),
        endpoints: each(object.endpoints, "endpoints", errors, |endpoint, path, errors| {
            let conditions = endpoint.conditions.take(format_args!("{path}.conditions"), errors).unwrap_or_default();
            let mut flag = |field: Field<bool>, name| field.take(format_args!("{path}.conditions.{name}"), errors);
            let ready = flag(conditions.ready, "ready").unwrap_or(true);
            Some(Endpoint {
                ready,
                serving: flag(conditions.serving, "serving").unwrap_or(ready),
                terminating: flag(conditions.terminating, "terminating").unwrap_or(false),
                // An endpoint whose address cannot be read still counts as one.
                addresses: addresses(endpoint.addresses, format_args!("{path}.addresses"), errors),
                node: reference(endpoint.node_name, format_args!("{path}.nodeName"), errors),
            })
        }),
    })
}

/// As Cilium reads it: the newer name of an annotation comes first (cilium `pkg/annotation/clustermesh.go`), and a type that is
/// none counts as absent. Its operator labels the Services of its Ingresses and Gateways (`operator/pkg/model/translation`).
fn for_cilium(annotations: &slim_object::Annotations, labels: &slim_object::Labels) -> ForCilium {
    let global = annotations.global.seen().or(annotations.global_alias.seen());
    let of_operator = labels.cilium_ingress.seen().or(labels.cilium_gateway.seen()).is_some();
    ForCilium {
        global: global.is_some_and(|it| it.eq_ignore_ascii_case("true")),
        only: annotations.served_type.seen().and_then(|it| service_kind(it)),
        on_some_nodes: annotations.served_on.seen().or(annotations.served_on_selected.seen()).is_some(),
        by_envoy: of_operator || annotations.by_envoy.seen().is_some_and(|it| it == "enabled"),
    }
}

/// A text that is none counts as absent, as no API server has one.
fn announced(annotations: &slim_object::Annotations) -> Option<Box<Announced>> {
    let text = |field: &Field<String>| field.seen().filter(|text| !text.is_empty()).cloned();
    let pool = text(&annotations.pool).or_else(|| text(&annotations.old_pool));
    let announced = Announced { host: text(&annotations.vip_host), pool };
    (announced != Announced::default()).then(|| Box::new(announced))
}

/// The types that have ports of their own.
fn service_kind(text: &str) -> Option<ServiceKind> {
    [ServiceKind::ClusterIp, ServiceKind::NodePort, ServiceKind::LoadBalancer].into_iter().find(|it| it.name() == text)
}

fn service_ports(
    list: Field<Vec<Field<slim_object::Port>>>,
    (selects, managed): (bool, Option<&ManagedPorts>),
    errors: &mut FieldErrors,
) -> Vec<ServicePort> {
    each(list, "spec.ports", errors, |entry, path, errors| {
        if matches!(entry.port, Field::Absent) {
            errors.note(format_args!("{path}.port"), "absent", PORT);
        }
        let number = entry.port.take(format_args!("{path}.port"), errors)?;
        let number = port(number, format_args!("{path}.port"), PORT, errors)?;
        // Without its nodePort, the entry does not show which port it captures.
        let wrong_type = matches!(entry.node_port, Field::WrongType(_));
        let written = entry.node_port.seen().is_some_and(|port| *port != 0);
        let node_port = optional_port(entry.node_port, format_args!("{path}.nodePort"), NODE_PORT, errors);
        if wrong_type || (written && node_port.is_none()) {
            return None;
        }
        let protocol = protocol(entry.protocol, format_args!("{path}.protocol"), errors)?;
        Some(ServicePort {
            name: entry.name.take(format_args!("{path}.name"), errors).unwrap_or_default(),
            fixed: managed
                .filter(|_| node_port.is_some())
                .and_then(|managed| managed.chose_node_port(number, &protocol.to_string().to_uppercase())),
            protocol,
            port: number,
            target: match entry.target_port.take(format_args!("{path}.targetPort"), errors) {
                // Who writes such a Service's EndpointSlices chooses their ports.
                _ if !selects => None,
                None => Some(number),
                Some(target) => target.0.parse().ok(),
            },
            node_port,
        })
    })
}
