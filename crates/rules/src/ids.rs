//! The list of all problems: every id with its variants.
//!
//! An id has a page, an Event reason and a place in the list of rules. A variant is one case of the id. Each variant
//! has one meaning, one list of severities, and one number of scans for which a problem must last.

use std::fmt;

use self::{
    Arbiter::{Allocator, Bind, Packets, Replies, Routes, Scheduler},
    Kind::{Pair, Pool, State},
};
use crate::findings::{
    RuleId,
    Severity::{self, Critical, Info, Warning},
};

/// One id.
#[derive(Debug)]
pub struct Id {
    /// The name.
    pub name: RuleId,
    /// The title: a few words for the problem.
    pub title: &'static str,
    /// The text of the page in Markdown, without its heading.
    pub page: &'static str,
    /// The variants, in reading order.
    pub variants: &'static [Variant],
}

/// One case of an id.
#[derive(Clone, Copy, Debug)]
pub struct Variant {
    /// The variant's name, a fixed word. The name of an object or a process is never a variant.
    pub name: &'static str,
    /// The kind of the problem.
    pub kind: Kind,
    /// The possible severities, mildest first.
    pub severities: &'static [Severity],
    /// The severities that `lint` can report, if they differ from the severities of agents. `lint` reads some facts
    /// that agents do not read, such as workloads, and may lack other facts, such as sockets.
    pub in_manifests: &'static [Severity],
    /// Whether only agents report the variant, although the rule also judges manifests.
    pub never_in_manifests: bool,
    /// Whether the finding can be about a Service or a Pod. If false, the finding is about a Node or the cluster.
    pub of_objects: bool,
}

/// The kind of a problem: a conflict, a shortage, or a wrong state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Two claims conflict, and this arbiter decides between them.
    Pair(Arbiter),
    /// Most ports or file descriptors of a limited pool are in use, or the pool contains a port that a server needs.
    Pool,
    /// A wrong state without a conflict. The words name the judged thing, such as two settings.
    State(&'static str),
}

/// The program or the part of the kernel that decides between two claims.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arbiter {
    /// The data plane decides who gets a new connection to a port of an address.
    Packets,
    /// The kernel decides which socket may bind a port.
    Bind,
    /// The scheduler decides which pod runs on a node.
    Scheduler,
    /// The API server decides which Service has a NodePort. If a Service has a NodePort, the number is taken for all
    /// protocols.
    Allocator,
    /// The source port of a connection decides which program gets the answers.
    Replies,
    /// The routes of this node decide to which machine an address belongs, for all ports.
    Routes,
}

impl fmt::Display for Kind {
    /// The text in the column *decided by*.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Pair(Packets) => "data plane",
            Pair(Bind) => "bind",
            Pair(Scheduler) => "scheduler",
            Pair(Allocator) => "API server",
            Pair(Replies) => "replies",
            Pair(Routes) => "local routes",
            Pool => "supply",
            State(of) => return write!(f, "state: {of}"),
        })
    }
}

impl Variant {
    /// The worst severity on a node.
    pub fn ceiling(&self) -> Severity {
        self.severities.last().copied().unwrap_or(Severity::Info)
    }
}

const fn of(name: &'static str, kind: Kind, severities: &'static [Severity]) -> Variant {
    Variant { name, kind, severities, in_manifests: &[], never_in_manifests: false, of_objects: true }
}

const fn never_in_manifests(name: &'static str, kind: Kind, severities: &'static [Severity]) -> Variant {
    Variant { never_in_manifests: true, ..of(name, kind, severities) }
}

const fn of_no_object(name: &'static str, kind: Kind, severities: &'static [Severity]) -> Variant {
    Variant { of_objects: false, ..of(name, kind, severities) }
}

const fn and(in_manifests: &'static [Severity], of: Variant) -> Variant {
    Variant { in_manifests, ..of }
}

impl Id {
    /// The worst severity of the variants.
    pub fn ceiling(&self) -> Severity {
        self.variants.iter().map(Variant::ceiling).max().unwrap_or(Severity::Info)
    }

