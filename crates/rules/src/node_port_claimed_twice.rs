//! Two objects claim one NodePort.

use std::{
    cell::LazyCell,
    cmp::Reverse,
    collections::{HashMap, HashSet},
    sync::Arc,
};

use super::{
    Limits, Round, Rule,
    capped::{Capped, OF_RULE},
    free_ports::Alternatives,
    ids,
    pods::{to_come, workload as workload_of},
    remedies::{another_number, another_port},
    wording::{MOST_LISTED, listed, number_field},
};
use crate::findings::{Evidence, Judgement, Judgements, REFUSED, Severity, Step, Subject, Vantage, Verdict};
use portreeve_dataplane::service_port;
use portreeve_facts::{
    ClaimOf, ContainerPort, Gap, Pod, Protocol, Service, ServiceName, ServicePort, Snapshot, Source, Why, Workload,
    if_requested,
};

pub(super) static RULE: Rule =
    Rule::of(&ids::NODE_PORT_CLAIMED_TWICE, &["lost", "refused", "anew", "pods", "own"], &[Source::Services], check)
        .uses(&[Source::Pods]);

/// The largest number of claims of one kind that are compared with one claim. A file may claim one number a hundred
/// thousand times.
const MOST_COMPARED: usize = 64;
/// The largest number of comparisons of claims with pods. Two files may have a hundred thousand Services and a hundred
/// thousand workloads with one number.
const MOST_WITH_PODS: usize = OF_RULE * MOST_COMPARED;

fn check(round: &Round<'_>, _: &Limits) -> Judgements {
    let snapshot = round.now;
    let allocated = round.allocated().get()?;
    // If Pods were not requested, the rule assumes that no pods exist. If Pods could not be read, the result is unknown
    // for new Services and for workloads: an unread pod may have the number. For an existing Service, each node
    // compares the Service with the node's own pods.
    let mut claims = allocated.iter();
    let is_to_come = !snapshot.cluster.workloads.is_empty() || claims.any(|(service, _)| service.uid.is_none());
    let (wanted, unread) = match if_requested(snapshot.cluster.pods.get()) {
        Ok(pods) => (wanted(snapshot, pods.map_or(&[][..], Vec::as_slice)), None),
        Err(gap) => (HashMap::new(), Some(gap).filter(|_| is_to_come)),
    };
    // Lazy, because the search for a free number goes through all Services.
    let alternatives = LazyCell::new(|| Alternatives::of(round));
    let mut capped = Capped::of(snapshot, Source::Services);
    let (mut left, mut left_out) = (MOST_WITH_PODS, None);
    for (number, claims) in allocated.ports() {
        let claims: Vec<_> = claims.iter().map(|&(service, port)| Claim { service, port }).collect();
        let compared = some_of_each_kind(snapshot, &claims);
        // Conflicts are counted without comparing all pairs. A claim conflicts with all other claims, except claims of
        // its Service with the same port and another protocol.
        let alike = LazyCell::new(|| {
            let mut alike: HashMap<(*const Service, u16, Protocol), usize> = HashMap::new();
            for (claim, port) in claims.iter().filter_map(|claim| Some((claim, claim.port?))) {
                *alike.entry((claim.service, port.port, port.protocol)).or_default() += 1;
            }
            alike
        });
        let beside_it = |claim: &Claim<'_>| {
            let of = |port: &ServicePort, protocol| alike.get(&(&raw const *claim.service, port.port, protocol));
            let others = Protocol::ALL.into_iter().filter(|protocol| *protocol != claim.protocol());
            1 + claim.port.map_or(0, |port| others.filter_map(|protocol| of(port, protocol)).sum())
        };
        for claim in &claims {
            let others = compared.iter();
            let others = others.filter_map(|other| Some((Other::Claim(*other), claim.clash(snapshot, other)?)));
            // If another proxy serves the Service, this node's proxy does not serve the nodePort.
            let of_pods = wanted.get(&(number, claim.protocol())).filter(|_| snapshot.proxy_serves(claim.service));
            let of_pods = of_pods.map_or(&[][..], Vec::as_slice);
            if of_pods.len() > left {
                let detail = "too many Services and pods have one number: not all are compared";
                left_out = Some(Gap::new(Source::Pods, Why::TooMuch, detail));
            }
            let of_pods = &of_pods[..of_pods.len().min(left)];
            left -= of_pods.len();
            let others = others.chain(of_pods.iter().filter_map(|other| Some((*other, claim.clash_with(other)?))));
            let mut others: Vec<(Other<'_>, Clash)> = others.collect();
            others.sort_by_key(|(_, clash)| Reverse(*clash));
            let all = if compared.len() == claims.len() {
                others.len()
            } else {
                let of_pods = others.iter().filter(|(other, _)| !matches!(other, Other::Claim(_))).count();
                of_pods + claims.len() - beside_it(claim)
            };
            others.truncate(MOST_LISTED);
            if let Some(worst) = others.first().map(|(_, clash)| *clash) {
                let subject = Subject::service(claim.service);
                if !capped.takes(&subject) {
                    capped.leave_out();
                    continue;
                }
                capped.push(Judgement::on_port(
                    subject,
                    (claim.protocol(), number),
                    Verdict::Problem(evidence(
                        number,
                        claim,
                        (&others, all),
                        worst,
                        alternatives.for_port(claim.service, claim.port),
                    )),
                ));
            }
        }
    }
    let unknown = |gap| Judgement::of(Subject::this_node(snapshot), Verdict::Unknown(gap));
    unread.into_iter().chain(left_out).map(unknown).for_each(|judgement| capped.push(judgement));
    Ok(capped.all())
}

