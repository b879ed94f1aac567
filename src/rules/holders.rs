//! Which sockets are the proxy's own, which are a pod's, and both in words.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    sync::Arc,
};

use super::range::served;
use crate::facts::{
    Cgroup, Gap, Holder, Owner, Pod, Process, Protocol, Reading, Service, Snapshot, Socket, Source, State, Why,
};

/// Where kube-proxy tells its mode, its settings and its metrics.
pub(super) const PROXY_METRICS: u16 = 10249;

/// Ports of well-known daemons. A process that contains a proxy (`k3s server`, `k0s`, `kubelite`) listens on some of
/// them for reasons of its own, so there a socket of the proxy's process is still a conflict.
pub(super) const DAEMON_PORTS: &[u16] = &[
    22, 53, 80, 111, 179, 443, 2379, 2380, 2381, 2703, 4240, 4244, 4789, 5473, 6081, 6443, 8472, 9099, 9100, 9345,
    9808, 9809, 10248, 10249, 10250, 10251, 10252, 10253, 10254, 10255, 10256, 10257, 10258, 10259, 10260, 51820,
    51871, 61678, 61679,
];

/// Whether a socket is the proxy's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Own {
    /// It holds a NodePort, or serves a health check: no conflict.
    Yes,
    /// Somebody else's.
    No,
    /// Nobody could tell: the proxy did not answer, and whoever has this socket seems to hold NodePorts, or has one where
    /// the proxy would answer.
    Unknown,
}

impl Own {
    /// What to say of a socket of which nobody could tell.
    pub(super) fn untold() -> Gap {
        let detail = "whoever listens here listens on every NodePort that nobody else has, or where the proxy would \
                      answer: it may be one";
        Gap::new(Source::ProxyMode, Why::Ambiguous, detail)
    }
}

/// Tells the proxy's own sockets apart. No name decides: a socket is the proxy's if it shares the process, or a cgroup
/// other than the root, with whoever answers `/proxyMode`.
pub(super) struct Proxy<'a> {
    snapshot: &'a Snapshot,
    /// Holders of NodePorts, as OVN-Kubernetes and old proxies are.
    hold_node_ports: BTreeSet<Group<'a>>,
    /// Holders of the proxy's place, where connections are taken and nobody answers: a proxy that hangs, perhaps.
    hang: BTreeSet<Group<'a>>,
}

/// Sockets that certainly share a holder, or whose holder could not be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Group<'a> {
    Cgroup(&'a str),
    Process(u32, u64),
    Untold,
}

impl<'a> Proxy<'a> {
    /// Of a snapshot, once a rule.
    pub(super) fn of(snapshot: &'a Snapshot) -> Self {
        Self { snapshot, hold_node_ports: holders_of_node_ports(snapshot), hang: hang(snapshot) }
    }

    /// Whether a listening socket on a NodePort or a healthCheckNodePort is the proxy's own.
    pub(super) fn owns(&self, socket: &Socket) -> Own {
        if DAEMON_PORTS.contains(&socket.local_port) {
            return Own::No;
        }
        if !matches!(socket.owner, Owner::Held(_)) {
            return Own::No;
        }
        if self.shares_holder(socket) {
            return Own::Yes;
        }
        if self.hang.contains(&group(socket)) {
            return Own::Unknown;
        }
        let could_be = self.hold_node_ports.contains(&group(socket));
        match (self.certainly_lacks(socket), could_be, self.snapshot.said.proxy_mode.is_some()) {
            (true, _, _) | (_, false, _) => Own::No,
            // A proxy that holds ports says so in its version; where one answers and does not hold, nobody does.
            (false, true, _) if self.proxy_never_holds() => Own::No,
            (false, true, true) => Own::No,
            (false, true, false) => Own::Unknown,
        }
    }

    /// Whether a socket is held by whoever answers `/proxyMode`.
    pub(super) fn shares_holder(&self, socket: &Socket) -> bool {
        let proxy = &self.snapshot.kernel.proxy;
        matches!(&socket.owner, Owner::Held(holder) if same_holder(holder, &proxy.cgroup, &proxy.process))
    }

