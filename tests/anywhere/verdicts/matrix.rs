//! The behaviour matrix of the documentation, from recorded answers of packets.

use std::{collections::BTreeMap, env, fs, net::IpAddr, path::Path};

use portreeve_facts::Mode;
use portreeve_rules::findings::Vantage;

use super::{Recording, cilium, judged::is_link_local, recording::NAMESPACE, recordings};

/// The shapes that differ for a listener, with their names for readers.
const COLUMNS: [(&str, &str); 6] = [
    ("ready", "ready endpoints"),
    ("empty", "no endpoints"),
    ("not-ready", "none ready"),
    ("draining", "only draining ones"),
    ("here", "Local, one here"),
    ("elsewhere", "Local, elsewhere only"),
];

/// The same for Services that Cilium serves in part, or that belong to another proxy.
const APART: [(&str, &str); 9] = [
    ("type-cluster-ip", "`type: ClusterIP`"),
    ("type-node-port", "`type: NodePort`"),
    ("on-other-nodes", "`node: others`"),
    ("global-empty", "`global`, no endpoints"),
    ("of-another-proxy", "of another proxy name"),
    ("local-of-no-node", "Local, endpoint of no node"),
    ("balancer", "load balancer's address: second"),
    ("balancer-beyond", "load balancer's: other device"),
    ("external-ip-beyond", "external IP: other device"),
];

/// The version of recordings without a version.
const NEWEST_CILIUM: &str = "1.20.2";

const HEAD: &str = "\
# Who answers on a NodePort

What a new connection to a NodePort experiences on a node where a process listens on the same port, on every address of
both families (`[::]`). Written by a test from what real connections showed; every other bind address gives the same
answers on the addresses it has. `how-nodeports-work.md` explains them.

**process** the listener answers, as if there were no Service; **pod** a pod of the Service answers; **refused** nobody
answers, and the client is reported; **silence** nobody answers, and the client waits; **nowhere** the client is reported that there is
no way (`no route to host`): behind Cilium where a Service has no endpoint, elsewhere for link-local addresses.

*primary* is the node's InternalIP, *second* another address of the same interface, *other device* one of an interface that the
plane does not serve, *lo* one of loopback's interface that others reach. *Local* is `externalTrafficPolicy: Local`. TCP and
UDP fare alike where a cell has one answer. `type`, `node` and `global` are annotations of Cilium, `service.cilium.io/…`. In the tables
of `cilium-apart` some load balancer has the addresses of *other device*, and Cilium drops what outsiders send there at other ports.
";

