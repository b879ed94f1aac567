//! Selects the result of every command: *findings*, *clear* or *not checked*. Also decides which inputs may be missing
//! in a *clear* result.
//!
//! This file does not print, and does not judge ports.

use schemars::JsonSchema;
use serde::Serialize;

use super::{
    Report,
    findings_document::MOST_CLAIMS,
    topic::{help, reason_words, topic},
};
use portreeve_facts::{Gap, Source, Why};
use portreeve_rules::{findings::Severity, ids::Rows};

/// The result of a command. The number of the result is the exit code of the command and of a node-problem-detector
/// plugin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum CheckResult {
    /// All necessary input was judged, and no finding sets the result.
    Clear = 0,
    /// There are findings that set the result.
    Findings = 1,
    /// No finding sets the result, but a necessary input is missing or was not judged.
    NotChecked = 2,
}

/// The end of the sentence "no findings", if the result is clear but some rules could not judge.
pub(super) const NOT_ALL_READ: &str = ", but some input was not read";

/// An input that was not read, or a subject that was not judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Open {
    /// The highest severity that the rule could report. `None` if the missing input is listed without a rule.
    pub ceiling: Option<Severity>,
    /// The number of ports and objects that the rule could not judge. 0 if the rule judged nothing at all.
    pub claims: usize,
    /// The missing input.
    pub source: Source,
    /// The reason why the input is missing.
    pub why: Why,
}

impl Open {
    /// An unread input that does not belong to a rule.
    pub fn input(gap: &Gap) -> Self {
        Self { ceiling: None, claims: 0, source: gap.source, why: gap.why }
    }

    /// An unread input without which a rule cannot judge.
    pub fn of_rule(rows: Rows, claims: usize, gap: &Gap) -> Self {
        Self { ceiling: Some(rows.ceiling()), claims, ..Self::input(gap) }
    }

    /// An unread input that the answer of a command needs.
    pub fn of_answer(gap: &Gap) -> Self {
        Self { ceiling: Some(Severity::Critical), claims: 1, ..Self::input(gap) }
    }

    /// An unread input that may change an answer. If input was not requested, only Services change the answer, because
    /// every answer about ports needs Services. For unread redirections, `claims` is 0, as in the rule about leftover
    /// redirections.
    pub fn beside_answer(gap: &Gap) -> Self {
        match (gap.source, gap.why) {
            (source, Why::NotRequested) if source != Source::Services => Self::input(gap),
            (Source::Netfilter, _) => Self { claims: 0, ..Self::of_answer(gap) },
            _ => Self::of_answer(gap),
        }
    }

    /// Whether this input could hide a finding of at least the severity `counts`. If the input could hide a finding, a
    /// check without findings is not `Clear`.
    ///
    /// For an unread core input (`is_failure`), the function returns true. Core inputs are the Services, endpoints,
    /// sockets, addresses and settings of a node.
    ///
    /// For a port or an object that was not judged, the function returns true, except in three cases. First, the
    /// profile has no right to read the input. Second, the kernel does not report processes or pods. Third, a pod
    /// listens on all NodePorts, as pods of OVN-Kubernetes do.
    ///
    /// For a rule that judged nothing, the function returns true, unless `is_excused` returns true.
    pub fn decides(&self, counts: Severity) -> bool {
        if is_failure(self.source, self.why) {
            return true;
        }
        let may_hide = self.ceiling.is_some_and(|ceiling| ceiling >= counts);
        may_hide && if self.claims > 0 { !self.is_excused_for_claims() } else { !is_excused(self.source, self.why) }
    }

    fn is_excused_for_claims(&self) -> bool {
        match (self.source, self.why) {
            (_, Why::NotPermitted) | (Source::ProxyProcess, Why::Ambiguous) => true,
            (Source::Processes | Source::Cgroups | Source::PodNamespaces, why) => is_excused(self.source, why),
            _ => false,
        }
    }

    /// The unjudged part and the reason, in words: `3 ports or objects were not judged: proxy mode: no answer`.
    pub fn in_words(&self) -> String {
        let why = format!("{}: {}", topic(self.source, self.why), reason_words(self.why));
        match self.claims {
            0 => why,
            1 => format!("1 port or object was not judged: {why}"),
            claims if claims < MOST_CLAIMS => format!("{claims} ports or objects were not judged: {why}"),
            _ => format!("{MOST_CLAIMS} or more ports or objects were not judged: {why}"),
        }
    }

