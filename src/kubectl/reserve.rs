//! `reserve`: what keeps NodePorts from outgoing connections, for all nodes in the form of a platform. It applies nothing.

use std::process::ExitCode;

use anyhow::{anyhow, bail};
use clap::ValueEnum;

use super::{
    agents::AgentFlags,
    node_snapshots::{Behind, NodeResult, NodeResults, judge_node_snapshots},
};
use crate::{command_line::UsageError, console::Console};
use portreeve_report::{
    CheckResult, ReservationForm, ReservationReport, Style, gaps_alike, listed, reservation_file, write_reservation,
    write_reservation_json,
};
use portreeve_rules::{FleetReservation, NodeReservation};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Ask only the agent of this node; may be given several times
    #[arg(long, value_name = "NODE", help_heading = "Agents")]
    node: Vec<String>,
    #[command(flatten)]
    agent_flags: AgentFlags,
    /// Whose form the list is printed in; sysctl, unless chosen
    #[arg(long = "for", value_enum, value_name = "PLATFORM", help_heading = "Output")]
    platform: Option<Platform>,
    /// Print no list, but which nodes lack something of it, with exit code 1 where one does
    #[arg(long, help_heading = "Output", conflicts_with = "platform")]
    check: bool,
    /// The form of the output
    #[arg(short, long, value_enum, value_name = "FORM", help_heading = "Output", default_value_t = Form::Text)]
    output: Form,
}

/// The form of the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Form {
    /// The list as the platform takes it, or with --check the nodes for people
    Text,
    /// One JSON document, `portreeve.ports/v1`
    Json,
}

/// Whose form.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Platform {
    /// A file of /etc/sysctl.d
    Sysctl,
    /// A patch of Talos' machine configuration
    Talos,
    /// A Tuned of OpenShift's Node Tuning Operator
    Openshift,
    /// Bottlerocket's settings, in TOML
    Bottlerocket,
    /// A part for cloud-init in the user data of EKS' Amazon Linux 2023
    Al2023,
    /// AKS' linuxosconfig.json, which moves the other range: it has no reserved ports
    Aks,
    /// A playbook to run after Kubespray's
    Kubespray,
    /// A part of kops' Cluster
    Kops,
}

impl From<Platform> for ReservationForm {
    fn from(platform: Platform) -> Self {
        match platform {
            Platform::Sysctl => Self::Sysctl,
            Platform::Talos => Self::Talos,
            Platform::Openshift => Self::Openshift,
            Platform::Bottlerocket => Self::Bottlerocket,
            Platform::Al2023 => Self::Al2023,
            Platform::Aks => Self::Aks,
            Platform::Kubespray => Self::Kubespray,
            Platform::Kops => Self::Kops,
        }
    }
}

pub(super) fn run(args: &Args, console: &Console) -> anyhow::Result<ExitCode> {
    if args.platform.is_some() && args.output == Form::Json {
        return Err(UsageError("--for chooses a form of its own, wanted it without --output json".to_owned()).into());
    }
    let NodeResults { results, partial, oldest } =
        judge_node_snapshots(&args.agent_flags, &args.node, Behind::NoPort, NodeReservation::of)?;
    let agents = listed(results.len(), args.agent_flags.agent_namespace());
    let (mut fleet, mut unread) = (FleetReservation::default(), Vec::new());
    for NodeResult { node, result } in results {
        match result {
            Ok(reservation) => fleet.nodes.push(reservation),
            Err(gap) => unread.push((node, gap)),
        }
    }
    for (nodes, gap) in gaps_alike(&unread) {
        console.print_note(&format!("not known of {nodes}: {}", gap.detail));
    }
    if fleet.nodes.is_empty() {
        bail!("nothing is known: this speaks of {agents}");
    }
    let list = fleet.list().map_err(|why| anyhow!(why))?;
    let report = ReservationReport { fleet: &fleet, list: &list, unread: &unread, partial: partial.as_deref() };
    let result = match (args.check && !report.is_covered(), report.is_whole()) {
        (true, _) => CheckResult::Findings,
        (false, true) => CheckResult::Clear,
        (false, false) => CheckResult::NotChecked,
    };
    match (args.output, args.check) {
        (Form::Json, _) => console.write(|out| write_reservation_json(result, &report, out))?,
        (Form::Text, true) => console.write(|out| write_reservation(&report, &console.style, out))?,
        (Form::Text, false) => {
            let file = reservation_file(args.platform.unwrap_or(Platform::Sysctl).into(), &report)
                .map_err(|why| anyhow!(why))?;
            explain(&report, console)?;
            console.write(|out| out.write_all(file.as_bytes()))?;
        }
    }
    fleet.doubts().iter().for_each(|doubt| console.print_note(doubt));
    if !list.whole_range {
        console.print_note(
            "only NodePorts that Services have are reserved: all would leave too few ports to outgoing connections",
        );
    }
    partial.iter().chain(&oldest).for_each(|note| console.print_note(note));
    console.print_note(&format!("this speaks of {agents}, and of no node without one"));
    Ok(ExitCode::from(result as u8))
}

/// Says on standard error which nodes lack what, for a person who would otherwise see only what a platform reads.
fn explain(report: &ReservationReport<'_>, console: &Console) -> anyhow::Result<()> {
    let mut text = Vec::new();
    write_reservation(report, &Style { colour: false, ..console.style.clone() }, &mut text)?;
    String::from_utf8(text)?.lines().for_each(|line| console.print_note(line));
    Ok(())
}
