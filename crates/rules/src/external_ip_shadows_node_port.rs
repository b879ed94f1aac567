//! An external address of one Service gets the connections to the NodePort of another Service.

use std::collections::{BTreeSet, HashMap};

use super::{
    Limits, Round, Rule,
    assumed::assuming,
    capped::Capped,
    external_address_claimed_twice::typed_in,
    free_ports::Alternatives,
    ids,
    remedies::{move_service, release},
    wording::service_in_words,
};
use crate::findings::{Affected, Evidence, Judgement, Judgements, Severity, Subject, Vantage, Verdict};
use portreeve_dataplane::{
    Addressed, Assumption, Case, Claim, Contest, ExternalAddress, Judged, LocalAddress, Outcome, Part, service_port,
    vantage_points,
};
use portreeve_facts::{ClaimOf, Family, Gap, Service, ServicePort, Source};

pub(super) static RULE: Rule =
    Rule::of(&ids::EXTERNAL_IP_CONFLICT, &["takes-node-port"], &[Source::Services], check).at_once();

fn check<'a>(round: &Round<'a>, _: &Limits) -> Judgements {
    let (external, node_ports) = (round.external_ports().get()?, round.node_ports().get()?);
    let mut met = node_ports.ports().filter(|(port, _)| !external.at(*port).is_empty()).peekable();
    if met.peek().is_none() {
        return Ok(Vec::new());
    }
    let addressed = round.addressed().get()?;
    let held = |service: &'a Service| -> Vec<(ExternalAddress<'a>, LocalAddress)> {
        let all = ExternalAddress::of(round.now, service).filter(|it| service.families.contains(&Family::of(it.ip)));
        all.filter_map(|claim| Some((claim, *addressed.local(claim.ip)?))).collect()
    };
    // A Service may have many ports and addresses, so the addresses of each Service are computed once.
    let mut known: HashMap<*const Service, Vec<(ExternalAddress<'a>, LocalAddress)>> = HashMap::new();
    let mut takers = |claims: &[(&'a Service, &'a ServicePort)]| -> Vec<Taker<'a>> {
        let mut takers = Vec::new();
        for &(service, port) in claims {
            let held = known.entry(std::ptr::from_ref(service)).or_insert_with(|| held(service));
            takers.extend(held.iter().map(|&(claim, local)| Taker { claim, port, local }));
        }
        takers.sort_by_key(|it| (&it.claim.service.namespace, &it.claim.service.name, it.local.ip));
        takers
    };
    let met = met.map(|(port, services)| (services, takers(external.at(port))));
    let mut met = met.filter(|(_, takers)| !takers.is_empty()).peekable();
    if met.peek().is_none() {
        return Ok(Vec::new());
    }
    let node = Node { round, addressed, alternatives: Alternatives::of(round) };
    let mut capped = Capped::of(round.now, Source::Services);
    for (services, takers) in met {
        for (service, port) in services {
            let others = takers.iter().filter(|taker| !std::ptr::eq(taker.port, *port));
            others.flat_map(|taker| node.judge(service, port, taker)).for_each(|judgement| capped.push(judgement));
        }
    }
    Ok(capped.all())
}

struct Taker<'a> {
    claim: ExternalAddress<'a>,
    port: &'a ServicePort,
    local: LocalAddress,
}

struct Node<'r, 'a> {
    round: &'r Round<'a>,
    addressed: &'r Addressed<'a>,
    alternatives: Alternatives,
}

impl Node<'_, '_> {
    fn judge(&self, service: &Service, port: &ServicePort, taker: &Taker<'_>) -> Vec<Judgement> {
        let claims = [Claim::External(taker.claim, taker.port), Claim::NodePort(service, port)];
        let contest = Contest::of(self.round, self.addressed, (port.protocol, taker.port.port), claims);
        let (judged, stratum) = self
            .addressed
            .over(false, |assumption, case| self.lost(&contest, (assumption, case), (service, port), taker));
        let (certain, gap) = match judged {
            Judged::Never => return Vec::new(),
            Judged::Certain(affected, gap) => (Some(affected), gap),
            Judged::Depends { on, .. } => (None, Some(on)),
        };
        let problem = certain.map(|affected| Verdict::Problem(self.evidence(service, port, taker, &affected)));
        let verdicts = problem.map(|it| assuming(stratum, false, it)).into_iter().chain(gap.map(Verdict::Unknown));
        let place = (port.protocol, taker.port.port);
        verdicts.map(|verdict| Judgement::on_port(Subject::service(service), place, verdict)).collect()
    }

