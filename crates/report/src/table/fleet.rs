//! Many nodes as text: the findings with their nodes, the agents that could not be queried, and the scope of the
//! report.

use std::io::{self, Write};

use super::{
    super::{
        Fleet, Style,
        fleet::{Reason, listed},
        names::{counted, first_nodes},
        outcome::{NOT_ALL_READ, Open, not_judged},
        terminal::Ink,
        topic::reason_words,
    },
    one_node::severities,
    page::{ListedFinding, OnNodes, Page},
};
use portreeve_facts::Source;
use portreeve_rules::findings::Severity;

const LABEL: usize = 20;
const REASONS: usize = 12;

/// Writes the table of many nodes. An incident is reported once, with its nodes. With `wide`, all details are written.
///
/// # Errors
/// Fails if the writer fails.
pub fn write_fleet_table(fleet: &Fleet, wide: bool, style: &Style, out: &mut dyn Write) -> io::Result<()> {
    Page { style, wide, out }.fleet(fleet)
}

/// Writes only the rows of the list, for scripts.
///
/// # Errors
/// Fails if the writer fails.
pub fn write_fleet_rows(fleet: &Fleet, style: &Style, out: &mut dyn Write) -> io::Result<()> {
    Page { style, wide: true, out }.rows(&reported(fleet), false)
}

impl Page<'_> {
    fn fleet(&mut self, fleet: &Fleet) -> io::Result<()> {
        let reported = reported(fleet);
        if let Some(partial) = fleet.partial_words() {
            self.line(0, Ink::Bad(Severity::Warning), &partial)?;
        }
        let (headline, ink) = headline(fleet, &reported);
        self.line(0, ink, &headline)?;
        self.write_list(&reported)?;
        self.silent(fleet)?;
        self.unseen(fleet)?;
        self.blank()?;
        let agents = listed(fleet.agents, &fleet.agent_namespace);
        let scope = format!("This report is about {agents}. Other nodes are not included.");
        self.paragraph(0, Ink::Faint, &scope)
    }

    fn silent(&mut self, fleet: &Fleet) -> io::Result<()> {
        if fleet.silent.is_empty() {
            return Ok(());
        }
        self.blank()?;
        self.line(0, Ink::Heading, "Could not be queried")?;
        let reasons: Vec<&Reason> = fleet.silent.iter().collect();
        self.reasons_of(&reasons, fleet.agents, |reason| {
            let likewise = match reason.count {
                1 => String::new(),
                count => format!(", and likewise {} more", count - 1),
            };
            let of = if reason.pod.is_empty() { String::new() } else { format!(" (pod {}{likewise})", reason.pod) };
            format!("{}: {}{of}", reason_words(reason.why), reason.detail)
        })
    }

    /// Writes the unread inputs. The compact table shows only failures.
    fn unseen(&mut self, fleet: &Fleet) -> io::Result<()> {
        let wide = self.wide;
        let (reported, others): (Vec<&Reason>, Vec<&Reason>) =
            fleet.unseen.iter().partition(|reason| wide || reason.is_failure);
        if reported.is_empty() && others.is_empty() {
            return Ok(());
        }
        self.blank()?;
        self.line(0, Ink::Heading, "Not read on these nodes")?;
        self.reasons_of(&reported, fleet.agents, |reason| format!("{}: {}", reason_words(reason.why), reason.detail))?;
        let others: usize = others.iter().map(|reason| reason.count).sum();
        let line = match others {
            0 => return Ok(()),
            1 => "1 less important input was not read; -o wide lists it".to_owned(),
            others => format!("{others} less important inputs were not read; -o wide lists them"),
        };
        self.line(2, Ink::Faint, &line)?;
        Ok(())
    }

    fn reasons_of(&mut self, reasons: &[&Reason], agents: usize, words: impl Fn(&Reason) -> String) -> io::Result<()> {
        let shown = if self.wide { reasons.len() } else { REASONS.min(reasons.len()) };
        for reason in &reasons[..shown] {
            let lines = self.wrapped(Ink::Plain, &words(reason), LABEL + 4);
            let names = first_nodes(&reason.nodes, self.named());
            if reason.nodes.len() == 1 {
                self.labelled(&names, LABEL, &lines)?;
            } else {
                self.line(2, Ink::Faint, &format!("{} of {agents} agents: {names}", reason.nodes.len()))?;
                self.labelled("", LABEL, &lines)?;
            }
        }
        if shown < reasons.len() {
            self.line(2, Ink::Faint, &format!("{} more reasons, with -o wide", reasons.len() - shown))?;
        }
        Ok(())
    }
}

fn reported(fleet: &Fleet) -> Vec<ListedFinding<'_>> {
    let listed = |incident| OnNodes { incident, among: fleet.answered_nodes };
    fleet.incidents.iter().map(|it| ListedFinding { problem: &it.problem, on: Some(listed(it)) }).collect()
}

fn headline(fleet: &Fleet, reported: &[ListedFinding<'_>]) -> (String, Ink) {
    let queried = fleet.answered;
    let silent = match fleet.agents - queried {
        0 => String::new(),
        silent => format!(", {silent} could not be queried"),
    };
    let hidden = if fleet.hidden > 0 { format!(" ({} not shown)", fleet.hidden) } else { String::new() };
    let oldest = fleet.oldest_in_words().map(|it| format!(", {it}")).unwrap_or_default();
    let agents = format!("{} queried{silent}{oldest}", counted(queried, "agent"));
    // The kubectl plugin lacks the flags of a scan, so the text does not suggest flags.
    let open = |which: fn(&Reason) -> bool| {
        let reasons = fleet.unseen.iter().filter(|it| it.source != Source::Agent && which(it));
        let open = |it: &Reason| Open { ceiling: None, claims: it.claims, source: it.source, why: it.why };
        not_judged(reasons.map(open), false).map(|open| format!("; {open}"))
    };
    let open = open(|it| it.is_failure).or_else(|| open(|it| it.claims > 0));
    let count = |severity: Severity| reported.iter().filter(|it| it.problem.severity == severity).count();
    match severities(count) {
        Some((words, worst)) => {
            let some = || if fleet.is_whole() { String::new() } else { "; some ports or rules not judged".to_owned() };
            let open = open.unwrap_or_else(some);
            (format!("{words}{hidden}; {agents}{open}"), Ink::Bad(worst))
        }
        None if fleet.agents == 0 => ("Nothing is known: no agent is listed.".to_owned(), Ink::Bad(Severity::Critical)),
        None if fleet.answered == 0 => {
            let agents = if fleet.agents == 1 {
                "the one agent did not answer"
            } else {
                &format!("none of {} agents answered", fleet.agents)
            };
            (format!("Nothing is known: {agents}."), Ink::Bad(Severity::Critical))
        }
        None if !fleet.is_whole() => (
            format!(
                "not checked: no port conflicts found{hidden}, but some ports or rules were not judged; {agents}{}",
                open.unwrap_or_default()
            ),
            Ink::Bad(Severity::Critical),
        ),
        None if fleet.unseen.iter().any(|reason| reason.of_rule) => {
            let open = open.unwrap_or_default();
            (format!("no port conflicts found{hidden}{NOT_ALL_READ}; {agents}{open}"), Ink::Heading)
        }
        None => (format!("no port conflicts{hidden}; {agents}"), Ink::Good),
    }
}
