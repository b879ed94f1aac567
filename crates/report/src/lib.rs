//! Reports of findings. One scan becomes a table, a document for programs, or a picture. Many nodes become one report.
//!
//! This crate does not judge ports, and does not block the agent's loop.
//!
//! From the crate `rules`, this crate uses only the catalogue (titles, pages), the use of ports, the reserved ports and
//! the parameters of policies. From the crate `dataplane`, this crate uses only the owner of a port.

mod declared;
mod findings_document;
mod fleet;
mod html_page;
mod indented_json;
mod junit;
mod junit_suite;
mod likeness;
mod lint;
mod map;
mod names;
mod npd;
mod outcome;
mod owner;
mod owners;
mod policies;
mod port_argument;
mod ports_document;
mod remedies;
mod report;
mod reported_gaps;
mod reservation;
mod rule_pages;
mod sarif;
mod scan_age;
mod setting;
mod table;
mod terminal;
mod topic;
mod what_if;

pub use declared::{DeclaredReport, look_once, write_declared, write_declared_json};
pub use findings_document::{Problem, Unknown, Value, findings_schema, write_json, write_yaml};
pub use fleet::{AgentAnswer, Fleet, Gathering, Stopped, Wanted, listed};
pub use html_page::{PageDetail, write_html_page, write_html_rule_page};
pub use junit::write_junit;
pub use likeness::gaps_alike;
pub use lint::{
    is_undecided, lint_result, lint_schema, without_commands, write_annotations, write_lint_json, write_lint_junit,
    write_lint_sarif, write_lint_yaml,
};
pub use map::{map_result, write_map, write_svg};
pub use names::{counted, first_nodes};
pub use npd::{NPD_LINE, npd_line};
pub use outcome::{CheckResult, Open, answer_outcome, clear_in_words, is_everywhere};
pub use owner::{NodeOwner, PortOwner, owner_schema, owners_result, write_owner, write_owner_json};
pub use owners::write_owners;
pub use policies::{PolicyChoices, write_policies, write_policy_values};
pub use port_argument::PortArgument;
pub use ports_document::{NodeScan, free_ports_result, ports_schema, write_free_ports_json, write_map_json};
pub use report::{Report, unread_in_words};
pub use reported_gaps::ReportedGap;
pub use reservation::{
    ReservationForm, ReservationReport, reservation_file, write_reservation, write_reservation_json,
};
pub use rule_pages::{rule_page_markdown, rule_page_text, rules_table};
pub use sarif::write_sarif;
pub use scan_age::{LONGEST_INTERVAL, OLDEST_CONNECTIONS, ScanAge};
pub use setting::{KEYS, Setting};
pub use table::{
    nothing_judged, write_fleet_rows, write_fleet_table, write_lint_rows, write_lint_table, write_rows, write_table,
};
pub use terminal::{Ink, Style, tidy, wrap};
pub use what_if::{WhatIf, WhatIfDocument};

#[cfg(test)]
mod tests;
