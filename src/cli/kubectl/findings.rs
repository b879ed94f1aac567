//! `findings`: what is wrong, on every node that has an agent.

use std::{process::ExitCode, time::Duration};

use clap::ValueEnum;
use jiff::Timestamp;
use tokio::time::sleep;

use super::agents::{AgentFlags, runtime};
use crate::{
    cli::{console::Console, report::CountFlags, values::duration},
    cluster::{AgentRequest, Agents},
    facts::Gap,
    sinks::{AgentAnswer, Fleet, Wanted, write_fleet_rows, write_fleet_table, write_fleet_wide},
};

#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
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
    /// What is wrong, where, for whom, and what to do
    Table,
    /// The table with everything that is known
    Wide,
    /// One document, `portreeve.fleet/v1`
    Json,
    /// The same document
    Yaml,
    /// Whom findings are about, like service/web
    Name,
}

pub(in crate::cli) fn run(args: &Args, console: &Console) -> anyhow::Result<ExitCode> {
    runtime()?.block_on(async {
        let agents = args.agent_flags.connect().await?;
        let mut fleet = args.ask(&agents).await?;
        let mut read = args.print(&fleet, false, console)?;
        while args.watch && read {
            sleep(args.interval).await;
            match args.ask(&agents).await {
                // What was printed stays: nothing newer is known.
                Err(error) => console.print_error(&error),
                Ok(now) if now.reports_the_same_as(&fleet) => {}
                Ok(now) => {
                    fleet = now;
                    read = args.print(&fleet, true, console)?;
                }
            }
        }
        Ok(args.counting.end(fleet.result(), fleet.is_whole()))
    })
}

impl Args {
    async fn ask(&self, agents: &Agents) -> anyhow::Result<Fleet> {
        let listed = self.agent_flags.list(agents, &self.node).await?;
        let mut answers: Vec<Option<Result<Vec<u8>, Gap>>> = listed.iter().map(|_| None).collect();
        agents.fetch(&listed, AgentRequest::FINDINGS, |number, answer| answers[number] = Some(answer)).await;
        let answered = listed.into_iter().zip(answers);
        let answers = answered
            .filter_map(|(agent, answer)| Some(AgentAnswer { node: agent.node, pod: agent.pod, answer: answer? }));
        let wanted = Wanted { namespace: self.namespace.clone(), min_severity: self.counting.min_severity };
        Ok(Fleet::of(self.agent_flags.agent_namespace(), answers.collect(), &wanted, Timestamp::now()))
    }

    /// Prints it, perhaps after earlier output, and returns whether the output is still read.
    fn print(&self, fleet: &Fleet, again: bool, console: &Console) -> anyhow::Result<bool> {
        let style = &console.style;
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
