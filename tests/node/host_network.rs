//! Pods in the host's network whose port is taken, and pods that wait for a hostPort.

use crate::named::name;
use std::{
    net::{SocketAddr, TcpListener, TcpStream, UdpSocket},
    os::fd::{AsRawFd as _, OwnedFd},
};

use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrStorage, bind, connect, socket};
use serde_json::json;

use crate::{
    in_pods::{Grouped, in_pod},
    near_misses::expect_silent,
    stage::{Scan, Stage, portreeve},
};

/// The status of a pod whose container ends again and again, as kubelet writes it.
const CRASHES: &str = "conditions: [{type: Ready, status: \"False\"}], containerStatuses: [{name: c, ready: false, \
    state: {waiting: {reason: CrashLoopBackOff}}, lastState: {terminated: {exitCode: 1}}}]";
const READY: &str =
    "conditions: [{type: Ready, status: \"True\"}], containerStatuses: [{name: c, ready: true, state: {running: {}}}]";

fn exporter(status: &str) -> Stage {
    Stage::new().document(&format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: exporter-x, namespace: monitoring, uid: uid-exporter, \
         ownerReferences: [{{kind: DaemonSet, name: exporter, controller: true}}]}}\nspec:\n  nodeName: n1\n  hostNetwork: true\n  \
         containers: [{{name: c, ports: [{{containerPort: 9100, hostPort: 9100}}]}}]\n\
         status: {{phase: Running, podIPs: [{{ip: 192.0.2.1}}, {{ip: \"2001:db8::1\"}}], {status}}}"
    ))
}

#[test]
fn a_process_with_the_port_of_a_crashing_host_network_pod_is_reported() {
    let rule = "host-network-port-taken/listener";
    for (place, ends) in [
        ("0.0.0.0:9100", "cannot listen on 9100/tcp."),
        ("[::]:9100", "cannot listen on 9100/tcp."),
        // A listener on 127.0.0.1, such as the streaming server of a container runtime.
        ("127.0.0.1:9100", "cannot listen on 9100/tcp with a socket for all addresses."),
    ] {
        let stage = exporter(CRASHES);
        let listener = TcpListener::bind(place).expect("the port is free");
        let scan = stage.check(&[]);
        let finding = scan.finding(rule, "exporter-x");
        assert_eq!(finding.verdict(), "warning", "{place}");
        assert!(finding.0["summary"].as_str().is_some_and(|it| it.ends_with(ends)), "{:#}", finding.0);
        assert!(finding.evidence().contains(&format!("listener = tcp LISTEN {place}")), "{}", finding.evidence());
        assert!(finding.remedy().contains("in DaemonSet monitoring/exporter"), "{}", finding.remedy());
        drop(listener);
        expect_silent(&stage.check(&[]), rule, "no process listens any more");
    }
}

/// The sentence and the remedy of the finding about the listener of port 9100.
#[track_caller]
fn sentence_and_remedy(scan: &Scan) -> (String, String) {
    let finding = scan.finding("host-network-port-taken/listener", "exporter-x");
    (finding.0["summary"].as_str().expect("a sentence").to_owned(), finding.remedy())
}

#[test]
fn a_listener_of_a_systemd_unit_is_named_with_the_command_that_disables_the_unit() {
    let stage = exporter(CRASHES);
    let told = |unit: &str| {
        let _listener = Grouped::listening("0.0.0.0:9100", &format!("system.slice/{unit}"));
        sentence_and_remedy(&stage.check(&[]))
    };
    let (sentence, remedy) = told("console.socket");
    assert!(sentence.starts_with("Systemd unit console.socket listens on 0.0.0.0:9100"), "{sentence}");
    assert!(remedy.contains("`systemctl disable --now console.socket`"), "{remedy}");
    let (sentence, remedy) = told("systemd-resolved.service");
    assert!(sentence.contains("perl of systemd unit systemd-resolved.service"), "{sentence}");
    assert!(!remedy.contains("systemctl"), "the node needs this unit: {remedy}");
}

/// The test writes the time at which the API server listed the Pods, because files have no such time.
#[test]
fn a_listener_of_a_deleted_pod_is_named_with_the_uid_of_the_pod() {
    const UID: &str = "5c1f9c52-93ab-4a5e-9f0e-6b2a8c4d1e45";
    let told = |stage: &Stage, seconds: i64| {
        let _listener = Grouped::listening("0.0.0.0:9100", &in_pod(UID));
        let mut snapshot = Scan::of(&mut stage.command("snapshot")).json;
        let at: jiff::Timestamp = snapshot["at"].as_str().expect("a time").parse().expect("a time");
        snapshot["pods_at"] = json!(jiff::Timestamp::from_second(at.as_second() + seconds).expect("a time"));
        let path = stage.path("snapshot.json");
        std::fs::write(&path, snapshot.to_string()).expect("a file");
        sentence_and_remedy(&Scan::of(portreeve().args(["check", "-o", "json", "--snapshot"]).arg(path)))
    };
    let stage = exporter(CRASHES);
    let (sentence, remedy) = told(&stage, 600);
    assert!(sentence.starts_with(&format!("A deleted pod (uid {UID}) listens on 0.0.0.0:9100")), "{sentence}");
    assert!(remedy.contains(&format!("crictl ps -a --label io.kubernetes.pod.uid={UID}")), "{remedy}");
    let (sentence, _) = told(&stage, 0);
    assert!(!sentence.contains("deleted"), "the pod may be newer than the list: {sentence}");
    drop(stage);
    let known = format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: edge, namespace: default, uid: {UID}}}\nspec:\n  nodeName: n1\n  \
         hostNetwork: true\n  containers: [{{name: c}}]\nstatus: {{phase: Running, {READY}}}"
    );
    let (sentence, remedy) = told(&exporter(CRASHES).document(&known), 600);
    assert!(sentence.starts_with("Pod default/edge listens on 0.0.0.0:9100"), "{sentence}");
    assert!(!remedy.contains("crictl"), "{remedy}");
}

