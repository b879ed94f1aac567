//! `--set`: a fact of a snapshot that the user changes.

use std::{fmt::Display, net::IpAddr, str::FromStr};

use portreeve_facts::{Mode, NodePortRange, PortRange, PortSet, ProxyConfig, Reading, Snapshot, Unread, text};

/// One changed fact.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Setting {
    /// `net.ipv4.ip_local_port_range`.
    IpLocalPortRange(PortRange),
    /// `net.ipv4.ip_local_reserved_ports`.
    IpLocalReservedPorts(PortSet),
    /// `net.ipv4.ip_unprivileged_port_start`.
    IpUnprivilegedPortStart(u16),
    /// `net.ipv4.conf.all.route_localnet`.
    RouteLocalnet(bool),
    /// `net.ipv4.tcp_tw_reuse`.
    TcpTwReuse(u8),
    /// The proxy's mode.
    ProxyMode(Mode),
    /// The NodePort range of the API server.
    NodePortRange(PortRange),
    /// kube-proxy's `nodePortAddresses`.
    NodePortAddresses(Vec<String>),
    /// kube-proxy's `localhostNodePorts`.
    LocalhostNodePorts(bool),
}

/// The settings that can be changed.
pub const KEYS: [&str; 9] = [
    "ip_local_port_range",
    "ip_local_reserved_ports",
    "ip_unprivileged_port_start",
    "route_localnet",
    "tcp_tw_reuse",
    "proxy_mode",
    "node_port_range",
    "node_port_addresses",
    "localhost_node_ports",
];

const PLACE: &str = "--set";

impl FromStr for Setting {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let Some((key, value)) = text.split_once('=') else {
            return Err(format!("wanted KEY=VALUE, with one of the keys {}", KEYS.join(", ")));
        };
        Ok(match key.trim() {
            "ip_local_port_range" => Self::IpLocalPortRange(ephemeral(value)?),
            "ip_local_reserved_ports" => Self::IpLocalReservedPorts(parse(value)?),
            "ip_unprivileged_port_start" => Self::IpUnprivilegedPortStart(
                parse(value).map_err(|_: String| "wanted a number from 0 to 65535".to_owned())?,
            ),
            "route_localnet" => Self::RouteLocalnet(switch(value)?),
            "tcp_tw_reuse" => Self::TcpTwReuse(reuse(value)?),
            "proxy_mode" => Self::ProxyMode(parse(value)?),
            "node_port_range" => Self::NodePortRange(parse(value)?),
            "node_port_addresses" => Self::NodePortAddresses(addresses(value)?),
            "localhost_node_ports" => Self::LocalhostNodePorts(switch(value)?),
            unknown => {
                return Err(format!("no key {unknown:?}{}", text::did_you_mean(unknown, &KEYS)));
            }
        })
    }
}

impl Setting {
    /// Puts all changed facts into a snapshot.
    ///
    /// # Errors
    /// Fails if the kernel of this node would refuse the values: `ip_local_port_range` must not begin below
    /// `ip_unprivileged_port_start` (net/ipv4/sysctl_net_ipv4.c).
    pub fn apply_all(settings: &[Self], snapshot: &mut Snapshot) -> Result<(), String> {
        settings.iter().for_each(|setting| setting.apply(snapshot));
        let changes = |it: &Self| matches!(it, Self::IpLocalPortRange(_) | Self::IpUnprivilegedPortStart(_));
        let sysctls = &snapshot.kernel.sysctls;
        let range = sysctls.ip_local_port_range.known(Unread::Doubted);
        match range.zip(sysctls.ip_unprivileged_port_start.known(Unread::Doubted)) {
            Some((range, start)) if range.first < *start && settings.iter().any(changes) => Err(format!(
                "the kernel of {} refuses ip_local_port_range={range} with ip_unprivileged_port_start={start}: wanted a range from {start} on",
                text::clean(snapshot.node_name(), text::NAME)
            )),
            _ => Ok(()),
        }
    }

