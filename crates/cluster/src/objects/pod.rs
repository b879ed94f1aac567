//! A Pod on a Node, or a Pod that waits because its ports are in use on every Node.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    net::{IpAddr, SocketAddr},
    str::FromStr,
    sync::Arc,
};

use serde::Deserialize;

use super::{
    FieldError, Labels, Metadata, Notes, Object, OwnerReference,
    values::{
        Ip, Name, NumberOrText, OptionalPort, PORT, Port, PortProtocol, Text, Time, Word, lenient_ip, quoted,
        unless_empty,
    },
    workload::Toleration,
};
use crate::facts_builder::FactsBuilder;
use portreeve_facts::{
    self as facts, ContainerPort, ContainerPorts, Controller, PortRange, PortSet, Protocol, ServiceName, Source,
    WaitingPod, names, text,
};

/// The scheduler's message about Nodes on which a port of the Pod is already in use (kubernetes
/// pkg/scheduler/framework/plugins/nodeports/node_ports.go).
const NO_FREE_PORTS: &str = "didn't have free ports for the requested pod ports";
/// The reason in the status of a Pod that the kubelet refused because of its ports. A refused Pod names its Node
/// (kubernetes pkg/kubelet/lifecycle/predicate.go).
const REFUSED: &str = "NodePorts";
/// The label with the host name. The host name is the Node's name, unless a cloud provider chose another name.
const HOSTNAME: &str = "kubernetes.io/hostname";
/// The largest number of addresses in use that are kept for each pod, from reports of its containers.
const MOST_REPORTED: usize = 4;
/// Portreeve reads at most this number of bytes of a container's last message. The kubelet keeps the same number of
/// bytes (kubernetes pkg/kubelet/container/runtime.go `MaxContainerTerminationMessageLength`).
const LONGEST_MESSAGE: usize = 4096;

