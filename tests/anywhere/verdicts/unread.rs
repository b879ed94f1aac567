//! Verdicts if one input is missing: each verdict must agree with the recorded packets, or be unknown.

use std::{collections::BTreeSet, sync::Arc};

use portreeve_agent::judge;
use portreeve_facts::{
    Gap, Learned, Mode, Protocol, ProxyConfig, Reading, Service, ServicePort, Snapshot, Source, Why,
};
use portreeve_rules::{
    Limits,
    findings::{Severity, Subject},
};

use super::{
    cilium,
    judged::{Cell, Judged, Loss, listeners},
    recording::{Recording, Row},
    recordings,
};

fn unread<T>(source: Source) -> Reading<T> {
    Reading::Gap(Gap::new(source, Why::NotPermitted, "not read"))
}

fn without_settings(world: &mut Snapshot) {
    world.kernel.proxy.config = unread(Source::ProxyConfig);
    world.cluster.proxy_config = unread(Source::ConfigMaps);
}

fn without_mode(world: &mut Snapshot) {
    without_settings(world);
    world.kernel.proxy.mode = unread(Source::ProxyMode);
}

/// kube-proxy's ConfigMap still exists, and Cilium's ConfigMap is in a namespace that Portreeve does not read. So both
/// proxies are possible.
fn beside_what_kube_proxy_left(world: &mut Snapshot) {
    let left = ProxyConfig { mode: Some(String::new()), ..ProxyConfig::default() };
    world.cluster.proxy_config = Reading::Seen(left);
}

/// kube-proxy may be only a few versions older than the kubelet. The lab's kubelet is too new for the lab's oldest
/// proxies, so the kubelet gets the version of the proxy.
fn without_version(world: &mut Snapshot) {
    let version = world.kernel.proxy.metrics.seen().and_then(|metrics| metrics.version.clone());
    world.kernel.proxy.metrics = unread(Source::ProxyMetrics);
    if let Reading::Seen(nodes) = &mut world.cluster.nodes {
        nodes.iter_mut().for_each(|node| Arc::make_mut(node).kubelet_version.clone_from(&version));
    }
}

fn without_endpoints(world: &mut Snapshot) {
    world.cluster.endpoint_slices = unread(Source::EndpointSlices);
}

fn without_route_localnet(world: &mut Snapshot) {
    world.kernel.sysctls.route_localnet = unread(Source::Sysctls);
}

fn without_default_routes(world: &mut Snapshot) {
    if let Reading::Seen(interfaces) = &mut world.kernel.interfaces {
        let interfaces = Arc::make_mut(interfaces);
        (interfaces.default_links, interfaces.gateways) = (None, Vec::new());
    }
}

struct Input {
    name: &'static str,
    withhold: fn(&mut Snapshot),
    of: &'static [Mode],
}

const INPUTS: [Input; 8] = [
    Input { name: "the proxy's settings", withhold: without_settings, of: &Mode::ALL },
    Input { name: "the proxy's settings and its mode", withhold: without_mode, of: &Mode::KUBE_PROXY },
    Input {
        name: "Cilium's, but those that kube-proxy left",
        withhold: beside_what_kube_proxy_left,
        of: &[Mode::Cilium],
    },
    Input { name: "Nodes", withhold: |it| it.cluster.nodes = unread(Source::Nodes), of: &Mode::ALL },
    Input { name: "EndpointSlices", withhold: without_endpoints, of: &Mode::ALL },
    Input { name: "default routes", withhold: without_default_routes, of: &[Mode::Cilium] },
    Input { name: "route_localnet", withhold: without_route_localnet, of: &[Mode::Iptables] },
    Input { name: "the proxy's metrics", withhold: without_version, of: &Mode::KUBE_PROXY },
];

const RULES: [(&str, &str); 2] = [("listener-on-node-port", "loses"), ("external-ip-conflict", "takes-listener")];