    /// Replaces the fact in a snapshot with the changed fact.
    pub fn apply(&self, snapshot: &mut Snapshot) {
        snapshot.kernel.record_extent();
        snapshot.overrides.sysctls_before.get_or_insert_with(|| snapshot.kernel.sysctls.clone());
        let sysctls = &mut snapshot.kernel.sysctls;
        match self.clone() {
            Self::IpLocalPortRange(range) => sysctls.ip_local_port_range = Reading::Seen(range),
            Self::IpLocalReservedPorts(ports) => sysctls.ip_local_reserved_ports = Reading::Seen(ports),
            Self::IpUnprivilegedPortStart(port) => sysctls.ip_unprivileged_port_start = Reading::Seen(port),
            Self::RouteLocalnet(on) => sysctls.route_localnet = Reading::Seen(on),
            Self::TcpTwReuse(value) => sysctls.tcp_tw_reuse = Reading::Seen(value),
            Self::ProxyMode(mode) => snapshot.suppose_mode(mode, PLACE),
            Self::NodePortRange(range) => {
                snapshot.cluster.node_port_range = Reading::Seen(NodePortRange::configured(range, PLACE));
            }
            Self::NodePortAddresses(addresses) => configure(snapshot, |it| it.node_port_addresses = addresses),
            Self::LocalhostNodePorts(on) => configure(snapshot, |it| it.localhost_node_ports = Some(on)),
        }
    }
}

/// Changes the proxy's settings. Unread settings count as defaults.
fn configure(snapshot: &mut Snapshot, change: impl FnOnce(&mut ProxyConfig)) {
    let known = snapshot.proxy_config().cloned();
    let mut config = known.unwrap_or_else(|_| ProxyConfig { place: PLACE.to_owned(), ..ProxyConfig::default() });
    change(&mut config);
    snapshot.kernel.proxy.config = Reading::Seen(config);
}

fn parse<T: FromStr<Err: Display>>(value: &str) -> Result<T, String> {
    value.trim().parse().map_err(|error: T::Err| error.to_string())
}

/// Parses `ip_local_port_range`. Values that the kernel would refuse are errors.
fn ephemeral(value: &str) -> Result<PortRange, String> {
    match parse::<PortRange>(value)? {
        range if range.first > 0 => Ok(range),
        _ => Err("wanted FIRST-LAST, each 1 to 65535".to_owned()),
    }
}

/// Parses `tcp_tw_reuse`. Values that the kernel would refuse are errors.
fn reuse(value: &str) -> Result<u8, String> {
    parse(value).ok().filter(|value| *value <= 2).ok_or_else(|| "wanted 0, 1 or 2".to_owned())
}

fn switch(value: &str) -> Result<bool, String> {
    match value.trim() {
        "1" | "true" => Ok(true),
        "0" | "false" => Ok(false),
        other => Err(format!("{other:?} is neither true nor false")),
    }
}

