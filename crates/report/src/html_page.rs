//! The page for people: what is wrong on a node, since when, what could not be seen, and the NodePort range as a picture. To
//! anybody it tells no more than metrics do. No script, nothing from elsewhere.

use std::io::{self, Write};

use jiff::{SignedDuration, Timestamp};
use maud::{DOCTYPE, Markup, PreEscaped, html};

use super::{CheckResult, Report, map::svg, remedies::lines, table, terminal::tidy, topic::reason_words};
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
    let heading = report.map_or_else(|| "Portreeve".to_owned(), |it| format!("Node {}", tidy(it.snapshot.node_name())));
    let state = report.map_or_else(|| "nothing has been looked at yet".to_owned(), state);
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            meta charset="utf-8";
            meta name="viewport" content="width=device-width, initial-scale=1";
            title { (heading) ": " (state) " - Portreeve" }
            style { (PreEscaped(STYLE)) }
            header {
                h1 { (heading) }
                @match report {
                    None => p { "Nothing has been looked at yet." },
                    Some(report) => {
                        p { (state) ". " span.faint { "Looked at " (time_element(report.snapshot.at)) "." } }
                    }
                }
            }
            @if let Some(report) = report {
                main {
                    (findings(report, detail))
                    @if detail == PageDetail::Everything { (gaps(report)) (ports(report)) }
                }
            }
            footer {
                p {
                    @match detail {
                        PageDetail::Everything => {
                            "The same for programs: " a href="/findings" { "findings" } ", " a href="/metrics" { "metrics" } ", "
                            a href="/snapshot" { "snapshot" } "."
                        }
                        PageDetail::AsMetrics => {
                            "Evidence, remedies, and what could not be seen: " code { "kubectl portreeve check" }
                            ". For programs: " a href="/metrics" { "metrics" } "."
                        }
                    }
                }
            }
        }
    };
    writeln!(out, "{}", page.into_string())
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

fn findings(report: &Report<'_>, detail: PageDetail) -> Markup {
    let all = report.findings().count();
    html! {
        section aria-labelledby="wrong" {
            h2 #wrong { "What is wrong" }
            @for it in report.findings().take(EXPLAINED) { (finding(it, detail, report.snapshot.at)) }
            @if all == 0 && report.result() == CheckResult::NotChecked {
                p { b.critical { "Not checked" } ": " (tidy(&report.not_judged().unwrap_or_default())) "." }
            } @else if all == 0 {
                p.well {
                    "Nothing that could be seen."
                    @if let Some(rules) = report.rules_not_judged() { " " (tidy(&rules)) "." }
                }
            } @else if all > EXPLAINED {
                p { (all - EXPLAINED) " more are not on this page." }
            }
        }
    }
}

fn finding(Finding { key, evidence, since }: &Finding, detail: PageDetail, now: Timestamp) -> Markup {
    let severity = evidence.severity.to_string();
    let port = table::port(key.port, key.protocol).map_or_else(String::new, |port| format!(", port {port}"));
    let everything = detail == PageDetail::Everything;
    let who: Vec<String> = evidence.affects.iter().map(ToString::to_string).collect();
    html! {
        article class=(severity) {
            h3 { b { (severity) } " " (tidy(&key.subject.to_string())) (port) }
            @if everything { p { (tidy(&evidence.summary)) } }
            p.faint {
                (key.name()) " since " (time_element(*since)) ", " (duration_in_words(now.duration_since(*since))) "."
                @if everything && !who.is_empty() { " Affects " (who.join(", ")) "." }
            }
            @if everything && !evidence.remedies.is_empty() {
                ul {
                    @for (word, step) in lines(&evidence.remedies) {
                        li {
                            (word) @if !word.is_empty() { " " }
                            @match step.kind {
                                StepKind::Command => code { (tidy(&step.text)) },
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

fn gaps(report: &Report<'_>) -> Markup {
    let groups = table::gap_groups(&report.gaps(), &report.failures());
    html! {
        section aria-labelledby="unseen" {
            h2 #unseen { "What could not be seen" }
            @if groups.is_empty() {
                p.well { "Everything that was looked for was there." }
            } @else {
                table {
                    thead { tr { th scope="col" { "What" } th scope="col" { "Why" } } }
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
            h2 #ports { "The NodePort range" }
            @match port_usage(report.snapshot) {
                Ok(census) => div.map role="region" aria-label="Its ports" tabindex="0" { (svg(&census)) },
                Err(gap) => p { "It is not known: " (tidy(&gap.detail)) "." },
            }
        }
    }
}

/// A time for people and for programs.
fn time_element(at: Timestamp) -> Markup {
    html! { time datetime=(format!("{at:.0}")) { (at.strftime("%Y-%m-%d %H:%M:%S UTC").to_string()) } }
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
