//! Decides which sockets belong to the proxy.

use std::{
    cell::LazyCell,
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use super::{
    kube_proxy::{holds_ports, oldest_beside_kubelet},
    served::served_node_ports,
    usual_ports::{Role, is_usual},
};
use portreeve_facts::{
    Cgroup, Clients, Gap, Mode, Owner, PROXY_METRICS, Process, Protocol, Reading, Snapshot, Socket, Source, Unread,
    Why, if_requested,
};

/// A proxy may not have opened its newest NodePorts yet. Portreeve permits one unopened port for each `MANY` open
/// ports, and at least one unopened port.
const MANY: usize = 8;

/// Whether a socket belongs to the proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Own {
    /// The socket belongs to the proxy, for a NodePort or a health check: no conflict.
    Yes,
    /// The socket belongs to another process.
    No,
    /// It is not known whether the socket belongs to the proxy. For example, the proxy did not answer, and the owner
    /// listens on NodePorts. In another example, the owner's process was not read, and the owner's control group has
    /// the proxy and other programs. The proxy may also have been restarted during the scan.
    Unknown,
}

/// Finds the proxy's own sockets. A socket belongs to the proxy if its program also has the socket that answers
/// `/proxyMode`. The process name is not used, because any process can choose its name.
pub struct Proxy<'a> {
    snapshot: &'a Snapshot,
    /// Owners that listen on NodePorts, as OVN-Kubernetes and old proxies do, with the number of their NodePorts. An
    /// error is the reason why these owners are not known.
    hold_node_ports: Result<BTreeMap<Group<'a>, usize>, Gap>,
    /// Owners of the proxy's port, if a process accepts connections on this port and does not answer. One of these
    /// owners may be a proxy that hangs.
    hang: BTreeSet<Group<'a>>,
}

/// Sockets that certainly have the same owner, or sockets without a known owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Group<'a> {
    /// The sockets of one control group, by its path.
    Cgroup(&'a str),
    /// The sockets of one process, by its pid and its start time. The process has no control group of its own, for
    /// example because it runs in a login session.
    Process(u32, u64),
    /// The owner is unknown.
    Unknown,
}

impl<'a> Proxy<'a> {
    /// The owners of sockets in a snapshot.
    pub fn of(snapshot: &'a Snapshot) -> Self {
        Self { snapshot, hold_node_ports: owners_of_node_ports(snapshot), hang: hang(snapshot) }
    }

    /// Whether a listening socket on a NodePort or a healthCheckNodePort is the proxy's own.
    pub fn owns(&self, socket: &Socket) -> Own {
        // A daemon such as `k3s server` may contain a proxy, and also listens on ports of its own. So a socket on the
        // daemon's usual port is a conflict.
        if is_usual(socket.local_port, Role::Daemon) || !matches!(socket.owner, Owner::Held(_)) {
            return Own::No;
        }
        if self.shares_owner(socket) {
            return Own::Yes;
        }
        if self.unread_beside(socket).is_some()
            || self.hang.contains(&group(socket))
            || self.is_unnamed_and_holds() && socket.is_of_root()
            || self.may_hold_on_loopback(socket) && !self.certainly_lacks(socket)
        {
            return Own::Unknown;
        }
        let held = match &self.hold_node_ports {
            Ok(held) => held.get(&group(socket)).copied(),
            Err(_) => socket.is_of_root().then_some(usize::MAX),
        };
        match held {
            None => Own::No,
            Some(_) if self.certainly_lacks(socket) || self.snapshot.overrides.proxy_mode.is_some() => Own::No,
            // If a kube-proxy answers and its version opens no NodePorts, the owner of a NodePort is not the proxy.
            Some(_) if self.proxy_never_holds() || self.is_cilium() => Own::No,
            // If the configured kube-proxy opens no NodePorts, an owner of only one NodePort is no proxy.
            Some(1) if self.configured_proxy_never_holds() => Own::No,
            Some(_) => Own::Unknown,
        }
    }

    /// Whether a socket belongs to the proxy.
    ///
    /// # Errors
    /// Fails if it is not known whether the socket belongs to the proxy.
    pub fn is_own(&self, socket: &Socket) -> Result<bool, Gap> {
        match self.owns(socket) {
            Own::Yes => Ok(true),
            Own::No => Ok(false),
            Own::Unknown => Err(self.unknown(socket)),
        }
    }

