//! A link of this node has a load balancer's address that kube-vip announces on another node.

use std::{
    collections::{BTreeSet, HashMap},
    net::IpAddr,
    sync::Arc,
};

use ipnet::IpNet;

use super::{
    Limits, Round, Rule, ids,
    node_addresses::{is_configured, is_main, is_shared, reachable},
    remedies::delete_address,
    wording::{MOST_LISTED, listed, service_in_words},
};
use crate::findings::{Evidence, Judgement, Judgements, Remedy, Severity, Step, Subject, Vantage, Verdict};
use portreeve_facts::{Address, Gap, Interfaces, Node, Service, Source, Why};

/// A problem must last for two scans, because the old leader of kube-vip may keep the address for a moment after a
/// change.
pub(super) static RULE: Rule = Rule::of(&ids::ADDRESS_HELD_TWICE, &["announced-elsewhere"], &[Source::Services], check);

fn check(round: &Round<'_>, _: &Limits) -> Judgements {
    let snapshot = round.now;
    let announcers = hosts_by_address(snapshot.cluster.services.get()?);
    let subject = Subject::this_node(snapshot);
    if announcers.is_empty() {
        return Ok(Judgement::each(&subject, None));
    }
    let interfaces = snapshot.kernel.interfaces.get()?;
    let mut here: Vec<(&Address, &[Announcer<'_>])> = on_the_network(interfaces)
        .filter_map(|address| Some((address, announcers.get(&address.ip)?.as_slice())))
        .collect();
    if here.is_empty() {
        return Ok(Judgement::each(&subject, None));
    }
    here.sort_by_key(|(address, _)| (address.ip, &*address.link));
    let nodes = snapshot.cluster.nodes.get()?;
    let own = snapshot.own_node().ok_or_else(|| snapshot.own_node_gap("no Node has this node's own name"))?;
    let (mut elsewhere, mut gap) = (Vec::new(), None);
    for (address, announcers) in here {
        // Several Services may share an address. If this node announces the address for one of these Services, the
        // address belongs to this node.
        let is_here = announcers.iter().any(|it| it.is(own) || it.host == snapshot.kernel.hostname);
        if is_here || nodes.iter().any(|node| is_main(node, address.ip)) {
            continue;
        }
        match announcers.iter().map(|it| it.node(nodes)).collect::<Result<_, Gap>>() {
            Ok(on) => elsewhere.push(Held { address, services: announcers.iter().map(|it| it.service).collect(), on }),
            Err(unknown) => gap = gap.or(Some(unknown)),
        }
    }
    // This node may announce an unread Service with the same address.
    if let (false, Some(unread)) = (elsewhere.is_empty(), snapshot.cluster.unread_service()) {
        return Ok(Judgement::each(&subject, [Verdict::Unknown(unread.clone())]));
    }
    let problem = (!elsewhere.is_empty()).then(|| Verdict::Problem(evidence(interfaces, &elsewhere)));
    Ok(Judgement::each(&subject, problem.into_iter().chain(gap.map(Verdict::Unknown))))
}

/// The host that announces a Service's addresses, from the annotation that kube-vip writes.
struct Announcer<'a> {
    service: &'a Service,
    host: &'a str,
}

impl<'a> Announcer<'a> {
    /// Whether the host is this Node. kube-vip may write the host's name with a domain or without.
    fn is(&self, node: &Node) -> bool {
        let is_short = |short: &str, long: &str| long.strip_prefix(short).is_some_and(|rest| rest.starts_with('.'));
        self.host == node.name || is_short(self.host, &node.name) || is_short(&node.name, self.host)
    }

    /// The name of the Node that the annotation means.
    ///
    /// # Errors
    /// Fails if no Node has this name: the Node may be deleted, or its host may have another name.
    fn node(&self, nodes: &'a [Arc<Node>]) -> Result<&'a str, Gap> {
        let Self { service, host } = self;
        let node = nodes.iter().filter(|node| self.is(node)).min_by_key(|node| (node.name != *host, &node.name));
        node.map(|node| &*node.name).ok_or_else(|| {
            let Service { namespace, name, .. } = service;
            let detail =
                format!("kube-vip.io/vipHost of Service {namespace}/{name} is {host}, and no Node has this name");
            Gap::new(Source::Nodes, Why::Ambiguous, detail)
        })
    }
}

fn hosts_by_address(services: &[Arc<Service>]) -> HashMap<IpAddr, Vec<Announcer<'_>>> {
    let mut by_address: HashMap<_, Vec<_>> = HashMap::new();
    for service in services {
        let Some(host) = service.announced.as_ref().and_then(|it| it.host.as_deref()) else { continue };
        for ip in &service.load_balancer_ips {
            by_address.entry(*ip).or_default().push(Announcer { service, host });
        }
    }
    by_address
        .values_mut()
        .for_each(|announcers| announcers.sort_by_key(|it| (&it.service.namespace, &it.service.name)));
    by_address
}

/// The addresses for which a link of this node answers ARP or NDP. Addresses for BGP are left out: every node has them,
/// on `lo` or on a link of another network.
fn on_the_network(interfaces: &Interfaces) -> impl Iterator<Item = &Address> {
    let is_in_network = |address: &Address| {
        let of_link = interfaces.of(&address.link).filter(|it| !it.is_alone());
        of_link.filter_map(|it| IpNet::new(it.ip, it.prefix).ok()).any(|network| network.contains(&address.ip))
    };
    reachable(interfaces).filter(move |address| !is_shared(interfaces, address) && is_in_network(address))
}

struct Held<'a> {
    address: &'a Address,
    services: Vec<&'a Service>,
    on: BTreeSet<&'a str>,
}

