//! Most NodePorts of the range are in use.

use std::sync::Arc;

use super::{
    Limits, Round, Rule, ids,
    node_ports::{Bands, bands_here, known_range, most_ports_in_words, range_in_words},
    remedies::give_node_ports_back,
    wording::listed,
};
use crate::findings::{Evidence, Judgement, Judgements, Severity, Step, Subject, Verdict};
use portreeve_dataplane::{Allocated, ByPort};
use portreeve_facts::{NodePortRange, PortRange, Service, Source};

pub(super) static RULE: Rule = Rule::of(
    &ids::NODE_PORT_RANGE_CROWDED,
    &["crowded", "spilled", "full"],
    &[Source::Services, Source::NodePortRange],
    check,
);

fn check(round: &Round<'_>, limits: &Limits) -> Judgements {
    let services = round.now.cluster.services.get()?;
    let range = known_range(round.now)?;
    let bands = bands_here(round.now, range.range);
    let allocated = round.allocated().get()?;
    let unread = round.now.cluster.unread_service();
    let verdict = match (evidence(services, range, bands, allocated, limits, unread.is_some()), unread) {
        (None, None) => Verdict::Healthy,
        (None, Some(gap)) => Verdict::Unknown(gap.clone()),
        (Some(evidence), _) => Verdict::Problem(evidence),
    };
    Ok(vec![Judgement::of(Subject::cluster(), verdict)])
}

/// `None` if enough ports of the dynamic band are free. `at_least` is true if an unread Service may use more ports.
fn evidence(
    services: &[Arc<Service>],
    range: &NodePortRange,
    Bands { fixed, dynamic }: Bands,
    allocated: &ByPort<Allocated<'_>, u16>,
    limits: &Limits,
    at_least: bool,
) -> Option<Evidence> {
    let used_in = |band: PortRange| allocated.ports().filter(|(number, _)| band.contains(*number)).count() as u64;
    let is_full = |band: PortRange| used_in(band) == u64::from(band.size());
    let (used, size) = (used_in(dynamic), u64::from(dynamic.size()));
    let is_near = used * 100 >= size * u64::from(limits.band_warning_percent);
    let (severity, state, summary) = match (is_full(dynamic), fixed.is_none_or(is_full)) {
        (false, _) if !is_near => return None,
        (false, _) => {
            (Severity::Warning, "crowded", "The dynamic band of the NodePort range is filling up.".to_owned())
        }
        (true, false) => (
            Severity::Warning,
            "spilled",
            "The dynamic band of the NodePort range is full: automatic nodePorts are taken from the static band."
                .to_owned(),
        ),
        (true, true) => (
            Severity::Critical,
            "full",
            format!("The NodePort range {} is full: no Service gets a nodePort any more.", range.range),
        ),
    };
    let least = if at_least { "at least " } else { "" };
    let fixed_words = match fixed {
        None => "none".to_owned(),
        Some(band) => format!("{band}: {least}{} of {} ports allocated", used_in(band), band.size()),
    };
    let evidence = Evidence::new(severity, summary)
        .in_cluster()
        .variant(state)
        .value("state", state)
        .value("NodePort range", range_in_words(range))
        .value("static band", fixed_words)
        .value("dynamic band", format!("{dynamic}: {least}{used} of {size} ports allocated"));
    let spilled = fixed.map(|band| automatic_in(services, band)).unwrap_or_default();
    let evidence = match spilled.is_empty() {
        true => evidence,
        false => evidence.value("automatic ports in the static band", listed(spilled)),
    };
    let evidence = evidence
        .value("most nodePorts", most_ports_in_words(services))
        .remedy(Step::advice(
            "extend --service-node-port-range of every kube-apiserver upwards, and all settings that reserve or filter the old range",
        ))
        .remedy(give_node_ports_back());
    let quota = "limit the nodePorts of namespaces: a ResourceQuota with `services.nodeports: \"0\"`";
    Some(evidence.remedy(Step::advice(quota)))
}

