//! The small page for people: no script, nothing from elsewhere.

use std::fmt::Write as _;

use crate::{
    facts::{Snapshot, text},
    findings::Severity,
    ledger::Board,
};

/// How much of a sentence the page shows, in bytes.
const SENTENCE: usize = 2048;

const STYLE: &str = "body{font:15px/1.5 sans-serif;max-width:60em;margin:2em auto;padding:0 1em}\
    .critical{color:#b00020}.warning{color:#8a5a00}pre{white-space:pre-wrap;background:#f4f4f4;padding:.5em}";

/// What is wrong on this node, as HTML; nothing has been looked at before the first look.
pub(super) fn page(look: Option<(&Snapshot, &Board)>) -> String {
    let mut html = format!(
        "<!doctype html><html lang=en><meta charset=utf-8><title>portreeve</title><style>{STYLE}</style><h1>portreeve</h1>"
    );
    match look {
        None => html.push_str("<p>Nothing has been looked at yet."),
        Some((snapshot, board)) => tell(&mut html, snapshot, board),
    }
    html.push_str(
        "<p><a href=/findings>findings</a> <a href=/metrics>metrics</a> <a href=/snapshot>snapshot</a></html>\n",
    );
    html
}

fn tell(html: &mut String, snapshot: &Snapshot, board: &Board) {
    let count = |severity| board.findings.iter().filter(|it| it.evidence.severity == severity).count();
    let mut write = |text: String| html.push_str(&text);
    write(format!(
        "<p>Node {} at {:.0}: {} critical, {} warning, {} info, {} could not be told.",
        escaped(snapshot.node_name()),
        snapshot.at,
        count(Severity::Critical),
        count(Severity::Warning),
        count(Severity::Info),
        board.unknown.len(),
    ));
    for finding in &board.findings {
        let evidence = &finding.evidence;
        let mut part = format!(
            "<h2 class={0}>{0}: {1}</h2><p>{2}<br>{3}, since {4:.0}<pre>",
            evidence.severity,
            escaped(&finding.key.subject.to_string()),
            escaped(&evidence.summary),
            finding.key.rule,
            finding.since,
        );
        for (name, value) in &evidence.values {
            writeln!(part, "{name} = {}", escaped(value)).expect("a string takes everything");
        }
        for remedy in &evidence.remedy {
            writeln!(part, "&rarr; {}", escaped(remedy)).expect("a string takes everything");
        }
        part.push_str("</pre>");
        write(part);
    }
}

fn escaped(words: &str) -> String {
    let mut escaped = String::new();
    for letter in text::clean(words, SENTENCE).chars() {
        match letter {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            letter => escaped.push(letter),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{agent::judge, rules::Limits};

    #[test]
    fn hostile_names_stay_text() {
        let name = "<script>alert(\"1\")</script>";
        let world = Snapshot::healthy().service(name, |it| it.node_port(30080)).listens("0.0.0.0:30080");
        let html = page(Some((&world, &judge(&world, &Limits::default()))));
        assert!(!html.contains("<script") && html.contains("&lt;script&gt;"), "{html}");
    }
}