    /// A socket of somebody who holds NodePorts, as OVN-Kubernetes and old proxies do.
    pub(super) fn holder_of_node_ports(&self) -> Option<&'a Socket> {
        let listeners = self.snapshot.kernel.listeners.seen()?;
        let held = listeners.iter().filter(|socket| self.hold_node_ports.contains(&group(socket)));
        held.min_by_key(|socket| (group(socket), socket.local_port, socket.local))
    }

    /// Whether the proxy and the socket's holder are known in the same way, and differ.
    pub(super) fn certainly_lacks(&self, socket: &Socket) -> bool {
        let proxy = &self.snapshot.kernel.proxy;
        let Owner::Held(holder) = &socket.owner else { return false };
        let tells = |cgroup: &Reading<Cgroup>| cgroup.seen().is_some_and(|cgroup| !cgroup.is_root());
        let comparable = tells(&holder.cgroup) && tells(&proxy.cgroup)
            || holder.process.seen().is_some() && proxy.process.seen().is_some();
        comparable && !same_holder(holder, &proxy.cgroup, &proxy.process)
    }

    /// A kube-proxy answers, and its version holds no NodePorts.
    fn proxy_never_holds(&self) -> bool {
        let version = self.snapshot.kernel.proxy.metrics.seen().and_then(|metrics| metrics.version.as_deref());
        version.is_some_and(|version| holds_ports(version) == Some(false))
    }
}

/// Whether a kube-proxy of this version holds every NodePort with a socket: up to 1.23.6, 1.22.9 and 1.21.12
/// (kubernetes/kubernetes pull requests 108496, 108885, 108888, 108896). Nothing when it is not a version.
pub(super) fn holds_ports(version: &str) -> Option<bool> {
    Some(match kubernetes_version(version)? {
        (1, 24.., _) | (2.., ..) => false,
        (1, 23, patch) => patch <= 6,
        (1, 22, patch) => patch <= 9,
        (1, 21, patch) => patch <= 12,
        _ => true,
    })
}

/// Major, minor and patch of `v1.36.3+k3s1`. Nothing when it is not a version.
pub(super) fn kubernetes_version(text: &str) -> Option<(u32, u32, u32)> {
    let mut parts = text.trim_start_matches('v').split(['.', '-', '+']).map(|part| part.parse::<u32>().ok());
    Some((parts.next()??, parts.next()??, parts.next()??))
}

/// Whether two holders are the same: the same process, or the same cgroup other than the root.
fn same_holder(holder: &Holder, cgroup: &Reading<Cgroup>, process: &Reading<Process>) -> bool {
    let process_matches = match (holder.process.seen(), process.seen()) {
        (Some(a), Some(b)) => a.pid == b.pid && a.started == b.started,
        _ => false,
    };
    let cgroup_matches = match (holder.cgroup.seen(), cgroup.seen()) {
        (Some(a), Some(b)) => !a.is_root() && a.path == b.path,
        _ => false,
    };
    process_matches || cgroup_matches
}

/// Who has a listening socket on every allocated NodePort that nobody else keeps them off, and on most of them. A port
/// that is free tells that nobody holds them, since whoever does opens each when it is allocated.
fn holders_of_node_ports(snapshot: &Snapshot) -> BTreeSet<Group<'_>> {
    let services = snapshot.cluster.services.seen().map_or(&[][..], Vec::as_slice);
    let allocated: BTreeSet<(Protocol, u16)> = served(services)
        .filter(|(_, port, _)| port.protocol != Protocol::Sctp) // no proxy ever held an SCTP port
        .map(|(_, port, number)| (port.protocol, number))
        .collect();
    let mut held: BTreeMap<Group<'_>, BTreeSet<(Protocol, u16)>> = BTreeMap::new();
    let mut free = allocated.clone();
    for socket in snapshot.kernel.listeners.seen().into_iter().flatten() {
        let port = (socket.protocol, socket.local_port);
        if allocated.contains(&port) {
            held.entry(group(socket)).or_default().insert(port);
            free.remove(&port);
        }
    }
    // Nobody can listen on the port of an outgoing connection either.
    for socket in snapshot.kernel.clients.seen().into_iter().flat_map(|clients| &clients.sockets) {
        free.remove(&(socket.protocol, socket.local_port));
    }
    held.retain(|_, ports| free.is_empty() && ports.len() * 2 > allocated.len());
    held.into_keys().collect()
}

