//! This node holds, on the device of an ipvs proxy, an address that belongs to something else.
//!
//! ## Why it hurts
//! An address on `kube-ipvs0` (kube-router: `kube-dummy-if`) is an address of this node as far as its kernel is
//! concerned. If it is really another Node's, the gateway's, a nameserver's or an API server's, everything this node
//! sends there ends at home, and what comes from there is dropped as forged. `ip route get ADDRESS` answers
//! `local ADDRESS dev lo`.
//!
//! ## Silent when
//! - the address is a clusterIP of a Service: that is what the device is for;
//! - it is a nameserver and the address of a Service of type LoadBalancer that has port 53: the cluster's own DNS;
//! - it is a Node's address that a Service claims as externalIP or load balancer address: `external-ip-is-node-address`
//!   reports that, and whether this node holds it.
//!
//! ## Fix
//! Remove the address from the Service that claims it. If none does, it was left behind: delete it from the device.

use std::{
    cmp::Reverse,
    collections::{BTreeSet, HashMap, HashSet},
    net::IpAddr,
    sync::Arc,
};

use super::{
    Limits, Patience, Rule,
    node_addresses::{NodesByAddress, kind_in_words, nodes_by_address},
    remedies::{delete_address, release},
    wording::{MOST_LISTED, listed},
};
use crate::{
    dataplane::{ExternalAddress, Field, mode_in_words},
    facts::{API_SERVER, Address, Gap, Interfaces, Node, NodeAddressKind, Reading, Service, Snapshot, Source, View},
    findings::{Evidence, Judgement, Judgements, RuleId, Severity, Step, Subject, Vantage, Verdict},
};

/// Where nameservers answer.
const DNS: u16 = 53;

pub(super) static RULE: Rule = Rule {
    id: RuleId("ipvs-holds-foreign-address"),
    title: "This node holds somebody else's address",
    ceiling: Severity::Critical,
    needs: &[Source::Addresses],
    uses: &[Source::ResolvConf],
    socket_needs: &[],
    patience: Patience::One,
    page: include_str!("ipvs_holds_foreign_address.rs"),
    check,
};

fn check(view: View<'_>, _: &Limits) -> Judgements {
    let snapshot = view.now;
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
    let subject = Subject::this_node(snapshot);
    let judgement = |verdict| Judgement { subject: subject.clone(), port: None, protocol: None, verdict };
    let mut judgements: Vec<Judgement> = gap.map(|gap| judgement(Verdict::Unknown(gap))).into_iter().collect();
    if !foreign.is_empty() {
        judgements.push(judgement(Verdict::Problem(evidence(snapshot, &known, &foreign))));
    } else if judgements.is_empty() {
        judgements.push(judgement(Verdict::Healthy));
    }
    Ok(judgements)
}

/// An object to which an address belongs.
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

/// Whose which address is.
struct Known<'a> {
    gateways: &'a [IpAddr],
    gateways_gap: Option<&'a Gap>,
    nameservers: &'a Reading<Vec<IpAddr>>,
    api_servers: Result<HashSet<IpAddr>, Gap>,
    nodes: Result<NodesByAddress<'a>, Gap>,
    own_name: &'a str,
    /// This node's addresses on other links: these are its own whatever its name is.
    own: HashSet<IpAddr>,
    /// Cluster IPs, and claims of the held addresses.
    services: Result<Claims<'a>, Gap>,
}

/// What Services say of the held addresses.
struct Claims<'a> {
    cluster_ips: HashSet<IpAddr>,
    /// Load balancer addresses at which a Service answers DNS.
    dns: HashSet<IpAddr>,
    by_address: HashMap<IpAddr, ExternalAddress<'a>>,
}

