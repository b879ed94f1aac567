//! Manifests as text: the findings by line, the remedies, and the unread input.

use std::{
    collections::BTreeMap,
    io::{self, Write},
};

use super::{
    super::{
        CheckResult, Style,
        lint::undecided,
        lint_result,
        names::counted,
        remedies::lines,
        terminal::{Ink, tidy},
    },
    one_node::severities,
    page::Page,
    rows::port,
};
use portreeve_facts::{ACCEPT, text};
use portreeve_rules::{
    findings::{PlacedFinding, Severity},
    lint::{LintReport, SUGGESTIONS},
};

const LABEL: usize = 8;
/// The compact table explains at most this number of findings. Further findings are only counted.
const EXPLAINED: usize = 50;
/// The largest number of names in a list of skipped kinds or of charts.
const KINDS: usize = 8;

/// Writes the findings, sorted by place. With `wide`, each finding has all evidence.
///
/// # Errors
/// Returns an error if the writer fails.
pub fn write_lint_table(report: &LintReport, wide: bool, style: &Style, out: &mut dyn Write) -> io::Result<()> {
    Page { style, wide, out }.lint(report)
}

/// Writes one line for each finding, in the form of compilers: `file:line:column: severity: sentence [rule]`.
///
/// # Errors
/// Returns an error if the writer fails.
pub fn write_lint_rows(report: &LintReport, out: &mut dyn Write) -> io::Result<()> {
    for finding in report.reported() {
        let PlacedFinding { place, evidence, .. } = finding;
        let place = tidy(&place.to_string());
        writeln!(out, "{place}: {}: {} [{}]", evidence.severity, tidy(&evidence.summary), finding.name())?;
    }
    Ok(())
}

impl Page<'_> {
    fn lint(&mut self, report: &LintReport) -> io::Result<()> {
        let (headline, ink) = headline(report);
        self.line(0, ink, &headline)?;
        let reported: Vec<&PlacedFinding> = report.reported().collect();
        let explained = if self.wide { reported.len() } else { EXPLAINED };
        for finding in reported.iter().take(explained) {
            self.placed(finding)?;
        }
        if reported.len() > explained {
            self.blank()?;
            let more = format!("{} more findings with -o wide.", reported.len() - explained);
            self.line(0, Ink::Faint, &more)?;
        }
        self.blank()?;
        self.judged(report)
    }

    fn placed(&mut self, finding: &PlacedFinding) -> io::Result<()> {
        let PlacedFinding { place, object, field, evidence, related, .. } = finding;
        self.blank()?;
        let word = self.style.paint(Ink::Bad(evidence.severity), &evidence.severity.name().to_uppercase());
        let title = match port(finding.port, finding.protocol) {
            Some(port) => format!("{object}, port {port}"),
            None => object.clone(),
        };
        let place = self.style.paint(Ink::Heading, &tidy(&place.to_string()));
        writeln!(self.out, "{place}  {word}  {}", self.style.paint(Ink::Heading, &tidy(&title)))?;
        self.paragraph(2, Ink::Plain, &evidence.summary)?;
        self.labelled("Field", LABEL, &[(Ink::Plain, tidy(field))])?;
        for (index, (place, object)) in related.iter().take(KINDS).enumerate() {
            let label = if index == 0 { "Also" } else { "" };
            self.labelled(label, LABEL, &[(Ink::Plain, tidy(&format!("{place}  {object}")))])?;
        }
        for (index, (name, value)) in evidence.values.iter().enumerate() {
            let is_number = SUGGESTIONS.contains(name);
            if self.wide || is_number {
                let label = if index == 0 || is_number { "Evidence" } else { "" };
                self.labelled(label, LABEL, &[(Ink::Plain, format!("{name}  {}", tidy(value)))])?;
            }
        }
        for (word, step) in lines(&evidence.remedies) {
            let label = if word.is_empty() { "Remedy" } else { word };
            self.labelled(label, LABEL, &self.wrapped(Ink::Plain, &step.text, LABEL + 4))?;
        }
        self.labelled("Rule", LABEL, &[(Ink::Faint, finding.name())])
    }

    fn judged(&mut self, report: &LintReport) -> io::Result<()> {
        let LintReport { files, charts, judged, again, skipped, range, against, failures, unknown, .. } = report;
        let mut rows = vec![("files", format!("{files}, with {}", counted(*judged, "judged object")))];
        if !skipped.is_empty() {
            rows.push(("skipped", kinds(skipped)));
        }
        if !charts.is_empty() {
            rows.push(("unread charts", named(charts)));
        }
        if *again > 0 {
            rows.push((
                "repeated",
                format!(
                    "{} with the kind, namespace and name of an earlier object; run lint once for each cluster and each \
                     --namespace",
                    counted(*again, "object"),
                ),
            ));
        }
        if *judged > 0 {
            rows.push(("NodePort range", format!("{} ({})", range.range, range.place)));
        }
        let alone = "nothing; --against compares the manifests with a cluster, a file or a snapshot";
        let mut compared = against.clone().unwrap_or_else(|| alone.to_owned());
        if let Some(namespace) = &report.namespace {
            compared.push_str(&format!("; objects without a namespace are in {namespace}"));
        }
        rows.push(("compared with", compared));
        if !report.not_run.is_empty() {
            let rules: Vec<String> = report.not_run.iter().map(|(rows, why)| format!("{rows} ({why})")).collect();
            rows.push(("not run", rules.join(", ")));
        }
        if report.accepted > 0 {
            rows.push(("accepted", format!("{}, as annotations {ACCEPT} say", report.accepted)));
        }
        let failed = failures.iter().map(|(gap, _)| ("not read", gap.detail.clone()));
        let unknown = unknown.iter().map(|it| ("not known", format!("{}: {}", it.rows, it.gap.detail)));
        self.line(0, Ink::Heading, "What was judged")?;
        for (label, text) in rows.into_iter().chain(failed).chain(unknown) {
            self.labelled(label, 15, &self.wrapped(Ink::Plain, &text, 20))?;
        }
        Ok(())
    }
}

