//! The input of lint: manifests, and the cluster after they are applied.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use super::around::doubt;
use crate::{
    FreePorts,
    findings::{Evidence, PlacedFinding, RuleId},
    made_by,
};
use portreeve_facts::{
    Claim, Claimed, ClusterFacts, Controller, Gap, Manifest, NodePortRange, Owner, Pod, Protocol, Reading, Refusal,
    Refused, Service, ServiceKind, ServicePort, Snapshot, Socket, Source, Unread, Why,
};

const SUGGESTED: usize = 3;
/// The names of the suggested NodePorts in the evidence, the most certain name first.
pub const SUGGESTIONS: [&str; 3] = ["free", "no Service has", "no listed Service has"];

/// Manifests, and the cluster or snapshot with which they are compared.
#[derive(Clone, Debug)]
pub struct Linted {
    pub(super) manifests: Vec<Manifest>,
    /// The cluster after the manifests are applied.
    pub(super) snapshot: Snapshot,
    /// The Services that manifests update, as they are in the cluster now, by namespace and name.
    pub(super) held: BTreeMap<(String, String), Arc<Service>>,
    /// Updates that the API server may refuse: the cluster does not show who chose a number.
    pub(super) unsure: Vec<(Arc<Service>, Gap)>,
    /// The name and the list of the suggested NodePorts, if a cluster or snapshot shows free NodePorts.
    free: Option<(&'static str, String)>,
}

/// The name and the list of the suggested NodePorts. The name states which users of ports are certain. If some users of
/// ports were not read, only the Services are certain. If everything was read, the list ends with the name of the
/// scanned node, because a snapshot has the scan of only one node.
fn numbers(around: &Snapshot) -> Option<(&'static str, String)> {
    let free = FreePorts::of(around);
    let [on_node, of_no_service, of_no_listed] = SUGGESTIONS;
    let (words, place) = match around.cluster.lacks_services().is_some() {
        true => (of_no_listed, String::new()),
        false if free.unread.is_empty() => (on_node, format!(" on node {}", around.node_name())),
        false => (of_no_service, String::new()),
    };
    let numbers: Vec<String> = free.of_no_service().take(SUGGESTED).map(|number| number.to_string()).collect();
    (!numbers.is_empty()).then(|| (words, format!("{}{place}", numbers.join(", "))))
}

/// Adds the numbers that a Service keeps in an update. Marks each kept number as not chosen. If an update has no
/// number, the Service keeps its present number. kubectl and Helm match ports by `port`, and keep a number that the
/// manifest never set. The API server matches ports by name, and keeps a number that the update gives to no other port
/// (Kubernetes 1.36 pkg/registry/core/service/storage `patchAllocatedValues`).
///
/// Returns a number that the update also gives to another port, if the Service does not show who chose the number.
fn keep_numbers(service: &mut Service, before: &Service) -> Option<u16> {
    if !matches!(service.kind, ServiceKind::NodePort | ServiceKind::LoadBalancer) {
        return None;
    }
    let written: BTreeSet<(u16, Protocol)> =
        service.ports.iter().filter_map(|port| Some((port.node_port?, port.protocol))).collect();
    let is_written = |number: &u16| Protocol::ALL.into_iter().any(|protocol| written.contains(&(*number, protocol)));
    let held: BTreeSet<u16> = before.ports.iter().filter_map(|port| port.node_port).collect();
    for port in service.ports.iter_mut().filter(|port| port.node_port.is_some_and(|number| held.contains(&number))) {
        port.fixed = Some(false);
    }
    let mut unsure = None;
    let number = |port: &ServicePort| (port.port, port.protocol);
    // If two entries have the same name or the same port, the first entry is used.
    let by_name: HashMap<&str, &ServicePort> = before.ports.iter().rev().map(|it| (&*it.name, it)).collect();
    let by_port: HashMap<_, &ServicePort> = before.ports.iter().rev().map(|it| (number(it), it)).collect();
    for port in service.ports.iter_mut().filter(|port| port.node_port.is_none()) {
        let of_name = by_name.get(&*port.name).and_then(|it| it.node_port).filter(|number| !is_written(number));
        let of_port = by_port.get(&number(port)).filter(|it| it.fixed != Some(true));
        port.node_port = match of_port.and_then(|it| Some((it.node_port?, it.fixed))) {
            // The API server refuses a Service that has the same number twice for one protocol.
            Some((number, chosen)) if written.contains(&(number, port.protocol)) => {
                unsure = unsure.or(chosen.is_none().then_some(number));
                chosen.map(|_| number)
            }
            Some((number, _)) if !is_written(&number) => Some(number),
            _ => of_name,
        };
        port.fixed = Some(false);
    }
    if service.kind == ServiceKind::LoadBalancer && service.external_local {
        // The API server refuses another number, so the Service keeps the number.
        service.health_check_node_port = before.health_check_node_port.or(service.health_check_node_port);
        service.health_check_kept = service.health_check_node_port == before.health_check_node_port;
    }
    unsure
}

/// Whether a socket closes when a pod is replaced. A socket of the pod closes. A socket on a port of the pod also
/// closes, because the container runtime may hold the port for the pod.
fn ends_with(pod: &Pod, socket: &Socket) -> bool {
    let holder = match &socket.owner {
        Owner::Held(holder) => holder.cgroup.known(Unread::Doubted).and_then(|cgroup| cgroup.pod.as_ref()),
        _ => None,
    };
    let is_its = |uid: &String| holder.is_some_and(|holder| holder.pod_uid == *uid);
    [&pod.uid, &pod.config_hash].into_iter().flatten().any(is_its)
        || pod.node_ports().any(|(number, port)| (number, port.protocol) == (socket.local_port, socket.protocol))
}

impl Linted {
    /// Adds the objects of manifests to a snapshot. An object of the manifests replaces an object with its name.
    ///
    /// Without a source for the NodePort range, the range is the default. If a Service of the cluster has a nodePort
    /// outside the default, the range is unknown.
    pub fn new(manifests: Vec<Manifest>, facts: ClusterFacts, mut around: Snapshot, range: &NodePortRange) -> Self {
        around.cluster.node_port_range = match doubt(range, &around.cluster, &facts) {
            Some(gap) => Reading::Gap(gap),
            None => Reading::Seen(range.clone()),
        };
        let names: BTreeSet<(&str, &str, &str)> =
            manifests.iter().map(|it| (it.kind, &*it.namespace, &*it.name)).collect();
        let cluster = &mut around.cluster;
        let unread = Unread::Reported("LintReport::failures");
        let has_services = cluster.services.gap().is_none();
        let mut services: Vec<Arc<Service>> = cluster.services.known_part(unread).to_vec();
        let mut updated = BTreeMap::new();
        services.retain(|it| {
            let is_updated = names.contains(&("Service", &it.namespace, &it.name));
            if is_updated {
                updated.insert((it.namespace.clone(), it.name.clone()), Arc::clone(it));
            }
            !is_updated
        });
        // Lint does not judge fixed numbers that Services already have.
        for service in services.iter_mut().map(Arc::make_mut) {
            service.ports.iter_mut().for_each(|port| port.fixed = Some(false));
            service.health_check_kept = true;
        }
        let mut unsure = Vec::new();
        services.extend(facts.services.known_part(unread).iter().cloned().map(|mut service| {
            // If the cluster was read, the uid and the managedFields of a manifest show nothing about the cluster.
            if has_services && service.uid.is_some() {
                let service = Arc::make_mut(&mut service);
                service.uid = None;
                service.ports.iter_mut().for_each(|port| port.fixed = Some(port.node_port.is_some()));
            }
            if let Some(before) = updated.get(&(service.namespace.clone(), service.name.clone()))
                && let Some(number) = keep_numbers(Arc::make_mut(&mut service), before)
            {
                let detail = format!(
                    "Service {}/{}: the API server refuses nodePort {number} for another port, unless a person chose this number: write the input of --against with --show-managed-fields",
                    service.namespace, service.name
                );
                unsure.push((Arc::clone(&service), Gap::new(Source::Services, Why::Ambiguous, detail)));
            }
            service
        }));
        // The endpoints of new Services are not known.
        if let Reading::Seen(slices) = &cluster.endpoint_slices {
            let of_slices = slices.iter().map(|slice| &slice.service);
            let all = || of_slices.chain(services.iter().map(|it| &it.name)).cloned().collect();
            let mut known: BTreeSet<String> = cluster.endpoints_of.as_deref().cloned().unwrap_or_else(all);
            let new = services.iter().filter(|it| names.contains(&("Service", &it.namespace, &it.name)));
            for it in new.filter(|it| !updated.contains_key(&(it.namespace.clone(), it.name.clone()))) {
                known.remove(&it.name);
            }
            cluster.endpoints_of = Some(Arc::new(known));
        }
        cluster.services = Reading::Seen(services);
        cluster.workloads.retain(|it| !names.contains(&(it.kind.name(), &it.namespace, &it.name)));
        cluster.workloads.extend(facts.workloads);
        let is_updated = |namespace: &str, name: &str, controller: Option<&Controller>| {
            let (kind, name) = controller.and_then(made_by).unwrap_or(("Pod", name));
            names.contains(&(kind, namespace, name))
        };
        let mut replaced = Vec::new();
        if let Reading::Seen(pods) = &mut cluster.pods {
            replaced.extend(pods.extract_if(.., |pod| is_updated(&pod.namespace, &pod.name, pod.controller.as_ref())));
            pods.retain(|pod| !pod.finished);
        }
        if let Reading::Seen(waiting) = &mut cluster.waiting_pods {
            waiting.retain(|pod| !is_updated(&pod.namespace, &pod.name, pod.controller.as_ref()));
        }
        if let Reading::Seen(listeners) = &mut around.kernel.listeners {
            listeners.retain(|socket| !replaced.iter().any(|pod| ends_with(pod, socket)));
        }
        let free = has_services.then(|| numbers(&around)).flatten();
        Self { manifests, snapshot: around, held: updated, unsure, free }
    }

