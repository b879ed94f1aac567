//! A requested fact, or the reason why it is missing.

use std::ops::Deref;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The result of reading one fact.
///
/// `Reading` deliberately has no `Default`, no `unwrap_or` and no `ok`: an unread fact is never zero, and never
/// healthy. Code that continues without the fact must give a reason ([`Unread`]).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reading<T> {
    /// The fact.
    Seen(T),
    /// The reason why there is no fact.
    Gap(Gap),
}

impl<T> Reading<T> {
    /// The fact, or a copy of the reason why it was not read: `let sockets = view.now.kernel.listeners.get()?;`.
    ///
    /// # Errors
    ///
    /// The [`Gap`] if the fact was not read.
    pub fn get(&self) -> Result<&T, Gap> {
        match self {
            Self::Seen(fact) => Ok(fact),
            Self::Gap(gap) => Err(gap.clone()),
        }
    }

    /// The fact, if it was read; for tests.
    #[cfg(any(test, feature = "testing"))]
    pub fn seen(&self) -> Option<&T> {
        self.get().ok()
    }

    /// The fact; `None` if it was not read. The argument states why the caller needs no more. Code that concludes
    /// something from an absent fact must call [`Self::get`].
    pub fn known(&self, _: Unread) -> Option<&T> {
        match self {
            Self::Seen(fact) => Some(fact),
            Self::Gap(_) => None,
        }
    }

    /// The list; empty if it was not read.
    pub fn known_part<'a>(&'a self, why: Unread) -> &'a T::Target
    where
        T: Deref,
        &'a T::Target: Default,
    {
        self.known(why).map(Deref::deref).unwrap_or_default()
    }

    /// The reason why the fact was not read; `None` if it was read.
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

/// The reason why code misses no problem, although the code treats an unread fact as absent or an unread list as empty.
#[derive(Clone, Copy, Debug)]
pub enum Unread {
    /// The fact only adds words, numbers or a remedy to a result that is true without it.
    Adds,
    /// The named part of the output reports the unread fact.
    Reported(&'static str),
    /// The code assumes this value for the unread fact.
    Assumed(&'static str),
    /// The fact only decides what is read or listed next. No conclusion depends on it.
    Chooses,
    /// The caller concludes nothing from an absent fact. Every value stays possible, or the caller reads another
    /// source, or has its own `Gap`.
    Doubted,
}

/// `Ok(None)` if the fact was not requested, as in a scan without a cluster. A fact that was requested and not read
/// stays an error.
///
/// # Errors
///
/// The [`Gap`], if the fact was requested.
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

/// An unread input: its source, the reason, and one line for people.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Gap {
    /// The reader.
    pub source: Source,
    /// The kind of failure.
    pub why: Why,
    /// The details as text: the operation, its place, and the message of the system.
    pub detail: String,
}

impl Gap {
    /// An unread fact with its detail.
    pub fn new(source: Source, why: Why, detail: impl Into<String>) -> Self {
        Self { source, why, detail: detail.into() }
    }
}

/// A source of facts. The success of each source is reported separately; names are kebab-case in JSON and in metric
/// labels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Source {
    /// Listening sockets of the host (sock_diag, or `/proc/net` as a fallback).
    Listeners,
    /// Connected sockets of the host on the requested local ports.
    Clients,
    /// Use of the ephemeral port range by destination.
    EphemeralUse,
    /// `/proc/net/sockstat` and `sockstat6`.
    Sockstat,
    /// `/proc/sys/net`.
    Sysctls,
    /// Links and addresses over rtnetlink, default gateways.
    Addresses,
    /// Nameservers of the host's resolv.conf.
    ResolvConf,
    /// kube-proxy's `/proxyMode`.
    ProxyMode,
    /// kube-proxy's `/configz`.
    ProxyConfig,
    /// kube-proxy's `/metrics`.
    ProxyMetrics,
    /// The proxy's process, its file descriptors and their limit.
    ProxyProcess,
    /// `/proc/net/ip_vs`.
    IpVs,
    /// `/proc/net/ip_vs_conn`.
    IpVsConn,
    /// conntrack over ctnetlink: flows that this node masquerades.
    Conntrack,
    /// nft tables and iptables chains.
    Netfilter,
    /// Names, pids and command lines of socket owners.
    Processes,
    /// Control groups of sockets, and the pods they belong to.
    Cgroups,
    /// Sockets inside pods' network namespaces.
    PodNamespaces,
    /// The answers on healthCheckNodePorts.
    HealthChecks,
    /// Services.
    Services,
    /// EndpointSlices.
    EndpointSlices,
    /// Pods of this node.
    Pods,
    /// Pods without a Node, because their ports are in use.
    WaitingPods,
    /// Nodes.
    Nodes,
    /// ConfigMaps and platform objects.
    ConfigMaps,
    /// The NodePort range.
    NodePortRange,
    /// The port on which an agent itself answers.
    OwnPort,
    /// The agent of another node, through the API server.
    Agent,
}

impl Source {
    /// Whether the time for reading this source grows with the number of connections of the node or of its pods.
    pub fn walks_connections(self) -> bool {
        matches!(self, Self::Clients | Self::EphemeralUse | Self::PodNamespaces | Self::Conntrack | Self::IpVsConn)
    }
}

/// Why a fact is missing; kebab-case in JSON and in metric labels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Why {
    /// This process has no right to read the fact. Expected with a least-privilege profile.
    NotPermitted,
    /// This kernel or cluster does not have the fact.
    NotSupported,
    /// The fact was not read yet.
    NotYet,
    /// Not requested: no cluster was given, or no rule needs it.
    #[serde(alias = "not-asked")]
    NotRequested,
    /// No answer from the expected address.
    Unreachable,
    /// The reading took longer than allowed.
    TimedOut,
    /// The kernel marked the dump as inconsistent, at every try.
    Torn,
    /// The fact was read, but too long ago.
    Stale,
    /// The input was malformed.
    Malformed,
    /// The input was longer than the limit.
    TooMuch,
    /// The fact can have several values, and the verdict depends on the value.
    Ambiguous,
    /// Only a bound of a count is known, and the verdict depends on the count.
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
