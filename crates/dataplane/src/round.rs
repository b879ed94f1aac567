//! The input of every judgement of one snapshot. Each part is made once, at its first use.

use std::{
    cell::{OnceCell, RefCell},
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use super::{
    assumptions::Assumptions,
    by_port::{ByPort, Port, by_port},
    claim::{Claim, ClaimKind},
    contest::{Behind, MOST_SERVICES},
    endpoints::Endpoints,
    external_address::ExternalAddress,
    kept_off::{Rivals, rivals, serves, unread_proxy_name},
    local_address::{LocalAddress, local_addresses},
    need::Needs,
    part::Field,
    proxy_sockets::Proxy,
    redirections::{Redirections, listed},
    served::{each_service, host_ports, served_node_ports},
};
use portreeve_facts::{
    ContainerPort, Gap, Interfaces, Pod, Reading, Service, ServicePort, Snapshot, Socket, Unread, Why,
};

/// One round: this snapshot, the previous snapshot if there is one, and the facts that rules and `owner` derive from
/// these snapshots.
pub struct Round<'a> {
    /// The snapshot of this round.
    pub now: &'a Snapshot,
    /// The snapshot of the previous round. `None` for `check`, which takes one snapshot.
    pub before: Option<&'a Snapshot>,
    /// A proxy is behind if a queued change was not applied for this many seconds.
    lag_seconds: i64,
    /// The answers of [`Self::is_behind`] for one group of equal sockets. The answers for the next group replace these
    /// answers.
    pub(super) behind: RefCell<Behind<'a>>,
    derived: Derived<'a>,
}

#[derive(Default)]
struct Derived<'a> {
    listeners: OnceCell<ByPort<&'a Socket>>,
    node_ports: OnceCell<ByPort<(&'a Service, &'a ServicePort)>>,
    external_ports: OnceCell<ByPort<(&'a Service, &'a ServicePort)>>,
    not_served: OnceCell<ByPort<(ClaimKind, &'a Service)>>,
    balanced: OnceCell<BTreeSet<IpAddr>>,
    host_ports: OnceCell<ByPort<(&'a Pod, &'a ContainerPort)>>,
    addressed: OnceCell<Addressed<'a>>,
    endpoints: OnceCell<Endpoints<'a>>,
    proxy: OnceCell<Proxy<'a>>,
    allocated: OnceCell<ByPort<Allocated<'a>, u16>>,
    needs: OnceCell<Needs<'a>>,
    redirections: OnceCell<Result<Redirections<'a>, Gap>>,
    rivals: OnceCell<Rivals<'a>>,
    unread_proxy_name: OnceCell<Option<Gap>>,
}

/// A fact that [`Round`] derives from an input, or the reason why the input was not read. Like [`Reading`], `Fact` has no
/// function that turns an unread fact into an empty one.
pub struct Fact<'r, T>(Result<&'r T, Gap>);

impl<'r, T> Fact<'r, T> {
    /// A fact of an input. The first use of the fact makes the fact.
    fn of<'i, I>(input: &'i Reading<I>, cell: &'r OnceCell<T>, make: impl FnOnce(&'i I) -> T) -> Self {
        Self(input.get().map(|input| cell.get_or_init(|| make(input))))
    }

    /// The fact.
    ///
    /// # Errors
    /// Returns the [`Gap`] if the input was not read.
    pub fn get(self) -> Result<&'r T, Gap> {
        self.0
    }

    /// The fact, or `None` if the input was not read. The argument says why the caller may continue without the fact.
    pub fn known(self, _: Unread) -> Option<&'r T> {
        self.0.ok()
    }
}

/// A Service with an allocated number. If the port is `None`, the number is the Service's healthCheckNodePort,
/// otherwise the port's nodePort.
pub type Allocated<'a> = (&'a Service, Option<&'a ServicePort>);

/// Facts that follow from the addresses of a node.
pub struct Addressed<'a> {
    /// The links and addresses.
    pub interfaces: &'a Interfaces,
    /// The assumptions about the data plane.
    pub assumptions: Assumptions,
    /// The addresses, sorted.
    pub locals: Vec<LocalAddress>,
}

impl Addressed<'_> {
    /// This address of the node. `None` if the node does not have the address.
    pub fn local(&self, ip: IpAddr) -> Option<&LocalAddress> {
        self.locals.binary_search_by_key(&ip, |local| local.ip).ok().map(|index| &self.locals[index])
    }
}

