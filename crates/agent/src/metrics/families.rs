//! Makes the samples of each metric from the board, the last scan and the agent's own counts.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
    time::Duration,
};

use prometheus_client::metrics::MetricType;
use serde::Serialize;

use super::{
    BUCKETS, Configuration, Scrape,
    catalogue::{METRICS, Metric, metric},
    sources::sources,
};
use crate::{events::Counters, node_condition::Writes};
use portreeve_facts::{
    ClusterFacts, EphemeralUse, KernelFacts, PortRange, PortSet, Protocol, Snapshot, Source, Unread, text,
};
use portreeve_rules::{
    findings::{Finding, Severity},
    ledger::Board,
    {Choice, RULES, port_usage},
};

/// The greatest number of findings with a series of their own. [`SERIES`] may allow fewer.
const SINGLE_FINDINGS: usize = 100;
const SERIES: usize = 300;

/// The capabilities that the profiles `attribution` and `netfilter` add.
const CAPABILITIES: [&str; 5] = ["CAP_DAC_READ_SEARCH", "CAP_NET_ADMIN", "CAP_SYS_PTRACE", "CAP_SYS_ADMIN", "CAP_BPF"];

/// If a value was not read, its family has no sample. The family `portreeve_source_up` reports the unread source.
const ABSENT: Unread = Unread::Reported("portreeve_source_up");
const PROTOCOLS: [Protocol; 3] = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp];

/// A metric with its samples. Each sample has the values of the labels, in the order of the labels, and a number.
pub(crate) struct Family {
    pub(crate) metric: &'static Metric,
    pub(crate) samples: Vec<(Vec<String>, f64)>,
}

impl Family {
    /// A histogram has one series for each bucket, one for the sum and one for the count.
    fn series(&self) -> usize {
        match self.metric.kind {
            MetricType::Histogram => BUCKETS.len() + 3,
            _ => self.samples.len(),
        }
    }
}

pub(super) fn families(scrape: &Scrape) -> Vec<Family> {
    let mut all = Families(Vec::new());
    let empty = Arc::new(Board::default());
    let board = scrape.scan.as_ref().map_or(&empty, |(_, board)| board);
    all.board(board);
    if let Some((snapshot, _)) = &scrape.scan {
        all.sources(snapshot, &scrape.work.took);
        all.ranges(snapshot);
        all.sockets(snapshot);
        all.proxy(snapshot);
        let capabilities = &snapshot.kernel.capabilities;
        let has = |name: &str| f64::from(u8::from(capabilities.iter().any(|it| it == name)));
        all.add("portreeve_capability", CAPABILITIES.map(|name| (words([name]), has(name))));
    }
    all.work(scrape);
    all.single(board);
    all.0.sort_by_key(|family| METRICS.iter().position(|metric| metric.name == family.metric.name));
    all.0
}

struct Families(Vec<Family>);

impl Families {
    fn add(&mut self, name: &str, samples: impl IntoIterator<Item = (Vec<String>, f64)>) {
        let family = Family { metric: metric(name), samples: samples.into_iter().collect() };
        if !family.samples.is_empty() || matches!(family.metric.kind, MetricType::Histogram) {
            self.0.push(family);
        }
    }

    fn one(&mut self, name: &str, value: Option<f64>) {
        self.add(name, value.map(|value| (Vec::new(), value)));
    }

    fn board(&mut self, board: &Board) {
        // A variant has series only for its possible severities. Series for all severities would double the number of
        // series.
        let possible = RULES.iter().flat_map(|rule| {
            let variants = rule.variants.iter().filter_map(|name| rule.id.variant(name));
            let severities = variants.flat_map(|it| it.severities.iter().map(move |severity| (it.name, *severity)));
            severities.map(|(variant, severity)| ((rule.name().0, variant, severity), 0.0))
        });
        let mut open: BTreeMap<(&str, &str, Severity), f64> = possible.collect();
        for finding in &board.findings {
            *open.entry((finding.key.rule.0, finding.key.variant, finding.evidence.severity)).or_default() += 1.0;
        }
        self.add(
            "portreeve_findings",
            open.into_iter().map(|((rule, variant, severity), count)| (words([rule, variant, severity.name()]), count)),
        );
        let mut unknown: BTreeMap<Vec<String>, f64> = BTreeMap::new();
        for it in &board.unknown {
            *unknown.entry(vec![it.rows.rule.to_string(), word(it.gap.source), word(it.gap.why)]).or_default() += 1.0;
        }
        self.add("portreeve_unknown", unknown);
    }

