//! The rules as text. There are three forms: a list, a page for the terminal, and a page in Markdown.

use std::collections::BTreeSet;

use super::{
    OLDEST_CONNECTIONS, Style,
    terminal::{Ink, wrap},
};
use portreeve_facts::Source;
use portreeve_rules::{
    RULES,
    ids::{IDS, Id, Variant},
    lint::lint_rules,
};

/// The time between two polls of an agent, in minutes (`poll_interval` of the crate `cluster`).
const POLL: u64 = 10;
/// The polled facts that an agent reads equally often in each cluster.
const POLLED: [(Source, &str); 2] = [(Source::Nodes, "Nodes"), (Source::NodePortRange, "the NodePort range")];

/// The list of all rules as a table, in reading order.
pub fn rules_table(style: &Style, headings: bool) -> String {
    let widest = IDS.iter().map(|id| id.name.0.len()).max().unwrap_or(0);
    let mut text = String::new();
    if headings {
        text.push_str(&style.paint(Ink::Heading, &format!("{:widest$}  WORST     FINDS", "RULE")));
        text.push('\n');
    }
    for id in IDS {
        let worst = style.paint(Ink::Bad(id.ceiling()), &format!("{:8}", id.ceiling()));
        text.push_str(&format!("{:widest$}  {worst}  {}\n", id.name, id.title));
    }
    text
}

fn variants(id: &Id) -> String {
    let patience = |variant: &Variant| {
        let rule = RULES.iter().find(|rule| rule.rows().have(id.name, variant.name));
        let of_nodes = rule.map(|rule| if rule.at_once { "at once" } else { "after two scans" });
        let is_reported = !variant.never_in_manifests && lint_rules().any(|rows| rows.have(id.name, variant.name));
        let of_manifests = is_reported.then_some("by `lint`");
        of_nodes.into_iter().chain(of_manifests).collect::<Vec<_>>().join(", ")
    };
    let severities = |variant: &Variant| {
        let on_nodes = variant.severities.iter().map(|it| it.name().to_owned());
        let others = variant.in_manifests.iter().map(|it| format!("{it} by `lint`"));
        on_nodes.chain(others).collect::<Vec<_>>().join(", ")
    };
    let cells =
        |variant: &Variant| [variant.name.to_owned(), severities(variant), patience(variant), variant.kind.to_string()];
    let row =
        |[name, severity, reported, by]: [String; 4]| format!("| {name:14} | {severity:23} | {reported:26} | {by} |\n");
    let rows: String = id.variants.iter().map(cells).map(row).collect();
    let heading = row(["variant", "severity", "reported", "decided by"].map(str::to_owned));
    format!("{heading}|---|---|---|---|\n{rows}")
}

/// One rule's page for a terminal.
pub fn rule_page_text(id: &Id, style: &Style) -> String {
    let width = style.width.clamp(40, 100);
    let mut text = format!("{}\n\n", style.paint(Ink::Heading, id.name.0));
    for part in parts(&documentation(id)) {
        match part {
            Part::Heading(heading) => text.push_str(&format!("{}\n", style.paint(Ink::Heading, &heading))),
            Part::Item(item) => text.push_str(&format!("- {}\n", wrap(&item, width - 2).join("\n  "))),
            Part::Paragraph(paragraph) => text.push_str(&format!("{}\n", wrap(&paragraph, width).join("\n"))),
            Part::Verbatim(line) => text.push_str(&format!("  {line}\n")),
            Part::Blank => text.push('\n'),
        }
    }
    text
}

/// One rule's page for the documentation, in Markdown.
pub fn rule_page_markdown(id: &Id) -> String {
    format!("# {}\n\n{}", id.name, documentation(id))
}

pub(super) fn documentation(id: &Id) -> String {
    format!("{}\n## Severity\n{}\nEvent reason: {}.\n{}", id.page, variants(id), id.name.reason(), age(id))
}

