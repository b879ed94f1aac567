//! Many nodes for a person: what is wrong and where, who could not be asked, and of whom this speaks.

use std::{
    collections::BTreeMap,
    io::{self, Write},
};

use super::{
    super::{
        Fleet, Style,
        findings_document::{Problem, Unknown},
        fleet::{is_failure, listed, worst_first},
        terminal::Ink,
    },
    not_read::reason_words,
    page::{ListedFinding, Page},
};
use crate::{
    facts::Protocol,
    findings::{Severity, Subject, Vantage},
};

/// Columns of the names at the left.
const LABEL: usize = 20;

/// Writes the compact table of many nodes. What several agents tell alike is reported once.
///
/// # Errors
/// When the writer fails.
pub fn write_fleet_table(fleet: &Fleet, style: &Style, out: &mut dyn Write) -> io::Result<()> {
    Page { style, wide: false, out }.fleet(fleet)
}

/// Writes the table with everything that is known.
///
/// # Errors
/// When the writer fails.
pub fn write_fleet_wide(fleet: &Fleet, style: &Style, out: &mut dyn Write) -> io::Result<()> {
    Page { style, wide: true, out }.fleet(fleet)
}

/// Writes the rows of the list alone, for scripts.
///
/// # Errors
/// When the writer fails.
pub fn write_fleet_rows(fleet: &Fleet, style: &Style, out: &mut dyn Write) -> io::Result<()> {
    Page { style, wide: true, out }.rows(&reported(fleet), false)
}

impl Page<'_> {
    fn fleet(&mut self, fleet: &Fleet) -> io::Result<()> {
        let reported = reported(fleet);
        let (headline, ink) = headline(fleet, &reported);
        self.line(0, ink, &headline)?;
        self.write_list(&reported)?;
        self.silent(fleet)?;
        self.unseen(fleet)?;
        self.blank()?;
        let agents = listed(fleet.nodes.len(), &fleet.agent_namespace);
        let scope = format!("This speaks of {agents}. Nodes without one cannot be known from here.");
        for (ink, line) in self.wrapped(Ink::Faint, &scope, 0) {
            self.line(0, ink, &line)?;
        }
        Ok(())
    }

    fn silent(&mut self, fleet: &Fleet) -> io::Result<()> {
        if fleet.without_answer().next().is_none() {
            return Ok(());
        }
        self.blank()?;
        self.line(0, Ink::Heading, "Could not be asked")?;
        for node in fleet.without_answer() {
            let name = if node.node.is_empty() { "no node" } else { &node.node };
            let why =
                node.unknown.iter().map(|it| format!("{}: {} (pod {})", reason_words(it.why), it.detail, node.pod));
            let lines: Vec<_> = why.flat_map(|why| self.wrapped(Ink::Plain, &why, LABEL + 4)).collect();
            self.labelled(2, name, LABEL, &lines)?;
        }
        Ok(())
    }

    /// What agents could not see themselves: all of it where everything is wanted, else what should not be.
    fn unseen(&mut self, fleet: &Fleet) -> io::Result<()> {
        let mut reported: BTreeMap<(&str, &str), Vec<&str>> = BTreeMap::new();
        let mut others = 0;
        for node in fleet.nodes.iter().filter(|node| node.findings.is_some()) {
            for unknown @ Unknown { why, detail, .. } in &node.unknown {
                if self.wide || is_failure(unknown) {
                    let nodes = reported.entry((reason_words(*why), detail)).or_default();
                    if nodes.last() != Some(&node.node.as_str()) {
                        nodes.push(&node.node);
                    }
                } else {
                    others += 1;
                }
            }
        }
        if reported.is_empty() && others == 0 {
            return Ok(());
        }
        self.blank()?;
        self.line(0, Ink::Heading, "Could not be seen there")?;
        for ((why, detail), nodes) in reported {
            let lines = self.wrapped(Ink::Plain, &format!("{why}: {detail}"), LABEL + 4);
            self.labelled(2, &self.names(&nodes), LABEL, &lines)?;
        }
        if others > 0 {
            self.line(2, Ink::Faint, &format!("{others} lesser things, with -o wide"))?;
        }
        Ok(())
    }
}

/// Every finding, with the nodes whose agents tell it in the same words.
fn reported(fleet: &Fleet) -> Vec<ListedFinding<'_>> {
    type Words<'a> = (Severity, &'a str, &'a Subject, Option<u16>, Option<Protocol>, &'a [Vantage], &'a str);
    fn words(problem: &Problem) -> Words<'_> {
        let Problem { rule, severity, subject, port, protocol, summary, affects, .. } = problem;
        (*severity, rule, subject, *port, *protocol, affects, summary)
    }
    let mut alike: BTreeMap<Words<'_>, ListedFinding<'_>> = BTreeMap::new();
    for node in &fleet.nodes {
        for problem in node.findings.iter().flatten() {
            let reported = alike.entry(words(problem)).or_insert_with(|| ListedFinding { problem, nodes: Vec::new() });
            reported.nodes.push(&node.node);
        }
    }
    let common = fleet.cluster.iter();
    let common =
        common.map(|it| ListedFinding { problem: &it.problem, nodes: it.nodes.iter().map(String::as_str).collect() });
    let mut reported: Vec<ListedFinding<'_>> = common.chain(alike.into_values()).collect();
    reported.sort_by(|a, b| worst_first(a.problem, b.problem));
    reported
}

fn headline(fleet: &Fleet, reported: &[ListedFinding<'_>]) -> (String, Ink) {
    let silent = fleet.without_answer().count();
    let asked = fleet.nodes.len() - silent;
    let silent = if silent > 0 { format!(", {silent} could not be asked") } else { String::new() };
    let hidden = if fleet.hidden > 0 { format!(" ({} not shown)", fleet.hidden) } else { String::new() };
    let asked = format!("{asked} agent{} asked{silent}", if asked == 1 { "" } else { "s" });
    let count = |severity: &Severity| reported.iter().filter(|it| it.problem.severity == *severity).count();
    let counts: Vec<(Severity, usize)> =
        Severity::ALL.into_iter().rev().map(|it| (it, count(&it))).filter(|(_, count)| *count > 0).collect();
    match counts.first() {
        Some((worst, _)) => {
            let words: Vec<String> = counts.iter().map(|(severity, count)| format!("{count} {severity}")).collect();
            (format!("{}{hidden}; {asked}", words.join(", ")), Ink::Bad(*worst))
        }
        None if fleet.nodes.is_empty() => {
            ("Nothing is known: no agent is listed.".to_owned(), Ink::Bad(Severity::Critical))
        }
        None if !fleet.is_whole() => {
            (format!("no port conflicts in what could be asked{hidden}; {asked}"), Ink::Bad(Severity::Critical))
        }
        None => (format!("no port conflicts{hidden}; {asked}"), Ink::Good),
    }
}