/// A Pod of the API server or of a manifest.
#[derive(Debug, Deserialize)]
pub struct Pod {
    pub(crate) metadata: Option<Metadata>,
    pub(crate) spec: Option<PodSpec>,
    pub(crate) status: Option<PodStatus>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct PodSpec {
    #[serde(deserialize_with = "unless_empty")]
    pub(crate) node_name: Option<Name>,
    pub(crate) host_network: Option<bool>,
    pub(crate) affinity: Option<Affinity>,
    pub(crate) node_selector: Option<BTreeMap<String, Text>>,
    pub(crate) tolerations: Option<Vec<Toleration>>,
    pub(crate) containers: Option<Vec<Container>>,
    pub(crate) init_containers: Option<Vec<Container>>,
    pub(crate) security_context: Option<SecurityContext>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Container {
    pub(crate) name: Option<Text>,
    pub(crate) command: Option<Vec<Word>>,
    pub(crate) args: Option<Vec<Word>>,
    pub(crate) ports: Option<Vec<ContainerPortSpec>>,
    pub(crate) restart_policy: Option<Text>,
    pub(crate) startup_probe: Option<Probe>,
    pub(crate) liveness_probe: Option<Probe>,
    pub(crate) readiness_probe: Option<Probe>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ContainerPortSpec {
    pub(crate) protocol: Option<PortProtocol>,
    pub(crate) container_port: Option<Port>,
    pub(crate) host_port: Option<OptionalPort>,
    #[serde(rename = "hostIP")]
    pub(crate) host_ip: Option<Text>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Probe {
    pub(crate) http_get: Option<Probed>,
    pub(crate) tcp_socket: Option<Probed>,
    pub(crate) grpc: Option<Probed>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Probed {
    pub(crate) host: Option<Text>,
    pub(crate) port: Option<NumberOrText>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Affinity {
    pub(crate) node_affinity: Option<NodeAffinity>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct NodeAffinity {
    #[serde(rename = "requiredDuringSchedulingIgnoredDuringExecution")]
    pub(crate) required: Option<NodeSelector>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct NodeSelector {
    pub(crate) node_selector_terms: Option<Vec<NodeSelectorTerm>>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct NodeSelectorTerm {
    pub(crate) match_fields: Option<Vec<Requirement>>,
    pub(crate) match_expressions: Option<Vec<Requirement>>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Requirement {
    pub(crate) key: Option<Text>,
    pub(crate) operator: Option<Text>,
    pub(crate) values: Option<Vec<Text>>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct SecurityContext {
    pub(crate) sysctls: Option<Vec<Sysctl>>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Sysctl {
    pub(crate) name: Option<Text>,
    pub(crate) value: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct PodStatus {
    pub(crate) phase: Option<Text>,
    pub(crate) reason: Option<Text>,
    pub(crate) start_time: Option<Time>,
    pub(crate) nominated_node_name: Option<Text>,
    pub(crate) conditions: Option<Vec<Condition>>,
    pub(crate) container_statuses: Option<Vec<ContainerStatus>>,
    pub(crate) init_container_statuses: Option<Vec<ContainerStatus>>,
    #[serde(rename = "podIP", deserialize_with = "unless_empty")]
    pub(crate) pod_ip: Option<Ip>,
    #[serde(rename = "podIPs")]
    pub(crate) pod_ips: Option<Vec<PodIp>>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Condition {
    #[serde(rename = "type")]
    pub(crate) kind: Option<Text>,
    pub(crate) status: Option<Text>,
    pub(crate) message: Option<String>,
    pub(crate) last_transition_time: Option<Time>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ContainerStatus {
    pub(crate) name: Option<Text>,
    #[serde(rename = "containerID")]
    pub(crate) id: Option<Text>,
    pub(crate) ready: Option<bool>,
    pub(crate) state: Option<ContainerState>,
    pub(crate) last_state: Option<ContainerState>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct ContainerState {
    pub(crate) running: Option<Running>,
    pub(crate) terminated: Option<Terminated>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Running {
    pub(crate) started_at: Option<Time>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Terminated {
    pub(crate) exit_code: Option<i64>,
    pub(crate) message: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct PodIp {
    #[serde(deserialize_with = "unless_empty")]
    pub(crate) ip: Option<Ip>,
}

impl Object for Pod {
    const KIND: &'static str = "Pod";
    const GROUP: &'static str = "/api/v1";
    const PLURAL: &'static str = "pods";
    const SOURCE: Source = Source::Pods;

    fn metadata(&self) -> Option<&Metadata> {
        self.metadata.as_ref()
    }

    fn add_to(self, facts: &mut FactsBuilder, notes: &mut Notes) -> Result<(), FieldError> {
        facts.settings.api_server_pod(&self);
        let metadata = self.metadata.unwrap_or_default();
        let spec = self.spec.ok_or_else(|| FieldError::new("spec", "absent", "a mapping"))?;
        let status = self.status.unwrap_or_default();
        let (namespace, name) = (metadata.namespace()?, metadata.name()?);

        let host_network = spec.host_network.unwrap_or(false);
        let (mut ports, mut probed) = spec.ports("spec")?;
        let mut ips: Vec<IpAddr> =
            status.pod_ips.into_iter().flatten().filter_map(|it| it.ip).map(|Ip(ip)| ip).collect();
        if ips.is_empty() {
            ips.extend(status.pod_ip.map(|Ip(ip)| ip));
        }
        let conditions = status.conditions.unwrap_or_default();
        let containers = status.container_statuses.unwrap_or_default();
        let init_containers = status.init_container_statuses.unwrap_or_default();
        let annotations = metadata.annotations.as_ref();
        let (ip_local_port_range, ip_local_reserved_ports) = spec.ephemeral_sysctls(notes);
        let service_lb_of = metadata.labels.as_ref().and_then(|labels| service_lb_of(&namespace, labels));
        let controller = metadata.owner_references.iter().flatten().find_map(controller);
        let phase = status.phase.as_deref();
        let finished = matches!(phase, Some("Succeeded" | "Failed"));
        let failing = containers.iter().any(failed);
        let ready = conditions.iter().any(|condition| is(condition, "Ready", "True"));
        let mut own_ports = Vec::new();
        if !host_network {
            if failing && !finished {
                own_ports = each_once(&ports, &probed);
            }
            ports.retain(|port| port.host_port.is_some());
            ports.shrink_to_fit();
            probed.clear();
        }
        let node = spec.node_name.as_ref().map(|Name(node)| node.clone());

        let rejected = node.is_some() && phase == Some("Failed") && status.reason.as_deref() == Some(REFUSED);
        if rejected || node.is_none() && phase == Some("Pending") {
            let refused = conditions.iter().find(|condition| is_refused_for_its_ports(condition));
            let message = refused.and_then(|condition| condition.message.as_deref()).unwrap_or_default();
            // The Pod waits for a Node, but not because of ports.
            if refused.is_none() && !rejected {
                let ports = ports.iter().map(|port| port.host_port.unwrap_or(port.port));
                facts.pending_ports.extend(ports.chain(probed.iter().map(|port| port.port)));
                return Ok(());
            }
            // On a nominated Node, the Pod preempts other Pods, and waits until those Pods have ended.
            let nominated = status.nominated_node_name.map(|Text(node)| node).filter(|node| !node.is_empty());
            let selected = || spec.node_selector.as_ref()?.get(HOSTNAME).map(|Text(host)| host.clone());
            let only = || spec.affinity.as_ref().and_then(only_node);
            let meant_for = node.or(nominated).or_else(only).or_else(selected);
            facts.waiting_pods.push(Arc::new(WaitingPod {
                service_lb_of,
                namespace,
                name,
                uid: metadata.uid(),
                controller,
                // A label or a nomination may contain a text that is not a name of a Node.
                meant_for: meant_for.filter(|node| names::is_subdomain(node)),
                everywhere: is_on_every_node(message),
                rejected,
                // In the host network, each container port is a port of the node.
                ports: ports
                    .into_iter()
                    .map(|port| ContainerPort { host_port: port.host_port.or(Some(port.port)), ..port })
                    .collect(),
                since: refused
                    .map_or(&status.start_time, |condition| &condition.last_transition_time)
                    .as_ref()
                    .map(|Time(at)| *at),
            }));
            return Ok(());
        }
        // Any user can write the annotation of a mirror pod. So the Node must also be the controller of the pod.
        let is_mirror = annotations.is_some_and(|annotations| annotations.config_mirror.is_some())
            && controller.as_ref().is_some_and(Controller::is_node);
        let config_hash = annotations.and_then(|annotations| annotations.config_hash.as_ref());
        // A Pod without `nodeName`, from a file, may be on any Node.
        facts.pods.push(Arc::new(facts::Pod {
            service_lb_of,
            namespace,
            name,
            uid: metadata.uid(),
            config_hash: config_hash.filter(|_| is_mirror).map(|Text(hash)| hash.clone()),
            controller,
            ends: metadata.deletion_timestamp.map(|Time(at)| at),
            node,
            host_network,
            finished,
            ready,
            running: (!containers.is_empty()).then(|| containers.iter().chain(&init_containers).any(runs)),
            failing,
            restarted: restarted(&containers),
            scheduled: conditions
                .iter()
                .find(|condition| is(condition, "PodScheduled", "True"))
                .and_then(|condition| condition.last_transition_time.as_ref())
                .map(|Time(at)| *at),
            ips,
            probed: undeclared(probed, &ports),
            ports,
            own_ports,
            containers: if !finished && (failing || host_network && !ready) {
                spec.containers_with_ids(&containers)
            } else {
                Vec::new()
            },
            reported_in_use: if host_network && failing && !finished {
                reported_in_use(&containers)
            } else {
                Vec::new()
            },
            more_networks: annotations.is_some_and(|annotations| annotations.networks.is_some()),
            ip_local_port_range,
            ip_local_reserved_ports,
        }));
        Ok(())
    }
}

impl Pod {
    /// The only Node on which the Pod can run. The Pod names this Node, or the node affinity of the Pod selects only
    /// this Node.
    pub(crate) fn only_node(&self) -> Option<String> {
        let spec = self.spec.as_ref()?;
        let node = spec.node_name.as_ref().map(|Name(node)| node.clone());
        let only = || spec.affinity.as_ref().and_then(only_node);
        node.or_else(only).filter(|node| names::is_subdomain(node))
    }
}

impl PodSpec {
    /// Two lists of ports of the node: the ports that containers declare, and the ports that only probes name.
    pub(super) fn ports_of_the_node(&self, path: &str) -> Result<(Vec<ContainerPort>, Vec<ContainerPort>), FieldError> {
        let (mut ports, mut probed) = self.ports(path)?;
        if self.host_network != Some(true) {
            ports.retain(|port| port.host_port.is_some());
            probed.clear();
        }
        let probed = undeclared(probed, &ports);
        Ok((ports, probed))
    }

    /// The ports that containers declare, and the ports of their probes. Of the init containers, only those with
    /// `restartPolicy: Always` count, because they run beside the containers (KEP-753, Kubernetes 1.29).
    fn ports(&self, path: &str) -> Result<(Vec<ContainerPort>, Vec<ContainerPort>), FieldError> {
        let (mut ports, mut probed) = (Vec::new(), Vec::new());
        for (list, containers) in [("containers", &self.containers), ("initContainers", &self.init_containers)] {
            for (index, container) in containers.iter().flatten().enumerate() {
                if list == "initContainers" && container.restart_policy.as_deref() != Some("Always") {
                    continue;
                }
                probed.extend(probed_ports(container).map(|(_, port)| port));
                for (port_index, port) in container.ports.iter().flatten().enumerate() {
                    ports.push(port.facts(format_args!("{path}.{list}[{index}].ports[{port_index}]"))?);
                }
            }
        }
        Ok((ports, probed))
    }

    /// The containers that have an id, with their ports: the declared ports, and the numeric ports of probes. Empty if
    /// the pod has only one container.
    fn containers_with_ids(&self, statuses: &[ContainerStatus]) -> Vec<ContainerPorts> {
        if statuses.len() < 2 {
            return Vec::new();
        }
        let of = |status: &ContainerStatus| {
            // The id has the form `containerd://ID`.
            let (_, id) = status.id.as_deref()?.split_once("://")?;
            let name = status.name.as_deref()?;
            let container = self.containers.iter().flatten().find(|it| it.name.as_deref() == Some(name))?;
            let declared = container.ports.iter().flatten().filter_map(|port| port.container_port);
            let ports = declared.map(|Port(port)| port).chain(probed_ports(container).map(|(_, port)| port.port));
            Some(ContainerPorts { id: id.to_owned(), ports: ports.collect() })
        };
        statuses.iter().filter_map(of).collect()
    }

    fn ephemeral_sysctls(&self, notes: &mut Notes) -> (Option<PortRange>, Option<PortSet>) {
        let (mut range, mut reserved) = (None, None);
        let sysctls = self.security_context.as_ref().and_then(|context| context.sysctls.as_ref());
        for (index, sysctl) in sysctls.into_iter().flatten().enumerate() {
            let (Some(name), Some(value)) = (sysctl.name.as_deref(), sysctl.value.as_deref()) else { continue };
            let path = format_args!("spec.securityContext.sysctls[{index}].value");
            // Kubernetes also accepts slashes in the name of a sysctl.
            match name.replace('/', ".").as_str() {
                "net.ipv4.ip_local_port_range" => range = parsed(value, path, "two ports", notes),
                "net.ipv4.ip_local_reserved_ports" => reserved = parsed(value, path, "a list of ports", notes),
                _ => {}
            }
        }
        (range, reserved)
    }
}

impl ContainerPortSpec {
    /// The address of `hostIP`. The API server accepts any text as a `hostIP`. A text that is not an address means all
    /// addresses of the node.
    pub(crate) fn host_ip(&self) -> Option<IpAddr> {
        self.host_ip.as_deref().and_then(lenient_ip)
    }

    fn facts(&self, path: impl fmt::Display) -> Result<ContainerPort, FieldError> {
        let Port(port) =
            self.container_port.ok_or_else(|| FieldError::new(format_args!("{path}.containerPort"), "absent", PORT))?;
        Ok(ContainerPort {
            port,
            host_port: self.host_port.and_then(|OptionalPort(port)| port),
            host_ip: self.host_ip(),
            protocol: self.protocol.as_ref().map_or(Protocol::Tcp, |PortProtocol(protocol)| *protocol),
        })
    }
}

/// The ports in the pod's own network. The hostIP is removed, because it is an address of the node.
fn each_once(declared: &[ContainerPort], probed: &[ContainerPort]) -> Vec<ContainerPort> {
    let declared = declared.iter().map(|port| ContainerPort { host_port: None, host_ip: None, ..port.clone() });
    undeclared(declared.chain(probed.iter().cloned()).collect(), &[])
}

/// The ports of a container's probes. The two names are the fields that contain the port, for example `livenessProbe`
/// and `httpGet`. In the host network, the pod must listen on these ports, even if no container declares them.
///
/// Two kinds of probes are left out. If a probe has the name of a port, a container declares this port. If a probe has
/// a host other than loopback, another server may answer.
pub(crate) fn probed_ports(container: &Container) -> impl Iterator<Item = ([&'static str; 2], ContainerPort)> {
    let probes = [
        ("startupProbe", &container.startup_probe),
        ("livenessProbe", &container.liveness_probe),
        ("readinessProbe", &container.readiness_probe),
    ];
    let probes = probes.into_iter().filter_map(|(name, probe)| Some((name, probe.as_ref()?)));
    let probed = probes.flat_map(|(name, probe)| {
        let kinds = [("httpGet", &probe.http_get), ("tcpSocket", &probe.tcp_socket), ("grpc", &probe.grpc)];
        kinds.map(|(kind, probed)| ([name, kind], probed))
    });
    probed.filter_map(|(names, probed)| Some((names, probed_port(probed.as_ref()?)?)))
}

fn probed_port(Probed { host, port }: &Probed) -> Option<ContainerPort> {
    let host_ip = match host.as_deref().unwrap_or_default() {
        "" | "localhost" => None,
        host => Some(host.parse().ok().filter(IpAddr::is_loopback)?),
    };
    // The port of a probe may be a number in quotes (kubernetes pkg/probe/util.go).
    let port = port.as_ref()?.0.parse().ok().filter(|port| *port > 0)?;
    Some(ContainerPort { port, host_port: None, host_ip, protocol: Protocol::Tcp })
}

fn undeclared(mut probed: Vec<ContainerPort>, declared: &[ContainerPort]) -> Vec<ContainerPort> {
    let of = |port: &ContainerPort| (port.protocol, port.port);
    let mut known: BTreeSet<_> = declared.iter().map(of).collect();
    probed.retain(|it| known.insert(of(it)));
    probed.shrink_to_fit();
    probed
}

fn is(condition: &Condition, kind: &str, status: &str) -> bool {
    condition.kind.as_deref() == Some(kind) && condition.status.as_deref() == Some(status)
}

/// Whether the scheduler reports that the Pod's ports are in use on every Node, as in `0/3 nodes are available: 3
/// node(s) didn't ...`.
fn is_on_every_node(message: &str) -> bool {
    let all = message.strip_prefix("0/").and_then(|rest| rest.split_once(' ')).map(|(all, _)| all);
    all.is_some_and(|all| message.contains(&format!(" {all} node(s) {NO_FREE_PORTS}")))
}

fn is_refused_for_its_ports(condition: &Condition) -> bool {
    is(condition, "PodScheduled", "False")
        && condition.message.as_ref().is_some_and(|message| message.contains(NO_FREE_PORTS))
}

fn reported_in_use(statuses: &[ContainerStatus]) -> Vec<ContainerPort> {
    let states = statuses.iter().filter(|it| failed(it)).flat_map(|it| [&it.state, &it.last_state]);
    let messages = states.filter_map(|state| state.as_ref()?.terminated.as_ref()?.message.as_deref());
    let mut reported: Vec<ContainerPort> = Vec::new();
    for it in messages.flat_map(in_use) {
        if reported.len() < MOST_REPORTED && !reported.contains(&it) {
            reported.push(it);
        }
    }
    reported
}

/// The addresses that a program reports as in use, at most one for each line. Examples of lines: `listen tcp
/// 127.0.0.1:50052: bind: address already in use`, `bind() to 0.0.0.0:80 failed (98: Address already in use)`, `listen
/// EADDRINUSE: address already in use :::3000`.
fn in_use(message: &str) -> impl Iterator<Item = ContainerPort> {
    let end = message.floor_char_boundary(LONGEST_MESSAGE);
    message[..end].lines().filter_map(|line| {
        let lower = line.to_ascii_lowercase();
        if !lower.contains("address already in use") && !lower.contains("eaddrinuse") {
            return None;
        }
        let mut words = line.split_ascii_whitespace();
        let (host_ip, port) = words.find_map(address_in_use)?;
        let is_udp = lower.split_ascii_whitespace().any(|word| ["udp", "udp4", "udp6"].contains(&word));
        let protocol = if is_udp { Protocol::Udp } else { Protocol::Tcp };
        Some(ContainerPort { port, host_port: None, host_ip, protocol })
    })
}

/// Parses an address and a port in one of these forms: `127.0.0.1:80`, `[::1]:80`, `:::80`, `:80`, `*:80` or
/// `localhost:80`. Quotes and punctuation around the word are ignored. An address of `None` means all addresses.
fn address_in_use(word: &str) -> Option<(Option<IpAddr>, u16)> {
    let word = word
        .trim_start_matches(['\'', '"', '`', '('])
        .trim_end_matches(['\'', '"', '\\', '`', ')', ',', ';', ':', '.']);
    let (host, port) = word.rsplit_once(':')?;
    let port = port.parse().ok().filter(|port| *port > 0)?;
    let ip = match host {
        "" | "*" | "::" => return Some((None, port)),
        "localhost" => return Some((Some(IpAddr::from([127, 0, 0, 1])), port)),
        _ => word.parse::<SocketAddr>().ok()?.ip(),
    };
    Some((Some(ip).filter(|ip| !ip.is_unspecified()), port))
}

fn runs(container: &ContainerStatus) -> bool {
    container.state.as_ref().is_some_and(|state| state.running.is_some())
}

fn failed(container: &ContainerStatus) -> bool {
    let states = [&container.state, &container.last_state].into_iter().flatten();
    let mut codes = states.filter_map(|state| state.terminated.as_ref()?.exit_code);
    container.ready != Some(true) && codes.any(|code| code != 0)
}

/// The time of the latest start among the failed containers. A failed container is not ready, and one of its runs ended
/// with an error. `None` if no container failed, or if a failed container does not run now.
fn restarted(containers: &[ContainerStatus]) -> Option<jiff::Timestamp> {
    let failed = containers.iter().filter(|container| failed(container));
    let starts = failed.map(|container| Some(container.state.as_ref()?.running.as_ref()?.started_at.as_ref()?.0));
    starts.collect::<Option<Vec<_>>>()?.into_iter().max()
}

/// The controller in an owner reference. An invalid name of a controller is ignored, because it could be an option of a
/// command.
fn controller(owner: &OwnerReference) -> Option<Controller> {
    let name = owner.name.as_deref().filter(|name| owner.controller == Some(true) && names::is_subdomain(name))?;
    Some(Controller { kind: owner.kind.as_deref()?.to_owned(), name: name.to_owned() })
}

/// The Service of a ServiceLB pod, from the pod's labels (k3s pkg/cloudprovider/servicelb.go). Any user can label their
/// own pods. So the labels are used only in `kube-system`, the default of `--servicelb-namespace`.
fn service_lb_of(namespace: &str, labels: &Labels) -> Option<ServiceName> {
    if namespace != "kube-system" {
        return None;
    }
    let name = |text: &Option<Text>| text.as_deref().filter(|name| names::is_subdomain(name)).map(str::to_owned);
    let of = |namespace, service| Some(ServiceName { namespace: name(namespace)?, name: name(service)? });
    of(&labels.k3s_namespace, &labels.k3s_service).or_else(|| of(&labels.rke2_namespace, &labels.rke2_service))
}

/// The only Node that the affinity allows. The DaemonSet controller writes the Node's name. Users write the host name.
fn only_node(affinity: &Affinity) -> Option<String> {
    fn named<'a>(requirement: &'a Requirement, key: &str) -> Option<&'a str> {
        let mut values = requirement.values.iter().flatten();
        let only = values.next().filter(|_| values.next().is_none())?;
        let is_named = requirement.key.as_deref() == Some(key) && requirement.operator.as_deref() == Some("In");
        is_named.then_some(&**only)
    }
    let node_of = |term: &NodeSelectorTerm| {
        let by_name = term.match_fields.iter().flatten().find_map(|it| named(it, "metadata.name"));
        let by_host = || term.match_expressions.iter().flatten().find_map(|it| named(it, HOSTNAME));
        by_name.or_else(by_host).map(str::to_owned)
    };
    let terms = affinity.node_affinity.as_ref()?.required.as_ref()?.node_selector_terms.as_ref()?;
    let mut nodes = terms.iter().map(node_of);
    let first = nodes.next()??;
    nodes.all(|node| node.as_ref() == Some(&first)).then_some(first)
}

fn parsed<T: FromStr>(value: &str, path: impl fmt::Display, wanted: &str, notes: &mut Notes) -> Option<T> {
    // A longer value would take time to parse. In practice, the values in Pods are shorter.
    let parsed = value.parse().ok().filter(|_| value.len() < text::NAME);
    if parsed.is_none() {
        notes.note(path, quoted(value), wanted);
    }
    parsed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_in_use_is_found_in_messages_of_programs() {
        let of = |message: &str| {
            let all = in_use(message).map(|it| (it.host_ip.map(|ip| ip.to_string()), it.port, it.protocol));
            all.collect::<Vec<_>>()
        };
        let every = |port| vec![(None, port, Protocol::Tcp)];
        let loopback = vec![(Some("127.0.0.1".to_owned()), 50052, Protocol::Tcp)];
        assert_eq!(of("listen tcp 127.0.0.1:50052: bind: address already in use"), loopback);
        assert_eq!(
            of("E1 12:30:45.6 main.go:7] \"failed\" err=\"listen tcp :8162: bind: address already in use\""),
            every(8162)
        );
        assert_eq!(of("error listening on [::]:9090: bind: address already in use"), every(9090));
        assert_eq!(of("listen tcp4 0.0.0.0:9100: bind: address already in use"), every(9100));
        assert_eq!(of("nginx: [emerg] bind() to 0.0.0.0:80 failed (98: Address already in use)"), every(80));
        assert_eq!(of("Error: listen EADDRINUSE: address already in use :::3000"), every(3000));
        assert_eq!(of("cannot bind '0.0.0.0:8080': Address already in use"), every(8080));
        assert_eq!(of("listen udp :53: bind: address already in use"), [(None, 53, Protocol::Udp)]);
        assert_eq!(of("started\nlisten tcp 127.0.0.1:50052: bind: address already in use\nbye"), loopback);
    }

    #[test]
    fn a_message_without_an_address_or_without_in_use_is_no_hint() {
        for message in [
            "dial tcp 10.96.0.1:443: connect: connection refused",
            "bind: address already in use",
            "listen tcp :0: bind: address already in use",
            "listen tcp :70000: bind: address already in use",
            "main.go:12: address already in use",
            "",
        ] {
            assert_eq!(in_use(message).count(), 0, "{message}");
        }
        let late = format!("{}\nlisten tcp :80: bind: address already in use", "x".repeat(LONGEST_MESSAGE));
        assert_eq!(in_use(&late).count(), 0, "a longer one is cut");
        let cut = format!("{}ü", "x".repeat(LONGEST_MESSAGE - 1));
        assert_eq!(in_use(&cut).count(), 0, "cut inside a letter");
    }
}
