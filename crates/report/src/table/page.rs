//! Builds a page of text: lines, labels, and text wrapped to the terminal.

use std::io::{self, Write};

use super::super::{
    Style,
    findings_document::Problem,
    fleet::Incident,
    names::{NAMED, first_nodes},
    terminal::{Ink, tidy, wrap},
};

pub(super) struct Page<'a> {
    pub(super) style: &'a Style,
    pub(super) wide: bool,
    pub(super) out: &'a mut dyn Write,
}

pub(super) struct ListedFinding<'a> {
    pub(super) problem: &'a Problem,
    /// The nodes with the finding. `None` on a page about one node.
    pub(super) on: Option<OnNodes<'a>>,
}

/// The nodes with an incident, and the number of nodes whose agents answered.
pub(super) struct OnNodes<'a> {
    pub(super) incident: &'a Incident,
    pub(super) among: usize,
}

impl OnNodes<'_> {
    /// The number of nodes and at most `shown` names: `31 of 120 nodes: n1, n2, n3 and 28 more`. If only one node
    /// answered, the text is its name.
    pub(super) fn words(&self, shown: usize) -> String {
        let nodes = &self.incident.nodes;
        let names = first_nodes(nodes, shown);
        if self.among <= 1 { names } else { format!("{} of {} nodes: {names}", nodes.len(), self.among) }
    }
}

impl Page<'_> {
    pub(super) fn named(&self) -> usize {
        if self.wide { usize::MAX } else { NAMED }
    }

    /// Writes one line, which is neither wrapped nor cut.
    pub(super) fn line(&mut self, indent: usize, ink: Ink, text: &str) -> io::Result<()> {
        writeln!(self.out, "{:indent$}{}", "", self.style.paint(ink, text))
    }

    pub(super) fn blank(&mut self) -> io::Result<()> {
        writeln!(self.out)
    }

    /// Writes a text in lines that fit into the terminal.
    pub(super) fn paragraph(&mut self, indent: usize, ink: Ink, text: &str) -> io::Result<()> {
        self.wrapped(ink, text, indent).into_iter().try_for_each(|(ink, line)| self.line(indent, ink, &line))
    }

    /// Writes lines in a column. The label is at the left of the first line.
    pub(super) fn labelled(&mut self, label: &str, room: usize, lines: &[(Ink, String)]) -> io::Result<()> {
        for (index, (ink, line)) in lines.iter().enumerate() {
            let label = if index == 0 { label } else { "" };
            let pad = room.saturating_sub(label.chars().count());
            let label = self.style.paint(Ink::Faint, label);
            writeln!(self.out, "  {label}{:pad$}  {}", "", self.style.paint(*ink, line))?;
        }
        Ok(())
    }

    pub(super) fn wrapped(&self, ink: Ink, text: &str, taken: usize) -> Vec<(Ink, String)> {
        let width = self.style.width.min(120).saturating_sub(taken).max(30);
        wrap(&tidy(text), width).into_iter().map(|line| (ink, line)).collect()
    }
}
