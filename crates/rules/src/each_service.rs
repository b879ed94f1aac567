//! Each Service once, for rules that compare Services with each other.

use std::collections::HashSet;

use portreeve_facts::Service;

/// Each Service once, because a file may contain a Service twice.
pub(super) fn each_service<'a>(services: impl Iterator<Item = &'a Service>) -> impl Iterator<Item = &'a Service> {
    let mut known = HashSet::new();
    services.filter(move |service| known.insert((&*service.namespace, &*service.name)))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use portreeve_facts::{Snapshot, healthy::seen};

    #[test]
    fn a_copy_is_left_out_and_a_namesake_is_not() {
        let mut world = Snapshot::healthy()
            .service("web", |it| it.node_port(30080))
            .service("web", |it| it.node_port(30081))
            .service("web", |it| it.with(|service| service.namespace = "shop".to_owned()));
        let ports = each_service(seen(&mut world.cluster.services).iter().map(Arc::as_ref))
            .map(|service| service.ports[0].node_port);
        assert_eq!(ports.collect::<Vec<_>>(), [Some(30080), None]);
    }
}
