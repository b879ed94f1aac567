//! The agent's settings from flags, the environment and a file. If two sources contain one setting, the source with the
//! higher priority is used.

use std::{
    fmt::Display,
    io,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    ops::RangeInclusive,
    path::{Path, PathBuf},
    str::FromStr,
    time::Duration,
};

use jiff::SignedDuration;
use serde::{Deserialize, Deserializer, de};

use crate::{
    config::Config,
    log::{LogFormat, LogLevel, LogStyle},
};
use portreeve_cluster::{Accepted, ApiServer, ClusterSource, Environment, Input, SourceOptions};
use portreeve_facts::{Learned, Mode, NodePortRange, Overrides, PortRange, text};
use portreeve_report::LONGEST_INTERVAL;
use portreeve_rules::Limits;

/// The agent's port. The port is outside of the default NodePort range and the default ephemeral port range. No
/// well-known daemon uses it.
const PORT: u16 = 29517;
const INTERVAL: Duration = Duration::from_secs(15);
/// The share of one core for scans, in per cent. To read connections, the agent may use an equal share in addition.
const CPU_PERCENT: f64 = 0.2;
/// The longest settings file that is read, in bytes. A ConfigMap cannot be longer.
const LONGEST: u64 = 1024 * 1024;

// The given settings. A missing setting is `None`.
#[allow(missing_docs, reason = "it would be the text of a command's help")]
#[derive(Clone, Debug, Default, PartialEq, Deserialize, clap::Args)]
#[serde(default, rename_all = "kebab-case", deny_unknown_fields)]
pub struct Settings {
    /// Read the cluster from a file; a changed file is read again
    #[arg(long, value_name = "FILE", help_heading = "Sources", env = "PORTREEVE_SERVICES", hide_env_values = true)]
    services: Vec<PathBuf>,
    /// Read the cluster from an API server with this kubeconfig. Without it, the pod's service account is used
    #[arg(long, value_name = "FILE", help_heading = "Sources", env = "PORTREEVE_KUBECONFIG", hide_env_values = true)]
    kubeconfig: Option<PathBuf>,
    /// The context of the kubeconfig
    #[arg(long, value_name = "NAME", help_heading = "Sources", env = "PORTREEVE_CONTEXT", hide_env_values = true)]
    context: Option<String>,
    /// Another address of the API server, like https://192.0.2.10:6443, with the same credentials
    ///
    /// Use this flag on a node on which the Service of the API server is broken. The server's certificate has to be
    /// valid for the name in the kubeconfig, or in a pod for kubernetes.default.svc.
    #[arg(
        long = "apiserver",
        value_name = "URL",
        help_heading = "Sources",
        env = "PORTREEVE_APISERVER",
        hide_env_values = true
    )]
    #[serde(rename = "apiserver", deserialize_with = "in_words")]
    api_server: Option<ApiServer>,
    /// How long to wait for an answer from the API server [default: 10s]
    #[arg(
        long, value_name = "DURATION", help_heading = "Sources", value_parser = duration,
        env = "PORTREEVE_REQUEST_TIMEOUT", hide_env_values = true
    )]
    #[serde(deserialize_with = "duration_in_words")]
    request_timeout: Option<Duration>,
    /// This node's name in the cluster [default: $NODE_NAME, else the Node with this hostname]
    #[arg(long, value_name = "NAME", help_heading = "Sources", env = "PORTREEVE_NODE", hide_env_values = true)]
    node: Option<String>,
    /// The proxy mode, instead of the mode that kube-proxy reports: iptables, ipvs, nftables or cilium
    #[arg(long, value_name = "MODE", help_heading = "Sources", env = "PORTREEVE_PROXY_MODE", hide_env_values = true)]
    #[serde(deserialize_with = "in_words")]
    proxy_mode: Option<Mode>,
    /// The API server's --service-node-port-range, instead of reading it from the cluster
    #[arg(
        long,
        value_name = "FIRST-LAST",
        help_heading = "Sources",
        env = "PORTREEVE_NODE_PORT_RANGE",
        hide_env_values = true
    )]
    #[serde(deserialize_with = "in_words")]
    node_port_range: Option<PortRange>,
    /// The directory in which the node's root is mounted [default: /]
    #[arg(long, value_name = "DIR", help_heading = "Sources", env = "PORTREEVE_HOST_ROOT", hide_env_values = true)]
    host_root: Option<PathBuf>,
    /// The address of the HTTP server [default: $HOST_IP, else 127.0.0.1, port 29517]
    #[arg(
        long,
        value_name = "ADDRESS:PORT",
        value_parser = address,
        env = "PORTREEVE_LISTEN",
        hide_env_values = true
    )]
    #[serde(deserialize_with = "address_in_words")]
    listen: Option<SocketAddr>,
    /// Also answer at a socket in the file tree: every document, without a token
    ///
    /// Only the agent's user can open the socket. The agent removes the socket at its end, so use a directory in which
    /// only this user can write. Over the network, a client needs a token with the right to read findings or snapshots.
    /// --probe connects to the socket.
    #[arg(long, value_name = "FILE", env = "PORTREEVE_SOCKET", hide_env_values = true)]
    socket: Option<PathBuf>,
    /// Write the condition PortConflict of this Node, from the next start
    ///
    /// The agent needs the right to patch nodes/status.
    #[arg(long, env = "PORTREEVE_NODE_CONDITION", hide_env_values = true)]
    node_condition: bool,
    /// The shortest time between two scans of the node; --cpu-percent can make this time longer [default: 15s]
    #[arg(long, value_name = "DURATION", value_parser = duration, env = "PORTREEVE_INTERVAL", hide_env_values = true)]
    #[serde(deserialize_with = "duration_in_words")]
    interval: Option<Duration>,
    /// The share of one core for scans. To read connections, the agent may use an equal share too. If scans need more,
    /// scans come less often than --interval [default: 0.2]
    #[arg(
        long, value_name = "PERCENT", value_parser = share,
        env = "PORTREEVE_CPU_PERCENT", hide_env_values = true
    )]
    #[serde(deserialize_with = "share_of_a_core")]
    cpu_percent: Option<f64>,
    /// The form of log lines [default: text]
    #[arg(long, value_enum, value_name = "FORM", env = "PORTREEVE_LOG_FORMAT", hide_env_values = true)]
    log_format: Option<LogFormat>,
    /// The lowest level of log lines [default: info]
    #[arg(long, value_enum, value_name = "LEVEL", env = "PORTREEVE_LOG_LEVEL", hide_env_values = true)]
    log_level: Option<LogLevel>,
    #[arg(skip)]
    limits: Option<Limits>,
}

