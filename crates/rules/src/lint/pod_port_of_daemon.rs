//! A pod wants a port of the node that a daemon of most nodes has.

use std::sync::LazyLock;

use super::{Linted, rule::LintRule};
use crate::findings::{
    Evidence, PlacedFinding,
    Severity::{self, Info, Warning},
    Step,
};
use crate::ids;
use portreeve_dataplane::{Role, usual_ports};
use portreeve_facts::Protocol;

pub(super) const RULE: LintRule = LintRule::new(&ids::HOST_NETWORK_PORT_TAKEN, &["daemon"], check);

/// Ports that daemons have unless they are told others. Without kubelet the node is lost.
static DAEMONS: LazyLock<Vec<(u16, Protocol, &str, Severity)>> = LazyLock::new(|| {
    let severity = |of| if of == "kubelet" { Warning } else { Info };
    usual_ports(Role::Told).map(|it| (it.number, it.protocol, it.of, severity(it.of))).collect()
});

fn check(linted: &Linted) -> Vec<PlacedFinding> {
    let mut findings = Vec::new();
    for (manifest, claim) in linted.claims() {
        let Some(wanted) = claim.what.of_pods() else { continue };
        let daemon = DAEMONS.iter().find(|(number, protocol, ..)| (*number, *protocol) == wanted);
        let Some((number, protocol, name, severity)) = daemon else { continue };
        let summary =
            format!("port {number}/{protocol} of {manifest} is the node's, and where {name} runs, it has that port.");
        let evidence = Evidence::new(*severity, summary)
            .value("daemon", name)
            .remedy(Step::advice(format!("give {manifest} another port of the node than {number}/{protocol}")));
        findings.push(linted.finding(RULE.name(), (manifest, claim), evidence));
    }
    findings
}