    /// The variant with this name.
    pub fn variant(&self, name: &str) -> Option<&'static Variant> {
        self.variants.iter().find(|variant| variant.name == name)
    }
}

/// A process listens on a NodePort.
pub static LISTENER_ON_NODE_PORT: Id = Id {
    name: RuleId("listener-on-node-port"),
    title: "A process listens on a Service's NodePort, or on a port that may become a NodePort",
    page: include_str!("pages/listener-on-node-port.md"),
    variants: &[
        of("loses", Pair(Packets), &[Warning, Critical]),
        of("trap", Pair(Packets), &[Info]),
        of("no-return", Pair(Bind), &[Info, Warning]),
        and(&[Warning], of_no_object("latent", Pair(Packets), &[Info])),
    ],
};

/// A connection has a port that a server or Service needs.
pub static CONNECTION_ON_PORT: Id = Id {
    name: RuleId("connection-on-port"),
    title: "An outgoing connection uses a port that a Service or a server needs",
    page: include_str!("pages/connection-on-port.md"),
    variants: &[
        of("answers-taken", Pair(Replies), &[Info, Warning, Critical]),
        of("blocks", Pair(Bind), &[Warning]),
        of("blocks-in-pod", Pair(Bind), &[Warning]),
    ],
};

/// The port of a hostNetwork pod, or of the agent, belongs to another process.
pub static HOST_NETWORK_PORT_TAKEN: Id = Id {
    name: RuleId("host-network-port-taken"),
    title: "A pod in the host's network cannot listen on its port",
    page: include_str!("pages/host-network-port-taken.md"),
    variants: &[
        of("listener", Pair(Bind), &[Info, Warning]),
        never_in_manifests("refused", Pair(Bind), &[Info, Warning]),
        of_no_object("agent", Pair(Bind), &[Warning]),
        of_no_object("daemon", Pair(Bind), &[Info, Warning]),
    ],
};

/// A Service has an address that belongs to another object.
pub static EXTERNAL_IP_CONFLICT: Id = Id {
    name: RuleId("external-ip-conflict"),
    title: "An external address of a Service is also the address of another object",
    page: include_str!("pages/external-ip-conflict.md"),
    variants: &[
        of("node-address", Pair(Routes), &[Info, Warning, Critical]),
        of("takes-listener", Pair(Packets), &[Info, Warning, Critical]),
        of("takes-node-port", Pair(Packets), &[Warning, Critical]),
        of("claimed-twice", Pair(Packets), &[Warning]),
        of("cluster-ip", Pair(Routes), &[Warning]),
    ],
};

/// This node has an address that another machine has.
pub static ADDRESS_HELD_TWICE: Id = Id {
    name: RuleId("address-held-twice"),
    title: "This node has an address of another machine",
    page: include_str!("pages/address-held-twice.md"),
    variants: &[
        of_no_object("ipvs", Pair(Routes), &[Critical]),
        of_no_object("link", Pair(Routes), &[Info, Warning, Critical]),
        of_no_object("announced-elsewhere", Pair(Routes), &[Warning]),
    ],
};

/// Two objects claim one NodePort.
pub static NODE_PORT_CLAIMED_TWICE: Id = Id {
    name: RuleId("node-port-claimed-twice"),
    title: "Two objects claim one NodePort",
    page: include_str!("pages/node-port-claimed-twice.md"),
    variants: &[
        of("lost", Pair(Packets), &[Critical]),
        of("refused", Pair(Allocator), &[Warning]),
        of("anew", Pair(Allocator), &[Warning]),
        of("pods", Pair(Packets), &[Warning]),
        of("own", Pair(Packets), &[Info]),
    ],
};

/// Masquerading uses a source port that a Service or server needs, or finds no free port.
pub static MASQUERADE_SOURCE_PORTS: Id = Id {
    name: RuleId("masquerade-source-ports"),
    title: "Masqueraded connections use a source port that a Service or server needs, or find no free port",
    page: include_str!("pages/masquerade-source-ports.md"),
    variants: &[
        of_no_object("taken", Pair(Replies), &[Critical]),
        of_no_object("cilium", State("one setting"), &[Info, Warning]),
        of("host-port", Pool, &[Warning]),
        of_no_object("tunnel", Pool, &[Info]),
        of_no_object("pool", Pool, &[Warning, Critical]),
    ],
};

