//! Kubernetes objects, with the fields that rules use.

use std::{collections::BTreeSet, net::IpAddr, sync::Arc};

use ipnet::IpNet;
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};

use super::{
    ContainerPort, Family, Gap, Learned, Mode, Pod, PortRange, PortSet, Protocol, ProxyConfig, Reading, Source,
    Sysctls, Uid, Unread, WaitingPod, Why, Workload,
};

/// Namespace and name of the API server's Service. This Service has no NodePort, but a rule needs its endpoints.
pub const API_SERVER: (&str, &str) = ("default", "kubernetes");

/// All facts of the cluster, from files or from an API server.
///
/// The objects are shared between snapshots and watches.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterFacts {
    /// The source, for example `services.yaml`, `https://10.0.0.1:6443`, or `none`.
    pub origin: String,
    /// Whether the user configured a source of the cluster. If the user configured a source, a failed read is an error,
    /// and does not mean that there is no cluster.
    pub configured: bool,
    /// The name of this node in the cluster.
    pub node_name: Option<String>,
    /// Services, without ExternalName and headless Services.
    pub services: Reading<Vec<Arc<Service>>>,
    /// EndpointSlices. If the input has no EndpointSlice, the EndpointSlices count as unread, because the endpoints are
    /// unknown.
    pub endpoint_slices: Reading<Vec<Arc<EndpointSlice>>>,
    /// The names of the Services whose EndpointSlices were read. A name stands for Services in all namespaces. `None`
    /// if all EndpointSlices were read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoints_of: Option<Arc<BTreeSet<String>>>,
    /// Pods of this node. From a file, only the Pods whose `nodeName` is this node's name are included. If the name of
    /// this node is not known, all Pods of the file are included.
    pub pods: Reading<Vec<Arc<Pod>>>,
    /// Pods that the scheduler cannot place because of their ports. Older snapshots do not have these Pods.
    #[serde(default = "WaitingPod::not_requested")]
    pub waiting_pods: Reading<Vec<Arc<WaitingPod>>>,
    /// Ports of the node that other Pods without a Node want. These Pods wait for something other than ports, for
    /// example for CPU. Only the choice of free ports uses these ports.
    #[serde(default, skip_serializing_if = "PortSet::is_empty")]
    pub pending_ports: PortSet,
    /// Workloads from files. The pods of a workload do not exist yet, but will need ports of a node.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub workloads: Vec<Arc<Workload>>,
    /// Nodes.
    pub nodes: Reading<Vec<Arc<Node>>>,
    /// The NodePort range of the API server.
    pub node_port_range: Reading<NodePortRange>,
    /// The range of cluster IPs, if the user gives it with `lint --service-cidr`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub service_cidrs: Vec<IpNet>,
    /// The NodePort ranges in the settings of components other than the API server.
    pub range_claims: Vec<RangeClaim>,
    /// The proxy's settings in the cluster: from the ConfigMap `kube-system/kube-proxy`, from k3s node-args, or from a
    /// `cilium-config` with `kube-proxy-replacement`.
    pub proxy_config: Reading<ProxyConfig>,
    /// Whether Cilium replaces kube-proxy. `None` if Cilium's settings are not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cilium_replaces: Option<bool>,
    /// Objects that could not be used, each with its name. If files lack Services, an entry says so.
    pub rejected: Vec<Gap>,
    /// Namespaces and names of Services that were only partly read. The missing part may exist in the cluster.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unread_services: Vec<(String, String)>,
}

impl ClusterFacts {
    /// The reason why Services may be missing. Each cluster has the Service [`API_SERVER`]. An input without this
    /// Service may lack other Services too.
    pub fn lacks_services(&self) -> Option<Gap> {
        let services = self.services.known(Unread::Reported("whoever asks"))?;
        let is_whole = services.iter().any(|it| (&*it.namespace, &*it.name) == API_SERVER);
        (!is_whole).then(|| Gap::new(Source::Services, Why::Malformed, self.origin.clone()))
    }

