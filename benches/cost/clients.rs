//! Connections whose local port is a NodePort, on a node whose kernel may choose NodePorts.

use crate::{
    parts::sysctl,
    programs::{by_ss, is_node_port, ss_all},
    rounds::{Contender, of, rounds},
    row::{Promise, Row},
    sizes::short,
    world::{World, ends, run, same},
};

/// The half-open range of NodePorts with open connections. `ENDED` is the range with connections in TIME_WAIT.
const FROM: [u16; 2] = [32_100, 32_140];
const ENDED: [u16; 2] = [32_150, 32_170];

pub fn measure(world: &mut World, sockets: usize, count: usize) -> Vec<Row> {
    // With this range, the kernel may choose NodePorts as source ports, so a scan must read every connection. While the
    // range is set, only the clients below connect.
    sysctl("net.ipv4.ip_local_port_range", "1024 65535");
    (FROM[0]..FROM[1]).for_each(|port| world.order(&format!("client 127.0.0.1:{port}")));
    (ENDED[0]..ENDED[1]).for_each(|port| world.order(&format!("wait 127.0.0.1:{port}")));
    let ours = ends(&world.snapshot()["clients"]["seen"]["sockets"], is_node_port);
    let alike = same(&ours, &by_ss(&run(&mut ss_all()), false), "ss");

    let size = short(sockets);
    let compared = |world: &World, node: &str, promise: f64| {
        let mut portreeve =
            world.portreeve(&["check", "--rule", "connection-on-port/answers-taken", "--output", "json"]);
        let measured = rounds(
            count,
            vec![Contender::timed("process", || run(&mut portreeve)), Contender::timed("ss", || run(&mut ss_all()))],
        );
        let promise = if sockets < 100_000 { Promise::None } else { Promise::Times(promise) };
        let what = format!("connections on NodePorts among {size} sockets{node}, found by a process, compared with ss");
        Row::against(what, of(&measured, "process"), ("ss", of(&measured, "ss")), promise).provided(&alike)
    };
    // `ss` walks the same table as Portreeve, so the promised ratio is low. On four machines, the measured ratio was
    // between 0.99 and 1.9.
    let with_proxy = compared(world, "", 0.9);
    // Portreeve walks the table once more, to find sockets that are bound to kube-proxy's ports. On one machine, the
    // measured ratio was between 0.64 and 0.71.
    world.stop_proxy();
    let without_proxy = compared(world, " of a node without kube-proxy", 0.5);
    world.start_proxy();
    sysctl("net.ipv4.ip_local_port_range", "32768 60999");
    world.order("hang up");
    vec![with_proxy, without_proxy]
}
