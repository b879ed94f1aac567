//! One node as text: findings, affected clients, remedies, sources, and unread input.

use std::io::{self, Write};

use super::{
    super::{
        CheckResult, Report, Style,
        findings_document::Problem,
        names::counted,
        outcome::NOT_ALL_READ,
        terminal::{Ink, tidy},
    },
    page::{ListedFinding, Page},
};
use portreeve_facts::{PortSet, Reading, Snapshot, Unread};
use portreeve_rules::findings::Severity;

/// Writes the table: a list, the details of findings, the number of rules that judged, and the failures. With `wide`,
/// the table has all details.
///
/// # Errors
/// Returns an error if the writer fails.
pub fn write_table(report: &Report<'_>, wide: bool, style: &Style, out: &mut dyn Write) -> io::Result<()> {
    Page { style, wide, out }.write(report)
}

/// Writes only the rows of the list, for scripts.
///
/// # Errors
/// Returns an error if the writer fails.
pub fn write_rows(report: &Report<'_>, style: &Style, out: &mut dyn Write) -> io::Result<()> {
    let problems = problems(report);
    Page { style, wide: true, out }.rows(&of_one_node(&problems), false)
}

fn problems(report: &Report<'_>) -> Vec<Problem> {
    report.findings().map(Problem::of).collect()
}

fn of_one_node(problems: &[Problem]) -> Vec<ListedFinding<'_>> {
    problems.iter().map(|problem| ListedFinding { problem, on: None }).collect()
}

impl Page<'_> {
    fn write(&mut self, report: &Report<'_>) -> io::Result<()> {
        let (headline, ink) = headline(report);
        self.line(0, ink, &headline)?;
        let problems = problems(report);
        self.write_list(&of_one_node(&problems))?;
        if self.wide {
            self.write_sources(report)?;
        } else {
            self.write_judged(report, !problems.is_empty())?;
        }
        self.write_not_read(report)
    }
}

fn headline(report: &Report<'_>) -> (String, Ink) {
    let node = tidy(report.snapshot.node_name());
    if let Some((reported, worst)) = severities(|severity| report.count(severity)) {
        let hidden = match report.board.findings.len() - report.findings().count() {
            0 => String::new(),
            hidden => format!(" ({} of lower severity not shown)", counted(hidden, "finding")),
        };
        // If a finding sets the result, the line does not count rules that judged nothing.
        let rules = report.rules_not_judged(true).filter(|_| report.result() != CheckResult::Findings);
        let open = [report.not_judged(), rules].into_iter().flatten();
        let open = open.fold(String::new(), |all, open| format!("{all}; {open}"));
        return (format!("{node}: {reported}{hidden}{open}"), Ink::Bad(worst));
    }
    let rules = report.rules_not_judged(true).map(|rules| format!("; {rules}"));
    match (report.result(), report.not_judged()) {
        (CheckResult::NotChecked, Some(open)) => {
            (format!("{node}: not everything was checked: {open}"), Ink::Bad(Severity::Critical))
        }
        (_, Some(open)) => {
            let rules = rules.unwrap_or_default();
            (
                format!("{node}: no port conflicts found, but some ports or rules were not judged; {open}{rules}"),
                Ink::Heading,
            )
        }
        _ if report.board.unknown.is_empty() => (format!("{node}: no port conflicts."), Ink::Good),
        _ => {
            let rules = rules.unwrap_or(".".to_owned());
            (format!("{node}: no port conflicts found{NOT_ALL_READ}{rules}"), Ink::Heading)
        }
    }
}

/// The number of findings of each severity, worst first, and the worst severity: `1 critical, 2 warnings, 2 info`.
/// `None` if there are no findings.
pub(crate) fn severities(count: impl Fn(Severity) -> usize) -> Option<(String, Severity)> {
    let all = Severity::ALL.into_iter().rev().map(|severity| (severity, count(severity)));
    let all: Vec<(Severity, usize)> = all.filter(|(_, count)| *count > 0).collect();
    let words = all.iter().map(|(severity, count)| match severity {
        Severity::Warning => counted(*count, "warning"),
        _ => format!("{count} {severity}"),
    });
    let words: Vec<String> = words.collect();
    Some((words.join(", "), all.first()?.0))
}

const LABEL: usize = 15;

impl Page<'_> {
    fn write_sources(&mut self, report: &Report<'_>) -> io::Result<()> {
        let snapshot = report.snapshot;
        self.blank()?;
        self.line(0, Ink::Heading, "Sources")?;
        let rows = [
            ("proxy mode", proxy(snapshot)),
            ("NodePort range", range(snapshot)),
            ("ephemeral ports", ephemeral(snapshot)),
            ("cluster", cluster(snapshot)),
            ("sockets", sockets(snapshot)),
            ("time", Some(format!("one scan, {:.0}: it may miss short events", snapshot.at))),
        ];
        for (label, text) in rows {
            let text = text.unwrap_or_else(|| "not known, see below".to_owned());
            self.labelled(label, LABEL, &self.wrapped(Ink::Plain, &text, LABEL + 4))?;
        }
        Ok(())
    }
}

