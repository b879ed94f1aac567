//! `agent`: the same crank, turned without end, for a DaemonSet.

mod settings;

use std::{
    env,
    io::stderr,
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::ValueEnum;
use serde::Deserialize;
use tracing_subscriber::EnvFilter;

use self::settings::Settings;
use super::{console::Console, gather::environment};
use crate::agent;

/// Flags of the agent. Each may also come from the environment, or from the file of --config; flags win over the
/// environment, and that over the file.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    settings: Settings,
    /// Read settings from a YAML file: the names of these flags without the dashes, and `limits`
    ///
    /// It is read again when it changes, and on SIGHUP. One that is invalid changes nothing. What it says of sources
    /// and places holds from the next start.
    #[arg(long, value_name = "FILE", env = "PORTREEVE_CONFIG", hide_env_values = true)]
    config: Option<PathBuf>,
    /// Do not run: say by the exit code whether the agent that beats into --heartbeat lives
    #[arg(long)]
    probe: bool,
}

/// The form of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(super) enum LogFormat {
    /// For people
    Text,
    /// One JSON object a line
    Json,
}

/// The mildest log lines to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(super) enum LogLevel {
    /// What keeps the agent from its work
    Error,
    /// And what is wrong
    Warn,
    /// And what changed
    Info,
    /// And what is being done
    Debug,
}

pub(super) fn run(args: Args, console: &Console) -> anyhow::Result<ExitCode> {
    let Args { settings, config, probe } = args;
    let (host_ip, node_name) = (env::var("HOST_IP").ok(), env::var("NODE_NAME").ok());
    // What the downward API says is the same on every start, and weaker than a file.
    let together =
        move || Ok::<_, String>(merged(&settings, config.as_deref())?.within(host_ip.as_deref(), node_name.clone()));
    let first = together().map_err(anyhow::Error::msg)?;
    if probe {
        let path = first.heartbeat_path();
        agent::probe(&path)?;
        return Ok(ExitCode::SUCCESS);
    }
    log(&first, console);
    agent::run(Box::new(move || Ok(together()?.into_config(&environment()))))?;
    Ok(ExitCode::SUCCESS)
}

/// What was said on the command line and in the environment, over what the file says now.
fn merged(said: &Settings, file: Option<&Path>) -> Result<Settings, String> {
    Ok(match file {
        Some(path) => said.clone().over(settings::read(path)?),
        None => said.clone(),
    })
}

fn log(settings: &Settings, console: &Console) {
    // Each failed request of the client library is one of ours too, told once.
    let filter = match settings.log_level() {
        LogLevel::Error => "error,kube_client=off",
        LogLevel::Warn => "warn,kube_client=off",
        LogLevel::Info => "portreeve=info,warn,kube_client=off",
        LogLevel::Debug => "portreeve=debug,info",
    };
    let subscriber = tracing_subscriber::fmt().with_env_filter(EnvFilter::new(filter)).with_writer(stderr);
    match settings.log_format() {
        LogFormat::Json => subscriber.json().flatten_event(true).init(),
        LogFormat::Text => subscriber.compact().with_ansi(console.style.colour).init(),
    }
}
