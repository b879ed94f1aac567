//! The device of an ipvs proxy has an address of another machine.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    net::IpAddr,
    sync::Arc,
};

use super::{
    Limits, Round, Rule, ids,
    node_addresses::{NodesByAddress, kind_in_words, nodes_by_address},
    remedies::{delete_address, release_all},
    wording::{MOST_LISTED, listed},
};
use crate::findings::{Evidence, Judgement, Judgements, Severity, Step, Subject, Vantage, Verdict};
use portreeve_dataplane::{ExternalAddress, Field, mode_in_words};
use portreeve_facts::{
    API_SERVER, Address, Gap, Interfaces, Node, NodeAddressKind, Reading, Service, Snapshot, Source, Unread,
};

const DNS: u16 = 53;

pub(super) static RULE: Rule =
    Rule::of(&ids::ADDRESS_HELD_TWICE, &["ipvs"], &[Source::Addresses], check).uses(&[Source::ResolvConf]).at_once();

fn check(round: &Round<'_>, _: &Limits) -> Judgements {
    let snapshot = round.now;
    let interfaces = snapshot.kernel.interfaces.get()?;
    let mut held: Vec<&Address> = interfaces.addresses.iter().filter(|address| address.is_ipvs()).collect();
    if held.is_empty() {
        return Ok(Vec::new());
    }
    held.sort_by_key(|address| (address.ip, &*address.link));
    let known = Known::of(snapshot, interfaces, &held);
    let mut foreign = Vec::new();
    let mut gap = None;
    for address in held {
        match known.whose(address.ip) {
            Ok(whose) if whose.is_empty() => {}
            Ok(whose) => foreign.push((address, whose)),
            Err(missing) => gap = gap.or(Some(missing)),
        }
    }
    let problem = (!foreign.is_empty()).then(|| Verdict::Problem(evidence(snapshot, &known, &foreign)));
    let verdicts = problem.into_iter().chain(gap.map(Verdict::Unknown));
    Ok(Judgement::each(&Subject::this_node(snapshot), verdicts))
}

enum Owner<'a> {
    Gateway,
    Nameserver,
    ApiServer,
    Node(&'a Node, NodeAddressKind),
}

impl Owner<'_> {
    fn words(&self) -> String {
        match self {
            Self::Gateway => "the default gateway".to_owned(),
            Self::Nameserver => "a nameserver of this node".to_owned(),
            Self::ApiServer => "an API server".to_owned(),
            Self::Node(node, kind) => format!("the {} of Node {}", kind_in_words(*kind), node.name),
        }
    }

    fn affects(&self) -> &'static [Vantage] {
        match self {
            Self::Gateway | Self::Node(..) => &[Vantage::Remote, Vantage::Node, Vantage::Pods],
            Self::Nameserver | Self::ApiServer => &[Vantage::Node, Vantage::Pods],
        }
    }
}

struct Known<'a> {
    gateways: &'a [IpAddr],
    gateways_gap: Option<&'a Gap>,
    nameservers: &'a Reading<Vec<IpAddr>>,
    api_servers: Result<HashSet<IpAddr>, Gap>,
    unread_slice: Option<&'a Gap>,
    nodes: Result<NodesByAddress<'a>, Gap>,
    own_name: &'a str,
    /// This node's addresses on links other than the ipvs device. An address in this set belongs to this node, even if
    /// the node's name is not known.
    own: HashSet<IpAddr>,
    services: Result<Claims<'a>, Gap>,
}

/// The cluster IPs of Services, and the claims of Services to addresses of the ipvs device.
struct Claims<'a> {
    cluster_ips: HashSet<IpAddr>,
    /// Load balancer addresses at which a Service answers DNS.
    dns: HashSet<IpAddr>,
    by_address: HashMap<IpAddr, Vec<ExternalAddress<'a>>>,
}

