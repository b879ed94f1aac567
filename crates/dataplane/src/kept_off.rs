//! Parts of a Service that a node with Cilium possibly does not serve: annotations exclude parts, and another Service may have the
//! address.
//! kube-proxy knows neither reason.

use std::{net::IpAddr, sync::Arc};

use super::{
    cilium::serves_here,
    part::{Field, Part},
};
use portreeve_facts::{ForCilium, Gap, Service, ServiceKind, Snapshot, Source, Unread, Why};

/// Whether this node serves a part of a Service, according to its annotations and other Services.
///
/// # Errors
/// When the answer is not known: annotations name some nodes, Cilium may or may not run, or Cilium may have refused the Service.
pub fn serves(snapshot: &Snapshot, service: &Service, part: Part) -> Result<bool, Gap> {
    if !is_left(snapshot, service, part)? {
        return Ok(false);
    }
    let refused = || rival(snapshot, service).filter(|_| serves_here(snapshot) != Some(false));
    match part {
        Part::NodePorts | Part::HealthCheck => refused().map_or(Ok(true), |rival| Err(refused_beside(service, rival))),
        // If both Services claim one address, one of them has it.
        Part::Address(_) => Ok(true),
    }
}

/// Whether annotations let this node serve a part of a Service, and Cilium serves such Services (`k8s-service-proxy-name`).
///
/// # Errors
/// When annotations name some nodes, or Cilium may or may not run.
pub fn is_left(snapshot: &Snapshot, service: &Service, part: Part) -> Result<bool, Gap> {
    match (serves_here(snapshot), by_cilium(service, part)) {
        (Some(false), _) => Ok(true),
        (Some(true), _) if !snapshot.proxy_serves(service) => Ok(false),
        (_, Some(true)) => Ok(true),
        (Some(true), Some(served)) => Ok(served),
        _ => Err(kept_off(service)),
    }
}

/// Another Service with an address, a port and a protocol of this one. Cilium serves the first of the two, and no part of
/// the second, not even its NodePorts (`pkg/loadbalancer/writer/writer.go`, `validateFrontends`, since 1.18).
fn rival<'a>(snapshot: &'a Snapshot, service: &Service) -> Option<&'a Service> {
    let addresses =
        |it: &Service| it.external_ips.iter().chain(&it.load_balancer_ips).copied().take(MOST_COMPARED).collect();
    let own: Vec<IpAddr> = addresses(service);
    if own.is_empty() {
        return None;
    }
    let mut others =
        snapshot.cluster.services.known_part(Unread::Reported("whoever has this one")).iter().map(Arc::as_ref);
    let is_other = |it: &Service| (&it.namespace, &it.name) != (&service.namespace, &service.name);
    let shares = |it: &Service| {
        let theirs: Vec<IpAddr> = addresses(it);
        let mut ports = it.ports.iter().take(MOST_COMPARED);
        theirs.iter().any(|ip| own.contains(ip))
            && ports.any(|its| service.ports.iter().any(|port| (port.port, port.protocol) == (its.port, its.protocol)))
    };
    others.find(|it| is_other(it) && it.proxy_name == service.proxy_name && shares(it))
}

/// The author of a Service chooses its number of addresses and ports.
const MOST_COMPARED: usize = 16;

fn refused_beside(service: &Service, rival: &Service) -> Gap {
    let title = |it: &Service| format!("{}/{}", it.namespace, it.name);
    let detail = format!(
        "Services {} and {} have the same address and port: Cilium serves no port of the later Service, not even its NodePorts",
        title(service),
        title(rival)
    );
    Gap::new(Source::Services, Why::Ambiguous, detail)
}

/// Whether Cilium serves this part (cilium `pkg/loadbalancer/reflectors/conversions.go`). It serves health checks for a
/// NodePort or a load balancer's address (`pkg/loadbalancer/healthserver`).
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
        CiliumConfig, Mode,
        healthy::{World, ip},
    };

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
            parts.map(|part| serves(&world, service, part).ok())
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
        let served = |world: &Snapshot, part| serves(world, &world.cluster.services.seen().expect("services")[0], part);
        let behind = world(80).with_mode(Mode::Cilium);
        let refused = served(&behind, Part::NodePorts).expect_err("either came first");
        assert!(refused.detail.contains("default/first and default/second"), "{refused:?}");
        assert_eq!(served(&behind, Part::Address(Field::LoadBalancer)), Ok(true), "one of them has it");
        assert_eq!(served(&world(80), Part::NodePorts), Ok(true), "kube-proxy serves both");
        assert_eq!(served(&world(443).with_mode(Mode::Cilium), Part::NodePorts), Ok(true), "another port");
    }

    #[test]
    fn with_a_service_proxy_name_cilium_serves_no_service_without_it() {
        let world = |name: Option<&str>| {
            let config = CiliumConfig { proxy_name: name.map(str::to_owned), ..CiliumConfig::default() };
            let world = Snapshot::healthy().service("web", |it| it.node_port(30080)).with_mode(Mode::Cilium);
            let world = world.with_config(|it| it.cilium = Some(config));
            serves(&world, &world.cluster.services.seen().expect("services")[0], Part::NodePorts)
        };
        assert_eq!((world(None), world(Some("cilium"))), (Ok(true), Ok(false)));
    }
}
