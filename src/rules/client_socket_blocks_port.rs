//! An outgoing connection sits on a port on which a process needs to listen, and none does.
//!
//! ## Why it hurts
//! As long as a connection has a local port, no process can begin to listen on it: `bind` fails with *address already
//! in use*, even with SO_REUSEADDR, and `ss -l` shows no process there. It happens when the ephemeral range covers the
//! port of a server that starts later or restarts: a Service's health check, a hostNetwork pod, kube-proxy itself. The
//! pod crash-loops, or the load balancer drops the node, until the connection happens to end.
//!
//! ## Silent when
//! a process listens on the port, the pod is ready or finished, or the Service needs no health check here. While the
//! rightful listener is there, accepted connections look the same and block nothing. For a health check each family
//! counts by itself: kube-proxy has a socket for each, and one of them may be blocked alone. On a host with more than
//! 16,384 connections, whose ephemeral range covers no port that matters, only a process that binds the port on purpose
//! has it: there the agent looks at every twentieth look.
//!
//! ## Fix
//! Reserve the port, so that the kernel does not choose it, and end the connection: restart the process that has it.
//! TIME_WAIT has no owner, and ends by itself within a minute.

use super::{
    Limits, Patience, Rule,
    ephemeral::ranges_in_words,
    remedies::reserve,
    socket_needs::{Ports, SocketNeed},
    wording::{MOST_SOCKETS, capital},
};
use crate::{
    dataplane::{PROXY_METRICS, by_port, owner_evidence, owner_name, served_health_checks, socket_in_words},
    facts::{Family, Gap, Mode, Owner, Protocol, Snapshot, Socket, Source, View, Why},
    findings::{Evidence, Judgement, Judgements, RuleId, Severity, Step, Subject, Verdict},
};

/// kube-proxy's own health.
const PROXY_HEALTH: u16 = 10256;

pub(super) static RULE: Rule = Rule {
    id: RuleId("client-socket-blocks-port"),
    title: "An outgoing connection keeps a server off its port",
    ceiling: Severity::Warning,
    needs: &[Source::Clients, Source::Listeners, Source::Services, Source::Pods],
    uses: &[Source::Sockstat],
    socket_needs: &[
        SocketNeed::Clients(Ports::HealthCheckNodePorts),
        SocketNeed::Clients(Ports::UnreadyHostNetworkPods),
        SocketNeed::Clients(Ports::Proxy),
    ],
    patience: Patience::TwoScans,
    page: include_str!("client_socket_blocks_port.rs"),
    check,
};

fn check(view: View<'_>, _: &Limits) -> Judgements {
    let snapshot = view.now;
    let clients = snapshot.kernel.clients.get()?;
    let listening = by_port(snapshot.kernel.listeners.get()?);
    let services = snapshot.cluster.services.get()?;
    let pods = snapshot.cluster.pods.get()?;

    let connected = by_port(&clients.sockets);
    let health_checks = served_health_checks(services).map(|(service, port)| Absent {
        subject: Subject::service(service),
        port,
        protocol: Protocol::Tcp,
        families: Some(&service.families),
        whose: format!("the health check of Service {}/{}", service.namespace, service.name),
        expected: Ok(()),
    });
    let here = pods.iter().filter(|pod| pod.node.as_deref().is_none_or(|node| node == snapshot.node_name()));
    let unready = here.filter(|pod| pod.host_network && !pod.finished && !pod.ready).flat_map(|pod| {
        pod.ports.iter().map(move |port| Absent {
            subject: Subject::pod(pod),
            port: port.port,
            protocol: port.protocol,
            families: None,
            whose: format!("hostNetwork pod {}/{}", pod.namespace, pod.name),
            expected: Ok(()),
        })
    });
    Ok(health_checks
        .chain(unready)
        .chain(proxy(snapshot))
        .filter_map(|absent| {
            let place = (absent.protocol, absent.port);
            let listeners = listening.at(place);
            let mut sockets = connected.at(place).to_vec();
            sockets.retain(|socket| absent.is_blocked_by(socket, listeners));
            if sockets.is_empty() {
                return None;
            }
            let verdict = match &absent.expected {
                Ok(()) => Verdict::Problem(evidence(snapshot, &absent, &sockets)),
                Err(gap) => Verdict::Unknown(gap.clone()),
            };
            let Absent { subject, port, protocol, .. } = absent;
            Some(Judgement { subject, port: Some(port), protocol: Some(protocol), verdict })
        })
        .collect())
}

