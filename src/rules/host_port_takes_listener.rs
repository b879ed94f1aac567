//! A pod's hostPort is a port on which a process of the node listens.
//!
//! ## Why it hurts
//! A hostPort is a redirection that comes before any socket. The process still listens, `ss` shows it, and it answers
//! those connections that it already had; new ones go to the pod. On `::1` nothing answers at all: what comes from
//! there cannot be redirected, and is lost. Neither the scheduler nor the container runtime checks which processes
//! listen on the node: an ingress controller or a load balancer made of pods takes 80 and 443 away from a web server of
//! the host like this.
//!
//! ## Silent when
//! - the pod's `hostIP` is an address on which the process does not listen;
//! - the pod uses the host's network, is finished, runs on another node, or waits for one;
//! - it is about to start, and has no address yet;
//! - Cilium in place of kube-proxy leaves the hostPort out: `host-port-in-node-port-range` says so;
//! - Cilium does not serve a hostPort without a `hostIP` on an address of the process: it does where it serves NodePorts;
//! - the port is a Service's NodePort: `host-port-equals-node-port` says more;
//! - it is an unconnected UDP socket in the effective ephemeral port range, which is a client more often than not.
//!
//! It is information only where one process has a socket on each of the node's hostPorts, and there are several: a
//! runtime may hold them for its pods, as CRI-O did up to 1.30.
//!
//! ## Fix
//! Move the process to another port, or give the pod another hostPort.

use std::collections::BTreeSet;

use super::{
    Limits, Patience, Rule,
    ephemeral::EphemeralPorts,
    remedies::move_off,
    socket_needs::{Ports, SocketNeed},
    v6only::either_way,
    wording::capital,
};
use crate::{
    dataplane::{
        ByPort, Candidates, Group, LocalAddress, answering_vantage_points, by_port, group, host_ports,
        is_left_out_by_cilium, local_addresses, other_loopback, owner_evidence, owner_name, place, served_node_ports,
        socket_in_words, workers,
    },
    facts::{ContainerPort, Interfaces, Pod, Protocol, Snapshot, Socket, Source, View},
    findings::{Affected, Evidence, Judgement, Judgements, RuleId, Severity, Step, Subject, Verdict},
};

pub(super) static RULE: Rule = Rule {
    id: RuleId("host-port-takes-listener"),
    title: "A pod's hostPort takes the connections of a process",
    ceiling: Severity::Warning,
    needs: &[Source::Listeners, Source::Pods, Source::Services, Source::Addresses],
    uses: &[],
    socket_needs: &[SocketNeed::Owners(Ports::HostPorts)],
    patience: Patience::TwoScans,
    page: include_str!("host_port_takes_listener.rs"),
    check,
};

fn check(view: View<'_>, limits: &Limits) -> Judgements {
    let snapshot = view.now;
    let listening = by_port(snapshot.kernel.listeners.get()?);
    let pods = snapshot.cluster.pods.get()?;
    let services = snapshot.cluster.services.get()?;
    let interfaces = snapshot.kernel.interfaces.get()?;

    let node_ports: BTreeSet<_> =
        served_node_ports(services).map(|(_, port, number)| (port.protocol, number)).collect();
    let begun: Vec<_> = host_ports(snapshot, pods).filter(|(pod, ..)| has_begun(pod)).collect();
    let all: BTreeSet<_> = begun.iter().map(|(_, port, number)| (port.protocol, *number)).collect();
    let (locals, ephemeral) = (local_addresses(interfaces), EphemeralPorts::of(snapshot));
    let candidates = Candidates::of(snapshot, interfaces, limits.proxy_lag_seconds);
    let node = Node { snapshot, interfaces, candidates, locals, ephemeral, listening, all };
    Ok(begun
        .into_iter()
        .filter(|(_, port, number)| !node_ports.contains(&(port.protocol, *number)))
        .flat_map(|(pod, port, number)| {
            let sockets = node.listening.at((port.protocol, number));
            workers(sockets).into_iter().filter_map(|(socket, _)| node.judge(pod, port, socket)).collect::<Vec<_>>()
        })
        .collect())
}

