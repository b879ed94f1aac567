//! The NodePort range: its bands, its allocated ports, and its overlap with the ephemeral range.

use std::{cmp::Reverse, sync::Arc};

use super::{Round, wording::MOST_LISTED};
use crate::findings::{Severity, Verdict};
use portreeve_dataplane::{Allocated, ByPort, Part, serves};
use portreeve_facts::{
    Gap, NodePortRange, PortRange, PortSet, RangeSource, Service, Snapshot, Source, Unread, Why, kubernetes_version,
};

/// The static and the dynamic band of the NodePort range (ServiceNodePortStaticSubrange, KEP-3668: on by default since
/// Kubernetes 1.28).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Bands {
    /// The band for ports that users choose; `None` if the range is too small.
    pub(super) fixed: Option<PortRange>,
    /// The band from which the API server chooses first.
    pub(super) dynamic: PortRange,
}

/// The bands of a range. The static band has `size <= 16: none, else clamp(size / 32, 16, 128)` ports (kubernetes
/// pkg/registry/core/service/portallocator/allocator.go).
pub(super) fn bands(range: PortRange) -> Bands {
    if range.size() <= 16 {
        return Bands { fixed: None, dynamic: range };
    }
    let offset = u16::try_from((range.size() / 32).clamp(16, 128)).expect("at most 128");
    let first = range.first + offset;
    Bands {
        fixed: Some(PortRange { first: range.first, last: first - 1 }),
        dynamic: PortRange { first, last: range.last },
    }
}

/// The bands in this cluster. Before Kubernetes 1.28, the API server has no static band (KEP-3668). An API server may
/// be three minor versions newer than its kubelets (version skew policy). So with kubelet 1.25, the API server may have
/// the static band.
pub(super) fn bands_here(snapshot: &Snapshot, range: PortRange) -> Bands {
    let nodes = snapshot.cluster.nodes.known_part(Unread::Assumed("1.28 or newer")).iter();
    let newest = nodes.filter_map(|node| kubernetes_version(node.kubelet_version.as_deref()?)).max();
    match newest {
        Some(version) if version < (1, 25, 0) => Bands { fixed: None, dynamic: range },
        _ => bands(range),
    }
}

/// The note about a range that is only assumed.
pub const ASSUMED_RANGE: &str = "no source names the NodePort range, so Portreeve assumes the default; compare it with kube-apiserver's --service-node-port-range";

/// The NodePort range, if a source names it.
///
/// # Errors
/// Fails if the range was not read, or is only the assumed default.
pub(super) fn known_range(snapshot: &Snapshot) -> Result<&NodePortRange, Gap> {
    let range = snapshot.cluster.node_port_range.get()?;
    if range.source == RangeSource::Assumed {
        let detail = "the API server's NodePort range is not known; set --node-port-range";
        return Err(Gap::new(Source::NodePortRange, Why::Ambiguous, detail));
    }
    Ok(range)
}

/// The reason why the NodePort range is not known, if the range is only assumed and an existing Service has a NodePort
/// outside. The range that the API server has is then another range.
pub(super) fn disproved_range(round: &Round<'_>) -> Option<Gap> {
    let gap = known_range(round.now).err()?;
    let range = round.now.cluster.node_port_range.known(Unread::Reported("its own gap"))?.range;
    let services = round.allocated().known(Unread::Reported("the Services' own gap"))?;
    let mut outside = services.ports().filter(|(number, _)| !range.contains(*number));
    outside.any(|(_, all)| all.iter().any(|(service, _)| service.uid.is_some())).then_some(gap)
}

/// Changes the verdict to healthy if this node does not serve `part` of the Service. Changes a problem to unknown if it
/// is not known whether this node serves `part`.
pub(super) fn if_served(round: &Round<'_>, service: &Service, part: Part, verdict: Verdict) -> Verdict {
    match (verdict, serves(round, service, part)) {
        (Verdict::Problem(_), Err(gap)) => Verdict::Unknown(gap),
        (_, Ok(false)) => Verdict::Healthy,
        (verdict, _) => verdict,
    }
}

pub(super) struct KnownAllocations<'a> {
    allocated: Option<&'a ByPort<Allocated<'a>, u16>>,
    unread: Option<&'a Gap>,
}

