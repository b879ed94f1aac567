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
    /// The state. [`State::Close`] means an unconnected UDP socket, or a TCP socket that is bound and neither listens
    /// nor connects.
    pub state: State,
    /// The family with which the socket was made. A socket on `[::]` without v6only serves IPv4 too.
    pub family: Family,
    /// The local address. An unspecified address means every address.
    pub local: IpAddr,
    /// The local port.
    pub local_port: u16,
    /// The peer's address; unspecified for listeners.
    pub remote: IpAddr,
    /// The peer's port; 0 for listeners.
    pub remote_port: u16,
    /// `IPV6_V6ONLY`. The kernel reports it for listening and unconnected IPv6 sockets only; `/proc/net` never has it.
    pub v6only: Option<bool>,
    /// The uid of the user that opened the socket. It has no meaning in TIME_WAIT.
    pub uid: u32,
    /// The socket's inode in sockfs; 0 in TIME_WAIT and SYN_RECV.
    pub inode: u64,
    /// The inode of the socket's cgroup2 directory (`INET_DIAG_CGROUP_ID`, since Linux 5.8).
    pub cgroup: Option<u64>,
    /// The index of the interface to which the socket is bound (`SO_BINDTODEVICE`); 0 for none.
    pub device: u32,
    /// How often the segment in flight was sent again without an answer.
    pub retransmits: u8,
    /// The owner.
    pub owner: Owner,
}

impl Socket {
    /// Whether root opened the socket. Only root can configure the kernel to serve Services.
    pub fn is_of_root(&self) -> bool {
        self.uid == 0
    }

    /// Whether the socket serves addresses of `family`. It serves its own family. A socket on `[::]` without v6only
    /// also serves IPv4; if v6only is not known, the answer is `None`.
    pub fn serves(&self, family: Family) -> Option<bool> {
        match (self.local.to_canonical(), family) {
            // An IPv6 socket may be bound to an IPv4 address, or to all IPv4 addresses.
            (IpAddr::V4(_), _) => Some(family == Family::V4),
            (local, Family::V4) if local.is_unspecified() => self.v6only.map(|only| !only),
            (IpAddr::V6(_), _) => Some(family == Family::V6),
        }
    }
}

/// The kernel's TCP states (include/net/tcp_states.h), which sock_diag uses for every protocol.
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
    /// No rule needs the owner of this port, so the owner was not read.
    #[serde(alias = "not-asked")]
    NotRead,
    /// A connection in TIME_WAIT: for 60 s the kernel keeps its addresses and ports, but no owner.
    TimeWait,
    /// The kernel itself, for a tunnel such as VXLAN, Geneve or WireGuard. The link is empty if it is not known.
    Kernel {
        /// The name of the link, e.g. `flannel.1`.
        link: String,
    },
    /// A process of the node or of a pod.
    Held(Holder),
}

/// The owner of a socket. Two readers find it independently of each other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    /// The socket's control group. Reading it needs no privilege, and its path contains the pod's uid.
    pub cgroup: Reading<Cgroup>,
    /// The process that has the socket open, from `/proc/<pid>/fd`. If several processes share the socket, the oldest
    /// process. For processes of other users, Portreeve needs SYS_PTRACE.
    pub process: Reading<Process>,
}

/// A control group in the cgroup2 hierarchy.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Cgroup {
    /// The path below the mount; `/` is the root.
    pub path: String,
    /// The pod to which this cgroup belongs.
    pub pod: Option<PodContainer>,
}

impl Cgroup {
    /// Whether this is the root group. It contains tunnels, early daemons and processes that only have cgroup1, so it
    /// shows no owner of a socket.
    pub fn is_root(&self) -> bool {
        self.path == "/"
    }
}

/// The pod uid and the container id in the name of a control group that the kubelet made.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct PodContainer {
    /// `metadata.uid` with dashes. For static pods, the hash of their configuration.
    pub pod_uid: String,
    /// The container's id in the container runtime.
    pub container: Option<String>,
}

/// A process. Its start time distinguishes it from a later process with the same pid.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Process {
    /// The pid in the reader's pid namespace.
    pub pid: u32,
    /// `/proc/<pid>/comm`, without invisible characters.
    pub command: String,
    /// `/proc/<pid>/cmdline`, shortened, without invisible characters. Read only if requested, because it may contain
    /// secrets.
    pub command_line: Option<String>,
    /// The number of clock ticks from the boot to the start of the process (`/proc/<pid>/stat` field 22).
    pub started: u64,
}

impl Process {
    /// Clock ticks in a second, as /proc counts them on every kind of processor that Kubernetes supports (`USER_HZ`,
    /// include/asm-generic/param.h).
    const TICKS: u64 = 100;

    /// The start time of the process, to the second. `booted` is the time at which the node booted.
    pub fn started_at(&self, booted: Timestamp) -> Option<Timestamp> {
        let since_boot = SignedDuration::from_secs(i64::try_from(self.started / Self::TICKS).ok()?);
        let second = booted.checked_add(since_boot).ok()?.as_second();
        Timestamp::from_second(second).ok()
    }
}

/// The use of ephemeral ports by connections between two addresses.
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
    /// The number of different local ports in use from the ephemeral port range, including TIME_WAIT.
    pub used: u32,
    /// The number of used ports that are in TIME_WAIT.
    pub time_wait: u32,
    /// The owner of one of the sockets, as an example.
    pub owner: Owner,
}

