//! Masquerade may give a connection a source port that is a NodePort. The tests check the chosen ports, and Portreeve's
//! verdicts about these connections.

use std::{
    collections::BTreeSet,
    io::Write as _,
    net::{IpAddr, SocketAddr, TcpStream, UdpSocket},
    os::fd::OwnedFd,
    process::{Command, Stdio},
    thread,
    time::Duration,
};

use portreeve_agent::judge;
use portreeve_facts::{NodeQuery, PortRange, Protocol};
use portreeve_kernel::Host;
use portreeve_rules::Limits;
use serde_json::json;

use super::outgoing::{ECHO, begin, echo, works};
use crate::{
    look::snapshot,
    parts::{ControlPlane, PRIMARY, Proxy, Wired, objects},
};

const POD: &str = "10.244.0.5";
/// An address of a host behind the client. The client forwards nothing, so this host never answers.
const SILENT: &str = "198.51.100.1:7";
/// The greatest number of scans, one a second, until the findings are complete. The kernel repeats a SYN within about
/// half a minute.
const LOOKS: usize = 40;

#[test]
fn flows_that_were_given_ports_of_the_range_are_seen_as_conntrack_lists_them() {
    let wired = Wired::enter();
    wired.client.run(echo);
    nft("add chain ip lab out { type nat hook postrouting priority 90; }\n\
         add rule ip lab out ip saddr 10.244.0.0/16 tcp dport 7 masquerade fully-random\n\
         add rule ip lab out ip saddr 10.244.0.0/16 udp dport 7 masquerade to :30000-30010\n");
    let _connections = wired.pod.run(|| {
        let streams: Vec<_> = (0..200).map(|_| TcpStream::connect(ECHO).expect("a connection")).collect();
        let sockets: Vec<_> = [ECHO, ECHO, SILENT, SILENT, SILENT].map(datagram).into();
        let hanging: Vec<_> = (0..3).map(|at| begin(Protocol::Tcp, here(POD, 30020 + at), SILENT)).collect();
        (streams, sockets, hanging)
    });
    let range = PortRange::DEFAULT_NODE_PORTS;
    let wanted = NodeQuery { masquerade_ports: range.into(), client_ports: range.into(), ..NodeQuery::default() };
    let facts = Host::at("/").read(&wanted);
    let seen = facts.masquerade.get().expect("root may list flows");
    let listed: Vec<Listed> = listed().into_iter().filter(|it| range.contains(it.translated.1)).collect();

    let counts = seen.flows.get().expect("few flows");
    for protocol in [Protocol::Tcp, Protocol::Udp] {
        let count = listed.iter().filter(|it| it.protocol == protocol).count();
        assert_eq!(counts.get(&protocol).copied().unwrap_or(0), count as u64, "{protocol}: {listed:#?}");
    }
    assert_eq!(counts[&Protocol::Udp], 5, "they were given nothing else");
    let place = |(ip, port)| SocketAddr::new(ip, port);
    let unanswered: BTreeSet<_> = seen
        .unanswered
        .iter()
        .map(|it| (it.protocol, place(it.source), place(it.translated), place(it.server)))
        .collect();
    let hanging: BTreeSet<_> = listed
        .iter()
        .filter(|it| it.hangs)
        .map(|it| (it.protocol, place(it.source), place(it.translated), place(it.server)))
        .collect();
    assert_eq!(unanswered, hanging);
    assert!(
        unanswered.iter().filter(|it| it.0 == Protocol::Udp).count() >= 3,
        "no process answers on this address: {listed:#?}"
    );
}

#[test]
fn a_masqueraded_connection_on_a_node_port_is_judged_as_it_works() {
    agrees("iptables");
    agrees("nftables");
}

