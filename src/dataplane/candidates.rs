//! Every assumption about this node's data plane that its inputs leave possible: one candidate for every value that an
//! input which could not be read may have.

use std::net::IpAddr;

use super::{
    candidate::Candidate,
    external_address::ExternalAddress,
    kube_proxy,
    local_address::LocalAddress,
    local_detector::local_detectors,
    plane::DataPlane,
    planes::DATA_PLANES,
    primary::primaries,
    settings::{Setting, Settings},
    unknown,
};
use crate::facts::{Affected, Gap, Interfaces, Learned, Mode, ProxyConfig, Snapshot, Source, Why};

/// Everything that may be true of the data plane. A verdict counts when it holds in all candidates.
#[derive(Debug)]
pub(crate) struct Candidates {
    /// At least one.
    list: Vec<Candidate>,
    /// The mode, where it is known.
    pub(crate) mode: Result<Learned<Mode>, Gap>,
    /// Where the settings were read, or that they were not.
    settings: String,
    /// The mode was configured for this look, and its settings are assumed to be at their defaults.
    pub(crate) are_assumed: bool,
    /// `nodePortAddresses` as configured, where the settings were read.
    node_port_addresses: Option<Vec<String>>,
    /// The input to name when the candidates disagree.
    missing: Option<Gap>,
    /// The proxy has not programmed for a while what is queued: verdicts describe what it will program.
    behind: bool,
    /// A data plane that was not measured, by its link.
    unmeasured: Option<&'static str>,
}