/// The claims of one number that are compared, a limited number of each kind. Claims of one kind conflict in the same
/// way. Claims have the same kind if three facts are equal: the protocol, whether the claim exists, and whether this
/// node serves the Service.
fn some_of_each_kind<'a>(snapshot: &Snapshot, claims: &[Claim<'a>]) -> Vec<Claim<'a>> {
    let mut of_kind: HashMap<_, usize> = HashMap::new();
    let is_compared = |it: &&Claim<'_>| {
        let kind = (it.protocol(), it.service.has_accepted(it.port), snapshot.proxy_serves(it.service));
        let kept = of_kind.entry(kind).or_default();
        *kept += 1;
        *kept <= MOST_COMPARED
    };
    claims.iter().filter(is_compared).copied().collect()
}

/// The ports that new pods want, and ports of pods on other nodes, by number and protocol.
/// `host-port-conflict/node-port` judges the pods of this node. Only one pod of each workload is listed.
fn wanted<'a>(snapshot: &'a Snapshot, pods: &'a [Arc<Pod>]) -> HashMap<(u16, Protocol), Vec<Other<'a>>> {
    let of_workloads = to_come(snapshot).flat_map(|workload| {
        let of = (&*workload.namespace, workload.kind.name(), &*workload.name);
        workload.node_ports().map(move |(number, port)| (of, number, Other::Workload(workload, port)))
    });
    let is_elsewhere = |pod: &&Pod| pod.node.as_deref().is_some_and(|node| node != snapshot.node_name());
    let of_pods = pods.iter().map(AsRef::as_ref).filter(is_elsewhere).filter(|pod| !pod.finished).flat_map(|pod| {
        let (kind, name) = pod.controller.as_ref().and_then(workload_of).unwrap_or(("Pod", &pod.name));
        pod.node_ports().map(move |(number, port)| ((&*pod.namespace, kind, name), number, Other::Pod(pod, port)))
    });
    let mut wanted: HashMap<_, Vec<_>> = HashMap::new();
    let mut known = HashSet::new();
    for (of, number, other) in of_workloads.chain(of_pods).filter(|(.., other)| !other.is_at_loopback()) {
        let port = (number, other.protocol());
        // A pod that has the number on several addresses is listed once.
        if known.insert((of, port)) {
            wanted.entry(port).or_default().push(other);
        }
    }
    wanted
}

/// A Service's claim to a number, as nodePort or healthCheckNodePort.
#[derive(Clone, Copy)]
struct Claim<'a> {
    service: &'a Service,
    port: Option<&'a ServicePort>,
}

/// The kind of a conflict between two claims to one number. The mildest kind is first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Clash {
    /// A pod that may belong to the Service has the port, or will want the port.
    Own,
    Pods,
    /// Both Services work, for example with different families or protocols, but the API server would refuse to create
    /// them again, for example after a restore.
    Anew,
    /// The API server has not accepted this claim yet, and will refuse the claim.
    Refused,
    /// Both claims exist, and are about the same connections.
    Lost,
}

