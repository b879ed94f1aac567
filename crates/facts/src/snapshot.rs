//! All facts of one scan.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{
    CILIUM_HOST, ClusterFacts, Gap, Holder, KernelFacts, Learned, Mode, Node, Overrides, Owner, ProxyConfig, Reading,
    Service, Source, Unread, Why, if_requested,
};

/// The version of this program. All crates have this version.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
/// The `schema` of a snapshot document.
pub const SNAPSHOT_SCHEMA: &str = "portreeve.snapshot/v1";

/// All facts of one scan. A snapshot can be part of a bug report, test data, or the input of `--snapshot`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    /// [`SNAPSHOT_SCHEMA`].
    pub schema: String,
    /// The version of the program that made the scan.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// The time at which the scan began.
    pub at: Timestamp,
    /// The start of the last scan that read connections, or `None` if this scan read connections. The facts of sources
    /// that [walk connections](Source::walks_connections) are from the last scan that read connections.
    #[serde(default, alias = "whole_at", skip_serializing_if = "Option::is_none")]
    pub connections_at: Option<Timestamp>,
    /// The time at which the API server last confirmed the list of this node's Pods. `None` if the Pods came from
    /// files, or were not read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pods_at: Option<Timestamp>,
    /// Facts from the command line or the configuration. These facts replace the facts that were read.
    #[serde(alias = "said")]
    pub overrides: Overrides,
    /// The facts of the node.
    pub kernel: KernelFacts,
    /// The facts of the cluster.
    pub cluster: ClusterFacts,
    /// Whether the agent could open its own port. Only an agent has this fact.
    #[serde(default = "OwnPort::not_requested")]
    pub own_port: Reading<OwnPort>,
}

/// The address on which an agent answers or wants to answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OwnPort {
    /// `--listen`.
    pub address: SocketAddr,
    /// Whether another process listens on the port.
    pub taken: bool,
}

impl OwnPort {
    /// The value if no agent runs: in `check`, and in old snapshots.
    pub fn not_requested() -> Reading<Self> {
        Reading::not_requested(Source::OwnPort, "only an agent listens")
    }
}

impl Snapshot {
    /// The sources of this snapshot. If a source was not read, the `Gap` has the reason. A source may occur several
    /// times.
    pub fn readings(&self) -> Vec<(Source, Option<&Gap>)> {
        fn of<T>(source: Source, reading: &Reading<T>) -> (Source, Option<&Gap>) {
            (source, reading.gap())
        }
        let Self { kernel, cluster, own_port, .. } = self;
        let (sysctls, proxy) = (&kernel.sysctls, &kernel.proxy);
        let routes = kernel.interfaces.known(Unread::Reported("the reading of the addresses"));
        vec![
            of(Source::Services, &cluster.services),
            of(Source::EndpointSlices, &cluster.endpoint_slices),
            of(Source::Pods, &cluster.pods),
            of(Source::WaitingPods, &cluster.waiting_pods),
            of(Source::Nodes, &cluster.nodes),
            of(Source::NodePortRange, &cluster.node_port_range),
            (Source::Listeners, kernel.unread_listeners()),
            of(Source::Clients, &kernel.clients),
            of(Source::EphemeralUse, &kernel.ephemeral),
            of(Source::PodNamespaces, &kernel.pod_namespaces),
            of(Source::Sysctls, &sysctls.ip_local_port_range),
            of(Source::Sysctls, &sysctls.ip_local_reserved_ports),
            of(Source::Sysctls, &sysctls.ip_unprivileged_port_start),
            of(Source::Sysctls, &sysctls.route_localnet),
            of(Source::Sysctls, &sysctls.tcp_tw_reuse),
            of(Source::Sockstat, &kernel.sockstat),
            of(Source::Addresses, &kernel.interfaces),
            (Source::Addresses, routes.and_then(|interfaces| interfaces.gateways_gap.as_ref())),
            of(Source::ResolvConf, &kernel.nameservers),
            of(Source::IpVs, &kernel.ip_vs),
            of(Source::IpVsConn, &kernel.ip_vs_connections),
            of(Source::Netfilter, &kernel.netfilter),
            of(Source::ProxyMetrics, &proxy.metrics),
            of(Source::HealthChecks, &kernel.health_checks),
            of(Source::ProxyMode, &proxy.mode),
            of(Source::ProxyConfig, &proxy.config),
            of(Source::ProxyProcess, &proxy.fds),
            of(Source::Conntrack, &kernel.masquerade),
            of(Source::OwnPort, own_port),
        ]
    }

