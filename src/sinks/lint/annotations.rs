//! Workflow commands of GitHub Actions, which Gitea and Forgejo read too: an annotation at the line of each field.

use std::io::{self, Write};

use super::remedy;
use crate::{findings::Severity, lint::LintReport, sinks::terminal::tidy};

/// Writes a line for each finding and each failure.
///
/// # Errors
/// When the writer fails.
pub fn write_annotations(report: &LintReport, out: &mut dyn Write) -> io::Result<()> {
    for gap in &report.failures {
        writeln!(out, "::error title=portreeve::{}", data(&tidy(&gap.detail)))?;
    }
    for finding in report.reported() {
        let word = match finding.evidence.severity {
            Severity::Critical => "error",
            Severity::Warning => "warning",
            Severity::Info => "notice",
        };
        let place = &finding.place;
        let message = [vec![tidy(&finding.evidence.summary)], remedy(finding)].concat().join("\n");
        writeln!(
            out,
            "::{word} file={},line={},col={},title={}::{}",
            property(&tidy(&place.file)),
            place.line,
            place.column,
            finding.rule,
            data(&message)
        )?;
    }
    Ok(())
}

/// As `escapeData` of GitHub's toolkit (actions/toolkit packages/core/src/command.ts).
fn data(text: &str) -> String {
    text.replace('%', "%25").replace('\r', "%0D").replace('\n', "%0A")
}

/// As `escapeProperty` there.
fn property(text: &str) -> String {
    data(text).replace(':', "%3A").replace(',', "%2C")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_text_ends_a_property_or_a_line() {
        assert_eq!(property("a:b,c%\n.yaml"), "a%3Ab%2Cc%25%0A.yaml");
        assert_eq!(data("100%\r\nx:y"), "100%25%0D%0Ax:y");
    }
}
