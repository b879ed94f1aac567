//! From a Pod to facts: one that runs on a Node, or one that waits because its ports are taken on every Node.

use std::{
    collections::BTreeMap,
    fmt,
    net::{IpAddr, SocketAddr},
    str::FromStr,
    sync::Arc,
};

use crate::{
    field_values::{NODE_PORT, PORT, address, each, name, namespace, optional_port, port, protocol, reference},
    slim_object::{
        Affinity, Condition, Container, ContainerStatus, Labels, NameValue, NodeLabels, NodeSelectorTerm,
        OwnerReference, Port, Probed, Requirement, SlimObject,
    },
    tolerant_field::{Field, FieldErrors, FieldType, LongText, Name, Time, quoted},
};
use portreeve_facts::{
    ContainerPort, ContainerPorts, Controller, Pod, PortRange, PortSet, Protocol, ServiceName, WaitingPod, text,
};

/// What the scheduler says of a Node on which a port of the Pod is taken (kubernetes
/// pkg/scheduler/framework/plugins/nodeports/node_ports.go).
const NO_FREE_PORTS: &str = "didn't have free ports for the requested pod ports";
/// The reason of a Pod that was given to a Node by name, and that its kubelet refuses for its ports (kubernetes
/// pkg/kubelet/lifecycle/predicate.go).
const REFUSED: &str = "NodePorts";
/// The label with the host name of a Node, which is the Node's name unless a cloud provider chose that.
const HOSTNAME: &str = "kubernetes.io/hostname";
/// So many ports of one pod are kept that nothing but probes names, and of one with its own network.
const MOST_PROBED: usize = 16;
/// So many addresses are kept of which containers of one pod said that they are in use.
const MOST_SAID: usize = 4;
/// So much of a container's last message is looked at, in bytes: the kubelet keeps no more of one container
/// (kubernetes pkg/kubelet/container/runtime.go `MaxContainerTerminationMessageLength`).
const LONGEST_MESSAGE: usize = 4096;

/// A Pod, by where it is.
#[derive(Debug)]
pub(crate) enum PodFacts {
    /// On a Node; or in a file that names none, and then it may be on any.
    Placed(Arc<Pod>),
    /// On no Node, for want of free ports.
    Waiting(Arc<WaitingPod>),
}

