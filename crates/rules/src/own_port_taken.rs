//! The agent cannot listen on its own port.

use super::{Limits, Patience, Round, Rule, ids, remedies::who_holds, wording::with_socket};
use crate::findings::{Evidence, Judgement, Judgements, Remedy, Severity, Step, Subject, Verdict};
use portreeve_dataplane::owner_name;
use portreeve_facts::{OwnPort, Protocol, Reading, Snapshot, Socket, Source, State, Why};

pub(super) static RULE: Rule = Rule {
    id: &ids::HOST_NETWORK_PORT_TAKEN,
    variants: &["agent"],
    needs: &[Source::OwnPort],
    uses: &[],
    socket_needs: &[],
    patience: Patience::TwoScans,
    check,
};

fn check(round: &Round<'_>, _: &Limits) -> Judgements {
    let snapshot = round.now;
    let own = match &snapshot.own_port {
        Reading::Gap(gap) if gap.why == Why::NotAsked => return Ok(Vec::new()),
        own => own.get()?,
    };
    let verdict = if own.taken { Verdict::Problem(evidence(snapshot, *own)) } else { Verdict::Healthy };
    let port = Some(own.address.port());
    Ok(vec![Judgement { subject: Subject::this_node(snapshot), port, protocol: Some(Protocol::Tcp), verdict }])
}

fn evidence(snapshot: &Snapshot, own: OwnPort) -> Evidence {
    let address = own.address;
    let holder = holder(snapshot, own);
    let who = holder.map_or_else(|| "somebody else".to_owned(), |socket| owner_name(snapshot, &socket.owner));
    let summary = format!(
        "{who} has {address}/tcp, the agent's own port: its metrics and findings cannot be read, detection goes on."
    );
    let mut evidence = Evidence::new(Severity::Warning, summary).value("wanted", format!("{address}/tcp"));
    if let Some(socket) = holder {
        evidence = with_socket(evidence, "listener", snapshot, socket);
    }
    evidence
        .remedy(
            Remedy::from(who_holds(Protocol::Tcp, address.port()))
                .then(Step::advice("move the program that it names; only root on the node sees the name")),
        )
        .remedy(Step::advice("give the agent another port with --listen"))
}

/// The listener in the way; nothing where sockets could not be read, or one that does not listen has the port.
fn holder(snapshot: &Snapshot, own: OwnPort) -> Option<&Socket> {
    let listeners = snapshot.kernel.listeners.seen()?.iter();
    let mut on_port = listeners.filter(|it| it.state == State::Listen && it.local_port == own.address.port());
    on_port.find(|it| it.local == own.address.ip() || it.local.is_unspecified() || own.address.ip().is_unspecified())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::expectations::{expect_healthy, expect_problem, expect_unknown};
    use portreeve_facts::healthy::gap;

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
        assert!(evidence.summary.starts_with("somebody else has"), "{}", evidence.summary);
    }

    #[test]
    fn an_agent_that_has_its_port_and_a_person_who_needs_none_are_fine() {
        let world = Snapshot::healthy();
        expect_healthy(&RULE, &world, &Subject::this_node(&world));
        let looked = Snapshot { own_port: OwnPort::not_asked(), ..world };
        expect_healthy(&RULE, &looked, &Subject::this_node(&looked));
    }

    #[test]
    fn unread_is_unknown() {
        let world = Snapshot { own_port: gap(Source::OwnPort, Why::Unreachable), ..Snapshot::healthy() };
        assert_eq!(expect_unknown(&RULE, &world, &Subject::this_node(&world)).source, Source::OwnPort);
    }
}