impl Candidates {
    /// What a snapshot leaves possible. A proxy whose last sync is this many seconds late counts as behind.
    pub(crate) fn of(snapshot: &Snapshot, interfaces: &Interfaces, lag_seconds: i64) -> Self {
        let mode = snapshot.proxy_mode();
        let planes: Vec<&'static DataPlane> = match &mode {
            Ok(mode) => of_mode(mode.value).collect(),
            Err(_) => unknown::possible(snapshot, interfaces, snapshot.contested().map(|(mode, _)| mode)).collect(),
        };
        let config = Config::of(snapshot, mode.as_ref().ok().map(|mode| mode.value));
        let unmeasured =
            mode.as_ref().err().filter(|gap| gap.why != Why::Ambiguous).and_then(|_| unknown::gap(interfaces));
        let mut missing = unmeasured.or_else(|| mode.as_ref().err().cloned()).or(config.gap());
        let mut list = Vec::new();
        for plane in planes {
            for config in Config::of(snapshot, Some(plane.mode)).possible(plane) {
                let (candidates, gap) = candidates(plane, &config, snapshot, interfaces);
                missing = missing.or(gap);
                for candidate in candidates {
                    if !list.contains(&candidate) {
                        list.push(candidate);
                    }
                }
            }
        }
        Self {
            list,
            mode,
            settings: config.place(),
            are_assumed: matches!(config, Config::Default),
            node_port_addresses: config.node_port_addresses(),
            missing,
            behind: kube_proxy::is_behind(snapshot, lag_seconds),
            unmeasured: interfaces.unmeasured().map(|(name, _)| name),
        }
    }

    /// Each of them: at least one.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Candidate> {
        self.list.iter()
    }

    /// Those by which to judge who is asked at one address of this node, or at all. Who is asked at all of them is so at one that is
    /// served, whatever list of addresses somebody wrote: of lists that were not read, the one without any of them is left out.
    pub(crate) fn at(&self, asked: Option<IpAddr>, locals: &[LocalAddress]) -> Vec<&Candidate> {
        let one = asked.is_some_and(|ip| !ip.is_unspecified());
        let outside = || locals.iter().filter(|local| !local.ip.is_loopback());
        let serves = |it: &&Candidate| one || outside().any(|local| it.captures(*local));
        let serving: Vec<_> = self.list.iter().filter(serves).collect();
        if serving.is_empty() { self.list.iter().collect() } else { serving }
    }

    /// Whether there is more than one.
    pub(crate) fn are_several(&self) -> bool {
        self.list.len() > 1
    }

    /// The gap to name when the candidates disagree.
    pub(crate) fn ambiguity(&self) -> Gap {
        self.missing.clone().unwrap_or_else(|| Gap::new(Source::ProxyConfig, Why::Ambiguous, self.several()))
    }

    /// Why there is more than one although every input was read.
    fn several(&self) -> String {
        let mode = self.mode.as_ref().map_or("the proxy", |mode| mode.value.name());
        if self.list.iter().any(|it| it.settings.pods_by_list) && self.list.iter().any(|it| !it.settings.pods_by_list) {
            return format!(
                "which devices {mode} serves, and whether its version serves pods on all their addresses, is not known"
            );
        }
        format!("which devices {mode} serves is not known: those with this node's addresses, and perhaps others")
    }

    /// From which of these vantage points an external address of this node is taken.
    ///
    /// # Errors
    /// When it is taken from none of them for certain, and perhaps from one.
    pub(crate) fn taken(&self, claim: &ExternalAddress<'_>, from: &Affected) -> Result<Affected, Gap> {
        let (mut taken, mut unknown) = (Affected::default(), None);
        for from in from.iter().copied() {
            match self.agree_as_known(|candidate| candidate.captures_external(claim, from)) {
                Ok(is_taken) => taken.extend(is_taken.then_some(from)),
                Err(gap) => unknown = Some(gap),
            }
        }
        unknown.filter(|_| taken.is_empty()).map_or(Ok(taken), Err)
    }

    /// The mode with its source, or that it is unknown, for evidence.
    pub(crate) fn mode_in_words(&self) -> String {
        let mut words = mode_in_words(&self.mode);
        if words == unknown::WORDS && self.list.iter().any(|it| it.mode() == Mode::Cilium) {
            words.push_str(unknown::OR_CILIUM);
        }
        if let (true, Some(name)) = (words.starts_with(unknown::WORDS), self.unmeasured) {
            words.push_str(unknown::OR_UNMEASURED);
            words.push_str(name);
        }
        if self.behind {
            words.push_str("; it has changes queued that it does not program: this is what it will do when it does");
        }
        words
    }

    /// `nodePortAddresses` with its source, or that it was not read, for evidence.
    pub(crate) fn node_port_addresses_in_words(&self) -> String {
        match self.node_port_addresses.as_deref() {
            Some([]) => format!("the mode's default (from {})", self.settings),
            Some(addresses) => format!("{} (from {})", addresses.join(","), self.settings),
            None => self.settings.clone(),
        }
    }

    /// Whether something holds in every candidate, in none, or in some only.
    pub(crate) fn agree(&self, holds: impl Fn(&Candidate) -> bool) -> Option<bool> {
        self.agree_as_known(|candidate| Ok(holds(candidate))).ok()
    }

    /// Whether something holds in every candidate or in none.
    ///
    /// # Errors
    /// When it holds in some only, or is not known of one.
    pub(crate) fn agree_as_known(&self, holds: impl Fn(&Candidate) -> Result<bool, Gap>) -> Result<bool, Gap> {
        let found = self.list.iter().map(holds).collect::<Result<Vec<bool>, Gap>>();
        match found {
            Ok(found) if found.iter().all(|it| *it) => Ok(true),
            Ok(found) if !found.contains(&true) => Ok(false),
            Ok(_) => Err(self.ambiguity()),
            Err(gap) => Err(gap),
        }
    }
}

/// The mode with its source, or that it is unknown, for evidence.
pub(crate) fn mode_in_words(mode: &Result<Learned<Mode>, Gap>) -> String {
    match mode {
        Ok(mode) => mode.to_string(),
        Err(gap) if gap.why == Why::Ambiguous => format!("unknown: {}; this holds for both", gap.detail),
        Err(_) => unknown::WORDS.to_owned(),
    }
}

/// The data plane of a mode.
fn of_mode(mode: Mode) -> impl Iterator<Item = &'static DataPlane> {
    DATA_PLANES.into_iter().filter(move |plane| plane.mode == mode)
}

/// The proxy's configuration, as far as it is known.
enum Config<'a> {
    /// It was read.
    Read(&'a ProxyConfig),
    /// The mode was configured for this look, and stands for its defaults.
    Default,
    /// It was not read.
    Unread(Gap),
}

impl<'a> Config<'a> {
    /// That of a proxy in this mode; of any where it is not known.
    fn of(snapshot: &'a Snapshot, mode: Option<Mode>) -> Self {
        match snapshot.proxy_config_of(mode) {
            Ok(config) => Self::Read(config),
            Err(_) if snapshot.overrides.proxy_mode.is_some() => Self::Default,
            Err(gap) => Self::Unread(gap),
        }
    }

