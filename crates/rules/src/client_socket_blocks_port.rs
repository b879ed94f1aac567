//! An outgoing connection has the port of a server, so the server cannot start.

use super::{
    Limits, Round, Rule,
    ephemeral::{EphemeralPorts, with_ranges},
    ids,
    opener::{Clues, Opener, leads_to_own_listener, leads_to_service},
    pods::{are_siblings, unread_pod_that, waits_for},
    reservation::reserve,
    socket_needs::{Ports, SocketNeed},
    wording::{capital, with_sockets},
};
use crate::findings::{Evidence, Judgement, Judgements, Severity, Step, Subject, Verdict};
use portreeve_dataplane::{Addresses, Need, Port, by_port, is_bound, owner_name, pod_of};
use portreeve_facts::{Gap, Owner, Pod, PodContainer, Socket, Source, Unread, Why};

pub(super) static RULE: Rule = Rule::of(
    &ids::CONNECTION_ON_PORT,
    &["blocks"],
    &[Source::Clients, Source::Listeners, Source::Services, Source::Pods],
    check,
)
.uses(&[Source::Sockstat, Source::Addresses])
.sockets(&[
    SocketNeed::Clients(Ports::HealthCheckNodePorts),
    SocketNeed::Clients(Ports::UnreadyHostNetworkPods),
    SocketNeed::Clients(Ports::Proxy),
]);

fn check(round: &Round<'_>, _: &Limits) -> Judgements {
    let clients = round.now.kernel.clients.get()?;
    let listening = round.listeners().get()?;
    let needs = round.needs().with(&[Source::Services, Source::Pods])?;
    let ephemeral = EphemeralPorts::of(round.now);
    let mut judgements = Vec::new();
    let (connected, missing) = (by_port(&clients.sockets), clients.outgoing_missing());
    for (place, needs) in needs.ports() {
        for absent in needs.iter().filter_map(|need| Absent::of(round, place, *need)) {
            judgements.extend(absent.judge(connected.at(place), missing.as_ref(), listening.at(place), &ephemeral));
        }
    }
    let may_be_taken = |at: Port| missing.is_some() || !connected.at(at).is_empty();
    judgements.extend(unread_pod_that(round.now, |pod| waits_for(pod, may_be_taken)));
    Ok(judgements)
}

struct Absent<'r, 'a> {
    round: &'r Round<'a>,
    place: Port,
    need: Need<'a>,
    subject: Subject,
    whose: String,
}

impl<'r, 'a> Absent<'r, 'a> {
    fn of(round: &'r Round<'a>, place: Port, need: Need<'a>) -> Option<Self> {
        let subject = match need {
            Need::HealthCheck(service) => Subject::service(service),
            // If the pod does not fail, another program may answer the probe.
            Need::Probe(pod, _) if !pod.failing => return None,
            Need::Declared(..) | Need::Probe(..) | Need::Reported(..) => Subject::pod(need.unready_pod()?),
            // If kube-proxy answers `/proxyMode`, kube-proxy's metrics server listens, perhaps on another port.
            Need::ProxyMetrics if round.now.kernel.proxy.mode.gap().is_none() => return None,
            Need::ProxyMetrics | Need::ProxyHealth(_) => Subject::this_node(round.now),
            // The scheduler does not place the pod here.
            Need::Waiting(..) => return None,
            // A process listens on the port.
            Need::HostPort(..) | Need::Daemon(_) => return None,
            // The agent tries to listen, and reports the error.
            Need::Agent(_) => return None,
            // `tunnel-port-conflict` reports a socket that keeps a tunnel down.
            Need::Tunnel(_) => return None,
        };
        Some(Self { round, place, need, subject, whose: need.whose(round.now) })
    }

    /// `missing` is the reason why the list of connections may be incomplete.
    fn judge(
        self,
        connected: &[&Socket],
        missing: Option<&Gap>,
        listeners: &[&Socket],
        ephemeral: &EphemeralPorts,
    ) -> Option<Judgement> {
        let mut sockets = connected.to_vec();
        sockets.retain(|socket| self.is_blocked_by(socket, listeners));
        // If the pod does not fail, it may be starting, and a bound socket may soon listen.
        let may_fail = self.need.pod().is_none_or(|pod| pod.failing);
        sockets.retain(|socket| self.opener(socket, ephemeral) != Opener::Peer && (may_fail || !is_bound(socket)));
        let missing = missing.filter(|_| sockets.is_empty() && self.unserved(listeners).next().is_some());
        if sockets.is_empty() && missing.is_none() {
            return None;
        }
        let either = !sockets.iter().any(|socket| self.opener(socket, ephemeral) == Opener::Here);
        let verdict = match self.need.is_there(self.round) {
            Ok(false) => return None,
            is_there if let Some(gap) = missing => Verdict::Unknown(is_there.err().unwrap_or_else(|| gap.clone())),
            Ok(true) if either => {
                let unread = || sockets.iter().find_map(|it| leads_to_service(self.round.now, it).err());
                let gap = ephemeral.gave(self.place.1).err().or_else(unread);
                Verdict::Unknown(gap.unwrap_or_else(|| self.both_readings(&sockets)))
            }
            Ok(true) => match self.round.in_vrfs(&sockets) {
                Some(gap) => Verdict::Unknown(gap),
                None => Verdict::Problem(self.evidence(&sockets)),
            },
            Err(gap) if matches!(self.need, Need::HealthCheck(_)) => Verdict::Unknown(gap),
            Err(gap) => {
                let detail = "a connection uses a port that kube-proxy may need";
                Verdict::Unknown(Gap::new(gap.source, Why::Ambiguous, detail))
            }
        };
        let (protocol, port) = self.place;
        Some(Judgement::on_port(self.subject, (protocol, port), verdict))
    }

