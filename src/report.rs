//! Flags for the output of findings, and the output itself.

use std::{collections::BTreeSet, mem, process::ExitCode};

use clap::{ValueEnum, builder::PossibleValue};

use super::{
    console::Console,
    explain::rule_words,
    words::{Words, wanted},
};
use portreeve_agent::judge_by;
use portreeve_facts::{Snapshot, Source};
use portreeve_report::{self as report, CheckResult, Report};
use portreeve_rules::{
    self as rules, Limits, RULES, Rule,
    findings::{Key, Severity},
    ids::Named,
};

#[derive(Debug, clap::Args)]
pub(super) struct ReportFlags {
    /// The form of the output
    #[arg(short, long, value_enum, value_name = "FORM", help_heading = "Output", default_value_t = Form::Table)]
    output: Form,
    #[command(flatten)]
    counting: CountFlags,
    /// Run only this rule, or one of its variants: ID or ID/VARIANT; may be given several times
    ///
    /// Portreeve does not read sources that only other rules use, for example connections on a node with many connections.
    #[arg(long = "rule", value_name = "RULE", help_heading = "Output", value_parser = RULE, hide_possible_values = true)]
    rules: Vec<Named>,
}

// Flags that choose the findings to print and to count. They are the same for one node and for many nodes.
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

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Form {
    /// Findings, affected clients, remedies
    Table,
    /// The table with all details
    Wide,
    /// One JSON document, `portreeve.findings/v1`
    Json,
    /// The same document as `json`
    Yaml,
    /// One line for node-problem-detector
    Npd,
    /// Test cases for a pipeline
    Junit,
    /// For code scanning, SARIF 2.1.0
    Sarif,
}

impl ReportFlags {
    fn rules(&self) -> Vec<&'static Rule> {
        let is_requested = |rule: &&Rule| self.rules.is_empty() || self.rules.iter().any(|it| judges(rule, it));
        RULES.iter().copied().filter(is_requested).collect()
    }

    fn wants(&self, Key { rule, variant, .. }: &Key) -> bool {
        self.rules.is_empty() || self.rules.iter().any(|it| it.names(rule.0, variant))
    }

    /// The sources that none of these rules uses.
    pub(super) fn skipped(&self) -> BTreeSet<Source> {
        rules::skipped(&self.rules())
    }

    pub(super) fn print(&self, snapshot: &Snapshot, is_live: bool, console: &Console) -> anyhow::Result<ExitCode> {
        let Self { output, counting, .. } = *self;
        let CountFlags { min_severity, no_headers, .. } = counting;
        let rules = self.rules();
        let mut board = judge_by(&rules, snapshot, &Limits::default());
        board.findings.retain(|it| self.wants(&it.key));
        let report = Report { min_severity, rules: &rules, is_live, ..Report::of(snapshot, &board) };
        let style = &console.style;
        console.write(|out| match output {
            Form::Table | Form::Wide if no_headers => report::write_rows(&report, style, out),
            Form::Table => report::write_table(&report, style, out),
            Form::Wide => report::write_wide(&report, style, out),
            Form::Json => report::write_json(&report, out),
            Form::Yaml => report::write_yaml(&report, out),
            Form::Npd => writeln!(out, "{}", report::npd_line(&report)),
            Form::Junit => report::write_junit(&report, out),
            Form::Sarif => report::write_sarif(&report, out),
        })?;
        let end = counting.end(report.result(), report.failures().is_empty());
        // Do not free the memory of the board, because the process ends.
        mem::forget(board);
        Ok(end)
    }
}

impl CountFlags {
    /// `--exit-zero` changes the exit code for findings, but not for failures.
    pub(super) fn end(self, result: CheckResult, whole: bool) -> ExitCode {
        let result = match result {
            CheckResult::Findings if self.exit_zero && whole => CheckResult::Clear,
            CheckResult::Findings if self.exit_zero => CheckResult::NotChecked,
            result => result,
        };
        ExitCode::from(result as u8)
    }
}

fn judges(rule: &Rule, named: &Named) -> bool {
    named.names_any(rule.name().0, rule.variants)
}

/// The name of a rule about nodes, or of one of its variants.
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
