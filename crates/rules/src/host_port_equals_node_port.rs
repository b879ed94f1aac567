//! A pod's hostPort is the NodePort of a Service.

use std::collections::HashMap;

use super::{
    Limits, Patience, Rule,
    assumed::judged,
    free_ports::Alternatives,
    ids,
    node_port_winner::{Winner, winners},
    node_ports::{if_served, range_in_words},
    remedies::move_service,
    told::Told,
};
use crate::findings::{Affected, Evidence, Judgement, Judgements, Severity, Step, Subject, Vantage, Verdict};
use portreeve_dataplane::{
    Candidate, Candidates, Endpoints, LocalAddress, Part, covers, host_ports, local_addresses, may_have,
    sent_to_node_port, served_node_ports, service_port,
};
use portreeve_facts::{ContainerPort, Family, Gap, Pod, Protocol, Service, ServicePort, Snapshot, Source, View};

pub(super) static RULE: Rule = Rule {
    id: &ids::HOST_PORT_CONFLICT,
    variants: &["node-port"],
    needs: &[Source::Pods, Source::Services, Source::Addresses],
    uses: &[],
    socket_needs: &[],
    patience: Patience::TwoScans,
    check,
};

fn check(view: View<'_>, limits: &Limits) -> Judgements {
    let snapshot = view.now;
    let pods = snapshot.cluster.pods.get()?;
    let services = snapshot.cluster.services.get()?;
    let interfaces = snapshot.kernel.interfaces.get()?;

    let mut by_port: HashMap<(Protocol, u16), Vec<(&Pod, &ContainerPort)>> = HashMap::new();
    for (pod, port, number) in host_ports(snapshot, pods) {
        by_port.entry((port.protocol, number)).or_default().push((pod, port));
    }
    let hits: Vec<_> = served_node_ports(snapshot, services)
        .filter_map(|(service, port, number)| Some((service, port, by_port.get(&(port.protocol, number))?)))
        .collect();
    if hits.is_empty() {
        return Ok(Vec::new());
    }
    let node = Node {
        snapshot,
        candidates: Candidates::of(snapshot, interfaces, limits.proxy_lag_seconds),
        locals: local_addresses(interfaces),
        endpoints: Endpoints::of(snapshot),
        alternatives: Alternatives::of(snapshot),
    };
    let mut told = Told::of(snapshot, Source::Pods);
    let clashes = hits
        .into_iter()
        .flat_map(|(service, port, pods)| pods.iter().map(move |(pod, host)| Clash { service, port, pod, host }));
    clashes.filter_map(|clash| node.judge(&clash)).for_each(|judgement| told.push(judgement));
    Ok(told.all())
}

/// Two claims to one port.
struct Clash<'a> {
    service: &'a Service,
    port: &'a ServicePort,
    pod: &'a Pod,
    host: &'a ContainerPort,
}

/// What every clash is judged against.
struct Node<'a> {
    snapshot: &'a Snapshot,
    candidates: Candidates,
    locals: Vec<LocalAddress>,
    endpoints: Endpoints<'a>,
    /// A nodePort that a Service could have instead.
    alternatives: Alternatives<'a>,
}