/// A Pod; `None` for one that waits for a Node for other reasons, and for impossible ones.
pub(crate) fn pod(object: SlimObject, errors: &mut FieldErrors) -> Option<PodFacts> {
    let metadata = object.metadata.take("metadata", errors).unwrap_or_default();
    if matches!(object.spec, Field::Absent) {
        errors.note("spec", "absent", "a mapping");
    }
    let spec = object.spec.take("spec", errors).unwrap_or_default();
    let status = object.status.take("status", errors).unwrap_or_default();

    let host_network = spec.host_network.take("spec.hostNetwork", errors).unwrap_or(false);
    let needs = needs_by_name(&spec.containers);
    let containers = (spec.containers, spec.init_containers);
    let (mut ports, mut probed) = ports_of(containers, "spec", errors);
    let mut ips = each(status.pod_ips, "status.podIPs", errors, |entry, path, errors| {
        let ip = entry.ip.take(format_args!("{path}.ip"), errors)?;
        address(&ip, format_args!("{path}.ip"), errors)
    });
    if ips.is_empty() {
        let ip = status.pod_ip.take("status.podIP", errors).filter(|ip| !ip.is_empty());
        ips.extend(ip.and_then(|ip| address(&ip, "status.podIP", errors)));
    }
    let conditions = each(status.conditions, "status.conditions", errors, |condition, _, _| Some(condition));
    let containers = each(status.containers, "status.containerStatuses", errors, |container, _, _| Some(container));
    let init_containers =
        each(status.init_containers, "status.initContainerStatuses", errors, |container, _, _| Some(container));
    let annotations = metadata.annotations.take("metadata.annotations", errors).unwrap_or_default();
    let security = spec.security_context.take("spec.securityContext", errors).unwrap_or_default();
    let (ip_local_port_range, ip_local_reserved_ports) = ephemeral_sysctls(security.sysctls, errors);
    let labels = metadata.labels.take("metadata.labels", errors).unwrap_or_default();
    let controllers = each(metadata.owners, "metadata.ownerReferences", errors, |owner, _, _| controller(&owner));
    let phase = status.phase.take("status.phase", errors);
    let finished = matches!(phase.as_deref(), Some("Succeeded" | "Failed"));
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
    let node = reference(spec.node_name, "spec.nodeName", errors);

    let rejected = node.is_some() && phase.as_deref() == Some("Failed") && word(&status.reason) == Some(REFUSED);
    if rejected || node.is_none() && phase.as_deref() == Some("Pending") {
        let refused = conditions.iter().find(|condition| is_refused_for_its_ports(condition));
        let message = refused.and_then(|condition| condition.message.seen()).map_or("", |message| &message.0);
        if refused.is_none() && !rejected {
            return None;
        }
        // The pods that it is to take the place of are ending on the Node for which it is nominated.
        let nominated = status.nominated.seen().map(|it| it.0.clone()).filter(|it| !it.is_empty());
        let selected =
            || spec.node_selector.seen().and_then(|NodeLabels { hostname }| Some(hostname.seen()?.0.clone()));
        let namespace = namespace(metadata.namespace, errors)?;
        return Some(PodFacts::Waiting(Arc::new(WaitingPod {
            service_lb_of: service_lb_of(&namespace, &labels),
            namespace,
            name: name(metadata.name, errors)?,
            uid: metadata.uid.take("metadata.uid", errors),
            controller: controllers.into_iter().next(),
            meant_for: node.or(nominated).or_else(|| spec.affinity.seen().and_then(only_node)).or_else(selected),
            everywhere: is_on_every_node(message),
            rejected,
            // On the host's network each port is one of the host.
            ports: ports
                .into_iter()
                .map(|port| ContainerPort { host_port: port.host_port.or(Some(port.port)), ..port })
                .collect(),
            since: refused.map_or(&status.started, |condition| &condition.since).seen().map(|Time(at)| *at),
        })));
    }
    let namespace = namespace(metadata.namespace, errors)?;
    let controller = controllers.into_iter().next();
    // Anybody may annotate a pod of his own; the kubelet deletes mirrors that it did not make.
    let is_mirror = annotations.config_mirror.seen().is_some() && controller.as_ref().is_some_and(Controller::is_node);
    Some(PodFacts::Placed(Arc::new(Pod {
        service_lb_of: service_lb_of(&namespace, &labels),
        namespace,
        name: name(metadata.name, errors)?,
        uid: metadata.uid.take("metadata.uid", errors),
        config_hash: annotations
            .config_hash
            .take("metadata.annotations[kubernetes.io/config.hash]", errors)
            .filter(|_| is_mirror),
        controller,
        ends: metadata.deleted.take("metadata.deletionTimestamp", errors).map(|Time(at)| at),
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
            .and_then(|condition| condition.since.seen())
            .map(|Time(at)| *at),
        ips,
        probed: undeclared(probed, &ports),
        ports,
        own_ports,
        containers: if !finished && (failing || host_network && !ready) {
            with_ids(&containers, needs)
        } else {
            Vec::new()
        },
        said_in_use: if host_network && failing && !finished { said_in_use(&containers) } else { Vec::new() },
        more_networks: annotations.networks.seen().is_some(),
        ip_local_port_range,
        ip_local_reserved_ports,
    })))
}

/// `containers` or `initContainers`.
type Containers = Field<Vec<Field<Container>>>;

/// Ports of containers that a proxy, a CNI plugin or the host's own stack has to serve.
pub(super) fn ports_of_the_node(
    containers: (Containers, Containers),
    path: &str,
    host_network: bool,
    errors: &mut FieldErrors,
) -> Vec<ContainerPort> {
    let (mut ports, _) = ports_of(containers, path, errors);
    ports.retain(|port| host_network || port.host_port.is_some());
    ports
}