    /// The processes and control groups that own the listed sockets.
    pub fn holders(&self) -> impl Iterator<Item = &Holder> {
        let reported = Unread::Reported("readings");
        let clients = self.kernel.clients.known(reported).map(|clients| &clients.sockets);
        let sockets = self.kernel.listeners.known(reported).into_iter().chain(clients).flatten();
        sockets.filter_map(|socket| match &socket.owner {
            Owner::Held(holder) => Some(holder),
            Owner::NotRead | Owner::TimeWait | Owner::Kernel { .. } => None,
        })
    }

    /// This node's name in the cluster, or the hostname if the name is not known.
    pub fn node_name(&self) -> &str {
        self.cluster.node_name.as_deref().unwrap_or(&self.kernel.hostname)
    }

    /// The time between the last scan that read connections and this scan.
    pub fn since_connections(&self) -> Duration {
        let since = self.connections_at.map(|read| self.at.duration_since(read));
        // If the clock was set back between the two scans, the function returns zero.
        since.and_then(|since| since.try_into().ok()).unwrap_or_default()
    }

    /// Changes the snapshot as if the proxy ran in another mode. In iptables mode, kube-proxy turns `route_localnet` on
    /// (`pkg/proxy/iptables/proxier.go`), unless its settings forbid NodePorts on loopback.
    pub fn suppose_mode(&mut self, mode: Mode, place: &str) {
        let keeps_off = self.proxy_config().is_ok_and(|it| it.localhost_node_ports == Some(false));
        if mode == Mode::Iptables && !keeps_off {
            self.kernel.sysctls.route_localnet = Reading::Seen(true);
        }
        self.overrides.supposed_mode = Some(Learned { value: mode, place: place.to_owned() });
    }

    /// This node's own Node object.
    pub fn own_node(&self) -> Option<&Node> {
        self.cluster
            .nodes
            .known_part(Unread::Reported("own_node_gap"))
            .iter()
            .map(Arc::as_ref)
            .find(|node| node.name == self.node_name())
    }

    /// The reason why this node's own Node object is not known: Nodes were not read, or the list of Nodes does not
    /// contain this object.
    pub fn own_node_gap(&self, detail: &'static str) -> Gap {
        let unread = self.cluster.nodes.gap().cloned();
        unread.unwrap_or_else(|| Gap::new(Source::Nodes, Why::Ambiguous, detail))
    }

    /// The proxy mode from the first source that has it. The order is: the command line, `/proxyMode`, the proxy's own
    /// settings, the cluster's settings of the proxy. If no source has the mode, the error is the error of
    /// `/proxyMode`. If no proxy answers, and the reading of the cluster's settings failed, the error is this failure.
    /// If the mode is [contested](Self::contested), the error says why.
    pub fn proxy_mode(&self) -> Result<Learned<Mode>, Gap> {
        if let Some(mode) = self.overrides.mode() {
            return Ok(mode.clone());
        }
        if let Some((_, gap)) = self.contested() {
            return Err(gap);
        }
        let gap = match &self.kernel.proxy.mode {
            Reading::Seen(mode) => return Ok(mode.clone()),
            Reading::Gap(gap) => gap,
        };
        self.proxy_configs(Unread::Doubted)
            .find_map(|config| Some(Learned { value: config.mode_if_known()?, place: config.place.clone() }))
            .ok_or_else(|| self.failure_or(gap).clone())
    }

    /// The failure to read the cluster's settings, if `gap` says that no proxy answers. Otherwise `gap`. On a node
    /// without kube-proxy, only the cluster's settings have the mode.
    fn failure_or<'a>(&'a self, gap: &'a Gap) -> &'a Gap {
        let failed =
            |it: &&Gap| !matches!(it.why, Why::NotPermitted | Why::NotSupported | Why::NotRequested | Why::Ambiguous);
        let settings = self.cluster.proxy_config.gap().filter(|_| gap.why == Why::Unreachable);
        settings.filter(failed).unwrap_or(gap)
    }

    /// The proxy's settings from each source that was read. The proxy's own answer comes before the cluster's settings.
    fn proxy_configs(&self, unread: Unread) -> impl Iterator<Item = &ProxyConfig> {
        [&self.kernel.proxy.config, &self.cluster.proxy_config].into_iter().filter_map(move |it| it.known(unread))
    }

    /// Whether the proxy is known to be in this mode.
    pub fn is_in(&self, mode: Mode) -> bool {
        self.proxy_mode().is_ok_and(|known| known.value == mode)
    }

