//! Reads Nodes: the own Node as `k8s_openapi` has it, all others in the form that costs least.

use std::collections::BTreeSet;

use k8s_openapi::{List, api::core::v1::Node};

use super::{
    collection::Collection,
    error::Error,
    facts_builder::FactsBuilder,
    requests::{Server, encoded},
};
use crate::facts::{Family, NodeAddressKind};

/// The label of Nodes that run the control plane, servers of k3s among them.
const CONTROL_PLANE: &str = "node-role.kubernetes.io/control-plane";

/// Every Node, in slim form where `own` is not configured.
///
/// Otherwise the own Node is a `k8s_openapi` Node, and the others are not: every agent reads them every ten minutes, a
/// Node is 10 KB and more, and a cluster has thousands of them. As rows of a Table, a few hundred bytes each, 5,000 are
/// 2 MB (`docs/performance.md`). Two kinds of other Nodes are read as slim objects, one at a time: those of the
/// control plane, which may carry arguments of k3s or RKE2, and all where Nodes have addresses of both families, of
/// which a row has only the first.
pub(super) async fn read(server: &Server, own: Option<&str>) -> Result<FactsBuilder, Error> {
    let collection = Collection::of::<Node>();
    let Some(own) = own else { return server.list(&collection, "").await };
    let path = |operator: &str, labels: &str| {
        let fields = encoded(&format!("metadata.name{operator}{own}"));
        format!("{}?resourceVersion=0&fieldSelector={fields}{labels}", collection.path)
    };
    // A LIST of one: the chart's roles allow no `get` of Nodes.
    let mut all = server.typed(&path("=", ""), collection.kind, add).await?;
    let internal = all.nodes.iter().flat_map(|node| &node.addresses);
    let internal = internal.filter(|address| address.kind == NodeAddressKind::InternalIp);
    if internal.map(|address| Family::of(address.ip)).collect::<BTreeSet<_>>().len() > 1 {
        let (others, _) = server.objects(&path("!=", ""), collection.kind).await?;
        all.merge(others);
        return Ok(all);
    }
    let with_role = |selector: &str| path("!=", &format!("&labelSelector={}", encoded(selector)));
    let (control_plane, _) = server.objects(&with_role(CONTROL_PLANE), collection.kind).await?;
    all.merge(control_plane);
    let rows = format!("{}&includeObject=None", with_role(&format!("!{CONTROL_PLANE}")));
    let (others, _) = server.table(&rows, collection.kind).await?;
    all.merge(others);
    Ok(all)
}

fn add(facts: &mut FactsBuilder, place: &str, List { items, .. }: List<Node>) -> bool {
    let any = !items.is_empty();
    items.into_iter().for_each(|node| facts.add_node(place, node));
    any
}