#[derive(Debug)]
struct Flow {
    protocol: Protocol,
    /// The port that masquerade gives to the connection.
    port: u16,
    /// Whether the Service with this nodePort has an endpoint. `None` if no Service has the port.
    service: Option<bool>,
    answers: Answers,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answers {
    Tracked,
    /// A rule hides the answers from conntrack.
    Untracked,
    /// The server sends no answers.
    None,
}

impl Flow {
    fn all() -> Vec<Self> {
        let mut all = Vec::new();
        for protocol in [Protocol::Tcp, Protocol::Udp] {
            for service in [Some(true), Some(false), None] {
                for answers in [Answers::Tracked, Answers::Untracked, Answers::None] {
                    let port = 30500 + u16::try_from(all.len()).expect("few");
                    all.push(Self { protocol, port, service, answers });
                }
            }
        }
        all
    }

    /// The nftables rules that give the connection its source port before the kernel evaluates kube-proxy's masquerade
    /// rules. For untracked answers, a further rule hides the answers from conntrack.
    fn rules(&self) -> String {
        let Self { protocol, port, answers, .. } = self;
        let untracked = if *answers == Answers::Untracked {
            format!("add rule ip lab in ip daddr {} {protocol} dport {port} notrack\n", PRIMARY[0])
        } else {
            String::new()
        };
        format!(
            "add rule ip lab out ip saddr {POD} {protocol} sport {} masquerade to :{port}\n{untracked}",
            self.sport()
        )
    }

    /// The source port by which the rules of the firewall select the connection.
    fn sport(&self) -> u16 {
        self.port - 10_000
    }

    fn place(&self) -> String {
        format!("{}:{}", PRIMARY[0], self.port)
    }

    /// Whether a failure of the connection is the proxy's fault. Untracked answers are always lost, but only ipvs sends
    /// them to a Service.
    fn should_work(&self, mode: &str) -> bool {
        self.service.is_some() && (self.answers == Answers::Tracked || mode == "ipvs" && self.answers != Answers::None)
    }

