//! The rules, for a person: a list, a page in the terminal, a page in Markdown.

use super::{
    Style,
    terminal::{Ink, wrap},
};
use crate::rules::{Patience, RULES, Rule};

/// The catalogue as a table, in reading order.
pub fn rules_table(style: &Style, headings: bool) -> String {
    let widest = RULES.iter().map(|rule| rule.id.0.len()).max().unwrap_or(0);
    let mut text = String::new();
    if headings {
        text.push_str(&style.paint(Ink::Heading, &format!("{:widest$}  WORST     FINDS", "RULE")));
        text.push('\n');
    }
    for rule in RULES {
        let worst = style.paint(Ink::Bad(rule.ceiling), &format!("{:8}", rule.ceiling));
        text.push_str(&format!("{:widest$}  {worst}  {}\n", rule.id, rule.title));
    }
    text
}

/// One rule's page for a terminal.
pub fn rule_page_text(rule: &Rule, style: &Style) -> String {
    let width = style.width.clamp(40, 100);
    let mut text = format!("{}\n{}\n\n", style.paint(Ink::Heading, rule.id.0), style.paint(Ink::Faint, &facts(rule)));
    for part in parts(&rule.documentation()) {
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
pub fn rule_page_markdown(rule: &Rule) -> String {
    format!("# {}\n\n{}\n\n{}", rule.id, facts(rule), rule.documentation())
}

fn facts(rule: &Rule) -> String {
    let patience = match rule.patience {
        Patience::One => "at once",
        Patience::TwoScans => "after two scans",
    };
    format!("Worst: {}. Event reason: {}. Reported {patience}.", rule.ceiling, rule.id.reason())
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
