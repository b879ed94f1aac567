//! Free ports on the scanned nodes: for a Service in the NodePort range, or for a server on the nodes.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use super::{Limits, Round, ephemeral::effective_ephemeral, node_ports::disproved_range};
use portreeve_dataplane::{Role, usual_ports};
use portreeve_facts::{
    Clients, Gap, PortRange, PortSet, Service, ServicePort, Snapshot, Source, Unread, Why, if_requested,
};

/// The ranges of ports to suggest for a server on the nodes, the best first. Few programs have a default port above
/// 9999. The default ephemeral ports are left out. These ports may have more connections than a scan lists, and the
/// kernel of a new node gives them to connections.
const OF_HOSTS: [PortRange; 3] = [
    PortRange { first: 10_000, last: PortRange::DEFAULT_EPHEMERAL.first - 1 },
    PortRange { first: PortRange::DEFAULT_EPHEMERAL.last + 1, last: u16::MAX },
    PortRange { first: 1024, last: 9_999 },
];

/// The ports that are free on all scanned nodes, for a Service in the NodePort range, or for a server on the nodes.
#[derive(Clone, Debug, Default)]
pub struct FreePorts {
    /// The ports that are in the NodePort range of each node. `None` before the first scan.
    range: Option<PortRange>,
    taken: PortSet,
    /// Whether the numbers are for a server on the host's network, or for a hostPort.
    of_hosts: bool,
    /// Unread input with the name of its node. Because of this unread input, a port in use may look free.
    pub unread: Vec<(String, Gap)>,
    /// Whether a scan has the Services. If Services were not read, any NodePort may be in use.
    allocations: bool,
}

impl FreePorts {
    /// Ports for a server on the nodes, on the host's network or with a hostPort. Contains no scan yet.
    pub fn of_hosts() -> Self {
        Self { of_hosts: true, ..Self::default() }
    }

    /// The ports from one scan.
    pub fn of(snapshot: &Snapshot) -> Self {
        Self::of_round(&Limits::default().round(snapshot, None))
    }

    pub(super) fn of_round(round: &Round<'_>) -> Self {
        let mut free = Self::default();
        free.take_in(round);
        free
    }

    /// Adds the scan of another node.
    pub fn absorb(&mut self, snapshot: &Snapshot) {
        self.take_in(&Limits::default().round(snapshot, None));
    }

    fn take_in(&mut self, round: &Round<'_>) {
        let (snapshot, node) = (round.now, round.now.node_name());
        match snapshot.cluster.node_port_range.get() {
            Err(gap) => self.lacks(node, [gap]),
            Ok(known) if self.of_hosts => {
                self.range = Some(known.range);
                self.take(known.range.iter());
            }
            Ok(known) => {
                let both = self.range.map_or(Some(known.range), |range| range.intersection(known.range));
                // If the nodes' ranges have no common port, no port is free. The type of `range` has no empty value. So
                // the old range stays, and all its ports are marked as in use.
                self.range = both.or(self.range);
                if both.is_none() {
                    self.taken = self.taken.union(&self.range.map(PortSet::from).unwrap_or_default());
                }
            }
        }
        let reported = Unread::Reported("FreePorts::unread");
        match round.allocated().get() {
            Err(gap) => self.lacks(node, [gap]),
            Ok(allocated) => {
                self.allocations = true;
                self.take(allocated.ports().map(|(number, _)| number));
                self.lacks(node, snapshot.cluster.unread_service().cloned());
                self.lacks(node, disproved_range(round));
            }
        }
        self.take(round.listeners().known(reported).into_iter().flat_map(|all| all.ports().map(|((_, port), _)| port)));
        self.lacks(node, snapshot.kernel.unread_listeners().cloned());
        // An external address of a Service on this node, or a redirection, takes the connections of a NodePort or a
        // server.
        self.take(
            round.external_ports().known(reported).into_iter().flat_map(|all| all.ports().map(|((_, port), _)| port)),
        );
        self.take(round.not_served().ports().map(|((_, port), _)| port));
        self.take(
            round.redirections().known(reported).into_iter().flat_map(|all| all.ports().map(|((_, port), _)| port)),
        );
        self.lacks(node, round.missed_redirections());
        match effective_ephemeral(snapshot) {
            Err(gap) => self.lacks(node, [gap]),
            Ok(ephemeral) => self.taken = self.taken.union(&ephemeral),
        }
        // A server may need a port before it listens.
        let needed = round.needs().known(reported).ports().filter(|(_, needs)| needs.iter().any(|it| it.is_claimed()));
        self.take(needed.map(|((_, port), _)| port));
        self.lacks(node, round.needs().unread().cloned());
        // Pods of other nodes are included, because a Service or a DaemonSet has its port on every node.
        let waiting = snapshot.cluster.waiting_pods.known_part(reported).iter();
        self.take(waiting.flat_map(|pod| &pod.ports).filter_map(|port| port.host_port));
        self.take(snapshot.cluster.pending_ports.iter());
        match snapshot.cluster.pods.get() {
            Err(gap) => self.lacks(node, [gap]),
            Ok(pods) => {
                let ports = pods.iter().filter(|pod| !pod.finished).flat_map(|pod| pod.needed_ports());
                self.take(ports.map(|(number, _)| number));
                let unread = snapshot.cluster.rejected.iter().find(|gap| gap.source == Source::Pods);
                self.lacks(node, unread.or_else(|| snapshot.cluster.doubted_node()).cloned());
            }
        }
        // Unscanned nodes may need the ports of the control plane, of SSH and of ingress.
        self.take(usual_ports(Role::Daemon).chain(usual_ports(Role::Ingress)).map(|it| it.number));
        self.take(snapshot.cluster.workloads.iter().flat_map(|it| it.needed_ports()).map(|(number, _)| number));
        // This step is the last, because it checks the ports that have no other user.
        if self.of_hosts {
            self.take_of_hosts(round);
        }
    }