    pub(super) fn claims(&self) -> impl Iterator<Item = (&Manifest, &Claim)> {
        self.manifests.iter().flat_map(|manifest| manifest.claims.iter().map(move |claim| (manifest, claim)))
    }

    /// The Service that a manifest updates, as it is in the cluster now.
    pub(super) fn before(&self, service: &Manifest) -> Option<&Arc<Service>> {
        self.held.get(&(service.namespace.clone(), service.name.clone()))
    }

    /// The fields that the API server refuses because of the object itself, or because of the number that the object
    /// has now.
    pub(super) fn refused<'m>(&self, manifest: &'m Manifest) -> impl Iterator<Item = (&'m Claim, Refusal)> {
        let before = self.before(manifest);
        let alone = manifest.refused.iter().map(|Refused { claim, why }| (claim, *why));
        let alone = alone.filter(move |(claim, why)| {
            // The API server removes a number that the Service has in the same field. It does not compare protocols.
            let number = claim.what.port().map(|(number, _)| number);
            let is_had = before.is_some_and(|it| match claim.what {
                Claimed::HealthCheckNodePort(_) => it.health_check_node_port == number,
                _ => number.is_some() && it.ports.iter().any(|port| port.node_port == number),
            });
            !(is_had && matches!(why, Refusal::NodePort | Refusal::HealthCheck))
        });
        let replaced = manifest.claims.iter().filter_map(move |claim| match claim.what {
            Claimed::HealthCheckNodePort(number) => {
                let its = before?.health_check_node_port.filter(|its| *its != number)?;
                Some((claim, Refusal::HealthCheckReplaced(its)))
            }
            _ => None,
        });
        alone.chain(replaced)
    }

