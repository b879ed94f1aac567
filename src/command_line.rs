//! The commands of `portreeve` and of `kubectl portreeve`, and the exit code of a command line.

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
    examples::{Example, OF_A_NODE, OF_ALL_NODES, with_examples},
    explain, guard, kubectl, lint, man, map, owner, policies, reserve, snapshot,
    sources::Sources,
    suggest, version, what_if,
};
use portreeve_facts::text;

/// The exit code for a command line with an error (sysexits.h `EX_USAGE`).
const USAGE: u8 = 64;
const FAILED: u8 = 2;

const EXIT_CODES: &str = "\
Exit codes:
  0 no finding of at least --min-severity (default: warning), and all necessary inputs were read
  1 findings of at least --min-severity
  2   no findings, but an input was not read or not judged and could hide one: sockets,
      addresses, settings, the Services of a cluster, a port whose verdict depends on an
      unknown. A missing right is a reason only for Services. An input that was not
      requested is a reason only if the verdict about a port depends on it
  64  the command line was not understood";

const EXAMPLES: &str = "\
Examples:
  portreeve check                              # scan this node; the cluster from $KUBECONFIG
  portreeve check --services cluster.yaml      # the cluster from a file of kubectl get -o yaml
  portreeve owner 30080                        # who answers on a port, who gets no connections, what to do
  portreeve lint manifests/                    # judge manifests before you apply them
  portreeve demo                               # make and find five incidents, without a cluster

Each verb is about this node. `kubectl portreeve VERB` and `portreeve --agents VERB` are about all
nodes that have an agent. With --snapshot FILE a verb is about the node in that file.";

/// Finds, explains and predicts port conflicts on Kubernetes nodes
///
/// Reads what this node really does: its sockets, kernel settings and addresses, and the settings of kube-proxy. Compares
/// these facts with the Services of the cluster. Reports which NodePorts have conflicts, why, which clients are affected,
/// and the command to type next.
/// Only the verb `guard` changes the node: it reserves ports, and can refuse binds.
#[derive(Debug, Parser)]
#[command(name = "portreeve", version, before_help = EXAMPLES, after_help = EXIT_CODES)]
#[command(arg_required_else_help = true, disable_help_flag = true)]
pub(super) struct Cli {
    #[command(subcommand)]
    action: Action,
    #[command(flatten)]
    console_flags: ConsoleFlags,
}

// Structs of flags have plain comments, because
// clap would use a doc comment as the help of the command. Both programs have the same verbs in the same order.
#[derive(Debug, Subcommand)]
enum Action {
    /// Scan this node once: print findings, and set the exit code
    Check(check::Args),
    /// Show who answers on a port of this node, who gets no connections, and what to do
    Owner(owner::Args),
    /// Draw the NodePort range as a picture
    Map(map::Args),
    /// Print free NodePorts, or with --host free ports of the node
    Suggest(suggest::Args<Sources>),
    /// Print the port reservation that keeps outgoing connections off NodePorts, in the format of a platform
    Reserve(reserve::Args<Sources>),
    /// Show the effects of another proxy mode, range or reservation
    WhatIf(what_if::Args<Sources>),
    /// Print admission policies against port conflicts
    Policies(policies::Args<Sources>),
    /// Print everything that a scan reads as one JSON document, for a bug report or for --snapshot
    Snapshot(snapshot::Args),
    /// Judge manifests before they are applied: files, folders, or the output of `helm template`
    Lint(Box<lint::Args>),
    /// Print the page of a rule, or list all rules
    Explain(explain::Args),
    /// Make five incidents in throw-away network namespaces, find each one, and clean up
    #[cfg(target_os = "linux")]
    Demo(demo::DemoArgs),
    /// Scan this node repeatedly, and report over HTTP and in Events: the process of a DaemonSet
    Agent(Box<agent::Args>),
    /// Reserve the ports that this node needs, while the cluster changes. No other verb changes a node
    Guard(Box<guard::Args>),
    /// Print the version
    Version,
    /// Print a completion script for a shell
    Completion(completion::Args),
    /// Print a manual page
    Man(man::Args),
}

