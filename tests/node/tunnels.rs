//! Tunnels that need the same UDP port, on a real kernel.

use std::{net::UdpSocket, process::Command, time::Duration};

use serde_json::Value;

use crate::{
    near_misses::expect_silent,
    stage::{Elsewhere, Stage, ip, iptables, portreeve},
};

const NOT_READY: &str = "apiVersion: v1\nkind: Pod\nmetadata: {name: fabric-agent-k4, namespace: fabric-system, uid: uid-fabric, \
     ownerReferences: [{kind: DaemonSet, name: fabric-agent, controller: true}]}\nspec:\n  nodeName: n1\n  hostNetwork: true\n  \
     containers: [{name: c}]\nstatus: {phase: Running, conditions: [{type: Ready, status: \"False\"}], \
     containerStatuses: [{name: c, ready: false, state: {running: {}}}]}";

/// Checks that `ip link set NAME up` fails, because another tunnel or process has the port.
#[track_caller]
fn is_kept_down(name: &str) {
    let output = Command::new("ip").args(["link", "set", name, "up"]).output().expect("`ip` of iproute2 is installed");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && error.contains("Address already in use"), "{name}: {error}");
}

fn owner(stage: &Stage) -> String {
    let mut command = portreeve();
    let output =
        command.args(["owner", "4789/udp", "--services"]).arg(stage.manifest()).args(["--node", "n1"]).output();
    String::from_utf8_lossy(&output.expect("portreeve runs").stdout).into_owned()
}

#[test]
fn a_tunnel_that_another_tunnel_keeps_down_is_reported_and_owner_names_the_tunnel_that_is_up() {
    let stage = Stage::new();
    ip("link add ring0 type vxlan id 77 dstport 4789 dev eth0");
    ip("link set ring0 up");
    ip("link add fabric.vx type vxlan external dstport 4789");
    is_kept_down("fabric.vx");
    let scan = stage.check(&[]);
    let finding = scan.finding("tunnel-port-conflict/devices", "n1");
    assert_eq!((finding.verdict().as_str(), &finding.0["port"]), ("info", &Value::from(4789)));
    let evidence = finding.evidence();
    assert!(evidence.contains("down = fabric.vx: vxlan, external"), "{evidence}");
    assert!(evidence.contains("up = ring0: vxlan, id 77"), "{evidence}");
    for name in ["ring0", "tunnel fabric.vx"] {
        assert!(owner(&stage).contains(name), "{name}: {}", owner(&stage));
    }

    let stage = stage.document(NOT_READY);
    let scan = stage.check(&[]);
    let finding = scan.finding("tunnel-port-conflict/devices", "n1");
    assert_eq!(finding.verdict(), "warning");
    assert!(finding.evidence().contains("fabric-system/fabric-agent-k4"), "{}", finding.evidence());

    ip("link set ring0 down");
    expect_silent(&stage.check(&[]), "tunnel-port-conflict/devices", "no tunnel has the port");
}

#[test]
fn two_tunnels_with_the_same_options_share_a_port_if_one_or_both_are_up() {
    let stage = Stage::new().document(NOT_READY);
    ip("link add flannel.1 type vxlan id 1 dstport 8472 dev eth0");
    ip("link add flannel.2 type vxlan id 2 dstport 8472 dev eth0 nolearning");
    ip("link add geneva type vxlan id 3 dstport 8472 local ::1 gbp");
    for name in ["flannel.1", "flannel.2", "geneva"] {
        ip(&format!("link set {name} up"));
        for rule in ["tunnel-port-conflict/devices", "tunnel-port-conflict/listener"] {
            expect_silent(&stage.check(&[]), rule, name);
        }
    }
}

