//! What was measured, built once where it was measured.

use std::fmt;

use super::Severity;
use crate::facts::{Affected, Vantage};

/// One problem, ready to be told. The Event note, the JSON, the table and the tests all read this one value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Evidence {
    /// How bad it is.
    pub severity: Severity,
    /// One sentence. Stable: no pids, no counters, no times.
    pub summary: String,
    /// Name and value, in the order in which a person wants them; a name may come again with another value.
    pub values: Vec<(&'static str, String)>,
    /// Who loses.
    pub affects: Affected,
    /// What to type or to change, most direct first.
    pub remedy: Vec<String>,
}

impl Evidence {
    /// A problem in one sentence.
    pub fn new(severity: Severity, summary: impl Into<String>) -> Self {
        Self { severity, summary: summary.into(), values: Vec::new(), affects: Affected::new(), remedy: Vec::new() }
    }

    /// Whether it is told in the same words: severity, sentence and remedy, whatever the values.
    pub fn says_the_same_as(&self, other: &Self) -> bool {
        (self.severity, &self.summary, &self.remedy) == (other.severity, &other.summary, &other.remedy)
    }

    /// Adds a value.
    #[must_use]
    pub fn value(mut self, name: &'static str, value: impl fmt::Display) -> Self {
        self.values.push((name, value.to_string()));
        self
    }

    /// Counts what a list of evidence leaves out: `and 3 more`. Adds nothing where it is complete.
    #[must_use]
    pub fn and_more(self, name: &'static str, all: usize, listed: usize) -> Self {
        match all.saturating_sub(listed) {
            0 => self,
            more => self.value(name, format_args!("and {more} more")),
        }
    }

    /// Says who loses.
    #[must_use]
    pub fn affects(mut self, vantages: impl IntoIterator<Item = Vantage>) -> Self {
        self.affects.extend(vantages);
        self
    }

    /// Adds a remedy.
    #[must_use]
    pub fn remedy(mut self, remedy: impl Into<String>) -> Self {
        self.remedy.push(remedy.into());
        self
    }

    /// Takes in another problem of the same subject, port and protocol: the worse one keeps its sentence, severities
    /// take the worst, who is affected adds up, and no value or remedy is written twice.
    #[must_use]
    pub fn merge(self, other: Self) -> Self {
        let (mut worse, milder) = if other.severity > self.severity { (other, self) } else { (self, other) };
        for value in milder.values {
            if !worse.values.contains(&value) {
                worse.values.push(value);
            }
        }
        for remedy in milder.remedy {
            if !worse.remedy.contains(&remedy) {
                worse.remedy.push(remedy);
            }
        }
        worse.affects.extend(milder.affects);
        worse
    }
}
