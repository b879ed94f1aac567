//! The agent's configuration file, in the form in which the chart's schema describes it below `config`.

use std::{any::TypeId, collections::BTreeSet, time::Duration};

use clap::{Arg, ArgAction, Args as _, Command, builder::ValueParser};
use portreeve_agent::settings::{self, Settings};
use portreeve_cluster::ApiServer;
use portreeve_facts::{Mode, PortRange};
use portreeve_rules::Limits;
use serde_json::{Map, Value, json};

use crate::{helm::try_render, readme, text};

/// Keys that the chart sets itself: the agent listens on the value `port`, and the liveness probe connects to the
/// socket.
const OF_THE_CHART: [&str; 2] = ["listen", "socket"];

pub(crate) fn schema() -> Value {
    let mut keys = keys();
    keys.retain(|key, _| !OF_THE_CHART.contains(&key.as_str()));
    of_keys(&keys)
}

pub(crate) fn keys() -> Map<String, Value> {
    let command = Settings::augment_args(Command::new("agent"));
    let flags = command.get_arguments().filter_map(|flag| Some((flag.get_long()?.to_owned(), of_flag(flag))));
    let mut keys: Map<String, Value> = flags.collect();
    let Ok(Value::Object(limits)) = serde_json::to_value(Limits::default()) else { panic!("limits have names") };
    let most = |name: &str| if name.ends_with("_percent") { 100 } else { 86_400 };
    let limits = limits.into_iter().map(|(name, _)| {
        let form = json!({"type": "integer", "minimum": 1, "maximum": most(&name)});
        (name, form)
    });
    keys.insert("limits".to_owned(), of_keys(&limits.collect()));
    keys
}

fn of_keys(keys: &Map<String, Value>) -> Value {
    json!({"type": "object", "additionalProperties": false, "properties": keys})
}

fn of_flag(flag: &Arg) -> Value {
    let words: Vec<String> = flag.get_possible_values().iter().map(|it| it.get_name().to_owned()).collect();
    let one = if words.is_empty() { of_type(flag.get_value_parser()) } else { json!({"enum": words}) };
    match flag.get_action() {
        ArgAction::SetTrue => json!({"type": "boolean"}),
        ArgAction::Append => json!({"type": "array", "items": one}),
        _ => one,
    }
}

const PORT: &str = "0*([0-9]{1,4}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])";

/// The type of a value in the chart's schema. A pattern cannot check every value completely: templates/_helpers.tpl
/// refuses the other invalid values. For IPv6 addresses, the pattern checks only which characters are allowed.
fn of_type(parser: &ValueParser) -> Value {
    let reads = |of: TypeId| parser.type_id() == of;
    let pattern = |pattern: String| json!({"type": "string", "pattern": pattern});
    if reads(TypeId::of::<f64>()) {
        json!({"type": "number", "minimum": 0.001, "maximum": 100})
    } else if reads(TypeId::of::<Mode>()) {
        json!({"enum": Mode::ALL.map(Mode::name)})
    } else if reads(TypeId::of::<Duration>()) {
        pattern("^[0-9]{1,7}(h([0-9]{1,7}m)?([0-9]{1,7}s)?([0-9]{1,7}ms)?|m([0-9]{1,7}s)?([0-9]{1,7}ms)?|s([0-9]{1,7}ms)?|ms)$".to_owned())
    } else if reads(TypeId::of::<PortRange>()) {
        pattern(format!(r"^{PORT}((\s*[-+]\s*|\s+){PORT})?$"))
    } else if reads(TypeId::of::<ApiServer>()) {
        pattern(format!(r"^https://([A-Za-z0-9._-]+|\[[0-9a-fA-F:.]+\])(:{PORT})?(/[^?#\s]*)?$"))
    } else {
        json!({"type": "string"})
    }
}

