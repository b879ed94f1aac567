//! The redirection of a hostPort remains after its pod is gone.

use std::net::SocketAddr;

use super::{
    Limits, Round, Rule, ids,
    node_port_winner::{Rivals, Winner},
    remedies::delete_rule,
    wording::MOST_LISTED,
};
use crate::findings::{Affected, Evidence, Judgement, Judgements, Remedy, Severity, Step, Subject, Vantage, Verdict};
use portreeve_dataplane::{
    Claim, Contest, Judged, LocalAddress, Loss, Redirections, Stratum, meet, owner_name, service_port, share_table,
    v6only_unknown,
};
use portreeve_facts::{Family, Gap, Owner, Pod, Redirection, Snapshot, Socket, Source, Unread, if_requested};

pub(super) static RULE: Rule = Rule::of(&ids::STALE_REDIRECTION, &["host-port"], &[Source::Pods], check).uses(&[
    Source::Netfilter,
    Source::Listeners,
    Source::Addresses,
    Source::Services,
]);

fn check(round: &Round<'_>, _: &Limits) -> Judgements {
    let snapshot = round.now;
    round.host_ports().get()?;
    let subject = Subject::this_node(snapshot);
    let Ok(redirections) = round.redirections().get() else {
        return round.missed_redirections().map_or(Ok(Vec::new()), Err);
    };
    let node = Node { round, snapshot, redirections };
    let mut judgements = Vec::new();
    for ((protocol, port), of_port) in redirections.ports() {
        if redirections.is_awaited((protocol, port)) {
            continue;
        }
        let (mut problems, mut doubt) = node.judge(of_port);
        // An unread pod may have the target address or the hostPort.
        if let Some(gap) = snapshot.cluster.unread_pod().filter(|_| !problems.is_empty()) {
            (problems, doubt) = (Vec::new(), Some(gap.clone()));
        }
        let all = problems.len();
        let reported = problems.into_iter().take(MOST_LISTED).map(|it| node.evidence(it)).reduce(Evidence::merge);
        let reported = reported.map(|evidence| Verdict::Problem(evidence.and_more("redirection", all, MOST_LISTED)));
        judgements.extend(
            reported
                .into_iter()
                .chain(doubt.map(Verdict::Unknown))
                .map(|verdict| Judgement::on_port(subject.clone(), (protocol, port), verdict)),
        );
    }
    Ok(judgements)
}

struct Node<'r, 'a> {
    round: &'r Round<'a>,
    snapshot: &'a Snapshot,
    redirections: &'r Redirections<'a>,
}

#[derive(Clone, PartialEq)]
struct Taken {
    is_certain: bool,
    from: Affected,
}

impl Loss for Taken {
    fn meet(self, other: &Self) -> Option<Self> {
        Some(Self { is_certain: self.is_certain && other.is_certain, from: &self.from & &other.from })
    }
}

/// The pod, process or Service that has the port, and may get no connections.
struct Loser {
    name: String,
    /// Critical if the pod, process or Service certainly gets no connections.
    severity: Severity,
    /// The settings with which the process or Service loses connections.
    stratum: Stratum,
    vantage_points: Vec<Vantage>,
}

/// The result, and the unread input that may hide more results.
type Found<T> = (Option<T>, Option<Gap>);

struct LeftBehind<'a> {
    severity: Severity,
    redirection: &'a Redirection,
    loser: Option<Loser>,
}

/// Whether Podman may have opened this socket, to keep the port for its container. Only containers of root have
/// redirections.
fn is_of_podman(socket: &Socket) -> bool {
    let Owner::Held(holder) = &socket.owner else { return false };
    socket.is_of_root() && holder.process.known(Unread::Doubted).is_some_and(|it| it.command == "conmon")
}

/// The vantage points whose connections the redirection takes. A redirection for one address does not take connections
/// to loopback.
fn vantage_points_of(redirection: &Redirection) -> Vec<Vantage> {
    let loopback = redirection.ip.is_none().then_some(Vantage::Loopback);
    [Vantage::Remote, Vantage::Node, Vantage::Pods].into_iter().chain(loopback).collect()
}

