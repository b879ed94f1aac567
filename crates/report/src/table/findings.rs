//! Writes the findings: a row for each finding, and details of the worst findings. The details are the problem, the
//! evidence, the affected clients and the remedies.

use std::io;

use super::{
    super::{
        remedies::lines,
        terminal::{Ink, tidy},
    },
    page::{ListedFinding, OnNodes, Page},
    rows::{port, subject},
};
use crate::{
    findings_document::{Problem, Value},
    fleet::Incident,
    names::NAMED,
};
use portreeve_rules::findings::{Severity, StepKind, Vantage};

/// The compact table lists all findings, but explains at most this number of findings.
const EXPLAINED: usize = 20;
const LABEL: usize = 8;
const VALUES: usize = 6;
/// The largest width of the column of names, in characters.
const WIDEST_NAME: usize = 26;

impl Page<'_> {
    pub(super) fn write_list(&mut self, reported: &[ListedFinding<'_>]) -> io::Result<()> {
        if reported.is_empty() {
            return Ok(());
        }
        self.blank()?;
        self.rows(reported, true)?;
        let explained = if self.wide { reported.len() } else { EXPLAINED };
        for it in reported.iter().take(explained) {
            self.write_finding(it)?;
        }
        if reported.len() > explained {
            let more = format!("-o wide explains {} more findings.", reported.len() - explained);
            self.blank()?;
            self.line(0, Ink::Faint, &more)?;
        }
        Ok(())
    }

    fn write_finding(&mut self, ListedFinding { problem, on }: &ListedFinding<'_>) -> io::Result<()> {
        let Problem { rule, severity, summary, evidence, affects, .. } = problem;
        let mut title = subject(problem, on.as_ref());
        if let Some(port) = port(problem.port, problem.protocol) {
            title.push_str(&format!(", port {port}"));
        }
        if let Some(on) = on {
            // The title names only the first nodes. In the wide table, the row of the finding names all nodes.
            title.push_str(&format!(", on {}", on.words(NAMED)));
        }
        self.blank()?;
        let word = self.style.paint(Ink::Bad(*severity), &severity.name().to_uppercase());
        writeln!(self.out, "{word}  {}", self.style.paint(Ink::Heading, &title))?;
        let whose = on.as_ref().filter(|on| !on.incident.same_words);
        let whose = whose.map(|on| format!("On {}: ", on.incident.words_of)).unwrap_or_default();
        self.paragraph(2, Ink::Plain, &format!("{whose}{summary}"))?;
        self.blank()?;
        if self.wide || *severity > Severity::Info {
            self.values(evidence)?;
        }
        if !affects.is_empty() {
            let who: Vec<String> = affects.iter().map(Vantage::to_string).collect();
            self.labelled("Affects", LABEL, &[(Ink::Plain, who.join(", "))])?;
        }
        if let Some(on) = on {
            self.differences(on)?;
        }
        self.remedies(problem)?;
        let explain = format!("{} explain {}", self.style.program, rule);
        self.labelled("Why", LABEL, &[(Ink::Faint, explain)])
    }

    fn differences(&mut self, OnNodes { incident, .. }: &OnNodes<'_>) -> io::Result<()> {
        let Incident { problem, words_of, since_of, nodes, differs, .. } = incident;
        let since = match nodes.len() {
            1 => tidy(&problem.since),
            _ => format!("{}, first on {since_of}", tidy(&problem.since)),
        };
        if !problem.since.is_empty() {
            self.labelled("Since", LABEL, &[(Ink::Plain, since)])?;
        }
        if differs.is_empty() {
            return Ok(());
        }
        let word = |name: &String| match name.as_str() {
            "summary" => "what happens".to_owned(),
            "affects" => "who is affected".to_owned(),
            "remedy" => "the remedy".to_owned(),
            evidence => tidy(evidence),
        };
        let differs: Vec<String> = differs.iter().map(word).collect();
        let differs = format!("on other nodes than {words_of}: {}; -o json has them all", differs.join(", "));
        self.labelled("Differs", LABEL, &self.wrapped(Ink::Plain, &differs, LABEL + 4))
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
        self.labelled("Evidence", LABEL, &lines)
    }

    /// Writes the remedies. Each command has its own line, so that a user can copy the command.
    pub(super) fn remedies(&mut self, problem: &Problem) -> io::Result<()> {
        for (word, step) in lines(&problem.remedies) {
            let label = if word.is_empty() { "Remedy" } else { word };
            let text = match step.kind {
                StepKind::Command => vec![(Ink::Command, tidy(&step.text))],
                StepKind::Advice => self.wrapped(Ink::Plain, &step.text, LABEL + 4),
            };
            self.labelled(label, LABEL, &text)?;
        }
        Ok(())
    }
}
