//! Tests make tables and chains with `nft` and iptables-nft. The reader must return these tables and chains.

use std::{
    io::Write,
    net::SocketAddr,
    process::{Command, Stdio},
};

use portreeve_facts::{Netfilter, NodeQuery, Protocol, Redirection};
use portreeve_kernel::Host;

use crate::namespace::Namespace;

fn netfilter() -> Netfilter {
    Host::at("/").read(&NodeQuery::default()).netfilter.get().expect("root may list tables").clone()
}

fn nft(rules: &str) {
    let mut nft = Command::new("nft")
        .args(["-f", "-"])
        .stdin(Stdio::piped())
        .spawn()
        .expect("the program nft, of the package nftables");
    nft.stdin.take().expect("piped").write_all(rules.as_bytes()).expect("nft reads its rules");
    assert!(nft.wait().expect("nft ends").success());
}

#[test]
fn a_namespace_without_rules_has_none() {
    let _namespace = Namespace::enter();
    assert_eq!(netfilter(), Netfilter::default());
}

#[test]
fn traces_of_both_kinds_of_proxy_are_read() {
    let _namespace = Namespace::enter();
    let rules = "add table ip kube-proxy\nadd table ip6 kube-proxy\nadd chain ip kube-proxy nodeports\n\
                 add table ip nat\nadd chain ip nat KUBE-NODEPORTS\nadd chain ip nat KUBE-SVC-NPX46M4PTMTKRN6Y\n\
                 add chain ip nat DOCKER\nadd table inet filter\nadd chain inet filter KUBE-FIREWALL\n";
    nft(rules);
    let mut seen = netfilter();
    seen.tables.sort();
    seen.chains.sort();
    assert_eq!(seen.tables, ["inet filter", "ip kube-proxy", "ip nat", "ip6 kube-proxy"]);
    assert_eq!(seen.chains, ["inet filter KUBE-FIREWALL", "ip nat KUBE-NODEPORTS"]);
    assert_eq!(seen.legacy_tables, Vec::<String>::new());
}

#[test]
fn chains_of_iptables_nft_are_read_too() {
    let _namespace = Namespace::enter();
    let made = Command::new("iptables-nft").args(["-w", "-t", "nat", "-N", "KUBE-SERVICES"]).status();
    assert!(made.expect("the program iptables-nft, of the package iptables").success());
    assert_eq!(netfilter().chains, ["ip nat KUBE-SERVICES"]);
}

/// The rules that the CNI plugin `portmap` makes with iptables. An older version of the plugin puts the rules of the
/// oldest pod first.
const IPTABLES: &str = "
-N CNI-HOSTPORT-SETMARK
-N CNI-HOSTPORT-DNAT
-A PREROUTING -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT
-N CNI-DN-second
-A CNI-DN-second -p udp --dport 53 -d 192.0.2.1 -s 10.1.0.0/24 -j CNI-HOSTPORT-SETMARK
-A CNI-DN-second -p udp --dport 53 -d 192.0.2.1 -j DNAT --to-destination 10.1.0.9:5353
-A CNI-DN-second -p sctp --dport 80 -j DNAT --to-destination 10.1.0.9:8080
-N CNI-DN-first
-A CNI-DN-first -p tcp --dport 80 -s 127.0.0.1 -j CNI-HOSTPORT-SETMARK
-A CNI-DN-first -p tcp --dport 80 -j DNAT --to-destination 10.1.0.8:8080
-A CNI-HOSTPORT-DNAT -m comment --comment dnat -m multiport -p tcp --destination-ports 80 -j CNI-DN-first
-A CNI-HOSTPORT-DNAT -m comment --comment dnat -m multiport -p udp --destination-ports 53 -j CNI-DN-second
-N CNI-DN-nobody
-A CNI-DN-nobody -p tcp --dport 81 -j DNAT --to-destination 10.1.0.7:8080
";

