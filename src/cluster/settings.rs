//! What the cluster's own settings say about the NodePort range and the proxy.

use std::fmt;

use serde::Deserialize;

use super::{
    embedded::{proxy_configuration, range_argument},
    field::{Field, Long, Misfits, Scalar, quoted},
    flags::{Flags, RANGE_FLAG},
    values::{each, lenient_ip},
    wire::Object,
};
use crate::facts::{
    Claimant, Gap, NodePortRange, NotPorts, PortRange, ProxyConfig, RangeClaim, RangeSource, Reading, Source, Why, text,
};

/// Where Cilium's settings are.
const CILIUM: &str = "ConfigMap kube-system/cilium-config";
/// Where Calico's are.
const FELIX: &str = "FelixConfiguration default";

/// Settings as they were found, best and worst alike; [`Settings::node_port_range`] and
/// [`Settings::proxy_config`] choose.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Settings {
    ranges: Vec<Candidate>,
    pub(super) claims: Vec<RangeClaim>,
    cilium: Option<ProxyConfig>,
    kube_proxy: Option<ProxyConfig>,
    /// Node name, and the kube-proxy arguments that k3s or RKE2 was given there.
    by_node: Vec<(String, ProxyConfig)>,
}

#[derive(Clone, Debug, PartialEq)]
struct Candidate {
    source: RangeSource,
    place: String,
    range: Result<PortRange, NotPorts>,
}

impl Settings {
    /// Takes over what another reader found.
    pub(super) fn absorb(&mut self, other: Self) {
        self.ranges.extend(other.ranges);
        self.claims.extend(other.claims);
        self.by_node.extend(other.by_node);
        self.cilium = self.cilium.take().or(other.cilium);
        self.kube_proxy = self.kube_proxy.take().or(other.kube_proxy);
    }

    /// The range from the best place that knows it, in the order of [`RangeSource`]; assumed where none does. A gap
    /// where equally good places disagree, or where the only ones that speak of it cannot be read.
    pub(super) fn node_port_range(&self) -> Reading<NodePortRange> {
        let gap = |why, detail| Reading::Gap(Gap::new(Source::NodePortRange, why, detail));
        let readable = |candidate: &&Candidate| candidate.range.is_ok();
        let Some(best) = self.ranges.iter().filter(readable).map(|candidate| candidate.source).min() else {
            return match self.ranges.first() {
                Some(Candidate { place, range: Err(error), .. }) => gap(Why::Malformed, format!("{place}: {error}")),
                _ => Reading::Seen(NodePortRange::assumed()),
            };
        };
        let mut found: Vec<NodePortRange> = Vec::new();
        for candidate in self.ranges.iter().filter(|candidate| candidate.source == best) {
            if let Ok(range) = candidate.range
                && found.iter().all(|known| known.range != range)
            {
                found.push(NodePortRange { range, source: best, place: candidate.place.clone() });
            }
        }
        if let [only] = found.as_slice() {
            return Reading::Seen(only.clone());
        }
        let said: Vec<_> = found.iter().map(|known| format!("{} says {}", known.place, known.range)).collect();
        gap(Why::Ambiguous, said.join(", "))
    }

    /// The proxy's settings on `node`: Cilium where it replaces kube-proxy, else the node's own arguments, else the
    /// cluster's ConfigMap.
    ///
    /// # Errors
    /// When what Cilium does could not be read: the others may be left from before it replaced kube-proxy.
    pub(super) fn proxy_config(&self, node: Option<&str>) -> Result<Option<ProxyConfig>, Gap> {
        let of_cilium = self.claims.iter().filter(|claim| claim.by == Claimant::Cilium);
        if let Some(gap) = of_cilium.filter_map(|claim| claim.ranges.gap()).next() {
            return Err(gap.clone());
        }
        let own = || self.by_node.iter().find(|(name, _)| Some(name.as_str()) == node).map(|(_, config)| config);
        Ok(self.cilium.as_ref().or_else(own).or(self.kube_proxy.as_ref()).cloned())
    }

    /// A Pod of kube-system: kube-apiserver's arguments name the range, or leave it at its default.
    pub(super) fn api_server_pod(&mut self, pod: &Object) {
        let Some(metadata) = pod.metadata.seen() else { return };
        let name = metadata.name.seen().map_or("", String::as_str);
        let component = metadata.labels.seen().and_then(|labels| labels.component.seen());
        let named =
            component.is_some_and(|component| component == "kube-apiserver") || name.starts_with("kube-apiserver");
        if !named || metadata.namespace.seen().is_none_or(|namespace| namespace != "kube-system") {
            return;
        }
        let containers = pod.spec.seen().and_then(|spec| spec.containers.seen()).into_iter().flatten();
        for container in containers.filter_map(Field::seen) {
            let written = [&container.command, &container.args].into_iter().filter_map(Field::seen).flatten();
            let flags = Flags::words(written.filter_map(Field::seen).map(|Long(text)| text.as_str()));
            if flags.runs("kube-apiserver") {
                let place = format!("pod kube-system/{name}");
                self.range_of(RangeSource::ApiServerArguments, place, flags.last(RANGE_FLAG));
            }
        }
    }

