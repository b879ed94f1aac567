//! The agent's configuration file, as the chart's schema knows it under `config`.

use std::any::TypeId;

use clap::{Arg, ArgAction, Args as _, Command};
use portreeve_agent::settings::{self, Settings};
use portreeve_rules::Limits;
use serde_json::{Map, Value, json};

use crate::helm::try_render;

/// Every key with the form of its value: the flags of the agent, and the limits.
pub(crate) fn schema() -> Value {
    let command = Settings::augment_args(Command::new("agent"));
    let flags = command.get_arguments().filter_map(|flag| Some((flag.get_long()?.to_owned(), of_flag(flag))));
    let mut keys: Map<String, Value> = flags.collect();
    let Ok(Value::Object(limits)) = serde_json::to_value(Limits::default()) else { panic!("limits have names") };
    let limits: Map<String, Value> =
        limits.into_iter().map(|(name, _)| (name, json!({"type": "integer", "minimum": 1}))).collect();
    keys.insert("limits".to_owned(), of_keys(&limits));
    of_keys(&keys)
}

fn of_keys(keys: &Map<String, Value>) -> Value {
    json!({"type": "object", "additionalProperties": false, "properties": keys})
}

fn of_flag(flag: &Arg) -> Value {
    let words: Vec<String> = flag.get_possible_values().iter().map(|it| it.get_name().to_owned()).collect();
    let one = if !words.is_empty() {
        json!({"enum": words})
    } else if flag.get_value_parser().type_id() == TypeId::of::<f64>() {
        json!({"type": "number"})
    } else {
        json!({"type": "string"})
    };
    match flag.get_action() {
        ArgAction::SetTrue => json!({"type": "boolean"}),
        ArgAction::Append => json!({"type": "array", "items": one}),
        _ => one,
    }
}

#[test]
fn a_key_that_the_agent_does_not_know_is_refused_before_any_agent_ends_by_it() {
    for (setting, named) in [
        (r#"config.intervall="30s""#, "intervall"),
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
