//! Who answers on a NodePort behind the real cilium-agent in kube-proxy's place. `make verdicts` builds it, and runs [`often`].
//!
//! Nothing expected is written here: every listener is asked before its Service, and again when Cilium has it. What packets
//! showed is recorded below `tests/anywhere/verdicts/recorded/cilium`; `UPDATE=1` records it anew.
//!
//! What Cilium puts into the kernel sees the sockets of one control group, that of the agent. The node's listeners, its
//! pods and whoever asks from them are threads in there; the client is outside.

mod asks;
mod live;
mod often;

use std::{
    net::{IpAddr, SocketAddr},
    process::{Command, Stdio},
};

use portreeve::facts::Protocol;
use serde_json::{Value, json};

use self::asks::{Everybody, Place, ask_everything, places};
use crate::{
    look::snapshot,
    parts::{Answer, Cilium, ControlPlane, Inside, Namespace, PRIMARY, Wired, ip, is_pod, objects},
    verdicts::{
        binds::{BINDS, Bind, Held, to},
        judged::disagreements,
        record::{count, keep, letter},
        recording::{Recording, Row},
    },
};

/// Addresses of loopback's interface that others reach.
const ON_LO: [&str; 2] = ["198.51.100.7", "2001:db8:7::7"];
/// An endpoint on another node: the client has these too.
const FAR: [&str; 2] = ["10.244.20.5", "fd00:244:0:20::5"];

/// Of each family the wildcard, the primary address, a second one of that device, one of `lo`, one of a device that is not
/// Cilium's, and loopback.
static BOUND: [Bind; 12] = [
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
];

/// Name, policy, and the endpoint.
type Shape = (&'static str, &'static str, Option<(bool, [bool; 3])>);

/// Service shapes by the names of the other planes' recordings: externalTrafficPolicy; whether the endpoint, if there is
/// one, is the node's own pod; whether it is ready, serving and terminating.
const SHAPES: [Shape; 6] = [
    ("ready", "Cluster", Some((false, [true, true, false]))),
    ("empty", "Cluster", None),
    ("elsewhere", "Local", Some((false, [true, true, false]))),
    ("here", "Local", Some((true, [true, true, false]))),
    ("not-ready", "Cluster", Some((false, [false, false, false]))),
    ("draining", "Cluster", Some((false, [false, true, true]))),
];

/// The configuration in which Cilium serves no Service, and nobody else does here.
const BESIDE: &str = "no-replacement";

struct Listener {
    bind: &'static Bind,
    protocol: Protocol,
    shape: usize,
    port: u16,
}

/// Runs Cilium with settings, asks, and compares with what is recorded.
#[track_caller]
fn record(name: &str, settings: &[(&str, &str)]) {
    // It goes last, when nobody is in it any more.
    let inside = Inside::new();
    let wired = Wired::enter();
    further_addresses(&wired);
    let cluster = ControlPlane::start();
    Cilium::prepare(&cluster, &PRIMARY);
    cluster.api().create(&objects::node("n2", &["192.0.2.9"]));
    let listeners = listeners();
    // Everything from here on is seen by Cilium, but for what the client does.
    Inside::join(inside.path());
    let group = inside.path().to_owned();
    wired.pod.run(move || Inside::join(&group));
    let pod = Namespace::new();
    let mut cilium = Cilium::start(&cluster, &inside, settings);
    let own = cilium.add(&cluster, &pod);
    pod.run(send_whole);
    let backends = |from: &Namespace| {
        [Protocol::Tcp, Protocol::Udp].map(|it| from.run(move || Held::on(&BINDS[1], it, Wired::PORT, Answer::Pod)))
    };
    let (_near, _far) = (backends(&pod), backends(&wired.client));
    let _held: Vec<Held> =
        listeners.iter().map(|it| Held::on(it.bind, it.protocol, it.port, Answer::Process)).collect();
    let everybody = Everybody { client: &wired.client, pod: &pod, namespace: &wired.pod };
    let places: Vec<Place> = places(&ON_LO);
    let all = |it: &Listener| (it.protocol, it.port);
    let before = ask_everything(&everybody, &places, &listeners.iter().map(all).collect::<Vec<_>>());
    for it in &listeners {
        create(&cluster, it, &own);
    }
    settle(&cluster, &mut cilium, &pod);
    let now = ask_everything(&everybody, &places, &listeners.iter().map(all).collect::<Vec<_>>());
    let seen = snapshot(&cluster.kubeconfig("admin"));
    let rows = listeners.iter().map(|it| {
        let letters = places.iter().map(|(from, to)| {
            let ask = (*from, it.protocol, *to, it.port);
            let counts = before[&ask] == Answer::Process;
            if counts { letter(&from.ask(it.protocol, *to, it.port), now[&ask]) } else { '.' }
        });
        Row {
            bind: it.bind.name.to_owned(),
            protocol: it.protocol,
            shape: SHAPES[it.shape].0.to_owned(),
            port: it.port,
            answers: letters.collect(),
        }
    });
    let recording = Recording {
        world: "cilium/world".to_owned(),
        kernel: json!(seen.kernel)
            .as_object()
            .expect("an object")
            .iter()
            .filter(|(field, _)| ["proxy", "ip_vs", "sysctls"].contains(&field.as_str()))
            .map(|(field, value)| (field.clone(), value.clone()))
            .collect(),
        settings: cilium.settings.clone(),
        questions: places.iter().map(|(from, to)| (from.name().to_owned(), *to)).collect(),
        listeners: rows.collect(),
    };
    keep(&format!("cilium/{name}"), &recording, &seen);
    if name == BESIDE {
        let answers = recording.listeners.iter().flat_map(|row| recording.every_cell(row));
        assert!(answers.into_iter().all(|(.., letter)| letter == 'L'), "it is no data plane of Services");
        return;
    }
    let wrong = disagreements(&recording, &seen);
    count(&format!("cilium-{name}"), recording.count(), wrong.len());
    assert!(wrong.is_empty(), "{} of {} cells\n{}", wrong.len(), recording.count(), wrong.join("\n"));
}

