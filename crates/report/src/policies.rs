//! Admission policies with their parameters: as objects of the API server, and as values of the chart.

use std::{collections::BTreeMap, io, io::Write};

use portreeve_rules::PolicyParameters;

/// The chart has the same file.
const POLICIES: &str = include_str!("../../../deploy/policies/policies.yaml");
const ACTION: &str = "validationActions: [Warn]\n";
const OF_DEFAULTS: &str = "these are the defaults.";
/// The words that replace [`OF_DEFAULTS`].
const OF_THIS_CLUSTER: &str = "these are the values for one cluster: its facts, and the values that its user chose.";
const INDENT: &str = "        ";

/// Parameters for which the chart would use the default range. If the range is not known, they must be empty.
const RANGES: [&str; 4] = ["nodePortFirst", "nodePortLast", "dynamicBandFirst", "dynamicBandLast"];

/// Values that only the user can choose.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PolicyChoices {
    /// The action on a violation: `Warn`, `Deny` or `Audit`.
    pub action: &'static str,
    /// Parameters that are chosen, by their names.
    pub parameters: BTreeMap<String, String>,
}

impl PolicyChoices {
    /// A chosen value replaces a known value.
    fn data(&self, known: &PolicyParameters) -> BTreeMap<String, String> {
        let mut data = known.data();
        data.extend(self.parameters.clone());
        data
    }
}

/// Writes the policies with their parameters, and their bindings.
///
/// # Errors
/// When the writer fails.
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

/// The line lists names of parameters. A name also selects all parameters whose names begin with this name and a dot.
/// The values are JSON, which is also valid in CEL.
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
/// When the writer fails.
pub fn write_policy_values(known: &PolicyParameters, choices: &PolicyChoices, out: &mut dyn Write) -> io::Result<()> {
    let mut data: BTreeMap<String, String> = RANGES.map(|name| (name.to_owned(), String::new())).into();
    data.extend(choices.data(known));
    writeln!(out, "policies:\n  enabled: true\n  action: {}\n  parameters:", choices.action)?;
    // No name and no value contains a character that must be quoted.
    data.iter().try_for_each(|(name, value)| writeln!(out, "    {name}: \"{value}\""))
}
