//! A rule still redirects a hostPort to a deleted pod. The tests make the rules of the CNI plugin `portmap`.

use std::process::Command;

use crate::{claims::edge, near_misses::expect_silent, stage::iptables};

const RULE: &str = "stale-redirection/host-port";

/// Each entry is a chain, a port and a target. The kernel evaluates the entries in this order.
fn redirect(rules: &[(&str, u16, &str)]) {
    let iptables = |arguments: &str| iptables("nat", arguments);
    iptables("-N CNI-HOSTPORT-DNAT");
    iptables("-A PREROUTING -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT");
    iptables("-A OUTPUT -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT");
    for (chain, port, to) in rules {
        iptables(&format!("-N {chain}"));
        iptables(&format!("-A {chain} -p tcp --dport {port} -j DNAT --to-destination {to}"));
        iptables(&format!("-A CNI-HOSTPORT-DNAT -p tcp -m multiport --destination-ports {port} -j {chain}"));
    }
}

#[test]
fn a_redirection_to_a_deleted_pod_takes_the_connections_of_the_next_pod() {
    let stage = edge(8080);
    redirect(&[("CNI-DN-before", 8080, "10.244.0.3:80"), ("CNI-DN-now", 8080, "10.244.0.7:80")]);
    let scan = stage.check(&[]);
    let finding = scan.finding(RULE, "n1");
    assert_eq!(finding.verdict(), "critical remote node loopback pods");
    assert!(finding.0["summary"].as_str().is_some_and(|it| it.contains("pod default/edge gets no connections")));
    let command = finding.remedy().lines().next().expect("a command").to_owned();
    assert!(Command::new("sh").args(["-c", &command]).status().expect("a shell").success(), "{command}");
    expect_silent(&stage.check(&[]), RULE, "the rule is deleted");
}

#[test]
fn the_redirection_of_a_running_pod_is_healthy() {
    let stage = edge(8080);
    expect_silent(&stage.check(&[]), RULE, "nothing is redirected");
    redirect(&[("CNI-DN-now", 8080, "10.244.0.7:80")]);
    expect_silent(&stage.check(&[]), RULE, "the pod has the address");
}
