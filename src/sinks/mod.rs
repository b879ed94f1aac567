//! Tells: one look as a table, as documents for machines and as a picture; findings over time as Events and metrics.
//!
//! Never: decides whether something is wrong; blocks the loop.
//!
//! Of the rules only their catalogue and what they make of ports are known here: titles, pages, who uses which port, who owns one.

mod catalogue;
mod document;
pub mod events;
mod fleet;
mod indented;
mod junit;
mod map;
pub mod metrics;
mod npd;
mod owner;
mod owners;
mod page;
mod paint;
mod remedies;
mod report;
mod sarif;
mod table;
mod unseen;
mod xml;

pub use catalogue::{catalogue, explanation, handbook_page};
pub use document::{Document, document_schema, write_json, write_yaml};
pub use fleet::{Fleet, Heard, Wanted, fleet_schema, listed};
pub use junit::write_junit;
pub use map::{write_map, write_svg};
pub use npd::{NPD_LINE, npd_line};
pub use owner::{owner_schema, write_owner, write_owner_json};
pub use owners::{NodeOwner, owners_schema, write_owners, write_owners_json};
pub use page::write_page;
pub use paint::Style;
#[cfg(target_os = "linux")] // for `demo`
pub(crate) use paint::{Ink, tidy, wrap};
pub use report::{Outcome, Report};
pub use sarif::write_sarif;
pub use table::{write_fleet_rows, write_fleet_table, write_fleet_wide, write_rows, write_table, write_wide};
pub use unseen::Unseen;

#[cfg(test)]
mod tests;
