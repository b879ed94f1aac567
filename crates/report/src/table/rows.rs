//! Writes the list: one line for each finding.

use std::io;

use super::{
    super::terminal::{Ink, shorten, tidy},
    page::{ListedFinding, OnNodes, Page},
};
use crate::{findings_document::Problem, fleet::Incident, likeness::controlled};
use portreeve_facts::Protocol;
use portreeve_rules::findings::{Subject, SubjectKind, Vantage};

const HEADINGS: [&str; 6] = ["SEVERITY", "RULE", "SUBJECT", "PORT", "AFFECTS", "NODES"];
const SUBJECT: usize = 2;
/// A subject is cut so that the row fits the terminal. A cut subject has at least this width, in characters.
const NARROWEST_SUBJECT: usize = 20;

impl Page<'_> {
    pub(super) fn rows(&mut self, reported: &[ListedFinding<'_>], headings: bool) -> io::Result<()> {
        // A table about one node has no column of nodes.
        let columns = if reported.iter().any(|it| it.on.is_some()) { HEADINGS.len() } else { HEADINGS.len() - 1 };
        let mut cells: Vec<Vec<String>> = reported.iter().map(|it| self.row(it, columns, headings)).collect();
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

    fn row(&self, ListedFinding { problem, on }: &ListedFinding<'_>, columns: usize, headings: bool) -> Vec<String> {
        let affects: Vec<&str> = problem.affects.iter().copied().map(Vantage::name).collect();
        let mut cells = vec![
            problem.severity.to_string(),
            problem.name(),
            subject(problem, on.as_ref()),
            port(problem.port, problem.protocol).unwrap_or_else(|| "-".to_owned()),
            if affects.is_empty() { "-".to_owned() } else { affects.join(",") },
            match on {
                None => String::new(),
                // Without headings, the output is for a script, which splits the names at the commas.
                Some(on) if !headings => on.incident.nodes.join(","),
                Some(on) => on.words(self.named()),
            },
        ];
        cells.truncate(columns);
        cells
    }
}

/// The subject of a finding. The subject of an incident may stand for several objects: each Node itself, or pods of one
/// controller (`Pod shop/web-*`).
pub(super) fn subject(problem: &Problem, on: Option<&OnNodes<'_>>) -> String {
    let several = on.is_some_and(|OnNodes { incident: Incident { subjects, .. }, .. }| subjects.len() > 1);
    subject_in_words(&problem.subject, several)
}

pub(super) fn subject_in_words(own: &Subject, several: bool) -> String {
    let text = match own {
        Subject { kind: SubjectKind::Node, .. } if several => "Node (each of them)".to_owned(),
        Subject { kind: SubjectKind::Pod, name, .. } if several => {
            let common = format!("{}-*", controlled(name).unwrap_or(name));
            Subject { name: common, ..own.clone() }.to_string()
        }
        _ => own.to_string(),
    };
    tidy(&text)
}

/// `30080/tcp`, or `30080` if the finding has no protocol. `None` if the finding has no port.
pub(crate) fn port(port: Option<u16>, protocol: Option<Protocol>) -> Option<String> {
    let port = port?;
    Some(match protocol {
        Some(protocol) => format!("{port}/{protocol}"),
        None => port.to_string(),
    })
}
