//! Writes the unread input in words: grouped by reason, with the remedy.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
};

use super::{
    super::{
        Report, ReportedGap,
        findings_document::JudgedRules,
        names::counted,
        outcome::is_indispensable,
        terminal::{Ink, tidy},
        topic::{READ_CLUSTER, help, is_of_files, reason_words, topic},
    },
    page::Page,
};
use portreeve_facts::{Source, Why, text};
use portreeve_rules::{findings::Severity, ids::Rows};

const LABEL: usize = 21;

#[derive(Default)]
pub(crate) struct GapGroup<'a> {
    pub details: Vec<&'a str>,
    pub rules: BTreeSet<Rows>,
    pub failed: bool,
}

impl Page<'_> {
    pub(super) fn write_not_read(&mut self, report: &Report<'_>) -> io::Result<()> {
        let unseen = report.gaps();
        let mut groups = gap_groups(&unseen, &report.failures());
        // A user can act on failures, so failures are listed. Other unread inputs are counted in one line.
        groups.retain(|(_, group)| self.wide || group.failed);
        if groups.is_empty() {
            return Ok(());
        }
        self.blank()?;
        self.line(0, Ink::Heading, "Not read")?;
        for ((topic, why, help), group) in groups {
            let mut lines = self.reasons(why, &group);
            if let Some(help) = help {
                let (words, command) = help.split_once('\n').unwrap_or((help, ""));
                lines.extend(self.wrapped(Ink::Plain, &format!("to read it: {words}"), LABEL + 4));
                lines.extend((!command.is_empty()).then(|| (Ink::Command, command.to_owned())));
            }
            if !group.rules.is_empty() {
                lines.extend(self.wrapped(Ink::Faint, &not_judged(&group.rules, self.wide), LABEL + 4));
            }
            self.labelled(topic, LABEL, &lines)?;
        }
        Ok(())
    }

    pub(super) fn write_judged(&mut self, report: &Report<'_>, apart: bool) -> io::Result<()> {
        let unseen = report.gaps();
        let JudgedRules { whole, run } = JudgedRules::of(report);
        let mut topics: Vec<(&str, BTreeSet<Rows>)> = Vec::new();
        for ((topic, ..), GapGroup { rules, .. }) in gap_groups(&unseen, &[]) {
            match topics.iter_mut().find(|(known, _)| *known == topic) {
                Some((_, known)) => known.extend(rules),
                None => topics.push((topic, rules)),
            }
        }
        let lacking: Vec<String> = topics
            .into_iter()
            .filter(|(_, rules)| !rules.is_empty())
            .map(|(topic, rules)| format!("{topic} ({})", counted(rules.len(), "rule")))
            .collect();
        let lacking = match lacking.is_empty() {
            true => String::new(),
            false => format!(" Not read: {}.", lacking.join(", ")),
        };
        if apart {
            self.blank()?;
        }
        let text = format!("{whole} of {run} rules judged all ports and objects.{lacking} -o wide shows the details.");
        self.paragraph(0, Ink::Plain, &text)?;
        match rest(&unseen, &self.style.program).filter(|_| report.is_live) {
            Some(command) => self.line(0, Ink::Command, &command),
            None => Ok(()),
        }
    }

    fn reasons(&self, why: Why, group: &GapGroup<'_>) -> Vec<(Ink, String)> {
        let ink = if group.failed { Ink::Bad(Severity::Critical) } else { Ink::Plain };
        let shown = if self.wide { group.details.len() } else { 1 };
        let mut lines = Vec::new();
        for (index, detail) in group.details.iter().take(shown).enumerate() {
            let text = match (index, detail.is_empty()) {
                (0, true) => reason_words(why).to_owned(),
                (0, false) if why != Why::NotRequested => format!("{}: {detail}", reason_words(why)),
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

/// The topic of the source, the reason, and the remedy.
type Heading = (&'static str, Why, Option<&'static str>);

/// The groups of unread inputs. Failures are first. Otherwise, the groups keep the order of `unseen`.
pub(crate) fn gap_groups<'a>(unseen: &[ReportedGap<'a>], failures: &[ReportedGap<'_>]) -> Vec<(Heading, GapGroup<'a>)> {
    let mut places: BTreeMap<(&str, Why), usize> = BTreeMap::new();
    let mut groups: Vec<(Heading, GapGroup<'a>)> = Vec::new();
    for ReportedGap { rows, gap, .. } in unseen {
        let topic = topic(gap.source, gap.why);
        let place = *places.entry((topic, gap.why)).or_insert_with(|| {
            groups.push(((topic, gap.why, help(gap.source, gap.why)), GapGroup::default()));
            groups.len() - 1
        });
        let group = &mut groups[place].1;
        if !group.details.contains(&gap.detail.as_str()) {
            group.details.push(&gap.detail);
        }
        group.rules.extend(rows);
        group.failed |= failures.iter().any(|failure| failure.gap == *gap);
    }
    groups.sort_by_key(|(_, group)| !group.failed);
    groups
}

/// A command with which the unjudged rules can judge. `None` if no flag or right helps.
fn rest(unseen: &[ReportedGap<'_>], program: &str) -> Option<String> {
    let lacks =
        |is_it: fn(Source, Why) -> bool| unseen.iter().any(|it| it.rows.is_some() && is_it(it.gap.source, it.gap.why));
    let cluster = lacks(|source, why| is_of_files(source) && why == Why::NotRequested);
    let root = lacks(|source, why| !is_of_files(source) && !is_indispensable(source) && why == Why::NotPermitted);
    let mode = lacks(|source, why| source == Source::ProxyMode && matches!(why, Why::Unreachable | Why::Ambiguous));
    let range = lacks(|source, _| source == Source::NodePortRange);
    if !(cluster || root || mode || range) {
        return None;
    }
    let mut flags = String::new();
    if mode {
        flags.push_str(" --proxy-mode MODE");
    }
    if range {
        flags.push_str(" --node-port-range FIRST-LAST");
    }
    let sudo = if root { "sudo " } else { "" };
    Some(match (cluster, flags.is_empty()) {
        (true, _) => format!("To judge the rest: {READ_CLUSTER} | {sudo}{program} check --services -{flags}"),
        // The flags of the user's command are unknown here, so the text does not repeat the command.
        (false, true) => "To judge the rest: the same command as root".to_owned(),
        (false, false) if root => format!("To judge the rest: the same command as root, with{flags}"),
        (false, false) => format!("To judge the rest: the same command with{flags}"),
    })
}

pub(crate) fn not_judged(rules: &BTreeSet<Rows>, wide: bool) -> String {
    const SHOWN: usize = 3;
    format!("not judged: {}", text::listed(rules, if wide { rules.len() } else { SHOWN }))
}