    fn single(&mut self, board: &Board) {
        let taken: usize = self.0.iter().map(Family::series).sum();
        let most = SERIES.saturating_sub(taken + 1).min(SINGLE_FINDINGS);
        // After `text::clean`, two names may be equal. An exposition may have each series only once.
        let single: BTreeSet<Vec<String>> = board.findings.iter().take(most).map(labels).collect();
        let reported = single.len();
        self.add("portreeve_finding_info", single.into_iter().map(|labels| (labels, 1.0)));
        self.one("portreeve_findings_truncated", Some(count(board.findings.len() - reported)));
    }

    fn sources(&mut self, snapshot: &Snapshot, took: &BTreeMap<Source, Duration>) {
        let requested = sources(snapshot);
        let reported = requested.iter().map(|(source, up)| (vec![word(source)], f64::from(u8::from(*up))));
        self.add("portreeve_source_up", reported);
        let took = took.iter().filter(|(source, _)| requested.contains_key(source));
        let reported = took.map(|(source, took)| (vec![word(source)], took.as_secs_f64()));
        self.add("portreeve_source_duration_seconds", reported);
    }

    fn ranges(&mut self, snapshot: &Snapshot) {
        if let Ok(census) = port_usage(snapshot)
            && snapshot.cluster.services.gap().is_none()
        {
            let is_static = |port: u16| census.static_band.is_some_and(|band| band.contains(port));
            let mut states: BTreeMap<(&str, &str), u32> = BTreeMap::new();
            for band in ["static", "dynamic"] {
                states.extend(["fixed", "automatic", "free"].map(|state| ((state, band), 0)));
            }
            for port in census.range.range.iter() {
                let state = match census.used.get(&port).and_then(|used| used.allocated.as_ref()) {
                    Some((_, Choice::Fixed)) => "fixed",
                    Some((_, Choice::Automatic)) => "automatic",
                    Some((_, Choice::Unknown)) => "unknown",
                    None => "free",
                };
                *states.entry((state, if is_static(port) { "static" } else { "dynamic" })).or_default() += 1;
            }
            let reported = states.into_iter().map(|((state, band), count)| (words([state, band]), f64::from(count)));
            self.add("portreeve_node_ports", reported);
        }
        let range = snapshot.cluster.node_port_range.known(ABSENT);
        self.add("portreeve_node_port_range_info", range.map(|range| (vec![word(range.source)], 1.0)));
        let node_ports = range.map(|range| range.range);
        let sysctls = &snapshot.kernel.sysctls;
        let ephemeral = sysctls.ip_local_port_range.known(ABSENT).copied();
        let reserved = sysctls.ip_local_reserved_ports.known(ABSENT);
        self.one("portreeve_node_port_range_first", node_ports.map(|it| f64::from(it.first)));
        self.one("portreeve_node_port_range_last", node_ports.map(|it| f64::from(it.last)));
        self.one("portreeve_ephemeral_port_first", ephemeral.map(|it| f64::from(it.first)));
        self.one("portreeve_ephemeral_port_last", ephemeral.map(|it| f64::from(it.last)));
        let both = node_ports.zip(ephemeral).map(|(a, b)| PortSet::from(a).intersection(&PortSet::from(b)));
        let overlapping = both.as_ref().map(|both| f64::from(both.len()));
        self.one("portreeve_ephemeral_ports_overlapping_node_ports", overlapping);
        let unreserved = both.zip(reserved).map(|(both, reserved)| f64::from(both.minus(reserved).len()));
        self.one("portreeve_ephemeral_node_ports_unreserved", unreserved);

        // An upper bound is not a measured value. If the bound and the measured value had one metric name, a forecast
        // would treat their difference as growth.
        let host: Vec<_> = snapshot.kernel.ephemeral.known(ABSENT).into_iter().collect();
        let pods = snapshot.kernel.pod_namespaces.known_part(ABSENT).iter();
        let pods: Vec<_> = pods.filter_map(|pod| pod.ephemeral.known(ABSENT)).collect();
        let scopes = [("host", &host), ("pods", &pods)];
        let most = |of: fn(&EphemeralUse) -> Option<u32>| {
            let most = scopes.map(|(scope, uses)| (scope, uses.iter().filter_map(|it| of(it)).max()));
            most.into_iter().filter_map(|(scope, used)| Some((words([scope]), f64::from(used?))))
        };
        self.add("portreeve_ephemeral_ports_used_max", most(|it| Some(it.busiest.first()?.used)));
        self.add("portreeve_ephemeral_ports_used_at_most", most(|it| Some(it.at_most)));
        let host = ephemeral.zip(reserved).map(|(range, reserved)| PortSet::from(range).minus(reserved).len());
        let scopes = [("host", host), ("pods", (!pods.is_empty()).then(|| PortRange::DEFAULT_EPHEMERAL.size()))];
        let reported = scopes.into_iter().filter_map(|(scope, ports)| Some((words([scope]), f64::from(ports?))));
        self.add("portreeve_ephemeral_ports_capacity", reported);
    }

