//! The servers and tunnels that need a port, in words.

use super::{
    super::{
        by_port::Port,
        need::Need,
        owners::{holds, owner_name},
        round::Round,
    },
    beside::{Beside, BesideKind, MOST, NO_LISTENERS, more},
};
use portreeve_facts::{Gap, Link, Protocol, Snapshot, Socket, Source, Unread, Why};

/// The servers and tunnels that need the port. A server that listens on the port is a claimant, and is left out.
pub(super) fn needs(round: &Round<'_>, port: Port) -> Vec<Beside> {
    let snapshot = round.now;
    let listeners = round.listeners().known(NO_LISTENERS).map_or(&[][..], |all| all.at(port));
    let end = if listeners.is_empty() { ", and no process listens on this port" } else { "" };
    let is_met = |need: &Need<'_>| {
        let all: Vec<Result<bool, Gap>> = listeners.iter().map(|socket| need.has(round, socket)).collect();
        if all.contains(&Ok(true)) { Ok(true) } else { all.into_iter().find(Result::is_err).unwrap_or(Ok(false)) }
    };
    // If kube-proxy answers `/proxyMode`, kube-proxy's metrics server listens, perhaps on another port.
    let answers = |need: &Need<'_>| matches!(need, Need::ProxyMetrics) && snapshot.kernel.proxy.mode.gap().is_none();
    let in_words = |need: &Need<'_>| {
        let name = need.whose(snapshot);
        match (is_met(need), need.is_there(round)) {
            (Ok(true), _) | (_, Ok(false)) => None,
            (Ok(false), Ok(true)) => {
                Some(Beside { kind: BesideKind::Need, name, detail: format!("{}{end}", need.reason()) })
            }
            (Err(gap), _) | (_, Err(gap)) => Some(possible(format!("perhaps {name}"), &gap.detail)),
        }
    };
    let known = round.needs().known(Unread::Reported("Beside")).at(port).iter().filter(|it| !answers(it));
    let mut all: Vec<Beside> = known.filter_map(in_words).collect();
    all.sort_by(|one, other| (&one.name, &one.detail).cmp(&(&other.name, &other.detail)));
    all.dedup();
    let more = more(BesideKind::Need, all.len());
    all.truncate(MOST);
    all.extend(more);
    let unread = round.needs().unread().filter_map(|gap| {
        let name = match gap.source {
            // Only tunnels need the links of the node, and each tunnel needs a UDP port.
            Source::Addresses if port.0 != Protocol::Udp => return None,
            Source::Addresses => "perhaps a tunnel that needs the port",
            _ => "perhaps a server that needs the port",
        };
        Some(possible(name.to_owned(), &gap.detail))
    });
    all.extend(unread);
    all
}

fn possible(name: String, why: &str) -> Beside {
    Beside { kind: BesideKind::Possible, name, detail: format!("not known: {why}") }
}

fn reason_of_tunnel(link: &Link) -> String {
    link.wireguard().map_or_else(
        || "the port opens when the tunnel comes up".to_owned(),
        |it| format!("assumed: the default port of {}; the device's own port is not read", it.plugin),
    )
}

impl Need<'_> {
    /// The server or tunnel that needs the port: `hostNetwork pod shop/web`.
    pub fn whose(self, snapshot: &Snapshot) -> String {
        match self {
            Self::Declared(pod, _) | Self::Probe(pod, _) | Self::Reported(pod, _) => {
                format!("hostNetwork pod {}/{}", pod.namespace, pod.name)
            }
            Self::HostPort(pod, _) => format!("pod {}/{}", pod.namespace, pod.name),
            Self::Waiting(pod, _) => format!("waiting pod {}/{}", pod.namespace, pod.name),
            Self::HealthCheck(service) => format!("the health check of Service {}/{}", service.namespace, service.name),
            Self::ProxyMetrics | Self::ProxyHealth(_) => "kube-proxy".to_owned(),
            Self::Agent(_) => "the agent of Portreeve".to_owned(),
            Self::Daemon(socket) => owner_name(snapshot, &socket.owner),
            Self::Tunnel(link) => format!("tunnel {}", link.name),
        }
    }

    fn reason(self) -> String {
        let reason = match self {
            Self::Tunnel(link) => return reason_of_tunnel(link),
            Self::Declared(..) => "a container declares the port",
            Self::Probe(..) => "a probe names the port, and another program may answer the probe",
            Self::Reported(..) => "a container reported at its end that the port is in use",
            Self::Waiting(..) => "the pod wants this hostPort, and the scheduler may choose this node",
            Self::HealthCheck(_) => "the proxy has to answer the health check",
            Self::ProxyMetrics => "for its metrics",
            Self::ProxyHealth(_) => "for its health",
            Self::Agent(_) => "for its metrics and its page",
            Self::HostPort(..) | Self::Daemon(_) => "a process listens on the port",
        };
        reason.to_owned()
    }

    /// Whether this listener is the server that needs the port.
    ///
    /// # Errors
    /// Returns a `Gap` if the owner of the listener, or the proxy's own process, was not read.
    fn has(self, round: &Round<'_>, socket: &Socket) -> Result<bool, Gap> {
        match self {
            Self::Declared(pod, _) | Self::Probe(pod, _) | Self::Reported(pod, _) => {
                holds(round.now, pod, &socket.owner)
            }
            Self::Waiting(..) => Ok(false),
            Self::HealthCheck(_) | Self::ProxyMetrics | Self::ProxyHealth(_) => {
                let proxy = round.proxy();
                let shares_owner = proxy.shares_owner(socket);
                if shares_owner || proxy.certainly_lacks(socket) {
                    return Ok(shares_owner);
                }
                let detail = "the process that listens, or the proxy's own process, was not read";
                let unread = || Gap::new(Source::Processes, Why::Ambiguous, detail);
                Err(proxy.unread_beside(socket).unwrap_or_else(unread))
            }
            Self::Agent(own) => Ok(!own.taken),
            Self::HostPort(..) | Self::Daemon(_) => Ok(true),
            // While a tunnel is up, the kernel has the tunnel's port.
            Self::Tunnel(link) => Ok(link.up),
        }
    }
}
