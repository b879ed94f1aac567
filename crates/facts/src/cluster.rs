//! Kubernetes objects, reduced to the fields that rules use.

use std::{collections::BTreeSet, net::IpAddr, sync::Arc};

use ipnet::IpNet;
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};

use super::{
    Family, Gap, Learned, Pod, PortRange, Protocol, ProxyConfig, Reading, Source, Uid, Unread, WaitingPod, Why,
    Workload,
};

/// The Service of the API server, `namespace/name`. It has no NodePort, but a rule needs its endpoints.
pub const API_SERVER: (&str, &str) = ("default", "kubernetes");

/// All facts of the cluster, from files or from an API server.
///
/// Watches and all snapshots share the objects.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterFacts {
    /// The source, for example `services.yaml`, `https://10.0.0.1:6443`, or `none`.
    pub origin: String,
    /// Whether the user configured a source of the cluster. A failure is then an error, not a missing cluster.
    pub configured: bool,
    /// The name of this node in the cluster.
    pub node_name: Option<String>,
    /// Services, without ExternalName and headless Services.
    pub services: Reading<Vec<Arc<Service>>>,
    /// EndpointSlices. Unread if the input has none: endpoints are then unknown, not zero.
    pub endpoint_slices: Reading<Vec<Arc<EndpointSlice>>>,
    /// The names of the Services whose EndpointSlices were read, in any namespace; `None` if all were read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoints_of: Option<Arc<BTreeSet<String>>>,
    /// Pods of this node. From files: Pods with this node's name in `nodeName`, or all Pods if the name is not known.
    pub pods: Reading<Vec<Arc<Pod>>>,
    /// Pods that the scheduler cannot place because of their ports. Older snapshots do not have them.
    #[serde(default = "WaitingPod::not_requested")]
    pub waiting_pods: Reading<Vec<Arc<WaitingPod>>>,
    /// Workloads in files that want ports of a node and whose pods do not exist yet.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub workloads: Vec<Arc<Workload>>,
    /// Nodes.
    pub nodes: Reading<Vec<Arc<Node>>>,
    /// The NodePort range of the API server.
    pub node_port_range: Reading<NodePortRange>,
    /// The range of cluster IPs, if the user gives one: `lint --service-cidr`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub service_cidrs: Vec<IpNet>,
    /// The NodePort range in the settings of other components.
    pub range_claims: Vec<RangeClaim>,
    /// The proxy's settings in the cluster: the ConfigMap `kube-system/kube-proxy`, k3s node-args,
    /// or `cilium-config` with `kube-proxy-replacement`.
    pub proxy_config: Reading<ProxyConfig>,
    /// Whether Cilium replaces kube-proxy, if Cilium's settings are known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cilium_replaces: Option<bool>,
    /// Items that could not be used, each with its name; all other items were used.
    pub rejected: Vec<Gap>,
    /// Services that were read in part, by namespace and name. The missing parts may exist in the cluster.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unread_services: Vec<(String, String)>,
}

impl ClusterFacts {
    /// Whether Services of the cluster are missing: each cluster has [`API_SERVER`].
    pub fn lacks_services(&self) -> bool {
        let is_whole = |all: &Vec<Arc<Service>>| all.iter().any(|it| (&*it.namespace, &*it.name) == API_SERVER);
        self.services.known(Unread::Reported("whoever asks")).is_some_and(|all| !is_whole(all))
    }

    /// Whether the Services of a file are perhaps not all of the cluster's, in words. `kubectl get services` writes a list of one
    /// namespace and of all namespaces in the same form.
    pub fn services_in_doubt(&self) -> Option<String> {
        let services = self.services.known(Unread::Reported("whoever asks"))?;
        let first = services.first()?;
        let is_one_namespace = services.iter().all(|it| it.namespace == first.namespace);
        match (self.lacks_services(), is_one_namespace) {
            (true, true) => Some(format!(
                "only Services of namespace {}: ports of other namespaces were not judged",
                first.namespace
            )),
            (true, false) => Some(
                "without Service default/kubernetes: ports of Services that the input lacks were not judged".to_owned(),
            ),
            (false, true) => Some(format!("assumed: only namespace {} has Services", first.namespace)),
            (false, false) => None,
        }
    }

