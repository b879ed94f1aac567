//! A process listens on a port of the NodePort range, or a pod in the host's network will listen on such a port. No
//! Service has the port yet.

use super::{
    Limits, Round, Rule,
    assumed::assuming,
    capped::{in_order, of_sockets},
    ephemeral::{EphemeralPorts, with_ranges},
    ids,
    node_ports::{KnownAllocations, allocated_if_known, bands_here, range_in_words},
    pods::{PortOf, to_come},
    remedies::move_off,
    reservation::reserve,
    socket_needs::{Ports, SocketNeed},
    wording::{MOST_LISTED, capital, with_socket},
};
use crate::findings::{Affected, Evidence, Judgement, Judgements, Severity, Step, Subject, Verdict};
use portreeve_dataplane::{
    Addressed, Judged, LocalAddress, Port, Role, is_everywhere, is_usual, other_loopback, owner_name, place, takes,
    vantage_points,
};
use portreeve_facts::{
    ContainerPort, Gap, NodePortRange, PortSet, Protocol, Reading, Snapshot, Socket, Source, Vantage, Why, Workload,
};

pub(super) static RULE: Rule = Rule::of(
    &ids::LISTENER_ON_NODE_PORT,
    &["latent"],
    &[Source::Listeners, Source::Services, Source::NodePortRange, Source::Addresses],
    check,
)
.sockets(&[SocketNeed::Owners(Ports::NodePortRange), SocketNeed::Owners(Ports::Proxy)]);

fn check(round: &Round<'_>, _: &Limits) -> Judgements {
    let mut judgements = match round.now.kernel.listeners.gap() {
        // If the node was not scanned, the ports of future pods are still known.
        Some(gap) if gap.why == Why::NotRequested => Vec::new(),
        _ => judge_listeners(round)?,
    };
    judgements.extend(judge_to_come(round)?);
    Ok(judgements)
}

fn judge_to_come(round: &Round<'_>) -> Judgements {
    let snapshot = round.now;
    let mut workloads = to_come(snapshot).filter(|workload| workload.host_network).peekable();
    if workloads.peek().is_none() {
        return Ok(Vec::new());
    }
    let range = snapshot.cluster.node_port_range.get()?;
    let allocated = allocated_if_known(round)?;
    let is_latent = |port: u16| range.range.contains(port) && !is_usual(port, Role::Daemon);
    let ports =
        workloads.flat_map(|workload| workload.node_ports().map(move |(number, port)| (workload, number, port)));
    let judgement = |(workload, number, port): (&Workload, u16, &ContainerPort)| {
        let verdict = match allocated.has(number) {
            Ok(true) => return None,
            Ok(false) => Verdict::Problem(evidence_to_come(range, workload, number, port.protocol)),
            Err(gap) => Verdict::Unknown(gap),
        };
        Some(Judgement::on_port(Subject::cluster(), (port.protocol, number), verdict))
    };
    Ok(ports.filter(|(_, number, _)| is_latent(*number)).filter_map(judgement).collect())
}

fn evidence_to_come(range: &NodePortRange, workload: &Workload, number: u16, protocol: Protocol) -> Evidence {
    let of = PortOf::Workload(workload);
    let sentence = format!(
        "host network port {number}/{protocol} of {workload} lies in the NodePort range: if a Service gets this port, it also gets the new connections."
    );
    of.named_in(Evidence::new(of.in_range(range), sentence), number, protocol)
        .in_cluster()
        .value("NodePort range", range_in_words(range))
        .remedy(Step::advice(format!("give {workload} a port of the node outside the NodePort range")))
}

fn judge_listeners(round: &Round<'_>) -> Judgements {
    let snapshot = round.now;
    let listeners = round.listeners().get()?;
    let range = snapshot.cluster.node_port_range.get()?;
    let (addressed, allocated, ephemeral) =
        (round.addressed().get()?, allocated_if_known(round)?, EphemeralPorts::of(snapshot));

    let node = Node { round, snapshot, range, allocated, addressed, ephemeral };
    let latent = listeners
        .ports()
        .filter(|((_, port), _)| range.range.contains(*port) && node.allocated.has(*port) != Ok(true))
        .filter(|((_, port), _)| !is_usual(*port, Role::Daemon));
    Ok(latent.flat_map(|(port, sockets)| node.judge_some(port, sockets)).collect())
}

struct Node<'r, 'a> {
    round: &'r Round<'a>,
    snapshot: &'a Snapshot,
    range: &'a NodePortRange,
    allocated: KnownAllocations<'r>,
    addressed: &'r Addressed<'a>,
    ephemeral: EphemeralPorts,
}

