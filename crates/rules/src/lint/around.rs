//! The parts of a cluster or a snapshot with which lint compares manifests.

use std::sync::Arc;

use crate::wording::number_field;
use portreeve_facts::{ClusterFacts, Gap, NodePortRange, RangeSource, Service, Snapshot, Source, Unread, Why};

/// The inputs that lint needed and could not read. The result leaves out Pods and Nodes that were not requested. If one
/// failure leaves several kinds of objects unread, the result has the failure once, with these kinds. If the user gave
/// the NodePort `range`, lint needs no other source of the range.
pub fn unread(around: &Snapshot, range: Option<&NodePortRange>) -> Vec<Gap> {
    let cluster = &around.cluster;
    let pods = cluster.pods.gap().filter(|gap| gap.why != Why::NotRequested);
    let nodes = cluster.nodes.gap().filter(|gap| gap.why != Why::NotRequested);
    let lost = [("Services", cluster.services.gap()), ("Pods", pods), ("Nodes", nodes)];
    let mut failures: Vec<(Gap, Vec<&str>)> = Vec::new();
    let lost = lost.into_iter().filter_map(|(kind, gap)| Some((Some(kind), gap?)));
    let compared = [Source::Services, Source::Pods, Source::Nodes];
    let rejected = cluster.rejected.iter().filter(|gap| compared.contains(&gap.source)).map(|gap| (None, gap));
    for (kind, gap) in lost.chain(rejected) {
        match failures.iter_mut().find(|(known, _)| known.detail == gap.detail) {
            Some((_, kinds)) => kinds.extend(kind),
            None => failures.push((gap.clone(), kind.into_iter().collect())),
        }
    }
    let named = |(mut gap, kinds): (Gap, Vec<&str>)| {
        if !kinds.is_empty() {
            gap.detail = format!("{}: nothing was compared with {}", gap.detail, kinds.join(", "));
        }
        gap
    };
    // Many accounts have no right to read the range. A missing right is no failure: the output reports the assumed
    // range.
    let failed = |gap: &&Gap| !matches!(gap.why, Why::NotRequested | Why::NotPermitted);
    let assumed = cluster.node_port_range.gap().filter(|gap| range.is_none() && failed(gap)).map(|gap| Gap {
        detail: format!("{}: the NodePort range is not known, so lint assumes the default", gap.detail),
        ..gap.clone()
    });
    failures.into_iter().map(named).chain(assumed).collect()
}

/// The NodePort range: from the user, otherwise from the cluster, otherwise the default.
pub fn range(named: Option<NodePortRange>, around: &Snapshot) -> NodePortRange {
    let shown = around
        .cluster
        .node_port_range
        .known(Unread::Assumed("the default"))
        .filter(|range| range.source != RangeSource::Assumed);
    named.or_else(|| shown.cloned()).unwrap_or_else(NodePortRange::assumed)
}

/// The doubt about an assumed range: a Service has a NodePort or a healthCheckNodePort outside the range. The number
/// may also be left from an earlier range. Without Services of the cluster, a manifest with a uid may be an export, so
/// its Service may exist.
pub fn doubt(range: &NodePortRange, cluster: &ClusterFacts, manifests: &ClusterFacts) -> Option<Gap> {
    let is_assumed = range.source == RangeSource::Assumed;
    let unread = Unread::Reported("LintReport::failures");
    let is_export = |it: &&Arc<Service>| cluster.services.gap().is_some() && it.uid.is_some();
    let exports = manifests.services.known_part(unread).iter().filter(is_export);
    let services = cluster.services.known_part(unread).iter().chain(exports).filter(|_| is_assumed);
    let mut numbers = services.flat_map(|service| service.numbers().map(move |number| (service, number)));
    let (service, (number, port)) = numbers.find(|(_, (number, _))| !range.range.contains(*number))?;
    let Service { namespace, name, .. } = &**service;
    let (range, field) = (range.range, number_field(port));
    let detail = format!(
        "the NodePort range is perhaps not {range}, as Service {namespace}/{name} has {field} {number}: name the range with --node-port-range"
    );
    Some(Gap::new(Source::NodePortRange, Why::Ambiguous, detail))
}