#[test]
fn a_process_that_keeps_a_tunnel_down_is_named() {
    let stage = Stage::new().document(NOT_READY);
    ip("link add flannel.1 type vxlan id 1 dstport 4789 dev eth0");
    let rule = "tunnel-port-conflict/listener";
    expect_silent(&stage.check(&[]), rule, "no process has the port");
    let socket = UdpSocket::bind("127.0.0.1:4789").expect("the port is free");
    is_kept_down("flannel.1");
    let scan = stage.check(&[]);
    let finding = scan.finding(rule, "n1");
    assert_eq!(finding.verdict(), "warning");
    let sentence = finding.0["summary"].as_str().expect("a sentence");
    assert!(sentence.ends_with("listens on 127.0.0.1:4789/udp."), "{sentence}");
    assert!(
        sentence.contains("process ") && !sentence.contains("kernel"),
        "a tunnel that is down holds nothing: {sentence}"
    );
    assert!(!owner(&stage).contains("the kernel"), "{}", owner(&stage));
    drop(socket);
    expect_silent(&stage.check(&[]), rule, "no process has the port any more");
}

/// As in Docker Swarm: the link is in another network namespace, but its port is on the node.
#[test]
fn a_port_of_a_link_in_another_namespace_is_reported_without_the_name_of_the_link() {
    let stage = Stage::new();
    ip("link add vx-1 type vxlan id 78 dstport 4789 dev eth0");
    let other = Elsewhere::new();
    ip(&format!("link set vx-1 netns {}", other.pid()));
    other.ip("link set vx-1 up");
    ip("link add fabric.vx type vxlan external dstport 4789");
    is_kept_down("fabric.vx");
    let scan = stage.check(&[]);
    let finding = scan.finding("tunnel-port-conflict/listener", "n1");
    assert!(finding.evidence().contains("listener = udp UNCONN 0.0.0.0:4789"), "{}", finding.evidence());
}

#[test]
fn a_tunnels_port_that_rules_exclude_from_conntrack_is_information() {
    let stage = Stage::new();
    ip("link add overlay0 type vxlan external dstport 8472");
    ip("link set overlay0 up");
    iptables("raw", "-N OVERLAY_PRE_raw");
    iptables("raw", "-A PREROUTING -j OVERLAY_PRE_raw");
    iptables("raw", "-A OVERLAY_PRE_raw -p udp -m udp --dport 8472 -m comment --comment tunnel -j CT --notrack");
    let scan = stage.check(&["--proxy-mode", "iptables"]);
    let finding = scan.finding("masquerade-source-ports/tunnel", "n1");
    assert_eq!((finding.verdict().as_str(), &finding.0["port"]), ("info pods", &Value::from(8472)));
    assert!(finding.evidence().contains("tunnel = overlay0 has 8472/udp"), "{}", finding.evidence());

    let elsewhere = Elsewhere::linked("near", "198.51.100.1", "198.51.100.7");
    let server = elsewhere.run(|| UdpSocket::bind("198.51.100.7:69").expect("the port is free"));
    server.set_read_timeout(Some(Duration::from_secs(10))).expect("an option of a socket");
    let asked = |masquerade: u16| {
        iptables("nat", &format!("-I POSTROUTING -p udp --dport 69 -j MASQUERADE --to-ports {masquerade}"));
        let client = UdpSocket::bind("198.51.100.1:0").expect("a free port");
        client.set_read_timeout(Some(Duration::from_secs(1))).expect("an option of a socket");
        client.send_to(b"?", "198.51.100.7:69").expect("the kernel has a route");
        let (_, from) = server.recv_from(&mut [0]).expect("a request");
        server.send_to(b"!", from).expect("the kernel has a route");
        (from.port(), client.recv(&mut [0]).is_ok())
    };
    assert_eq!(asked(8473), (8473, true));
    assert_eq!(asked(8472), (8472, false), "conntrack does not translate the answer back");
}

#[test]
fn a_port_without_a_tunnel_and_a_tracked_port_lose_no_answers() {
    let stage = Stage::new();
    ip("link add overlay0 type vxlan external dstport 8472");
    ip("link set overlay0 up");
    // Each rule leaves packets of the tunnel in conntrack: it matches only another port, only answers, or only some
    // clients.
    iptables("raw", "-A PREROUTING -p udp --dport 8473 -j CT --notrack");
    iptables("raw", "-A PREROUTING -p udp --sport 8472 -j CT --notrack");
    iptables("raw", "-A PREROUTING -p udp --dport 8472 -s 192.0.2.9 -j CT --notrack");
    expect_silent(&stage.check(&["--proxy-mode", "iptables"]), "masquerade-source-ports/tunnel", "no such rule");
}