    /// Marks reserved ports and local ports of connections as in use. These ports are free for a NodePort, but not for
    /// a server.
    fn take_of_hosts(&mut self, round: &Round<'_>) {
        let (snapshot, node) = (round.now, round.now.node_name());
        match snapshot.kernel.sysctls.ip_local_reserved_ports.get() {
            Err(gap) => self.lacks(node, [gap]),
            Ok(reserved) => self.taken = self.taken.union(reserved),
        }
        let none = Clients::default();
        match if_requested(snapshot.kernel.clients.get()) {
            Err(gap) => self.lacks(node, [gap]),
            Ok(clients) => {
                let clients = clients.unwrap_or(&none);
                self.take(clients.sockets.iter().map(|socket| socket.local_port));
                let unread = clients.outgoing_missing().or_else(|| self.unsearched(round, clients));
                self.lacks(node, unread);
            }
        }
    }

    /// The reason why a connection or a bound socket may have one of the ports that look free.
    fn unsearched(&self, round: &Round<'_>, clients: &Clients) -> Option<Gap> {
        let free: PortSet = self.free().collect();
        let are_in = |searched: &PortSet| free.minus(searched).is_empty();
        let unsearched = || "the scan did not search all ports; `portreeve owner PORT` on the node does".to_owned();
        let detail = match are_in(&clients.searched) {
            false => format!("a connection may have the port: {}", unsearched()),
            true if are_in(&clients.bound_searched) => return None,
            true => {
                let why = round.bound_unlisted().unwrap_or_else(unsearched);
                format!("a socket may be bound to the port without listening: {why}")
            }
        };
        Some(Gap::new(Source::Clients, Why::NotRequested, detail))
    }

    /// The ports on which a scan of this node must search for connections.
    pub fn to_search(&self) -> PortSet {
        OF_HOSTS.into_iter().filter(|_| self.of_hosts).collect()
    }

