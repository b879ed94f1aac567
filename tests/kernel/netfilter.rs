//! Tables and chains that `nft` and iptables-nft made.

use std::{
    io::Write,
    process::{Command, Stdio},
};

use portreeve::{
    facts::{Netfilter, NodeQuery},
    kernel::Host,
};

use crate::namespace::Namespace;

fn netfilter() -> Netfilter {
    Host::at("/").read(&NodeQuery::default()).netfilter.get().expect("root may list tables").clone()
}

#[test]
fn a_namespace_without_rules_has_none() {
    let _namespace = Namespace::enter();
    assert_eq!(netfilter(), Netfilter::default());
}

#[test]
fn the_traces_of_both_kinds_of_proxy_are_seen() {
    let _namespace = Namespace::enter();
    let rules = "add table ip kube-proxy\nadd table ip6 kube-proxy\nadd chain ip kube-proxy nodeports\n\
                 add table ip nat\nadd chain ip nat KUBE-NODEPORTS\nadd chain ip nat KUBE-SVC-NPX46M4PTMTKRN6Y\n\
                 add chain ip nat DOCKER\nadd table inet filter\nadd chain inet filter KUBE-FIREWALL\n";
    let mut nft = Command::new("nft")
        .args(["-f", "-"])
        .stdin(Stdio::piped())
        .spawn()
        .expect("the program nft, of the package nftables");
    nft.stdin.take().expect("piped").write_all(rules.as_bytes()).expect("nft reads its rules");
    assert!(nft.wait().expect("nft ends").success());
    let mut seen = netfilter();
    seen.tables.sort();
    seen.chains.sort();
    assert_eq!(seen.tables, ["inet filter", "ip kube-proxy", "ip nat", "ip6 kube-proxy"]);
    assert_eq!(seen.chains, ["inet filter KUBE-FIREWALL", "ip nat KUBE-NODEPORTS"]);
    assert_eq!(seen.legacy_tables, Vec::<String>::new());
}

#[test]
fn chains_of_iptables_nft_are_seen_too() {
    let _namespace = Namespace::enter();
    let made = Command::new("iptables-nft").args(["-w", "-t", "nat", "-N", "KUBE-SERVICES"]).status();
    assert!(made.expect("the program iptables-nft, of the package iptables").success());
    assert_eq!(netfilter().chains, ["ip nat KUBE-SERVICES"]);
}
