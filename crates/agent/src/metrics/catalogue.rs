//! All metrics: the name, the type, the labels and the meaning of each.

use prometheus_client::{metrics::MetricType, registry::Unit};

#[derive(Debug)]
pub(crate) struct Metric {
    /// The name. The name of a counter does not contain `_total` here.
    pub(crate) name: &'static str,
    pub(super) kind: MetricType,
    pub(crate) labels: &'static [&'static str],
    pub(super) help: &'static str,
}

impl Metric {
    /// The name in the two parts that the library needs. The second part is the base unit, if the name ends with one.
    pub(super) fn stem_and_unit(&self) -> (&'static str, Option<Unit>) {
        [("_seconds", Unit::Seconds), ("_bytes", Unit::Bytes)]
            .into_iter()
            .find_map(|(suffix, unit)| Some((self.name.strip_suffix(suffix)?, Some(unit))))
            .unwrap_or((self.name, None))
    }
}

pub(crate) const fn gauge(name: &'static str, labels: &'static [&'static str], help: &'static str) -> Metric {
    Metric { name, kind: MetricType::Gauge, labels, help }
}

pub(crate) const fn counter(name: &'static str, labels: &'static [&'static str], help: &'static str) -> Metric {
    Metric { name, kind: MetricType::Counter, labels, help }
}

/// The metric with this name, which must be in [`METRICS`].
pub(super) fn metric(name: &str) -> &'static Metric {
    METRICS.iter().find(|metric| metric.name == name).expect("a family names a metric of the catalogue")
}

/// All metrics, in the order in which they are reported.
pub(super) static METRICS: &[Metric] = &[
    gauge("portreeve_findings", &["rule", "variant", "severity"], "Open findings"),
    gauge(
        "portreeve_finding_info",
        &[
            "rule",
            "variant",
            "severity",
            "scope",
            "subject_kind",
            "subject_namespace",
            "subject_name",
            "port",
            "protocol",
        ],
        "1 for each open finding. The agent exports the worst 100 findings, or fewer to keep at most 300 series. scope: cluster if every node reports the finding, otherwise node",
    ),
    gauge("portreeve_findings_truncated", &[], "Open findings that are not in portreeve_finding_info"),
    gauge(
        "portreeve_unknown",
        &["rule", "source", "why"],
        "Subjects that a rule could not judge, by the unread source and the reason",
    ),
    gauge(
        "portreeve_source_up",
        &["source"],
        "1 if the last reading of the source succeeded, otherwise 0. A source that the node lacks has no series",
    ),
    gauge(
        "portreeve_source_duration_seconds",
        &["source"],
        "Duration of the last reading of a source of the node. The reading of processes includes their control groups",
    ),
    Metric {
        name: "portreeve_scan_duration_seconds",
        kind: MetricType::Histogram,
        labels: &[],
        help: "Duration of scans, from the first socket to the last verdict",
    },
    gauge("portreeve_last_scan_timestamp_seconds", &[], "End of the last scan"),
    gauge(
        "portreeve_last_connections_timestamp_seconds",
        &[],
        "Beginning of the last scan that read connections. If reading connections takes long, some scans skip it",
    ),
    counter("portreeve_scans", &[], "Judged scans"),
    counter("portreeve_panics", &["part"], "Caught panics of rules and of the reader"),
    gauge(
        "portreeve_node_ports",
        &["state", "band"],
        "Ports of the NodePort range by state and band. fixed: a person chose the port. automatic: the API server chose the port. unknown: the object does not show who chose the port. free: no Service that was read has the port",
    ),
    gauge("portreeve_node_port_range_first", &[], "The lowest port of the NodePort range"),
    gauge("portreeve_node_port_range_last", &[], "The highest port of the NodePort range"),
    gauge(
        "portreeve_node_port_range_info",
        &["source"],
        "Always 1. `source`: the kind of source of the NodePort range",
    ),
    gauge("portreeve_ephemeral_port_first", &[], "The lowest port of the ephemeral range"),
    gauge("portreeve_ephemeral_port_last", &[], "The highest port of the ephemeral range"),
    gauge("portreeve_ephemeral_ports_overlapping_node_ports", &[], "Ports in both ranges"),
    gauge(
        "portreeve_ephemeral_node_ports_unreserved",
        &[],
        "Unreserved ports that lie in both the NodePort range and the ephemeral range",
    ),
    gauge(
        "portreeve_ephemeral_ports_used_max",
        &["scope"],
        "Ephemeral ports that connections to the busiest destination use. Absent if these connections use less than half of the ports",
    ),
    gauge(
        "portreeve_ephemeral_ports_used_at_most",
        &["scope"],
        "Upper bound of the ephemeral ports that connections to one destination use. The real number may be lower",
    ),
    gauge(
        "portreeve_ephemeral_ports_capacity",
        &["scope"],
        "Usable ephemeral ports. For pods, the kernel's default range",
    ),
    gauge("portreeve_listeners_on_node_ports", &["protocol"], "Listening sockets on allocated NodePorts"),
    gauge("portreeve_client_sockets_on_node_ports", &["protocol"], "Client sockets on allocated NodePorts"),
    gauge(
        "portreeve_masqueraded_flows_in_node_port_range",
        &[],
        "Masqueraded flows with an address of this node and a source port in the NodePort range. Needs NET_ADMIN. Counted in every twentieth scan, if the conntrack table has at most 25,000 flows",
    ),
    gauge("portreeve_proxy_open_fds", &[], "Open file descriptors of the proxy"),
    gauge("portreeve_proxy_max_fds", &[], "Limit of open file descriptors of the proxy"),
    gauge("portreeve_proxy_info", &["mode", "source"], "Always 1. The labels have the proxy mode and its source"),
    gauge(
        "portreeve_kube_ipvs_addresses",
        &["state"],
        "Addresses on the link of an ipvs proxy. service: a Service has the address. foreign: another node has the address. stale: no Service and no node has the address",
    ),
    counter(
        "portreeve_events",
        &["result"],
        "Events by result. written: the agent created the Event or increased its count. deduplicated: the Event existed. dropped: the Events were too many or too late. failed: the request failed",
    ),
    counter(
        "portreeve_node_condition_writes",
        &["result"],
        "Writes of the Node condition PortConflict by result: written, failed",
    ),
    gauge(
        "portreeve_watch_age_seconds",
        &["resource"],
        "Age of the facts about the cluster: time since the API server last confirmed the facts. Nodes and settings are read every ten minutes. Waiting Pods are read every minute, or less often with many Nodes",
    ),
    counter("portreeve_watch_errors", &["resource", "code"], "Failed readings of the cluster"),
    gauge("portreeve_capability", &["capability"], "1 if the agent has the capability, otherwise 0"),
    gauge(
        "portreeve_config_last_reload_successful",
        &[],
        "1 if the last reading of the configuration was valid, otherwise 0: the earlier configuration stays in use",
    ),
    gauge(
        "portreeve_config_last_reload_success_timestamp_seconds",
        &[],
        "Time at which the agent read the configuration in use: at the start, after a change, or on SIGHUP",
    ),
    gauge("portreeve_build_info", &["version"], "1, with the version"),
    counter("process_cpu_seconds", &[], "User and system time of this process"),
    gauge("process_resident_memory_bytes", &[], "Resident memory of this process"),
    gauge("process_virtual_memory_bytes", &[], "Virtual memory of this process"),
    gauge("process_open_fds", &[], "Open file descriptors of this process"),
    gauge("process_max_fds", &[], "Limit of open file descriptors of this process"),
    gauge("process_start_time_seconds", &[], "Start of this process"),
];
