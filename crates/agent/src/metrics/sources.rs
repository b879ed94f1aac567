//! Which readers of the last look succeeded.

use std::collections::BTreeMap;

use portreeve_facts::{Gap, Owner, Reading, Snapshot, Source, Unread, Why};
use portreeve_report::is_indispensable;

/// Every reader that was asked for something that is there, and whether it could tell.
pub(super) fn sources(snapshot: &Snapshot) -> BTreeMap<Source, bool> {
    let reported = readings(snapshot).into_iter().chain(holders(snapshot));
    let is_up = |source, gap: Option<&Gap>| match gap.map(|gap| gap.why) {
        None => Some(true),
        Some(Why::NotAsked) => None,
        // Every kernel has sockets and addresses.
        Some(Why::NotSupported) if !is_indispensable(source) => None,
        Some(_) => Some(false),
    };
    reported.filter_map(|(source, gap)| Some((source, is_up(source, gap)?))).collect()
}

/// Each reader of a fact of its own, and why it failed, if it did.
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

/// The two readers of sockets' holders. One holder that is not known is enough to have failed; a process that is
/// gone is not.
fn holders(snapshot: &Snapshot) -> [(Source, Option<&Gap>); 2] {
    let said = Unread::Said("readings");
    let clients = snapshot.kernel.clients.known(said).map(|clients| &clients.sockets);
    let sockets = snapshot.kernel.listeners.known(said).into_iter().chain(clients).flatten();
    let held = sockets.filter_map(|socket| match &socket.owner {
        Owner::Held(holder) => Some(holder),
        Owner::NotAsked | Owner::TimeWait | Owner::Kernel { .. } => None,
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
    fn what_was_read_is_up_what_was_refused_is_down_and_what_is_not_there_is_not_told() {
        let gap = |source, why| Gap::new(source, why, "");
        let mut world = Snapshot::healthy();
        world.kernel.netfilter = Reading::Gap(gap(Source::Netfilter, Why::NotPermitted));
        world.kernel.ip_vs = Reading::Gap(gap(Source::IpVs, Why::NotSupported));
        let sources = sources(&world);
        assert_eq!(sources.get(&Source::Listeners), Some(&true));
        assert_eq!(sources.get(&Source::Netfilter), Some(&false));
        assert_eq!(sources.get(&Source::IpVs), None);
    }

    #[test]
    fn no_kernel_is_without_addresses_so_a_reader_that_finds_none_is_down() {
        let mut world = Snapshot::healthy();
        world.kernel.interfaces = Reading::Gap(Gap::new(Source::Addresses, Why::NotSupported, ""));
        assert_eq!(sources(&world).get(&Source::Addresses), Some(&false));
    }

    #[test]
    fn one_holder_that_may_not_be_seen_takes_its_reader_down() {
        let up = |why| {
            let mut world = Snapshot::healthy().listens("0.0.0.0:30080");
            let Reading::Seen(listeners) = &mut world.kernel.listeners else { panic!("there are listeners") };
            for socket in listeners {
                if let Owner::Held(holder) = &mut socket.owner {
                    holder.process = Reading::Gap(Gap::new(Source::Processes, why, ""));
                }
            }
            let sources = sources(&world);
            assert_eq!(sources.get(&Source::Cgroups), Some(&true));
            sources[&Source::Processes]
        };
        assert!(!up(Why::NotPermitted));
        assert!(up(Why::Stale), "its process is gone");
    }
}