/// The kernel may choose a port that a Service or server needs.
pub static EPHEMERAL_RANGE_OVERLAP: Id = Id {
    name: RuleId("ephemeral-range-overlap"),
    title: "The kernel may choose ports that Services or servers need",
    page: include_str!("pages/ephemeral-range-overlap.md"),
    variants: &[
        of_no_object("node-ports", Pool, &[Warning, Critical]),
        of_no_object("servers", Pool, &[Warning]),
        of_no_object("no-start", State("two ranges"), &[Warning]),
        of_no_object("workload", Pool, &[Info]),
    ],
};

/// Connections to one destination use most local ports.
pub static EPHEMERAL_PORTS_NEAR_EXHAUSTION: Id = Id {
    name: RuleId("ephemeral-ports-near-exhaustion"),
    title: "Connections to one destination run out of local ports",
    page: include_str!("pages/ephemeral-ports-near-exhaustion.md"),
    variants: &[of_no_object("node", Pool, &[Warning, Critical]), of("pod", Pool, &[Warning, Critical])],
};

/// A hostPort has the same number as a NodePort or as the port of a process.
pub static HOST_PORT_CONFLICT: Id = Id {
    name: RuleId("host-port-conflict"),
    title: "A hostPort is also a NodePort or the port of a process",
    page: include_str!("pages/host-port-conflict.md"),
    variants: &[
        of("node-port", Pair(Packets), &[Info, Warning, Critical]),
        of("takes-listener", Pair(Packets), &[Info, Warning]),
        never_in_manifests("no-network", Pair(Bind), &[Info, Warning]),
        of("health-check", Pair(Packets), &[Warning]),
        of("ignored", State("one claim"), &[Warning]),
        and(&[Warning], of("latent", Pair(Packets), &[Info])),
    ],
};

/// Rules or addresses remain from a deleted pod or from another proxy.
pub static STALE_REDIRECTION: Id = Id {
    name: RuleId("stale-redirection"),
    title: "Rules or addresses of a deleted pod or proxy remain",
    page: include_str!("pages/stale-redirection.md"),
    variants: &[
        of_no_object("host-port", Pair(Packets), &[Info, Warning, Critical]),
        of_no_object("proxy", State("rules of an unused mode"), &[Warning]),
    ],
};

/// Another tunnel or a program has the UDP port of a tunnel.
pub static TUNNEL_PORT_CONFLICT: Id = Id {
    name: RuleId("tunnel-port-conflict"),
    title: "A tunnel is down, and another tunnel or program has its UDP port",
    page: include_str!("pages/tunnel-port-conflict.md"),
    variants: &[
        of_no_object("devices", Pair(Bind), &[Info, Warning]),
        of_no_object("listener", Pair(Bind), &[Info, Warning]),
    ],
};

/// Pods wait, because the scheduler cannot place them.
pub static POD_WAITS_FOR_PORT: Id = Id {
    name: RuleId("pod-waits-for-port"),
    title: "A pod waits for a node port that another pod has",
    page: include_str!("pages/pod-waits-for-port.md"),
    variants: &[
        and(&[Info], of("pod", Pair(Scheduler), &[Warning])),
        of_no_object("workloads", Pair(Scheduler), &[Warning]),
        of_no_object("replicas", Pair(Scheduler), &[Info, Warning]),
    ],
};

/// The proxy does not answer a health check.
pub static HEALTH_CHECK_UNSERVED: Id = Id {
    name: RuleId("health-check-unserved"),
    title: "The proxy does not answer a health check",
    page: include_str!("pages/health-check-unserved.md"),
    variants: &[
        never_in_manifests("nobody", State("one claim"), &[Warning, Critical]),
        of("other", Pair(Bind), &[Warning, Critical]),
        never_in_manifests("one-family", Pair(Bind), &[Warning, Critical]),
        of_no_object("proxy", Pair(Bind), &[Warning]),
    ],
};