    /// The reason, in words, why a file may lack Services of the cluster. The output of `kubectl get services` does not
    /// show whether only one namespace was listed.
    pub fn services_in_doubt(&self) -> Option<String> {
        let services = self.services.known(Unread::Reported("whoever asks"))?;
        let first = services.first().map(|it| &*it.namespace);
        let only = first.filter(|only| services.iter().all(|it| it.namespace == *only));
        match (self.lacks_services().is_some(), only) {
            (true, Some(only)) => {
                Some(format!("only Services of namespace {only}: ports of other namespaces were not judged"))
            }
            (true, None) => Some(
                "without Service default/kubernetes: ports of Services that the input lacks were not judged".to_owned(),
            ),
            (false, Some(only)) => Some(format!("assumed: only namespace {only} has Services")),
            (false, None) => None,
        }
    }

    /// Sorts each kind of object by name, as an API server does. Objects in a file may have any order, but the report
    /// must not depend on this order.
    #[must_use]
    pub fn in_order(mut self) -> Self {
        fn sort<T>(objects: &mut Reading<Vec<Arc<T>>>, name: impl Fn(&T) -> (&str, &str)) {
            if let Reading::Seen(objects) = objects {
                objects.sort_by(|a, b| name(a).cmp(&name(b)));
            }
        }
        sort(&mut self.services, |it| (&it.namespace, &it.name));
        sort(&mut self.pods, |it| (&it.namespace, &it.name));
        sort(&mut self.waiting_pods, |it| (&it.namespace, &it.name));
        sort(&mut self.nodes, |it| ("", &it.name));
        self.workloads.sort_by(|a, b| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)));
        self
    }

    /// The names of the Services that clients reach at this port on an address of a node.
    pub fn reached_on(&self, number: u16) -> BTreeSet<String> {
        let has = |service: &Service| service.ports.iter().any(|it| it.node_port == Some(number) || it.port == number);
        let services = self.services.known_part(Unread::Chooses).iter();
        let reached = services.filter(|service| service.is_reached_at_a_node() && has(service));
        reached.map(|service| service.name.clone()).collect()
    }

    /// The reason why the ports of some Services are unknown. For example, an object that may be a Service could not be
    /// used, or files lack Services.
    pub fn unread_service(&self) -> Option<&Gap> {
        self.rejected.iter().find(|gap| gap.source == Source::Services)
    }

    /// The reason why the hostPorts of some Pods are unknown. Either an object that may be a Pod could not be used, or
    /// a [Pod's node is unknown](Self::unplaced_pod).
    pub fn unread_pod(&self) -> Option<&Gap> {
        self.rejected.iter().find(|gap| gap.source == Source::Pods).or_else(|| self.unplaced_pod())
    }

    /// Like [`Self::unread_pod`], but a Pod whose node is unknown counts only if this Pod has this hostPort.
    pub fn unread_host_port(&self, (protocol, number): (Protocol, u16)) -> Option<&Gap> {
        let has = |pod: &Arc<Pod>| pod.ports.iter().any(|it| (it.protocol, it.host_port) == (protocol, Some(number)));
        let pods = self.pods.known_part(Unread::Reported("the gap of Pods"));
        self.unread_pod().filter(|gap| gap.source == Source::Pods || pods.iter().any(has))
    }

    /// The reason why it is unknown whether a Pod with a `nodeName` is on this node.
    pub fn unplaced_pod(&self) -> Option<&Gap> {
        let mut pods = self.pods.known_part(Unread::Reported("the gap of Pods")).iter();
        self.unknown_node().filter(|_| pods.any(|pod| pod.node.is_some()))
    }

    /// The Pods that have a `nodeName` and may be on this node, because [this node's name is
    /// unknown](Self::unknown_node).
    pub fn unplaced_pods(&self) -> impl Iterator<Item = &Pod> {
        let is_unknown = self.unknown_node().is_some();
        let pods = self.pods.known_part(Unread::Reported("the gap of Pods")).iter().map(Arc::as_ref);
        pods.filter(move |pod: &&Pod| is_unknown && pod.node.is_some() && !pod.finished)
    }

    /// The ports of this node that [`Self::unplaced_pods`] may need, each with its Pod and the Pod's entry.
    pub fn unplaced_ports(&self) -> impl Iterator<Item = (u16, &Pod, &ContainerPort)> {
        self.unplaced_pods().flat_map(|pod| pod.needed_ports().map(move |(number, port)| (number, pod, port)))
    }

    /// The entry of [`Self::rejected`] that says why this node's name is unknown.
    pub fn unknown_node(&self) -> Option<&Gap> {
        self.ambiguous_node().filter(|_| self.node_name.is_none())
    }

    /// The entry of [`Self::rejected`] that says why the known name of this node may be the name of another node.
    pub fn doubted_node(&self) -> Option<&Gap> {
        self.ambiguous_node().filter(|_| self.node_name.is_some())
    }

    /// [`Self::unknown_node`] or [`Self::doubted_node`].
    pub fn ambiguous_node(&self) -> Option<&Gap> {
        self.rejected.iter().find(|gap| (gap.source, gap.why) == (Source::Nodes, Why::Ambiguous))
    }

    /// The reason why it is unknown which Pods and endpoints are on this node. If no name is configured, the hostname
    /// is only a guess. The guess is confirmed by a Node with this name, or by a Pod that has an address and this
    /// `nodeName`.
    ///
    /// `None` if the name is not needed. The name is needed if a Pod has a `nodeName`. The name is also needed if an
    /// endpoint has a `nodeName` and a Service has a policy Local.
    pub fn no_name(&self, hostname: &str) -> Option<Gap> {
        if self.node_name.is_some() {
            return None;
        }
        let unread = Unread::Reported("the gap in its place");
        let mut services = self.services.known_part(unread).iter();
        let has_policy = services.any(|it| it.external_local || it.internal_local);
        let pods = self.pods.known_part(unread);
        let mut endpoints = self.endpoint_slices.known_part(unread).iter().flat_map(|it| &it.endpoints);
        let is_placed = pods.iter().any(|it| it.node.is_some()) || has_policy && endpoints.any(|it| it.node.is_some());
        let is_node = || self.nodes.known_part(unread).iter().any(|it| it.name == hostname);
        // Any user can create a Pod with any `nodeName`. Only a kubelet writes a Pod's address.
        let is_of_pod = || pods.iter().any(|it| it.node.as_deref() == Some(hostname) && !it.ips.is_empty());
        let is_known = || is_node() || is_of_pod();
        (is_placed && !is_known()).then(|| {
            let detail = format!(
                "no Node that was read, and no Pod with an address that was read, has the name {hostname}; set the name of this node with --node"
            );
            Gap::new(Source::Nodes, Why::Ambiguous, detail)
        })
    }

    /// An EndpointSlice that could not be used. The EndpointSlice may belong to any Service.
    pub fn unread_slice(&self) -> Option<&Gap> {
        let slices = self.rejected.iter().filter(|gap| gap.source == Source::EndpointSlices);
        slices.min_by(|one, other| one.detail.cmp(&other.detail))
    }

    /// The sources that were not read. EndpointSlices are left out, because rules use the other sources to choose
    /// EndpointSlices.
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

    /// All EndpointSlices that were read, if the EndpointSlices of Services with this name are among them.
    ///
    /// # Errors
    ///
    /// Returns a `Gap` if no EndpointSlices were read, or if the EndpointSlices of Services with this name were not
    /// requested.
    pub fn endpoint_slices_with(&self, name: &str) -> Result<&[Arc<EndpointSlice>], Gap> {
        let slices = self.endpoint_slices.get()?;
        if self.endpoints_of.as_ref().is_some_and(|known| !known.contains(name)) {
            let detail = format!("EndpointSlices of Services with the name {name} were not requested");
            return Err(Gap::new(Source::EndpointSlices, Why::NotRequested, detail));
        }
        Ok(slices)
    }

    /// Whether a read of the endpoints of the Services with these names succeeded or failed.
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
    /// `metadata.uid`. `None` for a Service in a file that a person wrote.
    pub uid: Option<Uid>,
    /// `spec.type`.
    pub kind: ServiceKind,
    /// `spec.clusterIPs`, or `spec.clusterIP`.
    pub cluster_ips: Vec<IpAddr>,
    /// `spec.ipFamilies`, each family once. If the field is absent, these are the families of the cluster IPs. If there
    /// are no cluster IPs, the family is IPv4.
    #[serde(deserialize_with = "families")]
    pub families: &'static [Family],
    /// `spec.externalIPs`.
    pub external_ips: Vec<IpAddr>,
    /// The `status.loadBalancer.ingress[].ip` entries whose `ipMode` is not `Proxy`.
    pub load_balancer_ips: Vec<IpAddr>,
    /// The families of `spec.loadBalancerSourceRanges`, each family once. If a client is outside of the ranges, proxies
    /// drop the client's packets to the load balancer's addresses.
    #[serde(default, skip_serializing_if = "<[Family]>::is_empty", deserialize_with = "families")]
    pub source_ranges: &'static [Family],
    /// `spec.externalTrafficPolicy` is `Local`.
    pub external_local: bool,
    /// `spec.internalTrafficPolicy` is `Local`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub internal_local: bool,
    /// `spec.healthCheckNodePort`.
    pub health_check_node_port: Option<u16>,
    /// Whether the cluster has the `healthCheckNodePort` already. Only lint sets this field.
    #[serde(skip)]
    pub health_check_kept: bool,
    /// The label `service.kubernetes.io/service-proxy-name`. kube-proxy does not serve a Service with this label.
    /// Cilium serves the Service if Cilium is configured with this name. The value is [`Self::OF_NO_PROXY`] if the
    /// Service has the label of headless Services.
    pub proxy_name: Option<String>,
    /// Cilium's settings for this Service, in the Service's annotations and labels.
    #[serde(default, skip_serializing_if = "ForCilium::is_nothing")]
    pub for_cilium: ForCilium,
    /// The program that announces the load balancer's addresses. `None` if annotations do not name the program, as in
    /// most Services.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub announced: Option<Box<Announced>>,
    /// `spec.ports`.
    pub ports: Vec<ServicePort>,
}

