//! The findings: a row for each, and what each of the worst needs to be acted on.

use std::io;

use super::{
    super::terminal::Ink,
    page::{ListedFinding, Page},
};

/// How many findings the compact table explains; it lists all of them.
const EXPLAINED: usize = 20;

impl Page<'_> {
    /// The list, and what each finding needs to be acted on.
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
            let more = format!("{} more findings are explained with -o wide.", reported.len() - explained);
            self.blank()?;
            self.line(0, Ink::Faint, &more)?;
        }
        Ok(())
    }
}
