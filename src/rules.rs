//! `rules` and `rules explain`: the catalogue, and one rule's page.

use std::process::ExitCode;

use super::{command_line::UsageError, console::Console};
use portreeve_facts::text;
use portreeve_report::{rule_page_text, rules_table};
use portreeve_rules::ids::{IDS, Named};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    action: Option<Action>,
    /// Leave out the headings of the table
    #[arg(long)]
    no_headers: bool,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// What a rule finds, why it hurts, when it is silent, and how to fix it
    Explain(Explain),
}

#[derive(Debug, clap::Args)]
pub(super) struct Explain {
    /// The rule's id; one of its variants may follow: ID/VARIANT
    #[arg(value_name = "RULE")]
    id: String,
}

pub(super) fn run(args: Args, console: &Console) -> anyhow::Result<ExitCode> {
    let Args { action, no_headers } = args;
    match action {
        Some(Action::Explain(explain)) => explain.run(console),
        None => {
            let page = rules_table(&console.style, !no_headers);
            console.write(|out| out.write_all(page.as_bytes()))?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

impl Explain {
    pub(super) fn run(self, console: &Console) -> anyhow::Result<ExitCode> {
        let Self { id } = self;
        let Some(named) = Named::parse(&id) else { return Err(unknown(&id, console).into()) };
        let page = rule_page_text(named.id, &console.style);
        console.write(|out| out.write_all(page.as_bytes()))?;
        Ok(ExitCode::SUCCESS)
    }
}

fn unknown(id: &str, console: &Console) -> UsageError {
    let ids: Vec<&str> = IDS.iter().map(|id| id.name.0).collect();
    let id = text::clean(id, text::NAME);
    let program = &console.style.program;
    let meant = Some(text::did_you_mean(&id, &ids)).filter(|it| !it.is_empty());
    UsageError(format!("no rule {id:?}{} All of them: {program} rules", meant.as_deref().unwrap_or(".")))
}