/// A process that would listen there, where none does.
struct Absent<'a> {
    subject: Subject,
    port: u16,
    protocol: Protocol,
    /// Those in each of which it would listen with a socket of its own; nothing where one socket may serve both.
    families: Option<&'a [Family]>,
    /// In words.
    whose: String,
    /// That a process would listen there at all, or why that is not known.
    expected: Result<(), Gap>,
}

impl Absent<'_> {
    /// Whether an outgoing connection is in the way, given who listens on its port.
    fn is_blocked_by(&self, socket: &Socket, listeners: &[&Socket]) -> bool {
        match self.families {
            Some(families) => families.iter().any(|family| {
                let free = listeners.iter().all(|it| it.serves(*family) == Some(false));
                free && socket.serves(*family) == Some(true)
            }),
            None => listeners.is_empty(),
        }
    }
}

/// kube-proxy's own ports. One that answers `/proxyMode` has its metrics port, if perhaps another one.
fn proxy(snapshot: &Snapshot) -> Vec<Absent<'static>> {
    let expected = match snapshot.proxy_mode() {
        Ok(mode) if !Mode::KUBE_PROXY.contains(&mode.value) => return Vec::new(),
        Ok(_) => Ok(()),
        Err(gap) => {
            Err(Gap::new(gap.source, Why::Ambiguous, "a connection is on a port of kube-proxy, if there is one"))
        }
    };
    let answers = snapshot.kernel.proxy.mode.seen().is_some();
    [PROXY_METRICS, PROXY_HEALTH]
        .into_iter()
        .filter(|port| *port != PROXY_METRICS || !answers)
        .map(|port| Absent {
            subject: Subject::this_node(snapshot),
            port,
            protocol: Protocol::Tcp,
            families: None,
            whose: "kube-proxy".to_owned(),
            expected: expected.clone(),
        })
        .collect()
}

