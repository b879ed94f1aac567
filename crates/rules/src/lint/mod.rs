//! Judges manifests before they are applied: objects that the API server will refuse, and objects that will conflict.
//!
//! This module has no I/O and no state: its caller reads the files and the cluster. Conflicts come from the rules for a
//! live cluster, which judge the objects that the manifests would make. Refusals come from `port_field_refused.rs` and
//! `moved_number.rs`.
//!
//! To make a rule judge manifests, add it to `OF_MANIFESTS`, name the fields with `about` in its evidence, and add its
//! variants to `docs/lint.md`.

mod accepted;
mod around;
mod catalogue;
mod linted;
mod moved_number;
mod port_field_refused;
mod report;
mod shared;

pub use accepted::{judge_acceptance, without_accepted};
pub use around::{doubt, range, unread};
pub use catalogue::{lint_rules, named_of_manifests};
pub use linted::{Linted, SUGGESTIONS};
pub use report::{Found, LintReport, lint};
