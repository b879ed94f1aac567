//! Builds the facts of a cluster from its objects. Files and API servers add the objects one by one.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use serde::Deserializer;
use serde_json::value::RawValue;

use super::{
    error::Error,
    objects::{self, FieldError, Identity, Metadata, Notes, Object, decode, quoted},
    settings::{CILIUM_NODE_CONFIG, NodeSettings, Settings},
    tree::{Node as Document, Value},
    watch::Resource,
};
use portreeve_facts::{
    Claimant, ClusterFacts, EndpointSlice, Gap, Node, Pod, Reading, Service, Source, WaitingPod, Why, Workload,
    WorkloadKind, text,
};

/// The largest number of rejected items that are listed. Without this limit, a thousand broken Services would hide the
/// other items.
const MAX_REJECTED: usize = 64;
const MOST_CONFIGS: usize = 4;
const DETAIL: usize = 512;

/// Facts to which objects can still be added.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FactsBuilder {
    pub(crate) services: Vec<Arc<Service>>,
    pub(crate) endpoint_slices: Vec<Arc<EndpointSlice>>,
    pub(crate) pods: Vec<Arc<Pod>>,
    /// Pods without a Node, because no Node has free ports.
    pub waiting_pods: Vec<Arc<WaitingPod>>,
    /// Ports of Pods without a Node that wait for something else.
    pub(crate) pending_ports: BTreeSet<u16>,
    pub(crate) nodes: Vec<Arc<Node>>,
    pub(crate) workloads: Vec<Arc<Workload>>,
    /// The settings in the objects.
    pub settings: Settings,
    /// Whether the input had a Service. If the value is true, Services that are not in the input do not exist.
    pub services_known: bool,
    /// The first kind in the input that no rule uses.
    pub unused: Option<String>,
    /// Pairs of a host name in lower case and the name of its Node.
    pub(crate) hostnames: Vec<(String, String)>,
    gaps: BTreeMap<Source, Gap>,
    rejected: Vec<Gap>,
    /// The namespaces and names of Services of which a part was rejected.
    unread_services: Vec<(String, String)>,
    rejected_beyond: usize,
}

impl FactsBuilder {
    /// The rejected items that are listed.
    pub fn rejected(&self) -> &[Gap] {
        &self.rejected
    }