fn hang(snapshot: &Snapshot) -> BTreeSet<Group<'_>> {
    let listeners = snapshot.kernel.listeners.seen().into_iter().flatten();
    let hangs = snapshot.kernel.proxy.mode.gap().is_some_and(|gap| gap.why == Why::TimedOut);
    listeners
        .filter(|socket| hangs && socket.protocol == Protocol::Tcp && socket.local_port == PROXY_METRICS)
        .map(group)
        .collect()
}

/// By whom a socket is held, as far as it can be told.
pub(super) fn group(socket: &Socket) -> Group<'_> {
    let Owner::Held(holder) = &socket.owner else { return Group::Untold };
    match (holder.cgroup.seen(), holder.process.seen()) {
        (Some(cgroup), _) if !cgroup.is_root() => Group::Cgroup(&cgroup.path),
        (_, Some(process)) => Group::Process(process.pid, process.started),
        _ => Group::Untold,
    }
}

/// Sockets by protocol and local port.
#[derive(Debug)]
pub(super) struct ByPort<'a>(Vec<&'a Socket>);

/// Puts sockets in the order of their ports; readers told them in about that order.
pub(super) fn by_port(sockets: &[Socket]) -> ByPort<'_> {
    let mut sockets: Vec<_> = sockets.iter().collect();
    sockets.sort_by_key(|socket| port_of(socket));
    ByPort(sockets)
}

impl<'a> ByPort<'a> {
    /// Those of one port; none where nobody has it.
    pub(super) fn at(&self, port: (Protocol, u16)) -> &[&'a Socket] {
        let (_, from) = self.0.split_at(self.0.partition_point(|socket| port_of(socket) < port));
        from.split_at(from.partition_point(|socket| port_of(socket) == port)).0
    }

    /// Those of every port that somebody has.
    pub(super) fn ports(&self) -> impl Iterator<Item = ((Protocol, u16), &[&'a Socket])> {
        self.0.chunk_by(|a, b| port_of(a) == port_of(b)).map(|sockets| (port_of(sockets[0]), sockets))
    }
}

fn port_of(socket: &Socket) -> (Protocol, u16) {
    (socket.protocol, socket.local_port)
}

/// Sockets that share address, port and device are SO_REUSEPORT workers of one server: one of them, and how many.
pub(super) fn workers<'a>(sockets: &[&'a Socket]) -> Vec<(&'a Socket, usize)> {
    let mut groups: BTreeMap<_, Vec<&Socket>> = BTreeMap::new();
    for socket in sockets {
        groups.entry((socket.local, socket.device, socket.v6only)).or_default().push(socket);
    }
    groups.into_values().map(|group| (group[0], group.len())).collect()
}

/// The pod that holds a socket, by the uid in its cgroup's name.
fn pod_of<'a>(snapshot: &'a Snapshot, owner: &Owner) -> Option<&'a Pod> {
    let Owner::Held(holder) = owner else { return None };
    pod_of_uid(snapshot.cluster.pods.seen()?, &holder.cgroup.seen()?.pod.as_ref()?.pod_uid)
}

/// The pod whose cgroup has this uid in its name.
pub(super) fn pod_of_uid<'a>(pods: &'a [Arc<Pod>], uid: &str) -> Option<&'a Pod> {
    pods.iter().map(Arc::as_ref).find(|pod| pod.uid.as_deref() == Some(uid) || pod.config_hash.as_deref() == Some(uid))
}

/// Who holds a socket, where neither its process nor its cgroup is known.
pub(super) const UNNAMED: &str = "a process that could not be named";

