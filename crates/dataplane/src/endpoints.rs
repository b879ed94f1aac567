//! The endpoints that a proxy would use for a Service port.

use std::{collections::HashMap, net::IpAddr};

use super::{
    backing::Backing,
    cilium::{is_of_envoy, serves_here},
    kube_proxy::is_before_1_26,
};
use portreeve_facts::{
    ClusterFacts, Endpoint, EndpointSlice, Family, Gap, Mode, Service, ServicePort, Snapshot, Source, Unread, Why,
};

/// The EndpointSlices, by Service.
pub struct Endpoints<'a> {
    cluster: &'a ClusterFacts,
    by_service: HashMap<(&'a str, &'a str), Vec<&'a EndpointSlice>>,
    node: &'a str,
    unknown_node: Option<&'a Gap>,
    unread_slice: Option<&'a Gap>,
    /// Whether the proxy falls back to terminating endpoints that still serve, if no endpoint is ready. `None` if the
    /// proxy may be an old kube-proxy without this fallback.
    draining: Option<bool>,
    cilium: Option<bool>,
}

impl<'a> Endpoints<'a> {
    /// The endpoints of a snapshot, indexed by Service.
    pub fn of(snapshot: &'a Snapshot) -> Self {
        let cluster = &snapshot.cluster;
        let mut by_service: HashMap<_, Vec<&EndpointSlice>> = HashMap::new();
        for slice in cluster.endpoint_slices.known_part(Unread::Reported("Self::endpoints")) {
            by_service.entry((slice.namespace.as_str(), slice.service.as_str())).or_default().push(slice);
        }
        let cilium = serves_here(snapshot);
        let draining = if cilium == Some(true) { Some(true) } else { is_before_1_26(snapshot).map(|old| !old) };
        let (unknown_node, unread_slice) = (cluster.unknown_node(), cluster.unread_slice());
        Self { cluster, by_service, node: snapshot.node_name(), unknown_node, unread_slice, draining, cilium }
    }

    /// The backing of a Service port in one family.
    ///
    /// # Errors
    ///
    /// Fails if the Service's EndpointSlices were not read. When one slice could not be used, and the other slices have
    /// no ready endpoint. When the node's name is unknown, and the backing depends on which endpoints are on this node.
    pub fn backing(&self, service: &Service, port: &ServicePort, family: Family) -> Result<Backing, Gap> {
        let all = self.endpoints(service, port, family)?;
        let of = |draining| self.backing_of((service, port), &all, draining);
        if let Some(gap) = self.unread_slice.filter(|_| of(false) != Ok(Backing::Ready)) {
            return Err(gap.clone());
        }
        let backing = match self.draining {
            Some(draining) => of(draining)?,
            None if of(true) == of(false) => of(true)?,
            None => return Err(depends(service, OF_VERSION)),
        };
        match self.unknown_node {
            Some(gap) if !matches!(backing, Backing::Ready | Backing::Empty) && all.iter().any(has_node) => {
                Err(gap.clone())
            }
            _ => Ok(backing),
        }
    }

    fn backing_of(
        &self,
        (service, port): (&Service, &ServicePort),
        all: &[(&Endpoint, u16)],
        draining: bool,
    ) -> Result<Backing, Gap> {
        let by_kube_proxy = self.backing_by(service, all, (false, draining));
        let by_cilium = || match self.backing_by(service, all, (true, true)) {
            _ if is_of_envoy(service, port.protocol) => Ok(Backing::Ready),
            // Portreeve does not read the endpoints of other clusters in a mesh.
            Backing::Empty if service.for_cilium.global => Err(GLOBAL),
            backing => Ok(backing),
        };
        match self.cilium {
            Some(false) => Ok(by_kube_proxy),
            Some(true) => by_cilium().map_err(|why| depends(service, why)),
            None => match by_cilium() {
                Ok(backing) if backing == by_kube_proxy => Ok(backing),
                Ok(_) if is_of_envoy(service, port.protocol) => Err(depends(service, OF_ENVOY)),
                Ok(_) => Err(depends(service, OF_NO_NODE)),
                Err(why) => Err(depends(service, why)),
            },
        }
    }

