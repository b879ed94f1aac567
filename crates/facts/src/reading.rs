//! A requested fact, or the reason why it is missing.

use std::ops::Deref;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The result of reading one fact.
///
/// `Reading` deliberately has no `Default`, no `unwrap_or` and no `ok`: such functions would turn an unread fact into
/// zero, or into a healthy value. Code that continues without the fact must give a reason ([`Unread`]).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reading<T> {
    /// The fact.
    Seen(T),
    /// The reason why there is no fact.
    Gap(Gap),
}

impl<T> Reading<T> {
    /// A fact that was not requested.
    pub(super) fn not_requested(source: Source, detail: &str) -> Self {
        Self::Gap(Gap::new(source, Why::NotRequested, detail))
    }

    /// The fact, or a copy of the reason why it was not read. For example: `let sockets =
    /// view.now.kernel.listeners.get()?;`.
    ///
    /// # Errors
    ///
    /// Returns the [`Gap`] if the fact was not read.
    pub fn get(&self) -> Result<&T, Gap> {
        match self {
            Self::Seen(fact) => Ok(fact),
            Self::Gap(gap) => Err(gap.clone()),
        }
    }

    /// The fact, if it was read. Only for tests.
    #[cfg(any(test, feature = "testing"))]
    pub fn seen(&self) -> Option<&T> {
        self.get().ok()
    }

    /// The fact, or `None` if the fact was not read. The argument says why the caller may continue without the fact.
    /// Code that concludes something from an absent fact must call [`Self::get`].
    pub fn known(&self, _: Unread) -> Option<&T> {
        match self {
            Self::Seen(fact) => Some(fact),
            Self::Gap(_) => None,
        }
    }

    /// The list, or an empty list if the list was not read.
    pub fn known_part<'a>(&'a self, why: Unread) -> &'a T::Target
    where
        T: Deref,
        &'a T::Target: Default,
    {
        self.known(why).map(Deref::deref).unwrap_or_default()
    }

    /// The reason why the fact was not read. `None` if the fact was read.
    pub fn gap(&self) -> Option<&Gap> {
        match self {
            Self::Seen(_) => None,
            Self::Gap(gap) => Some(gap),
        }
    }

    /// Applies `derive` to the fact that was read. A fact that was not read stays unread, for the same reason.
    pub fn map<U>(self, derive: impl FnOnce(T) -> U) -> Reading<U> {
        match self {
            Self::Seen(fact) => Reading::Seen(derive(fact)),
            Self::Gap(gap) => Reading::Gap(gap),
        }
    }
}

/// The reason why code may treat an unread fact as absent, or an unread list as empty. Each reason shows why the code
/// does not miss a problem.
#[derive(Clone, Copy, Debug)]
pub enum Unread {
    /// The result is true without the fact. The fact would only add words, numbers or a remedy.
    Adds,
    /// A part of the output reports that the fact was not read. The text names this part.
    Reported(&'static str),
    /// The code assumes a value for the unread fact. The text names this value.
    Assumed(&'static str),
    /// The code uses the fact only to choose what it reads or lists next. No conclusion depends on the fact.
    Chooses,
    /// The caller concludes nothing from the absent fact: the caller treats every value as possible, reads another
    /// source, or has its own `Gap`.
    Doubted,
}

/// Turns a fact that was not requested into `Ok(None)`, as in a scan without a cluster. A fact that was requested but
/// not read stays an error.
///
/// # Errors
///
/// Returns the [`Gap`], if the fact was requested.
pub fn if_requested<T>(read: Result<T, Gap>) -> Result<Option<T>, Gap> {
    match read {
        Ok(fact) => Ok(Some(fact)),
        Err(gap) if gap.why == Why::NotRequested => Ok(None),
        Err(gap) => Err(gap),
    }
}

impl<T> From<Result<T, Gap>> for Reading<T> {
    fn from(result: Result<T, Gap>) -> Self {
        match result {
            Ok(fact) => Self::Seen(fact),
            Err(gap) => Self::Gap(gap),
        }
    }
}

/// An input that was not read: its source, the reason, and one line for users.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub struct Gap {
    /// The source that was not read.
    pub source: Source,
    /// The kind of failure.
    pub why: Why,
    /// The details in words: the operation, its place, and the error message of the system.
    pub detail: String,
}

impl Gap {
    /// An unread fact with its detail.
    pub fn new(source: Source, why: Why, detail: impl Into<String>) -> Self {
        Self { source, why, detail: detail.into() }
    }