    /// Sorts each kind of object by name. An API server lists objects by name, and a file in any order. The report must not
    /// depend on the order.
    #[must_use]
    pub fn in_order(mut self) -> Self {
        if let Reading::Seen(services) = &mut self.services {
            services.sort_by(|a, b| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)));
        }
        if let Reading::Seen(pods) = &mut self.pods {
            pods.sort_by(|a, b| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)));
        }
        if let Reading::Seen(waiting) = &mut self.waiting_pods {
            waiting.sort_by(|a, b| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)));
        }
        if let Reading::Seen(nodes) = &mut self.nodes {
            nodes.sort_by(|a, b| a.name.cmp(&b.name));
        }
        self.workloads.sort_by(|a, b| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)));
        self
    }

    /// The names of the Services that can be reached at an address of a node on this port.
    pub fn reached_on(&self, number: u16) -> BTreeSet<String> {
        let has = |service: &Service| service.ports.iter().any(|it| it.node_port == Some(number) || it.port == number);
        let services = self.services.known_part(Unread::Chooses).iter();
        let reached = services.filter(|service| service.is_reached_at_a_node() && has(service));
        reached.map(|service| service.name.clone()).collect()
    }

    /// An unusable object that is or may be a Service, with unknown ports.
    pub fn unread_service(&self) -> Option<&Gap> {
        self.rejected.iter().find(|gap| gap.source == Source::Services)
    }

    /// An unusable object that is or may be a Pod, with unknown hostPorts.
    pub fn unread_pod(&self) -> Option<&Gap> {
        self.rejected.iter().find(|gap| gap.source == Source::Pods)
    }

    /// The unread sources, except EndpointSlices: rules decide from the other sources which EndpointSlices they need.
    pub fn lacks(&self) -> BTreeSet<Source> {
        let Self { services, pods, waiting_pods, nodes, node_port_range, proxy_config, .. } = self;
        let gaps = [
            (Source::Services, services.gap()),
            (Source::Pods, pods.gap()),
            (Source::WaitingPods, waiting_pods.gap()),
            (Source::Nodes, nodes.gap()),
            (Source::NodePortRange, node_port_range.gap()),
            (Source::ConfigMaps, proxy_config.gap()),
        ];
        gaps.into_iter().filter(|(_, gap)| gap.is_some()).map(|(source, _)| source).collect()
    }

    /// The EndpointSlices, if they include the slices of Services with this name.
    ///
    /// # Errors
    ///
    /// When no EndpointSlices were read, or not the slices of these Services.
    pub fn endpoint_slices_with(&self, name: &str) -> Result<&[Arc<EndpointSlice>], Gap> {
        let slices = self.endpoint_slices.get()?;
        if self.endpoints_of.as_ref().is_some_and(|known| !known.contains(name)) {
            let detail = format!("EndpointSlices of Services with the name {name} were not requested");
            return Err(Gap::new(Source::EndpointSlices, Why::NotRequested, detail));
        }
        Ok(slices)
    }

    /// Whether the endpoints of all Services of these names are known, or why they cannot be.
    pub fn holds_endpoints_of(&self, names: &BTreeSet<String>) -> bool {
        match &self.endpoint_slices {
            Reading::Seen(_) => self.endpoints_of.as_ref().is_none_or(|known| known.is_superset(names)),
            Reading::Gap(gap) => gap.why != Why::NotYet || names.is_empty(),
        }
    }
}

/// `core/v1` Service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Service {
    /// `metadata.namespace`.
    pub namespace: String,
    /// `metadata.name`.
    pub name: String,
    /// `metadata.uid`; files written by hand have none.
    pub uid: Option<Uid>,
    /// `spec.type`.
    pub kind: ServiceKind,
    /// `spec.clusterIPs`, or `spec.clusterIP`.
    pub cluster_ips: Vec<IpAddr>,
    /// `spec.ipFamilies`, each once. If absent: the families of the cluster IPs, else IPv4.
    #[serde(deserialize_with = "families")]
    pub families: &'static [Family],
    /// `spec.externalIPs`.
    pub external_ips: Vec<IpAddr>,
    /// `status.loadBalancer.ingress[].ip` whose `ipMode` is not `Proxy`.
    pub load_balancer_ips: Vec<IpAddr>,
    /// `spec.externalTrafficPolicy` is `Local`.
    pub external_local: bool,
    /// `spec.internalTrafficPolicy` is `Local`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub internal_local: bool,
    /// `spec.healthCheckNodePort`.
    pub health_check_node_port: Option<u16>,
    /// The label `service.kubernetes.io/service-proxy-name`: kube-proxy does not serve the Service. Cilium serves it if
    /// Cilium is configured with this name. With the label of headless Services the name is [`Self::OF_NO_PROXY`].
    pub proxy_name: Option<String>,
    /// The settings for Cilium in its annotations.
    #[serde(default, skip_serializing_if = "ForCilium::is_nothing")]
    pub for_cilium: ForCilium,
    /// The program that announces the load balancer's addresses, if annotations name one. Few Services have such
    /// annotations.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub announced: Option<Box<Announced>>,
    /// `spec.ports`.
    pub ports: Vec<ServicePort>,
}