    /// Ports for a remedy, the lowest first, so the static band comes first. If an input was not read, the result is
    /// empty, because each port may be in use. Unread redirections do not make the result empty, because few scans have
    /// the right to read redirections.
    pub fn ports(&self) -> impl Iterator<Item = u16> + '_ {
        self.as_read().filter(|_| self.doubt().is_none())
    }

    /// The first input that was not read and may hide a user of a number.
    fn doubt(&self) -> Option<&Gap> {
        self.unread.iter().map(|(_, gap)| gap).find(|gap| gap.source != Source::Netfilter)
    }

    /// The ports that no Service has. If other input was not read, a process or a pod may use some of these ports.
    pub fn of_no_service(&self) -> impl Iterator<Item = u16> + '_ {
        let hides_services = self.hides(Source::Services);
        self.as_read().filter(move |_| !hides_services)
    }

    /// Whether this source was not read, or was read only in part, on one of the nodes.
    pub fn hides(&self, source: Source) -> bool {
        self.unread.iter().any(|(_, gap)| gap.source == source)
    }

    /// The ports that are free according to the input that was read. The command that prints the ports also reports the
    /// unread input.
    pub fn as_read(&self) -> impl Iterator<Item = u16> + '_ {
        // In a Service, the number 0 means that the API server chooses a number.
        self.free().flat_map(PortRange::iter).filter(|port| *port > 0)
    }

    /// The ports of [`Self::as_read`] as ranges, because there may be thousands of ports. May include 0.
    pub(super) fn free(&self) -> impl Iterator<Item = PortRange> {
        let ranges = match self.of_hosts {
            true => OF_HOSTS.to_vec(),
            false => self.range.into_iter().collect(),
        };
        let known = ranges.into_iter().filter(|_| self.is_known());
        known.flat_map(|range| Vec::<PortRange>::from(PortSet::from(range).minus(&self.taken)))
    }

    /// Whether the ports are for servers on the nodes.
    pub fn is_of_hosts(&self) -> bool {
        self.of_hosts
    }

    /// Whether the range and the Services are known. Otherwise Portreeve suggests no port.
    pub fn is_known(&self) -> bool {
        self.allocations && self.range.is_some()
    }

    fn take(&mut self, ports: impl Iterator<Item = u16>) {
        self.taken = self.taken.union(&ports.collect());
    }

    fn lacks(&mut self, node: &str, gaps: impl IntoIterator<Item = Gap>) {
        self.unread.extend(gaps.into_iter().map(|gap| (node.to_owned(), gap)));
    }
}

/// A free number for each number of each Service, from the scan of one node. Each free number is given once, so users
/// who move different Services choose different numbers. Services get free numbers in their order, so a number does not
/// depend on other findings. If too few numbers are free, the last Services get no number.
pub(super) struct Alternatives {
    /// The free number for each number that a Service has now.
    free: HashMap<(*const Service, Number), u16>,
}

/// A nodePort with the Service's port, or a healthCheckNodePort without a port.
type Number = (u16, Option<u16>);

impl Alternatives {
    pub(super) fn of(round: &Round<'_>) -> Self {
        let snapshot = round.now;
        let services = snapshot.cluster.services.known_part(Unread::Adds);
        let wanted =
            services.iter().flat_map(|service| numbers(service).into_iter().map(|it| (Arc::as_ptr(service), it)));
        Self { free: wanted.zip(FreePorts::of_round(round).ports()).collect() }
    }

    /// The free number for a port of a Service. If `port` is `None`, the result is the free number for the Service's
    /// health check. TCP and UDP entries with equal port and number get the same free number.
    pub(super) fn for_port(&self, service: &Service, port: Option<&ServicePort>) -> Option<u16> {
        let number = match port {
            Some(port) => (port.node_port?, Some(port.port)),
            None => (service.health_check_node_port?, None),
        };
        self.free.get(&(std::ptr::from_ref(service), number)).copied()
    }
}

fn numbers(service: &Service) -> BTreeSet<Number> {
    service.numbers().map(|(number, port)| (number, port.map(|it| it.port))).collect()
}

/// A NodePort that no Service has, from the scan of one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FreePort {
    /// The number, from 1 to 65535.
    pub number: u16,
    /// The first unread input that may hide a user of the number. Unread redirections are ignored.
    pub unread: Option<Gap>,
}

