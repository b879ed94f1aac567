//! The agent's page for people: the findings of a node, the unread input, and the NodePort range as a picture. Each
//! rule also has a page. Without a token, the page contains only facts that are also in the metrics.
//!
//! The page has no script, and loads nothing from other servers. The page contains names from the cluster, and an
//! attacker could write a script into a name. By CSS, one click selects a whole command.

use std::io::{self, Write};

use jiff::{SignedDuration, Timestamp};
use maud::{DOCTYPE, Markup, PreEscaped, html};

use super::{
    CheckResult, Report, ScanAge,
    map::{COLOURS, blocks, legend},
    names::counted,
    outcome::{NOT_ALL_READ, clear_in_words},
    remedies::lines,
    rule_pages::{Part, documentation, parts},
    table,
    terminal::tidy,
    topic::reason_words,
};
use portreeve_facts::{Snapshot, Unread, VERSION};
use portreeve_rules::{
    PortUsage,
    findings::{Finding, StepKind},
    ids::Id,
    port_usage,
};

const STYLE: &str = include_str!("html_page.css");

/// The largest number of findings on the page, worst first. The document `/findings` has all findings.
const EXPLAINED: usize = 50;

/// How much the page shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageDetail {
    /// Only facts that are in the metrics, for any client: rule, severity, Service or Node, port, start.
    AsMetrics,
    /// All details, for a client with the right to read them.
    Everything,
}

/// Writes the page about a scan, with the age of the scan. Before the first scan, `report` and the age are `None`.
///
/// # Errors
/// Fails if the writer fails.
pub fn write_html_page(
    report: Option<&Report<'_>>,
    detail: PageDetail,
    age: Option<ScanAge>,
    out: &mut dyn Write,
) -> io::Result<()> {
    let is_old = age.is_some_and(ScanAge::is_old);
    let title = report.map_or_else(|| "Node".to_owned(), |it| format!("Node {}", tidy(it.snapshot.node_name())));
    let state = report.map_or_else(|| "not scanned yet".to_owned(), |it| state(it, is_old));
    let content = html! {
        header {
            p.faint { "Portreeve " (VERSION) }
            h1 { (title) }
            p { (state) "." }
            @if let Some(report) = report { (scan(report.snapshot, detail, age)) }
        }
        @if let Some(report) = report {
            main {
                (findings(report, detail, is_old))
                @if detail == PageDetail::Everything { (not_read(report)) (ports(report)) }
            }
        }
        footer {
            p {
                @match detail {
                    PageDetail::Everything => {
                        "For programs: " a href="/findings" { "findings" } ", " a href="/metrics" { "metrics" } ", "
                        a href="/snapshot" { "snapshot" } "."
                    }
                    PageDetail::AsMetrics => {
                        "Evidence, remedies and unread input: " code { "kubectl portreeve check" } ". For programs: "
                        a href="/metrics" { "metrics" } "."
                    }
                }
            }
        }
    };
    write_document(&format!("{title}: {state}"), &content, out)
}

/// Writes the page of a rule. The page has no facts about the node.
///
/// # Errors
/// Fails if the writer fails.
pub fn write_html_rule_page(id: &Id, out: &mut dyn Write) -> io::Result<()> {
    let parts = parts(&documentation(id));
    let belong = |one: &Part, next: &Part| {
        matches!((one, next), (Part::Item(_), Part::Item(_)) | (Part::Verbatim(_), Part::Verbatim(_)))
    };
    let content = html! {
        header { p.faint { "Portreeve " (VERSION) ", " a href="/" { "findings of this node" } } h1 { (id.name) } }
        main {
            @for run in parts.chunk_by(belong) {
                @match &run[0] {
                    Part::Heading(heading) => h2 { (heading) },
                    Part::Paragraph(text) => p { (inline(text)) },
                    Part::Item(_) => ul { @for item in run { @if let Part::Item(text) = item { li { (inline(text)) } } } },
                    Part::Verbatim(first) if first.trim_start().starts_with('|') => (cells(run)),
                    Part::Verbatim(_) => {
                        pre { code { @for line in run { @if let Part::Verbatim(text) = line { (text) "\n" } } } }
                    }
                    Part::Blank => {}
                }
            }
        }
    };
    write_document(id.name.0, &content, out)
}