/// Cilium's settings for a Service, in annotations and labels. kube-proxy does not use these settings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ForCilium {
    /// `service.cilium.io/global`: the Service also uses endpoints of other clusters. EndpointSlices of this cluster
    /// may lack these endpoints.
    pub global: bool,
    /// `service.cilium.io/type`: Cilium serves the Service only as this type, not with all parts of the Service's own
    /// type.
    pub only: Option<ServiceKind>,
    /// `service.cilium.io/node` or `service.cilium.io/node-selector`: only some nodes serve the Service.
    pub on_some_nodes: bool,
    /// Cilium's Envoy answers for the Service. The Service belongs to an Ingress or a Gateway of Cilium, or has the
    /// annotation `service.cilium.io/lb-l7`.
    pub by_envoy: bool,
}

impl ForCilium {
    fn is_nothing(&self) -> bool {
        *self == Self::default()
    }
}

/// The program that announces a Service's load balancer addresses to the network, according to annotations of the
/// Service. A controller writes the annotations. A user who may change the Service may also change the annotations. For
/// MetalLB, annotations do not name the node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Announced {
    /// `kube-vip.io/vipHost`: the node that last became the leader of the addresses. kube-vip put the addresses on that
    /// node. kube-vip 0.5.0 to 1.0.3 writes the annotation in ARP mode. kube-vip 1.0.4 to 1.2.3 writes the annotation
    /// in BGP mode too. In BGP mode, each node may write its own name (`updateStatus` in `pkg/manager/services.go`,
    /// since 1.0 `pkg/services/services.go`).
    ///
    /// The value may differ from the Node's name. Before kube-vip 0.8.0, the value is the name of the host. Since
    /// kube-vip 0.8.0, `vip_nodename` has priority over the name of the host (`pkg/manager/manager.go`).
    pub host: Option<String>,
    /// `metallb.io/ip-allocated-from-pool`: the pool from which MetalLB took the addresses. MetalLB 0.13.8 to 0.16.1
    /// writes and removes the annotation together with the address (`controller/service.go`). Until 0.13.12, the
    /// annotation was `metallb.universe.tf/ip-allocated-from-pool`. MetalLB does not add the address to a link.
    pub pool: Option<String>,
}

