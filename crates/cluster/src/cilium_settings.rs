//! Cilium's behaviour on a node, according to the settings in its ConfigMap. If a key is absent or has an unknown
//! value, the default of the key is used.

use ipnet::IpNet;

use super::{flags::go_bool, objects::short};
use portreeve_facts::{CiliumConfig, Family, ProxyConfig, WithoutBackend};

/// The number of entries that are kept of a list.
pub(super) const MOST_ENTRIES: usize = 256;

const ADDRESSES: &str = "nodeport-addresses";
const DEVICES: &str = "devices";

/// Whether Cilium replaces kube-proxy. `None` if the settings do not show whether Cilium replaces kube-proxy. Up to
/// 1.18, a user could enable single parts of the replacement (`pkg/option/config.go`,
/// `daemon/cmd/kube_proxy_replacement.go`).
pub(super) fn replaces_kube_proxy<'a>(value: impl Fn(&str) -> Option<&'a str>) -> Option<bool> {
    // The value in a ConfigMap from a file may end with a newline. Cilium ignores the newline.
    let word = value("kube-proxy-replacement")?.trim();
    let parts = ["enable-node-port", "enable-host-port", "enable-external-ips"];
    match (truth(Some(word)), word) {
        (Some(true), _) | (_, "strict") => Some(true),
        (Some(false), _) | (_, "disabled") => {
            (!parts.iter().any(|key| truth(value(key)) == Some(true))).then_some(false)
        }
        _ => None,
    }
}

/// Cilium's settings as the replacement of kube-proxy, and the first malformed entry of `nodeport-addresses`. If there
/// is a malformed entry, Cilium does not start.
pub(super) fn proxy_config<'a>(
    place: String,
    value: impl Fn(&str) -> Option<&'a str> + Copy,
) -> (ProxyConfig, Option<String>) {
    let node_port_addresses = list(value(ADDRESSES));
    let malformed = node_port_addresses.iter().find(|entry| entry.parse::<IpNet>().is_err()).cloned();
    let config = ProxyConfig {
        place,
        mode: Some("cilium".to_owned()),
        node_port_addresses,
        iptables_masquerade: iptables_masquerade(value),
        cilium: Some(cilium(value)),
        ..ProxyConfig::default()
    };
    (config, malformed)
}

/// Whether iptables masquerades for Cilium, according to the ConfigMap. If the ConfigMap has no value, the default is
/// iptables (cilium `daemon/cmd/daemon_main.go`, 1.15 to 1.20).
fn iptables_masquerade<'a>(value: impl Fn(&str) -> Option<&'a str>) -> Option<bool> {
    match truth(value("enable-bpf-masquerade")) {
        _ if !masquerades(&value) => Some(false),
        in_bpf => in_bpf.map(|in_bpf| !in_bpf),
    }
}

/// Whether Cilium masquerades connections of pods in at least one family, by iptables or by eBPF.
fn masquerades<'a>(value: impl Fn(&str) -> Option<&'a str>) -> bool {
    let is_off = |key: &str| truth(value(key)) == Some(false);
    let families = [("enable-ipv4", "enable-ipv4-masquerade"), ("enable-ipv6", "enable-ipv6-masquerade")];
    !is_off("masquerade") && families.iter().any(|(family, key)| !is_off(family) && !is_off(key))
}

fn truth(text: Option<&str>) -> Option<bool> {
    go_bool(text?.trim())
}

/// The key of a list that has more than [`MOST_ENTRIES`] entries.
pub(super) fn too_long<'a>(value: impl Fn(&str) -> Option<&'a str>) -> Option<&'static str> {
    [ADDRESSES, DEVICES].into_iter().find(|key| words(value(key)).count() > MOST_ENTRIES)
}

fn words(text: Option<&str>) -> impl Iterator<Item = &str> {
    let words = text.unwrap_or_default().split(|it: char| it == ',' || it.is_whitespace());
    words.filter(|word| !word.is_empty())
}

fn list(text: Option<&str>) -> Vec<String> {
    words(text).take(MOST_ENTRIES).map(short).collect()
}

fn cilium<'a>(value: impl Fn(&str) -> Option<&'a str> + Copy) -> CiliumConfig {
    let is = |key: &str, word: &str| value(key).is_some_and(|text| text.trim() == word);
    let is_true = |key: &str| truth(value(key)) == Some(true);
    let is_false = |key: &str| truth(value(key)) == Some(false);
    CiliumConfig {
        devices: list(value(DEVICES)),
        detects_devices: is_true("force-device-detection"),
        external_ips_anywhere: is_true("disable-external-ip-mitigation"),
        proxy_name: value("k8s-service-proxy-name").map(|name| short(name.trim())).filter(|name| !name.is_empty()),
        families_off: [("enable-ipv4", Family::V4), ("enable-ipv6", Family::V6)]
            .into_iter()
            .filter_map(|(key, family)| is_false(key).then_some(family))
            .collect(),
        without_backend: match () {
            () if is_false("enable-no-service-endpoints-routable") => WithoutBackend::Pass,
            () if is("service-no-backend-response", "drop") => WithoutBackend::Drop,
            () => WithoutBackend::Reject,
        },
        host_namespace_only: is_true("bpf-lb-sock-hostns-only"),
        // Cilium 1.20 turns wildcard entries on by default. The chart of 1.20 also writes the key
        // `enable-datapath-plugins`, so this key shows the version.
        wildcard_entries: truth(value("bpf-lb-enable-wildcard-entries"))
            .or_else(|| value("enable-datapath-plugins").map(|_| true)),
        sctp: is_true("enable-sctp"),
        allows_bind: is_false("node-port-bind-protection"),
        masquerades: is_true("enable-bpf-masquerade") && masquerades(value),
        reserves_nothing: is_false("enable-auto-protect-node-port-range"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_boolean_word_decides_whether_cilium_replaces_kube_proxy() {
        let told = |settings: &[(&str, &'static str)]| {
            replaces_kube_proxy(|key| settings.iter().find(|(its, _)| *its == key).map(|(_, value)| *value))
        };
        for word in ["true", "True", "1", "strict", "true\n"] {
            assert_eq!(told(&[("kube-proxy-replacement", word)]), Some(true), "{word:?}");
        }
        for word in ["false", "0", "disabled"] {
            assert_eq!(told(&[("kube-proxy-replacement", word)]), Some(false), "{word:?}");
            assert_eq!(told(&[("kube-proxy-replacement", word), ("enable-node-port", "true")]), None, "{word:?}");
        }
        assert_eq!(told(&[]), None);
        assert_eq!(told(&[("kube-proxy-replacement", "partial")]), None);
    }

    #[test]
    fn an_address_that_is_no_network_is_reported() {
        let malformed =
            |list: &'static str| proxy_config(String::new(), |key| (key == "nodeport-addresses").then_some(list)).1;
        assert_eq!(malformed("192.0.2.1/32, ::/0"), None);
        assert_eq!(malformed("192.0.2.0/24,192.0.2.1"), Some("192.0.2.1".to_owned()));
    }
}