/// Gives `lo` its addresses, and the client those of a far endpoint.
#[track_caller]
fn further_addresses(wired: &Wired) {
    ip(&ON_LO.map(|it| format!("address add {it} dev lo")));
    wired.client.run(|| {
        ip(&FAR.map(|it| format!("address add {it} dev lo")));
        send_whole();
    });
}

/// Has the calling thread's namespace send packets as a card does: an ICMP answer to one without a checksum is not believed.
#[track_caller]
fn send_whole() {
    let ethtool = Command::new("ethtool").args(["-K", "eth0", "tx", "off"]).stdout(Stdio::null()).status();
    assert!(ethtool.expect("ethtool is installed").success());
}

fn listeners() -> Vec<Listener> {
    let cells = [Protocol::Tcp, Protocol::Udp].into_iter().flat_map(|protocol| {
        BOUND.iter().flat_map(move |bind| (0..SHAPES.len()).map(move |shape| (bind, protocol, shape)))
    });
    (30000..).zip(cells).map(|(port, (bind, protocol, shape))| Listener { bind, protocol, shape, port }).collect()
}

/// Creates the Service of a listener, with its endpoints.
#[track_caller]
fn create(cluster: &ControlPlane, listener: &Listener, own: &[String; 2]) {
    let (name, policy, endpoint) = SHAPES[listener.shape];
    let mut entry = objects::port(80, Some(listener.port));
    entry["protocol"] = json!(listener.protocol.to_string().to_uppercase());
    let mut service = objects::service(&format!("{name}-{}", listener.port), &[entry]);
    service["spec"]["externalTrafficPolicy"] = json!(policy);
    let service = cluster.api().create(&service);
    for (index, family) in ["IPv4", "IPv6"].into_iter().enumerate() {
        let at = endpoint.map(|(here, _)| if here { (own[index].as_str(), "n1") } else { (FAR[index], "n2") });
        let mut slice = objects::endpoint_slice(&service, at, family);
        if let Some((_, [ready, serving, terminating])) = endpoint {
            slice["endpoints"][0]["conditions"] =
                json!({"ready": ready, "serving": serving, "terminating": terminating});
        }
        cluster.api().create(&slice);
    }
}

/// Waits until the Services that were created before are in force: one that comes after them is, in both families.
#[track_caller]
fn settle(cluster: &ControlPlane, cilium: &mut Cilium, pod: &Namespace) {
    let mut last = objects::service("settled", &[objects::port(80, None)]);
    last["spec"]["type"] = json!("ClusterIP");
    let last: Value = cluster.api().create(&last);
    for (family, address) in ["IPv4", "IPv6"].into_iter().zip(FAR) {
        cluster.api().create(&objects::endpoint_slice(&last, Some((address, "n2")), family));
    }
    for address in last["spec"]["clusterIPs"].as_array().expect("cluster IPs") {
        let address: IpAddr = address.as_str().expect("an address").parse().expect("an address");
        cilium
            .wait_for("answer from a Service", || pod.run(move || is_pod(SocketAddr::new(address, 80))).then_some(()));
    }
}