    fn sockets(&mut self, snapshot: &Snapshot) {
        let flows = snapshot.kernel.masquerade.known(ABSENT).and_then(|it| it.flows.known(ABSENT));
        let flows = flows.map(|of_protocols| large(of_protocols.values().sum()));
        self.one("portreeve_masqueraded_flows_in_node_port_range", flows);
        let Some(services) = snapshot.cluster.services.known(ABSENT) else { return };
        let ports = services.iter().flat_map(|service| &service.ports);
        let allocated: BTreeSet<(Protocol, u16)> =
            ports.filter_map(|port| Some((port.protocol, port.node_port?))).collect();
        let clients = snapshot.kernel.clients.known(ABSENT).map(|clients| &clients.sockets);
        for (name, sockets) in [
            ("portreeve_listeners_on_node_ports", snapshot.kernel.listeners.known(ABSENT)),
            ("portreeve_client_sockets_on_node_ports", clients),
        ] {
            let Some(sockets) = sockets else { continue };
            let on = |protocol| {
                let of = |it: &&portreeve_facts::Socket| it.protocol == protocol;
                sockets.iter().filter(of).filter(|it| allocated.contains(&(protocol, it.local_port))).count()
            };
            self.add(name, PROTOCOLS.map(|protocol| (vec![protocol.to_string()], count(on(protocol)))));
        }
    }

    fn proxy(&mut self, snapshot: &Snapshot) {
        let proxy = &snapshot.kernel.proxy;
        let metrics = proxy.metrics.known(ABSENT);
        let open = metrics.and_then(|it| it.open_fds).or(proxy.fds.known(ABSENT).map(|it| it.open));
        let limit = metrics.and_then(|it| it.max_fds).or(proxy.fds.known(ABSENT).map(|it| it.limit));
        self.one("portreeve_proxy_open_fds", open.map(large));
        self.one("portreeve_proxy_max_fds", limit.map(large));
        let mode = snapshot.proxy_mode().ok();
        let reported = mode.map(|mode| (vec![mode.value.to_string(), text::clean(&mode.place, text::NAME)], 1.0));
        self.add("portreeve_proxy_info", reported);

        let Snapshot { kernel, cluster, .. } = snapshot;
        if let Some(states) = ipvs_addresses(kernel, cluster) {
            self.add("portreeve_kube_ipvs_addresses", states.map(|(state, n)| (words([state]), count(n))));
        }
    }