/// The settings for Cilium in annotations and labels of a Service. kube-proxy reads none of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ForCilium {
    /// `service.cilium.io/global`: endpoints of other clusters serve the Service too, and perhaps no EndpointSlice of this cluster names
    /// them.
    pub global: bool,
    /// `service.cilium.io/type`: the part that Cilium serves, instead of all parts of the Service's type.
    pub only: Option<ServiceKind>,
    /// `service.cilium.io/node` or `/node-selector`: only some nodes serve the Service.
    pub on_some_nodes: bool,
    /// Cilium's Envoy answers for the Service: it belongs to an Ingress or a Gateway of Cilium, or has `service.cilium.io/lb-l7`.
    pub by_envoy: bool,
}

impl ForCilium {
    fn is_nothing(&self) -> bool {
        *self == Self::default()
    }
}

/// The program that announces a Service's load balancer addresses to the network, from annotations of the Service. A controller writes the
/// annotations; a user who may write the Service may change them. MetalLB names the node only in Events and in ServiceL2Status objects.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Announced {
    /// `kube-vip.io/vipHost`: the node on which kube-vip put the addresses when it last became their leader. kube-vip
    /// 0.5.0 to 1.0.3 writes the annotation in ARP mode. 1.0.4 to 1.2.3 also write it in BGP mode, in which each node
    /// may write its own name (`updateStatus` in `pkg/manager/services.go`, since 1.0 `pkg/services/services.go`).
    /// Before 0.8.0 the value is the name of the host. Since 0.8.0 the value is `vip_nodename`, or else the name of the
    /// host (`pkg/manager/manager.go`). Either may differ from the Node's name.
    pub host: Option<String>,
    /// `metallb.io/ip-allocated-from-pool`: the pool from which MetalLB gave the addresses; until 0.13.12
    /// `metallb.universe.tf/ip-allocated-from-pool`. MetalLB 0.13.8 to 0.16.1 writes it with the address and removes it with
    /// the address (`controller/service.go`). It never puts an address on a link.
    pub pool: Option<String>,
}

/// A file may repeat a family a hundred times, and rules try each combination.
fn families<'de, D: Deserializer<'de>>(deserializer: D) -> Result<&'static [Family], D::Error> {
    Vec::<Family>::deserialize(deserializer).map(Family::each_once)
}

impl Service {
    /// The proxy name of a Service that no proxy serves: no label can have this value.
    pub const OF_NO_PROXY: &'static str = "none: service.kubernetes.io/headless";

    /// Whether an address of a node leads to the Service: by a NodePort, a health check, or an external address.
    pub fn is_reached_at_a_node(&self) -> bool {
        self.ports.iter().any(|port| port.node_port.is_some())
            || self.health_check_node_port.is_some()
            || !self.external_ips.is_empty()
            || !self.load_balancer_ips.is_empty()
    }
}

/// `spec.type` of a Service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "Kubernetes' own names")]
pub enum ServiceKind {
    #[serde(rename = "ClusterIP")]
    ClusterIp,
    NodePort,
    LoadBalancer,
}

impl ServiceKind {
    /// Kubernetes' word for the type.
    pub fn name(self) -> &'static str {
        match self {
            Self::ClusterIp => "ClusterIP",
            Self::NodePort => "NodePort",
            Self::LoadBalancer => "LoadBalancer",
        }
    }
}

/// One entry of `spec.ports`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServicePort {
    /// `name`, empty if the Service has one port only.
    pub name: String,
    /// `protocol`.
    pub protocol: Protocol,
    /// `port`.
    pub port: u16,
    /// `targetPort`, or else `port`. None for a named port, or if the Service has no selector.
    #[serde(default)]
    pub target: Option<u16>,
    /// `nodePort`.
    pub node_port: Option<u16>,
    /// Whether a client chose `nodePort`: `f:nodePort` in the managedFields of a Create or an Apply. Not read if the object
    /// has no managedFields. A hint: a create from a backup owns the field too.
    pub fixed: Option<bool>,
}

/// `discovery.k8s.io/v1` EndpointSlice.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndpointSlice {
    /// `metadata.namespace`.
    pub namespace: String,
    /// The label `kubernetes.io/service-name`.
    pub service: String,
    /// `addressType`.
    pub family: Family,
    /// `ports`.
    pub ports: Vec<EndpointPort>,
    /// `endpoints`.
    pub endpoints: Vec<Endpoint>,
}