    fn help_in_words(&self, helps: bool) -> String {
        let help = help(self.source, self.why).filter(|_| helps).and_then(|help| help.lines().next());
        help.map(|help| format!(" ({})", help.trim_end_matches(" with the output of"))).unwrap_or_default()
    }
}

/// The result. `worst` is the worst severity among the reported findings. `counts` is the lowest severity that sets the
/// result. `is_open` returns whether unjudged input could hide a finding of at least this severity.
pub(super) fn outcome(worst: Option<Severity>, counts: Severity, is_open: impl FnOnce() -> bool) -> CheckResult {
    if worst >= Some(counts) {
        CheckResult::Findings
    } else if is_open() {
        CheckResult::NotChecked
    } else {
        CheckResult::Clear
    }
}

/// The result of a command that reports no findings, such as `map`. `lacks` is true if a whole part of the answer is
/// missing, for example a node.
pub fn answer_outcome(lacks: bool, open: impl IntoIterator<Item = Open>) -> CheckResult {
    let counts = Severity::Warning;
    outcome(None, counts, || lacks || open.into_iter().any(|it| it.decides(counts)))
}

/// The sentence for a result that no finding sets. The sentence also reports whether some input was not read.
pub fn clear_in_words(report: &Report<'_>) -> String {
    if report.not_judged().is_some() {
        return "no port conflicts found; some ports or rules not judged".to_owned();
    }
    if report.board.unknown.is_empty() {
        return "no port conflicts".to_owned();
    }
    let rules = report.rules_not_judged(false).map(|rules| format!("; {rules}"));
    format!("no port conflicts found{}", rules.as_deref().unwrap_or(NOT_ALL_READ))
}

/// The number of ports and objects that were not judged, with the most important reason. If `helps` is true, the text
/// names the flag with which a scan reads more.
pub(super) fn not_judged(open: impl IntoIterator<Item = Open>, helps: bool) -> Option<String> {
    let mut reasons: Vec<Open> = Vec::new();
    for open in open {
        match reasons.iter_mut().find(|it| (it.source, it.why) == (open.source, open.why)) {
            // An attacker who controls a node may report any number.
            Some(known) => known.claims = known.claims.saturating_add(open.claims),
            None => reasons.push(open),
        }
    }
    // An unread core input is named before inputs that depend on it.
    let named = reasons.iter().max_by_key(|it| (is_failure(it.source, it.why), it.claims))?;
    let more = match reasons.len() - 1 {
        0 => String::new(),
        1 => ", and 1 more reason".to_owned(),
        more => format!(", and {more} more reasons"),
    };
    Some(format!("{}{}{more}", named.in_words(), named.help_in_words(helps)))
}

/// The number of rules that judged nothing, in one line with the most frequent reason: `3 rules were not judged:
/// kube-proxy: no answer`. If `helps` is true, the text names the flag with which a scan reads more.
pub(super) fn rules_not_judged(open: impl IntoIterator<Item = Open>, helps: bool) -> Option<String> {
    let mut reasons: Vec<(Open, usize)> = Vec::new();
    for open in open.into_iter().filter(|it| it.ceiling.is_some() && it.claims == 0) {
        match reasons.iter_mut().find(|(it, _)| (it.source, it.why) == (open.source, open.why)) {
            Some((_, rules)) => *rules += 1,
            None => reasons.push((open, 1)),
        }
    }
    let rules: usize = reasons.iter().map(|(_, rules)| rules).sum();
    // If several reasons are equally frequent, the reason of the first rule is used.
    let (named, _) = reasons.iter().rev().max_by_key(|(_, rules)| *rules)?;
    let are = if rules == 1 { "1 rule was" } else { &format!("{rules} rules were") };
    let more = if reasons.len() > 1 { ", and others" } else { "" };
    Some(format!("{are} not judged: {}{}{more}", named.in_words(), named.help_in_words(helps)))
}