    /// Whether an object that Portreeve rejected may have a port of the node. A message about the node's name counts
    /// too: if the name is not known, the pods of this node are not known. The sysctls of a pod open no port, and any
    /// user can write a wrong value there.
    pub fn hides_ports(&self) -> bool {
        match self.source {
            Source::Services | Source::Nodes => true,
            Source::Pods => !self.detail.contains(OF_POD_SYSCTLS),
            _ => false,
        }
    }
}

/// A part of each message about a value in a pod's sysctls that Portreeve cannot parse.
const OF_POD_SYSCTLS: &str = ": spec.securityContext.sysctls[";

/// A source of facts. Each source succeeds or fails separately. In JSON and in metric labels, the names are in
/// kebab-case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Source {
    /// Listening sockets of the host (sock_diag, or `/proc/net` as a fallback).
    Listeners,
    /// Connected sockets of the host on the requested local ports.
    Clients,
    /// The use of the ephemeral port range, for each destination.
    EphemeralUse,
    /// `/proc/net/sockstat` and `sockstat6`.
    Sockstat,
    /// `/proc/sys/net`.
    Sysctls,
    /// Links and addresses from rtnetlink, and default gateways.
    Addresses,
    /// Nameservers of the host's resolv.conf.
    ResolvConf,
    /// kube-proxy's `/proxyMode`.
    ProxyMode,
    /// kube-proxy's `/configz`.
    ProxyConfig,
    /// kube-proxy's `/metrics`.
    ProxyMetrics,
    /// The proxy's process, the number of its file descriptors, and their limit.
    ProxyProcess,
    /// `/proc/net/ip_vs`.
    IpVs,
    /// `/proc/net/ip_vs_conn`.
    IpVsConn,
    /// Flows that this node masquerades, from conntrack over ctnetlink.
    Conntrack,
    /// The tables of nftables and the chains of iptables.
    Netfilter,
    /// Names, pids and command lines of socket owners.
    Processes,
    /// Control groups of sockets, and the pods of these control groups.
    Cgroups,
    /// Sockets in the network namespaces of pods.
    PodNamespaces,
    /// The answers on healthCheckNodePorts.
    HealthChecks,
    /// Services.
    Services,
    /// EndpointSlices.
    EndpointSlices,
    /// Pods of this node.
    Pods,
    /// Pods that have no Node, because their ports are in use.
    WaitingPods,
    /// Nodes.
    Nodes,
    /// ConfigMaps, and settings in objects of Cilium, Calico and OpenShift.
    ConfigMaps,
    /// The NodePort range.
    NodePortRange,
    /// The port on which an agent itself answers.
    OwnPort,
    /// The agent of another node, through the API server.
    Agent,
}

impl Source {
    /// Whether reading this source takes longer if the node or its pods have more connections.
    pub fn walks_connections(self) -> bool {
        matches!(self, Self::Clients | Self::EphemeralUse | Self::PodNamespaces | Self::Conntrack | Self::IpVsConn)
    }
}

/// Why a fact is missing. In JSON and in metric labels, the names are in kebab-case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Why {
    /// This process has no right to read the fact. For a process with few privileges, a missing right is normal.
    NotPermitted,
    /// This kernel or this cluster cannot provide the fact.
    NotSupported,
    /// The fact was not read yet.
    NotYet,
    /// The fact was not requested, because no cluster was given, or because no rule needs the fact.
    #[serde(alias = "not-asked")]
    NotRequested,
    /// The expected address did not answer.
    Unreachable,
    /// Reading the fact took longer than the limit.
    TimedOut,
    /// The kernel marked its answer as inconsistent at every attempt.
    Torn,
    /// The fact was read too long ago.
    Stale,
    /// The input was malformed.
    Malformed,
    /// The input was longer than the limit.
    TooMuch,
    /// The fact can have several values, and the finding depends on the value.
    Ambiguous,
    /// Only a bound of a count is known, and the finding depends on the count.
    NotCounted,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(why: Why) -> Reading<Vec<u16>> {
        Reading::Gap(Gap::new(Source::Pods, why, "so the test says"))
    }

    #[test]
    fn a_list_is_known_in_part_and_what_was_not_asked_for_is_not_there() {
        assert_eq!(Reading::Seen(vec![7_u16]).known_part(Unread::Adds), [7]);
        assert!(read(Why::Torn).known_part(Unread::Adds).is_empty());
        assert_eq!(read(Why::Torn).known(Unread::Doubted), None);
        assert_eq!(Reading::Seen(7).known(Unread::Doubted), Some(&7));
        assert_eq!(if_requested(Reading::Seen(vec![7_u16]).get().cloned()), Ok(Some(vec![7])));
        assert_eq!(if_requested(read(Why::NotRequested).get()), Ok(None));
        assert_eq!(if_requested(read(Why::NotPermitted).get()).map_err(|gap| gap.why), Err(Why::NotPermitted));
    }
}
