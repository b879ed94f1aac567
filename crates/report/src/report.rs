//! What every report reads: one look, its board, and how severe a finding must be to count.

use super::{
    ReportedGap,
    reported_gaps::{self, is_failure},
    topic::topic,
};
use portreeve_facts::{Gap, Snapshot, Source};
use portreeve_rules::{
    findings::{Finding, Severity, SubjectKind},
    ledger::Board,
    {RULES, Rule},
};

/// One snapshot and its findings, ready to be printed.
#[derive(Clone, Copy, Debug)]
pub struct Report<'a> {
    /// What was seen.
    pub snapshot: &'a Snapshot,
    /// What is wrong, and which rules have no answer.
    pub board: &'a Board,
    /// Findings milder than this are neither reported nor counted. Where nothing was chosen, all are reported, and those
    /// from [`Severity::Warning`] on count.
    pub min_severity: Option<Severity>,
    /// The rules that were run.
    pub rules: &'a [&'static Rule],
}

/// The result of a check; its number is the exit code of `check`, and of a node-problem-detector plugin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckResult {
    /// Nothing that counts.
    Clear = 0,
    /// Findings that count.
    Findings = 1,
    /// No findings, but something that had to be readable was not.
    NotChecked = 2,
}

impl<'a> Report<'a> {
    /// Of every rule, and every finding.
    pub fn of(snapshot: &'a Snapshot, board: &'a Board) -> Self {
        Self { snapshot, board, min_severity: None, rules: RULES }
    }

    /// The findings that are reported, worst first.
    pub fn findings(&self) -> impl Iterator<Item = &'a Finding> {
        let mildest = self.min_severity.unwrap_or(Severity::Info);
        self.board.findings.iter().filter(move |finding| finding.evidence.severity >= mildest)
    }

    /// How many findings of a severity there are, reported or not.
    pub fn count(&self, severity: Severity) -> usize {
        self.board.findings.iter().filter(|finding| finding.evidence.severity == severity).count()
    }

    /// Whether there is a finding that counts, else whether all could be looked at that had to be.
    pub fn result(&self) -> CheckResult {
        let counts = self.min_severity.unwrap_or(Severity::Warning);
        if self.board.findings.iter().any(|finding| finding.evidence.severity >= counts) {
            CheckResult::Findings
        } else if self.failures().is_empty() {
            CheckResult::Clear
        } else {
            CheckResult::NotChecked
        }
    }

    /// What had to be readable and was not, each reason once: a configured cluster, and the core of the node: sockets,
    /// addresses, settings. Nothing excuses sockets and addresses, which no profile hides; without them no port was
    /// compared with anything. Then rules that failed, and what had to be decided and was not: whether a listener on a
    /// NodePort is a conflict, where nobody names the proxy's mode.
    pub fn failures(&self) -> Vec<&'a Gap> {
        let cluster = &self.snapshot.cluster;
        let mut failures: Vec<&Gap> = Vec::new();
        if cluster.configured {
            failures.extend(cluster.services.gap());
            failures.extend(cluster.endpoint_slices.gap().filter(|gap| is_failure(gap.source, gap.why)));
            failures.extend(cluster.rejected.iter().filter(|gap| is_failure(gap.source, gap.why)));
        }
        failures.extend(unread_core(self.snapshot));
        failures.extend(&self.board.failed);
        failures.extend(self.undecided());
        let mut known = Vec::new();
        failures.retain(|gap| {
            !known.contains(gap) && {
                known.push(*gap);
                true
            }
        });
        failures
    }

    /// The mode that nobody names, where what a listener on a port of a Service gets depends on it.
    fn undecided(&self) -> Option<&'a Gap> {
        let mode = self.snapshot.proxy_mode().err()?;
        let of_listeners = |id| self.rules.iter().any(|rule| rule.id == id && rule.needs.contains(&Source::Listeners));
        let undecided = self.board.unknown.iter().find(|unknown| {
            let of_service = unknown.subject.as_ref().is_some_and(|subject| subject.kind == SubjectKind::Service);
            of_service && unknown.gap == mode && of_listeners(unknown.rule)
        });
        undecided.map(|unknown| &unknown.gap)
    }

    /// Everything that was not read, and every rule without an answer.
    pub fn gaps(&self) -> Vec<ReportedGap<'a>> {
        reported_gaps::reported_gaps(self.snapshot, self.board)
    }
}

