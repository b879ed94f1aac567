//! `check`: judges one snapshot, and prints the result.

use std::{mem, process::ExitCode};

use clap::ValueEnum;

use super::{
    command_line::UsageError,
    console::Console,
    report::{CountFlags, RULE, judges},
    sources::Sources,
};
use portreeve_agent::judge_by;
use portreeve_report::{self as report, Report, Setting};
use portreeve_rules::{Limits, RULES, Rule, ids::Named, skipped};

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
    /// The form of the output
    #[arg(short, long, value_enum, value_name = "FORM", help_heading = "Output", default_value_t = Form::Table)]
    output: Form,
    #[command(flatten)]
    counting: CountFlags,
    /// Run only this rule, or one of its variants: ID or ID/VARIANT; may be given several times
    ///
    /// Portreeve does not read sources that only other rules use, for example connections on a node with many connections.
    #[arg(long = "rule", value_name = "RULE", help_heading = "Output", value_parser = RULE, hide_possible_values = true)]
    rules: Vec<Named>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Form {
    /// Findings, affected clients, remedies
    Table,
    /// The table with all details
    Wide,
    /// One JSON document, `portreeve.findings/v1`
    Json,
    /// The same document as `json`
    Yaml,
    /// One line for node-problem-detector
    Npd,
    /// Test cases for a pipeline
    Junit,
    /// For code scanning, SARIF 2.1.0
    Sarif,
}

pub(super) fn run(args: Args, console: &Console) -> anyhow::Result<ExitCode> {
    let Args { sources, settings, output, counting, rules: named } = args;
    let is_requested = |rule: &&Rule| named.is_empty() || named.iter().any(|it| judges(rule, it));
    let rules: Vec<&'static Rule> = RULES.iter().copied().filter(is_requested).collect();
    let is_live = sources.is_live();
    let mut snapshot = sources.snapshot(Default::default(), skipped(&rules), true, console)?;
    Setting::apply_all(&settings, &mut snapshot).map_err(UsageError)?;
    let mut board = judge_by(&rules, &snapshot, &Limits::default());
    board.findings.retain(|it| named.is_empty() || named.iter().any(|name| name.names(it.key.rule.0, it.key.variant)));
    let CountFlags { min_severity, no_headers, .. } = counting;
    let report = Report { min_severity, rules: &rules, is_live, ..Report::of(&snapshot, &board) };
    let style = &console.style;
    console.write(|out| match output {
        Form::Table | Form::Wide if no_headers => report::write_rows(&report, style, out),
        Form::Table | Form::Wide => report::write_table(&report, output == Form::Wide, style, out),
        Form::Json => report::write_json(&report, None, out),
        Form::Yaml => report::write_yaml(&report, out),
        Form::Npd => writeln!(out, "{}", report::npd_line(&report)),
        Form::Junit => report::write_junit(&report, out),
        Form::Sarif => report::write_sarif(&report, out),
    })?;
    let end = counting.end(report.result(), report.failures().is_empty());
    // The memory is not freed, because the process ends.
    mem::forget((snapshot, board));
    Ok(end)
}
