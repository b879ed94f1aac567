//! One finding, explained: what, evidence, who is affected, what to do.

use std::io;

use super::{
    super::terminal::{Ink, is_command, tidy},
    page::{ListedFinding, Page},
    rows::port,
};
use crate::{
    findings::{Severity, Vantage},
    sinks::findings_document::{Problem, Value},
};

/// Columns of the labels at the left.
const LABEL: usize = 8;
/// How many values the compact table shows.
const VALUES: usize = 6;
/// The widest name that others are aligned with.
const WIDEST_NAME: usize = 26;

impl Page<'_> {
    pub(super) fn write_finding(&mut self, ListedFinding { problem, nodes }: &ListedFinding<'_>) -> io::Result<()> {
        let Problem { rule, severity, summary, evidence, affects, remedy, .. } = problem;
        let mut title = tidy(&problem.subject.to_string());
        if let Some(port) = port(problem.port, problem.protocol) {
            title.push_str(&format!(", port {port}"));
        }
        if !nodes.is_empty() {
            title.push_str(&format!(", on {}", self.names(nodes)));
        }
        self.blank()?;
        let word = self.style.paint(Ink::Bad(*severity), &severity.name().to_uppercase());
        writeln!(self.out, "{word}  {}", self.style.paint(Ink::Heading, &title))?;
        for (ink, line) in self.wrapped(Ink::Plain, summary, 2) {
            self.line(2, ink, &line)?;
        }
        self.blank()?;
        if self.wide || *severity > Severity::Info {
            self.values(evidence)?;
        }
        if !affects.is_empty() {
            let who: Vec<String> = affects.iter().map(Vantage::to_string).collect();
            self.labelled(2, "Affects", LABEL, &[(Ink::Plain, who.join(", "))])?;
        }
        let remedy: Vec<(Ink, String)> = remedy.iter().flat_map(|remedy| self.remedy(remedy)).collect();
        self.labelled(2, "Remedy", LABEL, &remedy)?;
        let explain = format!("{} rules explain {}", self.style.program, rule);
        self.labelled(2, "Why", LABEL, &[(Ink::Faint, explain)])
    }

    fn values(&mut self, values: &[Value]) -> io::Result<()> {
        let shown = if self.wide { values.len() } else { VALUES.min(values.len()) };
        let widest = values.iter().take(shown).map(|it| it.name.chars().count()).max().unwrap_or(0);
        let widest = widest.min(WIDEST_NAME);
        let mut lines = Vec::new();
        let mut before = "";
        for Value { name, value } in values.iter().take(shown) {
            let label = if name == before { "" } else { name };
            before = name;
            for (index, (ink, line)) in self.wrapped(Ink::Plain, value, LABEL + widest + 6).into_iter().enumerate() {
                let label = if index == 0 { label } else { "" };
                lines.push((ink, format!("{label:widest$}  {line}")));
            }
        }
        if shown < values.len() {
            lines.push((Ink::Faint, format!("{} more with -o wide", values.len() - shown)));
        }
        self.labelled(2, "Evidence", LABEL, &lines)
    }

    fn remedy(&self, remedy: &str) -> Vec<(Ink, String)> {
        let remedy = tidy(remedy);
        if is_command(&remedy) { vec![(Ink::Command, remedy)] } else { self.wrapped(Ink::Plain, &remedy, LABEL + 4) }
    }
}
