//! The proxy does not answer on the healthCheckNodePort of a Service.

use std::collections::HashMap;

use super::{
    Limits, Round, Rule,
    ephemeral::with_ranges,
    ids,
    node_ports::if_served,
    remedies::{choose_another_health_check_port, health_check_events, move_off},
    socket_needs::{Ports, SocketNeed},
    wording::with_socket,
};
use crate::findings::{Evidence, Judgement, Judgements, Remedy, Severity, Step, Subject, Vantage, Verdict};
use portreeve_dataplane::{ByPort, Need, Own, Part, owner_name};
use portreeve_facts::{
    ClaimOf, Family, Gap, HealthCheckAnswer, Mode, Protocol, Reading, Service, Snapshot, Socket, Source, Unread, Why,
};

pub(super) static RULE: Rule = Rule::of(
    &ids::HEALTH_CHECK_UNSERVED,
    &["nobody", "other", "one-family"],
    &[Source::Listeners, Source::Services],
    check,
)
.uses(&[Source::Clients])
.sockets(&[
    SocketNeed::HealthCheckAnswers,
    SocketNeed::Owners(Ports::HealthCheckNodePorts),
    SocketNeed::Owners(Ports::Proxy),
]);

fn check(round: &Round<'_>, _: &Limits) -> Judgements {
    let by_port = round.listeners().get()?;
    let needs = round.needs().with(&[Source::Services])?;
    let answers = round.now.kernel.health_checks.known_part(Unread::Reported("Node::wrong")).iter();
    let answers = answers.map(|answer| (answer.port, answer)).collect();
    let node = Node { round, snapshot: round.now, by_port, answers };
    let judge = |need: &Need<'_>| if let Need::HealthCheck(service) = need { node.judge(service) } else { None };
    Ok(needs.iter().filter_map(judge).collect())
}

fn too_many() -> Gap {
    let detail =
        "Portreeve does not query so many healthCheckNodePorts, so it is not known whether the listener is the proxy";
    Gap::new(Source::HealthChecks, Why::TooMuch, detail)
}

struct Node<'r, 'a> {
    round: &'r Round<'a>,
    snapshot: &'a Snapshot,
    by_port: &'r ByPort<&'a Socket>,
    answers: HashMap<u16, &'a HealthCheckAnswer>,
}

enum Wrong<'a> {
    Nobody,
    /// Another process answers. The text is the Service that this process names in its answer.
    Other(&'a Socket, Option<&'a str>),
    /// Another process has the port in this family (IPv4 or IPv6). The proxy has the port in the other family.
    OfFamily(&'a Socket, Family),
}

