//! A pod's hostPort is the NodePort of a Service.

use std::iter;

use super::{
    Limits, Round, Rule,
    assumed::assuming,
    capped::Capped,
    free_ports::Alternatives,
    ids,
    node_port_winner::{Rivals, Winner},
    node_ports::range_in_words,
    pods::unread_pod,
    remedies::another_number,
};
use crate::findings::{Affected, Evidence, Judgement, Judgements, Severity, Step, Subject, Vantage, Verdict};
use portreeve_dataplane::{
    Addressed, Claim, Judged, LocalAddress, Loss, covers, ignores_host_port, may_have, sent_to_node_port, service_port,
    unsettled,
};
use portreeve_facts::{ClaimOf, ContainerPort, Family, Gap, Pod, Service, ServicePort, Snapshot, Source, Unread};

pub(super) static RULE: Rule =
    Rule::of(&ids::HOST_PORT_CONFLICT, &["node-port"], &[Source::Pods, Source::Services, Source::Addresses], check);

fn check(round: &Round<'_>, _: &Limits) -> Judgements {
    let snapshot = round.now;
    let (host_ports, node_ports) = (round.host_ports().get()?, round.node_ports().get()?);
    let addressed = round.addressed().get()?;

    let met = node_ports.ports().map(|(port, services)| (services, host_ports.at(port)));
    let mut met = met.filter(|(_, pods)| !pods.is_empty()).peekable();
    let unread = unread_pod(snapshot).filter(|_| !node_ports.is_empty());
    if met.peek().is_none() {
        return Ok(unread.into_iter().collect());
    }
    let node = Node { round, snapshot, addressed, alternatives: Alternatives::of(round) };
    let mut capped = Capped::of(snapshot, Source::Pods);
    let clashes = met.flat_map(|(services, pods)| {
        let of = |(service, port)| pods.iter().map(move |(pod, host)| Clash { service, port, pod, host });
        services.iter().copied().flat_map(of)
    });
    clashes.flat_map(|clash| node.judge(&clash)).chain(unread).for_each(|judgement| capped.push(judgement));
    Ok(capped.all())
}

struct Clash<'a> {
    service: &'a Service,
    port: &'a ServicePort,
    pod: &'a Pod,
    host: &'a ContainerPort,
}

struct Node<'r, 'a> {
    round: &'r Round<'a>,
    snapshot: &'a Snapshot,
    addressed: &'r Addressed<'a>,
    alternatives: Alternatives,
}

/// The severity, the claim that gets the connections, and the vantage points that lose connections. The claim is `None`
/// if the settings or the addresses decide which claim gets the connections.
#[derive(Clone, PartialEq)]
struct Lost {
    severity: Severity,
    winner: Option<Winner>,
    affected: Affected,
    /// The reason why it is not known at some address which claim gets the connections.
    unread: Option<Gap>,
}

impl Loss for Lost {
    fn meet(self, other: &Self) -> Option<Self> {
        Some(Self {
            severity: self.severity.min(other.severity),
            winner: self.winner.filter(|it| other.winner == Some(*it)),
            affected: &self.affected & &other.affected,
            unread: self.unread.or_else(|| other.unread.clone()),
        })
    }
}

