//! Flags that choose findings.

use std::process::ExitCode;

use clap::builder::PossibleValue;

use super::{
    explain::rule_words,
    words::{Words, wanted},
};
use portreeve_report::CheckResult;
use portreeve_rules::{RULES, Rule, findings::Severity, ids::Named};

// Flags that choose the findings to print and to count. The flags are the same for one node and for many nodes.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(super) struct CountFlags {
    /// Report and count only findings of at least this severity
    ///
    /// Without this flag every finding is reported; findings of severity warning or critical set the exit code.
    #[arg(long, value_name = "SEVERITY", help_heading = "Output", value_parser = SEVERITY)]
    pub(super) min_severity: Option<Severity>,
    /// Do not exit with 1 for findings
    #[arg(long, help_heading = "Output")]
    exit_zero: bool,
    /// Print only the rows of the table, for scripts
    #[arg(long, help_heading = "Output")]
    pub(super) no_headers: bool,
}

impl CountFlags {
    /// `--exit-zero` changes the exit code for findings, but not for failures. `whole` is false after a failure.
    pub(super) fn end(self, result: CheckResult, whole: bool) -> ExitCode {
        let result = match result {
            CheckResult::Findings if self.exit_zero && whole => CheckResult::Clear,
            CheckResult::Findings if self.exit_zero => CheckResult::NotChecked,
            result => result,
        };
        ExitCode::from(result as u8)
    }
}

pub(super) fn judges(rule: &Rule, named: &Named) -> bool {
    named.names_any(rule.name().0, rule.variants)
}

/// Accepts the name of a rule about nodes, or of one of its variants.
pub(super) const RULE: Words<Named> = Words { words: rule_words, parse: rule };

fn rule(text: &str) -> Result<Named, String> {
    let named = Named::parse(text).filter(|named| RULES.iter().any(|rule| judges(rule, named)));
    named.ok_or_else(|| {
        wanted("not a rule that judges nodes, wanted ID or ID/VARIANT: `explain` lists them", text, &rule_words())
    })
}

const SEVERITY: Words<Severity> = Words { words: severities, parse: severity };

fn severities() -> Vec<PossibleValue> {
    Severity::ALL.iter().map(|severity| PossibleValue::new(severity.name())).collect()
}

fn severity(word: &str) -> Result<Severity, String> {
    Severity::ALL
        .into_iter()
        .find(|severity| severity.name() == word)
        .ok_or_else(|| wanted("not a severity: info, warning or critical", word, &severities()))
}