/// The number of charts and their first names: `12: charts/api, charts/shop and 10 more`.
fn named(charts: &[String]) -> String {
    format!("{}: {}", charts.len(), text::listed(charts.iter().map(|folder| tidy(folder)), KINDS))
}

/// The number of skipped objects of each kind: `5 ConfigMap, 4 Ingress.networking.k8s.io and 3 of other kinds`.
fn kinds(skipped: &BTreeMap<String, usize>) -> String {
    let mut counts: Vec<_> = skipped.iter().collect();
    counts.sort_by_key(|(kind, count)| (std::cmp::Reverse(**count), *kind));
    let word = |(kind, count): &(&String, &usize)| match (kind.as_str(), **count) {
        ("", count) => format!("{} without a kind", counted(count, "document")),
        (kind, count) => format!("{count} {}", tidy(kind)),
    };
    let named: Vec<String> = counts.iter().take(KINDS).map(word).collect();
    let rest: usize = counts.iter().skip(KINDS).map(|(_, count)| **count).sum();
    let rest = if rest > 0 { format!(" and {rest} of other kinds") } else { String::new() };
    format!("{}{rest}", named.join(", "))
}

fn headline(report: &LintReport) -> (String, Ink) {
    let LintReport { objects, judged, .. } = report;
    let of = if judged < objects { format!("{judged} of {objects}") } else { judged.to_string() };
    let of = format!("{of} object{}", if *objects == 1 { "" } else { "s" });
    let count = |severity: Severity| report.findings.iter().filter(|it| it.evidence.severity == severity).count();
    if let Some((words, worst)) = severities(count) {
        let part = if judged < objects { format!("; {of} judged") } else { String::new() };
        let open = undecided(report).map(|open| format!("; {open}")).unwrap_or_default();
        return (format!("manifests: {words}{part}{open}"), Ink::Bad(worst));
    }
    match lint_result(report) {
        CheckResult::NotChecked if *judged == 0 => {
            ("manifests: nothing was judged; the errors are below.".to_owned(), Ink::Bad(Severity::Critical))
        }
        CheckResult::NotChecked => {
            let part = if judged < objects { format!(", only {of}") } else { String::new() };
            let open = undecided(report).unwrap_or_default();
            (format!("manifests: {open}{part}; the errors are below."), Ink::Bad(Severity::Critical))
        }
        _ => (format!("manifests: no port conflicts in {of}."), Ink::Good),
    }
}

/// The message for an input without judged objects, with the number of files and the kinds of the objects.
pub fn nothing_judged(files: usize, skipped: &BTreeMap<String, usize>) -> String {
    let found = match skipped.is_empty() {
        true => format!("no object in {}", counted(files, "file")),
        false => format!("{}; no object is a Service or a Pod, or has a pod template", kinds(skipped)),
    };
    format!("nothing was judged: {found}")
}
