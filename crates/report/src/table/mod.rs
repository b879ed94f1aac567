//! The table of one node, or of many nodes.

mod findings;
mod fleet;
mod manifests;
mod not_read;
mod one_node;
mod page;
mod rows;
mod what_if;

pub use self::{
    fleet::{write_fleet_rows, write_fleet_table},
    manifests::{nothing_judged, write_lint_rows, write_lint_table},
    one_node::{write_rows, write_table},
};
pub(super) use self::{
    not_read::{gap_groups, not_judged},
    one_node::{proxy, range, severities},
    rows::port,
};
