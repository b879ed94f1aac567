//! `check`: judges one snapshot, and prints the result.

use std::{mem, process::ExitCode};

use super::{command_line::UsageError, console::Console, report::ReportFlags, sources::Sources};
use portreeve_report::Setting;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    sources: Sources,
    /// Judge the node with this setting: ip_local_port_range="1024 65535", proxy_mode=nftables, node_port_range=20000-40000 ...
    ///
    /// May be given several times. Keys: ip_local_port_range, ip_local_reserved_ports, ip_unprivileged_port_start,
    /// route_localnet, tcp_tw_reuse, proxy_mode, node_port_range, node_port_addresses, localhost_node_ports.
    #[arg(long = "set", value_name = "KEY=VALUE", help_heading = "What if")]
    settings: Vec<Setting>,
    #[command(flatten)]
    report: ReportFlags,
}

pub(super) fn run(args: Args, console: &Console) -> anyhow::Result<ExitCode> {
    let Args { sources, settings, report } = args;
    let is_live = sources.is_live();
    let mut snapshot = sources.snapshot(Default::default(), report.skipped(), true, console)?;
    Setting::apply_all(&settings, &mut snapshot).map_err(UsageError)?;
    let ended = report.print(&snapshot, is_live, console);
    // The memory is not freed, because the process ends.
    mem::forget(snapshot);
    ended
}
