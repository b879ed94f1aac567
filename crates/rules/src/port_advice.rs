//! Advice about one port: its problems, how clients reach it, and how to get a number for another Service.
//!
//! Each piece of advice begins with the case in which it applies, because Portreeve does not know why the user queries
//! the port.

use std::{cmp::Reverse, collections::BTreeSet, net::IpAddr, sync::Arc};

use ipnet::IpNet;

use super::{
    FreePort, Limits, RULES,
    free_ports::Alternatives,
    remedies::{choose_another_health_check_port, endpoints_of, move_service, proxy_pods, set_traffic_policy},
    run_rules,
    wording::{MOST_LISTED, listed},
};
use crate::findings::{Evidence, Remedy, Severity, Step, Subject, Verdict};
use portreeve_dataplane::{
    Answered, Backing, ClaimKind, Endpoints, Outcome, Ownership, is_link_local, served_node_ports, service_port,
};
use portreeve_facts::{Family, Gap, Mode, Pod, Service, ServicePort, Snapshot, Source, Unread, Vantage};

/// The advice for one case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Advice {
    /// The case, as the first half of a sentence.
    pub case: String,
    /// The remedies for this case. Each remedy alone is enough.
    pub remedies: Vec<Remedy>,
}

/// The advice about a port with these owners, problems first. `free` is a number for another Service, with the unread
/// input that may hide a user of the number. `refused` is true if the API server refused the queried number. If
/// `refused` is false, the advice does not move a working Service to another number.
pub fn port_advice(
    snapshot: &Snapshot,
    owned: &[Ownership],
    limits: &Limits,
    (refused, free): (bool, Option<&FreePort>),
) -> Vec<Advice> {
    let Some(port) = owned.first().map(|it| it.port) else { return Vec::new() };
    let mut advice = problems(snapshot, owned, port, limits, |_| true);
    advice.extend(without_pods(snapshot, owned));
    advice.extend(owned.iter().filter_map(|it| without_local_pods(snapshot, it)));
    advice.extend(owned.iter().filter_map(|it| how_to_reach(snapshot, it).or_else(|| served_nowhere(snapshot, it))));
    advice.extend(without_proxy(snapshot, owned));
    let by_service = if refused { how_to_have(snapshot, port, limits, free) } else { a_free_one(snapshot, port, free) };
    advice.extend(by_service.or_else(|| allocated_without_service(snapshot, owned, port, refused, free)));
    advice
}

/// The advice about a port in a pod's own network: its problems.
pub fn pod_port_advice(snapshot: &Snapshot, pod: &Pod, owned: &[Ownership], limits: &Limits) -> Vec<Advice> {
    let (Some(port), subject) = (owned.first().map(|it| it.port), Subject::pod(pod)) else { return Vec::new() };
    problems(snapshot, owned, port, limits, |it| *it == subject)
}

fn problems(
    snapshot: &Snapshot,
    owned: &[Ownership],
    port: u16,
    limits: &Limits,
    is_about: impl Fn(&Subject) -> bool,
) -> Vec<Advice> {
    let round = limits.round(snapshot, None);
    let mut found: Vec<(Severity, Advice)> = Vec::new();
    for opinion in run_rules(RULES, &round, limits) {
        // A rule that cannot judge adds no advice. `check` reports the reason.
        for judgement in opinion.judgements.into_iter().flatten().flatten() {
            let is_requested = judgement.protocol.is_none_or(|protocol| owned.iter().any(|it| it.protocol == protocol));
            let Verdict::Problem(Evidence { severity, variant, summary, remedies, .. }) = judgement.verdict else {
                continue;
            };
            if judgement.port == Some(port) && is_requested && is_about(&judgement.subject) && severity > Severity::Info
            {
                let case = format!("{} ({}/{variant}): {summary}", severity.name(), opinion.rule.name());
                found.push((severity, Advice { case, remedies }));
            }
        }
    }
    found.sort_by_key(|(severity, _)| Reverse(*severity));
    let more = found.len().saturating_sub(MOST_LISTED);
    let more = (more > 0).then(|| Advice { case: format!("and {more} more: `check` lists all"), remedies: vec![] });
    found.into_iter().map(|(_, advice)| advice).take(MOST_LISTED).chain(more).collect()
}

