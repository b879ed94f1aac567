//! The NodePort range: its bands, what is allocated in it, and where it meets the ephemeral range.

use std::{cmp::Reverse, collections::BTreeMap, sync::Arc};

use super::{holders::kubectl, wording::MOST_LISTED};
use crate::{
    facts::{
        Gap, NodePortRange, PortRange, PortSet, RangeSource, Reading, Service, ServicePort, Snapshot, Source, Why,
        kubernetes_version,
    },
    findings::Severity,
};

/// The static and the dynamic band (ServiceNodePortStaticSubrange, KEP-3668: on by default since Kubernetes 1.28).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Bands {
    /// Preferred for ports that people write; nothing where the range is too small.
    pub(super) fixed: Option<PortRange>,
    /// Preferred for automatic choice.
    pub(super) dynamic: PortRange,
}

/// `size <= 16: none, else clamp(size / 32, 16, 128)`
/// (kubernetes pkg/registry/core/service/portallocator/allocator.go).
pub(super) fn bands(range: PortRange) -> Bands {
    let size = range.size();
    let offset = if size <= 16 { 0 } else { (size / 32).clamp(16, 128) };
    let offset = u16::try_from(offset).expect("at most 128");
    if offset == 0 {
        return Bands { fixed: None, dynamic: range };
    }
    let first = range.first + offset;
    Bands {
        fixed: Some(PortRange { first: range.first, last: first - 1 }),
        dynamic: PortRange { first, last: range.last },
    }
}

/// The bands that this cluster has: none where it is known to be older than Kubernetes 1.28, by the newest kubelet.
/// No API server is older than its kubelets.
pub(super) fn bands_here(snapshot: &Snapshot, range: PortRange) -> Bands {
    let nodes = snapshot.cluster.nodes.seen().into_iter().flatten();
    let newest = nodes.filter_map(|node| kubernetes_version(node.kubelet_version.as_deref()?)).max();
    match newest {
        Some(version) if version < (1, 28, 0) => Bands { fixed: None, dynamic: range },
        _ => bands(range),
    }
}

/// The range where somebody said it.
///
/// # Errors
/// When it was not read, or is only assumed to be the default.
pub(super) fn known_range(snapshot: &Snapshot) -> Result<&NodePortRange, Gap> {
    let range = snapshot.cluster.node_port_range.get()?;
    if range.source == RangeSource::Assumed {
        let detail = "nobody said what the API server's NodePort range is; name it with --node-port-range";
        return Err(Gap::new(Source::NodePortRange, Why::Ambiguous, detail));
    }
    Ok(range)
}

/// Every allocated number, healthCheckNodePorts included, with one Service that has it.
pub(super) fn allocated(services: &[Arc<Service>]) -> BTreeMap<u16, &Service> {
    let mut allocated = BTreeMap::new();
    for service in services.iter().map(Arc::as_ref) {
        let ports = service.ports.iter().filter_map(|port| port.node_port).chain(service.health_check_node_port);
        for port in ports {
            allocated.entry(port).or_insert(service);
        }
    }
    allocated
}

/// The same, and nothing where nobody gave a cluster: then no port is known to be anybody's.
///
/// # Errors
/// When Services were asked for and not read.
pub(super) fn allocated_if_known(snapshot: &Snapshot) -> Result<BTreeMap<u16, &Service>, Gap> {
    match snapshot.cluster.services.get() {
        Ok(services) => Ok(allocated(services)),
        Err(_) if !snapshot.cluster.configured => Ok(BTreeMap::new()),
        Err(gap) => Err(gap),
    }
}

/// The Service with most nodePorts, `default/many with 1025`, for evidence.
pub(super) fn most_ports_in_words(services: &[Arc<Service>]) -> String {
    let count = |service: &Service| service.ports.iter().filter(|port| port.node_port.is_some()).count();
    let most = services.iter().max_by_key(|service| (count(service), Reverse((&service.namespace, &service.name))));
    most.map_or_else(
        || "no Service has one".to_owned(),
        |service| format!("{}/{} with {}", service.namespace, service.name, count(service)),
    )
}

/// `30000-32767 (kube-apiserver /flagz)`, for evidence.
pub(super) fn range_in_words(range: &NodePortRange) -> String {
    format!("{} ({})", range.range, range.place)
}

/// A severity that rests on the range: an assumed one proves nothing critical.
pub(super) fn at_most(range: &NodePortRange, severity: Severity) -> Severity {
    if range.source == RangeSource::Assumed { severity.min(Severity::Warning) } else { severity }
}

