//! The changes of an hour in a short time: thousands of Services, NodePorts, findings and sockets are made and deleted.

use std::{
    mem,
    net::{TcpListener, TcpStream},
};

use portreeve_facts::PortRange;
use serde_json::Value;

use crate::parts::{
    ControlPlane, PRIMARY, directory::Directory, enter_alone, http_get, memory::Memory, objects, process::Process,
    until,
};

/// The number of rounds before the test compares memory. During these rounds, heaps and tables grow to their final
/// size.
const WARM_UP: usize = 20;
const ROUNDS: usize = 15;
const PARTS: usize = 4;
/// The number of Services that one round makes and the next round deletes. `SQUATTERS` of these Services have a
/// listener on their NodePort.
const SERVICES: usize = 40;
const SQUATTERS: usize = 10;
/// The allowed growth of memory from one part to the next, as a fraction. Leaked Services would cause ten times this
/// growth.
const NOISE: f64 = 0.05;
const CONNECTIONS: usize = 50;
const PLACE: &str = "127.0.0.1:29517";

#[test]
fn services_and_sockets_that_come_and_go_leave_memory_where_it_was() {
    enter_alone();
    let cluster = ControlPlane::start();
    cluster.api().create(&objects::node("n1", &PRIMARY));
    let directory = Directory::new();
    let mut agent = start(&cluster, &directory);
    agent.wait_for("first look", || http_get(PLACE, "/readyz"));

    let mut crowd = Crowd::default();
    let mut memory = |rounds: usize| -> Vec<f64> {
        let anonymous = |_| {
            crowd.change(&cluster);
            Memory::of(agent.pid()).anonymous
        };
        (0..rounds).map(anonymous).collect()
    };
    memory(WARM_UP);
    let parts = [(); PARTS].map(|()| memory(ROUNDS));
    // A heap may grow in steps. With a leak, memory grows from each part to the next part. So the test compares the
    // smallest growth with `NOISE`.
    let typical = parts.clone().map(median);
    let growth = typical.windows(2).map(|pair| pair[1] / pair[0] - 1.0).fold(f64::INFINITY, f64::min);
    assert!(growth < NOISE, "each part needs more than the one before: {typical:.2?} MiB, {parts:.2?}");
}

fn start(cluster: &ControlPlane, directory: &Directory) -> Process {
    let arguments = [
        "agent".to_owned(),
        format!("--kubeconfig={}", cluster.kubeconfig("admin").display()),
        "--node=n1".to_owned(),
        "--proxy-mode=iptables".to_owned(),
        "--interval=100ms".to_owned(),
        "--cpu-percent=100".to_owned(),
        format!("--listen={PLACE}"),
    ];
    Process::start(env!("CARGO_BIN_EXE_portreeve"), &arguments, directory.path())
}

#[derive(Default)]
struct Crowd {
    round: usize,
    objects: Vec<Value>,
    listeners: Vec<TcpListener>,
    connections: Vec<[TcpStream; 2]>,
}

impl Crowd {
    fn change(&mut self, cluster: &ControlPlane) {
        self.round += 1;
        let gone = mem::take(&mut self.objects);
        self.listeners.clear();
        self.connections.clear();
        for number in 0..SERVICES {
            let port = PortRange::DEFAULT_NODE_PORTS.first
                + u16::try_from((self.round % 2) * SERVICES + number).expect("a small number");
            let service = objects::service(&format!("s{}-{number}", self.round), &[objects::port(80, Some(port))]);
            let service = cluster.api().create(&service);
            let slice = objects::endpoint_slice(&service, Some(("10.244.0.5", "n2")), "IPv4");
            self.objects.extend([cluster.api().create(&slice), service]);
            if number < SQUATTERS {
                self.listeners.push(TcpListener::bind(("0.0.0.0", port)).expect("the port is free"));
            }
        }
        for object in &gone {
            cluster.api().delete(object);
        }
        let place = self.listeners[0].local_addr().expect("an address");
        for _ in 0..CONNECTIONS {
            let near = TcpStream::connect(("127.0.0.1", place.port())).expect("a connection");
            self.connections.push([near, self.listeners[0].accept().expect("a connection").0]);
        }
        let taken = format!("portreeve_listeners_on_node_ports{{protocol=\"tcp\"}} {SQUATTERS}.0\n");
        let services = format!("portreeve_node_ports{{state=\"fixed\",band=\"static\"}} {SERVICES}.0\n");
        until("look at what is there now", || {
            let metrics = http_get(PLACE, "/metrics")?;
            (metrics.contains(&taken) && metrics.contains(&services)).then_some(())
        });
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
