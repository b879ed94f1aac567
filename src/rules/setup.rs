//! How this node's proxy captures traffic to NodePorts: one complete assumption for every value that the inputs
//! which could not be read may have.

use std::net::{IpAddr, Ipv4Addr};

use ipnet::IpNet;

use super::{Limits, endpoints::is_dated};
use crate::facts::{
    Family, Gap, Interfaces, Learned, Mode, NodeAddressKind, ProxyConfig, Reading, Snapshot, Socket, Source, Why,
};

/// Beyond this many candidates for a primary address nothing can be said about a single one anyway.
const MOST_PRIMARIES: usize = 16;

/// Everything that may be true of the proxy. A verdict counts when it holds in all of them.
#[derive(Debug)]
pub(super) struct Setups {
    /// At least one.
    pub(super) candidates: Vec<Setup>,
    /// The mode, where it is known.
    pub(super) mode: Result<Learned<Mode>, Gap>,
    /// Where the settings were read, or that they were not.
    pub(super) settings: String,
    /// `nodePortAddresses` as configured, where the settings were read.
    pub(super) node_port_addresses: Option<Vec<String>>,
    /// The input to name when the candidates disagree.
    pub(super) missing: Option<Gap>,
    /// The proxy has not programmed for a while what it was told: verdicts describe what it will program.
    behind: bool,
}

/// One complete assumption.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Setup {
    /// The mode.
    pub(super) mode: Mode,
    /// The addresses whose NodePorts are served, IPv4 then IPv6; nothing means all of the family: a family without
    /// a CIDR of its own is served on every address (kubernetes pkg/proxy/util/nodeport_addresses.go).
    only: [Option<Vec<IpNet>>; 2],
    /// `localhostNodePorts`, as far as it takes effect.
    pub(super) localhost: bool,
    /// Whether there is a local detector, IPv4 then IPv6: without one, this node's pods count as outsiders.
    detector: [bool; 2],
    /// Whether iptables mode takes `::1` too.
    dated: bool,
    /// `route_localnet`: whether what leaves 127.0.0.1 can be sent to a pod.
    pub(super) localnet: bool,
}

impl Setups {
    /// What a snapshot leaves possible.
    pub(super) fn of(snapshot: &Snapshot, interfaces: &Interfaces, limits: &Limits) -> Self {
        let mode = snapshot.proxy_mode();
        let modes = match &mode {
            Ok(mode) => vec![mode.value],
            Err(_) => Mode::KUBE_PROXY.to_vec(),
        };
        let said = snapshot.said.proxy_mode.is_some();
        let (configs, settings, node_port_addresses, unread) = match snapshot.proxy_config() {
            Ok(config) => (vec![config.clone()], config.place.clone(), Some(config.node_port_addresses.clone()), None),
            Err(_) if said => (vec![ProxyConfig::default()], "the mode's defaults".to_owned(), None, None),
            Err(gap) => (unknown_settings(), "unknown".to_owned(), None, Some(gap)),
        };
        let mut missing = mode.as_ref().err().cloned().or(unread.clone());
        let mut candidates = Vec::new();
        for mode in modes {
            for config in &configs {
                let primaries = primaries(snapshot, interfaces, mode, config);
                if primaries.len() > 1 && missing.is_none() {
                    missing = Some(unknown_primary(&snapshot.cluster.nodes));
                }
                let detectors = match unread {
                    None => detectors(snapshot, config),
                    Some(_) => EITHER.to_vec(),
                };
                if detectors.len() > 1 && missing.is_none() {
                    missing = Some(unknown_detector(&snapshot.cluster.nodes));
                }
                for primary in primaries {
                    for detector in &detectors {
                        let setup = Setup::new(snapshot, mode, config, primary, *detector);
                        if !candidates.contains(&setup) {
                            candidates.push(setup);
                        }
                    }
                }
            }
        }
        Self { candidates, mode, settings, node_port_addresses, missing, behind: is_behind(snapshot, limits) }
    }

    /// The gap to name when the candidates disagree.
    pub(super) fn ambiguity(&self) -> Gap {
        self.missing
            .clone()
            .unwrap_or_else(|| Gap::new(Source::ProxyConfig, Why::Ambiguous, "the proxy's settings can be several"))
    }

    /// The mode with its source, or that it is unknown, for evidence.
    pub(super) fn mode_in_words(&self) -> String {
        let mut words = mode_in_words(&self.mode);
        if self.behind {
            words.push_str("; it has changes queued that it does not program: this is what it will do when it does");
        }
        words
    }

    /// Whether something holds in every candidate, in none, or in some only.
    pub(super) fn all(&self, holds: impl Fn(&Setup) -> bool) -> Option<bool> {
        let count = self.candidates.iter().filter(|setup| holds(setup)).count();
        match count {
            0 => Some(false),
            n if n == self.candidates.len() => Some(true),
            _ => None,
        }
    }
}

