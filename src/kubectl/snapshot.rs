//! `snapshot`: prints the last scan of a node's agent, for `check --snapshot` and for bug reports.

use std::process::ExitCode;

use anyhow::{anyhow, bail};
use serde::Deserialize;

use super::{
    agents::{AgentFlags, runtime},
    queries::Interrupts,
};
use crate::{console::Console, snapshot};
use portreeve_cluster::AgentRequest;
use portreeve_facts::{Gap, SNAPSHOT_SCHEMA, Snapshot, Source, Why, text};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The node
    #[arg(value_name = "NODE")]
    node: String,
    #[command(flatten)]
    agent_flags: AgentFlags,
}

pub(super) fn run(args: &Args, console: &Console) -> anyhow::Result<ExitCode> {
    let Args { node, agent_flags } = args;
    let (answer, pod) = runtime()?.block_on(async {
        let agents = agent_flags.connect().await?;
        let mut listed = agent_flags.list(&agents, std::slice::from_ref(node)).await?;
        listed.truncate(1);
        let mut received = Err(Gap::new(Source::Agent, Why::NotRequested, "no agent was queried"));
        let take = async |_, answer| received = answer;
        let limit = agent_flags.time_limit;
        if let Some(stopped) = Interrupts::new()?.query(&agents, &listed, AgentRequest::SNAPSHOT, limit, take).await {
            received = Err(Gap::new(Source::Agent, Why::NotRequested, stopped.words()));
        }
        let pod = listed.pop().map(|agent| agent.pod).unwrap_or_default();
        anyhow::Ok((received.map_err(|gap| anyhow!("the agent of {node} could not be queried: {}", gap.detail))?, pod))
    })?;
    let document =
        checked(&answer, node).map_err(|what| anyhow!("the answer of pod {pod} is not a snapshot: {what:#}"))?;
    console.write(|out| writeln!(out, "{}", document.trim_end()))?;
    let snapshot = Snapshot::from_json(&answer)
        .map_err(|error| anyhow!("this version cannot judge the snapshot of pod {pod}: {error}"))?;
    Ok(snapshot::end(&snapshot))
}

/// The snapshot of this node as the agent sent it, including fields that only newer agents have. Characters that can
/// control a terminal are escaped.
fn checked(answer: &[u8], node: &str) -> anyhow::Result<String> {
    #[derive(Deserialize)]
    struct Head {
        schema: String,
        kernel: Kernel,
        cluster: Cluster,
    }
    #[derive(Deserialize)]
    struct Kernel {
        hostname: String,
    }
    #[derive(Deserialize)]
    struct Cluster {
        node_name: Option<String>,
    }
    let document = std::str::from_utf8(answer)?;
    let Head { schema, kernel, cluster } = serde_json::from_str(document)?;
    if schema != SNAPSHOT_SCHEMA {
        bail!("its schema is {:?}, wanted {SNAPSHOT_SCHEMA:?}", text::clean(&schema, text::NAME));
    }
    let name = cluster.node_name.unwrap_or(kernel.hostname);
    if name != node {
        bail!("it is of the node {:?}", text::clean(&name, text::NAME));
    }
    Ok(escaped(document))
}

/// JSON in which every invisible character is escaped. Invisible characters are only in strings, and the strings keep
/// their values.
fn escaped(json: &str) -> String {
    let mut text = String::with_capacity(json.len());
    for character in json.chars() {
        if character.is_ascii_whitespace() || !text::is_invisible(character) {
            text.push(character);
        } else {
            for unit in character.encode_utf16(&mut [0; 2]) {
                text.push_str(&format!("\\u{unit:04x}"));
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_is_handed_on_whole_and_harmless() {
        let mut world = Snapshot::healthy();
        world.kernel.release = "6.1\u{1b}[2J\u{202e}\u{9b}\u{e0001}".to_owned();
        let mut value = serde_json::to_value(&world).expect("JSON");
        value["added later"] = "kept".into();
        let document = checked(value.to_string().as_bytes(), "n1").expect("a snapshot");
        assert!(!document.chars().any(|it| text::is_invisible(it) && it != '\n'), "{document:?}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&document).expect("JSON"), value);
    }

    #[test]
    fn a_snapshot_of_another_node_or_of_nothing_is_refused() {
        let document = serde_json::to_vec(&Snapshot::healthy()).expect("JSON");
        assert!(checked(&document, "n2").is_err());
        for wrong in [&b"{}"[..], b"\xff", br#"{"schema":"x","kernel":{"hostname":"n1"},"cluster":{}}"#] {
            assert!(checked(wrong, "n1").is_err());
        }
    }
}