/// Whether the result may be clear if a rule judged nothing because this input is missing. The result may be clear in
/// four cases: a right is missing, the kernel or the proxy lacks a feature, the input was not requested, or several
/// values are possible. If kube-proxy does not answer, the result may also be clear without the mode, the settings or
/// the health checks of kube-proxy. If an input that is everywhere seems to be absent, the result is not clear. The
/// metrics and the process of kube-proxy may always be missing.
pub(super) fn is_excused(source: Source, why: Why) -> bool {
    match why {
        Why::NotPermitted | Why::NotRequested | Why::Ambiguous => true,
        Why::NotSupported => !is_everywhere(source),
        Why::Unreachable => {
            matches!(source, Source::ProxyMode | Source::ProxyConfig | Source::HealthChecks) || is_of_proxy(source)
        }
        _ => is_of_proxy(source),
    }
}

/// On many nodes, Portreeve cannot read the metrics or the process of kube-proxy.
fn is_of_proxy(source: Source) -> bool {
    matches!(source, Source::ProxyMetrics | Source::ProxyProcess)
}

/// Whether every API server has these objects, or every kernel has this source. So an input that is not there is a
/// failure: for example, `/proc/sys` is hidden.
pub fn is_everywhere(source: Source) -> bool {
    let is_of_every_cluster =
        matches!(source, Source::Services | Source::EndpointSlices | Source::Pods | Source::Nodes);
    is_of_every_cluster || is_indispensable(source) || source == Source::Sysctls
}

/// Whether every judgement of a node needs this source. Every kernel has this source, and every profile has the right
/// to read it.
pub(super) fn is_indispensable(source: Source) -> bool {
    matches!(source, Source::Listeners | Source::Clients | Source::Addresses)
}

/// Whether a check fails without this input. The core inputs are Services, endpoints, sockets, addresses, settings and
/// agents. Without a core input, the check fails, unless the input was not requested or has several possible values. If
/// a right is missing, the check fails only for Services, sockets and addresses. If a feature is missing, the check
/// fails only for Services, endpoints, sockets, addresses and settings. A broken object that was left out is a failure.
/// A node without a Node object, or with several Node objects, is also a failure.
pub(super) fn is_failure(source: Source, why: Why) -> bool {
    let excused = match why {
        Why::NotRequested => true,
        // The input was read, but it has several possible values.
        Why::Ambiguous => true,
        Why::NotPermitted => !is_indispensable(source) && source != Source::Services,
        Why::NotSupported => !is_everywhere(source),
        _ => false,
    };
    let core = is_indispensable(source)
        || matches!(source, Source::Services | Source::EndpointSlices | Source::Sysctls | Source::Agent);
    let left_out = match why {
        Why::Malformed => matches!(source, Source::Pods | Source::WaitingPods | Source::Nodes | Source::ConfigMaps),
        Why::Ambiguous => source == Source::Nodes,
        _ => false,
    };
    (core && !excused) || left_out
}

#[cfg(test)]
mod tests {
    use super::*;
    use portreeve_rules::findings::RuleId;

    const EXCUSED: [Why; 3] = [Why::NotPermitted, Why::NotSupported, Why::NotRequested];

    fn of_rule(claims: usize, gap: &Gap) -> bool {
        Open { ceiling: Some(Severity::Critical), claims, ..Open::input(gap) }.decides(Severity::Warning)
    }

    #[test]
    fn a_port_that_was_not_judged_is_not_clear_unless_only_a_right_is_missing() {
        for (source, why) in [(Source::ProxyMode, Why::Unreachable), (Source::Pods, Why::NotRequested)] {
            assert!(of_rule(1, &Gap::new(source, why, "")), "{source:?} {why:?}");
        }
        for (source, why) in [
            (Source::Processes, Why::NotPermitted),
            (Source::Cgroups, Why::NotSupported),
            (Source::ProxyProcess, Why::Ambiguous),
        ] {
            assert!(!of_rule(1, &Gap::new(source, why, "")), "{source:?} {why:?}");
        }
    }

