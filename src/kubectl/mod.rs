//! `kubectl portreeve`: asks the agents of a cluster through the API server, with the rights of the user.
//!
//! It runs anywhere, and reads nothing of the machine it runs on.

mod agents;
mod asking;
mod complete;
mod declared;
pub(super) mod findings;
mod map;
mod node_snapshots;
mod owner;
mod policies;
mod reserve;
mod snapshot;
mod suggest;
mod what_if;

use std::process::ExitCode;

use clap::{Command, Parser, Subcommand};

pub(super) use complete::complete;

use super::{
    console::{Console, ConsoleFlags},
    lint, man, replay, rules,
};

/// The exit codes, for the help text.
const EXIT_CODES: &str = "\
Exit codes:
  0   nothing that counts was found
  1   findings of at least --min-severity (warning, unless chosen); of reserve --check:
      a node does not keep its NodePorts from outgoing connections
  2   no findings, but not every agent could be asked, or an agent could not read or judge
      something that could hide one; so it is after Ctrl-C, and when the time is over,
      unless something was found (1)
  64  the command line was not understood";

/// Finds, explains and foretells port conflicts on the nodes of a cluster
///
/// Asks the agents of the nodes through the API server, with your own rights: `list` of pods, `get` of pods/proxy, and
/// `create` of serviceaccounts/token for the ServiceAccount portreeve-reader, in the agents' namespace, is all it takes.
/// It speaks of the nodes whose agents are listed there, and changes nothing.
#[derive(Debug, Parser)]
#[command(name = "portreeve", version, after_help = EXIT_CODES, arg_required_else_help = true)]
pub(super) struct Cli {
    #[command(subcommand)]
    pub(super) action: Action,
    #[command(flatten)]
    pub(super) console_flags: ConsoleFlags,
}

#[derive(Debug, Subcommand)]
#[command(defer = true)]
pub(super) enum Action {
    /// List what is wrong on all nodes, with evidence and remedy, and an exit code
    Findings(Box<findings::Args>),
    /// Tell who answers on a port of each node, from everywhere, who loses, and what to do
    Owner(owner::Args),
    /// Draw the NodePort range of a node, a hundred ports a row
    Map(map::Args),
    /// Suggest NodePorts that are free on all nodes
    Suggest(suggest::Args),
    /// Print what keeps NodePorts from outgoing connections, for all nodes in your platform's form
    Reserve(reserve::Args),
    /// Print admission policies against port conflicts, filled with what the agents know
    Policies(policies::Args),
    /// Print everything that the last look at a node saw as one JSON document, for a bug report or for `replay`
    Snapshot(snapshot::Args),
    /// Judge a snapshot again, and ask what if
    Replay(replay::Args),
    /// Judge all nodes as they would be with another proxy mode, range or reservation, and tell what changes
    WhatIf(what_if::Args),
    /// Judge manifests before they are applied: files, folders, or the output of `helm template`
    Lint(Box<lint::Args>),
    /// List the rules, or explain one
    Rules(rules::Args),
    /// Explain a rule
    Explain(rules::Explain),
    /// Print a manual page
    Man(man::Args),
}

impl Action {
    /// Runs it; `command` are all of them, for whoever tells of them.
    pub(super) fn run(self, command: impl FnOnce() -> Command, console: &Console) -> anyhow::Result<ExitCode> {
        match self {
            Self::Findings(args) => findings::run(&args, console),
            Self::Owner(args) => owner::run(&args, console),
            Self::Map(args) => map::run(&args, console),
            Self::Suggest(args) => suggest::run(&args, console),
            Self::Reserve(args) => reserve::run(&args, console),
            Self::Policies(args) => policies::run(&args, console),
            Self::Snapshot(args) => snapshot::run(&args, console),
            Self::Replay(args) => replay::run(args, console),
            Self::WhatIf(args) => what_if::run(args, console),
            Self::Lint(args) => lint::run(*args, console),
            Self::Rules(args) => rules::run(args, console),
            Self::Explain(args) => args.run(console),
            Self::Man(args) => man::run(args, command(), console),
        }
    }
}