    /// The backing of a Service. If `unnamed` is true, an endpoint without a node is treated as an endpoint of this
    /// node. If `draining` is true and no endpoint is ready, terminating endpoints are used.
    fn backing_by(&self, service: &Service, all: &[(&Endpoint, u16)], (unnamed, draining): (bool, bool)) -> Backing {
        let all = all.iter().copied();
        let is_here = |(it, _): &(&Endpoint, u16)| it.node.as_deref().map_or(unnamed, |node| node == self.node);
        match (usable(all.clone(), draining).is_empty(), usable(all.filter(is_here), draining).is_empty()) {
            (true, _) => Backing::Empty,
            (false, true) => Backing::elsewhere(service.external_local, service.internal_local),
            (false, false) => Backing::Ready,
        }
    }

    /// Every possible backing of a Service port in one family.
    pub fn possible(&self, service: &Service, port: &ServicePort, family: Family) -> Vec<Backing> {
        let elsewhere = Backing::elsewhere(service.external_local, service.internal_local);
        match self.backing(service, port, family) {
            Ok(backing) => vec![backing],
            Err(gap) if Some(&gap) == self.unknown_node => vec![Backing::Ready, elsewhere],
            Err(_) if elsewhere == Backing::Ready => vec![Backing::Ready, Backing::Empty],
            Err(_) => vec![Backing::Ready, Backing::Empty, elsewhere],
        }
    }

    /// [`Self::in_words`] for each family of the Service.
    pub fn each_in_words(&self, service: &Service, port: &ServicePort) -> impl Iterator<Item = String> {
        service.families.iter().map(move |family| format!("{family}: {}", self.in_words(service, port, *family)))
    }

    /// The numbers of endpoints for evidence, for example `2 usable of 3, 1 on this node`.
    pub fn in_words(&self, service: &Service, port: &ServicePort, family: Family) -> String {
        match self.endpoints(service, port, family) {
            Ok(_) if self.cilium == Some(true) && is_of_envoy(service, port.protocol) => {
                "none is needed: Cilium's Envoy answers".to_owned()
            }
            Err(gap) => format!("unknown: {}", gap.detail),
            Ok(all) => {
                let used = self.used(service, &all, self.draining != Some(false));
                let here = match self.unknown_node.filter(|_| used.iter().any(has_node)) {
                    Some(_) => "an unknown number".to_owned(),
                    None => used.iter().filter(|it| self.is_here(it)).count().to_string(),
                };
                let words = format!("{} usable of {}, {here} on this node", used.len(), all.len());
                match self.unread_slice {
                    Some(gap) => format!("{words}, perhaps more: {}", gap.detail),
                    None => words,
                }
            }
        }
    }

    /// Whether a Service port has an endpoint on one of these addresses with the target port `number`.
    ///
    /// # Errors
    /// Fails if endpoints were not read, and the Service may send connections to the port.
    pub fn includes(
        &self,
        service: &Service,
        port: &ServicePort,
        addresses: &[IpAddr],
        number: u16,
    ) -> Result<bool, Gap> {
        let is_one = |it: &IpAddr| addresses.contains(it);
        self.has((service, port), (&Family::BOTH, number), is_one, <[_]>::to_vec)
    }

    /// Like [`Self::includes`], but for one family, and for any address that `is_home` accepts. If
    /// externalTrafficPolicy is Local, endpoints of other nodes are ignored, and for kube-proxy also endpoints without a
    /// nodeName.
    ///
    /// # Errors
    /// Fails if endpoints were not read, and the Service may send connections to the port. When an endpoint may be
    /// local, and this node's name is not known.
    pub(super) fn has_home(
        &self,
        (service, port): (&Service, &ServicePort),
        (family, number): (Family, u16),
        is_home: impl Fn(&IpAddr) -> bool,
    ) -> Result<bool, Gap> {
        if service.external_local {
            self.knows_home((service, port), (family, number), &is_home)?;
        }
        let may_be_here = |it: &(&Endpoint, u16)| match &it.0.node {
            _ if !service.external_local => true,
            None => self.cilium != Some(false),
            Some(_) => self.is_here(it),
        };
        self.has((service, port), (&[family], number), is_home, |all| all.iter().copied().filter(may_be_here).collect())
    }