impl Node<'_, '_> {
    /// The judgements about one port. A user can make any number of sockets on a port.
    fn judge_some(&self, port: Port, sockets: &[&Socket]) -> Vec<Judgement> {
        let sockets = in_order(sockets, |socket| !socket.local.is_unspecified());
        let mut latent: Vec<Evidence> = Vec::new();
        let (_, mut unknown) = of_sockets(port, &sockets, |(socket, _)| match self.judge(socket)? {
            Ok(evidence) => {
                latent.push(evidence);
                None
            }
            unknown => Some(unknown),
        });
        let all = latent.len();
        // No client loses yet, so more of these sockets change nothing.
        unknown.retain(|gap| gap.why != Why::TooMuch || all == 0);
        let problem = latent.into_iter().take(MOST_LISTED).reduce(Evidence::merge);
        let problem = problem.map(|it| Verdict::Problem(it.and_more("listener", all, MOST_LISTED)));
        let verdicts = problem.into_iter().chain(unknown.into_iter().map(Verdict::Unknown));
        verdicts.map(|it| Judgement::on_port(Subject::this_node(self.snapshot), port, it)).collect()
    }

    fn judge(&self, socket: &Socket) -> Option<Result<Evidence, Gap>> {
        let excuse = self.excuse(socket);
        let everywhere = is_everywhere(socket);
        let (judged, stratum) = self.addressed.over(everywhere, |assumption, case| {
            let is_lost = self.places(socket).any(|(from, to)| {
                assumption.may_take_from((to, (socket.protocol, socket.local_port)), from)
                    && takes(case, socket, (from, to), self.addressed.interfaces)
            });
            match (is_lost, &excuse) {
                (false, _) | (true, Ok(true)) => Ok(None),
                // The finding does not name vantage points: no Service has the port yet.
                (true, Ok(false)) => Ok(Some(Affected::new())),
                (true, Err(gap)) => Err(gap.clone()),
            }
        });
        match judged {
            Judged::Never => None,
            Judged::Depends { on, .. } => Some(Err(on)),
            Judged::Certain(..) => {
                let evidence = self.evidence(socket, self.ephemeral.contain(socket.local_port));
                assuming(stratum, everywhere, Verdict::Problem(evidence)).into_problem().map(Ok)
            }
        }
    }

    fn excuse(&self, socket: &Socket) -> Result<bool, Gap> {
        Ok(self.round.proxy().is_own(socket)?
            || self.ephemeral.may_be_client(socket)?
            || self.allocated.has(socket.local_port)?)
    }

    fn places(&self, socket: &Socket) -> impl Iterator<Item = (Vantage, LocalAddress)> {
        let locals = &self.addressed.locals;
        let all = locals.iter().copied().chain(other_loopback(locals, socket));
        all.flat_map(|to| vantage_points(to.ip).iter().map(move |from| (*from, to)))
    }

