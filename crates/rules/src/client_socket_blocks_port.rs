//! An outgoing connection has the port of a server that cannot start because of that.

use std::net::IpAddr;

use super::{
    Limits, Patience, Round, Rule,
    ephemeral::{EphemeralPorts, ranges_in_words},
    ids,
    reservation::reserve,
    socket_needs::{Ports, SocketNeed, proxy_health},
    wording::{capital, with_sockets},
};
use crate::findings::{Evidence, Judgement, Judgements, Severity, Step, Subject, Verdict};
use portreeve_dataplane::{
    DAEMON_PORTS, PROXY_METRICS, Part, by_port, owner_name, served_health_checks, serves, unready_host_network_pods,
};
use portreeve_facts::{Family, Gap, Mode, Owner, Pod, PortRange, Protocol, Snapshot, Socket, Source, State, Why};

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
    let snapshot = round.now;
    let clients = snapshot.kernel.clients.get()?;
    let listening = round.listeners()?;
    let services = snapshot.cluster.services.get()?;
    let pods = snapshot.cluster.pods.get()?;

    let connected = by_port(&clients.sockets);
    let health_checks = served_health_checks(snapshot, services)
        .map(|(service, port)| (service, port, serves(snapshot, service, Part::HealthCheck)));
    let health_checks = health_checks.filter(|it| it.2 != Ok(false)).map(|(service, port, served)| Absent {
        subject: Subject::service(service),
        port,
        protocol: Protocol::Tcp,
        families: Some(&service.families),
        address: None,
        pod: None,
        whose: format!("the health check of Service {}/{}", service.namespace, service.name),
        expected: served.map(|_| ()),
    });
    let ephemeral = EphemeralPorts::of(snapshot);
    let unready = unready_host_network_pods(snapshot, pods).flat_map(|pod| {
        pod.ports.iter().map(move |port| Absent {
            subject: Subject::pod(pod),
            port: port.port,
            protocol: port.protocol,
            families: None,
            address: port.host_ip.filter(|ip| !ip.is_unspecified()),
            pod: Some(pod),
            whose: format!("hostNetwork pod {}/{}", pod.namespace, pod.name),
            expected: Ok(()),
        })
    });
    Ok(health_checks
        .chain(unready)
        .chain(proxy(snapshot))
        .filter_map(|absent| {
            let place = (absent.protocol, absent.port);
            let listeners = listening.at(place);
            let mut sockets = connected.at(place).to_vec();
            sockets.retain(|socket| absent.is_blocked_by(socket, listeners));
            sockets.retain(|socket| absent.opener(socket, &ephemeral) != Opener::Peer);
            if sockets.is_empty() {
                return None;
            }
            let either = !sockets.iter().any(|socket| absent.opener(socket, &ephemeral) == Opener::ThisNode);
            let verdict = match &absent.expected {
                Ok(()) if either => Verdict::Unknown(ephemeral.gap().cloned().unwrap_or_else(Opener::unknown)),
                Ok(()) => Verdict::Problem(evidence(snapshot, &absent, &sockets)),
                Err(gap) => Verdict::Unknown(gap.clone()),
            };
            let Absent { subject, port, protocol, .. } = absent;
            Some(Judgement { subject, port: Some(port), protocol: Some(protocol), verdict })
        })
        .collect())
}

/// A process that would listen there, where none does.
struct Absent<'a> {
    subject: Subject,
    port: u16,
    protocol: Protocol,
    /// Those in each of which it would listen with a socket of its own; nothing where one socket may serve both.
    families: Option<&'a [Family]>,
    /// The one address on which it would listen; every one without it.
    address: Option<IpAddr>,
    /// The pod whose process it is.
    pod: Option<&'a Pod>,
    /// In words.
    whose: String,
    /// That a process would listen there at all, or why that is not known.
    expected: Result<(), Gap>,
}

impl Absent<'_> {
    /// Whether an outgoing connection is in the way, given who listens on its port.
    fn is_blocked_by(&self, socket: &Socket, listeners: &[&Socket]) -> bool {
        match self.families {
            None if let Some(address) = self.address => {
                let meets = |it: &Socket| it.local == address || it.local.is_unspecified();
                meets(socket) && !listeners.iter().any(|it| meets(it))
            }
            Some(families) => families.iter().any(|family| {
                let free = listeners.iter().all(|it| it.serves(*family) == Some(false));
                free && socket.serves(*family) == Some(true)
            }),
            None => listeners.is_empty(),
        }
    }

    /// Who opened a connection. The kernel does not tell; its ports, its state and its owner may.
    fn opener(&self, socket: &Socket, ephemeral: &EphemeralPorts) -> Opener {
        let own = self.pod.and_then(|pod| pod.uid.as_deref());
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
    DAEMON_PORTS.contains(&port) && !PortRange::DEFAULT_EPHEMERAL.contains(port)
}

/// The pod in whose control group a socket's holder is.
fn pod_uid(owner: &Owner) -> Option<&str> {
    let Owner::Held(holder) = owner else { return None };
    Some(holder.cgroup.seen()?.pod.as_ref()?.pod_uid.as_str())
}

/// kube-proxy's own ports. One that answers `/proxyMode` has its metrics port, if perhaps another one.
fn proxy(snapshot: &Snapshot) -> Vec<Absent<'static>> {
    let expected = match snapshot.proxy_mode() {
        Ok(mode) if !Mode::KUBE_PROXY.contains(&mode.value) => return Vec::new(),
        Ok(_) => Ok(()),
        Err(gap) => {
            Err(Gap::new(gap.source, Why::Ambiguous, "a connection is on a port of kube-proxy, if there is one"))
        }
    };
    let answers = snapshot.kernel.proxy.mode.seen().is_some();
    let metrics = (!answers).then_some((PROXY_METRICS, None));
    // Where the setting is no address, health-check-unserved/proxy says so.
    let health = proxy_health(snapshot).ok().flatten();
    let health = health.map(|at| (at.port(), Some(at.ip()).filter(|ip| !ip.is_unspecified())));
    let absent = |(port, address)| Absent {
        subject: Subject::this_node(snapshot),
        port,
        protocol: Protocol::Tcp,
        families: None,
        address,
        pod: None,
        whose: "kube-proxy".to_owned(),
        expected: expected.clone(),
    };
    metrics.into_iter().chain(health).map(absent).collect()
}

fn evidence(snapshot: &Snapshot, absent: &Absent<'_>, sockets: &[&Socket]) -> Evidence {
    let Absent { port, protocol, whose, .. } = absent;
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
    let ports = [*port].into_iter().collect();
    evidence.remedy(reserve(snapshot, &ports).then(Step::advice(match owned {
        Some(_) => format!("restart {owner}, or let it reconnect"),
        None => "wait a minute: TIME_WAIT ends by itself".to_owned(),
    })))
}

#[cfg(test)]
mod tests;