impl<'a> Known<'a> {
    fn of(snapshot: &'a Snapshot, interfaces: &'a Interfaces, held: &[&Address]) -> Self {
        let held: HashSet<IpAddr> = held.iter().map(|address| address.ip).collect();
        let of_services = |services: &'a Vec<Arc<Service>>| {
            let cluster_ips = services.iter().flat_map(|service| &service.cluster_ips).copied();
            let mut claims: Vec<_> = services
                .iter()
                .flat_map(|service| ExternalAddress::of(service))
                .filter(|claim| held.contains(&claim.ip))
                .collect();
            // Of several Services with one address, the last of the alphabet is named.
            claims.sort_by_key(|claim| (&claim.service.namespace, &claim.service.name));
            let answers_dns = |claim: &&ExternalAddress<'_>| {
                claim.field == Field::LoadBalancer && claim.service.ports.iter().any(|port| port.port == DNS)
            };
            Claims {
                cluster_ips: cluster_ips.filter(|ip| held.contains(ip)).collect(),
                dns: claims.iter().filter(answers_dns).map(|claim| claim.ip).collect(),
                by_address: claims.into_iter().map(|claim| (claim.ip, claim)).collect(),
            }
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
            nodes: snapshot.cluster.nodes.get().map(|nodes| nodes_by_address(nodes)),
            own_name: snapshot.node_name(),
            own: interfaces.addresses.iter().filter(|address| !address.is_ipvs()).map(|address| address.ip).collect(),
            services: snapshot.cluster.services.get().map(of_services),
        }
    }

    /// Every other object to which an address belongs; empty when it is rightly here, or another rule reports it.
    ///
    /// # Errors
    /// When it is not certain, the input that would tell.
    fn whose(&self, ip: IpAddr) -> Result<Vec<Owner<'a>>, Gap> {
        if self.services.as_ref().is_ok_and(|services| services.cluster_ips.contains(&ip)) {
            return Ok(Vec::new());
        }
        let nodes: Vec<_> = match &self.nodes {
            Ok(nodes) => nodes.get(&ip).into_iter().flatten().copied().collect(),
            Err(_) => Vec::new(),
        };
        let claimed = self.claim(ip).is_some();
        if claimed && !nodes.is_empty() {
            return Ok(Vec::new());
        }
        let others = nodes.into_iter().filter(|(node, _)| node.name != self.own_name && !self.own.contains(&ip));
        let mut owners: Vec<Owner<'a>> = others.map(|(node, kind)| Owner::Node(node, kind)).collect();
        if self.api_servers.as_ref().is_ok_and(|all| all.contains(&ip)) {
            owners.push(Owner::ApiServer);
        }
        let own_dns = self.services.as_ref().is_ok_and(|services| services.dns.contains(&ip));
        if !own_dns && self.nameservers.seen().is_some_and(|all| all.contains(&ip)) {
            owners.push(Owner::Nameserver);
        }
        let gateway = self.gateways.contains(&ip);
        if gateway {
            owners.insert(0, Owner::Gateway);
        }
        // A gateway is never a Service's. Anything else may be, as long as the Services are not known.
        match &self.services {
            Err(gap) if !gateway => Err(gap.clone()),
            _ if owners.is_empty() => self.missing().map_or(Ok(owners), Err),
            _ => Ok(owners),
        }
    }

    fn claim(&self, ip: IpAddr) -> Option<&ExternalAddress<'a>> {
        self.services.as_ref().ok()?.by_address.get(&ip)
    }

    /// An input without which an address that seems to belong to no object may still belong to one.
    fn missing(&self) -> Option<Gap> {
        let nodes = self.nodes.as_ref().err();
        let missing = nodes.or(self.nameservers.gap()).or(self.api_servers.as_ref().err()).or(self.gateways_gap);
        missing.cloned()
    }
}

