//! What is judged: manifests, and the cluster that they would make, together with what is there already.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use ipnet::IpNet;

use crate::{
    facts::{Claim, ClusterFacts, Manifest, Node, Pod, Reading, Service, ServiceKind, Snapshot},
    findings::{Evidence, PlacedFinding, RuleId},
    rules::{FreePorts, made_by},
};

/// Numbers that are suggested instead of one that is taken.
const SUGGESTED: usize = 3;

/// Where the other objects are from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The manifests alone are judged.
    Nowhere,
    /// `--against`: a cluster, a file of its objects, or a snapshot.
    Cluster,
}

/// Manifests and everything around them.
#[derive(Clone, Debug)]
pub struct Linted {
    /// The objects as they are written.
    pub(super) manifests: Vec<Manifest>,
    /// What would be there once they are applied.
    pub(super) snapshot: Snapshot,
    /// Objects that are there already, by kind, namespace and name: what has the same name is updated.
    there: BTreeSet<(String, String, String)>,
    /// Numbers that nobody has, where a cluster tells.
    free: Vec<u16>,
    /// Where the other objects are from.
    pub(super) source: Source,
    /// Where the API server allocates cluster IPs, as far as somebody says.
    pub(super) service_cidrs: Vec<IpNet>,
}

/// An update that leaves a number out keeps the one that is there (Kubernetes 1.36 pkg/registry/core/service/storage
/// `patchAllocatedValues`: nodePorts by the name of the port).
fn keep_numbers(service: &mut Service, before: &Service) {
    if !matches!(service.kind, ServiceKind::NodePort | ServiceKind::LoadBalancer) {
        return;
    }
    let written: BTreeSet<u16> = service.ports.iter().filter_map(|port| port.node_port).collect();
    for port in service.ports.iter_mut().filter(|port| port.node_port.is_none()) {
        let of_name = before.ports.iter().find(|it| it.name == port.name).and_then(|it| it.node_port);
        port.node_port = of_name.filter(|number| !written.contains(number));
        port.fixed = Some(false);
    }
    if service.kind == ServiceKind::LoadBalancer && service.external_local {
        service.health_check_node_port = service.health_check_node_port.or(before.health_check_node_port);
    }
}

impl Linted {
    /// Puts the facts of manifests into a snapshot of what is there. An object of the manifests takes the place of the one
    /// that has its name.
    pub fn new(manifests: Vec<Manifest>, facts: ClusterFacts, mut around: Snapshot, source: Source) -> Self {
        let names: BTreeSet<(&str, &str, &str)> =
            manifests.iter().map(|it| (it.kind, &*it.namespace, &*it.name)).collect();
        let cluster = &mut around.cluster;
        let mut there = BTreeSet::new();
        let mut note = |kind: &str, namespace: &str, name: &str| {
            there.insert((kind.to_owned(), namespace.to_owned(), name.to_owned()));
        };
        let mut services: Vec<Arc<Service>> = cluster.services.seen().cloned().unwrap_or_default();
        services.iter().for_each(|it| note("Service", &it.namespace, &it.name));
        let mut updated = BTreeMap::new();
        services.retain(|it| {
            let is_updated = names.contains(&("Service", &it.namespace, &it.name));
            if is_updated {
                updated.insert((it.namespace.clone(), it.name.clone()), Arc::clone(it));
            }
            !is_updated
        });
        // Who chose the numbers that are there is not asked here.
        for service in services.iter_mut().map(Arc::make_mut) {
            service.ports.iter_mut().for_each(|port| port.fixed = Some(false));
        }
        services.extend(facts.services.seen().into_iter().flatten().cloned().map(|mut service| {
            if let Some(before) = updated.get(&(service.namespace.clone(), service.name.clone())) {
                keep_numbers(Arc::make_mut(&mut service), before);
            }
            service
        }));
        cluster.services = Reading::Seen(services);
        cluster.workloads.iter().for_each(|it| note(it.kind.name(), &it.namespace, &it.name));
        cluster.workloads.retain(|it| !names.contains(&(it.kind.name(), &it.namespace, &it.name)));
        cluster.workloads.extend(facts.workloads);
        if let Reading::Seen(pods) = &mut cluster.pods {
            pods.retain(|pod| {
                let (kind, name) = pod.controller.as_ref().and_then(made_by).unwrap_or(("Pod", &pod.name));
                note(kind, &pod.namespace, name);
                !pod.finished && !names.contains(&(kind, &pod.namespace, name))
            });
        }
        let free = match source {
            Source::Nowhere => Vec::new(),
            Source::Cluster => FreePorts::of(&around).ports().take(SUGGESTED).collect(),
        };
        Self { manifests, snapshot: around, there, free, source, service_cidrs: Vec::new() }
    }

    /// Says where the API server allocates cluster IPs.
    #[must_use]
    pub fn with_service_cidrs(mut self, cidrs: Vec<IpNet>) -> Self {
        self.service_cidrs = cidrs;
        self
    }

    /// Every field that claims something, with its object.
    pub(super) fn claims(&self) -> impl Iterator<Item = (&Manifest, &Claim)> {
        self.manifests.iter().flat_map(|manifest| manifest.claims.iter().map(move |claim| (manifest, claim)))
    }

    /// Whether the cluster has an object of this name already.
    pub(super) fn is_update(&self, manifest: &Manifest) -> bool {
        let key = (manifest.kind.to_owned(), manifest.namespace.clone(), manifest.name.clone());
        self.there.contains(&key)
    }

    /// Pods that are there, where they were read.
    pub(super) fn pods(&self) -> impl Iterator<Item = &Pod> {
        self.snapshot.cluster.pods.seen().into_iter().flatten().map(AsRef::as_ref)
    }

    /// Nodes, where they were read.
    pub(super) fn nodes(&self) -> Option<Vec<&Node>> {
        let nodes = self.snapshot.cluster.nodes.seen()?;
        Some(nodes.iter().map(AsRef::as_ref).collect())
    }

    /// A finding about one field.
    pub(super) fn finding(
        &self,
        rule: RuleId,
        (manifest, claim): (&Manifest, &Claim),
        evidence: Evidence,
    ) -> PlacedFinding {
        let (port, protocol) = claim.what.port().unzip();
        let is_node_port = claim.what.of_service().is_some() && !self.free.is_empty();
        let free: Vec<String> = self.free.iter().map(u16::to_string).collect();
        let evidence = if is_node_port { evidence.value("free", free.join(", ")) } else { evidence };
        PlacedFinding {
            place: claim.place.clone(),
            rule,
            object: manifest.to_string(),
            field: claim.path.clone(),
            port,
            protocol,
            evidence,
            related: Vec::new(),
        }
    }
}