/// Compared listeners: on every address, on an address that each data plane serves, on another address, on loopback.
const BINDS: [&str; 4] = ["0.0.0.0", "192.0.2.1", "2001:db8::2", "127.0.0.1"];

/// The recordings for this mode, with their nodes. The answers of an older Cilium differ from the answers of the newest
/// Cilium only in `host-sockets-before`.
fn of_plane(mode: Mode) -> Vec<(Recording, Snapshot)> {
    // If Cilium's settings are unread, Portreeve assumes that `k8s-service-proxy-name` is not set.
    let is_of_cilium = |name: &str| {
        name != "apart-named"
            && !name.starts_with("no-replacement")
            && (!name.ends_with("-before") || name.starts_with("host"))
    };
    match mode {
        Mode::Cilium => {
            let recordings = cilium::recordings().into_iter().filter(|(name, _)| is_of_cilium(name));
            // UDP has the same verdicts as TCP.
            let of_tcp = |mut it: Recording| {
                it.listeners.retain(|row| row.protocol == Protocol::Tcp);
                few((cilium::node(&it), it))
            };
            recordings.map(|(_, recording)| of_tcp(recording)).collect()
        }
        _ => {
            let recordings = recordings().into_iter().filter(|(name, ..)| name.starts_with(mode.name()));
            recordings.map(|(_, recording, world)| few((world, recording))).collect()
        }
    }
}

/// A recording and its node, with only the listeners at [`BINDS`] and their ports. The verdicts for the other listeners
/// depend on the same inputs.
fn few((mut world, mut recording): (Snapshot, Recording)) -> (Recording, Snapshot) {
    let (kept, others): (Vec<Row>, Vec<Row>) =
        recording.listeners.into_iter().partition(|row| BINDS.contains(&row.bind.as_str()));
    let mut ports: BTreeSet<u16> = others.iter().map(|row| row.port).collect();
    ports.retain(|port| !kept.iter().any(|row| row.port == *port));
    recording.listeners = kept;
    if let Reading::Seen(listeners) = &mut world.kernel.listeners {
        listeners.retain(|socket| !ports.contains(&socket.local_port));
    }
    if let Reading::Seen(services) = &mut world.cluster.services {
        let is_of_others = |port: &ServicePort| ports.contains(&port.node_port.unwrap_or(port.port));
        services.retain(|service| !service.ports.iter().any(is_of_others));
    }
    (recording, world)
}

#[derive(Debug, Default)]
struct Compared {
    /// The number of verdicts that agree with the recorded answers.
    known: usize,
    unknown: usize,
    wrong: Vec<String>,
}

/// Compares a recording with the verdicts for its node if one input is missing. A verdict may be unknown, and the rules
/// may report fewer losses than the recording has.
fn compare(recording: &Recording, snapshot: &Snapshot) -> Compared {
    let board = judge(snapshot, &Limits::default());
    let mut compared = Compared::default();
    for listener in listeners(recording, snapshot, &board) {
        for Cell { from, to, shown, reported, .. } in &listener.cells {
            match reported {
                '?' => compared.unknown += 1,
                reported if reported == shown => compared.known += 1,
                reported => compared.wrong.push(format!("{listener}: {from} to {to}: {shown}, not {reported}")),
            }
        }
        let port = listener.row.port;
        let has_port = |service: &Service| service.ports.iter().any(|it| it.node_port.unwrap_or(it.port) == port);
        let services = snapshot.cluster.services.seen().into_iter().flatten();
        let owners: Vec<_> = services.filter(|it| has_port(it)).map(|it| it.name.as_str()).collect();
        // If very many subjects have the same reason for *unknown*, Portreeve reports the reason once, without
        // subjects.
        let is_about = |subject: &Option<Subject>| subject.as_ref().is_none_or(|it| owners.contains(&it.name.as_str()));
        let is_unknown = board.unknown.iter().any(|it| {
            it.rows.variants.iter().any(|variant| RULES.contains(&(it.rows.rule.0, *variant))) && is_about(&it.subject)
        });
        let Judged { shown, reported, .. } = &listener;
        if !listener.is_part() || reported.is_none() && shown.is_some() && !is_unknown {
            compared.wrong.push(format!("{listener}: {shown:?}, not {reported:?}"));
        }
    }
    compared
}