impl Held<'_> {
    fn on(&self) -> String {
        format!("Node {}", listed(&self.on))
    }

    fn of(&self) -> String {
        listed(self.services.iter().map(|it| format!("{}/{}", it.namespace, it.name)))
    }
}

fn evidence(interfaces: &Interfaces, held: &[Held<'_>]) -> Evidence {
    let summary = match held {
        [one] => format!(
            "{} has {} of Service {}, and kube-vip announces the address on {}: clients reach one of the two nodes.",
            one.address.link,
            one.address.ip,
            one.of(),
            one.on()
        ),
        _ => {
            let links: BTreeSet<&str> = held.iter().map(|it| &*it.address.link).collect();
            let addresses = listed(held.iter().map(|it| format!("{} on {}", it.address.ip, it.on())));
            format!(
                "{} has addresses that kube-vip announces elsewhere, {addresses}: clients reach one of the two nodes.",
                listed(links)
            )
        }
    };
    let mut evidence = Evidence::new(Severity::Warning, summary).affects([Vantage::Remote]);
    let mut steps = Vec::new();
    for it in held.iter().take(MOST_LISTED) {
        let Address { ip, prefix, link } = it.address;
        evidence = evidence
            .value("address", format!("{ip}/{prefix} on {link}"))
            .list("service", it.services.iter().map(|service| service_in_words(service)))
            .value("kube-vip.io/vipHost", it.on())
            .value("not known", format!("whether {} has {ip}: only the links of that node show", it.on()));
        steps.push(Step::advice(format!(
            "check on {} that `ip address show to {ip}` prints the address, and that kube-vip.io/vipHost of Service {} has not changed",
            it.on(),
            it.of()
        )));
        // A configured address may be the node's own address. If the user deletes such an address, the node may lose
        // its network.
        steps.push(match is_configured(interfaces, it.address) {
            true => Step::advice(format!("give Service {} an address that this node does not have", it.of())),
            false => delete_address(it.address),
        });
    }
    let cause = "read in the log of this node's kube-vip why kube-vip left the address here, and set \
                 vip_preserve_on_leadership_loss to false if it is true";
    steps.push(Step::advice(cause));
    evidence.and_more("address", held.len(), MOST_LISTED).remedy(Remedy { steps })
}

#[cfg(test)]
mod tests;