#[cfg(test)]
mod tests {
    use super::*;
    use portreeve_facts::{PortRange, Reading, Uid, healthy::gap};

    #[test]
    fn a_failure_is_reported_once_and_a_kind_that_a_file_lacks_is_no_failure() {
        let mut world = Snapshot::healthy();
        assert_eq!(unread(&world, None), []);
        world.cluster.pods = gap(Source::Pods, Why::NotRequested);
        assert_eq!(unread(&world, None), []);
        world.cluster.services = gap(Source::Services, Why::Unreachable);
        world.cluster.nodes = gap(Source::Nodes, Why::Unreachable);
        let same = unread(&world, None);
        assert_eq!(same.len(), 1, "both have the same detail: {same:?}");
        let rejected = |source| Gap::new(source, Why::Malformed, format!("{source:?}"));
        world.cluster.rejected = [Source::Pods, Source::ConfigMaps].map(rejected).into();
        assert_eq!(unread(&world, None).len(), 2, "settings are not compared");
        world = Snapshot::healthy();
        for (why, reported) in [(Why::TimedOut, 1), (Why::Ambiguous, 1), (Why::NotPermitted, 0), (Why::NotRequested, 0)]
        {
            world.cluster.node_port_range = gap(Source::NodePortRange, why);
            assert_eq!(unread(&world, None).len(), reported, "{why:?}");
            assert_eq!(unread(&world, Some(&NodePortRange::assumed())), [], "the user gave it");
        }
    }

    #[test]
    fn a_health_check_outside_of_the_assumed_range_makes_the_range_doubtful() {
        let nothing = Snapshot::healthy().cluster;
        let world = |number| {
            Snapshot::healthy().service("lb", |it| it.with(|lb| lb.health_check_node_port = Some(number))).cluster
        };
        assert_eq!(doubt(&NodePortRange::assumed(), &world(30010), &nothing), None);
        let gap = doubt(&NodePortRange::assumed(), &world(20033), &nothing).expect("a doubt");
        assert!(gap.detail.contains("Service default/lb has healthCheckNodePort 20033"), "{gap:?}");
    }

    #[test]
    fn only_without_services_of_the_cluster_a_manifest_with_a_uid_makes_the_range_doubtful() {
        let mut around = Snapshot::healthy().cluster;
        let manifests = |uid: Option<Uid>| {
            Snapshot::healthy().service("web", |it| it.node_port(40000).with(|web| web.uid = uid)).cluster
        };
        let exported = Some(Uid::from("u".to_owned()));
        assert_eq!(doubt(&NodePortRange::assumed(), &around, &manifests(exported.clone())), None);
        around.services = gap(Source::Services, Why::NotRequested);
        assert!(doubt(&NodePortRange::assumed(), &around, &manifests(exported)).is_some());
        assert_eq!(doubt(&NodePortRange::assumed(), &around, &manifests(None)), None);
    }

    #[test]
    fn a_range_that_was_only_assumed_is_no_range_of_the_cluster() {
        let range_of = |source| NodePortRange {
            range: PortRange { first: 20000, last: 22767 },
            source,
            place: "somewhere".to_owned(),
        };
        let mut world = Snapshot::healthy();
        world.cluster.node_port_range = Reading::Seen(range_of(RangeSource::Assumed));
        assert_eq!(range(None, &world), NodePortRange::assumed());
        world.cluster.node_port_range = Reading::Seen(range_of(RangeSource::ApiServerArguments));
        assert_eq!(range(None, &world).range.first, 20000);
        let named = NodePortRange { range: PortRange { first: 1, last: 2 }, ..range_of(RangeSource::Flag) };
        assert_eq!(range(Some(named.clone()), &world), named);
    }
}