    /// The vantage points from which the NodePort loses connections. `None` if the NodePort is not served on the
    /// address.
    fn lost(
        &self,
        contest: &Contest<'_, '_, '_>,
        (assumption, case): (&Assumption, &mut Case),
        (service, port): (&Service, &ServicePort),
        taker: &Taker<'_>,
    ) -> Result<Option<Affected>, Gap> {
        let Taker { claim, port: taking, local } = taker;
        let (to, family, number) = (*local, Family::of(local.ip), (port.protocol, taking.port));
        if !service.families.contains(&family) || !assumption.captures(to, number.1) {
            return Ok(None);
        }
        let parts = [(service, Part::NodePorts), (claim.service, claim.part())];
        if !parts.iter().all(|part| case.is_served(self.round, assumption, *part)) {
            return Ok(None);
        }
        let taken = case.backing_of(self.round, (claim.service, taking), family);
        let own = case.backing_of(self.round, (service, port), family);
        // The external address is the first claim of the contest.
        let (external, mut affected) = (BTreeSet::from([0]), Affected::new());
        for from in vantage_points(to.ip).iter().copied() {
            let taken = assumption.outcome_of_external_ip((to, port.protocol), from, taken);
            let outcomes = [taken, assumption.outcome((to, number), from, own)];
            if outcomes.contains(&Outcome::Pod) && contest.winners((assumption, &mut *case), (from, to))? == external {
                affected.insert(from);
            }
        }
        Ok(Some(affected))
    }

    fn evidence(&self, service: &Service, port: &ServicePort, taker: &Taker<'_>, affected: &Affected) -> Evidence {
        let family = Family::of(taker.local.ip);
        let loser = service_port(service, &port.name);
        let winner = service_port(taker.claim.service, &taker.port.name);
        let (ip, number, protocol) = (taker.local.ip, taker.port.port, port.protocol);
        let field = taker.claim.field;
        let sentence = match affected.is_empty() {
            false => format!(
                "the {field} of {winner} is {ip} port {number}/{protocol}: on this address, connections to this NodePort of {loser} go to {winner} instead."
            ),
            true => format!(
                "{winner} and {loser} both claim {ip} port {number}/{protocol}: the first Service with its {field}, the second with its NodePort. Only one Service can get the connections."
            ),
        };
        Evidence::new(severity(affected), sentence)
            .affects(affected.iter().copied())
            .value("address", format!("{ip}, of this node"))
            .value("taken by", service_in_words(taker.claim.service))
            .value("its endpoints", self.round.endpoints().in_words(taker.claim.service, taker.port, family))
            .value("taken from", format!("{}, nodePort {number}/{protocol}", service_in_words(service)))
            .value("other addresses", "of this node still lead to the NodePort's Service")
            .value("proxy mode", self.addressed.assumptions.mode_in_words())
            .remedy(move_service(self.alternatives.for_port(service, Some(port)), service, port))
            .remedy(release(&taker.claim))
            .about([ClaimOf::node_port(service, Some(port))])
            .about(typed_in(&taker.claim))
    }
}

