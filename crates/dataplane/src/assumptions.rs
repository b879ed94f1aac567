//! All possible assumptions about this node's data plane: one assumption for each possible value of an unread input.

use std::net::IpAddr;

use ipnet::IpNet;

use super::{
    assumption::Assumption,
    cilium::cilium_range,
    kube_proxy,
    local_address::{is_link_local, local_addresses},
    plane::{DATA_PLANES, DataPlane},
    settings::{Setting, Settings},
    unknown,
};
use portreeve_facts::{
    Claimant, Family, Gap, Interfaces, Learned, Mode, NodeAddressKind, PortRange, PortSet, ProxyConfig, Snapshot,
    Source, Why,
};

/// All possible assumptions about the data plane. A verdict is certain if the verdict is true in all these assumptions.
#[derive(Debug)]
pub struct Assumptions {
    /// At least one assumption. Assumptions with an unread setting that excludes a family, or all addresses of this
    /// node, are at the end.
    list: Vec<Assumption>,
    /// The number of assumptions in `list` before the first one that excludes addresses.
    serving: usize,
    /// If the user named only the mode: the assumptions with every possible setting. `list` then has only the mode's
    /// defaults.
    unassumed: Option<Vec<Assumption>>,
    /// The mode, if known.
    pub mode: Result<Learned<Mode>, Gap>,
    /// The source of the settings, or a note that the settings were not read.
    settings: String,
    node_port_addresses: Option<Vec<String>>,
    /// The unread input that a verdict names if the assumptions disagree.
    missing: Option<Gap>,
    /// Whether kube-proxy has queued changes that are older than `lag_seconds` of [`Self::of`]. Verdicts describe the
    /// node after kube-proxy applies the queued changes.
    behind: bool,
    /// The name of an unmeasured data plane that has a link on this node.
    unmeasured: Option<&'static str>,
}

impl Assumptions {
    /// The possible assumptions for a snapshot. A proxy is behind if a queued change was not applied for `lag_seconds`.
    pub fn of(snapshot: &Snapshot, interfaces: &Interfaces, lag_seconds: i64) -> Self {
        let mode = snapshot.proxy_mode();
        let planes: Vec<&'static DataPlane> = match &mode {
            Ok(mode) => DATA_PLANES.into_iter().filter(|plane| plane.mode == mode.value).collect(),
            Err(_) => unknown::possible(snapshot, interfaces).collect(),
        };
        let config = Config::of(snapshot, mode.as_ref().ok().map(|mode| mode.value));
        let unmeasured =
            mode.as_ref().err().filter(|gap| gap.why != Why::Ambiguous).and_then(|_| unknown::gap(interfaces));
        let (settings, node_port_addresses, unread_config) = match &config {
            Config::Read(config) => (config.place.clone(), Some(config.node_port_addresses.clone()), None),
            Config::Default => ("the mode's defaults".to_owned(), None, None),
            Config::Unread(gap) => ("unknown: the proxy may serve other addresses".to_owned(), None, Some(gap.clone())),
        };
        let (list, serving, gap) = possible(&planes, None, snapshot, interfaces);
        let missing = unmeasured.or_else(|| mode.as_ref().err().cloned()).or(unread_config).or(gap);
        let unread = || Config::Unread(Gap::new(Source::ProxyConfig, Why::NotRequested, "the settings are assumed"));
        let unassumed =
            matches!(config, Config::Default).then(|| possible(&planes, Some(&unread()), snapshot, interfaces).0);
        Self {
            list,
            serving,
            unassumed,
            mode,
            settings,
            node_port_addresses,
            missing,
            behind: kube_proxy::is_behind(snapshot, lag_seconds),
            unmeasured: interfaces.unmeasured().map(|(name, _)| name),
        }
    }

    /// All assumptions: at least one.
    pub fn iter(&self) -> impl Iterator<Item = &Assumption> {
        self.list.iter()
    }

    /// The assumptions for a socket. `everywhere` is true if the socket is on every address of this node. If
    /// `everywhere` is true, the list leaves out assumptions in which unread settings exclude a family, or all
    /// addresses of this node. A user would write these settings only by mistake. If no assumption remains, or
    /// `everywhere` is false, the list has all assumptions.
    pub fn at(&self, everywhere: bool) -> &[Assumption] {
        if everywhere && self.serving > 0 { &self.list[..self.serving] } else { &self.list }
    }

    /// The assumptions with every possible setting, if [`Self::at`] assumes defaults. Otherwise `None`.
    pub fn unassumed(&self) -> Option<&[Assumption]> {
        self.unassumed.as_deref()
    }

    /// The unread input that a verdict names if the assumptions disagree.
    pub fn ambiguity(&self) -> Gap {
        self.missing.clone().unwrap_or_else(|| Gap::new(Source::ProxyConfig, Why::Ambiguous, self.several()))
    }

    /// The reason why there are several assumptions although every input was read. For kube-proxy, the reason is that
    /// the user configured only the mode.
    fn several(&self) -> String {
        let mode = self.mode.as_ref().map_or("the proxy", |mode| mode.value.name());
        if self.mode.as_ref().is_ok_and(|mode| mode.value != Mode::Cilium) {
            return format!("settings of {mode} mode, such as nodePortAddresses and clusterCIDR, are not known");
        }
        let rest = match self.agree(|it| it.settings.pods_by_list) {
            None => ", and whether its version serves pods on all their addresses",
            Some(_) => ": the devices with this node's addresses, and perhaps others",
        };
        format!("it is not known which devices {mode} serves{rest}")
    }

    /// The mode with its source, or *unknown*, for evidence.
    pub fn mode_in_words(&self) -> String {
        let mut words = mode_in_words(&self.mode);
        if words == unknown::WORDS && self.list.iter().any(|it| it.mode() == Mode::Cilium) {
            words.push_str(unknown::OR_CILIUM);
        }
        if let (true, Some(name)) = (words.starts_with(unknown::WORDS), self.unmeasured) {
            words.push_str(unknown::OR_UNMEASURED);
            words.push_str(name);
        }
        if self.behind {
            words.push_str(
                "; the proxy has not applied its queued changes yet: this is the result after it applies them",
            );
        }
        words
    }

    /// `nodePortAddresses` with its source, or a note that it was not read, for evidence.
    pub fn node_port_addresses_in_words(&self) -> String {
        match self.node_port_addresses.as_deref() {
            Some([]) => format!("the mode's default (from {})", self.settings),
            Some(addresses) => format!("{} (from {})", addresses.join(","), self.settings),
            None => self.settings.clone(),
        }
    }

    /// `Some(true)` if `holds` is true for every assumption, `Some(false)` if `holds` is false for every assumption,
    /// and `None` otherwise.
    pub fn agree(&self, holds: impl Fn(&Assumption) -> bool) -> Option<bool> {
        let holds: Vec<bool> = self.list.iter().map(holds).collect();
        (holds.contains(&true) != holds.contains(&false)).then(|| holds[0])
    }
}

