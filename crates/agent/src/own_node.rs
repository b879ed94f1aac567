//! Checks the name of this node in the cluster. With a wrong `--node`, the Pods and addresses of another node are treated as this
//! node's own.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use portreeve_facts::{ClusterFacts, Gap, Node, NodeAddressKind, Snapshot, Source, Unread, Why};
use portreeve_report::first_names;

/// How long a name has to be in doubt before the agent logs it. A kubelet registers its Node after its start, and Nodes are
/// read every ten minutes.
const LASTING: Duration = Duration::from_secs(900);

/// Why the name of this node is in doubt, in a sentence. None if the name fits, or if the facts cannot show it.
pub(super) fn doubt(snapshot: &Snapshot) -> Option<String> {
    let name = snapshot.cluster.node_name.as_ref()?;
    let nodes = snapshot.cluster.nodes.known(Unread::Reported("their own gap")).filter(|nodes| !nodes.is_empty())?;
    let Some(node) = nodes.iter().find(|node| node.name == *name) else {
        return Some(no_node_of(name, nodes));
    };
    let here = snapshot
        .kernel
        .interfaces
        .known(Unread::Reported("their own gap"))
        .filter(|interfaces| !interfaces.addresses.is_empty())?;
    let mut its = node.addresses.iter().filter(|it| it.kind == NodeAddressKind::InternalIp).map(|it| it.ip).peekable();
    let first = its.peek().copied()?;
    let any = its.any(|ip| here.addresses.iter().any(|address| address.ip == ip));
    (!any)
        .then(|| format!("Node {name} has the address {first}, but this host does not: this host may be another node"))
}

/// Why this node is unknown in the cluster: the Nodes of the cluster were read, and none of them is this one. Without its Node, its
/// addresses in the cluster and its Pods are unknown. `hostname` was used if no name was configured.
pub(super) fn no_own_node(cluster: &ClusterFacts, hostname: &str) -> Option<Gap> {
    let nodes = cluster.nodes.known(Unread::Reported("their own gap")).filter(|nodes| !nodes.is_empty())?;
    let detail = match &cluster.node_name {
        Some(name) if nodes.iter().any(|node| node.name == *name) => return None,
        Some(name) => no_node_of(name, nodes),
        None => format!("no Node has the name {hostname}; {}; set the name of this node with --node", named(nodes)),
    };
    Some(Gap::new(Source::Nodes, Why::Ambiguous, detail))
}

fn no_node_of(name: &str, nodes: &[Arc<Node>]) -> String {
    format!("no Node of the cluster has the name {name}; {}; its Pods and addresses are not known", named(nodes))
}

/// The names of Nodes: `there are n1, n2 and 3 more`.
fn named(nodes: &[Arc<Node>]) -> String {
    const NAMED: usize = 5;
    let mut names: Vec<&str> = nodes.iter().map(|node| node.name.as_str()).collect();
    names.sort_unstable();
    let are = if nodes.len() == 1 { "is" } else { "are" };
    format!("there {are} {}", first_names(&names, NAMED))
}

/// Decides when the log reports that the name of this node is in doubt.
#[derive(Debug, Default)]
pub(super) struct NodeDoubt {
    since: Option<Instant>,
    reported: bool,
}

impl NodeDoubt {
    /// Notes the result of a scan. True when the log should report the doubt.
    pub(super) fn is_due(&mut self, doubt: bool, now: Instant) -> bool {
        if !doubt {
            *self = Self::default();
            return false;
        }
        let since = *self.since.get_or_insert(now);
        let due = !self.reported && now.saturating_duration_since(since) >= LASTING;
        self.reported |= due;
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use portreeve_facts::Reading;

    #[test]
    fn a_healthy_node_and_unknown_nodes_are_not_in_doubt() {
        let healthy = Snapshot::healthy();
        assert_eq!(doubt(&healthy), None);
        let mut unnamed = healthy.clone();
        unnamed.cluster.node_name = None;
        assert_eq!(doubt(&unnamed), None);
        let mut empty = healthy;
        empty.cluster.nodes = Reading::Seen(Vec::new());
        assert_eq!(doubt(&empty), None);
    }

    #[test]
    fn a_name_that_no_node_has_and_that_of_another_node_are_in_doubt() {
        let mut world = Snapshot::healthy();
        let name = world.node_name().to_owned();
        world.cluster.node_name = Some("other".to_owned());
        assert!(doubt(&world).is_some_and(|doubt| doubt.contains("no Node of the cluster has the name other")));
        let mut world = Snapshot::healthy();
        let Reading::Seen(nodes) = &mut world.cluster.nodes else { panic!("Nodes") };
        let own = nodes.iter_mut().find(|node| node.name == name).expect("this node");
        for address in &mut Arc::make_mut(own).addresses {
            address.ip = [203, 0, 113, 99].into();
        }
        assert!(doubt(&world).is_some_and(|doubt| doubt.contains("203.0.113.99")), "{:?}", doubt(&world));
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
    }

    #[test]
    fn a_doubt_is_reported_once_and_only_when_it_lasts() {
        let (mut doubt, begun) = (NodeDoubt::default(), Instant::now());
        let mut due = |doubted, minute: u64| doubt.is_due(doubted, begun + Duration::from_secs(60 * minute));
        assert_eq!([due(true, 0), due(true, 14), due(true, 15), due(true, 16)], [false, false, true, false]);
        assert_eq!([due(false, 17), due(true, 18), due(true, 33)], [false, false, true], "it may happen again");
    }
}
