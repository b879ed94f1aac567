//! Counts the ephemeral ports that pods use. Each pod has its own network namespace.

use std::fs;

use crate::{
    crowd::Holder,
    growth::{self, Point},
    programs::ss_in,
    rounds::{Contender, of, rounds},
    row::{Promise, Row},
    sizes::short,
    world::{World, run, same},
};

pub fn measure(world: &World, pods: &[usize], sockets: usize, count: usize) -> Vec<Row> {
    let most = *pods.last().expect("a number of pods");
    let each = sockets / most / 2;
    let mut holders: Vec<Holder> = Vec::new();
    let (mut rows, mut points) = (Vec::new(), Vec::new());
    for pods in pods {
        while holders.len() < *pods {
            let mut holder = Holder::pod();
            holder.order(&format!("pairs {each}"));
            holders.push(holder);
        }
        let told = of_number(world, &holders, each, count, *pods == most);
        points.push(Point { size: *pods as f64, took: told[1].ours.median });
        rows.extend(told);
    }
    rows.push(growth::row("a scan of pods, with pods", &points, Promise::AtMost(growth::LINEAR)));
    rows
}

fn of_number(world: &World, holders: &[Holder], each: usize, count: usize, promised: bool) -> Vec<Row> {
    let pods = holders.len();
    let snapshot = world.snapshot();
    let told = snapshot["pod_namespaces"]["seen"].as_array().expect("pods' namespaces");
    let ours: Vec<u64> = told.iter().filter_map(|pod| pod["ephemeral"]["seen"]["at_most"].as_u64()).collect();
    let dump = || -> Vec<u64> {
        let lines = |holder: &Holder| run(&mut ss_in(holder.pid())).stdout.iter().filter(|it| **it == b'\n').count();
        holders.iter().map(|holder| u64::try_from(lines(holder)).expect("a number")).collect()
    };
    // For a pod that is far from its limit, Portreeve's count is an upper bound. The count includes sockets of any
    // kind, and sockets that the kernel is just releasing.
    let theirs = dump();
    let bounds = |(ours, theirs): (&u64, &u64)| (*theirs..=theirs + theirs / 20).contains(ours);
    let alike = match ours.len() == theirs.len() && ours.iter().zip(&theirs).all(bounds) {
        true => Ok(()),
        false => same(&ours, &theirs, "ss"),
    };
    let agent = world.agent();
    // The lowest possible cost of a scan: reading the list of processes, and one file of each pod.
    let floor = || -> usize {
        let read = |holder: &Holder| fs::read(format!("/proc/{}/net/sockstat", holder.pid())).expect("counts").len();
        fs::read_dir("/proc").expect("processes").count() + holders.iter().map(read).sum::<usize>()
    };
    let measured = rounds(
        count,
        vec![
            Contender::telling("agent", || agent.scan().by("pod-namespaces")),
            Contender::timed("reading sockstat of each", floor),
            Contender::timed("ss in each", dump),
        ],
    );
    let ours = of(&measured, "agent");
    let what = format!("ephemeral ports of {pods} pods with {} sockets, counted by an agent", short(pods * each * 2));
    let promise = |promise| if promised { promise } else { Promise::None };
    let against = |who: &'static str, times| {
        Row::against(format!("{what}, compared with {who}"), ours, (who, of(&measured, who)), promise(times))
            .provided(&alike)
    };
    vec![
        against("ss in each", Promise::Times(400.0)),
        // Portreeve may take 2.5 times the lowest possible time, measured with warm caches. The kernel takes most of
        // Portreeve's time, and this time differs between machines.
        against("reading sockstat of each", Promise::Times(0.4)),
    ]
}
