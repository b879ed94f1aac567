//! Workflow commands of GitHub Actions: an annotation at the line of each field with a finding. Gitea and Forgejo print
//! the commands in the log.

use std::io::{self, Write};

use super::{decides, remedy};
use crate::terminal::tidy;
use portreeve_facts::Place;
use portreeve_rules::{findings::Severity, lint::LintReport};

/// Writes a line for each finding, each failure, and each rule that could not judge.
///
/// # Errors
/// Fails if the writer fails.
pub fn write_annotations(report: &LintReport, out: &mut dyn Write) -> io::Result<()> {
    for (gap, place) in &report.failures {
        // If the annotation has the place, the text does not repeat the place.
        let text = match place {
            Some(place) if is_written(place) => gap.detail.strip_prefix(&format!("{place}: ")).unwrap_or(&gap.detail),
            _ => gap.detail.as_str(),
        };
        let place = place.as_ref().map(properties).unwrap_or_default();
        writeln!(out, "::error {place}title=portreeve::{}", data(&tidy(text)))?;
    }
    for finding in report.reported() {
        let word = match finding.evidence.severity {
            _ if finding.evidence.is_refused() => "error",
            Severity::Critical => "error",
            Severity::Warning => "warning",
            Severity::Info => "notice",
        };
        let place = &finding.place;
        // Otherwise the text contains the place.
        let text = match is_written(place) {
            true => tidy(&finding.evidence.summary),
            false => tidy(&format!("{place}: {}", finding.evidence.summary)),
        };
        let message = [vec![text], remedy(finding)].concat().join("\n");
        writeln!(out, "::{word} {}title={}::{}", properties(place), finding.name(), data(&message))?;
    }
    for it in &report.unknown {
        let word = if decides(report, it) { "error" } else { "notice" };
        writeln!(out, "::{word} title={}::{}", it.rows, data(&format!("not known: {}", tidy(&it.gap.detail))))?;
    }
    Ok(())
}

/// The file, line and column. For rendered input, the text has only the template, because the line in the template is
/// unknown.
fn properties(place: &Place) -> String {
    if !is_file(place) {
        return String::new();
    }
    let Place { line, column, template, .. } = place;
    let at = if template.is_some() { String::new() } else { format!("line={line},col={column},") };
    format!("file={},{at}", property(&tidy(place.file())))
}

/// Whether the properties have the whole place. Standard input is not a file, and the line in a template is unknown.
fn is_written(place: &Place) -> bool {
    place.template.is_none() && is_file(place)
}

fn is_file(place: &Place) -> bool {
    place.template.is_some() || &*place.file != "standard input"
}

/// Changes a line of a log so that a runner finds no command in the line. Commands begin with `::`, or in an older form
/// with `##[`.
pub fn without_commands(line: &str) -> String {
    line.replace("##[", "# #[").replace("::", ": :")
}

/// Escapes text like `escapeData` in GitHub's toolkit (actions/toolkit packages/core/src/command.ts).
fn data(text: &str) -> String {
    text.replace('%', "%25").replace('\r', "%0D").replace('\n', "%0A")
}

/// Escapes text like `escapeProperty` in GitHub's toolkit.
fn property(text: &str) -> String {
    data(text).replace(':', "%3A").replace(',', "%2C")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_in_the_log_is_no_command() {
        assert_eq!(without_commands("z##[stop-commands]x ::error::y"), "z# #[stop-commands]x : :error: :y");
    }

    #[test]
    fn no_text_ends_a_property_or_a_line() {
        assert_eq!(property("a:b,c%\n.yaml"), "a%3Ab%2Cc%25%0A.yaml");
        assert_eq!(data("100%\r\nx:y"), "100%25%0D%0Ax:y");
    }
}
