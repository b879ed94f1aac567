//! Draws the NodePort range in rows of ports.

mod svg;
mod text;

pub use svg::write_svg;
pub(crate) use svg::{COLOURS, blocks, legend};
pub use text::write_map;

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Serialize;

use super::{
    outcome::{CheckResult, Open, answer_outcome},
    terminal::Ink,
};
use portreeve_rules::{Choice, PortUsage, findings::Severity, ports_in_words};

/// Whether all input that the picture needs was read.
pub fn map_result(usage: &PortUsage) -> CheckResult {
    answer_outcome(false, usage.unread.iter().map(Open::beside_answer))
}

/// The state in which a port is drawn, worst first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(super) enum PortState {
    /// Allocated, but another user has the port: a program that listens, a hostPort, or another Service at an external
    /// address.
    Contested,
    /// Not allocated, but another user has or needs the port: a server, a hostPort, or a Service at an external
    /// address.
    Listener,
    /// Allocated to a Service that names the port.
    Fixed,
    /// Allocated to a Service. The API server chose the port.
    Automatic,
    /// Allocated. The object does not show whether the API server chose the port.
    Allocated,
    /// Free for a Service. But the kernel may give the port to an outgoing connection.
    Ephemeral,
    /// Free for a Service. The port is reserved, so the kernel does not give it to connections.
    Reserved,
    /// Free in the static band.
    FreeStatic,
    /// Free in the dynamic band.
    Free,
}

/// How a state is drawn.
struct Look {
    /// The class in a style sheet.
    class: &'static str,
    /// The symbol in a terminal. Each state has its own symbol, because the terminal may have no colours.
    symbol: char,
    /// The colour of the symbol.
    ink: Ink,
}

impl PortState {
    pub(super) fn of(census: &PortUsage, port: u16) -> Self {
        let used = census.used.get(&port);
        let listened = used.is_some_and(|used| used.taken.is_some());
        match used.and_then(|used| used.allocated.as_ref()) {
            Some(_) if listened => Self::Contested,
            None if listened => Self::Listener,
            Some((_, Choice::Fixed)) => Self::Fixed,
            Some((_, Choice::Automatic)) => Self::Automatic,
            Some((_, Choice::Unknown)) => Self::Allocated,
            None if census.ephemeral.contains(port) => Self::Ephemeral,
            None if census.reserved.contains(port) => Self::Reserved,
            None if census.static_band.is_some_and(|band| band.contains(port)) => Self::FreeStatic,
            None => Self::Free,
        }
    }

    fn look(self) -> Look {
        let (class, symbol, ink) = match self {
            Self::Contested => ("contested", '!', Ink::Bad(Severity::Critical)),
            Self::Listener => ("listener", 'L', Ink::Raw("35")),
            Self::Fixed => ("fixed", '#', Ink::Raw("1;36")),
            Self::Automatic => ("automatic", '+', Ink::Raw("36")),
            Self::Allocated => ("allocated", 'o', Ink::Raw("36")),
            Self::Ephemeral => ("ephemeral", '~', Ink::Raw("33")),
            Self::Reserved => ("reserved", '-', Ink::Raw("32")),
            Self::FreeStatic => ("free-static", ':', Ink::Plain),
            Self::Free => ("free", '.', Ink::Faint),
        };
        Look { class, symbol, ink }
    }

    fn legend(self) -> &'static str {
        match self {
            Self::Contested => "allocated, but a listener, a hostPort or another Service has it",
            Self::Listener => "not allocated, but a server, a hostPort or another Service has or needs it",
            Self::Fixed => "allocated, chosen by a person",
            Self::Automatic => "allocated, chosen by the API server",
            Self::Allocated => "allocated",
            Self::Ephemeral => "free, but the kernel may use it for an outgoing connection",
            Self::Reserved => "free, reserved: the kernel does not choose it",
            Self::FreeStatic => "free, static band: best for numbers that a person chooses",
            Self::Free => "free",
        }
    }
}

/// The number of ports in each state. States without ports are left out.
fn counts(census: &PortUsage) -> BTreeMap<PortState, usize> {
    let mut counts: BTreeMap<PortState, usize> = BTreeMap::new();
    for port in census.range.range.iter() {
        *counts.entry(PortState::of(census, port)).or_default() += 1;
    }
    counts
}

/// The first port of every row. A row has `ports` ports.
fn rows(census: &PortUsage, ports: u16) -> impl Iterator<Item = u16> {
    let range = census.range.range;
    (range.first / ports..=range.last / ports).map(move |row| row * ports)
}

fn remarks(census: &PortUsage) -> Vec<String> {
    let mut remarks = Vec::new();
    let at_risk =
        census.used.iter().filter(|(port, used)| used.allocated.is_some() && census.ephemeral.contains(**port)).count();
    if at_risk > 0 {
        let (ports, are) = if at_risk == 1 { ("port", "is") } else { ("ports", "are") };
        remarks.push(format!(
            "{at_risk} allocated {ports} in ip_local_port_range {are} not reserved: an outgoing connection may use the port of a Service."
        ));
    }
    if !census.outside.is_empty() {
        let outside = ports_in_words(&census.outside);
        remarks.push(format!("Services also have NodePorts outside the NodePort range: {outside}."));
    }
    if let Some(band) = census.static_band {
        let dynamic = census.range.range.last - band.last;
        remarks.push(format!(
            "The static band is {band}; the API server first chooses from the {dynamic} ports above this band."
        ));
    }
    remarks.extend(census.unread.iter().map(|gap| format!("Not in the picture: {}", gap.detail)));
    remarks
}

#[cfg(test)]
mod tests {
    use super::*;
    use portreeve_facts::{
        Snapshot, Source, Why,
        healthy::{daemon, gap},
    };
    use portreeve_rules::port_usage;

    #[test]
    fn node_ports_outside_the_picture_are_named_below_it() {
        let world = Snapshot::healthy().service("web", |it| it.node_port(32800));
        let remarks = remarks(&port_usage(&world).expect("the range is known"));
        let wanted = "Services also have NodePorts outside the NodePort range: 32800.";
        assert!(remarks.iter().any(|it| it == wanted), "{remarks:?}");
    }

    #[test]
    fn a_map_that_lacks_something_is_not_checked() {
        let result = |world: &Snapshot| map_result(&port_usage(world).expect("the range is known"));
        let world =
            || Snapshot::healthy().service("web", |it| it.node_port(30080)).service("api", |it| it.node_port(30081));
        assert_eq!(result(&world()), CheckResult::Clear);
        for (why, wanted) in [
            (Why::TimedOut, CheckResult::NotChecked),
            (Why::NotSupported, CheckResult::NotChecked),
            (Why::NotPermitted, CheckResult::Clear),
            (Why::NotRequested, CheckResult::Clear),
        ] {
            let mut unread = world();
            unread.cluster.pods = gap(Source::Pods, why);
            assert_eq!(result(&unread), wanted, "{why:?}");
        }
        assert_eq!(result(&world().rejects(Source::Pods)), CheckResult::NotChecked);
        let unclear = ["0.0.0.0:30080", "0.0.0.0:30081"]
            .iter()
            .fold(world().without_proxy(), |world, place| world.listens_as(place, daemon("python3", 9)));
        assert_eq!(result(&unclear), CheckResult::NotChecked, "the listener may be the proxy");
    }
}
