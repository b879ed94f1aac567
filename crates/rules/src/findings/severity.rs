//! How bad a problem is.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The severity of a problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Information about a risk or an oddity. Portreeve writes no Event for this severity.
    Info,
    /// Some connections fail now, or will fail after a usual change.
    Warning,
    /// Remote clients get no answer or a wrong answer, now or certainly soon.
    Critical,
}

impl Severity {
    /// Every severity, mildest first.
    pub const ALL: [Self; 3] = [Self::Info, Self::Warning, Self::Critical];

    /// The severity's word in lower case.
    pub fn name(self) -> &'static str {
        match self {
            Self::Info => "info",
            Self::Warning => "warning",
            Self::Critical => "critical",
        }
    }
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