/// The advice if no proxy answered on this node, because the answers of Services assume a proxy.
fn without_proxy(snapshot: &Snapshot, owned: &[Ownership]) -> Option<Advice> {
    let gap = owned.iter().find_map(|it| it.no_proxy.as_ref())?;
    let start = "if your cluster uses kube-proxy as a pod, and no such pod runs on this node, start kube-proxy";
    let mode = "if kube-proxy runs, and answers at another address, type `portreeve owner` with --proxy-mode MODE on this node";
    let named: Option<Remedy> = snapshot.proxy_mode().is_err().then(|| Step::advice(mode).into());
    let case = format!(
        "if the pods get no connections: perhaps kube-proxy does not run on this node, because it does not answer ({})",
        gap.detail
    );
    let find = Remedy::from(proxy_pods(snapshot.node_name())).then(Step::advice(start));
    Some(Advice { case, remedies: [find].into_iter().chain(named).collect() })
}

fn without_pods(snapshot: &Snapshot, owned: &[Ownership]) -> Vec<Advice> {
    let services = snapshot.cluster.services.known_part(Unread::Adds);
    let endpoints = Endpoints::of(snapshot);
    let is_empty = |service: &Service, port: &ServicePort| {
        let backings = service.families.iter().map(|family| endpoints.backing(service, port, *family));
        backings.collect::<Vec<_>>().iter().all(|it| *it == Ok(Backing::Empty))
    };
    let is_requested =
        |port: &ServicePort, number: u16| owned.iter().any(|it| (it.protocol, it.port) == (port.protocol, number));
    let empty = served_node_ports(snapshot, services)
        .filter(|(service, port, number)| is_requested(port, *number) && is_empty(service, port));
    let advice = |(service, port, _): (&Service, &ServicePort, u16)| Advice {
        case: format!("if Service {} has to answer: no pod of the Service is ready", service_port(service, &port.name)),
        remedies: vec![Remedy::from(endpoints_of(service)).then(Step::advice(
            "start a pod that matches the Service's selector, has the port of targetPort, and becomes ready",
        ))],
    };
    empty.take(MOST_LISTED).map(advice).collect()
}

/// The advice about a Service with pods only on other nodes. In ipvs mode, the proxy sends a remote client's connection
/// to a pod on another node. The pod's node sends the answer with the pod's own address (comment in kubernetes
/// pkg/proxy/ipvs/proxier.go, `syncEndpoint`).
fn without_local_pods(snapshot: &Snapshot, owned: &Ownership) -> Option<Advice> {
    let Ownership { protocol, port, claimants, answers, .. } = owned;
    let is_ipvs = snapshot.is_in(Mode::Ipvs);
    let is_lost = |it: &&Answered| (it.from, &it.outcome) == (Vantage::Remote, &Ok(Outcome::TimedOut));
    let by = answers.iter().filter(is_lost).find_map(|it| claimants.get(it.by?))?;
    let services = snapshot.cluster.services.known_part(Unread::Adds);
    let (service, entry, _) = served_node_ports(snapshot, services).find(|(service, it, number)| {
        let is_named = || by.name == format!("Service {}", service_port(service, &it.name));
        (by.claim, it.protocol, number) == (ClaimKind::NodePort, *protocol, port) && is_named()
    })?;
    let name = service_port(service, &entry.name);
    let endpoints = Endpoints::of(snapshot);
    let is_elsewhere = |family: &Family| {
        matches!(endpoints.backing(service, entry, *family), Ok(Backing::Elsewhere | Backing::ElsewhereOutside))
    };
    let why = match is_ipvs {
        true => {
            " here: in ipvs mode a pod of another node gets the connection, and its answer does not come back this way"
        }
        false => " on this node that is ready",
    };
    (service.external_local && (!is_ipvs || service.families.iter().any(is_elsewhere))).then(|| Advice {
        case: format!("if remote clients time out: Service {name} has externalTrafficPolicy Local and no pod{why}"),
        remedies: vec![
            Remedy::from(endpoints_of(service)).then(Step::advice("connect to a node that has one of these pods")),
            set_traffic_policy(service, "Cluster").into(),
        ],
    })
}

