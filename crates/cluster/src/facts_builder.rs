//! Builds the facts of a cluster from its objects, which files and API servers add one by one.

use std::{
    collections::BTreeMap,
    fmt,
    mem::{self, size_of},
    sync::Arc,
};

use k8s_openapi::api::core::v1;

use super::{
    convert::{self, PodFacts},
    error::Error,
    memory::Memory,
    settings::{CILIUM_NODE_CONFIG, NodeSettings, Settings},
    slim_object::SlimObject,
    tolerant_field::{FieldErrors, quoted},
};
use portreeve_facts::{
    Claimant, ClusterFacts, EndpointSlice, Gap, Node, Pod, Reading, Service, Source, WaitingPod, Why, Workload,
    WorkloadKind, text,
};

/// At most this many rejected items are named; a thousand broken Services must not bury the rest.
const MAX_REJECTED: usize = 64;
/// So many CiliumNodeConfigs are named that apply to one node.
const MOST_CONFIGS: usize = 4;
/// The longest description of a rejected item, in bytes.
const DETAIL: usize = 512;

/// How much there was of everything that adds up.
#[derive(Debug, Default)]
pub struct Counts {
    /// Services, EndpointSlices, Pods, those that wait, Nodes and workloads.
    objects: [usize; 6],
    /// Host names, rejected items, and Services that were not read whole.
    beside: [usize; 3],
    settings: [usize; 3],
}

/// Facts that are being built.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FactsBuilder {
    pub(crate) services: Vec<Arc<Service>>,
    pub(crate) endpoint_slices: Vec<Arc<EndpointSlice>>,
    pub(crate) pods: Vec<Arc<Pod>>,
    /// Pods without a Node for want of free ports.
    pub waiting_pods: Vec<Arc<WaitingPod>>,
    pub(crate) nodes: Vec<Arc<Node>>,
    workloads: Vec<Arc<Workload>>,
    /// What the objects say of settings.
    pub settings: Settings,
    /// A Service was found, or a whole List that has none: the absence of others is known.
    pub services_known: bool,
    /// The first kind that no rule uses.
    pub unused: Option<String>,
    /// Lower-case host names and Node names.
    hostnames: Vec<(String, String)>,
    gaps: BTreeMap<Source, Gap>,
    rejected: Vec<Gap>,
    /// Services of which something was rejected, by namespace and name.
    unread_services: Vec<(String, String)>,
    /// How many rejected items are not named.
    rejected_beyond: usize,
}

impl FactsBuilder {
    /// Objects that could not be used, as far as they are named.
    pub fn rejected(&self) -> &[Gap] {
        &self.rejected
    }

    /// How much could not be used, named or not.
    pub fn rejections(&self) -> usize {
        self.rejected.len() + self.rejected_beyond
    }