fn probed(status: &str) -> Stage {
    Stage::new().document(&format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: operator-x, namespace: monitoring, uid: uid-operator}}\nspec:\n  \
         nodeName: n1\n  hostNetwork: true\n  containers: [{{name: c, livenessProbe: {{httpGet: {{port: 9100}}}}}}]\n\
         status: {{phase: Running, podIPs: [{{ip: 192.0.2.1}}], {status}}}"
    ))
}

#[test]
fn a_process_on_a_port_that_only_a_probe_of_a_crashing_pod_names_is_reported() {
    let rule = "host-network-port-taken/listener";
    let stage = probed(CRASHES);
    let listener = TcpListener::bind("0.0.0.0:9100").expect("the port is free");
    let scan = stage.check(&[]);
    let finding = scan.finding(rule, "operator-x");
    assert_eq!(finding.verdict(), "warning");
    assert!(finding.evidence().contains("process = "), "{}", finding.evidence());
    drop(listener);
    expect_silent(&stage.check(&[]), rule, "no process listens any more");
    drop(stage);
    let ready = probed(READY);
    let _listener = TcpListener::bind("0.0.0.0:9100").expect("the port is free");
    expect_silent(&ready.check(&[]), rule, "the pod is ready");
}

#[test]
fn a_ready_pod_another_port_and_another_protocol_block_no_pod() {
    let ready = exporter(READY);
    let listener = TcpListener::bind("0.0.0.0:9100").expect("the port is free");
    expect_silent(&ready.check(&[]), "host-network-port-taken/listener", "the pod is ready");
    drop((ready, listener));
    let crashes = exporter(CRASHES);
    let _beside = TcpListener::bind("0.0.0.0:9101").expect("the port is free");
    let _of_udp = UdpSocket::bind("0.0.0.0:9100").expect("the port is free");
    expect_silent(&crashes.check(&[]), "host-network-port-taken/listener", "port 9101, and 9100 of UDP");
}

pub(crate) fn bound(address: &str) -> OwnedFd {
    let address: SocketAddr = address.parse().expect("an address and port");
    let made = socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, None).expect("a socket");
    bind(made.as_raw_fd(), &SockaddrStorage::from(address)).expect("the port is free");
    made
}

/// Asserts that a server in Go could not listen on port 9100, because the kernel refuses the port.
#[track_caller]
fn cannot_listen() {
    let refused = TcpListener::bind("0.0.0.0:9100").expect_err("the port is taken");
    assert_eq!(refused.kind(), std::io::ErrorKind::AddrInUse);
}

#[test]
fn the_port_of_a_connection_or_a_bound_socket_is_not_suggested_for_a_server() {
    let stage = Stage::new();
    let server = TcpListener::bind("127.0.0.1:7777").expect("the port is free");
    let client = bound("127.0.0.1:10000");
    let to = server.local_addr().expect("an address");
    connect(client.as_raw_fd(), &SockaddrStorage::from(to)).expect("the server listens");
    let datagrams = UdpSocket::bind("127.0.0.1:10001").expect("the port is free");
    datagrams.connect("127.0.0.1:7777").expect("no packet is sent");
    let _idle = bound("192.0.2.1:10002");
    let arguments = ["--host", "--node-port-range", "30000-32767", "--proxy-mode", "iptables", "-o", "json"];
    let scan = Scan::of(stage.command("suggest").args(arguments));
    assert_eq!(scan.json["ports"][0], 10_003, "{:#}", scan.json);
}

