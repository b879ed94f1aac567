//! The ports that the nodes of a cluster reserve, and one list of ports for all nodes.
//!
//! A write of `ip_local_reserved_ports` replaces the whole list. So the list for all nodes contains every port that any
//! node reserves.

use std::{collections::BTreeSet, time::Duration};

use super::{
    Limits,
    ephemeral::{effective_ephemeral, range_above, share},
    needed_ports::NeededPorts,
    node_ports::{ASSUMED_RANGE, disproved_range, ports_in_words},
    reservation::{FEWEST_LEFT, LONGEST, is_bearable, used},
    wording::{capital, listed},
};
use portreeve_dataplane::ByPort;
use portreeve_facts::{Gap, NodePortRange, PortRange, PortSet, RangeSource, Snapshot, if_requested, text};

/// The guard of a node (`portreeve guard`, which reserves ports), according to its record and its lock, or according to
/// its pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeGuard {
    /// Whether the guard runs.
    pub run: GuardRun,
    /// The ports that the guard reserved since the boot. `None` if only the guard's pod is known. Another machine
    /// cannot read the guard's record and lock, so it is not known whether such a guard works.
    pub ports: Option<PortSet>,
}

impl NodeGuard {
    /// The guard of a node on which a guard's pod is Ready.
    pub fn of_ready_pod() -> Self {
        Self { run: GuardRun::Runs, ports: None }
    }
}

/// Whether a guard runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GuardRun {
    /// The guard runs, and reserves the NodePort of a new Service within moments.
    Runs,
    /// A process has the guard's lock, but the guard does not work. The value is the time since the guard's last
    /// success.
    Stuck(Duration),
    /// No process has the guard's lock.
    Ended,
}

/// The ports that one node reserves, and the ports that it should reserve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeReservation {
    /// The name of the node.
    pub node: String,
    /// The NodePort range and its source.
    pub range: NodePortRange,
    /// `ip_local_port_range`.
    pub ephemeral: PortRange,
    /// `ip_local_reserved_ports`.
    pub reserved: PortSet,
    /// Needed ports that the kernel may give to outgoing connections. The needed ports are the NodePort range,
    /// NodePorts outside this range, hostPorts, and ports of this node's servers.
    pub exposed: PortSet,
    /// The NodePort range, and NodePorts outside this range.
    node_ports: PortSet,
    /// An unread input that may hide more exposed ports.
    pub unread: Option<Gap>,
    /// The guard of this node, if a guard has reserved ports.
    pub guard: Option<NodeGuard>,
    /// NodePorts of Services, hostPorts, and ports of servers, as far as this node's agent knows these ports.
    used: PortSet,
    has_services: bool,
    /// The reason why some NodePorts of Services may be unknown.
    unread_services: Option<Gap>,
}

/// The ports to reserve: one list, the same for all nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReservedList {
    /// The ports of the list: ports that nodes reserve now, NodePorts, hostPorts, and ports of servers.
    pub ports: PortSet,
    /// Whether the list contains all NodePorts. If all NodePorts would leave too few ports for outgoing connections,
    /// the list has only the NodePorts of Services. `false` if there is no list.
    pub whole_range: bool,
    /// Whether each node is compared with its own ports instead of the list. True if nodes report different NodePort
    /// ranges, or if there is no list.
    pub of_each: bool,
}

/// The reserved ports of all scanned nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FleetReservation {
    /// The nodes.
    pub nodes: Vec<NodeReservation>,
}

