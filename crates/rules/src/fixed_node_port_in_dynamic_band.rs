//! A user chose a NodePort in the band from which the API server chooses.

use std::cell::LazyCell;

use super::{
    Limits, Round, Rule,
    free_ports::Alternatives,
    ids,
    node_ports::{bands_here, range_in_words},
    remedies::move_service,
};
use crate::findings::{Evidence, Judgement, Judgements, Remedy, Severity, Step, Subject, Verdict};
use portreeve_dataplane::service_port;
use portreeve_facts::{ClaimOf, Gap, PortRange, Service, ServiceKind, ServicePort, Source, Why};

pub(super) static RULE: Rule =
    Rule::of(&ids::NODE_PORT_RANGE_MISMATCH, &["band"], &[Source::Services, Source::NodePortRange], check).at_once();

fn check(round: &Round<'_>, _: &Limits) -> Judgements {
    let snapshot = round.now;
    let services = snapshot.cluster.services.get()?;
    let range = snapshot.cluster.node_port_range.get()?;
    let bands = bands_here(snapshot, range.range);
    let Some(fixed) = bands.fixed else { return Ok(Vec::new()) };
    let in_band: Vec<_> = services
        .iter()
        .flat_map(|service| service.ports.iter().filter_map(move |port| Some((service, port, port.node_port?))))
        .filter(|(_, _, number)| bands.dynamic.contains(*number))
        .collect();
    if !in_band.is_empty() && in_band.iter().all(|(_, port, _)| port.fixed.is_none()) {
        return Err(no_managed_fields());
    }
    let alternatives = LazyCell::new(|| Alternatives::of(round));
    Ok(in_band
        .into_iter()
        .filter_map(|(service, port, number)| {
            let verdict = match port.fixed {
                Some(false) => return None,
                Some(true) => {
                    let evidence = evidence(service, port, number)
                        .value("static band", fixed)
                        .value("dynamic band", bands.dynamic)
                        .value("NodePort range", range_in_words(range));
                    let free = alternatives.for_port(service, Some(port)).filter(|number| fixed.contains(*number));
                    Verdict::Problem(remedies(fixed, free, service, port).into_iter().fold(evidence, Evidence::remedy))
                }
                None => Verdict::Unknown(no_managed_fields()),
            };
            let subject = Subject::service(service);
            Some(Judgement::on_port(subject, (port.protocol, number), verdict))
        })
        .collect())
}

/// A Service that is only in a file gets no patch command.
fn remedies(fixed: PortRange, alternative: Option<u16>, service: &Service, port: &ServicePort) -> Vec<Remedy> {
    let Service { namespace, name, uid, .. } = service;
    let leave = match service.kind {
        // With `allocateLoadBalancerNodePorts: false`, the API server chooses no number.
        ServiceKind::LoadBalancer => "remove nodePort",
        _ => "remove nodePort, so that the API server chooses a number",
    };
    match uid {
        Some(_) => vec![move_service(alternative, service, port), Step::advice(leave).into()],
        None => vec![
            Step::advice(format!(
                "set nodePort of Service {namespace}/{name} to a number of the static band, {fixed}, or {leave}"
            ))
            .into(),
        ],
    }
}

fn no_managed_fields() -> Gap {
    let detail = "an object without managedFields does not show whether a person chose its nodePort: `kubectl get -o yaml --show-managed-fields` prints these fields";
    Gap::new(Source::Services, Why::NotRequested, detail)
}

