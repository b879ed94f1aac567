//! `kubectl portreeve`: queries the agents of a cluster through the API server, with the rights of the user.
//!
//! The plugin runs on any machine, and reads no facts about that machine.

mod agents;
mod check;
mod complete;
mod declared;
mod map;
mod node_snapshots;
mod owner;
mod queries;
mod snapshot;
mod version;

use std::{ffi::OsString, path::PathBuf, process::ExitCode};

use clap::{Parser, Subcommand};

pub(super) use complete::complete;

use self::node_snapshots::AgentScope;
#[cfg(target_os = "linux")]
use super::demo;
use super::{
    command_line::{UsageError, command},
    console::{Console, ConsoleFlags},
    explain, lint, man, policies, reserve, suggest, what_if,
};

const EXIT_CODES: &str = "\
Exit codes:
  0   no finding of at least --min-severity (default: warning)
  1   findings of at least --min-severity; for reserve --check: outgoing connections of a
      node may get NodePorts or ports of servers
  2   no findings, but an agent could not be queried, or an unread input could hide one
      After Ctrl-C or the time limit: 1 with findings, otherwise 2
  64  the command line was not understood";

const EXAMPLES: &str = "\
Examples:
  kubectl portreeve check                      # the findings of all nodes
  kubectl portreeve owner 30080                # who answers on a port of each node, who gets no connections
  kubectl portreeve check --snapshot n1.json   # the node in a file that `snapshot` wrote

Each verb is about all nodes that have an agent. `portreeve VERB` on a node is about this node.";

/// Finds, explains and predicts port conflicts on the nodes of a cluster
///
/// Queries the agents of the nodes through the API server, with your own rights. You need `list` of pods, `get` of
/// pods/proxy, and `create` of serviceaccounts/token for the ServiceAccount portreeve-reader, in the agents' namespace.
/// The report is about the nodes with an agent in this namespace. The command changes nothing on the nodes.
#[derive(Debug, Parser)]
#[command(name = "portreeve", version, before_help = EXAMPLES, after_help = EXIT_CODES)]
#[command(arg_required_else_help = true, disable_help_flag = true)]
pub(super) struct Cli {
    #[command(subcommand)]
    pub(super) action: Action,
    /// Query no agents, but read a file that `snapshot` wrote; use the flags of `portreeve VERB`
    // `--snapshot` is read before the command line is parsed.
    #[arg(long = "snapshot", value_name = "FILE", global = true, value_hint = clap::ValueHint::AnyPath)]
    _snapshots: Vec<PathBuf>,
    #[command(flatten)]
    pub(super) console_flags: ConsoleFlags,
}

#[derive(Debug, Subcommand)]
pub(super) enum Action {
    /// List the findings of all nodes, and set the exit code
    Check(Box<check::Args>),
    /// Show who answers on a port of each node, who gets no connections, and what to do
    Owner(owner::Args),
    /// Draw the NodePort range of a node as a picture
    Map(map::Args),
    /// Print NodePorts that are free on all nodes, or with --host free ports of the nodes
    Suggest(suggest::Args<AgentScope>),
    /// Print the port reservation that keeps outgoing connections off NodePorts on all nodes, in the format of a platform
    Reserve(reserve::Args<AgentScope>),
    /// Show the effects of another proxy mode, range or reservation on all nodes
    WhatIf(what_if::Args<AgentScope>),
    /// Print admission policies against port conflicts, with the facts that the agents report
    Policies(policies::Args<AgentScope>),
    /// Print everything that the last scan of a node read as one JSON document
    Snapshot(snapshot::Args),
    /// Judge manifests before they are applied: files, folders, or the output of `helm template`
    Lint(Box<lint::Args>),
    /// Print the page of a rule, or list all rules
    Explain(explain::Args),
    /// Make five incidents in throw-away network namespaces, find each one, and clean up
    #[cfg(target_os = "linux")]
    Demo(demo::DemoArgs),
    /// Not a verb of this plugin: the DaemonSet runs `portreeve agent` on each node
    Agent(Elsewhere),
    /// Reserve the ports that a node needs: run `portreeve guard` on the node
    Guard(Elsewhere),
    /// Print the version of this program, and the versions of the agents by count
    Version(version::Args),
    /// Not a verb of this plugin: `portreeve completion` prints completion scripts
    Completion(Elsewhere),
    /// Print a manual page
    Man(man::Args),
}

// A verb that exists only in `portreeve`.
#[derive(Debug, clap::Args)]
pub(super) struct Elsewhere {
    #[arg(hide = true, trailing_var_arg = true, allow_hyphen_values = true)]
    words: Vec<OsString>,
}

impl Elsewhere {
    fn run(self, verb: &str, why: &str) -> anyhow::Result<ExitCode> {
        drop(self.words);
        Err(UsageError(format!("only portreeve has the verb {verb}: `portreeve {verb}`; {why}")).into())
    }
}

impl Action {
    pub(super) fn run(self, console: &Console) -> anyhow::Result<ExitCode> {
        match self {
            Self::Check(args) => check::run(&args, console),
            Self::Owner(args) => owner::run(&args, console),
            Self::Map(args) => map::run(&args, console),
            Self::Suggest(args) => suggest::run(args, console),
            Self::Reserve(args) => reserve::run(args, console),
            Self::WhatIf(args) => what_if::run(args, console),
            Self::Policies(args) => policies::run(args, console),
            Self::Snapshot(args) => snapshot::run(&args, console),
            Self::Lint(args) => lint::run(*args, console),
            Self::Explain(args) => explain::run(&args, console),
            #[cfg(target_os = "linux")]
            Self::Demo(args) => demo::run(args, console),
            Self::Agent(elsewhere) => elsewhere.run("agent", "the chart installs it on every node"),
            Self::Guard(elsewhere) => elsewhere.run("guard", "the chart installs it with guard.enabled"),
            Self::Version(args) => version::run(&args, console),
            Self::Completion(elsewhere) => {
                elsewhere.run("completion", "kubectl itself runs kubectl_complete-portreeve, a link to this file")
            }
            Self::Man(args) => man::run(args, command::<Cli>(&console.style.program), console),
        }
    }
}
