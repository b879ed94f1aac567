//! `guard`: reserves the ports that this node needs, and follows changes of the cluster. No other command changes a
//! node.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    process::ExitCode,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};

use super::{command_line::UsageError, console::Console, sources::Sources};
use portreeve_agent::{
    BindConfig, BindMode, GuardConfig, SnapshotSources, among, by_class, connections_on, guard_with, kept_by,
    log::{Log, LogFormat, LogLevel, LogStyle},
    named, run_guard,
};
use portreeve_facts::{Gap, PortSet, Source, Why};
use portreeve_guard::{Bound, Kept};
use portreeve_rules::NodeGuard;

const RECORD: &str = "/run/portreeve/guard.json";

// The guard refuses `--snapshot`, because it is about this node.
#[derive(Debug, clap::Args)]
#[command(mut_arg("snapshots", |arg| arg.hide(true)))]
pub(super) struct Args {
    #[command(flatten)]
    sources: Sources,
    /// Reserve once and end, as a unit at the boot of a node does
    #[arg(long, conflicts_with_all = ["dry_run", "release"])]
    once: bool,
    /// Change nothing, and print the ports that would be added or removed, each with its reason
    #[arg(long, conflicts_with = "release")]
    dry_run: bool,
    /// Remove the ports that the guard reserved, and end
    #[arg(long)]
    release: bool,
    /// The minimum number of ports of ip_local_port_range for outgoing connections. At least half of the range always stays
    #[arg(long, value_name = "PORTS", default_value_t = Bound::LEAVE)]
    leave: u32,
    /// The guard's record of its own ports. A lock beside it allows one guard for each file
    #[arg(long, value_name = "FILE", default_value = RECORD)]
    state: PathBuf,
    /// The directory with the file ipv4/ip_local_reserved_ports. In a container, /proc/sys is read-only: mount the node's file here. All other settings are read below --host-root
    #[arg(long, value_name = "DIR", default_value = "/proc/sys/net")]
    sysctls: PathBuf,
    /// Answer over HTTP with /metrics and /healthz
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = portreeve_agent::settings::address)]
    listen: Option<SocketAddr>,
    /// The action when another process binds a NodePort or a hostPort; without a value, report. Images and releases have the hook. Other builds need the feature bind-hook
    #[arg(long, value_enum, value_name = "WHAT", num_args = 0..=1, default_value_t = OnBind::Off, default_missing_value = "report", conflicts_with_all = ["once", "dry_run", "release"], help_heading = "Binds")]
    bind: OnBind,
    /// The control group whose binds the hook checks; by default all
    #[arg(long, value_name = "FOLDER", help_heading = "Binds")]
    cgroup: Option<PathBuf>,
    /// Allow all binds while the facts about the cluster are older than SECONDS. The API server confirms the facts about
    /// once a minute
    #[arg(long, value_name = "SECONDS", default_value_t = 120, value_parser = clap::value_parser!(u64).range(1..=3600), help_heading = "Binds")]
    stale: u64,
    /// A control group that may bind each port, like system.slice; repeatable
    #[arg(long, value_name = "FOLDER", help_heading = "Binds")]
    allow: Vec<PathBuf>,
    /// The form of log lines
    #[arg(long, value_enum, value_name = "FORM", default_value_t = LogFormat::Text)]
    log_format: LogFormat,
}

/// The action on a bind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum OnBind {
    /// Nothing
    Off,
    /// Write an Event
    Report,
    /// Let a bind of a NodePort fail, and write an Event
    Refuse,
}

pub(super) fn run(args: Args, console: &Console) -> anyhow::Result<ExitCode> {
    let Args { sources, once, dry_run, release, leave, state, sysctls, listen, log_format, .. } = args;
    let mode = match args.bind {
        OnBind::Off => None,
        OnBind::Report => Some(BindMode::Report),
        OnBind::Refuse => Some(BindMode::Refuse),
    };
    let (cgroup, stale, allow) = (args.cgroup, Duration::from_secs(args.stale), args.allow);
    let are_binds_meant = cgroup.is_some() || !allow.is_empty();
    let bind = mode.map(|mode| BindConfig { mode, cgroup, stale, allow });
    if bind.is_none() && are_binds_meant {
        let error = "--cgroup and --allow are about binds: add --bind=report or --bind=refuse";
        return Err(UsageError(error.to_owned()).into());
    }
    if !sources.is_live() {
        return Err(UsageError("guard is about this node, wanted it without --snapshot".to_owned()).into());
    }
    let host_root = sources.host_root.clone();
    let SnapshotSources { cluster, node, overrides, .. } = sources.gathering(Default::default(), [].into(), false);
    let config = GuardConfig { cluster, node, host_root, overrides, sysctls, record: state, leave, listen, bind };
    let log = Log::start(LogStyle { format: log_format, level: LogLevel::Info }, console.style.colour)
        .context("starting to log")?;
    let ended = match (once, dry_run, release) {
        (true, ..) => reserve_once(&config, console),
        (_, true, _) => print_plan(&config, console),
        (.., true) => give_back(&config, console),
        _ => run_guard(config).map(|()| ExitCode::SUCCESS),
    };
    log.flush();
    ended
}