impl NodeReservation {
    /// The ports of one node, from its scan and from the known facts about its guard.
    ///
    /// # Errors
    /// Fails if a range or the list of reserved ports was not read.
    pub fn of(snapshot: &Snapshot, guard: Option<NodeGuard>) -> Result<Self, Gap> {
        let range = snapshot.cluster.node_port_range.get()?.clone();
        let choosable = effective_ephemeral(snapshot)?;
        let round = Limits::default().round(snapshot, None);
        let needed = NeededPorts::among(&choosable, &round);
        let services = if_requested(round.allocated().get());
        let used = used(&round, &choosable, &needed);
        let numbers = services.iter().flatten().copied().flat_map(ByPort::ports).map(|(number, _)| number);
        let node_ports = numbers.collect::<PortSet>().union(&range.range.into());
        let mut its = Self {
            node: snapshot.node_name().to_owned(),
            ephemeral: *snapshot.kernel.sysctls.ip_local_port_range.get()?,
            reserved: snapshot.kernel.sysctls.ip_local_reserved_ports.get()?.clone(),
            exposed: choosable.intersection(&node_ports.union(&used)),
            node_ports,
            unread: needed.unread_to_reserve().cloned(),
            used,
            has_services: matches!(services, Ok(Some(_))),
            unread_services: services.err().or(snapshot.cluster.unread_service().cloned()),
            guard: None,
            range,
        };
        // If the whole range is too large, the node needs only the NodePorts of Services.
        let unread = its.unread_services.clone().filter(|_| !its.own().1);
        // An unread pod may have a server that needs a port. If this host may be another node, its pods are unknown.
        let cluster = &snapshot.cluster;
        let of_name = || cluster.ambiguous_node().cloned();
        let of_range = || disproved_range(&round);
        its.unread = its.unread.or(unread).or_else(|| cluster.pods.gap().cloned()).or_else(of_name).or_else(of_range);
        Ok(match guard {
            Some(guard) => its.with_guard(guard),
            None => its,
        })
    }

    /// The ports of the node, with its guard.
    #[must_use]
    pub fn with_guard(mut self, guard: NodeGuard) -> Self {
        self.guard = Some(guard);
        if self.is_guarded() {
            self.unread = self.unread.or_else(|| self.unread_services.clone());
        }
        self
    }

    /// Whether a guard runs and Services were read. If true, a NodePort needs a reservation only if a Service has the
    /// NodePort.
    fn is_guarded(&self) -> bool {
        self.has_services && self.guard.as_ref().is_some_and(|guard| guard.run == GuardRun::Runs)
    }

    /// The ports that this node should reserve, but that its kernel may give to outgoing connections now. If a guard
    /// runs, the node should reserve the NodePorts of Services, hostPorts and ports of servers. Otherwise, the node
    /// should reserve the ports of the list, or its own ports if `of_each` is true.
    pub fn lacks(&self, list: &ReservedList) -> PortSet {
        let own = match self.is_guarded() {
            true => Some(self.used.clone()),
            false => list.of_each.then(|| self.own().0),
        };
        self.exposed.intersection(own.as_ref().unwrap_or(&list.ports))
    }

    /// The NodePorts outside `list` that outgoing connections may get. A Service may get such a NodePort later. The
    /// list leaves these NodePorts out, because a list with all NodePorts would leave too few ports for outgoing
    /// connections. Empty if a guard runs: the guard reserves a NodePort when a Service gets it.
    pub fn left_exposed(&self, list: &ReservedList) -> PortSet {
        if self.is_guarded() {
            return PortSet::default();
        }
        self.exposed.intersection(&self.range.range.into()).minus(&self.lacks(list))
    }

    /// The ports that this node should reserve without a common list, and whether these ports contain its whole
    /// NodePort range.
    fn own(&self) -> (PortSet, bool) {
        let whole = self.used.union(&self.range.range.into());
        if self.bears(&whole) { (whole, true) } else { (self.used.clone(), false) }
    }

    fn choosable(&self) -> PortSet {
        PortSet::from(self.ephemeral).minus(&self.reserved)
    }

    /// The share of NodePorts among the ports from which the kernel chooses: `2768 of 64512 (4.291 %)`.
    pub fn chance(&self) -> String {
        let choosable = self.choosable();
        share(choosable.intersection(&self.node_ports).len(), choosable.len())
    }

    /// Whether two nodes differ only in their names and in `used`.
    pub fn is_like(&self, other: &Self) -> bool {
        let range = |it: &Self| (it.range.range, it.range.source);
        let rest = |it: &Self| (it.ephemeral, it.unread.as_ref().map(|gap| (gap.source, gap.why)));
        range(self) == range(other)
            && rest(self) == rest(other)
            && (&self.reserved, &self.exposed) == (&other.reserved, &other.exposed)
            && (&self.guard, self.is_guarded()) == (&other.guard, other.is_guarded())
    }

