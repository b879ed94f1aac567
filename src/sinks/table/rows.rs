//! The list: one line a finding.

use std::io;

use super::{
    super::{
        Report,
        paint::{Ink, shorten, tidy},
    },
    Page,
};
use crate::findings::{Finding, Vantage};

const HEADINGS: [&str; 5] = ["SEVERITY", "RULE", "SUBJECT", "PORT", "AFFECTS"];
const SUBJECT: usize = 2;
/// The narrowest a subject is made to keep a row in the terminal.
const NARROWEST_SUBJECT: usize = 20;

impl Page<'_> {
    pub(super) fn rows(&mut self, report: &Report<'_>, headings: bool) -> io::Result<()> {
        let findings: Vec<&Finding> = report.findings().collect();
        let mut cells: Vec<[String; 5]> = findings.iter().map(|finding| row(finding)).collect();
        let mut widths: [usize; 5] = std::array::from_fn(|column| {
            let heading = if headings { HEADINGS[column].len() } else { 0 };
            cells.iter().map(|row| row[column].chars().count()).max().unwrap_or(0).max(heading)
        });
        if !self.wide {
            let others: usize = widths.iter().sum::<usize>() - widths[SUBJECT] + 2 * (widths.len() - 1);
            let room = self.style.width.saturating_sub(others).max(NARROWEST_SUBJECT);
            widths[SUBJECT] = widths[SUBJECT].min(room);
            for row in &mut cells {
                row[SUBJECT] = shorten(&row[SUBJECT], widths[SUBJECT]);
            }
        }
        if headings {
            let line = HEADINGS.iter().zip(widths).map(|(heading, width)| format!("{heading:width$}"));
            self.line(0, Ink::Heading, line.collect::<Vec<_>>().join("  ").trim_end())?;
        }
        for (finding, row) in findings.iter().zip(&cells) {
            let mut line = self.style.paint(Ink::Bad(finding.evidence.severity), &format!("{:1$}", row[0], widths[0]));
            for (cell, width) in row.iter().zip(widths).skip(1) {
                line.push_str(&format!("  {cell:width$}"));
            }
            writeln!(self.out, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

fn row(finding: &Finding) -> [String; 5] {
    let affects: Vec<&str> = finding.evidence.affects.iter().copied().map(Vantage::name).collect();
    [
        finding.evidence.severity.to_string(),
        finding.key.rule.to_string(),
        tidy(&finding.key.subject.to_string()),
        port(finding).unwrap_or_else(|| "-".to_owned()),
        if affects.is_empty() { "-".to_owned() } else { affects.join(",") },
    ]
}

/// `30080/tcp`, or as much of it as the finding is about.
pub(in crate::sinks) fn port(finding: &Finding) -> Option<String> {
    let port = finding.key.port?;
    Some(match finding.key.protocol {
        Some(protocol) => format!("{port}/{protocol}"),
        None => port.to_string(),
    })
}
