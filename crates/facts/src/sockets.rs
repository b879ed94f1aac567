//! Sockets of the host's network namespace, and their owners.

use std::net::{IpAddr, SocketAddr};

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use super::{Family, Gap, PortSet, Protocol, Reading, Source, Why};

/// One socket, as sock_diag reports it (include/uapi/linux/inet_diag.h).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Socket {
    /// TCP, UDP or SCTP.
    pub protocol: Protocol,
    /// The state. [`State::Close`] means an unconnected UDP socket, or a TCP socket that is bound, but does not listen
    /// or connect.
    pub state: State,
    /// The family with which the socket was made. A socket on `[::]` without `IPV6_V6ONLY` also serves IPv4.
    pub family: Family,
    /// The local address. `0.0.0.0` and `::` mean every address.
    pub local: IpAddr,
    /// The local port.
    pub local_port: u16,
    /// The peer's address. For listeners, `0.0.0.0` or `::`.
    pub remote: IpAddr,
    /// The peer's port. For listeners, 0.
    pub remote_port: u16,
    /// `IPV6_V6ONLY`. The kernel reports this option only for IPv6 sockets that listen or are unconnected. `/proc/net`
    /// does not have the option.
    pub v6only: Option<bool>,
    /// The uid of the user that opened the socket. For a socket in TIME_WAIT, the value has no meaning.
    pub uid: u32,
    /// The socket's inode in sockfs. The value is 0 in TIME_WAIT and SYN_RECV.
    pub inode: u64,
    /// The inode of the socket's cgroup2 directory (`INET_DIAG_CGROUP_ID`, since Linux 5.8).
    pub cgroup: Option<u64>,
    /// The index of the interface to which the socket is bound (`SO_BINDTODEVICE`). 0 if the socket is not bound to an
    /// interface.
    pub device: u32,
    /// How many times the kernel sent the first unanswered segment again.
    pub retransmits: u8,
    /// The owner.
    pub owner: Owner,
}

impl Socket {
    /// Whether root opened the socket. Only a process of root can make the kernel serve Services.
    pub fn is_of_root(&self) -> bool {
        self.uid == 0
    }

    /// Whether the socket listens, or is an unconnected UDP socket.
    pub fn is_listener(&self) -> bool {
        self.state == State::Listen || self.protocol == Protocol::Udp && self.state == State::Close
    }

    /// Whether the socket serves addresses of `family`. A socket serves the family of its local address. A socket on
    /// `[::]` without `IPV6_V6ONLY` also serves IPv4. `None` if this option is needed and not known.
    pub fn serves(&self, family: Family) -> Option<bool> {
        match (self.local.to_canonical(), family) {
            // An IPv6 socket may be bound to a mapped IPv4 address. Such a socket serves IPv4 only.
            (IpAddr::V4(_), _) => Some(family == Family::V4),
            (local, Family::V4) if local.is_unspecified() => self.v6only.map(|only| !only),
            (IpAddr::V6(_), _) => Some(family == Family::V6),
        }
    }
}

/// The TCP states of the kernel (include/net/tcp_states.h). sock_diag uses these states for every protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING-KEBAB-CASE")]
#[repr(u8)]
#[allow(missing_docs, reason = "the kernel's own names")]
pub enum State {
    Established = 1,
    SynSent = 2,
    SynRecv = 3,
    FinWait1 = 4,
    FinWait2 = 5,
    TimeWait = 6,
    Close = 7,
    CloseWait = 8,
    LastAck = 9,
    Listen = 10,
    Closing = 11,
    NewSynRecv = 12,
}

impl State {
    /// Every state, in the kernel's order.
    pub const ALL: [Self; 12] = [
        Self::Established,
        Self::SynSent,
        Self::SynRecv,
        Self::FinWait1,
        Self::FinWait2,
        Self::TimeWait,
        Self::Close,
        Self::CloseWait,
        Self::LastAck,
        Self::Listen,
        Self::Closing,
        Self::NewSynRecv,
    ];

