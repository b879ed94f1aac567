//! Where the API server keeps the objects of a kind.

use kube::core::{NamespaceResourceScope, Resource};

/// The field selector of Services that a proxy serves: ExternalName and headless ones have no NodePorts.
pub(super) const SERVED: &str = "spec.type!=ExternalName,spec.clusterIP!=None";

/// The objects of one kind, in all namespaces or in one.
#[derive(Clone, Debug)]
pub(super) struct Collection {
    /// The path of a request, without a query, e.g. `/api/v1/nodes`.
    pub(super) path: String,
    /// The kind of an object, e.g. `Node`.
    pub(super) kind: &'static str,
}

impl Collection {
    /// All objects of type `K`.
    pub(super) fn of<K: Resource<DynamicType = ()> + k8s_openapi::Resource>() -> Self {
        Self { path: K::url_path(&(), None), kind: K::KIND }
    }

    /// The objects of type `K` in a namespace.
    pub(super) fn in_namespace<K>(namespace: &str) -> Self
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + k8s_openapi::Resource,
    {
        Self { path: K::url_path(&(), Some(namespace)), kind: K::KIND }
    }

    /// The path of one object.
    pub(super) fn object(&self, name: &str) -> String {
        format!("{}/{name}", self.path)
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::{core::v1::Pod, discovery::v1::EndpointSlice};

    use super::*;

    #[test]
    fn a_path_has_the_group_and_the_namespace() {
        assert_eq!(Collection::of::<EndpointSlice>().path, "/apis/discovery.k8s.io/v1/endpointslices");
        let pods = Collection::in_namespace::<Pod>("kube-system");
        assert_eq!(pods.object("a"), "/api/v1/namespaces/kube-system/pods/a");
        assert_eq!(pods.kind, "Pod");
    }
}
