//! In the network of a pod, the pod's connections and its servers share the ports.

use portreeve_facts::{
    DestinationUse, EphemeralUse, Extent, Owner, PodNamespace, Protocol, Reading, Snapshot, Socket, State,
};

use super::{
    objects::{crashing, own_pod, served, with_sysctls},
    served::Served,
    world::{World, in_pod, socket},
};

const RANGE: &str = "net.ipv4.ip_local_port_range";
const RESERVED: &str = "net.ipv4.ip_local_reserved_ports";

fn network(world: &mut Snapshot, namespace: PodNamespace) {
    match &mut world.kernel.pod_namespaces {
        Reading::Seen(namespaces) => namespaces.push(namespace),
        Reading::Gap(gap) => panic!("a gap: {gap:?}"),
    }
}

/// The network of a pod that listens on the ports `listening`. The pod has `used` connections to 10.244.1.5:8888, and
/// `time_wait` of these connections are in TIME_WAIT.
fn busy(uid: &str, used: u32, time_wait: u32, listening: &str) -> PodNamespace {
    let (source, destination) = ("10.244.0.9".parse().expect("an address"), "10.244.1.5".parse().expect("an address"));
    let owner = in_pod(uid, "node");
    let busiest = DestinationUse { protocol: Protocol::Tcp, source, destination, port: 8888, used, time_wait, owner };
    let ports = "1-65535".parse().expect("ports");
    let extent = Extent::Walked { ports, tcp_tw_reuse: Some(2), every: Some(used) };
    let used = EphemeralUse { at_most: used, busiest: vec![busiest], extent };
    PodNamespace { listening: listening.parse().ok(), ..PodNamespace::with_use(uid, Ok(used)) }
}

/// Thread: jupyterhub/configurable-http-proxy#557
/// Symptom: a proxy opens a connection for each request; its pod has no port left towards one server
/// Says: `ephemeral-ports-near-exhaustion/pod` counts the used and the available ports, and names two sysctls that
/// widen the range and keep the server's port
#[test]
fn configurable_http_proxy_557() -> Served {
    let rule = "ephemeral-ports-near-exhaustion/pod";
    let world =
        |pod: &str| World::of(&[pod.to_owned()]).with(|it| network(it, busy("uid-chp", 27_000, 40, "8000-8001")));
    let pod = own_pod("hub/chp", &[8000]);
    let reported = world(&pod)
        .reports(rule, "warning", "Pod hub/chp", "hub/chp")
        .shows("local ports used", "27000 of 28232")
        .advises("set net.ipv4.ip_local_port_range to \"1024 65535\", and ")
        .advises("net.ipv4.ip_local_reserved_ports (safe since Kubernetes 1.27) to \"8000-8001\"");
    world(&with_sysctls(&pod, &[(RANGE, "1024 65535"), (RESERVED, "8000-8001")])).is_silent(rule);
    reported
}

/// Thread: devopsbeast.com/blog/tcp-time-wait-conntrack-exhaustion
/// Symptom: short connections of a pod are in TIME_WAIT, and new connections fail. In the test, the pod has its own
/// range of 4,000 ports
/// Says: `ephemeral-ports-near-exhaustion/pod` counts the used ports of the pod's range, without its reserved ports
#[test]
fn tcp_time_wait_conntrack_exhaustion() -> Served {
    let rule = "ephemeral-ports-near-exhaustion/pod";
    let pod = with_sysctls(&own_pod("shop/cart", &[9000]), &[(RANGE, "20000 23999"), (RESERVED, "20000-20499")]);
    let world =
        |used| World::of(std::slice::from_ref(&pod)).with(|it| network(it, busy("uid-cart", used, used - 9, "9000")));
    let reported = world(3_450)
        .reports(rule, "critical", "Pod shop/cart", "shop/cart")
        .shows("local ports used", "3450 of 3500, 3441 of them in TIME_WAIT")
        .shows("ip_local_port_range", "20000-23999 (the pod's securityContext)")
        .advises("to \"9000,20000-20499\"");
    world(1_400).is_silent(rule);
    reported
}

/// Thread: skypilot-org/skypilot#10426
/// Symptom: a server crash-loops with *address already in use*, although no process in its pod listens on the port. A
/// sidecar's connection has the port
/// Says: `connection-on-port/blocks-in-pod` names the process that has the connection, and the setting that reserves
/// the port in the pod
#[test]
fn skypilot_10426() -> Served {
    let rule = "connection-on-port/blocks-in-pod";
    let world = |pod: &str, sockets: &[Socket]| {
        let none = EphemeralUse::of_every_socket(9);
        let needed = Reading::Seen(sockets.to_vec());
        let own = PodNamespace { needed, ..PodNamespace::with_use("uid-api-server", Ok(none)) };
        let store = served("db/store", "ClusterIP", "5432/TCP", "");
        World::of(&[pod.to_owned(), store]).with(|it| network(it, own))
    };
    let of_pod = |state, local: &str, remote: &str, command: &str| {
        let owner = match state {
            State::TimeWait => Owner::TimeWait,
            _ => in_pod("uid-api-server", command),
        };
        socket(state, local, remote, owner)
    };
    let pod = crashing(&own_pod("sky/api-server", &[46580]));
    let blocks = of_pod(State::Established, "10.244.0.9:46580", "10.96.0.10:5432", "metrics-agent");
    let reported = world(&pod, std::slice::from_ref(&blocks))
        .reports(rule, "warning", "Pod sky/api-server", "process metrics-agent")
        .advises("set net.ipv4.ip_local_reserved_ports (safe since Kubernetes 1.27) to \"46580\"");
    let runs = of_pod(State::Listen, "0.0.0.0:46580", "0.0.0.0:0", "uvicorn");
    world(&pod, &[runs, blocks.clone()]).is_silent(rule);
    let accepted = of_pod(State::TimeWait, "10.244.0.9:46580", "10.244.1.7:51000", "");
    world(&pod, &[accepted]).is_silent(rule);
    world(&with_sysctls(&pod, &[(RESERVED, "46580")]), std::slice::from_ref(&blocks)).is_silent(rule);
    world(&own_pod("sky/api-server", &[46580]), &[blocks]).is_silent(rule);
    reported
}
