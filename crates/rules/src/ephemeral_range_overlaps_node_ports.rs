//! The kernel may choose a NodePort, or the port of a server, for an outgoing connection.

use std::collections::BTreeSet;

use super::{
    Limits, Round, Rule,
    ephemeral::{effective_ephemeral, range_above, share, with_ranges},
    ids,
    needed_ports::NeededPorts,
    node_ports::{at_most, counted, disproved_range},
    remedies::choose_from,
    reservation::reserve,
};
use crate::findings::{Affected, Evidence, Judgement, Judgements, Severity, Step, Subject, Vantage, Verdict};
use portreeve_dataplane::{Assumption, ByPort, Judged, Stratum, cilium_range};
use portreeve_facts::{Family, Gap, Mode, NodePortRange, PortRange, PortSet, Snapshot, Source, Unread, if_requested};

pub(super) static RULE: Rule = Rule::of(
    &ids::EPHEMERAL_RANGE_OVERLAP,
    &["node-ports", "servers", "no-start"],
    &[Source::Sysctls, Source::NodePortRange],
    check,
)
.at_once();

fn check(round: &Round<'_>, _: &Limits) -> Judgements {
    let snapshot = round.now;
    let range = snapshot.cluster.node_port_range.get()?;
    let ephemeral = *snapshot.kernel.sysctls.ip_local_port_range.get()?;
    let choosable = effective_ephemeral(snapshot)?;
    let Outside { ports, unread: unread_outside } = Outside::of(round, range);
    let outside = ports.minus(snapshot.kernel.sysctls.ip_local_reserved_ports.get()?);
    let uncovered = choosable.intersection(&outside.union(&range.range.into()));
    let needed = NeededPorts::among(&choosable, round);
    let at_start = Start::of_cilium(snapshot, ephemeral);
    let unread = needed.unread().or(at_start.as_ref().err()).or(unread_outside.as_ref());
    let overlap = ephemeral.intersection(range.range);
    let verdict = match unread {
        _ if !uncovered.is_empty() => Verdict::Problem(
            Overlap { round, snapshot, range, overlap, choosable, uncovered, outside, at_start }.evidence(&needed),
        ),
        _ if let Ok(Some(Start::Refused(why))) = &at_start => Verdict::Problem(no_start(snapshot, &needed, why)),
        _ if !needed.ports().is_empty() => Verdict::Problem(servers(round, &needed, &outside)),
        Some(gap) => Verdict::Unknown(gap.clone()),
        None => Verdict::Healthy,
    };
    Ok(vec![Judgement::of(Subject::this_node(snapshot), verdict)])
}

/// The NodePorts of Services outside the NodePort range.
struct Outside {
    ports: PortSet,
    /// An input that may hide more of these NodePorts: Services, or a NodePort range that is only assumed and wrong.
    unread: Option<Gap>,
}

impl Outside {
    fn of(round: &Round<'_>, range: &NodePortRange) -> Self {
        let (services, unread) = match if_requested(round.allocated().get()) {
            Ok(services) => (services, round.now.cluster.unread_service().cloned()),
            Err(gap) => (None, Some(gap)),
        };
        let numbers = services.into_iter().flat_map(ByPort::ports).map(|(number, _)| number);
        Self {
            ports: numbers.filter(|it| !range.range.contains(*it)).collect(),
            unread: disproved_range(round).or(unread),
        }
    }
}

/// The reaction of Cilium's agent at its next start, if the kernel may choose NodePorts and Cilium replaces kube-proxy.
enum Start {
    Reserves(PortRange),
    /// The agent exits. The value is the reason.
    Refused(String),
}

