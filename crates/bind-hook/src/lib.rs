//! Reports each `bind` of a claimed port when it happens, and can refuse it. A program in the kernel compares each `bind` of a control
//! group with a map of claimed ports.
//!
//! Never: knows Kubernetes, decides what is claimed, or leaves anything in the kernel when its process ends.
//!
//! The hook does not see:
//!
//! - a `bind` before the hook was attached, and one with port 0, whose port the kernel chooses;
//! - a `connect` or a `listen` without `bind`;
//! - SCTP, whose sockets have a `bind` of their own in the kernel.
//!
//! A hook cannot read `IPV6_V6ONLY`. A `bind` of `::` to a port that only IPv4 claims is reported as [`Answer::FamilyUnknown`], and is
//! never refused.
//!
//! The program comes with the feature `program`, which needs clang. Without it [`Hook::attach`] returns [`NotAttached::NotBuilt`].

#[cfg(feature = "program")]
mod attached;
#[cfg(not(feature = "program"))]
mod not_built;
#[cfg(all(test, feature = "program"))]
mod tests;

use std::{
    net::{IpAddr, SocketAddr},
    path::PathBuf,
};

#[cfg(feature = "program")]
pub use self::attached::Hook;
#[cfg(not(feature = "program"))]
pub use self::not_built::Hook;

/// What happens to a `bind` of a claimed port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// The bind is reported and succeeds.
    Report,
    /// The bind is reported, and fails while the claims are fresh: [`Hook::fresh_for`].
    Refuse,
}

/// The error that a refused `bind` returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// `EADDRINUSE`, which programs explain to their users. Needs Linux 5.18.
    AddressInUse,
    /// `EPERM`, the only error of a hook before Linux 5.18.
    NotPermitted,
}

/// A protocol whose `bind` the hook sees. MPTCP is treated as TCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Protocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

/// The caller's number of a claim. A record of a `bind` has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClaimId(pub u32);

/// A claimed port of an address. `0.0.0.0` stands for every IPv4 address, `::` for every IPv6 address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Claim {
    /// Its protocol.
    pub protocol: Protocol,
    /// Its address and port.
    pub at: SocketAddr,
    /// The caller's number of it: 1 to 2,147,483,647.
    pub id: ClaimId,
    /// Whether [`Mode::Refuse`] refuses its binds.
    pub is_refused: bool,
}

/// A process, or all processes of a group, whose `bind` is neither reported nor refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Exempt {
    /// The process or the group.
    pub who: Who,
    /// The claim for which it is exempt. `None` stands for every claim.
    pub claim: Option<ClaimId>,
}

/// A process or a control group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Who {
    /// The id of a control group of version 2, with the groups below it. It is the inode number of the folder. The hook compares the
    /// root and 15 levels below it: a container is at the fourth or fifth.
    Cgroup(u64),
    /// A process id of the initial pid namespace.
    Process(u32),
}

/// A `bind` of a claimed port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bind {
    /// The process id, in the initial pid namespace.
    pub pid: u32,
    /// The user id, in the initial user namespace.
    pub uid: u32,
    /// The name of the thread, at most 15 bytes. Its process chose the name: clean the name before it is printed. Empty
    /// if the kernel hides the name: Linux 6.18 wants the capability PERFMON.
    pub name: String,
    /// The control group of version 2.
    pub cgroup: u64,
    /// The protocol.
    pub protocol: Protocol,
    /// The address and the port of the `bind`. An address of IPv4 that was bound through an IPv6 socket is here an IPv4 address.
    pub at: SocketAddr,
    /// The claim that the `bind` meets.
    pub claim: ClaimId,
    /// The hook's answer.
    pub answer: Answer,
}

/// What the hook did with a `bind`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The `bind` passed, because the mode is [`Mode::Report`], or because binds of this claim are never refused.
    Allowed,
    /// The `bind` failed.
    Refused,
    /// The `bind` passed, because the claims were too old.
    TooOld,
    /// The `bind` passed: a socket of `::` takes the claimed port of IPv4 only without `IPV6_V6ONLY`, and the hook
    /// cannot read this option.
    FamilyUnknown,
}

/// Why no hook is attached.
#[derive(Debug, thiserror::Error)]
pub enum NotAttached {
    /// The feature `program` is off.
    #[error("this build has no bind hook: build portreeve with --features bind-hook, which needs clang")]
    NotBuilt,
    /// The folder cannot be opened.
    #[error("{}: cannot open the control group: {error}", path.display())]
    Unreadable {
        /// The folder.
        path: PathBuf,
        /// The error.
        error: std::io::Error,
    },
    /// The folder is of no control group of version 2.
    #[error("{}: is no control group of version 2: wanted one below a mount of type cgroup2", .0.display())]
    NoCgroup(PathBuf),
    /// The kernel permits no program.
    #[error(
        "the kernel does not permit the bind hook: it needs the capabilities BPF and NET_ADMIN, a seccomp profile that permits bpf, and \
         before Linux 5.11 enough locked memory (RLIMIT_MEMLOCK)"
    )]
    NotPermitted,
    /// The kernel lacks something.
    #[error(
        "this kernel takes no bind hook, which needs Linux 5.8 with BPF and control groups of version 2: {lacks}: {error}"
    )]
    Unsupported {
        /// The missing function of the kernel.
        lacks: &'static str,
        /// The error.
        error: String,
    },
    /// The kernel has the function, but cannot use it now.
    #[error("the kernel cannot attach the bind hook now: {why}: {error}")]
    NotNow {
        /// The obstacle.
        why: &'static str,
        /// The error.
        error: String,
    },
    /// The network namespace is unknown.
    #[error("{}: this process is not below the control group, so its network namespace is unknown to the bind hook", .0.display())]
    Elsewhere(PathBuf),
}

impl NotAttached {
    /// Whether a later attempt can succeed.
    pub fn can_pass(&self) -> bool {
        match self {
            Self::Unreadable { error, .. } => error.kind() == std::io::ErrorKind::NotFound,
            Self::NotNow { .. } => true,
            Self::NotBuilt | Self::NoCgroup(_) | Self::NotPermitted | Self::Unsupported { .. } | Self::Elsewhere(_) => {
                false
            }
        }
    }
}

/// Why a map of the hook could not be changed or read.
#[derive(Debug, thiserror::Error)]
#[error("the bind hook's map of {map}: {error}")]
pub struct MapFailed {
    /// The map.
    pub map: &'static str,
    /// The error.
    pub error: String,
}

/// An address as in the maps: of IPv4 those that are mapped into IPv6.
#[cfg_attr(not(feature = "program"), allow(dead_code, reason = "only the program's maps use this function"))]
fn mapped(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}