    /// Whether the node keeps enough ports for outgoing connections if these ports are reserved.
    fn bears(&self, ports: &PortSet) -> bool {
        is_bearable(Some(self.ephemeral), &self.reserved, ports)
    }
}

impl FleetReservation {
    /// The reasons why the NodePort ranges may be wrong, one sentence for each reason.
    pub fn doubts(&self) -> Vec<String> {
        let ranges = self.ranges();
        let several =
            self.ranges_differ().then(|| format!("Nodes report different NodePort ranges: {}.", listed(&ranges)));
        let is_assumed = self.nodes.iter().any(|node| node.range.source == RangeSource::Assumed);
        let assumed = is_assumed.then(|| format!("{}.", capital(ASSUMED_RANGE)));
        several.into_iter().chain(assumed).collect()
    }

    fn ranges(&self) -> BTreeSet<PortRange> {
        self.nodes.iter().map(|node| node.range.range).collect()
    }

    /// Whether nodes report different NodePort ranges.
    pub fn ranges_differ(&self) -> bool {
        self.ranges().len() > 1
    }

    /// The value if there is no list for all nodes. Each node is then compared with its own ports.
    pub fn no_list() -> ReservedList {
        ReservedList { ports: PortSet::default(), whole_range: false, of_each: true }
    }

    /// One list for all nodes.
    ///
    /// # Errors
    /// Fails if each possible list leaves a node too few ports for outgoing connections. The error is a sentence for
    /// users.
    pub fn list(&self) -> Result<ReservedList, String> {
        let union_of = |ports: fn(&NodeReservation) -> PortSet| {
            self.nodes.iter().fold(PortSet::default(), |all, node| all.union(&ports(node)))
        };
        let kept = union_of(|node| node.reserved.clone());
        let of_each = self.ranges_differ();
        let own: Vec<_> = self.nodes.iter().map(NodeReservation::own).collect();
        let ports = own.iter().fold(kept.clone(), |all, (ports, _)| all.union(ports));
        let whole_range = own.iter().all(|(_, is_whole)| *is_whole);
        let wide = ReservedList { ports, whole_range, of_each };
        let of_services = kept.union(&union_of(|node| node.used.clone()));
        let narrow = ReservedList { ports: of_services, whole_range: false, of_each };
        self.check(&wide).map(|()| wide).or_else(|_| self.check(&narrow).map(|()| narrow))
    }

    /// One list for all nodes, short enough for one write to `ip_local_reserved_ports`.
    ///
    /// # Errors
    /// Fails if no list is possible, or if the list is too long for one write. The error is a sentence for users.
    pub fn writable_list(&self) -> Result<ReservedList, String> {
        let list = self.list()?;
        let length = list.ports.to_string().len();
        match length > LONGEST {
            true => Err(format!(
                "a list with all reserved ports of all nodes has {length} bytes; the kernel takes at most {LONGEST} at once{}",
                self.most()
            )),
            false => Ok(list),
        }
    }

    /// An ephemeral port range above all NodePorts, if that range is large enough.
    pub fn range_above(&self) -> Option<PortRange> {
        range_above(self.nodes.iter().map(|node| node.range.range).max_by_key(|range| range.last)?)
    }

    fn most(&self) -> String {
        self.nodes.iter().max_by_key(|node| node.reserved.len()).map_or_else(String::new, |node| {
            format!("; node {} reserves the most: {}", name(node), ports_in_words(&node.reserved))
        })
    }

    fn check(&self, list: &ReservedList) -> Result<(), String> {
        match self.nodes.iter().find(|node| !node.bears(&list.ports)) {
            None => Ok(()),
            Some(node) => Err(format!(
                "a list for all nodes would leave {} ports for outgoing connections of {}, but {FEWEST_LEFT} are needed: make the NodePort range narrower, or select fewer nodes with --node{}",
                node.choosable().minus(&list.ports).len(),
                name(node),
                self.most(),
            )),
        }
    }
}