#[test]
fn the_behaviour_matrix_is_up_to_date() {
    let mut wanted = HEAD.to_owned();
    for (name, recording, world) in recordings() {
        let mode = world.proxy_mode().expect("a mode").value;
        let plane = match world.kernel.proxy.metrics.seen().and_then(|it| it.version.as_deref()) {
            Some(version) => format!("kube-proxy {version}, mode {mode}"),
            None => mode.to_string(),
        };
        let config = world.proxy_config().expect("settings");
        let addresses = match config.node_port_addresses.join(", ") {
            none if none.is_empty() => "all".to_owned(),
            listed => listed,
        };
        let localhost = config.localhost_node_ports.map_or("-".to_owned(), |it| it.to_string());
        let forwards = world.kernel.sysctls.route_localnet.seen();
        let turned_off = if mode == Mode::Iptables && forwards == Some(&false) { ", route_localnet 0" } else { "" };
        let detector = config.cluster_cidr.as_deref().filter(|it| !it.is_empty()).unwrap_or("none");
        wanted.push_str(&format!(
            "\n## {name}\n\n{plane}, nodePortAddresses {addresses}, localhostNodePorts {localhost}, clusterCIDR {detector}{turned_off}.\n\n"
        ));
        wanted.push_str(&table(&recording));
    }
    let cilium = cilium::recordings();
    for (name, recording) in &cilium {
        let is_default =
            |(other, it): &&(String, Recording)| other.starts_with("default") && it.version == recording.version;
        let default = &cilium.iter().find(is_default).expect("a recording").1.settings;
        let differs = recording.settings.iter().filter(|(key, value)| default.get(*key) != Some(*value));
        let settings: Vec<String> = differs.map(|(key, value)| format!("`{key}: {value}`")).collect();
        let left_out =
            default.keys().filter(|key| !recording.settings.contains_key(*key)).map(|key| format!("no `{key}`"));
        let settings: Vec<String> = settings.into_iter().chain(left_out).collect();
        let settings = if settings.is_empty() { "`devices: \"eth0\"`".to_owned() } else { settings.join(", ") };
        let version = if recording.version.is_empty() { NEWEST_CILIUM } else { &recording.version };
        wanted.push_str(&format!("\n## cilium-{name}\n\nCilium {version}, {settings}.\n\n"));
        wanted.push_str(&table(recording));
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/who-answers.md");
    if env::var_os("UPDATE").is_some() {
        fs::write(&path, &wanted).expect("a document");
    }
    let found = fs::read_to_string(&path).unwrap_or_default();
    assert!(found == wanted, "docs/who-answers.md is old: `make docs`");
}

fn table(recording: &Recording) -> String {
    let is_apart = recording.listeners.iter().any(|row| row.shape == APART[0].0);
    let columns = if is_apart { &APART[..] } else { &COLUMNS };
    let head: Vec<&str> = columns.iter().map(|(_, words)| *words).collect();
    let mut text = format!("| from | to | {} |\n|{}\n", head.join(" | "), "---|".repeat(head.len() + 2));
    // The answers of each column by place, TCP's and UDP's.
    let mut places: Vec<(&str, &str)> = Vec::new();
    let mut answers: BTreeMap<(&str, &str, &str), Vec<char>> = BTreeMap::new();
    let rows = recording.listeners.iter().filter(|row| row.bind == "::");
    for (row, (from, to, letter)) in rows.flat_map(|row| recording.every_cell(row).map(move |cell| (row, cell))) {
        let Some(place) = place(to) else { continue };
        if !places.contains(&(from, place)) {
            places.push((from, place));
        }
        let letters = answers.entry((from, place, row.shape.as_str())).or_default();
        if !letters.contains(&letter) {
            letters.push(letter);
        }
    }
    let order = |from: &str| Vantage::ALL.iter().position(|it| it.name() == from).unwrap_or(usize::MAX);
    places.sort_by_key(|(from, _)| order(from));
    for (from, place) in places {
        let cells = columns.iter().map(|(shape, _)| {
            let letters = answers.get(&(from, place, *shape)).map_or(&[][..], Vec::as_slice);
            letters.iter().map(|letter| words(*letter)).collect::<Vec<_>>().join(" or ")
        });
        let asks = match Vantage::ALL.into_iter().find(|it| it.name() == from) {
            Some(vantage) => vantage.to_string(),
            None if from == NAMESPACE => "another namespace".to_owned(),
            None => unreachable!("{from} is no place"),
        };
        text.push_str(&format!("| {asks} | {place} | {} |\n", cells.collect::<Vec<_>>().join(" | ")));
    }
    text
}

/// The name of an address for readers; none if it is like the second address.
fn place(to: IpAddr) -> Option<&'static str> {
    Some(match to.to_string().as_str() {
        "192.0.2.1" => "primary IPv4",
        "2001:db8::1" => "primary IPv6",
        "192.0.2.2" => "second IPv4",
        "2001:db8::2" => "second IPv6",
        "10.244.0.1" => "other device IPv4",
        "fd00:244::1" => "other device IPv6",
        "203.0.113.1" => "macvlan IPv4",
        "2001:db8:a::1" => "macvlan IPv6",
        "203.0.113.65" => "veth with a default route IPv4",
        "2001:db8:b::1" => "veth with a default route IPv6",
        "203.0.113.129" => "bridge IPv4",
        "2001:db8:c::1" => "bridge IPv6",
        "198.51.100.7" => "lo IPv4",
        "2001:db8:7::7" => "lo IPv6",
        "127.0.0.1" => "127.0.0.1",
        "::1" => "::1",
        _ if is_link_local(to) => "link-local",
        _ => return None,
    })
}

fn words(letter: char) -> &'static str {
    match letter {
        'L' => "process",
        'P' => "pod",
        'R' => "refused",
        'T' => "silence",
        'N' => "nowhere",
        other => unreachable!("{other} is no answer"),
    }
}
