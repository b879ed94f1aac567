//! The time to find the process that has a NodePort, on a machine with many file descriptors.

use std::collections::BTreeSet;

use crate::{
    programs::{holders_by_ss, is_node_port, lsof_holders, pids_by_lsof, ss_holders},
    rounds::{Contender, of, rounds},
    row::{Promise, Row},
    sizes::short,
    world::{Scanning, World, run, same},
};

pub fn measure(world: &World, agent: &Scanning, descriptors: usize, count: usize) -> Vec<Row> {
    let snapshot = world.snapshot();
    let listeners = snapshot["listeners"]["seen"].as_array().expect("listeners");
    let ours: BTreeSet<_> = listeners
        .iter()
        .filter(|socket| socket["protocol"] == "tcp" && is_node_port(socket))
        .map(|socket| {
            let ip: std::net::IpAddr = socket["local"].as_str().expect("an address").parse().expect("an address");
            let port = u16::try_from(socket["local_port"].as_u64().expect("a port")).expect("a port");
            let pid = socket["owner"]["held"]["process"]["seen"]["pid"].as_u64().expect("root sees every process");
            (std::net::SocketAddr::new(ip, port), pid)
        })
        .collect();
    let pids = ours.iter().map(|(_, pid)| *pid).collect();
    let alike = same(&ours, &holders_by_ss(&run(&mut ss_holders())), "ss")
        .and_then(|()| same(&pids, &pids_by_lsof(&run(&mut lsof_holders())), "lsof"));

    let mut portreeve = world.portreeve(&["check", "--rule", "listener-on-node-port/loses", "--output", "json"]);
    let measured = rounds(
        count,
        vec![
            Contender::timed("process", || run(&mut portreeve)),
            Contender::timed("ss -p", || run(&mut ss_holders())),
            Contender::timed("lsof", || run(&mut lsof_holders())),
            Contender::telling("agent", || agent.scan().by("processes")),
        ],
    );
    let took = |name: &str| of(&measured, name);
    let size = short(descriptors);
    let what = format!("holders of NodePorts among {size} descriptors, found by a process");
    let against = |theirs: &'static str, least: f64| {
        // With few descriptors, the other programs read few needless descriptors. So no ratio is promised.
        let promise = if descriptors < 200_000 { Promise::None } else { Promise::Times(least) };
        let row =
            Row::against(format!("{what}, compared with {theirs}"), took("process"), (theirs, took(theirs)), promise);
        row.provided(&alike)
    };
    vec![
        against("ss -p", 100.0),
        against("lsof", 500.0),
        Row::alone(
            format!("holders of NodePorts among {size} descriptors, found by an agent"),
            "ms",
            took("agent").to_vec(),
            Promise::None,
        ),
    ]
}