    /// The state with this number in the kernel.
    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|state| *state as u8 == number)
    }

    /// The name that `ss` prints.
    pub fn name(self) -> &'static str {
        match self {
            Self::Established => "ESTAB",
            Self::SynSent => "SYN-SENT",
            Self::SynRecv => "SYN-RECV",
            Self::FinWait1 => "FIN-WAIT-1",
            Self::FinWait2 => "FIN-WAIT-2",
            Self::TimeWait => "TIME-WAIT",
            Self::Close => "UNCONN",
            Self::CloseWait => "CLOSE-WAIT",
            Self::LastAck => "LAST-ACK",
            Self::Listen => "LISTEN",
            Self::Closing => "CLOSING",
            Self::NewSynRecv => "NEW-SYN-RECV",
        }
    }
}

/// The owner of a socket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Owner {
    /// The owner was not read, because no rule needs the owner of this port.
    #[serde(alias = "not-asked")]
    NotRead,
    /// A connection in TIME_WAIT. For 60 s, the kernel keeps the addresses and ports of the connection, but no owner.
    TimeWait,
    /// The kernel itself, for a tunnel such as VXLAN, Geneve or WireGuard.
    Kernel {
        /// The name of the link, for example `flannel.1`. Empty if the link is not known.
        link: String,
    },
    /// A process of the node or of a pod.
    Held(Holder),
}

/// The owner of a socket. Portreeve reads the control group and the process of the owner separately.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    /// The socket's control group. The path of the group contains the pod's uid. To read the group, Portreeve needs no
    /// privilege.
    pub cgroup: Reading<Cgroup>,
    /// The process that has the socket open, from `/proc/<pid>/fd`. If several processes have the socket open, the
    /// value is the oldest process. To find processes of other users, Portreeve needs SYS_PTRACE.
    pub process: Reading<Process>,
}

/// A control group in the cgroup2 hierarchy.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Cgroup {
    /// The path below the mount point. The root group has the path `/`.
    pub path: String,
    /// The pod to which this cgroup belongs.
    pub pod: Option<PodContainer>,
}

impl Cgroup {
    /// Whether this is the root group. Tunnels, early daemons and processes that are only in groups of cgroup1 are in
    /// the root group. So this group does not show the owner of a socket.
    pub fn is_root(&self) -> bool {
        self.path == "/"
    }
}

/// The pod uid and the container id in the name of a control group that the kubelet made.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct PodContainer {
    /// `metadata.uid` with dashes. For a static pod, the hash of its configuration.
    pub pod_uid: String,
    /// The container's id in the container runtime.
    pub container: Option<String>,
}

/// A process. The start time distinguishes the process from a later process with the same pid.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Process {
    /// The pid in the reader's pid namespace.
    pub pid: u32,
    /// `/proc/<pid>/comm`, without invisible characters.
    pub command: String,
    /// `/proc/<pid>/cmdline`, shortened, and without invisible characters. `None` unless command lines were requested,
    /// because they may contain secrets.
    pub command_line: Option<String>,
    /// The number of clock ticks from the boot to the start of the process (`/proc/<pid>/stat` field 22).
    pub started: u64,
}

impl Process {
    /// The number of clock ticks in a second (`USER_HZ`, include/asm-generic/param.h), equal on all processors that
    /// Kubernetes supports.
    const TICKS: u64 = 100;

    /// The time at which the process started, in whole seconds. `booted` is the time at which the node booted.
    pub fn started_at(&self, booted: Timestamp) -> Option<Timestamp> {
        let since_boot = SignedDuration::from_secs(i64::try_from(self.started / Self::TICKS).ok()?);
        let second = booted.checked_add(since_boot).ok()?.as_second();
        Timestamp::from_second(second).ok()
    }
}

/// The ephemeral ports that connections from one address to one destination use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DestinationUse {
    /// TCP or UDP.
    pub protocol: Protocol,
    /// The local address.
    pub source: IpAddr,
    /// The peer's address.
    pub destination: IpAddr,
    /// The peer's port.
    pub port: u16,
    /// The number of different local ports in use that are in the ephemeral port range. Ports in TIME_WAIT are
    /// included.
    pub used: u32,
    /// The number of used ports that are in TIME_WAIT.
    pub time_wait: u32,
    /// An example: the owner of one of the sockets.
    pub owner: Owner,
}

