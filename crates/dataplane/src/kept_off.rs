//! Parts of a Service that a node with Cilium perhaps does not serve: annotations exclude a part, or another Service
//! has the same address. kube-proxy serves all parts.

use std::{
    collections::{BTreeMap, HashMap},
    net::IpAddr,
    sync::Arc,
};

use super::{
    cilium::serves_here,
    part::{Field, Part},
    round::Round,
};
use portreeve_facts::{ForCilium, Gap, Protocol, Service, ServiceKind, Snapshot, Source, Unread, Why, if_requested};

/// Whether this node serves a part of a Service, according to the Service's annotations and to other Services.
///
/// # Errors
/// Returns a `Gap` if annotations name only some nodes, if it is unknown whether Cilium runs, or if Cilium may have
/// refused the Service.
pub fn serves(round: &Round<'_>, service: &Service, part: Part) -> Result<bool, Gap> {
    let is_left = is_left(round, service, part)?;
    // If two Services claim an address, the result is true: Cilium serves the address for one of the Services.
    if is_left
        && !matches!(part, Part::Address(_))
        && serves_here(round.now) != Some(false)
        && let Some(rival) = round.rivals().get(&name(service))
    {
        return Err(refused_beside(service, *rival));
    }
    Ok(is_left)
}

/// Whether this node may serve a part of a Service: annotations do not exclude the part, and Cilium serves Services
/// with this `k8s-service-proxy-name`.
///
/// # Errors
/// Returns a `Gap` if annotations name only some nodes, if it is unknown whether Cilium runs, or if
/// `k8s-service-proxy-name` was not read.
pub fn is_left(round: &Round<'_>, service: &Service, part: Part) -> Result<bool, Gap> {
    match (serves_here(round.now), by_cilium(service, part)) {
        (Some(false), _) => Ok(true),
        (Some(true), _) if !round.now.proxy_serves(service) => Ok(false),
        (Some(true), Some(false)) => Ok(false),
        (_, Some(true)) => round.unread_proxy_name().map_or(Ok(true), Err),
        _ => Err(kept_off(service)),
    }
}

/// The reason why it is unknown which `service-proxy-name` label Cilium requires. `None` if no Service has this label:
/// if Cilium required the label, Cilium would serve no Service. `None` also if the user named the mode, because then
/// the default applies: no label.
pub(super) fn unread_proxy_name(snapshot: &Snapshot) -> Option<Gap> {
    let unread = if_requested(snapshot.cluster.proxy_config.get()).err();
    let unread = unread.filter(|_| snapshot.overrides.mode().is_none())?;
    let services = snapshot.cluster.services.known_part(Unread::Reported("whoever has this one"));
    let is_named = |it: &Arc<Service>| it.proxy_name.as_deref().is_some_and(|name| name != Service::OF_NO_PROXY);
    let named = services.iter().find(|it| is_named(it))?;
    let detail = format!(
        "Service {}/{} has the label service.kubernetes.io/service-proxy-name, and it is not known whether Cilium serves only Services with a label: {}",
        named.namespace, named.name, unread.detail
    );
    Some(Gap::new(unread.source, unread.why, detail))
}

type Name<'a> = (&'a str, &'a str);

fn name(service: &Service) -> Name<'_> {
    (&service.namespace, &service.name)
}

/// Services that have an address, port and protocol in common with another Service. The value is the other Service, or
/// `None` if there were too many ports to compare. Cilium serves the earlier Service, and refuses the later Service
/// with all its parts (`pkg/loadbalancer/writer/writer.go`, `validateFrontends`, since 1.18).
pub(super) type Rivals<'a> = HashMap<Name<'a>, Option<&'a Service>>;

pub(super) fn rivals(snapshot: &Snapshot) -> Rivals<'_> {
    let services = snapshot.cluster.services.known_part(Unread::Reported("whoever has this one"));
    let mut by_address: BTreeMap<(IpAddr, Option<&str>), BTreeMap<Name<'_>, &Service>> = BTreeMap::new();
    for service in services.iter().map(Arc::as_ref) {
        for ip in service.external_ips.iter().chain(&service.load_balancer_ips) {
            by_address.entry((*ip, service.proxy_name.as_deref())).or_default().insert(name(service), service);
        }
    }
    let (mut rivals, mut left) = (Rivals::new(), MOST_COMPARED);
    let mut note = |service, rival: Option<_>| {
        let known = rivals.entry(name(service)).or_insert(rival);
        *known = [*known, rival].into_iter().flatten().min_by_key(|it| name(it));
    };
    for sharing in by_address.into_values().filter(|it| it.len() > 1) {
        let Some(fewer) = left.checked_sub(sharing.values().map(|it| it.ports.len()).sum()) else {
            sharing.into_values().for_each(|service| note(service, None));
            continue;
        };
        left = fewer;
        // For each port, the first Service in the order of names. The rival of the first Service is the second Service.
        // The rival of every other Service is the first Service.
        let mut first: HashMap<(u16, Protocol), &Service> = HashMap::new();
        for service in sharing.into_values() {
            for port in &service.ports {
                let first = *first.entry((port.port, port.protocol)).or_insert(service);
                if name(first) != name(service) {
                    note(first, Some(service));
                    note(service, Some(first));
                }
            }
        }
    }
    rivals
}

