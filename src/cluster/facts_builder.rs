//! Builds the facts of a cluster from its objects, which files and API servers add one by one.

use std::{collections::BTreeMap, fmt, mem, sync::Arc};

use k8s_openapi::api::core::v1;

use super::{
    convert,
    error::Error,
    memory::Memory,
    settings::Settings,
    slim_object::SlimObject,
    tolerant_field::{FieldErrors, quoted},
};
use crate::facts::{ClusterFacts, EndpointSlice, Gap, Node, Pod, Reading, Service, Source, Why, text};

/// At most this many rejected items are named; a thousand broken Services must not bury the rest.
const MAX_REJECTED: usize = 64;
/// The longest description of a rejected item, in bytes.
const DETAIL: usize = 512;

/// Facts that are being built.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct FactsBuilder {
    pub(super) services: Vec<Arc<Service>>,
    pub(super) endpoint_slices: Vec<Arc<EndpointSlice>>,
    pub(super) pods: Vec<Arc<Pod>>,
    pub(super) nodes: Vec<Arc<Node>>,
    pub(super) settings: Settings,
    /// A Service was found, or a whole List that has none: the absence of others is known.
    pub(super) services_known: bool,
    /// The first kind that no rule uses.
    pub(super) unused: Option<String>,
    /// Node name by lower-case host name.
    hostnames: BTreeMap<String, String>,
    gaps: BTreeMap<Source, Gap>,
    rejected: Vec<Gap>,
    /// How many rejected items are not named.
    rejected_beyond: usize,
}

impl FactsBuilder {
    /// Adds one object; `place` is where it was read. Kinds that no rule uses are skipped.
    pub(super) fn add(&mut self, place: &str, mut object: SlimObject) {
        if let Some(why) = &object.broken {
            let kind = object.kind.seen().map_or_else(String::new, |kind| format!("{kind} {}: ", object.title()));
            self.reject(Gap::new(Source::Services, Why::Malformed, format!("{place}: {kind}{why}")));
            return;
        }
        let kind = mem::take(&mut object.kind);
        let kind = kind.seen().map_or("", String::as_str);
        let version = mem::take(&mut object.api_version);
        let version = version.seen().map_or("", String::as_str);
        let group = version.split_once('/').map_or("", |(group, _)| group);
        let title = object.title();
        let mut errors = FieldErrors::default();
        let source = match (group, kind) {
            ("", "Service") => {
                self.services_known = true;
                self.services.extend(convert::service(object, &mut errors).map(Arc::new));
                Source::Services
            }
            ("" | "discovery.k8s.io", "EndpointSlice") => {
                self.endpoint_slices.extend(convert::endpoint_slice(object, &mut errors).map(Arc::new));
                Source::EndpointSlices
            }
            ("", "Pod") => {
                self.settings.api_server_pod(&object);
                self.pods.extend(convert::pod(object, &mut errors).map(Arc::new));
                Source::Pods
            }
            ("", "Node") => {
                let node = convert::typed_node(object, &mut errors);
                self.convert_node(node, &mut errors);
                Source::Nodes
            }
            ("", "ConfigMap") if Settings::reads(&title) => {
                let map = convert::typed_config_map(object, &mut errors);
                self.settings.config_map(map, &mut errors);
                Source::ConfigMaps
            }
            ("" | "crd.projectcalico.org" | "projectcalico.org", "FelixConfiguration") => {
                self.settings.felix(object, &mut errors);
                Source::ConfigMaps
            }
            ("" | "config.openshift.io", "Network") => {
                self.settings.openshift(object, &mut errors);
                Source::ConfigMaps
            }
            ("", "") => {
                errors.note("kind", "absent", "the kind of a Kubernetes object");
                Source::Services
            }
            ("core", "Service" | "Pod" | "Node" | "ConfigMap") => {
                errors.note("apiVersion", quoted(version), "v1");
                Source::Services
            }
            ("" | "core", other) if let Some(meant) = meant(other) => {
                errors.note("kind", quoted(other), meant);
                Source::Services
            }
            (_, other) => {
                self.unused.get_or_insert_with(|| other.to_owned());
                return;
            }
        };
        let what = if kind.is_empty() { "an object" } else { kind };
        self.reject_fields(source, format_args!("{place}: {what} {title}"), errors);
    }

    /// Adds a Node that was read whole.
    pub(super) fn add_node(&mut self, place: &str, node: v1::Node) {
        let mut errors = FieldErrors::default();
        let title = text::clean(node.metadata.name.as_deref().unwrap_or_default(), text::NAME);
        self.convert_node(node, &mut errors);
        self.reject_fields(Source::Nodes, format_args!("{place}: Node {title}"), errors);
    }

    /// Adds a ConfigMap that was read whole.
    pub(super) fn add_config_map(&mut self, place: &str, map: v1::ConfigMap) {
        let mut errors = FieldErrors::default();
        let title = convert::title(&map.metadata);
        self.settings.config_map(map, &mut errors);
        self.reject_fields(Source::ConfigMaps, format_args!("{place}: ConfigMap {title}"), errors);
    }

    /// How many Services, EndpointSlices, Pods and Nodes there are.
    pub(super) fn counts(&self) -> [usize; 4] {
        [self.services.len(), self.endpoint_slices.len(), self.pods.len(), self.nodes.len()]
    }

