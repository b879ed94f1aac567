//! An outgoing connection has the port of a server that cannot start because of that.

use super::{
    Limits, Patience, Round, Rule,
    ephemeral::{EphemeralPorts, ranges_in_words},
    ids,
    reservation::reserve,
    socket_needs::{Ports, SocketNeed},
    wording::{capital, with_sockets},
};
use crate::findings::{Evidence, Judgement, Judgements, Severity, Step, Subject, Verdict};
use portreeve_dataplane::{Need, Port, Role, by_port, is_usual, owner_name};
use portreeve_facts::{Gap, Owner, PortRange, Protocol, Socket, Source, State, Unread, Why};

/// From here to 1023 clients of NFS connect, from ports of root (`RPC_DEF_MIN_RESVPORT` in Linux): below are servers only.
pub(super) const FIRST_OF_NFS_CLIENTS: u16 = 665;

pub(super) static RULE: Rule = Rule {
    id: &ids::CONNECTION_ON_PORT,
    variants: &["blocks"],
    needs: &[Source::Clients, Source::Listeners, Source::Services, Source::Pods],
    uses: &[Source::Sockstat],
    socket_needs: &[
        SocketNeed::Clients(Ports::HealthCheckNodePorts),
        SocketNeed::Clients(Ports::UnreadyHostNetworkPods),
        SocketNeed::Clients(Ports::Proxy),
    ],
    patience: Patience::TwoScans,
    check,
};

fn check(round: &Round<'_>, _: &Limits) -> Judgements {
    let clients = round.now.kernel.clients.get()?;
    let listening = round.listeners()?;
    let needs = round.needs().with(&[Source::Services, Source::Pods])?;
    let ephemeral = EphemeralPorts::of(round.now);
    let mut judgements = Vec::new();
    for (place, connected) in by_port(&clients.sockets).ports() {
        for absent in needs.at(place).iter().filter_map(|need| Absent::of(round, place, *need)) {
            judgements.extend(absent.judge(connected, listening.at(place), &ephemeral));
        }
    }
    Ok(judgements)
}

/// A process that would listen there, where none may.
struct Absent<'r, 'a> {
    round: &'r Round<'a>,
    place: Port,
    need: Need<'a>,
    subject: Subject,
    /// In words.
    whose: String,
}

impl<'r, 'a> Absent<'r, 'a> {
    fn of(round: &'r Round<'a>, place: Port, need: Need<'a>) -> Option<Self> {
        let (subject, whose) = match need {
            Need::HealthCheck(service) => (
                Subject::service(service),
                format!("the health check of Service {}/{}", service.namespace, service.name),
            ),
            Need::Declared(..) => {
                let pod = need.unready_pod()?;
                (Subject::pod(pod), format!("hostNetwork pod {}/{}", pod.namespace, pod.name))
            }
            // One that answers `/proxyMode` has its metrics port, if perhaps another one.
            Need::ProxyMetrics if round.now.kernel.proxy.mode.gap().is_none() => return None,
            Need::ProxyMetrics | Need::ProxyHealth(_) => (Subject::this_node(round.now), "kube-proxy".to_owned()),
            // Another program may be the one that is asked.
            Need::Probe(..) => return None,
            // Somebody listens there.
            Need::HostPort(..) | Need::Daemon(_) => return None,
            // It tries, and says so.
            Need::Agent(_) => return None,
        };
        Some(Self { round, place, need, subject, whose })
    }

    fn judge(self, connected: &[&Socket], listeners: &[&Socket], ephemeral: &EphemeralPorts) -> Option<Judgement> {
        let mut sockets = connected.to_vec();
        sockets.retain(|socket| self.is_blocked_by(socket, listeners));
        sockets.retain(|socket| self.opener(socket, ephemeral) != Opener::Peer);
        if sockets.is_empty() {
            return None;
        }
        let either = !sockets.iter().any(|socket| self.opener(socket, ephemeral) == Opener::ThisNode);
        let verdict = match self.need.is_there(self.round.now) {
            Ok(false) => return None,
            Ok(true) if either => Verdict::Unknown(ephemeral.gap().cloned().unwrap_or_else(Opener::unknown)),
            Ok(true) => Verdict::Problem(self.evidence(&sockets)),
            Err(gap) if matches!(self.need, Need::HealthCheck(_)) => Verdict::Unknown(gap),
            Err(gap) => {
                let detail = "a connection is on a port of kube-proxy, if there is one";
                Verdict::Unknown(Gap::new(gap.source, Why::Ambiguous, detail))
            }
        };
        let (protocol, port) = self.place;
        Some(Judgement { subject: self.subject, port: Some(port), protocol: Some(protocol), verdict })
    }

