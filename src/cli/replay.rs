//! `replay`: judges a snapshot again, as it was or as it might have been.

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context, bail};
use serde::Deserialize;

use super::{console::Console, impossible::impossible, report::ReportFlags, what_if::Setting};
use crate::{
    cluster::{Accepted, Input},
    facts::{SNAPSHOT_SCHEMA, Snapshot, text},
};

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
    parse(&bytes).with_context(|| format!("{place} is not a snapshot"))
}

/// The schema first: the error for a document of another kind names that kind, not its first missing field.
pub(super) fn parse(bytes: &[u8]) -> anyhow::Result<Snapshot> {
    #[derive(Deserialize)]
    struct Labelled {
        schema: Option<String>,
    }
    let Labelled { schema } = serde_json::from_slice(bytes)?;
    match schema.as_deref() {
        Some(SNAPSHOT_SCHEMA) => {
            let snapshot = serde_json::from_slice(bytes)?;
            impossible(&snapshot).map_or(Ok(snapshot), |what| bail!("{what}"))
        }
        Some(other) => bail!("its schema is {:?}, wanted {SNAPSHOT_SCHEMA:?}", text::clean(other, text::NAME)),
        None => bail!("it has no schema, wanted {SNAPSHOT_SCHEMA:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_survives_the_way_through_a_file() {
        let world = Snapshot::healthy().service("web", |it| it.node_port(30080)).listens("0.0.0.0:30080");
        let bytes = serde_json::to_vec(&world).expect("a snapshot is JSON");
        assert_eq!(parse(&bytes).expect("it parses"), world);
    }

    /// The tests of the binary begin from this file; `UPDATE=1` writes it anew.
    #[test]
    fn the_recorded_world_is_the_healthy_one() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/anywhere/worlds/healthy.json");
        let world = Snapshot::healthy().service("web", |it| it.node_port(30080));
        if std::env::var_os("UPDATE").is_some() {
            let text = serde_json::to_string_pretty(&world).expect("a snapshot is JSON");
            std::fs::write(&path, text + "\n").expect("the file can be written");
        }
        assert_eq!(read(&path).expect("the recorded world"), world, "record it anew: UPDATE=1 cargo test");
    }

    #[test]
    fn what_no_look_could_have_written_is_refused_by_name() {
        let world = Snapshot::healthy().service("web", |it| it.node_port(30080));
        let text = serde_json::to_string(&world).expect("a snapshot is JSON");
        for (was, is, wanted) in [
            (r#""name":"web""#, r#""name":"--all""#, r#"the name of a Service is "--all", wanted"#),
            (r#""node_port":30080"#, r#""node_port":0"#, "has the port 0, wanted 1 to 65535"),
            (r#"{"first":30000,"last":32767}"#, r#"{"first":32767,"last":30000}"#, "from 32767 to 30000, wanted first"),
        ] {
            assert!(text.contains(was), "{was}");
            let error = parse(text.replace(was, is).as_bytes()).expect_err("impossible").to_string();
            assert!(error.contains(wanted), "{error}");
        }
    }

    #[test]
    fn what_is_no_snapshot_is_told_by_its_kind_or_its_place() {
        for (bytes, wanted) in [
            (&br#"{"schema":"portreeve/v1"}"#[..], "portreeve.snapshot/v1"),
            (br#"{"kind":"List"}"#, "no schema"),
            (br#"{"schema":"portreeve.snapshot/v1"}"#, "line 1 column"),
            (b"{\n  nonsense", "line 2 column"),
        ] {
            let error = parse(bytes).expect_err("no snapshot").to_string();
            assert!(error.contains(wanted), "{error}");
        }
    }
}
