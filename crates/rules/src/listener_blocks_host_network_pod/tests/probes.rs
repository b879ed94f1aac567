//! Ports that no container declares, and to which a probe connects.

use super::*;

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

/// A failing pod. The pod's container reported that this address is in use, and process `driver` listens on the
/// address.
fn said(host_ip: Option<&str>, port: u16, change: impl FnOnce(&mut Pod)) -> Snapshot {
    let world = exporter(|pod| {
        pod.ports.clear();
        pod.failing = true;
        let host_ip = host_ip.map(ip);
        pod.reported_in_use.push(ContainerPort { port, host_port: None, host_ip, protocol: Protocol::Tcp });
        change(pod);
    });
    world.listens_as("127.0.0.1:50052", daemon("driver", 700))
}

#[test]
fn who_has_an_address_of_which_a_container_said_that_it_is_in_use_is_named_and_nothing_is_claimed() {
    let world = said(Some("127.0.0.1"), 50052, |_| ());
    let evidence = expect_problem(&RULE, &world, &subject());
    assert_eq!(evidence.severity, Severity::Warning);
    let sentence = "Process driver listens on 127.0.0.1:50052/tcp: a container of hostNetwork pod default/exporter, which is not ready, \
                    ended with the message that this address is in use.";
    assert_eq!(evidence.summary, sentence);
    assert!(
        evidence.values.contains(&("message of a container", "127.0.0.1:50052/tcp is in use".to_owned())),
        "{evidence:#?}"
    );
    let steps: Vec<_> = evidence.remedies.iter().flat_map(|it| &it.steps).collect();
    assert!(!steps.iter().any(|it| it.text.contains("ip_local_reserved_ports")), "a tenant's text reserves nothing");
    assert_eq!(severity(&said(None, 50052, |_| ())), Severity::Warning, "every address");
    for silent in [
        said(Some("127.0.0.1"), 50053, |_| ()),
        said(Some("127.0.0.2"), 50052, |_| ()),
        said(Some("127.0.0.1"), 50052, |pod| pod.ready = true),
        said(Some("127.0.0.1"), 50052, |pod| pod.host_network = false),
    ] {
        expect_healthy(&RULE, &silent, &subject());
    }
    let mut unread = said(Some("127.0.0.1"), 50052, |_| ());
    unread.kernel.listeners = gap(Source::Listeners, Why::Torn);
    assert_eq!(expect_unknown(&RULE, &unread, &subject()).source, Source::Listeners);
}

#[test]
fn what_a_container_said_is_shown_where_the_port_is_declared() {
    let world = exporter(|pod| {
        pod.failing = true;
        pod.reported_in_use = pod.ports.iter().map(|port| ContainerPort { host_port: None, ..port.clone() }).collect();
    });
    let world = world.listens_as("0.0.0.0:9100", process());
    let evidence = expect_problem(&RULE, &world, &subject());
    assert!(evidence.values.iter().any(|(name, _)| *name == "message of a container"), "{evidence:#?}");
    assert!(evidence.summary.contains("cannot listen"), "{}", evidence.summary);
}
