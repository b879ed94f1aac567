//! Two Services claim one address and port, or a new Service claims an address that is for cluster IPs.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    net::IpAddr,
    sync::Arc,
};

use super::{
    Limits, Round, Rule,
    capped::Capped,
    ids,
    node_ports::if_served,
    remedies::{keep_external_ips_out, release_to},
    wording::{MOST_LISTED, listed, service_in_words},
};
use crate::findings::{Evidence, Judgement, Judgements, Severity, Step, Subject, Vantage, Verdict};
use portreeve_dataplane::{ExternalAddress, Field, each_service, is_left};
use portreeve_facts::{ClaimOf, Mode, Protocol, Service, Snapshot, Source};

pub(super) static RULE: Rule =
    Rule::of(&ids::EXTERNAL_IP_CONFLICT, &["claimed-twice", "cluster-ip"], &[Source::Services], check);

/// The largest number of ports to compare, over all common addresses, cluster IPs first. A user can make Services with
/// any number of addresses and ports.
const MOST_COMPARED: usize = 1 << 19;

type Destination = (IpAddr, u16, Protocol);

fn check(round: &Round<'_>, _: &Limits) -> Judgements {
    let snapshot = round.now;
    let services = snapshot.cluster.services.get()?;
    let mut capped = Capped::of(snapshot, Source::Services);
    let mut left = MOST_COMPARED;
    let mode = snapshot.proxy_mode().ok().map(|mode| mode.value);
    for (ip, claims) in common_addresses(snapshot, services, mode) {
        // Leaves out the address if each of its Services already has the largest number of findings.
        if !claims.iter().any(|claim| capped.takes(&Subject::service(claim.service))) {
            capped.leave_out();
            continue;
        }
        let ports = claims.iter().map(|claim| claim.service.ports.len()).sum();
        let Some(fewer) = left.checked_sub(ports) else {
            capped.leave_out();
            break;
        };
        left = fewer;
        judge(round, ip, &claims, &mut capped);
    }
    judge_cluster_ips(snapshot, services, &mut capped);
    Ok(capped.all())
}

/// Judges Services without a uid, which do not exist in the cluster yet. For existing Services, the rule compares ports
/// instead.
fn judge_cluster_ips(snapshot: &Snapshot, services: &[Arc<Service>], capped: &mut Capped<'_>) {
    let written = || services.iter().filter(|service| service.uid.is_none());
    let claims = || written().flat_map(|service| ExternalAddress::of(snapshot, service)).filter(is_typed);
    if claims().next().is_none() {
        return;
    }
    let mut by_cluster_ip: HashMap<IpAddr, Vec<ExternalAddress<'_>>> = HashMap::new();
    for claim in services.iter().flat_map(|service| ExternalAddress::cluster_ips(snapshot, service)) {
        by_cluster_ip.entry(claim.ip).or_default().push(claim);
    }
    for claim in claims() {
        let others = by_cluster_ip.get(&claim.ip).into_iter().flatten().filter(|other| title(other) != title(&claim));
        if others.clone().any(|other| share_a_port(claim.service, other.service)) {
            continue;
        }
        let network = snapshot.cluster.service_cidrs.iter().find(|network| network.contains(&claim.ip));
        let whose = match (others.clone().next(), network) {
            (Some(ExternalAddress { service: Service { namespace, name, .. }, .. }), _) => {
                format!("the cluster IP of Service {namespace}/{name}")
            }
            (None, Some(network)) => format!("in {network}, from which the API server chooses cluster IPs"),
            (None, None) => continue,
        };
        let Service { namespace, name, .. } = claim.service;
        let summary = format!(
            "external IP {} of Service {namespace}/{name} is {whose}: the Service gets connections that are for other Services.",
            claim.ip
        );
        let load_balancer = format!(
            "change Service {namespace}/{name} to type LoadBalancer: external IPs are deprecated since Kubernetes 1.36"
        );
        let evidence = Evidence::new(Severity::Warning, summary)
            .in_cluster()
            .variant("cluster-ip")
            .about(typed_in(&claim))
            .value("address", format!("{}, {whose}", claim.ip))
            .remedy(release_to(&claim, "an address that no other object has"))
            .remedy(Step::advice(load_balancer));
        capped.push(Judgement::of(Subject::service(claim.service), Verdict::Problem(evidence)));
    }
}

fn share_a_port(one: &Service, other: &Service) -> bool {
    let ports: HashSet<_> = one.ports.iter().map(|port| (port.port, port.protocol)).collect();
    other.ports.iter().any(|port| ports.contains(&(port.port, port.protocol)))
}

