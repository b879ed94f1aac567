//! From a workload to facts: the ports that its pods will want of a node.

use crate::{
    cluster::{
        convert::pod::ports_of_the_node,
        field_values::{name, namespace},
        slim_object::SlimObject,
        tolerant_field::{Field, FieldErrors, LeavesOut},
    },
    facts::{Workload, WorkloadKind},
};

/// A workload; `None` where its pods want no port of a node, and where it has none: `replicas: 0`, or a DaemonSet that the
/// cluster found no node for.
pub(in crate::cluster) fn workload(
    kind: WorkloadKind,
    object: SlimObject,
    errors: &mut FieldErrors,
) -> Option<Workload> {
    let metadata = object.metadata.take("metadata", errors).unwrap_or_default();
    let spec = object.spec.take("spec", errors).unwrap_or_default();
    let status = object.status.take("status", errors).unwrap_or_default();
    let (replicas, desired) = (spec.replicas.seen(), status.desired.seen().filter(|_| kind == WorkloadKind::DaemonSet));
    if replicas == Some(&0) || desired == Some(&0) {
        return None;
    }
    let template = spec.template.take("spec.template", errors).unwrap_or_default();
    let spec = template.spec.take("spec.template.spec", errors).unwrap_or_default();
    let host_network = spec.host_network.take("spec.template.spec.hostNetwork", errors).unwrap_or(false);
    let affinity = spec.affinity.seen().and_then(|it| it.node.seen());
    let selects = match spec.node_selector {
        Field::Absent => false,
        Field::Value(LeavesOut(leaves_out)) => leaves_out,
        Field::WrongType(_) => true,
    };
    let restricted = selects || affinity.is_some_and(|it| it.required.seen().is_some());
    let containers = (spec.containers, spec.init_containers);
    let ports = ports_of_the_node(containers, "spec.template.spec", host_network, errors);
    if ports.is_empty() {
        return None;
    }
    let (namespace, name) = (namespace(metadata.namespace, errors)?, name(metadata.name, errors)?);
    Some(Workload { kind, namespace, name, host_network, restricted, ports })
}
