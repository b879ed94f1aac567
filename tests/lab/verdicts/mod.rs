//! Compares Portreeve's verdicts with packets. For each configuration of the proxy, each listener, each shape of
//! Service and each vantage point, a client opens a real connection. Portreeve's report about this node must agree with
//! the answer.
//!
//! The tests contain no expected answers. Clients first query the listeners without a proxy. Clients query the
//! listeners again when the proxy has programmed Services with the listeners' ports. A connection is recorded if the
//! process answered the connection without a proxy. The judged snapshot comes from `portreeve snapshot` on the node,
//! without flags for the mode or for settings.
//!
//! The recorded answers are below `tests/anywhere/verdicts`. Tests that need no lab judge the recordings again. The
//! behaviour matrix of the documentation is made from the recordings. `UPDATE=1` records the answers again.

pub mod addresses;
pub mod asks;
pub mod binds;
pub mod claims;
pub mod cni;
pub mod external_ip;
pub mod health_check;
pub mod host_port;
#[path = "../../anywhere/verdicts/judged.rs"]
pub mod judged;
pub mod masquerade;
pub mod outgoing;
pub mod record;
#[path = "../../anywhere/verdicts/recording.rs"]
pub mod recording;
pub mod redirected;
pub mod sctp;
pub mod service_lb;
mod shapes;

use std::{
    collections::{BTreeMap, BTreeSet},
    process::Command,
};

use portreeve_facts::{Learned, Protocol, Snapshot};
use serde_json::{Value, json};

use self::{
    asks::{Ask, ask_all, every_question},
    binds::{BINDS, Bind, Held},
    judged::disagreements,
    record::{keep, record},
    shapes::{SHAPES, Shape, create},
};
use crate::{
    look::snapshot,
    parts::{Answer, ControlPlane, Directory, PRIMARY, Proxy, Wired, objects, sysctl},
};

#[test]
fn in_iptables_mode_verdicts_are_what_packets_show() {
    let lab = Lab::start(&BOTH);
    lab.agrees("iptables-default", "iptables", &json!({}));
    lab.agrees("iptables-no-localhost", "iptables", &json!({"iptables": {"localhostNodePorts": false}}));
    lab.agrees("iptables-primary", "iptables", &json!({"nodePortAddresses": ["primary"]}));
    lab.agrees("iptables-second", "iptables", &json!({"nodePortAddresses": ["192.0.2.2/32"]}));
    lab.agrees("iptables-no-detector", "iptables", &json!({"clusterCIDR": ""}));
    let hardened = Proxy::start(&lab.cluster, "iptables", &json!({}));
    sysctl("net.ipv4.conf.all.route_localnet", "0");
    lab.agrees_behind(hardened, "iptables-no-route-localnet", "iptables");
}

#[test]
fn in_nftables_mode_verdicts_are_what_packets_show() {
    let lab = Lab::start(&BOTH);
    lab.agrees("nftables-default", "nftables", &json!({}));
    lab.agrees("nftables-all", "nftables", &json!({"nodePortAddresses": ["0.0.0.0/0", "::/0"]}));
    lab.agrees("nftables-second", "nftables", &json!({"nodePortAddresses": ["192.0.2.2/32"]}));
    lab.agrees("nftables-no-detector", "nftables", &json!({"clusterCIDR": ""}));
}

#[test]
fn behind_an_old_or_a_newer_proxy_that_holds_node_ports_verdicts_are_what_packets_show() {
    let lab = Lab::start(&BOTH);
    drop_what_is_marked();
    let mut old = Proxy::start_holding(&lab.cluster, 4096);
    old.settle(&lab.cluster);
    lab.agrees_behind(old, "iptables-1.23", "iptables");
}

#[test]
fn behind_an_old_or_a_newer_proxy_with_the_gate_for_node_ports_of_loopback_verdicts_are_what_packets_show() {
    let lab = Lab::start(&BOTH);
    let agrees = |name, mut settings: Value| {
        settings["featureGates"] = json!({"KubeProxyNFTablesLocalhostNodePorts": true});
        lab.agrees_behind(Proxy::start_newer(&lab.cluster, "nftables", &settings), name, "nftables");
    };
    // In the other order, kube-proxy 1.37.2 would delete a chain while its map still leads to the chain. The kernel
    // refuses this deletion, and kube-proxy then syncs nothing.
    agrees("nftables-1.37-localhost", json!({"nodePortAddresses": ["primary", "localhost"]}));
    agrees("nftables-1.37-gate", json!({}));
}

#[test]
fn an_outgoing_connection_on_a_node_port_is_judged_as_it_works() {
    outgoing::agrees("iptables");
    outgoing::agrees("nftables");
}

#[test]
fn a_host_port_and_a_node_port_are_judged_as_they_answer() {
    host_port::agrees("iptables");
    host_port::agrees("nftables");
}

#[test]
fn an_external_ip_and_a_node_port_are_judged_as_they_answer() {
    external_ip::agrees("iptables", &[Protocol::Tcp, Protocol::Udp]);
    external_ip::agrees("nftables", &[Protocol::Tcp, Protocol::Udp]);
}

#[test]
fn what_a_load_balancers_address_or_an_undeclared_redirection_takes_is_judged_as_it_answers() {
    redirected::agrees("iptables");
    redirected::agrees("nftables");
}

#[test]
fn the_port_of_a_service_of_service_lb_goes_with_its_node_port_where_its_policy_is_local() {
    service_lb::agrees("iptables");
    service_lb::agrees("nftables");
}

#[test]
fn the_address_of_another_node_is_judged_as_it_answers() {
    addresses::agrees("iptables");
    addresses::agrees("nftables");
}

#[test]
fn a_health_check_is_judged_as_it_is_answered() {
    health_check::agrees("iptables");
    health_check::agrees("nftables");
}

