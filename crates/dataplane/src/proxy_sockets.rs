//! Which sockets are the proxy's own.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    kube_proxy::{holds_ports, oldest_beside_kubelet},
    served::served_node_ports,
    usual_ports::{Role, is_usual},
};
use portreeve_facts::{
    Cgroup, Gap, Holder, Mode, Owner, PROXY_METRICS, Process, Protocol, Reading, Snapshot, Socket, Source, Unread, Why,
    asked,
};

/// For so many NodePorts that it holds, a proxy may be about to open one more; in any case one.
const MANY: usize = 8;

/// Whether a socket is the proxy's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Own {
    /// It holds a NodePort, or serves a health check: no conflict.
    Yes,
    /// Another process owns it.
    No,
    /// Not known: the proxy did not answer, and the owner of this socket seems to hold NodePorts, or has a socket where the
    /// proxy would answer.
    Unknown,
}

/// Distinguishes the proxy's own sockets. No name decides: a socket is the proxy's if it shares the process, or a cgroup
/// other than the root, with the process that answers `/proxyMode`.
pub struct Proxy<'a> {
    snapshot: &'a Snapshot,
    /// Owners that hold NodePorts, as OVN-Kubernetes and old proxies do, with their number of NodePorts; or why no process
    /// is known.
    hold_node_ports: Result<BTreeMap<Group<'a>, usize>, Gap>,
    /// Owners of the proxy's port, where connections are accepted and not answered: a proxy that hangs, perhaps.
    hang: BTreeSet<Group<'a>>,
}

/// Sockets that certainly share an owner, or whose owner is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Group<'a> {
    /// Of one control group, by its path.
    Cgroup(&'a str),
    /// Of one process: its pid, and when it was started.
    Process(u32, u64),
    /// The owner is unknown.
    Unknown,
}

impl<'a> Proxy<'a> {
    /// Of a snapshot, once a round.
    pub fn of(snapshot: &'a Snapshot) -> Self {
        Self { snapshot, hold_node_ports: owners_of_node_ports(snapshot), hang: hang(snapshot) }
    }

    /// Whether a listening socket on a NodePort or a healthCheckNodePort is the proxy's own.
    pub fn owns(&self, socket: &Socket) -> Own {
        // A process that contains a proxy listens there for reasons of its own, so a socket of it is still a conflict.
        if is_usual(socket.local_port, Role::Daemon) {
            return Own::No;
        }
        if !matches!(socket.owner, Owner::Held(_)) {
            return Own::No;
        }
        if self.shares_owner(socket) {
            return Own::Yes;
        }
        if self.hang.contains(&group(socket)) || self.is_unnamed_and_holds() && socket.is_of_root() {
            return Own::Unknown;
        }
        if self.may_hold_on_loopback(socket) && !self.certainly_lacks(socket) {
            return Own::Unknown;
        }
        let held = match &self.hold_node_ports {
            Ok(held) => held.get(&group(socket)).copied(),
            Err(_) => socket.is_of_root().then_some(usize::MAX),
        };
        match (self.certainly_lacks(socket), held, self.snapshot.overrides.proxy_mode.is_some()) {
            (true, _, _) | (_, None, _) => Own::No,
            // Whether a proxy holds ports follows from its version. If a proxy answers and holds no ports, no process is a
            // holder.
            (false, Some(_), _) if self.proxy_never_holds() => Own::No,
            (false, Some(_), _) if self.is_cilium() => Own::No,
            // One held NodePort proves little if a kube-proxy without held ports is configured.
            (false, Some(1), _) if self.configured_proxy_never_holds() => Own::No,
            (false, Some(_), true) => Own::No,
            (false, Some(_), false) => Own::Unknown,
        }
    }

    /// The same, where only a known answer counts.
    ///
    /// # Errors
    /// When it is not known.
    pub fn is_own(&self, socket: &Socket) -> Result<bool, Gap> {
        match self.owns(socket) {
            Own::Yes => Ok(true),
            Own::No => Ok(false),
            Own::Unknown => Err(self.unknown(socket)),
        }
    }

