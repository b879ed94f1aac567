//! One node for a person: what is wrong, for whom, what to type next, how we know, and what could not be read.

use std::io::{self, Write};

use super::{
    super::{
        CheckResult, Report, Style,
        findings_document::Problem,
        terminal::{Ink, tidy},
    },
    page::{ListedFinding, Page},
};
use portreeve_rules::findings::Severity;

/// Writes the compact table: a list, what each finding needs to be acted on, and what stands behind it.
///
/// # Errors
/// When the writer fails.
pub fn write_table(report: &Report<'_>, style: &Style, out: &mut dyn Write) -> io::Result<()> {
    Page { style, wide: false, out }.write(report)
}

/// Writes the table with everything that is known.
///
/// # Errors
/// When the writer fails.
pub fn write_wide(report: &Report<'_>, style: &Style, out: &mut dyn Write) -> io::Result<()> {
    Page { style, wide: true, out }.write(report)
}

/// Writes the rows of the list alone, for scripts.
///
/// # Errors
/// When the writer fails.
pub fn write_rows(report: &Report<'_>, style: &Style, out: &mut dyn Write) -> io::Result<()> {
    let problems = problems(report);
    Page { style, wide: true, out }.rows(&of_one_node(&problems), false)
}

fn problems(report: &Report<'_>) -> Vec<Problem> {
    report.findings().map(Problem::of).collect()
}

fn of_one_node(problems: &[Problem]) -> Vec<ListedFinding<'_>> {
    problems.iter().map(|problem| ListedFinding { problem, on: None }).collect()
}

impl Page<'_> {
    fn write(&mut self, report: &Report<'_>) -> io::Result<()> {
        let (headline, ink) = headline(report);
        self.line(0, ink, &headline)?;
        let problems = problems(report);
        self.write_list(&of_one_node(&problems))?;
        self.write_sources(report)?;
        self.write_not_read(report)
    }
}

fn headline(report: &Report<'_>) -> (String, Ink) {
    let node = tidy(report.snapshot.node_name());
    let counts: Vec<(Severity, usize)> = Severity::ALL
        .into_iter()
        .rev()
        .map(|severity| (severity, report.count(severity)))
        .filter(|(_, count)| *count > 0)
        .collect();
    if let Some((worst, _)) = counts.first() {
        let reported: Vec<String> = counts.iter().map(|(severity, count)| format!("{count} {severity}")).collect();
        let hidden = counts.iter().map(|(_, count)| count).sum::<usize>() - report.findings().count();
        let hidden = if hidden > 0 { format!(" ({hidden} milder not shown)") } else { String::new() };
        return (format!("{node}: {}{hidden}", reported.join(", ")), Ink::Bad(*worst));
    }
    match report.result() {
        CheckResult::NotChecked => {
            (format!("{node}: could not be checked; see below what failed."), Ink::Bad(Severity::Critical))
        }
        _ if report.board.unknown.is_empty() => (format!("{node}: no port conflicts."), Ink::Good),
        _ => (format!("{node}: no port conflicts in what could be seen."), Ink::Heading),
    }
}
