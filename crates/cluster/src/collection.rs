//! The API paths of the objects of one kind.

use super::objects::Object;

#[derive(Clone, Debug)]
pub(super) struct Collection {
    /// The path of a request without its query, for example `/api/v1/nodes`.
    pub(super) path: String,
    pub(super) kind: &'static str,
}

impl Collection {
    pub(super) fn of<K: Object>() -> Self {
        Self { path: format!("{}/{}", K::GROUP, K::PLURAL), kind: K::KIND }
    }

    pub(super) fn in_namespace<K: Object>(namespace: &str) -> Self {
        Self { path: format!("{}/namespaces/{namespace}/{}", K::GROUP, K::PLURAL), kind: K::KIND }
    }

    pub(super) fn object(&self, name: &str) -> String {
        format!("{}/{name}", self.path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects::{EndpointSlice, Pod};

    #[test]
    fn a_path_has_the_group_and_the_namespace() {
        assert_eq!(Collection::of::<EndpointSlice>().path, "/apis/discovery.k8s.io/v1/endpointslices");
        let pods = Collection::in_namespace::<Pod>("kube-system");
        assert_eq!(pods.object("a"), "/api/v1/namespaces/kube-system/pods/a");
        assert_eq!(pods.kind, "Pod");
    }
}
