//! `findings`: what is wrong, on every node that has an agent.

use std::{process::ExitCode, time::Duration};

use clap::ValueEnum;
use tokio::time::sleep;

use super::reach::{Reach, runtime};
use crate::{
    cli::{console::Console, said::duration, tell::Counting},
    cluster::{Agents, Question},
    facts::Gap,
    sinks::{AgentAnswer, Fleet, Wanted, write_fleet_rows, write_fleet_table, write_fleet_wide},
};

#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    #[command(flatten)]
    reach: Reach,
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
    counting: Counting,
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
        let agents = args.reach.log_in().await?;
        let mut fleet = args.ask(&agents).await?;
        let mut read = args.tell(&fleet, false, console)?;
        while args.watch && read {
            sleep(args.interval).await;
            match args.ask(&agents).await {
                // What was told stays true as far as anybody knows.
                Err(error) => console.complain(&error),
                Ok(now) if now.reports_the_same_as(&fleet) => {}
                Ok(now) => {
                    fleet = now;
                    read = args.tell(&fleet, true, console)?;
                }
            }
        }
        Ok(args.counting.end(fleet.outcome(), fleet.is_whole()))
    })
}

impl Args {
    async fn ask(&self, agents: &Agents) -> anyhow::Result<Fleet> {
        let listed = self.reach.list(agents, &self.node).await?;
        let mut heard: Vec<Option<Result<Vec<u8>, Gap>>> = listed.iter().map(|_| None).collect();
        agents.ask(&listed, Question::FINDINGS, |number, said| heard[number] = Some(said)).await;
        let heard = listed.into_iter().zip(heard);
        let answers =
            heard.filter_map(|(agent, said)| Some(AgentAnswer { node: agent.node, pod: agent.pod, answer: said? }));
        let wanted = Wanted { namespace: self.namespace.clone(), min_severity: self.counting.min_severity };
        Ok(Fleet::of(self.reach.agent_namespace(), answers.collect(), &wanted))
    }

    /// Tells it, perhaps after something else, and says whether anybody still reads.
    fn tell(&self, fleet: &Fleet, again: bool, console: &Console) -> anyhow::Result<bool> {
        let style = &console.style;
        console.offer(|out| {
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
