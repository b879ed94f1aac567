//! The parts of a scan's processor time: the kernel, which walks its tables, and Portreeve's own work.

use std::{fs, thread, time::Duration};

use crate::{
    row::{Promise, Row},
    sizes::short,
    world::Scanning,
};

/// The time for which the agent scans without a pause. The time is long, because the kernel counts processor time only
/// in hundredths of a second.
const WHILE: Duration = Duration::from_secs(6);
/// The greatest share of Portreeve's own work in a scan's processor time, in per cent. Measured: 9.2 to 10.5.
const MOST: f64 = 12.0;

pub fn measure(agent: &Scanning, sockets: usize) -> Row {
    let before = ticks(agent.pid());
    agent.freely(|| thread::sleep(WHILE));
    let after = ticks(agent.pid());
    let [own, kernel] = [after[0] - before[0], after[1] - before[1]];
    let promise = if sockets < 100_000 { Promise::None } else { Promise::AtMost(MOST) };
    let what = format!("own code in what reading the node takes, {} sockets", short(sockets));
    Row::alone(what, "%", [100.0 * own / (own + kernel).max(1.0)], promise)
}

/// The user time and the system time so far of the thread that reads the node.
fn ticks(pid: u32) -> [f64; 2] {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).expect("the agent runs");
    let stats = tasks.map(|task| fs::read_to_string(task.expect("a thread").path().join("stat")).expect("a thread"));
    let scanner = stats.into_iter().find(|stat| stat.contains("(scanner)")).expect("a thread that reads the node");
    let (_, behind) = scanner.rsplit_once(')').expect("a name in parentheses");
    let mut fields = behind.split_whitespace().skip(11).map(|it| it.parse().expect("ticks"));
    [(); 2].map(|()| fields.next().expect("a field"))
}
