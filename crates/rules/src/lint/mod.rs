//! Manifests before they are applied: what the API server will refuse, and what will conflict once it is there.
//!
//! Never: reads a file or a cluster, remembers, logs. What holds of objects that are there already is a rule of `rules`, which
//! judges here what the manifests would make; rules of this module are about manifests alone.
//!
//! `docs/lint.md`.

mod accepted;
mod around;
mod catalogue;
mod linted;
mod listener_on_port;
mod port_field_refused;
mod report;
mod rule;
mod shared;
mod templates;

pub use accepted::{judge_acceptance, without_accepted};
pub use around::{range, unread};
pub use catalogue::{lint_rules, named_of_manifests};
pub use linted::{Linted, Source};
pub use report::{Found, LintReport, lint};
pub use rule::LintRule;
pub use templates::Told;
