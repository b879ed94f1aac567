//! Cilium's eBPF replacement of kube-proxy. Measured with cilium-agent 1.20.2.
//!
//! What arrives from outside is served on one address of each of its devices, or on those of `nodeport-addresses`. What the
//! node and its pods connect to is translated in `connect`, on every address of these devices and of loopback.

use super::{
    backing::Backing,
    claim::Claim,
    devices::HOST,
    kube_proxy::node_port_addresses,
    local_address::LocalAddress,
    outcome::Outcome,
    plane::{Connection, DataPlane},
    settings::{Setting, Settings},
};
use crate::facts::{
    CiliumConfig, Claimant, Family, Gap, Interfaces, Mode, PortRange, PortSet, Protocol, ProxyConfig, Service,
    Snapshot, Source, Vantage, Why, WithoutBackend,
};

pub(super) static PLANE: DataPlane = DataPlane {
    mode: Mode::Cilium,
    settings: &[Setting::NodePortAddresses, Setting::Devices, Setting::WithoutBackend, Setting::HostNamespaceOnly],
    unread,
    read,
    node_port_addresses,
    captures,
    outcome,
    external_ip_or_node_port,
    node_port_or_host_port,
    masquerades_own_link_local: false,
};

/// What a person who asks another address has to know, where no list says otherwise.
pub(super) const ONE_ADDRESS: &str =
    ", for remote clients on one address of each device; set nodeport-addresses to have others served";

/// Whether it refuses `bind` of this protocol and family on every NodePort: in the node's network namespace, on the wildcard
/// and on each address that it takes. Who listens there already stays, and cannot begin again.
pub(crate) fn refuses_bind(snapshot: &Snapshot, protocol: Protocol, family: Family) -> bool {
    let serves = snapshot.proxy_mode().is_ok_and(|mode| mode.value == Mode::Cilium);
    let config = snapshot.proxy_config_of(Some(Mode::Cilium)).ok().and_then(|config| config.cilium.as_ref());
    let allows = |config: &CiliumConfig| config.allows_bind || config.families_off.contains(&family);
    serves && is_translated(protocol) && !config.is_some_and(allows)
}

/// Cilium's own NodePort range: what it was told, else its default.
pub(crate) fn cilium_range(snapshot: &Snapshot) -> Result<PortSet, Gap> {
    match snapshot.cluster.range_claims.iter().find(|claim| claim.by == Claimant::Cilium) {
        Some(claim) => Ok(claim.ranges.get()?.iter().copied().collect()),
        None => Ok(PortRange::DEFAULT_NODE_PORTS.into()),
    }
}

/// Whether Cilium in kube-proxy's place leaves a hostPort out, since its number may be a Service's.
pub(crate) fn is_left_out_by_cilium(snapshot: &Snapshot, number: u16) -> Result<bool, Gap> {
    let in_range = cilium_range(snapshot).map(|range| range.contains(number));
    if in_range == Ok(false) || snapshot.proxy_mode()?.value != Mode::Cilium {
        return Ok(false);
    }
    in_range
}

/// Why it is not known whether this node serves a Service's NodePorts, where Cilium may be there: an annotation narrows where, or
/// to what (cilium `pkg/loadbalancer/reflectors/conversions.go`).
pub(crate) fn narrowed(snapshot: &Snapshot, service: &Service) -> Option<Gap> {
    let detail = || {
        let Service { namespace, name, .. } = service;
        format!(
            "Service {namespace}/{name} has an annotation service.cilium.io/type, /node or /node-selector: Cilium serves its \
             NodePorts on some nodes only, or on none"
        )
    };
    (service.for_cilium.narrowed && may_serve(snapshot)).then(|| Gap::new(Source::Services, Why::Ambiguous, detail()))
}

/// Whether Cilium may be in kube-proxy's place, as far as is known.
pub(super) fn may_serve(snapshot: &Snapshot) -> bool {
    match snapshot.proxy_mode() {
        Ok(mode) => mode.value == Mode::Cilium,
        // A kube-proxy answers, where Cilium is said to be in its place.
        Err(_) if snapshot.kernel.proxy.mode.seen().is_some() => true,
        Err(_) => snapshot.kernel.interfaces.seen().is_none_or(|interfaces| has_link(interfaces)),
    }
}

/// Whether Cilium's link is on the node, without which it is not there.
pub(super) fn has_link(interfaces: &Interfaces) -> bool {
    interfaces.links.iter().any(|link| link.name == HOST)
}

/// Whether its programs of `connect` and `bind` know the protocol (cilium `bpf/bpf_sock.c`).
fn is_translated(protocol: Protocol) -> bool {
    protocol != Protocol::Sctp
}

/// Each way to answer without an endpoint, and with SCTP or without.
fn unread() -> Vec<ProxyConfig> {
    let ways = [WithoutBackend::Reject, WithoutBackend::Drop, WithoutBackend::Pass];
    let of = |(without_backend, host_namespace_only, sctp)| {
        let cilium = CiliumConfig { without_backend, host_namespace_only, sctp, ..CiliumConfig::default() };
        ProxyConfig { cilium: Some(cilium), ..ProxyConfig::default() }
    };
    let either = [false, true].into_iter();
    let pairs = either.clone().flat_map(|one| either.clone().map(move |other| (one, other)));
    ways.into_iter().flat_map(|way| pairs.clone().map(move |(only, sctp)| (way, only, sctp))).map(of).collect()
}

/// It is complete but for the devices.
fn read(config: &ProxyConfig) -> Vec<ProxyConfig> {
    vec![config.clone()]
}

fn captures(settings: &Settings, address: LocalAddress, from: Vantage) -> bool {
    let listed = || settings.lists(address.ip) && !address.ip.is_loopback();
    let is_served = settings.is_of_devices(address.ip) && is_on(settings, address);
    is_served && (from != Vantage::Remote || listed())
}

/// Whether Cilium serves an address's family at all.
fn is_on(settings: &Settings, address: LocalAddress) -> bool {
    !settings.families_off.contains(&Family::of(address.ip))
}

fn outcome(settings: &Settings, connection: Connection) -> Outcome {
    // Where pods are not served as they connect, they are as their packets arrive: all the same, but for refusals.
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
    // The node and its pods are inside, for which internalTrafficPolicy is.
    let is_inside = connection.from != Vantage::Remote;
    let none_inside = matches!(backing, Backing::ReadyOutside | Backing::ElsewhereOutside);
    let is_empty = backing == Backing::Empty || is_inside && none_inside;
    let is_elsewhere = matches!(backing, Backing::Elsewhere | Backing::ElsewhereOutside);
    // With both policies Local it is a Service with endpoints, of which none may be used.
    let passes = settings.without_backend == WithoutBackend::Pass && backing != Backing::ElsewhereOutside;
    match () {
        () if !(connection.captured && is_on(settings, connection.to)) => Outcome::Listener,
        // By its sources, not measured: what is not translated in `connect` goes to the process, but for pods' packets.
        () if !is_translated(connection.protocol) && (!settings.sctp || is_own) => Outcome::Listener,
        () if is_empty && passes => Outcome::Listener,
        () if is_empty && by_socket => Outcome::Unreachable,
        () if is_empty || is_elsewhere && !is_inside => refused,
        () => Outcome::Pod,
    }
}

/// One entry of its map, which has the endpoints of whichever Service was programmed last.
fn external_ip_or_node_port(_: Outcome, _: Outcome) -> Option<Claim> {
    None
}

/// It ignores a hostPort in the NodePort range.
fn node_port_or_host_port(_: Outcome) -> Option<Claim> {
    Some(Claim::NodePort)
}
