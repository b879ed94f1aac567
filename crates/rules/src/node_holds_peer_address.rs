//! A link of this node has an address of another Node.

use std::{collections::BTreeSet, net::IpAddr};

use super::{
    Limits, Round, Rule, ids,
    node_addresses::{is_configured, is_main, is_shared, kind_in_words, nodes_by_address, reachable},
    remedies::{delete_address, release_all},
    wording::{MOST_LISTED, listed},
};
use crate::findings::{Evidence, Judgement, Judgements, Remedy, Severity, Step, Subject, Vantage, Verdict};
use portreeve_dataplane::{ExternalAddress, Field};
use portreeve_facts::{Address, Gap, Node, NodeAddressKind, Snapshot, Source, Unread, Why, if_requested};

pub(super) static RULE: Rule =
    Rule::of(&ids::ADDRESS_HELD_TWICE, &["link"], &[Source::Addresses, Source::Nodes], check);

fn check(round: &Round<'_>, _: &Limits) -> Judgements {
    let snapshot = round.now;
    let interfaces = snapshot.kernel.interfaces.get()?;
    let by_address = nodes_by_address(snapshot.cluster.nodes.get()?);
    let mut held: Vec<Held<'_>> = reachable(interfaces)
        .flat_map(|address| by_address.get(&address.ip).into_iter().flatten().map(move |it| (address, *it)))
        .map(|(address, (node, kind))| Held { address, node, kind })
        .collect();
    held.sort_by_key(|it| (it.address.ip, &*it.address.link));
    let judgement = |verdict| vec![Judgement::of(Subject::this_node(snapshot), verdict)];
    let Some(own) = snapshot.own_node() else {
        return Ok(judgement(without_own_node(&held)));
    };
    // With the name of another node, an address of this node would look like an address of a peer.
    if let Some(gap) = snapshot.cluster.doubted_node() {
        return Ok(judgement(Verdict::Unknown(gap.clone())));
    }
    let here: BTreeSet<IpAddr> = reachable(interfaces).map(|address| address.ip).collect();
    held.retain(|it| {
        !is_same_machine(own, it.node, &here) && own.addresses.iter().all(|other| other.ip != it.address.ip)
    });
    held.retain(|it| it.kind == NodeAddressKind::InternalIp || !is_shared(interfaces, it.address));
    Ok(judgement(if held.is_empty() { Verdict::Healthy } else { Verdict::Problem(evidence(snapshot, &held)) }))
}

struct Held<'a> {
    address: &'a Address,
    node: &'a Node,
    kind: NodeAddressKind,
}

impl Held<'_> {
    fn words(&self) -> String {
        format!("{}, the {} of Node {}", self.address.ip, kind_in_words(self.kind), self.node.name)
    }

    /// Whether the address may be a virtual address that moved to this node. The status of the old Node may still
    /// contain a virtual address for some time.
    fn may_have_moved(&self) -> bool {
        self.address.is_alone() && !is_main(self.node, self.address.ip)
    }

    fn severity(&self) -> Severity {
        match self.kind {
            _ if self.may_have_moved() => Severity::Info,
            NodeAddressKind::InternalIp => Severity::Critical,
            _ => Severity::Warning,
        }
    }

    fn another_address(&self) -> String {
        let (name, ip) = (&self.node.name, self.address.ip);
        match is_main(self.node, self.address.ip) {
            true => format!("give Node {name} an address that no other machine has, with --node-ip of its kubelet"),
            false => format!(
                "keep {ip} out of the status of Node {name}: in the configuration of its cloud provider, or, without a cloud provider, with --node-ip of its kubelet"
            ),
        }
    }
}

/// Whether two Node objects are the same machine: they have a common InternalIP, and this node has all InternalIPs of
/// the other Node. One common InternalIP is not enough, because virtual machines behind NAT may have equal InternalIPs.
/// ExternalIPs are not compared, because many Nodes may share an ExternalIP.
fn is_same_machine(own: &Node, other: &Node, here: &BTreeSet<IpAddr>) -> bool {
    let internal = |node: &Node| -> BTreeSet<IpAddr> {
        let addresses = node.addresses.iter().filter(|it| it.kind == NodeAddressKind::InternalIp);
        addresses.map(|it| it.ip).collect()
    };
    let (mine, theirs) = (internal(own), internal(other));
    let all_here = theirs.iter().all(|ip| mine.contains(ip) || here.contains(ip));
    own.name == other.name || all_here && !mine.is_disjoint(&theirs)
}

