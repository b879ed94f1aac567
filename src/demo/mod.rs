//! `demo`: makes five incidents in throw-away network namespaces, runs `check` on each, and prints whether `check`
//! found the incident.
//!
//! This program starts itself several times. The *director* starts one *stage* for each incident. A stage moves into
//! new namespaces, and starts the *parts*, the processes that open the sockets of the incident. The stage also starts
//! `portreeve check`, which sees only these namespaces and a manifest file. When the director ends, all stages end.
//! When the input of a part ends, the part ends.

#![allow(clippy::disallowed_methods, reason = "starts processes, holds their sockets and writes into their namespaces")]

mod incident;
mod incidents;
mod manifest;
mod observed;
mod part;
mod report;
mod stage;

use std::process::{Child, Command, ExitCode, Stdio};

use anyhow::Context;
use clap::builder::PossibleValuesParser;

use self::{
    incident::{Incident, Steps},
    incidents::{INCIDENTS, step_names},
    observed::ObservedReport,
    report::IncidentReport,
};
use super::console::Console;
use portreeve_facts::text;

/// The longest error message of a stage that is printed, in bytes.
const COMPLAINT: usize = 2000;

#[derive(Debug, clap::Args)]
pub(super) struct DemoArgs {
    /// The incidents to make; without a name, all five incidents
    #[arg(value_name = "INCIDENT", value_parser = incident_parser())]
    incidents: Vec<String>,
    /// Leave out one part of the setup: then the incident must not be found
    #[arg(long, hide = true, value_name = "STEP", value_parser = PossibleValuesParser::new(step_names()))]
    without: Option<String>,
    /// Run the stage of an incident
    #[arg(long, hide = true, value_name = "INCIDENT", value_parser = incident_parser())]
    stage: Option<String>,
    /// Run a process of a stage, described on standard input
    #[arg(long, hide = true)]
    part: bool,
}

fn incident_parser() -> PossibleValuesParser {
    PossibleValuesParser::new(INCIDENTS.each_ref().map(|incident| incident.name))
}

/// Success means that `check` found every incident.
pub(super) fn run(args: DemoArgs, console: &Console) -> anyhow::Result<ExitCode> {
    let DemoArgs { incidents, without, stage, part } = args;
    if part {
        part::play()?;
    } else if let Some(name) = stage {
        let incident = INCIDENTS.iter().find(|incident| incident.name == name).context("no such incident")?;
        stage::run(incident, &Steps { without })?;
    } else {
        return direct(&incidents, without, console);
    }
    Ok(ExitCode::SUCCESS)
}

fn direct(names: &[String], without: Option<String>, console: &Console) -> anyhow::Result<ExitCode> {
    let chosen = INCIDENTS.iter().filter(|it| names.is_empty() || names.iter().any(|name| name == it.name));
    let stages = chosen
        .map(|incident| Ok((incident, open(incident, without.as_deref())?)))
        .collect::<anyhow::Result<Vec<_>>>()?;
    let (steps, number) = (Steps { without }, stages.len());
    console.write(|out| report::opening(out))?;
    let mut found = 0;
    for (index, (incident, stage)) in stages.into_iter().enumerate() {
        let report = IncidentReport { incident, steps: &steps, look: &close(stage)?, style: &console.style };
        console.write(|out| report.write(index + 1, out))?;
        found += usize::from(report.is_found());
    }
    console.write(|out| writeln!(out, "{found} of {number} found."))?;
    Ok(if found == number { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Starts the stage of an incident. All stages run at the same time.
fn open(incident: &Incident, without: Option<&str>) -> anyhow::Result<Child> {
    let mut command = Command::new("/proc/self/exe");
    command.args(["demo", "--stage", incident.name]);
    if let Some(step) = without {
        command.args(["--without", step]);
    }
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("starting the stage of {}", incident.name))
}

fn close(stage: Child) -> anyhow::Result<Result<ObservedReport, String>> {
    let output = stage.wait_with_output().context("waiting for a stage")?;
    let complaint = String::from_utf8_lossy(&output.stderr);
    Ok(match serde_json::from_slice(&output.stdout) {
        Ok(look) if output.status.success() => Ok(look),
        Err(error) if output.status.success() => Err(format!("the observer's answer is no document: {error}")),
        _ => Err(text::clean(complaint.trim(), COMPLAINT)),
    })
}
