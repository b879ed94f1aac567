//! Which endpoints a proxy would use for a Service port.

use std::{collections::HashMap, net::IpAddr};

use super::{backing::Backing, cilium::may_serve, kube_proxy::is_before_1_26};
use crate::facts::{ClusterFacts, Endpoint, EndpointSlice, Family, Gap, Service, ServicePort, Snapshot, Source, Why};

/// The EndpointSlices by Service.
pub(crate) struct Endpoints<'a> {
    cluster: &'a ClusterFacts,
    by_service: HashMap<(&'a str, &'a str), Vec<&'a EndpointSlice>>,
    node: &'a str,
    /// Whether those that still serve while they terminate stand in for ready ones.
    draining: bool,
    /// Whether endpoints of other clusters may count: Cilium knows them.
    beyond: bool,
}

impl<'a> Endpoints<'a> {
    /// Of a snapshot, once a rule.
    pub(crate) fn of(snapshot: &'a Snapshot) -> Self {
        let cluster = &snapshot.cluster;
        let mut by_service: HashMap<_, Vec<&EndpointSlice>> = HashMap::new();
        for slice in cluster.endpoint_slices.seen().into_iter().flatten() {
            by_service.entry((slice.namespace.as_str(), slice.service.as_str())).or_default().push(slice);
        }
        Self {
            cluster,
            by_service,
            node: snapshot.node_name(),
            draining: !is_before_1_26(snapshot),
            beyond: may_serve(snapshot),
        }
    }

    /// What is behind a Service port in one family.
    ///
    /// # Errors
    /// When its EndpointSlices were not read: unknown is not zero.
    pub(crate) fn backing(&self, service: &Service, port: &ServicePort, family: Family) -> Result<Backing, Gap> {
        let all = self.endpoints(service, port, family)?;
        let usable = self.usable(all.iter().map(|(endpoint, _)| *endpoint));
        if usable.is_empty() {
            return if service.for_cilium.global && self.beyond {
                Err(of_other_clusters(service))
            } else {
                Ok(Backing::Empty)
            };
        }
        let here = all.iter().map(|(endpoint, _)| *endpoint).filter(|it| it.node.as_deref() == Some(self.node));
        match self.usable(here).is_empty() {
            true => Ok(Backing::elsewhere(service.external_local, service.internal_local)),
            false => Ok(Backing::Ready),
        }
    }

    /// The same as every value that it may have.
    pub(crate) fn possible(&self, service: &Service, port: &ServicePort, family: Family) -> Vec<Backing> {
        match self.backing(service, port, family) {
            Ok(backing) => vec![backing],
            Err(_) => {
                let elsewhere = Backing::elsewhere(service.external_local, service.internal_local);
                let possible = [Backing::Ready, Backing::Empty, elsewhere].into_iter();
                possible.take(if elsewhere == Backing::Ready { 2 } else { 3 }).collect()
            }
        }
    }

    /// `2 usable, 1 on this node`, for evidence.
    pub(crate) fn in_words(&self, service: &Service, port: &ServicePort, family: Family) -> String {
        match self.endpoints(service, port, family) {
            Err(gap) => format!("unknown: {}", gap.detail),
            Ok(all) => {
                let usable = self.usable(all.iter().map(|(endpoint, _)| *endpoint));
                let here = usable.iter().filter(|it| it.node.as_deref() == Some(self.node)).count();
                format!("{} usable of {}, {here} on this node", usable.len(), all.len())
            }
        }
    }

    /// Whether an endpoint of the Service port is at exactly this address and port.
    pub(crate) fn includes(&self, service: &Service, port: &ServicePort, addresses: &[IpAddr], number: u16) -> bool {
        Family::BOTH.into_iter().filter_map(|family| self.endpoints(service, port, family).ok()).flatten().any(
            |(endpoint, target)| {
                target == number && endpoint.addresses.first().is_some_and(|address| addresses.contains(address))
            },
        )
    }

    /// Each endpoint of a Service port with its target port.
    fn endpoints(
        &self,
        service: &Service,
        port: &ServicePort,
        family: Family,
    ) -> Result<Vec<(&'a Endpoint, u16)>, Gap> {
        self.cluster.endpoint_slices_with(&service.name)?;
        let slices = self.by_service.get(&(service.namespace.as_str(), service.name.as_str()));
        Ok(slices
            .into_iter()
            .flatten()
            .filter(|slice| slice.family == family)
            .flat_map(|slice| {
                let target = slice
                    .ports
                    .iter()
                    .find(|it| it.name == port.name && it.protocol == port.protocol)
                    .and_then(|it| it.port);
                slice.endpoints.iter().filter_map(move |endpoint| Some((endpoint, target?)))
            })
            .collect())
    }

    /// Ready ones; only if there is none, those that still serve while terminating.
    fn usable<'b>(&self, endpoints: impl Iterator<Item = &'b Endpoint> + Clone) -> Vec<&'b Endpoint> {
        let ready: Vec<_> = endpoints.clone().filter(|it| it.ready).collect();
        if ready.is_empty() && self.draining {
            endpoints.filter(|it| it.serving && it.terminating).collect()
        } else {
            ready
        }
    }
}