/// Reads families, each family once. A file may repeat a family a hundred times, and rules would try each combination.
fn families<'de, D: Deserializer<'de>>(deserializer: D) -> Result<&'static [Family], D::Error> {
    Vec::<Family>::deserialize(deserializer).map(Family::each_once)
}

impl Service {
    /// The proxy name of a Service that no proxy serves. This text is not valid as a label, so users cannot choose it.
    pub const OF_NO_PROXY: &'static str = "none: service.kubernetes.io/headless";

    /// Whether the API server has accepted the nodePort of `port`, or the healthCheckNodePort if `port` is `None`. Lint
    /// marks the ports that an updated Service keeps.
    pub fn has_accepted(&self, port: Option<&ServicePort>) -> bool {
        self.uid.is_some() || port.map_or(self.health_check_kept, |port| port.fixed == Some(false))
    }

    /// The ports that the Service claims on each node: each nodePort with its Service port, and the healthCheckNodePort
    /// without a Service port.
    pub fn numbers(&self) -> impl Iterator<Item = (u16, Option<&ServicePort>)> {
        let of_ports = self.ports.iter().filter_map(|port| Some((port.node_port?, Some(port))));
        of_ports.chain(self.health_check_node_port.map(|number| (number, None)))
    }

    /// Whether clients reach the Service at an address of a node: by a NodePort, a health check, an external IP or a
    /// load balancer's IP.
    pub fn is_reached_at_a_node(&self) -> bool {
        self.numbers().next().is_some() || !self.external_ips.is_empty() || !self.load_balancer_ips.is_empty()
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
    /// `name`. May be empty if the Service has only one port.
    pub name: String,
    /// `protocol`.
    pub protocol: Protocol,
    /// `port`.
    pub port: u16,
    /// `targetPort`. If the field is absent, the value is `port`. `None` for a named target port, or if the Service has
    /// no selector.
    #[serde(default)]
    pub target: Option<u16>,
    /// `nodePort`.
    pub node_port: Option<u16>,
    /// Whether a client chose `nodePort`. If a client chose the nodePort, an entry of managedFields contains
    /// `f:nodePort`. `None` if managedFields do not contain the port. The value is only a hint: nodePorts from a
    /// restored backup also count as chosen.
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
    /// `name`. The Service's port has the same name.
    pub name: String,
    /// `protocol`.
    pub protocol: Protocol,
    /// `port`. If the field is absent, the entry means all ports. Proxies ignore an entry without a port.
    pub port: Option<u16>,
}

/// One entry of an EndpointSlice's `endpoints`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Endpoint {
    /// `addresses`. kube-proxy uses only the first address.
    pub addresses: Vec<IpAddr>,
    /// `conditions.ready`. If the field is absent, the value is true.
    pub ready: bool,
    /// `conditions.serving`. If the field is absent, the value is the same as in `ready`.
    pub serving: bool,
    /// `conditions.terminating`. If the field is absent, the value is false.
    pub terminating: bool,
    /// `nodeName`. If the field is absent, kube-proxy treats the endpoint as on no node, and Cilium treats the endpoint
    /// as on every node.
    pub node: Option<String>,
}