fn name(node: &NodeReservation) -> String {
    text::clean(&node.node, text::NAME)
}

#[cfg(test)]
mod tests {
    use super::*;
    use portreeve_facts::{
        Source, Why,
        healthy::{gap, objects, seen},
    };

    fn fleet(nodes: &[Snapshot]) -> FleetReservation {
        FleetReservation {
            nodes: nodes.iter().map(|it| NodeReservation::of(it, None).expect("all was read")).collect(),
        }
    }

    fn ports(text: &str) -> PortSet {
        text.parse().expect("a list")
    }

    #[test]
    fn one_list_has_what_any_node_reserves_every_node_port_and_ports_of_servers() {
        let wide = Snapshot::healthy().ephemeral("1024 65535", "2703");
        let other = Snapshot::healthy().ephemeral("32768 60999", "9100-9101,30000-30999");
        let fleet = fleet(&[wide, other]);
        let list = fleet.list().expect("a list");
        // kubelet and kube-proxy listen on both nodes. Only the kernel of the first node may give the ports of these
        // listeners to connections.
        assert_eq!(list.ports.to_string(), "2703,9100-9101,10249-10250,10256,30000-32767");
        assert!(list.whole_range);
        assert_eq!(fleet.nodes[0].lacks(&list), ports("10249-10250,10256,30000-32767"));
        assert!(fleet.nodes[1].lacks(&list).is_empty(), "the ranges do not meet there");
        assert_eq!(fleet.nodes[0].chance(), "2768 of 64511 (4.291 %)");
        assert_eq!(fleet.nodes[1].chance(), "0 of 28232 (0.000 %)");
        let outside = Snapshot::healthy().ephemeral("32768 60999", "").service("web", |it| it.node_port(32800));
        assert_eq!(NodeReservation::of(&outside, None).expect("read").chance(), "1 of 28232 (0.004 %)");
    }

    #[test]
    fn what_is_reserved_already_is_not_missing() {
        let done = Snapshot::healthy().ephemeral("1024 65535", "10249-10250,10256,30000-32767");
        let fleet = fleet(&[done]);
        let list = fleet.list().expect("a list");
        assert!(fleet.nodes[0].lacks(&list).is_empty());
        let partly = Snapshot::healthy().ephemeral("30000 65535", "30000-32766");
        assert_eq!(NodeReservation::of(&partly, None).expect("read").exposed, ports("32767"));
    }

    #[test]
    fn with_a_guard_that_runs_the_node_ports_of_services_and_ports_of_servers_are_enough() {
        let world = |reserved: &str| {
            let world = Snapshot::healthy().ephemeral("9000 65535", reserved).node_port_range("30000-32767");
            let world = world
                .service("web", |it| it.node_port(30080).local().with(|it| it.health_check_node_port = Some(30999)));
            let edge = world.pod("edge", |pod| {
                pod.host_network = true;
                pod.host_port(31000, 31000);
            });
            edge.service("old", |it| it.node_port(40080))
        };
        let with_record = |run| NodeGuard { run, ports: Some(ports("30080,30999")) };
        let lacks_with = |world: &Snapshot, guard| {
            let fleet =
                FleetReservation { nodes: vec![NodeReservation::of(world, Some(guard)).expect("all was read")] };
            let list = fleet.list().expect("a list");
            assert!(list.whole_range, "the list for all nodes is as without a guard");
            (fleet.nodes[0].lacks(&list).to_string(), fleet.nodes[0].left_exposed(&list).len())
        };
        let lacks = |world: &Snapshot, run| lacks_with(world, with_record(run));
        let all = "10249-10250,10256,30080,30999-31000,40080";
        let (runs, stuck) = (GuardRun::Runs, GuardRun::Stuck(Duration::from_secs(600)));
        for guard in [with_record(runs), NodeGuard::of_ready_pod()] {
            assert_eq!(lacks_with(&world(all), guard), (String::new(), 0));
        }
        assert_eq!(lacks(&world("10249-10250,30999"), runs), ("10256,30080,31000,40080".to_owned(), 0));
        let no_guard = "10249-10250,10256,30000-32767";
        for run in [stuck, GuardRun::Ended] {
            assert_eq!(lacks(&world(all), run).0, "30000-30079,30081-30998,31001-32767", "nobody follows new Services");
            assert_eq!(lacks(&world(no_guard), run).0, "40080", "a Service outside of the range");
        }
        // Without the Services, any NodePort may belong to a Service.
        for why in [Why::NotRequested, Why::Unreachable] {
            let mut unread = world(all);
            unread.cluster.services = gap(Source::Services, why);
            assert_eq!(lacks(&unread, runs).0, "30000-30079,30081-30998,31001-32767", "{why:?}");
        }
        let malformed = world(all).rejects(Source::Services);
        let guard = NodeGuard { run: runs, ports: Some(PortSet::default()) };
        let unread = |guard| NodeReservation::of(&malformed, guard).expect("all was read").unread.map(|it| it.source);
        assert_eq!((unread(Some(guard)), unread(None)), (Some(Source::Services), None), "it may have a NodePort");
    }