    /// Why it is not known whether a socket is the proxy's own. A pod that holds NodePorts is how OVN-Kubernetes and others program
    /// Services; any other process is more likely in the way of some.
    pub fn unknown(&self, socket: &Socket) -> Gap {
        if let Some(gap) = self.snapshot.kernel.proxy.process.gap().filter(|_| self.is_unnamed_and_holds()) {
            return gap.clone();
        }
        let held = match &self.hold_node_ports {
            Ok(held) => held.contains_key(&group(socket)),
            Err(gap) => return gap.clone(),
        };
        if held && cgroup(socket).is_some_and(|it| it.pod.is_some()) {
            let detail = "the pod that listens here listens on all NodePorts that no other process has: it may be the proxy, \
                          as of OVN-Kubernetes";
            return Gap::new(Source::ProxyProcess, Why::Ambiguous, detail);
        }
        let detail = "the process that listens here listens on all NodePorts that no other process has, or where the proxy \
                      would answer: it may be the proxy";
        Gap::new(Source::ProxyMode, Why::Ambiguous, detail)
    }

    /// Whether a socket is held by the process that answers `/proxyMode`.
    pub fn shares_owner(&self, socket: &Socket) -> bool {
        let proxy = &self.snapshot.kernel.proxy;
        matches!(&socket.owner, Owner::Held(holder) if same_owner(holder, &proxy.cgroup, &proxy.process))
    }

    /// A socket of an owner that holds NodePorts, as OVN-Kubernetes and old proxies do.
    pub fn owner_of_node_ports(&self) -> Option<&'a Socket> {
        let listeners = self.snapshot.kernel.listeners.known_part(Unread::Adds).iter();
        let hold = self.hold_node_ports.as_ref().ok()?;
        let held = listeners.filter(|socket| hold.contains_key(&group(socket)));
        held.min_by_key(|socket| (group(socket), socket.local_port, socket.local))
    }

    /// Whether the proxy and the socket's owner are known in the same way, and differ.
    pub fn certainly_lacks(&self, socket: &Socket) -> bool {
        let proxy = &self.snapshot.kernel.proxy;
        let Owner::Held(holder) = &socket.owner else { return false };
        let identifies = |it: &Reading<Cgroup>| it.known(Unread::Doubted).is_some_and(|cgroup| !cgroup.is_root());
        let comparable = identifies(&holder.cgroup) && identifies(&proxy.cgroup)
            || holder.process.gap().or(proxy.process.gap()).is_none();
        comparable && !same_owner(holder, &proxy.cgroup, &proxy.process)
    }

    /// A kube-proxy answers, and its version holds no NodePorts.
    fn proxy_never_holds(&self) -> bool {
        self.version().is_some_and(|version| holds_ports(version) == Some(false))
    }

    /// A kube-proxy answers whose version holds NodePorts, and its process is unknown.
    fn is_unnamed_and_holds(&self) -> bool {
        let proxy = &self.snapshot.kernel.proxy;
        let unnamed = proxy.cgroup.known(Unread::Doubted).is_none_or(Cgroup::is_root) && proxy.process.gap().is_some();
        unnamed && self.version().is_some_and(|version| holds_ports(version) == Some(true))
    }

    /// A kube-proxy in nftables mode that listens on loopback's NodePorts over TCP, if configured to (KEP-6032).
    fn may_hold_on_loopback(&self, socket: &Socket) -> bool {
        let config = self.snapshot.proxy_config();
        let mode = self.snapshot.is_in(Mode::Nftables);
        let told = config.is_ok_and(|config| config.nftables_localhost == Some(true));
        mode && told && socket.local.is_loopback() && socket.protocol == Protocol::Tcp
    }

    /// Cilium is in kube-proxy's place, and holds no port: its programs are in the kernel.
    fn is_cilium(&self) -> bool {
        self.snapshot.is_in(Mode::Cilium)
    }

    /// The version that a kube-proxy answers.
    fn version(&self) -> Option<&str> {
        self.snapshot.kernel.proxy.metrics.known(Unread::Doubted)?.version.as_deref()
    }

    /// No kube-proxy answers its version, but the cluster has the configuration of one, and none that this node may run
    /// holds NodePorts.
    fn configured_proxy_never_holds(&self) -> bool {
        let configured = self.snapshot.proxy_mode().is_ok_and(|mode| Mode::KUBE_PROXY.contains(&mode.value));
        let holds = |(major, minor)| holds_ports(&format!("v{major}.{minor}.0"));
        self.version().is_none() && configured && oldest_beside_kubelet(self.snapshot).and_then(holds) == Some(false)
    }
}

/// Whether two sockets are held by one process or by processes of one control group, as far as both are known.
pub fn share_owner(one: &Socket, other: &Socket) -> bool {
    let (Owner::Held(one), Owner::Held(other)) = (&one.owner, &other.owner) else { return false };
    same_owner(one, &other.cgroup, &other.process)
}

