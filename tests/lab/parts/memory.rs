//! The memory that a process uses, as the kernel reports it.

use std::{fmt, fs};

/// The memory that a process uses, in MiB.
pub struct Memory {
    pub resident: f64,
    proportional: f64,
    pub anonymous: f64,
    pub peak: f64,
}

impl Memory {
    pub fn of(pid: u32) -> Self {
        let [rollup, status] = ["smaps_rollup", "status"]
            .map(|name| fs::read_to_string(format!("/proc/{pid}/{name}")).expect("the process runs"));
        let field = |text: &str, name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name)?.trim().strip_suffix(" kB"));
            line.and_then(|kib| kib.parse::<f64>().ok()).unwrap_or_else(|| panic!("no {name} in {text}")) / 1024.0
        };
        Self {
            resident: field(&rollup, "Rss:"),
            proportional: field(&rollup, "Pss:"),
            anonymous: field(&rollup, "Anonymous:"),
            peak: field(&status, "VmHWM:"),
        }
    }
}

impl fmt::Display for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { resident, proportional, anonymous, peak } = self;
        write!(
            f,
            "{resident:6.2} MiB resident: {anonymous:.2} anonymous, {:.2} of files; {proportional:.2} proportional, \
             {peak:.2} at the most",
            resident - anonymous
        )
    }
}
