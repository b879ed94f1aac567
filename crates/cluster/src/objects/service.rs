//! A Service.

use std::{collections::HashSet, net::IpAddr};

use serde::{Deserialize, de::IgnoredAny};

use super::{
    Annotations, FieldError, Labels, Metadata, Notes, Object,
    managed_fields::ManagedFields,
    values::{
        Ip, IpFamily, NumberOrText, OptionalPort, PORT, Port, PortProtocol, Text, lenient_ip, quoted, unless_empty,
    },
};
use crate::facts_builder::FactsBuilder;
use portreeve_facts::{self as facts, Announced, Family, ForCilium, Protocol, ServiceKind, Source};

/// A Service of the API server or of a manifest.
#[derive(Debug, Deserialize)]
pub struct Service {
    pub(crate) metadata: Option<Metadata>,
    pub(crate) spec: Option<ServiceSpec>,
    pub(crate) status: Option<ServiceStatus>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct ServiceSpec {
    #[serde(rename = "type", deserialize_with = "unless_empty")]
    pub(crate) kind: Option<Text>,
    #[serde(rename = "clusterIP")]
    pub(crate) cluster_ip: Option<Text>,
    #[serde(rename = "clusterIPs")]
    pub(crate) cluster_ips: Option<Vec<Text>>,
    pub(crate) ip_families: Option<Vec<IpFamily>>,
    #[serde(rename = "externalIPs")]
    pub(crate) external_ips: Option<Vec<Ip>>,
    pub(crate) load_balancer_source_ranges: Option<Vec<Text>>,
    pub(crate) external_traffic_policy: Option<Text>,
    pub(crate) internal_traffic_policy: Option<Text>,
    pub(crate) health_check_node_port: Option<OptionalPort>,
    pub(crate) selector: Option<IgnoredAny>,
    pub(crate) ports: Option<Vec<ServicePort>>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ServicePort {
    pub(crate) name: Option<Text>,
    pub(crate) protocol: Option<PortProtocol>,
    pub(crate) port: Option<Port>,
    pub(crate) target_port: Option<NumberOrText>,
    pub(crate) node_port: Option<OptionalPort>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ServiceStatus {
    pub(crate) load_balancer: Option<LoadBalancer>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct LoadBalancer {
    pub(crate) ingress: Option<Vec<Ingress>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Ingress {
    #[serde(deserialize_with = "unless_empty")]
    pub(crate) ip: Option<Ip>,
    pub(crate) ip_mode: Option<Text>,
}

impl Object for Service {
    const KIND: &'static str = "Service";
    const GROUP: &'static str = "/api/v1";
    const PLURAL: &'static str = "services";
    const SOURCE: Source = Source::Services;

    fn metadata(&self) -> Option<&Metadata> {
        self.metadata.as_ref()
    }

    fn add_to(self, facts: &mut FactsBuilder, _: &mut Notes) -> Result<(), FieldError> {
        facts.services.extend(self.facts()?.map(Into::into));
        Ok(())
    }
}

impl Service {
    /// The facts of the Service. `None` for ExternalName and headless Services, which no proxy serves.
    fn facts(self) -> Result<Option<facts::Service>, FieldError> {
        let metadata = self.metadata.unwrap_or_default();
        // A Service without a spec is an error. If the spec had a default, the Service would seem to have no ports.
        let spec = self.spec.ok_or_else(|| FieldError::new("spec", "absent", "a mapping"))?;
        let (namespace, name) = (metadata.namespace()?, metadata.label()?);
        let kind = match spec.kind.as_deref() {
            None => ServiceKind::ClusterIp,
            Some("ExternalName") => return Ok(None),
            Some(text) => service_kind(text).ok_or_else(|| {
                FieldError::new("spec.type", quoted(text), "ClusterIP, NodePort, LoadBalancer or ExternalName")
            })?,
        };
        let cluster_ip = spec.cluster_ip.as_deref().filter(|ip| !ip.is_empty());
        if cluster_ip == Some("None") {
            return Ok(None);
        }
        let mut cluster_ips = addresses(&spec.cluster_ips.unwrap_or_default(), "spec.clusterIPs")?;
        if cluster_ips.is_empty()
            && let Some(ip) = cluster_ip
        {
            cluster_ips.push(address(ip, "spec.clusterIP")?);
        }
        let ingress = self.status.and_then(|status| status.load_balancer?.ingress).unwrap_or_default();
        let virtual_ips = ingress.into_iter().filter(|entry| entry.ip_mode.as_deref() != Some("Proxy"));
        let labels = metadata.labels.as_ref();
        let headless = labels.is_some_and(|labels| labels.headless.is_some());
        let is_local = |policy: &Option<Text>| policy.as_deref() == Some("Local");
        let managed = metadata.managed_fields.as_ref();
        // This list reuses the memory of a list with longer items. A cluster has many Services, so the unused memory is
        // freed.
        let mut ports = ports(spec.ports.unwrap_or_default(), spec.selector.is_some(), managed)?;
        ports.shrink_to_fit();
        cluster_ips.shrink_to_fit();
        Ok(Some(facts::Service {
            families: families(spec.ip_families.unwrap_or_default(), &cluster_ips),
            cluster_ips,
            external_ips: spec.external_ips.into_iter().flatten().map(|Ip(ip)| ip).collect(),
            load_balancer_ips: distinct(virtual_ips.filter_map(|entry| entry.ip).map(|Ip(ip)| ip).collect()),
            source_ranges: Family::each_once(
                spec.load_balancer_source_ranges.iter().flatten().filter_map(|range| family_of_range(range)),
            ),
            external_local: is_local(&spec.external_traffic_policy),
            internal_local: is_local(&spec.internal_traffic_policy),
            health_check_node_port: spec.health_check_node_port.and_then(|OptionalPort(port)| port),
            health_check_kept: false,
            ports,
            for_cilium: for_cilium(metadata.annotations.as_ref(), labels),
            announced: metadata.annotations.as_ref().and_then(announced),
            // No proxy serves a Service with the label of headless Services, whatever its other fields are (kubernetes
            // cmd/kube-proxy/app/server.go).
            proxy_name: match labels.and_then(|labels| labels.proxy_name.clone()) {
                _ if headless => Some(facts::Service::OF_NO_PROXY.to_owned()),
                name => name.map(|Text(name)| name),
            },
            uid: metadata.uid().map(Into::into),
            namespace,
            name,
            kind,
        }))
    }
}

pub(super) fn address(text: &str, path: impl std::fmt::Display) -> Result<IpAddr, FieldError> {
    lenient_ip(text).ok_or_else(|| FieldError::new(path, quoted(text), "an IP address"))
}

pub(super) fn addresses(list: &[Text], path: impl std::fmt::Display) -> Result<Vec<IpAddr>, FieldError> {
    list.iter().enumerate().map(|(index, text)| address(text, format_args!("{path}[{index}]"))).collect()
}

/// Removes repeated addresses. A user could write one address a thousand times, and rules compare each address with
/// each port.
fn distinct(mut addresses: Vec<IpAddr>) -> Vec<IpAddr> {
    let mut seen = HashSet::new();
    addresses.retain(|ip| seen.insert(*ip));
    addresses
}

fn families(listed: Vec<IpFamily>, cluster_ips: &[IpAddr]) -> &'static [Family] {
    if !listed.is_empty() {
        return Family::each_once(listed.into_iter().map(|IpFamily(family)| family));
    }
    let families = Family::each_once(cluster_ips.iter().copied().map(Family::of));
    if families.is_empty() { &[Family::V4] } else { families }
}

/// The API server permits spaces around a range.
fn family_of_range(range: &str) -> Option<Family> {
    let (ip, _) = range.trim().split_once('/')?;
    lenient_ip(ip).map(Family::of)
}

/// The Service's settings for Cilium, parsed as Cilium does. If an annotation has two names, the newer name is read
/// first (cilium `pkg/annotation/clustermesh.go`). A service type that Cilium does not know counts as absent. Cilium's
/// operator labels the Services of its Ingresses and Gateways (`operator/pkg/model/translation`).
fn for_cilium(annotations: Option<&Annotations>, labels: Option<&Labels>) -> ForCilium {
    let of_operator =
        labels.is_some_and(|labels| labels.cilium_ingress.as_ref().or(labels.cilium_gateway.as_ref()).is_some());
    let Some(annotations) = annotations else { return ForCilium { by_envoy: of_operator, ..ForCilium::default() } };
    let global = annotations.global.as_deref().or(annotations.global_alias.as_deref());
    ForCilium {
        global: global.is_some_and(|it| it.eq_ignore_ascii_case("true")),
        only: annotations.served_type.as_deref().and_then(service_kind),
        on_some_nodes: annotations.served_on.as_ref().or(annotations.served_on_selected.as_ref()).is_some(),
        by_envoy: of_operator || annotations.by_envoy.as_deref() == Some("enabled"),
    }
}

/// An empty annotation counts as absent.
fn announced(annotations: &Annotations) -> Option<Box<Announced>> {
    let text = |field: &Option<Text>| field.clone().map(|Text(text)| text).filter(|text| !text.is_empty());
    let pool = text(&annotations.pool).or_else(|| text(&annotations.old_pool));
    let announced = Announced { host: text(&annotations.vip_host), pool };
    (announced != Announced::default()).then(|| Box::new(announced))
}

/// The kind with this name. `None` for ExternalName and for unknown types.
fn service_kind(text: &str) -> Option<ServiceKind> {
    [ServiceKind::ClusterIp, ServiceKind::NodePort, ServiceKind::LoadBalancer].into_iter().find(|it| it.name() == text)
}

fn ports(
    list: Vec<ServicePort>,
    selects: bool,
    managed: Option<&ManagedFields>,
) -> Result<Vec<facts::ServicePort>, FieldError> {
    let port = |(index, entry): (usize, ServicePort)| {
        let Port(port) =
            entry.port.ok_or_else(|| FieldError::new(format_args!("spec.ports[{index}].port"), "absent", PORT))?;
        let protocol = entry.protocol.map_or(Protocol::Tcp, |PortProtocol(protocol)| protocol);
        let node_port = entry.node_port.and_then(|OptionalPort(port)| port);
        Ok(facts::ServicePort {
            name: entry.name.map(|Text(name)| name).unwrap_or_default(),
            fixed: managed
                .filter(|_| node_port.is_some())
                .and_then(|managed| managed.chose_node_port(port, &protocol.to_string().to_uppercase())),
            protocol,
            port,
            target: match entry.target_port {
                // For a Service without a selector, a user makes the EndpointSlices and chooses their ports.
                _ if !selects => None,
                None => Some(port),
                Some(NumberOrText(target)) => target.parse().ok(),
            },
            node_port,
        })
    };
    list.into_iter().enumerate().map(port).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_keeps_no_memory_for_more_ports_than_it_has() {
        let text = r#"{"metadata":{"name":"web","namespace":"shop"},
            "spec":{"clusterIP":"10.96.0.7","clusterIPs":["10.96.0.7"],"ports":[{"name":"http","port":80}]}}"#;
        let service: Service = serde_json::from_str(text).expect("a Service");
        let facts = service.facts().ok().flatten().expect("it is served");
        assert_eq!((facts.ports.capacity(), facts.cluster_ips.capacity()), (1, 1));
    }
}