fn evidence(service: &Service, port: &ServicePort, number: u16) -> Evidence {
    let name = service_port(service, &port.name);
    let summary = format!(
        "A person chose nodePort {number}/{} of {name} in the dynamic band: the API server may give this number to another Service first.",
        port.protocol
    );
    Evidence::new(Severity::Info, summary)
        .in_cluster()
        .about([ClaimOf::node_port(service, Some(port))])
        .value("service", format!("{name} type {}, nodePort {number}/{}", service.kind.name(), port.protocol))
        .value(
            "chosen by",
            if service.uid.is_some() { "a client, according to the object's managedFields" } else { "the manifest" },
        )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        expectations::{expect_healthy, expect_problem, expect_unknown},
        findings::Scope,
    };
    use portreeve_facts::{
        Snapshot,
        healthy::{gap, objects},
    };

    fn world(port: u16, fixed: Option<bool>) -> Snapshot {
        Snapshot::healthy().service("web", |it| it.node_port(port).with(|service| service.ports[0].fixed = fixed))
    }

    fn subject() -> Subject {
        Subject::service(&world(30500, None).cluster.services.seen().expect("services")[0])
    }

    #[test]
    fn a_written_port_above_the_static_band_is_information() {
        let evidence = expect_problem(&RULE, &world(30086, Some(true)), &subject());
        assert_eq!((evidence.severity, evidence.affects.len()), (Severity::Info, 0));
        assert_eq!(evidence.scope, Scope::Cluster);
        assert!(evidence.values.contains(&("static band", "30000-30085".to_owned())), "{evidence:?}");
        assert!(evidence.remedies[0].steps[0].text.contains("\"value\":30000"), "{:?}", evidence.remedies);
    }

    #[test]
    fn one_that_is_still_to_be_created_is_rewritten_where_it_is_written() {
        let mut world = world(30086, Some(true));
        objects(&mut world.cluster.services)[0].uid = None;
        let evidence = expect_problem(&RULE, &world, &subject());
        assert_eq!(evidence.remedies.len(), 1);
        assert!(
            evidence.remedies[0].steps[0]
                .text
                .starts_with("set nodePort of Service default/web to a number of the static band, 30000-30085")
        );
    }

    #[test]
    fn a_load_balancer_without_its_node_port_may_get_none() {
        let mut world = world(30086, Some(true));
        let service = &mut objects(&mut world.cluster.services)[0];
        (service.uid, service.kind) = (None, ServiceKind::LoadBalancer);
        let evidence = expect_problem(&RULE, &world, &subject());
        assert!(evidence.remedies[0].steps[0].text.ends_with(", or remove nodePort"), "{evidence:?}");
    }

    #[test]
    fn written_in_the_static_band_or_chosen_automatically_is_fine() {
        expect_healthy(&RULE, &world(30085, Some(true)), &subject());
        expect_healthy(&RULE, &world(30500, Some(false)), &subject());
        expect_healthy(&RULE, &world(40000, Some(true)), &subject());
    }

    #[test]
    fn without_bands_there_is_nothing_to_say() {
        expect_healthy(&RULE, &world(30005, Some(true)).node_port_range("30000-30015"), &subject());
        let mut old = world(30500, Some(true));
        for node in objects(&mut old.cluster.nodes) {
            node.kubelet_version = Some("v1.24.1".to_owned());
        }
        expect_healthy(&RULE, &old, &subject());
    }

    #[test]
    fn an_assumed_range_is_printed_as_assumed() {
        let evidence = expect_problem(&RULE, &world(30500, Some(true)).assumed_range(), &subject());
        assert!(evidence.values.iter().any(|(_, value)| value.contains("assumed")), "{evidence:?}");
    }

    #[test]
    fn unread_is_unknown() {
        assert_eq!(expect_unknown(&RULE, &world(30500, None), &subject()).why, Why::NotRequested);
        let mixed = world(30500, None).service("api", |it| it.node_port(30501));
        assert_eq!(expect_unknown(&RULE, &mixed, &subject()).why, Why::NotRequested);
        let mut world = world(30500, Some(true));
        world.cluster.node_port_range = gap(Source::NodePortRange, Why::NotPermitted);
        assert_eq!(expect_unknown(&RULE, &world, &subject()).source, Source::NodePortRange);
        world.cluster.services = gap(Source::Services, Why::NotPermitted);
        assert_eq!(expect_unknown(&RULE, &world, &subject()).source, Source::Services);
    }
}
