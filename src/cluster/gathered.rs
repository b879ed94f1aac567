//! What files and API servers alike are read into: objects go in one by one, facts come out.

use std::{collections::BTreeMap, mem, sync::Arc};

use super::{convert, error::Error, field::Misfits, settings::Settings, wire::Object};
use crate::facts::{ClusterFacts, EndpointSlice, Gap, Node, Pod, Reading, Service, Source, Why, text};

/// At most this many rejected items are named; a thousand broken Services must not bury the rest.
const MOST_REJECTED: usize = 64;
/// The longest description of a rejected item, in bytes.
const DETAIL: usize = 512;

/// Facts in the making.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Gathered {
    pub(super) services: Vec<Arc<Service>>,
    pub(super) endpoint_slices: Vec<Arc<EndpointSlice>>,
    pub(super) pods: Vec<Arc<Pod>>,
    pub(super) nodes: Vec<Arc<Node>>,
    pub(super) settings: Settings,
    /// Node name by lower-case host name.
    hostnames: BTreeMap<String, String>,
    gaps: BTreeMap<Source, Gap>,
    rejected: Vec<Gap>,
    beyond: usize,
}

impl Gathered {
    /// Takes one object; `place` is where it was read. Kinds that no rule uses are passed over.
    pub(super) fn accept(&mut self, place: &str, mut object: Object) {
        let kind = mem::take(&mut object.kind);
        let kind = kind.seen().map_or("", String::as_str);
        let group = object.api_version.seen().map_or("", String::as_str);
        let group = group.split_once('/').map_or("", |(group, _)| group);
        let title = object.title();
        let mut misfits = Misfits::default();
        let source = match (group, kind) {
            ("", "Service") => {
                self.services.extend(convert::service(object, &mut misfits).map(Arc::new));
                Source::Services
            }
            ("" | "discovery.k8s.io", "EndpointSlice") => {
                self.endpoint_slices.extend(convert::endpoint_slice(object, &mut misfits).map(Arc::new));
                Source::EndpointSlices
            }
            ("", "Pod") => {
                self.settings.api_server_pod(&object);
                self.pods.extend(convert::pod(object, &mut misfits).map(Arc::new));
                Source::Pods
            }
            ("", "Node") => {
                self.settings.node_arguments(&object, &mut misfits);
                self.remember_hostname(&object);
                self.nodes.extend(convert::node(object, &mut misfits).map(Arc::new));
                Source::Nodes
            }
            ("", "ConfigMap") => {
                self.settings.config_map(object, &mut misfits);
                Source::ConfigMaps
            }
            ("" | "crd.projectcalico.org" | "projectcalico.org", "FelixConfiguration") => {
                self.settings.felix(object, &mut misfits);
                Source::ConfigMaps
            }
            ("" | "config.openshift.io", "Network") => {
                self.settings.openshift(object, &mut misfits);
                Source::ConfigMaps
            }
            ("", "") => {
                misfits.note("kind", "absent", "the kind of a Kubernetes object");
                Source::Services
            }
            _ => return,
        };
        let what = if kind.is_empty() { "an object" } else { kind };
        for misfit in misfits {
            self.reject(Gap::new(source, Why::Malformed, format!("{place}: {what} {title}: {misfit}")));
        }
    }

    /// Whether there is nothing beside the facts of objects: no settings, no complaint.
    pub(super) fn is_plain(&self) -> bool {
        self.settings == Settings::default()
            && self.hostnames.is_empty()
            && self.gaps.is_empty()
            && self.rejected.is_empty()
            && self.beyond == 0
    }

    /// Names an item that could not be used.
    pub(super) fn reject(&mut self, mut gap: Gap) {
        if self.rejected.len() < MOST_REJECTED {
            gap.detail = text::clean(&gap.detail, DETAIL);
            self.rejected.push(gap);
        } else {
            self.beyond += 1;
        }
    }

    /// Says why a whole fact is missing; the first reason stays.
    pub(super) fn lack(&mut self, gap: Gap) {
        self.gaps.entry(gap.source).or_insert(gap);
    }

    /// Says that several facts are missing for one reason.
    pub(super) fn lack_all(&mut self, sources: &[Source], error: &Error) {
        for source in sources {
            self.lack(error.gap(*source));
        }
    }

    /// Takes over what another reader gathered.
    pub(super) fn absorb(&mut self, other: Self) {
        self.services.extend(other.services);
        self.endpoint_slices.extend(other.endpoint_slices);
        self.pods.extend(other.pods);
        self.nodes.extend(other.nodes);
        self.settings.absorb(other.settings);
        self.hostnames.extend(other.hostnames);
        other.gaps.into_values().for_each(|gap| self.lack(gap));
        other.rejected.into_iter().for_each(|gap| self.reject(gap));
        self.beyond += other.beyond;
    }

    /// This node's name: what a person or the downward API said, else the Node whose name or Hostname address is this
    /// host's name.
    pub(super) fn node_name(&self, said: Option<&str>, hostname: &str) -> Option<String> {
        if let Some(said) = said {
            return Some(said.to_owned());
        }
        let own = self.nodes.iter().find(|node| node.name.eq_ignore_ascii_case(hostname));
        own.map(|node| node.name.clone()).or_else(|| self.hostnames.get(&hostname.to_ascii_lowercase()).cloned())
    }

    /// The facts, Pods reduced to those of `node` where that is known.
    pub(super) fn finish(mut self, origin: String, configured: bool, node: Option<String>) -> ClusterFacts {
        if let Some(node) = &node {
            self.pods.retain(|pod| pod.node.as_ref() == Some(node));
        }
        if self.beyond > 0 {
            let detail = format!("{origin}: {} more items could not be used", self.beyond);
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

    fn remember_hostname(&mut self, node: &Object) {
        let Some(name) = node.metadata.seen().and_then(|metadata| metadata.name.seen()) else { return };
        let addresses = node.status.seen().and_then(|status| status.addresses.seen()).into_iter().flatten();
        for address in addresses.filter_map(super::field::Field::seen) {
            // A host name that is the Node's own name tells nothing more.
            if address.kind.seen().is_some_and(|kind| kind == "Hostname")
                && let Some(hostname) = address.address.seen()
                && !hostname.eq_ignore_ascii_case(name)
            {
                self.hostnames.insert(hostname.to_ascii_lowercase(), name.clone());
            }
        }
    }
}

fn reading<T>(facts: Vec<T>, gap: Option<Gap>) -> Reading<Vec<T>> {
    gap.map_or(Reading::Seen(facts), Reading::Gap)
}
