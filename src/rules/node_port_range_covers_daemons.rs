//! The NodePort range holds ports that daemons of this node need.
//!
//! ## Why it hurts
//! Every port of the range can become a NodePort, and then the proxy takes the daemon's connections. A Service with
//! nodePort 6443 answers for the API server, one with 10250 for the kubelet, one with 22 locks you out. The API server
//! does not compare its range with what runs on nodes: only a program on the node can.
//!
//! ## Silent when
//! no well-known port of a node's daemons lies in the range, and no daemon outside pods listens in it on a port that is
//! free. A daemon on a port that a Service has is reported by `listener-on-node-port`.
//!
//! ## Fix
//! Narrow `--service-node-port-range` of kube-apiserver (its default, 30000-32767, holds no well-known port), or move
//! the daemon out of it.

use std::collections::BTreeMap;

use super::{
    Limits, Patience, Rule,
    node_ports::{allocated_if_known, at_most, counted, range_in_words},
    socket_needs::{Ports, SocketNeed},
    wording::MOST_LISTED,
};
use crate::{
    dataplane::{DAEMON_PORTS, Own, Proxy, by_port, owner_name, place},
    facts::{Gap, NodePortRange, Owner, PortSet, Protocol, Snapshot, Socket, Source, View, Why},
    findings::{Evidence, Judgement, Judgements, RuleId, Severity, Step, Subject, Verdict},
};

/// Without one of these the node is lost: ssh, the API server, the kubelet.
const VITAL: [u16; 3] = [22, 6443, 10250];
pub(super) static RULE: Rule = Rule {
    id: RuleId("node-port-range-covers-daemons"),
    title: "NodePorts can be given that this node's daemons need",
    ceiling: Severity::Warning,
    needs: &[Source::Listeners, Source::Services, Source::NodePortRange],
    uses: &[],
    socket_needs: &[SocketNeed::Owners(Ports::NodePortRange), SocketNeed::Owners(Ports::Proxy)],
    patience: Patience::TwoScans,
    page: include_str!("node_port_range_covers_daemons.rs"),
    check,
};

fn check(view: View<'_>, _: &Limits) -> Judgements {
    let snapshot = view.now;
    let listeners = snapshot.kernel.listeners.get()?;
    let range = snapshot.cluster.node_port_range.get()?;
    let allocated = allocated_if_known(snapshot)?;

    let well_known: PortSet = DAEMON_PORTS.iter().copied().filter(|port| range.range.contains(*port)).collect();
    let proxy = Proxy::of(snapshot);
    let mut daemons = BTreeMap::new();
    let (mut unknown, mut not_allocated) = (None, Ok(()));
    for ((protocol, port), sockets) in by_port(listeners).ports() {
        if !range.range.contains(port) || allocated.has(port) == Ok(true) {
            continue;
        }
        for socket in sockets.iter().copied().filter(|socket| proxy.owns(socket) != Own::Yes) {
            match is_daemon(&socket.owner) {
                Ok(true) => {
                    daemons.entry((port, protocol)).or_insert(socket);
                    not_allocated = not_allocated.and(allocated.has(port).map(drop));
                }
                Ok(false) => {}
                Err(gap) => unknown = Some(gap),
            }
        }
    }
    let verdict = if !well_known.is_empty() || (!daemons.is_empty() && not_allocated.is_ok()) {
        Verdict::Problem(evidence(snapshot, range, &well_known, &daemons))
    } else if let Err(gap) = not_allocated {
        Verdict::Unknown(gap)
    } else if let Some(gap) = unknown {
        Verdict::Unknown(gap)
    } else {
        Verdict::Healthy
    };
    Ok(vec![Judgement { subject: Subject::this_node(snapshot), port: None, protocol: None, verdict }])
}

/// Whether a socket belongs to the node itself and not to a pod. Only a cgroup other than the root shows it.
fn is_daemon(owner: &Owner) -> Result<bool, Gap> {
    match owner {
        Owner::Kernel { .. } => Ok(true),
        Owner::NotAsked | Owner::TimeWait => Ok(false),
        Owner::Held(holder) => match holder.cgroup.get()? {
            cgroup if cgroup.pod.is_some() => Ok(false),
            cgroup if cgroup.is_root() => {
                let detail = "a listener in the NodePort range is in the root cgroup: a daemon's, or a pod's";
                Err(Gap::new(Source::Cgroups, Why::Ambiguous, detail))
            }
            _ => Ok(true),
        },
    }
}