/// The ports of a band that the API server chose itself, according to managedFields.
fn automatic_in(services: &[Arc<Service>], band: PortRange) -> Vec<u16> {
    let ports = services.iter().flat_map(|service| &service.ports).filter(|port| port.fixed == Some(false));
    let mut automatic: Vec<u16> =
        ports.filter_map(|port| port.node_port).filter(|number| band.contains(*number)).collect();
    automatic.sort_unstable();
    automatic.dedup();
    automatic
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        expectations::{expect_healthy, expect_problem, expect_unknown},
        findings::Scope,
    };
    use portreeve_facts::{
        Protocol, ServicePort, Snapshot, Why,
        healthy::{gap, objects},
    };

    /// The bands as the API server computes them: range, static band, dynamic band, size of the dynamic band.
    const TABLE: [(&str, Option<&str>, &str, u32); 4] = [
        ("30000-30015", None, "30000-30015", 16),
        ("30000-30127", Some("30000-30015"), "30016-30127", 112),
        ("30000-32767", Some("30000-30085"), "30086-32767", 2682),
        ("30000-34095", Some("30000-30127"), "30128-34095", 3968),
    ];

    fn taken(range: &str, ports: impl IntoIterator<Item = u16>) -> Snapshot {
        let ports = ports.into_iter().map(|number| ServicePort {
            name: format!("p{number}"),
            protocol: Protocol::Tcp,
            port: number,
            target: None,
            node_port: Some(number),
            fixed: Some(false),
        });
        Snapshot::healthy()
            .node_port_range(range)
            .service("many", |it| it.with(|service| service.ports = ports.collect()))
    }

    fn band(text: &str) -> PortRange {
        text.parse().expect("a range")
    }

    fn problem(world: &Snapshot) -> (Severity, String, Evidence) {
        let evidence = expect_problem(&RULE, world, &Subject::cluster());
        assert_eq!(evidence.scope, Scope::Cluster);
        let state = evidence.values[0].1.clone();
        (evidence.severity, state, evidence)
    }

    #[test]
    fn the_dynamic_band_of_every_range_warns_at_eighty_per_cent() {
        for (range, fixed, dynamic, size) in TABLE {
            let wanted = (size * 80).div_ceil(100) as usize;
            let world = taken(range, band(dynamic).iter().take(wanted));
            let (severity, state, evidence) = problem(&world);
            assert_eq!((severity, state.as_str()), (Severity::Warning, "crowded"), "{range}");
            let found = format!("{dynamic}: {wanted} of {size} ports allocated");
            assert!(evidence.values.contains(&("dynamic band", found)), "{evidence:?}");
            let fixed = fixed.map_or("none".to_owned(), |it| format!("{it}: 0 of {} ports allocated", band(it).size()));
            assert!(evidence.values.contains(&("static band", fixed)), "{evidence:?}");
            assert!(evidence.values.contains(&("most nodePorts", format!("default/many with {wanted}"))));
            expect_healthy(&RULE, &taken(range, band(dynamic).iter().take(wanted - 1)), &Subject::cluster());
        }
    }

    #[test]
    fn a_full_dynamic_band_spills_into_the_static_one() {
        for (range, fixed, dynamic, _) in TABLE {
            let Some(fixed) = fixed else { continue };
            let first = band(fixed).first;
            let (severity, state, evidence) = problem(&taken(range, band(dynamic).iter().chain([first])));
            assert_eq!((severity, state.as_str()), (Severity::Warning, "spilled"), "{range}");
            assert!(evidence.values.contains(&("automatic ports in the static band", first.to_string())));
        }
    }

    #[test]
    fn a_full_range_is_critical() {
        for (range, ..) in TABLE {
            let (severity, state, evidence) = problem(&taken(range, band(range).iter()));
            assert_eq!((severity, state.as_str()), (Severity::Critical, "full"), "{range}");
            assert!(evidence.remedies[0].steps[0].text.contains("--service-node-port-range"));
        }
    }

    #[test]
    fn both_protocols_of_a_number_are_one_port_and_health_checks_count() {
        let mut world = taken("30000-30015", 30000..=30011);
        let service = &mut objects(&mut world.cluster.services)[0];
        service
            .ports
            .extend(service.ports.clone().into_iter().map(|port| ServicePort { protocol: Protocol::Udp, ..port }));
        expect_healthy(&RULE, &world, &Subject::cluster());
        objects(&mut world.cluster.services)[0].health_check_node_port = Some(30012);
        assert_eq!(problem(&world).1, "crowded");
    }

    #[test]
    fn a_used_static_band_and_ports_outside_the_range_do_not_crowd() {
        expect_healthy(&RULE, &taken("30000-30127", 30000..=30015), &Subject::cluster());
        expect_healthy(&RULE, &taken("30000-30127", 31000..=31999), &Subject::cluster());
    }

    #[test]
    fn unread_is_unknown() {
        let full = || taken("30000-32767", 30000..=32767);
        assert_eq!(expect_unknown(&RULE, &full().assumed_range(), &Subject::cluster()).why, Why::Ambiguous);
        let rejected = taken("30000-30015", 30000..=30010).rejects(Source::Services);
        assert_eq!(expect_unknown(&RULE, &rejected, &Subject::cluster()).source, Source::Services);
        let (_, state, evidence) = problem(&full().rejects(Source::Services));
        let dynamic = "30086-32767: at least 2682 of 2682 ports allocated".to_owned();
        assert!(state == "full" && evidence.values.contains(&("dynamic band", dynamic)), "{evidence:?}");
        let mut world = full();
        world.cluster.node_port_range = gap(Source::NodePortRange, Why::NotPermitted);
        assert_eq!(expect_unknown(&RULE, &world, &Subject::cluster()).source, Source::NodePortRange);
        world.cluster.services = gap(Source::Services, Why::NotPermitted);
        assert_eq!(expect_unknown(&RULE, &world, &Subject::cluster()).source, Source::Services);
    }
}