/// Why the core of a node could not be read, in one line.
pub fn unread_in_words(snapshot: &Snapshot) -> Option<String> {
    let gap = unread_core(snapshot).next()?;
    Some(format!("{} could not be read: {}", topic(gap.source, gap.why), gap.detail))
}

/// What was not read of the core of a node: sockets, addresses, settings.
fn unread_core(snapshot: &Snapshot) -> impl Iterator<Item = &Gap> {
    let kernel = &snapshot.kernel;
    let sysctls = &kernel.sysctls;
    let core = [
        kernel.unread_listeners(),
        kernel.interfaces.gap(),
        kernel.clients.gap(),
        sysctls.ip_local_port_range.gap(),
        sysctls.ip_local_reserved_ports.gap(),
        sysctls.route_localnet.gap(),
    ];
    core.into_iter().flatten().filter(|gap| is_failure(gap.source, gap.why))
}

#[cfg(test)]
mod tests {
    use super::*;
    use portreeve_facts::{Why, healthy::gap};
    use portreeve_rules::findings::{RuleId, Subject, Unknown};

    fn result(snapshot: &Snapshot, unknown: Vec<Unknown>) -> CheckResult {
        Report::of(snapshot, &Board { findings: Vec::new(), unknown, ..Board::default() }).result()
    }

    #[test]
    fn nothing_excuses_unread_sockets_and_addresses_and_the_reason_comes_first() {
        for why in [Why::NotPermitted, Why::NotSupported, Why::TimedOut, Why::Malformed, Why::TooMuch] {
            for source in [Source::Listeners, Source::Clients, Source::Addresses] {
                let mut world = Snapshot::healthy();
                let kernel = &mut world.kernel;
                match source {
                    Source::Listeners => kernel.listeners = gap(source, why),
                    Source::Clients => kernel.clients = gap(source, why),
                    _ => kernel.interfaces = gap(source, why),
                }
                let board = Board::default();
                let report = Report::of(&world, &board);
                assert_eq!(report.result(), CheckResult::NotChecked, "{source:?} {why:?}");
                assert_eq!(report.failures().first().map(|gap| gap.source), Some(source));
                assert!(report.gaps().iter().any(|it| it.gap.source == source), "it is listed");
            }
            let mut world = Snapshot::healthy();
            world.kernel.netfilter = gap(Source::Netfilter, why);
            world.kernel.pod_namespaces = gap(Source::PodNamespaces, why);
            assert_eq!(result(&world, Vec::new()), CheckResult::Clear, "{why:?}: what a profile may not see");
        }
        let mut world = Snapshot::healthy();
        world.kernel.clients = gap(Source::Clients, Why::NotAsked);
        assert_eq!(result(&world, Vec::new()), CheckResult::Clear, "nobody asked");
    }

    #[test]
    fn a_listener_on_a_node_port_is_not_clear_where_its_verdict_depends_on_a_mode_that_nobody_names() {
        let world = Snapshot::healthy().service("web", |it| it.node_port(30080)).without_proxy();
        let mode = world.proxy_mode().expect_err("nobody names it");
        let web = Subject::service(&world.cluster.services.get().expect("Services")[0]);
        let unknown = |rule, subject: &Subject, gap: &Gap| Unknown {
            rule: RuleId(rule),
            subject: Some(subject.clone()),
            gap: gap.clone(),
        };
        let result = |unknown: Unknown| result(&world, vec![unknown]);
        assert_eq!(result(unknown("listener-on-node-port", &web, &mode)), CheckResult::NotChecked);
        assert_eq!(result(unknown("listener-on-node-port", &Subject::node("n1", None), &mode)), CheckResult::Clear);
        assert_eq!(result(unknown("proxy-left-behind", &web, &mode)), CheckResult::Clear, "it is not about listeners");
        // As of a process that holds every NodePort, as OVN-Kubernetes does.
        let holder = Gap::new(Source::ProxyMode, Why::Ambiguous, "it may be one");
        assert_eq!(result(unknown("listener-on-node-port", &web, &holder)), CheckResult::Clear);
    }
}
