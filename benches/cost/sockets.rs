//! Measures a host with more and more sockets.

use std::{path::Path, process::Command};

use crate::{
    clients,
    crowd::Crowd,
    growth::{self, Point},
    listeners, owners, profile,
    rounds::{Contender, rounds},
    row::{Promise, Row, Spread},
    sizes::sizes,
    table,
    world::{World, run, services_of},
};

/// The largest number of sockets for which the benchmark measures the search for holders.
const MOST_DESCRIPTORS: usize = 200_000;

pub fn measure(binary: &Path, small: bool) -> Vec<Row> {
    let count = if small { 3 } else { 7 };
    let mut world = World::new(binary);
    let mut crowd = Crowd::default();
    let (mut rows, mut done) = (Vec::new(), 0);
    let mut scans: [Vec<Point>; 4] = Default::default();
    for sockets in sizes(small) {
        crowd.grow(*sockets);
        let agent = world.agent();
        let told = listeners::measure(&world, &agent, *sockets, count);
        let point = |told: &[Row], what: &str| {
            let row = told.iter().find(|row| row.what.ends_with(what)).expect("a row of that");
            Point { size: *sockets as f64, took: row.ours.median }
        };
        scans[0].push(point(&told, "agent, compared with ss"));
        scans[1].push(point(&told, "sockets, agent"));
        rows.extend(told);
        // Each run reads all descriptors, which takes seconds. So larger numbers are left out.
        if *sockets <= MOST_DESCRIPTORS {
            let told = owners::measure(&world, &agent, *sockets, count.min(3));
            scans[2].push(point(&told, "process, compared with ss -p"));
            scans[3].push(point(&told, "descriptors, found by an agent"));
            rows.extend(told);
        }
        rows.push(profile::measure(&agent, *sockets));
        drop(agent);
        rows.extend(clients::measure(&mut world, *sockets, count));
        eprintln!("{}", table::markdown(&rows[done..]));
        done = rows.len();
    }
    let [listeners, scan, process, holders] = scans;
    let linear = Promise::AtMost(growth::LINEAR);
    rows.push(growth::row("reading listeners, with connections", &listeners, Promise::AtMost(growth::NONE)));
    // Leaves out the smallest number of sockets. The data of these sockets fits into the processor's caches, so each of
    // these sockets takes half the time.
    rows.push(growth::row("a scan that reads connections", &scan[1..], linear));
    rows.push(growth::row("naming holders as a process, with descriptors", &process, linear));
    rows.push(growth::row("naming holders in an agent, with descriptors", &holders, linear));
    drop(crowd);
    rows.push(with_listeners(&mut world, small));
    rows.push(with_services(&world, small));
    rows
}

fn with_listeners(world: &mut World, small: bool) -> Row {
    let mut first = 5_000;
    let points: Vec<Point> = if small { [100, 300, 1_000] } else { [1_000, 3_000, 10_000] }
        .into_iter()
        .map(|listeners| {
            (first..5_000 + listeners).for_each(|port| world.order(&format!("listen 127.0.0.9:{port}")));
            first = 5_000 + listeners;
            let agent = world.agent();
            let took = Spread::of((0..5).map(|_| agent.scan().by("listeners")));
            Point { size: f64::from(listeners), took: took.median }
        })
        .collect();
    growth::row("reading listeners, with listeners", &points, Promise::AtMost(growth::LINEAR))
}

fn with_services(world: &World, small: bool) -> Row {
    let points: Vec<Point> = if small { [100, 300, 1_000] } else { [3_000, 10_000, 30_000] }
        .into_iter()
        .map(|services| {
            let file = world.file("many.json", &services_of((0..services).map(|_| None)));
            let mut check = Command::new(&world.binary);
            check
                .args(["check", "--rule", "listener-on-node-port/loses", "--proxy-mode", "iptables", "--services"])
                .arg(file);
            let took = rounds(5, vec![Contender::timed("check", || run(&mut check))]);
            Point { size: f64::from(services), took: Spread::of(took[0].1.iter().copied()).median }
        })
        .collect();
    growth::row("a check, with Services", &points, Promise::AtMost(growth::LINEAR))
}