/// Runs a command line and returns the exit code. The first word is the program's own name.
pub(crate) fn run(words: Vec<OsString>) -> ExitCode {
    let (name, typed) = called(&words);
    let ended = match name {
        Name::Portreeve => parse::<Cli>(typed, words).map(|Cli { action, console_flags }| {
            // `agent` and `guard` start their own log, according to their settings.
            let logs = !matches!(action, Action::Agent(_) | Action::Guard(_));
            start(typed, console_flags, logs, |console| action.run(console))
        }),
        Name::Plugin => parse::<kubectl::Cli>(typed, words).map(|kubectl::Cli { action, console_flags, .. }| {
            start(typed, console_flags, true, |console| action.run(console))
        }),
        Name::Completion => {
            let console = Console::new(typed, Colour::Never);
            let words: Vec<String> = words.iter().skip(1).map(|word| word.to_string_lossy().into_owned()).collect();
            Ok(end(kubectl::complete(command::<kubectl::Cli>(typed), &words, &console), &console))
        }
    };
    ended.unwrap_or_else(|ended| ended)
}

fn start(
    typed: &str,
    flags: ConsoleFlags,
    logs: bool,
    run: impl FnOnce(&Console) -> anyhow::Result<ExitCode>,
) -> ExitCode {
    let console = Console::new(typed, flags.color);
    if logs {
        log(flags.verbose, console.style.colour);
    }
    end(require_descriptors().and_then(|()| run(&console)), &console)
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
            Self::Owner(args) => owner::run(args, console),
            Self::Map(args) => map::run(args, console),
            Self::Suggest(args) => suggest::run(args, console),
            Self::Reserve(args) => reserve::run(args, console),
            Self::WhatIf(args) => what_if::run(args, console),
            Self::Policies(args) => policies::run(args, console),
            Self::Snapshot(args) => snapshot::run(args, console),
            Self::Lint(args) => lint::run(*args, console),
            Self::Explain(args) => explain::run(&args, console),
            #[cfg(target_os = "linux")]
            Self::Demo(args) => demo::run(args, console),
            Self::Agent(args) => agent::run(*args, console),
            Self::Guard(args) => guard::run(*args, console),
            Self::Version => version::run(console),
            Self::Completion(args) => completion::run(args, command::<Cli>("portreeve"), console),
            Self::Man(args) => man::run(args, command::<Cli>("portreeve"), console),
        }
    }
}

/// The name of the program. The name selects the nodes that the commands are about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Name {
    /// `portreeve`: commands about this node, the node of a snapshot file, or the agent.
    Portreeve,
    /// `kubectl portreeve`: commands about all nodes that have an agent.
    Plugin,
    /// `kubectl_complete-portreeve`: kubectl completes a command line of its plugin.
    Completion,
}

/// The name of the program, and the words with which a user starts the program, for the help. The name is the file
/// name. With `--agents`, `portreeve` works as the plugin. With `--snapshot`, both programs work as `portreeve`.
fn called(words: &[OsString]) -> (Name, &'static str) {
    let flags = || words.iter().skip(1).filter_map(|word| word.to_str()).take_while(|word| *word != "--");
    let has = |wanted: &str| flags().any(|word| word.split('=').next() == Some(wanted));
    match words.first().and_then(|path| Path::new(path).file_stem()?.to_str()) {
        Some("kubectl-portreeve") if has("--snapshot") => (Name::Portreeve, "kubectl portreeve"),
        Some("kubectl-portreeve") => (Name::Plugin, "kubectl portreeve"),
        Some("kubectl_complete-portreeve") => (Name::Completion, "kubectl portreeve"),
        _ if has("--agents") && !has("--snapshot") => (Name::Plugin, "portreeve --agents"),
        _ => (Name::Portreeve, "portreeve"),
    }
}

/// A program: `portreeve`, or its plugin.
pub(super) trait Program: CommandFactory + FromArgMatches {
    /// The examples of the verbs that are only about the nodes of this program.
    const EXAMPLES: &[Example];
}

