//! Admission policies with their parameters, in two forms: objects of the API server, and values of the chart.

use std::{collections::BTreeMap, io, io::Write};

use portreeve_rules::PolicyParameters;

/// The policies in YAML. The chart contains an equal file.
const POLICIES: &str = include_str!("../../../deploy/policies/policies.yaml");
const ACTION: &str = "validationActions: [Warn]\n";
const OF_DEFAULTS: &str = "these are the defaults.";
/// The text that replaces [`OF_DEFAULTS`].
const OF_THIS_CLUSTER: &str = "these are the values for one cluster: its facts, and the values that its user chose.";
const INDENT: &str = "        ";

/// If one of these parameters is absent, the chart sets the default range. If the range is unknown, these parameters
/// must be present and empty.
const RANGES: [&str; 4] = ["nodePortFirst", "nodePortLast", "dynamicBandFirst", "dynamicBandLast"];

/// Values that the user chooses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PolicyChoices {
    /// The action on a violation: `Warn`, `Deny` or `Audit`.
    pub action: &'static str,
    /// The parameters that the user chose, by name.
    pub parameters: BTreeMap<String, String>,
}

impl PolicyChoices {
    /// The values of all parameters. A value that the user chose replaces the value in `known`.
    fn data(&self, known: &PolicyParameters) -> BTreeMap<String, String> {
        let mut data = known.data();
        data.extend(self.parameters.clone());
        data
    }
}

/// Writes the policies and their bindings, with the parameters.
///
/// # Errors
/// Fails if the writer fails.
pub fn write_policies(known: &PolicyParameters, choices: &PolicyChoices, out: &mut dyn Write) -> io::Result<()> {
    let data = choices.data(known);
    let action = format!("validationActions: [{}]\n", choices.action);
    for line in POLICIES.replace(ACTION, &action).replace(OF_DEFAULTS, OF_THIS_CLUSTER).lines() {
        match parameters(line, &data) {
            Some(parameters) => writeln!(out, "{INDENT}{parameters}")?,
            None => writeln!(out, "{line}")?,
        }
    }
    Ok(())
}

/// Writes the values of `data` into a line of parameters. A name `a` in the line also stands for the parameters `a.*`.
/// The values are JSON, which is also valid in CEL. `None` if the line has no parameters.
fn parameters(line: &str, data: &BTreeMap<String, String>) -> Option<String> {
    let defaults = line.strip_prefix(INDENT).filter(|it| it.starts_with("{\""))?;
    let defaults: BTreeMap<String, String> = serde_json::from_str(defaults).expect("a line of parameters is JSON");
    let is_taken = |name: &str| defaults.contains_key(name.split('.').next().unwrap_or_default());
    let taken: BTreeMap<&String, &String> = data.iter().filter(|(name, _)| is_taken(name)).collect();
    Some(serde_json::to_string(&taken).expect("text is JSON"))
}

/// Writes the parameters as values of the chart.
///
/// # Errors
/// Fails if the writer fails.
pub fn write_policy_values(known: &PolicyParameters, choices: &PolicyChoices, out: &mut dyn Write) -> io::Result<()> {
    let mut data: BTreeMap<String, String> = RANGES.map(|name| (name.to_owned(), String::new())).into();
    data.extend(choices.data(known));
    writeln!(out, "policies:\n  enabled: true\n  action: {}\n  parameters:", choices.action)?;
    // Names and values need no escapes.
    data.iter().try_for_each(|(name, value)| writeln!(out, "    {name}: \"{value}\""))
}