    /// Adds one object; `place` is where it was read. Kinds that no rule uses are skipped.
    pub(crate) fn add(&mut self, place: &str, mut object: SlimObject) {
        if let Some(why) = &object.broken {
            if object.kind.seen().is_some_and(|kind| kind == "Service") {
                self.unread_services.push(service_called(&object.title()));
            }
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
                if !errors.is_empty() {
                    self.unread_services.push(service_called(&title));
                }
                Source::Services
            }
            ("" | "discovery.k8s.io", "EndpointSlice") => {
                self.endpoint_slices.extend(convert::endpoint_slice(object, &mut errors).map(Arc::new));
                Source::EndpointSlices
            }
            ("", "Pod") => {
                self.settings.api_server_pod(&object);
                match convert::pod(object, &mut errors) {
                    Some(PodFacts::Placed(pod)) => self.pods.push(Arc::new(pod)),
                    Some(PodFacts::Waiting(pod)) => self.waiting_pods.push(Arc::new(pod)),
                    None => {}
                }
                Source::Pods
            }
            ("", "Node") => {
                let node = convert::typed_node(object, &mut errors);
                self.convert_node(node, &mut errors);
                Source::Nodes
            }
            ("" | "apps", kind) if let Some(workload) = WorkloadKind::of(kind) => {
                self.unused.get_or_insert_with(|| kind.to_owned());
                self.workloads.extend(convert::workload(workload, object, &mut errors).map(Arc::new));
                Source::Pods
            }
            ("", "ConfigMap") if Settings::reads(&title) => {
                let map = convert::typed_config_map(object, &mut errors);
                self.settings.config_map(map, &mut errors);
                Source::ConfigMaps
            }
            // A file says of no node which labels it has.
            ("" | "cilium.io", CILIUM_NODE_CONFIG) => {
                let detail = format!("{place}: {kind} {title} may change Cilium's settings on this node");
                self.settings
                    .mark_claim_missing(Claimant::Cilium, Gap::new(Source::ConfigMaps, Why::NotSupported, detail));
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

    /// Adds an object with the template of pods, of whatever kind, that wants so many of them, and may keep the old ones in a roll-out.
    pub(crate) fn add_workload(
        &mut self,
        place: &str,
        (kind, replicas, keeps_old_pods): (WorkloadKind, Option<i64>, bool),
        object: SlimObject,
    ) {
        let title = object.title();
        let mut errors = FieldErrors::default();
        let workload = convert::workload(kind, object, &mut errors).filter(|_| replicas != Some(0));
        self.workloads.extend(workload.map(|workload| Arc::new(Workload { replicas, keeps_old_pods, ..workload })));
        self.reject_fields(Source::Pods, format_args!("{place}: {} {title}", kind.name()), errors);
    }

    /// Adds a Node that was read whole.
    pub fn add_node(&mut self, place: &str, node: v1::Node) {
        let mut errors = FieldErrors::default();
        let title = text::clean(node.metadata.name.as_deref().unwrap_or_default(), text::NAME);
        self.convert_node(node, &mut errors);
        self.reject_fields(Source::Nodes, format_args!("{place}: Node {title}"), errors);
    }

    /// Adds a ConfigMap that was read whole.
    pub fn add_config_map(&mut self, place: &str, map: v1::ConfigMap) {
        let mut errors = FieldErrors::default();
        let title = convert::title(&map.metadata);
        self.settings.config_map(map, &mut errors);
        self.reject_fields(Source::ConfigMaps, format_args!("{place}: ConfigMap {title}"), errors);
    }

    /// Adds Cilium's settings on this node: its ConfigMap, and what CiliumNodeConfigs have put over it.
    pub fn add_cilium(&mut self, place: &str, map: v1::ConfigMap, over: NodeSettings) {
        let NodeSettings { names, values } = over;
        if names.is_empty() {
            return self.add_config_map(place, map);
        }
        let mut errors = FieldErrors::default();
        let mut by = names.iter().take(MOST_CONFIGS).cloned().collect::<Vec<_>>().join(", ");
        by.push_str(if names.len() > MOST_CONFIGS { " and more" } else { "" });
        let object = format!("ConfigMap {} with {} {by}", convert::title(&map.metadata), CILIUM_NODE_CONFIG);
        let mut data = map.data.unwrap_or_default();
        data.extend(values);
        self.settings.cilium_settings(object.clone(), &data, &mut errors);
        self.reject_fields(Source::ConfigMaps, format_args!("{place}: {object}"), errors);
    }

    /// How much there is of everything that adds up.
    pub fn counts(&self) -> Counts {
        let Self { services, endpoint_slices, pods, waiting_pods, nodes, workloads, .. } = self;
        Counts {
            objects: [
                services.len(),
                endpoint_slices.len(),
                pods.len(),
                waiting_pods.len(),
                nodes.len(),
                workloads.len(),
            ],
            beside: [self.hostnames.len(), self.rejected.len(), self.unread_services.len()],
            settings: self.settings.counts(),
        }
    }

    /// How much memory that takes which was added since then, in bytes.
    pub fn memory_since(&self, before: &Counts) -> usize {
        fn all<T: Memory>(list: &[T], before: usize) -> usize {
            list[before..].iter().map(|it| size_of::<T>() + it.heap()).sum()
        }
        let Counts { objects: [services, slices, pods, waiting, nodes, workloads], beside, settings } = before;
        let objects = all(&self.services, *services) + all(&self.endpoint_slices, *slices) + all(&self.pods, *pods);
        let objects = objects + all(&self.waiting_pods, *waiting) + all(&self.nodes, *nodes);
        let objects = objects + all(&self.workloads, *workloads);
        let [hostnames, rejected, unread] = beside;
        let beside =
            all(&self.hostnames, *hostnames) + all(&self.rejected, *rejected) + all(&self.unread_services, *unread);
        objects + beside + self.settings.memory_since(settings)
    }

    /// Whether it holds no more than the facts of objects: no settings, nothing rejected.
    pub fn holds_objects_only(&self) -> bool {
        self.settings == Settings::default()
            && self.hostnames.is_empty()
            && self.gaps.is_empty()
            && self.rejected.is_empty()
            && self.unread_services.is_empty()
            && self.rejected_beyond == 0
    }

    /// Names an item that could not be used.
    pub fn reject(&mut self, mut gap: Gap) {
        if self.rejected.len() < MAX_REJECTED {
            gap.detail = text::clean(&gap.detail, DETAIL);
            self.rejected.push(gap);
        } else {
            self.rejected_beyond += 1;
        }
    }

    /// Notes why a whole fact is missing; the first reason stays.
    pub fn mark_missing(&mut self, gap: Gap) {
        self.gaps.entry(gap.source).or_insert(gap);
    }

    /// Notes why a whole fact is missing, in the words of another.
    pub fn mark_missing_with(&mut self, source: Source, gap: Gap) {
        self.gaps.entry(source).or_insert(gap);
    }

    /// Notes that several facts are missing for one reason.
    pub fn mark_all_missing(&mut self, sources: &[Source], error: &Error) {
        for source in sources {
            self.mark_missing(error.gap(*source));
        }
    }

    /// Adds what another builder holds.
    pub fn merge(&mut self, other: Self) {
        self.services.extend(other.services);
        self.endpoint_slices.extend(other.endpoint_slices);
        self.pods.extend(other.pods);
        self.waiting_pods.extend(other.waiting_pods);
        self.nodes.extend(other.nodes);
        self.workloads.extend(other.workloads);
        self.settings.merge(other.settings);
        self.services_known |= other.services_known;
        self.unused = self.unused.take().or(other.unused);
        self.hostnames.extend(other.hostnames);
        other.gaps.into_iter().for_each(|(source, gap)| self.mark_missing_with(source, gap));
        other.rejected.into_iter().for_each(|gap| self.reject(gap));
        self.unread_services.extend(other.unread_services);
        self.rejected_beyond += other.rejected_beyond;
    }

    /// This node's name: the configured one, or else that of the Node whose name or Hostname address is `hostname`.
    pub fn node_name(&self, configured: Option<&str>, hostname: &str) -> Option<String> {
        if let Some(name) = configured {
            return Some(name.to_owned());
        }
        let own = self.nodes.iter().find(|node| node.name.eq_ignore_ascii_case(hostname));
        let by_hostname = || self.hostnames.iter().rfind(|(known, _)| known.eq_ignore_ascii_case(hostname));
        own.map(|node| node.name.clone()).or_else(|| by_hostname().map(|(_, name)| name.clone()))
    }

    /// The facts, Pods reduced to those of `node` where that is known.
    pub fn finish(mut self, origin: String, configured: bool, node: Option<String>) -> ClusterFacts {
        if let Some(node) = &node {
            self.pods.retain(|pod| pod.may_be_on(node));
            self.waiting_pods.retain(|pod| pod.may_be_on(node));
        }
        if self.rejected_beyond > 0 {
            let detail = format!("{origin}: {} more items could not be used", self.rejected_beyond);
            self.rejected.push(Gap::new(Source::Services, Why::Malformed, detail));
        }
        let Self { services, endpoint_slices, pods, waiting_pods, nodes, workloads, settings, mut gaps, .. } = self;
        let Self { rejected, unread_services, .. } = self;
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
            waiting_pods: reading(waiting_pods, gaps.remove(&Source::WaitingPods)),
            workloads,
            nodes: reading(nodes, gaps.remove(&Source::Nodes)),
            node_port_range,
            service_cidrs: Vec::new(),
            cilium_replaces: settings.cilium_replaces,
            range_claims: settings.claims,
            proxy_config: proxy_config.into(),
            rejected,
            unread_services,
            origin,
            configured,
            node_name: node,
        }
        .in_order()
    }

    fn convert_node(&mut self, node: v1::Node, errors: &mut FieldErrors) {
        self.settings.node_arguments(&node, errors);
        if let (Some(hostname), Some(name)) = (convert::other_hostname(&node), &node.metadata.name) {
            let name = text::clean(name, text::NAME);
            self.hostnames.push((text::clean(hostname, text::NAME).to_ascii_lowercase(), name));
        }
        self.nodes.extend(convert::node(node, errors).map(Arc::new));
    }

    fn reject_fields(&mut self, source: Source, object: fmt::Arguments<'_>, errors: FieldErrors) {
        for error in errors {
            self.reject(Gap::new(source, Why::Malformed, format!("{object}: {error}")));
        }
    }
}

/// Namespace and name of a Service of this title.
fn service_called(title: &str) -> (String, String) {
    let (namespace, name) = title.split_once('/').unwrap_or(("default", title));
    (namespace.to_owned(), name.to_owned())
}

/// The kind that is read, where only the case of its letters is wrong.
fn meant(kind: &str) -> Option<&'static str> {
    let read = ["Service", "EndpointSlice", "Pod", "Node", "ConfigMap"];
    read.into_iter().find(|read| read.eq_ignore_ascii_case(kind) && *read != kind)
}

fn reading<T>(facts: Vec<T>, gap: Option<Gap>) -> Reading<Vec<T>> {
    gap.map_or(Reading::Seen(facts), Reading::Gap)
}