fn reserve_once(config: &GuardConfig, console: &Console) -> anyhow::Result<ExitCode> {
    let mut keeper = config.keeper()?.once();
    let (wanted, bound) = config.wanted(&config.read()?)?;
    let first = keeper.keep(&wanted, bound, Instant::now())?;
    // Another program may have written the list at the same moment. If ports are missing, the guard adds them again,
    // once.
    let kept = match first.missing.is_empty() {
        true => first,
        false => first.and(keeper.keep(&wanted, bound, Instant::now())?),
    };
    notes_about(&kept, console);
    let total = kept.reserved.len();
    console.write(|out| {
        writeln!(out, "reserved: {total} ports that this node needs; added {}", or_none(&kept.added.to_string()))?;
        writeln!(out, "net.ipv4.ip_local_reserved_ports = {}", kept.list)
    })?;
    let added = among(&kept.added, &kept.reserved);
    if !added.is_empty() {
        console.print_note(&format!("added: {}", named(&added)));
        match connections_on(&config.host_root, &kept.added) {
            Ok(connections) if connections.listed.is_empty() => {}
            Ok(connections) => console.print_note(&format!("outgoing connections keep {}", kept_by(&connections))),
            Err(gap) => console.print_note(&format!("connections on these ports were not read: {}", gap.detail)),
        }
    }
    let mut problems = Vec::new();
    if !kept.missing.is_empty() {
        problems.push(format!("another program removes these ports again: {}", kept.missing));
    }
    if !kept.left_out.is_empty() {
        let ports = named(&kept.left_out);
        problems.push(format!("not reserved, because too few ports would stay for outgoing connections: {ports}"));
    }
    if let Some(gap) = wanted.unread.first() {
        problems.push(format!("not all input was read, so there may be more ports: {}", gap.detail));
    }
    if !problems.is_empty() {
        bail!("{}", problems.join("; "));
    }
    Ok(ExitCode::SUCCESS)
}

fn notes_about(kept: &Kept, console: &Console) {
    if let Some(why) = &kept.bad_record {
        console.print_note(&format!(
            "the guard's record is malformed ({why}): all reserved ports are treated as ports of other programs, and stay"
        ));
    }
    if !kept.given_up.is_empty() {
        let ports = &kept.given_up;
        console
            .print_note(&format!("another program wrote the list, so these ports stay until the next boot: {ports}"));
    }
    if !kept.removed.is_empty() {
        console.print_note(&format!("removed: {}", kept.removed));
    }
}

fn print_plan(config: &GuardConfig, console: &Console) -> anyhow::Result<ExitCode> {
    let (wanted, bound) = config.wanted(&config.read()?)?;
    let (plan, bad_record) = config.preview(&wanted, bound)?;
    notes_about(&Kept { bad_record, ..Kept::default() }, console);
    console.write(|out| {
        for (number, reason) in by_class(&among(&plan.add, &plan.reserved)) {
            writeln!(out, "add     {number:<5}  {reason}")?;
        }
        let bounded: PortSet = plan.left_out.keys().copied().collect();
        for range in plan.remove.minus(&bounded).ranges() {
            writeln!(out, "remove  {range:<5}  this node no longer needs it")?;
        }
        for range in plan.remove.intersection(&bounded).ranges() {
            writeln!(out, "remove  {range:<5}  more important ports need the room")?;
        }
        for (number, reason) in by_class(&plan.left_out) {
            writeln!(out, "no room {number:<5}  {reason}")?;
        }
        let is_as_wanted = plan.add.is_empty() && plan.remove.is_empty();
        if is_as_wanted && plan.reserved.is_empty() && plan.left_out.is_empty() {
            let range = bound.range;
            writeln!(out, "nothing to change: no known port that this node needs is in ip_local_port_range {range}")?;
        } else if is_as_wanted {
            writeln!(out, "nothing to change: {} ports that this node needs are reserved", plan.reserved.len())?;
        }
        Ok(())
    })?;
    if let Some(gap) = wanted.unread.first() {
        bail!("not all input was read, so there may be more ports: {}", gap.detail);
    }
    Ok(ExitCode::SUCCESS)
}

