//! The NodePort range covers ports that daemons of nodes usually have.

use std::collections::BTreeMap;

use super::{
    Limits, Round, Rule, ids,
    node_ports::{allocated_if_known, at_most, counted, range_in_words},
    socket_needs::{Ports, SocketNeed},
};
use crate::findings::{Evidence, Judgement, Judgements, Severity, Step, Subject, Verdict};
use portreeve_dataplane::{Need, Role, owner_name, place, usual_ports};
use portreeve_facts::{NodePortRange, PortSet, Protocol, Snapshot, Socket, Source};

pub(super) static RULE: Rule = Rule::of(
    &ids::NODE_PORT_RANGE_MISMATCH,
    &["daemons"],
    &[Source::Listeners, Source::Services, Source::NodePortRange],
    check,
)
.sockets(&[SocketNeed::Owners(Ports::NodePortRange)]);

fn check(round: &Round<'_>, _: &Limits) -> Judgements {
    let snapshot = round.now;
    let needs = round.needs().with(&[Source::Listeners])?;
    let range = snapshot.cluster.node_port_range.get()?;
    let allocated = allocated_if_known(round)?;

    let inside = |role| usual_ports(role).map(|it| it.number).filter(|port| range.range.contains(*port)).collect();
    let well_known: PortSet = inside(Role::Daemon);
    let mut daemons = BTreeMap::new();
    for ((protocol, port), needs) in needs.ports() {
        if well_known.contains(port) && allocated.has(port) != Ok(true) {
            daemons.extend(needs.iter().filter_map(|need| match need {
                Need::Daemon(socket) => Some(((port, protocol), *socket)),
                _ => None,
            }));
        }
    }
    let verdict = match well_known.is_empty() {
        true => Verdict::Healthy,
        false => Verdict::Problem(evidence(snapshot, range, (&well_known, &inside(Role::Vital)), &daemons)),
    };
    Ok(vec![Judgement::of(Subject::this_node(snapshot), verdict)])
}

fn evidence(
    snapshot: &Snapshot,
    range: &NodePortRange,
    (well_known, vital): (&PortSet, &PortSet),
    daemons: &BTreeMap<(u16, Protocol), &Socket>,
) -> Evidence {
    let (severity, holds) = match vital.is_empty() {
        false => (Severity::Warning, format!("{vital}, and this node is unreachable without them")),
        true => (Severity::Info, "well-known ports of a node's daemons".to_owned()),
    };
    let sentence = format!("The NodePort range {} has {holds}: a Service may get their connections.", range.range);
    let daemon = |socket: &Socket| format!("{} is {}", place(socket), owner_name(snapshot, &socket.owner));
    let leave_out = "start kube-apiserver with a --service-node-port-range without these ports, e.g. 30000-32767";
    Evidence::new(at_most(range, severity), sentence)
        .list("daemon", daemons.values().map(|socket| daemon(socket)))
        .value("well-known ports inside", counted(well_known))
        .value("NodePort range", range_in_words(range))
        .remedy(Step::advice(leave_out))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        expectations::{expect_healthy, expect_problem, expect_unknown},
        findings::Subject,
    };
    use portreeve_facts::{
        Why,
        healthy::{daemon, gap},
    };

    fn subject() -> Subject {
        Subject::node("n1", None)
    }

    fn found(world: &Snapshot) -> (Severity, String) {
        let evidence = expect_problem(&RULE, world, &subject());
        (evidence.severity, format!("{evidence:?}"))
    }

    #[test]
    fn a_range_over_vital_ports_is_a_warning_that_lists_the_rest_too() {
        let (severity, found) = found(&Snapshot::healthy().node_port_range("1-32767"));
        assert_eq!(severity, Severity::Warning);
        assert!(found.contains("has 22,6443,10250"), "{found}");
        assert!(found.contains("[::]:10250/tcp is process kubelet"), "{found}");
        assert!(found.contains("(35 ports)") && found.contains("--service-node-port-range"), "{found}");
    }

    #[test]
    fn a_range_over_other_well_known_ports_is_worth_knowing_even_if_nobody_listens() {
        let (severity, found) = found(&Snapshot::healthy().node_port_range("9000-9999"));
        assert_eq!(severity, Severity::Info);
        assert!(found.contains("has well-known ports of a node's daemons"), "{found}");
        assert!(found.contains("9099-9100,9345,9808-9809 (5 ports)"), "{found}");
    }

    #[test]
    fn of_well_known_ports_that_are_free_their_listeners_are_listed() {
        let world = Snapshot::healthy().node_port_range("9000-9999");
        let (_, listed) = found(&world.clone().listens_as("0.0.0.0:9100", daemon("exporter", 9)));
        assert!(listed.contains("0.0.0.0:9100/tcp is process exporter"), "{listed}");
        let allocated = world.clone().service("web", |it| it.node_port(9100));
        let (_, found) = found(&allocated.listens_as("0.0.0.0:9100", daemon("exporter", 9)));
        assert!(!found.contains("0.0.0.0:9100/tcp is"), "another rule says so: {found}");
    }

    /// `listener-on-node-port/latent` reports a daemon in the default range.
    #[test]
    fn the_default_range_is_silent_whoever_listens_in_it() {
        expect_healthy(&RULE, &Snapshot::healthy(), &subject());
        expect_healthy(&RULE, &Snapshot::healthy().listens_as("0.0.0.0:30500", daemon("exporter", 9)), &subject());
    }

    #[test]
    fn a_crowd_of_daemons_is_cut() {
        let range = Snapshot::healthy().node_port_range("1-32767");
        let ports = usual_ports(Role::Daemon).map(|it| it.number).filter(|port| *port < 10_000);
        let crowd =
            ports.fold(range, |world, port| world.listens_as(&format!("0.0.0.0:{port}"), daemon("exporter", 9)));
        let (_, found) = found(&crowd);
        assert!(found.contains("(\"daemon\", \"and "), "{found}");
    }

    #[test]
    fn unread_is_unknown() {
        let mut world = Snapshot::healthy().node_port_range("1-32767");
        world.kernel.listeners = gap(Source::Listeners, Why::Torn);
        assert_eq!(expect_unknown(&RULE, &world, &subject()).source, Source::Listeners);
        expect_problem(&RULE, &Snapshot::healthy().rejects(Source::Services).node_port_range("1-32767"), &subject());
        let mut world = Snapshot::healthy();
        world.cluster.services = gap(Source::Services, Why::Unreachable);
        assert_eq!(expect_unknown(&RULE, &world, &subject()).source, Source::Services);
        world.cluster.node_port_range = gap(Source::NodePortRange, Why::Unreachable);
        assert_eq!(expect_unknown(&RULE, &world, &subject()).source, Source::NodePortRange);
    }
}
