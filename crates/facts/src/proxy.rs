//! The proxy that serves Services on this node.

use std::{fmt, net::IpAddr, str::FromStr};

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Cgroup, Family, Process, Reading};

/// The mode of the proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// kube-proxy with iptables rules.
    Iptables,
    /// kube-proxy with IPVS virtual servers. This mode is deprecated since Kubernetes 1.35 (KEP-5495).
    Ipvs,
    /// kube-proxy with nftables rules (KEP-3866).
    Nftables,
    /// Cilium's eBPF replacement of kube-proxy.
    Cilium,
}

impl Mode {
    /// Every mode.
    pub const ALL: [Self; 4] = [Self::Iptables, Self::Ipvs, Self::Nftables, Self::Cilium];
    /// The modes of kube-proxy. A kube-proxy whose mode is unknown has one of these modes.
    pub const KUBE_PROXY: [Self; 3] = [Self::Iptables, Self::Ipvs, Self::Nftables];
    /// The words of all modes, for help texts.
    pub const WORDS: &str = "iptables, ipvs, nftables or cilium";

    /// The word for the mode.
    pub fn name(self) -> &'static str {
        match self {
            Self::Iptables => "iptables",
            Self::Ipvs => "ipvs",
            Self::Nftables => "nftables",
            Self::Cilium => "cilium",
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Mode {
    type Err = NotAMode;

    fn from_str(text: &str) -> Result<Self, NotAMode> {
        Self::ALL.into_iter().find(|mode| mode.name() == text.trim()).ok_or(NotAMode)
    }
}

/// The error for a text that is not the name of a mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a proxy mode: {}", Mode::WORDS)]
pub struct NotAMode;

/// A value and its source. If a finding depends on the value, the report prints the source.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Learned<T> {
    /// The value.
    pub value: T,
    /// The source of the value, for example `127.0.0.1:10249/proxyMode`.
    pub place: String,
}

impl<T: fmt::Display> fmt::Display for Learned<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (from {})", self.value, self.place)
    }
}

/// The port on which kube-proxy reports its mode, settings and metrics by default (`metricsBindAddress`).
pub const PROXY_METRICS: u16 = 10249;
/// The port on which kube-proxy reports its health by default (`healthzBindAddress`).
pub const PROXY_HEALTH: u16 = 10256;

/// kube-proxy's answers on loopback, at `metricsBindAddress`: by default `127.0.0.1:10249` or `[::1]:10249`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProxyFacts {
    /// The answer of `/proxyMode`.
    pub mode: Reading<Learned<Mode>>,
    /// The answer of `/configz` (`kubeproxy.config.k8s.io`).
    pub config: Reading<ProxyConfig>,
    /// The values of `/metrics` that rules use.
    pub metrics: Reading<ProxyMetrics>,
    /// The control group of the process that answers. This process is the proxy. A socket of this process or of this
    /// control group belongs to the proxy. If the control group is the root group, only the process counts.
    pub cgroup: Reading<Cgroup>,
    /// The process that answers (see [`Self::cgroup`]).
    pub process: Reading<Process>,
    /// The proxy's file descriptors, from `/proc/<pid>`.
    pub fds: Reading<FdUse>,
}

/// The feature gate for NodePorts on loopback in nftables mode (KEP-6032). With the gate, kube-proxy serves NodePorts
/// on loopback if `nodePortAddresses` names loopback. Otherwise, kube-proxy refuses the connections.
pub const NFTABLES_LOCALHOST_GATE: &str = "KubeProxyNFTablesLocalhostNodePorts";

/// The proxy's settings that rules use. A field is `None` if the source did not have the setting.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProxyConfig {
    /// The source, for example `127.0.0.1:10249/configz`.
    pub place: String,
    /// `mode`. If the mode is empty, the proxy uses the default of the platform: iptables on Linux.
    pub mode: Option<String>,
    /// `nodePortAddresses`, or Cilium's `nodeport-addresses`: CIDRs, or the word `primary`. If the list is empty, the
    /// proxy uses the default of its mode.
    pub node_port_addresses: Vec<String>,
    /// `iptables.localhostNodePorts`. The default is true.
    pub localhost_node_ports: Option<bool>,
    /// `bindAddress`.
    pub bind_address: Option<IpAddr>,
    /// `detectLocalMode`. This setting and `clusterCIDR` determine whether kube-proxy has a local detector.
    pub detect_local_mode: Option<String>,
    /// `clusterCIDR`: ranges of addresses, separated by commas.
    pub cluster_cidr: Option<String>,
    /// `healthzBindAddress`. Empty if kube-proxy's own settings turn the health check off. `None` if no source has the
    /// setting.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub healthz_bind_address: Option<String>,
    /// `featureGates.KubeProxyNFTablesLocalhostNodePorts` (KEP-6032, alpha and off by default in Kubernetes 1.37).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nftables_localhost: Option<bool>,
    /// Whether iptables masquerades connections of pods, instead of Cilium's eBPF program. If so, masquerading is on
    /// and `enable-bpf-masquerade` is false. `None` if Cilium's settings do not show this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub iptables_masquerade: Option<bool>,
    /// Settings of Cilium. `None` for other proxies, and in snapshots that are older than this field.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cilium: Option<CiliumConfig>,
}