/// `core/v1` Node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    /// `metadata.name`.
    pub name: String,
    /// `metadata.uid`.
    pub uid: Option<String>,
    /// The entries of `status.addresses` that are IP addresses.
    pub addresses: Vec<NodeAddress>,
    /// The label `node.kubernetes.io/exclude-from-external-load-balancers` is present.
    pub excluded_from_load_balancers: bool,
    /// `status.nodeInfo.kubeletVersion`.
    pub kubelet_version: Option<String>,
    /// `status.nodeInfo.containerRuntimeVersion`, e.g. `containerd://2.1.4`. `None` if the Node was read as a row of a
    /// Table. This node's own Node is always read in full.
    #[serde(default)]
    pub container_runtime: Option<String>,
    /// The families of `spec.podCIDRs`. Empty in snapshots that are older than this field.
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
    /// The kind of source from which the range comes.
    pub source: RangeSource,
    /// The source in words, for example `pod kube-system/kube-apiserver-cp1`, `--node-port-range`.
    pub place: String,
}

impl NodePortRange {
    /// A configured range, with its source.
    pub fn configured(range: PortRange, place: &str) -> Self {
        Self { range, source: RangeSource::Flag, place: place.to_owned() }
    }

    /// The default range, marked as assumed.
    pub fn assumed() -> Self {
        Self {
            range: PortRange::DEFAULT_NODE_PORTS,
            source: RangeSource::Assumed,
            place: "assumed: the default of kube-apiserver".to_owned(),
        }
    }
}

