//! What annotations of a Service keep off a node that Cilium serves. kube-proxy reads none of them.

use std::net::IpAddr;

use super::{candidate::Candidate, cilium::serves_here, external_address::Field};
use crate::facts::{ForCilium, Gap, Mode, Service, ServiceKind, Snapshot, Source, Why};

/// A part of what a Service has its nodes serve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// Its nodePorts.
    NodePorts,
    /// Its healthCheckNodePort.
    HealthCheck,
    /// An address of this field.
    Address(Field),
}

impl Part {
    /// That of an external address or a load balancer's address of a Service; of its nodePorts without one.
    pub(crate) fn at(service: &Service, address: Option<IpAddr>) -> Self {
        let Some(ip) = address else { return Self::NodePorts };
        let external = service.external_ips.iter().position(|it| *it == ip);
        Self::Address(external.map_or(Field::LoadBalancer, Field::ExternalIps))
    }
}

/// Whether this node serves a part of a Service, as far as annotations decide it.
///
/// # Errors
/// When it is not known: they name some nodes, or it is not known whether Cilium is there.
pub(crate) fn serves(snapshot: &Snapshot, service: &Service, part: Part) -> Result<bool, Gap> {
    match (serves_here(snapshot), by_cilium(service, part)) {
        (Some(false), _) | (_, Some(true)) => Ok(true),
        (Some(true), Some(served)) => Ok(served),
        _ => Err(kept_off(service)),
    }
}

impl Candidate {
    /// The same in a candidate; nothing where it is not known.
    pub(super) fn serves(&self, service: &Service, part: Part) -> Option<bool> {
        if self.mode() == Mode::Cilium { by_cilium(service, part) } else { Some(true) }
    }
}

/// What Cilium makes of it (cilium `pkg/loadbalancer/reflectors/conversions.go`). Its health checks are those of a NodePort or of
/// a load balancer's address (`pkg/loadbalancer/healthserver`).
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
        "Service {namespace}/{name} has an annotation service.cilium.io/type, /node or /node-selector: Cilium serves it on some \
         nodes only, or a part of it"
    );
    Gap::new(Source::Services, Why::Ambiguous, detail)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::healthy::ip;

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
}