impl Settings {
    /// Fills in missing values from the downward API.
    pub fn within(self, host_ip: Option<IpAddr>, node_name: Option<String>) -> Self {
        let host = host_ip.unwrap_or(Ipv4Addr::LOCALHOST.into());
        let given = Self { listen: Some(SocketAddr::new(host, PORT)), node: node_name, ..Self::default() };
        self.over(given)
    }

    /// Returns these settings. A missing setting is taken from `under`.
    pub fn over(self, under: Self) -> Self {
        Self {
            services: if self.services.is_empty() { under.services } else { self.services },
            kubeconfig: self.kubeconfig.or(under.kubeconfig),
            context: self.context.or(under.context),
            api_server: self.api_server.or(under.api_server),
            request_timeout: self.request_timeout.or(under.request_timeout),
            node: self.node.or(under.node),
            proxy_mode: self.proxy_mode.or(under.proxy_mode),
            node_port_range: self.node_port_range.or(under.node_port_range),
            host_root: self.host_root.or(under.host_root),
            listen: self.listen.or(under.listen),
            socket: self.socket.or(under.socket),
            node_condition: self.node_condition || under.node_condition,
            interval: self.interval.or(under.interval),
            cpu_percent: self.cpu_percent.or(under.cpu_percent),
            log_format: self.log_format.or(under.log_format),
            log_level: self.log_level.or(under.log_level),
            limits: self.limits.or(under.limits),
        }
    }

    /// The form and the level of the log.
    pub fn log(&self) -> LogStyle {
        LogStyle { format: self.log_format.unwrap_or(LogFormat::Text), level: self.log_level.unwrap_or(LogLevel::Info) }
    }

    /// The socket at which the agent answers, if it is set.
    pub fn socket(&self) -> Option<&Path> {
        self.socket.as_deref()
    }