/// The rules that the CNI plugin `portmap` makes with nftables.
const NFTABLES: &str = "
add table ip6 cni_hostport
add chain ip6 cni_hostport hostports
add chain ip6 cni_hostport hostip_hostports
add chain ip6 cni_hostport masquerading
add rule ip6 cni_hostport hostports tcp dport 443 dnat to [2001:db8::8]:8443 comment \"container\"
add rule ip6 cni_hostport hostip_hostports ip6 daddr 2001:db8::1 udp dport 53 dnat to [2001:db8::9]:5353
add rule ip6 cni_hostport masquerading ip6 saddr 2001:db8::8 ip6 daddr 2001:db8::8 masquerade
";

#[test]
fn redirections_of_host_ports_are_read_in_the_order_of_evaluation() {
    let _namespace = Namespace::enter();
    for rule in IPTABLES.lines().filter(|line| !line.is_empty()) {
        let made = Command::new("iptables-nft").args(["-w", "-t", "nat"]).args(rule.split(' ')).status();
        assert!(made.expect("the program iptables-nft, of the package iptables").success(), "{rule}");
    }
    nft(NFTABLES);
    let told = |it: &Redirection| {
        let ip = it.ip.map_or_else(String::new, |ip| format!("{ip} "));
        format!("{ip}{}/{} to {} by {}", it.port, it.protocol, SocketAddr::new(it.to, it.to_port), it.chain)
    };
    let found = netfilter().redirections.get().expect("root may list rules").clone();
    let of = |table: &str| found.iter().filter(|it| it.chain.starts_with(table)).map(told).collect::<Vec<_>>();
    assert_eq!(
        of("ip nat"),
        [
            "80/tcp to 10.1.0.8:8080 by ip nat CNI-DN-first",
            "192.0.2.1 53/udp to 10.1.0.9:5353 by ip nat CNI-DN-second",
            "80/sctp to 10.1.0.9:8080 by ip nat CNI-DN-second",
        ]
    );
    assert_eq!(
        of("ip6 cni_hostport"),
        [
            "2001:db8::1 53/udp to [2001:db8::9]:5353 by ip6 cni_hostport hostip_hostports",
            "443/tcp to [2001:db8::8]:8443 by ip6 cni_hostport hostports",
        ]
    );
    // The handle identifies the rule, so the command deletes only this rule.
    let first = &found.iter().find(|it| it.port == 80).expect("one");
    nft(&format!("delete rule {} handle {}", first.chain, first.handle));
    let left = netfilter().redirections.get().expect("root may list rules").clone();
    assert_eq!(left.len(), found.len() - 1);
    assert!(!left.contains(first), "{left:?}");
}

#[test]
fn ports_that_rules_of_both_families_exclude_from_conntrack_are_read() {
    let _namespace = Namespace::enter();
    let rules = "-N RAW_PRE\n-A PREROUTING -j RAW_PRE\n-A RAW_PRE -p udp --dport 8472 -m comment --comment tunnel -j CT --notrack\n\
                 -A RAW_PRE -p tcp --dport 53 -j NOTRACK\n-A RAW_PRE -p udp --dport 4789 -s 192.0.2.9 -j CT --notrack\n\
                 -A RAW_PRE -p udp --dport 5000:5009 -j CT --notrack\n-A RAW_PRE -p udp --dport 6081 -j ACCEPT";
    for (program, port) in [("iptables-nft", 8472), ("ip6tables-nft", 8473)] {
        let rules = rules.replace("8472", &port.to_string()).replace(" -s 192.0.2.9", " -i lo");
        for rule in rules.lines() {
            let made = Command::new(program).args(["-w", "-t", "raw"]).args(rule.split(' ')).status();
            assert!(made.expect("the program, of the package iptables").success(), "{program} {rule}");
        }
    }
    let found = netfilter().untracked.get().expect("rules").clone();
    assert_eq!(found, [(Protocol::Tcp, 53), (Protocol::Udp, 8472), (Protocol::Udp, 8473)]);
}