#[test]
fn a_connection_or_a_bound_socket_with_the_port_of_a_crashing_pod_is_reported() {
    let rule = "connection-on-port/blocks";
    let stage = exporter(CRASHES);
    let server = TcpListener::bind("127.0.0.1:7777").expect("the port is free");
    let client = bound("127.0.0.1:9100");
    let to = server.local_addr().expect("an address");
    connect(client.as_raw_fd(), &SockaddrStorage::from(to)).expect("the server listens");
    cannot_listen();
    let scan = stage.check(&[]);
    let finding = scan.finding(rule, "exporter-x");
    assert_eq!(finding.verdict(), "warning");
    assert!(
        finding.evidence().contains("socket = tcp ESTAB 127.0.0.1:9100 -> 127.0.0.1:7777"),
        "{}",
        finding.evidence()
    );
    drop((client, server));

    let idle = bound("192.0.2.1:9100");
    cannot_listen();
    let scan = stage.check(&[]);
    let evidence = scan.finding(rule, "exporter-x").evidence();
    assert!(evidence.contains("socket = tcp BOUND 192.0.2.1:9100"), "{evidence}");
    drop(idle);
    expect_silent(&stage.check(&[]), rule, "no socket has the port");
}

/// The output of `owner`, in one line.
fn owner(stage: &Stage, port: &str) -> String {
    let output = stage.command("owner").arg(port).output().expect("portreeve runs");
    String::from_utf8_lossy(&output.stdout).split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn owner_names_a_connection_or_a_bound_socket_on_a_port_that_no_rule_asks_about() {
    let stage = exporter(READY);
    let ask = || owner(&stage, "34572/tcp");
    let is_taken = || TcpListener::bind("0.0.0.0:34572").expect_err("the port is taken");
    assert!(!ask().contains("the same number has"), "{}", ask());
    let server = TcpListener::bind("127.0.0.1:7777").expect("the port is free");
    let client = bound("127.0.0.1:34572");
    let to = server.local_addr().expect("an address");
    connect(client.as_raw_fd(), &SockaddrStorage::from(to)).expect("the server listens");
    is_taken();
    assert!(ask().contains("tcp ESTAB 127.0.0.1:34572 -> 127.0.0.1:7777"), "{}", ask());
    assert!(!ask().contains("no Service, pod or process has it"), "{}", ask());
    drop((client, server));

    let _idle = bound("192.0.2.1:34572");
    is_taken();
    assert!(ask().contains("tcp BOUND 192.0.2.1:34572"), "{}", ask());
    assert!(!ask().contains("no Service, pod or process has it"), "{}", ask());
}

#[test]
fn owner_names_a_pod_that_declares_the_port_and_does_not_listen() {
    let text = owner(&exporter(CRASHES), "9100/tcp");
    let need =
        "hostNetwork pod monitoring/exporter-x a container declares the port, and no process listens on this port";
    assert!(text.contains(need) && !text.contains("no Service, pod or process has it"), "{text}");
}

#[test]
fn a_connection_on_a_port_that_only_a_probe_of_a_crashing_pod_names_is_reported() {
    let rule = "connection-on-port/blocks";
    let connected = |status: &str| {
        let stage = probed(status);
        let server = TcpListener::bind("127.0.0.1:7777").expect("the port is free");
        let client = bound("127.0.0.1:9100");
        let to = server.local_addr().expect("an address");
        connect(client.as_raw_fd(), &SockaddrStorage::from(to)).expect("the server listens");
        stage.check(&[])
    };
    let scan = connected(CRASHES);
    let finding = scan.finding(rule, "operator-x");
    assert_eq!(finding.verdict(), "warning");
    let starts = CRASHES.replace(", lastState: {terminated: {exitCode: 1}}", "");
    expect_silent(&connected(&starts), rule, "another program may answer the probe");
    expect_silent(&probed(CRASHES).check(&[]), rule, "no socket has the port");
}

#[test]
fn the_owner_of_an_address_that_a_container_reported_in_use_is_named() {
    let rule = "host-network-port-taken/listener";
    let said = |at: &str| {
        let message = format!("exitCode: 1, message: \"listen tcp {at}: bind: address already in use\"");
        exporter(&CRASHES.replace("exitCode: 1", &message))
    };
    let stage = said("127.0.0.1:50052");
    let listener = TcpListener::bind("127.0.0.1:50052").expect("the port is free");
    let scan = stage.check(&[]);
    let finding = scan.finding(rule, "exporter-x");
    assert_eq!((finding.verdict().as_str(), &finding.0["port"]), ("warning", &50052.into()));
    assert!(
        finding.evidence().contains("message of a container = 127.0.0.1:50052/tcp is in use"),
        "{}",
        finding.evidence()
    );
    drop(stage);
    for other in ["127.0.0.2:50052", "127.0.0.1:50053"] {
        expect_silent(&said(other).check(&[]), rule, other);
    }
    drop(listener);
}

#[test]
fn accepted_connections_of_an_ended_server_do_not_block_the_next_server() {
    let rule = "connection-on-port/blocks";
    let stage = exporter(CRASHES);
    let server = TcpListener::bind("0.0.0.0:9100").expect("the port is free");
    let client = TcpStream::connect("192.0.2.1:9100").expect("the server listens");
    let accepted = server.accept().expect("a connection");
    drop(server);
    expect_silent(&stage.check(&[]), rule, "the connection was accepted");
    drop((client, accepted));
}

/// `place` says whether the pod is on a node or waits.
fn service_lb(service: &str, port: u16, place: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: svclb-{service}-x, namespace: kube-system, uid: uid-{service}-x, labels: \
         {{svccontroller.k3s.cattle.io/svcname: {service}, svccontroller.k3s.cattle.io/svcnamespace: default}}, \
         ownerReferences: [{{kind: DaemonSet, name: svclb-{service}, controller: true}}]}}\nspec:\n  \
         containers: [{{name: lb, ports: [{{containerPort: {port}, hostPort: {port}, protocol: TCP}}]}}]\n{place}"
    )
}