/// The advice to connect to an address on which a nodePort answers. The advice also names the addresses on which the
/// nodePort does not answer.
fn how_to_reach(snapshot: &Snapshot, owned: &Ownership) -> Option<Advice> {
    let Ownership { protocol, port, claimants, answers, .. } = owned;
    if claimants.iter().any(|it| matches!(it.claim, ClaimKind::Listener | ClaimKind::Proxy)) {
        return None;
    }
    let node_port = |by: Option<usize>| claimants.get(by?).filter(|it| it.claim == ClaimKind::NodePort);
    let served = answers.iter().filter(|it| (it.from, &it.outcome) == (Vantage::Remote, &Ok(Outcome::Pod)));
    let served: Vec<(IpAddr, &String)> =
        served.into_iter().filter_map(|it| Some((it.to, &node_port(it.by)?.name))).collect();
    let (to, service) = *served.first()?;
    // Only addresses of the family of `to` are listed, because the Service may have one family.
    let nobody = answers.iter().filter(|it| it.by.is_none() && it.outcome == Ok(Outcome::Refused));
    let unserved: BTreeSet<IpAddr> = nobody.map(|it| it.to).filter(|ip| Family::of(*ip) == Family::of(to)).collect();
    let instead = match unserved.is_empty() {
        true => String::new(),
        false => format!(", not of {}", listed(&unserved)),
    };
    let mut remedies = vec![Step::advice(format!("connect to port {port} of {to}{instead}")).into()];
    let served: Vec<IpAddr> = served.into_iter().map(|(ip, _)| ip).collect();
    remedies.extend(served_there(snapshot, &served, &unserved));
    let case = format!(
        "if {port}/{protocol} seems closed: no process has to listen on a NodePort, because the proxy sends connections to {service}"
    );
    Some(Advice { case, remedies })
}

/// The advice if a nodePort answers on no address of this node, because `nodePortAddresses` of kube-proxy has no
/// address of this node.
fn served_nowhere(snapshot: &Snapshot, owned: &Ownership) -> Option<Advice> {
    let Ownership { protocol, port, answers, .. } = owned;
    let config = snapshot.proxy_config().ok().filter(|it| !it.node_port_addresses.is_empty())?;
    let services = snapshot.cluster.services.known_part(Unread::Adds);
    let (service, ..) = served_node_ports(snapshot, services)
        .find(|(_, it, number)| (it.protocol, number) == (*protocol, port))
        .filter(|_| !snapshot.is_in(Mode::Cilium))?;
    let is_of_clients = |it: &&Answered| {
        it.from == Vantage::Remote && service.families.contains(&Family::of(it.to)) && !is_link_local(it.to)
    };
    let is_served = |it: &Answered| it.by.is_some() || it.outcome != Ok(Outcome::Refused);
    let of_clients: Vec<&Answered> = answers.iter().filter(is_of_clients).collect();
    if of_clients.is_empty() || of_clients.iter().copied().any(is_served) {
        return None;
    }
    let unserved: BTreeSet<IpAddr> = of_clients.iter().map(|it| it.to).collect();
    let connect = Step::advice("connect to a node that has an address of the list");
    let case = format!(
        "if {port}/{protocol} refuses connections: nodePortAddresses of kube-proxy has no address of this node: {}",
        config.node_port_addresses.join(", ")
    );
    let remedies = served_there(snapshot, &[], &unserved).into_iter().chain([connect.into()]).collect();
    Some(Advice { case, remedies })
}

