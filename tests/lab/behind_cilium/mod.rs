//! Who answers on a NodePort behind the real cilium-agent, which replaces kube-proxy. `make nightly` builds
//! cilium-agent, and runs [`often`] first.
//!
//! The tests contain no expected answers. Clients connect to each listener before its Service exists, and again when
//! Cilium serves the Service. The answers are recorded below `tests/anywhere/verdicts/recorded/cilium`. `UPDATE=1`
//! records them again.
//!
//! Cilium's programs handle the sockets of one control group: the group of the agent. The node's listeners, its pods
//! and their clients are threads in this group. The remote client is outside of the group.

mod apart;
mod asks;
mod before;
mod host_port;
mod links;
mod live;
mod masquerade;
mod often;
mod seldom;
mod shapes;

use std::process::{Command, Stdio};

use portreeve_facts::{Protocol, Snapshot};
use portreeve_rules::findings::Vantage;
use serde_json::json;

use self::{
    apart::APART,
    asks::{Everybody, From, Place, ask_everything, places},
    links::ON_LINKS,
    shapes::{FAR, Listener, SHAPES, settle},
};
use crate::{
    look::snapshot,
    parts::{Answer, Cilium, ControlPlane, Inside, Namespace, PRIMARY, Release, Wired, ip, objects},
    verdicts::{
        binds::{BINDS, Bind, Held, to},
        judged::{compared, disagreements},
        record::{compare, keep, letter},
        recording::{Recording, Row},
    },
};

/// Addresses of the loopback interface that other hosts can reach.
const ON_LO: [&str; 2] = ["198.51.100.7", "2001:db8:7::7"];

/// The addresses of the listeners. Each family has the wildcard, the primary address, the second address of Cilium's
/// device, an address of `lo`, an excluded device's address, and loopback. The last five entries are two IPv4-mapped
/// addresses, a socket for IPv6 only, and two sockets of the device `eth0`.
static BOUND: [Bind; 17] = [
    to("0.0.0.0"),
    to(PRIMARY[0]),
    to("192.0.2.2"),
    to(ON_LO[0]),
    to("10.244.0.1"),
    to("127.0.0.1"),
    to("::"),
    to(PRIMARY[1]),
    to("2001:db8::2"),
    to(ON_LO[1]),
    to("fd00:244::1"),
    to("::1"),
    to("::ffff:0.0.0.0"),
    to("::ffff:192.0.2.1"),
    Bind { name: ":: v6only", v6only: true, ..to("::") },
    Bind { name: "0.0.0.0 on eth0", device: Some("eth0"), ..to("0.0.0.0") },
    Bind { name: ":: on eth0", device: Some("eth0"), ..to("::") },
];

/// The name of the configuration in which Cilium does not replace kube-proxy.
const BESIDE: &str = "no-replacement";

/// The name of the base configuration. Most other recordings contain only the differences from the recording of this
/// configuration.
const DEFAULT: &str = "default";

/// The name of the configuration in which Cilium chooses its devices from more links. The recording of this
/// configuration has all answers.
const DETECTED: &str = "detected";

const CHOSEN: [&str; 2] = ["devices-by-prefix", "devices-and-found"];

/// Settings of Cilium in addition to the lab's settings. An empty value removes a setting of the lab.
type Further = [(&'static str, &'static str)];

struct Told<'a> {
    name: &'a str,
    release: Release,
    settings: &'a Further,
}

impl<'a> Told<'a> {
    fn newest(name: &'a str, settings: &'a Further) -> Self {
        Self { name, release: Release::Newest, settings }
    }

    /// A configuration with an older minor version of Cilium. The recordings of an older version have only the
    /// differences from the recordings of the newest version.
    fn before(name: &'a str, settings: &'a Further) -> Self {
        Self { name, release: Release::Before, settings }
    }

    fn recorded(&self) -> String {
        match self.release {
            Release::Newest => format!("cilium/{}", self.name),
            Release::Before => format!("cilium/{}-before", self.name),
        }
    }