const RUNS: &str = "  nodeName: n1\nstatus: {phase: Running, conditions: [{type: Ready, status: \"True\"}]}";

/// The status of a pod for which no node has a free port, as the scheduler writes it.
const WAITS: &str = "status: {phase: Pending, conditions: [{type: PodScheduled, status: \"False\", reason: Unschedulable, \
    message: \"0/2 nodes are available: 1 node(s) didn't have free ports for the requested pod ports, 1 node(s) didn't match \
    Pod's node affinity.\"}]}";

fn waits_for(node: &str) -> String {
    format!(
        "  affinity: {{nodeAffinity: {{requiredDuringSchedulingIgnoredDuringExecution: {{nodeSelectorTerms: \
         [{{matchFields: [{{key: metadata.name, operator: In, values: [{node}]}}]}}]}}}}}}\n{WAITS}"
    )
}

#[test]
fn a_pod_that_waits_for_the_host_port_of_another_pod_is_reported_with_its_service() {
    let stage = Stage::new().service("web", "TCP", 30080, "");
    let stage = stage.document(&service_lb("gate", 80, RUNS)).document(&service_lb("web", 80, &waits_for("n1")));
    let scan = stage.check(&[]);
    let finding = scan.finding("pod-waits-for-port/pod", "web");
    assert_eq!((finding.verdict().as_str(), &finding.0["subject"]["kind"]), ("warning", &"Service".into()));
    assert_eq!(finding.0["scope"], "node", "on other nodes another pod may have it");
    let evidence = finding.evidence();
    assert!(evidence.contains("pending = pod kube-system/svclb-web-x"), "{evidence}");
    assert!(evidence.contains("which serves = Service default/gate"), "{evidence}");
    let alarms: Vec<_> = scan.alarms().into_iter().map(name).collect();
    assert_eq!(alarms, ["pod-waits-for-port/pod"], "a pod without a node has no hostPort here");
}

#[test]
fn a_pod_that_waits_for_a_port_of_any_node_is_reported_once_for_the_cluster() {
    let stage = Stage::new().service("web", "TCP", 30080, "");
    let scan = stage.document(&service_lb("gate", 80, RUNS)).document(&service_lb("web", 80, WAITS)).check(&[]);
    let finding = scan.finding("pod-waits-for-port/pod", "web").0;
    assert_eq!((&finding["severity"], &finding["scope"]), (&"warning".into(), &"cluster".into()));
    assert!(finding["summary"].as_str().is_some_and(|it| it.ends_with("is taken on every node that it could use.")));
}

#[test]
fn a_pod_that_waits_for_another_port_or_node_is_not_blocked_here() {
    for (port, node) in [(81, "n1"), (80, "n2")] {
        let stage = Stage::new().service("web", "TCP", 30080, "").document(&service_lb("gate", 80, RUNS));
        let scan = stage.document(&service_lb("web", port, &waits_for(node))).check(&[]);
        expect_silent(&scan, "pod-waits-for-port/pod", &format!("port {port}, node {node}"));
    }
}
