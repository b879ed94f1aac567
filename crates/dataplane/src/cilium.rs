//! Cilium's eBPF replacement of kube-proxy. Measured with cilium-agent 1.20.2 and 1.19.7.
//!
//! Cilium serves remote clients on one address of each of its devices, or on the addresses of `nodeport-addresses`. For
//! the node and its pods, Cilium serves every address of these devices and of loopback: Cilium translates the
//! destination at `connect`. [`Settings::node_port_range`] has an exception.

use std::net::IpAddr;

use super::{
    backing::Backing,
    claim::ClaimKind,
    kube_proxy::{listing, listing_nothing, node_port_addresses},
    local_address::LocalAddress,
    outcome::Outcome,
    part::Field,
    plane::{Connection, DataPlane},
    settings::{EVERY, Setting, Settings},
};
use portreeve_facts::{
    CILIUM_HOST, CiliumConfig, Claimant, ContainerPort, Family, Gap, Interfaces, Mode, PortRange, PortSet, Protocol,
    ProxyConfig, Service, Snapshot, Source, Unread, Vantage, Why, WithoutBackend,
};

pub(super) static PLANE: DataPlane = DataPlane {
    mode: Mode::Cilium,
    settings: &[Setting::NodePortAddresses, Setting::Devices, Setting::WithoutBackend, Setting::HostNamespaceOnly],
    unread,
    read,
    node_port_addresses,
    captures,
    captures_external,
    outcome,
    external_ip_or_node_port,
    node_port_or_host_port,
    masquerades_own_link_local: false,
};

pub(super) const ONE_ADDRESS: &str =
    "; for remote clients on one address of each device, unless nodeport-addresses has other addresses";

const BY_WHICH_DEVICE: &str =
    "the address is on a device that Cilium does not serve: Cilium serves only packets that arrive on its own devices";
const WHERE_PACKETS_ARRIVE: &str = "the address is on a device that Cilium does not serve; with bpf-lb-sock-hostns-only, Portreeve has no measurement of packets from pods";
const OF_EVERY_ADDRESS: &str = "Cilium 1.17 served a hostPort with the hostIP 0.0.0.0 or :: on every address; newer versions, from their source code, on no address";

/// Whether Cilium serves a hostPort on an address (`pkg/loadbalancer/reflectors/k8s.go`, `upsertHostPort`). If the
/// hostPort has no `hostIP`, Cilium serves the hostPort on the addresses of NodePorts. If `hostIP` is a loopback
/// address, Cilium serves the hostPort on all loopback addresses.
pub(super) fn serves_host_port(
    settings: &Settings,
    port: &ContainerPort,
    to: LocalAddress,
    from: Vantage,
) -> Result<bool, &'static str> {
    let is_of_family = |ip: IpAddr| Family::of(ip) == Family::of(to.ip);
    match port.host_ip {
        None => Ok(captures(settings, to, from)),
        Some(ip) if ip.is_unspecified() && is_of_family(ip) && captures(settings, to, from) => Err(OF_EVERY_ADDRESS),
        Some(ip) if ip.is_loopback() => Ok(to.ip.is_loopback() && is_of_family(ip)),
        Some(ip) if ip == to.ip => captures_exactly(settings, ip, from, false),
        Some(_) => Ok(false),
    }
}

/// Whether Cilium refuses `bind` of this protocol and family on every NodePort. Cilium refuses `bind` in the node's
/// network namespace, on the wildcard address and on each served address. A process that already listens keeps its
/// socket. After a restart, the process cannot listen again.
pub fn refuses_bind(snapshot: &Snapshot, protocol: Protocol, family: Family) -> bool {
    let serves = snapshot.is_in(Mode::Cilium);
    let config = snapshot.proxy_config_of(Some(Mode::Cilium)).ok().and_then(|config| config.cilium.as_ref());
    let allows = |config: &CiliumConfig| config.allows_bind || config.families_off.contains(&family);
    serves && is_translated(protocol) && !config.is_some_and(allows)
}

/// Whether Cilium refuses `bind` on the NodePorts of one Service. Since 1.18 Cilium allows `bind` on NodePorts that
/// Envoy serves, so that Envoy can listen (`bpf/bpf_sock.c`).
pub fn refuses_bind_of(snapshot: &Snapshot, service: &Service, protocol: Protocol, family: Family) -> bool {
    let has = service.families.contains(&family);
    has && !is_of_envoy(service, protocol) && refuses_bind(snapshot, protocol, family)
}

/// Whether Cilium's Envoy answers for a Service, with or without endpoints (`bpf/bpf_sock.c`, `bpf/lib/nodeport.h`).
pub(super) fn is_of_envoy(service: &Service, protocol: Protocol) -> bool {
    service.for_cilium.by_envoy && protocol == Protocol::Tcp
}

