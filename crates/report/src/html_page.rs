//! The page for people: what is wrong on a node, since when, what could not be seen, and the NodePort range as a picture. To
//! anybody it tells no more than metrics do. No script, nothing from elsewhere.

use std::io::{self, Write};

use jiff::{SignedDuration, Timestamp};

use super::{
    CheckResult, Report, map::write_svg, remedies::lines, table, terminal::tidy, topic::reason_words, xml::Escaped,
};
use portreeve_rules::{
    findings::{Finding, Severity, StepKind},
    port_usage,
};

const STYLE: &str = include_str!("html_page.css");

/// How many findings it explains, the worst; what follows is in the document.
const EXPLAINED: usize = 50;

/// How much the page tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageDetail {
    /// What metrics tell anyway, for anybody: rule, severity, Service or Node, port, since when.
    AsMetrics,
    /// All that is known, for who may know it.
    Everything,
}

/// Writes the page about a look; nothing has been looked at before the first look.
///
/// # Errors
/// When the writer fails.
pub fn write_html_page(report: Option<&Report<'_>>, detail: PageDetail, out: &mut dyn Write) -> io::Result<()> {
    let heading = match report {
        None => "Portreeve".to_owned(),
        Some(report) => format!("Node {}", tidy(report.snapshot.node_name())),
    };
    let state = report.map_or_else(|| "nothing has been looked at yet".to_owned(), state);
    writeln!(out, "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">")?;
    writeln!(out, "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">")?;
    writeln!(out, "<title>{}: {state} - Portreeve</title>\n<style>\n{STYLE}</style>", Escaped(&heading))?;
    writeln!(out, "<header>\n<h1>{}</h1>", Escaped(&heading))?;
    match report {
        None => writeln!(out, "<p>Nothing has been looked at yet.</p>\n</header>")?,
        Some(report) => {
            let seen = time_element(report.snapshot.at);
            writeln!(out, "<p>{state}. <span class=\"faint\">Looked at {seen}.</span></p>\n</header>\n<main>")?;
            write_findings(report, detail, out)?;
            if detail == PageDetail::Everything {
                write_gaps(report, out)?;
                write_ports(report, out)?;
            }
            writeln!(out, "</main>")?;
        }
    }
    let elsewhere = match detail {
        PageDetail::Everything => {
            "The same for programs: <a href=\"/findings\">findings</a>, <a href=\"/metrics\">metrics</a>, \
             <a href=\"/snapshot\">snapshot</a>."
        }
        PageDetail::AsMetrics => {
            "Evidence, remedies, and what could not be seen: <code>kubectl portreeve findings</code>. For programs: \
             <a href=\"/metrics\">metrics</a>."
        }
    };
    writeln!(out, "<footer>\n<p>{elsewhere}</p>\n</footer>\n</html>")
}

/// In a few words, for the title and the head.
fn state(report: &Report<'_>) -> String {
    let count = |severity| Some((report.count(severity), severity)).filter(|(count, _)| *count > 0);
    let counts = Severity::ALL.into_iter().rev().filter_map(count);
    let reported: Vec<String> = counts.map(|(count, severity)| format!("{count} {severity}")).collect();
    match (reported.is_empty(), report.result()) {
        (false, _) if report.failures().is_empty() => reported.join(", "),
        (false, _) => format!("{}; not all was judged", reported.join(", ")),
        (true, CheckResult::NotChecked) => "not checked".to_owned(),
        (true, _) if report.gaps().is_empty() => "nothing is wrong".to_owned(),
        (true, _) => "nothing is wrong in what could be seen".to_owned(),
    }
}

fn write_findings(report: &Report<'_>, detail: PageDetail, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "<section aria-labelledby=\"wrong\">\n<h2 id=\"wrong\">What is wrong</h2>")?;
    for finding in report.findings().take(EXPLAINED) {
        write_finding(finding, detail, report.snapshot.at, out)?;
    }
    match report.findings().count() {
        0 if report.result() == CheckResult::NotChecked => {
            let open = report.not_judged().unwrap_or_default();
            writeln!(out, "<p><b class=\"critical\">Not checked</b>: {}.</p>", Escaped(&open))?;
        }
        0 => {
            let rules = report.rules_not_judged().map(|rules| format!(" {rules}.")).unwrap_or_default();
            writeln!(out, "<p class=\"well\">Nothing that could be seen.{}</p>", Escaped(&rules))?;
        }
        all if all > EXPLAINED => {
            writeln!(out, "<p>{} more are not on this page.</p>", all - EXPLAINED)?;
        }
        _ => {}
    }
    writeln!(out, "</section>")
}

fn write_finding(finding: &Finding, detail: PageDetail, now: Timestamp, out: &mut dyn Write) -> io::Result<()> {
    let Finding { key, evidence, since } = finding;
    let (severity, subject) = (evidence.severity, key.subject.to_string());
    let port = table::port(key.port, key.protocol).map_or_else(String::new, |port| format!(", port {port}"));
    writeln!(out, "<article class=\"{severity}\">\n<h3><b>{severity}</b> {}{port}</h3>", Escaped(&subject))?;
    if detail == PageDetail::Everything {
        writeln!(out, "<p>{}</p>", Escaped(&evidence.summary))?;
    }
    let lasting = duration_in_words(now.duration_since(*since));
    write!(out, "<p class=\"faint\">{} since {}, {lasting}.", key.name(), time_element(*since))?;
    if detail == PageDetail::AsMetrics {
        return writeln!(out, "</p>\n</article>");
    }
    if !evidence.affects.is_empty() {
        let who: Vec<String> = evidence.affects.iter().map(ToString::to_string).collect();
        write!(out, " Affects {}.", who.join(", "))?;
    }
    writeln!(out, "</p>")?;
    if !evidence.remedies.is_empty() {
        writeln!(out, "<ul>")?;
        for (word, step) in lines(&evidence.remedies) {
            let tag = match step.kind {
                StepKind::Command => "code",
                StepKind::Advice => "span",
            };
            let space = if word.is_empty() { "" } else { " " };
            writeln!(out, "<li>{word}{space}<{tag}>{}</{tag}></li>", Escaped(&step.text))?;
        }
        writeln!(out, "</ul>")?;
    }
    if !evidence.values.is_empty() {
        writeln!(out, "<details>\n<summary>Evidence</summary>\n<table>\n<tbody>")?;
        for (name, value) in &evidence.values {
            writeln!(out, "<tr><th scope=\"row\">{name}</th><td>{}</td></tr>", Escaped(value))?;
        }
        writeln!(out, "</tbody>\n</table>\n</details>")?;
    }
    writeln!(out, "</article>")
}

fn write_gaps(report: &Report<'_>, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "<section aria-labelledby=\"unseen\">\n<h2 id=\"unseen\">What could not be seen</h2>")?;
    let groups = table::gap_groups(&report.gaps(), &report.failures());
    if groups.is_empty() {
        return writeln!(out, "<p class=\"well\">Everything that was looked for was there.</p>\n</section>");
    }
    writeln!(out, "<table>\n<thead><tr><th scope=\"col\">What</th><th scope=\"col\">Why</th></tr></thead>\n<tbody>")?;
    for ((topic, why, _), group) in &groups {
        let class = if group.failed { "critical" } else { "plain" };
        write!(out, "<tr><th scope=\"row\">{topic}</th><td><b class=\"{class}\">{}</b>", reason_words(*why))?;
        for detail in group.details.iter().filter(|detail| !detail.is_empty()) {
            write!(out, "<br>{}", Escaped(detail))?;
        }
        if !group.rules.is_empty() {
            write!(out, "<br><span class=\"faint\">{}</span>", table::not_judged(&group.rules, true))?;
        }
        writeln!(out, "</td></tr>")?;
    }
    writeln!(out, "</tbody>\n</table>\n</section>")
}

fn write_ports(report: &Report<'_>, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "<section aria-labelledby=\"ports\">\n<h2 id=\"ports\">The NodePort range</h2>")?;
    match port_usage(report.snapshot) {
        Ok(census) => {
            writeln!(out, "<div class=\"map\" role=\"region\" aria-label=\"Its ports\" tabindex=\"0\">")?;
            write_svg(&census, out)?;
            writeln!(out, "</div>\n</section>")
        }
        Err(gap) => writeln!(out, "<p>It is not known: {}.</p>\n</section>", Escaped(&gap.detail)),
    }
}

/// A time for people and for programs.
fn time_element(at: Timestamp) -> String {
    format!("<time datetime=\"{at:.0}\">{}</time>", at.strftime("%Y-%m-%d %H:%M:%S UTC"))
}

/// For how long, as a person says it.
fn duration_in_words(time: SignedDuration) -> String {
    let minutes = time.as_secs() / 60;
    let (count, unit) = match minutes {
        ..1 => return "for less than a minute".to_owned(),
        1..120 => (minutes, "minute"),
        120..2880 => (minutes / 60, "hour"),
        _ => (minutes / 1440, "day"),
    };
    format!("for {count} {unit}{}", if count == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;
    use portreeve_facts::{Protocol, Snapshot};
    use portreeve_rules::{
        findings::{Evidence, Key, Remedy, RuleId, Step, Subject},
        ledger::Board,
    };

    #[test]
    fn to_anybody_it_tells_no_more_than_metrics() {
        let world = Snapshot::healthy().service("web", |it| it.node_port(30080));
        let subject = Subject::service(&world.cluster.services.seen().expect("Services")[0]);
        let key = Key {
            rule: RuleId("listener-on-node-port"),
            variant: "loses",
            subject,
            port: Some(30080),
            protocol: Some(Protocol::Tcp),
        };
        let evidence = Evidence::new(Severity::Critical, "perl <b>listens</b>")
            .value("process", "perl")
            .remedy(Remedy::from(vec![Step::command("kill 4242")]));
        let board = Board { findings: vec![Finding { key, evidence, since: world.at }], ..Board::default() };
        let page = |detail| {
            let mut html = Vec::new();
            write_html_page(Some(&Report::of(&world, &board)), detail, &mut html).expect("memory takes everything");
            String::from_utf8(html).expect("UTF-8")
        };
        let (brief, whole) = (page(PageDetail::AsMetrics), page(PageDetail::Everything));
        for part in
            ["Node n1: 1 critical", "Service default/web, port 30080/tcp", "listener-on-node-port/loses since <time"]
        {
            assert!(brief.contains(part) && whole.contains(part), "{part}: {brief}");
        }
        for part in ["perl", "kill", "<svg", "/findings", "/snapshot"] {
            assert!(!brief.contains(part) && whole.contains(part), "{part}: {brief}");
        }
    }

    #[test]
    fn a_time_is_told_in_the_unit_that_a_person_would_use() {
        for (seconds, words) in [
            (59, "for less than a minute"),
            (60, "for 1 minute"),
            (7199, "for 119 minutes"),
            (7200, "for 2 hours"),
            (172_799, "for 47 hours"),
            (172_800, "for 2 days"),
        ] {
            assert_eq!(duration_in_words(SignedDuration::from_secs(seconds)), words);
        }
    }
}
