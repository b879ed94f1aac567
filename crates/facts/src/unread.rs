//! A node at which nobody looked: every fact of it is a gap.

use super::{Gap, KernelFacts, ProxyFacts, Reading, Source, Sysctls, Why};

fn unread<T>(source: Source) -> Reading<T> {
    Reading::Gap(Gap::new(source, Why::NotAsked, "no node was looked at"))
}

impl KernelFacts {
    /// The facts of whoever judges objects alone.
    pub fn not_asked() -> Self {
        Self {
            hostname: String::new(),
            release: String::new(),
            booted: None,
            capabilities: Vec::new(),
            listeners: unread(Source::Listeners),
            no_udp: None,
            socket_source: String::new(),
            clients: unread(Source::Clients),
            ephemeral: unread(Source::EphemeralUse),
            pod_namespaces: unread(Source::PodNamespaces),
            sysctls: Sysctls {
                ip_local_port_range: unread(Source::Sysctls),
                ip_local_reserved_ports: unread(Source::Sysctls),
                ip_unprivileged_port_start: unread(Source::Sysctls),
                route_localnet: unread(Source::Sysctls),
                tcp_tw_reuse: unread(Source::Sysctls),
            },
            sockstat: unread(Source::Sockstat),
            interfaces: unread(Source::Addresses),
            nameservers: unread(Source::ResolvConf),
            ip_vs: unread(Source::IpVs),
            ip_vs_connections: unread(Source::IpVsConn),
            masquerade: unread(Source::Conntrack),
            netfilter: unread(Source::Netfilter),
            proxy: ProxyFacts {
                mode: unread(Source::ProxyMode),
                config: unread(Source::ProxyConfig),
                metrics: unread(Source::ProxyMetrics),
                cgroup: unread(Source::ProxyProcess),
                process: unread(Source::ProxyProcess),
                fds: unread(Source::ProxyProcess),
            },
            health_checks: unread(Source::HealthChecks),
        }
    }
}
