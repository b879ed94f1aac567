//! What the program costs, and what others cost beside it: every contender sees the same sockets, takes its turn with
//! the others in one run, and must have told the same. Fails where a promise is missed, and where a ratio has lost a
//! fifth of what `benches/baseline.json` has of the same machine.
//!
//! `make bench` runs it on the binary of the image. `cargo bench --profile dev --bench cost -- FILE [FAMILY ...]`
//! measures another build, or some families only; `--small` takes fewer of everything, and proves nothing.

#![allow(clippy::disallowed_methods, reason = "makes the world that the program looks at, and measures time")]
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a benchmark tells what it measured")]
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

/// Rows that belong together, made in a network namespace of their own.
struct Family {
    name: &'static str,
    measure: fn(&Path, bool) -> Vec<Row>,
}

const FAMILIES: [Family; 11] = [
    Family { name: "image", measure: image::measure },
    Family { name: "pods", measure: pods },
    Family { name: "addresses", measure: addresses },
    Family { name: "sockets", measure: sockets::measure },
    Family { name: "memory", measure: memory::measure },
    Family { name: "services", measure: memory::many },
    Family { name: "latency", measure: latency::measure },
    Family { name: "storm", measure: storm::measure },
    Family { name: "changes", measure: changes::measure },
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
