//! Whether each reader of the last scan succeeded.

use std::collections::BTreeMap;

use portreeve_facts::{Gap, Snapshot, Source, Why};
use portreeve_report::is_everywhere;

/// The sources that were read and that exist on this node. The value says whether all readings of the source succeeded.
pub(super) fn sources(snapshot: &Snapshot) -> BTreeMap<Source, bool> {
    let is_up = |source, gap: Option<&Gap>| match gap.map(|gap| gap.why) {
        None => Some(true),
        Some(Why::NotRequested) => None,
        // Every kernel has sockets, addresses and settings, so these sources always have an entry.
        Some(Why::NotSupported) if !is_everywhere(source) => None,
        Some(_) => Some(false),
    };
    let mut sources = BTreeMap::new();
    for (source, gap) in snapshot.readings().into_iter().chain(holders(snapshot)) {
        if let Some(is_up) = is_up(source, gap) {
            *sources.entry(source).or_insert(true) &= is_up;
        }
    }
    sources
}

/// If the process of a holder is unknown, the reader of processes failed. If the control group of a holder is unknown,
/// the reader of control groups failed. A process that has ended is not a failure.
fn holders(snapshot: &Snapshot) -> [(Source, Option<&Gap>); 2] {
    let failed = |gap: &&Gap| !matches!(gap.why, Why::Stale | Why::NotSupported);
    [
        (Source::Processes, snapshot.holders().find_map(|holder| holder.process.gap().filter(failed))),
        (Source::Cgroups, snapshot.holders().find_map(|holder| holder.cgroup.gap().filter(failed))),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use portreeve_facts::{Owner, Reading};

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
    fn no_kernel_is_without_addresses_and_settings_so_a_reader_that_finds_none_is_down() {
        let mut snapshot = Snapshot::healthy();
        snapshot.kernel.interfaces = Reading::Gap(Gap::new(Source::Addresses, Why::NotSupported, ""));
        snapshot.kernel.sysctls.ip_local_port_range = Reading::Gap(Gap::new(Source::Sysctls, Why::NotSupported, ""));
        let sources = sources(&snapshot);
        assert_eq!([Source::Addresses, Source::Sysctls].map(|it| sources[&it]), [false, false]);
    }

    #[test]
    fn a_source_with_a_failed_reading_is_down() {
        let mut snapshot = Snapshot::healthy();
        snapshot.kernel.sysctls.route_localnet = Reading::Gap(Gap::new(Source::Sysctls, Why::NotPermitted, ""));
        assert_eq!(sources(&snapshot).get(&Source::Sysctls), Some(&false));
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
