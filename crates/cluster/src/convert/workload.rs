//! From a workload to facts: the ports that its pods will want of a node.

use crate::{
    convert::pod::ports_of_the_node,
    field_values::{name, namespace},
    slim_object::{NodeSelector, NodeSelectorTerm, Requirement, SlimObject},
    tolerant_field::{Field, FieldErrors, FieldType, Pairs},
};
use portreeve_facts::{Workload, WorkloadKind};

/// A workload; `None` where its pods want no port of a Linux node, and where it has none: `replicas: 0`, or a DaemonSet that
/// the cluster found no node for.
pub(crate) fn workload(kind: WorkloadKind, object: SlimObject, errors: &mut FieldErrors) -> Option<Workload> {
    let metadata = object.metadata.take("metadata", errors).unwrap_or_default();
    let spec = object.spec.take("spec", errors).unwrap_or_default();
    let status = object.status.take("status", errors).unwrap_or_default();
    let (replicas, desired) =
        (spec.replicas.seen().copied(), status.desired.seen().filter(|_| kind == WorkloadKind::DaemonSet));
    if replicas == Some(0) || desired == Some(&0) {
        return None;
    }
    let path = kind.pod_spec();
    let template = spec.template.take(path.trim_end_matches(".spec"), errors).unwrap_or_default();
    let spec = template.spec.take(path, errors).unwrap_or_default();
    let host_network = spec.host_network.take(format_args!("{path}.hostNetwork"), errors).unwrap_or(false);
    let required = spec.affinity.seen().and_then(|it| it.node.seen()).and_then(|it| it.required.seen());
    let (mut selects, mut avoids) = required.map(demands).unwrap_or_default();
    selects.extend(selected(&spec.node_selector));
    let mut tolerates: Vec<_> = texts(&spec.tolerations, |it| {
        let words = [&it.taint, &it.operator, &it.value, &it.effect].map(|word| word.seen().map_or("", String::as_str));
        Some(words.join(" "))
    });
    [&mut selects, &mut avoids, &mut tolerates].into_iter().for_each(|texts| {
        texts.sort_unstable();
        texts.dedup();
    });
    let containers = (spec.containers, spec.init_containers);
    let ports = ports_of_the_node(containers, path, host_network, errors);
    let is_for_windows = OS.iter().any(|label| selects.contains(&format!("{label} In windows")));
    if ports.is_empty() || is_for_windows {
        return None;
    }
    let (namespace, name) = (namespace(metadata.namespace, errors)?, name(metadata.name, errors)?);
    Some(Workload {
        kind,
        namespace,
        name,
        replicas,
        keeps_old_pods: false,
        host_network,
        selects,
        avoids,
        tolerates,
        ports,
    })
}

/// Labels by which nodes say that they run Linux, as all do that Portreeve runs on.
const OS: [&str; 2] = ["kubernetes.io/os", "beta.kubernetes.io/os"];

/// What a node selector demands beyond Linux.
fn selected(selector: &Field<Pairs>) -> Vec<String> {
    match selector {
        Field::Absent => Vec::new(),
        Field::WrongType(is) => vec![format!("a nodeSelector that is {is}")],
        Field::Value(Pairs(pairs)) => {
            let words =
                pairs.iter().map(|(label, value)| [label, value].map(|it| it.seen().map_or("?", String::as_str)));
            let beyond = words.filter(|[label, value]| !(OS.contains(label) && *value == "linux"));
            beyond.map(|[label, value]| format!("{label} In {value}")).collect()
        }
    }
}

/// What a required affinity demands of a node beyond Linux, and what it must not be.
fn demands(required: &NodeSelector) -> (Vec<String>, Vec<String>) {
    let text = |it: &Requirement| {
        let [label, operator] = [&it.field, &it.operator].map(|word| word.seen().map_or("?", String::as_str));
        let mut values: Vec<_> = texts(&it.values, |value| Some(value.0.clone()));
        values.sort_unstable();
        let is_os = OS.contains(&label) && operator == "In" && values.contains(&"linux".to_owned());
        (!is_os).then(|| format!("{label} {operator} {}", values.join(",")))
    };
    // One of the terms is enough.
    let terms: Vec<_> = texts(&required.terms, |term: &NodeSelectorTerm| {
        Some([texts(&term.fields, text), texts(&term.labels, text)].concat())
    });
    let is_negative = |text: &String| text.contains(" NotIn ") || text.contains(" DoesNotExist ");
    match &terms[..] {
        [term] => term.iter().cloned().partition(|text| !is_negative(text)),
        terms if terms.iter().any(Vec::is_empty) => Default::default(),
        terms => (vec![terms.iter().map(|term| term.join(" and ")).collect::<Vec<_>>().join(" or ")], Vec::new()),
    }
}

/// What is made of each entry of a list that could be read.
fn texts<T: FieldType, U>(list: &Field<Vec<Field<T>>>, text: impl Fn(&T) -> Option<U>) -> Vec<U> {
    list.seen().into_iter().flatten().filter_map(Field::seen).filter_map(text).collect()
}
