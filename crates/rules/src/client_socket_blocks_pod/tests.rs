use super::*;
use crate::{
    expectations::{expect_healthy, expect_problem, expect_unknown},
    findings::Effect,
};
use portreeve_facts::{
    PodNamespace, Protocol, Service,
    healthy::{gap, held, objects, seen},
};

/// Pod `api` with these connections (local port, remote, state). A failing container of the pod declares 46580.
fn world(sockets: &[(u16, &str, State)]) -> Snapshot {
    let at = |service: &mut Service| {
        service.cluster_ips = vec![[10, 96, 0, 77].into()];
        service.ports[0].port = 9042;
    };
    let mut world = Snapshot::healthy().service("store", |it| it.with(at)).pod("api", |pod| {
        pod.ready = false;
        pod.failing = true;
        pod.own_ports = [46580, 46581].map(tcp).into();
    });
    let needed = sockets.iter().map(|(local, remote, state)| socket(*local, remote, *state)).collect();
    let own = PodNamespace::with_use("uid-api", Err(Gap::new(Source::PodNamespaces, Why::Torn, "not of interest")));
    seen(&mut world.kernel.pod_namespaces).push(PodNamespace { needed: Reading::Seen(needed), ..own });
    world
}

fn tcp(port: u16) -> ContainerPort {
    ContainerPort { port, host_port: None, host_ip: None, protocol: Protocol::Tcp }
}

fn socket(local_port: u16, remote: &str, state: State) -> Socket {
    let remote: std::net::SocketAddr = remote.parse().expect("an address");
    let owner = match state {
        State::TimeWait => Owner::TimeWait,
        _ => held("/kubepods/besteffort/poduid-api/envoy", Some("uid-api"), "envoy", 4243),
    };
    let mut world = Snapshot::healthy().listens_as("10.244.0.9:1", owner);
    let listener = seen(&mut world.kernel.listeners).pop().expect("the last one");
    Socket { local_port, remote: remote.ip(), remote_port: remote.port(), state, ..listener }
}

fn subject(world: &Snapshot) -> Subject {
    Subject::pod(&world.cluster.pods.seen().expect("pods")[0])
}

fn change(mut world: Snapshot, change: impl Fn(&mut Pod)) -> Snapshot {
    objects(&mut world.cluster.pods).into_iter().for_each(change);
    world
}

const PEER: &str = "198.51.100.7:51811";
const TO_A_SERVER: (u16, &str, State) = (46580, "198.51.100.7:443", State::Established);

#[test]
fn without_this_nodes_name_a_failing_pod_of_any_node_may_be_here() {
    let world = world(&[TO_A_SERVER]).unnamed();
    let node = Subject::this_node(&world);
    assert_eq!(expect_unknown(&RULE, &world, &node).source, Source::Nodes);
    expect_healthy(&RULE, &change(world, |pod| pod.failing = false), &node);
}

#[test]
fn a_connection_of_a_sidecar_keeps_a_server_of_the_pod_from_its_port() {
    let world = world(&[TO_A_SERVER]);
    let evidence = expect_problem(&RULE, &world, &subject(&world));
    assert_eq!(evidence.variant, "blocks-in-pod");
    let sentence = "In pod default/api, process envoy has an outgoing connection from port 46580/tcp, on which no process listens: the server of the pod cannot listen on this port.";
    assert_eq!((evidence.summary.as_str(), evidence.severity), (sentence, Severity::Warning));
    let steps = &evidence.remedies[0].steps;
    let reserved = "46580-46581".parse().expect("ports");
    let effect = Effect::ChooseInPod(("default".to_owned(), "api".to_owned()), None, reserved);
    assert_eq!(steps[0].effect(), Some(&effect));
    assert!(steps[1].text.contains("restart the container of process envoy"), "{}", steps[1].text);
    let waits = self::world(&[(46580, "198.51.100.7:443", State::TimeWait)]);
    let evidence = expect_problem(&RULE, &waits, &subject(&waits));
    assert!(evidence.summary.contains("a connection in TIME_WAIT has port 46580/tcp"), "{}", evidence.summary);
    assert!(evidence.remedies[0].steps[1].text.starts_with("wait a minute"));
}

#[test]
fn that_the_pod_opened_it_is_told_by_its_state_and_by_its_peer() {
    let cluster_ip = "10.96.0.77:9042";
    for (sockets, why) in [
        (&[(46580, PEER, State::SynSent)][..], "it asks"),
        (&[(46580, "198.51.100.7:53", State::FinWait1)], "a server's port"),
        (&[(46580, cluster_ip, State::Established)], "a Service"),
        (&[(46580, PEER, State::Established), (50000, PEER, State::Established)], "another connection leads there"),
    ] {
        let world = world(sockets);
        assert_eq!(expect_problem(&RULE, &world, &subject(&world)).severity, Severity::Warning, "{why}");
    }
    for sockets in [
        &[(46580, PEER, State::Established)][..],
        &[(46580, "10.96.0.77:9043", State::Established)],
        &[(46580, PEER, State::TimeWait)],
        &[(46580, PEER, State::Established), (46581, PEER, State::Established)],
        &[(46580, PEER, State::Established), (50000, "198.51.100.8:51811", State::Established)],
    ] {
        let world = world(sockets);
        assert_eq!(expect_unknown(&RULE, &world, &subject(&world)).why, Why::Ambiguous, "{sockets:?}");
    }
}

