//! The commands of both programs, and how a command line becomes an exit code.

use std::{
    ffi::OsString,
    io::{self, Error, ErrorKind, IsTerminal, Write as _, stderr},
    os::fd::{AsFd as _, OwnedFd},
    path::Path,
    process::ExitCode,
};

use anyhow::bail;
use clap::{Command, CommandFactory, FromArgMatches, Parser, Subcommand};
use nix::errno::Errno;
use tracing_subscriber::{
    filter::{LevelFilter, Targets},
    fmt,
    layer::SubscriberExt as _,
    util::SubscriberInitExt as _,
};

#[cfg(target_os = "linux")]
use super::demo;
use super::{
    agent, check, completion,
    console::{Colour, Console, ConsoleFlags},
    kubectl, lint, man, map, owner, replay, rules, snapshot, suggest,
};
use portreeve_facts::text;

/// The command line was not understood (sysexits.h `EX_USAGE`).
const USAGE: u8 = 64;
/// The command could not do its work.
const FAILED: u8 = 2;

/// The exit codes, for the help text.
const EXIT_CODES: &str = "\
Exit codes:
  0   everything that had to be judged was judged, and nothing that counts was found
  1   findings of at least --min-severity (warning, unless chosen)
  2   no findings, but something was not read or not judged that could hide one: sockets,
      addresses, settings, the Services of a cluster, a port whose verdict depends on what
      is not known. A right that this process does not have is a reason for Services only;
      an input that nobody asked for, where the verdict about a port depends on it
  64  the command line was not understood";

/// Finds, explains and foretells port conflicts on Kubernetes nodes
///
/// Reads what this node really does (its sockets, kernel settings, addresses, and kube-proxy's own settings), compares
/// it with the cluster's Services, and tells which NodePorts are in trouble, why, for whom, and what to type next.
/// It changes nothing.
#[derive(Debug, Parser)]
#[command(name = "portreeve", version, after_help = EXIT_CODES, arg_required_else_help = true)]
pub(super) struct Cli {
    #[command(subcommand)]
    action: Action,
    #[command(flatten)]
    console_flags: ConsoleFlags,
}

// Deferred: the flags of the command that was typed are made, and not those of all. A doc comment of a struct of flags
// would then become the help of the command, so that they have plain comments.
#[derive(Debug, Subcommand)]
#[command(defer = true)]
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
    /// Tell who answers on a port of this node, from everywhere, who loses, and what to do
    Owner(owner::Args),
    /// Suggest NodePorts that are free, as far as a look at this node tells
    Suggest(suggest::Args),
    /// Judge manifests before they are applied: files, folders, or the output of `helm template`
    Lint(Box<lint::Args>),
    /// List what the agents of all nodes find, asked through the API server
    Findings(Box<kubectl::findings::Args>),
    /// List the rules, or explain one
    Rules(rules::Args),
    /// Explain a rule
    Explain(rules::Explain),
    /// Make the incidents in throw-away network namespaces, find each one, and clean up
    #[cfg(target_os = "linux")]
    Demo(demo::DemoArgs),
    /// Print a completion script for a shell
    Completion(completion::Args),
    /// Print a manual page
    Man(man::Args),
}

/// Runs a command line, whose first word is the program's own name, and returns its exit code.
pub(crate) fn run(words: Vec<OsString>) -> ExitCode {
    match Name::of(words.first()) {
        Name::Portreeve => {
            let parsed = parse::<Cli>(Name::Portreeve, words);
            parsed.map_or_else(
                |ended| ended,
                |Cli { action, console_flags }| {
                    let console = Console::new(Name::Portreeve.typed(), console_flags.color);
                    // An agent logs as its settings say.
                    if !matches!(action, Action::Agent(_)) {
                        log(console_flags.verbose, console.style.colour);
                    }
                    end(require_descriptors().and_then(|()| action.run(&console)), &console)
                },
            )
        }
        Name::Plugin => {
            let parsed = parse::<kubectl::Cli>(Name::Plugin, words);
            parsed.map_or_else(
                |ended| ended,
                |kubectl::Cli { action, console_flags }| {
                    let console = Console::new(Name::Plugin.typed(), console_flags.color);
                    log(console_flags.verbose, console.style.colour);
                    end(
                        require_descriptors()
                            .and_then(|()| action.run(|| command::<kubectl::Cli>(Name::Plugin), &console)),
                        &console,
                    )
                },
            )
        }
        Name::Completion => {
            let console = Console::new(Name::Plugin.typed(), Colour::Never);
            let typed: Vec<String> = words.iter().skip(1).map(|word| word.to_string_lossy().into_owned()).collect();
            end(kubectl::complete(command::<kubectl::Cli>(Name::Plugin), &typed, &console), &console)
        }
    }
}

fn end(done: anyhow::Result<ExitCode>, console: &Console) -> ExitCode {
    done.unwrap_or_else(|error| {
        console.print_error(&error);
        ExitCode::from(if error.is::<UsageError>() { USAGE } else { FAILED })
    })
}