    #[test]
    fn a_rule_without_an_answer_is_not_clear_if_its_input_failed() {
        for why in [Why::NotYet, Why::Unreachable, Why::TimedOut, Why::Malformed, Why::Torn, Why::Stale, Why::TooMuch] {
            assert!(of_rule(0, &Gap::new(Source::Pods, why, "")), "{why:?}");
        }
        for why in EXCUSED {
            assert!(!of_rule(0, &Gap::new(Source::Netfilter, why, "")), "{why:?}");
        }
        assert!(of_rule(0, &Gap::new(Source::Pods, Why::NotSupported, "404")), "every cluster has them");
        let hidden = Gap::new(Source::Sysctls, Why::NotSupported, "/proc/sys is hidden");
        assert!(of_rule(0, &hidden) && Open::input(&hidden).decides(Severity::Critical), "every kernel has them");
        assert!(!of_rule(0, &Gap::new(Source::Sysctls, Why::NotPermitted, "")), "a right is missing");
        let no_proxy = Gap::new(Source::ProxyMode, Why::Unreachable, "");
        assert!(!of_rule(0, &no_proxy), "a machine without kube-proxy");
        for source in [Source::EphemeralUse, Source::PodNamespaces] {
            assert!(of_rule(0, &Gap::new(source, Why::NotCounted, "only a bound")), "{source:?}");
            assert!(!of_rule(0, &Gap::new(source, Why::Ambiguous, "a choice")), "{source:?}");
        }
    }

    #[test]
    fn what_is_milder_than_what_counts_decides_nothing() {
        let gap = Gap::new(Source::Pods, Why::TimedOut, "");
        let open = Open::of_rule(Rows { rule: RuleId("node-port-range-mismatch"), variants: &["band"] }, 3, &gap);
        assert!(open.decides(Severity::Info) && !open.decides(Severity::Warning));
        let result = |worst, counts| outcome(worst, counts, || open.decides(counts));
        assert_eq!(result(None, Severity::Warning), CheckResult::Clear);
        assert_eq!(result(None, Severity::Info), CheckResult::NotChecked);
        assert_eq!(result(Some(Severity::Info), Severity::Info), CheckResult::Findings);
    }

    #[test]
    fn services_have_to_be_read_by_whoever_has_a_cluster() {
        for why in [Why::NotPermitted, Why::NotYet, Why::Unreachable] {
            assert!(Open::input(&Gap::new(Source::Services, why, "")).decides(Severity::Critical), "{why:?}");
        }
        assert!(!Open::input(&Gap::new(Source::Services, Why::NotRequested, "")).decides(Severity::Info));
    }

    #[test]
    fn the_line_has_the_number_of_ports_and_what_would_help() {
        let [mode, pods] = [(Source::ProxyMode, Why::Unreachable), (Source::Pods, Why::TimedOut)]
            .map(|(source, why)| Gap::new(source, why, "details"));
        let open =
            [Open { claims: 2, ..Open::input(&mode) }, Open { claims: 1, ..Open::input(&mode) }, Open::input(&pods)];
        let line = not_judged(open, true).expect("something");
        assert!(line.starts_with("3 ports or objects were not judged: kube-proxy: no answer (--proxy-mode"), "{line}");
        assert!(line.ends_with(", and 1 more reason"), "{line}");
        let short = "3 ports or objects were not judged: kube-proxy: no answer, and 1 more reason";
        assert_eq!(not_judged(open, false).as_deref(), Some(short));
        assert_eq!(not_judged([], true), None);
    }

    #[test]
    fn rules_that_could_not_judge_are_counted_with_the_reason_of_most() {
        let [mode, pods] =
            [(Source::ProxyMode, Why::Unreachable), (Source::Pods, Why::NotRequested)].map(|(source, why)| Open {
                ceiling: Some(Severity::Info),
                ..Open::input(&Gap::new(source, why, "details"))
            });
        let line = |open: &[Open]| rules_not_judged(open.iter().copied(), false);
        assert_eq!(line(&[mode]).as_deref(), Some("1 rule was not judged: kube-proxy: no answer"));
        let three = line(&[pods, mode, mode]).expect("something");
        assert_eq!(three, "3 rules were not judged: kube-proxy: no answer, and others");
        let help = " (--proxy-mode iptables, ipvs, nftables or cilium)";
        assert!(rules_not_judged([mode], true).is_some_and(|line| line.ends_with(help)));
        let port = Open { claims: 1, ..mode };
        assert_eq!(line(&[port, Open { ceiling: None, ..mode }]), None, "a port, or no rule at all");
    }
}