/// For each input of a mode: the number of verdicts that are known without this input. Fails if a verdict is wrong.
#[track_caller]
fn known(mode: Mode) -> String {
    let recordings = of_plane(mode);
    let mut wrong: Vec<String> = Vec::new();
    let mut table = String::new();
    for Input { name: input, withhold, .. } in INPUTS.iter().filter(|input| input.of.contains(&mode)) {
        let (mut known, mut unknown) = (0, 0);
        for (recording, world) in &recordings {
            let mut world = world.clone();
            withhold(&mut world);
            let compared = compare(recording, &world);
            (known, unknown) = (known + compared.known, unknown + compared.unknown);
            wrong.extend(compared.wrong.iter().map(|it| format!("without {input}: {it}")));
        }
        table.push_str(&format!("{known} of {} without {input}\n", known + unknown));
    }
    assert!(wrong.is_empty(), "{mode}\n{}", wrong.join("\n"));
    table
}

#[test]
fn in_iptables_mode_a_verdict_without_an_input_is_what_packets_showed_or_unknown() {
    insta::assert_snapshot!(known(Mode::Iptables), @"
    1938 of 4102 without the proxy's settings
    1176 of 4102 without the proxy's settings and its mode
    3832 of 4102 without Nodes
    1092 of 4102 without EndpointSlices
    3940 of 4102 without route_localnet
    4060 of 4102 without the proxy's metrics
    ");
}

#[test]
fn in_ipvs_mode_a_verdict_without_an_input_is_what_packets_showed_or_unknown() {
    insta::assert_snapshot!(known(Mode::Ipvs), @"
    378 of 978 without the proxy's settings
    280 of 978 without the proxy's settings and its mode
    978 of 978 without Nodes
    570 of 978 without EndpointSlices
    978 of 978 without the proxy's metrics
    ");
}

#[test]
fn in_nftables_mode_a_verdict_without_an_input_is_what_packets_showed_or_unknown() {
    insta::assert_snapshot!(known(Mode::Nftables), @"
    1240 of 3516 without the proxy's settings
    1008 of 3516 without the proxy's settings and its mode
    2076 of 3516 without Nodes
    2484 of 3516 without EndpointSlices
    3516 of 3516 without the proxy's metrics
    ");
}

#[test]
fn behind_cilium_a_verdict_without_an_input_is_what_packets_showed_or_unknown() {
    insta::assert_snapshot!(known(Mode::Cilium), @"
    617 of 4995 without the proxy's settings
    617 of 4995 without Cilium's, but those that kube-proxy left
    4163 of 4995 without Nodes
    1677 of 4995 without EndpointSlices
    4711 of 4995 without default routes
    ");
}

/// Portreeve uses the mode of `--proxy-mode`, and assumes its settings. If an assumed setting matters, a finding is at
/// most a warning.
#[test]
fn what_is_critical_though_settings_are_assumed_is_what_packets_showed() {
    let mut critical = 0;
    for mode in Mode::KUBE_PROXY {
        for (recording, mut world) in of_plane(mode) {
            without_mode(&mut world);
            world.overrides.proxy_mode = Some(Learned { value: mode, place: "--proxy-mode".to_owned() });
            let board = judge(&world, &Limits::default());
            for listener in listeners(&recording, &world, &board) {
                let is_critical = |loss: &Loss| matches!(loss, Some((Severity::Critical, _)));
                let reported = is_critical(&listener.reported);
                assert!(is_critical(&listener.shown) || !reported, "{mode}, {listener}");
                critical += usize::from(reported);
            }
        }
    }
    assert!(critical >= 100, "{critical} are told");
}
