//! Admission policies with their parameters, as objects of the API server and as values of the chart.

use std::{collections::BTreeMap, io, io::Write};

use crate::rules::PolicyParameters;

/// The policies and their bindings, which the chart has too.
const POLICIES: &str = include_str!("../../deploy/policies/policies.yaml");
/// What the namespace of the parameters is there, and what becomes of a violation.
const PLACE: &str = "    namespace: portreeve\n";
const ACTION: &str = "validationActions: [Warn]\n";

/// What cannot be known, and a person decides.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PolicyChoices {
    /// What becomes of a violation: `Warn`, `Deny` or `Audit`.
    pub action: &'static str,
    /// The namespace of the parameters.
    pub namespace: String,
    /// Parameters that are chosen, by their names.
    pub parameters: BTreeMap<String, String>,
}

impl PolicyChoices {
    /// What is known and what is chosen; a choice goes first. No name and no value has anything to quote.
    fn data(&self, known: &PolicyParameters, indent: &str) -> String {
        let mut data = known.data();
        data.extend(self.parameters.clone());
        let lines = data.iter().map(|(name, value)| format!("{indent}{name}: \"{value}\"\n"));
        let lines: String = lines.collect();
        if lines.is_empty() { format!("{indent}{{}}\n") } else { lines }
    }
}

/// Writes the policies, their bindings and their parameters.
///
/// # Errors
/// When the writer fails.
pub fn write_policies(known: &PolicyParameters, choices: &PolicyChoices, out: &mut dyn Write) -> io::Result<()> {
    let PolicyChoices { action, namespace, .. } = choices;
    let policies = POLICIES.replace(PLACE, &format!("    namespace: {namespace}\n"));
    out.write_all(policies.replace(ACTION, &format!("validationActions: [{action}]\n")).as_bytes())?;
    write!(
        out,
        "---\napiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: portreeve-policies\n  namespace: {namespace}\ndata:\n{}",
        choices.data(known, "  ")
    )
}

/// Writes the same as values of the chart.
///
/// # Errors
/// When the writer fails.
pub fn write_policy_values(known: &PolicyParameters, choices: &PolicyChoices, out: &mut dyn Write) -> io::Result<()> {
    write!(
        out,
        "policies:\n  enabled: true\n  action: {}\n  parameters:\n{}",
        choices.action,
        choices.data(known, "    ")
    )
}