/// What every socket is judged against.
struct Node<'a> {
    snapshot: &'a Snapshot,
    interfaces: &'a Interfaces,
    candidates: Candidates,
    locals: Vec<LocalAddress>,
    ephemeral: EphemeralPorts,
    listening: ByPort<'a>,
    /// Every hostPort of the pods that have begun.
    all: BTreeSet<(Protocol, u16)>,
}

impl Node<'_> {
    fn judge(&self, pod: &Pod, port: &ContainerPort, socket: &Socket) -> Option<Judgement> {
        Some(Judgement {
            subject: Subject::pod(pod),
            port: Some(socket.local_port),
            protocol: Some(socket.protocol),
            verdict: either_way(socket, |socket| self.verdict(pod, port, socket))?,
        })
    }

    fn verdict(&self, pod: &Pod, port: &ContainerPort, socket: &Socket) -> Option<Verdict> {
        let locals = self.locals.iter().copied().chain(other_loopback(&self.locals, socket));
        let (mut affected, mut is_certain) = (Affected::default(), true);
        for local in locals {
            for from in answering_vantage_points(socket, local.ip, self.interfaces) {
                let is_served = self.candidates.agree(|it| it.serves_host_port(port, local, *from));
                affected.extend((is_served == Some(true)).then_some(*from));
                is_certain &= is_served.is_some();
            }
        }
        if affected.is_empty() {
            return (!is_certain).then(|| Verdict::Unknown(self.candidates.ambiguity()));
        }
        let is_left_out = is_left_out_by_cilium(self.snapshot, socket.local_port);
        match (self.ephemeral.may_be_client(socket), is_left_out) {
            (Ok(true), _) | (_, Ok(true)) => None,
            (Err(gap), _) | (_, Err(gap)) => Some(Verdict::Unknown(gap)),
            (Ok(false), Ok(false)) => Some(Verdict::Problem(self.evidence(pod, port, socket, &affected))),
        }
    }

    /// Whether one owner that is known has a socket on each of several hostPorts.
    fn may_hold_them(&self, socket: &Socket) -> bool {
        let of_owner = |sockets: &[&Socket]| sockets.iter().any(|it| group(it) == group(socket));
        group(socket) != Group::Unknown
            && self.all.len() > 1
            && self.all.iter().all(|port| of_owner(self.listening.at(*port)))
    }

    fn evidence(&self, pod: &Pod, port: &ContainerPort, socket: &Socket, affected: &Affected) -> Evidence {
        let severity = if self.may_hold_them(socket) { Severity::Info } else { Severity::Warning };
        let owner = owner_name(self.snapshot, &socket.owner);
        let sentence = format!(
            "{} listens on {}, the hostPort of pod {}/{}: new connections go to the pod instead.",
            capital(&owner),
            place(socket),
            pod.namespace,
            pod.name
        );
        let mut evidence = Evidence::new(severity, sentence).value("listener", socket_in_words(socket));
        evidence.values.extend(owner_evidence(self.snapshot, &socket.owner));
        if severity == Severity::Info {
            evidence =
                evidence.value("other hostPorts", "have a socket of the same holder: it may keep them for the pods");
        }
        let address = port.host_ip.map_or("every address".to_owned(), |ip| ip.to_string());
        let (number, protocol) = (socket.local_port, socket.protocol);
        evidence
            .value("hostPort", format!("{number}/{protocol} on {address} to container port {}", port.port))
            .value("established connections", "survive; only new ones are lost")
            .affects(affected.iter().copied())
            .remedy(move_off(self.snapshot, socket))
            .remedy(Step::advice(format!(
                "give pod {}/{} another hostPort, where its containers are declared",
                pod.namespace, pod.name
            )))
    }
}

