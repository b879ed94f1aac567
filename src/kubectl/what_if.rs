//! `what-if`: every node as it would be with another fact, and what that changes.

use std::{collections::BTreeSet, path::PathBuf, process::ExitCode, str::FromStr};

use clap::ValueEnum;
use jiff::Timestamp;

use super::{
    agents::AgentFlags,
    node_snapshots::{Behind, NodeResult, NodeResults, judge_node_snapshots},
};
use crate::{console::Console, replay};
use portreeve_agent::judge_by;
use portreeve_dataplane::{Round, owner};
use portreeve_facts::{Gap, Mode, Protocol, Snapshot, Unread};
use portreeve_report::{AgentAnswer, Answers, Gathering, Report, Setting, Wanted, WhatIf, write_json};
use portreeve_rules::{Limits, RULES, Rule, findings::RuleId};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// What to suppose: proxy_mode=nftables, ip_local_port_range="1024 65535", node_port_range=20000-40000 ...
    ///
    /// May be given several times. Keys: ip_local_port_range, ip_local_reserved_ports, ip_unprivileged_port_start,
    /// route_localnet, tcp_tw_reuse, proxy_mode, node_port_range, node_port_addresses, localhost_node_ports.
    #[arg(long = "set", value_name = "KEY=VALUE", required = true, help_heading = "What if")]
    settings: Vec<Supposed>,
    /// Judge files that `snapshot` wrote, `-` for standard input, instead of asking agents; may be given several times
    #[arg(long = "snapshot", value_name = "FILE", help_heading = "What if", conflicts_with_all = ["node", "kubeconfig", "context", "user", "selector"])]
    snapshots: Vec<PathBuf>,
    /// Judge only this node; may be given several times
    #[arg(long, value_name = "NODE", help_heading = "Agents")]
    node: Vec<String>,
    #[command(flatten)]
    agent_flags: AgentFlags,
    /// The form of the output
    #[arg(short, long, value_enum, value_name = "FORM", help_heading = "Output", default_value_t = Form::Text)]
    output: Form,
}

/// The form of the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Form {
    /// For people
    Text,
    /// One JSON document, `portreeve.what-if/v1`
    Json,
}

/// A setting, and how it was typed.
#[derive(Clone, Debug)]
struct Supposed {
    text: String,
    setting: Setting,
}

impl FromStr for Supposed {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Ok(Self { setting: text.parse()?, text: text.to_owned() })
    }
}

/// What another proxy mode left behind.
const LEFT_BEHIND: (RuleId, &str) = (RuleId("stale-redirection"), "proxy");

/// A node, as it is and as it would be: its `/findings`.
type Both = [Vec<u8>; 2];

pub(super) fn run(args: Args, console: &Console) -> anyhow::Result<ExitCode> {
    let Args { settings, snapshots, node, agent_flags, output } = args;
    let (settings, parsed): (Vec<String>, Vec<Setting>) =
        settings.into_iter().map(|Supposed { text, setting }| (text, setting)).unzip();
    let mut answers = Answers::default();
    let mut judge = |snapshot: &Snapshot| both(snapshot, &parsed, &mut answers);
    let (results, partial) = if snapshots.is_empty() {
        let NodeResults { results, partial, .. } =
            judge_node_snapshots(&agent_flags, &node, Behind::EveryNodePort, judge)?;
        (results.into_iter().map(|result| (result, Timestamp::now())).collect(), partial)
    } else {
        (of_files(&snapshots, &mut judge)?, None)
    };
    if let Some(partial) = partial {
        console.print_note(&partial);
    }
    if results.is_empty() {
        anyhow::bail!("nothing is known: no agent is listed in namespace {}", agent_flags.agent_namespace());
    }
    let [mut now, mut then] = [(); 2].map(|()| Gathering::new(agent_flags.agent_namespace(), Wanted::default()));
    for (NodeResult { node, result }, at) in results {
        if let Err(gap) = &result {
            console.print_note(&format!("{node} could not be judged: {}", gap.detail));
        }
        let both = match result {
            Ok([now, then]) => [Ok(now), Ok(then)],
            Err(gap) => [Err(gap.clone()), Err(gap)],
        };
        let [answer_now, answer_then] =
            both.map(|answer| AgentAnswer { node: node.clone(), pod: String::new(), answer });
        now.take(answer_now, at);
        then.take(answer_then, at);
    }
    let what_if = WhatIf::of(settings, answers, &now.finish(None), &then.finish(None));
    console.write(|out| match output {
        Form::Text => what_if.write(&console.style, out),
        Form::Json => what_if.write_json(out),
    })?;
    Ok(ExitCode::from(what_if.result() as u8))
}