    fn gap(&self) -> Option<Gap> {
        match self {
            Self::Unread(gap) => Some(gap.clone()),
            Self::Read(_) | Self::Default => None,
        }
    }

    fn place(&self) -> String {
        match self {
            Self::Read(config) => config.place.clone(),
            Self::Default => "the mode's defaults".to_owned(),
            Self::Unread(_) => "unknown: the addresses that are served may be others".to_owned(),
        }
    }

    fn node_port_addresses(&self) -> Option<Vec<String>> {
        match self {
            Self::Read(config) => Some(config.node_port_addresses.clone()),
            Self::Default | Self::Unread(_) => None,
        }
    }

    /// What it may be, and whether that was read: an assumed configuration shows nothing about the local detector.
    fn possible(&self, plane: &DataPlane) -> Vec<Assumed> {
        let known =
            |configs: Vec<ProxyConfig>| configs.into_iter().map(|config| Assumed { config, known: true }).collect();
        match self {
            Self::Read(config) => known((plane.read)(config)),
            Self::Default => known((plane.read)(&ProxyConfig::default())),
            Self::Unread(_) => (plane.unread)().into_iter().map(|config| Assumed { config, known: false }).collect(),
        }
    }
}

/// A configuration that the proxy may have.
struct Assumed {
    config: ProxyConfig,
    /// Whether it was read, or is the default of a configured mode.
    known: bool,
}

/// A data plane with each value that its settings may have under one configuration, and the input that would show which.
fn candidates(
    plane: &'static DataPlane,
    Assumed { config, known }: &Assumed,
    snapshot: &Snapshot,
    interfaces: &Interfaces,
) -> (Vec<Candidate>, Option<Gap>) {
    let needs = |setting| plane.settings.contains(&setting);
    let node_port_addresses = (plane.node_port_addresses)(config);
    let by_device = needs(Setting::Devices);
    let (primaries, unknown_primary) = match by_device || node_port_addresses.iter().any(|text| text == "primary") {
        true => primaries(snapshot, interfaces, config),
        false => (vec![[None, None]], None),
    };
    let (detectors, unknown_detector) = match needs(Setting::LocalDetector) {
        true => local_detectors(snapshot, known.then_some(config)),
        false => (vec![Settings::NOT_NEEDED.local_detector], None),
    };
    let (localnets, unknown_localnet) = match needs(Setting::RouteLocalnet) {
        true => either_of(snapshot.kernel.sysctls.route_localnet.get().copied()),
        false => (vec![Settings::NOT_NEEDED.route_localnet], None),
    };
    let (ages, unknown_age) = match needs(Setting::Version) {
        true => either_of(kube_proxy::is_before_1_26(snapshot).ok_or_else(|| kube_proxy::unknown_version(snapshot))),
        false => (vec![Settings::NOT_NEEDED.before_1_26], None),
    };
    let mut settings = Settings::NOT_NEEDED;
    let cilium = config.cilium.clone().unwrap_or_default();
    if by_device {
        settings.families_off.clone_from(&cilium.families_off);
        settings.sctp = cilium.sctp;
        settings.external_ips_anywhere = cilium.external_ips_anywhere;
    }
    if needs(Setting::WithoutBackend) {
        settings.without_backend = cilium.without_backend;
    }
    if needs(Setting::HostNamespaceOnly) {
        settings.host_namespace_only = cilium.host_namespace_only;
        settings.pods_by_list = cilium.host_namespace_only && cilium.wildcard_entries == Some(false);
    }
    let mut candidates = Vec::new();
    // What is not known of an address of a device, Cilium may have decided either way.
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
        for local_detector in &detectors {
            for route_localnet in &localnets {
                for before_1_26 in &ages {
                    let (route_localnet, before_1_26) = (*route_localnet, *before_1_26);
                    let local_detector = *local_detector;
                    let settings = Settings { local_detector, route_localnet, before_1_26, ..settings.clone() };
                    candidates.push(Candidate { plane, settings });
                }
            }
        }
    }
    (candidates, unknown_primary.or(unknown_detector).or(unknown_localnet).or(unknown_age))
}

/// What a fact is, or both where it is not known, and why it is not.
fn either_of(fact: Result<bool, Gap>) -> (Vec<bool>, Option<Gap>) {
    match fact {
        Ok(fact) => (vec![fact], None),
        Err(gap) => (vec![true, false], Some(gap)),
    }
}

#[cfg(test)]
mod tests;
