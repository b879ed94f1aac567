//! Functions that several data planes use: versions of kube-proxy, and behaviour that kube-proxy's modes and Cilium
//! share.

use super::{outcome::Outcome, plane::Connection, settings::Settings};
use portreeve_facts::{Family, Gap, Mode, ProxyConfig, Snapshot, Source, Unread, Vantage, Why, kubernetes_version};

/// Whether the proxy is a kube-proxy before 1.26. An old kube-proxy sends no connection to terminating endpoints (KEP
/// 1669), and in iptables mode it also serves `::1` (kubernetes #108250). `None` if kube-proxy's version is not known,
/// and the kubelet's version permits a kube-proxy before 1.26.
pub(super) fn is_before_1_26(snapshot: &Snapshot) -> Option<bool> {
    match version(snapshot) {
        Some((major, minor, _)) => Some((major, minor) < (1, 26)),
        // kube-proxy has nftables mode only since version 1.29.
        None if snapshot.is_in(Mode::Nftables) => Some(false),
        None => oldest_beside_kubelet(snapshot).filter(|oldest| *oldest >= (1, 26)).map(|_| false),
    }
}

/// Whether the proxy is certainly a kube-proxy before 1.37, without the feature gate for loopback (KEP-6032).
pub(super) fn is_before_1_37(snapshot: &Snapshot) -> bool {
    let newest = version(snapshot).map(|(major, minor, _)| (major, minor)).or_else(|| {
        let (major, minor) = kubelet_version(snapshot)?;
        Some((major, minor + MOST_SKEW))
    });
    newest.is_some_and(|newest| newest < (1, 37))
}

pub(super) fn unknown_version(snapshot: &Snapshot) -> Gap {
    let unreadable = || Gap::new(Source::ProxyMetrics, Why::Malformed, "kube-proxy does not report its version");
    snapshot.kernel.proxy.metrics.gap().cloned().unwrap_or_else(unreadable)
}

/// The largest difference between the minor versions of kube-proxy and kubelet on a node, in either direction
/// (kubernetes.io/releases/version-skew-policy).
const MOST_SKEW: u32 = 3;

pub(super) fn oldest_beside_kubelet(snapshot: &Snapshot) -> Option<(u32, u32)> {
    kubelet_version(snapshot).map(|(major, minor)| (major, minor.saturating_sub(MOST_SKEW)))
}

fn kubelet_version(snapshot: &Snapshot) -> Option<(u32, u32)> {
    let kubelet = snapshot.own_node()?.kubelet_version.as_deref()?;
    kubernetes_version(kubelet).map(|(major, minor, _)| (major, minor))
}

fn version(snapshot: &Snapshot) -> Option<(u32, u32, u32)> {
    kubernetes_version(snapshot.kernel.proxy.metrics.known(Unread::Doubted)?.version.as_deref()?)
}

/// Whether a kube-proxy of this version opens a socket for every NodePort: up to 1.23.6, 1.22.9 and 1.21.12
/// (kubernetes/kubernetes pull requests 108496, 108885, 108888, 108896). `None` if the text is not a version.
pub fn holds_ports(version: &str) -> Option<bool> {
    Some(match kubernetes_version(version)? {
        (1, 24.., _) | (2.., ..) => false,
        (1, 23, patch) => patch <= 6,
        (1, 22, patch) => patch <= 9,
        (1, 21, patch) => patch <= 12,
        _ => true,
    })
}

pub(super) fn is_behind(snapshot: &Snapshot, lag_seconds: i64) -> bool {
    let keeps_up = Unread::Assumed("that kube-proxy keeps up");
    let Some(metrics) = snapshot.kernel.proxy.metrics.known(keeps_up) else { return false };
    let (Some(synced), Some(queued)) = (metrics.last_sync, metrics.last_queued) else { return false };
    synced < queued && snapshot.at.duration_since(queued).as_secs() > lag_seconds
}

/// In nftables mode, `/configz` shows the default as the value `primary`. No user configured this value, so `primary`
/// is treated as an empty list.
pub(super) fn node_port_addresses(config: &ProxyConfig) -> Vec<String> {
    let configured = &config.node_port_addresses;
    let is_nftables_default = config.mode.as_deref() == Some("nftables") && configured.as_slice() == ["primary"];
    if is_nftables_default { Vec::new() } else { configured.clone() }
}

/// Networks that contain no address of any node, one for each family.
const NOWHERE: [&str; 2] = ["0.0.0.0/32", "::/128"];

pub(super) fn listing(list: &[&str]) -> ProxyConfig {
    let node_port_addresses = list.iter().map(|cidr| (*cidr).to_owned()).collect();
    ProxyConfig { node_port_addresses, ..ProxyConfig::default() }
}

pub(super) fn listing_nothing() -> ProxyConfig {
    listing(&NOWHERE)
}

/// The possible values of an unread `nodePortAddresses`: the default, the primary address, every address, and no
/// address of this node. A verdict that is true for these four values is true for any value of `nodePortAddresses`.
pub(super) fn with_any_node_port_addresses() -> Vec<ProxyConfig> {
    let lists: [&[&str]; 3] = [&[], &["primary"], &["all"]];
    lists.map(listing).into_iter().chain([listing_nothing()]).collect()
}

/// The configuration itself: an absent setting has its default, so there is no other possible configuration.
pub(super) fn complete_configuration(config: &ProxyConfig) -> Vec<ProxyConfig> {
    vec![config.clone()]
}

/// The outcome of a captured connection if externalTrafficPolicy is Local and all endpoints are on other nodes. Clients
/// outside get no answer. The node reaches the endpoints. The node's pods reach the endpoints if kube-proxy has a local
/// detector.
pub(super) fn only_elsewhere(settings: &Settings, connection: Connection) -> Outcome {
    match connection.from {
        Vantage::Remote => Outcome::TimedOut,
        Vantage::Pods if !settings.detects_pods(Family::of(connection.to.ip)) => Outcome::TimedOut,
        Vantage::Node | Vantage::Loopback | Vantage::Pods => Outcome::Pod,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_versions_that_hold_ports_are_known() {
        for (version, holds) in [
            ("v1.23.6", Some(true)),
            ("v1.23.7", Some(false)),
            ("v1.22.9-eks-1", Some(true)),
            ("v1.22.10", Some(false)),
            ("v1.21.12", Some(true)),
            ("v1.21.13", Some(false)),
            ("v1.19.0", Some(true)),
            ("v1.36.3+k3s1", Some(false)),
            ("devel", None),
        ] {
            assert_eq!(holds_ports(version), holds, "{version}");
        }
    }
}