impl Node<'_, '_> {
    /// The problems of the redirections of one port, worst first, and the unread input that may hide more. Problems of
    /// equal severity are in the order in which the kernel checks the redirections.
    fn judge<'b>(&self, of_port: &[&'b Redirection]) -> (Vec<LeftBehind<'b>>, Option<Gap>) {
        let (mut alive, mut others) = (Vec::new(), Vec::new());
        for (place, it) in of_port.iter().copied().enumerate() {
            match self.redirections.pod_of(it).filter(|pod| !pod.finished) {
                Some(pod) => alive.push((place, it, pod)),
                None => others.push((place, it)),
            }
        }
        let (found, doubts): (Vec<_>, Vec<_>) =
            others.into_iter().map(|(place, it)| self.left_behind(it, place, &alive)).unzip();
        let mut found: Vec<_> = found.into_iter().flatten().collect();
        found.sort_by_key(|it| std::cmp::Reverse(it.severity));
        (found, doubts.into_iter().flatten().next())
    }

    fn left_behind<'b>(
        &self,
        redirection: &'b Redirection,
        place: usize,
        alive: &[(usize, &Redirection, &Pod)],
    ) -> Found<LeftBehind<'b>> {
        let mut with = alive.iter().filter(|(_, other, _)| share_table(other, redirection) && meet(other, redirection));
        let first = with.next();
        let shadowed = first.is_some_and(|(its, ..)| *its < place);
        let pod = first.map(|(_, _, pod)| Loser {
            name: format!("pod {}/{}", pod.namespace, pod.name),
            severity: Severity::Critical,
            stratum: Stratum::Any,
            vantage_points: vantage_points_of(redirection),
        });
        let is_of_pods = self.redirections.is_of_pods(redirection.to);
        let (loser, doubt) = match (pod, &is_of_pods) {
            _ if shadowed => (None, None),
            (Some(pod), _) => (Some(pod), None),
            (None, Ok(true)) => self.others(redirection),
            (None, Ok(false)) => self.beside_container(redirection),
            (None, Err(gap)) => (None, Some(gap.clone())),
        };
        let severity = match loser {
            Some(Loser { severity: Severity::Critical, .. }) => Severity::Critical,
            // The pod has ended, and the CNI plugin may still remove the redirection.
            _ if self.redirections.pod_of(redirection).is_some() => return (None, doubt),
            Some(Loser { severity, .. }) => severity,
            None if shadowed || is_of_pods != Ok(true) => Severity::Info,
            None => Severity::Warning,
        };
        (Some(LeftBehind { severity, redirection, loser }), doubt)
    }

    /// The process or Service whose connections the redirection takes or may take. The caller checks pods before. A
    /// Service comes first, because a listener may lose only the connections to one address.
    fn others(&self, redirection: &Redirection) -> Found<Loser> {
        let of_service = self.node_port(redirection);
        if let Ok(Some(Loser { severity: Severity::Critical, .. })) = of_service {
            return (of_service.ok().flatten(), None);
        }
        let listener = self.listener(redirection, |_| false);
        let unread = match listener.and_then(|socket| socket.map_or(Ok(None), |it| self.taken_from(redirection, it))) {
            Ok(Some(loser)) => return (Some(loser), None),
            Ok(None) => None,
            Err(gap) => Some(gap),
        };
        match of_service {
            Ok(loser) => (loser, unread),
            Err(gap) => (None, unread.or(Some(gap))),
        }
    }

    /// The process of the listener, if the redirection takes its connections. In some modes a NodePort takes the
    /// connections before the redirection.
    fn taken_from(&self, redirection: &Redirection, socket: &Socket) -> Result<Option<Loser>, Gap> {
        let loser = |severity| self.loser(redirection, socket, severity);
        let of_port = (redirection.protocol, redirection.port);
        let node_ports = self.round.node_ports().get().map_or(&[][..], |all| all.at(of_port));
        if node_ports.is_empty() {
            return Ok(Some(loser(Severity::Critical)));
        }
        let addressed = self.round.addressed().get()?;
        let node_ports = node_ports.iter().map(|(service, port)| Claim::NodePort(service, port));
        let claims =
            [Claim::Redirection(redirection)].into_iter().chain(node_ports).chain([Claim::Listener(socket, 1)]);
        let contest = Contest::of(self.round, addressed, of_port, claims);
        let everywhere = redirection.ip.is_none() && socket.local.is_unspecified();
        let (judged, _) = addressed.over(everywhere, |assumption, case| {
            contest.lost((assumption, case), &Ok(false), |_, outcome| outcome.is_some())
        });
        Ok(match judged {
            Judged::Never => None,
            Judged::Depends { ever: None, on } => return Err(on),
            Judged::Depends { .. } => Some(loser(Severity::Warning)),
            Judged::Certain(lost, _) => {
                Some(Loser { vantage_points: lost.affected().into_iter().collect(), ..loser(Severity::Critical) })
            }
        })
    }

    /// The process whose connections the redirection takes, if the target may be a container outside Kubernetes. The
    /// runtime of this container may have opened the socket, so the process may lose nothing.
    fn beside_container(&self, redirection: &Redirection) -> Found<Loser> {
        let socket = match self.listener(redirection, is_of_podman) {
            Ok(Some(socket)) => socket,
            Ok(None) => return (None, None),
            Err(gap) => return (None, Some(gap)),
        };
        let process = match &socket.owner {
            Owner::Held(holder) => if_requested(holder.process.get()),
            Owner::NotRead | Owner::TimeWait | Owner::Kernel { .. } => Ok(None),
        };
        // An unread process may be the runtime.
        let severity = if matches!(process, Ok(Some(_))) { Severity::Warning } else { Severity::Info };
        (Some(self.loser(redirection, socket, severity)), process.err())
    }

    /// The first listener whose connections the redirection takes. `is_left_out` selects listeners to leave out.
    fn listener(&self, redirection: &Redirection, is_left_out: fn(&Socket) -> bool) -> Result<Option<&Socket>, Gap> {
        let family = Family::of(redirection.to);
        let sockets = self.round.listeners().get()?.at((redirection.protocol, redirection.port)).iter().copied();
        let affected = sockets.filter(|it| redirection.ip.is_none_or(|ip| it.local.is_unspecified() || it.local == ip));
        let mut unknown = None;
        for socket in affected.filter(|it| !is_left_out(it)) {
            match socket.serves(family) {
                Some(false) => {}
                None => unknown = Some(v6only_unknown(socket)),
                Some(true) => return Ok(Some(socket)),
            }
        }
        unknown.map_or(Ok(None), Err)
    }

    fn loser(&self, redirection: &Redirection, socket: &Socket, severity: Severity) -> Loser {
        let loopback = socket.local.is_loopback();
        let vantage_points = if loopback { vec![Vantage::Loopback] } else { vantage_points_of(redirection) };
        Loser { name: owner_name(self.snapshot, &socket.owner), severity, stratum: Stratum::Any, vantage_points }
    }

    /// A Service whose NodePort connections the redirection takes or may take. `None` if Services were not requested.
    fn node_port(&self, redirection: &Redirection) -> Result<Option<Loser>, Gap> {
        let family = Family::of(redirection.to);
        let Some(node_ports) = if_requested(self.round.node_ports().get())? else { return Ok(None) };
        let mut claims = node_ports.at((redirection.protocol, redirection.port)).iter();
        let Some((service, port)) = claims.find(|(service, _)| service.families.contains(&family)) else {
            return Ok(None);
        };
        let addressed = self.round.addressed().get()?;
        let is_redirected =
            |local: &LocalAddress| Family::of(local.ip) == family && redirection.ip.is_none_or(|ip| ip == local.ip);
        let redirected = Claim::Redirection(redirection);
        let rivals = Rivals::of(self.round, addressed, (service, port), redirected, is_redirected);
        let (judged, stratum) = addressed.over(redirection.ip.is_none(), |assumption, case| {
            let won = rivals.winner(assumption, case)?;
            Ok(won.and_then(|won| match won.winner {
                Winner::Pod => Some(Taken { is_certain: true, from: won.affected }),
                Winner::Undefined => Some(Taken { is_certain: false, from: won.affected }),
                Winner::Both | Winner::PodForNow | Winner::Service => None,
            }))
        });
        let is_known = |stratum| stratum != Stratum::Defaults || redirection.ip.is_none();
        let (severity, stratum, from) = match judged {
            Judged::Never => return Ok(None),
            Judged::Depends { ever: None, on } => return Err(on),
            Judged::Certain(Taken { is_certain: true, from }, _) if is_known(stratum) => {
                (Severity::Critical, stratum, from)
            }
            Judged::Certain(..) | Judged::Depends { .. } => (Severity::Warning, Stratum::Any, Affected::new()),
        };
        let name = format!("Service {}", service_port(service, &port.name));
        Ok(Some(Loser { name, severity, stratum, vantage_points: from.into_iter().collect() }))
    }

    fn evidence(&self, LeftBehind { severity, redirection, loser }: LeftBehind<'_>) -> Evidence {
        let Redirection { protocol, port, to, to_port, chain, handle, .. } = redirection;
        let to = SocketAddr::new(*to, *to_port);
        let holder = self.redirections.pod_at(redirection);
        let who = self.redirections.whose(redirection);
        let end = match &loser {
            Some(Loser { name, severity: Severity::Critical, .. }) => format!(": {name} gets no connections"),
            Some(Loser { name, .. }) => format!(": {name} may get no connections"),
            None => String::new(),
        };
        let summary = format!("hostPort {port}/{protocol} leads to {to}, {who}{end}.");
        let mut evidence = Evidence::new(severity, summary)
            .value("redirection", format!("{chain} handle {handle}: {port}/{protocol} to {to}"))
            .each("hostIP", redirection.ip);
        let is_missed = severity == Severity::Critical || holder.is_some();
        if let Some(Loser { name, severity, stratum, vantage_points }) = loser {
            let what = if severity == Severity::Critical { "gets nothing" } else { "may get nothing" };
            evidence = evidence.value(what, name).affects(vantage_points).each("assumed", stratum.in_words());
        }
        let delete = delete_rule(chain, *handle);
        evidence.remedy(match is_missed {
            true => Remedy::from(delete),
            // Kubernetes does not know containers of other programs.
            false => Remedy::from(Step::advice(format!(
                "check that {} is the address of no container of nerdctl or Podman, and of no pod by Multus",
                redirection.to
            )))
            .then(delete),
        })
    }
}

#[cfg(test)]
mod tests;