/// The ports that containers declare, and those that their probes ask. Of the init containers, those that run beside the others have
/// ports, too (KEP-753, Kubernetes 1.29).
fn ports_of(
    (containers, init_containers): (Containers, Containers),
    path: &str,
    errors: &mut FieldErrors,
) -> (Vec<ContainerPort>, Vec<ContainerPort>) {
    let mut probed = Vec::new();
    let mut ports = each(containers, format_args!("{path}.containers"), errors, |container, path, errors| {
        probed.extend(probed_ports(&container));
        Some(each(container.ports, format_args!("{path}.ports"), errors, container_port))
    });
    ports.extend(each(init_containers, format_args!("{path}.initContainers"), errors, |container, path, errors| {
        let stays = container.restart_policy.seen().is_some_and(|policy| policy == "Always");
        stays.then(|| {
            probed.extend(probed_ports(&container));
            each(container.ports, format_args!("{path}.ports"), errors, container_port)
        })
    }));
    (ports.into_iter().flatten().collect(), probed)
}

/// The ports of a pod's own network that its containers declare or its probes ask, each once. A hostIP is an address of the node.
fn each_once(declared: &[ContainerPort], probed: &[ContainerPort]) -> Vec<ContainerPort> {
    let declared = declared.iter().map(|port| ContainerPort { host_port: None, host_ip: None, ..port.clone() });
    undeclared(declared.chain(probed.iter().cloned()).collect(), &[])
}

/// The ports that the probes of a container ask: on these a pod of the host's network has to listen, though no container
/// declares them. A name is one that a container declares, and is left out; so is what may be
/// another's: a host that is neither loopback nor one that the kubelet fills in.
fn probed_ports(container: &Container) -> impl Iterator<Item = ContainerPort> {
    let probes = [&container.startup, &container.liveness, &container.readiness].into_iter().filter_map(Field::seen);
    probes.flat_map(|probe| [&probe.http, &probe.tcp, &probe.grpc]).filter_map(Field::seen).filter_map(probed_port)
}

fn probed_port(Probed { host, port }: &Probed) -> Option<ContainerPort> {
    let host_ip = match host.seen().map_or("", String::as_str) {
        "" | "localhost" => None,
        host => Some(host.parse().ok().filter(IpAddr::is_loopback)?),
    };
    // A number in quotes is one, too (kubernetes pkg/probe/util.go).
    let port = port.seen()?.0.parse().ok().filter(|port| *port > 0)?;
    Some(ContainerPort { port, host_port: None, host_ip, protocol: Protocol::Tcp })
}

/// Those that no container declares, each once.
fn undeclared(probed: Vec<ContainerPort>, declared: &[ContainerPort]) -> Vec<ContainerPort> {
    let mut kept: Vec<ContainerPort> = Vec::new();
    for it in probed {
        let is_same = |other: &ContainerPort| (other.protocol, other.port) == (it.protocol, it.port);
        if kept.len() < MOST_PROBED && !declared.iter().chain(&kept).any(is_same) {
            kept.push(it);
        }
    }
    kept.shrink_to_fit();
    kept
}

fn word(field: &Field<String>) -> Option<&str> {
    field.seen().map(String::as_str)
}

fn is(condition: &Condition, kind: &str, status: &str) -> bool {
    word(&condition.kind) == Some(kind) && word(&condition.status) == Some(status)
}

/// Whether the scheduler says that the ports are taken on each Node: `0/3 nodes are available: 3 node(s) didn't ...`.
fn is_on_every_node(message: &str) -> bool {
    let all = message.strip_prefix("0/").and_then(|rest| rest.split_once(' ')).map(|(all, _)| all);
    all.is_some_and(|all| message.contains(&format!(" {all} node(s) {NO_FREE_PORTS}")))
}