    /// The reason why it is not known whether a socket belongs to the proxy. OVN-Kubernetes and some other proxies
    /// listen on NodePorts in a pod. A process outside pods that listens on NodePorts is more likely a conflict.
    pub fn unknown(&self, socket: &Socket) -> Gap {
        if let Some(gap) = self.unread_beside(socket) {
            return gap;
        }
        if let Some(gap) = self.snapshot.kernel.proxy.process.gap().filter(|_| self.is_unnamed_and_holds()) {
            return gap.clone();
        }
        let held = match &self.hold_node_ports {
            Ok(held) => held.contains_key(&group(socket)),
            Err(gap) => return gap.clone(),
        };
        if held && cgroup(socket).is_some_and(|it| it.pod.is_some()) {
            // The unread settings may name Cilium. In this case, the pod is not the proxy.
            if let Some(gap) = self.snapshot.proxy_mode().err().filter(|gap| gap.source == Source::ConfigMaps) {
                return gap;
            }
            let detail = "this pod listens on all NodePorts that no other process has: the pod may be the proxy, for example of OVN-Kubernetes";
            return Gap::new(Source::ProxyProcess, Why::Ambiguous, detail);
        }
        let detail = "this process listens on all NodePorts that no other process has, or on the proxy's own port: the process may be the proxy";
        Gap::new(Source::ProxyMode, Why::Ambiguous, detail)
    }

    /// Whether the program of this socket is the proxy that answers `/proxyMode`.
    pub fn shares_owner(&self, socket: &Socket) -> bool {
        self.is_its(socket) == Some(true)
    }

    fn is_its(&self, socket: &Socket) -> Option<bool> {
        are_of_one_program(holder(socket)?, self.holder())
    }

    fn holder(&self) -> Held<'_> {
        let proxy = &self.snapshot.kernel.proxy;
        (&proxy.cgroup, &proxy.process)
    }

    /// The reason why it is not known which program in the proxy's control group has the socket. Either a process or a
    /// control group was not read, or the proxy may have been restarted during the scan.
    pub fn unread_beside(&self, socket: &Socket) -> Option<Gap> {
        let (cgroup, process) = holder(socket)?;
        let (its_cgroup, its_process) = self.holder();
        if self.is_its(socket).is_some() {
            return None;
        }
        let detail =
            "an earlier process of the proxy's service has a socket: the service may have restarted during the scan";
        let restarted = || Gap::new(Source::ProxyProcess, Why::Torn, detail);
        match (process, its_process) {
            (Reading::Seen(_), Reading::Seen(_)) => {
                let unread = || Some(Gap { source: Source::Cgroups, ..its_cgroup.gap()?.clone() });
                Some(cgroup.gap().cloned().or_else(unread).unwrap_or_else(restarted))
            }
            _ if are_in_one_group(cgroup, its_cgroup) == Some(true) => process.gap().or(its_process.gap()).cloned(),
            _ => None,
        }
    }

    /// Whether the program of this socket also has each socket that was queried for the mode and did not answer.
    pub fn hangs(&self, socket: &Socket) -> bool {
        let is_of_one = |it: &&Socket| holder(it).zip(holder(socket)).and_then(|(a, b)| are_of_one_program(a, b));
        !self.hang.is_empty() && queried(self.snapshot).iter().all(|it| is_of_one(it) == Some(true))
    }

    /// A socket of an owner that listens on NodePorts, as OVN-Kubernetes and old proxies do.
    pub fn owner_of_node_ports(&self) -> Option<&'a Socket> {
        let listeners = self.snapshot.kernel.listeners.known_part(Unread::Adds).iter();
        let hold = self.hold_node_ports.as_ref().ok()?;
        let held = listeners.filter(|socket| hold.contains_key(&group(socket)));
        held.min_by_key(|socket| (group(socket), socket.local_port, socket.local))
    }

    /// Whether the program of this socket is certainly not the proxy.
    pub fn certainly_lacks(&self, socket: &Socket) -> bool {
        self.is_its(socket) == Some(false)
    }

    /// Whether the mode or the version of this node's proxy shows that the proxy opens no NodePort.
    pub fn never_holds(&self) -> bool {
        let by_version = self.proxy_never_holds() || self.configured_proxy_never_holds();
        // kube-proxy in nftables mode can be configured to listen on NodePorts on loopback (KEP-6032).
        let is_other = self.snapshot.proxy_mode().is_ok_and(|mode| mode.value != Mode::Nftables);
        let is_off = || self.snapshot.proxy_config().is_ok_and(|it| it.nftables_localhost != Some(true));
        self.is_cilium() || by_version && (is_other || is_off())
    }

    fn proxy_never_holds(&self) -> bool {
        self.version().is_some_and(|version| holds_ports(version) == Some(false))
    }

    fn is_unnamed_and_holds(&self) -> bool {
        let proxy = &self.snapshot.kernel.proxy;
        let unnamed = proxy.cgroup.known(Unread::Doubted).is_none_or(Cgroup::is_root) && proxy.process.gap().is_some();
        unnamed && self.version().is_some_and(|version| holds_ports(version) == Some(true))
    }

    /// kube-proxy can be configured to serve TCP NodePorts on loopback (KEP-6032).
    fn may_hold_on_loopback(&self, socket: &Socket) -> bool {
        let config = self.snapshot.proxy_config();
        let mode = self.snapshot.is_in(Mode::Nftables);
        let is_configured = config.is_ok_and(|config| config.nftables_localhost == Some(true));
        mode && is_configured && socket.local.is_loopback() && socket.protocol == Protocol::Tcp
    }

    /// Cilium's programs are in the kernel, so Cilium opens no port.
    fn is_cilium(&self) -> bool {
        self.snapshot.is_in(Mode::Cilium)
    }

    fn version(&self) -> Option<&str> {
        self.snapshot.kernel.proxy.metrics.known(Unread::Doubted)?.version.as_deref()
    }

    fn configured_proxy_never_holds(&self) -> bool {
        let configured = self.snapshot.proxy_mode().is_ok_and(|mode| Mode::KUBE_PROXY.contains(&mode.value));
        let holds = |(major, minor)| holds_ports(&format!("v{major}.{minor}.0"));
        self.version().is_none() && configured && oldest_beside_kubelet(self.snapshot).and_then(holds) == Some(false)
    }
}