/// `owner` and each rule about the ports of Services report unread Services.
const NO_SERVICES: Unread = Unread::Reported("the gap of Services");

impl<'a> Round<'a> {
    /// A round of a snapshot. `before` is the previous snapshot, if there is one.
    pub fn of(now: &'a Snapshot, before: Option<&'a Snapshot>, lag_seconds: i64) -> Self {
        Self { now, before, lag_seconds, behind: RefCell::default(), derived: Derived::default() }
    }

    /// Every listener.
    pub fn listeners(&self) -> Fact<'_, ByPort<&'a Socket>> {
        Fact::of(&self.now.kernel.listeners, &self.derived.listeners, |listeners| by_port(listeners))
    }

    /// The nodePorts of all Services that this node's proxy serves.
    pub fn node_ports(&self) -> Fact<'_, ByPort<(&'a Service, &'a ServicePort)>> {
        Fact::of(&self.now.cluster.services, &self.derived.node_ports, |services| {
            let all = served_node_ports(self.now, services);
            ByPort::of(all.map(|(service, port, number)| ((port.protocol, number), (service, port))))
        })
    }

    /// Every port of a Service that this node's proxy serves, if the Service has an external address. The index has no
    /// addresses: one Service may have a hundred thousand addresses and ten thousand ports.
    pub fn external_ports(&self) -> Fact<'_, ByPort<(&'a Service, &'a ServicePort)>> {
        Fact::of(&self.now.cluster.services, &self.derived.external_ports, |services| {
            let has_any = |service: &&'a Service| ExternalAddress::of(self.now, service).next().is_some();
            let services = services.iter().map(|service| &**service).filter(has_any);
            let ports =
                |service: &'a Service| service.ports.iter().map(move |it| ((it.protocol, it.port), (service, it)));
            ByPort::of(services.flat_map(ports))
        })
    }

    /// Every external address of a Service with this port. Empty if Services were not read.
    pub fn external_at(&self, port: Port) -> impl Iterator<Item = (ExternalAddress<'a>, &'a ServicePort)> {
        let ports = self.external_ports().known(NO_SERVICES).into_iter().flat_map(move |all| all.at(port));
        ports.flat_map(move |(service, port)| {
            ExternalAddress::of(self.now, service).map(move |address| (address, *port))
        })
    }

    /// The claims of Services to this port: NodePorts, and the external addresses for which `is_at` is true. A file may
    /// have any number of Services, so the list is limited. The list has at most `MOST_SERVICES + 2` NodePorts, and at
    /// most `MOST_SERVICES + 2` Services for each address. [`Claim::first_of`] leaves out one of these Services.
    pub fn claims_of_services(&self, port: Port, is_at: impl Fn(IpAddr) -> bool) -> Vec<Claim<'a>> {
        let node_ports = self.node_ports().known(NO_SERVICES).into_iter().flat_map(|all| all.at(port));
        let node_ports = node_ports.take(MOST_SERVICES + 2);
        let node_ports = node_ports.map(|(service, port)| Claim::NodePort(service, port));
        let mut known: BTreeMap<IpAddr, usize> = BTreeMap::new();
        let external = self.external_at(port).filter(|(address, _)| {
            is_at(address.ip) && {
                let services = known.entry(address.ip).or_default();
                *services += 1;
                *services <= MOST_SERVICES + 2
            }
        });
        node_ports.chain(external.map(|(address, port)| Claim::External(address, port))).collect()
    }

    /// The ports of Services that this node's proxy does not serve: nodePorts, and for a Service with an external
    /// address also its `port`s. Another proxy on this node may serve the Service. Empty if Services were not read.
    pub fn not_served(&self) -> &ByPort<(ClaimKind, &'a Service)> {
        let all = || {
            let services = self.now.cluster.services.known_part(NO_SERVICES);
            let others = services.iter().map(|it| &**it).filter(|it| !self.now.proxy_serves(it));
            others.flat_map(|service: &Service| {
                let is_external = !service.external_ips.is_empty() || !service.load_balancer_ips.is_empty();
                service.ports.iter().flat_map(move |port| {
                    let node_port = port.node_port.map(|number| (ClaimKind::NodePort, number));
                    let external = is_external.then_some((ClaimKind::ExternalIp, port.port));
                    let both = node_port.into_iter().chain(external);
                    both.map(move |(kind, number)| ((port.protocol, number), (kind, service)))
                })
            })
        };
        self.derived.not_served.get_or_init(|| ByPort::of(all()))
    }

    pub(super) fn balanced(&self) -> &BTreeSet<IpAddr> {
        let all = || {
            let services = self.now.cluster.services.known_part(NO_SERVICES).iter();
            let all = services.flat_map(|service| ExternalAddress::of(self.now, service));
            let may_serve = |it: &ExternalAddress<'_>| serves(self, it.service, it.part()) != Ok(false);
            all.filter(|it| it.field == Field::LoadBalancer && may_serve(it)).map(|it| it.ip).collect()
        };
        self.derived.balanced.get_or_init(all)
    }

    /// Every hostPort of a pod that is on this node, or may be on this node.
    pub fn host_ports(&self) -> Fact<'_, ByPort<(&'a Pod, &'a ContainerPort)>> {
        Fact::of(&self.now.cluster.pods, &self.derived.host_ports, |pods| {
            let all = host_ports(self.now, pods);
            ByPort::of(all.map(|(pod, port, number)| ((port.protocol, number), (pod, port))))
        })
    }

    /// Facts that follow from the addresses of this node.
    pub fn addressed(&self) -> Fact<'_, Addressed<'a>> {
        Fact::of(&self.now.kernel.interfaces, &self.derived.addressed, |interfaces| Addressed {
            interfaces,
            assumptions: Assumptions::of(self.now, interfaces, self.lag_seconds),
            locals: local_addresses(interfaces),
        })
    }

    /// The endpoints of Services.
    pub fn endpoints(&self) -> &Endpoints<'a> {
        self.derived.endpoints.get_or_init(|| Endpoints::of(self.now))
    }

    /// The sockets of the proxy.
    pub fn proxy(&self) -> &Proxy<'a> {
        self.derived.proxy.get_or_init(|| Proxy::of(self.now))
    }

    /// Every number that is a nodePort or a healthCheckNodePort, with the Services that have the number. Protocols are
    /// ignored, because the API server allocates a number for all protocols.
    pub fn allocated(&self) -> Fact<'_, ByPort<Allocated<'a>, u16>> {
        Fact::of(&self.now.cluster.services, &self.derived.allocated, |services| {
            let has_number = |service: &&'a Service| service.numbers().next().is_some();
            let services = each_service(services.iter().map(|service| &**service).filter(has_number));
            let numbers = |service: &'a Service| service.numbers().map(move |(number, port)| (number, (service, port)));
            ByPort::of(services.flat_map(numbers))
        })
    }

    /// The redirections of hostPorts. The inputs are Pods and the rules of netfilter.
    pub fn redirections(&self) -> Fact<'_, Redirections<'a>> {
        Fact(self.derived.redirections.get_or_init(|| Redirections::of(self.now)).as_ref().map_err(Clone::clone))
    }

    /// The reason why redirections of hostPorts were not read. `None` if redirections were not requested, for example
    /// in older snapshots.
    pub fn unread_redirections(&self) -> Option<Gap> {
        listed(self.now).err().filter(|gap| gap.why != Why::NotRequested)
    }

    /// Like [`Self::unread_redirections`], but leaves out a missing right or kernel feature if no pod that may be on
    /// this node has a hostPort. Never leaves out a failure, because a redirection can remain after the last hostPort
    /// is gone.
    pub fn missed_redirections(&self) -> Option<Gap> {
        let has_any = self.host_ports().known(Unread::Reported("the gap of Pods")).is_some_and(|it| !it.is_empty())
            || self.now.cluster.unplaced_ports().any(|(_, pod, _)| !pod.host_network);
        let is_missing = |why| matches!(why, Why::NotPermitted | Why::NotSupported);
        self.unread_redirections().filter(|gap| has_any || !is_missing(gap.why))
    }

    pub(super) fn rivals(&self) -> &Rivals<'a> {
        self.derived.rivals.get_or_init(|| rivals(self.now))
    }

    pub(super) fn unread_proxy_name(&self) -> Option<Gap> {
        self.derived.unread_proxy_name.get_or_init(|| unread_proxy_name(self.now)).clone()
    }

    /// The servers that need to listen on a port of this node.
    pub fn needs(&self) -> &Needs<'a> {
        self.derived.needs.get_or_init(|| Needs::of(self))
    }
}
