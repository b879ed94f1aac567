//! Checks the name of this node in the cluster. If `--node` is wrong, the Pods and addresses of another node count as
//! this node's own.

use std::net::IpAddr;

use portreeve_facts::{ClusterFacts, Gap, NodeAddressKind, Snapshot, Source, Unread, Why, text};

/// The reason why this node is unknown in the cluster: the Nodes were read, but the Node of this node is missing.
/// Without the Node, the node's addresses in the cluster and its Pods are unknown. If no name is configured, `hostname`
/// is used. If no Nodes were read, other objects may still contain the name.
pub(super) fn no_own_node(cluster: &ClusterFacts, hostname: &str) -> Option<Gap> {
    const NAMED: usize = 5;
    let nodes = cluster.nodes.known_part(Unread::Reported("their own gap"));
    if nodes.is_empty() {
        return cluster.no_name(hostname);
    }
    let mut names: Vec<&str> = nodes.iter().map(|node| node.name.as_str()).collect();
    names.sort_unstable();
    // Example: `there are n1, n2 and 3 more`.
    let there = format!("there {} {}", if names.len() == 1 { "is" } else { "are" }, text::listed(&names, NAMED));
    let detail = match &cluster.node_name {
        Some(name) if names.contains(&name.as_str()) => return None,
        Some(name) => {
            format!("no Node of the cluster has the name {name}; {there}; its Pods and addresses are not known")
        }
        None => format!("no Node has the name {hostname}; {there}; set the name of this node with --node"),
    };
    Some(Gap::new(Source::Nodes, Why::Ambiguous, detail))
}

/// The reason why the Node with the configured name may be another host: this host has none of the Node's internal
/// addresses. `None` if the host has one of these addresses, or if its addresses are unknown.
pub(super) fn another_host(snapshot: &Snapshot) -> Option<Gap> {
    let node = snapshot.own_node()?;
    let here = snapshot.kernel.interfaces.known(Unread::Reported("their own gap"))?;
    let internal = node.addresses.iter().filter(|it| it.kind == NodeAddressKind::InternalIp);
    let its: Vec<IpAddr> = internal.map(|it| it.ip).collect();
    let is_here = here.addresses.is_empty() || here.addresses.iter().any(|address| its.contains(&address.ip));
    let first = its.first().filter(|_| !is_here)?;
    let name = &node.name;
    let detail = format!("Node {name} has the address {first}, but this host does not: this host may be another node");
    Some(Gap::new(Source::Nodes, Why::Ambiguous, detail))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use portreeve_facts::Reading;

    #[test]
    fn a_node_with_none_of_the_hosts_addresses_is_another_and_unknown_nodes_and_hosts_are_not() {
        let healthy = Snapshot::healthy();
        assert_eq!(another_host(&healthy), None);
        for name in [None, Some("other".to_owned())] {
            let mut unknown = healthy.clone();
            unknown.cluster.node_name = name;
            assert_eq!(another_host(&unknown), None);
        }
        let mut world = healthy.clone();
        let Reading::Seen(nodes) = &mut world.cluster.nodes else { panic!("Nodes") };
        let own = nodes.iter_mut().find(|node| node.name == healthy.node_name()).expect("this node");
        for address in &mut Arc::make_mut(own).addresses {
            address.ip = [203, 0, 113, 99].into();
        }
        let gap = another_host(&world).expect("a gap");
        assert!(gap.source == Source::Nodes && gap.detail.contains("203.0.113.99"), "{gap:?}");
        let Reading::Seen(interfaces) = &mut world.kernel.interfaces else { panic!("interfaces") };
        Arc::make_mut(interfaces).addresses.clear();
        assert_eq!(another_host(&world), None, "the addresses of the host are not known");
    }

    #[test]
    fn a_cluster_whose_nodes_are_all_others_is_not_that_of_a_known_node() {
        let mut cluster = Snapshot::healthy().cluster;
        assert_eq!(no_own_node(&cluster, "host"), None);
        for (name, wanted) in [(None, "the name host; there are "), (Some("typo"), "; its Pods")] {
            cluster.node_name = name.map(str::to_owned);
            let gap = no_own_node(&cluster, "host").expect("a gap");
            assert!(gap.source == Source::Nodes && gap.detail.contains(wanted), "{gap:?}");
        }
        for nodes in [Reading::Seen(Vec::new()), portreeve_facts::healthy::gap(Source::Nodes, Why::NotRequested)] {
            cluster.nodes = nodes;
            assert_eq!(no_own_node(&cluster, "host"), None, "no Nodes were given");
        }
        (cluster.node_name, cluster.pods) = (None, Snapshot::healthy().pod("edge", |_| ()).cluster.pods);
        assert_eq!(no_own_node(&cluster, "n1"), None, "a Pod has the name");
        let gap = no_own_node(&cluster, "host").expect("a gap");
        assert!(
            gap.detail.contains("no Node that was read, and no Pod with an address that was read, has the name host; "),
            "{gap:?}"
        );
    }
}