    #[test]
    fn the_port_of_a_pod_that_may_be_on_a_node_without_a_name_is_reserved() {
        let world = Snapshot::healthy().ephemeral("1024 65535", "").pod("edge", |pod| {
            pod.node = Some("n2".to_owned());
            pod.host_port(80, 7000);
        });
        let has = |world: &Snapshot| NodeReservation::of(world, None).expect("all was read").exposed.contains(7000);
        assert!(!has(&world) && has(&world.clone().unnamed()));
    }

    #[test]
    fn where_only_what_services_have_is_kept_they_have_to_be_read() {
        let unread = |range: &str, why| {
            let mut world = Snapshot::healthy().ephemeral("1024 65535", "").node_port_range(range);
            world.cluster.services = gap(Source::Services, why);
            NodeReservation::of(&world, None).expect("the ranges were read").unread.map(|gap| gap.source)
        };
        assert_eq!(unread("1024-65535", Why::Unreachable), Some(Source::Services));
        assert_eq!(unread("1024-65535", Why::NotRequested), None);
        assert_eq!(unread("30000-32767", Why::Unreachable), None, "all of it is kept");
    }

    #[test]
    fn if_a_service_disproves_the_assumed_range_the_range_is_not_read() {
        let unread = |world: &Snapshot| NodeReservation::of(world, None).expect("read").unread.map(|gap| gap.source);
        let world = Snapshot::healthy().service("old", |it| it.node_port(40080));
        assert_eq!(unread(&world), None, "a source names the range");
        let mut to_come = world.assumed_range();
        assert_eq!(unread(&to_come), Some(Source::NodePortRange));
        objects(&mut to_come.cluster.services).iter_mut().for_each(|service| service.uid = None);
        assert_eq!(unread(&to_come), None, "the API server has not accepted the Service yet");
    }

    #[test]
    fn what_one_node_tells_of_its_range_covers_no_other() {
        let open = Snapshot::healthy().ephemeral("1024 65535", "30080-30081").node_port_range("30000-32767");
        for strange in ["1024-65535", "20000-60000", "20000-22000"] {
            let other = Snapshot::healthy().node_port_range(strange);
            let fleet = fleet(&[open.clone(), other]);
            let list = fleet.list().expect("a list");
            let lacks = fleet.nodes[0].lacks(&list);
            assert!(lacks.contains(30000) && lacks.contains(32767), "{strange}: {lacks}");
            assert!(list.of_each && fleet.doubts()[0].contains(strange), "{strange}");
        }
        // A port that only another node needs is not reported. If the whole range leaves too few ports, a node reserves
        // only the NodePorts of Services.
        let wide = Snapshot::healthy().ephemeral("1024 65535", "").node_port_range("1024-65535");
        let fleet = fleet(&[open, wide]);
        let list = fleet.list().expect("a list");
        assert!(list.ports.contains(31000) && !fleet.nodes[1].lacks(&list).contains(31000), "{:?}", fleet.nodes[1]);
    }