/// The use of the ephemeral port range in one network namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EphemeralUse {
    /// The upper bound for the ports in use to any one destination. With a walk over the sockets: the number that the
    /// walk counted. Without a walk: `inuse + tw` of sockstat and sockstat6, or, for a pod with few sockets, the number
    /// of all its sockets.
    pub at_most: u32,
    /// The busiest destinations, at most 16, the worst first. Empty if the walk found none. Also empty if `at_most` was
    /// so low that no walk was needed.
    pub busiest: Vec<DestinationUse>,
    /// The sockets that the count includes.
    #[serde(default, skip_serializing_if = "Extent::is_not_recorded")]
    pub extent: Extent,
}

/// The sockets that a count of ephemeral ports includes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Extent {
    /// Not known, because an earlier version of Portreeve recorded the count. The count is true for the settings at
    /// that time.
    #[default]
    NotRecorded,
    /// Every socket, including TIME_WAIT, without a walk. The count is an upper bound for all settings.
    Every,
    /// A walk over the sockets.
    Walked {
        /// The local ports that were counted.
        ports: PortSet,
        /// The value of `net.ipv4.tcp_tw_reuse` during the walk. Ports in TIME_WAIT that other connections could take
        /// were not counted.
        tcp_tw_reuse: Option<u8>,
        /// The number of all sockets, including TIME_WAIT, if it could be read.
        every: Option<u32>,
    },
}

impl Extent {
    fn is_not_recorded(&self) -> bool {
        *self == Self::NotRecorded
    }
}

impl EphemeralUse {
    /// A count of every socket, without a walk.
    pub fn of_every_socket(at_most: u32) -> Self {
        Self { at_most, busiest: Vec::new(), extent: Extent::Every }
    }

    /// The number of `ports` that the walk did not count. `None` if there was no walk, or if the walk left out sockets
    /// that count with this `tcp_tw_reuse`.
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

    /// The largest number of `ports` that one destination can use with this `tcp_tw_reuse`. `None` if it is not
    /// bounded.
    pub fn bound(&self, ports: &PortSet, tcp_tw_reuse: Option<u8>) -> Option<u32> {
        let walked = self.busiest.first().map_or(self.at_most, |worst| worst.used);
        let walked = self.not_walked(ports, tcp_tw_reuse).map(|others| walked.saturating_add(others));
        let every = match self.extent {
            Extent::NotRecorded => None,
            Extent::Every => Some(self.at_most),
            // Programs may have opened sockets between the reading of the total and the walk.
            Extent::Walked { every, .. } => every.map(|every| every.max(self.at_most)),
        };
        walked.into_iter().chain(every).min()
    }
}

/// The client sockets on the requested local ports.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Clients {
    /// At most [`Clients::MOST`] sockets. Sockets in SYN-SENT and UDP sockets come first, accepted connections last.
    /// Then, if the kernel [lists them](lists_bound), at most 64 sockets that are bound to a
    /// [contested](super::NodeQuery::contested) port and neither listen nor connect.
    pub sockets: Vec<Socket>,
    /// Peers of TCP connections on the requested ports. Each peer is certainly a server: the peer also has a connection
    /// from a port of this host without a listener. So this host connected, and the peer accepted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub servers: Vec<SocketAddr>,
    /// The number of sockets that are not listed.
    pub beyond: u64,
    /// The number of client sockets, listed or not, that no listener of this host accepted.
    #[serde(default)]
    pub outgoing: u64,
    /// Whether the scan did not search for clients. The host has many connections, and the kernel cannot have chosen a
    /// requested port for any of them. A program may still have bound such a port by number.
    #[serde(default)]
    pub passed_over: bool,
    /// Whether sockets that are bound and neither listen nor connect may be missing. The kernel's text tables do not
    /// have such sockets, and Portreeve keeps at most 64.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub bound_unlisted: bool,
    /// The local ports on which the scan searched for clients. Empty in snapshots of earlier versions.
    #[serde(default, skip_serializing_if = "PortSet::is_empty")]
    pub searched: PortSet,
    /// The ports on which the scan found all sockets that are bound and neither listen nor connect. Only ports without
    /// a listener. Empty in snapshots of earlier versions.
    #[serde(default, skip_serializing_if = "PortSet::is_empty")]
    pub bound_searched: PortSet,
}

impl Clients {
    /// The largest number of listed sockets. Sockets that are bound and neither listen nor connect are not included.
    pub const MOST: usize = 4096;

    /// The reason why outgoing connections may be missing. If there are too many sockets, accepted connections are left
    /// out first.
    pub fn outgoing_missing(&self) -> Option<Gap> {
        let detail = "the list of connections on these ports is full; connections that hang are listed first";
        let is_full = self.beyond > 0 && self.outgoing > Self::MOST as u64;
        is_full.then(|| Gap::new(Source::Clients, Why::TooMuch, detail))
    }
}

/// Whether a kernel of this release lists TCP sockets that are bound and neither listen nor connect. Linux lists them
/// since 6.8.
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
    /// The ports with listeners in the pod. `None` if the scan did not walk over the pod's connections.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub listening: Option<PortSet>,
    /// At most 256 TCP and UDP sockets on the [needed](super::PodQuery::needed) ports, with their owners. Then, for
    /// each of their peers, another connection to the peer from a port without a listener.
    #[serde(default = "not_requested", skip_serializing_if = "was_not_requested")]
    pub needed: Reading<Vec<Socket>>,
}

fn not_requested<T>() -> Reading<T> {
    let detail = "the pod was not known to fail at the time of the scan";
    Reading::Gap(Gap::new(Source::PodNamespaces, Why::NotRequested, detail))
}

fn was_not_requested<T>(reading: &Reading<T>) -> bool {
    reading.gap().is_some_and(|gap| gap.why == Why::NotRequested)
}

impl PodNamespace {
    /// A pod with only the use of its ephemeral port range, read or unread. All other facts are not requested.
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
