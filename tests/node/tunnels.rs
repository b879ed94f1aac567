//! Tunnels that need the same UDP port, on a real kernel.

use std::{net::UdpSocket, process::Command};

use serde_json::Value;

use crate::{
    near_misses::expect_silent,
    stage::{Stage, ip, portreeve},
};

const NOT_READY: &str = "apiVersion: v1\nkind: Pod\nmetadata: {name: calico-node-x2, namespace: calico-system, uid: uid-calico, \
     ownerReferences: [{kind: DaemonSet, name: calico-node, controller: true}]}\nspec:\n  nodeName: n1\n  hostNetwork: true\n  \
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
    ip("link add swarm0 type vxlan id 4096 dstport 4789 dev eth0");
    ip("link set swarm0 up");
    ip("link add vxlan.calico type vxlan external dstport 4789");
    is_kept_down("vxlan.calico");
    let scan = stage.check(&[]);
    let finding = scan.finding("tunnel-port-conflict/devices", "n1");
    assert_eq!((finding.verdict().as_str(), &finding.0["port"]), ("info", &Value::from(4789)));
    let evidence = finding.evidence();
    assert!(evidence.contains("down = vxlan.calico: vxlan, external"), "{evidence}");
    assert!(evidence.contains("up = swarm0: vxlan, id 4096"), "{evidence}");
    for name in ["swarm0", "tunnel vxlan.calico"] {
        assert!(owner(&stage).contains(name), "{name}: {}", owner(&stage));
    }

    let stage = stage.document(NOT_READY);
    let scan = stage.check(&[]);
    let finding = scan.finding("tunnel-port-conflict/devices", "n1");
    assert_eq!(finding.verdict(), "warning");
    assert!(finding.evidence().contains("calico-system/calico-node-x2"), "{}", finding.evidence());

    ip("link set swarm0 down");
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
    ip("link add vx-1 type vxlan id 4096 dstport 4789 dev eth0");
    let other = Elsewhere::new();
    ip(&format!("link set vx-1 netns {}", other.pid()));
    other.ip("link set vx-1 up");
    ip("link add vxlan.calico type vxlan external dstport 4789");
    is_kept_down("vxlan.calico");
    let scan = stage.check(&[]);
    let finding = scan.finding("tunnel-port-conflict/listener", "n1");
    assert!(finding.evidence().contains("listener = udp UNCONN 0.0.0.0:4789"), "{}", finding.evidence());
}

/// A second network namespace. The namespace ends when this value is dropped.
struct Elsewhere(std::process::Child);

impl Elsewhere {
    fn new() -> Self {
        use std::io::Read as _;
        let mut command = Command::new("unshare");
        command.args(["--net", "sh", "-c", "echo; exec cat"]).stdin(std::process::Stdio::piped());
        let mut child =
            command.stdout(std::process::Stdio::piped()).spawn().expect("`unshare` of util-linux is installed");
        child.stdout.as_mut().expect("a pipe").read_exact(&mut [0]).expect("the namespace exists");
        Self(child)
    }

    fn pid(&self) -> u32 {
        self.0.id()
    }

    fn ip(&self, arguments: &str) {
        let mut command = Command::new("nsenter");
        command.args(["--net", "--target", &self.pid().to_string(), "ip"]).args(arguments.split(' '));
        assert!(command.status().expect("`nsenter` of util-linux is installed").success(), "ip {arguments}");
    }
}

impl Drop for Elsewhere {
    fn drop(&mut self) {
        self.0.kill().expect("the process runs");
        self.0.wait().expect("the process ends");
    }
}

/// Adds a rule to the table `raw`, as network plugins do.
fn iptables(arguments: &str) {
    let status = Command::new("iptables-nft").args(["-w", "-t", "raw"]).args(arguments.split(' ')).status();
    assert!(status.expect("the program iptables-nft, of the package iptables").success(), "{arguments}");
}

#[test]
fn a_tunnels_port_that_rules_exclude_from_conntrack_is_information() {
    let stage = Stage::new();
    ip("link add overlay0 type vxlan external dstport 8472");
    ip("link set overlay0 up");
    iptables("-N OVERLAY_PRE_raw");
    iptables("-A PREROUTING -j OVERLAY_PRE_raw");
    iptables("-A OVERLAY_PRE_raw -p udp -m udp --dport 8472 -m comment --comment tunnel -j CT --notrack");
    let scan = stage.check(&["--proxy-mode", "iptables"]);
    let finding = scan.finding("masquerade-source-ports/tunnel", "n1");
    assert_eq!((finding.verdict().as_str(), &finding.0["port"]), ("info pods", &Value::from(8472)));
    assert!(finding.evidence().contains("tunnel = overlay0 has 8472/udp"), "{}", finding.evidence());
}

#[test]
fn a_port_without_a_tunnel_and_a_tracked_port_lose_no_answers() {
    let stage = Stage::new();
    ip("link add overlay0 type vxlan external dstport 8472");
    ip("link set overlay0 up");
    // Each rule leaves packets of the tunnel in conntrack: it matches only another port, only answers, or only some
    // clients.
    iptables("-A PREROUTING -p udp --dport 8473 -j CT --notrack");
    iptables("-A PREROUTING -p udp --sport 8472 -j CT --notrack");
    iptables("-A PREROUTING -p udp --dport 8472 -s 192.0.2.9 -j CT --notrack");
    expect_silent(&stage.check(&["--proxy-mode", "iptables"]), "masquerade-source-ports/tunnel", "no such rule");
}
