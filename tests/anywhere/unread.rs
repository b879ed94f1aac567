//! Unread input is never reported as *fine*. Each test removes one input of a node. Without this input, the result must
//! not be clear, and no finding may become more certain.

use std::sync::Arc;

use portreeve_facts::{
    CiliumConfig, Claimant, ContainerPort, ContainerPorts, EphemeralUse, Extent, Gap, Holder, Mode, Netfilter, Owner,
    PodNamespace, PortRange, Protocol, RangeClaim, Reading, Snapshot, Socket, Source, State, VirtualServer, Why,
    Workload, WorkloadKind,
    healthy::{daemon, held, objects, proxy_holder, seen},
};
use portreeve_report::{CheckResult, Report, npd_line};
use portreeve_rules::{RULES, Rule, findings::Severity, ledger::Board};
use serde_json::{Value, json};
use tempfile::NamedTempFile;

use crate::{
    cli::{self, binary, ended},
    every_node::{board, pair, reported_by, severities, small},
    worlds,
};

/// If one of these inputs is missing, a port may have an unknown owner. For each input: its place in a snapshot, and
/// its source.
const CORE: [(&str, &str); 5] = [
    ("/cluster/services", "services"),
    ("/cluster/pods", "pods"),
    ("/kernel/listeners", "listeners"),
    ("/kernel/clients", "clients"),
    ("/kernel/interfaces", "addresses"),
];
/// Reasons why the reading of a requested and permitted input fails.
const FAILED: [&str; 4] = ["unreachable", "timed-out", "malformed", "torn"];
/// No Service and no process has this port on any example node.
const PORT: &str = "32123";

fn without(world: &Value, place: &str, source: &str, why: &str) -> NamedTempFile {
    let mut world = world.clone();
    *world.pointer_mut(place).expect("an input") =
        json!({"gap": {"source": source, "why": why, "detail": "it was taken away"}});
    let file = NamedTempFile::new().expect("a file");
    serde_json::to_writer(&file, &world).expect("a snapshot is JSON");
    file
}

fn healthy() -> impl Iterator<Item = (String, Value)> {
    let worlds = worlds::snapshots().map(|(name, world)| (name, serde_json::to_value(&world).expect("JSON")));
    worlds.filter(|(_, world)| CORE.iter().all(|(place, _)| world.pointer(&format!("{place}/seen")).is_some()))
}

#[test]
fn a_world_whose_input_failed_is_not_called_clear() {
    let mut judged = 0;
    for (number, (name, world)) in healthy().enumerate() {
        // The test uses one of the failures for each example node. Over all nodes, each failure occurs many times.
        let why = FAILED[number % FAILED.len()];
        for (place, source) in CORE {
            let file = without(&world, place, source, why);
            let case = format!("{name} without {source}: {why}");
            let ask = |words: &[&str]| ended(binary().args(words).arg(file.path()));
            let (code, text, _) = ask(&["check", "--snapshot"]);
            assert_ne!(code, 0, "{case}: {text}");
            assert!(!text.contains(": no port conflicts"), "{case}: {text}");
            let (code, npd, _) = ask(&["check", "-o", "npd", "--snapshot"]);
            assert!(code != 0 && !npd.starts_with("no port conflicts"), "{case}: {npd}");
            let (_, document, _) = ask(&["check", "-o", "json", "--snapshot"]);
            let document: Value = serde_json::from_str(&document).expect("JSON");
            assert_ne!(document["result"], "clear", "{case}");
            // `owner` does not need the input `clients`: an outgoing connection of the node never answers a client.
            if source != "clients" {
                let (code, owner, _) = ask(&["owner", PORT, "--snapshot"]);
                assert_eq!(code, 2, "{case}: {owner}");
                assert!(!owner.contains("no Service, pod or process has it"), "{case}: {owner}");
            }
            judged += 1;
        }
    }
    assert!(judged >= 100, "{judged} worlds without an input");
}

const FAILURES: [&str; 6] = ["unreachable", "timed-out", "malformed", "torn", "stale", "too-much"];