/// The use of the ephemeral port range in one network namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EphemeralUse {
    /// An upper bound: no destination uses more ports than this number. After a walk over the sockets, the bound is
    /// from the walk. Without a walk, the bound is `inuse + tw` of sockstat and sockstat6. For a pod with few sockets,
    /// the bound is the number of all its sockets.
    pub at_most: u32,
    /// The destinations that use the most ports, at most 16, the busiest first. Empty if the walk found no destination.
    /// Also empty if no walk was needed, because `at_most` was low.
    pub busiest: Vec<DestinationUse>,
    /// Which sockets were counted.
    #[serde(default, skip_serializing_if = "Extent::is_not_recorded")]
    pub extent: Extent,
}

/// Which sockets a count of ephemeral ports includes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Extent {
    /// Unknown, because an earlier version of Portreeve recorded the count. The count applies only to the settings at
    /// that time.
    #[default]
    NotRecorded,
    /// Every socket, including TIME_WAIT. There was no walk. The count is an upper bound for all settings.
    Every,
    /// The sockets that a walk found.
    Walked {
        /// The local ports that were counted.
        ports: PortSet,
        /// The value of `net.ipv4.tcp_tw_reuse` during the walk. The walk did not count ports in TIME_WAIT that a new
        /// connection could reuse.
        tcp_tw_reuse: Option<u8>,
        /// The number of all sockets, including TIME_WAIT. `None` if this number could not be read.
        every: Option<u32>,
    },
}

impl Extent {
    fn is_not_recorded(&self) -> bool {
        *self == Self::NotRecorded
    }
}

impl EphemeralUse {
    /// A count of all sockets, without a walk.
    pub fn of_every_socket(at_most: u32) -> Self {
        Self { at_most, busiest: Vec::new(), extent: Extent::Every }
    }

    /// The number of `ports` that the walk did not include. `None` if there was no walk. Also `None` if the walk left
    /// out sockets in TIME_WAIT that count with this `tcp_tw_reuse`.
    pub fn not_walked(&self, ports: &PortSet, tcp_tw_reuse: Option<u8>) -> Option<u32> {
        match &self.extent {
            Extent::NotRecorded => Some(0),
            Extent::Every => None,
            Extent::Walked { ports: walked, tcp_tw_reuse: then, .. } => {
                let counted = match then {
                    Some(1) => tcp_tw_reuse == Some(1),
                    Some(2) => matches!(tcp_tw_reuse, Some(1 | 2)),
                    _ => true,
                };
                counted.then(|| ports.minus(walked).len())
            }
        }
    }

    /// An upper bound for how many of `ports` one destination can use with this `tcp_tw_reuse`. `None` if no bound is
    /// known.
    pub fn bound(&self, ports: &PortSet, tcp_tw_reuse: Option<u8>) -> Option<u32> {
        let walked = self.busiest.first().map_or(self.at_most, |worst| worst.used);
        let walked = self.not_walked(ports, tcp_tw_reuse).map(|others| walked.saturating_add(others));
        let every = match self.extent {
            Extent::NotRecorded => None,
            Extent::Every => Some(self.at_most),
            // Programs may open sockets after the total is read and before the walk. So `at_most` may be larger.
            Extent::Walked { every, .. } => every.map(|every| every.max(self.at_most)),
        };
        walked.into_iter().chain(every).min()
    }
}

