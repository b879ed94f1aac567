//! In a pod's own network, an outgoing connection has the port that the pod's server needs, so the server cannot start.

use super::{
    Limits, Round, Rule, ids,
    node_ports::ports_in_words,
    opener::{Clues, Opener, leads_to_service},
    pods::{is_failing, unread_pod_that},
    remedies::choose_in_pod,
    wording::with_sockets,
};
use crate::findings::{Evidence, Judgement, Judgements, Remedy, Severity, Step, Subject, Verdict};
use portreeve_dataplane::{Addresses, process_in_words};
use portreeve_facts::{
    ContainerPort, Gap, Owner, Pod, PortRange, PortSet, Reading, Snapshot, Socket, Source, State, Unread, Why,
};

pub(super) static RULE: Rule = Rule::of(&ids::CONNECTION_ON_PORT, &["blocks-in-pod"], &[Source::Pods], check)
    .uses(&[Source::PodNamespaces, Source::Services]);

fn check(round: &Round<'_>, _: &Limits) -> Judgements {
    let snapshot = round.now;
    let pods = snapshot.cluster.pods.get()?.iter().map(AsRef::as_ref);
    let here = pods.filter(|pod| pod.may_be_on(snapshot.node_name()) && needs_its_ports(snapshot, pod));
    let unread = unread_pod_that(snapshot, |pod| needs_its_ports(snapshot, pod));
    Ok(here.flat_map(|pod| of_pod(snapshot, pod)).chain(unread).collect())
}

fn needs_its_ports(snapshot: &Snapshot, pod: &Pod) -> bool {
    let has_own_ports = !pod.host_network && !pod.own_ports.is_empty();
    is_failing(snapshot, pod) && has_own_ports && !pod.finished && pod.ends.is_none()
}

fn of_pod(snapshot: &Snapshot, pod: &Pod) -> Vec<Judgement> {
    let unknown = |gap: &Gap| vec![Judgement::of(Subject::pod(pod), Verdict::Unknown(gap.clone()))];
    let namespaces = match &snapshot.kernel.pod_namespaces {
        Reading::Seen(namespaces) => namespaces,
        Reading::Gap(gap) => return unknown(gap),
    };
    // If no process of the pod runs, the pod's network does not exist yet, or no longer exists.
    let own = namespaces.iter().find(|it| pod.uids_of_cgroups().any(|uid| uid == it.pod_uid));
    match own.map(|own| &own.needed) {
        None => Vec::new(),
        Some(Reading::Gap(gap)) => unknown(gap),
        Some(Reading::Seen(sockets)) => {
            let network = Network { snapshot, pod, sockets, chosen: pod.ephemeral_ports() };
            pod.own_ports.iter().filter_map(|port| network.judge(port)).collect()
        }
    }
}

struct Network<'a> {
    snapshot: &'a Snapshot,
    pod: &'a Pod,
    sockets: &'a [Socket],
    /// The ports that the kernel chooses in the pod's network.
    chosen: PortSet,
}

