//! Every rule of manifests.

use super::{listener_on_port, port_field_refused, rule::LintRule};
use crate::{OF_MANIFESTS, ids::Named};

/// The rules that look at manifests alone.
static OWN: &[&[LintRule]] = &[&[port_field_refused::RULE], &listener_on_port::RULES];

/// Every rule: first those of objects that are there, which judge manifests too.
pub fn lint_rules() -> impl Iterator<Item = LintRule> {
    OF_MANIFESTS.iter().map(|rule| LintRule::shared(rule)).chain(OWN.iter().copied().flatten().copied())
}

/// What this names, `ID` or `ID/VARIANT`, if a rule of manifests may find it.
pub fn named_of_manifests(text: &str) -> Option<Named> {
    let named = Named::parse(text)?;
    lint_rules().any(|rule| named.names_any(rule.name().0, rule.variants)).then_some(named)
}