#[test]
fn every_verb_has_the_same_result_for_the_same_gap() {
    let world = serde_json::to_value(cli::healthy()).expect("JSON");
    let of_pods: [&[&str]; 7] = [
        &["check"],
        &["owner", PORT],
        &["map"],
        &["suggest"],
        &["reserve"],
        &["reserve", "--check"],
        &["what-if", "--set", "ip_local_port_range=40000 50000"],
    ];
    let of_nodes: [&[&str]; 2] = [&["check"], &["policies"]];
    let inputs = [("/cluster/pods", "pods", &of_pods[..]), ("/cluster/nodes", "nodes", &of_nodes)];
    for (place, source, verbs) in inputs {
        for (why, wanted) in
            FAILURES.map(|why| (why, 2)).into_iter().chain([("not-permitted", 0), ("not-supported", 2)])
        {
            let file = without(&world, place, source, why);
            for verb in verbs {
                let (code, text, notes) = ended(binary().args(*verb).arg("--snapshot").arg(file.path()));
                // Without Pods, `owner` knows no answer about an unclaimed port, whatever the reason is.
                let wanted = if verb[0] == "owner" { 2 } else { wanted };
                assert_eq!(code, wanted, "{verb:?} without {source}, {why}: {text}{notes}");
            }
            // Each command names the missing input, even if the input does not change the exit code.
            for verb in verbs.iter().filter(|it| !["check", "what-if"].contains(&it[0])) {
                let (_, text, notes) = ended(binary().args(*verb).arg("--snapshot").arg(file.path()));
                assert!(format!("{text}{notes}").contains("it was taken away"), "{verb:?}, {why}: {text}{notes}");
            }
        }
    }
    // An unread pod may have a suggested port as hostPort. So the result is incomplete for each reason in the list
    // below.
    for why in ["not-permitted", "not-requested"] {
        let file = without(&world, "/cluster/pods", "pods", why);
        let (code, text, notes) = ended(binary().args(["suggest", "--host", "--snapshot"]).arg(file.path()));
        assert_eq!(code, 2, "suggest --host without pods, {why}: {text}{notes}");
    }
    // An agent's snapshot never has the connections on all ports, so their absence does not change the exit code.
    let file = without(&world, "/kernel/clients", "clients", "not-requested");
    let (code, text, notes) = ended(binary().args(["suggest", "--host", "--snapshot"]).arg(file.path()));
    assert!(code == 0 && notes.contains("a connection may have the port"), "{text}{notes}");
    // `owner`, `map` and `suggest` need Services. So the result is incomplete for each reason in the list below.
    for why in ["not-permitted", "not-requested", "unreachable", "malformed"] {
        let file = without(&world, "/cluster/services", "services", why);
        for verb in &of_pods[1..4] {
            let (code, text, notes) = ended(binary().args(*verb).arg("--snapshot").arg(file.path()));
            assert_eq!(code, 2, "{verb:?} without services, {why}: {text}{notes}");
        }
    }
}

#[test]
fn a_verb_with_a_clear_result_names_the_input_that_was_not_read() {
    let world = serde_json::to_value(cli::healthy()).expect("JSON");
    let what_if: &[&str] = &["what-if", "--set", "ip_local_port_range=32768-60999"];
    let reserve: &[&str] = &["reserve", "--check"];
    for (verb, place, source, why, words) in [
        (what_if, "/kernel/sysctls/ip_local_port_range", "sysctls", "not-permitted", "not permitted: kernel settings"),
        (what_if, "/cluster/pods", "pods", "not-permitted", "not permitted: Pods"),
        (what_if, "/cluster/pods", "pods", "not-requested", "not given: Pods\n"),
        (what_if, "/cluster/nodes", "nodes", "not-permitted", "not permitted: Nodes"),
        (reserve, "/cluster/pods", "pods", "not-permitted", "ports of servers: it was taken away\n"),
        (reserve, "/cluster/pods", "pods", "not-requested", "ports of servers: it was taken away\n"),
    ] {
        let file = without(&world, place, source, why);
        let ask = |form: &[&str]| ended(binary().args(verb).args(form).arg("--snapshot").arg(file.path()));
        let (code, text, notes) = ask(&[]);
        assert!(code == 0 && text.contains(words), "{verb:?} without {source}: {code} {text}{notes}");
        assert!(!text.contains("nothing would change\n"), "{verb:?} without {source}: {text}");
        let (_, document, _) = ask(&["-o", "json"]);
        let document: Value = serde_json::from_str(&document).expect("JSON");
        let unknown = if verb == reserve { &document["nodes"][0]["unknown"] } else { &document["unknown"] };
        let mut named = unknown.as_array().expect("a list").iter();
        assert!(named.any(|it| it["detail"] == "it was taken away"), "{verb:?} without {source}: {document:#}");
    }
}