/// The remedy that makes kube-proxy serve NodePorts on more addresses. The value of the setting is a list of networks,
/// and replaces the default (kubernetes 1.36 pkg/proxy/apis/config/validation `validateKubeProxyNodePortAddress`).
fn served_there(snapshot: &Snapshot, served: &[IpAddr], unserved: &BTreeSet<IpAddr>) -> Option<Remedy> {
    let beyond: Vec<IpAddr> = unserved.iter().copied().filter(|ip| !ip.is_loopback()).collect();
    let mode = snapshot.proxy_mode().ok().filter(|_| !beyond.is_empty())?;
    let setting = match mode.value {
        Mode::Cilium => "nodeport-addresses of Cilium",
        _ => "nodePortAddresses of kube-proxy",
    };
    let addresses = &snapshot.kernel.interfaces.known(Unread::Adds)?.addresses;
    let network = |ip: &IpAddr| {
        let address = addresses.iter().find(|it| it.ip == *ip)?;
        Some(IpNet::new(address.ip, address.prefix).ok()?.trunc())
    };
    let networks = |of: &[IpAddr]| listed(of.iter().filter_map(network).collect::<BTreeSet<IpNet>>());
    let known = snapshot.proxy_config().ok().map(|config| &config.node_port_addresses);
    let has_networks = known.is_some_and(|it| it.iter().any(|text| text != "primary"));
    let words = match has_networks {
        true => format!("add {} to {setting}", networks(&beyond)),
        false => format!("set {setting} to the networks {}", networks(&[served, &beyond[..]].concat())),
    };
    Some(
        Step::advice(format!(
            "on every node with this setting, {words}, so that the proxy serves NodePorts on these addresses"
        ))
        .into(),
    )
}

fn how_to_have(snapshot: &Snapshot, number: u16, limits: &Limits, free: Option<&FreePort>) -> Option<Advice> {
    let mut services = snapshot.cluster.services.known_part(Unread::Adds).iter().map(Arc::as_ref);
    let service = services.find(|it| has_number(it, number))?;
    // The free number of one node may be in use on another node.
    let alternatives = free.map(|_| Alternatives::of(&limits.round(snapshot, None)));
    let free_number = |port| alternatives.as_ref()?.for_port(service, Some(port));
    let (field, moved) = match service.ports.iter().find(|port| port.node_port == Some(number)) {
        Some(port) => ("nodePort", move_service(free_number(port), service, port)),
        None => ("healthCheckNodePort", choose_another_health_check_port(service)),
    };
    let such_as = such_as(free);
    let name = format!("{}/{}", service.namespace, service.name);
    Some(Advice {
        case: format!("if the API server refuses {number} to a Service: Service {name} has it as {field}"),
        remedies: vec![
            Step::advice(format!("give the refused Service another number{such_as}")).into(),
            moved,
            Step::advice(format!(
                "if Service {name} itself is refused, it exists already: change it instead of creating it"
            ))
            .into(),
        ],
    })
}

/// The advice with a free number for another Service, if the API server refused no number. The advice does not move a
/// working Service to another number.
fn a_free_one(snapshot: &Snapshot, number: u16, free: Option<&FreePort>) -> Option<Advice> {
    let such_as = such_as(Some(free?));
    let services = snapshot.cluster.services.known_part(Unread::Adds);
    services.iter().any(|it| has_number(it, number)).then(|| Advice {
        case: format!(
            "only if kubectl prints \"provided port is already allocated\" for {number}: give the new Service another \
             number{such_as}; `--refused` prints more"
        ),
        remedies: Vec::new(),
    })
}

fn has_number(service: &Service, number: u16) -> bool {
    service.numbers().any(|(its, _)| its == number)
}