fn addresses(value: &str) -> Result<Vec<String>, String> {
    let is_cidr = |text: &str| {
        text.split_once('/').is_some_and(|(ip, bits)| match (ip.parse::<IpAddr>(), bits.parse::<u8>()) {
            (Ok(ip), Ok(bits)) => bits <= if ip.is_ipv4() { 32 } else { 128 },
            _ => false,
        })
    };
    let parts: Vec<&str> = value.split(',').map(str::trim).filter(|part| !part.is_empty()).collect();
    match parts.iter().find(|part| **part != "primary" && !is_cidr(part)) {
        Some(wrong) => Err(format!("{wrong:?} is neither a CIDR nor \"primary\"")),
        None => Ok(parts.into_iter().map(str::to_owned).collect()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use portreeve_facts::{EphemeralUse, Extent};

    fn supposed(settings: &[&str]) -> Snapshot {
        let mut world = Snapshot::healthy();
        for setting in settings {
            setting.parse::<Setting>().expect("a setting").apply(&mut world);
        }
        world
    }

    #[test]
    fn every_key_changes_its_fact() {
        let facts = |world: Snapshot| (world.kernel, world.cluster, world.overrides.supposed_mode);
        for key in KEYS {
            let value = match key {
                "ip_local_port_range" | "node_port_range" => "20000-40000",
                "ip_local_reserved_ports" => "30000-32767",
                "ip_unprivileged_port_start" => "80",
                "tcp_tw_reuse" => "1",
                "proxy_mode" => "ipvs",
                "node_port_addresses" => "192.0.2.0/24,primary",
                _ => "false",
            };
            assert_ne!(facts(supposed(&[&format!("{key}={value}")])), facts(Snapshot::healthy()), "{key}");
        }
    }

    #[test]
    fn a_range_may_be_written_as_the_sysctl_writes_it() {
        let world = supposed(&["ip_local_port_range=1024 65535"]);
        assert_eq!(world.kernel.sysctls.ip_local_port_range.seen().map(ToString::to_string), Some("1024-65535".into()));
    }

    #[test]
    fn an_unknown_key_names_the_nearest_and_a_wrong_value_what_was_wanted() {
        for (setting, wanted) in [
            ("ip_local_portrange=1-2", "ip_local_port_range"),
            ("proxy-mode=ipvs", "proxy_mode"),
            ("proxy_mode=bridge", "nftables"),
            ("node_port_range=2-1", "FIRST-LAST"),
            ("node_port_addresses=10.0.0.0", "CIDR"),
            ("route_localnet=maybe", "neither true nor false"),
            ("route_localnet", "KEY=VALUE"),
            ("ip_local_port_range=0 0", "1 to 65535"),
            ("tcp_tw_reuse=9", "0, 1 or 2"),
        ] {
            let error = setting.parse::<Setting>().expect_err(setting);
            assert!(error.contains(wanted), "{setting}: {error}");
        }
    }

    #[test]
    fn the_values_of_a_node_fit_together_as_its_kernel_requires() {
        let applied = |settings: &[&str]| {
            let settings: Vec<Setting> = settings.iter().map(|it| it.parse().expect("a setting")).collect();
            Setting::apply_all(&settings, &mut Snapshot::healthy())
        };
        for refused in ["ip_local_port_range=1023 5000", "ip_unprivileged_port_start=32769"] {
            let words = applied(&[refused]).expect_err(refused);
            assert!(words.contains("ip_local_port_range=") && words.contains("wanted a range from "), "{words}");
        }
        for taken in [
            &["ip_local_port_range=1024 5000"][..],
            &["ip_unprivileged_port_start=32768"],
            &["ip_local_port_range=1 5", "ip_unprivileged_port_start=0"],
            &["ip_local_reserved_ports=0-65535"],
        ] {
            assert_eq!(applied(taken), Ok(()), "{taken:?}");
        }
    }

    #[test]
    fn a_count_without_an_extent_holds_for_the_settings_before_the_change() {
        for setting in ["ip_local_port_range=20000-40000", "ip_local_reserved_ports=40000", "tcp_tw_reuse=0"] {
            let mut world = Snapshot::healthy();
            let ports = PortSet::from(*world.kernel.sysctls.ip_local_port_range.seen().expect("a range"));
            let old = EphemeralUse { at_most: 9, busiest: Vec::new(), extent: Extent::NotRecorded };
            world.kernel.ephemeral = Reading::Seen(old);
            setting.parse::<Setting>().expect("a setting").apply(&mut world);
            let extent = world.kernel.ephemeral.seen().map(|it| it.extent.clone());
            let (tcp_tw_reuse, every) = (Some(2), Some(35));
            assert_eq!(extent, Some(Extent::Walked { ports, tcp_tw_reuse, every }), "{setting}");
        }
        assert_eq!(supposed(&["tcp_tw_reuse=0"]).kernel.ephemeral, Snapshot::healthy().kernel.ephemeral);
    }

    #[test]
    fn the_settings_before_the_first_change_stay_known() {
        let world = supposed(&["ip_local_port_range=20000-40000", "ip_local_reserved_ports=30000-32767"]);
        assert_eq!(world.overrides.sysctls_before, Some(Snapshot::healthy().kernel.sysctls));
    }

    #[test]
    fn addresses_can_be_supposed_where_kube_proxy_did_not_answer() {
        let mut world = Snapshot::healthy().without_proxy();
        "node_port_addresses=primary".parse::<Setting>().expect("a setting").apply(&mut world);
        let config = world.kernel.proxy.config.seen().expect("supposed");
        assert_eq!(
            (config.place.as_str(), config.node_port_addresses.as_slice()),
            ("--set", &["primary".to_owned()][..])
        );
    }
}