    /// Like [`Self::has_home`], but counts only endpoints to which the proxy sends a client's connections. `is_outside`
    /// is true if externalTrafficPolicy applies to the client. An endpoint without a nodeName is local for Cilium, but
    /// remote for kube-proxy (kubernetes pkg/proxy/endpointslicecache.go, `isLocal`). In ipvs mode,
    /// externalTrafficPolicy applies to every client. If a Service has no local endpoint, ipvs mode uses all endpoints
    /// (pkg/proxy/ipvs/proxier.go).
    ///
    /// # Errors
    /// Fails if endpoints were not read, and the Service may send connections to the port. When the answer depends on
    /// the proxy's version, and the version is not known. When an endpoint may be local, and this node's name is not
    /// known.
    pub(super) fn sends_to(
        &self,
        (service, port): (&Service, &ServicePort),
        (is_outside, family, mode): (bool, Family, Mode),
        number: u16,
        is_home: impl Fn(&IpAddr) -> bool,
    ) -> Result<bool, Gap> {
        let is_local = match is_outside || mode == Mode::Ipvs {
            true => service.external_local,
            // For the node's own connections to NodePorts and external IPs, kube-proxy uses all endpoints.
            false => service.internal_local && mode == Mode::Cilium,
        };
        if is_local {
            self.knows_home((service, port), (family, number), &is_home)?;
        }
        let is_here = |it: &(&Endpoint, u16)| match &it.0.node {
            None => mode == Mode::Cilium,
            Some(_) => self.is_here(it),
        };
        let sent = |all: &[(&'a Endpoint, u16)], draining: bool| {
            let here = usable(all.iter().copied().filter(is_here), draining);
            match is_local && !(mode == Mode::Ipvs && here.is_empty()) {
                true => here,
                false => usable(all.iter().copied(), draining),
            }
        };
        let of = |draining| self.has((service, port), (&[family], number), &is_home, |all| sent(all, draining));
        match self.draining {
            Some(draining) => of(draining),
            None if of(true) == of(false) => of(true),
            None => Err(depends(service, OF_VERSION)),
        }
    }

    /// Fails if an endpoint with the target port `number` on an address that `is_home` accepts may be local, and this
    /// node's name is not known.
    fn knows_home(
        &self,
        of: (&Service, &ServicePort),
        (family, number): (Family, u16),
        is_home: impl Fn(&IpAddr) -> bool,
    ) -> Result<(), Gap> {
        let Some(gap) = self.unknown_node else { return Ok(()) };
        let named = |all: &[(&'a Endpoint, u16)]| all.iter().copied().filter(has_node).collect::<Vec<_>>();
        match self.has(of, (&[family], number), is_home, named)? {
            true => Err(gap.clone()),
            false => Ok(()),
        }
    }

    /// Whether `counting` returns an endpoint with the target port `number` on an address that `is_home` accepts.
    fn has(
        &self,
        (service, port): (&Service, &ServicePort),
        (families, number): (&[Family], u16),
        is_home: impl Fn(&IpAddr) -> bool,
        counting: impl Fn(&[(&'a Endpoint, u16)]) -> Vec<(&'a Endpoint, u16)>,
    ) -> Result<bool, Gap> {
        let may_be = port.target.is_none_or(|target| target == number);
        if may_be {
            self.cluster.endpoint_slices_with(&service.name)?;
        }
        let all = families.iter().filter_map(|family| self.endpoints(service, port, *family).ok());
        let counted = all.flat_map(|all| counting(&all));
        let mut here = counted.filter(|(_, target)| *target == number).filter_map(|(it, _)| it.addresses.first());
        match (here.any(is_home), self.unread_slice) {
            (false, Some(gap)) if may_be => Err(gap.clone()),
            (is_one, _) => Ok(is_one),
        }
    }

    /// The endpoints that the proxy uses. If a traffic policy is Local, the proxy may also use terminating endpoints
    /// that still serve. The proxy uses such endpoints of this node if no endpoint of this node is ready (kubernetes
    /// pkg/proxy/topology.go).
    fn used<'b>(&self, service: &Service, all: &[(&'b Endpoint, u16)], draining: bool) -> Vec<(&'b Endpoint, u16)> {
        let mut used = usable(all.iter().copied(), draining);
        if service.external_local || service.internal_local {
            let here = usable(all.iter().copied().filter(|it| self.is_here(it)), draining);
            let is_ready = |endpoints: &[(&Endpoint, u16)]| endpoints.first().is_some_and(|(it, _)| it.ready);
            if is_ready(&used) && !is_ready(&here) {
                used.extend(here);
            }
        }
        used
    }

    fn is_here(&self, (endpoint, _): &(&Endpoint, u16)) -> bool {
        endpoint.node.as_deref() == Some(self.node)
    }

    fn endpoints(
        &self,
        service: &Service,
        port: &ServicePort,
        family: Family,
    ) -> Result<Vec<(&'a Endpoint, u16)>, Gap> {
        self.cluster.endpoint_slices_with(&service.name)?;
        let slices = self.by_service.get(&(service.namespace.as_str(), service.name.as_str()));
        let of_family = slices.into_iter().flatten().filter(|slice| slice.family == family);
        let endpoints = of_family.flat_map(|slice| {
            let mut ports = slice.ports.iter();
            let target = ports.find(|it| it.name == port.name && it.protocol == port.protocol);
            slice.endpoints.iter().filter_map(move |endpoint| Some((endpoint, target?.port?)))
        });
        Ok(endpoints.collect())
    }
}

fn usable<'b>(
    endpoints: impl Iterator<Item = (&'b Endpoint, u16)> + Clone,
    draining: bool,
) -> Vec<(&'b Endpoint, u16)> {
    let ready: Vec<_> = endpoints.clone().filter(|(it, _)| it.ready).collect();
    match ready.is_empty() && draining {
        true => endpoints.filter(|(it, _)| it.serving && it.terminating).collect(),
        false => ready,
    }
}

fn has_node((endpoint, _): &(&Endpoint, u16)) -> bool {
    endpoint.node.is_some()
}

const GLOBAL: &str = "is global (service.cilium.io/global): other clusters may have endpoints of this Service";
const OF_ENVOY: &str = "belongs to an Ingress or a Gateway of Cilium, or has service.cilium.io/lb-l7: with Cilium, Envoy answers for this Service";
const OF_NO_NODE: &str = "has an endpoint without a nodeName (only Cilium uses the endpoint), or an endpoint that serves and terminates (an old kube-proxy does not use it)";

const OF_VERSION: &str =
    "has endpoints that serve and terminate: kube-proxy uses such endpoints since 1.26, and its version is not known";

fn depends(service: &Service, why: &str) -> Gap {
    let Service { namespace, name, .. } = service;
    Gap::new(Source::EndpointSlices, Why::Ambiguous, format!("Service {namespace}/{name} {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use portreeve_facts::{
        Mode, Protocol, Reading, Source, Why,
        healthy::{World, objects, seen},
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
            let words = Endpoints::of(&world).in_words(service, &service.ports[0], Family::V4);
            let usable = usize::from(backing == Backing::Ready);
            assert!(words.starts_with(&format!("{usable} usable of 1")), "{version}: {words}");
        }
        // If the kubelet's version is unknown, the proxy may be old.
        objects(&mut world.cluster.nodes)[0].kubelet_version = None;
        assert!(first(&world).expect_err("either").detail.contains("terminate"));
        for newer in [Mode::Cilium, Mode::Nftables] {
            let mut world = world.with_mode(newer);
            seen(&mut world.kernel.proxy.metrics).version = None;
            assert_eq!(first(&world), Ok(Backing::Ready), "{newer}");
        }
    }

    #[test]
    fn a_slice_that_was_not_understood_may_have_endpoints_of_each_service_without_a_ready_one_here() {
        let web = |change: fn(World) -> World| {
            Snapshot::healthy().service("web", |it| change(it.node_port(30080))).rejects(Source::EndpointSlices)
        };
        assert_eq!(first(&web(World::local)), Ok(Backing::Ready), "more endpoints change nothing");
        for change in [World::without_endpoints as fn(World) -> World, |it| it.local().elsewhere()] {
            assert_eq!(first(&web(change)).map_err(|gap| gap.why), Err(Why::Malformed));
        }
        let world = web(World::without_endpoints);
        let (endpoints, service) = (Endpoints::of(&world), &world.cluster.services.seen().expect("services")[0]);
        let words = endpoints.in_words(service, &service.ports[0], Family::V4);
        assert_eq!(words, "0 usable of 0, 0 on this node, perhaps more: test");
        let is_endpoint = |number| endpoints.includes(service, &service.ports[0], &[[192, 0, 2, 1].into()], number);
        assert_eq!(is_endpoint(8080).map_err(|gap| gap.why), Err(Why::Malformed));
        assert_eq!(is_endpoint(30080), Ok(false), "targetPort differs");
    }

    #[test]
    fn without_slices_each_backing_that_the_policies_leave_is_possible() {
        let possible = |change: fn(World) -> World| {
            let mut world = Snapshot::healthy().service("web", |it| change(it.node_port(30080)));
            world.cluster.endpoint_slices = Reading::Gap(Gap::new(Source::EndpointSlices, Why::NotRequested, ""));
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
    fn an_endpoint_without_a_node_is_local_to_none_but_for_cilium_to_each() {
        let nowhere = |it: World| it.node_port(30080).local().each_slice(|slice| slice.endpoints[0].node = None);
        let world = Snapshot::healthy().service("web", nowhere);
        assert_eq!(first(&world), Ok(Backing::Elsewhere));
        let perhaps = world.clone().without_proxy().address("cilium_host", "10.244.0.1");
        assert!(first(&perhaps).expect_err("either").detail.contains("without a nodeName"));
        assert_eq!(first(&world.with_mode(Mode::Cilium)), Ok(Backing::Ready));
    }

    #[test]
    fn envoy_answers_for_a_gateway_of_cilium_without_an_endpoint() {
        let gateway = |it: World| it.node_port(30080).with(|service| service.for_cilium.by_envoy = true);
        let world = Snapshot::healthy().service("web", |it| gateway(it).without_endpoints());
        assert_eq!(first(&world), Ok(Backing::Empty));
        let perhaps = world.clone().without_proxy().address("cilium_host", "10.244.0.1");
        assert!(first(&perhaps).expect_err("either").detail.contains("Envoy"));
        let words = |world: &Snapshot| {
            let service = &world.cluster.services.seen().expect("services")[0];
            Endpoints::of(world).in_words(service, &service.ports[0], Family::V4)
        };
        assert_eq!(words(&world), "0 usable of 0, 0 on this node");
        let behind = world.with_mode(Mode::Cilium);
        assert_eq!(first(&behind), Ok(Backing::Ready));
        assert_eq!(words(&behind), "none is needed: Cilium's Envoy answers");
        let datagrams =
            Snapshot::healthy().service("web", |it| gateway(it).protocol(Protocol::Udp).without_endpoints());
        assert_eq!(first(&datagrams.with_mode(Mode::Cilium)), Ok(Backing::Empty));
    }

    fn first(world: &Snapshot) -> Result<Backing, Gap> {
        let service = &world.cluster.services.seen().expect("services")[0];
        Endpoints::of(world).backing(service, &service.ports[0], Family::V4)
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

    #[test]
    fn without_this_nodes_name_an_endpoint_of_any_node_may_be_here() {
        let web =
            |change: fn(World) -> World| Snapshot::healthy().service("web", |it| change(it.node_port(30080))).unnamed();
        assert_eq!(first(&web(World::local)).map_err(|gap| gap.source), Err(Source::Nodes));
        assert_eq!(first(&web(World::local_inside)).map_err(|gap| gap.source), Err(Source::Nodes));
        assert_eq!(first(&web(|it| it)), Ok(Backing::Ready), "each node sends to all endpoints");
        assert_eq!(first(&web(|it| it.local().without_endpoints())), Ok(Backing::Empty));
        let nowhere = |it: World| it.local().each_slice(|slice| slice.endpoints[0].node = None);
        assert_eq!(first(&web(nowhere)), Ok(Backing::Elsewhere));
        let world = web(World::local);
        let (endpoints, service) = (Endpoints::of(&world), &world.cluster.services.seen().expect("services")[0]);
        let possible = endpoints.possible(service, &service.ports[0], Family::V4);
        assert_eq!(possible, [Backing::Ready, Backing::Elsewhere]);
        let words = endpoints.in_words(service, &service.ports[0], Family::V4);
        assert_eq!(words, "1 usable of 1, an unknown number on this node");
    }

    #[test]
    fn with_a_local_policy_an_endpoint_of_this_node_that_ends_is_used_beside_ready_ones_elsewhere() {
        let words = |change: fn(World) -> World| {
            let world = Snapshot::healthy().service("web", |it| {
                change(it.node_port(30080)).each_slice(|slice| {
                    let there = Endpoint { node: Some("n2".to_owned()), ..slice.endpoints[0].clone() };
                    (slice.endpoints[0].ready, slice.endpoints[0].terminating) = (false, true);
                    slice.endpoints.push(there);
                })
            });
            assert_eq!(first(&world), Ok(Backing::Ready));
            let service = &world.cluster.services.seen().expect("services")[0];
            Endpoints::of(&world).in_words(service, &service.ports[0], Family::V4)
        };
        assert_eq!(words(World::local), "2 usable of 2, 1 on this node");
        assert_eq!(words(|it| it), "1 usable of 2, 0 on this node");
    }
}
