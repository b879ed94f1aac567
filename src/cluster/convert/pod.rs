//! From a Pod to facts: one that runs on a Node, or one that waits because its ports are taken on every Node.

use std::fmt;

use crate::{
    cluster::{
        field_values::{NODE_PORT, PORT, address, each, name, namespace, optional_port, port, protocol, reference},
        slim_object::{
            Affinity, Condition, Container, ContainerStatus, FieldRequirement, Labels, NameValue, NodeSelectorTerm,
            OwnerReference, Port, SlimObject,
        },
        tolerant_field::{Field, FieldErrors, FieldType, Name, Time, quoted},
    },
    facts::{ContainerPort, Controller, Pod, PortRange, ServiceName, WaitingPod},
};

/// What the scheduler says of a Node on which a port of the Pod is taken (kubernetes
/// pkg/scheduler/framework/plugins/nodeports/node_ports.go).
const NO_FREE_PORTS: &str = "didn't have free ports for the requested pod ports";

/// A Pod, by where it is.
#[derive(Debug)]
pub(in crate::cluster) enum PodFacts {
    /// On a Node; or in a file that names none, and then it may be on any.
    Placed(Pod),
    /// On no Node, for want of free ports.
    Waiting(WaitingPod),
}

/// A Pod; `None` for one that waits for a Node for other reasons, and for impossible ones.
pub(in crate::cluster) fn pod(object: SlimObject, errors: &mut FieldErrors) -> Option<PodFacts> {
    let metadata = object.metadata.take("metadata", errors).unwrap_or_default();
    let spec = object.spec.take("spec", errors).unwrap_or_default();
    let status = object.status.take("status", errors).unwrap_or_default();

    let host_network = spec.host_network.take("spec.hostNetwork", errors).unwrap_or(false);
    let containers = (spec.containers, spec.init_containers);
    let ports = ports_of_the_node(containers, "spec", host_network, errors);
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
    let annotations = metadata.annotations.take("metadata.annotations", errors).unwrap_or_default();
    let security = spec.security_context.take("spec.securityContext", errors).unwrap_or_default();
    let labels = metadata.labels.take("metadata.labels", errors).unwrap_or_default();
    let controllers = each(metadata.owners, "metadata.ownerReferences", errors, |owner, _, _| controller(&owner));
    let phase = status.phase.take("status.phase", errors);
    let node = reference(spec.node_name, "spec.nodeName", errors);

    if node.is_none() && phase.as_deref() == Some("Pending") {
        let refused = conditions.iter().find(|condition| is_refused_for_its_ports(condition))?;
        return Some(PodFacts::Waiting(WaitingPod {
            namespace: namespace(metadata.namespace, errors)?,
            name: name(metadata.name, errors)?,
            uid: metadata.uid.take("metadata.uid", errors),
            controller: controllers.into_iter().next(),
            service_lb_of: service_lb_of(&labels),
            meant_for: spec.affinity.seen().and_then(only_node),
            // On the host's network each port is one of the host.
            ports: ports
                .into_iter()
                .map(|port| ContainerPort { host_port: port.host_port.or(Some(port.port)), ..port })
                .collect(),
            since: time(&refused.since),
        }));
    }
    Some(PodFacts::Placed(Pod {
        namespace: namespace(metadata.namespace, errors)?,
        name: name(metadata.name, errors)?,
        uid: metadata.uid.take("metadata.uid", errors),
        config_hash: annotations.config_hash.take("metadata.annotations[kubernetes.io/config.hash]", errors),
        controller: controllers.into_iter().next(),
        service_lb_of: service_lb_of(&labels),
        ends: metadata.deleted.take("metadata.deletionTimestamp", errors).map(|Time(at)| at),
        node,
        host_network,
        finished: matches!(phase.as_deref(), Some("Succeeded" | "Failed")),
        ready: conditions.iter().any(|condition| is(condition, "Ready", "True")),
        running: (!containers.is_empty()).then(|| {
            containers.iter().any(|container| container.state.seen().is_some_and(|it| it.running.seen().is_some()))
        }),
        failing: containers.iter().any(failed),
        ips,
        ports,
        ip_local_port_range: each(security.sysctls, "spec.securityContext.sysctls", errors, local_port_range).pop(),
    }))
}

/// `containers` or `initContainers`.
type Containers = Field<Vec<Field<Container>>>;