/// Each address that several Services claim, with the claims. At least one claim is an external address. Addresses that
/// are also a cluster IP come first.
fn common_addresses<'a>(
    snapshot: &'a Snapshot,
    services: &'a [Arc<Service>],
    mode: Option<Mode>,
) -> Vec<(IpAddr, Vec<ExternalAddress<'a>>)> {
    let all = || services.iter().map(Arc::as_ref);
    let claiming = all().filter(|service| ExternalAddress::of(snapshot, service).next().is_some());
    let mut claims: HashMap<IpAddr, Vec<ExternalAddress<'_>>> = HashMap::new();
    for claim in each_service(claiming).flat_map(|service| ExternalAddress::served(snapshot, service, mode)) {
        claims.entry(claim.ip).or_default().push(claim);
    }
    // Even with tens of thousands of Services, only few share an address.
    let sharing: Vec<_> = all().filter(|it| it.cluster_ips.iter().any(|ip| claims.contains_key(ip))).collect();
    for claim in each_service(sharing.into_iter()).flat_map(|service| ExternalAddress::cluster_ips(snapshot, service)) {
        if let Some(claims) = claims.get_mut(&claim.ip) {
            claims.push(claim);
        }
    }
    claims.retain(|_, claims| claims.iter().any(|claim| title(claim) != title(&claims[0])));
    let mut common: Vec<_> = claims.into_iter().collect();
    let is_cluster_ip = |claims: &[ExternalAddress<'_>]| claims.iter().any(|claim| claim.field == Field::ClusterIps);
    common.sort_by_key(|(ip, claims)| (!is_cluster_ip(claims), *ip));
    common
}

fn judge(round: &Round<'_>, ip: IpAddr, claims: &[ExternalAddress<'_>], capped: &mut Capped<'_>) {
    let mut by_port: BTreeMap<(u16, Protocol), Vec<ExternalAddress<'_>>> = BTreeMap::new();
    for claim in claims {
        for port in &claim.service.ports {
            by_port.entry((port.port, port.protocol)).or_default().push(*claim);
        }
    }
    for ((port, protocol), mut claims) in by_port {
        claims.retain(|it| is_left(round, it.service, it.part()) != Ok(false));
        claims.sort_by_key(title);
        // An invalid Service may have the same port twice.
        claims.dedup_by_key(|claim| title(claim));
        for claim in claims.iter().filter(|_| claims.len() > 1) {
            let subject = Subject::service(claim.service);
            if !capped.takes(&subject) {
                capped.leave_out();
                continue;
            }
            let verdict = Verdict::Problem(evidence((ip, port, protocol), claim, &claims));
            let verdict = claims.iter().fold(verdict, |verdict, it| if_served(round, it.service, it.part(), verdict));
            capped.push(Judgement::on_port(subject, (protocol, port), verdict));
        }
    }
}

fn title<'a>(claim: &ExternalAddress<'a>) -> (&'a str, &'a str) {
    (&claim.service.namespace, &claim.service.name)
}

/// Whether a user wrote the address. The API server or a controller chooses the addresses of all other fields.
fn is_typed(claim: &ExternalAddress<'_>) -> bool {
    matches!(claim.field, Field::ExternalIps(_))
}

pub(super) fn typed_in(claim: &ExternalAddress<'_>) -> Option<ClaimOf> {
    is_typed(claim).then(|| ClaimOf::external_ip(claim.service, claim.ip))
}