fn severity(affected: &Affected) -> Severity {
    if affected.contains(&Vantage::Remote) { Severity::Critical } else { Severity::Warning }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capped::OF_SUBJECT;
    use crate::expectations::{expect_certain, expect_healthy, expect_problem, expect_unknown};
    use portreeve_facts::{
        Claimant, Mode, Protocol, RangeClaim, Reading, ServiceKind, Snapshot, Why,
        healthy::{PEER, PRIMARY, SECOND, World, gap, ip, objects},
    };

    fn world(address: &str, change: impl FnOnce(World) -> World) -> Snapshot {
        Snapshot::healthy()
            .service("loser", |it| it.node_port(30080))
            .service("taker", |it| change(it.external_ip(address).with(|service| service.ports[0].port = 30080)))
    }

    fn loser() -> Subject {
        Subject::service(&world(PRIMARY[0], |it| it).cluster.services.seen().expect("services")[0])
    }

    #[test]
    fn where_an_annotation_has_cilium_serve_a_service_elsewhere_it_is_unknown() {
        let mut narrowed = world(PRIMARY[0], |it| it);
        objects(&mut narrowed.cluster.services)[0].for_cilium.on_some_nodes = true;
        expect_problem(&RULE, &narrowed, &loser());
        let gap = expect_unknown(&RULE, &narrowed.with_mode(Mode::Cilium), &loser());
        assert!(gap.detail.contains("service.cilium.io/type"), "{gap:?}");
    }

    #[test]
    fn the_service_with_the_external_ip_wins_and_the_other_one_is_told() {
        let world = world(PRIMARY[0], |it| it);
        for mode in [Mode::Iptables, Mode::Nftables] {
            let evidence = expect_problem(&RULE, &world.with_mode(mode), &loser());
            assert_eq!(evidence.severity, Severity::Critical, "{mode}");
            assert!(evidence.affects.contains(&Vantage::Remote));
            assert!(evidence.summary.contains("the externalIP of default/taker is 192.0.2.1 port 30080/tcp"));
            assert!(evidence.values.iter().any(|(_, value)| value.contains("default/taker type ClusterIP")));
            assert!(evidence.remedies[0].steps[0].text.contains("patch service loser"), "{:?}", evidence.remedies);
            assert!(evidence.remedies[1].steps[0].text.contains("/spec/externalIPs/0"), "{:?}", evidence.remedies);
            expect_certain(&RULE, &world.with_mode(mode), &loser());
        }
    }

    /// A user cannot hide a loss behind many Services that get no connections.
    #[test]
    fn of_many_takers_the_worst_are_told_and_that_there_are_more() {
        let trap =
            |it: World| it.external_ip(PRIMARY[0]).without_endpoints().with(|service| service.ports[0].port = 30080);
        let many = (0..2 * OF_SUBJECT).fold(Snapshot::healthy(), |world, n| world.service(&format!("a{n}"), trap));
        let many = many.service("loser", |it| it.node_port(30080));
        let taker = |it: World| it.external_ip(PRIMARY[0]).with(|service| service.ports[0].port = 30080);
        assert_eq!(expect_problem(&RULE, &many, &loser()).severity, Severity::Warning);
        let judged = check(&Round::of(&many, None, 60), &Limits::default()).expect("judged");
        assert_eq!(judged.len(), OF_SUBJECT + 1);
        assert!(matches!(&judged[OF_SUBJECT].verdict, Verdict::Unknown(gap) if gap.why == Why::TooMuch));
        assert_eq!(expect_problem(&RULE, &many.service("zzz", taker), &loser()).severity, Severity::Critical);
    }

    #[test]
    fn a_load_balancers_address_takes_as_well() {
        let world = world(PEER, |it| it.with(|service| service.load_balancer_ips = vec![ip(PRIMARY[1])]));
        assert_eq!(expect_problem(&RULE, &world, &loser()).severity, Severity::Critical);
    }

    #[test]
    fn where_either_may_answer_it_is_a_warning() {
        let evidence = expect_problem(&RULE, &world(PRIMARY[0], |it| it).with_mode(Mode::Ipvs), &loser());
        assert_eq!((evidence.severity, evidence.affects.len()), (Severity::Warning, 0));
    }

    #[test]
    fn a_taker_without_endpoints_is_a_trap() {
        let evidence = expect_problem(&RULE, &world(PRIMARY[0], World::without_endpoints), &loser());
        assert_eq!((evidence.severity, evidence.affects.len()), (Severity::Warning, 0));
    }

    #[test]
    fn a_taker_with_endpoints_elsewhere_takes_what_comes_from_the_node() {
        let elsewhere = world(PRIMARY[0], |it| it.local().elsewhere());
        let evidence = expect_problem(&RULE, &elsewhere, &loser());
        assert_eq!(evidence.severity, Severity::Warning);
        assert_eq!(evidence.affects, Affected::from([Vantage::Node, Vantage::Pods]));
        let nftables = expect_problem(&RULE, &elsewhere.with_mode(Mode::Nftables), &loser());
        assert_eq!(nftables.severity, Severity::Critical, "clients elsewhere get no answer");
    }

    #[test]
    fn another_nodes_address_port_protocol_or_family_is_silent() {
        expect_healthy(&RULE, &world(PEER, |it| it), &loser());
        let port = |it: World| it.with(|service| service.ports[0].port = 30081);
        expect_healthy(&RULE, &world(PRIMARY[0], port), &loser());
        expect_healthy(&RULE, &world(PRIMARY[0], |it| it.protocol(Protocol::Udp)), &loser());
        let v6 = |it: World| it.with(|service| service.families = &[Family::V6]);
        expect_healthy(&RULE, &world(PRIMARY[0], v6), &loser());
        let another = |it: World| it.with(|service| service.proxy_name = Some("other".to_owned()));
        expect_healthy(&RULE, &world(PRIMARY[0], another), &loser());
    }

    #[test]
    fn with_settings_that_are_assumed_it_is_a_warning() {
        let said = world(PRIMARY[0], |it| it).with_user_mode(Mode::Nftables);
        let evidence = expect_problem(&RULE, &said, &loser());
        assert_eq!(evidence.severity, Severity::Warning, "a list may leave the address out");
        assert!(evidence.values.iter().any(|(name, _)| *name == "assumed"), "{evidence:?}");
    }

    #[test]
    fn an_address_on_which_the_node_port_is_not_served_is_silent() {
        expect_healthy(&RULE, &world(SECOND[0], |it| it).with_mode(Mode::Nftables), &loser());
    }

    #[test]
    fn behind_cilium_a_node_port_outside_of_its_range_is_not_at_a_second_address() {
        let with = |address: &str, range: &str| {
            let (mut world, by) = (world(address, |it| it).with_mode(Mode::Cilium), Claimant::Cilium);
            let ranges = Reading::Seen(vec![range.parse().expect("a range")]);
            world.cluster.range_claims.push(RangeClaim { by, ranges, place: String::new() });
            world
        };
        expect_problem(&RULE, &with(SECOND[0], "30000-32767"), &loser());
        expect_healthy(&RULE, &with(SECOND[0], "31000-31999"), &loser());
        expect_problem(&RULE, &with(PRIMARY[0], "31000-31999"), &loser());
    }

    #[test]
    fn behind_cilium_what_an_annotation_leaves_out_takes_nothing_and_is_not_taken() {
        let only = |of: &str, kind| {
            let mut world = world(PRIMARY[0], |it| {
                it.local().with(|taker| {
                    (taker.kind, taker.load_balancer_ips) =
                        (ServiceKind::LoadBalancer, std::mem::take(&mut taker.external_ips));
                })
            });
            let mut services = objects(&mut world.cluster.services);
            services.iter_mut().find(|it| it.name == of).expect("one").for_cilium.only = Some(kind);
            world.with_mode(Mode::Cilium)
        };
        expect_problem(&RULE, &only("taker", ServiceKind::LoadBalancer), &loser());
        expect_healthy(&RULE, &only("taker", ServiceKind::ClusterIp), &loser());
        expect_problem(&RULE, &only("loser", ServiceKind::NodePort), &loser());
        expect_healthy(&RULE, &only("loser", ServiceKind::LoadBalancer), &loser());
    }

    #[test]
    fn a_service_does_not_shadow_itself() {
        let own = |it: World| {
            it.node_port(30080).with(|service| {
                service.external_ips = vec![ip(PRIMARY[0])];
                service.ports[0].port = 30080;
            })
        };
        expect_healthy(&RULE, &Snapshot::healthy().service("loser", own), &loser());
    }

    #[test]
    fn unread_is_unknown() {
        let known = world(SECOND[0], |it| it);
        assert_eq!(expect_unknown(&RULE, &known.clone().without_proxy(), &loser()).source, Source::ProxyMode);
        let mut world = known.clone();
        world.cluster.endpoint_slices = gap(Source::EndpointSlices, Why::NotRequested);
        assert_eq!(expect_unknown(&RULE, &world, &loser()).source, Source::EndpointSlices);
        assert_eq!(expect_problem(&RULE, &world, &loser()).severity, Severity::Warning);
        let mut world = known.clone();
        world.kernel.interfaces = gap(Source::Addresses, Why::Torn);
        assert_eq!(expect_unknown(&RULE, &world, &loser()).source, Source::Addresses);
        let mut world = known;
        world.cluster.services = gap(Source::Services, Why::NotPermitted);
        assert_eq!(expect_unknown(&RULE, &world, &loser()).source, Source::Services);
    }
}
