//! Manifests before they are applied: what the API server will refuse, and what will conflict once it is there.
//!
//! Never: reads a file or a cluster, remembers, logs. What conflicts is said by rules of objects that are there, which judge here what
//! the manifests would make; what the API server refuses, by `port_field_refused.rs`.
//!
//! To have a rule judge manifests, add it to `OF_MANIFESTS`, say with its evidence which fields it is `about`, and add its variants to
//! `docs/lint.md`.

mod accepted;
mod around;
mod catalogue;
mod linted;
mod port_field_refused;
mod report;
mod shared;

pub use accepted::{judge_acceptance, without_accepted};
pub use around::{range, unread};
pub use catalogue::{lint_rules, named_of_manifests};
pub use linted::{Linted, Source};
pub use report::{Found, LintReport, lint};