fn evidence(snapshot: &Snapshot, absent: &Absent<'_>, sockets: &[&Socket]) -> Evidence {
    let Absent { port, protocol, whose, .. } = absent;
    // A live process can let go; TIME_WAIT cannot.
    let owned = sockets.iter().find(|socket| socket.owner != Owner::TimeWait);
    let owner = owned.or(sockets.first()).map_or_else(String::new, |socket| owner_name(snapshot, &socket.owner));
    let sentence = format!(
        "{} has an outgoing connection from port {port}/{protocol}, on which nobody listens: {whose} cannot have it.",
        capital(&owner)
    );
    let mut evidence = Evidence::new(Severity::Warning, sentence).value("needed by", whose);
    for socket in sockets.iter().take(MOST_SOCKETS) {
        evidence = evidence.value("socket", socket_in_words(socket));
        evidence.values.extend(owner_evidence(snapshot, &socket.owner));
    }
    evidence = evidence.and_more("socket", sockets.len(), MOST_SOCKETS);
    evidence.values.extend(ranges_in_words(snapshot));
    let ports = [*port].into_iter().collect();
    evidence.remedy(reserve(snapshot, &ports).then(Step::advice(match owned {
        Some(_) => format!("restart {owner}, or let it reconnect"),
        None => "wait a minute: TIME_WAIT ends by itself".to_owned(),
    })))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        facts::{
            ContainerPort, Pod, Service, ServiceKind, State,
            healthy::{World, gap, seen},
        },
        rules::expectations::{expect_healthy, expect_problem, expect_unknown},
    };

    const REMOTE: &str = "192.0.2.9:443";

    fn balanced(it: World) -> World {
        it.local().with(|service| {
            service.kind = ServiceKind::LoadBalancer;
            service.health_check_node_port = Some(30999);
        })
    }

    /// A Service whose health check needs 30999, and a connection from there.
    fn checked() -> Snapshot {
        Snapshot::healthy().service("lb", balanced).connects(State::Established, "192.0.2.1:30999", REMOTE)
    }

    fn service() -> Subject {
        Subject::service(&checked().cluster.services.seen().expect("services")[0])
    }

    /// A hostNetwork pod that needs 8443, and a connection from there.
    fn unready(change: fn(&mut Pod)) -> (Snapshot, Subject) {
        let world = Snapshot::healthy().connects(State::Established, "192.0.2.1:8443", REMOTE).pod("ingress", |pod| {
            (pod.host_network, pod.ready) = (true, false);
            pod.ports.push(ContainerPort { port: 8443, host_port: Some(8443), host_ip: None, protocol: Protocol::Tcp });
            change(pod);
        });
        let subject = Subject::pod(&world.cluster.pods.seen().expect("pods")[0]);
        (world, subject)
    }

    #[test]
    fn a_health_check_cannot_listen_where_a_connection_is() {
        let evidence = expect_problem(&RULE, &checked(), &service());
        assert_eq!(evidence.severity, Severity::Warning);
        let found = format!("{evidence:?}");
        assert!(found.contains("Process nginx has an outgoing connection from port 30999/tcp"), "{found}");
        assert!(found.contains("tcp ESTAB 192.0.2.1:30999 -> 192.0.2.9:443") && found.contains("pid 4242"), "{found}");
        let steps = &evidence.remedies[0].steps;
        assert_eq!(steps[0].text, "sysctl -w net.ipv4.ip_local_reserved_ports=\"30999\"");
        assert_eq!(steps.last(), Some(&Step::advice("restart process nginx, or let it reconnect")));
    }

    #[test]
    fn time_wait_has_no_owner_and_ends_by_itself() {
        let world = Snapshot::healthy().service("lb", balanced);
        let world =
            world.socket(Protocol::Tcp, State::TimeWait, "192.0.2.1:30999", REMOTE, |it| it.owner = Owner::TimeWait);
        let found = format!("{:?}", expect_problem(&RULE, &world, &service()));
        assert!(
            found.contains("A connection in TIME_WAIT, which has no owner") && found.contains("wait a minute"),
            "{found}"
        );
    }

    #[test]
    fn an_unready_host_network_pod_cannot_listen_where_a_connection_is() {
        let (world, subject) = unready(|_| ());
        let evidence = expect_problem(&RULE, &world, &subject);
        assert!(evidence.summary.contains("hostNetwork pod default/ingress cannot have it"), "{}", evidence.summary);
        assert!(evidence.remedies[0].steps[0].text.ends_with("=\"8443\""), "{:?}", evidence.remedies);
    }

    #[test]
    fn ready_finished_foreign_and_other_pods_are_silent() {
        let changes: [fn(&mut Pod); 5] = [
            |pod| pod.ready = true,
            |pod| pod.finished = true,
            |pod| pod.node = Some("n2".to_owned()),
            |pod| pod.host_network = false,
            |pod| pod.ports[0].protocol = Protocol::Udp,
        ];
        for change in changes {
            let (world, subject) = unready(change);
            expect_healthy(&RULE, &world, &subject);
        }
    }

    #[test]
    fn where_somebody_listens_connections_are_accepted_ones() {
        expect_healthy(&RULE, &checked().listens("0.0.0.0:30999"), &service());
        let mut other_family = checked().listens("[::]:30999");
        seen(&mut other_family.kernel.listeners).last_mut().expect("a listener").v6only = Some(true);
        expect_problem(&RULE, &other_family, &service());
        let changed = |change: fn(&mut Service)| {
            let world = Snapshot::healthy().service("lb", |it| balanced(it).with(change));
            world.connects(State::Established, "192.0.2.1:30999", REMOTE)
        };
        expect_healthy(&RULE, &changed(|service| service.external_local = false), &service());
        expect_healthy(&RULE, &changed(|service| service.proxy_name = Some("other".to_owned())), &service());
    }

    #[test]
    fn kube_proxys_own_ports_count_where_there_is_a_kube_proxy() {
        let node = Subject::node("n1", None);
        let blocked = |port: u16| {
            let mut world =
                Snapshot::healthy().connects(State::Established, &format!("127.0.0.1:{port}"), "127.0.0.1:6443");
            seen(&mut world.kernel.listeners).retain(|socket| socket.local_port != port);
            world
        };
        let evidence = expect_problem(&RULE, &blocked(10256), &node);
        assert!(evidence.summary.contains("kube-proxy cannot have it"), "{}", evidence.summary);
        expect_healthy(&RULE, &blocked(10249), &node);
        let mut silent = blocked(10249);
        silent.kernel.proxy.mode = gap(Source::ProxyMode, Why::Unreachable);
        expect_problem(&RULE, &silent, &node);
        assert_eq!(expect_unknown(&RULE, &blocked(10249).without_proxy(), &node).source, Source::ProxyMode);
        expect_healthy(&RULE, &blocked(10256).with_mode(Mode::Cilium), &node);
    }

    #[test]
    fn unread_is_unknown() {
        let without = |blind: fn(&mut Snapshot)| {
            let mut world = checked();
            blind(&mut world);
            expect_unknown(&RULE, &world, &service()).source
        };
        assert_eq!(without(|it| it.kernel.clients = gap(Source::Clients, Why::Torn)), Source::Clients);
        assert_eq!(without(|it| it.kernel.listeners = gap(Source::Listeners, Why::Torn)), Source::Listeners);
        assert_eq!(without(|it| it.cluster.services = gap(Source::Services, Why::Unreachable)), Source::Services);
        assert_eq!(without(|it| it.cluster.pods = gap(Source::Pods, Why::Unreachable)), Source::Pods);
    }
}