impl Clash {
    fn severity(self) -> Severity {
        match self {
            Self::Own => Severity::Info,
            Self::Pods | Self::Anew | Self::Refused => Severity::Warning,
            Self::Lost => Severity::Critical,
        }
    }

    fn words(self) -> &'static str {
        match self {
            Self::Own => "no connection is lost if the Service sends only to these pods",
            Self::Pods => "on nodes with its pods, one of the two gets no connections",
            Self::Anew => "the API server refuses to create this Service again",
            Self::Refused => "the API server refuses to create this Service",
            Self::Lost => "only one of the Services gets connections",
        }
    }

    fn variant(self) -> &'static str {
        match self {
            Self::Own => "own",
            Self::Pods => "pods",
            Self::Anew => "anew",
            Self::Refused => "refused",
            Self::Lost => "lost",
        }
    }
}

impl Claim<'_> {
    /// Health checks are HTTP, over TCP.
    fn protocol(&self) -> Protocol {
        self.port.map_or(Protocol::Tcp, |port| port.protocol)
    }

    fn name(&self) -> String {
        service_port(self.service, self.port.map_or("", |port| &port.name))
    }

    /// The conflict with pods that have the number, or will want the number. No rule reads the selectors of Services.
    /// So pods in the Service's namespace with the Service's target port are treated as *own*. A pod that ServiceLB of
    /// k3s and RKE2 makes for the Service is no conflict.
    fn clash_with(&self, other: &Other<'_>) -> Option<Clash> {
        let Service { namespace, name, .. } = self.service;
        let sends_to = |to: u16| self.port.is_some_and(|port| port.target.is_none_or(|target| target == to));
        let is_own = match other {
            Other::Claim(_) => return None,
            Other::Workload(workload, port) => {
                workload.host_network && workload.namespace == *namespace && sends_to(port.port)
            }
            Other::Pod(pod, port) => {
                let is_it = |of: &ServiceName| (&of.namespace, &of.name) == (namespace, name);
                if pod.service_lb_of.as_ref().is_some_and(is_it) {
                    return None;
                }
                pod.namespace == *namespace && sends_to(port.port)
            }
        };
        Some(if is_own { Clash::Own } else { Clash::Pods })
    }

    /// The conflict with another claim to the number. `None` if the claims are identical, or if both claims are valid
    /// together. If only this claim exists, the result is `None` too, because the API server refuses the other claim.
    fn clash(&self, snapshot: &Snapshot, other: &Self) -> Option<Clash> {
        let same_protocol = self.protocol() == other.protocol();
        let same_service = std::ptr::eq(self.service, other.service);
        if same_service {
            let itself = match (self.port, other.port) {
                // A Service may use one nodePort for two protocols, if both entries have the same `port`.
                (Some(own), Some(other)) => std::ptr::eq(own, other) || (!same_protocol && own.port == other.port),
                (own, other) => own.is_none() && other.is_none(),
            };
            if itself {
                return None;
            }
        }
        // The API server refuses a Service with one number twice for one protocol, even if the existing Service has the
        // number already.
        if same_service && same_protocol && self.service.uid.is_none() {
            return Some(Clash::Refused);
        }
        let served = [self, other].iter().all(|claim| snapshot.proxy_serves(claim.service));
        // kube-proxy answers health checks on the addresses of both families.
        let meet = self.port.is_none()
            || other.port.is_none()
            || self.service.families.iter().any(|it| other.service.families.contains(it));
        match (self.service.has_accepted(self.port), other.service.has_accepted(other.port)) {
            (false, _) => Some(Clash::Refused),
            (true, false) => None,
            (true, true) if same_protocol && served && meet => Some(Clash::Lost),
            (true, true) => Some(Clash::Anew),
        }
    }
}

#[derive(Clone, Copy)]
enum Other<'a> {
    Claim(Claim<'a>),
    Workload(&'a Workload, &'a ContainerPort),
    Pod(&'a Pod, &'a ContainerPort),
}

