//! What could not be seen: grouped, in a person's words, with what would help.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
};

use super::{
    super::{
        Report, ReportedGap,
        terminal::{Ink, tidy},
        topic::topic,
    },
    page::Page,
};
use portreeve_facts::{Gap, Source, Why};
use portreeve_rules::findings::{RuleId, Severity};

const LABEL: usize = 21;

/// Things unseen for one reason.
#[derive(Default)]
pub(crate) struct GapGroup<'a> {
    pub details: Vec<&'a str>,
    pub rules: BTreeSet<RuleId>,
    pub failed: bool,
}

impl Page<'_> {
    pub(super) fn write_not_read(&mut self, report: &Report<'_>) -> io::Result<()> {
        let unseen = report.gaps();
        if unseen.is_empty() {
            return Ok(());
        }
        self.blank()?;
        self.line(0, Ink::Heading, "Not seen")?;
        for ((topic, why, help), group) in gap_groups(&unseen, &report.failures()) {
            let mut lines = self.reasons(why, &group);
            if let Some(help) = help {
                let (words, command) = help.split_once('\n').unwrap_or((help, ""));
                lines.extend(self.wrapped(Ink::Plain, &format!("to see it: {words}"), LABEL + 4));
                lines.extend((!command.is_empty()).then(|| (Ink::Command, command.to_owned())));
            }
            if !group.rules.is_empty() {
                lines.extend(self.wrapped(Ink::Faint, &not_judged(&group.rules, self.wide), LABEL + 4));
            }
            self.labelled(2, topic, LABEL, &lines)?;
        }
        Ok(())
    }

    /// Why, in the first detail's words; in all of them where there is room.
    fn reasons(&self, why: Why, group: &GapGroup<'_>) -> Vec<(Ink, String)> {
        let ink = if group.failed { Ink::Bad(Severity::Critical) } else { Ink::Plain };
        let shown = if self.wide { group.details.len() } else { 1 };
        let mut lines = Vec::new();
        for (index, detail) in group.details.iter().take(shown).enumerate() {
            let text = match (index, detail.is_empty()) {
                (0, true) => reason_words(why).to_owned(),
                (0, false) if why != Why::NotAsked => format!("{}: {detail}", reason_words(why)),
                _ => tidy(detail),
            };
            lines.extend(self.wrapped(ink, &text, LABEL + 4));
        }
        if group.details.len() > shown {
            lines.push((Ink::Faint, format!("and {} more like it, with -o wide", group.details.len() - shown)));
        }
        lines
    }
}

/// What it is, why it was not seen, and what would help.
type Heading = (&'static str, Why, Option<&'static str>);

/// Failures first, then in the order of the readers.
pub(crate) fn gap_groups<'a>(unseen: &[ReportedGap<'a>], failures: &[&Gap]) -> Vec<(Heading, GapGroup<'a>)> {
    let mut places: BTreeMap<(&str, Why), usize> = BTreeMap::new();
    let mut groups: Vec<(Heading, GapGroup<'a>)> = Vec::new();
    for ReportedGap { rule, gap, .. } in unseen {
        let topic = topic(gap.source, gap.why);
        let place = *places.entry((topic, gap.why)).or_insert_with(|| {
            groups.push(((topic, gap.why, help(gap.source, gap.why)), GapGroup::default()));
            groups.len() - 1
        });
        let group = &mut groups[place].1;
        if !group.details.contains(&gap.detail.as_str()) {
            group.details.push(&gap.detail);
        }
        group.rules.extend(rule);
        group.failed |= failures.contains(gap);
    }
    groups.sort_by_key(|(_, group)| !group.failed);
    groups
}

/// The rules that could not tell; the first few, or all.
pub(crate) fn not_judged(rules: &BTreeSet<RuleId>, wide: bool) -> String {
    const SHOWN: usize = 3;
    let shown = if wide { rules.len() } else { SHOWN };
    let names: Vec<&str> = rules.iter().take(shown).map(|rule| rule.0).collect();
    let more = rules.len().saturating_sub(shown);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("not judged: {}{more}", names.join(", "))
}

/// Why, for people.
pub(crate) fn reason_words(why: Why) -> &'static str {
    match why {
        Why::NotPermitted => "not permitted",
        Why::NotSupported => "not there",
        Why::NotYet => "not looked for yet",
        Why::NotAsked => "not given",
        Why::Unreachable => "no answer",
        Why::TimedOut => "took too long",
        Why::Torn => "changed while it was read",
        Why::Stale => "too old",
        Why::Malformed => "not understood",
        Why::TooMuch => "too much to read",
        Why::Ambiguous => "depends on what is not known",
    }
}

/// What would help, and after a line end a command to copy.
fn help(source: Source, why: Why) -> Option<&'static str> {
    Some(match (source, why) {
        (Source::Processes | Source::PodNamespaces | Source::ProxyProcess, Why::NotPermitted) => {
            "run as root, or use the attribution profile"
        }
        (Source::Netfilter | Source::IpVs | Source::IpVsConn | Source::Conntrack, Why::NotPermitted) => {
            "run as root, or use the guard profile"
        }
        (Source::Services, Why::NotAsked) => {
            "--kubeconfig FILE, or --services FILE with the output of\nkubectl get services,endpointslices,pods,nodes -A -o yaml --show-managed-fields"
        }
        (Source::EndpointSlices | Source::Pods | Source::Nodes, Why::NotAsked) => {
            "--services FILE with the output of\nkubectl get services,endpointslices,pods,nodes -A -o yaml --show-managed-fields"
        }
        (
            Source::Services | Source::EndpointSlices | Source::Pods | Source::WaitingPods | Source::Nodes,
            Why::NotPermitted,
        ) => "let this account list it, or pass --services FILE",
        (
            Source::Services | Source::EndpointSlices | Source::Pods | Source::WaitingPods | Source::Nodes,
            Why::Unreachable,
        ) => "check --kubeconfig and --context, or pass --services FILE",
        (
            Source::Services | Source::EndpointSlices | Source::Pods | Source::WaitingPods | Source::Nodes,
            Why::TimedOut,
        ) => "a longer --request-timeout, or --services FILE",
        (Source::ProxyMode, Why::Unreachable | Why::Ambiguous) => "--proxy-mode iptables, ipvs, nftables or cilium",
        (Source::NodePortRange, _) => "--node-port-range FIRST-LAST",
        (Source::Listeners | Source::Clients | Source::Addresses, Why::NotPermitted) => {
            "let the filter of system calls (seccomp) admit netlink: no privilege is needed"
        }
        (_, Why::Torn | Why::TimedOut) => "try again",
        (_, Why::NotPermitted) => "run as root",
        _ => return None,
    })
}
