//! Every permission that the requests of this crate need. A test compares the chart's RBAC with this table.

use k8s_openapi::{
    Resource as _,
    api::{
        authentication::v1::TokenReview,
        authorization::v1::SubjectAccessReview,
        core::v1::{ConfigMap, Node, Pod, Service},
        discovery::v1::EndpointSlice,
    },
};

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
    /// The grant's use, for the person who grants it.
    pub why: &'static str,
    /// Whether a refusal is not reported.
    pub optional: bool,
}

/// Every request for facts.
pub const ACCESS: &[Grant] = &[
    Grant {
        group: Service::GROUP,
        resource: Service::URL_PATH_SEGMENT,
        names: &[],
        verbs: &["list", "watch"],
        why: "NodePorts and their owners",
        optional: false,
    },
    Grant {
        group: EndpointSlice::GROUP,
        resource: EndpointSlice::URL_PATH_SEGMENT,
        names: &[],
        verbs: &["list", "watch"],
        why: "whether a Service has endpoints on this node or on other nodes",
        optional: false,
    },
    Grant {
        group: Pod::GROUP,
        resource: Pod::URL_PATH_SEGMENT,
        names: &[],
        verbs: &["list", "watch"],
        why: "this node's pods and pods without a node, by field selector, and the arguments of kube-apiserver's pods; RBAC cannot express `own node`",
        optional: false,
    },
    Grant {
        group: Node::GROUP,
        resource: Node::URL_PATH_SEGMENT,
        names: &[],
        verbs: &["list"],
        why: "this node, addresses of the other nodes, and k3s or RKE2 arguments",
        optional: false,
    },
    Grant {
        group: ConfigMap::GROUP,
        resource: ConfigMap::URL_PATH_SEGMENT,
        names: &["kube-proxy", "kubeadm-config", "cilium-config"],
        verbs: &["get"],
        why: "settings of the proxy and the NodePort range, in kube-system",
        optional: true,
    },
    Grant {
        group: "cilium.io",
        resource: "ciliumnodeconfigs",
        names: &[],
        verbs: &["list"],
        why: "settings that override Cilium's on this node, in kube-system",
        optional: true,
    },
    Grant {
        group: "crd.projectcalico.org",
        resource: "felixconfigurations",
        names: &["default"],
        verbs: &["get"],
        why: "the NodePort range in Calico's settings",
        optional: true,
    },
    Grant {
        group: "config.openshift.io",
        resource: "networks",
        names: &["cluster"],
        verbs: &["get"],
        why: "the NodePort range of OpenShift",
        optional: true,
    },
    Grant {
        group: "",
        resource: "/flagz",
        names: &[],
        verbs: &["get"],
        why: "the NodePort range of kube-apiserver (Kubernetes 1.36)",
        optional: true,
    },
];

/// The requests by which an agent checks its readers.
pub const REVIEWS: &[Grant] = &[
    Grant {
        group: TokenReview::GROUP,
        resource: TokenReview::URL_PATH_SEGMENT,
        names: &[],
        verbs: &["create"],
        why: "the user of the token in a request for `/findings` or `/snapshot`",
        optional: true,
    },
    Grant {
        group: SubjectAccessReview::GROUP,
        resource: SubjectAccessReview::URL_PATH_SEGMENT,
        names: &[],
        verbs: &["create"],
        why: "whether this user may read the document",
        optional: true,
    },
];
