//! Reads Nodes: the own Node as `k8s_openapi` has it, all others in the form that costs least.

use std::collections::BTreeSet;

use k8s_openapi::{List, api::core::v1::Node};

use super::{
    collection::Collection,
    error::Error,
    facts_builder::FactsBuilder,
    pages::Recency,
    requests::{Format, Server, encoded},
};
use portreeve_facts::{Family, NodeAddressKind};

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
    let selector = |operator: &str, labels: &str| {
        let fields = encoded(&format!("metadata.name{operator}{own}"));
        format!("&fieldSelector={fields}{labels}")
    };
    let read = async |format, labels: &str| {
        let selector = selector("!=", labels);
        server.pages_as(format, &collection, &selector, Recency::Any, FactsBuilder::default).await
    };
    let path = format!("{}?resourceVersion=0{}", collection.path, selector("=", ""));
    let mut all = server.typed(&path, collection.kind, add).await?;
    let internal = all.nodes.iter().flat_map(|node| &node.addresses);
    let internal = internal.filter(|address| address.kind == NodeAddressKind::InternalIp);
    if internal.map(|address| Family::of(address.ip)).collect::<BTreeSet<_>>().len() > 1 {
        all.merge(read(Format::Whole, "").await?.0);
        return Ok(all);
    }
    let with_role = |selector: &str| format!("&labelSelector={}", encoded(selector));
    all.merge(read(Format::Whole, &with_role(CONTROL_PLANE)).await?.0);
    let rows = format!("{}&includeObject=None", with_role(&format!("!{CONTROL_PLANE}")));
    all.merge(read(Format::Table, &rows).await?.0);
    Ok(all)
}

fn add(facts: &mut FactsBuilder, place: &str, List { items, metadata }: List<Node>) -> bool {
    // One that goes on is read, and refused, elsewhere.
    let goes_on = metadata.remaining_item_count.is_some_and(|remaining| remaining != 0);
    let any = !items.is_empty() && !goes_on && metadata.continue_.is_none_or(|token| token.is_empty());
    items.into_iter().for_each(|node| facts.add_node(place, node));
    any
}