    /// How much memory those take that were added since there were so many, roughly, in bytes.
    pub(super) fn memory_since(&self, [services, slices, pods, nodes]: [usize; 4]) -> usize {
        fn all(facts: &[impl Memory]) -> usize {
            facts.iter().map(Memory::memory).sum()
        }
        let Self { services: all_services, endpoint_slices, pods: all_pods, nodes: all_nodes, .. } = self;
        let of_services = all(&all_services[services..]) + all(&endpoint_slices[slices..]);
        of_services + all(&all_pods[pods..]) + all(&all_nodes[nodes..])
    }

    /// Whether it holds no more than the facts of objects: no settings, nothing rejected.
    pub(super) fn holds_objects_only(&self) -> bool {
        self.settings == Settings::default()
            && self.hostnames.is_empty()
            && self.gaps.is_empty()
            && self.rejected.is_empty()
            && self.rejected_beyond == 0
    }

    /// Names an item that could not be used.
    pub(super) fn reject(&mut self, mut gap: Gap) {
        if self.rejected.len() < MAX_REJECTED {
            gap.detail = text::clean(&gap.detail, DETAIL);
            self.rejected.push(gap);
        } else {
            self.rejected_beyond += 1;
        }
    }

    /// Notes why a whole fact is missing; the first reason stays.
    pub(super) fn mark_missing(&mut self, gap: Gap) {
        self.gaps.entry(gap.source).or_insert(gap);
    }

    /// Notes why a whole fact is missing, in the words of another.
    pub(super) fn mark_missing_with(&mut self, source: Source, gap: Gap) {
        self.gaps.entry(source).or_insert(gap);
    }

    /// Notes that several facts are missing for one reason.
    pub(super) fn mark_all_missing(&mut self, sources: &[Source], error: &Error) {
        for source in sources {
            self.mark_missing(error.gap(*source));
        }
    }

    /// Adds what another builder holds.
    pub(super) fn merge(&mut self, other: Self) {
        self.services.extend(other.services);
        self.endpoint_slices.extend(other.endpoint_slices);
        self.pods.extend(other.pods);
        self.nodes.extend(other.nodes);
        self.settings.merge(other.settings);
        self.services_known |= other.services_known;
        self.unused = self.unused.take().or(other.unused);
        self.hostnames.extend(other.hostnames);
        other.gaps.into_iter().for_each(|(source, gap)| self.mark_missing_with(source, gap));
        other.rejected.into_iter().for_each(|gap| self.reject(gap));
        self.rejected_beyond += other.rejected_beyond;
    }

    /// This node's name: the configured one, or else that of the Node whose name or Hostname address is `hostname`.
    pub(super) fn node_name(&self, configured: Option<&str>, hostname: &str) -> Option<String> {
        if let Some(name) = configured {
            return Some(name.to_owned());
        }
        let own = self.nodes.iter().find(|node| node.name.eq_ignore_ascii_case(hostname));
        own.map(|node| node.name.clone()).or_else(|| self.hostnames.get(&hostname.to_ascii_lowercase()).cloned())
    }

    /// The facts, Pods reduced to those of `node` where that is known.
    pub(super) fn finish(mut self, origin: String, configured: bool, node: Option<String>) -> ClusterFacts {
        if let Some(node) = &node {
            self.pods.retain(|pod| pod.node.as_ref() == Some(node));
        }
        if self.rejected_beyond > 0 {
            let detail = format!("{origin}: {} more items could not be used", self.rejected_beyond);
            self.rejected.push(Gap::new(Source::Services, Why::Malformed, detail));
        }
        let Self { services, endpoint_slices, pods, nodes, settings, mut gaps, rejected, .. } = self;
        let node_port_range = settings.node_port_range();
        let proxy_config = settings.proxy_config(node.as_deref()).and_then(|config| {
            config.ok_or_else(|| {
                let absent =
                    || Gap::new(Source::ConfigMaps, Why::NotAsked, format!("{origin}: holds no settings of a proxy"));
                gaps.remove(&Source::ConfigMaps).unwrap_or_else(absent)
            })
        });
        ClusterFacts {
            services: reading(services, gaps.remove(&Source::Services)),
            endpoint_slices: reading(endpoint_slices, gaps.remove(&Source::EndpointSlices)),
            endpoints_of: None,
            pods: reading(pods, gaps.remove(&Source::Pods)),
            nodes: reading(nodes, gaps.remove(&Source::Nodes)),
            node_port_range,
            range_claims: settings.claims,
            proxy_config: proxy_config.into(),
            rejected,
            origin,
            configured,
            node_name: node,
        }
    }

    fn convert_node(&mut self, node: v1::Node, errors: &mut FieldErrors) {
        self.settings.node_arguments(&node, errors);
        if let (Some(hostname), Some(name)) = (convert::other_hostname(&node), &node.metadata.name) {
            let name = text::clean(name, text::NAME);
            self.hostnames.insert(text::clean(hostname, text::NAME).to_ascii_lowercase(), name);
        }
        self.nodes.extend(convert::node(node, errors).map(Arc::new));
    }

    fn reject_fields(&mut self, source: Source, object: fmt::Arguments<'_>, errors: FieldErrors) {
        for error in errors {
            self.reject(Gap::new(source, Why::Malformed, format!("{object}: {error}")));
        }
    }
}

/// The kind that is read, where only the case of its letters is wrong.
fn meant(kind: &str) -> Option<&'static str> {
    let read = ["Service", "EndpointSlice", "Pod", "Node", "ConfigMap"];
    read.into_iter().find(|read| read.eq_ignore_ascii_case(kind) && *read != kind)
}

fn reading<T>(facts: Vec<T>, gap: Option<Gap>) -> Reading<Vec<T>> {
    gap.map_or(Reading::Seen(facts), Reading::Gap)
}