impl Node<'_, '_> {
    fn judge(&self, clash: &Clash<'_>) -> Vec<Judgement> {
        let Clash { service, port, pod, host } = *clash;
        let everywhere = host.host_ip.is_none_or(|ip| ip.is_unspecified());
        let covers = |local: &LocalAddress| {
            let family = Family::of(local.ip);
            service.families.contains(&family) && covers(host, local.ip) && may_have(pod, family)
        };
        let rivals = Rivals::of(self.round, self.addressed, (service, port), Claim::HostPort(pod, host), covers);
        let (judged, stratum) = self.addressed.over(everywhere, |assumption, case| {
            let won = rivals.winner(assumption, case)?;
            Ok(won.map(|won| Lost {
                severity: if won.affected.contains(&Vantage::Remote) { Severity::Critical } else { Severity::Warning },
                // The sentence is about every address of the hostPort.
                winner: Some(won.winner).filter(|_| won.unread.is_none()),
                affected: won.affected,
                unread: won.unread,
            }))
        });
        // A pod without an address is in no EndpointSlice yet.
        let may_join = port.target.is_none_or(|target| target == host.port);
        let verdicts = match (judged, self.is_an_endpoint(clash), unsettled(self.snapshot, pod)) {
            (Judged::Never, ..) => return Vec::new(),
            (Judged::Depends { on: gap, .. }, ..) | (Judged::Certain(..), Err(gap), _) => vec![Verdict::Unknown(gap)],
            (Judged::Certain(lost, _), Ok(false), Some(gap))
                if may_join || gap.source != Source::Pods || lost.winner != Some(Winner::Service) =>
            {
                vec![Verdict::Unknown(gap)]
            }
            (Judged::Certain(..), Ok(true), _) => {
                let (winner, affected) = (Some(Winner::Both), Affected::new());
                let both = Lost { severity: Severity::Info, winner, affected, unread: None };
                vec![Verdict::Problem(self.evidence(clash, &both))]
            }
            (Judged::Certain(lost, _), Ok(false), _) => {
                let problem = Verdict::Problem(self.evidence(clash, &lost));
                iter::once(problem).chain(lost.unread.map(Verdict::Unknown)).collect()
            }
        };
        let place = (host.protocol, port.node_port.unwrap_or_default());
        let judgement = |it| Judgement::on_port(Subject::pod(pod), place, assuming(stratum, everywhere, it));
        verdicts.into_iter().map(judgement).collect()
    }

    fn is_an_endpoint(&self, Clash { service, port, pod, host }: &Clash<'_>) -> Result<bool, Gap> {
        self.round.endpoints().includes(service, port, &pod.ips, host.port)
    }

    fn evidence(&self, clash: &Clash<'_>, lost: &Lost) -> Evidence {
        let Clash { service, port, pod, host } = clash;
        let Lost { severity, winner, affected, unread } = lost;
        let name = service_port(service, &port.name);
        let number = port.node_port.unwrap_or_default();
        let (outcome, ends) = match winner {
            Some(Winner::Service) => ("service", "the Service gets the pod's connections while it has endpoints"),
            Some(Winner::Pod) => ("pod", "the pod gets the Service's connections"),
            Some(Winner::Both) => ("both", "the Service also sends its connections to this pod"),
            Some(Winner::PodForNow) => ("pod-for-now", "the pod answers while the Service has no endpoints"),
            Some(Winner::Undefined) => {
                ("undefined", "a restart of the proxy changes which of the two gets connections")
            }
            None if unread.is_some() => {
                ("unknown", "on some addresses it is not known which of the two gets connections")
            }
            None => ("unknown", "either the pod or the Service gets no connections"),
        };
        let sentence = format!(
            "hostPort {number}/{} of pod {}/{} is the NodePort of {name}: {ends}.",
            host.protocol, pod.namespace, pod.name
        );
        // ServiceLB's pods are clients of the node like other pods.
        let sent = sent_to_node_port(self.snapshot, service, port).filter(|_| affected.contains(&Vantage::Pods));
        let lost = sent.filter(|_| *winner == Some(Winner::Pod));
        let words =
            |port| format!("port {port}/{} of this node, which ServiceLB sends to this NodePort", host.protocol);
        let evidence = Evidence::new(*severity, sentence)
            .about([ClaimOf::node_port(service, Some(port))])
            .value("pod", format!("{}/{}", pod.namespace, pod.name))
            .value(
                "hostPort",
                format!(
                    "{number}/{} on {} to container port {}",
                    host.protocol,
                    host.host_ip.map_or("every address".to_owned(), |ip| ip.to_string()),
                    host.port
                ),
            )
            .value("service", format!("{name} type {}, nodePort {number}/{}", service.kind.name(), port.protocol))
            .each("endpoints", self.round.endpoints().each_in_words(service, port))
            .each("lost too", lost.map(words))
            .value("proxy mode", self.addressed.assumptions.mode_in_words())
            .each("NodePort range", self.snapshot.cluster.node_port_range.known(Unread::Adds).map(range_in_words))
            .outcome(outcome)
            .affects(affected.iter().copied())
            .remedy(Step::advice(format!(
                "give pod {}/{} another hostPort, outside the NodePort range, in the object that declares its containers",
                pod.namespace, pod.name
            )));
        match ignores_host_port(self.snapshot, number) {
            true => evidence,
            false => {
                evidence.remedy(another_number(self.alternatives.for_port(service, Some(port)), service, Some(port)))
            }
        }
    }
}

#[cfg(test)]
mod tests;