/// `2703,30000-32767`, cut where it is long; `none` when it is empty.
pub(super) fn ports_in_words(ports: &PortSet) -> String {
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

/// The same with their number: `30080-30081 (2 ports)`.
pub(super) fn counted(ports: &PortSet) -> String {
    format!("{} ({} port{})", ports_in_words(ports), ports.len(), if ports.len() == 1 { "" } else { "s" })
}

/// The commands that keep the kernel from choosing `ports` by itself, for now and for good. A write replaces the whole
/// list, so what is reserved already is written again, and NodePorts that the kernel may choose are written too: a
/// remedy of one finding does not undo that of another.
pub(super) fn reserve(snapshot: &Snapshot, ports: &PortSet) -> Vec<String> {
    let ephemeral = snapshot.kernel.sysctls.ip_local_port_range.seen();
    let node_ports = snapshot.cluster.node_port_range.seen().map(|range| range.range);
    let meeting = node_ports.filter(|range| ephemeral.is_some_and(|it| it.intersection(*range).is_some()));
    let ports = &meeting.map_or_else(|| ports.clone(), |range| ports.union(&range.into()));
    match &snapshot.kernel.sysctls.ip_local_reserved_ports {
        Reading::Seen(reserved) => {
            let merged = reserved.union(ports);
            vec![
                format!("sysctl -w net.ipv4.ip_local_reserved_ports=\"{merged}\""),
                format!(
                    "echo 'net.ipv4.ip_local_reserved_ports = {merged}' > /etc/sysctl.d/99-node-ports.conf # keeps it over a restart"
                ),
            ]
        }
        Reading::Gap(_) => vec![format!(
            "add {ports} to what net.ipv4.ip_local_reserved_ports holds now, and write the whole list back: a write replaces it"
        )],
    }
}

/// The command that moves a Service port to a spare nodePort, which is looked for once a rule: looking takes a walk over
/// all Services.
pub(super) fn move_service(spare: Option<u16>, service: &Service, port: &ServicePort) -> String {
    let index = service.ports.iter().position(|it| std::ptr::eq(it, port)).unwrap_or(0);
    match spare {
        Some(spare) => format!(
            "{} --type=json -p '[{{\"op\":\"replace\",\"path\":\"/spec/ports/{index}/nodePort\",\"value\":{spare}}}]'",
            kubectl("patch", service)
        ),
        None => format!("give the Service another nodePort: {}", kubectl("edit", service)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::healthy::{gap, objects};

    #[test]
    fn reserving_keeps_what_somebody_else_reserved_and_never_guesses_it() {
        let ports = PortSet::from(PortRange::DEFAULT_NODE_PORTS);
        let mut world = Snapshot::healthy().ephemeral("1024 65535", "2703,31000-40000");
        let [now, for_good] = &reserve(&world, &ports)[..] else { panic!("two commands") };
        assert_eq!(now, "sysctl -w net.ipv4.ip_local_reserved_ports=\"2703,30000-40000\"");
        assert!(for_good.contains("'net.ipv4.ip_local_reserved_ports = 2703,30000-40000' > /etc/sysctl.d/"));
        let other = reserve(&world, &[8443].into_iter().collect());
        assert!(other[0].ends_with("=\"2703,8443,30000-40000\""), "it would undo the first: {other:?}");
        world.kernel.sysctls.ip_local_reserved_ports = gap(Source::Sysctls, Why::NotPermitted);
        assert!(!reserve(&world, &ports)[0].contains("sysctl -w"), "it would forget what is reserved");
    }

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
            let told = bands(range.parse().expect("a range"));
            assert_eq!(told.fixed, fixed.map(|it: &str| it.parse().expect("a range")), "{range}");
            assert_eq!(told.dynamic, dynamic.parse().expect("a range"), "{range}");
        }
    }

    #[test]
    fn a_cluster_known_to_be_older_than_1_28_has_no_bands() {
        let mut world = Snapshot::healthy();
        let range = PortRange::DEFAULT_NODE_PORTS;
        assert_eq!(bands_here(&world, range), bands(range));
        for node in objects(&mut world.cluster.nodes) {
            node.kubelet_version = Some("v1.27.16".to_owned());
        }
        assert_eq!(bands_here(&world, range), Bands { fixed: None, dynamic: range });
        objects(&mut world.cluster.nodes)[1].kubelet_version = Some("v1.28.0-eks-1".to_owned());
        assert_eq!(bands_here(&world, range), bands(range));
    }

    #[test]
    fn the_command_that_moves_a_service_names_the_right_one_of_its_ports() {
        let world = Snapshot::healthy().service("web", |it| {
            it.node_port(30080).with(|service| service.ports.push(ServicePort { port: 81, ..service.ports[0].clone() }))
        });
        let service = &world.cluster.services.seen().expect("services")[0];
        for (index, port) in service.ports.iter().enumerate() {
            let command = move_service(Some(30005), service, port);
            assert!(command.contains(&format!("/spec/ports/{index}/nodePort")), "{command}");
        }
    }
}
