//! The rules, for a person: a list, a page in the terminal, a page in Markdown.

use super::{
    Style,
    terminal::{Ink, wrap},
};
use portreeve_rules::{
    findings::{RuleId, Severity},
    lint::{LintRule, lint_rules},
    {Patience, RULES, Rule},
};

/// What is written of one rule: of nodes, or of manifests alone.
#[derive(Clone, Debug)]
pub struct RulePage {
    /// Its name.
    pub id: RuleId,
    /// Its title.
    pub title: &'static str,
    /// The worst severity that it reports.
    pub ceiling: Severity,
    /// When and how it is reported.
    facts: String,
    /// Its documentation in Markdown.
    documentation: String,
}

/// The pages of rules of nodes, in reading order.
pub fn pages_of_nodes() -> impl Iterator<Item = RulePage> {
    RULES.iter().map(|rule| RulePage::of_nodes(rule))
}

/// The pages of rules of manifests alone, in reading order.
pub fn pages_of_manifests() -> impl Iterator<Item = RulePage> {
    lint_rules().filter(LintRule::is_own).map(|rule| RulePage::of_manifests(&rule))
}

/// The catalogue as a table, in reading order.
pub fn rules_table(style: &Style, headings: bool) -> String {
    let pages: Vec<RulePage> = pages_of_nodes().chain(pages_of_manifests()).collect();
    let widest = pages.iter().map(|page| page.id.0.len()).max().unwrap_or(0);
    let mut text = String::new();
    if headings {
        text.push_str(&style.paint(Ink::Heading, &format!("{:widest$}  WORST     FINDS", "RULE")));
        text.push('\n');
    }
    for RulePage { id, title, ceiling, .. } in pages {
        let worst = style.paint(Ink::Bad(ceiling), &format!("{ceiling:8}"));
        text.push_str(&format!("{id:widest$}  {worst}  {title}\n"));
    }
    text
}

/// One rule's page for a terminal.
pub fn rule_page_text(page: &RulePage, style: &Style) -> String {
    let width = style.width.clamp(40, 100);
    let mut text = format!("{}\n{}\n\n", style.paint(Ink::Heading, page.id.0), style.paint(Ink::Faint, &page.facts));
    for part in parts(&page.documentation) {
        match part {
            Part::Heading(heading) => text.push_str(&format!("{}\n", style.paint(Ink::Heading, &heading))),
            Part::Item(item) => {
                for (index, line) in wrap(&item, width - 2).into_iter().enumerate() {
                    text.push_str(if index == 0 { "- " } else { "  " });
                    text.push_str(&line);
                    text.push('\n');
                }
            }
            Part::Paragraph(paragraph) => {
                for line in wrap(&paragraph, width) {
                    text.push_str(&line);
                    text.push('\n');
                }
            }
            Part::Verbatim(line) => text.push_str(&format!("  {line}\n")),
            Part::Blank => text.push('\n'),
        }
    }
    text
}

/// One rule's page for the documentation, in Markdown.
pub fn rule_page_markdown(page: &RulePage) -> String {
    format!("# {}\n\n{}\n\n{}", page.id, page.facts, page.documentation)
}

impl RulePage {
    fn of_nodes(rule: &Rule) -> Self {
        let patience = match rule.patience {
            Patience::One => "at once",
            Patience::TwoScans => "after two scans",
        };
        let reason = rule.id.reason();
        Self {
            id: rule.id,
            title: rule.title,
            ceiling: rule.ceiling,
            facts: format!("Worst: {}. Event reason: {reason}. Reported {patience}.", rule.ceiling),
            documentation: rule.documentation(),
        }
    }

    fn of_manifests(rule: &LintRule) -> Self {
        Self {
            id: rule.id,
            title: rule.title,
            ceiling: rule.ceiling,
            facts: format!("Worst: {}. Told of manifests by `lint` alone.", rule.ceiling),
            documentation: rule.documentation(),
        }
    }
}

/// A piece of a page.
enum Part {
    Heading(String),
    Paragraph(String),
    Item(String),
    Verbatim(String),
    Blank,
}

/// Reads the little Markdown that pages use: headings, paragraphs, lists, tables and fenced code.
fn parts(markdown: &str) -> Vec<Part> {
    let mut parts: Vec<Part> = Vec::new();
    let mut fenced = false;
    let mut open = false;
    for line in markdown.lines() {
        let trimmed = line.trim();
        if trimmed.starts_with("```") {
            fenced = !fenced;
            open = false;
        } else if fenced || trimmed.starts_with('|') {
            parts.push(Part::Verbatim(line.to_owned()));
            open = false;
        } else if let Some(heading) = trimmed.strip_prefix("## ").or_else(|| trimmed.strip_prefix("# ")) {
            parts.push(Part::Heading(heading.to_owned()));
            open = false;
        } else if let Some(item) = trimmed.strip_prefix("- ") {
            parts.push(Part::Item(item.to_owned()));
            open = true;
        } else if trimmed.is_empty() {
            parts.push(Part::Blank);
            open = false;
        } else if let (true, Some(Part::Paragraph(text) | Part::Item(text))) = (open, parts.last_mut()) {
            text.push(' ');
            text.push_str(trimmed);
        } else {
            parts.push(Part::Paragraph(trimmed.to_owned()));
            open = true;
        }
    }
    parts
}
