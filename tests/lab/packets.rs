//! Who loses a listener, according to packets: what `check` says of it must be that, to the address.
//!
//! Nothing expected is written here. Listeners are asked before there is any Service, and again with Services on their
//! ports: where the process answered and does not any more, it has lost.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
    thread,
};

use serde_json::{Value, json};

use crate::{
    look::Look,
    parts::{ADDRESSES, Answer, ControlPlane, LINK_LOCAL, PRIMARY, Proxy, Server, Wired, ask, objects},
};

/// What listeners are bound to.
const BINDS: [&str; 8] = ["0.0.0.0", "::", "127.0.0.1", "::1", "192.0.2.1", "192.0.2.2", "2001:db8::1", "2001:db8::2"];

/// A Service on the port of a listener.
struct Shape {
    name: &'static str,
    families: &'static [&'static str],
    /// externalTrafficPolicy.
    policy: &'static str,
    endpoint: Option<Endpoint>,
}

/// Addresses of both families, the node it is said to be on, and whether it is ready, serving and terminating.
type Endpoint = ([&'static str; 2], &'static str, [bool; 3]);

const BOTH: &[&str] = &["IPv4", "IPv6"];
const READY: [bool; 3] = [true, true, false];
const NOT_READY: [bool; 3] = [false, false, false];
const DRAINING: [bool; 3] = [false, true, true];

const SHAPES: [Shape; 8] = [
    Shape { name: "ready", families: BOTH, policy: "Cluster", endpoint: Some((Wired::HERE, "n1", READY)) },
    Shape { name: "empty", families: BOTH, policy: "Cluster", endpoint: None },
    Shape { name: "elsewhere", families: BOTH, policy: "Local", endpoint: Some((Wired::ELSEWHERE, "n2", READY)) },
    Shape { name: "here", families: BOTH, policy: "Local", endpoint: Some((Wired::HERE, "n1", READY)) },
    Shape { name: "not-ready", families: BOTH, policy: "Cluster", endpoint: Some((Wired::HERE, "n1", NOT_READY)) },
    Shape { name: "draining", families: BOTH, policy: "Cluster", endpoint: Some((Wired::HERE, "n1", DRAINING)) },
    Shape { name: "four", families: &["IPv4"], policy: "Cluster", endpoint: Some((Wired::HERE, "n1", READY)) },
    Shape { name: "six-empty", families: &["IPv6"], policy: "Cluster", endpoint: None },
];

/// Who asks, in words of the JSON and of the evidence.
const VANTAGES: [(&str, &str); 4] = [
    ("remote", "from elsewhere"),
    ("node", "from this node"),
    ("loopback", "from loopback"),
    ("pods", "from its pods"),
];

#[test]
fn in_iptables_mode_check_says_what_packets_show() {
    let lab = Lab::start();
    lab.agrees("iptables", &json!({}));
    lab.agrees("iptables", &json!({"iptables": {"localhostNodePorts": false}}));
    lab.agrees("iptables", &json!({"nodePortAddresses": ["primary"]}));
    lab.agrees("iptables", &json!({"nodePortAddresses": ["192.0.2.2/32"]}));
}

#[test]
fn in_nftables_mode_check_says_what_packets_show() {
    let lab = Lab::start();
    lab.agrees("nftables", &json!({}));
    lab.agrees("nftables", &json!({"nodePortAddresses": ["0.0.0.0/0", "::/0"]}));
    lab.agrees("nftables", &json!({"nodePortAddresses": ["192.0.2.2/32"]}));
}

#[test]
fn without_a_local_detector_pods_are_outsiders_in_packets_and_in_words() {
    let lab = Lab::start();
    lab.agrees("iptables", &json!({"clusterCIDR": ""}));
}

#[test]
fn a_verdict_for_another_mode_is_not_what_packets_show() {
    let lab = Lab::start();
    let _proxy = Proxy::start(&lab.cluster, "iptables", &json!({}));
    let answers = lab.answers();
    for mode in ["nftables", "ipvs"] {
        let look = Look::check_with(&["--proxy-mode", mode], &lab.cluster.kubeconfig("admin"));
        assert!(!differences(&answers, &look).is_empty(), "iptables and {mode} differ");
    }
}

/// A question: who asks, and where.
type Ask = (&'static str, SocketAddr);

/// A wired node with a listener for each bind address and shape, before the first Service and after.
pub struct Lab {
    cluster: ControlPlane,
    wired: Wired,
    _listeners: Vec<Server>,
    answered: BTreeSet<Ask>,
}

impl Lab {
    #[track_caller]
    pub fn start() -> Self {
        let wired = Wired::enter();
        let cells = (0..BINDS.len()).flat_map(|bind| (0..SHAPES.len()).map(move |shape| (bind, shape)));
        let listeners = cells
            .clone()
            .map(|(bind, shape)| Server::on(socket(BINDS[bind], port(bind, shape)), Answer::Process))
            .collect();
        let asks: Vec<Ask> = cells.clone().flat_map(|(bind, shape)| questions(port(bind, shape))).collect();
        let answers = wired.ask(&asks);
        let answered = asks.into_iter().filter(|it| answers[it] == Answer::Process).collect();

        let cluster = ControlPlane::start();
        cluster.api().create(&objects::node("n1", &PRIMARY));
        cluster.api().create(&objects::node("n2", &["192.0.2.9"]));
        for (bind, shape) in cells {
            create(&cluster, bind, shape);
        }
        Self { cluster, wired, _listeners: listeners, answered }
    }

    /// Runs kube-proxy, and compares.
    #[track_caller]
    pub fn agrees(&self, mode: &str, settings: &Value) {
        let _proxy = Proxy::start(&self.cluster, mode, settings);
        let look = Look::check(&self.cluster.kubeconfig("admin"));
        assert_eq!(look.json["proxy"]["mode"], mode);
        let differences = differences(&self.answers(), &look);
        assert!(differences.is_empty(), "{mode} {settings}\n{}", differences.join("\n"));
    }

    /// Who answers now where the process answered before.
    #[track_caller]
    fn answers(&self) -> BTreeMap<Ask, Answer> {
        let asks: Vec<Ask> = self.answered.iter().copied().collect();
        let answers = self.wired.ask(&asks);
        let lost = answers.values().filter(|answer| **answer != Answer::Process).count();
        assert!((1..answers.len()).contains(&lost), "{lost} of {} is no comparison", answers.len());
        answers
    }
}

/// The cells in which packets and `check` differ, in words.
#[track_caller]
fn differences(answers: &BTreeMap<Ask, Answer>, look: &Look) -> Vec<String> {
    let mut differences = Vec::new();
    for (bind, address) in BINDS.iter().enumerate() {
        for (shape, Shape { name, .. }) in SHAPES.iter().enumerate() {
            let port = port(bind, shape);
            let shown = shown(answers.iter().filter(|((_, to), _)| to.port() == port));
            let told = told(look, port);
            if shown != told {
                differences.push(format!("{address}, {name}\n  packets: {shown:?}\n  check:   {told:?}"));
            }
        }
    }
    differences
}

impl Wired {
    /// Asks everything, from everywhere, at once.
    fn ask(&self, asks: &[Ask]) -> BTreeMap<Ask, Answer> {
        let from = |vantages: &[&str]| -> Vec<Ask> {
            asks.iter().copied().filter(|(vantage, _)| vantages.contains(vantage)).collect()
        };
        let [remote, pods, own] = [from(&["remote"]), from(&["pods"]), from(&["node", "loopback"])];
        thread::scope(|scope| {
            let elsewhere = scope.spawn(|| self.client.run(move || at_once(&remote)));
            let pods = scope.spawn(|| self.pod.run(move || at_once(&pods)));
            let mut answers = at_once(&own);
            answers.extend(elsewhere.join().expect("answers"));
            answers.extend(pods.join().expect("answers"));
            answers
        })
    }
}

/// Asks from the calling thread's namespace.
fn at_once(asks: &[Ask]) -> BTreeMap<Ask, Answer> {
    thread::scope(|scope| {
        let asking: Vec<_> = asks.iter().map(|it| (*it, scope.spawn(|| ask(it.1)))).collect();
        asking.into_iter().map(|(it, answer)| (it, answer.join().expect("an answer"))).collect()
    })
}

/// Everybody's questions about a port.
fn questions(port: u16) -> Vec<Ask> {
    let outside = ["remote", "node", "pods"];
    let outside = outside.into_iter().flat_map(|vantage| ADDRESSES.map(|address| (vantage, socket(address, port))));
    let on_the_link = ["remote", "node"].map(|vantage| (vantage, socket(LINK_LOCAL, port)));
    outside.chain(on_the_link).chain(["127.0.0.1", "::1"].map(|address| ("loopback", socket(address, port)))).collect()
}

/// Who lost what, by vantage point and by who answers instead.
type Losses = BTreeMap<(&'static str, Answer), BTreeSet<IpAddr>>;

/// What packets show.
fn shown<'a>(answers: impl Iterator<Item = (&'a Ask, &'a Answer)>) -> Losses {
    let mut losses = Losses::new();
    for ((vantage, to), answer) in answers.filter(|(_, answer)| **answer != Answer::Process) {
        losses.entry((vantage, instead(to.ip(), *answer))).or_default().insert(to.ip());
    }
    losses
}

/// Who answers instead. Where a connection to a link-local address leads nowhere, it may or may not be told so.
fn instead(address: IpAddr, answer: Answer) -> Answer {
    let link_local = address == socket(LINK_LOCAL, 0).ip();
    if link_local && answer == Answer::TimedOut { Answer::Unreachable } else { answer }
}

/// What `check` says: the vantage points in `affects`, and the addresses in the evidence.
#[track_caller]
fn told(look: &Look, port: u16) -> Losses {
    let findings = look.findings("listener-on-node-port");
    let Some(finding) = findings.into_iter().find(|finding| finding["port"] == port) else { return Losses::new() };
    let mut losses = Losses::new();
    for evidence in finding["evidence"].as_array().expect("evidence") {
        let Some((vantage, _)) = VANTAGES.iter().find(|(_, words)| evidence["name"] == *words) else { continue };
        let value = evidence["value"].as_str().expect("a value");
        let answers = [
            (" are answered by a pod of the Service", Answer::Pod),
            (" are refused", Answer::Refused),
            (" time out", Answer::TimedOut),
            (" lead nowhere, as nothing forwards link-local addresses", Answer::Unreachable),
        ];
        let (addresses, answer) = answers
            .into_iter()
            .find_map(|(words, answer)| Some((value.strip_prefix("to ")?.strip_suffix(words)?, answer)))
            .unwrap_or_else(|| panic!("{value:?} is not about addresses"));
        for address in addresses.split(", ").map(|it| it.parse().expect("an address")) {
            losses.entry((*vantage, instead(address, answer))).or_default().insert(address);
        }
    }
    let affects: Vec<&str> = VANTAGES
        .iter()
        .map(|(vantage, _)| *vantage)
        .filter(|vantage| losses.keys().any(|(lost, _)| lost == vantage))
        .collect();
    assert_eq!(finding["affects"].as_array().cloned().unwrap_or_default(), affects, "{finding:#}");
    losses
}

fn create(cluster: &ControlPlane, bind: usize, shape: usize) {
    let number = port(bind, shape);
    let Shape { name, families, policy, endpoint } = &SHAPES[shape];
    let mut service = objects::service(&format!("{name}-{bind}"), &[objects::port(80, Some(number))]);
    service["spec"]["ipFamilyPolicy"] = json!(if families.len() == 2 { "RequireDualStack" } else { "SingleStack" });
    service["spec"]["ipFamilies"] = json!(families);
    service["spec"]["externalTrafficPolicy"] = json!(policy);
    let service = cluster.api().create(&service);
    for (index, family) in BOTH.iter().enumerate().filter(|(_, family)| families.contains(family)) {
        let place = endpoint.map(|(addresses, node, _)| (addresses[index], node));
        let mut slice = objects::endpoint_slice(&service, place, family);
        if let Some((.., [ready, serving, terminating])) = endpoint {
            slice["endpoints"][0]["conditions"] =
                json!({"ready": ready, "serving": serving, "terminating": terminating});
        }
        cluster.api().create(&slice);
    }
}

fn port(bind: usize, shape: usize) -> u16 {
    30000 + 10 * u16::try_from(bind).expect("few") + u16::try_from(shape).expect("few")
}

fn socket(address: &str, port: u16) -> SocketAddr {
    SocketAddr::new(address.parse().expect("an address"), port)
}