impl Setup {
    fn new(
        snapshot: &Snapshot,
        mode: Mode,
        config: &ProxyConfig,
        primary: [Option<IpAddr>; 2],
        detector: [bool; 2],
    ) -> Self {
        let cidrs: Vec<IpNet> = effective_addresses(mode, config)
            .iter()
            .flat_map(|text| match text.as_str() {
                "primary" => primary.into_iter().flatten().map(IpNet::from).collect(),
                cidr => cidr.parse().into_iter().collect::<Vec<IpNet>>(),
            })
            .collect();
        let only = Family::BOTH.map(|family| {
            let of_family: Vec<IpNet> =
                cidrs.iter().copied().filter(|cidr| Family::of(cidr.addr()) == family).collect();
            (!of_family.is_empty()).then_some(of_family)
        });
        let loopback_listed =
            cidrs.is_empty() || cidrs.iter().any(|cidr| cidr.contains(&IpAddr::from(Ipv4Addr::LOCALHOST)));
        Self {
            mode,
            only,
            localhost: config.localhost_node_ports.unwrap_or(true) && loopback_listed,
            detector,
            dated: is_dated(snapshot),
            // kube-proxy turns it on, and does not look again.
            localnet: snapshot.kernel.sysctls.route_localnet.seen() != Some(&false),
        }
    }

    /// Whether a NodePort is served on an address of this node at all, endpoints aside.
    pub(super) fn captures(&self, address: Local) -> bool {
        let listed = self.only[index(Family::of(address.ip))]
            .as_ref()
            .is_none_or(|cidrs| cidrs.iter().any(|cidr| cidr.contains(&address.ip)));
        let by_default = self.only[index(Family::of(address.ip))].is_none();
        match (self.mode, address.ip) {
            (Mode::Iptables, IpAddr::V6(ip)) if ip.is_loopback() => self.dated && listed,
            (Mode::Iptables, ip) if ip.is_loopback() => self.localhost && listed,
            (Mode::Iptables, _) => listed && !(by_default && address.vrf),
            (Mode::Cilium, ip) => ip.is_loopback() || listed,
            (_, ip) if ip.is_loopback() => false,
            (Mode::Ipvs, IpAddr::V6(ip)) if by_default => !ip.is_unicast_link_local(),
            (Mode::Ipvs | Mode::Nftables, _) => listed,
        }
    }

    /// Whether this node's pods are told apart from outsiders.
    pub(super) fn detects_pods(&self, family: Family) -> bool {
        self.detector[index(family)]
    }
}

/// The mode with its source, or that it is unknown, for evidence.
pub(super) fn mode_in_words(mode: &Result<Learned<Mode>, Gap>) -> String {
    match mode {
        Ok(mode) => mode.to_string(),
        Err(_) => "unknown: this holds in iptables, ipvs and nftables mode".to_owned(),
    }
}

/// An address of this node, as a destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Local {
    /// The address.
    pub(super) ip: IpAddr,
    /// Whether its link is enslaved to a VRF: iptables' `--dst-type LOCAL` may not match it.
    pub(super) vrf: bool,
}

/// This node's addresses that a listener could answer on: all but those an ipvs proxy bound for Services.
pub(super) fn locals(interfaces: &Interfaces) -> Vec<Local> {
    let in_vrf = |name: &str| {
        let master = interfaces.links.iter().find(|link| link.name == name).and_then(|link| link.master);
        interfaces.links.iter().any(|link| Some(link.index) == master && link.kind.as_deref() == Some("vrf"))
    };
    let mut locals: Vec<Local> = interfaces
        .addresses
        .iter()
        .filter(|address| !address.is_ipvs())
        .map(|address| Local { ip: address.ip, vrf: in_vrf(&address.link) })
        .collect();
    locals.sort();
    locals.dedup_by_key(|local| local.ip);
    locals
}

/// The address that a socket is bound to, where it is of loopback and no interface has it: all of 127.0.0.0/8 is the
/// node's own.
pub(super) fn other_loopback(locals: &[Local], socket: &Socket) -> Option<Local> {
    let is_listed = locals.iter().any(|local| local.ip == socket.local);
    (socket.local.is_loopback() && !is_listed).then_some(Local { ip: socket.local, vrf: false })
}

fn index(family: Family) -> usize {
    match family {
        Family::V4 => 0,
        Family::V6 => 1,
    }
}

/// Whether kube-proxy's last sync lies behind what is queued, and has for longer than a sync takes.
fn is_behind(snapshot: &Snapshot, limits: &Limits) -> bool {
    let Some(metrics) = snapshot.kernel.proxy.metrics.seen() else { return false };
    let (Some(synced), Some(queued)) = (metrics.last_sync, metrics.last_queued) else { return false };
    synced < queued && snapshot.at.duration_since(queued).as_secs() > limits.proxy_lag_seconds
}