/// Cilium's own NodePort range, from Cilium's configuration or the default.
pub fn cilium_range(snapshot: &Snapshot) -> Result<PortSet, Gap> {
    match snapshot.cluster.range_claims.iter().find(|claim| claim.by == Claimant::Cilium) {
        Some(claim) => match claim.ranges.get()? {
            ranges if ranges.is_empty() => Err(Gap::new(Source::ConfigMaps, Why::Malformed, "Cilium's range is empty")),
            ranges => Ok(ranges.iter().copied().collect()),
        },
        None => Ok(PortRange::DEFAULT_NODE_PORTS.into()),
    }
}

/// Whether Cilium ignores each hostPort with this number, because the number is in Cilium's NodePort range. Cilium
/// ignores the hostPort even if no Service has the number.
pub fn ignores_host_port(snapshot: &Snapshot, number: u16) -> bool {
    snapshot.is_in(Mode::Cilium) && cilium_range(snapshot).is_ok_and(|range| range.contains(number))
}

pub(super) fn serves_here(snapshot: &Snapshot) -> Option<bool> {
    match snapshot.proxy_mode() {
        Ok(mode) => Some(mode.value == Mode::Cilium),
        // If a kube-proxy runs or is configured beside Cilium, the result is unknown.
        Err(_) if snapshot.contested().is_some() => None,
        Err(_) => match snapshot.kernel.interfaces.known(Unread::Doubted) {
            Some(interfaces) if !may_be(snapshot, interfaces) => Some(false),
            _ => None,
        },
    }
}

/// Whether Cilium may replace kube-proxy: the node has the link that Cilium always makes, and Cilium's settings do not
/// exclude the replacement.
pub(super) fn may_be(snapshot: &Snapshot, interfaces: &Interfaces) -> bool {
    interfaces.has_link(CILIUM_HOST) && snapshot.cluster.cilium_replaces != Some(false)
}

/// Whether Cilium's programs for `connect` and `bind` handle the protocol (cilium `bpf/bpf_sock.c`).
fn is_translated(protocol: Protocol) -> bool {
    protocol != Protocol::Sctp
}

/// The possible configurations if Cilium's configuration was not read. Configurations that exclude all addresses of
/// this node, or a family, are at the end.
fn unread() -> Vec<ProxyConfig> {
    let ways = [WithoutBackend::Reject, WithoutBackend::Drop, WithoutBackend::Pass];
    let of = |(without_backend, host_namespace_only, sctp)| {
        let cilium = CiliumConfig { without_backend, host_namespace_only, sctp, ..CiliumConfig::default() };
        read(&ProxyConfig { cilium: Some(cilium), ..ProxyConfig::default() })
    };
    let either = [false, true].into_iter();
    let pairs = either.clone().flat_map(|one| either.clone().map(move |other| (one, other)));
    let served = ways.into_iter().flat_map(|way| pairs.clone().map(move |(only, sctp)| (way, only, sctp))).flat_map(of);
    let off = Family::BOTH.map(|family| {
        let cilium = CiliumConfig { families_off: vec![family], ..CiliumConfig::default() };
        ProxyConfig { cilium: Some(cilium), ..ProxyConfig::default() }
    });
    // Each link is a device, and each address is in the list. No other `devices` and `nodeport-addresses` make Cilium
    // serve more addresses.
    let cilium = CiliumConfig { devices: vec!["+".to_owned()], sctp: true, ..CiliumConfig::default() };
    let everywhere = ProxyConfig { cilium: Some(cilium), ..listing(&EVERY) };
    served.chain([everywhere, listing_nothing()]).chain(off).collect()
}

/// The possible configurations: if `host_namespace_only` is on, an unknown `wildcard_entries` may have either value.
fn read(config: &ProxyConfig) -> Vec<ProxyConfig> {
    let is_open = |it: &CiliumConfig| it.host_namespace_only && it.wildcard_entries.is_none();
    if !config.cilium.as_ref().is_some_and(is_open) {
        return vec![config.clone()];
    }
    let either = [true, false].map(Some).into_iter();
    let of = |wildcard_entries| {
        let cilium = config.cilium.clone().map(|it| CiliumConfig { wildcard_entries, ..it });
        ProxyConfig { cilium, ..config.clone() }
    };
    either.map(of).collect()
}

fn captures(settings: &Settings, address: LocalAddress, from: Vantage) -> bool {
    let listed = || settings.lists(address.ip) && !address.ip.is_loopback();
    let is_served = settings.is_of_devices(address.ip) && is_on(settings, address);
    let is_like_outsiders = from == Vantage::Remote || from == Vantage::Pods && settings.pods_by_list;
    is_served && (!is_like_outsiders || listed())
}

/// Cilium serves external addresses that are on its devices. On all other addresses, Cilium serves only packets that
/// arrive on its devices. For the node and its pods, Cilium also serves a load balancer's address (`bpf/bpf_sock.c`,
/// `sock4_skip_xlate`).
fn captures_external(settings: &Settings, to: IpAddr, from: Vantage, field: Field) -> Result<bool, &'static str> {
    captures_exactly(settings, to, from, settings.external_ips_anywhere || field == Field::LoadBalancer)
}

