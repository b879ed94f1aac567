//! healthCheckNodePorts that somebody has before kube-proxy: what the probe of a load balancer gets, and what is said.

use portreeve::facts::Protocol;
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

/// Nobody has it, a process on every address, a process on 127.0.0.1, and an outgoing connection.
const PORTS: [u16; 4] = [30901, 30902, 30903, 30904];

/// Compares them in a mode of a real kube-proxy.
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
    for port in PORTS {
        let body = wired.client.run(move || PRIMARY.map(|ip| http_get(&std::net::SocketAddr::new(ip.parse().unwrap(), port).to_string(), "/")));
        println!("{mode} {port} {body:?}");
    }
    let look = Look::check(&cluster.kubeconfig("admin"));
    for f in look.json["findings"].as_array().unwrap() { println!("{mode} {} {} {} {}", f["rule"], f["severity"], f["port"], f["summary"]); }
    let events = cluster.api().text("/apis/events.k8s.io/v1/events").unwrap();
    println!("{mode} {}", events.matches("FailedToStartServiceHealthcheck").count());
    drop(processes); drop(connection);
    proxy.settle(&cluster);
    for port in PORTS {
        let body = wired.client.run(move || PRIMARY.map(|ip| http_get(&std::net::SocketAddr::new(ip.parse().unwrap(), port).to_string(), "/").is_some()));
        println!("{mode} later {port} {body:?}");
    }
    let look = Look::check(&cluster.kubeconfig("admin"));
    for f in look.json["findings"].as_array().unwrap() { println!("{mode} {} {} {} {}", f["rule"], f["severity"], f["port"], f["summary"]); }
    println!("{}", Command::new("ss").arg("-tanp").output().map(|o| String::from_utf8_lossy(&o.stdout).into_owned()).unwrap());
}
use std::process::Command;