#[test]
fn another_range_is_not_called_safe_if_its_use_was_not_counted() {
    let mut world = cli::healthy();
    world.kernel.ephemeral = Reading::Seen(EphemeralUse::of_every_socket(2323));
    let file = NamedTempFile::new().expect("a file");
    serde_json::to_writer(&file, &world).expect("a snapshot is JSON");
    let none = "This node has no ephemeral port: new outgoing connections fail.";
    for (setting, wanted, words) in [
        ("ip_local_port_range=40000 42000", 2, "2323 sockets of this node may use the 2001 ephemeral ports"),
        ("ip_local_port_range=40000 50000", 0, "nothing would change"),
        ("ip_local_reserved_ports=32768-60999", 1, none),
        ("ip_local_reserved_ports=0-65535", 1, none),
        ("tcp_tw_reuse=0", 0, "nothing would change"),
    ] {
        let (code, text, notes) = ended(binary().args(["what-if", "--set", setting, "--snapshot"]).arg(file.path()));
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(code == wanted && text.contains(words), "{setting}: {code} {text}{notes}");
    }
}

#[test]
fn ports_that_no_walk_counted_are_not_called_free() {
    let mut world = cli::healthy();
    let walked =
        |ports: &str, every| Extent::Walked { ports: ports.parse().expect("ports"), tcp_tw_reuse: Some(2), every };
    let walked_range = walked("32768-60999", None);
    for (extent, setting, wanted) in [
        (walked_range.clone(), "ip_local_port_range=15000 24999", 2),
        (walked_range.clone(), "ip_local_port_range=40000 49999", 0),
        (walked_range.clone(), "tcp_tw_reuse=0", 2),
        (walked_range, "tcp_tw_reuse=1", 0),
        (walked("32768-60999", Some(2_000)), "ip_local_port_range=15000 24999", 0),
        (walked("32768-60999", Some(9_000)), "ip_local_port_range=15000 24999", 2),
        (Extent::NotRecorded, "ip_local_port_range=15000 24999", 0),
    ] {
        world.kernel.ephemeral = Reading::Seen(EphemeralUse { at_most: 40, busiest: Vec::new(), extent });
        let file = NamedTempFile::new().expect("a file");
        serde_json::to_writer(&file, &world).expect("a snapshot is JSON");
        let (code, text, notes) = ended(binary().args(["what-if", "--set", setting, "--snapshot"]).arg(file.path()));
        assert_eq!(code, wanted, "{setting}: {text}{notes}");
    }
}

#[test]
fn redirections_whose_reading_failed_are_named_by_check_and_owner_after_the_last_host_port() {
    let world = serde_json::to_value(cli::healthy()).expect("JSON");
    for (why, wanted) in FAILURES.map(|why| (why, 2)).into_iter().chain([("not-permitted", 0), ("not-supported", 0)]) {
        let file = without(&world, "/kernel/netfilter", "netfilter", why);
        let ask = |words: &[&str]| ended(binary().args(words).arg("--snapshot").arg(file.path()));
        for rules in [&["check"][..], &["check", "--rule", "stale-redirection/host-port"]] {
            let (code, text, _) = ask(rules);
            assert_eq!(code, wanted, "{rules:?} without netfilter, {why}: {text}");
        }
        let (code, text, _) = ask(&["owner", PORT]);
        assert_eq!(code, wanted, "without netfilter, {why}: {text}");
        assert!(text.contains("redirections of hostPorts were not read"), "{why}: {text}");
        assert_eq!(text.contains("connections are refused"), wanted == 0, "{why}: {text}");
    }
}

