//! The words for a source of facts, for the reason why a fact was not read, and for the remedy.

use portreeve_facts::{Source, Why};

/// The words for a source. Sources that usually fail together have the same words.
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
        | (Source::Services, Why::NotRequested) => "the cluster",
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

pub(super) fn reason_words(why: Why) -> &'static str {
    match why {
        Why::NotPermitted => "not permitted",
        Why::NotSupported => "not there",
        Why::NotYet => "not read yet",
        Why::NotRequested => "not given",
        Why::Unreachable => "no answer",
        Why::TimedOut => "took too long",
        Why::Torn => "changed while it was read",
        Why::Stale => "too old",
        Why::Malformed => "not understood",
        Why::TooMuch => "too much",
        Why::Ambiguous => "depends on unknown input",
        Why::NotCounted => "not counted",
    }
}

/// The kubectl command that reads a cluster: all objects that rules use.
pub(super) const READ_CLUSTER: &str = "kubectl get services,endpointslices,pods,nodes -A -o yaml --show-managed-fields";

/// Whether this source can come from a file of `--services`.
pub(super) fn is_of_files(source: Source) -> bool {
    matches!(source, Source::Services | Source::EndpointSlices | Source::Pods | Source::WaitingPods | Source::Nodes)
}

/// The remedy for an unread source. A command in the remedy has its own line after the text, so that a user can copy
/// the command.
pub(super) fn help(source: Source, why: Why) -> Option<&'static str> {
    Some(match (source, why) {
        (Source::Processes | Source::PodNamespaces | Source::ProxyProcess, Why::NotPermitted) => {
            "run as root, or use the attribution profile"
        }
        (Source::Netfilter | Source::IpVs | Source::IpVsConn | Source::Conntrack, Why::NotPermitted) => {
            "run as root, or use the netfilter profile"
        }
        (Source::Services, Why::NotRequested) => {
            "--kubeconfig FILE, or --services FILE with the output of\nkubectl get services,endpointslices,pods,nodes -A -o yaml --show-managed-fields"
        }
        (Source::EndpointSlices | Source::Pods | Source::Nodes, Why::NotRequested) => {
            "--services FILE with the output of\nkubectl get services,endpointslices,pods,nodes -A -o yaml --show-managed-fields"
        }
        (_, Why::NotPermitted) if is_of_files(source) => {
            "give this account the right to list it, or pass --services FILE"
        }
        (_, Why::Unreachable) if is_of_files(source) => "check --kubeconfig and --context, or pass --services FILE",
        (_, Why::TimedOut) if is_of_files(source) => "set a longer --request-timeout, or pass --services FILE",
        (Source::ProxyMode, Why::Unreachable | Why::Ambiguous) => "--proxy-mode iptables, ipvs, nftables or cilium",
        (Source::NodePortRange, _) => "--node-port-range FIRST-LAST",
        (Source::Listeners | Source::Clients | Source::Addresses, Why::NotPermitted) => {
            "allow netlink in the filter of system calls (seccomp): no privilege is needed"
        }
        (_, Why::Torn | Why::TimedOut) => "try again",
        (_, Why::NotPermitted) => "run as root",
        _ => return None,
    })
}