/// One entry of an EndpointSlice's `ports`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndpointPort {
    /// `name`: equal to the Service port's.
    pub name: String,
    /// `protocol`.
    pub protocol: Protocol,
    /// `port`; absent means all ports, which a proxy ignores.
    pub port: Option<u16>,
}

/// One entry of an EndpointSlice's `endpoints`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Endpoint {
    /// `addresses`; kube-proxy uses the first.
    pub addresses: Vec<IpAddr>,
    /// `conditions.ready`, absent means true.
    pub ready: bool,
    /// `conditions.serving`, absent means as `ready`.
    pub serving: bool,
    /// `conditions.terminating`, absent means false.
    pub terminating: bool,
    /// `nodeName`; an endpoint without one is local to no node for kube-proxy, and to each for Cilium.
    pub node: Option<String>,
}

/// `core/v1` Node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    /// `metadata.name`.
    pub name: String,
    /// `metadata.uid`.
    pub uid: Option<String>,
    /// `status.addresses`, those that are IP addresses.
    pub addresses: Vec<NodeAddress>,
    /// The label `node.kubernetes.io/exclude-from-external-load-balancers` is present.
    pub excluded_from_load_balancers: bool,
    /// `status.nodeInfo.kubeletVersion`.
    pub kubelet_version: Option<String>,
    /// `status.nodeInfo.containerRuntimeVersion`, e.g. `containerd://2.1.4`; read only for Nodes that are read completely, such as the node's own Node.
    #[serde(default)]
    pub container_runtime: Option<String>,
    /// The families of `spec.podCIDRs`; snapshots older than it have none.
    #[serde(default)]
    pub pod_families: Vec<Family>,
}

/// One entry of a Node's `status.addresses`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeAddress {
    /// `type`.
    pub kind: NodeAddressKind,
    /// `address`.
    pub ip: IpAddr,
}

/// `type` of a Node's address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "Kubernetes' own names")]
pub enum NodeAddressKind {
    #[serde(rename = "InternalIP")]
    InternalIp,
    #[serde(rename = "ExternalIP")]
    ExternalIp,
    Hostname,
}

/// The NodePort range and its source.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodePortRange {
    /// The range.
    pub range: PortRange,
    /// The kind of its source.
    pub source: RangeSource,
    /// The place, for people: `pod kube-system/kube-apiserver-cp1`, `--node-port-range`.
    pub place: String,
}

impl NodePortRange {
    /// A configured range, with its source.
    pub fn configured(range: PortRange, place: &str) -> Self {
        Self { range, source: RangeSource::Flag, place: place.to_owned() }
    }

    /// The default, marked as assumed.
    pub fn assumed() -> Self {
        Self {
            range: PortRange::DEFAULT_NODE_PORTS,
            source: RangeSource::Assumed,
            place: "assumed: the default of kube-apiserver".to_owned(),
        }
    }
}

/// The kind of source of a NodePort range, the best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum RangeSource {
    /// The user gave it: `--node-port-range`, `--set`.
    Flag,
    /// kube-apiserver's `/flagz` (Kubernetes 1.36).
    Flagz,
    /// The arguments of a kube-apiserver Pod.
    ApiServerArguments,
    /// `k3s.io/node-args` or `rke2.io/node-args` of a server Node.
    NodeArguments,
    /// `kube-system/kubeadm-config`.
    KubeadmConfig,
    /// `network.config.openshift.io/cluster`.
    OpenshiftNetwork,
    /// The default: no source names a range.
    Assumed,
}

/// The NodePort range in the settings of a component other than the API server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RangeClaim {
    /// The component.
    pub by: Claimant,
    /// The ranges.
    pub ranges: Reading<Vec<PortRange>>,
    /// The source, read or not.
    pub place: String,
}

/// A component with its own setting of the NodePort range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Claimant {
    /// `cilium-config` `node-port-range`; matters with its kube-proxy replacement.
    Cilium,
    /// FelixConfiguration `kubeNodePortRanges`; matters in ipvs mode.
    Calico,
}

/// Facts about the node from the command line or the configuration. They replace the facts that were read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Overrides {
    /// `--proxy-mode`.
    pub proxy_mode: Option<Learned<super::Mode>>,
}

/// Major, minor and patch of `v1.36.3+k3s1`. `None` if the text is not a version.
pub fn kubernetes_version(text: &str) -> Option<(u32, u32, u32)> {
    let mut parts = text.trim_start_matches('v').split(['.', '-', '+']).map(|part| part.parse::<u32>().ok());
    Some((parts.next()??, parts.next()??, parts.next()??))
}