/// Who holds a socket, in words that stay the same from look to look: `pod default/web`, `nginx`, `the kernel`.
pub(super) fn holder_name(snapshot: &Snapshot, socket: &Socket) -> String {
    owner_name(snapshot, &socket.owner)
}

/// The same of an owner.
fn owner_name(snapshot: &Snapshot, owner: &Owner) -> String {
    if let Some(pod) = pod_of(snapshot, owner) {
        return format!("pod {}/{}", pod.namespace, pod.name);
    }
    match owner {
        Owner::TimeWait => "a connection in TIME_WAIT, which has no owner".to_owned(),
        Owner::Kernel { link } if link.is_empty() => "the kernel".to_owned(),
        Owner::Kernel { link } => format!("the kernel (tunnel {link})"),
        Owner::NotAsked => "a process".to_owned(),
        Owner::Held(holder) => match (holder.process.seen(), holder.cgroup.seen()) {
            (Some(process), _) => format!("process {}", process.command),
            (None, Some(cgroup)) if cgroup.pod.is_some() => "a pod whose name is not known".to_owned(),
            (None, Some(cgroup)) if !cgroup.is_root() => format!("a process of {}", cgroup.path),
            _ => UNNAMED.to_owned(),
        },
    }
}

/// Everything known of a socket's holder, for evidence: names and values.
pub(super) fn holder_evidence(snapshot: &Snapshot, socket: &Socket) -> Vec<(&'static str, String)> {
    owner_evidence(snapshot, &socket.owner)
}

/// The same of an owner.
pub(super) fn owner_evidence(snapshot: &Snapshot, owner: &Owner) -> Vec<(&'static str, String)> {
    let mut values = vec![("held by", owner_name(snapshot, owner))];
    let Owner::Held(holder) = owner else { return values };
    match &holder.process {
        Reading::Seen(process) => {
            values.push(("process", format!("{} (pid {})", process.command, process.pid)));
            values.extend(process.command_line.clone().map(|line| ("command line", line)));
        }
        Reading::Gap(gap) => values.push(("process", format!("not seen: {}", gap.detail))),
    }
    match &holder.cgroup {
        Reading::Seen(cgroup) => {
            values.push(("cgroup", cgroup.path.clone()));
            if let Some(container) = cgroup.pod.as_ref().and_then(|pod| pod.container.clone()) {
                values.push(("container", container));
            }
        }
        Reading::Gap(gap) => values.push(("cgroup", format!("not seen: {}", gap.detail))),
    }
    values
}

/// `0.0.0.0:30080/tcp`.
pub(super) fn place(socket: &Socket) -> String {
    format!("{}/{}", SocketAddr::new(socket.local, socket.local_port), socket.protocol)
}

/// The same words with a capital letter, to begin a sentence.
pub(super) fn capital(words: &str) -> String {
    let mut letters = words.chars();
    letters.next().map(|first| first.to_ascii_uppercase()).into_iter().chain(letters).collect()
}

/// `tcp LISTEN 0.0.0.0:30080`, with the device where it is bound to one.
pub(super) fn socket_in_words(socket: &Socket) -> String {
    let local = SocketAddr::new(socket.local, socket.local_port);
    let mut words = format!("{} {} {local}", socket.protocol, socket.state.name());
    if !matches!((socket.protocol, socket.state), (_, State::Listen) | (Protocol::Udp, State::Close)) {
        words.push_str(&format!(" -> {}", SocketAddr::new(socket.remote, socket.remote_port)));
    }
    if socket.retransmits > 0 {
        words.push_str(" retransmitting");
    }
    if socket.v6only == Some(true) {
        words.push_str(" v6only");
    }
    if socket.device != 0 {
        words.push_str(&format!(" on interface {}", socket.device));
    }
    words
}

/// `default/web port http`, or without the port's name where it has none.
pub(super) fn service_port(service: &Service, name: &str) -> String {
    let mut words = format!("{}/{}", service.namespace, service.name);
    if !name.is_empty() {
        words.push_str(&format!(" port {name}"));
    }
    words
}

#[cfg(test)]
mod tests;