    /// Adds an object, or rejects an object that the API server would refuse.
    pub(crate) fn add<'de, K: Object>(&mut self, place: &str, document: impl Deserializer<'de> + Copy) -> Identity {
        self.add_decoded(place, decode::<K>(document), document)
    }

    /// Adds an object of an API server's list.
    pub fn add_listed<K: Object>(&mut self, place: &str, object: &RawValue) {
        self.add::<K>(place, object);
    }

    /// Adds a decoded object. If the decoding failed, the identity of the object is read from `document`.
    pub(crate) fn add_decoded<'de, K: Object>(
        &mut self,
        place: &str,
        decoded: Result<K, FieldError>,
        document: impl Deserializer<'de>,
    ) -> Identity {
        let mut notes = Notes::default();
        let (identity, refused) = match decoded {
            Ok(object) => {
                let identity = object.metadata().map(Identity::of_metadata).unwrap_or_default();
                (identity, object.add_to(self, &mut notes).err())
            }
            Err(why) => (Identity::of(document), Some(why)),
        };
        if K::SOURCE == Source::Services {
            self.services_known = true;
            if refused.is_some() {
                self.note_unread_service(&identity.title);
            }
        }
        self.reject_object(K::SOURCE, place, &format!("{} {}", K::KIND, identity.title), refused, notes);
        identity
    }

    pub(crate) fn add_workload<'de>(
        &mut self,
        place: &str,
        kind: WorkloadKind,
        document: impl Deserializer<'de> + Copy,
    ) {
        let workload = objects::Workload::read(kind, document).and_then(|workload| workload.facts(kind));
        let refused = workload.map(|workload| self.workloads.extend(workload.map(Arc::new))).err();
        if let Some(why) = refused {
            let object = format!("{} {}", kind.name(), Identity::of(document).title);
            self.reject_object(Source::Pods, place, &object, Some(why), Notes::default());
        }
    }

    pub(crate) fn note_unread_service(&mut self, title: &str) {
        self.unread_services.push(service_called(title));
    }

    /// Adds an object of any kind. If the object has no kind, the kind of its List counts. Kinds that no rule uses are
    /// skipped.
    pub(crate) fn add_document(&mut self, place: &str, inherited: Option<&str>, document: &Document) {
        let kind = match document.field("kind").map(|kind| &kind.value) {
            None | Some(Value::Null) => inherited.unwrap_or_default(),
            Some(Value::Text(kind)) => kind,
            Some(_) => "",
        };
        let version = document.field("apiVersion").and_then(Document::text).unwrap_or_default();
        let group = objects::group(version);
        let title = || Identity::of(document).title;
        let refused = match (group, kind) {
            ("", "Service") => return drop(self.add::<objects::Service>(place, document)),
            ("" | "discovery.k8s.io", "EndpointSlice") => {
                return drop(self.add::<objects::EndpointSlice>(place, document));
            }
            ("", "Pod") => return drop(self.add::<objects::Pod>(place, document)),
            ("", "Node") => return drop(self.add::<objects::Node>(place, document)),
            ("" | "apps", kind) if let Some(workload) = WorkloadKind::of(kind) => {
                self.unused.get_or_insert_with(|| kind.to_owned());
                return self.add_workload(place, workload, document);
            }
            // Only ConfigMaps that rules use are read, so an error in another ConfigMap has no effect.
            ("", "ConfigMap") if Settings::reads(&title()) => {
                return drop(self.add::<objects::ConfigMap>(place, document));
            }
            // A file does not show the labels of a node, so the builder cannot decide whether the CiliumNodeConfig
            // applies to this node.
            ("" | "cilium.io", CILIUM_NODE_CONFIG) => {
                let detail = format!("{place}: {kind} {} may change Cilium's settings on this node", title());
                let gap = Gap::new(Source::ConfigMaps, Why::NotSupported, detail);
                return self.settings.mark_claim_missing(Claimant::Cilium, gap);
            }
            ("" | "crd.projectcalico.org" | "projectcalico.org", "FelixConfiguration") => {
                return drop(self.add::<objects::FelixConfiguration>(place, document));
            }
            ("" | "config.openshift.io", "Network") => return drop(self.add::<objects::Network>(place, document)),
            ("", "") => FieldError::new("kind", "absent", "the kind of a Kubernetes object"),
            ("core", "Service" | "Pod" | "Node" | "ConfigMap") => FieldError::new("apiVersion", quoted(version), "v1"),
            ("" | "core", other) if let Some(meant) = meant(other) => FieldError::new("kind", quoted(other), meant),
            (_, other) => {
                self.unused.get_or_insert_with(|| other.to_owned());
                return;
            }
        };
        let kind = if kind.is_empty() { "an object" } else { kind };
        let object = format!("{kind} {}", title());
        self.reject_object(Source::Services, place, &object, Some(refused), Notes::default());
    }

    pub(crate) fn add_cilium(&mut self, place: &str, map: objects::ConfigMap, over: NodeSettings) {
        let title = map.metadata.as_ref().map(Metadata::title).unwrap_or_default();
        let NodeSettings { names, values } = over;
        let mut object = format!("ConfigMap {title}");
        if !names.is_empty() {
            let by = names.iter().take(MOST_CONFIGS).cloned().collect::<Vec<_>>().join(", ");
            let more = if names.len() > MOST_CONFIGS { " and more" } else { "" };
            object = format!("{object} with {CILIUM_NODE_CONFIG} {by}{more}");
        }
        let mut notes = Notes::default();
        let mut data = map.data.unwrap_or_default();
        data.extend(values);
        self.settings.cilium_settings(object.clone(), &data, &mut notes);
        self.reject_object(Source::ConfigMaps, place, &object, None, notes);
    }

    /// Whether the builder contains only objects: no settings, no missing facts, and no rejected items.
    pub fn holds_objects_only(&self) -> bool {
        self.settings == Settings::default()
            && self.hostnames.is_empty()
            && self.gaps.is_empty()
            && self.rejected.is_empty()
            && self.unread_services.is_empty()
            && self.rejected_beyond == 0
    }

    /// Adds the reason why an item could not be used.
    pub fn reject(&mut self, mut gap: Gap) {
        if self.rejected.len() < MAX_REJECTED {
            gap.detail = text::clean(&gap.detail, DETAIL);
            self.rejected.push(gap);
        } else {
            self.rejected_beyond += 1;
        }
    }

    /// Sets the reason why a whole fact is missing. If the fact already has a reason, the first reason stays.
    pub fn mark_missing(&mut self, gap: Gap) {
        self.gaps.entry(gap.source).or_insert(gap);
    }

    /// Like [`Self::mark_missing`], but `source` names the missing fact.
    pub fn mark_missing_with(&mut self, source: Source, gap: Gap) {
        self.gaps.entry(source).or_insert(gap);
    }

    /// Sets the same reason for every fact that an API server has.
    pub(crate) fn mark_all_missing(&mut self, error: &Error) {
        Resource::ALL.into_iter().for_each(|it| self.mark_missing(error.gap(it.source())));
    }

    /// Adds the content of another builder.
    pub fn merge(&mut self, other: Self) {
        self.services.extend(other.services);
        self.endpoint_slices.extend(other.endpoint_slices);
        self.pods.extend(other.pods);
        self.waiting_pods.extend(other.waiting_pods);
        self.pending_ports.extend(other.pending_ports);
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

    /// This node's name: the configured name, or else the name of the Node whose name or Hostname address is
    /// `hostname`.
    pub fn node_name(&self, configured: Option<&str>, hostname: &str) -> Option<String> {
        if let Some(name) = configured {
            return Some(name.to_owned());
        }
        let own = self.nodes.iter().find(|node| node.name.eq_ignore_ascii_case(hostname));
        let by_hostname = || self.hostnames.iter().rfind(|(known, _)| known.eq_ignore_ascii_case(hostname));
        own.map(|node| node.name.clone()).or_else(|| by_hostname().map(|(_, name)| name.clone()))
    }

    /// The facts. If `node` is known, only Pods that may be on this node are included.
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
        let Self { pending_ports, rejected, unread_services, .. } = self;
        let node_port_range = settings.node_port_range();
        let proxy_config = settings.proxy_config(node.as_deref()).and_then(|config| {
            config.ok_or_else(|| {
                let absent =
                    || Gap::new(Source::ConfigMaps, Why::NotRequested, format!("{origin}: has no settings of a proxy"));
                gaps.remove(&Source::ConfigMaps).unwrap_or_else(absent)
            })
        });
        ClusterFacts {
            services: reading(services, gaps.remove(&Source::Services)),
            endpoint_slices: reading(endpoint_slices, gaps.remove(&Source::EndpointSlices)),
            endpoints_of: None,
            pods: reading(pods, gaps.remove(&Source::Pods)),
            waiting_pods: reading(waiting_pods, gaps.remove(&Source::WaitingPods)),
            pending_ports: pending_ports.into_iter().collect(),
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

    fn reject_object(&mut self, source: Source, place: &str, object: &str, refused: Option<FieldError>, notes: Notes) {
        for what in refused.map(|refused| refused.to_string()).into_iter().chain(notes) {
            self.reject(Gap::new(source, Why::Malformed, format!("{place}: {object}: {what}")));
        }
    }
}

fn service_called(title: &str) -> (String, String) {
    let (namespace, name) = title.split_once('/').unwrap_or(("default", title));
    (namespace.to_owned(), name.to_owned())
}

fn meant(kind: &str) -> Option<&'static str> {
    let read = ["Service", "EndpointSlice", "Pod", "Node", "ConfigMap"];
    read.into_iter().find(|read| read.eq_ignore_ascii_case(kind) && *read != kind)
}

fn reading<T>(facts: Vec<T>, gap: Option<Gap>) -> Reading<Vec<T>> {
    gap.map_or(Reading::Seen(facts), Reading::Gap)
}
