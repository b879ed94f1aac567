//! How we know: what was looked at, and where each decisive setting was learned.

use std::io;

use super::{
    super::{
        Report,
        terminal::{Ink, tidy},
    },
    page::Page,
};
use portreeve_facts::{PortSet, Reading, Snapshot};

const LABEL: usize = 15;

impl Page<'_> {
    pub(super) fn write_sources(&mut self, report: &Report<'_>) -> io::Result<()> {
        let snapshot = report.snapshot;
        self.blank()?;
        self.line(0, Ink::Heading, "How we know")?;
        let rows = [
            ("proxy mode", proxy(snapshot)),
            ("NodePort range", range(snapshot)),
            ("ephemeral ports", ephemeral(snapshot)),
            ("cluster", cluster(snapshot)),
            ("sockets", sockets(snapshot)),
            ("time", Some(format!("one look, {:.0}: what comes and goes may be missed", snapshot.at))),
        ];
        for (label, text) in rows {
            let text = text.unwrap_or_else(|| "not known, see below".to_owned());
            let lines = self.wrapped(Ink::Plain, &text, LABEL + 4);
            self.labelled(2, label, LABEL, &lines)?;
        }
        Ok(())
    }
}

fn proxy(snapshot: &Snapshot) -> Option<String> {
    let mode = snapshot.proxy_mode().ok()?;
    let config = snapshot.proxy_config().ok();
    let addresses = match config.map(|config| config.node_port_addresses.join(",")) {
        None if snapshot.overrides.proxy_mode.is_some() => {
            "nodePortAddresses assumed to be at the mode's default".to_owned()
        }
        None => "nodePortAddresses not known".to_owned(),
        Some(addresses) if addresses.is_empty() => "nodePortAddresses at the mode's default".to_owned(),
        Some(addresses) => format!("nodePortAddresses {addresses}"),
    };
    Some(format!("{} ({}), {addresses}", mode.value, mode.place))
}

fn range(snapshot: &Snapshot) -> Option<String> {
    let range = snapshot.cluster.node_port_range.seen()?;
    let allocated = match &snapshot.cluster.services {
        Reading::Gap(_) => String::new(),
        Reading::Seen(services) => {
            let ports: PortSet = services
                .iter()
                .flat_map(|service| {
                    let ports = service.ports.iter().filter_map(|port| port.node_port);
                    ports.chain(service.health_check_node_port)
                })
                .collect();
            format!(", {} allocated", ports.len())
        }
    };
    Some(format!("{} ({}){allocated}", range.range, range.place))
}

fn ephemeral(snapshot: &Snapshot) -> Option<String> {
    let sysctls = &snapshot.kernel.sysctls;
    let range = sysctls.ip_local_port_range.seen()?;
    let reserved = match sysctls.ip_local_reserved_ports.seen() {
        None => "reserved ports not known".to_owned(),
        Some(reserved) if reserved.is_empty() => "none reserved".to_owned(),
        Some(reserved) => format!("reserved {reserved}"),
    };
    Some(format!("{range} (ip_local_port_range), {reserved}"))
}

fn cluster(snapshot: &Snapshot) -> Option<String> {
    let services = snapshot.cluster.services.seen()?;
    Some(format!("{} from {}", counted(services.len(), "Service"), snapshot.cluster.origin))
}

fn sockets(snapshot: &Snapshot) -> Option<String> {
    let listeners = counted(snapshot.kernel.listeners.seen()?.len(), "listener");
    let clients = match snapshot.kernel.clients.seen() {
        None => "client sockets not known".to_owned(),
        Some(clients) if clients.passed_over => {
            "client sockets cannot be on ports that matter unless bound to".to_owned()
        }
        Some(clients) => {
            let known = u64::try_from(clients.sockets.len()).unwrap_or(u64::MAX);
            format!("{} on ports that matter", counted(known.saturating_add(clients.beyond), "client socket"))
        }
    };
    let node = tidy(&snapshot.kernel.release);
    Some(format!("{listeners}, {clients} (Linux {node}, {})", snapshot.kernel.socket_source))
}

/// `1 Service`, `2 Services`.
fn counted(count: impl TryInto<u64>, what: &str) -> String {
    let count = count.try_into().unwrap_or(u64::MAX);
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;
    use portreeve_facts::{Learned, Mode, Source, Why, healthy::gap};

    #[test]
    fn the_defaults_of_a_configured_mode_are_said_to_be_assumed() {
        let mut world = Snapshot::healthy();
        assert!(proxy(&world).is_some_and(|text| text.ends_with(", nodePortAddresses at the mode's default")));
        world.kernel.proxy.config = gap(Source::ProxyConfig, Why::Unreachable);
        assert!(proxy(&world).is_some_and(|text| text.ends_with("nodePortAddresses not known")));
        world.overrides.proxy_mode = Some(Learned { value: Mode::Nftables, place: "--proxy-mode".to_owned() });
        assert!(
            proxy(&world).is_some_and(|text| text.ends_with("nodePortAddresses assumed to be at the mode's default"))
        );
    }
}