    fn evidence(&self, socket: &Socket, by_kernel: bool) -> Evidence {
        let owner = owner_name(self.snapshot, &socket.owner);
        let sentence = format!(
            "{} listens on {}, inside the NodePort range: if a Service gets this port, it also gets the new connections.",
            capital(&owner),
            place(socket)
        );
        let mut evidence = with_socket(Evidence::new(Severity::Info, sentence), "listener", self.snapshot, socket)
            .each("assumed", self.ephemeral.assumed_of(socket));
        if by_kernel {
            evidence = evidence.value(
                "chosen by",
                "perhaps the kernel: the port is in the ephemeral range and not reserved, so the process may have another port after a restart",
            );
        }
        let bands = bands_here(self.snapshot, self.range.range);
        evidence = evidence.value(
            "band",
            match bands.fixed {
                Some(fixed) if fixed.contains(socket.local_port) => {
                    format!("static ({fixed}): given to Services that ask for it")
                }
                _ => format!("dynamic ({}): given to any new Service", bands.dynamic),
            },
        );
        if let Reading::Gap(gap) = &self.snapshot.cluster.services {
            evidence = evidence
                .value("services", format!("not read, so a Service may have this port already: {}", gap.detail));
        }
        evidence = evidence.value("proxy mode", self.addressed.assumptions.mode_in_words());
        evidence = with_ranges(evidence, self.snapshot);
        let mut remedy = move_off(self.snapshot, socket);
        if by_kernel {
            remedy.steps.extend(reserve(self.round, &PortSet::from(self.range.range)).steps);
        }
        evidence.remedy(remedy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        capped::MOST_JUDGED,
        expectations::{expect_certain, expect_healthy, expect_problem, expect_unknown, wanting},
        findings::Subject,
    };
    use portreeve_facts::{
        KernelFacts, Mode, ProxyConfig, State, WorkloadKind,
        healthy::{SECOND, daemon, gap, objects, proxy_holder, seen},
    };

    fn subject() -> Subject {
        Subject::node("n1", None)
    }

    fn world() -> Snapshot {
        Snapshot::healthy().listens("0.0.0.0:30500")
    }

    fn found(world: &Snapshot) -> String {
        let evidence = expect_problem(&RULE, world, &subject());
        assert_eq!(evidence.severity, Severity::Info);
        assert!(evidence.affects.is_empty(), "no client loses yet");
        format!("{evidence:?}")
    }

    #[test]
    fn a_listener_on_a_port_that_no_service_has_yet_is_worth_knowing() {
        let found = found(&world());
        assert!(found.contains("Process nginx listens on 0.0.0.0:30500/tcp"), "{found}");
        assert!(found.contains("dynamic (30086-32767)") && found.contains("kube-apiserver /flagz"), "{found}");
        assert!(found.contains("move process nginx off port 30500/tcp") && !found.contains("sysctl -w"), "{found}");
    }

    #[test]
    fn the_band_of_the_port_is_named() {
        let fixed = found(&Snapshot::healthy().listens("0.0.0.0:30085"));
        assert!(fixed.contains("static (30000-30085): given to Services that ask for it"), "{fixed}");
        let dynamic = found(&Snapshot::healthy().listens("0.0.0.0:30086"));
        assert!(dynamic.contains("dynamic (30086-32767): given to any new Service"), "{dynamic}");
    }

    #[test]
    fn an_old_cluster_has_one_band() {
        let mut world = world();
        for node in objects(&mut world.cluster.nodes) {
            node.kubelet_version = Some("v1.24.17".to_owned());
        }
        assert!(found(&world).contains("dynamic (30000-32767)"), "{}", found(&world));
    }

    #[test]
    fn an_allocated_port_is_another_rules_and_a_health_check_is_allocated() {
        expect_healthy(&RULE, &world().service("web", |it| it.node_port(30500)), &subject());
        let check =
            |world: Snapshot| world.service("lb", |it| it.with(|service| service.health_check_node_port = Some(30500)));
        expect_healthy(&RULE, &check(world()), &subject());
    }

    #[test]
    fn outside_the_range_and_on_well_known_ports_is_silent() {
        expect_healthy(&RULE, &Snapshot::healthy().listens("0.0.0.0:29999"), &subject());
        expect_healthy(&RULE, &Snapshot::healthy().node_port_range("1-65535"), &subject());
        expect_healthy(&RULE, &Snapshot::healthy().listens_as("0.0.0.0:30500", proxy_holder()), &subject());
    }

    #[test]
    fn where_the_mode_never_takes_a_connection_it_is_silent() {
        for address in ["127.0.0.1", "127.0.0.53"] {
            let loopback = Snapshot::healthy().listens(&format!("{address}:30500"));
            found(&loopback);
            expect_healthy(&RULE, &loopback.with_mode(Mode::Nftables), &subject());
            expect_healthy(&RULE, &loopback.with_mode(Mode::Ipvs), &subject());
            assert_eq!(expect_unknown(&RULE, &loopback.without_proxy(), &subject()).source, Source::ProxyMode);
        }
        let second = Snapshot::healthy().listens(&format!("{}:30500", SECOND[0]));
        expect_healthy(&RULE, &second.with_mode(Mode::Nftables), &subject());
        found(&world().without_proxy());
    }

    #[test]
    fn a_socket_on_a_device_without_node_ports_is_silent() {
        let of_device = |it: &mut Socket| it.device = 3;
        let world = Snapshot::healthy().address("eth1", "198.51.100.1");
        let world = world.socket(Protocol::Tcp, State::Listen, "0.0.0.0:30500", "0.0.0.0:0", of_device);
        found(&world);
        expect_healthy(&RULE, &world.with_mode(Mode::Nftables), &subject());
    }

    #[test]
    fn whether_it_takes_ipv4_too_may_not_be_told() {
        let mut world = Snapshot::healthy().listens("[::]:30500");
        let listeners = seen(&mut world.kernel.listeners);
        listeners.iter_mut().filter(|it| it.local_port == 30500).for_each(|it| it.v6only = None);
        let both = found(&world);
        assert!(both.contains("[::]:30500") && !both.contains("v6only"), "it is not told: {both}");
        let four_only = |config: &mut ProxyConfig| {
            config.node_port_addresses = ["192.0.2.0/24", "2001:db8:ffff::/48"].map(str::to_owned).into();
        };
        let four_only = world.with_mode(Mode::Nftables).with_config(four_only);
        assert_eq!(expect_unknown(&RULE, &four_only, &subject()).source, Source::Listeners);
    }

    #[test]
    fn a_port_that_the_kernel_may_have_chosen_is_said_to_be() {
        let found = found(&world().ephemeral("1024 65535", "2703"));
        assert!(found.contains("perhaps the kernel"), "{found}");
        assert!(found.contains("ip_local_reserved_ports=\\\"2703,10249-10250,10256,30000-32767\\\""), "{found}");
        let reserved = world().ephemeral("1024 65535", "30000-32767");
        assert!(!self::found(&reserved).contains("perhaps the kernel"));
    }

    #[test]
    fn an_unconnected_udp_socket_in_the_ephemeral_range_is_a_client() {
        let udp = Snapshot::healthy().listens_udp("0.0.0.0:30500");
        found(&udp);
        expect_healthy(&RULE, &udp.clone().ephemeral("1024 65535", ""), &subject());
        let reserved = found(&udp.clone().ephemeral("1024 65535", "30000-32767"));
        assert!(reserved.contains("an older socket may belong to a client"), "{reserved}");
        let mut unread = udp;
        unread.kernel.sysctls.ip_local_port_range = gap(Source::Sysctls, Why::NotPermitted);
        assert_eq!(expect_unknown(&RULE, &unread, &subject()).source, Source::Sysctls);
    }

    #[test]
    fn a_port_that_a_pod_to_come_in_the_hosts_network_will_have_needs_no_node_to_be_told() {
        let of = |change: fn(&mut Workload)| {
            let mut world = Snapshot::healthy();
            let workload = wanting(30500, |it| {
                (it.host_network, it.ports[0].port, it.ports[0].host_port) = (true, 30500, None);
                change(it);
            });
            world.cluster.workloads.push(workload.into());
            world
        };
        let cluster = Subject::cluster();
        let evidence = expect_problem(&RULE, &of(|_| ()), &cluster);
        assert_eq!(evidence.severity, Severity::Warning);
        assert_eq!(
            evidence.summary,
            "host network port 30500/tcp of DaemonSet default/agent lies in the NodePort range: if a Service gets this port, it also gets the new connections."
        );
        let deployment = of(|it| it.kind = WorkloadKind::Deployment);
        assert_eq!(expect_problem(&RULE, &deployment, &cluster).severity, Severity::Info);
        let mut unseen = of(|_| ());
        unseen.kernel = KernelFacts::not_requested();
        expect_problem(&RULE, &unseen, &cluster);
        let silent: [fn(&mut Workload); 2] = [|it| it.ports[0].port = 9100, |it| it.host_network = false];
        for change in silent {
            expect_healthy(&RULE, &of(change), &cluster);
        }
        expect_healthy(&RULE, &of(|_| ()).service("web", |it| it.node_port(30500)), &cluster);
        let one_is_rejected = of(|_| ()).rejects(Source::Services);
        assert_eq!(expect_unknown(&RULE, &one_is_rejected, &cluster).source, Source::Services);
    }

    #[test]
    fn of_many_listeners_on_one_port_some_are_listed_and_all_are_counted() {
        let many = |all: u32| {
            (0..all).fold(Snapshot::healthy(), |world, n| {
                let local = format!("127.0.{}.{}:30500", n / 250, 2 + n % 250);
                world.listens_as(&local, daemon(&format!("daemon-{n}"), n + 100))
            })
        };
        let evidence = expect_problem(&RULE, &many(40), &subject());
        let listed = evidence.values.iter().filter(|(name, _)| *name == "listener");
        assert_eq!((listed.count(), evidence.severity), (MOST_LISTED + 1, Severity::Info));
        assert!(evidence.values.contains(&("listener", "and 24 more".to_owned())), "{evidence:#?}");
        expect_certain(&RULE, &many(40), &subject());
        expect_certain(&RULE, &many(MOST_JUDGED as u32 + 1), &subject());
    }

    #[test]
    fn without_any_cluster_the_node_is_still_judged_and_says_so() {
        let mut alone = world().assumed_range();
        alone.cluster.configured = false;
        alone.cluster.services = gap(Source::Services, Why::NotRequested);
        let found = found(&alone);
        assert!(found.contains("a Service may have this port already") && found.contains("assumed"), "{found}");
    }

    #[test]
    fn unread_is_unknown() {
        let mut unread = world();
        unread.cluster.services = gap(Source::Services, Why::Unreachable);
        assert_eq!(expect_unknown(&RULE, &unread, &subject()).source, Source::Services);
        let rejected = world().rejects(Source::Services);
        assert_eq!(expect_unknown(&RULE, &rejected, &subject()).source, Source::Services);
        expect_healthy(&RULE, &rejected.service("web", |it| it.node_port(30500)), &subject());
        found(&world().rejects(Source::Pods));
        let mut unread = world();
        unread.cluster.node_port_range = gap(Source::NodePortRange, Why::Unreachable);
        assert_eq!(expect_unknown(&RULE, &unread, &subject()).source, Source::NodePortRange);
        let mut torn = world();
        seen(&mut torn.kernel.listeners).clear();
        torn.kernel.listeners = gap(Source::Listeners, Why::Torn);
        assert_eq!(expect_unknown(&RULE, &torn, &subject()).why, Why::Torn);
    }
}