    /// The configuration of the agent. Missing settings get their defaults.
    pub fn into_config(self, environment: &Environment) -> Config {
        let log = self.log();
        let choice = SourceOptions {
            services: self.services.into_iter().map(Input::from).collect(),
            kubeconfig: self.kubeconfig,
            context: self.context,
            api_server: self.api_server,
            request_timeout: self.request_timeout,
        };
        Config {
            cluster: ClusterSource::discover(choice, environment),
            node: self.node,
            host_root: self.host_root.unwrap_or_else(|| "/".into()),
            overrides: Overrides {
                proxy_mode: self.proxy_mode.map(|value| Learned { value, place: "proxy-mode".to_owned() }),
                ..Overrides::default()
            },
            node_port_range: self.node_port_range.map(|range| NodePortRange::configured(range, "node-port-range")),
            listen: self.listen.unwrap_or(SocketAddr::new(Ipv4Addr::LOCALHOST.into(), PORT)),
            socket: self.socket,
            node_condition: self.node_condition,
            interval: self.interval.unwrap_or(INTERVAL),
            cpu_percent: self.cpu_percent.unwrap_or(CPU_PERCENT),
            log,
            limits: self.limits.unwrap_or_default(),
        }
    }
}

/// Reads a file of settings. An error is one line: the file, the line number and the problem.
pub fn read(path: &Path) -> Result<Settings, String> {
    let input = Input::File(path.to_owned());
    let place = input.to_string();
    let read = input.read(Accepted::RegularFiles, LONGEST);
    let yaml = read.and_then(|bytes| String::from_utf8(bytes).map_err(|_| io::Error::other("is not UTF-8 text")));
    let yaml = yaml.map_err(|error| format!("reading {place}: {error}"))?;
    parse(&yaml).map_err(|(line, what)| text::clean(&format!("{place}:{line}: {what}"), 1024))
}

/// Parses the settings of a YAML document. An empty document is valid. The error is the line number and the problem.
pub fn parse(yaml: &str) -> Result<Settings, (u64, String)> {
    if yaml.lines().all(|line| line.trim().is_empty() || line.trim().starts_with('#')) {
        return Ok(Settings::default());
    }
    let settings: Settings = serde_saphyr::from_str(yaml).map_err(|error| {
        let error = error.without_snippet();
        let line = error.location().map_or(1, |location| location.line());
        let what = match error {
            serde_saphyr::Error::SerdeUnknownField { field, expected, .. } => {
                format!("unknown key {field:?}{}", text::did_you_mean(field, expected))
            }
            error => {
                serde_saphyr::MessageFormatter::format_message(&serde_saphyr::UserMessageFormatter, error).into_owned()
            }
        };
        (line, what)
    })?;
    match settings.limits.as_ref().and_then(Limits::impossible) {
        None => Ok(settings),
        Some((key, what)) => {
            let at = yaml.lines().position(|line| line.contains(key)).unwrap_or(0);
            Err((at as u64 + 1, format!("{key} is {what}")))
        }
    }
}

/// The shortest and the longest duration that a flag accepts. With durations up to an hour, no clock overflows.
const DURATIONS: RangeInclusive<Duration> = Duration::from_millis(1)..=LONGEST_INTERVAL;

/// Parses `10s`, `1m30s` or `500ms`. Other forms of jiff are refused, because the schema of the chart must know each
/// form.
pub fn duration(text: &str) -> Result<Duration, String> {
    let is_plain = text.chars().all(|it| it.is_ascii_digit() || "hms".contains(it));
    let duration: Option<SignedDuration> = text.parse().ok().filter(|_| is_plain);
    duration
        .and_then(|duration| Duration::try_from(duration).ok())
        .filter(|duration| DURATIONS.contains(duration))
        .ok_or_else(|| format!("{text:?} is not a duration from 1ms to 1h, like 10s or 1m30s"))
}

fn in_words<'de, D: Deserializer<'de>, T: FromStr<Err: Display>>(deserializer: D) -> Result<Option<T>, D::Error> {
    let words = String::deserialize(deserializer)?;
    words.parse().map(Some).map_err(de::Error::custom)
}

fn duration_in_words<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
    duration(&String::deserialize(deserializer)?).map(Some).map_err(de::Error::custom)
}

fn address_in_words<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<SocketAddr>, D::Error> {
    address(&String::deserialize(deserializer)?).map(Some).map_err(de::Error::custom)
}

/// Parses an address and a port. Brackets around an IPv6 address are optional: a manifest with `$(HOST_IP):29517`
/// cannot know the family of the address.
pub fn address(text: &str) -> Result<SocketAddr, String> {
    let bare = || {
        let (ip, port) = text.rsplit_once(':')?;
        Some(SocketAddr::new(ip.parse().ok()?, port.parse().ok()?))
    };
    text.parse().ok().or_else(bare).ok_or_else(|| format!("{text:?} is not an address and a port"))
}

fn share_of_a_core<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<f64>, D::Error> {
    share(&f64::deserialize(deserializer)?.to_string()).map(Some).map_err(de::Error::custom)
}