    #[test]
    fn where_the_whole_range_is_too_much_the_list_has_what_services_have() {
        let world = Snapshot::healthy().node_port_range("1024-65535").ephemeral("32768 60999", "40000");
        let fleet = fleet(&[world.service("web", |it| it.node_port(40080)).service("low", |it| it.node_port(2000))]);
        let list = fleet.list().expect("a list");
        assert_eq!((list.ports.to_string().as_str(), list.whole_range), ("2000,40000,40080", false));
        assert_eq!(fleet.nodes[0].lacks(&list), ports("40080"), "the others are nobody's");
    }

    #[test]
    fn a_node_that_reserves_everything_does_not_take_it_from_the_others() {
        let honest = Snapshot::healthy();
        let mut greedy = Snapshot::healthy().ephemeral("32768 60999", "1-65535");
        greedy.cluster.node_name = Some("evil\u{1b}[2J".to_owned());
        let refused = fleet(&[honest.clone(), greedy]).list().expect_err("nothing would be left");
        assert!(
            refused.contains("leave 0 ports for outgoing connections of n1")
                && refused.contains("evil[2J reserves the most: 1-65535"),
            "{refused}"
        );
        let every_other: Vec<String> = (32768..=60999).step_by(8).map(|port: u16| port.to_string()).collect();
        let long = Snapshot::healthy().ephemeral("32768 60999", &every_other.join(","));
        let fleet = fleet(&[honest, long]);
        let refused = fleet.writable_list().expect_err("no write takes it");
        assert!(refused.contains("the kernel takes at most 4094 at once"), "{refused}");
        let list = fleet.list().expect("nothing has to be written");
        assert!(list.whole_range && fleet.nodes.iter().all(|node| node.lacks(&list).is_empty()), "{list:?}");
    }

    #[test]
    fn what_was_not_read_is_not_guessed() {
        let mut world = Snapshot::healthy();
        world.kernel.sysctls.ip_local_reserved_ports = gap(Source::Sysctls, Why::NotPermitted);
        assert_eq!(NodeReservation::of(&world, None).expect_err("a gap").source, Source::Sysctls);
        let mut world = Snapshot::healthy();
        world.cluster.node_port_range = gap(Source::NodePortRange, Why::NotPermitted);
        assert_eq!(NodeReservation::of(&world, None).expect_err("a gap").source, Source::NodePortRange);
        let mut world = Snapshot::healthy();
        world.cluster.pods = gap(Source::Pods, Why::Unreachable);
        let unread = |world: &Snapshot| NodeReservation::of(world, None).expect("known").unread.map(|gap| gap.source);
        assert_eq!(unread(&world), Some(Source::Pods));
        let mut of_name = Snapshot::healthy();
        of_name.cluster.rejected.push(Gap::new(Source::Nodes, Why::Ambiguous, "this host may be another node"));
        assert_eq!(unread(&of_name), Some(Source::Nodes));
        assert_eq!(unread(&Snapshot::healthy().rejects(Source::Nodes)), None, "a wrong address of another Node");
    }

    #[test]
    fn nodes_that_differ_in_nothing_but_their_names_are_alike() {
        let [one, mut other] = [Snapshot::healthy(), Snapshot::healthy()];
        other.cluster.node_name = Some("n7".to_owned());
        seen(&mut other.cluster.node_port_range).place = "elsewhere".to_owned();
        let nodes = fleet(&[one, other.clone(), other.ephemeral("1024 65535", "")]).nodes;
        assert!(nodes[0].is_like(&nodes[1]) && !nodes[0].is_like(&nodes[2]));
        let [plain, reserves, narrow] =
            [Snapshot::healthy(), Snapshot::healthy().ephemeral("32768 60999", "40000"), Snapshot::healthy()];
        let nodes = fleet(&[plain, reserves, narrow.node_port_range("30000-31000")]).nodes;
        assert!(!nodes[0].is_like(&nodes[1]), "what it reserves is another thing");
        assert!(!nodes[0].is_like(&nodes[2]), "its NodePort range is another one");
    }
}
