//! Connections of pods to one destination use the source ports that masquerade may choose.

use std::{
    net::{SocketAddr, TcpListener, TcpStream},
    thread,
    time::Duration,
};

use crate::{
    near_misses::expect_silent,
    stage::{Elsewhere, Scan, Stage, iptables, sysctl},
};

const RULE: &str = "masquerade-source-ports/pool";
const SERVER: [u8; 4] = [198, 51, 100, 7];

/// A node with two pods, and a server on another host. The node masquerades the connections of the pods to port 443
/// with 200 source ports, and to port 444 with ten.
struct Busy {
    stage: Stage,
    pods: [Elsewhere; 2],
    _server: Elsewhere,
}

impl Busy {
    fn new() -> Self {
        let stage = ["1", "2"].iter().fold(Stage::new(), |stage, number| {
            stage.document(&format!(
                "apiVersion: v1\nkind: Pod\nmetadata: {{name: shop-{number}, namespace: default, uid: uid-{number}}}\nspec:\n  \
                 nodeName: n1\n  containers: [{{name: c}}]\nstatus: {{phase: Running, podIPs: [{{ip: 10.244.{number}.7}}]}}"
            ))
        });
        sysctl("net.ipv4.ip_forward", "1");
        let server = Elsewhere::linked("uplink", "198.51.100.1", "198.51.100.7");
        for port in [443, 444] {
            let listener =
                server.run(move || TcpListener::bind(SocketAddr::from((SERVER, port))).expect("a free port"));
            thread::spawn(move || listener.incoming().collect::<Vec<_>>());
        }
        let pods = [1, 2].map(|number| {
            Elsewhere::linked(&format!("pod{number}"), &format!("10.244.{number}.1"), &format!("10.244.{number}.7"))
        });
        for (port, ports) in [(443, "40000-40199"), (444, "41000-41009")] {
            let of_pods = format!("-A POSTROUTING -s 10.244.0.0/16 -p tcp --dport {port}");
            iptables("nat", &format!("{of_pods} -j MASQUERADE --to-ports {ports}"));
        }
        Self { stage, pods, _server: server }
    }

    /// The connections that a pod opened to a port of the server: at most `wanted`, with at most `attempts` attempts. A
    /// connection without a source port gets no answer. On a busy machine, other connections may get a late answer.
    fn open(&self, pod: usize, port: u16, (wanted, attempts): (usize, usize)) -> Vec<TcpStream> {
        self.pods[pod].run(move || {
            let to = SocketAddr::from((SERVER, port));
            let open = (0..attempts).filter_map(|_| TcpStream::connect_timeout(&to, Duration::from_millis(100)).ok());
            open.take(wanted).collect()
        })
    }

    fn check(&self) -> Scan {
        self.stage.check(&["--proxy-mode", "iptables"])
    }
}

#[test]
fn a_destination_that_uses_most_source_ports_of_a_rule_is_reported_with_the_pods() {
    let busy = Busy::new();
    let mut open = busy.open(0, 443, (110, 110));
    open.extend(busy.open(1, 443, (110, 110)));
    assert!((190..=200).contains(&open.len()), "{} connections have one of 200 ports", open.len());
    let scan = busy.check();
    let finding = scan.finding(RULE, "n1");
    assert_eq!(finding.verdict(), "warning");
    let summary = finding.0["summary"].as_str().expect("a sentence");
    assert!(summary.contains("198.51.100.7:443/tcp"), "{summary}");
    for pod in ["pod default/shop-1 (10.244.1.7): ", "pod default/shop-2 (10.244.2.7): "] {
        assert!(finding.evidence().contains(pod), "{}", finding.evidence());
    }
}

/// The shortage of the ten ports makes Portreeve count the connections to each destination.
#[test]
fn three_quarters_of_the_source_ports_of_a_rule_are_enough() {
    let busy = Busy::new();
    // Each attempt uses a source port, even if the answer is late: 180 attempts use at most 90 % of the ports.
    let mut open = busy.open(0, 443, (75, 90));
    open.extend(busy.open(1, 443, (75, 90)));
    assert_eq!(open.len(), 150, "connections to port 443");
    let few = busy.open(0, 444, (12, 12));
    assert!(few.len() <= 10, "ten ports are not enough for twelve connections");
    expect_silent(&busy.check(), RULE, "150 of 200 ports");
}
