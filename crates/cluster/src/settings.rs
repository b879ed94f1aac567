//! The cluster's own settings: the NodePort range, and the settings of the proxy.

use std::{collections::BTreeMap, fmt};

use serde::Deserialize;

use super::{
    cilium_settings,
    component_config::{proxy_configuration, range_argument},
    flags::{Flags, RANGE_FLAG},
    objects::{Annotations, Notes, Pod, lenient_ip, quoted, short},
};
use portreeve_facts::{
    Claimant, Gap, NFTABLES_LOCALHOST_GATE, NodePortRange, NotPorts, PortRange, ProxyConfig, RangeClaim, RangeSource,
    Reading, Source, Why,
};

const CILIUM: &str = "ConfigMap kube-system/cilium-config";
/// The kind of object that overrides Cilium's settings on some nodes.
pub const CILIUM_NODE_CONFIG: &str = "CiliumNodeConfig";
const FELIX: &str = "FelixConfiguration default";

/// The settings in CiliumNodeConfigs that apply to one node.
#[derive(Debug, Default, PartialEq)]
pub struct NodeSettings {
    /// The names of the objects that apply to the node. A later object overrides an earlier object.
    pub names: Vec<String>,
    /// The settings in these objects.
    pub values: BTreeMap<String, String>,
}

/// Settings from every place that was read. [`Settings::node_port_range`] and [`Settings::proxy_config`] choose between
/// the places.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Settings {
    ranges: Vec<ReportedRange>,
    pub(crate) claims: Vec<RangeClaim>,
    /// Cilium's settings if Cilium replaces kube-proxy, or the reason why a list in these settings is unread.
    cilium: Option<Result<ProxyConfig, Gap>>,
    /// Whether Cilium replaces kube-proxy. `None` if Cilium's settings do not show whether Cilium replaces kube-proxy.
    pub cilium_replaces: Option<bool>,
    kube_proxy: Option<ProxyConfig>,
    /// The arguments of kube-proxy on nodes of k3s or RKE2, with the name of each node.
    by_node: Vec<(String, ProxyConfig)>,
}

#[derive(Clone, Debug, PartialEq)]
struct ReportedRange {
    source: RangeSource,
    place: String,
    range: Result<PortRange, NotPorts>,
}

impl Settings {
    /// Adds the settings of another reader.
    pub fn merge(&mut self, other: Self) {
        self.ranges.extend(other.ranges);
        self.claims.extend(other.claims);
        self.by_node.extend(other.by_node);
        self.cilium = self.cilium.take().or(other.cilium);
        self.cilium_replaces = self.cilium_replaces.or(other.cilium_replaces);
        self.kube_proxy = self.kube_proxy.take().or(other.kube_proxy);
    }

    /// The NodePort range from the best place, in the order of [`RangeSource`]. If no place has a range, the default is
    /// returned. A `Gap` is returned if equally good places disagree, or if all ranges that were found are malformed.
    pub fn node_port_range(&self) -> Reading<NodePortRange> {
        let gap = |why, detail| Reading::Gap(Gap::new(Source::NodePortRange, why, detail));
        let readable = |reported: &&ReportedRange| reported.range.is_ok();
        let Some(best) = self.ranges.iter().filter(readable).map(|reported| reported.source).min() else {
            return match self.ranges.first() {
                Some(ReportedRange { place, range: Err(error), .. }) => {
                    gap(Why::Malformed, format!("{place}: {error}"))
                }
                _ => Reading::Seen(NodePortRange::assumed()),
            };
        };
        let mut found: Vec<NodePortRange> = Vec::new();
        for reported in self.ranges.iter().filter(|reported| reported.source == best) {
            if let Ok(range) = reported.range
                && found.iter().all(|known| known.range != range)
            {
                found.push(NodePortRange { range, source: best, place: reported.place.clone() });
            }
        }
        if let [only] = found.as_slice() {
            return Reading::Seen(only.clone());
        }
        let ranges: Vec<_> = found.iter().map(|known| format!("{} has {}", known.place, known.range)).collect();
        gap(Why::Ambiguous, ranges.join(", "))
    }

    /// The proxy's settings on `node`. If Cilium replaces kube-proxy, Cilium's settings are used. Otherwise the
    /// arguments of the node are used. If the node has no arguments, the cluster's ConfigMap of kube-proxy is used.
    ///
    /// # Errors
    /// Returns a `Gap` if Cilium's settings could not be read. Other settings are then not used, because they may be
    /// left from the time before Cilium.
    pub fn proxy_config(&self, node: Option<&str>) -> Result<Option<ProxyConfig>, Gap> {
        let of_cilium = self.claims.iter().filter(|claim| claim.by == Claimant::Cilium);
        if let Some(gap) = of_cilium.filter_map(|claim| claim.ranges.gap()).next() {
            return Err(gap.clone());
        }
        if let Some(cilium) = &self.cilium {
            return cilium.clone().map(Some);
        }
        let own = self.by_node.iter().find(|(name, _)| Some(name.as_str()) == node).map(|(_, config)| config);
        Ok(own.or(self.kube_proxy.as_ref()).cloned())
    }

