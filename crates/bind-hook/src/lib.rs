//! Reports each `bind` of a claimed port when the `bind` happens, and can refuse it. A program in the kernel compares
//! each `bind` of a control group with a map of claimed ports.
//!
//! This crate knows nothing about Kubernetes, and does not decide which ports are claimed. When the process that
//! attached the hook ends, nothing of the hook remains in the kernel.
//!
//! The hook does not see:
//!
//! - a `bind` before the hook was attached, and a `bind` with port 0, for which the kernel chooses the port;
//! - a `connect` or a `listen` without `bind`;
//! - a `bind` of an SCTP socket, because the kernel has a separate `bind` for SCTP.
//!
//! The hook cannot read `IPV6_V6ONLY`. If a port is claimed only for IPv4, a `bind` of `::` to this port is reported as
//! [`Answer::FamilyUnknown`], and is never refused.
//!
//! The feature `program` includes the program, and needs clang. Without the feature, [`Hook::attach`] returns
//! [`NotAttached::NotBuilt`].

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

/// What the hook does with a `bind` of a claimed port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// The hook reports the bind, and the bind succeeds.
    Report,
    /// The hook reports the bind. The bind fails while the claims are fresh (see [`Hook::fresh_for`]).
    Refuse,
}

/// The error that a refused `bind` returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// `EADDRINUSE`. Programs explain this error to their users. Before Linux 5.18, a hook cannot cause this error.
    AddressInUse,
    /// `EPERM`, the only error that a hook can cause before Linux 5.18.
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

/// The number that the caller gives to a claim. The record of a `bind` has this number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClaimId(pub u32);

/// A claimed port on an address. `0.0.0.0` stands for every IPv4 address, and `::` for every IPv6 address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Claim {
    /// The protocol.
    pub protocol: Protocol,
    /// The address and the port.
    pub at: SocketAddr,
    /// The number that the caller gives to the claim: 1 to 2,147,483,647.
    pub id: ClaimId,
    /// Whether [`Mode::Refuse`] refuses binds of this claim.
    pub is_refused: bool,
}

/// One process, or all processes of a control group. The hook neither reports nor refuses the binds of these processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Exempt {
    /// The process or the control group.
    pub who: Who,
    /// The claim from which the process or group is exempt. `None` means that the process or group is exempt from all
    /// claims.
    pub claim: Option<ClaimId>,
}

/// A process or a control group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Who {
    /// The id of a control group of version 2: the inode number of its folder. The id includes all control groups below
    /// this group. The hook compares the root group and the 15 levels below the root group. A container is usually at
    /// the fourth or fifth level.
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
    /// The name of the thread, at most 15 bytes. A process chooses the names of its threads, so clean the name before
    /// you print it. Linux 6.18 hides the name from a hook without the capability PERFMON. Then the name is empty.
    pub name: String,
    /// The id of the process's control group of version 2.
    pub cgroup: u64,
    /// The protocol.
    pub protocol: Protocol,
    /// The address and the port of the `bind`. If an IPv6 socket was bound to a mapped IPv4 address, this is the IPv4
    /// address.
    pub at: SocketAddr,
    /// The claim of this address and port.
    pub claim: ClaimId,
    /// The hook's answer.
    pub answer: Answer,
}

/// What the hook did with a `bind`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The `bind` passed, because the mode is [`Mode::Report`], or because the hook never refuses binds of this claim.
    Allowed,
    /// The `bind` failed.
    Refused,
    /// The `bind` passed, because the claims were no longer fresh.
    TooOld,
    /// The `bind` passed, because the port is claimed only for IPv4, and the socket was bound to `::`. Such a socket
    /// takes the IPv4 port only if `IPV6_V6ONLY` is off. The hook cannot read this option.
    FamilyUnknown,
}

/// Why no hook is attached.
#[derive(Debug, thiserror::Error)]
pub enum NotAttached {
    /// The feature `program` is off.
    #[error("this build has no bind hook: use the image or a package of a release, or build with --features bind-hook")]
    NotBuilt,
    /// The folder of the control group cannot be opened.
    #[error("{}: cannot open the control group: {error}", path.display())]
    Unreadable {
        /// The folder.
        path: PathBuf,
        /// The error.
        error: std::io::Error,
    },
    /// The folder is not a control group of version 2.
    #[error("{}: is no control group of version 2: wanted one below a mount of type cgroup2", .0.display())]
    NoCgroup(PathBuf),
    /// The kernel does not permit this process to load programs.
    #[error(
        "the kernel does not permit the bind hook: it needs the capabilities BPF and NET_ADMIN, a seccomp profile that permits bpf, and \
         before Linux 5.11 enough locked memory (RLIMIT_MEMLOCK)"
    )]
    NotPermitted,
    /// The kernel lacks BPF, or another feature that the hook needs.
    #[error(
        "this kernel takes no bind hook, which needs Linux 5.8 with BPF and control groups of version 2: {lacks}: {error}"
    )]
    Unsupported {
        /// The feature that the kernel lacks, in words.
        lacks: &'static str,
        /// The error.
        error: String,
    },
    /// The kernel has everything that the hook needs, but cannot attach the hook now.
    #[error("the kernel cannot attach the bind hook now: {why}: {error}")]
    NotNow {
        /// The obstacle.
        why: &'static str,
        /// The error.
        error: String,
    },
    /// The process is outside of the control group, so the hook cannot learn its network namespace.
    #[error("{}: this process is not below the control group, so its network namespace is unknown to the bind hook", .0.display())]
    Elsewhere(PathBuf),
}

impl NotAttached {
    /// Whether a later attempt to attach the hook can succeed.
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

/// The reason why a map of the hook could not be changed or read.
#[derive(Debug, thiserror::Error)]
#[error("the bind hook's map of {map}: {error}")]
pub struct MapFailed {
    /// The name of the map.
    pub map: &'static str,
    /// The error.
    pub error: String,
}

/// The form of an address in the maps. An IPv4 address is mapped into IPv6.
#[cfg_attr(not(feature = "program"), allow(dead_code, reason = "only the program's maps use this function"))]
fn mapped(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}