/// The smallest share of a core, in per cent. With the smallest share, the agent scans once in two minutes, or once in
/// --interval if --interval is longer.
const LEAST_SHARE: f64 = 0.001;

fn share(text: &str) -> Result<f64, String> {
    let share = text.parse::<f64>().ok().filter(|share| (LEAST_SHARE..=100.0).contains(share));
    share.ok_or_else(|| format!("{text:?} is not a share of {LEAST_SHARE} to 100 per cent"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_the_settings_of_flags_and_the_limits_too() {
        let settings = parse(
            "interval: 30s\nproxy-mode: ipvs\nnode-port-range: 20000-21000\ncpu-percent: 1\nlisten: '[::1]:9'\n\
             limits: {band_warning_percent: 70}\nnode-condition: true\n",
        )
        .expect("settings");
        let config = settings.into_config(&Environment::default());
        assert_eq!(config.interval, Duration::from_secs(30));
        assert_eq!(config.overrides.proxy_mode.map(|mode| mode.value), Some(Mode::Ipvs));
        assert_eq!(config.limits, Limits { band_warning_percent: 70, ..Limits::default() });
        assert_eq!(config.listen.to_string(), "[::1]:9");
        assert!(config.node_condition && !Settings::default().into_config(&Environment::default()).node_condition);
    }

    #[test]
    fn an_unknown_key_is_named_with_its_line_and_a_similar_key() {
        let wrong = |yaml: &str| parse(yaml).expect_err("an error");
        let meant = |key: &str, meant: &str| format!("unknown key {key:?}, did you mean {meant:?}?");
        assert_eq!(wrong("node: n1\nintervall: 3s\n"), (2, meant("intervall", "interval")));
        assert_eq!(wrong("limits:\n  band_warning: 3\n"), (2, meant("band_warning", "band_warning_percent")));
        assert_eq!(wrong("node: n1\n\ninterval: soon\n").0, 3);
        assert_eq!((wrong("cpu-percent: 0\n").0, wrong("cpu-percent: 1e-320\n").0), (1, 1));
        let order = wrong("limits:\n  fds_critical_percent: 1\n  fds_warning_percent: 2\n");
        assert_eq!(order, (3, "fds_warning_percent is 2, wanted no more than the critical one, 1".to_owned()));
        let limit = wrong("node: n1\nlimits:\n  band_warning_percent: 101\n");
        assert_eq!(limit, (3, "band_warning_percent is 101, wanted 1 to 100".to_owned()));
        assert_eq!(wrong("limits: {proxy_lag_seconds: -1}\n").0, 1);
    }

    #[test]
    fn an_address_needs_a_port_and_no_brackets() {
        for (text, wanted) in [("192.0.2.1:80", "192.0.2.1:80"), ("fd00::1:80", "[fd00::1]:80"), ("[::]:80", "[::]:80")]
        {
            assert_eq!(address(text).map(|it| it.to_string()), Ok(wanted.to_owned()));
        }
        assert!(address("192.0.2.1").is_err() && address(":80").is_err());
    }

    #[test]
    fn an_empty_file_sets_nothing() {
        assert_eq!(parse("# later\n\n"), Ok(Settings::default()));
    }

    #[test]
    fn flags_win_over_the_file_and_that_over_the_downward_api() {
        let flags = Settings { node: Some("flag".to_owned()), ..Settings::default() };
        let file = parse("node: file\nlisten: 192.0.2.7:80\n").expect("settings");
        let host = Some(IpAddr::from([192, 0, 2, 1]));
        let config = flags.over(file).within(host, Some("api".to_owned())).into_config(&Environment::default());
        assert_eq!((config.node.as_deref(), config.listen.to_string()), (Some("flag"), "192.0.2.7:80".to_owned()));
        let config = Settings::default().within(host, Some("api".to_owned())).into_config(&Environment::default());
        assert_eq!((config.node.as_deref(), config.listen.to_string()), (Some("api"), "192.0.2.1:29517".to_owned()));
    }

    #[test]
    fn a_duration_is_longer_than_nothing_and_at_most_an_hour() {
        assert_eq!(duration("1m30s"), Ok(Duration::from_secs(90)));
        for wrong in [
            "0s",
            "-1s",
            "ten",
            "10",
            "",
            "1000h",
            "3601s",
            "1ns",
            "9223372036854775807s",
            "1y",
            "1.5s",
            "1 minute",
            "PT1M",
        ] {
            assert!(duration(wrong).is_err(), "{wrong:?}");
        }
    }
}
