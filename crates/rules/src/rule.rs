//! What a rule is.

use super::{Limits, socket_needs::SocketNeed};
use crate::findings::{Judgements, RuleId, Severity};
use portreeve_dataplane::Round;
use portreeve_facts::Source;

/// One rule: a value, not a trait.
#[derive(Debug)]
pub struct Rule {
    /// Its name.
    pub id: RuleId,
    /// Its title: what is wrong, in a few words.
    pub title: &'static str,
    /// The worst severity that it reports.
    pub ceiling: Severity,
    /// The facts without which it cannot judge at all.
    pub needs: &'static [Source],
    /// What else it looks at of [`super::SELDOM`].
    pub uses: &'static [Source],
    /// What it needs to know of sockets, and on which ports.
    pub socket_needs: &'static [SocketNeed],
    /// How long a problem must last before an agent reports it.
    pub patience: Patience,
    /// Its own source file, whose head is its documentation page.
    pub page: &'static str,
    /// The rule itself.
    pub check: fn(&Round<'_>, &Limits) -> Judgements,
}

impl Rule {
    /// Whether it looks at these facts, as far as they are among those that few rules look at.
    pub fn looks_at(&self, source: Source) -> bool {
        self.needs.contains(&source) || self.uses.contains(&source)
    }

    /// Its documentation in Markdown: the head of its source file.
    pub fn documentation(&self) -> String {
        Self::head(self.page)
    }

    /// The documentation at the head of a source file.
    pub fn head(page: &str) -> String {
        page.lines().map_while(|line| line.strip_prefix("//!")).fold(String::new(), |mut text, line| {
            text.push_str(line.strip_prefix(' ').unwrap_or(line));
            text.push('\n');
            text
        })
    }
}

/// How long a problem must last before an agent reports it. `check` has no patience: one look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patience {
    /// Two consecutive scans: creation, roll-out and restarts pass by.
    TwoScans,
    /// One: the problem is permanent state.
    One,
}
