//! `explain`: the page of a rule, or the list of all rules.

use std::process::ExitCode;

use clap::builder::PossibleValue;

use super::{
    console::Console,
    words::{Words, wanted},
};
use portreeve_report::{rule_page_text, rules_table};
use portreeve_rules::ids::{IDS, Named};

/// The alerts. The page of an alert is its runbook.
const ALERTS: [&str; 19] = [
    "KubeProxyFdsNearLimit",
    "NodeConntrackNearlyFull",
    "NodeFdsNearLimit",
    "NodePortAllocationFails",
    "NodePortRangeNearlyFull",
    "PortreeveAgentAbsent",
    "PortreeveAgentBlind",
    "PortreeveAgentStuck",
    "PortreeveClusterViewStale",
    "PortreeveConfigInvalid",
    "PortreeveCriticalFinding",
    "PortreeveEphemeralPortsRunOut",
    "PortreeveGuardPortsNotReserved",
    "PortreeveGuardStuck",
    "PortreeveInfoFinding",
    "PortreeveNodePortRangeFilling",
    "PortreeveProxyFdsNearLimit",
    "PortreeveWarningFinding",
    "ServiceExternalIPIsNodeAddress",
];

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The rule's id, or ID/VARIANT for one variant. Without an id, all rules are listed
    #[arg(value_name = "RULE", value_parser = WORDS, hide_possible_values = true)]
    id: Option<Named>,
    /// Leave out the headings of the list
    #[arg(long)]
    no_headers: bool,
}

const WORDS: Words<Named> = Words { words: rule_words, parse: rule };

pub(super) fn rule_words() -> Vec<PossibleValue> {
    IDS.iter().map(|id| PossibleValue::new(id.name.0).help(id.title)).collect()
}

fn rule(text: &str) -> Result<Named, String> {
    Named::parse(text).ok_or_else(|| match ALERTS.iter().find(|alert| alert.eq_ignore_ascii_case(text)) {
        Some(alert) => format!("{alert} is an alert, not a rule; its runbook is docs/runbooks/{alert}.md"),
        None => {
            let words: Vec<PossibleValue> = rule_words().into_iter().chain(ALERTS.map(PossibleValue::new)).collect();
            wanted("no rule has this name; `explain` without a name lists all rules", text, &words)
        }
    })
}

pub(super) fn run(args: &Args, console: &Console) -> anyhow::Result<ExitCode> {
    let Args { id, no_headers } = args;
    let page = match id {
        None => rules_table(&console.style, !no_headers),
        Some(named) => rule_page_text(named.id, &console.style),
    };
    console.write(|out| out.write_all(page.as_bytes()))?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, path::Path};

    #[test]
    fn every_alert_has_a_runbook() {
        let runbooks = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/runbooks");
        let pages = fs::read_dir(runbooks).expect("runbooks").map(|it| it.expect("a page").file_name());
        let mut pages: Vec<String> = pages.filter_map(|it| it.into_string().ok()).collect();
        pages.retain(|page| page != "README.md");
        pages.sort();
        assert_eq!(pages, ALERTS.map(|alert| format!("{alert}.md")));
    }
}