    /// A Node: `k3s.io/node-args` or `rke2.io/node-args`.
    pub(super) fn node_arguments(&mut self, node: &Object, misfits: &mut Misfits) {
        let Some(metadata) = node.metadata.seen() else { return };
        let Some(annotations) = metadata.annotations.seen() else { return };
        let name = metadata.name.seen().cloned().unwrap_or_default();
        for (annotation, key) in
            [(&annotations.k3s_args, "k3s.io/node-args"), (&annotations.rke2_args, "rke2.io/node-args")]
        {
            let path = format_args!("metadata.annotations[{key}]");
            let Some(Long(text)) = annotation.clone().take(path, misfits) else { continue };
            let Ok(arguments) = serde_json::from_str::<Vec<String>>(&text) else {
                misfits.note(path, quoted(&text), "a JSON list of texts");
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
                };
                self.by_node.push((name.clone(), config));
            }
        }
    }

    /// A ConfigMap of kube-system: `kube-proxy`, `kubeadm-config` or `cilium-config`.
    pub(super) fn config_map(&mut self, object: Object, misfits: &mut Misfits) {
        let title = object.title();
        let place = format!("ConfigMap {title}");
        let data = object.data.take("data", misfits).unwrap_or_default();
        match title.as_str() {
            "kube-system/kube-proxy" => {
                if let Some(Long(text)) = data.proxy_config.take("data[config.conf]", misfits) {
                    self.kube_proxy = self.kube_proxy.take().or(proxy_configuration(place, &text, misfits));
                }
            }
            "kube-system/kubeadm-config" => {
                if let Some(Long(text)) = data.cluster_configuration.take("data[ClusterConfiguration]", misfits)
                    && let Some(range) = range_argument(&text, misfits)
                {
                    self.range_of(RangeSource::KubeadmConfig, place, Some(&range));
                }
            }
            "kube-system/cilium-config" => {
                let replaces = data.proxy_replacement.take("data[kube-proxy-replacement]", misfits);
                if replaces.is_some_and(|Scalar(text)| matches!(text.as_str(), "true" | "strict")) {
                    let mode = Some("cilium".to_owned());
                    self.cilium = Some(ProxyConfig { place: place.clone(), mode, ..ProxyConfig::default() });
                }
                if let Some(Scalar(text)) = data.node_port_range.take("data[node-port-range]", misfits) {
                    self.claim(Claimant::Cilium, place, [text], "data[node-port-range]", misfits);
                }
            }
            _ => {}
        }
    }

    /// The `default` FelixConfiguration of Calico.
    pub(super) fn felix(&mut self, object: Object, misfits: &mut Misfits) {
        if object.title() != "default" {
            return;
        }
        let spec = object.spec.take("spec", misfits).unwrap_or_default();
        let path = "spec.kubeNodePortRanges";
        let ranges = each(spec.kube_node_port_ranges, path, misfits, |Scalar(range), _, _| Some(range));
        if !ranges.is_empty() {
            self.claim(Claimant::Calico, FELIX.to_owned(), ranges, path, misfits);
        }
    }

    /// OpenShift's `network.config.openshift.io/cluster`; empty means the default.
    pub(super) fn openshift(&mut self, object: Object, misfits: &mut Misfits) {
        if object.title() != "cluster" {
            return;
        }
        let spec = object.spec.take("spec", misfits).unwrap_or_default();
        let range = spec.service_node_port_range.take("spec.serviceNodePortRange", misfits);
        let range = range.filter(|range| !range.is_empty());
        self.range_of(
            RangeSource::OpenshiftNetwork,
            "network.config.openshift.io/cluster".to_owned(),
            range.as_deref(),
        );
    }

    /// The answer of kube-apiserver's `/flagz`: JSON, or a text that separates a name from its value by one of
    /// `:`, `: `, `=` and a space, chosen at random so that nobody parses it (k8s.io/component-base/zpages/flagz).
    ///
    /// False when it tells no range.
    pub(super) fn flagz(&mut self, place: String, answer: &str) -> bool {
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

    /// `None`: the place would say so, and does not, so the API server uses its default.
    fn range_of(&mut self, source: RangeSource, place: String, range: Option<&str>) {
        let (place, range) = match range {
            Some(text) => (place, text.parse()),
            None => (format!("{place}, which leaves it at the default"), Ok(PortRange::DEFAULT_NODE_PORTS)),
        };
        self.ranges.push(Candidate { source, place, range });
    }

    fn claim(
        &mut self,
        by: Claimant,
        place: String,
        texts: impl IntoIterator<Item = String>,
        path: impl fmt::Display,
        misfits: &mut Misfits,
    ) {
        let mut ranges = Vec::new();
        for text in texts {
            // Cilium writes `first,last`, Calico `first:last`.
            match text.replace([',', ':'], "-").parse() {
                Ok(range) => ranges.push(range),
                Err(_) => misfits.note(&path, quoted(&text), "a range of ports"),
            }
        }
        self.claims.push(RangeClaim { by, ranges: Reading::Seen(ranges), place });
    }

    /// A place that tells what a component thinks the range is could not be read.
    pub(super) fn lack_claim(&mut self, by: Claimant, gap: Gap) {
        let place = match by {
            Claimant::Cilium => CILIUM,
            Claimant::Calico => FELIX,
        };
        self.claims.push(RangeClaim { by, ranges: Reading::Gap(gap), place: place.to_owned() });
    }
}

fn short(value: &str) -> String {
    text::clean(value, text::NAME)
}