/// What was written to files, and when: a file may be of any age. Each is of another node, as one that is there twice would be
/// counted as two.
fn of_files(
    files: &[PathBuf],
    judge: &mut dyn FnMut(&Snapshot) -> Result<Both, Gap>,
) -> anyhow::Result<Vec<(NodeResult<Both>, Timestamp)>> {
    let mut results: Vec<(NodeResult<Both>, Timestamp)> = Vec::new();
    for file in files {
        let snapshot = replay::read(file)?;
        let node = snapshot.node_name().to_owned();
        if results.iter().any(|(it, _)| it.node == node) {
            anyhow::bail!("{} is a second snapshot of node {node}, wanted one of each node", file.display());
        }
        results.push((NodeResult { result: judge(&snapshot), node }, snapshot.at));
    }
    Ok(results)
}

fn both(snapshot: &Snapshot, settings: &[Setting], answers: &mut Answers) -> Result<Both, Gap> {
    let mut supposed = snapshot.clone();
    settings.iter().for_each(|setting| setting.apply(&mut supposed));
    let limits = Limits::default();
    // What a switch of the mode leaves behind, and what it cleans up, nobody can foretell.
    let switches = settings.iter().any(|setting| matches!(setting, Setting::ProxyMode(_)));
    let rules: Vec<&'static Rule> =
        RULES.iter().copied().filter(|rule| !switches || !rule.rows().have(LEFT_BEHIND.0, LEFT_BEHIND.1)).collect();
    let findings = |snapshot: &Snapshot| {
        let board = judge_by(&rules, snapshot, &limits);
        let mut answer = Vec::new();
        write_json(&Report::of(snapshot, &board), &mut answer).expect("writing to memory");
        answer
    };
    let everywhere = everywhere(&supposed, settings);
    // Without Services no port is judged, and nothing would seem to change.
    snapshot.cluster.services.get()?;
    let [is, would_be] = [snapshot, &supposed].map(|it| limits.round(it, None));
    let everywhere = everywhere.as_ref().map(|(mode, world)| (*mode, limits.round(world, None)));
    for (protocol, port) in ports(snapshot) {
        let of = |round: &Round<'_>| owner(round, protocol, port);
        let (now, then) = (of(&is)?, of(&would_be)?);
        answers.take(snapshot, &now, &then);
        if let Some((mode, everywhere)) = &everywhere {
            answers.take_cure(snapshot, (&now, &then), *mode, || of(everywhere))?;
        }
    }
    Ok([findings(snapshot), findings(&supposed)])
}

/// What is supposed, with NodePorts served on every address: what is lost there and not here, that setting would keep. Nothing where
/// a person chose the addresses, or the mode is not known.
fn everywhere(supposed: &Snapshot, settings: &[Setting]) -> Option<(Mode, Snapshot)> {
    if settings.iter().any(|it| matches!(it, Setting::NodePortAddresses(_))) {
        return None;
    }
    let mode = supposed.proxy_mode().ok()?.value;
    let mut everywhere = supposed.clone();
    Setting::NodePortAddresses(vec!["0.0.0.0/0".to_owned(), "::/0".to_owned()]).apply(&mut everywhere);
    Some((mode, everywhere))
}

/// The NodePorts of all Services and those of their health checks, each once.
fn ports(snapshot: &Snapshot) -> BTreeSet<(Protocol, u16)> {
    let services = || snapshot.cluster.services.known_part(Unread::Chooses).iter();
    let node_ports = services().flat_map(|it| &it.ports).filter_map(|port| Some((port.protocol, port.node_port?)));
    let checked = services().filter_map(|it| Some((Protocol::Tcp, it.health_check_node_port?)));
    node_ports.chain(checked).collect()
}
