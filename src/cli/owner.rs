//! `owner`: who answers on a port of this node, and who loses.

use std::{path::PathBuf, process::ExitCode, str::FromStr};

use anyhow::anyhow;
use clap::ValueEnum;

use super::{console::Console, gather::Sources, replay};
use crate::{
    facts::Protocol,
    ledger::Board,
    rules::{Limits, Ownership, owner},
    sinks::{Outcome, Report, write_owner, write_owner_json},
};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The port, and the protocol where only one is asked about: 30080, 30080/udp
    #[arg(value_name = "PORT[/PROTOCOL]")]
    port: Asked,
    /// Answer from a file that `snapshot` wrote, `-` for standard input, instead of looking at this node
    #[arg(long, value_name = "FILE", help_heading = "Sources", conflicts_with_all = ["services", "kubeconfig", "context"])]
    snapshot: Option<PathBuf>,
    #[command(flatten)]
    gather: Sources,
    /// The form of the output
    #[arg(short, long, value_enum, value_name = "FORM", help_heading = "Output", default_value_t = Form::Text)]
    output: Form,
}

/// The form of the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Form {
    /// For people
    Text,
    /// One JSON document, `portreeve.owner/v1`
    Json,
}

/// What a person asked about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Asked {
    port: u16,
    protocol: Option<Protocol>,
}

impl FromStr for Asked {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (port, protocol) = text.split_once('/').map_or((text, None), |(port, protocol)| (port, Some(protocol)));
        let wanted = || format!("{text:?} is not a port like 30080 or 30080/udp");
        let port = port.parse().ok().filter(|port| *port > 0).ok_or_else(wanted)?;
        let protocol = match protocol {
            None => None,
            Some(name) => {
                let found = Protocol::ALL.into_iter().find(|it| it.to_string().eq_ignore_ascii_case(name));
                Some(found.ok_or_else(wanted)?)
            }
        };
        Ok(Self { port, protocol })
    }
}

pub(super) fn run(args: Args, console: &Console) -> anyhow::Result<ExitCode> {
    let Args { port: Asked { port, protocol }, snapshot, gather, output } = args;
    let snapshot = match snapshot {
        Some(file) => replay::read(&file)?,
        None => gather.look_at(port, true)?,
    };
    let mut owned = Vec::new();
    for protocol in protocol.map_or(Protocol::ALL.to_vec(), |it| vec![it]) {
        let of_protocol = owner(&snapshot, &Limits::default(), protocol, port)
            .map_err(|gap| anyhow!("who owns port {port} cannot be told: {}", gap.detail))?;
        owned.push(of_protocol);
    }
    // Protocols that nobody claims are told only where nobody claims anything, and then once.
    let claimed: Vec<Ownership> = owned.iter().filter(|it| !it.claimants.is_empty()).cloned().collect();
    let told = if claimed.is_empty() { &owned[..1] } else { &claimed };
    console.write(|out| match output {
        Form::Text => write_owner(told, &console.style, out),
        Form::Json => write_owner_json(snapshot.node_name(), told, out),
    })?;
    let outcome: Outcome = Report::of(&snapshot, &Board::default()).outcome();
    Ok(ExitCode::from(outcome as u8))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_may_name_its_protocol() {
        assert_eq!("30080".parse(), Ok(Asked { port: 30080, protocol: None }));
        assert_eq!("53/UDP".parse(), Ok(Asked { port: 53, protocol: Some(Protocol::Udp) }));
        for wrong in ["", "0", "65536", "http", "80/quic", "80/"] {
            assert!(wrong.parse::<Asked>().is_err(), "{wrong:?}");
        }
    }
}