fn give_back(config: &GuardConfig, console: &Console) -> anyhow::Result<ExitCode> {
    let kept = config.keeper()?.release()?;
    let removed = or_none(&kept.removed.to_string());
    notes_about(&Kept { removed: PortSet::default(), ..kept.clone() }, console);
    console.write(|out| {
        writeln!(out, "removed: {removed}")?;
        writeln!(out, "net.ipv4.ip_local_reserved_ports = {}", kept.list)
    })?;
    if kept.bad_record.is_some() || !kept.given_up.is_empty() {
        bail!("not every port of the guard was removed");
    }
    Ok(ExitCode::SUCCESS)
}

fn or_none(ports: &str) -> String {
    if ports.is_empty() { "none".to_owned() } else { ports.to_owned() }
}

/// The guard of this node, if there is one. If the state of the guard is unknown, the second value is the reason.
pub(super) fn of_this_node() -> (Option<NodeGuard>, Option<Gap>) {
    of_record(Path::new(RECORD))
}

fn of_record(path: &Path) -> (Option<NodeGuard>, Option<Gap>) {
    let unknown = |why, what: String| {
        let detail = format!("the state of this node's guard is not known: {what}");
        (None, Some(Gap::new(Source::Processes, why, detail)))
    };
    match guard_with(path) {
        Ok(None) => (None, None),
        Ok(Some(Ok(guard))) => (Some(guard), None),
        Ok(Some(Err(what))) => unknown(Why::Malformed, format!("the record {} is malformed: {what}", path.display())),
        Err(error) => unknown(Why::NotPermitted, error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;
    use clap::{CommandFactory as _, Parser as _};
    use portreeve_rules::GuardRun;

    #[derive(Debug, clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    #[test]
    fn binds_are_off_and_a_flag_without_a_value_reports_them() {
        let bind =
            |words: &[&str]| Line::try_parse_from([&["guard"][..], words].concat()).map(|line| line.args.bind).ok();
        assert_eq!(bind(&[]), Some(OnBind::Off));
        for words in [&["--bind"][..], &["--bind=report"], &["--bind", "report"], &["--bind", "--allow=a"]] {
            assert_eq!(bind(words), Some(OnBind::Report), "{words:?}");
        }
        assert_eq!(bind(&["--bind=refuse"]), Some(OnBind::Refuse));
        assert_eq!(bind(&["--bind=on"]), None);
    }

    #[test]
    fn the_help_has_no_flag_that_a_guard_always_refuses() {
        let help = Line::command().render_long_help().to_string();
        assert!(help.contains("--services") && !help.contains("--snapshot"), "{help}");
    }

    #[test]
    fn a_record_that_is_absent_is_no_guard_and_one_that_cannot_be_read_is_not_absent() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("guard.json");
        assert_eq!(of_record(&path), (None, None));
        let ours = r#"[{"first":30080,"last":30081}]"#;
        let record = format!(r#"{{"bootId":"b","netns":1,"ours":{ours},"list":{ours}}}"#);
        std::fs::write(&path, record).expect("a file");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).expect("ours");
        let guard = |run| (Some(NodeGuard { run, ports: Some(PortSet::default()) }), None);
        assert_eq!(of_record(&path), guard(GuardRun::Ended), "it is of another boot");
        let lock = portreeve_guard::Files::lock(path.clone()).expect("a lock");
        assert_eq!(of_record(&path), guard(GuardRun::Runs));
        drop(lock);
        let why = || of_record(&path).1.map(|gap| gap.detail).unwrap_or_default();
        std::fs::write(&path, "{").expect("a file");
        assert!(why().contains("is malformed"), "{}", why());
        std::fs::remove_file(&path).expect("removed");
        std::fs::create_dir(&path).expect("a directory");
        assert!(why().contains("cannot read the guard's record"), "{}", why());
    }
}