/// The owners that listen on more than half of the allocated NodePorts, with the number of their NodePorts. An owner of
/// so many NodePorts may be a proxy. A proxy opens each port when the port is allocated, and may be late with a few
/// ports. If more ports have no listener, no owner is a proxy, and the result is empty. Processes of users other than
/// root are left out, because a proxy runs as root.
///
/// # Errors
///
/// Fails if Services could not be read.
fn owners_of_node_ports(snapshot: &Snapshot) -> Result<BTreeMap<Group<'_>, usize>, Gap> {
    let Some(services) = if_requested(snapshot.cluster.services.get())? else { return Ok(BTreeMap::new()) };
    let listeners = || snapshot.kernel.listeners.known_part(Unread::Reported("the caller, which has a socket")).iter();
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
    // A proxy cannot listen on the port of an outgoing connection. If some connections were not read, any port may be
    // the port of a connection.
    match if_requested(snapshot.kernel.clients.get()) {
        Ok(clients) if clients.and_then(Clients::outgoing_missing).is_none() => {
            for socket in clients.into_iter().flat_map(|it| &it.sockets) {
                free.remove(&(socket.protocol, socket.local_port));
            }
        }
        _ => free.clear(),
    }
    // A process outside pods that listens on one NodePort may be any process. A proxy that opens NodePorts runs as a
    // pod, or inside a daemon that also has other ports.
    let outside = LazyCell::new(|| {
        let sockets = listeners().filter(|socket| cgroup(socket).is_some_and(|it| it.pod.is_none()));
        sockets.map(group).collect::<BTreeSet<_>>()
    });
    let about_to_be_opened = |held: usize| (held / MANY).max(1);
    held.retain(|group, ports| {
        let most = ports.len() * 2 > allocated.len() && free.len() <= about_to_be_opened(ports.len());
        most && (ports.len() > 1 || !outside.contains(group))
    });
    Ok(held.into_iter().map(|(group, ports)| (group, ports.len())).collect())
}

fn hang(snapshot: &Snapshot) -> BTreeSet<Group<'_>> {
    let hangs = snapshot.kernel.proxy.mode.gap().is_some_and(|gap| gap.why == Why::TimedOut);
    on_proxy_port(snapshot).filter(|_| hangs).map(group).collect()
}

fn on_proxy_port(snapshot: &Snapshot) -> impl Iterator<Item = &Socket> {
    let listeners = snapshot.kernel.listeners.known_part(Unread::Reported("the caller, which has a socket")).iter();
    listeners.filter(|socket| (socket.protocol, socket.local_port) == (Protocol::Tcp, PROXY_METRICS))
}

/// The listeners that may have received the query for the mode. The reader queries another address only if no process
/// listens on loopback (`portreeve_kernel`, `believed`).
fn queried(snapshot: &Snapshot) -> Vec<&Socket> {
    const LOOPBACK: [IpAddr; 2] = [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)];
    let (loopback, elsewhere): (Vec<_>, Vec<_>) = on_proxy_port(snapshot).partition(|socket| {
        let local = socket.local.to_canonical();
        local.is_unspecified() || LOOPBACK.contains(&local)
    });
    if loopback.is_empty() { elsewhere } else { loopback }
}