    /// Adds the range from the arguments of kube-apiserver. If the arguments have no range, the range is the default.
    pub(crate) fn api_server_pod(&mut self, pod: &Pod) {
        let Some(metadata) = &pod.metadata else { return };
        let title = metadata.title();
        let Some(name) = title.strip_prefix("kube-system/") else { return };
        let component = metadata.labels.as_ref().and_then(|labels| labels.component.as_deref());
        if component != Some("kube-apiserver") && !name.starts_with("kube-apiserver") {
            return;
        }
        for container in pod.spec.iter().flat_map(|spec| &spec.containers).flatten() {
            let written = [&container.command, &container.args].into_iter().flatten().flatten();
            let flags = Flags::words(written.map(|word| word.0.as_str()));
            if flags.runs("kube-apiserver") {
                self.range_of(RangeSource::ApiServerArguments, format!("pod {title}"), flags.last(RANGE_FLAG));
            }
        }
    }

    pub(crate) fn node_arguments(&mut self, name: &str, annotations: Option<&Annotations>, notes: &mut Notes) {
        let Some(annotations) = annotations else { return };
        for (key, text) in [("k3s.io/node-args", &annotations.k3s_args), ("rke2.io/node-args", &annotations.rke2_args)]
        {
            let Some(text) = text else { continue };
            let Ok(arguments) = serde_json::from_str::<Vec<String>>(text) else {
                notes.note(format_args!("metadata.annotations[{key}]"), quoted(text), "a JSON list of texts");
                continue;
            };
            let flags = Flags::arguments(&arguments);
            let place = format!("annotation {key} of node {name}");
            if arguments.first().is_some_and(|command| command == "server") {
                let passed = flags.passed_on("kube-apiserver-arg");
                let range = passed.last(RANGE_FLAG).or_else(|| flags.last(RANGE_FLAG));
                self.range_of(RangeSource::NodeArguments, place.clone(), range);
            }
            let proxy = flags.passed_on("kube-proxy-arg");
            if !proxy.is_empty() {
                let list = proxy.last("nodeport-addresses").into_iter().flat_map(|list| list.split(','));
                let config = ProxyConfig {
                    place,
                    mode: proxy.last("proxy-mode").map(short),
                    node_port_addresses: list.filter(|cidr| !cidr.is_empty()).map(short).collect(),
                    localhost_node_ports: proxy.switch("iptables-localhost-nodeports"),
                    bind_address: proxy.last("bind-address").and_then(lenient_ip),
                    detect_local_mode: proxy.last("detect-local-mode").map(short),
                    cluster_cidr: proxy.last("cluster-cidr").map(short),
                    healthz_bind_address: proxy.last("healthz-bind-address").map(short),
                    nftables_localhost: proxy.last("feature-gates").and_then(nftables_localhost),
                    iptables_masquerade: None,
                    cilium: None,
                };
                self.by_node.push((name.to_owned(), config));
            }
        }
    }

    /// Whether settings are read from the ConfigMap with this name (`namespace/name`). Errors in other ConfigMaps are
    /// ignored.
    pub fn reads(config_map: &str) -> bool {
        matches!(config_map, "kube-system/kube-proxy" | "kube-system/kubeadm-config" | "kube-system/cilium-config")
    }

    pub(crate) fn config_map(&mut self, title: &str, data: &BTreeMap<String, String>, notes: &mut Notes) {
        let place = format!("ConfigMap {title}");
        match title {
            "kube-system/kube-proxy" => {
                let config = data.get("config.conf").and_then(|text| proxy_configuration(place, text, notes));
                self.kube_proxy = self.kube_proxy.take().or(config);
            }
            "kube-system/kubeadm-config" => {
                let range = data.get("ClusterConfiguration").and_then(|text| range_argument(text, notes));
                if let Some(range) = range {
                    self.range_of(RangeSource::KubeadmConfig, place, Some(&range));
                }
            }
            "kube-system/cilium-config" => self.cilium_settings(place, data, notes),
            _ => {}
        }
    }