    /// Whether this node's proxy serves a Service, according to the label `service.kubernetes.io/service-proxy-name`.
    /// By default, a proxy serves the Services without the label. If Cilium's settings name a proxy, Cilium serves only
    /// Services whose label has this name.
    pub fn proxy_serves(&self, service: &Service) -> bool {
        let configs = self.proxy_configs(Unread::Assumed("that k8s-service-proxy-name is not set"));
        let mut names = configs.filter_map(|config| config.cilium.as_ref()?.proxy_name.as_ref()).peekable();
        // This function runs for each Service. In most clusters, the settings name no proxy, so this check comes first.
        if names.peek().is_none() || !self.is_in(Mode::Cilium) {
            return service.proxy_name.is_none();
        }
        let config = self.proxy_config_of(Some(Mode::Cilium));
        service.proxy_name.as_ref() == config.ok().and_then(|it| it.cilium.as_ref()?.proxy_name.as_ref())
    }

    /// The mode of a kube-proxy that another data plane may have replaced, and the reason why the node's proxy mode is
    /// not known.
    pub fn contested(&self) -> Option<(Mode, Gap)> {
        match &self.kernel.proxy.mode {
            _ if self.overrides.mode().is_some() => None,
            Reading::Seen(_) => self.beside_cilium(),
            Reading::Gap(_) => self.left_over(),
        }
    }

    /// The mode in the cluster's settings, if the kube-proxy of these settings may have been removed. Users who remove
    /// kube-proxy often leave its ConfigMap. If the node has a link of Cilium or of another replacement, kube-proxy may
    /// have been removed. If the links were not read, kube-proxy may also have been removed.
    fn left_over(&self) -> Option<(Mode, Gap)> {
        let unread = self.kernel.proxy.config.gap().is_some();
        let config = self.cluster.proxy_config.known(Unread::Doubted).filter(|_| unread)?;
        let mode = config.mode_if_known().filter(|mode| *mode != Mode::Cilium)?;
        let interfaces = match if_requested(self.kernel.interfaces.get()) {
            Ok(interfaces) => interfaces?,
            Err(gap) => return Some((mode, gap)),
        };
        let cilium = interfaces.has_link(CILIUM_HOST) && self.cluster.cilium_replaces != Some(false);
        let (name, link) = if cilium { ("Cilium", CILIUM_HOST) } else { interfaces.unmeasured_proxy()? };
        let detail = format!(
            "{} has the mode {mode}, but no kube-proxy answers, and this node has the link {link}: {name} may replace it",
            config.place
        );
        Some((mode, Gap::new(Source::ProxyMode, Why::Ambiguous, detail)))
    }

    /// The mode of a kube-proxy that answers on this node, although the cluster's settings say that Cilium replaces
    /// kube-proxy. If a user did not remove kube-proxy, both programs serve Services.
    fn beside_cilium(&self) -> Option<(Mode, Gap)> {
        let Learned { value, place } =
            self.kernel.proxy.mode.known(Unread::Doubted).filter(|mode| mode.value != Mode::Cilium)?;
        let alone = Unread::Assumed("that the kube-proxy that answers is alone");
        let config = self.cluster.proxy_config.known(alone).filter(|it| it.mode_if_known() == Some(Mode::Cilium))?;
        let detail =
            format!("kube-proxy answers ({place}: {value}), but according to {} Cilium replaces it", config.place);
        Some((*value, Gap::new(Source::ProxyMode, Why::Ambiguous, detail)))
    }

    /// The proxy's settings. The settings come from the proxy itself if the proxy answered, and otherwise from the
    /// cluster.
    ///
    /// # Errors
    ///
    /// Fails if neither source was read. The error is the reason why the proxy did not answer.
    pub fn proxy_config(&self) -> Result<&ProxyConfig, Gap> {
        self.proxy_config_of(self.proxy_mode().ok().map(|mode| mode.value))
    }

    /// The settings of a proxy in this mode. Settings of kube-proxy do not apply to Cilium, and settings of Cilium do
    /// not apply to kube-proxy.
    ///
    /// # Errors
    ///
    /// Fails if neither source was read. The error is the reason why the proxy did not answer. If no proxy answers, and
    /// the reading of the cluster's settings failed, the error is this failure.
    pub fn proxy_config_of(&self, mode: Option<Mode>) -> Result<&ProxyConfig, Gap> {
        let is_its_own = |config: &&ProxyConfig| match (mode, config.mode_if_known()) {
            (Some(mode), Some(its)) => (mode == Mode::Cilium) == (its == Mode::Cilium),
            _ => true,
        };
        self.proxy_configs(Unread::Doubted).find(is_its_own).ok_or_else(|| {
            let gap = self.kernel.proxy.config.gap().map(|gap| self.failure_or(gap).clone());
            gap.unwrap_or_else(|| Gap::new(Source::ProxyConfig, Why::Ambiguous, "the settings belong to another proxy"))
        })
    }
}