/// The words after *another number*: a free number, or the command that prints free numbers. If an input was not read,
/// the words name the input.
fn such_as(free: Option<&FreePort>) -> String {
    match free {
        None => ": `suggest` prints free ones".to_owned(),
        Some(FreePort { number, unread: None }) => format!(", such as {number}"),
        Some(FreePort { number, unread: Some(gap) }) => {
            format!(
                ", such as {number}. No Service has {number}, but {} may have {number} ({})",
                possible_users(gap),
                gap.detail
            )
        }
    }
}

fn possible_users(unread: &Gap) -> &'static str {
    match unread.source {
        Source::Pods | Source::WaitingPods => "a hostPort",
        Source::Listeners => "a process",
        Source::Sysctls => "an outgoing connection",
        _ => "another program",
    }
}

/// The advice if the API server refused the number although no Service has the number: a Service with the number was
/// deleted recently. Every three minutes, the API server checks for numbers without a Service. At the third check, the
/// API server releases the number (Kubernetes pkg/registry/core/service/portallocator/controller/repair.go).
fn allocated_without_service(
    snapshot: &Snapshot,
    owned: &[Ownership],
    number: u16,
    refused: bool,
    free: Option<&FreePort>,
) -> Option<Advice> {
    let services =
        snapshot.cluster.services.known(Unread::Adds).filter(|_| snapshot.cluster.unread_service().is_none())?;
    let in_range = snapshot.cluster.node_port_range.known(Unread::Adds).is_some_and(|it| it.range.contains(number));
    let is_free = owned.iter().all(|it| it.claimants.is_empty());
    let is_requested = in_range && (refused || is_free) && !services.iter().any(|it| has_number(it, number));
    let another = Step::advice(format!("give the Service another number{}", such_as(free)));
    is_requested.then(|| Advice {
        case: format!(
            "if the API server refuses {number} to a Service, as already allocated: no Service has it, so a Service that had it was deleted recently. Try again after ten minutes: by then the API server has released the number"
        ),
        remedies: refused.then(|| another.into()).into_iter().collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use portreeve_dataplane::owner;
    use portreeve_facts::{
        Learned, Protocol, Reading, Why,
        healthy::{World, objects},
    };

    fn advice(world: &Snapshot) -> Vec<Advice> {
        let all = Protocol::ALL
            .into_iter()
            .map(|protocol| owner(&Limits::default().round(world, None), protocol, 30080).expect("it is known"));
        let owned: Vec<Ownership> = all.filter(|it| !it.claimants.is_empty()).collect();
        port_advice(world, &owned, &Limits::default(), (true, Some(&free(None))))
    }

    fn free(unread: Option<Gap>) -> FreePort {
        FreePort { number: 30000, unread }
    }

    fn texts(advice: &Advice) -> Vec<&str> {
        advice.remedies.iter().flat_map(|it| &it.steps).map(|step| step.text.as_str()).collect()
    }

    fn web(change: impl FnOnce(World) -> World) -> Snapshot {
        Snapshot::healthy().service("web", |it| change(it.node_port(30080)))
    }

    fn cases(all: &[Advice]) -> Vec<&str> {
        all.iter().filter_map(|it| it.case.split(':').next()).collect()
    }

    const CLOSED: &str = "if 30080/tcp seems closed";
    const REFUSED: &str = "if the API server refuses 30080 to a Service";

    #[test]
    fn of_a_healthy_node_port_it_says_how_it_is_reached_and_how_to_have_its_number() {
        let all = advice(&web(|it| it));
        assert_eq!(cases(&all), [CLOSED, REFUSED]);
        assert!(all[0].case.ends_with("because the proxy sends connections to Service default/web"));
        assert_eq!(texts(&all[0])[0], "connect to port 30080 of 192.0.2.1");
        let [another, moved, itself] = texts(&all[1])[..] else { panic!("{:?}", all[1]) };
        assert_eq!(another, "give the refused Service another number, such as 30000");
        assert!(moved.starts_with("kubectl -n default patch service web") && moved.contains(r#""value":30000"#));
        assert!(itself.contains("change it instead of creating it"));
    }

    #[test]
    fn nobody_is_told_to_move_a_service_that_works() {
        let world = web(|it| it);
        let owned = owner(&Limits::default().round(&world, None), Protocol::Tcp, 30080).expect("it is known");
        let all = port_advice(&world, &[owned], &Limits::default(), (false, Some(&free(None))));
        assert_eq!(cases(&all), [CLOSED, "only if kubectl prints \"provided port is already allocated\" for 30080"]);
        assert!(all[1].case.contains("such as 30000") && all[1].remedies.is_empty(), "{all:?}");
        assert!(!texts(&all[0]).iter().any(|it| it.contains("kubectl")), "{all:?}");
    }

    #[test]
    fn one_report_gives_each_number_to_one_service() {
        let world = web(|it| it).listens("0.0.0.0:30080").service("dns", |it| it.node_port(30053));
        let owned = owner(&Limits::default().round(&world, None), Protocol::Tcp, 30080).expect("it is known");
        let free = crate::free_port(&world, 30080);
        let all = port_advice(&world, &[owned], &Limits::default(), (true, free.as_ref()));
        let moves: BTreeSet<&str> = all.iter().flat_map(texts).filter(|it| it.contains("patch service web")).collect();
        assert_eq!(moves.len(), 1, "the finding and the refusal give one number: {moves:?}");
        assert!(moves.iter().all(|it| it.contains(r#""value":30000"#)), "{moves:?}");
        let another = all.iter().flat_map(texts).find(|it| it.contains("such as")).expect("a number");
        assert!(another.ends_with("such as 30002"), "{another}");
    }

    #[test]
    fn a_number_that_an_unread_pod_may_have_is_in_words_and_in_no_command() {
        let gap = Gap::new(Source::Pods, Why::NotPermitted, "the input has no Pod");
        let mut world = web(|it| it);
        world.cluster.pods = Reading::Gap(gap.clone());
        let owned = owner(&Limits::default().round(&world, None), Protocol::Tcp, 30080).expect("it is known");
        let unread = free(Some(gap));
        let words = "such as 30000. No Service has 30000, but a hostPort may have 30000 (the input has no Pod)";
        for refused in [false, true] {
            let all = port_advice(&world, std::slice::from_ref(&owned), &Limits::default(), (refused, Some(&unread)));
            let last = all.last().expect("advice about the number");
            let said = format!("{}\n{}", last.case, texts(last).join("\n"));
            assert!(said.contains(words), "{said}");
            assert!(!said.contains("kubectl -n default patch"), "{said}");
        }
    }

    #[test]
    fn a_port_that_nobody_claims_or_a_process_alone_has_needs_nothing() {
        assert_eq!(advice(&Snapshot::healthy()), []);
        let listens = advice(&Snapshot::healthy().listens("192.0.2.1:30080"));
        assert!(cases(&listens).iter().all(|it| it.starts_with(REFUSED)), "{listens:?}");
    }

    #[test]
    fn a_refused_number_that_no_service_has_is_released_by_the_api_server() {
        let of = |world: &Snapshot, refused| {
            let owned = owner(&Limits::default().round(world, None), Protocol::Tcp, 30080).expect("it is known");
            port_advice(world, &[owned], &Limits::default(), (refused, Some(&free(None))))
        };
        let [released] = &of(&Snapshot::healthy(), false)[..] else { panic!("one case") };
        assert!(
            released.case.starts_with("if the API server refuses 30080") && released.case.contains("no Service has it")
        );
        assert_eq!(texts(released), [""; 0]);
        let [refused] = &of(&Snapshot::healthy(), true)[..] else { panic!("one case") };
        assert_eq!(texts(refused), ["give the Service another number, such as 30000"]);
        let listened = Snapshot::healthy().listens("0.0.0.0:30080");
        assert!(!of(&listened, false).iter().any(|it| it.case.contains("no Service has it")), "nobody asked");
        assert!(of(&listened, true).iter().any(|it| it.case.contains("no Service has it")));
        let one_is_rejected = Snapshot::healthy().rejects(Source::Services);
        assert_eq!(of(&one_is_rejected, true), [], "it may have the number");
        assert_eq!(of(&Snapshot::healthy().node_port_range("20000-22767"), true), [], "no Service can have it");
    }

    #[test]
    fn an_address_that_is_not_served_is_told_with_one_that_is() {
        let [closed, _] = &advice(&web(|it| it).with_mode(Mode::Nftables))[..] else { panic!("two cases") };
        let wanted = [
            "connect to port 30080 of 192.0.2.1, not of 127.0.0.1, 192.0.2.2",
            "on every node with this setting, set nodePortAddresses of kube-proxy to the networks 192.0.2.0/24, 2001:db8::/64, so that the proxy serves NodePorts on these addresses",
        ];
        assert_eq!(texts(closed), wanted);
        let mut narrow = web(|it| it);
        if let Reading::Seen(config) = &mut narrow.kernel.proxy.config {
            config.node_port_addresses = vec!["192.0.2.1/32".to_owned()];
        }
        let [closed, _] = &advice(&narrow)[..] else { panic!("two cases") };
        assert!(texts(closed)[1].contains("add 192.0.2.0/24 to nodePortAddresses of kube-proxy"), "{closed:?}");
        let [closed, _] = &advice(&web(|it| it).with_mode(Mode::Cilium))[..] else { panic!("two cases") };
        assert!(texts(closed)[1].contains("set nodeport-addresses of Cilium to the networks"));
    }

    #[test]
    fn a_list_of_addresses_without_this_node_is_the_reason_for_refused_connections() {
        let with = |list: &[&str]| {
            web(|it| it).with_config(|it| it.node_port_addresses = list.iter().map(|it| (*it).to_owned()).collect())
        };
        let all = advice(&with(&["203.0.113.0/24", "2001:db8:9::/64"]));
        assert_eq!(cases(&all), ["if 30080/tcp refuses connections", REFUSED]);
        assert!(all[0].case.ends_with("no address of this node: 203.0.113.0/24, 2001:db8:9::/64"), "{all:?}");
        let [add, connect] = texts(&all[0])[..] else { panic!("{all:?}") };
        assert!(add.contains("add 192.0.2.0/24, 2001:db8::/64 to nodePortAddresses of kube-proxy"), "{add}");
        assert_eq!(connect, "connect to a node that has an address of the list");
        let one_family = advice(&with(&["203.0.113.0/24"]));
        assert_eq!(cases(&one_family), [CLOSED, REFUSED], "the proxy serves IPv6 on all addresses");
    }

    #[test]
    fn if_no_proxy_answers_the_advice_names_the_command_that_finds_kube_proxy() {
        let find = "kubectl -n kube-system get pods --field-selector spec.nodeName=n1";
        let silent = web(|it| it).without_proxy();
        let all = advice(&silent);
        assert_eq!(cases(&all), [CLOSED, "if the pods get no connections", REFUSED]);
        assert_eq!(texts(&all[1])[0], find);
        assert!(texts(&all[1])[2].contains("--proxy-mode MODE"), "{all:?}");
        let unclaimed = advice(&Snapshot::healthy().listens("192.0.2.1:30080").without_proxy());
        assert!(!unclaimed.iter().any(|it| it.case.contains("kube-proxy")), "no Service has the port: {unclaimed:?}");
        let ovn = advice(&silent.clone().address("ovn-k8s-mp0", "10.244.0.2"));
        assert!(!cases(&ovn).contains(&"if the pods get no connections"), "another data plane serves: {ovn:?}");
        let mut cilium = silent;
        cilium.overrides.proxy_mode = Some(Learned { value: Mode::Cilium, place: "--proxy-mode".to_owned() });
        let cilium = advice(&cilium);
        assert!(!cases(&cilium).contains(&"if the pods get no connections"), "{cilium:?}");
    }

    #[test]
    fn a_conflict_comes_first_with_the_remedies_of_its_rule() {
        let all = advice(&web(|it| it).listens("0.0.0.0:30080"));
        assert_eq!(cases(&all), ["critical (listener-on-node-port/loses)", REFUSED], "a process listens");
        assert!(texts(&all[0]).iter().any(|it| it.contains("off port 30080/tcp")), "{all:?}");
        let other = web(|it| it).listens("0.0.0.0:30081").service("other", |it| it.node_port(30081));
        assert_eq!(cases(&advice(&other)), [CLOSED, REFUSED], "what is wrong with another port is not told");
    }

    #[test]
    fn problems_that_are_not_listed_are_counted() {
        let crashing = |world: Snapshot, index: usize| {
            world.pod(&format!("p{index}"), |pod| {
                (pod.host_network, pod.failing, pod.ready) = (true, true, false);
                pod.host_port(30080, 30080);
            })
        };
        let all = advice(&(0..MOST_LISTED + 2).fold(Snapshot::healthy().listens("0.0.0.0:30080"), crashing));
        let more = all.iter().position(|it| it.case.ends_with(" more: `check` lists all"));
        assert_eq!(more, Some(MOST_LISTED), "{all:?}");
    }

    #[test]
    fn of_a_service_without_pods_it_says_where_to_look() {
        let all = advice(&web(World::without_endpoints));
        assert_eq!(cases(&all), ["if Service default/web has to answer", REFUSED]);
        let command = "kubectl -n default get endpointslices -l kubernetes.io/service-name=web";
        assert_eq!(texts(&all[0])[0], command);
        let mut unread = web(World::without_endpoints);
        unread.cluster.endpoints_of = Some(Arc::default());
        assert_eq!(cases(&advice(&unread)), [REFUSED], "it may have pods");
    }

    #[test]
    fn of_a_service_with_pods_on_other_nodes_alone_it_says_where_to_connect() {
        let all = advice(&web(|it| it.local().elsewhere()));
        assert_eq!(cases(&all), ["if remote clients time out", REFUSED]);
        assert!(texts(&all[0])[1].contains("a node that has one of these pods"), "{all:?}");
        assert!(texts(&all[0])[2].contains("Cluster"), "{all:?}");
        assert_eq!(cases(&advice(&web(World::local))), [CLOSED, REFUSED], "it has a pod here");
        let ipvs = advice(&web(|it| it.local().elsewhere()).with_mode(Mode::Ipvs));
        assert!(ipvs[0].case.contains("a pod of another node gets the connection"), "{ipvs:?}");
        let here = advice(&web(World::local).with_mode(Mode::Ipvs));
        assert!(!cases(&here).contains(&"if remote clients time out"), "{here:?}");
    }

    #[test]
    fn the_number_of_a_health_check_has_an_owner_though_nobody_listens() {
        let mut world = web(|it| it);
        let mut services = objects(&mut world.cluster.services);
        let service = &mut services[0];
        (service.ports[0].node_port, service.health_check_node_port) = (Some(30081), Some(30080));
        let owned = owner(&Limits::default().round(&world, None), Protocol::Tcp, 30080).expect("it is known");
        let all = port_advice(&world, &[owned], &Limits::default(), (true, None));
        let refused = all.iter().find(|it| it.case.starts_with(REFUSED)).expect("it has the number");
        assert!(refused.case.ends_with("Service default/web has it as healthCheckNodePort"));
        assert_eq!(texts(refused)[0], "give the refused Service another number: `suggest` prints free ones");
        assert!(texts(refused)[1].contains("externalTrafficPolicy"), "{refused:?}");
    }
}