const NOT_KNOWN: Unread = Unread::Reported("not known");

pub(crate) fn proxy(snapshot: &Snapshot) -> Option<String> {
    let mode = snapshot.proxy_mode().ok()?;
    let config = snapshot.proxy_config().ok();
    let addresses = match config.map(|config| config.node_port_addresses.join(",")) {
        None if snapshot.overrides.mode().is_some() => {
            "nodePortAddresses not known: the mode's default is assumed".to_owned()
        }
        None => "nodePortAddresses not known".to_owned(),
        Some(addresses) if addresses.is_empty() => "nodePortAddresses: the mode's default".to_owned(),
        Some(addresses) => format!("nodePortAddresses {addresses}"),
    };
    Some(format!("{} ({}), {addresses}", mode.value, mode.place))
}

pub(crate) fn range(snapshot: &Snapshot) -> Option<String> {
    let range = snapshot.cluster.node_port_range.known(NOT_KNOWN)?;
    let allocated = match &snapshot.cluster.services {
        Reading::Gap(_) => String::new(),
        Reading::Seen(services) => {
            let ports: PortSet = services.iter().flat_map(|it| it.numbers()).map(|(number, _)| number).collect();
            let inside = ports.intersection(&range.range.into()).len();
            let outside = match ports.len() - inside {
                0 => String::new(),
                outside => format!(", and {outside} outside"),
            };
            format!(", {inside} allocated{outside}")
        }
    };
    Some(format!("{} ({}){allocated}", range.range, range.place))
}

fn ephemeral(snapshot: &Snapshot) -> Option<String> {
    let sysctls = &snapshot.kernel.sysctls;
    let range = sysctls.ip_local_port_range.known(NOT_KNOWN)?;
    let reserved = match sysctls.ip_local_reserved_ports.known(NOT_KNOWN) {
        None => "reserved ports not known".to_owned(),
        Some(reserved) if reserved.is_empty() => "none reserved".to_owned(),
        Some(reserved) => format!("reserved {reserved}"),
    };
    Some(format!("{range} (ip_local_port_range), {reserved}"))
}

fn cluster(snapshot: &Snapshot) -> Option<String> {
    let services = snapshot.cluster.services.known(NOT_KNOWN)?;
    Some(format!("{} from {}", counted(services.len(), "Service"), snapshot.cluster.origin))
}

fn sockets(snapshot: &Snapshot) -> Option<String> {
    let listeners = counted(snapshot.kernel.listeners.known(NOT_KNOWN)?.len(), "listener");
    let clients = match snapshot.kernel.clients.known(NOT_KNOWN) {
        None => "client sockets not known".to_owned(),
        Some(clients) if clients.passed_over => {
            "client sockets not read: the kernel chooses none of the ports that matter".to_owned()
        }
        Some(clients) => {
            let known = u64::try_from(clients.sockets.len()).unwrap_or(u64::MAX);
            format!("{} on ports that matter", counted(known.saturating_add(clients.beyond), "client socket"))
        }
    };
    let node = tidy(&snapshot.kernel.release);
    Some(format!("{listeners}, {clients} (Linux {node}, {})", snapshot.kernel.socket_source))
}

#[cfg(test)]
mod tests {
    use super::*;
    use portreeve_facts::{Learned, Mode, Source, Why, healthy::gap};

    #[test]
    fn node_ports_outside_the_range_are_counted_apart() {
        let world =
            Snapshot::healthy().service("web", |it| it.node_port(30080)).service("old", |it| it.node_port(32800));
        assert_eq!(range(&world).as_deref(), Some("30000-32767 (kube-apiserver /flagz), 1 allocated, and 1 outside"));
    }

    #[test]
    fn the_defaults_of_a_configured_mode_are_said_to_be_assumed() {
        let mut world = Snapshot::healthy();
        assert!(proxy(&world).is_some_and(|text| text.ends_with(", nodePortAddresses: the mode's default")));
        world.kernel.proxy.config = gap(Source::ProxyConfig, Why::Unreachable);
        assert!(proxy(&world).is_some_and(|text| text.ends_with("nodePortAddresses not known")));
        world.overrides.proxy_mode = Some(Learned { value: Mode::Nftables, place: "--proxy-mode".to_owned() });
        assert!(
            proxy(&world)
                .is_some_and(|text| text.ends_with("nodePortAddresses not known: the mode's default is assumed"))
        );
    }
}
