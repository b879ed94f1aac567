//! `reserve`: prints the ports to reserve on all nodes, in the format of a platform. If these ports are reserved,
//! outgoing connections do not use NodePorts. The verb applies nothing.

use std::{collections::BTreeSet, process::ExitCode};

use anyhow::{anyhow, bail};
use clap::{ValueEnum, builder::PossibleValue};

use super::{
    command_line::UsageError,
    console::Console,
    guard,
    scope::{NodeResults, Scope, Wanted},
    words::{Words, wanted},
};
use portreeve_facts::Snapshot;
use portreeve_report::{
    ReservationForm, ReservationReport, Style, gaps_alike, reservation_file, write_reservation, write_reservation_json,
};
use portreeve_rules::{FleetReservation, NodeGuard, NodeReservation};

#[derive(Debug, clap::Args)]
pub(super) struct Args<S: Scope> {
    #[command(flatten)]
    scope: S,
    /// The platform in whose format the list is printed [default: sysctl]
    #[arg(long = "for", value_parser = PLATFORM, value_name = "PLATFORM", help_heading = "Output")]
    platform: Option<ReservationForm>,
    /// Instead of the list, print for each node whether outgoing connections may get NodePorts or ports of servers; exit with 1 if they may
    #[arg(long, help_heading = "Output", conflicts_with = "platform")]
    check: bool,
    /// The form of the output
    #[arg(short, long, value_enum, value_name = "FORM", help_heading = "Output", default_value_t = Form::Text)]
    output: Form,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Form {
    /// The list in the platform's format, or with --check the nodes as text
    Text,
    /// One JSON document, `portreeve.ports/v1`
    Json,
}

const PLATFORMS: [(&str, ReservationForm, &str); 8] = [
    ("sysctl", ReservationForm::Sysctl, "A file of /etc/sysctl.d"),
    ("talos", ReservationForm::Talos, "A patch of Talos' machine configuration"),
    ("openshift", ReservationForm::Openshift, "A Tuned of OpenShift's Node Tuning Operator"),
    ("bottlerocket", ReservationForm::Bottlerocket, "Bottlerocket's settings, in TOML"),
    ("al2023", ReservationForm::Al2023, "A part for cloud-init in the user data of EKS' Amazon Linux 2023"),
    (
        "aks",
        ReservationForm::Aks,
        "AKS' linuxosconfig.json, which moves the ephemeral port range: AKS has no setting for reserved ports",
    ),
    ("kubespray", ReservationForm::Kubespray, "A playbook to run after Kubespray's"),
    ("kops", ReservationForm::Kops, "A part of kops' Cluster"),
];

const PLATFORM: Words<ReservationForm> = Words { words: platforms, parse: platform };

fn platforms() -> Vec<PossibleValue> {
    PLATFORMS.map(|(name, _, help)| PossibleValue::new(name).help(help)).into()
}

fn platform(typed: &str) -> Result<ReservationForm, String> {
    // A user may type the name of a provider instead of a platform.
    let near = match typed.to_ascii_lowercase().as_str() {
        "eks" | "aws" => "for EKS, use --for al2023 or --for bottlerocket",
        "gke" | "gcp" | "google" => "GKE has no format of its own: use --for sysctl",
        "azure" => "for Azure, use --for aks",
        "ocp" | "okd" => "for OpenShift, use --for openshift",
        "linux" | "kubeadm" | "k3s" | "rke2" => "for nodes with /etc/sysctl.d, use --for sysctl",
        _ => "",
    };
    let known = PLATFORMS.iter().find(|(name, ..)| *name == typed);
    known.map(|(_, form, _)| *form).ok_or_else(|| match near {
        "" => wanted("not a known platform", typed, &platforms()),
        near => near.to_owned(),
    })
}

pub(super) fn run<S: Scope>(args: Args<S>, console: &Console) -> anyhow::Result<ExitCode> {
    if args.platform.is_some() && args.output == Form::Json {
        return Err(UsageError("--for prints its own format: remove --output json".to_owned()).into());
    }
    // Only root on the node itself can read the lock of a guard. Agents know nothing about guards, so the plugin lists
    // the pods of guards.
    let (guard, unknown_guard) = if args.scope.is_this_node() { guard::of_this_node() } else { (None, None) };
    let judge = |snapshot: &Snapshot| NodeReservation::of(snapshot, guard.clone());
    let NodeResults { results, nodes, partial, guarded, oldest, scope } =
        args.scope.judge(&Wanted { guards: true, ..Wanted::default() }, console, judge)?;
    let (guarded, unlisted) = match guarded {
        Ok(guarded) => (guarded, None),
        Err(gap) => (BTreeSet::new(), Some(gap)),
    };
    let (mut fleet, mut unread) = (FleetReservation::default(), Vec::new());
    for (node, result) in results {
        match result {
            Ok(reservation) if guarded.contains(&node) => {
                fleet.nodes.push(reservation.with_guard(NodeGuard::of_ready_pod()));
            }
            Ok(reservation) => fleet.nodes.push(reservation),
            Err(gap) => unread.push((node, gap)),
        }
    }
    gaps_alike(&unread).iter().for_each(|note| console.print_note(note));
    if fleet.nodes.is_empty() {
        bail!("nothing is known; scope: {scope}");
    }
    // A guard writes a long list in several writes. But a node applies the printed file in one write, so the printed
    // list must be short.
    let list = if args.check { fleet.list() } else { fleet.writable_list() };
    // If one node reserves too many ports, there is no list for all nodes. Without this list, `--check` compares each
    // node with the node's own ports, and still reports the other nodes.
    let (list, no_list) = match list {
        Err(why) if args.check => (FleetReservation::no_list(), Some(why)),
        list => (list.map_err(|why| anyhow!(why))?, None),
    };
    let report = ReservationReport {
        unread: &unread,
        partial: partial.as_deref(),
        unread_guards: unlisted.as_ref().or(unknown_guard.as_ref()),
        ..ReservationReport::of(&fleet, &list)
    };
    let result = report.result(args.check);
    match (args.output, args.check) {
        (Form::Json, _) => console.write(|out| write_reservation_json(result, &report, &nodes, out))?,
        (Form::Text, true) => console.write(|out| write_reservation(&report, &console.style, out))?,
        (Form::Text, false) => {
            let form = args.platform.unwrap_or(ReservationForm::Sysctl);
            let file = reservation_file(form, &report).map_err(|why| anyhow!(why))?;
            // Standard output has only the platform's format.
            let mut text = Vec::new();
            write_reservation(&report, &Style { colour: false, ..console.style.clone() }, &mut text)?;
            String::from_utf8(text)?.lines().for_each(|line| console.print_note(line));
            console.write(|out| out.write_all(file.as_bytes()))?;
        }
    }
    fleet.doubts().iter().for_each(|doubt| console.print_note(doubt));
    if let Some(why) = &no_list {
        console.print_note(&format!("each node is compared with its own ports: {why}"));
    } else if !list.whole_range {
        console.print_note(
            "the list has only the NodePorts that Services have: a list of all NodePorts would leave too few ports for outgoing connections",
        );
    }
    let unlisted = unlisted.map(|gap| format!("guards are not known: {}", gap.detail));
    let unknown_guard = unknown_guard.map(|gap| gap.detail);
    partial.iter().chain(&oldest).chain(&unknown_guard).chain(&unlisted).for_each(|note| console.print_note(note));
    console.print_note(&format!("scope: {scope}"));
    Ok(ExitCode::from(result as u8))
}