    fn work(&mut self, scrape: &Scrape) {
        let Scrape { scan, work, views, events, condition, process } = scrape;
        self.add("portreeve_scan_duration_seconds", []);
        self.one("portreeve_last_scan_timestamp_seconds", work.last.map(|at| at.as_duration().as_secs_f64()));
        let connections = scan.as_ref().map(|(snapshot, _)| snapshot.connections_at.unwrap_or(snapshot.at));
        self.one("portreeve_last_connections_timestamp_seconds", connections.map(|at| at.as_duration().as_secs_f64()));
        self.one("portreeve_scans", Some(large(work.scans)));
        let mut panics: BTreeMap<&str, u64> = BTreeMap::from([("reader", 0)]);
        panics.extend(&work.panics);
        self.add("portreeve_panics", panics.into_iter().map(|(part, count)| (words([part]), large(count))));
        let results = events.iter().flat_map(|Counters { written, deduplicated, dropped, failed }| {
            [("written", written), ("deduplicated", deduplicated), ("dropped", dropped), ("failed", failed)]
        });
        self.add("portreeve_events", results.map(|(result, count)| (words([result]), large(*count))));
        let results =
            condition.iter().flat_map(|Writes { written, failed, .. }| [("written", written), ("failed", failed)]);
        let results = results.map(|(result, count)| (words([result]), large(*count)));
        self.add("portreeve_node_condition_writes", results);
        let ages = views.iter().filter_map(|view| Some((words([view.resource]), view.age?.as_secs_f64())));
        self.add("portreeve_watch_age_seconds", ages);
        let errors = views.iter().flat_map(|view| {
            let code = |(code, count): &(String, u64)| (words([view.resource, code]), large(*count));
            view.errors.iter().map(code)
        });
        self.add("portreeve_watch_errors", errors);
        let Configuration { is_valid, adopted } = work.configuration;
        let valid = adopted.map(|_| f64::from(u8::from(is_valid)));
        self.one("portreeve_config_last_reload_successful", valid);
        let adopted = adopted.map(|at| at.as_duration().as_secs_f64());
        self.one("portreeve_config_last_reload_success_timestamp_seconds", adopted);
        self.add("portreeve_build_info", [(words([portreeve_facts::VERSION]), 1.0)]);
        self.one("process_cpu_seconds", process.cpu_seconds);
        self.one("process_resident_memory_bytes", process.resident_bytes.map(large));
        self.one("process_virtual_memory_bytes", process.virtual_bytes.map(large));
        self.one("process_open_fds", process.open_fds.map(large));
        self.one("process_max_fds", process.max_fds.map(large));
        self.one("process_start_time_seconds", process.started.map(|at| at.as_duration().as_secs_f64()));
    }
}

fn labels(finding: &Finding) -> Vec<String> {
    let Finding { key, evidence, .. } = finding;
    let subject = &key.subject;
    vec![
        key.rule.to_string(),
        key.variant.to_owned(),
        evidence.severity.to_string(),
        evidence.scope.name().to_owned(),
        subject.kind.name().to_owned(),
        subject.namespace.as_deref().map(|name| text::clean(name, text::NAME)).unwrap_or_default(),
        text::clean(&subject.name, text::NAME),
        key.port.map(|port| port.to_string()).unwrap_or_default(),
        key.protocol.map(|protocol| protocol.to_string()).unwrap_or_default(),
    ]
}

/// The number of addresses on the link of an ipvs proxy, for each state of an address. `None` if a source was not read.
fn ipvs_addresses(kernel: &KernelFacts, cluster: &ClusterFacts) -> Option<[(&'static str, usize); 3]> {
    let (interfaces, services, nodes) =
        (kernel.interfaces.known(ABSENT)?, cluster.services.known(ABSENT)?, cluster.nodes.known(ABSENT)?);
    let of_services: BTreeSet<_> = services
        .iter()
        .flat_map(|it| it.cluster_ips.iter().chain(&it.external_ips).chain(&it.load_balancer_ips))
        .collect();
    let here = cluster.node_name.as_deref();
    let others = nodes.iter().filter(|node| Some(node.name.as_str()) != here);
    let of_nodes: BTreeSet<_> = others.flat_map(|node| node.addresses.iter().map(|it| &it.ip)).collect();
    let mut states = [("service", 0), ("foreign", 0), ("stale", 0)];
    // The kernel itself gives a link-local address to the link.
    let is_link_local = |ip: IpAddr| matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
    for address in interfaces.addresses.iter().filter(|it| it.is_ipvs() && !is_link_local(it.ip)) {
        let state = match (of_nodes.contains(&address.ip), of_services.contains(&address.ip)) {
            (true, _) => 1,
            (false, true) => 0,
            (false, false) => 2,
        };
        states[state].1 += 1;
    }
    Some(states)
}

pub(crate) fn word(value: impl Serialize) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(word)) => word,
        _ => "other".to_owned(),
    }
}

fn words<const N: usize>(words: [&str; N]) -> Vec<String> {
    words.map(str::to_owned).into()
}

/// The conversion is exact up to 2^53.
fn count(count: usize) -> f64 {
    count as f64
}

fn large(number: u64) -> f64 {
    number as f64
}