/// kube-proxy opens a socket for each NodePort and runs out of file descriptors.
pub static PROXY_NEAR_FD_LIMIT: Id = Id {
    name: RuleId("proxy-near-fd-limit"),
    title: "kube-proxy runs out of file descriptors",
    page: include_str!("pages/proxy-near-fd-limit.md"),
    variants: &[of_no_object("near", Pool, &[Warning, Critical])],
};

/// The NodePort range is nearly full.
pub static NODE_PORT_RANGE_CROWDED: Id = Id {
    name: RuleId("node-port-range-crowded"),
    title: "The NodePort range is filling up",
    page: include_str!("pages/node-port-range-crowded.md"),
    variants: &[
        of_no_object("crowded", Pool, &[Warning]),
        of_no_object("spilled", Pool, &[Warning]),
        of_no_object("full", Pool, &[Critical]),
    ],
};

/// A setting or a port does not fit the NodePort range.
pub static NODE_PORT_RANGE_MISMATCH: Id = Id {
    name: RuleId("node-port-range-mismatch"),
    title: "A setting or a port does not fit the NodePort range",
    page: include_str!("pages/node-port-range-mismatch.md"),
    variants: &[
        of_no_object("component", State("two settings"), &[Warning]),
        of_no_object("reserved", State("two settings"), &[Warning]),
        of("outside", State("one claim"), &[Warning]),
        of("band", State("one claim"), &[Info]),
        of_no_object("daemons", Pool, &[Info, Warning]),
    ],
};

/// The API server refuses an object because of a port field.
pub static PORT_FIELD_REFUSED: Id = Id {
    name: RuleId("port-field-refused"),
    title: "The API server refuses an object because of a port field",
    page: include_str!("pages/port-field-refused.md"),
    variants: &[
        of("node-port", State("one object"), &[Warning]),
        of("twice", State("one object"), &[Warning]),
        of("host-network", State("one object"), &[Warning]),
    ],
};

/// Every id, in reading order.
pub static IDS: &[&Id] = &[
    &LISTENER_ON_NODE_PORT,
    &CONNECTION_ON_PORT,
    &HOST_NETWORK_PORT_TAKEN,
    &EXTERNAL_IP_CONFLICT,
    &ADDRESS_HELD_TWICE,
    &NODE_PORT_CLAIMED_TWICE,
    &HOST_PORT_CONFLICT,
    &TUNNEL_PORT_CONFLICT,
    &POD_WAITS_FOR_PORT,
    &STALE_REDIRECTION,
    &HEALTH_CHECK_UNSERVED,
    &EPHEMERAL_RANGE_OVERLAP,
    &EPHEMERAL_PORTS_NEAR_EXHAUSTION,
    &MASQUERADE_SOURCE_PORTS,
    &NODE_PORT_RANGE_CROWDED,
    &NODE_PORT_RANGE_MISMATCH,
    &PROXY_NEAR_FD_LIMIT,
    &PORT_FIELD_REFUSED,
];

/// The id with this name.
pub fn find(name: &str) -> Option<&'static Id> {
    IDS.iter().copied().find(|id| id.name.0 == name)
}

/// The worst severity of these variants. An unknown id or variant is treated as critical.
pub fn ceiling<T: AsRef<str>>(rule: &str, variants: &[T]) -> Severity {
    let known = |variant: &T| find(rule).and_then(|id| id.variant(variant.as_ref())).map_or(Critical, Variant::ceiling);
    variants.iter().map(known).max().unwrap_or(Critical)
}

/// Whether a finding of these variants can be about a Service or a Pod. True if the id or a variant is unknown.
pub fn can_be_of_objects<T: AsRef<str>>(rule: &str, variants: &[T]) -> bool {
    let can_be =
        |variant: &T| find(rule).and_then(|id| id.variant(variant.as_ref())).is_none_or(|variant| variant.of_objects);
    variants.is_empty() || variants.iter().any(can_be)
}

/// The findings of one rule: the variants of one id that the rule reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rows {
    /// The id.
    pub rule: RuleId,
    /// The variants.
    pub variants: &'static [&'static str],
}