impl<'a> Known<'a> {
    fn of(snapshot: &'a Snapshot, interfaces: &'a Interfaces, held: &[&Address]) -> Self {
        let held: HashSet<IpAddr> = held.iter().map(|address| address.ip).collect();
        let of_services = |services: &'a Vec<Arc<Service>>| {
            let cluster_ips = services.iter().flat_map(|service| &service.cluster_ips).copied();
            let mut claims: Vec<_> = services
                .iter()
                .flat_map(|service| ExternalAddress::of(snapshot, service))
                .filter(|claim| held.contains(&claim.ip))
                .collect();
            claims.sort_by_key(|claim| (&claim.service.namespace, &claim.service.name));
            let answers_dns = |claim: &&ExternalAddress<'_>| {
                claim.field == Field::LoadBalancer && claim.service.ports.iter().any(|port| port.port == DNS)
            };
            let dns = claims.iter().filter(answers_dns).map(|claim| claim.ip).collect();
            let mut by_address: HashMap<_, Vec<_>> = HashMap::new();
            for claim in claims {
                by_address.entry(claim.ip).or_default().push(claim);
            }
            Claims { cluster_ips: cluster_ips.filter(|ip| held.contains(ip)).collect(), dns, by_address }
        };
        Self {
            gateways: &interfaces.gateways,
            gateways_gap: interfaces.gateways_gap.as_ref(),
            nameservers: &snapshot.kernel.nameservers,
            api_servers: snapshot.cluster.endpoint_slices_with(API_SERVER.1).map(|slices| {
                slices
                    .iter()
                    .filter(|slice| (slice.namespace.as_str(), slice.service.as_str()) == API_SERVER)
                    .flat_map(|slice| &slice.endpoints)
                    .flat_map(|endpoint| endpoint.addresses.iter().copied())
                    .collect()
            }),
            unread_slice: snapshot.cluster.unread_slice(),
            nodes: snapshot.cluster.nodes.get().map(|nodes| nodes_by_address(nodes)),
            own_name: snapshot.node_name(),
            own: interfaces.addresses.iter().filter(|address| !address.is_ipvs()).map(|address| address.ip).collect(),
            services: snapshot.cluster.services.get().map(of_services),
        }
    }

    /// Every object that has the address, except this node. Empty if the address belongs to this node, or if another
    /// rule reports the address.
    ///
    /// # Errors
    /// Fails if the owner is not certain. The error names the unread input.
    fn whose(&self, ip: IpAddr) -> Result<Vec<Owner<'a>>, Gap> {
        if self.services.as_ref().is_ok_and(|services| services.cluster_ips.contains(&ip)) {
            return Ok(Vec::new());
        }
        let nodes: Vec<_> = match &self.nodes {
            Ok(nodes) => nodes.get(&ip).into_iter().flatten().copied().collect(),
            Err(_) => Vec::new(),
        };
        let claimed = !self.claims(ip).is_empty();
        if claimed && !nodes.is_empty() {
            return Ok(Vec::new());
        }
        let others = nodes.into_iter().filter(|(node, _)| node.name != self.own_name && !self.own.contains(&ip));
        let mut owners: Vec<Owner<'a>> = others.map(|(node, kind)| Owner::Node(node, kind)).collect();
        if self.api_servers.as_ref().is_ok_and(|all| all.contains(&ip)) {
            owners.push(Owner::ApiServer);
        }
        let own_dns = self.services.as_ref().is_ok_and(|services| services.dns.contains(&ip));
        if !own_dns && self.nameservers.known(Unread::Reported("Self::missing")).is_some_and(|all| all.contains(&ip)) {
            owners.push(Owner::Nameserver);
        }
        let gateway = self.gateways.contains(&ip);
        if gateway {
            owners.insert(0, Owner::Gateway);
        }
        // A gateway's address never belongs to a Service. An address of any other object may belong to an unread
        // Service.
        match &self.services {
            Err(gap) if !gateway => Err(gap.clone()),
            _ if owners.is_empty() => self.missing().map_or(Ok(owners), Err),
            _ => Ok(owners),
        }
    }

    fn claims(&self, ip: IpAddr) -> &[ExternalAddress<'a>] {
        self.services.as_ref().ok().and_then(|services| services.by_address.get(&ip)).map_or(&[], Vec::as_slice)
    }

    fn missing(&self) -> Option<Gap> {
        let nodes = self.nodes.as_ref().err();
        let missing = nodes.or(self.nameservers.gap()).or(self.api_servers.as_ref().err()).or(self.unread_slice);
        missing.or(self.gateways_gap).cloned()
    }
}

fn evidence(snapshot: &Snapshot, known: &Known<'_>, foreign: &[(&Address, Vec<Owner<'_>>)]) -> Evidence {
    let words = |owners: &[Owner<'_>]| owners.iter().map(Owner::words).collect::<Vec<_>>().join(", ");
    let summary = match foreign {
        [(address, owners)] => format!(
            "{} has {}, {}: traffic from this node to this address does not leave this node.",
            address.link,
            address.ip,
            words(owners)
        ),
        _ => {
            let links: BTreeSet<&str> = foreign.iter().map(|(address, _)| &*address.link).collect();
            let addresses = listed(foreign.iter().map(|(address, _)| address.ip));
            format!(
                "{} has addresses of other machines, {addresses}: traffic from this node to them does not leave this node.",
                listed(links)
            )
        }
    };
    let mut evidence = Evidence::new(Severity::Critical, summary);
    let (mut claims, mut others) = (Vec::new(), Vec::new());
    for (address, owners) in foreign.iter().take(MOST_LISTED) {
        let Address { ip, prefix, link } = address;
        let of_services = known.claims(*ip);
        let claim = |it: &ExternalAddress<'_>| format!("{}/{} ({})", it.service.namespace, it.service.name, it.field);
        evidence = evidence
            .value("address", format!("{ip}/{prefix} on {link}"))
            .value("belongs to", words(owners))
            .value("kernel", format!("local {ip} dev {link}, `ip route get {ip}` shows it"))
            .affects(owners.iter().flat_map(|owner| owner.affects().iter().copied()))
            .list("claimed by", of_services.iter().map(claim));
        claims.extend(of_services.iter().take(MOST_LISTED));
        // An unread Service may need the address. Without the address, the Service would not work on this node.
        let is_unread = known.services.is_err() || snapshot.cluster.unread_service().is_some();
        let (claimed_by, step) = match is_unread {
            _ if !of_services.is_empty() => continue,
            true => {
                let step = Step::advice(format!("find the Service that has {ip}: some Services could not be read"));
                ("unknown, because a Service could not be read", step)
            }
            false => ("no Service: the address is a leftover", delete_address(address)),
        };
        evidence = evidence.value("claimed by", claimed_by);
        others.push(step);
    }
    let steps: Vec<Step> = release_all(claims).into_iter().chain(others).collect();
    evidence.remedy(steps).value("proxy mode", mode_in_words(&snapshot.proxy_mode()))
}

#[cfg(test)]
mod tests;