fn write_document(title: &str, content: &Markup, out: &mut dyn Write) -> io::Result<()> {
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            meta charset="utf-8";
            meta name="viewport" content="width=device-width, initial-scale=1";
            title { (title) " - Portreeve" }
            style { (PreEscaped(STYLE)) (PreEscaped(COLOURS)) }
            (content)
        }
    };
    writeln!(out, "{}", page.into_string())
}

/// A text of a rule's page as HTML: backquotes become code, asterisks become emphasis, and each link becomes its text.
fn inline(text: &str) -> Markup {
    html! {
        @for (index, part) in text.split('`').enumerate() {
            @if index % 2 == 1 { code { (part) } } @else { (emphasized(part)) }
        }
    }
}

fn emphasized(text: &str) -> Markup {
    html! {
        @for (index, part) in text.split('*').filter(|part| !part.is_empty()).enumerate() {
            @if (index % 2 == 1) != text.starts_with('*') { em { (without_links(part)) } } @else { (without_links(part)) }
        }
    }
}

/// `[words](address)` becomes `words`. The links lead to files of the documentation. The agent and code scanning do not
/// have these files.
pub(super) fn without_links(text: &str) -> String {
    let mut words = String::new();
    let mut rest = text;
    while let Some((link, address)) = rest.split_once("](")
        && let Some((before, name)) = link.rsplit_once('[')
        && let Some((_, after)) = address.split_once(')')
    {
        words.push_str(before);
        words.push_str(name);
        rest = after;
    }
    words + rest
}

fn cells(run: &[Part]) -> Markup {
    let rows = run.iter().filter_map(|part| match part {
        Part::Verbatim(line) => Some(line.trim().trim_matches('|').split('|').map(str::trim).collect::<Vec<_>>()),
        _ => None,
    });
    let rows: Vec<_> = rows.filter(|row| !row.iter().all(|cell| cell.trim_matches('-').is_empty())).collect();
    html! {
        table {
            @if let Some((heads, rows)) = rows.split_first() {
                thead { tr { @for head in heads { th scope="col" { (inline(head)) } } } }
                tbody { @for row in rows { tr { @for cell in row { td { (inline(cell)) } } } } }
            }
        }
    }
}

fn state(report: &Report<'_>, is_old: bool) -> String {
    let open = report.not_judged().map(|open| format!("; {open}")).unwrap_or_default();
    match (table::severities(|severity| report.count(severity)), report.result()) {
        (Some((reported, _)), _) => format!("{reported}{open}"),
        (None, result) if is_old || result == CheckResult::NotChecked => "not checked".to_owned(),
        (None, _) if report.gaps().is_empty() => "no port conflicts".to_owned(),
        (None, _) if report.board.unknown.is_empty() => format!("no port conflicts found{NOT_ALL_READ}"),
        (None, _) => clear_in_words(report),
    }
}

fn scan(snapshot: &Snapshot, detail: PageDetail, age: Option<ScanAge>) -> Markup {
    const UNKNOWN: Unread = Unread::Reported("unknown");
    let everything = detail == PageDetail::Everything;
    let mode = snapshot.proxy_mode().ok().map(|mode| format!("{} ({})", mode.value, mode.place));
    let mode = if everything { table::proxy(snapshot) } else { mode };
    let range = snapshot.cluster.node_port_range.known(UNKNOWN).map(|range| range.range.to_string());
    let range = if everything { table::range(snapshot) } else { range };
    html! {
        dl {
            dt { "Last scan" }
            dd {
                @if let Some(age) = age {
                    @if age.is_old() { b.critical { (age.age.as_secs()) " s ago, which is too old" } } @else { (age.age.as_secs()) " s ago" }
                    ", at "
                }
                (time_element(snapshot.at))
            }
            @for (name, value) in [("Proxy mode", mode), ("NodePort range", range)] {
                dt { (name) }
                dd { (tidy(value.as_deref().unwrap_or("unknown"))) }
            }
        }
    }
}