/// The client sockets on the local ports of the query.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Clients {
    /// At most [`Clients::MOST`] sockets. Sockets in SYN-SENT and UDP sockets come first, accepted connections last.
    ///
    /// The list ends with at most 64 sockets that are bound to a [contested](super::NodeQuery::contested) port, but do
    /// not listen or connect. Only some kernels [list them](lists_bound).
    pub sockets: Vec<Socket>,
    /// Peers of TCP connections on the ports of the query. Each peer is a server: the peer also has a connection to a
    /// port of this host without a listener. This host opened that connection, so the peer accepted it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub servers: Vec<SocketAddr>,
    /// The number of sockets that are not listed.
    pub beyond: u64,
    /// The number of client sockets that no listener of this host accepted. Sockets that are not listed are included.
    #[serde(default)]
    pub outgoing: u64,
    /// Whether the scan skipped the search for clients. A scan skips this search if the host has many connections, and
    /// if the kernel never chooses a port of the query. But a program may have bound such a port itself.
    #[serde(default)]
    pub passed_over: bool,
    /// Whether [`Self::sockets`] may lack sockets that are bound, but do not listen or connect. The files in
    /// `/proc/net` do not list such sockets, and Portreeve keeps at most 64.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub bound_unlisted: bool,
    /// The local ports on which the scan searched for clients. Empty in snapshots of earlier versions.
    #[serde(default, skip_serializing_if = "PortSet::is_empty")]
    pub searched: PortSet,
    /// The ports for which the scan lists all sockets that are bound, but do not listen or connect. Ports with a
    /// listener are left out. Empty in snapshots of earlier versions.
    #[serde(default, skip_serializing_if = "PortSet::is_empty")]
    pub bound_searched: PortSet,
}

impl Clients {
    /// The largest number of listed sockets. Sockets that are bound, but do not listen or connect, are not included.
    pub const MOST: usize = 4096;

    /// The reason why outgoing connections may be missing from the list. If there are too many sockets, accepted
    /// connections are left out before outgoing connections.
    pub fn outgoing_missing(&self) -> Option<Gap> {
        let detail = "the list of connections on these ports is full; connections that hang are listed first";
        let is_full = self.beyond > 0 && self.outgoing > Self::MOST as u64;
        is_full.then(|| Gap::new(Source::Clients, Why::TooMuch, detail))
    }
}

/// Whether a kernel of this release lists TCP sockets that are bound, but do not listen or connect. Linux lists such
/// sockets since 6.8.
pub fn lists_bound(release: &str) -> bool {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|number| number.parse::<u32>().ok());
    numbers.next().flatten().zip(numbers.next().flatten()).is_some_and(|version| version >= (6, 8))
}

/// One pod's network namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodNamespace {
    /// The uid of the pod.
    pub pod_uid: String,
    /// The use of the pod's own ephemeral port range.
    pub ephemeral: Reading<EphemeralUse>,
    /// The ports of the pod that have listeners. `None` if the scan did not walk over the pod's connections.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub listening: Option<PortSet>,
    /// At most 256 TCP and UDP sockets on the [needed](super::PodQuery::needed) ports, with their owners. After these
    /// sockets, the list has one more connection to each peer of these sockets, if such a connection exists. The local
    /// port of this connection is not needed and has no listener.
    #[serde(default = "not_requested", skip_serializing_if = "was_not_requested")]
    pub needed: Reading<Vec<Socket>>,
}

fn not_requested<T>() -> Reading<T> {
    Reading::not_requested(Source::PodNamespaces, "the pod was not known to fail at the time of the scan")
}

fn was_not_requested<T>(reading: &Reading<T>) -> bool {
    reading.gap().is_some_and(|gap| gap.why == Why::NotRequested)
}

impl PodNamespace {
    /// A pod of which only the use of the ephemeral port range was requested.
    pub fn with_use(pod_uid: impl Into<String>, ephemeral: impl Into<Reading<EphemeralUse>>) -> Self {
        Self { pod_uid: pod_uid.into(), ephemeral: ephemeral.into(), listening: None, needed: not_requested() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bound_sockets_are_listed_since_linux_6_8() {
        assert!(["6.8.0-41-generic", "6.18.44", "7.0", "10.0-rc1"].into_iter().all(lists_bound));
        assert!(!["6.7.12", "5.15.0-105", "unknown", "", "6"].into_iter().any(lists_bound));
    }
}
