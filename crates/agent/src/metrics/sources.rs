//! Whether each reader of the last scan succeeded.

use std::collections::BTreeMap;

use portreeve_facts::{Gap, Owner, Reading, Snapshot, Source, Unread, Why};
use portreeve_report::is_indispensable;

/// All sources that were read and that exist on this node, and whether their reading succeeded.
pub(super) fn sources(snapshot: &Snapshot) -> BTreeMap<Source, bool> {
    let reported = readings(snapshot).into_iter().chain(holders(snapshot));
    let is_up = |source, gap: Option<&Gap>| match gap.map(|gap| gap.why) {
        None => Some(true),
        Some(Why::NotRequested) => None,
        // Every kernel has sockets and addresses, so these sources are never left out.
        Some(Why::NotSupported) if !is_indispensable(source) => None,
        Some(_) => Some(false),
    };
    reported.filter_map(|(source, gap)| Some((source, is_up(source, gap)?))).collect()
}

fn readings(snapshot: &Snapshot) -> Vec<(Source, Option<&Gap>)> {
    fn of<T>(source: Source, reading: &Reading<T>) -> (Source, Option<&Gap>) {
        (source, reading.gap())
    }
    let Snapshot { kernel, cluster, own_port, .. } = snapshot;
    let (sysctls, proxy) = (&kernel.sysctls, &kernel.proxy);
    let range = of(Source::Sysctls, &sysctls.ip_local_port_range);
    let sysctl = if range.1.is_some() { range } else { of(Source::Sysctls, &sysctls.ip_local_reserved_ports) };
    vec![
        (Source::Listeners, kernel.unread_listeners()),
        of(Source::Clients, &kernel.clients),
        of(Source::EphemeralUse, &kernel.ephemeral),
        of(Source::Sockstat, &kernel.sockstat),
        sysctl,
        of(Source::Addresses, &kernel.interfaces),
        of(Source::ResolvConf, &kernel.nameservers),
        of(Source::ProxyMode, &proxy.mode),
        of(Source::ProxyConfig, &proxy.config),
        of(Source::ProxyMetrics, &proxy.metrics),
        of(Source::ProxyProcess, &proxy.fds),
        of(Source::IpVs, &kernel.ip_vs),
        of(Source::IpVsConn, &kernel.ip_vs_connections),
        of(Source::Conntrack, &kernel.masquerade),
        of(Source::Netfilter, &kernel.netfilter),
        of(Source::PodNamespaces, &kernel.pod_namespaces),
        of(Source::HealthChecks, &kernel.health_checks),
        of(Source::Services, &cluster.services),
        of(Source::EndpointSlices, &cluster.endpoint_slices),
        of(Source::Pods, &cluster.pods),
        of(Source::WaitingPods, &cluster.waiting_pods),
        of(Source::Nodes, &cluster.nodes),
        of(Source::NodePortRange, &cluster.node_port_range),
        of(Source::OwnPort, own_port),
    ]
}

/// If one holder is unknown, the reader failed. If a process has ended, the reader did not fail.
fn holders(snapshot: &Snapshot) -> [(Source, Option<&Gap>); 2] {
    let reported = Unread::Reported("readings");
    let clients = snapshot.kernel.clients.known(reported).map(|clients| &clients.sockets);
    let sockets = snapshot.kernel.listeners.known(reported).into_iter().chain(clients).flatten();
    let held = sockets.filter_map(|socket| match &socket.owner {
        Owner::Held(holder) => Some(holder),
        Owner::NotRead | Owner::TimeWait | Owner::Kernel { .. } => None,
    });
    let failed = |gap: &&Gap| !matches!(gap.why, Why::Stale | Why::NotSupported);
    [
        (Source::Processes, held.clone().find_map(|holder| holder.process.gap().filter(failed))),
        (Source::Cgroups, held.clone().find_map(|holder| holder.cgroup.gap().filter(failed))),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_is_up_if_read_down_if_refused_and_absent_if_the_node_does_not_have_it() {
        let gap = |source, why| Gap::new(source, why, "");
        let mut snapshot = Snapshot::healthy();
        snapshot.kernel.netfilter = Reading::Gap(gap(Source::Netfilter, Why::NotPermitted));
        snapshot.kernel.ip_vs = Reading::Gap(gap(Source::IpVs, Why::NotSupported));
        let sources = sources(&snapshot);
        assert_eq!(sources.get(&Source::Listeners), Some(&true));
        assert_eq!(sources.get(&Source::Netfilter), Some(&false));
        assert_eq!(sources.get(&Source::IpVs), None);
    }

    #[test]
    fn no_kernel_is_without_addresses_so_a_reader_that_finds_none_is_down() {
        let mut snapshot = Snapshot::healthy();
        snapshot.kernel.interfaces = Reading::Gap(Gap::new(Source::Addresses, Why::NotSupported, ""));
        assert_eq!(sources(&snapshot).get(&Source::Addresses), Some(&false));
    }

    #[test]
    fn one_holder_that_the_agent_must_not_read_takes_its_reader_down() {
        let up = |why| {
            let mut snapshot = Snapshot::healthy().listens("0.0.0.0:30080");
            let Reading::Seen(listeners) = &mut snapshot.kernel.listeners else { panic!("there are listeners") };
            for socket in listeners {
                if let Owner::Held(holder) = &mut socket.owner {
                    holder.process = Reading::Gap(Gap::new(Source::Processes, why, ""));
                }
            }
            let sources = sources(&snapshot);
            assert_eq!(sources.get(&Source::Cgroups), Some(&true));
            sources[&Source::Processes]
        };
        assert!(!up(Why::NotPermitted));
        assert!(up(Why::Stale), "its process has ended");
    }
}