fn findings(report: &Report<'_>, detail: PageDetail, is_old: bool) -> Markup {
    let all = report.findings().count();
    html! {
        section aria-labelledby="findings" {
            h2 #findings { "Findings" }
            @for it in report.findings().take(EXPLAINED) { (finding(it, detail, report.snapshot.at)) }
            @if all == 0 && is_old {
                p { b.critical { "Not checked" } ": the last scan is too old." }
            } @else if all == 0 && report.result() == CheckResult::NotChecked {
                p { b.critical { "Not checked" } ": " (tidy(&report.not_judged().unwrap_or_default())) "." }
            } @else if all == 0 {
                p.well {
                    "No port conflicts found"
                    @if !report.gaps().is_empty() { (NOT_ALL_READ) }
                    "."
                    @if let Some(rules) = report.rules_not_judged(false) { " " (tidy(&rules)) "." }
                }
            } @else if all > EXPLAINED {
                p { (all - EXPLAINED) " more findings are not on this page." }
            }
        }
    }
}

fn finding(Finding { key, evidence, since }: &Finding, detail: PageDetail, now: Timestamp) -> Markup {
    let severity = evidence.severity.to_string();
    let port = table::port(key.port, key.protocol).map_or_else(String::new, |port| format!(", port {port}"));
    let everything = detail == PageDetail::Everything;
    let clients: Vec<String> = evidence.affects.iter().map(ToString::to_string).collect();
    html! {
        article class=(severity) {
            h3 { b { (severity) } " " (tidy(&key.subject.to_string())) (port) }
            @if everything { p { (tidy(&evidence.summary)) } }
            p.faint {
                a href={ "/rules/" (key.rule) } { (key.name()) }
                " since " (time_element(*since)) ", " (duration_in_words(now.duration_since(*since))) "."
                @if everything && !clients.is_empty() { " Affects " (clients.join(", ")) "." }
            }
            @if everything && !evidence.remedies.is_empty() {
                ul {
                    @for (word, step) in lines(&evidence.remedies) {
                        li {
                            (word) @if !word.is_empty() { " " }
                            @match step.kind {
                                StepKind::Command => code.command title="A click selects the whole command" { (tidy(&step.text)) },
                                StepKind::Advice => span { (tidy(&step.text)) },
                            }
                        }
                    }
                }
            }
            @if everything && !evidence.values.is_empty() {
                details {
                    summary { "Evidence" }
                    table {
                        tbody {
                            @for (name, value) in &evidence.values { tr { th scope="row" { (name) } td { (tidy(value)) } } }
                        }
                    }
                }
            }
        }
    }
}