/// The largest number of ports to compare, over all shared addresses. A user of the cluster can make Services with any
/// number of addresses and ports.
const MOST_COMPARED: usize = 1 << 19;

fn refused_beside(service: &Service, rival: Option<&Service>) -> Gap {
    let title = |it: &Service| format!("{}/{}", it.namespace, it.name);
    let Some(rival) = rival else {
        let detail = format!(
            "too many Services have an address of Service {}, so not all ports were compared: if two have a common port, Cilium serves only the first Service",
            title(service)
        );
        return Gap::new(Source::Services, Why::TooMuch, detail);
    };
    let detail = format!(
        "Services {} and {} have the same address and port: Cilium serves no port of the later Service, not even its NodePorts",
        title(service),
        title(rival)
    );
    Gap::new(Source::Services, Why::Ambiguous, detail)
}

/// Whether Cilium serves this part (cilium `pkg/loadbalancer/reflectors/conversions.go`). Cilium serves health checks
/// if it serves the NodePort or a load balancer's address (`pkg/loadbalancer/healthserver`).
fn by_cilium(service: &Service, part: Part) -> Option<bool> {
    let ForCilium { only, on_some_nodes, .. } = service.for_cilium;
    let is_left = only.is_none_or(|only| match part {
        Part::NodePorts => only == ServiceKind::NodePort,
        Part::HealthCheck if only == ServiceKind::LoadBalancer => !service.load_balancer_ips.is_empty(),
        Part::HealthCheck => only == ServiceKind::NodePort,
        Part::Address(Field::LoadBalancer) => only == ServiceKind::LoadBalancer,
        Part::Address(Field::ClusterIps) => only == ServiceKind::ClusterIp,
        Part::Address(Field::ExternalIps(_)) => true,
    });
    (!(is_left && on_some_nodes)).then_some(is_left)
}

fn kept_off(service: &Service) -> Gap {
    let Service { namespace, name, .. } = service;
    let detail = format!(
        "Service {namespace}/{name} has an annotation service.cilium.io/type, /node or /node-selector: Cilium serves this Service only on some nodes, or only in part"
    );
    Gap::new(Source::Services, Why::Ambiguous, detail)
}

#[cfg(test)]
mod tests {
    use super::*;
    use portreeve_facts::{
        CiliumConfig, Mode, ServicePort,
        healthy::{World, gap, ip, objects},
    };

    fn first_serves(world: &Snapshot, part: Part) -> Result<bool, Gap> {
        serves(&Round::of(world, None, 60), &world.cluster.services.seen().expect("services")[0], part)
    }

    #[test]
    fn behind_cilium_the_type_of_an_annotation_is_served_alone_and_external_ips_always() {
        let parts = [
            Part::NodePorts,
            Part::HealthCheck,
            Part::Address(Field::LoadBalancer),
            Part::Address(Field::ClusterIps),
            Part::Address(Field::ExternalIps(0)),
        ];
        let served = |for_cilium: ForCilium, mode: Option<Mode>| {
            let world = Snapshot::healthy().service("lb", |it| {
                it.node_port(30080).with(|service| {
                    service.for_cilium = for_cilium;
                    service.load_balancer_ips = vec![ip("198.51.100.7")];
                })
            });
            let world = match mode {
                Some(mode) => world.with_mode(mode),
                None => world.without_proxy().address("cilium_host", "10.244.0.1"),
            };
            let service = &world.cluster.services.seen().expect("services")[0];
            let round = Round::of(&world, None, 60);
            parts.map(|part| serves(&round, service, part).ok())
        };
        let only = |kind| ForCilium { only: Some(kind), ..ForCilium::default() };
        let [yes, no, unknown] = [Some(true), Some(false), None];
        for (kind, expected) in [
            (ServiceKind::ClusterIp, [no, no, no, yes, yes]),
            (ServiceKind::NodePort, [yes, yes, no, no, yes]),
            (ServiceKind::LoadBalancer, [no, yes, yes, no, yes]),
        ] {
            assert_eq!(served(only(kind), Some(Mode::Cilium)), expected, "{kind:?}");
            assert_eq!(served(only(kind), Some(Mode::Ipvs)), [yes; 5], "{kind:?}");
            let perhaps = expected.map(|it| if it == no { unknown } else { it });
            assert_eq!(served(only(kind), None), perhaps, "{kind:?}");
        }
        let on_some = ForCilium { on_some_nodes: true, ..ForCilium::default() };
        assert_eq!(served(on_some, Some(Mode::Cilium)), [unknown; 5]);
        assert_eq!(
            served(ForCilium { on_some_nodes: true, ..only(ServiceKind::ClusterIp) }, Some(Mode::Cilium))[0],
            no
        );
        assert_eq!(served(ForCilium::default(), Some(Mode::Cilium)), [yes; 5]);
    }