/// Judges the addresses of Nodes without this node's own Node object. A Node whose addresses are all here is this node.
fn without_own_node(held: &[Held<'_>]) -> Verdict {
    let here = held.iter().map(|it| it.address.ip).collect();
    let internal: Vec<&Held<'_>> = held.iter().filter(|it| it.kind == NodeAddressKind::InternalIp).collect();
    let several = internal.iter().any(|one| internal.iter().any(|other| !is_same_machine(one.node, other.node, &here)));
    if !several {
        return Verdict::Healthy;
    }
    let names: BTreeSet<&str> = internal.iter().map(|it| it.node.name.as_str()).collect();
    let detail = format!("this node has addresses of {}, and no Node has this node's own name", listed(names));
    Verdict::Unknown(Gap::new(Source::Nodes, Why::Ambiguous, detail))
}

fn evidence(snapshot: &Snapshot, held: &[Held<'_>]) -> Evidence {
    let severity = held.iter().map(Held::severity).max().unwrap_or(Severity::Warning);
    let summary = match held {
        [one] => {
            format!(
                "{} has {}: traffic from this node to this address does not leave this node.",
                one.address.link,
                one.words()
            )
        }
        _ => {
            let links: BTreeSet<&str> = held.iter().map(|it| &*it.address.link).collect();
            let addresses: BTreeSet<_> = held.iter().map(|it| (it.address.ip, &it.node.name)).collect();
            let addresses = listed(addresses.into_iter().map(|(ip, node)| format!("{ip} of {node}")));
            let links = listed(links);
            format!(
                "{links} has addresses of other Nodes, {addresses}: traffic from this node to them does not leave this node."
            )
        }
    };
    let claims: Vec<ExternalAddress<'_>> = snapshot
        .cluster
        .services
        .known_part(Unread::Adds)
        .iter()
        .flat_map(|service| ExternalAddress::of(snapshot, service))
        .filter(|claim| held.iter().any(|it| it.address.ip == claim.ip))
        .collect();
    // A controller adds a load balancer's address to this node, because clients reach the address here. An unread
    // Service may have the address.
    let unread = if_requested(snapshot.cluster.services.get()).is_err() || snapshot.cluster.unread_service().is_some();
    let is_balanced =
        |ip: IpAddr| unread || claims.iter().any(|claim| claim.ip == ip && claim.field == Field::LoadBalancer);
    let mut evidence = Evidence::new(severity, summary).affects([Vantage::Remote, Vantage::Node, Vantage::Pods]);
    let mut deleted: Vec<Step> = Vec::new();
    let interfaces = snapshot.kernel.interfaces.known(Unread::Adds);
    for it in held.iter().take(MOST_LISTED) {
        let Address { ip, prefix, link } = it.address;
        evidence = evidence
            .value("address", format!("{ip}/{prefix} on {link}"))
            .value("belongs to", format!("Node {} ({})", it.node.name, kind_in_words(it.kind)))
            .each(
                "not known",
                it.may_have_moved().then(|| format!("whether {ip} is a virtual address that moved to this node")),
            );
        if !is_balanced(*ip) && !interfaces.is_some_and(|interfaces| is_configured(interfaces, it.address)) {
            deleted.push(delete_address(it.address));
        }
    }
    deleted.dedup();
    let claim =
        |it: &ExternalAddress<'_>| format!("{}/{} ({} {})", it.service.namespace, it.service.name, it.field, it.ip);
    evidence = evidence.and_more("address", held.len(), MOST_LISTED).list("claimed by", claims.iter().map(claim));
    let cause = "if the address does not move between nodes: remove the address from the configuration that adds it, for example of kube-vip, keepalived or the network";
    let mut peers: Vec<String> = held.iter().take(MOST_LISTED).map(Held::another_address).collect();
    peers.dedup();
    if let Some(first) = peers.first_mut() {
        *first = format!("if the address is this node's own, or moves between nodes: {first}");
    }
    let peer = Remedy { steps: peers.into_iter().map(Step::advice).collect() };
    if deleted.is_empty() && !claims.iter().any(|claim| is_balanced(claim.ip)) {
        return evidence.remedy(peer).remedy(Step::advice(cause));
    }
    let released = release_all(claims.iter().take(MOST_LISTED).collect());
    let remedy = released.into_iter().chain(deleted);
    let remedy = remedy.fold(Remedy::from(Step::advice(cause)), Remedy::then);
    // If the address may move between nodes, the deletion of the address is not the first remedy: clients may need the
    // address on this node.
    match held.iter().any(|it| it.address.is_alone()) {
        true => evidence.remedy(peer).remedy(remedy),
        false => evidence.remedy(remedy).remedy(peer),
    }
}

#[cfg(test)]
mod tests;
