//! One line for node-problem-detector, whose custom plugins return 0, 1 or 2 and a message. The setting
//! `max_output_length` limits the message, by default to 80 bytes.

use super::{CheckResult, Report, outcome::clear_in_words};
use portreeve_facts::text::clean;
use portreeve_rules::findings::Finding;

/// The greatest length of the line, in bytes.
pub const NPD_LINE: usize = 80;

/// The line, without a line end.
pub fn npd_line(report: &Report<'_>) -> String {
    let line = match report.result() {
        CheckResult::Findings => {
            let more = report.findings().count().saturating_sub(1);
            let more = if more > 0 { format!(" (+{more} more)") } else { String::new() };
            let worst = report.findings().next().map(in_short).unwrap_or_default();
            format!("{}{more}", clean(&worst, NPD_LINE - more.len()))
        }
        CheckResult::NotChecked => match report.failures().first() {
            Some(first) if first.claims > 0 => format!("not checked: {}", first.open().in_words()),
            Some(first) => format!("not checked: {}", first.gap.detail),
            None => "not checked".to_owned(),
        },
        CheckResult::Clear => clear_in_words(report),
    };
    clean(&line, NPD_LINE)
}

/// The line begins with the rule, because alerts compare the rule. The end of a long subject may be cut.
fn in_short(finding: &Finding) -> String {
    let port = finding.key.port.map(|port| format!(" {port}")).unwrap_or_default();
    format!("{}{port}: {}", finding.key.name(), finding.key.subject)
}
