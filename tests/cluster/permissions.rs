//! Every permission that the requests of the program need. Tests compare the requests and the chart's RBAC with these tables.

/// An object that is read, and the RBAC rights for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The API group; empty for the core group, and for a path that is not a resource.
    pub group: &'static str,
    /// The resource in plural, or a path like `/flagz`.
    pub resource: &'static str,
    /// The names that are read; empty means any name.
    pub names: &'static [&'static str],
    /// The verbs of RBAC.
    pub verbs: &'static [&'static str],
    /// Whether a refusal is not reported.
    pub optional: bool,
}

const fn needed(group: &'static str, resource: &'static str, verbs: &'static [&'static str]) -> Grant {
    Grant { group, resource, names: &[], verbs, optional: false }
}

pub const fn optional(group: &'static str, resource: &'static str, verbs: &'static [&'static str]) -> Grant {
    Grant { optional: true, ..needed(group, resource, verbs) }
}

/// One right for some names.
const fn named(names: &'static [&'static str], grant: Grant) -> Grant {
    Grant { names, ..grant }
}

/// Every request for facts.
pub const ACCESS: &[Grant] = &[
    needed("", "services", &["list", "watch"]),
    needed("discovery.k8s.io", "endpointslices", &["list", "watch"]),
    needed("", "pods", &["list", "watch"]),
    needed("", "nodes", &["list"]),
    named(&["kube-proxy", "kubeadm-config", "cilium-config"], optional("", "configmaps", &["get"])),
    optional("cilium.io", "ciliumnodeconfigs", &["list"]),
    named(&["default"], optional("crd.projectcalico.org", "felixconfigurations", &["get"])),
    named(&["cluster"], optional("config.openshift.io", "networks", &["get"])),
    optional("", "/flagz", &["get"]),
];

/// The requests by which an agent checks its readers.
pub const REVIEWS: &[Grant] = &[
    optional("authentication.k8s.io", "tokenreviews", &["create"]),
    optional("authorization.k8s.io", "subjectaccessreviews", &["create"]),
];