/// What a mesh of clusters has is not read.
fn of_other_clusters(service: &Service) -> Gap {
    let Service { namespace, name, .. } = service;
    let detail = format!(
        "Service {namespace}/{name} is global (service.cilium.io/global): other clusters may have endpoints of it"
    );
    Gap::new(Source::EndpointSlices, Why::Ambiguous, detail)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::{
        Mode, Reading, Source, Why,
        healthy::{World, seen},
    };

    fn backing(change: impl FnOnce(World) -> World) -> Backing {
        let world = Snapshot::healthy().service("web", |it| change(it.node_port(30080)));
        let service = &world.cluster.services.seen().expect("services")[0];
        Endpoints::of(&world).backing(service, &service.ports[0], Family::V4).expect("endpoints are known")
    }

    #[test]
    fn backing_follows_readiness_and_the_traffic_policy() {
        assert_eq!(backing(|it| it), Backing::Ready);
        assert_eq!(backing(World::without_endpoints), Backing::Empty);
        assert_eq!(backing(|it| it.local().elsewhere()), Backing::Elsewhere);
        assert_eq!(backing(World::elsewhere), Backing::Ready);
        assert_eq!(backing(|it| it.local().without_endpoints()), Backing::Empty);
        assert_eq!(backing(World::local_inside), Backing::Ready);
        assert_eq!(backing(|it| it.local_inside().elsewhere()), Backing::ReadyOutside);
        assert_eq!(backing(|it| it.local().local_inside().elsewhere()), Backing::ElsewhereOutside);
        assert_eq!(backing(|it| it.local_inside().without_endpoints()), Backing::Empty);
    }

    #[test]
    fn terminating_endpoints_count_only_while_they_serve_and_none_is_ready() {
        let unready = |serving, terminating| {
            backing(|it| {
                it.each_slice(|slice| {
                    for endpoint in &mut slice.endpoints {
                        (endpoint.ready, endpoint.serving, endpoint.terminating) = (false, serving, terminating);
                    }
                })
            })
        };
        assert_eq!(unready(true, true), Backing::Ready);
        assert_eq!(unready(true, false), Backing::Empty);
        assert_eq!(unready(false, true), Backing::Empty);
    }

    #[test]
    fn an_old_proxy_sends_nothing_to_endpoints_that_terminate() {
        let mut world = Snapshot::healthy().service("web", |it| {
            it.node_port(30080).each_slice(|slice| {
                let endpoint = &mut slice.endpoints[0];
                (endpoint.ready, endpoint.serving, endpoint.terminating) = (false, true, true);
            })
        });
        for (version, backing) in [("v1.25.16", Backing::Empty), ("v1.26.0", Backing::Ready), ("?", Backing::Ready)] {
            seen(&mut world.kernel.proxy.metrics).version = Some(version.to_owned());
            let service = &world.cluster.services.seen().expect("services")[0];
            let found = Endpoints::of(&world).backing(service, &service.ports[0], Family::V4);
            assert_eq!(found.expect("endpoints are known"), backing, "{version}");
        }
    }

    #[test]
    fn without_slices_each_backing_that_the_policies_leave_is_possible() {
        let possible = |change: fn(World) -> World| {
            let mut world = Snapshot::healthy().service("web", |it| change(it.node_port(30080)));
            world.cluster.endpoint_slices = Reading::Gap(Gap::new(Source::EndpointSlices, Why::NotAsked, ""));
            let service = &world.cluster.services.seen().expect("services")[0];
            Endpoints::of(&world).possible(service, &service.ports[0], Family::V4)
        };
        assert_eq!(possible(|it| it), [Backing::Ready, Backing::Empty]);
        for (elsewhere, change) in [
            (Backing::Elsewhere, World::local as fn(World) -> World),
            (Backing::ReadyOutside, World::local_inside),
            (Backing::ElsewhereOutside, |it| it.local().local_inside()),
        ] {
            assert_eq!(possible(change), [Backing::Ready, Backing::Empty, elsewhere]);
        }
    }

    #[test]
    fn behind_cilium_other_clusters_may_have_endpoints_of_a_global_service() {
        let global = |it: World| it.node_port(30080).with(|service| service.for_cilium.global = true);
        let backing = |change: fn(World) -> World, mode: Mode| {
            let world = Snapshot::healthy().service("web", |it| change(global(it))).with_mode(mode);
            let service = &world.cluster.services.seen().expect("services")[0];
            Endpoints::of(&world).backing(service, &service.ports[0], Family::V4).map_err(|gap| gap.why)
        };
        assert_eq!(backing(World::without_endpoints, Mode::Cilium), Err(Why::Ambiguous));
        assert_eq!(backing(World::without_endpoints, Mode::Iptables), Ok(Backing::Empty));
        assert_eq!(backing(|it| it, Mode::Cilium), Ok(Backing::Ready));
    }

    #[test]
    fn an_endpoint_without_a_node_is_local_to_none() {
        let nowhere = |it: World| it.local().each_slice(|slice| slice.endpoints[0].node = None);
        assert_eq!(backing(nowhere), Backing::Elsewhere);
    }

    #[test]
    fn words_count_what_is_usable_and_here() {
        let world = Snapshot::healthy().service("web", |it| {
            it.node_port(30080).elsewhere().each_slice(|slice| {
                let here = Endpoint { node: Some("n1".to_owned()), ..slice.endpoints[0].clone() };
                let gone = Endpoint { ready: false, serving: false, ..here.clone() };
                slice.endpoints.extend([slice.endpoints[0].clone(), here, gone]);
            })
        });
        let service = &world.cluster.services.seen().expect("services")[0];
        let words = Endpoints::of(&world).in_words(service, &service.ports[0], Family::V4);
        assert_eq!(words, "3 usable of 4, 1 on this node");
    }
}