    /// The needed addresses that certainly have no listener.
    fn unserved(&self, listeners: &[&Socket]) -> impl Iterator<Item = Addresses<'_>> {
        self.need.at().each().filter(|at| listeners.iter().all(|it| at.meets(it) == Some(false)))
    }

    fn is_blocked_by(&self, socket: &Socket, listeners: &[&Socket]) -> bool {
        self.unserved(listeners).any(|at| at.meets(socket) == Some(true))
    }

    fn opener(&self, socket: &Socket, ephemeral: &EphemeralPorts) -> Opener {
        let snapshot = self.round.now;
        let clients = snapshot.kernel.clients.known(Unread::Reported("this rule needs them, and reports it"));
        let mut servers = clients.into_iter().flat_map(|clients| &clients.servers);
        let (ip, port) = (socket.remote.to_canonical(), socket.remote_port);
        let leads_to_server = match leads_to_service(snapshot, socket) {
            _ if servers.any(|it| (it.ip(), it.port()) == (ip, port)) => Some(true),
            Ok(true) => Some(true),
            Ok(false) => leads_to_own_listener(self.round, socket),
            Err(_) => leads_to_own_listener(self.round, socket).filter(|leads| *leads),
        };
        let clues = Clues {
            leads_to_server,
            is_of_server: self.is_of_its_container(socket) == Some(true),
            is_of_another: self.need.pod().is_some_and(|pod| pod.failing && self.has_no_use(pod, socket)),
            is_chosen: ephemeral.gave(socket.local_port).ok(),
        };
        clues.opener(socket)
    }

    /// Whether the socket belongs to the container that needs the port. The result is also true for a socket of a
    /// container that no longer exists. `None` if the socket belongs to no container of the pod.
    fn is_of_its_container(&self, socket: &Socket) -> Option<bool> {
        let pod = self.need.pod()?;
        let PodContainer { pod_uid, container } = pod_container(&socket.owner)?;
        let is_own = pod.uid.as_ref() == Some(pod_uid);
        let needs = |id: &String| pod.container_needs(id, socket.local_port);
        is_own.then(|| container.as_ref().and_then(needs) != Some(false))
    }

    /// Whether a socket belongs to a container without a server on this port: another container of the pod, or a pod of
    /// another workload. Such a container opened the connection itself.
    fn has_no_use(&self, pod: &Pod, socket: &Socket) -> bool {
        if let Some(is_its) = self.is_of_its_container(socket) {
            return !is_its;
        }
        pod_of(self.round.now, &socket.owner).is_some_and(|other| {
            let controllers =
                ((&*other.namespace, other.controller.as_ref()), (&*pod.namespace, pod.controller.as_ref()));
            let mut known = other.ports.iter().chain(&other.probed);
            let needs = known.any(|it| (it.protocol, it.port) == (socket.protocol, socket.local_port));
            other.host_network && !needs && !are_siblings(controllers.0, controllers.1)
        })
    }

    fn both_readings(&self, sockets: &[&Socket]) -> Gap {
        let (protocol, port) = self.place;
        let owner = sockets.first().map_or_else(String::new, |it| owner_name(self.round.now, &it.owner));
        // The port may also belong to a socket that the scan does not list.
        let assumed = self.round.assumed_unbound(self.place);
        let assumed = assumed.map(|assumed| format!(", assumed that {assumed}")).unwrap_or_default();
        let detail = format!(
            "{owner} has a connection on port {port}/{protocol}: if this node opened the connection, {} cannot listen; if an old server \
             accepted the connection and has ended, the port is free{assumed}",
            self.whose
        );
        Gap::new(Source::Clients, Why::Ambiguous, detail)
    }

    fn evidence(&self, sockets: &[&Socket]) -> Evidence {
        let (snapshot, (protocol, port), whose) = (self.round.now, self.place, &self.whose);
        // Prefers a socket that a process can close. A connection in TIME_WAIT ends after a time-out.
        let owned = sockets.iter().find(|socket| socket.owner != Owner::TimeWait);
        let owner = owned.or(sockets.first()).map_or_else(String::new, |socket| owner_name(snapshot, &socket.owner));
        let has = match owned.or(sockets.first()) {
            Some(socket) if is_bound(socket) => format!("is bound to port {port}/{protocol}, and does not listen"),
            _ if owned.is_none() => format!("has port {port}/{protocol}, on which no process listens"),
            _ => format!("has an outgoing connection from port {port}/{protocol}, on which no process listens"),
        };
        let lacks = match self.need {
            Need::Reported(..) => format!("a container of {whose} reported at its end that the port is in use"),
            Need::Probe(..) => format!("a probe of {whose} names this port, and no process can listen on the port"),
            _ => format!("{whose} cannot listen on this port"),
        };
        let sentence = format!("{} {has}: {lacks}.", capital(&owner));
        let evidence = Evidence::new(Severity::Warning, sentence).value("needed by", whose);
        let message = self.need.pod().and_then(|pod| pod.reported_use_of(protocol, port));
        let evidence = with_sockets(evidence, "socket", snapshot, sockets).each("message of a container", message);
        let evidence = with_ranges(evidence, snapshot);
        let ports = [port].into_iter().collect();
        evidence.remedy(reserve(self.round, &ports).then(Step::advice(match owned {
            Some(_) => format!("restart {owner}, or make it reconnect"),
            None => "wait a minute: TIME_WAIT only ends after its time-out".to_owned(),
        })))
    }
}

fn pod_container(owner: &Owner) -> Option<&PodContainer> {
    let Owner::Held(holder) = owner else { return None };
    let none_of_its = Unread::Assumed("that it is not of the pod that lacks the port");
    holder.cgroup.known(none_of_its)?.pod.as_ref()
}

#[cfg(test)]
mod tests;