    #[test]
    fn of_two_services_with_one_address_and_port_cilium_serves_one_with_all_that_it_has() {
        let world = |port: u16| {
            let balanced = |it: World| it.with(|service| service.load_balancer_ips = vec![ip("198.51.100.7")]);
            let other = |it: World| balanced(it).with(|service| service.ports[0].port = port);
            Snapshot::healthy().service("first", |it| balanced(it.node_port(30080))).service("second", other)
        };
        let served = |world: &Snapshot, part| first_serves(world, part);
        let behind = world(80).with_mode(Mode::Cilium);
        let refused = served(&behind, Part::NodePorts).expect_err("either came first");
        assert!(refused.detail.contains("default/first and default/second"), "{refused:?}");
        assert_eq!(served(&behind, Part::Address(Field::LoadBalancer)), Ok(true), "one of them has it");
        assert_eq!(served(&world(80), Part::NodePorts), Ok(true), "kube-proxy serves both");
        assert_eq!(served(&world(443).with_mode(Mode::Cilium), Part::NodePorts), Ok(true), "another port");
    }

    #[test]
    fn the_last_of_many_addresses_and_ports_is_compared_too_and_what_is_not_compared_is_not_known() {
        let many = |it: World, last: u8, ports: u16| {
            it.with(|service| {
                service.load_balancer_ips = (1..100).chain([last]).map(|n| ip(&format!("198.51.{last}.{n}"))).collect();
                service.load_balancer_ips.push(ip("203.0.113.9"));
                let port = service.ports[0].clone();
                service.ports =
                    (0..ports).map(|n| ServicePort { port: u16::from(last) * 4000 + n, ..port.clone() }).collect();
                service.ports.push(ServicePort { port: 443, ..port });
            })
        };
        let world = |last: u8, ports| {
            let first = Snapshot::healthy().service("first", |it| many(it.node_port(30080), 1, ports));
            first.service("second", |it| many(it, last, ports)).with_mode(Mode::Cilium)
        };
        let refused = first_serves(&world(2, 2000), Part::NodePorts).expect_err("either came first");
        assert_eq!(refused.why, Why::Ambiguous, "{refused:?}");
        let mut apart = world(2, 2000);
        objects(&mut apart.cluster.services)[1].ports.pop();
        assert_eq!(first_serves(&apart, Part::NodePorts), Ok(true));
        let mut too_many = world(1, 4000);
        objects(&mut too_many.cluster.services)[1].ports.iter_mut().for_each(|it| it.protocol = Protocol::Udp);
        let refused = first_serves(&too_many, Part::NodePorts).expect_err("not compared");
        assert_eq!(refused.why, Why::TooMuch, "{refused:?}");
    }

    #[test]
    fn with_a_service_proxy_name_cilium_serves_no_service_without_it() {
        let world = |name: Option<&str>| {
            let config = CiliumConfig { proxy_name: name.map(str::to_owned), ..CiliumConfig::default() };
            let world = Snapshot::healthy().service("web", |it| it.node_port(30080)).with_mode(Mode::Cilium);
            let world = world.with_config(|it| it.cilium = Some(config));
            first_serves(&world, Part::NodePorts)
        };
        assert_eq!((world(None), world(Some("cilium"))), (Ok(true), Ok(false)));
    }

    #[test]
    fn without_the_settings_of_cilium_a_label_on_some_service_is_a_doubt_about_all() {
        let served = |label: Option<&str>, why: Why| {
            let other = |it: World| it.with(|service| service.proxy_name = label.map(str::to_owned));
            let world = Snapshot::healthy().service("web", |it| it.node_port(30080)).service("other", other);
            let mut world = world.without_proxy().address("cilium_host", "10.244.0.1");
            world.cluster.proxy_config = gap(Source::ConfigMaps, why);
            first_serves(&world, Part::NodePorts).map_err(|it| it.source)
        };
        assert_eq!(served(Some("cilium"), Why::Unreachable), Err(Source::ConfigMaps));
        assert_eq!(served(Some("cilium"), Why::NotRequested), Ok(true));
        assert_eq!(served(Some(Service::OF_NO_PROXY), Why::Unreachable), Ok(true));
        assert_eq!(served(None, Why::Unreachable), Ok(true));
    }
}
