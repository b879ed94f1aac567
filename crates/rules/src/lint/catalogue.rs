//! Every rule of manifests.

use super::port_field_refused;
use crate::{
    OF_MANIFESTS,
    ids::{Named, Rows},
};

/// What may be found in manifests: by rules of objects that are there, which judge what the manifests would make, and of manifests
/// alone that a field is refused.
pub fn lint_rules() -> impl Iterator<Item = Rows> {
    OF_MANIFESTS.iter().map(|rule| rule.rows()).chain([port_field_refused::ROWS])
}

/// What this names, `ID` or `ID/VARIANT`, if a rule of manifests may find it.
pub fn named_of_manifests(text: &str) -> Option<Named> {
    let named = Named::parse(text)?;
    lint_rules().any(|rows| named.names_any(rows.rule.0, rows.variants)).then_some(named)
}