impl Action {
    fn run(self, console: &Console) -> anyhow::Result<ExitCode> {
        match self {
            Self::Check(args) => check::run(args, console),
            Self::Agent(args) => agent::run(*args, console),
            Self::Snapshot(args) => snapshot::run(args, console),
            Self::Replay(args) => replay::run(args, console),
            Self::Map(args) => map::run(args, console),
            Self::Owner(args) => owner::run(args, console),
            Self::Suggest(args) => suggest::run(args, console),
            Self::Lint(args) => lint::run(*args, console),
            Self::Findings(args) => kubectl::findings::run(&args, console),
            Self::Rules(args) => rules::run(args, console),
            Self::Explain(args) => args.run(console),
            #[cfg(target_os = "linux")]
            Self::Demo(args) => demo::run(args, console),
            Self::Completion(args) => completion::run(args, command::<Cli>(Name::Portreeve), console),
            Self::Man(args) => man::run(args, command::<Cli>(Name::Portreeve), console),
        }
    }
}

/// The name by which the program was called, which decides what it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Name {
    /// The tool for this node, and its agent.
    Portreeve,
    /// `kubectl portreeve`, the tool for the cluster: `kubectl-portreeve`.
    Plugin,
    /// What kubectl asks to complete a command line of its plugin: `kubectl_complete-portreeve`.
    Completion,
}

impl Name {
    fn of(path: Option<&OsString>) -> Self {
        match path.and_then(|path| Path::new(path).file_stem()?.to_str()) {
            Some("kubectl-portreeve") => Self::Plugin,
            Some("kubectl_complete-portreeve") => Self::Completion,
            _ => Self::Portreeve,
        }
    }

    /// What a person typed to start it, as help has to show.
    fn typed(self) -> &'static str {
        if self == Self::Portreeve { "portreeve" } else { "kubectl portreeve" }
    }
}

pub(super) fn command<C: CommandFactory>(name: Name) -> Command {
    C::command().bin_name(name.typed())
}

/// The parsed command line, or the exit code of a wrong one.
fn parse<C: CommandFactory + FromArgMatches>(name: Name, words: Vec<OsString>) -> Result<C, ExitCode> {
    let parse = |words: Vec<OsString>| {
        command::<C>(name).try_get_matches_from(words).and_then(|matches| C::from_arg_matches(&matches))
    };
    // The message quotes what was typed, and what was typed may have been copied from anywhere.
    let printable = |word: &OsString| OsString::from(text::clean(&word.to_string_lossy(), usize::MAX));
    let cleaned: Vec<OsString> = words.iter().map(printable).collect();
    let unclean = cleaned != words;
    parse(words).map_err(|error| match parse(cleaned) {
        Err(cleaned) if unclean && cleaned.use_stderr() => print_usage(&cleaned),
        _ if unclean => {
            drop(writeln!(stderr(), "error: an argument has characters that print nothing, wanted it without them"));
            ExitCode::from(USAGE)
        }
        _ => print_usage(&error),
    })
}

/// Help and version are success; everything else is usage.
fn print_usage(error: &clap::Error) -> ExitCode {
    match error.print() {
        Err(failed) if failed.kind() != ErrorKind::BrokenPipe => ExitCode::from(FAILED),
        _ if error.use_stderr() => ExitCode::from(USAGE),
        _ => ExitCode::SUCCESS,
    }
}

/// Libraries log only with --verbose: what they complain about is reported as a gap already.
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

/// What one look, its event loop and a connection to the API server have open at once. The event loop of tokio panics where
/// it cannot have its own.
const NEEDED: usize = 16;

/// Says so, in one line, before anything is begun with too few.
fn require_descriptors() -> anyhow::Result<()> {
    let held: Result<Vec<OwnedFd>, Error> = (0..NEEDED).map(|_| io::stderr().as_fd().try_clone_to_owned()).collect();
    let errno = held.err().and_then(|error| error.raw_os_error()).map(Errno::from_raw);
    if matches!(errno, Some(Errno::EMFILE | Errno::ENFILE)) {
        bail!("too few files may be open: {NEEDED} more than at the start are needed (`ulimit -n`)");
    }
    Ok(())
}

/// A command line that parses, and yet names something that does not exist.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct UsageError(pub(super) String);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_lines_are_sound() {
        command::<Cli>(Name::Portreeve).debug_assert();
        command::<kubectl::Cli>(Name::Plugin).debug_assert();
    }

    #[test]
    fn a_kubectl_plugin_says_so() {
        for (path, typed) in [
            ("/usr/bin/kubectl-portreeve", "kubectl portreeve"),
            ("kubectl-portreeve.exe", "kubectl portreeve"),
            ("./portreeve", "portreeve"),
        ] {
            assert_eq!(Name::of(Some(&path.into())).typed(), typed);
        }
        assert_eq!(Name::of(None), Name::Portreeve);
        assert_eq!(Name::of(Some(&"bin/kubectl_complete-portreeve".into())), Name::Completion);
    }
}
