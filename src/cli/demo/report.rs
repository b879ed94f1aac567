//! What was set up and what was found, side by side, for people.

use std::io::{self, Write};

use super::{
    incidents::{Incident, Steps},
    look::{Found, Look},
};
use crate::{facts::text::clean, findings::Severity};

const WIDTH: usize = 100;
const SENTENCE: usize = 1024;

/// The report of a demo, told as it goes on.
pub(super) struct Report<W> {
    out: W,
    paint: bool,
    told: usize,
    found: usize,
}

impl<W: Write> Report<W> {
    /// Begins with what is about to happen.
    pub(super) fn new(mut out: W, paint: bool, incidents: usize) -> io::Result<Self> {
        let (number, each) = if incidents == 1 { ("One incident", "") } else { ("Incidents", ", each") };
        writeln!(out, "{number}{each} in network namespaces that vanish afterwards. Whoever looks gets those and a")?;
        writeln!(out, "manifest, nothing else: portreeve check --services cluster.yaml\n")?;
        Ok(Self { out, paint, told: 0, found: 0 })
    }

    /// One incident: what was set up, and what came of it.
    pub(super) fn incident(
        &mut self,
        incident: &Incident,
        steps: &Steps,
        look: &Result<Look, String>,
    ) -> io::Result<()> {
        self.told += 1;
        let title = self.bold(incident.title);
        writeln!(self.out, "{}. {title} ({})", self.told, incident.name)?;
        writeln!(self.out, "   set up")?;
        let width = incident.steps.iter().map(|step| step.name.len()).max().unwrap_or(0);
        for step in incident.steps {
            let left_out = if steps.has(step) { "" } else { "left out: " };
            writeln!(self.out, "     {:width$}  {left_out}{}", step.name, step.says)?;
        }
        match look {
            Ok(look) => self.look(incident, look),
            Err(complaint) => {
                writeln!(self.out, "   could not be made")?;
                self.paragraph(5, complaint)?;
                self.verdict("1;31", "NOT FOUND")
            }
        }
    }

    /// The sum. Whether every incident was found.
    pub(super) fn end(mut self) -> io::Result<bool> {
        writeln!(self.out, "{} of {} found.", self.found, self.told)?;
        Ok(self.found == self.told)
    }

    fn look(&mut self, incident: &Incident, look: &Look) -> io::Result<()> {
        writeln!(self.out, "   found")?;
        let (wanted, others): (Vec<_>, Vec<_>) =
            look.findings.iter().partition(|found| incident.expected.iter().any(|expected| found.is(expected)));
        for found in wanted {
            self.finding(found)?;
        }
        for found in others {
            let line = format!("and {} {}, {}", found.severity, found.rule, found.subject());
            writeln!(self.out, "     {}", clean(&line, SENTENCE))?;
        }
        let missing: Vec<_> = incident.expected.iter().filter(|expected| look.find(expected).is_none()).collect();
        if missing.is_empty() {
            self.found += 1;
            return self.verdict("32", "ok");
        }
        for expected in missing {
            let evidence = expected.evidence.map(|(name, _)| format!(" with {name}")).unwrap_or_default();
            writeln!(self.out, "     not {} {}, {}{evidence}", expected.severity, expected.rule, expected.subject)?;
            if let Some(why) = look.untold(expected.rule) {
                self.paragraph(7, &format!("could not tell: {why}"))?;
            }
        }
        self.verdict("1;31", "NOT FOUND")
    }

    fn finding(&mut self, found: &Found) -> io::Result<()> {
        let severity = self.painted(colour(found.severity), found.severity.name());
        let about = clean(&format!("{}, {}", found.rule, found.subject()), SENTENCE);
        writeln!(self.out, "     {severity} {about}")?;
        self.paragraph(7, &found.summary)?;
        for remedy in &found.remedy {
            writeln!(self.out, "       -> {}", clean(remedy, SENTENCE))?;
        }
        Ok(())
    }

    fn verdict(&mut self, colour: &str, word: &str) -> io::Result<()> {
        let word = self.painted(colour, word);
        writeln!(self.out, "   {word}\n")
    }

    /// Words, wrapped at [`WIDTH`] columns.
    fn paragraph(&mut self, indent: usize, text: &str) -> io::Result<()> {
        let mut line = String::new();
        for word in clean(text, SENTENCE).split_whitespace() {
            if !line.is_empty() && indent + line.chars().count() + 1 + word.chars().count() > WIDTH {
                writeln!(self.out, "{:indent$}{line}", "")?;
                line.clear();
            }
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(word);
        }
        writeln!(self.out, "{:indent$}{line}", "")
    }

    fn bold(&self, text: &str) -> String {
        self.painted("1", text)
    }

    fn painted(&self, colour: &str, text: &str) -> String {
        if self.paint { format!("\u{1b}[{colour}m{text}\u{1b}[0m") } else { text.to_owned() }
    }
}

fn colour(severity: Severity) -> &'static str {
    match severity {
        Severity::Info => "36",
        Severity::Warning => "33",
        Severity::Critical => "1;31",
    }
}