#[test]
fn a_verdict_for_another_mode_is_not_what_packets_show() {
    let lab = Lab::start(&BOTH[..1]);
    let _proxy = Proxy::start(&lab.cluster, "iptables", &json!({}));
    let answers = lab.answers();
    for mode in ["nftables", "ipvs"] {
        let mut seen = lab.look();
        seen.overrides.proxy_mode = Some(Learned { value: mode.parse().expect("a mode"), place: "a test".to_owned() });
        let wrong = disagreements(&record("none", &lab.listeners, &answers, &seen), &seen);
        assert!(!wrong.is_empty(), "iptables and {mode} differ");
    }
}

#[derive(Clone, Copy)]
pub struct Listener {
    bind: &'static Bind,
    protocol: Protocol,
    shape: &'static Shape,
    port: u16,
}

const BOTH: [Bound; 2] = [(Protocol::Tcp, &BINDS), (Protocol::Udp, &BINDS)];

pub type Bound = (Protocol, &'static [Bind]);

/// Each listener has its own port.
fn listeners(bound: &[Bound]) -> Vec<Listener> {
    let cells = bound.iter().copied().flat_map(|(protocol, binds)| {
        let binds = binds.iter().flat_map(|bind| SHAPES.iter().map(move |shape| (bind, shape)));
        binds.filter(move |(bind, shape)| shape.suits(bind)).map(move |(bind, shape)| (bind, protocol, shape))
    });
    let numbered = (30000..).zip(cells);
    numbered.map(|(port, (bind, protocol, shape))| Listener { bind, protocol, shape, port }).collect()
}

/// The answers to all connections that the process answered without a proxy.
pub type Answers = BTreeMap<Ask, Answer>;

/// A node on which clients have queried the listeners before any Service existed.
pub struct Lab {
    cluster: ControlPlane,
    wired: Wired,
    listeners: Vec<Listener>,
    answered: BTreeSet<Ask>,
    _held: Vec<Held>,
    _backend: Held,
    directory: Directory,
}

impl Lab {
    #[track_caller]
    pub fn start(bound: &[Bound]) -> Self {
        let wired = Wired::enter();
        let backend = wired.backend.run(|| Held::on(&BINDS[1], Protocol::Udp, Wired::PORT, Answer::Pod));
        let listeners = listeners(bound);
        let held = listeners.iter().map(|it| Held::on(it.bind, it.protocol, it.port, Answer::Process)).collect();
        let asks: Vec<Ask> = listeners.iter().flat_map(|it| every_question(it.protocol, it.port)).collect();
        let answers = ask_all(&wired, &asks);
        let answered = asks.into_iter().filter(|it| answers[it] == Answer::Process).collect();
        let cluster = ControlPlane::start();
        cluster.api().create(&objects::node("n1", &PRIMARY));
        cluster.api().create(&objects::node("n2", &["192.0.2.9"]));
        for listener in &listeners {
            create(cluster.api(), listener);
        }
        Self { cluster, wired, listeners, answered, _held: held, _backend: backend, directory: Directory::new() }
    }

    #[track_caller]
    pub fn agrees(&self, name: &str, mode: &str, settings: &Value) {
        self.agrees_behind(Proxy::start(&self.cluster, mode, settings), name, mode);
    }

    #[track_caller]
    fn agrees_behind(&self, _proxy: Proxy, name: &str, mode: &str) {
        forget_flows();
        let answers = self.answers();
        let seen = self.look();
        assert_eq!(seen.proxy_mode().expect("a mode").value.to_string(), mode, "the proxy tells its mode itself");
        let recording = record(name, &self.listeners, &answers, &seen);
        let wrong = disagreements(&recording, &seen);
        if !wrong.is_empty() {
            let path = self.directory.write(&format!("{name}.json"), &json!(seen).to_string());
            let (wrongs, cells) = (wrong.len(), recording.count());
            panic!(
                "{name}: {wrongs} of {cells} cells disagree; portreeve check --snapshot {path}\n{}",
                wrong.join("\n")
            );
        }
        keep(name, &recording, &seen);
    }

    #[track_caller]
    fn look(&self) -> Snapshot {
        snapshot(&self.cluster.kubeconfig("admin"))
    }

    #[track_caller]
    fn answers(&self) -> Answers {
        let asks: Vec<Ask> = self.answered.iter().copied().collect();
        let answers = ask_all(&self.wired, &asks);
        let lost = answers.values().filter(|answer| **answer != Answer::Process).count();
        assert!((1..answers.len()).contains(&lost), "{lost} of {} is no comparison", answers.len());
        answers
    }
}

/// kube-proxy 1.23.6 marks the packets that must be dropped, and these rules drop the marked packets.
#[track_caller]
fn drop_what_is_marked() {
    for program in ["iptables", "ip6tables"] {
        for rule in [
            "-t nat -N KUBE-MARK-DROP",
            "-t nat -A KUBE-MARK-DROP -j MARK --or-mark 0x8000",
            "-N KUBE-FIREWALL",
            "-A KUBE-FIREWALL -m mark --mark 0x8000/0x8000 -j DROP",
            "-I INPUT -j KUBE-FIREWALL",
            "-I OUTPUT -j KUBE-FIREWALL",
        ] {
            let status = Command::new(program).arg("--wait").args(rule.split(' ')).status();
            assert!(status.expect("iptables is installed").success(), "{program} {rule}");
        }
    }
}

/// Removes old flows from conntrack. With an old flow, the kernel would translate a new datagram from the same source
/// port as the earlier proxy did.
#[track_caller]
fn forget_flows() {
    let output = Command::new("conntrack").arg("--flush").output().expect("conntrack is installed");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