impl<'a> Node<'_, 'a> {
    fn judge(&self, service: &Service) -> Option<Judgement> {
        let port = service.health_check_node_port?;
        let verdict = match self.wrong(service, port) {
            Ok(None) => return None,
            Ok(Some(wrong)) => match self.is_requested() {
                Ok(true) => Verdict::Problem(self.evidence(service, port, &wrong)),
                Ok(false) => return None,
                Err(gap) => Verdict::Unknown(gap),
            },
            Err(gap) => Verdict::Unknown(gap),
        };
        let verdict = if_served(self.round, service, Part::HealthCheck, verdict);
        Some(Judgement::on_port(Subject::service(service), (Protocol::Tcp, port), verdict))
    }

    /// Whether load balancers check this node.
    fn is_requested(&self) -> Result<bool, Gap> {
        self.snapshot.cluster.nodes.get()?;
        let node = self.snapshot.own_node().ok_or_else(|| {
            let detail = "the Node object of this node was not found, so this node may be excluded from load balancers";
            Gap::new(Source::Nodes, Why::Ambiguous, detail)
        })?;
        Ok(!node.excluded_from_load_balancers)
    }

    /// The problem of a health check. `None` if the proxy answers: the answer names the Service, or the proxy owns the
    /// socket.
    fn wrong(&self, service: &Service, port: u16) -> Result<Option<Wrong<'a>>, Gap> {
        let name = format!("{}/{}", service.namespace, service.name);
        let answer = self.answers.get(&port).map(|answer| &answer.service);
        let named = answer.and_then(|answer| answer.known(Unread::Doubted)).map(Option::as_deref);
        let sockets = self.by_port.at((Protocol::Tcp, port));
        if sockets.iter().any(|socket| self.round.proxy().owns(socket) == Own::Yes) {
            let mut kept_off = service.families.iter().map(|family| self.kept_off(sockets, *family));
            return kept_off.find_map(Result::transpose).transpose();
        }
        let beside = || sockets.iter().find_map(|socket| self.round.proxy().unread_beside(socket));
        if named == Some(Some(name.as_str())) {
            // A process of any user can answer with a Service's name, but the proxy runs as root.
            let Some(stranger) = sockets.iter().copied().find(|socket| !socket.is_of_root()) else { return Ok(None) };
            if sockets.iter().all(|socket| self.round.proxy().certainly_lacks(socket)) {
                return Ok(Some(Wrong::Other(stranger, named.flatten())));
            }
            let detail = format!("a process of user {} names the Service on this port", stranger.uid);
            return Err(beside().unwrap_or_else(|| Gap::new(Source::HealthChecks, Why::Ambiguous, detail)));
        }
        if sockets.is_empty() {
            return Ok(Some(Wrong::Nobody));
        }
        let first = sockets.first().copied();
        let unread = match (answer, &self.snapshot.kernel.health_checks) {
            (Some(_), _) => None,
            (None, Reading::Gap(gap)) => Some(gap.clone()).filter(|gap| gap.why != Why::NotRequested),
            (None, Reading::Seen(all)) => (all.len() >= HealthCheckAnswer::MOST).then(too_many),
        };
        match (named, answer.and_then(Reading::gap).cloned().or(unread.clone())) {
            (Some(named), _) => Ok(first.map(|socket| Wrong::Other(socket, named))),
            // The answers were not read, and only processes of root listen. An answer with this Service's name would be
            // healthy, so the result is unknown.
            (None, Some(gap)) if unread.is_some() && sockets.iter().all(|socket| socket.is_of_root()) => Err(gap),
            (None, _) if sockets.iter().all(|socket| self.round.proxy().certainly_lacks(socket)) => {
                Ok(first.map(|socket| Wrong::Other(socket, None)))
            }
            (None, Some(gap)) => Err(beside().unwrap_or(gap)),
            (None, None) => {
                let unread = || self.snapshot.kernel.health_checks.gap().cloned();
                Err(beside().or_else(unread).unwrap_or_else(too_many))
            }
        }
    }

    /// The problem, if every listener of this family belongs to another process.
    fn kept_off(&self, sockets: &[&'a Socket], family: Family) -> Result<Option<Wrong<'a>>, Gap> {
        let proxy = self.round.proxy();
        let of_family = || sockets.iter().copied().filter(move |socket| socket.serves(family) == Some(true));
        let Some(first) = of_family().next().filter(|_| !of_family().any(|socket| proxy.shares_owner(socket))) else {
            return Ok(None);
        };
        let perhaps: Vec<&Socket> = of_family().filter(|socket| !proxy.certainly_lacks(socket)).collect();
        if perhaps.is_empty() {
            return Ok(Some(Wrong::OfFamily(first, family)));
        }
        perhaps.into_iter().find_map(|socket| proxy.unread_beside(socket)).map_or(Ok(None), Err)
    }

    fn evidence(&self, service: &Service, port: u16, wrong: &Wrong<'_>) -> Evidence {
        let name = format!("{}/{}", service.namespace, service.name);
        let mode = self.snapshot.proxy_mode();
        // If the proxy is not known, this node may serve no Services at all.
        let severity = if mode.is_ok() { Severity::Critical } else { Severity::Warning };
        let what = match wrong {
            Wrong::Nobody => {
                "is not served on this node, because no process listens: its load balancer sends no traffic to this node"
                    .to_owned()
            }
            Wrong::Other(socket, _) => format!(
                "is not served on this node, because {} answers instead: its load balancer sends no traffic to this node",
                owner_name(self.snapshot, &socket.owner)
            ),
            Wrong::OfFamily(socket, family) => format!(
                "is not served on this node over {family}, because {} has the port: a load balancer that checks over {family} sends no traffic to this node",
                owner_name(self.snapshot, &socket.owner)
            ),
        };
        let sentence = format!("The health check of {name} on {port}/tcp {what}.");
        let mut evidence = Evidence::new(severity, sentence).variant(match wrong {
            Wrong::Nobody => "nobody",
            Wrong::Other(..) => "other",
            Wrong::OfFamily(..) => "one-family",
        });
        if let Wrong::Other(socket, _) | Wrong::OfFamily(socket, _) = wrong {
            evidence = with_socket(evidence, "listener", self.snapshot, socket);
        }
        if let Wrong::Other(_, named) = wrong {
            // No proxy serves the port of a Service in a manifest yet. So for a manifest, this rule reports only
            // another process on the port.
            evidence = evidence
                .about([ClaimOf::node_port(service, None)])
                .each("answers for", named.as_ref().map(|named| format!("Service {named}")));
        }
        evidence = evidence
            .value(
                "service",
                format!("{name} type LoadBalancer, externalTrafficPolicy Local, healthCheckNodePort {port}"),
            )
            .value(
                "proxy mode",
                match &mode {
                    Ok(mode) => mode.to_string(),
                    Err(gap) => format!("unknown, this node may have no proxy: {}", gap.detail),
                },
            );
        // An assumption about unread listeners is added to the evidence only if no process listens.
        let assumed = self.round.assumed_unbound((Protocol::Tcp, port));
        evidence = with_ranges(evidence, self.snapshot).each("assumed", assumed);
        if severity == Severity::Critical {
            evidence = evidence.affects([Vantage::Remote]);
        }
        let evidence = match wrong {
            // If Cilium replaces kube-proxy, Cilium's agent serves health checks, and writes no Events about them.
            Wrong::Nobody if self.snapshot.is_in(Mode::Cilium) => {
                let setting = "check that cilium-config does not disable enable-health-check-nodeport";
                evidence
                    .remedy(Remedy::from(Step::advice(setting)).then(Step::advice("restart this node's Cilium agent")))
            }
            Wrong::Nobody => {
                let restart = Step::advice("restart this node's kube-proxy");
                evidence.remedy(Remedy::from(health_check_events(service)).then(restart))
            }
            Wrong::Other(socket, _) | Wrong::OfFamily(socket, _) => evidence.remedy(move_off(self.snapshot, socket)),
        };
        evidence.remedy(choose_another_health_check_port(service))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::expectations::{expect_healthy, expect_problem, expect_unknown};
    use portreeve_facts::{
        ForCilium, Owner, ServiceKind,
        healthy::{World, daemon, gap, held, objects, proxy_holder, seen},
    };

    fn balanced(it: World) -> World {
        it.node_port(30080).local().with(|service| {
            service.kind = ServiceKind::LoadBalancer;
            service.health_check_node_port = Some(30999);
        })
    }

    fn world() -> Snapshot {
        Snapshot::healthy().service("lb", balanced)
    }

    fn subject() -> Subject {
        Subject::service(&world().cluster.services.seen().expect("services")[0])
    }

    fn answered(mut world: Snapshot, service: Reading<Option<String>>) -> Snapshot {
        seen(&mut world.kernel.health_checks).push(HealthCheckAnswer { port: 30999, service });
        world
    }

    fn names(name: &str) -> Reading<Option<String>> {
        Reading::Seen(Some(name.to_owned()))
    }

    #[test]
    fn behind_cilium_its_agent_is_restarted_and_not_a_kube_proxy() {
        let first = |mode: Mode| {
            let remedies = expect_problem(&RULE, &world().with_mode(mode), &subject()).remedies;
            remedies[0].steps.iter().map(|step| step.text.clone()).collect::<Vec<_>>().join("; ")
        };
        assert!(first(Mode::Iptables).contains("restart this node's kube-proxy"));
        let cilium = first(Mode::Cilium);
        assert!(cilium.contains("enable-health-check-nodeport") && cilium.ends_with("Cilium agent"), "{cilium}");
    }

    #[test]
    fn nobody_there_is_critical_for_outside_clients() {
        let evidence = expect_problem(&RULE, &world(), &subject());
        assert_eq!((evidence.severity, evidence.variant), (Severity::Critical, "nobody"));
        assert!(evidence.affects.contains(&Vantage::Remote));
        assert!(evidence.about.is_empty(), "nothing is wrong with the field");
        let text = format!("{evidence:?}");
        assert!(text.contains("30999/tcp is not served on this node, because no process listens"), "{text}");
        assert!(text.contains("FailedToStartServiceHealthcheck") && text.contains("externalTrafficPolicy"), "{text}");
    }

    #[test]
    fn before_linux_6_8_nobody_there_assumes_that_no_socket_is_bound_to_the_port() {
        let assumed = |release: &str, change: fn(Snapshot) -> Snapshot| {
            let mut world = change(world());
            world.kernel.release = release.to_owned();
            let values = expect_problem(&RULE, &world, &subject()).values;
            values.into_iter().filter(|(name, _)| *name == "assumed").map(|(_, value)| value).collect::<Vec<_>>()
        };
        let words = "no socket is bound to 30999/tcp without listening; Linux lists such sockets since 6.8, and this node has 5.15.0-105-generic";
        assert_eq!(assumed("5.15.0-105-generic", |it| it), [words]);
        assert_eq!(assumed("6.8.0-41-generic", |it| it), [""; 0]);
        let squatted = |world: Snapshot| answered(world.listens("[::]:30999"), names("default/other"));
        assert_eq!(assumed("5.15.0-105-generic", squatted), [""; 0], "a process has the port");
    }

    #[test]
    fn without_a_known_proxy_it_is_a_warning() {
        let evidence = expect_problem(&RULE, &world().without_proxy(), &subject());
        assert_eq!(evidence.severity, Severity::Warning);
        assert!(evidence.affects.is_empty());
    }

    #[test]
    fn who_is_not_root_is_not_believed_to_serve_a_health_check() {
        let mut squatted = world().listens("[::]:30999");
        seen(&mut squatted.kernel.listeners).iter_mut().for_each(|socket| socket.uid = 1000);
        let answered = answered(squatted, names("default/lb"));
        let evidence = expect_problem(&RULE, &answered, &subject());
        assert!(evidence.summary.contains("process nginx answers instead"), "{}", evidence.summary);
        let mut unnamed = answered;
        for socket in seen(&mut unnamed.kernel.listeners) {
            socket.owner = portreeve_facts::Owner::Held(portreeve_facts::Holder {
                cgroup: gap(Source::Cgroups, Why::NotSupported),
                process: gap(Source::Processes, Why::NotPermitted),
            });
        }
        assert_eq!(expect_unknown(&RULE, &unnamed, &subject()).why, Why::Ambiguous);
    }

    #[test]
    fn somebody_else_is_named() {
        let squatted = world().listens("0.0.0.0:30999");
        for answer in [Reading::Seen(None), names("default/other"), gap(Source::HealthChecks, Why::TimedOut)] {
            let evidence = expect_problem(&RULE, &answered(squatted.clone(), answer), &subject());
            assert_eq!((evidence.severity, evidence.variant), (Severity::Critical, "other"));
            let text = format!("{evidence:?}");
            assert!(text.contains("process nginx answers instead") && text.contains("pid 4242"), "{text}");
            assert!(text.contains("move process nginx off port 30999/tcp"), "{text}");
            assert_eq!(evidence.about.len(), 1, "a manifest has the field");
        }
        let other = expect_problem(&RULE, &answered(squatted, names("default/other")), &subject());
        assert!(format!("{other:?}").contains("Service default/other"));
    }

    #[test]
    fn the_proxys_own_listener_and_the_right_answer_are_healthy() {
        expect_healthy(&RULE, &world().listens_as("[::]:30999", proxy_holder()), &subject());
        expect_healthy(&RULE, &answered(world().listens("[::]:30999"), names("default/lb")), &subject());
        expect_healthy(&RULE, &answered(world(), names("default/lb")), &subject());
    }

    #[test]
    fn a_family_that_the_proxy_is_kept_off_is_told() {
        let own = world().listens_as("[::]:30999", proxy_holder());
        let both = |mut world: Snapshot| {
            let listeners = seen(&mut world.kernel.listeners);
            let proxys = listeners.iter_mut().find(|it| it.local_port == 30999).expect("the proxy's");
            proxys.v6only = Some(true);
            answered(world, names("default/lb"))
        };
        expect_healthy(&RULE, &both(own.clone()), &subject());
        let evidence = expect_problem(&RULE, &both(own.clone().listens("127.0.0.1:30999")), &subject());
        assert!(
            evidence.summary.contains("not served on this node over IPv4, because process nginx has the port"),
            "{evidence:?}"
        );
        let beside = own.listens("127.0.0.1:30999").listens_as("192.0.2.1:30999", proxy_holder());
        expect_healthy(&RULE, &both(beside), &subject());
    }

    #[test]
    fn an_earlier_process_with_an_unread_group_may_be_the_proxy_before_a_restart() {
        let started = |pid: u32, started: u64| {
            let mut owner = held("/system.slice/kube-proxy.service", None, "kube-proxy", pid);
            if let Owner::Held(holder) = &mut owner {
                seen(&mut holder.process).started = started;
            }
            owner
        };
        let with_proxy = |mut world: Snapshot| {
            let Owner::Held(proxy) = started(900, 700) else { unreachable!("a process") };
            (world.kernel.proxy.cgroup, world.kernel.proxy.process) = (proxy.cgroup, proxy.process);
            answered(world, gap(Source::HealthChecks, Why::TimedOut))
        };
        let beside = |world: Snapshot, at: u64| {
            let mut owner = started(800, at);
            if let Owner::Held(holder) = &mut owner {
                holder.cgroup = gap(Source::Cgroups, Why::Stale);
            }
            with_proxy(world.listens_as("127.0.0.1:30999", owner))
        };
        let mut of_ipv6 = world().listens_as("[::]:30999", started(900, 700));
        seen(&mut of_ipv6.kernel.listeners).last_mut().expect("the proxy's").v6only = Some(true);
        for (world, variant) in [(world(), "other"), (of_ipv6, "one-family")] {
            assert_eq!(expect_problem(&RULE, &beside(world.clone(), 800), &subject()).variant, variant);
            assert_eq!(expect_unknown(&RULE, &beside(world, 600), &subject()).source, Source::Cgroups, "{variant}");
        }
    }

    #[test]
    fn an_excluded_node_another_proxy_and_another_policy_are_silent() {
        let mut excluded = world();
        objects(&mut excluded.cluster.nodes)[0].excluded_from_load_balancers = true;
        expect_healthy(&RULE, &excluded, &subject());
        let changed = |change: fn(&mut Service)| Snapshot::healthy().service("lb", |it| balanced(it).with(change));
        expect_healthy(&RULE, &changed(|service| service.proxy_name = Some("other".to_owned())), &subject());
        expect_healthy(&RULE, &changed(|service| service.external_local = false), &subject());
        expect_healthy(&RULE, &changed(|service| service.kind = ServiceKind::NodePort), &subject());
    }

    #[test]
    fn behind_cilium_what_an_annotation_keeps_off_the_node_is_no_fault_of_it() {
        let world = |for_cilium| {
            let kept = |it: World| balanced(it).with(|service| service.for_cilium = for_cilium);
            Snapshot::healthy().service("lb", kept).with_mode(Mode::Cilium)
        };
        expect_problem(&RULE, &world(ForCilium::default()), &subject());
        let only = |kind| ForCilium { only: Some(kind), ..ForCilium::default() };
        expect_healthy(&RULE, &world(only(ServiceKind::ClusterIp)), &subject());
        expect_problem(&RULE, &world(only(ServiceKind::NodePort)), &subject());
        let unknown =
            expect_unknown(&RULE, &world(ForCilium { on_some_nodes: true, ..ForCilium::default() }), &subject());
        assert!(unknown.detail.contains("/node"), "{unknown:?}");
    }

    #[test]
    fn a_listener_of_whom_nothing_is_known_is_unknown() {
        let mut world = world().without_proxy().listens("0.0.0.0:30999");
        world.kernel.health_checks = gap(Source::HealthChecks, Why::TimedOut);
        assert_eq!(expect_unknown(&RULE, &world, &subject()).source, Source::HealthChecks);
    }

    #[test]
    fn a_listener_that_was_not_asked_may_name_the_service_if_it_is_root() {
        let mut world = world().listens_as("0.0.0.0:30999", daemon("other", 9));
        let answers =
            |service: Reading<Option<String>>| Reading::Seen(vec![HealthCheckAnswer { port: 30999, service }]);
        world.kernel.health_checks = answers(Reading::Seen(None));
        expect_problem(&RULE, &world, &subject());
        world.kernel.health_checks = answers(gap(Source::HealthChecks, Why::TimedOut));
        expect_problem(&RULE, &world, &subject());
        world.kernel.health_checks = Reading::Seen(Vec::new());
        expect_problem(&RULE, &world, &subject());
        let most = u16::try_from(HealthCheckAnswer::MOST).expect("few");
        let others = (1..=most).map(|port| HealthCheckAnswer { port, service: Reading::Seen(None) });
        world.kernel.health_checks = Reading::Seen(others.collect());
        assert_eq!(expect_unknown(&RULE, &world, &subject()).why, Why::TooMuch);
        seen(&mut world.kernel.listeners).last_mut().expect("one").uid = 1000;
        expect_problem(&RULE, &world, &subject());
    }

    #[test]
    fn a_node_that_may_be_excluded_is_unknown() {
        let mut absent = world();
        seen(&mut absent.cluster.nodes).clear();
        assert_eq!(expect_unknown(&RULE, &absent, &subject()).why, Why::Ambiguous);
        absent.cluster.nodes = gap(Source::Nodes, Why::NotRequested);
        assert_eq!(expect_unknown(&RULE, &absent, &subject()).source, Source::Nodes);
    }

    #[test]
    fn unread_is_unknown() {
        let mut world = world();
        world.kernel.listeners = gap(Source::Listeners, Why::Torn);
        assert_eq!(expect_unknown(&RULE, &world, &subject()).source, Source::Listeners);
        let mut world = Snapshot::healthy();
        world.cluster.services = gap(Source::Services, Why::Unreachable);
        assert_eq!(expect_unknown(&RULE, &world, &subject()).source, Source::Services);
    }
}