/// A key below `config`, with values that the schema must accept and values that it must refuse.
const VALUES: [(&str, &[&str], &[&str]); 13] = [
    (
        "interval",
        &[r#""1ms""#, r#""500ms""#, r#""90s""#, r#""1m30s""#, r#""1h""#, r#""60m""#, r#""59m59s1000ms""#, r#""010s""#],
        &[
            r#""banana""#,
            r#""""#,
            r#""0s""#,
            r#""-1s""#,
            r#""10""#,
            "10",
            r#""1h1ms""#,
            r#""3601s""#,
            r#""1d""#,
            r#""1ns""#,
            r#""1.5s""#,
            r#""1m 30s""#,
            r#""30s1m""#,
            r#""1m1m""#,
            r#""1 minute""#,
            r#""PT1M""#,
            r#""s""#,
        ],
    ),
    ("request-timeout", &[r#""10s""#], &[r#""banana""#, r#""2h""#]),
    ("cpu-percent", &["0.001", "1", "0.2", "100"], &["-5", "0", "0.0009", "100.1", r#""much""#]),
    (
        "proxy-mode",
        &[r#""iptables""#, r#""ipvs""#, r#""nftables""#, r#""cilium""#],
        &[r#""banana""#, r#""""#, r#""IPVS""#],
    ),
    ("log-format", &[r#""text""#, r#""json""#], &[r#""xml""#]),
    ("log-level", &[r#""error""#, r#""warn""#, r#""info""#, r#""debug""#], &[r#""trace""#, r#""INFO""#]),
    (
        "node-port-range",
        &[
            r#""30000-32767""#,
            r#""30000+2767""#,
            r#""30000""#,
            r#""30000 32767""#,
            r#""30000 - 32767""#,
            r#""0-65535""#,
            r#""7-7""#,
        ],
        &[
            r#""banana""#,
            r#""""#,
            r#""32767-30000""#,
            r#""32767 30000""#,
            r#""30000-65536""#,
            r#""1-2-3""#,
            r#""-1""#,
            r#""30000,30001""#,
        ],
    ),
    (
        "apiserver",
        &[
            r#""https://192.0.2.10:6443""#,
            r#""https://[fd00::1]:6443""#,
            r#""https://api.example/""#,
            r#""https://api.example/k8s/c1""#,
        ],
        &[
            r#""banana""#,
            r#""""#,
            r#""192.0.2.10:6443""#,
            r#""http://192.0.2.10""#,
            r#""https://""#,
            r#""https://me@api.example""#,
            r#""https://api.example/?a=b""#,
            r#""https://:6443""#,
            r#""https://a b""#,
            r#""https://a:b""#,
            r#""https://a:65536""#,
            r#""https://a:""#,
            r#""https://a%zz""#,
        ],
    ),
    ("node-condition", &["true", "false"], &[r#""banana""#, "1"]),
    ("services", &[r#"["/a","/b"]"#, "[]"], &[r#""/a""#, r#"{"a":"b"}"#]),
    ("node", &[r#""n1""#], &[r#"{"a":"b"}"#]),
    (
        "limits",
        &[
            r#"{"fds_critical_percent":100}"#,
            r#"{"ephemeral_warning_percent":95}"#,
            r#"{"ephemeral_critical_percent":80}"#,
            r#"{"fds_warning_percent":7,"fds_critical_percent":7}"#,
            r#"{"proxy_lag_seconds":86400}"#,
            r#"{"band_warning_percent":1}"#,
            "{}",
        ],
        &[
            r#"{"fds_critical_percent":900}"#,
            r#"{"fds_critical_percent":0}"#,
            r#"{"fds_critical_percent":-1}"#,
            r#"{"ephemeral_warning_percent":96}"#,
            r#"{"ephemeral_critical_percent":79}"#,
            r#"{"fds_warning_percent":96}"#,
            r#"{"fds_critical_percent":79}"#,
            r#"{"fds_warning_percent":8,"fds_critical_percent":7}"#,
            r#"{"proxy_lag_seconds":0}"#,
            r#"{"proxy_lag_seconds":86401}"#,
            r#"{"band_warning_percent":101}"#,
            r#"{"band_warning_percent":7.5}"#,
            r#"{"band_warning":70}"#,
        ],
    ),
    ("host-root", &[r#""/host""#], &["[]"]),
];

#[test]
fn the_chart_takes_the_values_that_the_agent_takes_and_no_others() {
    let mut differ = Vec::new();
    for (key, taken, refused) in VALUES {
        for (value, is_taken) in taken.iter().map(|it| (it, true)).chain(refused.iter().map(|it| (it, false))) {
            let agent = settings::parse(&format!("{key}: {value}")).map(drop).map_err(|(_, what)| what);
            let chart = try_render(&[&format!("config.{key}={value}")]).map(drop);
            if agent.is_ok() != is_taken || chart.is_ok() != is_taken {
                differ.push(format!("{key}: {value}: the agent {agent:?}, the chart {chart:?}"));
            }
            if let Err(what) = chart {
                assert!(what.contains(key), "{key}: {value}: {what}");
            }
        }
    }
    assert_eq!(differ, Vec::<String>::new());
    let known = schema();
    let known: Vec<_> = known["properties"].as_object().expect("keys").keys().map(String::as_str).collect();
    let (free, asked) = (["context", "kubeconfig"], VALUES.map(|(key, ..)| key));
    assert!(known.iter().all(|key| free.contains(key) || asked.contains(key)), "no value of a key is tried: {known:?}");
}

#[test]
fn a_key_that_is_not_the_users_or_that_the_agent_does_not_know_is_refused_before_any_agent_ends_by_it() {
    for (setting, named) in [
        (r#"config.intervall="30s""#, "intervall"),
        (r#"config.listen="192.0.2.1:80""#, "'listen'"),
        (r#"config.socket="/run/portreeve.socket""#, "'socket'"),
        ("config.interval=30", "/config/interval"),
        (r#"config.log-format="xml""#, "/config/log-format"),
        ("config.limits.band_warning=70", "band_warning"),
        (r#"config.limits.band_warning_percent="70""#, "/config/limits/band_warning_percent"),
    ] {
        let refused = try_render(&[setting]).expect_err(setting);
        assert!(refused.contains(named), "{setting}: {refused}");
    }
    let taken = r#"config={"interval":"30s","log-format":"json","cpu-percent":1,"limits":{"band_warning_percent":70}}"#;
    try_render(&[taken]).unwrap_or_else(|refused| panic!("{refused}"));
}

#[test]
fn the_agent_knows_every_key_of_the_schema() {
    for key in schema()["properties"].as_object().expect("keys").keys() {
        let wrong = settings::parse(&format!("{key}: {{x: [y]}}")).expect_err("no key has such a value").1;
        assert!(!wrong.contains(&format!("unknown key \"{key}\"")), "{key}: {wrong}");
    }
}

/// `Config::adopt` compares the keys whose old values a running agent keeps.
#[test]
fn values_yaml_and_the_help_know_which_keys_take_effect_only_when_the_agent_starts_again() {
    let code = text("crates/agent/src/config.rs");
    let (_, fields) = code.split_once("let Self { ").expect("the fields that `adopt` compares");
    let (fields, _) = fields.split_once(", .. }").expect("their end");
    // The field `cluster` has the values of several keys.
    let mut wanted =
        BTreeSet::from(["apiserver", "context", "kubeconfig", "request-timeout", "services"].map(str::to_owned));
    wanted.extend(fields.split(", ").filter(|field| *field != "cluster").map(|field| field.replace('_', "-")));
    let at_once = keys().into_iter().map(|(key, _)| key).filter(|key| !wanted.contains(key));
    let at_once: BTreeSet<String> = at_once.collect();
    wanted.retain(|key| !OF_THE_CHART.contains(&key.as_str()));
    assert!(fields.contains("cluster") && wanted.iter().all(|key| keys().contains_key(key)), "{wanted:?}");

    let values = readme::values(&text("deploy/chart/values.yaml"));
    let config = values.into_iter().find(|it| it.path == "config").expect("the value");
    let (_, named) = config.meaning.split_once("A new value of ").expect("the sentence");
    let (named, _) = named.split_once(" takes effect when the pod starts again.").expect("its end");
    let quoted = |text: &str| text.split('`').skip(1).step_by(2).map(str::to_owned).collect::<BTreeSet<_>>();
    assert_eq!(quoted(named), wanted);

    let help = text("src/agent.rs");
    let (_, named) = help.split_once("Until the next start, only").expect("the sentence of --config");
    let (named, _) = named.split_once(" change.").expect("its end");
    assert_eq!(quoted(named), at_once);
}
