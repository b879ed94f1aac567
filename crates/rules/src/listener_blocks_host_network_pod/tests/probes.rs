//! Ports that only a probe names.

use super::*;

/// A pod whose probe asks 10250 at this host, and that declares no port.
fn probed(host_ip: Option<&str>, change: impl FnOnce(&mut Pod)) -> Snapshot {
    exporter(|pod| {
        pod.ports.clear();
        let host_ip = host_ip.map(ip);
        pod.probed.push(ContainerPort { port: 10250, host_port: None, host_ip, protocol: Protocol::Tcp });
        change(pod);
    })
}

fn kubelet() -> Owner {
    daemon("kubelet", 700)
}

#[test]
fn a_process_on_a_port_that_only_a_probe_names_is_told() {
    let failing = probed(None, |pod| pod.failing = true);
    let evidence = expect_problem(&RULE, &failing, &subject());
    assert_eq!(evidence.severity, Severity::Warning);
    assert!(evidence.summary.contains("a probe's port of hostNetwork pod default/exporter"), "{}", evidence.summary);
    assert!(evidence.summary.ends_with("the pod cannot listen on 10250/tcp."), "{}", evidence.summary);
    assert!(evidence.remedies[0].steps[0].text.starts_with("give pod default/exporter another port"));
    let waits = probed(None, |_| ());
    assert_eq!(severity(&waits), Severity::Info, "the probe may be meant for who has it");
    let ready = probed(None, |pod| (pod.failing, pod.ready) = (true, true));
    expect_healthy(&RULE, &ready, &subject());
}

#[test]
fn what_a_probe_asks_of_loopback_is_no_other_address() {
    let world = |at: &str| {
        let mut world = probed(Some("127.0.0.1"), |pod| pod.failing = true);
        seen(&mut world.kernel.listeners).retain(|socket| socket.local_port != 10250);
        world.listens_as(at, kubelet())
    };
    expect_healthy(&RULE, &world("192.0.2.1:10250"), &subject());
    assert_eq!(severity(&world("127.0.0.1:10250")), Severity::Warning);
    assert_eq!(severity(&world("[::]:10250")), Severity::Warning);
}

#[test]
fn a_pod_that_has_the_port_of_its_probe_is_not_told() {
    let mut world = probed(None, |pod| pod.running = Some(true));
    seen(&mut world.kernel.listeners).retain(|socket| socket.local_port != 10250);
    let own = held("/kubepods/poduid-exporter/c", Some("uid-exporter"), "exporter", 9);
    expect_healthy(&RULE, &world.clone(), &subject());
    expect_healthy(&RULE, &world.listens_as("[::]:10250", own), &subject());
}

#[test]
fn behind_cilium_a_probe_at_a_node_port_is_a_warning_once_a_container_failed() {
    let world = |failing| {
        let mut world = probed(None, |pod| pod.failing = failing).with_mode(Mode::Cilium);
        seen(&mut world.kernel.listeners).retain(|socket| socket.local_port != 10250);
        world.node_port_range("10000-32767").service("web", |it| it.node_port(10250))
    };
    assert_eq!(severity(&world(true)), Severity::Warning);
    assert_eq!(severity(&world(false)), Severity::Info);
}