fn is_refused_for_its_ports(condition: &Condition) -> bool {
    is(condition, "PodScheduled", "False")
        && condition.message.seen().is_some_and(|message| message.0.contains(NO_FREE_PORTS))
}

/// The ports of each container by its name: those that it declares, and those that its probes ask by number.
fn needs_by_name(containers: &Containers) -> BTreeMap<String, Vec<u16>> {
    let containers = containers.seen().into_iter().flatten().filter_map(Field::seen);
    let of = |container: &Container| {
        let declared = container.ports.seen().into_iter().flatten().filter_map(Field::seen);
        let declared = declared.filter_map(|port| u16::try_from(*port.container_port.seen()?).ok());
        let probed = probed_ports(container).map(|port| port.port);
        Some((container.name.seen()?.clone(), declared.chain(probed).take(MOST_PROBED).collect()))
    };
    containers.filter_map(of).collect()
}

/// The containers that have an id, each with its ports, if there are several.
fn with_ids(statuses: &[ContainerStatus], mut needs: BTreeMap<String, Vec<u16>>) -> Vec<ContainerPorts> {
    if statuses.len() < 2 {
        return Vec::new();
    }
    let of = |status: &ContainerStatus| {
        // `containerd://ID`.
        let (_, id) = word(&status.id)?.split_once("://")?;
        Some(ContainerPorts { id: text::clean(id, text::NAME), ports: needs.remove(word(&status.name)?)? })
    };
    statuses.iter().filter_map(of).collect()
}

/// The addresses of which containers that failed said, when they ended, that they are in use.
fn said_in_use(statuses: &[ContainerStatus]) -> Vec<ContainerPort> {
    let states = statuses.iter().filter(|it| failed(it)).flat_map(|it| [&it.state, &it.last_state]);
    let messages = states.filter_map(|state| state.seen()?.terminated.seen()?.message.seen());
    let mut said: Vec<ContainerPort> = Vec::new();
    for it in messages.flat_map(|LongText(message)| in_use(message)) {
        if said.len() < MOST_SAID && !said.contains(&it) {
            said.push(it);
        }
    }
    said
}

/// The addresses that a program says are in use, one a line: `listen tcp 127.0.0.1:50052: bind: address already in use`, `bind() to
/// 0.0.0.0:80 failed (98: Address already in use)`, `listen EADDRINUSE: address already in use :::3000`.
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

/// `127.0.0.1:80`, `[::1]:80`, `:::80`, `:80`, `*:80`, `localhost:80`, with what stands around it. Every address is none.
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
    container.state.seen().is_some_and(|state| state.running.seen().is_some())
}

/// Whether a container that is not ready ended with an error, now or when it last ran.
fn failed(container: &ContainerStatus) -> bool {
    let states = [&container.state, &container.last_state].into_iter().filter_map(Field::seen);
    let mut codes = states.filter_map(|state| state.terminated.seen()?.exit_code.seen());
    container.ready.seen() != Some(&true) && codes.any(|code| *code != 0)
}

/// Since when the containers run again that are not ready and ended with an error, where each of them does.
fn restarted(containers: &[ContainerStatus]) -> Option<jiff::Timestamp> {
    let failed = containers.iter().filter(|container| failed(container));
    let starts = failed.map(|container| Some(container.state.seen()?.running.seen()?.started.seen()?.0));
    starts.collect::<Option<Vec<_>>>()?.into_iter().max()
}

fn controller(owner: &OwnerReference) -> Option<Controller> {
    let name = owner.name.seen().filter(|_| owner.controller.seen() == Some(&true))?;
    Some(Controller { kind: owner.kind.seen()?.clone(), name: name.0.clone() })
}