impl ProxyConfig {
    /// The mode in the settings. An empty mode means iptables. `None` if the settings have no mode, or a mode that
    /// Portreeve does not know.
    pub fn mode_if_known(&self) -> Option<Mode> {
        match self.mode.as_deref()? {
            "" => Some(Mode::Iptables),
            text => text.parse().ok(),
        }
    }
}

/// Settings of Cilium as the replacement of kube-proxy (ConfigMap `cilium-config`). For an absent key, the field has
/// Cilium's default.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CiliumConfig {
    /// `devices`: names of links. An entry that ends with `+` stands for all names that begin with the text before the
    /// `+`. An entry that begins with `!` excludes a name. If the list is empty, Cilium chooses the devices.
    #[serde(default)]
    pub devices: Vec<String>,
    /// `force-device-detection`: Cilium uses the devices in `devices`, and also chooses devices itself.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub detects_devices: bool,
    /// `disable-external-ip-mitigation`: the node and its pods can reach the Service of an external IP on every address
    /// of the node. These addresses include addresses on devices that Cilium does not serve.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub external_ips_anywhere: bool,
    /// `k8s-service-proxy-name`: Cilium serves only Services with this value of the label
    /// `service.kubernetes.io/service-proxy-name`. If the setting is absent, Cilium serves only Services without the
    /// label.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proxy_name: Option<String>,
    /// Families that are turned off, by `enable-ipv4` or `enable-ipv6`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub families_off: Vec<Family>,
    /// `enable-sctp`. If the setting is off, Cilium does not serve SCTP NodePorts.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub sctp: bool,
    /// The answer of Cilium for a Service without an endpoint. The answer depends on `service-no-backend-response` and
    /// `enable-no-service-endpoints-routable`.
    pub without_backend: WithoutBackend,
    /// `bpf-lb-sock-hostns-only`: if a pod connects to a Service, Cilium translates each packet of the pod, not the
    /// socket.
    pub host_namespace_only: bool,
    /// `bpf-lb-enable-wildcard-entries`: whether Cilium serves packets from pods on every address of its devices.
    /// Cilium has the setting since 1.20, and it is on by default. `None` if neither the setting nor the version is
    /// known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wildcard_entries: Option<bool>,
    /// `node-port-bind-protection` is off: Cilium permits `bind` on a NodePort.
    #[serde(default)]
    pub allows_bind: bool,
    /// `enable-bpf-masquerade`: Cilium's eBPF program masquerades connections of pods, instead of iptables.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub masquerades: bool,
    /// `enable-auto-protect-node-port-range` is off: Cilium's agent does not reserve NodePorts. If the kernel may then
    /// choose a NodePort as an ephemeral port, the agent does not start.
    #[serde(default)]
    pub reserves_nothing: bool,
}

/// How Cilium treats a connection to a Service without an endpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WithoutBackend {
    /// `reject`, the default.
    #[default]
    Reject,
    /// `drop`.
    Drop,
    /// The connection is not translated, as if the Service did not exist.
    Pass,
}

/// The values of kube-proxy's `/metrics` that rules use.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProxyMetrics {
    /// `process_max_fds`: the present soft limit of the process.
    pub max_fds: Option<u64>,
    /// `process_open_fds`.
    pub open_fds: Option<u64>,
    /// `kubernetes_build_info{git_version}`, e.g. `v1.36.3`.
    pub version: Option<String>,
    /// `kubeproxy_sync_proxy_rules_last_timestamp_seconds`.
    pub last_sync: Option<Timestamp>,
    /// `kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds`.
    pub last_queued: Option<Timestamp>,
}

/// Open file descriptors and the soft `RLIMIT_NOFILE` of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FdUse {
    /// The number of open descriptors.
    pub open: u64,
    /// The limit.
    pub limit: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mode_is_listed_and_has_its_word() {
        let schema = schemars::schema_for!(Mode).to_value().to_string();
        assert_eq!(schema.matches(r#""const":"#).count(), Mode::ALL.len(), "Mode::ALL is not {schema}");
        for mode in Mode::ALL {
            assert!(schema.contains(&format!(r#""const":"{mode}""#)), "{mode} is not a word of {schema}");
            assert!(Mode::WORDS.contains(mode.name()), "Mode::WORDS lacks {mode}");
            assert_eq!(mode.name().parse(), Ok(mode));
        }
    }
}