    fn has_links(&self) -> bool {
        self.name == DETECTED || CHOSEN.contains(&self.name)
    }

    fn world(&self) -> &'static str {
        if self.name.starts_with(APART) { "cilium/world-apart" } else { "cilium/world" }
    }

    /// Returns the name of the base recording, or an empty name. A recording with a base has only the differences from
    /// the base.
    fn like(&self) -> String {
        let like = match (self.release, self.name) {
            (Release::Before, name) => name,
            (Release::Newest, DEFAULT | DETECTED | APART) => return String::new(),
            (Release::Newest, name) if CHOSEN.contains(&name) => DETECTED,
            (Release::Newest, name) if name.starts_with(APART) => APART,
            (Release::Newest, _) => DEFAULT,
        };
        format!("cilium/{like}")
    }
}

#[track_caller]
fn ask_all(told: &Told<'_>) {
    let (recording, seen) = record(told, &listeners());
    keep(&told.recorded(), &recording, &seen);
    judge(told, &recording, &seen);
}

/// Like [`ask_all`], but records only the most common listeners and Services.
#[track_caller]
fn ask_common(told: &Told<'_>) {
    let (recording, seen) = record(told, &common());
    keep(&told.recorded(), &recording, &seen);
    judge(told, &recording, &seen);
}

#[track_caller]
fn ask_apart(told: &Told<'_>) {
    let (recording, seen) = record(told, &apart::listeners());
    keep(&told.recorded(), &recording, &seen);
    judge(told, &recording, &seen);
}

/// Like [`ask_all`], but queries only the most common listeners and Services.
#[track_caller]
fn ask_some(told: &Told<'_>) {
    let (recording, seen) = record(told, &common());
    compare(&told.recorded(), &recording);
    judge(told, &recording, &seen);
}

#[track_caller]
fn judge(told: &Told<'_>, recording: &Recording, seen: &Snapshot) {
    if told.name == BESIDE {
        // Without kube-proxy replacement, Cilium still serves its pods' connections to cluster IPs and external IPs. So
        // the test skips the rows of external IPs.
        let rows = recording.listeners.iter().filter(|row| row.shape != "external-ip");
        let answers = rows.flat_map(|row| recording.every_cell(row));
        assert!(answers.into_iter().all(|(.., letter)| letter == 'L'), "it is no data plane of Services");
        return;
    }
    let wrong = disagreements(recording, seen);
    let cells = compared(recording);
    assert!(wrong.is_empty(), "{} of {cells} cells\n{}", wrong.len(), wrong.join("\n"));
}