/// By the labels that ServiceLB gives its pods (k3s pkg/cloudprovider/servicelb.go), in the namespace that they have unless
/// `--servicelb-namespace` says otherwise: anybody may label a pod of his own.
fn service_lb_of(namespace: &str, labels: &Labels) -> Option<ServiceName> {
    if namespace != "kube-system" {
        return None;
    }
    let of = |namespace: &Field<Name>, name: &Field<Name>| {
        Some(ServiceName { namespace: namespace.seen()?.0.clone(), name: name.seen()?.0.clone() })
    };
    of(&labels.k3s_namespace, &labels.k3s_service).or_else(|| of(&labels.rke2_namespace, &labels.rke2_service))
}

/// The Node that every term of a node affinity names: the controller of DaemonSets writes it so, and people name the host.
fn only_node(affinity: &Affinity) -> Option<String> {
    fn seen<T: FieldType>(list: &Field<Vec<Field<T>>>) -> impl Iterator<Item = &T> {
        list.seen().into_iter().flatten().filter_map(Field::seen)
    }
    fn named<'a>(requirement: &'a Requirement, key: &str) -> Option<&'a str> {
        let mut values = seen(&requirement.values);
        let only = values.next().filter(|_| values.next().is_none())?;
        (word(&requirement.field) == Some(key) && word(&requirement.operator) == Some("In")).then_some(only.0.as_str())
    }
    let node_of = |term: &'_ NodeSelectorTerm| {
        let by_name = seen(&term.fields).find_map(|it| named(it, "metadata.name"));
        by_name.or_else(|| seen(&term.labels).find_map(|it| named(it, HOSTNAME))).map(str::to_owned)
    };
    let mut nodes = seen(&affinity.node.seen()?.required.seen()?.terms).map(node_of);
    let first = nodes.next()??;
    nodes.all(|node| node.as_ref() == Some(&first)).then_some(first)
}

fn container_port(entry: Port, path: fmt::Arguments<'_>, errors: &mut FieldErrors) -> Option<ContainerPort> {
    let number = entry.container_port.take(format_args!("{path}.containerPort"), errors)?;
    let host_ip = entry.host_ip.take(format_args!("{path}.hostIP"), errors).filter(|ip| !ip.is_empty());
    Some(ContainerPort {
        port: port(number, format_args!("{path}.containerPort"), PORT, errors)?,
        host_port: optional_port(entry.host_port, format_args!("{path}.hostPort"), NODE_PORT, errors),
        host_ip: host_ip.and_then(|ip| address(&ip, format_args!("{path}.hostIP"), errors)),
        protocol: protocol(entry.protocol, format_args!("{path}.protocol"), errors)?,
    })
}

/// The range from which the kernel chooses ports in the Pod's own network, and those that it does not choose, where these are set.
fn ephemeral_sysctls(
    sysctls: Field<Vec<Field<NameValue>>>,
    errors: &mut FieldErrors,
) -> (Option<PortRange>, Option<PortSet>) {
    let (mut range, mut reserved) = (None, None);
    each(sysctls, "spec.securityContext.sysctls", errors, |sysctl, path, errors| {
        // Kubernetes takes a name with slashes, too.
        match sysctl.name.seen()?.replace('/', ".").as_str() {
            "net.ipv4.ip_local_port_range" => range = parsed(sysctl, path, "two ports", errors),
            "net.ipv4.ip_local_reserved_ports" => reserved = parsed(sysctl, path, "a list of ports", errors),
            _ => {}
        }
        Some(())
    });
    (range, reserved)
}

fn parsed<T: FromStr>(
    sysctl: NameValue,
    path: fmt::Arguments<'_>,
    wanted: &'static str,
    errors: &mut FieldErrors,
) -> Option<T> {
    let text = sysctl.value.take(format_args!("{path}.value"), errors)?.0;
    // A longer text was cut, and has lost ports.
    let value = text.parse().ok().filter(|_| text.len() < text::NAME);
    if value.is_none() {
        errors.note(format_args!("{path}.value"), quoted(&text), wanted);
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_is_in_use_is_found_in_what_programs_say() {
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
    fn what_says_no_address_or_not_that_it_is_in_use_is_no_hint() {
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
        assert_eq!(in_use(&cut).count(), 0, "within a letter");
    }
}
