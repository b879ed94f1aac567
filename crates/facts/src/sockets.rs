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
    /// The state; an unconnected UDP socket is [`State::Close`], and so is a TCP socket that is bound and neither listens nor connects.
    pub state: State,
    /// The family the socket was made with; `[::]` without v6only serves IPv4 too.
    pub family: Family,
    /// The bound address; unspecified means every address.
    pub local: IpAddr,
    /// The bound port.
    pub local_port: u16,
    /// The peer; unspecified for listeners.
    pub remote: IpAddr,
    /// The peer's port; 0 for listeners.
    pub remote_port: u16,
    /// `IPV6_V6ONLY`; reported for listening and unconnected IPv6 sockets only, never by `/proc/net`.
    pub v6only: Option<bool>,
    /// The uid of the socket's owner; meaningless in TIME_WAIT.
    pub uid: u32,
    /// The inode in sockfs; 0 in TIME_WAIT and SYN_RECV.
    pub inode: u64,
    /// The inode of its cgroup2 directory (`INET_DIAG_CGROUP_ID`, Linux 5.8).
    pub cgroup: Option<u64>,
    /// The interface it is bound to (`SO_BINDTODEVICE`), 0 for none.
    pub device: u32,
    /// Unanswered retransmissions of the segment in flight.
    pub retransmits: u8,
    /// The owner.
    pub owner: Owner,
}

impl Socket {
    /// Whether root opened the socket: only root can configure the kernel for Services.
    pub fn is_of_root(&self) -> bool {
        self.uid == 0
    }

    /// Whether the socket serves addresses of `family`: its own family, and also IPv4 for `[::]` without v6only.
    /// An IPv6 wildcard whose v6only is not known may serve IPv4: `None`.
    pub fn serves(&self, family: Family) -> Option<bool> {
        match (self.local.to_canonical(), family) {
            // An IPv6 socket may be bound to one IPv4 address, or to every IPv4 address.
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

    /// The state of a kernel number.
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
    /// TIME_WAIT: the kernel keeps the tuple for 60 s without its owner.
    TimeWait,
    /// The kernel itself: a VXLAN, Geneve, WireGuard... tunnel, with the name of its link if known.
    Kernel {
        /// The link, e.g. `flannel.1`.
        link: String,
    },
    /// A process of the node or of a pod.
    Held(Holder),
}

/// The owner of a socket, found in two independent ways.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    /// By cgroup: this needs no privilege and names the pod.
    pub cgroup: Reading<Cgroup>,
    /// By `/proc/<pid>/fd`: this needs SYS_PTRACE for other users' processes. If several processes share the socket, the oldest process.
    pub process: Reading<Process>,
}

/// A control group in the cgroup2 hierarchy.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Cgroup {
    /// The path below the mount, `/` for the root.
    pub path: String,
    /// The pod to which this cgroup belongs.
    pub pod: Option<PodContainer>,
}

impl Cgroup {
    /// The root group does not show the owner of a socket: tunnels, early daemons and processes with only cgroup1 are in it.
    pub fn is_root(&self) -> bool {
        self.path == "/"
    }
}

/// The pod uid and the container id in a cgroup's name, which a kubelet wrote.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct PodContainer {
    /// `metadata.uid`, with dashes, or for static pods the configuration's hash.
    pub pod_uid: String,
    /// The container's id in its runtime.
    pub container: Option<String>,
}

/// A process, distinguished from a later one of the same pid by its start time.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Process {
    /// The pid in the reader's pid namespace.
    pub pid: u32,
    /// `/proc/<pid>/comm`, cleaned.
    pub command: String,
    /// `/proc/<pid>/cmdline`, cleaned and cut; only if requested, because it may contain secrets.
    pub command_line: Option<String>,
    /// Clock ticks since boot at its start (`/proc/<pid>/stat` field 22).
    pub started: u64,
}

impl Process {
    /// Clock ticks in a second, as /proc counts them on every processor that Kubernetes runs on (`USER_HZ`,
    /// include/asm-generic/param.h).
    const TICKS: u64 = 100;

    /// The start time, to the second, on a node that booted at `booted`.
    pub fn started_at(&self, booted: Timestamp) -> Option<Timestamp> {
        let since_boot = SignedDuration::from_secs(i64::try_from(self.started / Self::TICKS).ok()?);
        let second = booted.checked_add(since_boot).ok()?.as_second();
        Timestamp::from_second(second).ok()
    }
}

/// The ephemeral ports that connections between two addresses use.
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
    /// Distinct local ports of the ephemeral range in use, TIME_WAIT included.
    pub used: u32,
    /// The number of these ports in TIME_WAIT.
    pub time_wait: u32,
    /// The owner of one of the sockets, as an example.
    pub owner: Owner,
}

