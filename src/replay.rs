//! `replay`: judges a snapshot again, as it was or as it might have been.

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::Context as _;

use crate::{console::Console, report::ReportFlags};
use portreeve_cluster::{Accepted, Input};
use portreeve_facts::Snapshot;
use portreeve_report::Setting;

/// The longest snapshot that is read, in bytes: that of a node with half a million sockets is shorter.
const LONGEST: u64 = 256 << 20;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// A file that `snapshot` wrote, `-` for standard input
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Ask what if: ip_local_port_range="1024 65535", proxy_mode=nftables, node_port_range=20000-40000 ...
    ///
    /// May be given several times. Keys: ip_local_port_range, ip_local_reserved_ports, ip_unprivileged_port_start,
    /// route_localnet, tcp_tw_reuse, proxy_mode, node_port_range, node_port_addresses, localhost_node_ports.
    #[arg(long = "set", value_name = "KEY=VALUE", help_heading = "What if")]
    settings: Vec<Setting>,
    #[command(flatten)]
    report: ReportFlags,
}

pub(super) fn run(args: Args, console: &Console) -> anyhow::Result<ExitCode> {
    let Args { file, settings, report } = args;
    let mut snapshot = read(&file)?;
    for setting in settings {
        setting.apply(&mut snapshot);
    }
    report.print(&snapshot, console)
}

/// Reads a file that `snapshot` wrote, `-` for standard input.
pub(super) fn read(file: &Path) -> anyhow::Result<Snapshot> {
    let input = Input::from(file.to_owned());
    let place = input.to_string();
    let bytes = input.read(Accepted::Anything, LONGEST).with_context(|| format!("reading a snapshot from {place}"))?;
    Snapshot::from_json(&bytes).map_err(anyhow::Error::msg).with_context(|| format!("{place} is not a snapshot"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The tests of the binary begin from this file; `make docs` writes it anew.
    #[test]
    fn the_recorded_world_is_the_healthy_one() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/anywhere/worlds/healthy.json");
        let world = Snapshot::healthy().service("web", |it| it.node_port(30080));
        if std::env::var_os("UPDATE").is_some() {
            let text = serde_json::to_string_pretty(&world).expect("a snapshot is JSON");
            std::fs::write(&path, text + "\n").expect("the file can be written");
        }
        assert_eq!(read(&path).expect("the recorded world"), world, "`make docs` records it anew");
    }
}
