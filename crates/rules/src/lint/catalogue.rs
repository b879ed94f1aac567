//! Every rule of manifests.

use super::port_field_refused;
use crate::{
    OF_MANIFESTS,
    ids::{Named, Rows},
};

/// The variants that rules may find in manifests. Most of these rules judge live objects too, and treat the objects of
/// manifests like existing objects. One rule finds fields that the API server refuses.
pub fn lint_rules() -> impl Iterator<Item = Rows> {
    OF_MANIFESTS.iter().map(|rule| rule.rows()).chain([port_field_refused::ROWS])
}

/// The id or variant with this name (`ID` or `ID/VARIANT`), if a rule may find it in manifests.
pub fn named_of_manifests(text: &str) -> Option<Named> {
    let named = Named::parse(text)?;
    lint_rules().any(|rows| named.names_any(rows.rule.0, rows.variants)).then_some(named)
}