/// Use of the ephemeral range in one network namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EphemeralUse {
    /// No destination can use more than this: the count of the walk, or without a walk `inuse + tw` of sockstat and sockstat6. For a
    /// pod with few sockets: sockets of any kind.
    pub at_most: u32,
    /// The busiest destinations, at most 16, worst first. Empty if `at_most` is so low that no walk was needed for the
    /// range of that time, or if the walk found none.
    pub busiest: Vec<DestinationUse>,
    /// The sockets that were counted.
    #[serde(default, skip_serializing_if = "Extent::is_not_recorded")]
    pub extent: Extent,
}

/// The sockets that a count of ephemeral ports has.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Extent {
    /// An earlier version recorded the count: it holds for the settings at that time.
    #[default]
    NotRecorded,
    /// Every socket, in TIME_WAIT too, without a walk: the count is an upper bound for all settings.
    Every,
    /// A walk over the sockets.
    Walked {
        /// Only these local ports were counted.
        ports: PortSet,
        /// The value of `net.ipv4.tcp_tw_reuse` at that time: ports in TIME_WAIT that other connections could take were
        /// not counted.
        tcp_tw_reuse: Option<u8>,
        /// The number of all sockets, in TIME_WAIT too, if it could be read.
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

    /// The number of `ports` that no walk counted. `None` if no walk counted all that count with this `tcp_tw_reuse`.
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

    /// The greatest number of `ports` that one destination can use with this `tcp_tw_reuse`. `None` if nothing bounds it.
    pub fn bound(&self, ports: &PortSet, tcp_tw_reuse: Option<u8>) -> Option<u32> {
        let walked = self.busiest.first().map_or(self.at_most, |worst| worst.used);
        let walked = self.not_walked(ports, tcp_tw_reuse).map(|others| walked.saturating_add(others));
        let every = match self.extent {
            Extent::NotRecorded => None,
            Extent::Every => Some(self.at_most),
            // Sockets may have come between the total and the walk.
            Extent::Walked { every, .. } => every.map(|every| every.max(self.at_most)),
        };
        walked.into_iter().chain(every).min()
    }
}

/// The client sockets whose local port matters.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Clients {
    /// At most [`Clients::MOST`], sockets in SYN-SENT and UDP first, accepted connections last. After them, on the [contested](super::NodeQuery::contested) ports,
    /// at most 64 that are bound and neither listen nor connect, if the kernel [lists them](lists_bound).
    pub sockets: Vec<Socket>,
    /// The peers of TCP connections on the same ports to which another connection leads, from a port without a listener.
    /// These peers are servers: only a listener accepts a connection.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub servers: Vec<SocketAddr>,
    /// The number of further sockets.
    pub beyond: u64,
    /// The number of all these sockets that no listener accepted.
    #[serde(default)]
    pub outgoing: u64,
    /// Whether no client was searched: the kernel cannot have chosen one of these ports for a connection. To find a connection that was
    /// bound by number, a scan would have to walk over all connections of a host with many.
    #[serde(default)]
    pub passed_over: bool,
    /// Whether sockets that are bound and neither listen nor connect may be missing: the kernel's text tables have none, and of many
    /// only 64 are kept.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub bound_unlisted: bool,
}

impl Clients {
    /// The greatest number of listed sockets, without those that are bound and neither listen nor connect.
    pub const MOST: usize = 4096;

    /// Why outgoing connections may be missing. Of too many sockets, accepted connections are left out first.
    pub fn outgoing_missing(&self) -> Option<Gap> {
        let detail = "the list of connections on these ports is full; connections that hang are listed first";
        let is_full = self.beyond > 0 && self.outgoing > Self::MOST as u64;
        is_full.then(|| Gap::new(Source::Clients, Why::TooMuch, detail))
    }
}

/// Whether a kernel of this release lists TCP sockets that are bound and neither listen nor connect: since Linux 6.8.
pub fn lists_bound(release: &str) -> bool {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|number| number.parse::<u32>().ok());
    numbers.next().flatten().zip(numbers.next().flatten()).is_some_and(|version| version >= (6, 8))
}

/// One pod's network namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodNamespace {
    /// The pod.
    pub pod_uid: String,
    /// Use of its own ephemeral range.
    pub ephemeral: Reading<EphemeralUse>,
    /// The ports with listeners in the pod; `None` if its connections were not walked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub listening: Option<PortSet>,
    /// At most 256 sockets, TCP and UDP, on the [needed](super::PodQuery::needed) ports, with their holders. After them,
    /// for a peer of such a connection: another connection to this peer from a port without a listener.
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
    /// A pod of which only the use of the ephemeral range is known, or the reason why it is not.
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