/// The kind of source of a NodePort range. The best source comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum RangeSource {
    /// The user gave the range, with `--node-port-range` or `--set`.
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
    /// No source has a range, so the default is assumed.
    Assumed,
}

/// The NodePort range in the settings of a component that is not the API server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RangeClaim {
    /// The component.
    pub by: Claimant,
    /// The ranges.
    pub ranges: Reading<Vec<PortRange>>,
    /// The source of the ranges. The text is present even if the source could not be read.
    pub place: String,
}

/// A component that has its own setting for the NodePort range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Claimant {
    /// `node-port-range` in `cilium-config`. Cilium uses this range if Cilium replaces kube-proxy.
    Cilium,
    /// `kubeNodePortRanges` of a FelixConfiguration. Calico uses these ranges if kube-proxy is in ipvs mode.
    Calico,
}

/// Facts about the node from the command line or from the configuration. These facts replace the facts that were read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Overrides {
    /// `--proxy-mode`.
    pub proxy_mode: Option<Learned<Mode>>,
    /// `--set proxy_mode`: the mode that a user supposes. [`Self::proxy_mode`] is the mode of the proxy that runs now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub supposed_mode: Option<Learned<Mode>>,
    /// The node's settings before `--set` changed a setting. The ports of open sockets were chosen under these
    /// settings.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sysctls_before: Option<Sysctls>,
}

impl Overrides {
    /// The mode that replaces the mode that was read: the supposed mode, or else the mode that a user stated.
    pub fn mode(&self) -> Option<&Learned<Mode>> {
        self.supposed_mode.as_ref().or(self.proxy_mode.as_ref())
    }
}

/// Major, minor and patch number of a version such as `v1.36.3+k3s1`. `None` if the text is not a version.
pub fn kubernetes_version(text: &str) -> Option<(u32, u32, u32)> {
    let mut parts = text.trim_start_matches('v').split(['.', '-', '+']).map(|part| part.parse::<u32>().ok());
    Some((parts.next()??, parts.next()??, parts.next()??))
}
