//! A process or a connection has a healthCheckNodePort before kube-proxy starts. The tests compare the answer to a load
//! balancer's probe with the report.

use crate::parts::named::is_of;
use std::{collections::BTreeSet, net::SocketAddr};

use nix::{
    libc::linger,
    sys::socket::{setsockopt, sockopt},
};
use portreeve_facts::Protocol;
use serde_json::json;

use super::{
    Held,
    binds::BINDS,
    outgoing::{echo, open, works},
};
use crate::{
    look::Look,
    parts::{Answer, ControlPlane, PRIMARY, Proxy, Wired, http_get, objects},
};

/// Four healthCheckNodePorts. The first port is free. A process has the second port on all addresses, and the third
/// port on 127.0.0.1. An outgoing connection has the fourth port. All four ports are in the static band (the 86 lowest
/// numbers of the range), from which the API server chooses no NodePort (KEP-3668).
const PORTS: [u16; 4] = [30001, 30002, 30003, 30004];

#[track_caller]
pub fn agrees(mode: &str) {
    let wired = Wired::enter();
    wired.client.run(echo);
    let processes = [(1, PORTS[1]), (3, PORTS[2])]
        .map(|(bind, port): (usize, u16)| Held::on(&BINDS[bind], Protocol::Tcp, port, Answer::Process));
    let connection = open(Protocol::Tcp, PORTS[3]);
    assert!(works(&connection), "there is no proxy yet");
    let cluster = ControlPlane::start();
    cluster.api().create(&objects::node("n1", &PRIMARY));
    for port in PORTS {
        let mut balancer = objects::service(&format!("lb-{port}"), &[objects::port(80, None)]);
        balancer["spec"]["type"] = json!("LoadBalancer");
        balancer["spec"]["externalTrafficPolicy"] = json!("Local");
        balancer["spec"]["healthCheckNodePort"] = json!(port);
        let balancer = cluster.api().create(&balancer);
        for (family, address) in ["IPv4", "IPv6"].into_iter().zip(Wired::HERE) {
            cluster.api().create(&objects::endpoint_slice(&balancer, Some((address, "n1")), family));
        }
    }
    let mut proxy = Proxy::start(&cluster, mode, &json!({}));
    let lost = unserved(&wired);
    assert!(!lost.contains(&PORTS[0]) && lost.contains(&PORTS[1]) && lost.contains(&PORTS[3]), "{mode}: {lost:?}");
    assert_eq!(told(&cluster), lost, "{mode}: what is not answered is told");
    let events = cluster.api().text("/apis/events.k8s.io/v1/events").expect("events can be listed");
    let failed =
        PORTS.into_iter().filter(|port| events.contains(&format!("on port {port}"))).collect::<BTreeSet<u16>>();
    assert_eq!(failed, lost, "{mode}: kube-proxy says so itself: {events}");

    drop(processes);
    // With this option, the closed connection releases its port at once, without TIME_WAIT.
    setsockopt(&connection, sockopt::Linger, &linger { l_onoff: 1, l_linger: 0 }).expect("SO_LINGER");
    drop(connection);
    proxy.settle(&cluster);
    let nothing = BTreeSet::new();
    assert_eq!((unserved(&wired), told(&cluster)), (nothing.clone(), nothing), "{mode}: it tries again");
}

/// The ports on which a load balancer gets no answer, or the health of another Service, over IPv4 or IPv6.
#[track_caller]
fn unserved(wired: &Wired) -> BTreeSet<u16> {
    let served = |port: u16, ip: &str| {
        let place = SocketAddr::new(ip.parse().expect("an address"), port).to_string();
        http_get(&place, "/").is_some_and(|body| body.contains(&format!("\"lb-{port}\"")))
    };
    wired.client.run(move || PORTS.into_iter().filter(|port| !PRIMARY.iter().all(|ip| served(*port, ip))).collect())
}

#[track_caller]
fn told(cluster: &ControlPlane) -> BTreeSet<u16> {
    let look = Look::check(&cluster.kubeconfig("admin"));
    let rules = ["health-check-unserved", "connection-on-port/blocks"];
    let alarms = look.alarms();
    assert!(alarms.iter().all(|it| rules.iter().any(|rule| is_of(it, rule))), "{alarms:#?}");
    let ports = alarms.iter().map(|it| it["port"].as_u64().expect("a port"));
    ports.map(|port| u16::try_from(port).expect("a port")).collect()
}