/// `beyond` is true if Cilium also serves the node and its pods on addresses of other devices.
fn captures_exactly(settings: &Settings, to: IpAddr, from: Vantage, beyond: bool) -> Result<bool, &'static str> {
    match from {
        _ if settings.is_of_devices(to) => Ok(true),
        Vantage::Remote => Err(BY_WHICH_DEVICE),
        Vantage::Pods if settings.host_namespace_only => Err(WHERE_PACKETS_ARRIVE),
        _ => Ok(beyond),
    }
}

fn is_on(settings: &Settings, address: LocalAddress) -> bool {
    !settings.families_off.contains(&Family::of(address.ip))
}

fn outcome(settings: &Settings, connection: Connection) -> Outcome {
    // If Cilium does not translate a pod's `connect`, Cilium translates the pod's packets on the node. Translation at
    // `connect` and translation of packets differ only in the refusal of a connection.
    let by_socket = match connection.from {
        Vantage::Remote => false,
        Vantage::Pods => !settings.host_namespace_only && is_translated(connection.protocol),
        Vantage::Node | Vantage::Loopback => true,
    };
    let refused = match settings.without_backend {
        WithoutBackend::Reject => Outcome::Refused,
        WithoutBackend::Drop | WithoutBackend::Pass => Outcome::TimedOut,
    };
    let is_own = matches!(connection.from, Vantage::Node | Vantage::Loopback);
    let backing = connection.backing;
    // internalTrafficPolicy applies to clients inside the cluster: the node and its pods.
    let is_inside = connection.from != Vantage::Remote;
    let none_inside = matches!(backing, Backing::ReadyOutside | Backing::ElsewhereOutside);
    let is_empty = backing == Backing::Empty || is_inside && none_inside;
    let is_elsewhere = matches!(backing, Backing::Elsewhere | Backing::ElsewhereOutside);
    // If both traffic policies are Local and all endpoints are on other nodes, `Pass` does not apply, because the
    // Service has endpoints.
    let passes = settings.without_backend == WithoutBackend::Pass && backing != Backing::ElsewhereOutside;
    match () {
        () if !(connection.captured && is_on(settings, connection.to)) => Outcome::Listener,
        // From Cilium's source code, not measured: `connect` does not translate SCTP. So the process on the node
        // answers the node's own SCTP connections.
        () if !is_translated(connection.protocol) && (!settings.sctp || is_own) => Outcome::Listener,
        () if is_empty && passes => Outcome::Listener,
        () if is_empty && by_socket => Outcome::Unreachable,
        () if is_empty || is_elsewhere && !is_inside => refused,
        () => Outcome::Pod,
    }
}

/// If an external IP and a NodePort have the same address and port, Cilium's map has one entry, for the Service that
/// was programmed last. In Cilium's source code since 1.19.7, a served NodePort wins
/// (`pkg/loadbalancer/writer/writer.go`, `isNodePortConflict`). This function does not know Cilium's version.
fn external_ip_or_node_port(_: Outcome, _: Outcome) -> Option<ClaimKind> {
    None
}

/// Cilium ignores a hostPort in the NodePort range.
fn node_port_or_host_port(_: Outcome) -> Option<ClaimKind> {
    Some(ClaimKind::NodePort)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn on_a_node_without_ciliums_link_an_unknown_proxy_is_not_cilium() {
        assert_eq!(serves_here(&Snapshot::healthy().without_proxy()), Some(false));
        assert_eq!(serves_here(&Snapshot::healthy().without_proxy().address(CILIUM_HOST, "10.244.0.1")), None);
    }

    #[test]
    fn a_setting_that_was_not_read_has_each_of_its_values_in_some_assumption() {
        let assumed: Vec<CiliumConfig> = unread().into_iter().filter_map(|config| config.cilium).collect();
        let has = |what: &dyn Fn(&CiliumConfig) -> bool| assumed.iter().any(what);
        for way in [WithoutBackend::Reject, WithoutBackend::Drop, WithoutBackend::Pass] {
            for yes in [false, true] {
                assert!(has(&|it| it.without_backend == way && it.host_namespace_only == yes), "{way:?}, {yes}");
                assert!(has(&|it| it.without_backend == way && it.sctp == yes), "{way:?}, {yes}");
            }
            for entries in [false, true] {
                assert!(
                    has(&|it| it.without_backend == way && it.wildcard_entries == Some(entries)),
                    "{way:?}, {entries}"
                );
            }
        }
        for family in Family::BOTH {
            assert!(has(&|it| it.families_off == [family]), "{family:?}");
        }
    }

    #[test]
    fn what_was_read_stays_in_each_assumption_about_the_version() {
        let cilium = CiliumConfig { host_namespace_only: true, sctp: true, ..CiliumConfig::default() };
        let node_port_addresses = vec!["primary".to_owned()];
        let config = ProxyConfig { cilium: Some(cilium), node_port_addresses, ..ProxyConfig::default() };
        let assumed = read(&config);
        assert_eq!(assumed.len(), 2);
        for it in assumed {
            assert_eq!(it.node_port_addresses, config.node_port_addresses);
            assert!(it.cilium.is_some_and(|it| it.sctp && it.host_namespace_only && it.wildcard_entries.is_some()));
        }
    }
}
