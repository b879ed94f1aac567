//! Every metric: its name, type, labels and meaning.

use prometheus_client::registry::Unit;

/// One metric family.
#[derive(Debug)]
pub(crate) struct Metric {
    /// Its name, without the `_total` of counters.
    pub(crate) name: &'static str,
    pub(super) kind: Kind,
    pub(super) labels: &'static [&'static str],
    pub(super) help: &'static str,
}

impl Metric {
    /// Its name in two, as the library wants it: the last word may be a base unit.
    pub(super) fn stem_and_unit(&self) -> (&'static str, Option<Unit>) {
        [("_seconds", Unit::Seconds), ("_bytes", Unit::Bytes)]
            .into_iter()
            .find_map(|(suffix, unit)| Some((self.name.strip_suffix(suffix)?, Some(unit))))
            .unwrap_or((self.name, None))
    }
}

/// The types in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Counter,
    Gauge,
    Histogram,
}

impl Kind {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

pub(crate) const fn gauge(name: &'static str, labels: &'static [&'static str], help: &'static str) -> Metric {
    Metric { name, kind: Kind::Gauge, labels, help }
}

pub(crate) const fn counter(name: &'static str, labels: &'static [&'static str], help: &'static str) -> Metric {
    Metric { name, kind: Kind::Counter, labels, help }
}

/// The metric of a name; the families are made of these only.
pub(super) fn metric(name: &str) -> &'static Metric {
    METRICS.iter().find(|metric| metric.name == name).expect("a family names a metric of the catalogue")
}

/// Every metric, in the order in which they are reported.
pub(super) static METRICS: &[Metric] = &[
    gauge("portreeve_findings", &["rule", "variant", "severity"], "Findings that are open now"),
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
        "1 for each open finding, worst first: at most 100, fewer where all series would be more than 300; the scope is node, or cluster where every node reports the same",
    ),
    gauge("portreeve_findings_truncated", &[], "Open findings beyond those of portreeve_finding_info"),
    gauge("portreeve_unknown", &["rule", "source", "why"], "What a rule could not tell, and why"),
    gauge(
        "portreeve_source_up",
        &["source"],
        "Whether the last reading of a source succeeded; nothing is told of what is not there",
    ),
    gauge(
        "portreeve_source_duration_seconds",
        &["source"],
        "What the last reading of a source of the node took; that of processes includes their control groups",
    ),
    Metric {
        name: "portreeve_scan_duration_seconds",
        kind: Kind::Histogram,
        labels: &[],
        help: "How long looks took, from the first socket to the last verdict",
    },
    gauge("portreeve_last_scan_timestamp_seconds", &[], "When the last look ended"),
    gauge(
        "portreeve_last_connections_timestamp_seconds",
        &[],
        "When the last look began that read connections; others come in between where that costs much",
    ),
    counter("portreeve_scans", &[], "Looks that were judged"),
    counter("portreeve_panics", &["part"], "Panics of rules and of the reader that were contained"),
    gauge(
        "portreeve_node_ports",
        &["state", "band"],
        "Ports of the NodePort range by state and band; free: no Service that could be read has it; unknown: allocated, and the object does not tell who chose it",
    ),
    gauge("portreeve_node_port_range_first", &[], "The lowest port of the NodePort range"),
    gauge("portreeve_node_port_range_last", &[], "The highest port of the NodePort range"),
    gauge(
        "portreeve_node_port_range_info",
        &["source"],
        "1, with the kind of place where the NodePort range was learned",
    ),
    gauge("portreeve_ephemeral_port_first", &[], "The lowest port of the ephemeral range"),
    gauge("portreeve_ephemeral_port_last", &[], "The highest port of the ephemeral range"),
    gauge("portreeve_ephemeral_ports_overlapping_node_ports", &[], "Ports in both ranges"),
    gauge("portreeve_ephemeral_node_ports_unreserved", &[], "Ports in both ranges that are not reserved"),
    gauge(
        "portreeve_ephemeral_ports_used_max",
        &["scope"],
        "Ephemeral ports in use towards the busiest destination, counted; absent where it uses less than half of them",
    ),
    gauge(
        "portreeve_ephemeral_ports_used_at_most",
        &["scope"],
        "No destination uses more ephemeral ports than this; far from the limit they are not counted one by one",
    ),
    gauge(
        "portreeve_ephemeral_ports_capacity",
        &["scope"],
        "Ephemeral ports that may be used; for pods that of the kernel's default range",
    ),
    gauge("portreeve_listeners_on_node_ports", &["protocol"], "Listening sockets on allocated NodePorts"),
    gauge("portreeve_client_sockets_on_node_ports", &["protocol"], "Client sockets on allocated NodePorts"),
    gauge(
        "portreeve_masqueraded_flows_in_node_port_range",
        &[],
        "Flows that left under an address of this node and a port of the NodePort range; needs NET_ADMIN, and is counted in every twentieth look, not in a table of more than 25,000 flows",
    ),
    gauge("portreeve_proxy_open_fds", &[], "Open file descriptors of the proxy"),
    gauge("portreeve_proxy_max_fds", &[], "How many file descriptors the proxy may open"),
    gauge("portreeve_proxy_info", &["mode", "source"], "1, with the proxy mode and where it was learned"),
    gauge("portreeve_kube_ipvs_addresses", &["state"], "Addresses that an ipvs proxy holds on its own link"),
    counter("portreeve_events", &["result"], "Events by what became of them"),
    gauge(
        "portreeve_watch_age_seconds",
        &["resource"],
        "Since when the view of the cluster has not been confirmed; Nodes and settings are read every ten minutes, waiting Pods every minute or, with many Nodes, less often",
    ),
    counter("portreeve_watch_errors", &["resource", "code"], "Failures to read the cluster"),
    gauge("portreeve_capability", &["capability"], "Whether this agent has a capability: 1 or 0"),
    gauge("portreeve_build_info", &["version"], "1, with the version"),
    counter("process_cpu_seconds", &[], "User and system time of this process"),
    gauge("process_resident_memory_bytes", &[], "Resident memory of this process"),
    gauge("process_virtual_memory_bytes", &[], "Virtual memory of this process"),
    gauge("process_open_fds", &[], "Open file descriptors of this process"),
    gauge("process_max_fds", &[], "How many file descriptors this process may open"),
    gauge("process_start_time_seconds", &[], "When this process started"),
];