impl Network<'_> {
    fn judge(&self, port: &ContainerPort) -> Option<Judgement> {
        let on_port = self.sockets.iter().filter(|it| (it.protocol, it.local_port) == (port.protocol, port.port));
        let on_port: Vec<&Socket> = on_port.collect();
        if on_port.iter().any(|it| it.is_listener()) {
            return None;
        }
        // An accepted connection does not block the port: a server can bind the port again.
        let meets = |it: &&Socket| Addresses::of_pod(port).meets(it) != Some(false) && self.opener(it) != Opener::Peer;
        let blocking: Vec<&Socket> = on_port.into_iter().filter(meets).collect();
        let verdict = match blocking.iter().any(|it| self.opener(it) == Opener::Here) {
            _ if blocking.is_empty() => return None,
            true => Verdict::Problem(self.evidence(port, &blocking)),
            false => {
                let detail = "a connection of the pod uses the port: if the pod opened the connection, its server cannot listen; if an old server accepted the connection and has ended, the port is free";
                let unread = blocking.iter().find_map(|it| self.leads_to_server(it).err());
                Verdict::Unknown(unread.unwrap_or_else(|| Gap::new(Source::PodNamespaces, Why::Ambiguous, detail)))
            }
        };
        let subject = Subject::pod(self.pod);
        Some(Judgement::on_port(subject, (port.protocol, port.port), verdict))
    }

    /// Whether the peer of a connection is a server: a Service, or an address that another local port of the pod is
    /// connected to.
    ///
    /// # Errors
    /// Fails if the peer may be an unread Service.
    fn leads_to_server(&self, socket: &Socket) -> Result<bool, Gap> {
        let Socket { protocol, local_port, remote, remote_port, .. } = socket;
        let remote = remote.to_canonical();
        let leads_there =
            |it: &Socket| (it.protocol, it.remote.to_canonical(), it.remote_port) == (*protocol, remote, *remote_port);
        let mut others = self.sockets.iter().filter(|it| it.local_port != *local_port && leads_there(it));
        let is_needed = |port: u16| self.pod.own_ports.iter().any(|it| it.port == port);
        if others.any(|it| !is_needed(it.local_port)) { Ok(true) } else { leads_to_service(self.snapshot, socket) }
    }

    fn opener(&self, socket: &Socket) -> Opener {
        let of_container = match &socket.owner {
            Owner::Held(holder) => {
                holder.cgroup.known(Unread::Doubted).and_then(|it| it.pod.as_ref()?.container.as_deref())
            }
            _ => None,
        };
        // A pod's range never changes. A program bound a port outside the range by number, as servers do, so the peer
        // opened the connection.
        if !self.chosen.contains(socket.local_port) && socket.state != State::SynSent {
            return Opener::Peer;
        }
        let clues = Clues {
            leads_to_server: self.leads_to_server(socket).ok(),
            is_of_server: of_container.and_then(|id| self.pod.container_needs(id, socket.local_port)) == Some(true),
            // A proxy in another container may accept connections for the server.
            is_of_another: false,
            is_chosen: Some(true),
        };
        clues.opener(socket)
    }

    fn evidence(&self, port: &ContainerPort, sockets: &[&Socket]) -> Evidence {
        let (Pod { namespace, name, .. }, ContainerPort { port, protocol, .. }) = (self.pod, port);
        // Prefers a socket that a process can close. A connection in TIME_WAIT ends after a time-out.
        let owned = sockets.iter().find(|socket| socket.owner != Owner::TimeWait);
        let holder = owned.map_or_else(|| "a connection in TIME_WAIT".to_owned(), |it| process_in_words(&it.owner));
        let sentence = match owned {
            Some(_) => format!(
                "In pod {namespace}/{name}, {holder} has an outgoing connection from port {port}/{protocol}, on which no process listens: \
                 the server of the pod cannot listen on this port."
            ),
            None => format!(
                "In pod {namespace}/{name}, {holder} has port {port}/{protocol}, on which no process listens: the server of the pod cannot listen on this port."
            ),
        };
        let place = match self.pod.ip_local_port_range {
            Some(range) => format!("{range} (the pod's securityContext)"),
            None => format!("{} (assumed: the default of a new network namespace)", PortRange::DEFAULT_EPHEMERAL),
        };
        let reserved = self.pod.ip_local_reserved_ports.clone().unwrap_or_default();
        let evidence = Evidence::new(Severity::Warning, sentence).value("needed by", format!("pod {namespace}/{name}"));
        let evidence = with_sockets(evidence, "socket", self.snapshot, sockets)
            .value("ip_local_port_range", place)
            .value("ip_local_reserved_ports", ports_in_words(&reserved));
        let needed: PortSet = self.pod.own_ports.iter().map(|it| it.port).collect();
        let keep = choose_in_pod(self.pod, None, reserved.union(&needed.intersection(&self.chosen)));
        let now = match owned {
            Some(_) => format!(
                "restart the container of {holder}, or delete the pod: a restart of another container does not help"
            ),
            None => "wait a minute: TIME_WAIT only ends after its time-out".to_owned(),
        };
        evidence.remedy(Remedy::from(keep).then(Step::advice(now)))
    }
}

#[cfg(test)]
mod tests;
