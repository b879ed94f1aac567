//! The real kube-proxy and its port. Another process has the port, or two proxies run at the same time.

use std::net::TcpStream;

use serde_json::json;

use crate::{
    modes::{Hanging, NONE, alarms, found, is_back, is_held},
    parts::{Agent, Directory, Proxy, process::Process, until},
};

const PLACE: &str = "127.0.0.1:10249";
const NONSENSE: &str = "my $s = IO::Socket::INET->new(Listen => 5, ReuseAddr => 1, LocalAddr => $ARGV[0]) or die $!;
    while (my $c = $s->accept) { print $c qq(SSH-2.0-OpenSSH_9.2\r\n); close $c }";

/// Fault (proxy): the proxy dies, and another process on its port sends invalid answers
/// Does: does not treat this process as the proxy; marks findings that depend on the mode as unknown
/// Right again: within two scans of the proxy’s return
/// Lost: nothing
///
/// Fault (proxy): a second proxy runs beside the first proxy, in another mode
/// Does: uses the mode of the proxy that answers, and reports the rules of the second proxy
/// Right again: within four scans after the end of the second proxy and its rules
/// Lost: nothing
#[test]
fn neither_nonsense_on_its_port_nor_a_second_one_is_taken_for_the_proxy() {
    let Hanging { wired: _wired, cluster, proxy, squatter: _squatter, agent } = Hanging::with(Agent::start);

    drop(proxy);
    // The process that sends nonsense must not have a NodePort: Portreeve may treat a process on a NodePort and on the
    // proxy's port as a proxy.
    let directory = Directory::new();
    let words = ["-MIO::Socket::INET", "-e", NONSENSE, PLACE].map(str::to_owned);
    let mut stranger = Process::start("/usr/bin/perl", &words, directory.path());
    stranger.wait_for("nonsense", || TcpStream::connect(PLACE).ok());
    is_held(&agent, "malformed");
    drop(stranger);
    let _proxy = Proxy::start(&cluster, "iptables", &json!({}));
    is_back(&agent, &cluster);

    let elsewhere = json!({"metricsBindAddress": "127.0.0.1:10349", "healthzBindAddress": "127.0.0.1:10356"});
    let second = Proxy::start(&cluster, "nftables", &elsewhere);
    let document =
        until("finding", || Some(agent.findings()).filter(|it| found(it, "stale-redirection/proxy").len() == 1));
    assert_eq!(document["nodes"][0]["proxy"]["mode"], "iptables");
    drop(second);
    for family in ["ip", "ip6"] {
        let deleted = std::process::Command::new("nft").args(["delete", "table", family, "kube-proxy"]).status();
        assert!(deleted.expect("nft is installed").success());
    }
    let document = agent.findings_after(4);
    assert_eq!(found(&document, "stale-redirection/proxy"), NONE);
    assert_eq!(alarms(&document).len(), 1);
}