impl Other<'_> {
    fn words(&self) -> String {
        match self {
            Self::Claim(claim) => format!("{} of {}", number_field(claim.port), claim.name()),
            Self::Workload(workload, _) if workload.host_network => format!("port of {workload} in the host's network"),
            Self::Workload(workload, _) => format!("hostPort of {workload}"),
            Self::Pod(Pod { namespace, name, node, host_network, .. }, _) => {
                let on = node.as_deref().unwrap_or_default();
                match host_network {
                    true => format!("port of pod {namespace}/{name} on {on} in the host's network"),
                    false => format!("hostPort of pod {namespace}/{name} on {on}"),
                }
            }
        }
    }

    fn protocol(&self) -> Protocol {
        match self {
            Self::Claim(claim) => claim.protocol(),
            Self::Workload(_, port) | Self::Pod(_, port) => port.protocol,
        }
    }

    /// Whether the port is only on loopback. A NodePort does not take connections to a hostPort on loopback.
    fn is_at_loopback(&self) -> bool {
        match self {
            Self::Claim(_) => false,
            Self::Workload(_, port) | Self::Pod(_, port) => port.host_ip.is_some_and(|ip| ip.is_loopback()),
        }
    }

    /// The field of the claim in a manifest. `None` for an existing pod, which is in no manifest.
    fn field(&self, number: u16) -> Option<ClaimOf> {
        match self {
            Self::Claim(claim) => Some(ClaimOf::node_port(claim.service, claim.port)),
            Self::Workload(workload, port) => Some(ClaimOf::pod_port(workload, number, port.protocol)),
            Self::Pod(..) => None,
        }
    }
}

fn evidence(
    number: u16,
    claim: &Claim<'_>,
    (others, all): (&[(Other<'_>, Clash)], usize),
    worst: Clash,
    alternative: Option<u16>,
) -> Evidence {
    let what = format!("{} {number}/{}", number_field(claim.port), claim.protocol());
    let name = claim.name();
    // The API server accepts the first of several new Services.
    let is_new = |(other, _): &(Other<'_>, Clash)| match other {
        Other::Claim(it) => !std::ptr::eq(it.service, claim.service) && !it.service.has_accepted(it.port),
        Other::Workload(..) | Other::Pod(..) => true,
    };
    let end = match (worst, others) {
        (Clash::Pods, [(Other::Pod(..), _), ..]) => "on that node one of the two gets no connections",
        (Clash::Refused, _) if others.iter().all(is_new) => "the API server creates only the first of these Services",
        _ => worst.words(),
    };
    // `end` is about the worst conflict. If a Service is the worst conflict, pods have a milder conflict.
    let claims = others.iter().take_while(|(other, _)| matches!(other, Other::Claim(_))).count();
    let (claims, pods) = others.split_at(claims);
    let words_of = |of: &[(Other<'_>, Clash)]| listed(of.iter().map(|(other, _)| other.words()));
    let more = if all > others.len() { format!(" and {} more", all - others.len()) } else { String::new() };
    let summary = match (claims, pods) {
        ([], of) | (of, []) => format!("{what} of {name} is also {}{more}: {end}.", words_of(of)),
        _ => {
            let beside = format!("{number} is also {}{more}", words_of(pods));
            format!("{what} of {name} is also {}: {end}; {beside}.", words_of(claims))
        }
    };
    let lost = [Vantage::Remote, Vantage::Node, Vantage::Pods];
    let words = |(other, _): &(Other<'_>, Clash)| format!("{}, {number}/{}", other.words(), other.protocol());
    let evidence = Evidence::new(worst.severity(), summary)
        .in_cluster()
        .variant(worst.variant())
        .outcome(if worst == Clash::Refused { REFUSED } else { "" })
        .about([ClaimOf::node_port(claim.service, claim.port)])
        .beside(others.iter().filter_map(|(other, _)| other.field(number)))
        .value("service", format!("{name} type {}, {what}", claim.service.kind.name()))
        .affects(lost.into_iter().filter(|_| worst == Clash::Lost))
        .each("also claimed by", others.iter().map(words))
        .and_more("also claimed by", all, others.len())
        .remedy(another_number(alternative, claim.service, claim.port));
    // If several claims conflict with this claim, a change of one other claim does not end the problem.
    match others {
        [(Other::Workload(workload, _), _)] => evidence.remedy(Step::advice(format!(
            "give {workload} another port of the node, outside the NodePort range, in its template"
        ))),
        [(Other::Pod(pod, _), _)] => evidence.remedy(another_port(&pod.namespace, &pod.name, pod.controller.as_ref())),
        _ => evidence,
    }
}

#[cfg(test)]
mod tests;
