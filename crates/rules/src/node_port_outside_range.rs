//! A Service has a NodePort outside the NodePort range.

use super::{
    Limits, Round, Rule,
    free_ports::Alternatives,
    ids,
    node_ports::{known_range, range_in_words},
    remedies::another_number,
};
use crate::findings::{Evidence, Judgement, Judgements, REFUSED, Severity, Step, Subject, Verdict};
use portreeve_dataplane::service_port;
use portreeve_facts::{ClaimOf, NodePortRange, Protocol, RangeSource, Service, ServicePort, Source};

pub(super) static RULE: Rule =
    Rule::of(&ids::NODE_PORT_RANGE_MISMATCH, &["outside"], &[Source::Services, Source::NodePortRange], check);

fn check(round: &Round<'_>, _: &Limits) -> Judgements {
    let snapshot = round.now;
    let services = snapshot.cluster.services.get()?;
    let range = snapshot.cluster.node_port_range.get()?;
    let numbers = services.iter().flat_map(|service| service.numbers().map(move |number| (service, number)));
    let outside: Vec<_> = numbers.filter(|(_, (number, _))| !range.range.contains(*number)).collect();
    if outside.is_empty() {
        return Ok(Vec::new());
    }
    // The assumed range is wrong if an existing Service has a port outside the range. A Service that does not exist yet
    // may itself be wrong.
    if outside.iter().any(|(service, ..)| service.uid.is_some()) {
        known_range(snapshot)?;
    }
    let alternatives = Alternatives::of(round);
    Ok(outside
        .into_iter()
        .map(|(service, (number, port))| {
            Judgement::on_port(
                Subject::service(service),
                (port.map_or(Protocol::Tcp, |port| port.protocol), number),
                Verdict::Problem(evidence(range, alternatives.for_port(service, port), service, port, number)),
            )
        })
        .collect())
}

fn evidence(
    range: &NodePortRange,
    alternative: Option<u16>,
    service: &Service,
    port: Option<&ServicePort>,
    number: u16,
) -> Evidence {
    let name = service_port(service, port.map_or("", |port| &port.name));
    let what = match port {
        Some(port) => format!("nodePort {number}/{}", port.protocol),
        None => format!("healthCheckNodePort {number}"),
    };
    let is_assumed = range.source == RangeSource::Assumed;
    let (outcome, end) = match service.has_accepted(port) {
        true => ("", "the Service keeps it, but cannot be created again"),
        false if is_assumed => ("", "with this range, the API server refuses to create this Service"),
        false => (REFUSED, "the API server refuses to create this Service"),
    };
    let whose = if is_assumed { "assumed " } else { "" };
    let summary = format!("{what} of {name} lies outside the {whose}NodePort range {}: {end}.", range.range);
    let evidence = Evidence::new(Severity::Warning, summary)
        .in_cluster()
        .outcome(outcome)
        .about([ClaimOf::node_port(service, port)])
        .value("service", format!("{name} type {}, {what}", service.kind.name()))
        .value("NodePort range", range_in_words(range));
    let extend = "extend --service-node-port-range of every kube-apiserver so that the range has the port";
    evidence.remedy(another_number(alternative, service, port)).remedy(Step::advice(extend))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        expectations::{expect_healthy, expect_problem, expect_unknown},
        findings::Scope,
    };
    use portreeve_facts::{Snapshot, Why, healthy::gap};

    fn world(port: u16) -> Snapshot {
        Snapshot::healthy().service("web", |it| it.node_port(port))
    }

    fn subject() -> Subject {
        Subject::service(&world(40000).cluster.services.seen().expect("services")[0])
    }

    #[test]
    fn a_port_outside_a_known_range_is_a_warning() {
        let evidence = expect_problem(&RULE, &world(40000), &subject());
        assert_eq!((evidence.severity, evidence.affects.len()), (Severity::Warning, 0));
        assert_eq!(evidence.scope, Scope::Cluster);
        assert!(
            evidence.summary.starts_with("nodePort 40000/tcp of default/web lies outside the NodePort range 30000-")
        );
        // The proxy may have a range of its own.
        let end = ": the Service keeps it, but cannot be created again.";
        assert!(evidence.summary.ends_with(end), "{}", evidence.summary);
        assert!(evidence.values.contains(&("NodePort range", "30000-32767 (kube-apiserver /flagz)".to_owned())));
        assert!(evidence.remedies[0].steps[0].text.contains("patch service web"), "{:?}", evidence.remedies);
    }

    #[test]
    fn one_that_is_still_to_be_created_is_refused() {
        let mut world = world(40000);
        let service = &mut portreeve_facts::healthy::objects(&mut world.cluster.services)[0];
        (service.uid, service.ports[0].fixed) = (None, Some(true));
        let evidence = expect_problem(&RULE, &world, &subject());
        assert!(evidence.is_refused());
        assert!(
            evidence.summary.ends_with("30000-32767: the API server refuses to create this Service."),
            "{evidence:?}"
        );
        assert!(evidence.remedies[0].steps[0].text.starts_with("give Service default/web another nodePort"));
    }

    #[test]
    fn a_health_check_port_counts_and_the_edges_are_inside() {
        let health = |number| {
            Snapshot::healthy()
                .service("web", |it| it.node_port(30000).with(|service| service.health_check_node_port = Some(number)))
        };
        assert!(expect_problem(&RULE, &health(32768), &subject()).summary.starts_with("healthCheckNodePort 32768"));
        expect_healthy(&RULE, &health(32767), &subject());
    }

    #[test]
    fn a_port_outside_an_assumed_range_disproves_the_assumption() {
        let gap = expect_unknown(&RULE, &world(40000).assumed_range(), &subject());
        assert_eq!((gap.source, gap.why), (Source::NodePortRange, Why::Ambiguous));
        expect_healthy(&RULE, &world(30080).assumed_range(), &subject());
        let mut new = world(40000).assumed_range();
        let service = &mut portreeve_facts::healthy::objects(&mut new.cluster.services)[0];
        (service.uid, service.ports[0].fixed) = (None, Some(true));
        let evidence = expect_problem(&RULE, &new, &subject());
        assert!(evidence.values.iter().any(|(_, value)| value.contains("assumed")), "{evidence:?}");
        assert!(evidence.summary.contains(" the assumed NodePort range ") && !evidence.is_refused(), "{evidence:?}");
        let both = new.service("other", |it| it.node_port(40001));
        assert_eq!(expect_unknown(&RULE, &both, &subject()).why, Why::Ambiguous);
    }

    #[test]
    fn unread_is_unknown() {
        let mut world = world(40000);
        world.cluster.node_port_range = gap(Source::NodePortRange, Why::NotPermitted);
        assert_eq!(expect_unknown(&RULE, &world, &subject()).source, Source::NodePortRange);
        world.cluster.services = gap(Source::Services, Why::NotPermitted);
        assert_eq!(expect_unknown(&RULE, &world, &subject()).source, Source::Services);
    }
}
