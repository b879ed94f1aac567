//! Checks the name of this node in the cluster. If the name is wrong, the Pods and addresses of another node count as
//! this node's own.

use std::{
    net::IpAddr,
    time::{Duration, Instant},
};

use tracing::warn;

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

/// The reason why the Node with the name of this node may be another host: this host has none of the Node's internal
/// addresses. The name is configured, or is the hostname. `None` if the host has one of these addresses, or if there
/// are no addresses to compare.
pub(super) fn another_host(snapshot: &Snapshot) -> Option<Gap> {
    compared(snapshot)?.err()
}

/// Compares the internal addresses of this node's Node with the addresses of this host. `None` if the name, the Node or
/// the addresses are not known.
fn compared(snapshot: &Snapshot) -> Option<Result<(), Gap>> {
    let node = snapshot.own_node().filter(|_| snapshot.cluster.node_name.is_some())?;
    let here = snapshot.kernel.interfaces.known(Unread::Reported("their own gap"))?;
    let internal = node.addresses.iter().filter(|it| it.kind == NodeAddressKind::InternalIp);
    let its: Vec<IpAddr> = internal.map(|it| it.ip).collect();
    let first = its.first().filter(|_| !here.addresses.is_empty())?;
    if here.addresses.iter().any(|address| its.contains(&address.ip)) {
        return Some(Ok(()));
    }
    let name = &node.name;
    let detail = format!("Node {name} has the address {first}, but this host does not: this host may be another node");
    Some(Err(Gap::new(Source::Nodes, Why::Ambiguous, detail)))
}

/// After a match, a moment without the address or the Node object is no reason to doubt the name. The agent reads
/// Nodes every ten minutes.
const LASTING: Duration = Duration::from_secs(900);

/// The doubt about the name of this node, over the scans of an agent.
#[derive(Debug, Default)]
pub(super) struct NameDoubt {
    /// Whether an earlier scan found an address of the Node on this host.
    has_matched: bool,
    /// The first scan after the last match that found a reason for a doubt.
    since: Option<Instant>,
    /// The doubt of the last scan.
    last: Option<Gap>,
}

impl NameDoubt {
    /// The reason why the name may be wrong. Logs each reason once. If a scan has no addresses to compare, the doubt of
    /// the scan before stays.
    pub(super) fn of(&mut self, snapshot: &Snapshot, now: Instant) -> Option<Gap> {
        let cluster = &snapshot.cluster;
        let name = cluster.node_name.as_deref()?;
        let doubt = match no_own_node(cluster, name).map(Err).or_else(|| compared(snapshot)) {
            None => return self.last.clone(),
            Some(Ok(())) => {
                *self = Self { has_matched: true, ..Self::default() };
                return None;
            }
            Some(Err(doubt)) => doubt,
        };
        let since = *self.since.get_or_insert(now);
        if self.has_matched && now.saturating_duration_since(since) < LASTING {
            return None;
        }
        if self.last.as_ref() != Some(&doubt) {
            warn!(why = doubt.detail, "the name of this node may be wrong; check --node");
        }
        self.last = Some(doubt.clone());
        Some(doubt)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use portreeve_facts::{NodeAddress, Reading};

    #[test]
    fn a_doubt_counts_at_the_first_scan_or_if_it_lasts() {
        let (healthy, start) = (Snapshot::healthy(), Instant::now());
        let mut typo = healthy.clone();
        typo.cluster.node_name = Some("other".to_owned());
        let mut moved = healthy.clone();
        let Reading::Seen(nodes) = &mut moved.cluster.nodes else { panic!("Nodes") };
        let own = nodes.iter_mut().find(|node| node.name == healthy.node_name()).expect("this node");
        Arc::make_mut(own).addresses =
            vec![NodeAddress { kind: NodeAddressKind::InternalIp, ip: [203, 0, 113, 99].into() }];
        let doubts = |scans: &[(&Snapshot, u64)]| {
            let mut doubt = NameDoubt::default();
            let at = |minute| start + Duration::from_secs(60 * minute);
            scans.iter().map(|(snapshot, minute)| doubt.of(snapshot, at(*minute)).is_some()).collect::<Vec<_>>()
        };
        let mut down = moved.clone();
        let Reading::Seen(interfaces) = &mut down.kernel.interfaces else { panic!("interfaces") };
        Arc::make_mut(interfaces).addresses.clear();
        assert_eq!(doubts(&[(&typo, 0), (&healthy, 1), (&typo, 2)]), [true, false, false], "the Node may come back");
        assert_eq!(doubts(&[(&moved, 0), (&healthy, 1)]), [true, false], "the host never had the address");
        assert_eq!(
            doubts(&[(&moved, 0), (&down, 1), (&moved, 2)]),
            [true; 3],
            "nothing was compared at the second scan"
        );
        assert_eq!(doubts(&[(&down, 0), (&moved, 1)]), [false, true], "the addresses came late");
        let lost = [(&healthy, 0), (&moved, 1), (&moved, 15), (&moved, 16), (&healthy, 17), (&moved, 18)];
        assert_eq!(doubts(&lost), [false, false, false, true, false, false], "an address may come back");
        let mut unnamed = moved.clone();
        unnamed.cluster.node_name = None;
        assert_eq!(doubts(&[(&unnamed, 0)]), [false], "no name is configured");
    }

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