#[track_caller]
fn record(told: &Told<'_>, listeners: &[Listener]) -> (Recording, Snapshot) {
    let Told { release, settings, .. } = *told;
    let has_links = told.has_links();
    // `inside` is dropped last, after the end of all processes in the group.
    let inside = Inside::new();
    let wired = Wired::enter();
    further_addresses(&wired);
    if has_links {
        links::add(&wired.client);
    }
    let cluster = ControlPlane::start();
    Cilium::prepare(&cluster, release, &PRIMARY);
    cluster.api().create(&objects::node("n2", &["192.0.2.9"]));
    // With the mode `dsr`, Cilium on the node of a far endpoint would answer remote clients. In this test, the client
    // is the node of the far endpoint, and has no Cilium.
    let by_itself = settings.contains(&("bpf-lb-mode", "dsr"));
    // From here on, Cilium sees all packets except the packets of the client.
    Inside::join(inside.path());
    let group = inside.path().to_owned();
    wired.pod.run(move || Inside::join(&group));
    let pod = Namespace::new();
    let mut cilium = Cilium::start(&cluster, release, &inside, settings);
    let own = cilium.add(&cluster, &pod);
    pod.run(send_whole);
    let backends = |from: &Namespace| {
        [Protocol::Tcp, Protocol::Udp].map(|it| from.run(move || Held::on(&BINDS[1], it, Wired::PORT, Answer::Pod)))
    };
    let (_near, _far) = (backends(&pod), backends(&wired.client));
    let _held: Vec<Held> =
        listeners.iter().map(|it| Held::on(it.bind, it.protocol, it.port, Answer::Process)).collect();
    let everybody = Everybody { client: &wired.client, pod: &pod, namespace: &wired.pod };
    let further = [&ON_LO[..], if has_links { &ON_LINKS[..] } else { &[] }].concat();
    let places: Vec<Place> = places(&further);
    let all = |it: &Listener| (it.protocol, it.port);
    let before = ask_everything(&everybody, &places, &listeners.iter().map(all).collect::<Vec<_>>());
    for it in listeners {
        it.shape.create(&cluster, it.protocol, it.port, &own);
    }
    settle(&cluster, &mut cilium, &pod, own.len());
    let now = ask_everything(&everybody, &places, &listeners.iter().map(all).collect::<Vec<_>>());
    let seen = snapshot(&cluster.kubeconfig("admin"));
    let rows = listeners.iter().map(|it| {
        let letters = places.iter().map(|(from, to)| {
            let ask = (*from, it.protocol, *to, it.port);
            let sent_far = by_itself && it.shape.forwards() && *from == From::At(Vantage::Remote);
            let counts = before[&ask] == Answer::Process && !sent_far;
            if counts { letter(&from.ask(it.protocol, *to, it.port), now[&ask]) } else { '.' }
        });
        Row {
            bind: it.bind.name.to_owned(),
            protocol: it.protocol,
            shape: it.shape.name.to_owned(),
            port: it.port,
            answers: letters.collect(),
        }
    });
    let recording = Recording {
        world: told.world().to_owned(),
        kernel: json!(seen.kernel)
            .as_object()
            .expect("an object")
            .iter()
            .filter(|(field, _)| {
                ["proxy", "ip_vs", "sysctls"].contains(&field.as_str()) || has_links && *field == "interfaces"
            })
            .map(|(field, value)| (field.clone(), value.clone()))
            .collect(),
        settings: cilium.settings.clone(),
        version: if release == Release::Newest { String::new() } else { release.version() },
        like: told.like(),
        questions: places.iter().map(|(from, to)| (from.name().to_owned(), *to)).collect(),
        listeners: rows.collect(),
    };
    (recording, seen)
}

/// Gives the client the addresses of an endpoint on another node.
#[track_caller]
fn further_addresses(wired: &Wired) {
    ip(&ON_LO.map(|it| format!("address add {it} dev lo")));
    wired.client.run(|| {
        ip(&FAR.map(|it| format!("address add {it} dev lo")));
        send_whole();
    });
}

/// Turns off checksum offloading, so that the kernel computes checksums before it sends packets. If a packet has no
/// checksum, the kernel ignores the ICMP answer to this packet.
#[track_caller]
fn send_whole() {
    let ethtool = Command::new("ethtool").args(["-K", "eth0", "tx", "off"]).stdout(Stdio::null()).status();
    assert!(ethtool.expect("ethtool is installed").success());
}

fn listeners() -> Vec<Listener> {
    let cells = [Protocol::Tcp, Protocol::Udp].into_iter().flat_map(|protocol| {
        BOUND.iter().flat_map(move |bind| SHAPES.iter().map(move |shape| (bind, protocol, shape)))
    });
    (30000..).zip(cells).map(|(port, (bind, protocol, shape))| Listener { bind, protocol, shape, port }).collect()
}

fn common() -> Vec<Listener> {
    let (shapes, binds) = (&SHAPES[..6], &BOUND[..12]);
    let mut some = listeners();
    some.retain(|it| {
        shapes.iter().any(|shape| shape.name == it.shape.name) && binds.iter().any(|bind| bind.name == it.bind.name)
    });
    some
}