/// Whether a pod has its network, as far as its object tells; one that a person wrote has no status.
fn has_begun(pod: &Pod) -> bool {
    pod.ready || !pod.ips.is_empty() || pod.uid.is_none()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        facts::{
            Mode, Why,
            healthy::{PRIMARY, SECOND, gap, ip, objects},
        },
        findings::Vantage,
        rules::expectations::{expect_healthy, expect_problem, expect_unknown},
    };

    fn edge(change: fn(&mut Pod)) -> Snapshot {
        Snapshot::healthy().pod("edge", |pod| {
            pod.host_port(8080, 80);
            change(pod);
        })
    }

    fn subject() -> Subject {
        Subject::pod(&edge(|_| ()).cluster.pods.seen().expect("pods")[0])
    }

    #[test]
    fn a_process_on_a_host_port_is_told_with_its_pod() {
        let evidence = expect_problem(&RULE, &edge(|_| ()).listens("[::]:80"), &subject());
        assert_eq!((evidence.severity, evidence.affects.len()), (Severity::Warning, Vantage::ALL.len()));
        assert!(evidence.summary.contains("nginx listens on [::]:80/tcp, the hostPort of pod default/edge"));
        let [process, pod] = &evidence.remedies[..] else { panic!("{:?}", evidence.remedies) };
        assert!(process.steps[0].text.contains("move process nginx") && pod.steps[0].text.contains("another hostPort"));
    }

    #[test]
    fn only_what_both_claim_is_lost() {
        let on_loopback = edge(|pod| pod.ports[0].host_ip = Some(ip("127.0.0.1")));
        let evidence = expect_problem(&RULE, &on_loopback.clone().listens("0.0.0.0:80"), &subject());
        assert_eq!(evidence.affects, Affected::from([Vantage::Loopback]));
        expect_healthy(&RULE, &on_loopback.clone().listens("127.0.0.53:80"), &subject());
        let other = expect_problem(&RULE, &edge(|_| ()).listens("127.0.0.53:80"), &subject());
        assert_eq!(other.affects, Affected::from([Vantage::Loopback]));
        expect_healthy(&RULE, &on_loopback.listens(&format!("{}:80", PRIMARY[0])), &subject());
        expect_healthy(&RULE, &edge(|_| ()).listens_udp("0.0.0.0:80"), &subject());
    }

    #[test]
    fn host_network_finished_foreign_and_pending_pods_are_silent() {
        let changes: [fn(&mut Pod); 4] = [
            |pod| pod.host_network = true,
            |pod| pod.finished = true,
            |pod| pod.node = Some("n2".to_owned()),
            |pod| pod.node = None,
        ];
        for change in changes {
            expect_healthy(&RULE, &edge(change).listens("0.0.0.0:80"), &subject());
        }
        // Whoever wrote the pod by hand named no node, and means this one too.
        let written = |pod: &mut Pod| (pod.node, pod.uid) = (None, None);
        expect_problem(&RULE, &edge(written).listens("0.0.0.0:80"), &subject());
    }

    #[test]
    fn a_node_port_is_another_rules() {
        let world = edge(|pod| pod.ports[0].host_port = Some(30080)).listens("0.0.0.0:30080");
        expect_problem(&RULE, &world, &subject());
        expect_healthy(&RULE, &world.service("web", |it| it.node_port(30080)), &subject());
    }

    #[test]
    fn what_cilium_leaves_out_goes_to_the_process() {
        let at = |number: u16, mode: Mode| {
            let mut world = edge(|_| ()).with_mode(mode).listens(&format!("0.0.0.0:{number}"));
            objects(&mut world.cluster.pods)[0].ports[0].host_port = Some(number);
            world
        };
        expect_healthy(&RULE, &at(30080, Mode::Cilium), &subject());
        expect_problem(&RULE, &at(80, Mode::Cilium), &subject());
        expect_problem(&RULE, &at(30080, Mode::Iptables), &subject());
        let unknown = |number: u16| at(number, Mode::Cilium).without_proxy();
        expect_problem(&RULE, &unknown(80), &subject());
        expect_unknown(&RULE, &unknown(30080), &subject());
    }

    #[test]
    fn cilium_serves_it_for_others_on_one_address_of_each_device() {
        let on = |address: &str, mode: Mode| {
            let world = edge(|_| ()).with_mode(mode).listens(&format!("{address}:80"));
            expect_problem(&RULE, &world, &subject()).affects
        };
        let all: Affected = [Vantage::Remote, Vantage::Node, Vantage::Pods].into_iter().collect();
        assert_eq!(on(SECOND[0], Mode::Iptables), all);
        assert_eq!(on(PRIMARY[0], Mode::Cilium), all);
        assert_eq!(on(SECOND[0], Mode::Cilium), [Vantage::Node, Vantage::Pods].into_iter().collect());
        let other = edge(|_| ()).with_mode(Mode::Cilium).listens("198.51.100.7:80");
        expect_healthy(&RULE, &other, &subject());
    }

    #[test]
    fn a_pod_that_is_about_to_start_takes_nothing_yet() {
        let starts = |pod: &mut Pod| {
            pod.ready = false;
            pod.ips.clear();
        };
        expect_healthy(&RULE, &edge(starts).listens("0.0.0.0:80"), &subject());
        expect_problem(&RULE, &edge(|pod| pod.ready = false).listens("0.0.0.0:80"), &subject());
    }

    #[test]
    fn a_udp_client_is_silent_and_unknown_where_clients_are_not_told_apart() {
        let mut world = edge(|pod| {
            pod.ports[0].host_port = Some(40000);
            pod.ports[0].protocol = Protocol::Udp;
        });
        world = world.listens_udp("0.0.0.0:40000");
        expect_healthy(&RULE, &world, &subject());
        world.kernel.sysctls.ip_local_port_range = gap(Source::Sysctls, Why::NotPermitted);
        assert_eq!(expect_unknown(&RULE, &world, &subject()).source, Source::Sysctls);
    }

    #[test]
    fn who_has_a_socket_on_each_of_several_host_ports_may_be_the_runtime() {
        let two = |world: Snapshot| world.pod("other", |pod| pod.host_port(8443, 443)).listens("0.0.0.0:80");
        let found = |world: &Snapshot| {
            let evidence = expect_problem(&RULE, world, &subject());
            (evidence.severity, evidence.values.iter().any(|(name, _)| *name == "other hostPorts"))
        };
        assert_eq!(found(&two(edge(|_| ()))), (Severity::Warning, false));
        let held = two(edge(|_| ())).listens("0.0.0.0:443");
        assert_eq!(found(&held), (Severity::Info, true));
        let third = |change: fn(&mut Pod)| {
            held.clone().pod("third", |pod| {
                pod.host_port(8125, 8125);
                pod.ready = false;
                change(pod);
            })
        };
        assert_eq!(found(&third(|pod| pod.ips.clear())), (Severity::Info, true), "it is about to start");
        assert_eq!(found(&third(|_| ())), (Severity::Warning, false));
        assert_eq!(found(&third(|pod| (pod.uid, pod.ips) = (None, Vec::new()))), (Severity::Warning, false));
    }

    #[test]
    fn whether_it_takes_ipv4_too_may_not_be_told() {
        let mut world = edge(|pod| pod.ports[0].host_ip = Some(ip(PRIMARY[0]))).listens("[::]:80");
        let listeners = crate::facts::healthy::seen(&mut world.kernel.listeners);
        listeners.iter_mut().filter(|it| it.local_port == 80).for_each(|it| it.v6only = None);
        assert_eq!(expect_unknown(&RULE, &world, &subject()).why, Why::Ambiguous);
    }

    #[test]
    fn unread_is_unknown() {
        let without = |blind: fn(&mut Snapshot)| {
            let mut world = edge(|_| ()).listens("0.0.0.0:80");
            blind(&mut world);
            expect_unknown(&RULE, &world, &subject()).source
        };
        assert_eq!(without(|it| it.kernel.listeners = gap(Source::Listeners, Why::Torn)), Source::Listeners);
        assert_eq!(without(|it| it.cluster.pods = gap(Source::Pods, Why::Unreachable)), Source::Pods);
        assert_eq!(without(|it| it.cluster.services = gap(Source::Services, Why::Unreachable)), Source::Services);
        assert_eq!(without(|it| it.kernel.interfaces = gap(Source::Addresses, Why::Torn)), Source::Addresses);
    }
}