#[test]
fn what_the_server_accepted_and_what_others_have_is_no_hindrance() {
    let silent = |world: Snapshot| expect_healthy(&RULE, &world, &subject(&world));
    silent(world(&[]));
    silent(world(&[TO_A_SERVER, (46580, "0.0.0.0:0", State::Listen)]));
    silent(world(&[(46580, PEER, State::SynRecv)]));
    silent(world(&[(46582, "198.51.100.7:443", State::Established)]));
    let narrow = |range: &str| change(world(&[TO_A_SERVER]), |pod| pod.ip_local_port_range = range.parse().ok());
    silent(narrow("50000 50999"));
    assert_eq!(
        expect_problem(&RULE, &narrow("46000 46999"), &subject(&narrow("46000 46999"))).severity,
        Severity::Warning
    );
    silent(change(world(&[TO_A_SERVER]), |pod| pod.ip_local_reserved_ports = "46580".parse().ok()));
    silent(change(world(&[TO_A_SERVER]), |pod| pod.own_ports[0].protocol = Protocol::Udp));
    silent(change(world(&[TO_A_SERVER]), |pod| pod.own_ports[0].host_ip = Some([127, 0, 0, 1].into())));
}

#[test]
fn a_pod_that_does_not_fail_ends_or_is_elsewhere_is_silent() {
    let silent = |of_pod: fn(&mut Pod)| {
        let world = change(world(&[TO_A_SERVER]), of_pod);
        expect_healthy(&RULE, &world, &subject(&world));
    };
    silent(|pod| pod.failing = false);
    silent(|pod| pod.finished = true);
    silent(|pod| pod.host_network = true);
    silent(|pod| pod.node = Some("n2".to_owned()));
    silent(|pod| pod.own_ports.clear());
    let mut ends = world(&[TO_A_SERVER]);
    let now = ends.at;
    objects(&mut ends.cluster.pods)[0].ends = Some(now);
    expect_healthy(&RULE, &ends, &subject(&ends));
    let runs_for = |seconds: i64| {
        let mut world = world(&[TO_A_SERVER]);
        let since = jiff::Timestamp::from_second(world.at.as_second() - seconds).expect("a time");
        objects(&mut world.cluster.pods)[0].restarted = Some(since);
        world
    };
    expect_healthy(&RULE, &runs_for(600), &subject(&ends));
    expect_problem(&RULE, &runs_for(599), &subject(&ends));
}

#[test]
fn what_was_not_read_is_unknown_and_a_pod_without_a_network_is_not() {
    let mut unread = world(&[TO_A_SERVER]);
    unread.kernel.pod_namespaces = gap(Source::PodNamespaces, Why::NotPermitted);
    assert_eq!(expect_unknown(&RULE, &unread, &subject(&unread)).why, Why::NotPermitted);
    let mut too_many = world(&[TO_A_SERVER]);
    seen(&mut too_many.kernel.pod_namespaces)[0].needed = gap(Source::PodNamespaces, Why::TooMuch);
    assert_eq!(expect_unknown(&RULE, &too_many, &subject(&too_many)).why, Why::TooMuch);
    let mut without = world(&[TO_A_SERVER]);
    seen(&mut without.kernel.pod_namespaces).clear();
    expect_healthy(&RULE, &without, &subject(&without));
    let mut pods = world(&[TO_A_SERVER]);
    pods.cluster.pods = gap(Source::Pods, Why::Unreachable);
    assert_eq!(expect_unknown(&RULE, &pods, &subject(&world(&[]))).source, Source::Pods);
}

fn held_by(id: &str, remote: &str) -> Snapshot {
    let mut world = change(world(&[(46580, remote, State::Established)]), |pod| {
        let ports = |id: &str, port| portreeve_facts::ContainerPorts { id: id.to_owned(), ports: vec![port] };
        pod.containers = vec![ports("server", 46580), ports("envoy", 15001)];
    });
    let own = &mut seen(&mut world.kernel.pod_namespaces)[0].needed;
    let Owner::Held(holder) = &mut seen(own)[0].owner else { panic!("held") };
    seen(&mut holder.cgroup).pod.as_mut().expect("a pod").container = Some(id.to_owned());
    world
}

#[test]
fn what_the_container_of_the_server_holds_was_accepted() {
    let with = |id: &str| held_by(id, PEER);
    expect_healthy(&RULE, &with("server"), &subject(&with("server")));
    assert_eq!(expect_unknown(&RULE, &with("envoy"), &subject(&with("envoy"))).why, Why::Ambiguous);
    assert_eq!(expect_unknown(&RULE, &with("gone"), &subject(&with("gone"))).why, Why::Ambiguous);
}

#[test]
fn a_service_that_was_not_read_may_be_the_peer() {
    let to_service = held_by("server", "10.96.0.77:9042");
    let subject = subject(&to_service);
    expect_problem(&RULE, &to_service, &subject);
    let mut unread = to_service.clone();
    unread.cluster.services = gap(Source::Services, Why::Unreachable);
    let reported = expect_unknown(&RULE, &unread, &subject);
    assert_eq!((reported.source, reported.why), (Source::Services, Why::Unreachable));
    let mut rejected = to_service;
    seen(&mut rejected.cluster.services).retain(|service| service.name != "store");
    expect_healthy(&RULE, &rejected, &subject);
    rejected.cluster.rejected.push(Gap::new(Source::Services, Why::Malformed, "of Service default/store, its ports"));
    let reported = expect_unknown(&RULE, &rejected, &subject);
    assert_eq!((reported.source, reported.why), (Source::Services, Why::Malformed));
}