/// Sentences about facts that an agent does not read in each scan. Empty for a rule that uses no such facts.
fn age(id: &Id) -> String {
    let rules = RULES.iter().filter(|rule| rule.name() == id.name);
    let sources: BTreeSet<Source> = rules.flat_map(|rule| rule.needs.iter().chain(rule.uses)).copied().collect();
    let walks = sources.iter().any(|source| source.walks_connections());
    let polled: Vec<&str> =
        POLLED.into_iter().filter(|(source, _)| sources.contains(source)).map(|(_, words)| words).collect();
    let sentences = [
        walks.then(|| {
            let minutes = OLDEST_CONNECTIONS.as_secs() / 60;
            format!("In an agent's scan, connections may be up to {minutes} minutes old.")
        }),
        (!polled.is_empty()).then(|| format!("An agent reads {} every {POLL} minutes.", polled.join(" and "))),
        sources.contains(&Source::WaitingPods).then(|| {
            format!(
                "An agent reads waiting Pods every {POLL} minutes (every minute while Pods wait), and less often with more \
                 than 500 Nodes."
            )
        }),
    ];
    let sentences: Vec<String> = sentences.into_iter().flatten().collect();
    if sentences.is_empty() { String::new() } else { format!("\n{}\n", sentences.join(" ")) }
}

pub(super) enum Part {
    Heading(String),
    Paragraph(String),
    Item(String),
    Verbatim(String),
    Blank,
}

/// Parses the small subset of Markdown in pages: headings, paragraphs, lists, tables and fenced code.
pub(super) fn parts(markdown: &str) -> Vec<Part> {
    let mut parts: Vec<Part> = Vec::new();
    let mut fenced = false;
    for line in markdown.lines() {
        let trimmed = line.trim();
        if trimmed.starts_with("```") {
            fenced = !fenced;
        } else if fenced || trimmed.starts_with('|') {
            parts.push(Part::Verbatim(line.to_owned()));
        } else if let Some(heading) = trimmed.strip_prefix("## ").or_else(|| trimmed.strip_prefix("# ")) {
            parts.push(Part::Heading(heading.to_owned()));
        } else if let Some(item) = trimmed.strip_prefix("- ") {
            parts.push(Part::Item(item.to_owned()));
        } else if trimmed.is_empty() {
            parts.push(Part::Blank);
        } else if let Some(Part::Paragraph(text) | Part::Item(text)) = parts.last_mut() {
            text.push(' ');
            text.push_str(trimmed);
        } else {
            parts.push(Part::Paragraph(trimmed.to_owned()));
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_of_a_rule_about_connections_says_how_old_they_may_be() {
        let line = "\nIn an agent's scan, connections may be up to 20 minutes old.\n";
        let dated = IDS.iter().filter(|id| documentation(id).ends_with(line)).map(|id| id.name.0);
        let wanted = "connection-on-port health-check-unserved ephemeral-ports-near-exhaustion masquerade-source-ports";
        assert_eq!(dated.collect::<Vec<_>>().join(" "), wanted);
    }

    #[test]
    fn the_page_of_a_rule_about_polled_facts_says_how_often_an_agent_reads_them() {
        let polled = IDS.iter().filter_map(|id| {
            let page = documentation(id);
            let (_, polled) = page.split_once("\nAn agent reads ")?;
            Some((id.name.0, polled.split_once(" every 10 minutes")?.0.to_owned()))
        });
        let wanted = [
            ("listener-on-node-port", "the NodePort range"),
            ("address-held-twice", "Nodes"),
            ("host-port-conflict", "Nodes and the NodePort range"),
            ("pod-waits-for-port", "waiting Pods"),
            ("ephemeral-range-overlap", "the NodePort range"),
            ("node-port-range-crowded", "the NodePort range"),
            ("node-port-range-mismatch", "the NodePort range"),
        ];
        assert_eq!(polled.collect::<Vec<_>>(), wanted.map(|(id, facts)| (id, facts.to_owned())));
    }
}
