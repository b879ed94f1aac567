//! Lets a person turn the crank once: one file per command.
//!
//! Never: duplicates the loop; `check` is one turn of the same crank.

#![allow(clippy::disallowed_methods, reason = "reads the command line, the environment, the clock and named files")]

mod agent;
mod check;
mod completion;
mod console;
#[cfg(target_os = "linux")]
mod demo;
mod gather;
mod man;
mod map;
mod nearest;
mod owner;
mod progress;
mod reference;
mod replay;
mod rules;
mod snapshot;
mod tell;
mod what_if;

use std::{
    ffi::OsString,
    io::{ErrorKind, IsTerminal, stderr},
    path::Path,
    process::ExitCode,
};

use clap::{ArgAction, Command, CommandFactory, FromArgMatches, Parser, Subcommand};
use tracing_subscriber::{
    filter::{LevelFilter, Targets},
    fmt,
    layer::SubscriberExt as _,
    util::SubscriberInitExt as _,
};

use self::console::{Colour, Console};

pub use reference::{handbook, reference};

/// The command line was not understood (sysexits.h `EX_USAGE`).
const USAGE: u8 = 64;
/// The command could not do its work.
const FAILED: u8 = 2;

/// The exit codes, for the help text.
const EXIT_CODES: &str = "\
Exit codes of check, replay and snapshot:
  0   nothing that counts was found
  1   findings of at least --min-severity (warning, unless chosen)
  2   no findings, but a configured source or a core reader failed
  64  the command line was not understood";

/// Finds, explains and foretells port conflicts on Kubernetes nodes
///
/// Reads what this node really does (its sockets, kernel settings, addresses, and kube-proxy's own settings), compares
/// it with the cluster's Services, and tells which NodePorts are in trouble, why, for whom, and what to type next.
/// It changes nothing.
#[derive(Debug, Parser)]
#[command(name = "portreeve", version, after_help = EXIT_CODES, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    action: Action,
    /// When to use colour; NO_COLOR is honoured
    #[arg(long, global = true, value_enum, value_name = "WHEN", default_value_t = Colour::Auto)]
    color: Colour,
    /// Say on standard error what is being done; twice says more
    #[arg(short, long, global = true, action = ArgAction::Count)]
    verbose: u8,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Look at this node once: a table of findings, and an exit code
    Check(check::Args),
    /// Look over and over, and tell over HTTP: the process of a DaemonSet
    Agent(Box<agent::Args>),
    /// Write everything one look sees as one JSON document, for a bug report or for `replay`
    Snapshot(snapshot::Args),
    /// Judge a snapshot again, and ask what if
    Replay(replay::Args),
    /// Draw the NodePort range, a hundred ports a row
    Map(map::Args),
    /// Tell who answers on a port of this node, from everywhere, and who loses
    Owner(owner::Args),
    /// List the rules, or explain one
    Rules(rules::Args),
    /// Make the incidents in throw-away network namespaces, find each one, and clean up
    #[cfg(target_os = "linux")]
    Demo(demo::DemoArgs),
    /// Print a completion script for a shell
    Completion(completion::Args),
    /// Print a manual page
    Man(man::Args),
}

/// Runs a command line, its first word being the program's own name, and says how it ended.
pub fn run(words: Vec<OsString>) -> ExitCode {
    let program = program(words.first());
    let parsed = command(program).try_get_matches_from(words).and_then(|matches| Cli::from_arg_matches(&matches));
    let Cli { action, color, verbose } = match parsed {
        Ok(cli) => cli,
        Err(error) => return refuse(&error),
    };
    let console = Console::new(program, color);
    // An agent logs as its settings say.
    if !matches!(action, Action::Agent(_)) {
        log(verbose, console.style.colour);
    }
    let done = match action {
        Action::Check(args) => check::run(args, &console),
        Action::Agent(args) => agent::run(*args, &console),
        Action::Snapshot(args) => snapshot::run(args, &console),
        Action::Replay(args) => replay::run(args, &console),
        Action::Map(args) => map::run(args, &console),
        Action::Owner(args) => owner::run(args, &console),
        Action::Rules(args) => rules::run(args, &console),
        #[cfg(target_os = "linux")]
        Action::Demo(args) => demo::run(args, &console),
        Action::Completion(args) => completion::run(args, command(program), &console),
        Action::Man(args) => man::run(args, command(program), &console),
    };
    done.unwrap_or_else(|error| {
        console.complain(&error);
        ExitCode::from(if error.is::<Misused>() { USAGE } else { FAILED })
    })
}

/// A command line that parses, and yet asks for something that is not there.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Misused(String);

/// What a person typed to get here: as a kubectl plugin the help must say so.
fn program(path: Option<&OsString>) -> &'static str {
    let name = path.and_then(|path| Path::new(path).file_stem());
    if name.is_some_and(|name| name == "kubectl-portreeve") { "kubectl portreeve" } else { "portreeve" }
}

fn command(program: &'static str) -> Command {
    Cli::command().bin_name(program)
}

/// Help and version are success; everything else is usage.
fn refuse(error: &clap::Error) -> ExitCode {
    match error.print() {
        Err(failed) if failed.kind() != ErrorKind::BrokenPipe => ExitCode::from(FAILED),
        _ if error.use_stderr() => ExitCode::from(USAGE),
        _ => ExitCode::SUCCESS,
    }
}

/// Libraries are heard only when a person asks: what they complain of is a gap of ours, told once.
fn log(verbose: u8, colour: bool) {
    let ours = |level| Targets::new().with_target("portreeve", level);
    let filter = match verbose {
        0 => ours(LevelFilter::WARN),
        1 => ours(LevelFilter::INFO).with_default(LevelFilter::WARN),
        2 => ours(LevelFilter::DEBUG).with_default(LevelFilter::INFO),
        _ => Targets::new().with_default(LevelFilter::DEBUG),
    };
    let lines = fmt::layer().with_writer(stderr).compact().with_ansi(colour && stderr().is_terminal());
    tracing_subscriber::registry().with(lines).with(filter).init();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        command("portreeve").debug_assert();
    }

    #[test]
    fn a_kubectl_plugin_says_so() {
        assert_eq!(program(Some(&"/usr/bin/kubectl-portreeve".into())), "kubectl portreeve");
        assert_eq!(program(Some(&"./portreeve".into())), "portreeve");
        assert_eq!(program(None), "portreeve");
    }
}