impl Node<'_> {
    fn judge(&self, clash: &Clash<'_>) -> Option<Judgement> {
        let everywhere = clash.host.host_ip.is_none_or(|ip| ip.is_unspecified());
        let verdict = judged(&self.candidates, everywhere, |candidates| self.verdict(candidates, clash))?;
        Some(Judgement {
            subject: Subject::pod(clash.pod),
            port: clash.host.host_port,
            protocol: Some(clash.host.protocol),
            verdict: if_served(self.snapshot, clash.service, Part::NodePorts, verdict),
        })
    }

    fn verdict(&self, candidates: &[Candidate], clash: &Clash<'_>) -> Option<Verdict> {
        let outcomes: Vec<_> = candidates.iter().flat_map(|candidate| self.outcomes(candidate, clash)).collect();
        let mildest = outcomes.iter().min_by_key(|outcome| outcome.as_ref().map(|(severity, ..)| *severity));
        let Some((severity, winner, affected)) = mildest? else {
            let silent = outcomes.iter().all(Option::is_none);
            return (!silent).then(|| Verdict::Unknown(self.candidates.ambiguity()));
        };
        let agreed = outcomes.iter().flatten().all(|(_, other, _)| other == winner);
        let others = outcomes.iter().flatten().map(|(_, _, others)| others);
        let affected = others.fold(affected.clone(), |certain, others| &certain & others);
        Some(match self.is_an_endpoint(clash) {
            Ok(true) => Verdict::Problem(self.evidence(clash, Severity::Info, Some(Winner::Both), &Affected::new())),
            Ok(false) => Verdict::Problem(self.evidence(clash, *severity, agreed.then_some(*winner), &affected)),
            Err(gap) => Verdict::Unknown(gap),
        })
    }

    /// Whether the Service sends to the pod's container port too.
    fn is_an_endpoint(&self, Clash { service, port, pod, host }: &Clash<'_>) -> Result<bool, Gap> {
        self.endpoints.includes(service, port, &pod.ips, host.port)
    }

    /// How bad it is, who wins and who loses, with each value that unknown endpoints may have; nothing where the two
    /// do not meet.
    fn outcomes(&self, candidate: &Candidate, clash: &Clash<'_>) -> Vec<Option<(Severity, Winner, Affected)>> {
        let meeting: Vec<LocalAddress> = self
            .locals
            .iter()
            .copied()
            .filter(|local| clash.service.families.contains(&Family::of(local.ip)))
            .filter(|local| covers(clash.host, local.ip) && may_have(clash.pod, Family::of(local.ip)))
            .filter(|local| candidate.captures(*local))
            .collect();
        if meeting.is_empty() {
            return vec![None];
        }
        let possible = winners(candidate, &self.endpoints, (clash.service, clash.port), &meeting).into_iter();
        let severity = |affected: &Affected| match affected.contains(&Vantage::Remote) {
            true => Severity::Critical,
            false => Severity::Warning,
        };
        possible.map(|(winner, affected)| Some((severity(&affected), winner, affected))).collect()
    }

    fn evidence(&self, clash: &Clash<'_>, severity: Severity, winner: Option<Winner>, affected: &Affected) -> Evidence {
        let Clash { service, port, pod, host } = clash;
        let name = service_port(service, &port.name);
        let number = port.node_port.unwrap_or_default();
        let ends = match winner {
            Some(Winner::Service) => "the Service gets its connections while it has endpoints".to_owned(),
            Some(Winner::Pod) => "the pod gets the Service's connections".to_owned(),
            Some(Winner::Both) => "the Service sends to the pod, too".to_owned(),
            Some(Winner::PodForNow) => "the pod answers while the Service has nobody to send to".to_owned(),
            Some(Winner::Undefined) => "who gets a connection changes with a restart of the proxy".to_owned(),
            None => "one of them loses its connections".to_owned(),
        };
        let sentence = format!(
            "hostPort {number}/{} of pod {}/{} is the NodePort of {name}: {ends}.",
            host.protocol, pod.namespace, pod.name
        );
        let mut evidence = Evidence::new(severity, sentence)
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
            .value("service", format!("{name} type {}, nodePort {number}/{}", service.kind.name(), port.protocol));
        for family in &service.families {
            let words = self.endpoints.in_words(service, port, *family);
            evidence = evidence.value("endpoints", format!("{family}: {words}"));
        }
        // ServiceLB's pods ask the node, as all pods do.
        let sent = sent_to_node_port(self.snapshot, service, port).filter(|_| affected.contains(&Vantage::Pods));
        let lost = sent.filter(|_| winner == Some(Winner::Pod));
        let words =
            |port| format!("port {port}/{} of this node, which ServiceLB sends to this NodePort", host.protocol);
        evidence.values.extend(lost.map(|port| ("lost too", words(port))));
        evidence = evidence.value("proxy mode", self.candidates.mode_in_words());
        if let Some(range) = self.snapshot.cluster.node_port_range.seen() {
            evidence = evidence.value("NodePort range", range_in_words(range));
        }
        evidence
            .outcome(match winner {
                Some(Winner::Service) => "service",
                Some(Winner::Pod) => "pod",
                Some(Winner::Both) => "both",
                Some(Winner::PodForNow) => "pod-for-now",
                Some(Winner::Undefined) => "undefined",
                None => "unknown",
            })
            .affects(affected.iter().copied())
            .remedy(Step::advice(format!(
                "give pod {}/{} another hostPort, outside the NodePort range, where its containers are declared",
                pod.namespace, pod.name
            )))
            .remedy(move_service(self.alternatives.for_port(service, Some(port)), service, port))
    }
}

#[cfg(test)]
mod tests;