    /// If the field belongs to a Service, the finding suggests free NodePorts.
    pub(super) fn finding(
        &self,
        rule: RuleId,
        (manifest, claim): (&Manifest, &Claim),
        evidence: Evidence,
    ) -> PlacedFinding {
        let free = self.free.iter().filter(|_| claim.what.of_service().is_some());
        let evidence = free.fold(evidence, |evidence, (words, numbers)| evidence.value(words, numbers.clone()));
        placed(rule, (manifest, claim), evidence)
    }
}

pub(super) fn placed(rule: RuleId, (manifest, claim): (&Manifest, &Claim), evidence: Evidence) -> PlacedFinding {
    let (port, protocol) = claim.what.port().unzip();
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

#[cfg(test)]
mod tests {
    use super::*;

    fn service(ports: &[(&str, u16, Protocol, Option<u16>)]) -> Service {
        let world = Snapshot::healthy().service("web", |it| it.node_port(30080));
        let mut service = Service::clone(&world.cluster.services.get().expect("services")[0]);
        let like = service.ports[0].clone();
        let of = |&(name, port, protocol, node_port): &(&str, u16, Protocol, Option<u16>)| ServicePort {
            name: name.to_owned(),
            port,
            protocol,
            node_port,
            ..like.clone()
        };
        service.ports = ports.iter().map(of).collect();
        service
    }

    #[test]
    fn an_update_keeps_the_number_of_a_port_by_its_name_then_by_its_port_and_protocol() {
        use Protocol::{Tcp, Udp};
        let before =
            service(&[("web", 80, Tcp, Some(30080)), ("dns", 53, Udp, Some(30053)), ("api", 81, Tcp, Some(30081))]);
        let kept = |name, port, protocol, others: &[(&str, u16, Protocol, Option<u16>)]| {
            let mut update = service(&[&[(name, port, protocol, None)], others].concat());
            keep_numbers(&mut update, &before);
            update.ports[0].node_port
        };
        assert_eq!(kept("web", 8080, Tcp, &[]), Some(30080), "the name");
        assert_eq!(kept("other", 81, Tcp, &[]), Some(30081), "the port and the protocol");
        assert_eq!(kept("other", 53, Tcp, &[]), None, "another protocol");
        assert_eq!(kept("other", 54, Udp, &[]), None, "another port");
        let moved = [("api", 81, Tcp, Some(30080))];
        assert_eq!(kept("web", 8080, Tcp, &moved), None, "another port has the number now");
        assert_eq!(kept("web", 80, Tcp, &moved), Some(30080), "kubectl keeps what the API server chose");
    }

    #[test]
    fn whether_kubectl_keeps_the_number_of_a_port_depends_on_who_chose_the_number() {
        use Protocol::{Tcp, Udp};
        for (fixed, other, node_port, unsure) in [
            (Some(false), Tcp, Some(30080), None),
            (Some(true), Tcp, None, None),
            (None, Tcp, None, Some(30080)),
            (None, Udp, None, None),
        ] {
            let mut before = service(&[("web", 80, Tcp, Some(30080)), ("api", 81, other, Some(30081))]);
            before.ports[0].fixed = fixed;
            let mut update = service(&[("web", 80, Tcp, None), ("api", 81, other, Some(30080))]);
            assert_eq!(keep_numbers(&mut update, &before), unsure, "{fixed:?} {other}");
            assert_eq!(update.ports[0].node_port, node_port, "{fixed:?} {other}");
        }
    }

    #[test]
    fn only_a_load_balancer_that_stays_local_keeps_its_health_check_port() {
        let mut before = service(&[]);
        before.health_check_node_port = Some(32000);
        for (kind, external_local, kept) in [
            (ServiceKind::LoadBalancer, true, Some(32000)),
            (ServiceKind::LoadBalancer, false, None),
            (ServiceKind::NodePort, true, None),
            (ServiceKind::ClusterIp, true, None),
        ] {
            let mut update = Service { kind, external_local, health_check_node_port: None, ..service(&[]) };
            keep_numbers(&mut update, &before);
            assert_eq!(update.health_check_node_port, kept, "{kind:?}, {external_local}");
        }
    }
}