/// Whether two owners are the same: the same process, or the same cgroup other than the root.
fn same_owner(holder: &Holder, cgroup: &Reading<Cgroup>, process: &Reading<Process>) -> bool {
    let process_matches = match (&holder.process, process) {
        (Reading::Seen(a), Reading::Seen(b)) => a.pid == b.pid && a.started == b.started,
        _ => false,
    };
    let cgroup_matches = match (&holder.cgroup, cgroup) {
        (Reading::Seen(a), Reading::Seen(b)) => !a.is_root() && a.path == b.path,
        _ => false,
    };
    process_matches || cgroup_matches
}

/// The owners with a listening socket on most allocated NodePorts, and on each one that no other process blocks; with their
/// number. Free ports prove that no process holds NodePorts: such a proxy opens each port at its allocation. It may be
/// about to open one, or a few of many. A proxy runs as root, so another user's process is no such owner. Without a cluster
/// there are no NodePorts.
///
/// # Errors
///
/// When Services could not be read.
fn owners_of_node_ports(snapshot: &Snapshot) -> Result<BTreeMap<Group<'_>, usize>, Gap> {
    let Some(services) = asked(snapshot.cluster.services.get())? else { return Ok(BTreeMap::new()) };
    let listeners = || snapshot.kernel.listeners.known_part(Unread::Said("whoever has a socket to ask about")).iter();
    let allocated: BTreeSet<(Protocol, u16)> = served_node_ports(snapshot, services)
        .filter(|(_, port, _)| port.protocol != Protocol::Sctp) // no proxy ever held an SCTP port
        .filter(|(_, port, _)| port.protocol != Protocol::Udp || snapshot.kernel.no_udp.is_none())
        .map(|(_, port, number)| (port.protocol, number))
        .collect();
    let mut held: BTreeMap<Group<'_>, BTreeSet<(Protocol, u16)>> = BTreeMap::new();
    let mut free = allocated.clone();
    for socket in listeners() {
        let port = (socket.protocol, socket.local_port);
        if allocated.contains(&port) {
            if socket.is_of_root() {
                held.entry(group(socket)).or_default().insert(port);
            }
            free.remove(&port);
        }
    }
    // No process can listen on the port of an outgoing connection either. One that could not be read may be on each.
    match asked(snapshot.kernel.clients.get()) {
        Ok(clients) => clients.into_iter().flat_map(|it| &it.sockets).for_each(|socket| {
            free.remove(&(socket.protocol, socket.local_port));
        }),
        Err(_) => free.clear(),
    }
    // One port of a process that is in no pod shows nothing: what programs Services by holding ports runs as a pod, or inside
    // a daemon that has the ports of others too.
    let outside = |group: &Group<'_>| {
        let mut sockets = listeners().filter(|socket| self::group(socket) == *group);
        sockets.any(|socket| cgroup(socket).is_some_and(|it| it.pod.is_none()))
    };
    let about_to_be_opened = |held: usize| (held / MANY).max(1);
    held.retain(|group, ports| {
        let most = ports.len() * 2 > allocated.len() && free.len() <= about_to_be_opened(ports.len());
        most && (ports.len() > 1 || !outside(group))
    });
    Ok(held.into_iter().map(|(group, ports)| (group, ports.len())).collect())
}

fn hang(snapshot: &Snapshot) -> BTreeSet<Group<'_>> {
    let listeners = snapshot.kernel.listeners.known_part(Unread::Said("whoever has a socket to ask about")).iter();
    let hangs = snapshot.kernel.proxy.mode.gap().is_some_and(|gap| gap.why == Why::TimedOut);
    listeners
        .filter(|socket| hangs && socket.protocol == Protocol::Tcp && socket.local_port == PROXY_METRICS)
        .map(group)
        .collect()
}

/// The control group of a socket's owner, as far as it is known.
fn cgroup(socket: &Socket) -> Option<&Cgroup> {
    match &socket.owner {
        Owner::Held(holder) => holder.cgroup.known(Unread::Doubted),
        _ => None,
    }
}

/// Who owns a socket, as far as it is known.
pub fn group(socket: &Socket) -> Group<'_> {
    let Owner::Held(holder) = &socket.owner else { return Group::Unknown };
    match (holder.cgroup.known(Unread::Doubted), holder.process.known(Unread::Doubted)) {
        (Some(cgroup), _) if !cgroup.is_root() => Group::Cgroup(&cgroup.path),
        (_, Some(process)) => Group::Process(process.pid, process.started),
        _ => Group::Unknown,
    }
}

#[cfg(test)]
mod tests;
