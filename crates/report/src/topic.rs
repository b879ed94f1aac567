//! What a person would call a source of facts.

use portreeve_facts::{Source, Why};

/// What a person would call it. What fails together is one thing.
pub(super) fn topic(source: Source, why: Why) -> &'static str {
    match (source, why) {
        (
            Source::Services
            | Source::EndpointSlices
            | Source::Pods
            | Source::WaitingPods
            | Source::Nodes
            | Source::ConfigMaps,
            Why::Unreachable | Why::TimedOut,
        )
        | (Source::Services, Why::NotAsked) => "the cluster",
        (Source::ProxyMode | Source::ProxyConfig | Source::ProxyMetrics | Source::ProxyProcess, Why::Unreachable) => {
            "kube-proxy"
        }
        (Source::Processes, _) | (Source::ProxyProcess, Why::NotPermitted) => "process names",
        (Source::Listeners, _) => "listening sockets",
        (Source::Clients, _) => "client sockets",
        (Source::EphemeralUse, _) => "use of ephemeral ports",
        (Source::Sockstat, _) => "socket counts",
        (Source::Sysctls, _) => "kernel settings",
        (Source::Addresses, _) => "addresses",
        (Source::ResolvConf, _) => "nameservers",
        (Source::ProxyMode, _) => "proxy mode",
        (Source::ProxyConfig, _) => "proxy settings",
        (Source::ProxyMetrics, _) => "proxy metrics",
        (Source::ProxyProcess, _) => "the proxy's process",
        (Source::IpVs, _) => "IPVS table",
        (Source::IpVsConn, _) => "IPVS connections",
        (Source::Conntrack, _) => "masqueraded flows",
        (Source::Netfilter, _) => "nft, iptables rules",
        (Source::Cgroups, _) => "pods of sockets",
        (Source::PodNamespaces, _) => "pods' own sockets",
        (Source::HealthChecks, _) => "health checks",
        (Source::Services, _) => "Services",
        (Source::EndpointSlices, _) => "endpoints",
        (Source::Pods, _) => "Pods",
        (Source::WaitingPods, _) => "Pods without a Node",
        (Source::Nodes, _) => "Nodes",
        (Source::ConfigMaps, _) => "ConfigMaps",
        (Source::NodePortRange, _) => "NodePort range",
        (Source::OwnPort, _) => "the agent's own port",
        (Source::Agent, _) => "another node's agent",
    }
}