fn not_read(report: &Report<'_>) -> Markup {
    let groups = table::gap_groups(&report.gaps(), &report.failures());
    html! {
        section aria-labelledby="unread" {
            h2 #unread { "Not read" }
            @if groups.is_empty() {
                p.well { "All input was read." }
            } @else {
                table {
                    thead { tr { th scope="col" { "Input" } th scope="col" { "Reason" } } }
                    tbody {
                        @for ((topic, why, _), group) in &groups {
                            tr {
                                th scope="row" { (topic) }
                                td {
                                    b class=(if group.failed { "critical" } else { "plain" }) { (reason_words(*why)) }
                                    @for detail in group.details.iter().filter(|detail| !detail.is_empty()) { br; (tidy(detail)) }
                                    @if !group.rules.is_empty() {
                                        br; span.faint { (table::not_judged(&group.rules, true)) }
                                    }
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

fn ports(report: &Report<'_>) -> Markup {
    html! {
        section aria-labelledby="ports" {
            h2 #ports { "NodePort range" }
            @match port_usage(report.snapshot) {
                Ok(usage) => (map(&usage)),
                Err(gap) => p { "Unknown: " (tidy(&gap.detail)) "." },
            }
        }
    }
}

/// The NodePort range in blocks of ports. The width of the window sets the number of blocks in a line.
fn map(usage: &PortUsage) -> Markup {
    html! {
        p { "Each square is a port. Each block has 100 ports and the number of the first." }
        div.map role="img" aria-label=(format!("The ports {}", usage.range.range)) { (blocks(usage)) }
        (legend(usage))
    }
}

fn time_element(at: Timestamp) -> Markup {
    html! { time datetime=(format!("{at:.0}")) { (at.strftime("%Y-%m-%d %H:%M:%S UTC").to_string()) } }
}

fn duration_in_words(time: SignedDuration) -> String {
    let minutes = time.as_secs() / 60;
    let (count, unit) = match minutes {
        ..1 => return "for less than a minute".to_owned(),
        1..120 => (minutes, "minute"),
        120..2880 => (minutes / 60, "hour"),
        _ => (minutes / 1440, "day"),
    };
    format!("for {}", counted(count, unit))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use portreeve_facts::Protocol;
    use portreeve_rules::{
        findings::{Evidence, Key, Remedy, RuleId, Severity, Step, Subject},
        ledger::Board,
    };

    #[test]
    fn without_a_token_it_has_no_more_than_the_metrics() {
        let snapshot = Snapshot::healthy().service("web", |it| it.node_port(30080));
        let subject = Subject::service(&snapshot.cluster.services.seen().expect("Services")[0]);
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
        let board = Board { findings: vec![Finding { key, evidence, since: snapshot.at }], ..Board::default() };
        let page = |detail| {
            let mut html = Vec::new();
            write_html_page(Some(&Report::of(&snapshot, &board)), detail, Some(age(12)), &mut html)
                .expect("memory accepts all text");
            String::from_utf8(html).expect("UTF-8")
        };
        let (brief, whole) = (page(PageDetail::AsMetrics), page(PageDetail::Everything));
        for part in [
            "Node n1: 1 critical",
            "Service default/web, port 30080/tcp",
            "listener-on-node-port/loses</a> since <time",
            "<a href=\"/rules/listener-on-node-port\">",
            "<dd>12 s ago, at <time",
            "<dt>Proxy mode</dt><dd>iptables",
            VERSION,
        ] {
            assert!(brief.contains(part) && whole.contains(part), "{part}: {brief}");
        }
        for part in ["perl", "kill", "<svg", "/findings", "/snapshot", "nodePortAddresses"] {
            assert!(!brief.contains(part) && whole.contains(part), "{part}: {brief}");
        }
    }

    #[test]
    fn a_duration_is_in_the_unit_that_a_person_would_use() {
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

    /// A scan age of `seconds`, from an agent that scans at least every two minutes.
    fn age(seconds: u64) -> ScanAge {
        ScanAge::new(Duration::from_secs(seconds), Duration::from_secs(120))
    }

    #[test]
    fn an_old_scan_is_marked() {
        let snapshot = Snapshot::healthy();
        let page = |age| scan(&snapshot, PageDetail::Everything, Some(age)).into_string();
        assert!(page(age(239)).contains("<dd>239 s ago, at <time"));
        assert!(page(age(240)).contains("<b class=\"critical\">240 s ago, which is too old</b>"));
        let board = Board::default();
        let report = Report::of(&snapshot, &board);
        let whole = |age| {
            let mut out = Vec::new();
            write_html_page(Some(&report), PageDetail::Everything, Some(age), &mut out).expect("memory");
            String::from_utf8(out).expect("UTF-8")
        };
        assert!(whole(age(240)).contains("Node n1: not checked - Portreeve"));
        assert!(!whole(age(239)).contains("not checked - Portreeve"));
    }

    #[test]
    fn the_page_of_each_rule_has_no_markup_of_markdown_left() {
        for id in portreeve_rules::ids::IDS {
            let mut html = Vec::new();
            write_html_rule_page(id, &mut html).expect("memory accepts all text");
            let html = String::from_utf8(html).expect("UTF-8");
            assert!(html.contains(&format!("<h1>{}</h1>", id.name)) && html.contains("<h2>Fix</h2>"), "{html}");
            let words = html.split("</style>").nth(1).expect("content");
            let code = |text: &str| {
                text.split("<code>")
                    .map(|it| it.split("</code>").last().unwrap_or_default().to_owned())
                    .collect::<String>()
            };
            for markup in ["](", "`", "**", "|--"] {
                assert!(!code(words).contains(markup), "{}: {markup}: {words}", id.name);
            }
        }
    }
}