fn evidence((ip, port, protocol): Destination, own: &ExternalAddress<'_>, all: &[ExternalAddress<'_>]) -> Evidence {
    let others = || all.iter().filter(|claim| title(claim) != title(own)).take(MOST_LISTED);
    let names = listed(others().map(|claim| format!("{}/{}", claim.service.namespace, claim.service.name)));
    let summary = format!(
        "Service {}/{} has {ip} port {port}/{protocol} as {}, and so has {names}: a connection reaches only one of them.",
        own.service.namespace, own.service.name, own.field
    );
    let words = |claim: &ExternalAddress<'_>| format!("{} ({})", service_in_words(claim.service), claim.field);
    let evidence = Evidence::new(Severity::Warning, summary)
        .in_cluster()
        .affects([Vantage::Remote, Vantage::Node, Vantage::Pods])
        .about(typed_in(own))
        .beside(others().filter_map(typed_in))
        .value("address", format!("{ip} ({})", own.field))
        .value("service", service_in_words(own.service))
        .each("also has it", others().map(words))
        .and_more("also has it", all.len() - 1, MOST_LISTED);
    // If users wrote the address in all these Services, the remedies leave the address to the first Service. So one
    // Service keeps the address, even if users apply the remedies of all findings.
    let typed: Vec<_> = all.iter().filter(|claim| is_typed(claim)).collect();
    let kept = usize::from(typed.len() == all.len());
    let mut released: Vec<_> = typed.into_iter().skip(kept).take(MOST_LISTED).collect();
    if released.is_empty() {
        released.extend(others().next().filter(|_| own.field == Field::ClusterIps).or(Some(own)));
    }
    let patched = released.iter().any(|claim| is_typed(claim) && claim.service.uid.is_some());
    let step = |claim| release_to(claim, "an address or a port that no other Service has");
    let steps = released.into_iter().map(step).chain(patched.then(keep_external_ips_out));
    evidence.remedy(steps.collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        findings::{Scope, StepKind},
        {
            capped::OF_SUBJECT,
            expectations::{expect_healthy, expect_problem, expect_unknown},
        },
    };
    use portreeve_facts::{
        Family, ServiceKind, ServicePort, Why,
        healthy::{World, gap, ip, seen},
    };

    const VIP: &str = "198.51.100.7";

    fn balanced(it: World) -> World {
        it.node_port(30080).with(|service| service.load_balancer_ips = vec![ip(VIP)])
    }

    fn two(second: impl FnOnce(&mut Service)) -> Snapshot {
        Snapshot::healthy().service("first", balanced).service("second", |it| balanced(it).with(second))
    }

    fn subject(name: &str) -> Subject {
        let world = Snapshot::healthy().service(name, |it| it);
        Subject::service(&world.cluster.services.seen().expect("services")[0])
    }

    #[test]
    fn behind_cilium_what_an_annotation_leaves_out_claims_nothing() {
        let world = |change: fn(&mut Service)| two(change).with_mode(Mode::Cilium);
        expect_problem(&RULE, &world(|_| ()), &subject("first"));
        expect_healthy(&RULE, &world(|it| it.for_cilium.only = Some(ServiceKind::ClusterIp)), &subject("first"));
        expect_unknown(&RULE, &world(|it| it.for_cilium.on_some_nodes = true), &subject("first"));
    }

    #[test]
    fn each_of_two_load_balancers_hears_of_the_other() {
        let world = two(|_| ());
        let evidence = expect_problem(&RULE, &world, &subject("first"));
        assert_eq!((evidence.severity, evidence.scope), (Severity::Warning, Scope::Cluster));
        assert_eq!(
            evidence.summary,
            "Service default/first has 198.51.100.7 port 80/tcp as load balancer address, and so has default/second: \
             a connection reaches only one of them."
        );
        assert_eq!(evidence.remedies[0].steps[0].kind, StepKind::Advice);
        assert!(expect_problem(&RULE, &world, &subject("second")).summary.contains("so has default/first:"));
    }

    #[test]
    fn of_three_that_typed_an_address_one_keeps_it_whichever_is_asked() {
        let typed = |it: World| it.external_ip(VIP);
        let world = Snapshot::healthy().service("a", typed).service("b", typed).service("c", typed);
        for name in ["a", "b", "c"] {
            let steps = &expect_problem(&RULE, &world, &subject(name)).remedies[0].steps;
            let of: Vec<bool> =
                ["service a", "service b", "service c"].map(|of| steps.iter().any(|it| it.text.contains(of))).to_vec();
            assert_eq!(of, [false, true, true], "{steps:#?}");
        }
    }

    #[test]
    fn many_common_addresses_are_one_finding_of_a_few() {
        let many: Vec<IpAddr> = (0..200).map(|n| ip(&format!("198.51.100.{n}"))).collect();
        let world = two(|second| second.load_balancer_ips = many.clone());
        let world = world.service("third", |it| it.with(|third| third.load_balancer_ips = many.clone()));
        let judgements = check(&Round::of(&world, None, 60), &Limits::default()).expect("judged");
        assert_eq!(
            judgements.len(),
            1 + 2 * OF_SUBJECT + 1,
            "one of the first, a few of the others, and that there are more"
        );
        let evidence = expect_problem(&RULE, &world, &subject("third"));
        assert!(evidence.values.len() <= 4 * MOST_LISTED, "{evidence:#?}");
    }

    #[test]
    fn of_many_services_with_one_address_the_rest_is_counted() {
        let world =
            (0..MOST_LISTED + 3).fold(Snapshot::healthy(), |world, n| world.service(&format!("s{n}"), balanced));
        let evidence = expect_problem(&RULE, &world, &subject("s0"));
        let mut listed = evidence.values.iter().rev().filter(|(name, _)| *name == "also has it");
        assert_eq!(listed.next().map(|(_, words)| words.as_str()), Some("and 2 more"));
    }

    #[test]
    fn a_second_copy_of_a_service_claims_what_the_first_does_not() {
        let world = Snapshot::healthy().service("first", |it| it).service("first", balanced);
        expect_problem(&RULE, &world.service("second", balanced), &subject("second"));
    }

    fn greedy(it: World, ports: u16) -> World {
        it.with(|service| {
            let port = service.ports[0].clone();
            service.ports = (1..=ports).map(|number| ServicePort { port: number, ..port.clone() }).collect();
            service.external_ips = (0..=255).map(|n| ip(&format!("198.51.100.{n}"))).collect();
        })
    }

    #[test]
    fn of_many_addresses_with_many_ports_a_few_are_told_and_that_there_are_more() {
        let greedy = |it: World| greedy(it, 1024);
        let world = Snapshot::healthy().service("first", greedy).service("second", greedy);
        let judgements = check(&Round::of(&world, None, 60), &Limits::default()).expect("judged");
        assert_eq!(judgements.len(), 2 * OF_SUBJECT + 1);
        assert!(matches!(&judgements[2 * OF_SUBJECT].verdict, Verdict::Unknown(gap) if gap.why == Why::TooMuch));
    }

    /// A Service does not share these addresses, so its ports do not use up the limit of compared ports.
    #[test]
    fn addresses_that_one_service_has_alone_are_compared_with_nothing() {
        let world = Snapshot::healthy().service("first", |it| greedy(it, 3000));
        let judged = check(&Round::of(&world, None, 60), &Limits::default()).expect("judged");
        assert!(judged.is_empty(), "{judged:?}");
    }

    /// An author cannot hide a conflict with the API server's cluster IP behind a second Service.
    #[test]
    fn a_decoy_hides_nothing() {
        let greedy = |it: World| greedy(it, 3000);
        let apart =
            |it: World| greedy(it).with(|service| service.ports.iter_mut().for_each(|port| port.port += 10_000));
        let api = |it: World| it.with(|api| (api.cluster_ips, api.ports[0].port) = (vec![ip("198.51.100.200")], 443));
        let world = Snapshot::healthy().service("decoy", greedy).service("trap", greedy).service("api", api);
        expect_problem(&RULE, &world, &subject("api"));
        // Services without a common port are compared too, up to the limit.
        let world = Snapshot::healthy().service("decoy", apart).service("trap", greedy).service("api", api);
        expect_problem(&RULE, &world, &subject("api"));
        expect_problem(&RULE, &world, &subject("trap"));
        let judged = check(&Round::of(&world, None, 60), &Limits::default()).expect("judged");
        assert!(matches!(&judged.last().expect("some").verdict, Verdict::Unknown(gap) if gap.why == Why::TooMuch));
    }

    #[test]
    fn an_external_ip_against_a_load_balancer_is_taken_back_by_a_command() {
        let world = two(|service| (service.external_ips, service.load_balancer_ips) = (vec![ip(VIP)], Vec::new()));
        let evidence = expect_problem(&RULE, &world, &subject("second"));
        assert!(evidence.summary.contains("as externalIP"), "{}", evidence.summary);
        assert!(evidence.remedies[0].steps[0].text.contains("/spec/externalIPs/0"), "{:?}", evidence.remedies);
        let victim = expect_problem(&RULE, &world, &subject("first"));
        assert!(victim.remedies[0].steps[0].text.contains("patch service second"), "{:?}", victim.remedies);
        assert!(victim.remedies[0].steps[1].text.contains("DenyServiceExternalIPs"), "{:?}", victim.remedies);
        let both = |it: World| it.external_ip(VIP).node_port(30080);
        let typed = Snapshot::healthy().service("first", both).service("second", both);
        for name in ["first", "second"] {
            let own = expect_problem(&RULE, &typed, &subject(name));
            let step = &own.remedies[0].steps[0].text;
            assert!(step.contains("patch service second"), "both were typed, and one is to go: {step}");
        }
    }

    #[test]
    fn another_services_cluster_ip_is_claimed_too() {
        let world = |port| {
            let api = |it: World| it.with(|api| (api.cluster_ips, api.ports[0].port) = (vec![ip(VIP)], 443));
            let trap = |it: World| it.external_ip(VIP).with(|trap| trap.ports[0].port = port);
            Snapshot::healthy().service("api", api).service("trap", trap)
        };
        let evidence = expect_problem(&RULE, &world(443), &subject("api"));
        assert!(evidence.summary.contains("as cluster IP, and so has default/trap:"), "{}", evidence.summary);
        assert!(evidence.remedies[0].steps[0].text.contains("patch service trap"), "{evidence:#?}");
        assert!(expect_problem(&RULE, &world(443), &subject("trap")).summary.contains("so has default/api"));
        for name in ["api", "trap"] {
            expect_healthy(&RULE, &world(80), &subject(name));
        }
        let own = Snapshot::healthy()
            .service("own", |it| it.external_ip(VIP).with(|service| service.cluster_ips = vec![ip(VIP)]));
        expect_healthy(&RULE, &own, &subject("own"));
        let other =
            |it: World| it.with(|api| (api.cluster_ips, api.proxy_name) = (vec![ip(VIP)], Some("x".to_owned())));
        let foreign = Snapshot::healthy().service("first", balanced).service("api", other);
        expect_healthy(&RULE, &foreign, &subject("first"));
    }

    #[test]
    fn an_external_ip_that_is_still_to_be_created_is_no_cluster_ip() {
        let world = |written: bool, port, networks: &[&str]| {
            let api = |it: World| it.with(|api| (api.cluster_ips, api.ports[0].port) = (vec![ip("10.96.0.1")], 443));
            let trap = |it: World| {
                it.external_ip("10.96.0.1").with(|trap| {
                    trap.ports[0].port = port;
                    trap.uid = trap.uid.take().filter(|_| !written);
                })
            };
            let mut world = Snapshot::healthy().service("api", api).service("trap", trap);
            world.cluster.service_cidrs = networks.iter().map(|it| it.parse().expect("a network")).collect();
            world
        };
        let evidence = expect_problem(&RULE, &world(true, 80, &[]), &subject("trap"));
        assert_eq!((evidence.severity, evidence.variant), (Severity::Warning, "cluster-ip"));
        assert_eq!(
            evidence.summary,
            "external IP 10.96.0.1 of Service default/trap is the cluster IP of Service default/api: the Service gets connections that are for other Services."
        );
        expect_healthy(&RULE, &world(true, 80, &[]), &subject("api"));
        assert_eq!(expect_problem(&RULE, &world(true, 443, &[]), &subject("trap")).variant, "claimed-twice");
        expect_healthy(&RULE, &world(false, 80, &["10.96.0.0/12"]), &subject("trap"));
        let alone = |network| {
            let mut world = world(true, 80, &[network]);
            seen(&mut world.cluster.services).remove(0);
            world
        };
        let evidence = expect_problem(&RULE, &alone("10.96.0.0/12"), &subject("trap"));
        assert!(
            evidence.summary.contains("in 10.96.0.0/12, from which the API server chooses"),
            "{}",
            evidence.summary
        );
        expect_healthy(&RULE, &alone("10.112.0.0/12"), &subject("trap"));
    }

    #[test]
    fn a_shared_address_with_another_port_or_protocol_and_another_address_are_silent() {
        let changes: [fn(&mut Service); 5] = [
            |service| service.families = &[Family::V6],
            |service| service.ports[0].port = 81,
            |service| service.ports[0].protocol = Protocol::Udp,
            |service| service.load_balancer_ips = vec![ip("198.51.100.8")],
            |service| service.proxy_name = Some("other".to_owned()),
        ];
        for change in changes {
            for name in ["first", "second"] {
                expect_healthy(&RULE, &two(change), &subject(name));
            }
        }
    }

    #[test]
    fn one_service_that_names_an_address_twice_or_is_there_twice_is_silent() {
        let mut world = Snapshot::healthy()
            .service("first", |it| balanced(it).with(|service| service.external_ips = vec![ip(VIP)]));
        expect_healthy(&RULE, &world, &subject("first"));
        let services = seen(&mut world.cluster.services);
        services.push(services[0].clone());
        expect_healthy(&RULE, &world, &subject("first"));
        let far = two(|service| service.namespace = "shop".to_owned());
        expect_problem(&RULE, &far, &subject("first"));
    }

    #[test]
    fn unread_is_unknown() {
        let mut world = two(|_| ());
        world.cluster.services = gap(Source::Services, Why::NotPermitted);
        assert_eq!(expect_unknown(&RULE, &world, &subject("first")).source, Source::Services);
    }
}