impl Start {
    /// The decision of Cilium's `checkNodePortAndEphemeralPortRanges`. `None` if the mode is not Cilium, if Cilium
    /// accepts the ranges, or if Cilium's settings were not requested.
    ///
    /// # Errors
    /// Returns a `Gap` if an input was not read.
    fn of_cilium(snapshot: &Snapshot, ephemeral: PortRange) -> Result<Option<Self>, Gap> {
        let in_cluster = snapshot.cluster.proxy_config.known(Unread::Reported("the gap of the proxy's settings"));
        match snapshot.proxy_mode() {
            Ok(mode) if mode.value == Mode::Cilium => {}
            // The settings of Cilium may be in use.
            Err(gap) if in_cluster.is_some_and(|it| it.cilium.is_some()) => return Err(gap),
            Ok(_) | Err(_) => return Ok(None),
        }
        let Some(settings) = if_requested(snapshot.proxy_config())?.and_then(|it| it.cilium.as_ref()) else {
            return Ok(None);
        };
        let Some(range) = cilium_range(snapshot)?.ranges().first().copied() else { return Ok(None) };
        let reserved = snapshot.kernel.sysctls.ip_local_reserved_ports.get()?;
        Ok(match () {
            () if range.last < ephemeral.first => None,
            () if range.first > ephemeral.last => {
                Some(Self::Refused(format!("its NodePort range {range} is above the ephemeral port range {ephemeral}")))
            }
            () if PortSet::from(range).minus(reserved).is_empty() => None,
            () if settings.reserves_nothing => Some(Self::Refused(format!(
                "the ephemeral port range {ephemeral} covers unreserved ports of its NodePort range {range}, and enable-auto-protect-node-port-range is false"
            ))),
            () => Some(Self::Reserves(range)),
        })
    }

    fn in_words(&self) -> String {
        match self {
            Self::Reserves(range) => format!("reserves {range} when it starts next"),
            Self::Refused(why) => format!("does not start again: {why}"),
        }
    }
}

/// The problem of an agent that cannot restart. Connections hang as soon as the running agent ends.
fn no_start(snapshot: &Snapshot, needed: &NeededPorts, why: &str) -> Evidence {
    let sentence = format!("The agent of Cilium cannot restart on this node: {why}.");
    let evidence = with_ranges(Evidence::new(Severity::Warning, sentence).variant("no-start"), snapshot);
    let remedy = Step::advice(
        "reserve the NodePorts, and choose an ephemeral port range that ends above the NodePorts; or choose a range that begins above them: `32768 60999` fits the default NodePort range",
    );
    needed.add_to(evidence).remedy(remedy)
}

fn servers(round: &Round<'_>, needed: &NeededPorts, outside: &PortSet) -> Evidence {
    let sentence = "The ephemeral port range covers unreserved ports of servers on this node: \
                    while an outgoing connection uses such a port, its server cannot start.";
    let evidence = with_ranges(Evidence::new(Severity::Warning, sentence).variant("servers"), round.now);
    let evidence = needed.add_to(evidence).remedy(reserve(round, &needed.ports()));
    // The remedy names the default range only if no server and no Service needs a port of the default range.
    let by_default = PortSet::from(PortRange::DEFAULT_EPHEMERAL);
    match needed.ports().union(outside).intersection(&by_default).is_empty() {
        true => evidence.remedy(choose_from(PortRange::DEFAULT_EPHEMERAL)),
        false => evidence,
    }
}

struct Overlap<'r, 'a> {
    round: &'r Round<'a>,
    snapshot: &'a Snapshot,
    range: &'a NodePortRange,
    overlap: Option<PortRange>,
    choosable: PortSet,
    /// The ports of the NodePort range, and other NodePorts of Services, that the kernel may choose.
    uncovered: PortSet,
    /// NodePorts of Services outside the NodePort range that are not reserved.
    outside: PortSet,
    at_start: Result<Option<Start>, Gap>,
}