    /// Whether ipvs has an endpoint to which it sends the answer. Then ipvs's connection table has an entry.
    fn leaves_a_trace(&self) -> bool {
        self.service == Some(true)
    }
}

/// Compares connections with the findings about them, with a real kube-proxy in this mode.
///
/// In ipvs mode, a connection can hang although its server answers. A finding must name each connection whose answers
/// ipvs sends to an endpoint. No finding may name a connection that works, or a connection without answers. In iptables
/// and nftables mode, all tracked connections work, and no finding may name a connection.
#[track_caller]
pub fn agrees(mode: &str) {
    let wired = Wired::enter();
    wired.client.run(echo);
    let cluster = ControlPlane::start();
    cluster.api().create(&objects::node("n1", &PRIMARY));
    let flows = Flow::all();
    let mut rules = "add chain ip lab out { type nat hook postrouting priority 90; }\n\
                     add chain ip lab in { type filter hook prerouting priority raw; }\n"
        .to_owned();
    for flow in &flows {
        rules.push_str(&flow.rules());
        let Some(has_endpoint) = flow.service else { continue };
        let mut entry = objects::port(80, Some(flow.port));
        entry["protocol"] = json!(flow.protocol.to_string().to_uppercase());
        let service = cluster.api().create(&objects::service(&format!("s{}", flow.port), &[entry]));
        let endpoint = has_endpoint.then_some((Wired::HERE[0], "n1"));
        cluster.api().create(&objects::endpoint_slice(&service, endpoint, "IPv4"));
    }
    nft(&rules);
    let _proxy = Proxy::start(&cluster, mode, &json!({}));
    let places: Vec<_> = flows.iter().map(|it| (it.protocol, it.sport(), it.answers)).collect();
    let sockets: Vec<OwnedFd> = wired.pod.run(move || {
        let to = |answers| if answers == Answers::None { SILENT } else { ECHO };
        places.into_iter().map(|(protocol, port, answers)| begin(protocol, here(POD, port), to(answers))).collect()
    });
    let worked: Vec<bool> = thread::scope(|scope| {
        let asked: Vec<_> = sockets.iter().map(|socket| scope.spawn(|| works(socket))).collect();
        asked.into_iter().map(|it| it.join().expect("an answer")).collect()
    });
    let lost: Vec<bool> = flows.iter().zip(worked).map(|(flow, worked)| !worked && flow.should_work(mode)).collect();
    let told = told(&cluster, flows.iter().zip(&lost).filter(|(flow, lost)| **lost && flow.leaves_a_trace()));
    let mut wrong = Vec::new();
    for (flow, lost) in flows.iter().zip(lost) {
        let is_told = told.contains(&flow.place());
        if (is_told && !(lost && mode == "ipvs")) || (!is_told && lost && flow.leaves_a_trace()) {
            wrong.push(format!("{mode}: {flow:?}: lost {lost}, told {is_told}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Scans until the findings name all expected connections. ipvs forgets an answer within seconds, so one scan may see
/// only some of the connections.
#[track_caller]
fn told<'a>(cluster: &ControlPlane, expected: impl Iterator<Item = (&'a Flow, &'a bool)>) -> BTreeSet<String> {
    let expected: Vec<String> = expected.map(|(flow, _)| flow.place()).collect();
    let mut told = BTreeSet::new();
    for _ in 0..LOOKS {
        let board = judge(&snapshot(&cluster.kubeconfig("admin")), &Limits::default());
        let found = board.findings.iter().filter(|it| it.key.name() == "masquerade-source-ports/taken");
        let values = found.flat_map(|it| &it.evidence.values).filter(|(name, _)| *name == "connection");
        // Each value has the format `tcp SOURCE as PLACE -> SERVER`.
        told.extend(values.filter_map(|(_, value)| Some(value.split(' ').nth(3)?.to_owned())));
        if expected.iter().all(|place| told.contains(place)) {
            break;
        }
        thread::sleep(Duration::from_secs(1));
    }
    told
}

fn here(address: &str, port: u16) -> SocketAddr {
    SocketAddr::new(address.parse().expect("an address"), port)
}

fn datagram(to: &str) -> UdpSocket {
    let socket = UdpSocket::bind("0.0.0.0:0").expect("a socket");
    socket.connect(to).expect("a route");
    socket.send(b"?").expect("sent");
    if to == ECHO {
        assert_eq!(socket.recv(&mut [0; 16]).expect("an answer"), 1);
    }
    socket
}

#[track_caller]
fn nft(rules: &str) {
    let mut nft = Command::new("nft").args(["-f", "-"]).stdin(Stdio::piped()).spawn().expect("nft is installed");
    let rules = format!("add table ip lab\n{rules}");
    nft.stdin.take().expect("a pipe").write_all(rules.as_bytes()).expect("nft reads its rules");
    assert!(nft.wait().expect("nft ends").success(), "{rules}");
}

#[derive(Debug)]
struct Listed {
    protocol: Protocol,
    source: (IpAddr, u16),
    translated: (IpAddr, u16),
    server: (IpAddr, u16),
    hangs: bool,
}

#[track_caller]
fn listed() -> Vec<Listed> {
    let output = Command::new("conntrack").args(["-L", "--src-nat"]).output().expect("conntrack is installed");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    text.lines().map(|line| parse(line).unwrap_or_else(|| panic!("{line}"))).collect()
}

/// Parses a line like `tcp 6 118 SYN_SENT src=A dst=B sport=1 dport=2 [UNREPLIED] src=B dst=C sport=2 dport=3 ...`.
fn parse(line: &str) -> Option<Listed> {
    let protocol = if line.starts_with("tcp") { Protocol::Tcp } else { Protocol::Udp };
    let words = |name: &str| -> Vec<&str> {
        line.split_ascii_whitespace().filter_map(|word| word.strip_prefix(name)?.strip_prefix('=')).collect()
    };
    let address = |name, at: usize| words(name).get(at)?.parse::<IpAddr>().ok();
    let port = |name, at: usize| words(name).get(at)?.parse::<u16>().ok();
    Some(Listed {
        protocol,
        source: (address("src", 0)?, port("sport", 0)?),
        translated: (address("dst", 1)?, port("dport", 1)?),
        server: (address("src", 1)?, port("sport", 1)?),
        hangs: line.contains("[UNREPLIED]") && (protocol == Protocol::Udp || line.contains(" SYN_SENT ")),
    })
}
