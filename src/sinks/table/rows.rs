//! The list: one line a finding.

use std::io;

use super::{
    super::terminal::{Ink, shorten, tidy},
    page::{ListedFinding, Page},
};
use crate::{facts::Protocol, findings::Vantage};

const HEADINGS: [&str; 6] = ["SEVERITY", "RULE", "SUBJECT", "PORT", "AFFECTS", "NODES"];
const SUBJECT: usize = 2;
/// The narrowest a subject is made to keep a row in the terminal.
const NARROWEST_SUBJECT: usize = 20;

impl Page<'_> {
    pub(super) fn rows(&mut self, reported: &[ListedFinding<'_>], headings: bool) -> io::Result<()> {
        // Of one node the last column says nothing.
        let columns = if reported.iter().any(|it| !it.nodes.is_empty()) { HEADINGS.len() } else { HEADINGS.len() - 1 };
        let mut cells: Vec<Vec<String>> = reported.iter().map(|it| self.row(it, columns)).collect();
        let widest = |column: usize| {
            let heading = if headings { HEADINGS[column].len() } else { 0 };
            cells.iter().map(|row| row[column].chars().count()).max().unwrap_or(0).max(heading)
        };
        let mut widths: Vec<usize> = (0..columns).map(widest).collect();
        if !self.wide {
            let others: usize = widths.iter().sum::<usize>() - widths[SUBJECT] + 2 * (widths.len() - 1);
            let room = self.style.width.saturating_sub(others).max(NARROWEST_SUBJECT);
            widths[SUBJECT] = widths[SUBJECT].min(room);
            for row in &mut cells {
                row[SUBJECT] = shorten(&row[SUBJECT], widths[SUBJECT]);
            }
        }
        if headings {
            let line = HEADINGS.iter().zip(&widths).map(|(heading, width)| format!("{heading:width$}"));
            self.line(0, Ink::Heading, line.collect::<Vec<_>>().join("  ").trim_end())?;
        }
        for (ListedFinding { problem, .. }, row) in reported.iter().zip(&cells) {
            let mut line = self.style.paint(Ink::Bad(problem.severity), &format!("{:1$}", row[0], widths[0]));
            for (cell, width) in row.iter().zip(&widths).skip(1) {
                line.push_str(&format!("  {cell:width$}"));
            }
            writeln!(self.out, "{}", line.trim_end())?;
        }
        Ok(())
    }

    fn row(&self, ListedFinding { problem, nodes }: &ListedFinding<'_>, columns: usize) -> Vec<String> {
        let affects: Vec<&str> = problem.affects.iter().copied().map(Vantage::name).collect();
        let mut cells = vec![
            problem.severity.to_string(),
            problem.rule.clone(),
            tidy(&problem.subject.to_string()),
            port(problem.port, problem.protocol).unwrap_or_else(|| "-".to_owned()),
            if affects.is_empty() { "-".to_owned() } else { affects.join(",") },
            self.names(nodes),
        ];
        cells.truncate(columns);
        cells
    }
}

/// `30080/tcp`, or as much of it as the finding is about.
pub(in crate::sinks) fn port(port: Option<u16>, protocol: Option<Protocol>) -> Option<String> {
    let port = port?;
    Some(match protocol {
        Some(protocol) => format!("{port}/{protocol}"),
        None => port.to_string(),
    })
}
