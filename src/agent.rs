//! `agent`: the process of a DaemonSet, with settings from flags, the environment and a file.

use std::{
    env,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
};

use anyhow::Context as _;

use crate::{command_line::UsageError, console::Console, sources::environment};
use portreeve_agent::{
    self as agent,
    log::Log,
    settings::{self, Settings},
};

// The environment and the file of --config can set the same values. A flag overrides the environment, and the
// environment overrides the file.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    settings: Settings,
    /// Read settings from a YAML file: the names of these flags without the dashes, and `limits`
    ///
    /// `limits` has the rules' thresholds, by default: ephemeral_warning_percent 80, ephemeral_critical_percent 95,
    /// fds_warning_percent 80, fds_critical_percent 95, band_warning_percent 80, proxy_lag_seconds 60.
    ///
    /// The agent reads the file again on a change or SIGHUP, and ignores an invalid file. Until the next start, only
    /// `cpu-percent`, `interval`, `limits`, `log-format`, `log-level`, `node-port-range` and `proxy-mode` change.
    #[arg(long, value_name = "FILE", env = "PORTREEVE_CONFIG", hide_env_values = true)]
    config: Option<PathBuf>,
    /// Only query the running agent at --socket, and exit with 0 if it works
    ///
    /// Give the probe the same flags and the same environment as the running agent.
    #[arg(long)]
    probe: bool,
}

pub(super) fn run(args: Args, console: &Console) -> anyhow::Result<ExitCode> {
    let Args { settings, config, probe } = args;
    if probe {
        agent::probe(&socket(&settings, config.as_deref()).map_err(anyhow::Error::msg)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    // The values of the downward API do not change while the process runs. The file of --config overrides these values.
    let host_ip = of_environment("HOST_IP")?;
    let host_ip = host_ip.map(|ip| ip.parse().map_err(|_| unusable("HOST_IP", &ip, "an IP address"))).transpose()?;
    let node_name = of_environment("NODE_NAME")?;
    let together = move || Ok::<_, String>(merged(&settings, config.as_deref())?.within(host_ip, node_name.clone()));
    let first = together().map_err(anyhow::Error::msg)?;
    let log = Arc::new(Log::start(first.log(), console.style.colour).context("starting to log")?);
    let ended = agent::run(Box::new(move || Ok(together()?.into_config(&environment()))), Arc::clone(&log));
    log.flush();
    ended.map(|()| ExitCode::SUCCESS)
}

fn unusable(name: &str, value: &str, wanted: &str) -> UsageError {
    UsageError(format!("environment variable {name}={value:?}, wanted {wanted}"))
}

fn of_environment(name: &str) -> Result<Option<String>, UsageError> {
    let value = env::var_os(name).filter(|value| !value.is_empty());
    let text =
        value.map(|value| value.into_string().map_err(|value| unusable(name, &value.to_string_lossy(), "UTF-8")));
    text.transpose()
}

/// The path of the agent's socket. If a flag or a variable sets the socket, the file of --config is not read. Then the
/// probe also works with an invalid file.
fn socket(given: &Settings, file: Option<&Path>) -> Result<PathBuf, String> {
    if let Some(path) = given.socket() {
        return Ok(path.to_owned());
    }
    let merged = merged(given, file)?;
    merged.socket().map(Path::to_owned).ok_or_else(|| "--probe needs the agent's --socket: set --socket".to_owned())
}

fn merged(given: &Settings, file: Option<&Path>) -> Result<Settings, String> {
    Ok(match file {
        Some(path) => given.clone().over(settings::read(path)?),
        None => given.clone(),
    })
}

#[cfg(test)]
mod tests {
    use clap::{Args as _, Command, FromArgMatches as _};
    use serde_json::Value;

    use super::*;
    use portreeve_rules::Limits;

    #[test]
    fn every_limit_stands_in_the_help_with_its_default() {
        let help = Args::augment_args(Command::new("agent")).render_long_help().to_string();
        let words: Vec<&str> = help.split(|letter: char| !letter.is_alphanumeric() && letter != '_').collect();
        let help = words.into_iter().filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ");
        let Ok(Value::Object(limits)) = serde_json::to_value(Limits::default()) else { panic!("limits are named") };
        for (name, default) in limits {
            assert!(help.contains(&format!("{name} {default}")), "{name} {default}");
        }
    }

    fn settings(socket: &str) -> Settings {
        let command = Settings::augment_args(Command::new("agent"));
        let matches = command.get_matches_from(["agent", "--socket", socket]);
        Settings::from_arg_matches(&matches).expect("settings")
    }

    #[test]
    fn a_probe_reads_the_file_only_where_it_decides() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("agent.yaml");
        let (given, not_given) = (settings("/run/given"), Settings::default());
        std::fs::write(&file, "socket: /run/file\n").expect("a file");
        assert_eq!(socket(&given, Some(&file)), Ok("/run/given".into()));
        assert_eq!(socket(&not_given, Some(&file)), Ok("/run/file".into()));
        std::fs::write(&file, "socked: /run/file\n").expect("a file");
        assert_eq!(socket(&given, Some(&file)), Ok("/run/given".into()));
        assert!(socket(&not_given, Some(&file)).is_err());
        assert!(socket(&not_given, None).expect_err("there is none").contains("--socket"));
    }
}
