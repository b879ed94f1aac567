//! The agent cannot listen on its own port.

use std::net::SocketAddr;

use super::{Limits, Round, Rule, ids, remedies::who_holds, wording::with_socket};
use crate::findings::{Evidence, Judgement, Judgements, Remedy, Severity, Step, Subject, Verdict};
use portreeve_dataplane::{Addresses, Need, owner_name};
use portreeve_facts::{Protocol, Source, Unread};

pub(super) static RULE: Rule = Rule::of(&ids::HOST_NETWORK_PORT_TAKEN, &["agent"], &[Source::OwnPort], check);

fn check(round: &Round<'_>, _: &Limits) -> Judgements {
    let snapshot = round.now;
    // Only agents have an own port: the command `check` listens on no port.
    let mut needs = round.needs().with(&[Source::OwnPort])?.iter();
    let own = needs.find_map(|need| if let Need::Agent(own) = need { Some((*own, need.at())) } else { None });
    let Some((own, at)) = own else { return Ok(Vec::new()) };
    let verdict = if own.taken { Verdict::Problem(evidence(round, own.address, at)) } else { Verdict::Healthy };
    let port = (Protocol::Tcp, own.address.port());
    Ok(vec![Judgement::on_port(Subject::this_node(snapshot), port, verdict)])
}

fn evidence(round: &Round<'_>, address: SocketAddr, at: Addresses<'_>) -> Evidence {
    let snapshot = round.now;
    // The listeners on the port. Empty if listeners were not read, or if a socket is bound to the port without
    // listening.
    let listeners = round.listeners().known(Unread::Adds).into_iter();
    let mut listeners = listeners.flat_map(|all| all.at((Protocol::Tcp, address.port())));
    let holder = listeners.find(|socket| at.meets(socket) != Some(false));
    let who = holder.map_or_else(|| "another process".to_owned(), |socket| owner_name(snapshot, &socket.owner));
    let summary = format!(
        "{who} has {address}/tcp, the agent's own port: its metrics and findings cannot be read. The agent still scans and reports."
    );
    let mut evidence = Evidence::new(Severity::Warning, summary).value("wanted", format!("{address}/tcp"));
    if let Some(socket) = holder {
        evidence = with_socket(evidence, "listener", snapshot, socket);
    }
    evidence
        .remedy(
            Remedy::from(who_holds(Protocol::Tcp, address.port()))
                .then(Step::advice("move the program that the command names; only root on the node sees the name")),
        )
        .remedy(Step::advice("give the agent another port with --listen"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::expectations::{expect_healthy, expect_problem, expect_unknown};
    use portreeve_facts::{OwnPort, Snapshot, Why, healthy::gap};

    fn taken(mut world: Snapshot) -> Snapshot {
        world.own_port = world.own_port.map(|own| OwnPort { taken: true, ..own });
        world
    }

    #[test]
    fn whoever_has_the_port_is_named() {
        let world = taken(Snapshot::healthy().listens("0.0.0.0:29517"));
        let evidence = expect_problem(&RULE, &world, &Subject::this_node(&world));
        assert_eq!(evidence.severity, Severity::Warning);
        assert!(evidence.summary.contains("192.0.2.1:29517/tcp"), "{}", evidence.summary);
        assert!(evidence.values.contains(&("listener", "tcp LISTEN 0.0.0.0:29517".to_owned())), "{evidence:#?}");
    }

    #[test]
    fn a_port_without_a_listener_is_taken_all_the_same() {
        let world = taken(Snapshot::healthy().listens("192.0.2.2:29517"));
        let evidence = expect_problem(&RULE, &world, &Subject::this_node(&world));
        assert!(evidence.summary.starts_with("another process has"), "{}", evidence.summary);
    }

    #[test]
    fn an_agent_that_has_its_port_and_a_person_who_needs_none_are_fine() {
        let world = Snapshot::healthy();
        expect_healthy(&RULE, &world, &Subject::this_node(&world));
        let looked = Snapshot { own_port: OwnPort::not_requested(), ..world };
        expect_healthy(&RULE, &looked, &Subject::this_node(&looked));
    }

    #[test]
    fn unread_is_unknown() {
        let world = Snapshot { own_port: gap(Source::OwnPort, Why::Unreachable), ..Snapshot::healthy() };
        assert_eq!(expect_unknown(&RULE, &world, &Subject::this_node(&world)).source, Source::OwnPort);
    }
}