impl Rows {
    /// The worst severity of these findings.
    pub fn ceiling(&self) -> Severity {
        ceiling(self.rule.0, self.variants)
    }

    /// Whether a finding with this id and variant is one of the rule's findings.
    pub fn have(&self, rule: RuleId, variant: &str) -> bool {
        self.rule == rule && self.variants.contains(&variant)
    }
}

impl fmt::Display for Rows {
    /// `health-check-unserved/nobody,other,one-family`. If the rule reports all variants of the id, the text is only
    /// the id.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match find(self.rule.0) {
            Some(id) if id.variants.len() == self.variants.len() => self.rule.fmt(f),
            _ => f.pad(&format!("{}/{}", self.rule, self.variants.join(","))),
        }
    }
}

/// A name that a user typed: an id, or an id and one of its variants.
#[derive(Clone, Copy, Debug)]
pub struct Named {
    /// The id.
    pub id: &'static Id,
    /// The variant. `None` means all variants.
    pub variant: Option<&'static str>,
}

impl Named {
    /// Parses `ID` or `ID/VARIANT`.
    pub fn parse(text: &str) -> Option<Self> {
        let Some((id, variant)) = text.split_once('/') else { return Some(Self { id: find(text)?, variant: None }) };
        let id = find(id)?;
        Some(Self { id, variant: Some(id.variant(variant)?.name) })
    }

    /// Whether this name includes findings of an id and a variant.
    pub fn names(&self, rule: &str, variant: &str) -> bool {
        self.id.name.0 == rule && self.variant.is_none_or(|named| named == variant)
    }

    /// Whether this name includes one of these variants of an id. If `variants` is empty, each variant of the id may be
    /// meant.
    pub fn names_any<T: AsRef<str>>(&self, rule: &str, variants: &[T]) -> bool {
        variants.is_empty() && self.id.name.0 == rule
            || variants.iter().any(|variant| self.names(rule, variant.as_ref()))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn ids_and_variants_are_unique_kebab_case_words_and_every_page_has_its_parts() {
        let is_word =
            |it: &str| it.split('-').all(|part| !part.is_empty() && part.bytes().all(|c| c.is_ascii_lowercase()));
        let mut seen = BTreeSet::new();
        for id in IDS {
            let name = id.name;
            assert!(seen.insert(name) && is_word(name.0), "{name}");
            let mut variants = BTreeSet::new();
            for variant in id.variants {
                assert!(variants.insert(variant.name) && is_word(variant.name), "{name}/{}", variant.name);
                assert!(!variant.severities.is_empty() && variant.severities.is_sorted(), "{name}/{}", variant.name);
                assert!(
                    id.page.contains(&format!("\n- `{}`: ", variant.name)),
                    "{name}: its page lacks {}",
                    variant.name
                );
            }
            for heading in ["## Why it hurts", "## Variants", "## Silent when", "## Fix"] {
                assert!(id.page.contains(heading), "{name}: {heading} is missing");
            }
        }
    }

    #[test]
    fn a_variant_can_have_other_severities_in_manifests() {
        let in_manifests = |id: &Id, name| id.variants.iter().find(|it| it.name == name).expect(name).in_manifests;
        assert_eq!(in_manifests(&HOST_PORT_CONFLICT, "latent"), [Severity::Warning]);
        assert_eq!(in_manifests(&HOST_PORT_CONFLICT, "node-port"), []);
    }

    #[test]
    fn an_id_and_one_of_its_variants_are_read_and_nothing_else() {
        let named = |text: &str| Named::parse(text).expect("a name");
        assert!(named("node-port-claimed-twice").names("node-port-claimed-twice", "own"));
        assert!(named("node-port-claimed-twice/own").names("node-port-claimed-twice", "own"));
        assert!(!named("node-port-claimed-twice/own").names("node-port-claimed-twice", "lost"));
        assert!(!named("node-port-claimed-twice").names("node-port-range-crowded", "full"));
        for other in ["", "/", "own", "node-port-claimed-twice/", "node-port-claimed-twice/full", "no-such-rule/own"] {
            assert!(Named::parse(other).is_none(), "{other}");
        }
    }
}