impl Overlap<'_, '_> {
    fn evidence(&self, needed: &NeededPorts) -> Evidence {
        let mode = self.snapshot.proxy_mode();
        let taken = self.allocated();
        let some_taken = taken.as_ref().is_ok_and(|taken| !taken.is_empty());
        let hang = mode.as_ref().ok().map(|mode| self.hang_in(mode.value)).transpose();
        let assumed = hang.as_ref().ok().copied().flatten().filter(|(hangs, _)| *hangs && some_taken);
        let hanging = mode.as_ref().ok().map(|it| it.value).filter(|_| assumed.is_some());
        let hangs = hanging.is_some();
        let severity = at_most(self.range, if hangs { Severity::Critical } else { Severity::Warning });
        let consequence = match hanging {
            Some(mode) => format!("in {mode} mode some new connections of this node hang"),
            None => "an outgoing connection may use a NodePort".to_owned(),
        };
        let covered = match self.overlap {
            Some(overlap) if !self.uncovered.intersection(&overlap.into()).is_empty() => {
                format!("{overlap} of the NodePort range")
            }
            _ => "NodePorts outside the NodePort range".to_owned(),
        };
        let sentence = format!(
            "The ephemeral port range covers {covered}, and some of these ports are not reserved: {consequence}."
        );
        let mut evidence = with_ranges(Evidence::new(severity, sentence), self.snapshot)
            .each("in both ranges", self.overlap.map(|overlap| counted(&overlap.into())))
            .value("not reserved", counted(&self.uncovered));
        evidence = match &taken {
            Ok(taken) => evidence
                .value("allocated of these", counted(taken))
                .value("chance of an allocated NodePort", share(taken.len(), self.choosable.len())),
            Err(gap) => evidence.value("allocated of these", format!("unknown: {}", gap.detail)),
        };
        let stakes = |_: &Gap| "unknown: in ipvs mode, connections from an allocated NodePort hang".to_owned();
        evidence = evidence.value("proxy mode", mode.as_ref().map_or_else(stakes, ToString::to_string));
        if let Err(gap) = &hang {
            evidence = evidence.value("addresses with NodePorts", format!("unknown: {}", gap.detail));
        }
        evidence = evidence.each("assumed", assumed.and_then(|(_, stratum)| stratum.in_words()));
        evidence = match &self.at_start {
            Ok(Some(at_start)) => evidence.value("agent of Cilium", at_start.in_words()),
            Ok(None) => evidence,
            Err(gap) => evidence.value("agent of Cilium", format!("unknown: {}", gap.detail)),
        };
        if hangs {
            evidence = evidence.affects([Vantage::Node]);
        }
        evidence = needed.add_to(evidence).remedy(reserve(self.round, &self.uncovered));
        match range_above(self.range.range).filter(|above| self.leaves_out_needed_ports(*above)) {
            Some(above) => evidence.remedy(choose_from(above)),
            None => evidence,
        }
    }

    /// Whether some outgoing connections hang, and for which settings. A connection hangs if the data plane serves a
    /// Service's NodePort at the address of the connection. Without a list of addresses, Cilium serves the Node's
    /// address.
    fn hang_in(&self, mode: Mode) -> Result<(bool, Stratum), Gap> {
        let lists_nothing = || self.snapshot.proxy_config().is_ok_and(|it| it.node_port_addresses.is_empty());
        let may_hang = match mode {
            // Without a list, kube-proxy serves every address.
            Mode::Ipvs if lists_nothing() => return Ok((true, Stratum::Any)),
            Mode::Ipvs => true,
            Mode::Cilium => self.snapshot.proxy_config()?.node_port_addresses.is_empty(),
            Mode::Iptables | Mode::Nftables => false,
        };
        if !may_hang {
            return Ok((false, Stratum::Any));
        }
        let addressed = self.round.addressed().get()?;
        let all = self.round.node_ports().get()?;
        let uncovered = all.ports().filter(|((_, number), _)| self.uncovered.contains(*number));
        let families: BTreeSet<Family> =
            uncovered.flat_map(|(_, of)| of).flat_map(|(service, _)| service.families).copied().collect();
        let locals = || addressed.locals.iter().filter(|to| families.contains(&Family::of(to.ip)));
        let serves = |it: &Assumption| locals().any(|to| it.captures_from_outside(*to));
        match addressed.over(true, |assumption, _| Ok(serves(assumption).then(Affected::new))) {
            (Judged::Certain(..), stratum) => Ok((true, stratum)),
            (Judged::Never, stratum) => Ok((false, stratum)),
            (Judged::Depends { on, .. }, _) => Err(on),
        }
    }

    fn allocated(&self) -> Result<PortSet, Gap> {
        let ports: PortSet = self.round.node_ports().get()?.ports().map(|((_, number), _)| number).collect();
        Ok(ports.intersection(&self.uncovered))
    }

    /// Whether a new ephemeral port range leaves out all NodePorts of Services and all ports that servers need. A range
    /// with such a port would cause another finding. A port that a server may need is treated as needed.
    fn leaves_out_needed_ports(&self, range: PortRange) -> bool {
        let reserved = self.snapshot.kernel.sysctls.ip_local_reserved_ports.get();
        let needed = reserved.map(|it| NeededPorts::among(&PortSet::from(range).minus(it), self.round));
        let is_free = needed.is_ok_and(|needed| needed.ports().is_empty() && needed.unread().is_none());
        is_free && self.outside.intersection(&range.into()).is_empty()
    }
}

#[cfg(test)]
mod tests;
