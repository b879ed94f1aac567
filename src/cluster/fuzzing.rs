//! A door for the fuzzers, to the readers of files and of answers of API servers. Only with the feature `fuzzing`.
//!
//! Every function takes arbitrary bytes, and panics where a promise is broken.

use std::time::Duration;

use kube::config::Kubeconfig;

use super::{
    ApiServer, FactsBuilder, answer,
    component_config::{proxy_configuration, range_argument},
    connect, error, manifests,
    meter::Meter,
    settings::Settings,
    tolerant_field::FieldErrors,
    watch::WatchEvent,
};
use crate::facts::{ClusterFacts, Source, names, text};

/// Whether a text of a fact can be shown.
fn shown(text: &str, longest: usize) {
    assert!(text.len() <= longest && !text.chars().any(text::is_invisible), "{text:?}");
}

/// What holds of the facts of any cluster.
fn sound(facts: &ClusterFacts) {
    assert!(facts.rejected.len() <= 65, "{}", facts.rejected.len());
    facts.rejected.iter().for_each(|gap| shown(&gap.detail, 512));
    for service in facts.services.seen().into_iter().flatten() {
        assert!(names::is_label(&service.name) && names::is_label(&service.namespace), "{service:?}");
        assert!(service.ports.iter().all(|port| port.port > 0 && port.node_port != Some(0)), "{service:?}");
        service.uid.iter().chain(&service.proxy_name).for_each(|it| shown(it, text::NAME));
    }
    for pod in facts.pods.seen().into_iter().flatten() {
        assert!(names::is_subdomain(&pod.name) && names::is_label(&pod.namespace), "{pod:?}");
    }
    for node in facts.nodes.seen().into_iter().flatten() {
        assert!(names::is_subdomain(&node.name), "{node:?}");
        node.kubelet_version.iter().for_each(|it| shown(it, text::NAME));
    }
}

fn finished(facts: FactsBuilder) -> ClusterFacts {
    let facts = facts.finish("here".to_owned(), true, None);
    sound(&facts);
    facts
}

/// A file of manifests, YAML or JSON: nothing passes in silence. Either something is known, or something is wrong.
pub fn manifest(bytes: &[u8]) {
    let mut facts = FactsBuilder::default();
    let errors = manifests::read_from("here", bytes, bytes.len() as u64, &mut facts);
    errors.iter().for_each(|error| shown(&error.gap(Source::Services).detail, 512));
    let unused = facts.unused.is_some();
    let known = facts.services_known;
    let settings = facts.settings != Settings::default();
    let facts = finished(facts);
    let seen = |count: Option<usize>| count.is_some_and(|count| count > 0);
    let objects = seen(facts.pods.seen().map(Vec::len))
        || seen(facts.nodes.seen().map(Vec::len))
        || seen(facts.services.seen().map(Vec::len))
        || seen(facts.endpoint_slices.seen().map(Vec::len));
    let wrong = !errors.is_empty() || !facts.rejected.is_empty();
    // A List of another kind, an EndpointSlice of no Service, and a ConfigMap without settings are whole, and nothing.
    let text = String::from_utf8_lossy(bytes);
    let whole = ["List", "Slice", "ConfigMap", "Configuration", "Network"].iter().any(|kind| text.contains(kind));
    assert!(wrong || known || unused || settings || objects || whole, "{text:?} was read without a word");
}

/// A LIST of an API server.
pub fn api_list(bytes: &[u8]) {
    for kind in ["Service", "EndpointSlice", "Pod", "Node"] {
        let into = (FactsBuilder::default(), Meter::default());
        if let Ok((facts, ..)) = answer::parse("here", kind, bytes, into) {
            finished(facts);
        }
    }
}

/// The lines of a watch, applied one after the other.
pub fn watch_lines(bytes: &[u8]) {
    for kind in ["Service", "Node"] {
        let mut facts = FactsBuilder::default();
        for line in bytes.split_inclusive(|byte| *byte == b'\n') {
            if let Ok(WatchEvent::Applied(object) | WatchEvent::Deleted(object)) = WatchEvent::read(line, kind) {
                facts.add("here", *object);
            }
        }
        finished(facts);
    }
}

/// kube-apiserver's `/flagz`.
pub fn flagz(bytes: &[u8]) {
    let mut settings = Settings::default();
    let named = settings.flagz("here".to_owned(), &String::from_utf8_lossy(bytes));
    assert_eq!(named, settings != Settings::default());
    match settings.node_port_range() {
        crate::facts::Reading::Seen(range) => assert!(range.range.first <= range.range.last),
        crate::facts::Reading::Gap(gap) => shown(&gap.detail, 1024),
    }
}

/// The settings inside ConfigMaps: of kube-proxy and of kubeadm.
pub fn component_config(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let mut errors = FieldErrors::default();
    if let Some(config) = proxy_configuration("here".to_owned(), &text, &mut errors) {
        let texts = [&config.mode, &config.detect_local_mode, &config.cluster_cidr];
        texts.into_iter().flatten().chain(&config.node_port_addresses).for_each(|it| shown(it, text::NAME));
    }
    range_argument(&text, &mut errors).iter().for_each(|it| shown(it, text::NAME));
    errors.into_iter().for_each(|error| shown(&error, 1024));
}

/// A kubeconfig, merged with another; nothing that it names is read or started.
pub fn kubeconfig(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    match Kubeconfig::from_yaml(&text) {
        Ok(config) => drop(config.clone().merge(config)),
        Err(error) => assert!(!error::causes(&error).is_empty()),
    }
    if let Ok(server) = text.parse::<ApiServer>() {
        assert!(server.to_string().starts_with("https://") && !server.to_string().contains('@'), "{server}");
    }
    assert!(connect::Access::REQUEST_TIMEOUT > Duration::ZERO);
}
