//! Reads Nodes: this node's own Node in full, and most other Nodes as rows of a Table.

use std::collections::BTreeSet;

use super::{
    collection::Collection,
    error::Error,
    facts_builder::FactsBuilder,
    objects::Node,
    pages::Recency,
    requests::{JSON, Server, TABLE, encoded},
};
use portreeve_facts::{Family, NodeAddressKind};

/// The label of Nodes of the control plane. k3s servers have the label too.
const CONTROL_PLANE: &str = "node-role.kubernetes.io/control-plane";

/// Reads every Node. If `own` is not configured, every Node is read in full.
///
/// If `own` is configured, the Node `own` is read in full. Other Nodes are read as rows of a Table. A Node has 10 KB or
/// more, and a row has a few hundred bytes (`docs/performance.md`).
///
/// There are two exceptions. Nodes of the control plane are read in full, because they may have arguments of k3s or
/// RKE2. If this node's own Node has internal addresses of both families, all Nodes are read in full, because a row has
/// only one address.
pub(super) async fn read(server: &Server, own: Option<&str>) -> Result<FactsBuilder, Error> {
    let collection = Collection::of::<Node>();
    let Some(own) = own else { return server.list::<Node>(&collection, "").await };
    let selector = |operator: &str, labels: &str| {
        let fields = encoded(&format!("metadata.name{operator}{own}"));
        format!("&fieldSelector={fields}{labels}")
    };
    let read = async |accept, selector: &str| {
        let (empty, add) = (FactsBuilder::default, FactsBuilder::add_listed::<Node>);
        server.pages(accept, &collection, selector, Recency::Any, empty, add).await
    };
    let others = async |accept, labels: &str| read(accept, &selector("!=", labels)).await;
    let mut all = read(JSON, &selector("=", "")).await?.0;
    let internal = all.nodes.iter().flat_map(|node| &node.addresses);
    let internal = internal.filter(|address| address.kind == NodeAddressKind::InternalIp);
    if internal.map(|address| Family::of(address.ip)).collect::<BTreeSet<_>>().len() > 1 {
        all.merge(others(JSON, "").await?.0);
        return Ok(all);
    }
    let with_role = |selector: &str| format!("&labelSelector={}", encoded(selector));
    all.merge(others(JSON, &with_role(CONTROL_PLANE)).await?.0);
    let rows = format!("{}&includeObject=None", with_role(&format!("!{CONTROL_PLANE}")));
    all.merge(others(TABLE, &rows).await?.0);
    Ok(all)
}