/// A free NodePort other than `refused`, from the scan of one node. `None` if Services or the NodePort range were not
/// read, or if no NodePort is free.
pub fn free_port(snapshot: &Snapshot, refused: u16) -> Option<FreePort> {
    let free = FreePorts::of(snapshot);
    // Skips the first free numbers, which remedies give to existing Services.
    let given = snapshot.cluster.services.known_part(Unread::Adds).iter().map(|it| numbers(it).len()).sum::<usize>();
    let number = free.of_no_service().filter(|it| *it != refused).take(given + 1).last()?;
    Some(FreePort { number, unread: free.doubt().cloned() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use portreeve_facts::{
        Netfilter, Protocol, Reading, Redirection, State,
        healthy::{gap, seen},
    };

    fn first(free: &FreePorts, count: usize) -> Vec<u16> {
        free.as_read().take(count).collect()
    }

    fn certain(world: &Snapshot) -> Option<u16> {
        free_port(world, 1).filter(|it| it.unread.is_none()).map(|it| it.number)
    }

    #[test]
    fn nobody_is_given_the_port_of_the_api_server() {
        for (range, wanted) in [("6443-32767", 6444), ("2379-32767", 2382), ("22-32767", 23), ("443-32767", 444)] {
            let free = FreePorts::of(&Snapshot::healthy().node_port_range(range));
            assert_eq!(first(&free, 1), [wanted], "{range}");
        }
    }

    #[test]
    fn if_a_service_disproves_the_assumed_range_no_port_is_certainly_free() {
        let world = Snapshot::healthy().service("old", |it| it.node_port(40080));
        assert!(!FreePorts::of(&world).hides(Source::NodePortRange), "a source names the range");
        let free = FreePorts::of(&world.assumed_range());
        assert!(free.hides(Source::NodePortRange) && free.ports().next().is_none());
    }

    #[test]
    fn what_moves_together_has_one_number_and_what_cannot_has_two() {
        let udp = |port| ServicePort { protocol: portreeve_facts::Protocol::Udp, port, ..world_port() };
        let numbers = |port: u16| {
            let world = Snapshot::healthy()
                .service("dns", |it| it.with(|service| service.ports = vec![world_port(), udp(port)]))
                .service("web", |it| it.node_port(30080));
            let services = world.cluster.services.seen().expect("Services");
            let round = Limits::default().round(&world, None);
            let alternatives = Alternatives::of(&round);
            let all = services.iter().flat_map(|service| service.ports.iter().map(move |port| (service, port)));
            all.map(|(service, port)| alternatives.for_port(service, Some(port)).expect("a number")).collect::<Vec<_>>()
        };
        assert_eq!(numbers(53), [30000, 30000, 30001], "one port over TCP and UDP");
        assert_eq!(numbers(5353), [30000, 30001, 30002], "the API server refuses one number of two ports");
    }

    fn world_port() -> ServicePort {
        ServicePort {
            name: String::new(),
            protocol: portreeve_facts::Protocol::Tcp,
            port: 53,
            target: None,
            node_port: Some(30053),
            fixed: None,
        }
    }

    #[test]
    fn a_port_is_free_where_no_node_uses_it_in_any_way() {
        let mut free = FreePorts::of(
            &Snapshot::healthy()
                .service("web", |it| it.node_port(30000))
                .listens("0.0.0.0:30001")
                .listens("127.0.0.1:22"),
        );
        assert_eq!(first(&free, 2), [30002, 30003]);
        free.absorb(&Snapshot::healthy().listens("127.0.0.1:30002").ephemeral("30003 40000", "30005-40000"));
        assert_eq!(first(&free, 2), [30005, 30006]);
        assert!(free.unread.is_empty() && free.is_known());
    }

    #[test]
    fn what_comes_before_a_node_port_or_a_server_takes_the_port() {
        let redirection = |port| Redirection {
            protocol: Protocol::Tcp,
            port,
            ip: None,
            to: "10.1.0.7".parse().expect("an address"),
            to_port: 80,
            chain: "ip nat CNI-DN-1".to_owned(),
            handle: 7,
        };
        let external = |port| {
            let service = |service: &mut Service| {
                (service.kind, service.ports[0].port) = (portreeve_facts::ServiceKind::ClusterIp, port);
            };
            Snapshot::healthy().service("ext", |it| it.external_ip("192.0.2.1").with(service))
        };
        let left = |port| {
            let mut world = Snapshot::healthy();
            let redirections = Reading::Seen(vec![redirection(port)]);
            world.kernel.netfilter = Reading::Seen(Netfilter { redirections, ..Netfilter::default() });
            world
        };
        let of_another_proxy = |port| {
            let mut world = external(port);
            portreeve_facts::healthy::objects(&mut world.cluster.services)[0].proxy_name = Some("other".to_owned());
            world
        };
        for world in [external(30000), of_another_proxy(30000), left(30000)] {
            assert_eq!((first(&FreePorts::of(&world), 1), certain(&world)), (vec![30001], Some(30001)));
        }
        for world in [external(10_000), of_another_proxy(10_000), left(10_000)] {
            assert_eq!(first(&of_hosts(&[&world]), 1), [10_001]);
        }
        let web = Snapshot::healthy().pod("web", |pod| pod.host_port(80, 8080));
        for mut unread in [web.clone(), web.unnamed()] {
            unread.kernel.netfilter = gap(Source::Netfilter, Why::NotPermitted);
            let lacks: Vec<Source> = FreePorts::of(&unread).unread.iter().map(|(_, gap)| gap.source).collect();
            assert_eq!((lacks, certain(&unread)), (vec![Source::Netfilter], Some(30000)));
        }
    }

    #[test]
    fn a_host_port_is_taken_though_nobody_listens() {
        let world = Snapshot::healthy().pod("web", |pod| {
            pod.ports.push(portreeve_facts::ContainerPort {
                port: 80,
                host_port: Some(30000),
                host_ip: None,
                protocol: portreeve_facts::Protocol::Tcp,
            });
        });
        assert_eq!(first(&FreePorts::of(&world), 1), [30001]);
    }

    #[test]
    fn the_port_of_a_pod_that_waits_for_something_other_than_ports_is_taken() {
        let mut world = Snapshot::healthy();
        world.cluster.pending_ports = [10_000, 30_000].into_iter().collect();
        assert_eq!((first(&of_hosts(&[&world]), 1), first(&FreePorts::of(&world), 1)), (vec![10_001], vec![30_001]));
    }

    #[test]
    fn a_port_that_a_server_needs_is_taken_though_nobody_listens() {
        let port = |port| portreeve_facts::ContainerPort {
            port,
            host_port: None,
            host_ip: None,
            protocol: portreeve_facts::Protocol::Tcp,
        };
        let world = Snapshot::healthy().pod("metal", |pod| {
            pod.host_network = true;
            pod.ports.push(port(30000));
            pod.probed.push(port(30001));
            pod.reported_in_use.extend([30001, 30002].map(port));
        });
        let health =
            |address: &str| world.clone().with_config(|config| config.healthz_bind_address = Some(address.to_owned()));
        let mut elsewhere = world.clone();
        portreeve_facts::healthy::objects(&mut elsewhere.cluster.pods)[0].node = Some("n2".to_owned());
        assert_eq!(first(&FreePorts::of(&elsewhere), 1), [30002], "a Service has its nodePort on every node");
        assert_eq!(first(&FreePorts::of(&world), 1), [30002], "a message of a container takes no port");
        assert_eq!(first(&FreePorts::of(&health("0.0.0.0:30002")), 1), [30003]);
        let unread = FreePorts::of(&health("nowhere")).unread;
        assert_eq!(unread.iter().map(|(_, gap)| gap.source).collect::<Vec<_>>(), [Source::ProxyConfig]);
    }

    #[test]
    fn the_port_of_a_tunnel_that_is_down_is_taken_and_unread_tunnels_are_said() {
        let mut world = Snapshot::healthy().tunnel("flannel.1", "vxlan", 30000, |link| link.up = false);
        assert_eq!((first(&FreePorts::of(&world), 1), certain(&world)), (vec![30001], Some(30001)));
        world.kernel.interfaces = gap(Source::Addresses, Why::TimedOut);
        let unread = FreePorts::of(&world).unread;
        assert_eq!(unread.iter().map(|(_, gap)| gap.source).collect::<Vec<_>>(), [Source::Addresses]);
    }

    #[test]
    fn what_a_workloads_pods_will_want_is_taken() {
        let port = |port, host_port| portreeve_facts::ContainerPort {
            port,
            host_port,
            host_ip: None,
            protocol: portreeve_facts::Protocol::Tcp,
        };
        let mut world = Snapshot::healthy();
        world.cluster.workloads.push(std::sync::Arc::new(portreeve_facts::Workload {
            kind: portreeve_facts::WorkloadKind::Deployment,
            namespace: "default".to_owned(),
            name: "edge".to_owned(),
            selects: Vec::new(),
            avoids: Vec::new(),
            tolerates: Vec::new(),
            replicas: None,
            keeps_old_pods: false,
            probed: vec![port(30002, None)],
            host_network: true,
            ports: vec![port(80, Some(30000)), port(30001, None)],
        }));
        assert_eq!(first(&FreePorts::of(&world), 1), [30003]);
    }

    #[test]
    fn nodes_that_disagree_about_the_range_leave_what_is_in_both() {
        let mut other = Snapshot::healthy();
        seen(&mut other.cluster.node_port_range).range = "32000-33000".parse().expect("a range");
        let mut free = FreePorts::of(&Snapshot::healthy());
        free.absorb(&other);
        assert_eq!(first(&free, 1), [32000]);
        seen(&mut other.cluster.node_port_range).range = "20000-20010".parse().expect("a range");
        free.absorb(&other);
        assert_eq!(first(&free, 1), [0; 0]);
    }

    #[test]
    fn without_services_nothing_is_suggested_and_what_else_is_not_known_is_said() {
        let mut world = Snapshot::healthy();
        world.cluster.services = gap(Source::Services, Why::Unreachable);
        let free = FreePorts::of(&world);
        assert!(!free.is_known() && free.as_read().next().is_none());
        let mut world = Snapshot::healthy();
        world.kernel.listeners = gap(Source::Listeners, Why::TimedOut);
        let free = FreePorts::of(&world);
        assert_eq!(first(&free, 1), [30000]);
        assert_eq!((free.of_no_service().next(), free.ports().next()), (Some(30000), None), "a process may listen");
        let unread: Vec<Source> = free.unread.iter().map(|(_, gap)| gap.source).collect();
        assert_eq!((unread, certain(&world)), (vec![Source::Listeners], None));
        let mut world = Snapshot::healthy();
        world.cluster.pods = gap(Source::Pods, Why::NotPermitted);
        assert_eq!((first(&FreePorts::of(&world), 1), certain(&world)), (vec![30000], None), "a hostPort");
        let suggested = free_port(&world, 1).expect("no Service has 30000");
        assert_eq!((suggested.number, suggested.unread.map(|it| it.source)), (30000, Some(Source::Pods)));
        let mut world = Snapshot::healthy();
        world.kernel.sysctls.ip_local_port_range = gap(Source::Sysctls, Why::NotPermitted);
        assert_eq!((first(&FreePorts::of(&world), 1), certain(&world)), (vec![30000], None), "an outgoing connection");
    }

    #[test]
    fn every_number_of_every_service_has_another_one_to_move_to() {
        let several = |service: &mut Service| {
            let further = ServicePort { node_port: Some(30001), ..service.ports[0].clone() };
            service.ports.push(further);
            service.health_check_node_port = Some(30002);
        };
        let world = Snapshot::healthy()
            .service("web", |it| it.node_port(30000).with(several))
            .service("zoo", |it| it.node_port(30003));
        let round = Limits::default().round(&world, None);
        let alternatives = Alternatives::of(&round);
        let services = world.cluster.services.seen().expect("Services");
        let of = |name: &str| &**services.iter().find(|it| it.name == name).expect("a Service");
        let (web, zoo) = (of("web"), of("zoo"));
        let asked = [(web, web.ports.first()), (web, web.ports.get(1)), (web, None), (zoo, zoo.ports.first())];
        let reported = asked.map(|(service, port)| alternatives.for_port(service, port));
        assert_eq!(reported, [30004, 30005, 30006, 30007].map(Some));
    }

    #[test]
    fn a_suggested_number_is_not_refused_not_zero_and_no_remedy_gives_it_to_a_service() {
        let number = |world: &Snapshot, refused| free_port(world, refused).map(|it| it.number);
        assert_eq!((number(&Snapshot::healthy(), 1), number(&Snapshot::healthy(), 30000)), (Some(30000), Some(30001)));
        let web = Snapshot::healthy().service("web", |it| it.node_port(30080));
        assert_eq!(number(&web, 30080), Some(30001), "remedies give 30000 to web");
        let few = web.clone().node_port_range("30080-30081");
        assert_eq!(number(&few, 30080), Some(30081), "there is no other number");
        assert_eq!(first(&FreePorts::of(&Snapshot::healthy().node_port_range("0-1")), 2), [1], "0 is no number");
    }

    #[test]
    fn an_unread_waiting_pod_may_want_any_host_port() {
        for why in [Why::TimedOut, Why::Torn, Why::NotPermitted] {
            let mut world = Snapshot::healthy();
            world.cluster.waiting_pods = gap(Source::WaitingPods, why);
            let free = FreePorts::of(&world);
            assert_eq!((free.unread.len(), free.ports().next(), certain(&world)), (1, None, None), "{why:?}");
        }
        let mut world = Snapshot::healthy();
        world.cluster.waiting_pods = gap(Source::WaitingPods, Why::NotRequested);
        assert_eq!(certain(&world), Some(30000));
    }

    #[test]
    fn an_unread_service_may_have_any_port_and_is_said() {
        let world = Snapshot::healthy();
        assert_eq!(certain(&world), Some(30000));
        let world = world.rejects(Source::EndpointSlices);
        assert_eq!((certain(&world), FreePorts::of(&world).unread.len()), (Some(30000), 0), "it has no nodePort");
        let world = world.rejects(Source::Services);
        let free = FreePorts::of(&world);
        assert_eq!((first(&free, 1), free.unread[0].1.source), (vec![30000], Source::Services));
        assert_eq!((free.of_no_service().next(), free.ports().next()), (None, None));
        assert_eq!(free_port(&world, 1), None);
        let unused = FreePorts::of(&Snapshot::healthy().rejects(Source::Pods));
        assert_eq!(unused.unread[0].1.source, Source::Pods, "a hostPort");
        let mut of_name = Snapshot::healthy();
        of_name.cluster.rejected.push(Gap::new(Source::Nodes, Why::Ambiguous, "this host may be another node"));
        assert_eq!(FreePorts::of(&of_name).unread[0].1.source, Source::Nodes, "its pods are not known");
    }

    fn of_hosts(worlds: &[&Snapshot]) -> FreePorts {
        let mut free = FreePorts::of_hosts();
        worlds.iter().for_each(|world| free.absorb(world));
        free
    }

    #[test]
    fn a_port_of_the_nodes_is_nobodys_on_any_and_no_kernel_chooses_it() {
        let healthy = || Snapshot::healthy();
        assert_eq!(first(&of_hosts(&[&healthy()]), 1), [10_000], "not 10249, 10250 and the like");
        let taken = healthy().listens("0.0.0.0:10000").pod("edge", |pod| pod.host_port(80, 10_001));
        let other = healthy()
            .listens_udp("0.0.0.0:10002")
            .service("vip", |it| it.external_ip("192.0.2.1").with(|service| service.ports[0].port = 10_003));
        assert_eq!(first(&of_hosts(&[&taken, &other]), 1), [10_004]);
        let free: Vec<u16> = of_hosts(&[&healthy()]).ports().collect();
        assert!(!free.iter().any(|port| (30_000..=32_767).contains(port)), "Services may be given them");
        assert!(!free.iter().any(|port| (32_768..=60_999).contains(port)), "the kernel chooses them");
        assert!(free.contains(&61_000) && free.last().is_some_and(|port| *port < 10_000));
        assert!(!free.contains(&6443) && !free.contains(&10_250));
        let reserved = healthy().ephemeral("1024 65535", "10000-10009");
        assert_eq!(first(&of_hosts(&[&reserved]), 1), [0; 0], "who reserved them has a server for them");
        assert_eq!(first(&of_hosts(&[&healthy(), &healthy().ephemeral("10000 20000", "")]), 1), [20_001]);
    }

    #[test]
    fn a_server_cannot_have_the_local_port_of_a_connection_and_a_service_can() {
        let at = |port: u16| {
            let local = format!("192.0.2.1:{port}");
            Snapshot::healthy().connects(State::Established, &local, "198.51.100.7:443")
        };
        assert_eq!(first(&of_hosts(&[&at(10_000)]), 1), [10_001]);
        assert_eq!(first(&FreePorts::of(&at(30_000)), 1), [30_000]);
        let mut unread = Snapshot::healthy();
        unread.kernel.clients = gap(Source::Clients, Why::TimedOut);
        assert_eq!(of_hosts(&[&unread]).unread[0].1.source, Source::Clients);
        unread.kernel.clients = gap(Source::Clients, Why::NotRequested);
        let said = &of_hosts(&[&unread]).unread[0].1;
        assert!(said.detail.starts_with("a connection may have the port: the scan did not search"), "{said:?}");
    }

    #[test]
    fn ports_on_which_no_connection_or_bound_socket_was_searched_are_said() {
        let said = |searched: &PortSet, bound_searched: &PortSet| {
            let mut world = Snapshot::healthy();
            let clients = seen(&mut world.kernel.clients);
            (clients.searched, clients.bound_searched) = (searched.clone(), bound_searched.clone());
            let free = of_hosts(&[&world]);
            assert!(FreePorts::of(&world).unread.is_empty(), "a Service can have the port of a connection");
            free.unread.into_iter().map(|(_, gap)| gap.detail).collect::<Vec<_>>()
        };
        let searched = FreePorts::of_hosts().to_search();
        assert!(searched.contains(10_000) && searched.contains(61_000) && !searched.contains(32_768), "{searched:?}");
        assert_eq!((said(&searched, &searched), FreePorts::default().to_search()), (vec![], PortSet::default()));
        let mut narrow = Snapshot::healthy().ephemeral("40000 60999", "");
        let clients = seen(&mut narrow.kernel.clients);
        (clients.searched, clients.bound_searched) = (searched.clone(), searched.clone());
        let free = of_hosts(&[&narrow]);
        assert_eq!((free.unread.len(), free.as_read().any(|it| it == 32_768)), (0, false), "nobody searches 32768");
        let without_etcd = searched.minus(&[2379].into_iter().collect());
        assert_eq!(said(&without_etcd, &without_etcd), [""; 0], "no server is offered the port that it needs");
        let rules: PortSet = PortRange::DEFAULT_NODE_PORTS.into();
        let [connection] = &said(&rules, &rules)[..] else { panic!("one line") };
        assert!(connection.starts_with("a connection may have the port: the scan did not search"), "{connection}");
        let [bound] = &said(&searched, &rules)[..] else { panic!("one line") };
        assert!(bound.starts_with("a socket may be bound to the port without listening: the scan did"), "{bound}");
    }

    #[test]
    fn a_full_list_of_connections_is_said() {
        let mut world = Snapshot::healthy();
        let clients = seen(&mut world.kernel.clients);
        (clients.beyond, clients.outgoing) = (1, Clients::MOST as u64 + 1);
        assert_eq!(of_hosts(&[&world]).unread[0].1.why, Why::TooMuch);
    }

    #[test]
    fn a_server_may_run_on_every_node_so_it_is_not_given_the_port_of_any_pod() {
        let mut world = Snapshot::healthy().pod("edge", |pod| {
            (pod.host_network, pod.node) = (true, Some("n2".to_owned()));
            let (host_port, host_ip, protocol) = (None, None, Protocol::Tcp);
            pod.ports.push(portreeve_facts::ContainerPort { port: 10_000, host_port, host_ip, protocol });
        });
        assert_eq!(first(&of_hosts(&[&world]), 1), [10_001], "the pod is on another node");
        let unnamed = world.clone().unnamed();
        assert_eq!((first(&of_hosts(&[&unnamed]), 1), certain(&unnamed)), (vec![10_001], Some(30_000)));
        let unread = of_hosts(&[&unnamed.rejects(Source::Pods)]).unread;
        assert_eq!(unread.iter().map(|(_, gap)| gap.source).collect::<Vec<_>>(), [Source::Pods]);
        portreeve_facts::healthy::objects(&mut world.cluster.pods)[0].finished = true;
        assert_eq!(first(&of_hosts(&[&world]), 1), [10_000]);
    }

    #[test]
    fn without_services_or_the_range_no_port_of_the_nodes_is_known_to_be_free() {
        let unread = |change: fn(&mut Snapshot)| {
            let mut world = Snapshot::healthy();
            change(&mut world);
            let free = of_hosts(&[&world]);
            (first(&free, 1), free.unread.into_iter().map(|(_, gap)| gap.source).collect::<Vec<_>>())
        };
        assert_eq!(
            unread(|it| it.cluster.services = gap(Source::Services, Why::NotPermitted)),
            (vec![], vec![Source::Services])
        );
        assert_eq!(
            unread(|it| it.cluster.node_port_range = gap(Source::NodePortRange, Why::NotPermitted)),
            (vec![], vec![Source::NodePortRange])
        );
        assert_eq!(
            unread(|it| it.kernel.sysctls.ip_local_reserved_ports = gap(Source::Sysctls, Why::NotPermitted)).1[0],
            Source::Sysctls
        );
        assert_eq!(
            unread(|it| it.cluster.waiting_pods = gap(Source::WaitingPods, Why::NotPermitted)),
            (vec![10_000], vec![Source::WaitingPods])
        );
        assert_eq!(
            unread(|it| it.cluster.waiting_pods = gap(Source::WaitingPods, Why::NotRequested)),
            (vec![10_000], vec![])
        );
    }
}
