//! `findings`: what is wrong, on every node that has an agent.

use std::{process::ExitCode, time::Duration};

use clap::ValueEnum;
use jiff::Timestamp;
use tokio::time::sleep;

use super::{
    agents::{AgentFlags, runtime},
    asking::Interrupts,
};
use crate::{
    console::Console,
    report::{CountFlags, rule},
};
use portreeve_agent::settings::duration;
use portreeve_cluster::{Agent, AgentRequest, Agents};
use portreeve_facts::Gap;
use portreeve_report::{AgentAnswer, Fleet, Gathering, Wanted, write_fleet_rows, write_fleet_table, write_fleet_wide};
use portreeve_rules::ids::Named;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    agent_flags: AgentFlags,
    /// Ask only the agent of this node; may be given several times
    #[arg(long, value_name = "NODE", help_heading = "Agents")]
    node: Vec<String>,
    /// Tell and count only findings about objects in this namespace, none about nodes
    #[arg(short, long, value_name = "NAMESPACE", help_heading = "Output", conflicts_with = "all_namespaces")]
    namespace: Option<String>,
    /// Tell findings about nodes and about objects in all namespaces, as is done unless --namespace is given
    #[arg(short = 'A', long, help_heading = "Output")]
    all_namespaces: bool,
    /// Tell and count only findings of this rule, or of one of its variants: ID or ID/VARIANT; may be given several times
    #[arg(long = "rule", value_name = "RULE", help_heading = "Output", value_parser = rule)]
    rules: Vec<Named>,
    /// Ask again and again, and tell everything anew whenever something has changed
    #[arg(short, long, help_heading = "Output")]
    watch: bool,
    /// How long to wait with --watch before asking again
    #[arg(long, value_name = "DURATION", help_heading = "Output", default_value = "15s", value_parser = duration)]
    interval: Duration,
    /// The form of the output
    #[arg(short, long, value_enum, value_name = "FORM", help_heading = "Output", default_value_t = Form::Table)]
    output: Form,
    #[command(flatten)]
    counting: CountFlags,
}

/// The form of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Form {
    /// What is wrong, each incident once: where, for whom, and what to do
    Table,
    /// The table with everything that is known, and all nodes
    Wide,
    /// One document, `portreeve.findings/v1`
    Json,
    /// The same document
    Yaml,
    /// Whom findings are about, like service/web
    Name,
}

pub(crate) fn run(args: &Args, console: &Console) -> anyhow::Result<ExitCode> {
    runtime()?.block_on(async {
        let agents = args.agent_flags.connect().await?;
        let listed = args.list(&agents).await?;
        let mut interrupts = Interrupts::new()?;
        let mut fleet = args.ask(&agents, &listed, &mut interrupts).await;
        let mut read = args.print(&fleet, false, console)?;
        while args.watch && read && !fleet.was_interrupted() {
            let next = async {
                sleep(args.interval).await;
                args.list(&agents).await
            };
            match interrupts.unless(next).await {
                None => break,
                Some(_) if !console.is_read() => break,
                // What was printed stays: nothing newer is known.
                Some(Err(error)) => console.print_error(&error),
                Some(Ok(listed)) => {
                    let now = args.ask(&agents, &listed, &mut interrupts).await;
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

impl Args {
    async fn list(&self, agents: &Agents) -> anyhow::Result<Vec<Agent>> {
        self.agent_flags.list(agents, &self.node).await
    }

    async fn ask(&self, agents: &Agents, listed: &[Agent], interrupts: &mut Interrupts) -> Fleet {
        let wanted = Wanted {
            namespace: self.namespace.clone(),
            rules: self.rules.clone(),
            min_severity: self.counting.min_severity,
            document: matches!(self.output, Form::Json | Form::Yaml),
        };
        let mut gathering = Gathering::new(self.agent_flags.agent_namespace(), wanted);
        let mut not_asked = vec![true; listed.len()];
        let take = async |number: usize, answer: Result<Vec<u8>, Gap>| {
            not_asked[number] = false;
            let Agent { node, pod, .. } = listed[number].clone();
            gathering.take(AgentAnswer { node, pod, answer }, Timestamp::now());
        };
        let limit = self.agent_flags.time_limit();
        let stopped = interrupts.ask(agents, listed, AgentRequest::FINDINGS, limit, take).await;
        if let Some(stopped) = stopped {
            for (agent, _) in listed.iter().zip(not_asked).filter(|(_, not_asked)| *not_asked) {
                gathering.leave_out(&agent.node, &agent.pod, stopped);
            }
        }
        gathering.finish(stopped)
    }

    /// Prints it, perhaps after earlier output, and returns whether the output is still read.
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
                Form::Table => write_fleet_table(fleet, style, out),
                Form::Wide => write_fleet_wide(fleet, style, out),
                Form::Json => fleet.write_json(out),
                Form::Yaml => fleet.write_yaml(out),
                Form::Name => fleet.write_names(out),
            }
        })
    }
}