/// An input that can fail: its name, its source, and a function. The function marks the input as unread, and returns
/// whether the input was read before.
type Input = (&'static str, Source, fn(&mut Snapshot, Gap) -> bool);

/// The inputs of a snapshot that can fail separately.
const INPUTS: [Input; 41] = [
    ("listeners", Source::Listeners, |it, gap| gone(&mut it.kernel.listeners, gap)),
    ("listeners of UDP", Source::Listeners, no_udp),
    ("clients", Source::Clients, |it, gap| gone(&mut it.kernel.clients, gap)),
    ("ephemeral use", Source::EphemeralUse, |it, gap| gone(&mut it.kernel.ephemeral, gap)),
    ("pods' namespaces", Source::PodNamespaces, |it, gap| gone(&mut it.kernel.pod_namespaces, gap)),
    ("ip_local_port_range", Source::Sysctls, |it, gap| gone(&mut it.kernel.sysctls.ip_local_port_range, gap)),
    ("reserved ports", Source::Sysctls, |it, gap| gone(&mut it.kernel.sysctls.ip_local_reserved_ports, gap)),
    ("unprivileged ports", Source::Sysctls, |it, gap| gone(&mut it.kernel.sysctls.ip_unprivileged_port_start, gap)),
    ("route_localnet", Source::Sysctls, |it, gap| gone(&mut it.kernel.sysctls.route_localnet, gap)),
    ("tcp_tw_reuse", Source::Sysctls, |it, gap| gone(&mut it.kernel.sysctls.tcp_tw_reuse, gap)),
    ("sockstat", Source::Sockstat, |it, gap| gone(&mut it.kernel.sockstat, gap)),
    ("addresses", Source::Addresses, |it, gap| gone(&mut it.kernel.interfaces, gap)),
    ("gateways", Source::Addresses, no_gateways),
    ("nameservers", Source::ResolvConf, |it, gap| gone(&mut it.kernel.nameservers, gap)),
    ("virtual servers", Source::IpVs, |it, gap| gone(&mut it.kernel.ip_vs, gap)),
    ("ipvs connections", Source::IpVsConn, |it, gap| gone(&mut it.kernel.ip_vs_connections, gap)),
    ("flows", Source::Conntrack, |it, gap| gone(&mut it.kernel.masquerade, gap)),
    ("source ports", Source::Conntrack, |it, gap| gone(&mut it.kernel.masquerade_pools, gap)),
    ("netfilter", Source::Netfilter, |it, gap| gone(&mut it.kernel.netfilter, gap)),
    ("redirections", Source::Netfilter, no_redirections),
    ("untracked ports", Source::Netfilter, no_untracked),
    ("proxy mode", Source::ProxyMode, |it, gap| gone(&mut it.kernel.proxy.mode, gap)),
    ("proxy settings", Source::ProxyConfig, |it, gap| gone(&mut it.kernel.proxy.config, gap)),
    ("proxy metrics", Source::ProxyMetrics, |it, gap| gone(&mut it.kernel.proxy.metrics, gap)),
    ("proxy process", Source::ProxyProcess, no_proxy_process),
    ("health checks", Source::HealthChecks, |it, gap| gone(&mut it.kernel.health_checks, gap)),
    ("services", Source::Services, |it, gap| gone(&mut it.cluster.services, gap)),
    ("endpoint slices", Source::EndpointSlices, |it, gap| gone(&mut it.cluster.endpoint_slices, gap)),
    ("pods", Source::Pods, |it, gap| gone(&mut it.cluster.pods, gap)),
    ("waiting pods", Source::WaitingPods, |it, gap| gone(&mut it.cluster.waiting_pods, gap)),
    ("nodes", Source::Nodes, |it, gap| gone(&mut it.cluster.nodes, gap)),
    ("NodePort range", Source::NodePortRange, |it, gap| gone(&mut it.cluster.node_port_range, gap)),
    ("settings of the cluster", Source::ConfigMaps, |it, gap| gone(&mut it.cluster.proxy_config, gap)),
    ("processes", Source::Processes, |it, gap| holders(it, |holder| gone(&mut holder.process, gap.clone()))),
    ("control groups", Source::Cgroups, |it, gap| holders(it, |holder| gone(&mut holder.cgroup, gap.clone()))),
    ("v6only", Source::Listeners, no_v6only),
    ("own port", Source::OwnPort, |it, gap| gone(&mut it.own_port, gap)),
    ("ranges of others", Source::ConfigMaps, |it, gap| claims(it, |claim| gone(&mut claim.ranges, gap.clone()))),
    ("flows by protocol", Source::Conntrack, no_flows),
    ("ports of pods", Source::PodNamespaces, |it, gap| pods(it, |pod| gone(&mut pod.ephemeral, gap.clone()))),
    ("sockets of pods", Source::PodNamespaces, |it, gap| pods(it, |pod| gone(&mut pod.needed, gap.clone()))),
];

const HOW: [Why; 8] = [
    Why::Unreachable,
    Why::NotPermitted,
    Why::TimedOut,
    Why::Malformed,
    Why::Torn,
    Why::Stale,
    Why::TooMuch,
    Why::NotYet,
];

/// With which reasons each input is removed.
#[derive(Clone, Copy)]
pub(crate) enum Reasons {
    /// One reason, which depends only on the names of the input and of the node.
    One,
    All,
}

impl Reasons {
    fn of(self, input: &str, node: &str) -> impl Iterator<Item = Why> + use<> {
        let sum: usize = input.bytes().chain(node.bytes()).map(usize::from).sum();
        let one = sum % HOW.len();
        match self {
            Self::One => HOW[one..=one].iter().copied(),
            Self::All => HOW.iter().copied(),
        }
    }
}

/// Findings that appear only if one input is missing: the rule, the missing input, and the reason why the finding is
/// still right.
const INSTEAD: [(&str, &str, &str); 3] = [
    (
        "health-check-unserved/nobody",
        "health checks",
        "that nobody listens is certain, and these recordings have an answer whose socket they lack",
    ),
    (
        "address-held-twice/ipvs",
        "nodes",
        "the address is held, whoever says so: external-ip-conflict does while Nodes are known",
    ),
    (
        "host-port-conflict/node-port",
        "proxy settings",
        "unread settings are assumed to list an address of the node, and the list of a recorded node has none",
    ),
];

fn gone<T>(reading: &mut Reading<T>, gap: Gap) -> bool {
    std::mem::replace(reading, Reading::Gap(gap)).seen().is_some()
}

fn listeners(snapshot: &mut Snapshot) -> &mut [Socket] {
    match &mut snapshot.kernel.listeners {
        Reading::Seen(sockets) => sockets,
        Reading::Gap(_) => &mut [],
    }
}

fn no_udp(snapshot: &mut Snapshot, gap: Gap) -> bool {
    let Reading::Seen(sockets) = &mut snapshot.kernel.listeners else { return false };
    let all = sockets.len();
    sockets.retain(|it| it.protocol != Protocol::Udp);
    let less = sockets.len() < all;
    snapshot.kernel.no_udp = Some(gap);
    less
}

fn no_gateways(snapshot: &mut Snapshot, gap: Gap) -> bool {
    let Reading::Seen(interfaces) = &mut snapshot.kernel.interfaces else { return false };
    let interfaces = Arc::make_mut(interfaces);
    interfaces.gateways_gap = Some(gap);
    interfaces.default_links = None;
    !std::mem::take(&mut interfaces.gateways).is_empty()
}

fn no_redirections(snapshot: &mut Snapshot, gap: Gap) -> bool {
    match &mut snapshot.kernel.netfilter {
        Reading::Seen(netfilter) => gone(&mut netfilter.redirections, gap),
        Reading::Gap(_) => false,
    }
}

fn no_untracked(snapshot: &mut Snapshot, gap: Gap) -> bool {
    match &mut snapshot.kernel.netfilter {
        Reading::Seen(netfilter) => gone(&mut netfilter.untracked, gap),
        Reading::Gap(_) => false,
    }
}

fn no_proxy_process(snapshot: &mut Snapshot, gap: Gap) -> bool {
    let proxy = &mut snapshot.kernel.proxy;
    let gone = [gone(&mut proxy.cgroup, gap.clone()), gone(&mut proxy.process, gap.clone()), gone(&mut proxy.fds, gap)];
    gone.contains(&true)
}

fn no_flows(snapshot: &mut Snapshot, gap: Gap) -> bool {
    match &mut snapshot.kernel.masquerade {
        Reading::Seen(masquerade) => gone(&mut masquerade.flows, gap),
        Reading::Gap(_) => false,
    }
}

/// Calls `take` for each claim. `take` marks an input of the claim as unread, and returns whether the input was read
/// before. Returns whether `take` changed any claim.
fn claims(snapshot: &mut Snapshot, take: impl Fn(&mut RangeClaim) -> bool) -> bool {
    snapshot.cluster.range_claims.iter_mut().map(take).filter(|taken| *taken).count() > 0
}

/// Calls `take` for the network of each pod. Returns whether `take` changed any network.
fn pods(snapshot: &mut Snapshot, take: impl Fn(&mut PodNamespace) -> bool) -> bool {
    match &mut snapshot.kernel.pod_namespaces {
        Reading::Seen(pods) => pods.iter_mut().map(take).filter(|taken| *taken).count() > 0,
        Reading::Gap(_) => false,
    }
}

/// Calls `take` for the holder of each socket. Returns whether `take` changed any holder.
fn holders(snapshot: &mut Snapshot, take: impl Fn(&mut Holder) -> bool) -> bool {
    let clients = match &mut snapshot.kernel.clients {
        Reading::Seen(clients) => std::mem::take(&mut clients.sockets),
        Reading::Gap(_) => Vec::new(),
    };
    let mut all = clients;
    let mut taken = 0;
    for socket in all.iter_mut().chain(listeners(snapshot)) {
        if let Owner::Held(holder) = &mut socket.owner {
            taken += usize::from(take(holder));
        }
    }
    if let Reading::Seen(clients) = &mut snapshot.kernel.clients {
        clients.sockets = all;
    }
    taken > 0
}

fn no_v6only(snapshot: &mut Snapshot, _: Gap) -> bool {
    listeners(snapshot).iter_mut().filter_map(|socket| socket.v6only.take()).count() > 0
}

/// Whether the rule with this name reports *unknown*, and the results of this rule alone do not give the result
/// *clear*. If only a right is missing, the result may be *clear*.
fn is_open(snapshot: &Snapshot, board: &Board, name: &str, why: Why) -> bool {
    let is_it = |id, variant| reported_by(id, variant) == name;
    let rules: Vec<&'static Rule> = RULES.iter().copied().filter(|it| is_it(it.name(), it.variants[0])).collect();
    let findings = board.findings.iter().filter(|it| is_it(it.key.rule, it.key.variant)).cloned().collect();
    let unknown = board.unknown.iter().filter(|it| is_it(it.rows.rule, it.rows.variants[0])).cloned().collect();
    let board = Board { findings, unknown };
    let report = Report { rules: &rules, ..Report::of(snapshot, &board) };
    !board.unknown.is_empty() && (why == Why::NotPermitted || report.result() != CheckResult::Clear)
}

/// Removes each input in turn, and adds the errors to `complaints`. A new finding or a more severe finding is an error.
/// If a finding disappears or becomes milder, its rule must report *unknown*, and must not end with *clear*. A clear
/// result must name the unread input. Returns the number of removed inputs.
pub(crate) fn more_certain(name: &str, whole: &Snapshot, reasons: Reasons, complaints: &mut Vec<String>) -> usize {
    let with_all = severities(&board(whole).findings);
    let mut asked = 0;
    for ((input, source, take), why) in INPUTS.iter().flat_map(|it| reasons.of(it.0, name).map(move |why| (it, why))) {
        let mut snapshot = whole.clone();
        if !take(&mut snapshot, Gap::new(*source, why, "it was taken away")) {
            continue;
        }
        asked += 1;
        let case = format!("{name} without {input}: {why:?}");
        let board = board(&snapshot);
        let without = severities(&board.findings);
        for (pair, severity) in &without {
            let known = INSTEAD.iter().any(|(rule, of, _)| pair.starts_with(&format!("{rule} ")) && of == input);
            if with_all.get(pair) < Some(severity) && !known {
                complaints.push(format!("{case}\n  new: {severity:?} {pair}, was {:?}", with_all.get(pair)));
            }
        }
        for (pair, severity) in with_all.iter().filter(|(pair, severity)| without.get(*pair) < Some(severity)) {
            let rule = pair.split(' ').next().expect("a rule");
            if *severity > Severity::Info && !admits(&board, pair) && !is_open(&snapshot, &board, rule, why) {
                let left = without.get(pair);
                complaints.push(format!("{case}\n  gone or milder without a doubt: {severity:?} {pair}, is {left:?}"));
            }
        }
        let report = Report::of(&snapshot, &board);
        let was_a_problem = with_all.values().any(|it| *it > Severity::Info);
        if was_a_problem && report.result() == CheckResult::Clear {
            let line = npd_line(&report);
            if line == "no port conflicts" {
                complaints.push(format!("{case}\n  clear: {line}"));
            }
        }
    }
    asked
}

/// Whether the milder finding itself reports an unknown fact.
fn admits(board: &Board, of: &str) -> bool {
    let unread =
        |(_, words): &(&str, String)| ["unknown: ", "unknown, ", "not known: "].iter().any(|it| words.contains(it));
    board.findings.iter().any(|it| pair(&it.key) == of && it.evidence.values.iter().any(unread))
}

/// Nodes that are made only for this test. On each node, one input decides the result.
fn made() -> Vec<(String, Snapshot)> {
    let web = || Snapshot::healthy().service("web", |it| it.node_port(30080));
    let in_pod = || held("/kubepods/pod7f/c1", Some("7f"), "proxy", 9);
    let agent = {
        let port = ContainerPort { port: 80, host_port: Some(8080), host_ip: None, protocol: Protocol::Tcp };
        let workload = Workload {
            kind: WorkloadKind::Deployment,
            namespace: "default".to_owned(),
            name: "agent".to_owned(),
            replicas: Some(3),
            keeps_old_pods: false,
            probed: Vec::new(),
            host_network: false,
            selects: Vec::new(),
            avoids: Vec::new(),
            tolerates: Vec::new(),
            ports: vec![port],
        };
        let mut world = Snapshot::healthy();
        world.cluster.workloads.push(workload.into());
        world
    };
    let mut left = web();
    let cluster_ip = left.cluster.services.seen().expect("Services")[0].cluster_ips[0];
    left.kernel.ip_vs =
        Reading::Seen(vec![VirtualServer { protocol: Protocol::Tcp, ip: cluster_ip, port: 80, real_servers: 1 }]);
    left.kernel.netfilter = Reading::Seen(Netfilter::default());
    let mut nothing = web().with_mode(Mode::Ipvs);
    nothing.kernel.netfilter = Reading::Seen(Netfilter::default());
    nothing.kernel.ip_vs = Reading::Seen(Vec::new());
    let mut start = Snapshot::healthy().with_mode(Mode::Cilium).ephemeral("20000 29999", "");
    start = start.with_config(|it| it.cilium = Some(CiliumConfig::default()));
    let ranges = Reading::Seen(vec![PortRange::DEFAULT_NODE_PORTS]);
    start.cluster.range_claims.push(RangeClaim { by: Claimant::Cilium, ranges, place: "a setting".to_owned() });
    let health = Snapshot::healthy().with_config(|it| it.healthz_bind_address = Some("0.0.0.0:10300".to_owned()));
    let mut health = health.listens_as("0.0.0.0:10300", proxy_holder()).listens_as("[::]:10256", daemon("other", 9));
    seen(&mut health.kernel.listeners).retain(|it| it.local_port != 10256 || it.owner == daemon("other", 9));
    let two = Snapshot::healthy().without_proxy().service("one", |it| it.node_port(30080));
    let five = (30081..30085).fold(two, |world, port| world.service(&format!("s{port}"), |it| it.node_port(port)));
    let five = (30080..30083).fold(five, |world, port| world.listens_as(&format!("0.0.0.0:{port}"), in_pod()));
    let five = five.connects(State::Established, "192.0.2.1:30084", "192.0.2.9:443");
    let mut host_port = Snapshot::healthy().pod("edge", |pod| pod.host_port(80, 80)).listens_as("0.0.0.0:80", in_pod());
    objects(&mut host_port.cluster.nodes)[0].container_runtime = Some("cri-o://1.30.1".to_owned());
    let mut own_connection = Snapshot::healthy().listens("0.0.0.0:7777").ephemeral("1024 65535", "");
    own_connection =
        own_connection.connects(State::Established, "192.0.2.2:8443", "192.0.2.1:7777").pod("api", |pod| {
            (pod.host_network, pod.ready, pod.failing) = (true, false, true);
            pod.ports = vec![ContainerPort { port: 8443, host_port: None, host_ip: None, protocol: Protocol::Tcp }];
        });
    seen(&mut own_connection.kernel.clients).sockets[0].owner =
        held("/kubepods/poduid-api/c1", Some("uid-api"), "api", 9);
    let mut to_service = web();
    objects(&mut to_service.cluster.services)[0].ports[0].port = 9042;
    to_service =
        to_service.connects(State::Established, "10.244.0.9:46580", &format!("{cluster_ip}:9042")).pod("api", |pod| {
            (pod.ready, pod.failing) = (false, true);
            pod.own_ports =
                vec![ContainerPort { port: 46580, host_port: None, host_ip: None, protocol: Protocol::Tcp }];
            pod.containers = vec![ContainerPorts { id: "c1".to_owned(), ports: vec![46580] }];
        });
    let mut socket = seen(&mut to_service.kernel.clients).sockets.pop().expect("the connection");
    socket.owner = held("/kubepods/poduid-api/c1", Some("uid-api"), "api", 9);
    if let Owner::Held(holder) = &mut socket.owner {
        seen(&mut holder.cgroup).pod.as_mut().expect("a pod").container = Some("c1".to_owned());
    }
    let not_counted = Gap::new(Source::PodNamespaces, Why::NotRequested, "the range is not its own");
    let network =
        PodNamespace { needed: Reading::Seen(vec![socket]), ..PodNamespace::with_use("uid-api", Err(not_counted)) };
    seen(&mut to_service.kernel.pod_namespaces).push(network);
    [
        ("left virtual servers", left),
        ("ipvs without virtual servers", nothing),
        ("replicas of one port", agent),
        ("an agent of Cilium that cannot start", start),
        ("a port of health that is told", health),
        ("an unknown holder of NodePorts", five),
        ("a pod on a hostPort", host_port),
        ("a server's own connection to the node", own_connection),
        ("a server's own connection to a Service", to_service),
    ]
    .map(|(name, world)| (name.to_owned(), world))
    .into()
}

#[test]
fn an_input_that_failed_makes_nothing_certain_that_was_not() {
    let mut complaints = Vec::new();
    let mut asked = 0;
    for (name, snapshot) in small().into_iter().chain(made()) {
        asked += more_certain(&name, &snapshot, Reasons::One, &mut complaints);
    }
    assert!(complaints.is_empty(), "{}\n{}", complaints.len(), complaints.join("\n"));
    assert!(asked > 1_000, "{asked} inputs");
}
