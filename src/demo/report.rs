//! Prints the setup and the findings, for people.

use std::io::{self, Write};

use super::{
    incident::{Expected, Incident, Steps},
    observed::{ObservedReport, is},
};
use portreeve_report::{Ink, Problem, Style, tidy, wrap};
use portreeve_rules::findings::Severity;

pub(super) fn opening(out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "Each incident has its own network namespaces, which are deleted afterwards. Portreeve reads only")?;
    writeln!(out, "the node in these namespaces and a manifest: portreeve check --services cluster.yaml\n")
}

pub(super) struct IncidentReport<'a> {
    pub(super) incident: &'a Incident,
    pub(super) steps: &'a Steps,
    pub(super) look: &'a Result<ObservedReport, String>,
    pub(super) style: &'a Style,
}

impl IncidentReport<'_> {
    pub(super) fn is_found(&self) -> bool {
        self.look.as_ref().is_ok_and(|look| self.missing(look).next().is_none())
    }

    pub(super) fn write(&self, number: usize, out: &mut dyn Write) -> io::Result<()> {
        let Self { incident, steps, look, style } = self;
        writeln!(out, "{number}. {} ({})", style.paint(Ink::Heading, incident.title), incident.name)?;
        writeln!(out, "   set up")?;
        let width = incident.steps.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
        for (name, description) in incident.steps {
            let left_out = if steps.has(name) { "" } else { "left out: " };
            let name = style.paint(Ink::Faint, &format!("{name:width$}"));
            writeln!(out, "     {name}  {left_out}{description}")?;
        }
        match look {
            Ok(look) => self.write_look(look, out)?,
            Err(complaint) => {
                writeln!(out, "   could not be made")?;
                self.write_words(5, complaint, out)?;
            }
        }
        let verdict = match self.is_found() {
            true => style.paint(Ink::Good, "ok"),
            false => style.paint(Ink::Bad(Severity::Critical), "NOT FOUND"),
        };
        writeln!(out, "   {verdict}\n")
    }

    fn missing<'a>(&'a self, look: &'a ObservedReport) -> impl Iterator<Item = &'a Expected> {
        self.incident.expected.iter().filter(|expected| look.find(expected).is_none())
    }

    fn write_look(&self, look: &ObservedReport, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "   found")?;
        let is_expected = |found: &&Problem| self.incident.expected.iter().any(|expected| is(found, expected));
        for found in look.findings.iter().filter(is_expected) {
            self.write_finding(found, out)?;
        }
        for found in look.findings.iter().filter(|found| !is_expected(found)) {
            let line = format!("besides: {} {}, {}", found.severity, found.name(), found.subject);
            writeln!(out, "     {}", self.style.paint(Ink::Faint, &tidy(&line)))?;
        }
        for expected in self.missing(look) {
            let Expected { rule, severity, subject, evidence, .. } = expected;
            writeln!(out, "     missing: {severity} {rule}, {subject}")?;
            for (name, value) in *evidence {
                writeln!(out, "       with {name} = {value}")?;
            }
            if let Some(why) = look.why_unknown(rule) {
                self.write_words(7, &format!("unknown: {why}"), out)?;
            }
        }
        Ok(())
    }

    fn write_finding(&self, found: &Problem, out: &mut dyn Write) -> io::Result<()> {
        let severity = self.style.paint(Ink::Bad(found.severity), found.severity.name());
        writeln!(out, "     {severity} {}", tidy(&format!("{}, {}", found.name(), found.subject)))?;
        self.write_words(7, &found.summary, out)?;
        for remedy in &found.remedy {
            writeln!(out, "       -> {}", self.style.paint(Ink::Command, &tidy(remedy)))?;
        }
        Ok(())
    }

    fn write_words(&self, indent: usize, words: &str, out: &mut dyn Write) -> io::Result<()> {
        for line in wrap(&tidy(words), self.style.width.saturating_sub(indent)) {
            writeln!(out, "{:indent$}{line}", "")?;
        }
        Ok(())
    }
}