fn evidence(snapshot: &Snapshot, known: &Known<'_>, foreign: &[(&Address, Vec<Owner<'_>>)]) -> Evidence {
    let words = |owners: &[Owner<'_>]| owners.iter().map(Owner::words).collect::<Vec<_>>().join(", ");
    let summary = match foreign {
        [(address, owners)] => format!(
            "{} holds {}, {}: what this node sends there ends at home.",
            address.link,
            address.ip,
            words(owners)
        ),
        _ => {
            let links: BTreeSet<&str> = foreign.iter().map(|(address, _)| &*address.link).collect();
            let addresses = listed(foreign.iter().map(|(address, _)| address.ip));
            format!(
                "{} holds addresses of others, {addresses}: what this node sends there ends at home.",
                listed(links)
            )
        }
    };
    let mut evidence = Evidence::new(Severity::Critical, summary);
    let mut steps = Vec::new();
    for (address, owners) in foreign.iter().take(MOST_LISTED) {
        let Address { ip, prefix, link } = address;
        evidence = evidence
            .value("address", format!("{ip}/{prefix} on {link}"))
            .value("belongs to", words(owners))
            .value("kernel", format!("local {ip} dev {link}, `ip route get {ip}` shows it"))
            .affects(owners.iter().flat_map(|owner| owner.affects().iter().copied()));
        let (claimed_by, index, step) = match known.claim(*ip) {
            Some(claim) => {
                let ExternalAddress { service, field, .. } = claim;
                let index = if let Field::ExternalIps(index) = field { *index } else { 0 };
                (format!("{}/{} ({field})", service.namespace, service.name), index, release(claim))
            }
            None => ("no Service: it was left behind".to_owned(), 0, delete_address(address)),
        };
        evidence = evidence.value("claimed by", claimed_by);
        steps.push((index, step));
    }
    // Of one Service's list the last goes first, since what follows one that is removed moves up.
    steps.sort_by_key(|(index, _)| Reverse(*index));
    let steps: Vec<Step> = steps.into_iter().map(|(_, step)| step).collect();
    evidence.remedy(steps).value("proxy mode", mode_in_words(&snapshot.proxy_mode()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        facts::{
            Mode, Why,
            healthy::{PEER, gap, ip, seen},
        },
        findings::Subject,
        rules::expectations::{expect_healthy, expect_problem, expect_unknown},
    };

    fn ipvs() -> Snapshot {
        Snapshot::healthy().with_mode(Mode::Ipvs).service("web", |it| it.node_port(30080))
    }

    fn holding(address: &str) -> Snapshot {
        ipvs().address("kube-ipvs0", "10.96.0.10").address("kube-ipvs0", address)
    }

    fn subject() -> Subject {
        Subject::node("n1", None)
    }

    #[test]
    fn a_peers_address_ends_at_home() {
        let evidence = expect_problem(&RULE, &holding(PEER), &subject());
        assert_eq!(evidence.severity, Severity::Critical);
        assert_eq!(
            evidence.summary,
            "kube-ipvs0 holds 192.0.2.9, the InternalIP of Node n2: what this node sends there ends at home."
        );
        assert!(evidence.affects.contains(&Vantage::Remote));
        assert_eq!(evidence.remedies, [Step::command("ip addr del 192.0.2.9/32 dev kube-ipvs0").into()]);
    }

    #[test]
    fn so_does_the_gateway_a_nameserver_and_an_api_server() {
        for (address, whose) in [("192.0.2.254", "the default gateway"), ("198.51.100.53", "a nameserver of this node")]
        {
            let evidence = expect_problem(&RULE, &holding(address), &subject());
            assert!(evidence.summary.contains(whose), "{}", evidence.summary);
        }
        let api = |it: crate::facts::healthy::World| {
            it.each_slice(|slice| slice.endpoints[0].addresses = vec![ip("198.51.100.6")])
        };
        let world = holding("198.51.100.6").service("kubernetes", api);
        assert!(expect_problem(&RULE, &world, &subject()).summary.contains("an API server"));
    }

    #[test]
    fn kube_routers_device_counts_and_a_claiming_service_is_named() {
        let world = ipvs().address("kube-dummy-if", "192.0.2.254").service("trap", |it| it.external_ip("192.0.2.254"));
        let evidence = expect_problem(&RULE, &world, &subject());
        assert!(evidence.values.contains(&("claimed by", "default/trap (externalIP)".to_owned())));
        assert!(evidence.remedies[0].steps[0].text.contains("patch service trap"), "{:?}", evidence.remedies);
    }

    #[test]
    fn several_addresses_are_one_problem() {
        let evidence = expect_problem(&RULE, &holding(PEER).address("kube-ipvs0", "192.0.2.254"), &subject());
        assert!(evidence.summary.contains("192.0.2.9, 192.0.2.254"), "{}", evidence.summary);
        assert_eq!((evidence.remedies.len(), evidence.remedies[0].steps.len()), (1, 2), "both have to go");
    }

    #[test]
    fn cluster_ips_however_important_and_what_the_other_rule_tells_are_silent() {
        let mut world = holding("198.51.100.7");
        seen(&mut world.kernel.nameservers).push(ip("10.96.0.10"));
        expect_healthy(&RULE, &world, &subject());
        expect_healthy(&RULE, &holding(PEER).service("trap", |it| it.external_ip(PEER)), &subject());
        expect_healthy(&RULE, &Snapshot::healthy().address("eth0", PEER), &subject());
        expect_healthy(&RULE, &holding("192.0.2.1"), &subject());
    }

    #[test]
    fn a_nameserver_is_this_clusters_own_where_its_load_balancer_address_answers_dns() {
        let world = |port, external: bool| {
            ipvs().address("kube-ipvs0", "198.51.100.53").service("dns", |it| {
                it.with(|service| {
                    service.ports[0].port = port;
                    let field = if external { &mut service.external_ips } else { &mut service.load_balancer_ips };
                    field.push(ip("198.51.100.53"));
                })
            })
        };
        expect_healthy(&RULE, &world(53, false), &subject());
        expect_problem(&RULE, &world(80, false), &subject());
        expect_problem(&RULE, &world(53, true), &subject());
        let mut gateway = world(53, false);
        Arc::make_mut(seen(&mut gateway.kernel.interfaces)).gateways.push(ip("198.51.100.53"));
        expect_problem(&RULE, &gateway, &subject());
    }

    #[test]
    fn unread_is_unknown() {
        let mut world = holding("198.51.100.7");
        let unread = Gap::new(Source::Addresses, Why::Malformed, "routes");
        Arc::make_mut(seen(&mut world.kernel.interfaces)).gateways_gap = Some(unread.clone());
        assert_eq!(expect_unknown(&RULE, &world, &subject()), unread, "it may be a gateway's");
        let mut world = holding(PEER);
        world.cluster.nodes = gap(Source::Nodes, Why::NotAsked);
        assert_eq!(expect_unknown(&RULE, &world, &subject()).source, Source::Nodes);
        let mut world = holding(PEER);
        world.cluster.services = gap(Source::Services, Why::NotAsked);
        assert_eq!(expect_unknown(&RULE, &world, &subject()).source, Source::Services);
        let mut world = holding("198.51.100.53");
        world.kernel.nameservers = gap(Source::ResolvConf, Why::Malformed);
        assert_eq!(expect_unknown(&RULE, &world, &subject()).source, Source::ResolvConf);
        let mut world = holding("198.51.100.6");
        world.cluster.endpoint_slices = gap(Source::EndpointSlices, Why::NotAsked);
        assert_eq!(expect_unknown(&RULE, &world, &subject()).source, Source::EndpointSlices);
        world.kernel.interfaces = gap(Source::Addresses, Why::Torn);
        assert_eq!(expect_unknown(&RULE, &world, &subject()).source, Source::Addresses);
    }

    #[test]
    fn the_gateway_is_told_even_without_a_cluster() {
        let mut world = holding("192.0.2.254");
        world.cluster.services = gap(Source::Services, Why::NotAsked);
        world.cluster.nodes = gap(Source::Nodes, Why::NotAsked);
        assert_eq!(expect_problem(&RULE, &world, &subject()).severity, Severity::Critical);
    }

    #[test]
    fn health_is_said_of_what_could_be_told_and_only_then() {
        let verdicts = |world: &Snapshot| -> Vec<Verdict> {
            let judgements = check(View { now: world, before: None }, &Limits::default()).expect("the rule can judge");
            judgements.into_iter().map(|it| it.verdict).collect()
        };
        let mut world = holding("10.96.0.10");
        assert_eq!(verdicts(&world), [Verdict::Healthy]);
        world.cluster.nodes = gap(Source::Nodes, Why::Unreachable);
        assert!(matches!(verdicts(&world)[..], [Verdict::Unknown(_)] | [Verdict::Healthy]));
        let foreign = holding(PEER);
        assert!(matches!(verdicts(&foreign)[..], [Verdict::Problem(_)]));
    }
}
