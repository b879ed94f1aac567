//! Finds the listeners on a NodePort: with the process `portreeve check`, with a scan inside of a running agent, and
//! with other programs.

use std::{
    collections::BTreeSet,
    env,
    net::SocketAddr,
    process::{Command, ExitCode},
};

use crate::{
    exporter::Exporter,
    programs::{by_netstat, by_ss, is_node_port, netstat_listeners, ss_every, ss_listeners},
    rounds::{Contender, of, rounds},
    row::{Promise, Row},
    sizes::short,
    world::{Scanning, World, ends, run, same},
};

/// The command that lists only listeners.
const CHECK: [&str; 5] = ["check", "--rule", "listener-on-node-port/loses", "--output", "json"];

pub fn measure(world: &World, agent: &Scanning, sockets: usize, count: usize) -> Vec<Row> {
    let exporter = Exporter::start();
    let listeners = world.snapshot()["listeners"]["seen"].take();
    let ours = ends(&listeners, |socket| socket["protocol"] == "tcp" && is_node_port(socket));
    let every = listeners.as_array().into_iter().flatten().filter(|socket| socket["protocol"] == "tcp").count();
    let own = env::current_exe().expect("a program");
    let by_procfs = || {
        let output = run(Command::new(&own).arg("procfs"));
        let text = String::from_utf8(output.stdout).expect("UTF-8");
        text.lines().map(|line| line.parse().expect("an address")).collect::<BTreeSet<SocketAddr>>()
    };
    let alike = same(&ours, &by_ss(&run(&mut ss_listeners()), true), "ss")
        .and_then(|()| same(&ours, &by_netstat(&run(&mut netstat_listeners())), "netstat"))
        .and_then(|()| same(&ours, &by_procfs(), "the procfs crate"))
        .and_then(|()| same(&(every as f64), &exporter.scrape(), "node_exporter"));

    let mut portreeve = world.portreeve(&CHECK);
    let mut whole = world.portreeve(&["check", "--output", "json"]);
    let mut scans = Vec::new();
    let measured = rounds(
        count,
        vec![
            Contender::timed("process", || run(&mut portreeve)),
            Contender::timed("ss", || run(&mut ss_listeners())),
            Contender::telling("agent", || {
                let took = agent.scan();
                scans.push(took.whole());
                took.by("listeners")
            }),
            Contender::timed("netstat", || run(&mut netstat_listeners())),
            Contender::timed("procfs", by_procfs),
            Contender::timed("node_exporter", || exporter.scrape()),
            Contender::timed("every rule", || run(&mut whole)),
            Contender::timed("ss -Htan", || run(&mut ss_every())),
        ],
    );
    let took = |name: &str| of(&measured, name);
    // The time of `ss` for a socket differs between machines by a factor of three. The promised ratio is low enough for
    // all of these machines.
    let promised = |at_100k: f64, at_500k: f64| match sockets {
        100_000 => Promise::Times(at_100k),
        500_000 => Promise::Times(at_500k),
        _ => Promise::None,
    };
    // The worst ratio of all measured runs, less 10 %.
    let every_rule = match sockets {
        100_000 => Promise::Times(3.3),
        200_000 => Promise::Times(3.6),
        500_000 => Promise::Times(3.7),
        _ => Promise::None,
    };
    let size = short(sockets);
    let process = format!("listeners on NodePorts among {size} sockets, found by a process");
    let inside = format!("listeners on NodePorts among {size} sockets, found by an agent");
    let against = |what: &str, ours: &str, theirs: &'static str, promise| {
        Row::against(format!("{what}, compared with {theirs}"), took(ours), (theirs, took(theirs)), promise)
            .provided(&alike)
    };
    vec![
        against(&process, "process", "ss", promised(4.0, 20.0)),
        // The start of Portreeve's process takes 2 ms to 7 ms, which is most of its time.
        against(&process, "process", "procfs", promised(50.0, 200.0)),
        against(&process, "process", "netstat", Promise::None),
        against(&inside, "agent", "ss", promised(50.0, 250.0)),
        against(&inside, "agent", "node_exporter", Promise::None),
        against(&format!("`portreeve check` with {size} sockets"), "every rule", "ss -Htan", every_rule),
        Row::alone(
            format!("a scan with every rule and connections, {size} sockets, agent"),
            "ms",
            scans.iter().copied(),
            Promise::None,
        ),
    ]
}

pub fn by_procfs() -> ExitCode {
    let tables = [procfs::net::tcp(), procfs::net::tcp6()];
    let sockets = tables.into_iter().flat_map(|table| table.expect("a table"));
    let listening = sockets.filter(|socket| socket.state == procfs::net::TcpState::Listen);
    for end in listening.map(|socket| socket.local_address).filter(|end| (30_000..=32_767).contains(&end.port())) {
        println!("{end}");
    }
    ExitCode::SUCCESS
}
