//! Measures the cost of the program, and of other programs for comparison. All programs see the same sockets, run in
//! turns, and must give the same result. The benchmark fails if a promise is broken. The benchmark also fails if a
//! ratio is a fifth worse than in `benches/baseline.json` on the same machine.
//!
//! `make bench` measures the binary of the image. `cargo bench --profile dev --bench cost -- FILE [FAMILY ...]`
//! measures another build, or only some families. `--small` uses smaller sizes, and proves nothing.

#![allow(clippy::disallowed_methods, reason = "makes the node that the program scans, and measures time")]
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a benchmark prints its results")]
#![allow(unreachable_pub, reason = "a program has no outside")]

mod addresses;
mod baseline;
mod changes;
mod clients;
mod cluster;
mod crowd;
mod exporter;
mod fill;
mod fleet;
mod growth;
mod guard;
mod hold;
mod image;
mod latency;
mod listeners;
mod memory;
mod owners;
#[allow(dead_code, unused_imports, reason = "the lab has more parts than a benchmark needs")]
#[path = "../../tests/lab/parts/mod.rs"]
mod parts;
mod pods;
mod profile;
mod programs;
mod rounds;
mod row;
mod sizes;
mod sockets;
mod storm;
mod table;
mod world;

use std::{
    env,
    path::{Path, PathBuf},
    process::ExitCode,
    thread,
};

use self::{parts::enter_alone, row::Row, table::Extent, world::World};

/// The measurements of a family run in their own network namespace.
struct Family {
    name: &'static str,
    measure: fn(&Path, bool) -> Vec<Row>,
}

const FAMILIES: [Family; 12] = [
    Family { name: "image", measure: image::measure },
    Family { name: "pods", measure: pods },
    Family { name: "addresses", measure: addresses },
    Family { name: "sockets", measure: sockets::measure },
    Family { name: "memory", measure: memory::measure },
    Family { name: "services", measure: memory::many },
    Family { name: "latency", measure: latency::measure },
    Family { name: "storm", measure: storm::measure },
    Family { name: "changes", measure: changes::measure },
    Family { name: "guard", measure: guard::measure },
    Family { name: "start", measure: fleet::start },
    Family { name: "fleet", measure: fleet::measure },
];

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).filter(|it| it != "--bench").collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["hold", cgroup, place, apart] => hold::hold(cgroup, place, apart == "apart"),
        ["procfs"] => listeners::by_procfs(),
        _ => measure(&arguments),
    }
}

fn measure(arguments: &[String]) -> ExitCode {
    let small = arguments.iter().any(|it| it == "--small");
    let mut words = arguments.iter().filter(|it| !it.starts_with("--"));
    let binary = words.next().map_or_else(|| PathBuf::from(env!("CARGO_BIN_EXE_portreeve")), PathBuf::from);
    let binary = binary.canonicalize().expect("a program");
    let wanted: Vec<&String> = words.collect();
    for name in &wanted {
        assert!(FAMILIES.iter().any(|family| family.name == **name), "no family {name}");
    }
    let (mut rows, mut broken) = (Vec::new(), Vec::new());
    for family in FAMILIES.iter().filter(|family| wanted.is_empty() || wanted.iter().any(|it| *it == family.name)) {
        eprintln!("{}", family.name);
        let measured = thread::scope(|scope| {
            let alone = scope.spawn(|| {
                enter_alone();
                (family.measure)(&binary, small)
            });
            alone.join()
        });
        match measured {
            Ok(measured) => rows.extend(measured),
            Err(_) => broken.push(family.name),
        }
    }
    let extent = match wanted[..] {
        _ if small => Extent::Small,
        [] => Extent::Whole,
        _ => Extent::Part,
    };
    table::finish(&rows, &broken, extent)
}

fn pods(binary: &Path, small: bool) -> Vec<Row> {
    let world = World::new(binary);
    if small { pods::measure(&world, &[2, 5, 10], 2_000, 3) } else { pods::measure(&world, &[10, 30, 100], 100_000, 5) }
}

fn addresses(binary: &Path, small: bool) -> Vec<Row> {
    let world = World::new(binary);
    if small {
        addresses::measure(&world, &[0, 50, 100, 200], 3)
    } else {
        addresses::measure(&world, &[0, 1_000, 3_000, 10_000], 11)
    }
}
