//! What must hold for every rule.

use std::collections::BTreeSet;

use super::*;

#[test]
fn ids_are_unique_kebab_case_words() {
    let mut seen = BTreeSet::new();
    for rule in RULES {
        assert!(seen.insert(rule.id), "{} twice", rule.id);
        assert!(rule.id.0.split('-').all(|word| !word.is_empty() && word.chars().all(|c| c.is_ascii_lowercase())));
    }
}

#[test]
fn every_page_says_what_why_when_silent_and_how_to_fix() {
    for rule in RULES {
        let page = rule.documentation();
        for heading in ["## Why it hurts", "## Silent when", "## Fix"] {
            assert!(page.contains(heading), "{}: {heading} is missing", rule.id);
        }
        let file = format!("static RULE: Rule = Rule {{\n    id: RuleId(\"{}\")", rule.id);
        assert!(rule.page.contains(&file), "{}: `page` is not its own file", rule.id);
    }
}
