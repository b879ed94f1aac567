//! All nodes of the tests: recorded nodes and example nodes. Some tests check all these nodes.

use std::{collections::BTreeMap, fs};

use portreeve_agent::judge;
use portreeve_facts::{Protocol, Snapshot};
use portreeve_rules::{
    Limits, RULES,
    findings::{Finding, Key, RuleId, Severity},
    ledger::Board,
};

use crate::{
    agreement, effects, order, snapshots,
    unread::{self, Reasons},
    verdicts, worlds,
};

/// Recorded snapshots, healthy example nodes, example nodes at later moments, and example nodes with one fault.
pub(crate) fn small() -> Vec<(String, Snapshot)> {
    let recorded = snapshots::paths().map(|(name, path)| {
        let bytes = fs::read(&path).expect("a recorded snapshot");
        (name, Snapshot::from_json(&bytes).expect("a snapshot"))
    });
    recorded.chain(worlds::snapshots()).chain(worlds::later()).chain(worlds::sick()).map(in_order).collect()
}

/// The nodes on which packets were recorded. Each node has a listener for every shape of Service.
pub(crate) fn of_cells() -> impl Iterator<Item = (String, Snapshot)> {
    let recorded = verdicts::recordings().into_iter().map(|(name, _, snapshot)| (name, snapshot));
    recorded.chain(verdicts::behind_cilium()).map(in_order)
}

/// One or two recorded nodes for each data plane, because all recorded nodes would take too long.
pub(crate) fn one_of_each_plane() -> impl Iterator<Item = (String, Snapshot)> {
    const NAMES: [&str; 5] = ["iptables-default", "ipvs-default", "nftables-default", "cilium/default", "cilium/apart"];
    of_cells().filter(|(name, _)| NAMES.contains(&name.as_str()))
}

fn in_order((name, mut snapshot): (String, Snapshot)) -> (String, Snapshot) {
    snapshot.cluster = snapshot.cluster.in_order();
    (name, snapshot)
}

pub(crate) fn board(snapshot: &Snapshot) -> Board {
    judge(snapshot, &Limits::default())
}

/// The name of the rule that reports this variant of an id. A rule is named by its id and its first variant.
pub(crate) fn reported_by(id: RuleId, variant: &str) -> String {
    let of = RULES.iter().find(|rule| rule.name() == id && rule.variants.contains(&variant)).expect("a rule");
    format!("{id}/{}", of.variants[0])
}

/// The identity of a finding for comparisons: rule, subject and port.
pub(crate) fn pair(Key { rule, variant, subject, port, protocol }: &Key) -> String {
    let rule = reported_by(*rule, variant);
    let at = port.map(|port| format!(" {port}")).unwrap_or_default();
    let over = protocol.map(|it| format!("/{it}")).unwrap_or_default();
    format!("{rule} {subject}{at}{over}")
}

/// For each identity ([`pair`]), the highest severity of its findings.
pub(crate) fn severities(findings: &[Finding]) -> BTreeMap<String, Severity> {
    let mut all = BTreeMap::new();
    for finding in findings {
        let severity = all.entry(pair(&finding.key)).or_insert(finding.evidence.severity);
        *severity = finding.evidence.severity.max(*severity);
    }
    all
}

pub(crate) fn ports(findings: &[Finding]) -> Vec<(u16, Protocol)> {
    let mut ports: Vec<_> = findings.iter().filter_map(|it| Some((it.key.port?, it.key.protocol?))).collect();
    ports.sort_unstable();
    ports.dedup();
    ports
}

#[track_caller]
pub(crate) fn keeps_what_has_to_hold(snapshot: &Snapshot) {
    let (name, snapshot) = in_order(("the node".to_owned(), snapshot.clone()));
    let wrong = wrong_about(&name, &snapshot, Reasons::One);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn wrong_about(name: &str, snapshot: &Snapshot, reasons: Reasons) -> Vec<String> {
    let board = board(snapshot);
    let mut wrong = order::told_otherwise(name, snapshot, &[1]);
    wrong.extend(order::replayed_otherwise(name, snapshot));
    unread::more_certain(name, snapshot, reasons, &mut wrong);
    wrong.extend(agreement::disagreements(snapshot, &board).0);
    wrong.extend(effects::wrong_remedies(snapshot, &board).0);
    wrong.extend(effects::numbers_told_twice(&board));
    wrong
}

/// Only `tests/nightly` runs these tests, because together they need minutes.
mod over_every_recording {
    use super::*;

    #[track_caller]
    fn keeps_what_has_to_hold(data_plane: &str, reasons: Reasons) {
        let nodes: Vec<_> = of_cells().filter(|(name, _)| name.starts_with(data_plane)).collect();
        assert!(nodes.len() > 1, "{} recordings", nodes.len());
        let wrong_about = |(name, node): (String, Snapshot)| {
            wrong_about(&name, &node, reasons).into_iter().map(move |wrong| format!("{name}: {wrong}"))
        };
        let wrong: Vec<String> = nodes.into_iter().flat_map(wrong_about).collect();
        assert!(wrong.is_empty(), "{}\n{}", wrong.len(), wrong.join("\n"));
    }

    #[test]
    fn of_iptables() {
        keeps_what_has_to_hold("iptables", Reasons::All);
    }

    #[test]
    fn of_ipvs() {
        keeps_what_has_to_hold("ipvs", Reasons::All);
    }

    #[test]
    fn of_nftables() {
        keeps_what_has_to_hold("nftables", Reasons::All);
    }

    #[test]
    fn of_cilium() {
        // All reasons would take more than ten minutes.
        keeps_what_has_to_hold("cilium", Reasons::One);
    }
}
