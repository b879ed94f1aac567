//! Every rule of manifests.

use super::port_field_refused;
use crate::{
    OF_MANIFESTS,
    ids::{Named, Rows},
};

/// The variants that may be found in manifests. Most rules also judge live objects, and judge here the objects that the manifests would
/// make. One rule only finds refused fields of manifests.
pub fn lint_rules() -> impl Iterator<Item = Rows> {
    OF_MANIFESTS.iter().map(|rule| rule.rows()).chain([port_field_refused::ROWS])
}

/// The id or variant with this name, `ID` or `ID/VARIANT`, if a rule of manifests may find it.
pub fn named_of_manifests(text: &str) -> Option<Named> {
    let named = Named::parse(text)?;
    lint_rules().any(|rows| named.names_any(rows.rule.0, rows.variants)).then_some(named)
}