    /// Whether an outgoing connection is in the way, given who listens on its port.
    fn is_blocked_by(&self, socket: &Socket, listeners: &[&Socket]) -> bool {
        let mut wanted = self.need.at().each();
        wanted.any(|at| listeners.iter().all(|it| at.meets(it) == Some(false)) && at.meets(socket) == Some(true))
    }

    /// Who opened a connection. The kernel does not tell; its ports, its state and its owner may.
    fn opener(&self, socket: &Socket, ephemeral: &EphemeralPorts) -> Opener {
        let own = self.need.pod().and_then(|pod| pod.uid.as_deref());
        let is_own = own.is_some() && own == pod_uid(&socket.owner);
        match socket.state {
            State::SynSent => Opener::ThisNode,
            State::SynRecv | State::NewSynRecv => Opener::Peer,
            _ if socket.protocol == Protocol::Udp || socket.remote_port < FIRST_OF_NFS_CLIENTS => Opener::ThisNode,
            _ if is_own || ephemeral.gap().is_none() && !ephemeral.contain(socket.local_port) => Opener::Peer,
            _ if ephemeral.gap().is_none() && is_mostly_a_servers(socket.remote_port) => Opener::ThisNode,
            _ => Opener::Either,
        }
    }

    fn evidence(&self, sockets: &[&Socket]) -> Evidence {
        let (snapshot, (protocol, port), whose) = (self.round.now, self.place, &self.whose);
        // A live process can let go; TIME_WAIT cannot.
        let owned = sockets.iter().find(|socket| socket.owner != Owner::TimeWait);
        let owner = owned.or(sockets.first()).map_or_else(String::new, |socket| owner_name(snapshot, &socket.owner));
        let sentence = format!(
            "{} has an outgoing connection from port {port}/{protocol}, on which nobody listens: {whose} cannot have it.",
            capital(&owner)
        );
        let evidence = Evidence::new(Severity::Warning, sentence).value("needed by", whose);
        let mut evidence = with_sockets(evidence, "socket", snapshot, sockets);
        evidence.values.extend(ranges_in_words(snapshot));
        let ports = [port].into_iter().collect();
        evidence.remedy(reserve(self.round, &ports).then(Step::advice(match owned {
            Some(_) => format!("restart {owner}, or let it reconnect"),
            None => "wait a minute: TIME_WAIT ends by itself".to_owned(),
        })))
    }
}

/// Who opened a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Opener {
    /// A process here: it is in the way of a listener.
    ThisNode,
    /// The peer: a listener that has ended accepted it, and another one may take its place.
    Peer,
    /// It cannot be told.
    Either,
}

impl Opener {
    fn unknown() -> Gap {
        let detail = "a connection is on the port, and it cannot be told whether it was opened here or accepted";
        Gap::new(Source::Clients, Why::Ambiguous, detail)
    }
}

/// Whether a peer's port is more likely that of a server than one that its kernel chose: behind NAT it may be any above 1023.
pub(super) fn is_mostly_a_servers(port: u16) -> bool {
    is_usual(port, Role::Daemon) && !PortRange::DEFAULT_EPHEMERAL.contains(port)
}

/// The pod in whose control group a socket's holder is.
fn pod_uid(owner: &Owner) -> Option<&str> {
    let Owner::Held(holder) = owner else { return None };
    let none_of_its = Unread::Assumed("that it is none of the pod that lacks the port");
    Some(holder.cgroup.known(none_of_its)?.pod.as_ref()?.pod_uid.as_str())
}

#[cfg(test)]
mod tests;