/// Returns [`Assumptions::list`], [`Assumptions::serving`] and the unread input that decides between the assumptions.
/// If `config` is `None`, each data plane uses the [`Config`] of its own mode.
fn possible(
    planes: &[&'static DataPlane],
    config: Option<&Config<'_>>,
    snapshot: &Snapshot,
    interfaces: &Interfaces,
) -> (Vec<Assumption>, usize, Option<Gap>) {
    let locals = local_addresses(interfaces);
    let (mut list, mut nowhere, mut missing) = (Vec::new(), Vec::new(), None);
    for plane in planes {
        let known = || Config::of(snapshot, Some(plane.mode)).possible(plane, snapshot);
        for assumed in config.map_or_else(known, |config| config.possible(plane, snapshot)) {
            let (assumptions, gap) = assumptions(plane, &assumed, snapshot, interfaces);
            missing = missing.or(gap);
            for assumption in assumptions {
                let serves = || locals.iter().any(|local| assumption.captures_from_outside(*local));
                let serves_both = assumption.settings.families_off.is_empty();
                let leaves_out = assumed.is == Known::Unread && !(serves_both && serves());
                let kept = if leaves_out { &mut nowhere } else { &mut list };
                if !kept.contains(&assumption) {
                    kept.push(assumption);
                }
            }
        }
    }
    let serving = list.len();
    list.append(&mut nowhere);
    (list, serving, missing)
}

/// The mode with its source, or *unknown*, for evidence.
pub fn mode_in_words(mode: &Result<Learned<Mode>, Gap>) -> String {
    match mode {
        Ok(mode) => mode.to_string(),
        Err(gap) if gap.why == Why::Ambiguous => {
            format!("unknown: {}; the result is the same in both cases", gap.detail)
        }
        Err(_) => unknown::WORDS.to_owned(),
    }
}

enum Config<'a> {
    Read(&'a ProxyConfig),
    /// The user configured the mode for this scan, and the mode's default settings are assumed.
    Default,
    Unread(Gap),
}

impl<'a> Config<'a> {
    /// The configuration of a proxy in this mode, or in any mode if `mode` is `None`.
    fn of(snapshot: &'a Snapshot, mode: Option<Mode>) -> Self {
        match snapshot.proxy_config_of(mode) {
            Ok(config) => Self::Read(config),
            Err(_) if snapshot.overrides.mode().is_some() => Self::Default,
            Err(gap) => Self::Unread(gap),
        }
    }

    fn possible(&self, plane: &DataPlane, snapshot: &Snapshot) -> Vec<Assumed> {
        let each = |configs: Vec<ProxyConfig>, is| configs.into_iter().map(move |config| Assumed { config, is });
        match self {
            Self::Read(config) => each((plane.read)(config), Known::Read).collect(),
            Self::Default => each((plane.read)(&ProxyConfig::default()), Known::Assumed).collect(),
            Self::Unread(_) => {
                let has_gate = |it: &Assumed| it.config.nftables_localhost == Some(true);
                let has_none = kube_proxy::is_before_1_37(snapshot);
                each((plane.unread)(), Known::Unread).filter(|it| !(has_gate(it) && has_none)).collect()
            }
        }
    }
}

struct Assumed {
    config: ProxyConfig,
    is: Known,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Known {
    Read,
    /// The defaults of a mode that the user configured for this scan. The defaults were not read from the cluster.
    Assumed,
    Unread,
}

/// One assumption for each possible value of the settings under one configuration. The `Gap` is the unread input that
/// would decide between the values.
fn assumptions(
    plane: &'static DataPlane,
    Assumed { config, is }: &Assumed,
    snapshot: &Snapshot,
    interfaces: &Interfaces,
) -> (Vec<Assumption>, Option<Gap>) {
    let needs = |setting| plane.settings.contains(&setting);
    let node_port_addresses = (plane.node_port_addresses)(config);
    let by_device = needs(Setting::Devices);
    let by_address = by_device || node_port_addresses.iter().any(|text| text == "primary");
    let (primaries, unknown_primary) = if_needed(by_address, [None, None], || primaries(snapshot, interfaces, config));
    let neutral = Settings::NOT_NEEDED;
    let (detectors, unknown_detector) = if_needed(needs(Setting::LocalDetector), neutral.local_detector, || {
        local_detectors(snapshot, (*is == Known::Read).then_some(config))
    });
    let (localnets, unknown_localnet) = if_needed(needs(Setting::RouteLocalnet), neutral.route_localnet, || {
        either_of(snapshot.kernel.sysctls.route_localnet.get().copied())
    });
    let (ages, unknown_age) = if_needed(needs(Setting::Version), neutral.before_1_26, || {
        either_of(kube_proxy::is_before_1_26(snapshot).ok_or_else(|| kube_proxy::unknown_version(snapshot)))
    });
    let names_range = snapshot.cluster.range_claims.iter().any(|claim| claim.by == Claimant::Cilium);
    let unread = || snapshot.proxy_config_of(Some(Mode::Cilium)).err();
    let (ranges, unknown_range) = if_needed(by_device, None, || match cilium_range(snapshot) {
        Ok(range) if *is != Known::Unread || names_range => (vec![Some(range)], None),
        Err(_) if *is == Known::Assumed => (vec![Some(PortSet::from(PortRange::DEFAULT_NODE_PORTS))], None),
        // Each port may be in the range or outside of it.
        range => (vec![None, Some(PortSet::default())], range.err().or_else(unread)),
    });
    let mut settings = neutral;
    let cilium = config.cilium.clone().unwrap_or_default();
    if by_device {
        settings.families_off.clone_from(&cilium.families_off);
        settings.sctp = cilium.sctp;
        settings.external_ips_anywhere = cilium.external_ips_anywhere;
        settings.may_drop_other_ports = cilium.wildcard_entries != Some(false);
    }
    if needs(Setting::WithoutBackend) {
        settings.without_backend = cilium.without_backend;
    }
    if needs(Setting::HostNamespaceOnly) {
        settings.host_namespace_only = cilium.host_namespace_only;
        settings.pods_by_list = cilium.host_namespace_only && cilium.wildcard_entries == Some(false);
    }
    let mut assumptions = Vec::new();
    // If it is unknown whether Cilium serves a device, Cilium serves the device in one assumption and not in the other
    // assumption.
    let ways: &[bool] = if by_device { &[false, true] } else { &[false] };
    for (primary, otherwise) in primaries.into_iter().flat_map(|primary| ways.iter().map(move |way| (primary, *way))) {
        match by_device {
            true => {
                let named = (&node_port_addresses[..], &cilium);
                settings.serve_devices(named, primary, interfaces, otherwise);
            }
            false if needs(Setting::NodePortAddresses) => settings.serve_on(&node_port_addresses, primary),
            false => {}
        }
        if needs(Setting::LocalhostNodePorts) {
            settings.set_localhost_node_ports(config);
        }
        if needs(Setting::NftablesLocalhost) {
            settings.set_localhost(config);
        }
        for node_port_range in &ranges {
            settings.node_port_range.clone_from(node_port_range);
            for local_detector in detectors.iter().copied() {
                for route_localnet in localnets.iter().copied() {
                    for before_1_26 in ages.iter().copied() {
                        let settings = Settings { local_detector, route_localnet, before_1_26, ..settings.clone() };
                        assumptions.push(Assumption { plane, settings });
                    }
                }
            }
        }
    }
    (assumptions, unknown_primary.or(unknown_detector).or(unknown_localnet).or(unknown_age).or(unknown_range))
}

fn if_needed<T>(
    is_needed: bool,
    neutral: T,
    possible: impl FnOnce() -> (Vec<T>, Option<Gap>),
) -> (Vec<T>, Option<Gap>) {
    if is_needed { possible() } else { (vec![neutral], None) }
}

fn either_of(fact: Result<bool, Gap>) -> (Vec<bool>, Option<Gap>) {
    match fact {
        Ok(fact) => (vec![fact], None),
        Err(gap) => (vec![true, false], Some(gap)),
    }
}

const UNKNOWN_PRIMARY: &str = "the Node object of this node was not found, so the primary address is not known";

/// The largest number of addresses of one family that are tried as the primary address. If a family has more addresses,
/// one extra assumption has no primary address.
const MOST_PRIMARIES: usize = 16;

/// A primary address of each family: IPv4, then IPv6.
type Primary = [Option<IpAddr>; 2];

/// The primary address of each family: `bindAddress` if it is an address, else the Node's first InternalIP, else the
/// Node's first ExternalIP (kubernetes cmd/kube-proxy/app/server.go). If the Node object was not found, any address of
/// the node is possible. The `Gap` is the unread input that would show the address.
fn primaries(snapshot: &Snapshot, interfaces: &Interfaces, config: &ProxyConfig) -> (Vec<Primary>, Option<Gap>) {
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
        return (vec![Family::BOTH.map(known)], None);
    }
    let local = local_addresses(interfaces).into_iter().map(|address| address.ip);
    let (v4, v6): (Vec<_>, Vec<_>) =
        local.filter(|ip| !ip.is_loopback() && !is_link_local(*ip)).partition(IpAddr::is_ipv4);
    let possible =
        [(Family::V4, v4), (Family::V6, v6)].map(|(family, local)| known(family).map_or(local, |ip| vec![ip]));
    let most = possible.iter().map(Vec::len).max().unwrap_or(0).clamp(1, MOST_PRIMARIES);
    let are_cut = possible.iter().any(|addresses| addresses.len() > MOST_PRIMARIES);
    let turn = |turn| Family::BOTH.map(|family| possible[family.index()].iter().cycle().nth(turn).copied());
    (
        (0..most).map(turn).chain(are_cut.then_some([None, None])).collect(),
        (most > 1).then(|| snapshot.own_node_gap(UNKNOWN_PRIMARY)),
    )
}

const UNKNOWN_DETECTOR: &str =
    "kube-proxy recognizes pods by the Node's podCIDRs, and the podCIDRs of this node are not known";

/// Whether kube-proxy has a local detector: for IPv4, then for IPv6.
type Detector = [bool; 2];

/// The possible values if the detector is unknown. Both families have the same value, because a verdict uses the
/// detector of only one family.
const EITHER: [Detector; 2] = [[false; 2], [true; 2]];

/// The families that may have a local detector. `ClusterCIDR` (the default) and `NodeCIDR` need a CIDR of the family.
/// All other modes need no CIDR (kubernetes cmd/kube-proxy/app/server_linux.go `getLocalDetectors`). The `Gap` is the
/// unread input that would show whether there is a detector. If `config` is `None`, the caller has a reason.
fn local_detectors(snapshot: &Snapshot, config: Option<&ProxyConfig>) -> (Vec<Detector>, Option<Gap>) {
    let of = |families: &[Family]| Family::BOTH.map(|family| families.contains(&family));
    let Some(config) = config else { return (EITHER.to_vec(), None) };
    match config.detect_local_mode.as_deref() {
        None | Some("" | "ClusterCIDR") => {
            let cidrs = config.cluster_cidr.iter().flat_map(|cidrs| cidrs.split(','));
            let cidrs = cidrs.filter_map(|cidr| cidr.trim().parse::<IpNet>().ok());
            (vec![of(&cidrs.map(|cidr| Family::of(cidr.addr())).collect::<Vec<_>>())], None)
        }
        // kube-proxy does not start before its Node has a CIDR. If no CIDR is known, the CIDR exists, but was not read.
        Some("NodeCIDR") => match snapshot.own_node().map_or(&[][..], |node| &node.pod_families) {
            [] => (EITHER.to_vec(), Some(snapshot.own_node_gap(UNKNOWN_DETECTOR))),
            families => (vec![of(families)], None),
        },
        Some(_) => (vec![[true; 2]], None),
    }
}

#[cfg(test)]
mod tests;