fn evidence(
    snapshot: &Snapshot,
    range: &NodePortRange,
    well_known: &PortSet,
    daemons: &BTreeMap<(u16, Protocol), &Socket>,
) -> Evidence {
    let vital: PortSet = VITAL.into_iter().filter(|port| well_known.contains(*port)).collect();
    let (severity, holds) = match (vital.is_empty(), well_known.is_empty()) {
        (false, _) => (Severity::Warning, format!("{vital}, without which this node is lost")),
        (true, false) => (Severity::Info, "well-known ports of a node's daemons".to_owned()),
        (true, true) => (Severity::Info, "ports on which daemons of this node listen".to_owned()),
    };
    let sentence = format!("The NodePort range {} holds {holds}: a Service may take them over.", range.range);
    let mut evidence = Evidence::new(at_most(range, severity), sentence);
    for socket in daemons.values().take(MOST_LISTED) {
        evidence = evidence.value("daemon", format!("{} is {}", place(socket), owner_name(snapshot, &socket.owner)));
    }
    evidence = evidence.and_more("daemon", daemons.len(), MOST_LISTED);
    if !well_known.is_empty() {
        evidence = evidence.value("well-known ports inside", counted(well_known));
    }
    evidence = evidence.value("NodePort range", range_in_words(range));
    if well_known.is_empty() {
        return evidence.remedy(Step::advice("move each of these daemons to a port outside the NodePort range"));
    }
    let leave_out =
        "start kube-apiserver with a --service-node-port-range that leaves these ports out, e.g. 30000-32767";
    evidence.remedy(Step::advice(leave_out))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        facts::{
            Cgroup, Reading,
            healthy::{daemon, gap, proxy_holder},
        },
        findings::Subject,
        rules::expectations::{expect_healthy, expect_problem, expect_unknown},
    };

    fn subject() -> Subject {
        Subject::node("n1", None)
    }

    /// A severity and everything else as text.
    fn found(world: &Snapshot) -> (Severity, String) {
        let evidence = expect_problem(&RULE, world, &subject());
        (evidence.severity, format!("{evidence:?}"))
    }

    #[test]
    fn a_range_over_vital_ports_is_a_warning_that_lists_the_rest_too() {
        let (severity, found) = found(&Snapshot::healthy().node_port_range("1-32767"));
        assert_eq!(severity, Severity::Warning);
        assert!(found.contains("holds 22,6443,10250"), "{found}");
        assert!(found.contains("[::]:10250/tcp is process kubelet"), "{found}");
        assert!(found.contains("(35 ports)") && found.contains("--service-node-port-range"), "{found}");
    }

    #[test]
    fn a_range_over_other_well_known_ports_is_worth_knowing_even_if_nobody_listens() {
        let (severity, found) = found(&Snapshot::healthy().node_port_range("9000-9999"));
        assert_eq!(severity, Severity::Info);
        assert!(found.contains("holds well-known ports of a node's daemons"), "{found}");
        assert!(found.contains("9099-9100,9345,9808-9809 (5 ports)"), "{found}");
    }

    #[test]
    fn a_daemon_that_listens_in_the_range_is_worth_knowing() {
        let (severity, found) = found(&Snapshot::healthy().listens_as("0.0.0.0:30500", daemon("exporter", 9)));
        assert_eq!(severity, Severity::Info);
        assert!(found.contains("0.0.0.0:30500/tcp is process exporter") && found.contains("/flagz"), "{found}");
        assert!(found.contains("holds ports on which daemons of this node listen"), "{found}");
        assert!(found.contains("move each of these daemons"), "{found}");
    }

    #[test]
    fn the_default_range_pods_the_proxy_and_allocated_ports_are_silent() {
        expect_healthy(&RULE, &Snapshot::healthy(), &subject());
        expect_healthy(&RULE, &Snapshot::healthy().listens("0.0.0.0:30500"), &subject());
        expect_healthy(&RULE, &Snapshot::healthy().listens_as("0.0.0.0:30500", proxy_holder()), &subject());
        let allocated = Snapshot::healthy().service("web", |it| it.node_port(30500));
        expect_healthy(&RULE, &allocated.listens_as("0.0.0.0:30500", daemon("exporter", 9)), &subject());
    }

    #[test]
    fn a_crowd_of_daemons_is_cut() {
        let crowd = (0..20).fold(Snapshot::healthy(), |world, n| {
            world.listens_as(&format!("0.0.0.0:{}", 30500 + n), daemon("exporter", 9))
        });
        let (_, found) = found(&crowd);
        assert!(found.contains("and 4 more") && found.contains(":30515/") && !found.contains(":30516/"), "{found}");
    }

    #[test]
    fn a_cgroup_that_does_not_tell_is_unknown() {
        let root = |owner: &mut Owner| {
            let Owner::Held(holder) = owner else { panic!("a process holds it") };
            holder.cgroup = Reading::Seen(Cgroup { path: "/".to_owned(), pod: None });
        };
        let mut owner = daemon("exporter", 9);
        root(&mut owner);
        let world = Snapshot::healthy().listens_as("0.0.0.0:30500", owner);
        assert_eq!(expect_unknown(&RULE, &world, &subject()).source, Source::Cgroups);
    }

    #[test]
    fn unread_is_unknown() {
        let mut world = Snapshot::healthy().node_port_range("1-32767");
        world.kernel.listeners = gap(Source::Listeners, Why::Torn);
        assert_eq!(expect_unknown(&RULE, &world, &subject()).source, Source::Listeners);
        let world = Snapshot::healthy().rejects(Source::Services);
        expect_healthy(&RULE, &world, &subject());
        let world = world.listens_as("0.0.0.0:30500", daemon("exporter", 9));
        assert_eq!(expect_unknown(&RULE, &world, &subject()).source, Source::Services);
        expect_problem(&RULE, &world.node_port_range("1-32767"), &subject());
        let mut world = Snapshot::healthy();
        world.cluster.services = gap(Source::Services, Why::Unreachable);
        assert_eq!(expect_unknown(&RULE, &world, &subject()).source, Source::Services);
        world.cluster.node_port_range = gap(Source::NodePortRange, Why::Unreachable);
        assert_eq!(expect_unknown(&RULE, &world, &subject()).source, Source::NodePortRange);
    }
}
