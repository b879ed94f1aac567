//! `check`: the findings of all nodes that have an agent.

use std::{process::ExitCode, time::Duration};

use clap::ValueEnum;
use jiff::Timestamp;
use tokio::time::sleep;

use super::{agents::runtime, node_snapshots::AgentScope, queries::Interrupts};
use crate::{
    console::Console,
    report::{CountFlags, RULE},
};
use portreeve_agent::settings::duration;
use portreeve_cluster::{Agent, AgentRequest, Agents};
use portreeve_facts::Gap;
use portreeve_report::{AgentAnswer, Fleet, Gathering, Wanted, write_fleet_rows, write_fleet_table};
use portreeve_rules::ids::Named;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    scope: AgentScope,
    /// Report and count only findings about objects in this namespace; findings about nodes are left out
    #[arg(short, long, value_name = "NAMESPACE", help_heading = "Output", conflicts_with = "all_namespaces")]
    namespace: Option<String>,
    /// Report findings about nodes and about objects in all namespaces: the default
    #[arg(short = 'A', long, help_heading = "Output")]
    all_namespaces: bool,
    /// Report and count only findings of this rule, or of one of its variants: ID or ID/VARIANT; may be given several times
    #[arg(long = "rule", value_name = "RULE", help_heading = "Output", value_parser = RULE, hide_possible_values = true)]
    rules: Vec<Named>,
    /// Query repeatedly, and print the whole report again after each change
    #[arg(short, long, help_heading = "Output")]
    watch: bool,
    /// How long to wait with --watch before the next query
    #[arg(long, value_name = "DURATION", help_heading = "Output", default_value = "15s", value_parser = duration)]
    interval: Duration,
    /// The form of the output
    #[arg(short, long, value_enum, value_name = "FORM", help_heading = "Output", default_value_t = Form::Table)]
    output: Form,
    #[command(flatten)]
    counting: CountFlags,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Form {
    /// Each incident once: nodes, affected clients, remedy
    Table,
    /// The table with all details, and all nodes
    Wide,
    /// One JSON document, `portreeve.findings/v1`
    Json,
    /// The same document as `json`
    Yaml,
    /// The objects that findings are about, like service/web
    Name,
    /// One ClusterReport of OpenReports, for `kubectl apply --server-side`
    Openreports,
}

pub(crate) fn run(args: &Args, console: &Console) -> anyhow::Result<ExitCode> {
    runtime()?.block_on(async {
        let agents = args.scope.agent_flags.connect().await?;
        let listed = list(&args.scope, &agents).await?;
        let mut interrupts = Interrupts::new()?;
        let mut fleet = query(&args.scope, args.wanted(), &agents, &listed, &mut interrupts).await;
        let mut read = args.print(&fleet, false, console)?;
        while args.watch && read && !fleet.was_interrupted() {
            let next = async {
                sleep(args.interval).await;
                list(&args.scope, &agents).await
            };
            match interrupts.unless(next).await {
                None => break,
                Some(_) if !console.is_read() => break,
                // The agents were not listed. The last result stays on the terminal, because no newer result is known.
                Some(Err(error)) => console.print_error(&error),
                Some(Ok(listed)) => {
                    let now = query(&args.scope, args.wanted(), &agents, &listed, &mut interrupts).await;
                    if now.was_interrupted() {
                        break;
                    }
                    if !now.reports_the_same_as(&fleet) {
                        fleet = now;
                        read = args.print(&fleet, true, console)?;
                    }
                }
            }
        }
        Ok(args.counting.end(fleet.result(), fleet.is_whole()))
    })
}

pub(super) async fn list(scope: &AgentScope, agents: &Agents) -> anyhow::Result<Vec<Agent>> {
    scope.agent_flags.list(agents, &scope.node).await
}

pub(super) async fn query(
    scope: &AgentScope,
    wanted: Wanted,
    agents: &Agents,
    listed: &[Agent],
    interrupts: &mut Interrupts,
) -> Fleet {
    let mut gathering = Gathering::new(&scope.agent_flags.agent_namespace, wanted);
    let mut not_queried = vec![true; listed.len()];
    let take = async |number: usize, answer: Result<Vec<u8>, Gap>| {
        not_queried[number] = false;
        let Agent { node, pod, .. } = listed[number].clone();
        gathering.take(AgentAnswer { node, pod, answer }, Timestamp::now());
    };
    let limit = scope.agent_flags.time_limit;
    let stopped = interrupts.query(agents, listed, AgentRequest::FINDINGS, limit, take).await;
    if let Some(stopped) = stopped {
        for (agent, _) in listed.iter().zip(not_queried).filter(|(_, not_queried)| *not_queried) {
            gathering.leave_out(&agent.node, &agent.pod, stopped);
        }
    }
    gathering.finish(stopped)
}

impl Args {
    fn wanted(&self) -> Wanted {
        Wanted {
            namespace: self.namespace.clone(),
            rules: self.rules.clone(),
            min_severity: self.counting.min_severity,
            document: matches!(self.output, Form::Json | Form::Yaml),
        }
    }

    /// Prints the report. `again` is true for a repeated report. Returns whether a program still reads the output.
    fn print(&self, fleet: &Fleet, again: bool, console: &Console) -> anyhow::Result<bool> {
        let style = &console.style;
        let is_table = matches!(self.output, Form::Table | Form::Wide) && !self.counting.no_headers;
        if let Some(partial) = fleet.partial_words().filter(|_| !is_table) {
            console.print_note(&partial);
        }
        console.write_while_read(|out| {
            match self.output {
                Form::Table | Form::Wide if again && !self.counting.no_headers => {
                    writeln!(out, "\n{}\n", "-".repeat(style.width.min(120)))?;
                }
                Form::Yaml if again => writeln!(out, "---")?,
                _ => {}
            }
            match self.output {
                Form::Table | Form::Wide if self.counting.no_headers => write_fleet_rows(fleet, style, out),
                Form::Table | Form::Wide => write_fleet_table(fleet, self.output == Form::Wide, style, out),
                Form::Json => fleet.write_json(out),
                Form::Yaml => fleet.write_yaml(out),
                Form::Name => fleet.write_names(out),
                Form::Openreports => fleet.write_open_reports(out),
            }
        })
    }
}