/// What `nodePortAddresses` may be when nobody could read it: its default in each mode, and `primary`.
fn unknown_settings() -> Vec<ProxyConfig> {
    let primary = ProxyConfig { node_port_addresses: vec!["primary".to_owned()], ..ProxyConfig::default() };
    let no_localhost = ProxyConfig { localhost_node_ports: Some(false), ..ProxyConfig::default() };
    vec![ProxyConfig::default(), no_localhost, primary]
}

/// `nodePortAddresses` with the mode's default filled in. nftables' default `primary` appears literally in its
/// `/configz`; when another mode is asked about, that is not a choice somebody made.
fn effective_addresses(mode: Mode, config: &ProxyConfig) -> Vec<String> {
    let configured = &config.node_port_addresses;
    let is_nftables_default = config.mode.as_deref() == Some("nftables") && configured.as_slice() == ["primary"];
    match mode {
        Mode::Nftables if configured.is_empty() => vec!["primary".to_owned()],
        Mode::Nftables => configured.clone(),
        _ if is_nftables_default => Vec::new(),
        _ => configured.clone(),
    }
}

/// The primary address of each family: `bindAddress` where it names one, else the Node's first InternalIP, then
/// ExternalIP (kubernetes cmd/kube-proxy/app/server.go). Without the Node's object it can be any address of the node.
fn primaries(
    snapshot: &Snapshot,
    interfaces: &Interfaces,
    mode: Mode,
    config: &ProxyConfig,
) -> Vec<[Option<IpAddr>; 2]> {
    if !effective_addresses(mode, config).iter().any(|text| text == "primary") {
        return vec![[None, None]];
    }
    let bound = config.bind_address.filter(|ip| !ip.is_unspecified());
    let known = |family: Family| -> Option<IpAddr> {
        let of_kind = |kind| {
            let node = snapshot.own_node()?;
            node.addresses.iter().find(|it| it.kind == kind && Family::of(it.ip) == family).map(|it| it.ip)
        };
        bound
            .filter(|ip| Family::of(*ip) == family)
            .or_else(|| of_kind(NodeAddressKind::InternalIp))
            .or_else(|| of_kind(NodeAddressKind::ExternalIp))
    };
    if snapshot.own_node().is_some() {
        return vec![Family::BOTH.map(known)];
    }
    let possible = Family::BOTH.map(|family| match known(family) {
        Some(ip) => vec![ip],
        None => locals(interfaces)
            .into_iter()
            .map(|local| local.ip)
            .filter(|ip| Family::of(*ip) == family && !ip.is_loopback() && !is_link_local(*ip))
            .collect::<Vec<_>>(),
    });
    let most = possible.iter().map(Vec::len).max().unwrap_or(0).clamp(1, MOST_PRIMARIES);
    (0..most).map(|turn| [0, 1].map(|family: usize| possible[family].iter().cycle().nth(turn).copied())).collect()
}

/// Whether an address reaches its own link only.
pub(super) fn is_link_local(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    }
}

fn unknown_primary<T>(nodes: &Reading<T>) -> Gap {
    nodes.gap().cloned().unwrap_or_else(|| {
        Gap::new(
            Source::Nodes,
            Why::Ambiguous,
            "this node's own Node object was not found, so its primary address is not known",
        )
    })
}

/// A detector in each family, or in none: no verdict on an address depends on that of the other family.
const EITHER: [[bool; 2]; 2] = [[false; 2], [true; 2]];

/// In which families there may be a local detector: `ClusterCIDR`, the default, and `NodeCIDR` need a CIDR of the family,
/// the other modes need nothing (kubernetes cmd/kube-proxy/app/server_linux.go `getLocalDetectors`).
fn detectors(snapshot: &Snapshot, config: &ProxyConfig) -> Vec<[bool; 2]> {
    let of = |families: &[Family]| Family::BOTH.map(|family| families.contains(&family));
    match config.detect_local_mode.as_deref() {
        None | Some("" | "ClusterCIDR") => {
            let cidrs = config.cluster_cidr.iter().flat_map(|cidrs| cidrs.split(','));
            let cidrs = cidrs.filter_map(|cidr| cidr.trim().parse::<IpNet>().ok());
            vec![of(&cidrs.map(|cidr| Family::of(cidr.addr())).collect::<Vec<_>>())]
        }
        // kube-proxy does not start before its Node has a CIDR: where none is known, it was not read.
        Some("NodeCIDR") => match snapshot.own_node().map_or(&[][..], |node| &node.pod_families) {
            [] => EITHER.to_vec(),
            families => vec![of(families)],
        },
        Some(_) => vec![[true; 2]],
    }
}

fn unknown_detector<T>(nodes: &Reading<T>) -> Gap {
    nodes.gap().cloned().unwrap_or_else(|| {
        Gap::new(
            Source::Nodes,
            Why::Ambiguous,
            "kube-proxy tells pods by the Node's podCIDRs, and this node's own are not known",
        )
    })
}

#[cfg(test)]
mod tests;