/// The control group and the process of an owner.
type Held<'a> = (&'a Reading<Cgroup>, &'a Reading<Process>);

fn holder(socket: &Socket) -> Option<Held<'_>> {
    if let Owner::Held(holder) = &socket.owner { Some((&holder.cgroup, &holder.process)) } else { None }
}

/// Whether two owners are one program; `None` if unknown. A container has one program. A service of systemd may have
/// several programs. So equal control groups of a service mean one program only if a process is unknown. The control
/// group of a session does not show the program. If the program is restarted during a scan, `process` may be the
/// earlier process of the program.
fn are_of_one_program((cgroup, process): Held<'_>, (other_cgroup, other): Held<'_>) -> Option<bool> {
    let in_one_group = are_in_one_group(cgroup, other_cgroup);
    let has_one =
        |has: fn(&Cgroup) -> bool| in_one_group == Some(true) && cgroup.known(Unread::Doubted).is_some_and(has);
    match (process, other) {
        (Reading::Seen(a), Reading::Seen(b)) if (a.pid, a.started) == (b.pid, b.started) => Some(true),
        (Reading::Seen(_), Reading::Seen(_)) if has_one(|it| it.pod.is_some() || is_of_container(it)) => Some(true),
        (Reading::Seen(a), Reading::Seen(b)) if a.started < b.started && may_keep_group(cgroup, other_cgroup) => None,
        (Reading::Seen(_), Reading::Seen(_)) => Some(false),
        _ if in_one_group == Some(true) => has_one(has_one_program).then_some(true),
        _ => in_one_group,
    }
}

/// Whether a restart may have put a new process of the program into the same control group. A restart of a service or
/// of a plain container keeps the group, and one of the two groups may be unread. A restarted container of a pod has a
/// new group. If both groups are unread, the kernel reports no groups: two processes are then two programs.
fn may_keep_group(one: &Reading<Cgroup>, other: &Reading<Cgroup>) -> bool {
    match (one, other) {
        (Reading::Seen(a), Reading::Seen(b)) => a.path == b.path && is_service(a),
        (Reading::Seen(known), Reading::Gap(_)) | (Reading::Gap(_), Reading::Seen(known)) => {
            is_service(known) || known.pod.is_none() && is_of_container(known)
        }
        (Reading::Gap(_), Reading::Gap(_)) => false,
    }
}

/// Whether two control groups are one group. `None` if a group is unread, or is the root group, because many programs
/// share the root group.
fn are_in_one_group(one: &Reading<Cgroup>, other: &Reading<Cgroup>) -> Option<bool> {
    match (one, other) {
        (Reading::Seen(a), Reading::Seen(b)) if !a.is_root() && !b.is_root() => Some(a.path == b.path),
        _ => None,
    }
}

fn is_service(cgroup: &Cgroup) -> bool {
    cgroup.pod.is_none() && cgroup.path.ends_with(".service")
}

fn has_one_program(cgroup: &Cgroup) -> bool {
    let is_shared = [".scope", ".slice"].iter().any(|kind| cgroup.path.ends_with(kind));
    cgroup.pod.is_some() || !is_shared || is_of_container(cgroup)
}

/// Container runtimes name the group of a container after its id, for example `docker-ID.scope`.
fn is_of_container(cgroup: &Cgroup) -> bool {
    let name = cgroup.path.rsplit('/').next().unwrap_or_default();
    name.split(|it: char| !it.is_ascii_hexdigit()).any(|part| part.len() == 64)
}

fn cgroup(socket: &Socket) -> Option<&Cgroup> {
    holder(socket)?.0.known(Unread::Doubted)
}

/// The owner of a socket, if known.
pub fn group(socket: &Socket) -> Group<'_> {
    let Owner::Held(holder) = &socket.owner else { return Group::Unknown };
    let process = holder.process.known(Unread::Doubted);
    // Each process of a session is an owner, because a session has many programs.
    let counts = |it: &Cgroup| !it.is_root() && (has_one_program(it) || process.is_none());
    match (holder.cgroup.known(Unread::Doubted), process) {
        (Some(cgroup), _) if counts(cgroup) => Group::Cgroup(&cgroup.path),
        (_, Some(process)) => Group::Process(process.pid, process.started),
        _ => Group::Unknown,
    }
}

/// Whether the sockets of a socket's [`group`] belong to one program. If false, the sockets may belong to several
/// programs.
pub(super) fn is_of_one_program(socket: &Socket) -> bool {
    match group(socket) {
        Group::Cgroup(_) => cgroup(socket).is_some_and(has_one_program),
        Group::Process(..) => true,
        Group::Unknown => false,
    }
}

#[cfg(test)]
mod tests;