    /// Reads Cilium's settings. `data` has the form of Cilium's ConfigMap.
    pub fn cilium_settings(&mut self, place: String, data: &BTreeMap<String, String>, notes: &mut Notes) {
        let value = |key: &str| data.get(key).map(String::as_str);
        self.cilium_replaces = cilium_settings::replaces_kube_proxy(value);
        if self.cilium_replaces == Some(true) {
            let (config, malformed) = cilium_settings::proxy_config(place.clone(), value);
            if let Some(entry) = malformed {
                notes.note("data[nodeport-addresses]", quoted(&entry), "a list of CIDRs");
                let detail = format!("{place}: Cilium does not start with nodeport-addresses {}", quoted(&entry));
                self.mark_claim_missing(Claimant::Cilium, Gap::new(Source::ConfigMaps, Why::Malformed, detail));
            }
            let too_long = cilium_settings::too_long(value).map(|key| {
                let detail = format!("{place}: {key} has more than {} entries", cilium_settings::MOST_ENTRIES);
                Gap::new(Source::ConfigMaps, Why::TooMuch, detail)
            });
            self.cilium = Some(too_long.map_or(Ok(config), Err));
        }
        // With an empty range, Cilium uses the default.
        match value("node-port-range").filter(|text| !text.trim().is_empty()) {
            Some(text) => self.claim(Claimant::Cilium, place, [short(text)], "data[node-port-range]", notes),
            // Without the settings of Cilium, no other code knows that this range is the default.
            None if matches!(self.cilium, Some(Err(_))) => {
                let ranges = Reading::Seen(vec![PortRange::DEFAULT_NODE_PORTS]);
                let place = format!("{place}, which keeps the default");
                self.claims.push(RangeClaim { by: Claimant::Cilium, ranges, place });
            }
            None => {}
        }
    }

    pub(crate) fn felix(&mut self, ranges: Vec<String>, notes: &mut Notes) {
        if !ranges.is_empty() {
            self.claim(Claimant::Calico, FELIX.to_owned(), ranges, "spec.kubeNodePortRanges", notes);
        }
    }

    pub(crate) fn openshift(&mut self, range: Option<&str>) {
        self.range_of(RangeSource::OpenshiftNetwork, "network.config.openshift.io/cluster".to_owned(), range);
    }

    /// Reads the answer of kube-apiserver's `/flagz`, which is JSON or text. In the text, `:`, `: `, `=` or a space
    /// separates a name and its value. The server chooses one of these separators at random, so that programs do not
    /// parse the text (k8s.io/component-base/zpages/flagz). Returns false if the answer has no range.
    pub fn flagz(&mut self, place: String, answer: &str) -> bool {
        #[derive(Deserialize)]
        struct Flagz {
            flags: Named,
        }
        #[derive(Deserialize)]
        struct Named {
            #[serde(rename = "service-node-port-range")]
            range: Option<String>,
        }
        let value = if answer.trim_start().starts_with('{') {
            serde_json::from_str::<Flagz>(answer).ok().and_then(|flagz| flagz.flags.range)
        } else {
            let line = answer.lines().find_map(|line| line.trim().strip_prefix(RANGE_FLAG));
            line.map(|value| value.trim_start_matches([':', '=', ' ']).to_owned())
        };
        if let Some(value) = &value {
            self.range_of(RangeSource::Flagz, place, Some(value));
        }
        value.is_some()
    }

    /// Adds a place that can set the range. If the place does not set a range, the API server uses the default.
    fn range_of(&mut self, source: RangeSource, place: String, range: Option<&str>) {
        let (place, range) = match range {
            Some(text) => (place, text.parse()),
            None => (format!("{place}, which keeps the default"), Ok(PortRange::DEFAULT_NODE_PORTS)),
        };
        self.ranges.push(ReportedRange { source, place, range });
    }

    fn claim(
        &mut self,
        by: Claimant,
        place: String,
        texts: impl IntoIterator<Item = String>,
        path: impl fmt::Display,
        notes: &mut Notes,
    ) {
        let (mut ranges, mut is_whole) = (Vec::new(), true);
        for text in texts {
            // A range of Cilium has the form `first,last`. A range of Calico has the form `first:last`.
            match text.replace([',', ':'], "-").parse() {
                Ok(range) => ranges.push(range),
                Err(_) => {
                    is_whole = false;
                    notes.note(&path, quoted(&text), "a range of ports");
                }
            }
        }
        let unread = || Gap::new(Source::ConfigMaps, Why::Malformed, format!("{place}: {path} is no range of ports"));
        let ranges = if is_whole { Reading::Seen(ranges) } else { Reading::Gap(unread()) };
        self.claims.push(RangeClaim { by, ranges, place });
    }

    /// Notes that the range of a component could not be read.
    pub fn mark_claim_missing(&mut self, by: Claimant, gap: Gap) {
        let place = match by {
            Claimant::Cilium => CILIUM,
            Claimant::Calico => FELIX,
        };
        self.claims.push(RangeClaim { by, ranges: Reading::Gap(gap), place: place.to_owned() });
    }
}

/// Whether a list of feature gates such as `A=true,B=false` enables NodePorts on loopback in nftables mode.
fn nftables_localhost(gates: &str) -> Option<bool> {
    let gates = gates.split(',').filter_map(|gate| gate.trim().split_once('='));
    gates.rev().find(|(gate, _)| *gate == NFTABLES_LOCALHOST_GATE).map(|(_, value)| value == "true")
}