/// Ports of containers that a proxy, a CNI plugin or the host's own stack has to serve. Of the init containers, those that
/// run beside the others have ports, too (KEP-753, Kubernetes 1.29).
pub(super) fn ports_of_the_node(
    (containers, init_containers): (Containers, Containers),
    path: &str,
    host_network: bool,
    errors: &mut FieldErrors,
) -> Vec<ContainerPort> {
    let mut ports = each(containers, format_args!("{path}.containers"), errors, |container, path, errors| {
        Some(each(container.ports, format_args!("{path}.ports"), errors, container_port))
    });
    ports.extend(each(init_containers, format_args!("{path}.initContainers"), errors, |container, path, errors| {
        let stays = container.restart_policy.seen().is_some_and(|policy| policy == "Always");
        stays.then(|| each(container.ports, format_args!("{path}.ports"), errors, container_port))
    }));
    ports.into_iter().flatten().filter(|port| host_network || port.host_port.is_some()).collect()
}

fn is(condition: &Condition, kind: &str, status: &str) -> bool {
    condition.kind.seen().is_some_and(|it| it == kind) && condition.status.seen().is_some_and(|it| it == status)
}

fn is_refused_for_its_ports(condition: &Condition) -> bool {
    is(condition, "PodScheduled", "False")
        && condition.message.seen().is_some_and(|message| message.0.contains(NO_FREE_PORTS))
}

/// Whether a container that is not ready ended with an error, now or when it last ran.
fn failed(container: &ContainerStatus) -> bool {
    let states = [&container.state, &container.last_state].into_iter().filter_map(Field::seen);
    let mut codes = states.filter_map(|state| state.terminated.seen()?.exit_code.seen());
    container.ready.seen() != Some(&true) && codes.any(|code| *code != 0)
}

fn controller(owner: &OwnerReference) -> Option<Controller> {
    let name = owner.name.seen().filter(|_| owner.controller.seen() == Some(&true))?;
    Some(Controller { kind: owner.kind.seen()?.clone(), name: name.0.clone() })
}

/// By the labels that ServiceLB gives its pods (k3s pkg/cloudprovider/servicelb.go).
fn service_lb_of(labels: &Labels) -> Option<ServiceName> {
    let of = |namespace: &Field<Name>, name: &Field<Name>| {
        Some(ServiceName { namespace: namespace.seen()?.0.clone(), name: name.seen()?.0.clone() })
    };
    of(&labels.k3s_namespace, &labels.k3s_service).or_else(|| of(&labels.rke2_namespace, &labels.rke2_service))
}

/// The Node that every term of a node affinity names: the controller of DaemonSets writes it so.
fn only_node(affinity: &Affinity) -> Option<String> {
    fn seen<T: FieldType>(list: &Field<Vec<Field<T>>>) -> impl Iterator<Item = &T> {
        list.seen().into_iter().flatten().filter_map(Field::seen)
    }
    fn named(requirement: &FieldRequirement) -> Option<&str> {
        let is = |field: &Field<String>, word: &str| field.seen().is_some_and(|it| it == word);
        let mut values = seen(&requirement.values);
        let only = values.next().filter(|_| values.next().is_none())?;
        (is(&requirement.field, "metadata.name") && is(&requirement.operator, "In")).then_some(only.0.as_str())
    }
    let node_of = |term: &'_ NodeSelectorTerm| seen(&term.fields).find_map(named).map(str::to_owned);
    let mut nodes = seen(&affinity.node.seen()?.required.seen()?.terms).map(node_of);
    let first = nodes.next()??;
    nodes.all(|node| node.as_ref() == Some(&first)).then_some(first)
}

fn time(field: &Field<Time>) -> Option<jiff::Timestamp> {
    field.seen().map(|Time(at)| *at)
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

fn local_port_range(sysctl: NameValue, path: fmt::Arguments<'_>, errors: &mut FieldErrors) -> Option<PortRange> {
    let wanted = ["net.ipv4.ip_local_port_range", "net/ipv4/ip_local_port_range"];
    if !sysctl.name.seen().is_some_and(|name| wanted.contains(&name.as_str())) {
        return None;
    }
    let text = sysctl.value.take(format_args!("{path}.value"), errors)?.0;
    let range = text.parse().ok();
    if range.is_none() {
        errors.note(format_args!("{path}.value"), quoted(&text), "two ports");
    }
    range
}
