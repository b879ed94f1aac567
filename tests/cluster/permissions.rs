//! All permissions that the requests of the program need. Tests compare these tables with the requests and with the
//! chart's RBAC.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The API group. Empty for the core group, and for a path that is not a resource.
    pub group: &'static str,
    /// The name of the resource in plural, or a path, for example `/flagz`.
    pub resource: &'static str,
    /// The names of the objects that the program reads. Empty means all names.
    pub names: &'static [&'static str],
    pub verbs: &'static [&'static str],
    /// True if the program does not report a refusal of this right.
    pub optional: bool,
}

const fn needed(group: &'static str, resource: &'static str, verbs: &'static [&'static str]) -> Grant {
    Grant { group, resource, names: &[], verbs, optional: false }
}

pub const fn optional(group: &'static str, resource: &'static str, verbs: &'static [&'static str]) -> Grant {
    Grant { optional: true, ..needed(group, resource, verbs) }
}

const fn named(names: &'static [&'static str], grant: Grant) -> Grant {
    Grant { names, ..grant }
}

/// The rights for all requests that read facts.
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

/// The rights for the requests by which an agent checks the clients that read its documents.
pub const REVIEWS: &[Grant] = &[
    optional("authentication.k8s.io", "tokenreviews", &["create"]),
    optional("authorization.k8s.io", "subjectaccessreviews", &["create"]),
];
