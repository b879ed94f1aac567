//! The look for a person: what is wrong, for whom, what to type next, how we know, and what could not be seen.

mod finding;
mod fleet;
mod not_read;
mod rows;
mod sources;

use std::io::{self, Write};

pub(super) use self::{
    not_read::{gap_groups, not_judged, reason_words},
    rows::port,
};
use super::{
    CheckResult, Report, Style,
    findings_document::Problem,
    terminal::{Ink, tidy, wrap},
};
use crate::findings::Severity;

pub use fleet::{write_fleet_rows, write_fleet_table, write_fleet_wide};

/// How many findings the compact table explains; it lists all of them.
const EXPLAINED: usize = 20;
/// How many nodes of one finding the compact table names.
const NAMED: usize = 3;

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

/// One finding to tell.
struct ListedFinding<'a> {
    problem: &'a Problem,
    /// The nodes it was found on; none where only one is spoken of.
    nodes: Vec<&'a str>,
}

fn problems(report: &Report<'_>) -> Vec<Problem> {
    report.findings().map(Problem::of).collect()
}

fn of_one_node(problems: &[Problem]) -> Vec<ListedFinding<'_>> {
    problems.iter().map(|problem| ListedFinding { problem, nodes: Vec::new() }).collect()
}

/// A page in the making.
struct Page<'a> {
    style: &'a Style,
    wide: bool,
    out: &'a mut dyn Write,
}

impl Page<'_> {
    fn write(&mut self, report: &Report<'_>) -> io::Result<()> {
        let (headline, ink) = headline(report);
        self.line(0, ink, &headline)?;
        let problems = problems(report);
        self.explained(&of_one_node(&problems))?;
        self.write_sources(report)?;
        self.write_not_read(report)
    }

    /// The list, and what each finding needs to be acted on.
    fn explained(&mut self, told: &[ListedFinding<'_>]) -> io::Result<()> {
        if told.is_empty() {
            return Ok(());
        }
        self.blank()?;
        self.rows(told, true)?;
        let explained = if self.wide { told.len() } else { EXPLAINED };
        for it in told.iter().take(explained) {
            self.write_finding(it)?;
        }
        if told.len() > explained {
            let more = format!("{} more findings are explained with -o wide.", told.len() - explained);
            self.blank()?;
            self.line(0, Ink::Faint, &more)?;
        }
        Ok(())
    }

    /// The names of nodes; only some of many, unless everything is wanted.
    fn names(&self, nodes: &[&str]) -> String {
        let shown = if self.wide { nodes.len() } else { NAMED.min(nodes.len()) };
        let more = nodes.len() - shown;
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        format!("{}{more}", nodes[..shown].join(","))
    }

    /// One line, as it is: neither wrapped nor cut.
    fn line(&mut self, indent: usize, ink: Ink, text: &str) -> io::Result<()> {
        writeln!(self.out, "{:indent$}{}", "", self.style.paint(ink, text))
    }

    fn blank(&mut self) -> io::Result<()> {
        writeln!(self.out)
    }

    /// A label and the lines beside it, the label on the first one only.
    fn labelled(&mut self, indent: usize, label: &str, room: usize, lines: &[(Ink, String)]) -> io::Result<()> {
        for (index, (ink, line)) in lines.iter().enumerate() {
            let label = if index == 0 { label } else { "" };
            let pad = room.saturating_sub(label.chars().count());
            let label = self.style.paint(Ink::Faint, label);
            writeln!(self.out, "{:indent$}{label}{:pad$}  {}", "", "", self.style.paint(*ink, line))?;
        }
        Ok(())
    }

    /// A stranger's text, wrapped to what is left beside `taken` columns; lines over 120 columns tire the eye.
    fn wrapped(&self, ink: Ink, text: &str, taken: usize) -> Vec<(Ink, String)> {
        let width = self.style.width.min(120).saturating_sub(taken).max(30);
        wrap(&tidy(text), width).into_iter().map(|line| (ink, line)).collect()
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
        let told: Vec<String> = counts.iter().map(|(severity, count)| format!("{count} {severity}")).collect();
        let hidden = counts.iter().map(|(_, count)| count).sum::<usize>() - report.findings().count();
        let hidden = if hidden > 0 { format!(" ({hidden} milder not shown)") } else { String::new() };
        return (format!("{node}: {}{hidden}", told.join(", ")), Ink::Bad(*worst));
    }
    match report.result() {
        CheckResult::NotChecked => {
            (format!("{node}: could not be checked; see below what failed."), Ink::Bad(Severity::Critical))
        }
        _ if report.board.unknown.is_empty() => (format!("{node}: no port conflicts."), Ink::Good),
        _ => (format!("{node}: no port conflicts in what could be seen."), Ink::Heading),
    }
}
