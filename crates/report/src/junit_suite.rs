//! JUnit XML: a document of one suite, whatever its cases are about.

use std::{
    fmt,
    io::{self, Write},
};

use super::xml::Escaped;
use portreeve_facts::Gap;
use portreeve_rules::findings::Severity;

/// One test suite.
#[derive(Debug)]
pub(super) struct Suite {
    /// What was looked at.
    pub(super) name: String,
    /// When, where that matters.
    pub(super) timestamp: Option<String>,
    /// Its cases, in their order.
    pub(super) cases: Vec<Case>,
}

/// One test case.
#[derive(Debug)]
pub(super) struct Case {
    /// The rule.
    pub(super) class: String,
    /// What it is about.
    pub(super) name: String,
    /// The file that it is about, and its line.
    pub(super) file: Option<(String, Option<u64>)>,
    /// How it ended.
    pub(super) end: End,
}

/// How a case ended.
#[derive(Debug)]
pub(super) enum End {
    /// Nothing was found.
    Passed,
    /// Something was found that counts.
    Failed(Severity, Said),
    /// Something was found that does not count.
    Told(Said),
    /// Nobody could tell.
    Skipped(String),
    /// What had to be read could not be.
    Error(String),
}

/// What was found.
#[derive(Debug)]
pub(super) struct Said {
    /// The sentence.
    pub(super) summary: String,
    /// What belongs to it, as a name and a value a line.
    pub(super) lines: Vec<(String, String)>,
}

impl Case {
    /// A rule by itself.
    pub(super) fn of_rule(id: impl fmt::Display, title: &str, end: End) -> Self {
        Self { class: id.to_string(), name: title.to_owned(), file: None, end }
    }

    /// What could not be read.
    pub(super) fn of_failure(gap: &Gap) -> Self {
        let detail = gap.detail.clone();
        Self { class: "portreeve".to_owned(), name: detail.clone(), file: None, end: End::Error(detail) }
    }
}

impl Suite {
    /// Writes the document.
    ///
    /// # Errors
    /// When the writer fails.
    pub(super) fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        let count = |is_it: fn(&End) -> bool| self.cases.iter().filter(|case| is_it(&case.end)).count();
        let counts = format!(
            r#"tests="{}" failures="{}" errors="{}" skipped="{}""#,
            self.cases.len(),
            count(|end| matches!(end, End::Failed(..))),
            count(|end| matches!(end, End::Error(_))),
            count(|end| matches!(end, End::Skipped(_))),
        );
        let timestamp = self.timestamp.as_ref().map(|at| format!(r#" timestamp="{at}""#)).unwrap_or_default();
        writeln!(out, r#"<?xml version="1.0" encoding="UTF-8"?>"#)?;
        writeln!(out, r#"<testsuites name="portreeve" {counts}>"#)?;
        writeln!(out, r#"  <testsuite name="{}"{timestamp} {counts}>"#, Escaped(&self.name))?;
        self.cases.iter().try_for_each(|case| case.write(out))?;
        writeln!(out, "  </testsuite>")?;
        writeln!(out, "</testsuites>")
    }
}

impl Case {
    fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        let Self { class, name, file, end } = self;
        write!(out, r#"    <testcase classname="{}" name="{}""#, Escaped(class), Escaped(name))?;
        if let Some((file, line)) = file {
            write!(out, r#" file="{}""#, Escaped(file))?;
            line.map_or(Ok(()), |line| write!(out, r#" line="{line}""#))?;
        }
        match end {
            End::Passed => return writeln!(out, "/>"),
            End::Skipped(why) => writeln!(out, ">\n      <skipped message=\"{}\"/>", Escaped(why))?,
            End::Error(detail) => writeln!(out, ">\n      <error message=\"{}\"/>", Escaped(detail))?,
            End::Failed(severity, said) => {
                let summary = Escaped(&said.summary);
                writeln!(out, ">\n      <failure type=\"{severity}\" message=\"{summary}\">")?;
                said.write_lines(out)?;
                writeln!(out, "</failure>")?;
            }
            End::Told(said) => {
                writeln!(out, ">\n      <system-out>{}", Escaped(&said.summary))?;
                said.write_lines(out)?;
                writeln!(out, "</system-out>")?;
            }
        }
        writeln!(out, "    </testcase>")
    }
}

impl Said {
    fn write_lines(&self, out: &mut dyn Write) -> io::Result<()> {
        self.lines.iter().try_for_each(|(name, value)| writeln!(out, "{}: {}", Escaped(name), Escaped(value)))
    }
}