impl KnownAllocations<'_> {
    /// Whether a Service has this number.
    ///
    /// # Errors
    /// Fails if only an unread Service may have the number.
    pub(super) fn has(&self, port: u16) -> Result<bool, Gap> {
        match (self.allocated.is_some_and(|all| !all.at(port).is_empty()), self.unread) {
            (false, Some(gap)) => Err(gap.clone()),
            (has, _) => Ok(has),
        }
    }
}

/// The numbers that Services have. If no cluster is configured, the result has no numbers.
///
/// # Errors
/// Fails if Services were requested and not read.
pub(super) fn allocated_if_known<'r>(round: &'r Round<'_>) -> Result<KnownAllocations<'r>, Gap> {
    let allocated = match round.allocated().get() {
        Err(_) if !round.now.cluster.configured => None,
        allocated => Some(allocated?),
    };
    Ok(KnownAllocations { allocated, unread: round.now.cluster.unread_service() })
}

/// The Service with the most nodePorts, for evidence: `default/many with 1025`.
pub(super) fn most_ports_in_words(services: &[Arc<Service>]) -> String {
    let count = |service: &Service| service.ports.iter().filter(|port| port.node_port.is_some()).count();
    let most = services.iter().max_by_key(|service| (count(service), Reverse((&service.namespace, &service.name))));
    most.map_or_else(
        || "no Service has one".to_owned(),
        |service| format!("{}/{} with {}", service.namespace, service.name, count(service)),
    )
}

/// The NodePort range and its source, as text.
pub fn range_in_words(range: &NodePortRange) -> String {
    format!("{} ({})", range.range, range.place)
}

pub(super) fn at_most(range: &NodePortRange, severity: Severity) -> Severity {
    if range.source == RangeSource::Assumed { severity.min(Severity::Warning) } else { severity }
}

/// The ports as text: `2703,30000-32767`. A long text is cut. `none` if there are no ports.
pub fn ports_in_words(ports: &PortSet) -> String {
    if ports.is_empty() {
        return "none".to_owned();
    }
    let (listed, rest) = ports.ranges().split_at(ports.ranges().len().min(MOST_LISTED));
    let mut words = listed.iter().copied().collect::<PortSet>().to_string();
    if !rest.is_empty() {
        let more: u32 = rest.iter().map(|range| range.size()).sum();
        words.push_str(&format!(" and {more} more"));
    }
    words
}

/// The ports and their number, as text: `53,80 (2 ports)`.
pub fn counted(ports: &PortSet) -> String {
    format!("{} ({} port{})", ports_in_words(ports), ports.len(), if ports.len() == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;
    use portreeve_facts::healthy::objects;

    #[test]
    fn a_long_list_of_ports_is_cut() {
        let ports: PortSet = (0..40u16).map(|n| 30000 + 2 * n).collect();
        assert!(ports_in_words(&ports).ends_with(",30030 and 24 more"), "{}", ports_in_words(&ports));
        assert_eq!(ports_in_words(&PortSet::default()), "none");
    }

    #[test]
    fn the_bands_are_those_of_the_api_server() {
        for (range, fixed, dynamic) in [
            ("30000-30015", None, "30000-30015"),
            ("30000-30016", Some("30000-30015"), "30016"),
            ("30000-30127", Some("30000-30015"), "30016-30127"),
            ("30000-30511", Some("30000-30015"), "30016-30511"),
            ("30000-32767", Some("30000-30085"), "30086-32767"),
            ("30000-34095", Some("30000-30127"), "30128-34095"),
            ("0-65535", Some("0-127"), "128-65535"),
        ] {
            let found = bands(range.parse().expect("a range"));
            assert_eq!(found.fixed, fixed.map(|it: &str| it.parse().expect("a range")), "{range}");
            assert_eq!(found.dynamic, dynamic.parse().expect("a range"), "{range}");
        }
    }

    #[test]
    fn a_cluster_known_to_be_older_than_1_28_has_no_bands() {
        let mut world = Snapshot::healthy();
        let range = PortRange::DEFAULT_NODE_PORTS;
        assert_eq!(bands_here(&world, range), bands(range));
        for node in objects(&mut world.cluster.nodes) {
            node.kubelet_version = Some("v1.24.17".to_owned());
        }
        assert_eq!(bands_here(&world, range), Bands { fixed: None, dynamic: range });
        objects(&mut world.cluster.nodes)[1].kubelet_version = Some("v1.25.0-eks-1".to_owned());
        assert_eq!(bands_here(&world, range), bands(range));
    }
}