impl Program for Cli {
    const EXAMPLES: &[Example] = OF_A_NODE;
}

impl Program for kubectl::Cli {
    const EXAMPLES: &[Example] = OF_ALL_NODES;
}

pub(super) fn command<C: Program>(typed: &str) -> Command {
    with_examples(C::command().bin_name(typed), typed, C::EXAMPLES)
}

fn parse<C: Program>(typed: &str, words: Vec<OsString>) -> Result<C, ExitCode> {
    let parse = |words: Vec<OsString>| {
        command::<C>(typed).try_get_matches_from(words).and_then(|matches| C::from_arg_matches(&matches))
    };
    // The error message quotes the typed words, which the user may have copied from an unsafe source.
    let printable = |word: &OsString| OsString::from(text::clean(&word.to_string_lossy(), usize::MAX));
    let cleaned: Vec<OsString> = words.iter().map(printable).collect();
    let unclean = cleaned != words;
    parse(words).map_err(|error| match parse(cleaned) {
        Err(cleaned) if unclean && cleaned.use_stderr() => print_usage(&cleaned),
        _ if unclean => {
            drop(writeln!(stderr(), "error: an argument has invisible characters: remove them"));
            ExitCode::from(USAGE)
        }
        _ => print_usage(&error),
    })
}

fn print_usage(error: &clap::Error) -> ExitCode {
    match error.print() {
        Err(failed) if failed.kind() != ErrorKind::BrokenPipe => ExitCode::from(FAILED),
        _ if error.use_stderr() => ExitCode::from(USAGE),
        _ => ExitCode::SUCCESS,
    }
}

/// Starts the log. Libraries log only with --verbose, because the report already lists failures of libraries as unread
/// input.
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

/// The number of files that one scan, its event loop and a connection to the API server open together. The event loop
/// of tokio panics if a file cannot be opened.
const NEEDED: usize = 16;

fn require_descriptors() -> anyhow::Result<()> {
    let held: Result<Vec<OwnedFd>, Error> = (0..NEEDED).map(|_| io::stderr().as_fd().try_clone_to_owned()).collect();
    let errno = held.err().and_then(|error| error.raw_os_error()).map(Errno::from_raw);
    if matches!(errno, Some(Errno::EMFILE | Errno::ENFILE)) {
        bail!("the limit of open files is too low: {NEEDED} more than at the start are needed (`ulimit -n`)");
    }
    Ok(())
}

/// The error for a valid command line that names something that does not exist.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct UsageError(pub(super) String);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_lines_are_sound() {
        command::<Cli>("portreeve").debug_assert();
        command::<kubectl::Cli>("kubectl portreeve").debug_assert();
    }

    #[test]
    fn both_names_have_the_same_verbs() {
        let verbs = |command: Command| -> Vec<String> {
            command.get_subcommands().map(|it| it.get_name().to_owned()).collect()
        };
        assert_eq!(verbs(Cli::command()), verbs(kubectl::Cli::command()));
    }

    #[test]
    fn the_file_or_a_flag_says_which_nodes_a_verb_is_about() {
        for (line, name, typed) in [
            ("/usr/bin/kubectl-portreeve check", Name::Plugin, "kubectl portreeve"),
            ("kubectl-portreeve.exe", Name::Plugin, "kubectl portreeve"),
            ("kubectl-portreeve check --snapshot=n1.json", Name::Portreeve, "kubectl portreeve"),
            ("bin/kubectl_complete-portreeve check --snapshot", Name::Completion, "kubectl portreeve"),
            ("./portreeve check", Name::Portreeve, "portreeve"),
            ("./portreeve check --agents", Name::Plugin, "portreeve --agents"),
            ("./portreeve --agents check --snapshot n1.json", Name::Portreeve, "portreeve"),
            ("./portreeve lint -- --agents", Name::Portreeve, "portreeve"),
            ("", Name::Portreeve, "portreeve"),
        ] {
            let words: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
            assert_eq!(called(&words), (name, typed), "{line}");
        }
    }
}
