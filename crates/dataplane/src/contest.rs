//! A contest between the claims on one port decides who gets a new connection in one case. `owner` compares all claims
//! of a port, and a rule compares only some of these claims.

use std::{
    cell::{OnceCell, RefCell},
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    iter,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    ptr,
};

use super::{
    assumption::{Assumption, unclear},
    backing::Backing,
    cases::{Case, Doubt, Loss},
    cilium::cilium_range,
    claim::{Claim, ClaimKind},
    external_address::ExternalAddress,
    kept_off::serves,
    local_address::{LocalAddress, is_link_local, other_loopback},
    outcome::Outcome,
    part::Part,
    proxy_sockets::group,
    round::{Addressed, Round},
    served::{covers, may_have, unsettled},
    vantage::{answers, vantage_points},
};
use portreeve_facts::{
    Affected, Family, Gap, Interfaces, Mode, Protocol, Redirection, Service, ServicePort, Socket, Source, Vantage, Why,
};

/// Claims on one port and protocol. Claims of one kind are in the order in which they are evaluated.
pub struct Contest<'r, 'a, 'c> {
    round: &'r Round<'a>,
    addressed: &'r Addressed<'a>,
    contenders: Vec<Contender<'c>>,
    /// The index of the first listener.
    first_listener: usize,
    /// The listeners by address.
    by_address: OnceCell<BTreeMap<IpAddr, Vec<usize>>>,
    protocol: Protocol,
    number: u16,
    /// True if the contest has all claims of the port.
    is_complete: bool,
    places: Vec<(Vantage, LocalAddress)>,
}

struct Contender<'a> {
    claim: Claim<'a>,
    backing: [OnceCell<Result<Backing, Gap>>; 2],
    serves: OnceCell<Result<bool, Gap>>,
    /// Whether the claim's Service sends a client's connections to a listener.
    home: RefCell<Homes>,
}

/// The answers by listener, vantage point, policy, family and mode.
type Homes = BTreeMap<(usize, Vantage, bool, Family, Mode), Result<bool, Gap>>;

/// The protocol, port, address, device, family and `IPV6_V6ONLY` of a socket. The kernel prefers neither of two sockets
/// with equal values.
type Alike = (Protocol, u16, IpAddr, u32, Family, Option<bool>);

/// The values that some sockets share, the wildcard sockets that the kernel prefers to these sockets, and the answers
/// of [`Round::is_behind`] for these sockets.
pub(super) type Behind<'a> = (Option<Alike>, Vec<&'a Socket>, BTreeMap<(Vantage, LocalAddress), Result<bool, Gap>>);

enum Redirected {
    /// The pod of the hostPort, or the target of a leftover redirection, gets the connection. An error is the reason
    /// why it is not known who has the target's address, or which of two redirections is first.
    To(usize, Result<Outcome, Undecided>),
    /// Like [`Self::To`], but the redirection of the pod may not exist. The `Gap` has the reason.
    Perhaps(usize, Outcome, Gap),
    /// Cilium does not serve the hostPort, because its number is in the NodePort range.
    LeftOut,
}

const TWO_SERVICES: &str = "two Services claim it, and their order is not defined";

const SHARED: &str = "several sockets have equal rank for this address and port: which one answers is not known";

/// The local addresses of sockets on every address.
const EVERY: [IpAddr; 2] = [IpAddr::V4(Ipv4Addr::UNSPECIFIED), IpAddr::V6(Ipv6Addr::UNSPECIFIED)];

/// A contest compares at most this number of Services that claim the same address and port. A file may have any number
/// of Services with one address and port.
pub(super) const MOST_SERVICES: usize = 8;

/// The reason why packets to a load balancer's address may be dropped: no device of Cilium has the address (cilium
/// `bpf/lib/nodeport.h`, `nodeport_svc_lb4`; `pkg/loadbalancer/reconciler/bpf_reconciler.go`, `isWildcardClass`).
const OTHER_PORTS: &str = "no device of Cilium has this address of a load balancer: if Cilium assigned the address, Cilium drops packets to the address's other ports";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Answer {
    /// The outcome of the connection.
    pub outcome: Outcome,
    /// The claim that decides the outcome; `None` if no claim gets the connection.
    pub by: Option<usize>,
}

/// The reason why the answer is unknown although every input has a value. Either the order of two claims is undefined,
/// or the case was not measured.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Undecided {
    gap: Gap,
    /// Whether the listeners lose the connection in every possible order of the claims.
    loses: bool,
    /// The claims that may decide the outcome.
    by: BTreeSet<usize>,
}

impl From<Gap> for Undecided {
    fn from(gap: Gap) -> Self {
        Self { gap, loses: false, by: BTreeSet::new() }
    }
}

fn either(one: &Result<Answer, Undecided>, other: &Result<Answer, Undecided>, gap: Gap) -> Undecided {
    let by = [one, other].into_iter().flat_map(|it| match it {
        Ok(answer) => answer.by.into_iter().collect(),
        Err(undecided) => undecided.by.clone(),
    });
    Undecided { gap, loses: loses(one) && loses(other), by: by.collect() }
}

/// Whether the listeners lose the connection, given this answer.
fn loses(answer: &Result<Answer, Undecided>) -> bool {
    match answer {
        Ok(answer) => answer.outcome != Outcome::Listener,
        Err(undecided) => undecided.loses,
    }
}

/// The answer if either of two claims may come first. Two answers `Pod` of different Services differ, because the
/// Services have different pods.
fn in_any_order(one: Result<Answer, Undecided>, other: &Result<Answer, Undecided>) -> Result<Answer, Undecided> {
    match (&one, other) {
        (Ok(first), Ok(other)) if first == other || first.outcome != Outcome::Pod && first.outcome == other.outcome => {
            one
        }
        (Err(first), Err(second)) if first.gap == second.gap => Err(either(&one, other, first.gap.clone())),
        _ => Err(either(&one, other, unclear(TWO_SERVICES))),
    }
}

/// The addresses and vantage points at which a listener loses its connections, with every possible outcome. An outcome
/// is `None` if several claims may take the connection in an undefined order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lost(pub BTreeMap<(Vantage, LocalAddress), BTreeSet<Option<Outcome>>>);

impl Lost {
    /// The vantage points at which the listener loses connections.
    pub fn affected(&self) -> Affected {
        self.0.keys().map(|(from, _)| *from).collect()
    }
}

impl Loss for Lost {
    fn meet(mut self, other: &Self) -> Option<Self> {
        self.0.retain(|place, outcomes| {
            outcomes.extend(other.0.get(place).into_iter().flatten());
            other.0.contains_key(place)
        });
        Some(self).filter(|it| !it.0.is_empty())
    }
}

impl<'r, 'a, 'c> Contest<'r, 'a, 'c> {
    /// A contest between these claims of a port. Listeners are the last claims.
    pub fn of(
        round: &'r Round<'a>,
        addressed: &'r Addressed<'a>,
        (protocol, number): (Protocol, u16),
        claims: impl IntoIterator<Item = Claim<'c>>,
    ) -> Self {
        let contender =
            |claim| Contender { claim, backing: Default::default(), serves: OnceCell::new(), home: RefCell::default() };
        let contenders: Vec<Contender<'c>> = claims.into_iter().map(contender).collect();
        let is_listener = |it: &Contender<'c>| matches!(it.claim, Claim::Listener(..));
        let first_listener = contenders.iter().position(is_listener).unwrap_or(contenders.len());
        let sockets = contenders[first_listener..].iter().filter_map(|it| match it.claim {
            Claim::Listener(socket, _) => other_loopback(&addressed.locals, socket),
            _ => None,
        });
        let others: BTreeSet<_> = sockets.collect();
        let all = addressed.locals.iter().copied().chain(others);
        let places = all.flat_map(|to| vantage_points(to.ip).iter().map(move |from| (*from, to))).collect();
        let by_address = OnceCell::new();
        Self { round, addressed, contenders, first_listener, by_address, protocol, number, is_complete: false, places }
    }

    /// Notes that the contest has every claim of the port. With every claim, the contest also judges addresses of load
    /// balancers.
    #[must_use]
    pub(super) fn complete(self) -> Self {
        Self { is_complete: true, ..self }
    }

    /// Limits the contest to one address. The address may be on another host that sends the connections to this node.
    #[must_use]
    pub fn at(self, ip: IpAddr) -> Self {
        let to = self.addressed.local(ip).copied().unwrap_or(LocalAddress { ip, vrf: false });
        Self { places: vantage_points(ip).iter().map(|from| (*from, to)).collect(), ..self }
    }

    /// The claims.
    pub fn claims(&self) -> impl Iterator<Item = &Claim<'c>> {
        self.contenders.iter().map(|it| &it.claim)
    }

    pub(super) fn places(&self) -> impl Iterator<Item = (Vantage, LocalAddress)> {
        self.places.iter().copied()
    }

    /// The answer, and the listeners that lose the connection. Listeners may lose the connection although the answer is
    /// unknown.
    pub(super) fn who(
        &self,
        assumption: &Assumption,
        case: &mut Case,
        place: (Vantage, LocalAddress),
    ) -> (Result<Answer, Gap>, Vec<usize>) {
        let mut listeners = self.listeners(case, place);
        let answer = self.who_beside(&listeners, assumption, case, place);
        if !loses(&answer) {
            listeners.clear();
        }
        (answer.map_err(|undecided| undecided.gap), listeners)
    }

    /// The claims that may get a connection in this case: none, one, or several. There are several claims if the order
    /// of the claims is not known, or if the redirection of a pod that comes first may not exist.
    ///
    /// # Errors
    ///
    /// Fails if the case was not measured, or depends on an unread input. Also when only one claim may get the
    /// connection, and the redirection of this claim may not exist, or leads to an unknown target.
    pub fn winners(
        &self,
        (assumption, case): (&Assumption, &mut Case),
        place: (Vantage, LocalAddress),
    ) -> Result<BTreeSet<usize>, Gap> {
        match self.who_beside(&[], assumption, case, place) {
            Ok(answer) => Ok(answer.by.into_iter().collect()),
            Err(undecided) if undecided.by.len() > 1 => Ok(undecided.by),
            Err(undecided) => Err(undecided.gap),
        }
    }

    /// The addresses at which the last claim, a listener, loses connections to the first claim in this case. `excuse`
    /// is true if losses of this listener are no conflict, for example because the listener is the proxy. The result is
    /// `None` if there is no loss, or if `excuse` is true. `counts` selects the losses that are part of the result.
    ///
    /// # Errors
    ///
    /// Fails if the answer for an address is unknown and the other addresses have no loss, or when a loss is possible
    /// and `excuse` is unknown.
    pub fn lost(
        &self,
        (assumption, case): (&Assumption, &mut Case),
        excuse: &Result<bool, Gap>,
        counts: impl Fn(LocalAddress, Option<Outcome>) -> bool,
    ) -> Result<Option<Lost>, Gap> {
        if *excuse == Ok(true) {
            return Ok(None);
        }
        let (mut lost, mut unknown, last) = (BTreeMap::new(), None, self.contenders.len() - 1);
        let Claim::Listener(socket, _) = self.contenders[last].claim else { return Ok(None) };
        // A case makes one choice for all preferred sockets, because a user can make a socket for each device.
        let question = (Doubt::Device, ptr::from_ref(socket).addr(), 0);
        for (from, to) in self.places() {
            let is_behind = || self.round.is_behind(socket, (from, to));
            if !takes(case, socket, (from, to), self.addressed.interfaces)
                || is_behind().unwrap_or_else(|gap| case.choose(question, &[false, true], || gap))
            {
                continue;
            }
            match self.who_beside(&[last], assumption, case, (from, to)) {
                Ok(it) if it.outcome == Outcome::Listener || it.by != Some(0) || !counts(to, Some(it.outcome)) => {}
                Ok(it) => drop(lost.insert((from, to), BTreeSet::from([Some(it.outcome)]))),
                // The contest of another claim reports the loss.
                Err(undecided) if undecided.loses && !undecided.by.contains(&0) => {}
                Err(undecided) if undecided.loses && counts(to, None) => {
                    drop(lost.insert((from, to), BTreeSet::from([None])));
                }
                Err(undecided) => unknown = unknown.or(Some(undecided.gap)),
            }
        }
        match (lost.is_empty(), unknown, excuse) {
            (true, None, _) => Ok(None),
            (_, _, Err(gap)) => Err(gap.clone()),
            (true, Some(gap), Ok(_)) => Err(gap),
            (false, ..) => Ok(Some(Lost(lost))),
        }
    }

    fn who_beside(
        &self,
        listeners: &[usize],
        assumption: &Assumption,
        case: &mut Case,
        (from, to): (Vantage, LocalAddress),
    ) -> Result<Answer, Undecided> {
        let external = self.external(assumption, case, from, to)?;
        let node_ports = self.node_ports(assumption, case, (from, to), listeners)?;
        let host_port = self.redirected(assumption, from, to)?;
        let decided = |service| self.decided(assumption, (from, to), service, host_port.as_ref(), listeners);
        let may_win = |external: Outcome, node_port: Outcome, kind: ClaimKind| {
            let is_served = node_port != Outcome::Listener || assumption.captures_from((to, self.number), from);
            let first = match is_served {
                true => assumption.external_ip_or_node_port(external, node_port),
                false => Some(ClaimKind::ExternalIp),
            };
            first.is_none_or(|first| first == kind)
        };
        let winners = external.iter().filter(|(_, one)| {
            node_ports.is_empty() || node_ports.iter().any(|(_, other)| may_win(*one, *other, ClaimKind::ExternalIp))
        });
        let first: Vec<_> = winners.copied().collect();
        let answers = first.iter().map(|claim| decided(Some(*claim)));
        let by_external = answers.reduce(|one, other| in_any_order(one, &other));
        // A Service's nodePort may equal its port. Both claims then lead to the same endpoints.
        let is_of_first = |(index, outcome): &(usize, Outcome)| {
            first.iter().any(|it| it.1 == *outcome && self.is_copy(*index, &[*it]))
        };
        let winners = node_ports.iter().filter(|(_, one)| {
            external.is_empty() || external.iter().any(|(_, other)| may_win(*other, *one, ClaimKind::NodePort))
        });
        let winners = winners.filter(|it| !is_of_first(it));
        let answers = winners.map(|claim| decided(Some(*claim)));
        let by_node_port = answers.reduce(|one, other| in_any_order(one, &other));
        match (by_external, by_node_port) {
            (Some(one), Some(other)) => Err(either(&one, &other, unclear(TWO_SERVICES))),
            (one, other) => one.or(other).unwrap_or_else(|| decided(None)),
        }
    }

    /// The external addresses that may get the connection, each with its outcome.
    fn external(
        &self,
        assumption: &Assumption,
        case: &mut Case,
        from: Vantage,
        to: LocalAddress,
    ) -> Result<Vec<(usize, Outcome)>, Gap> {
        let mut claims: Vec<(usize, Outcome)> = Vec::new();
        if to.ip.is_loopback() {
            return Ok(claims);
        }
        for (index, contender) in self.others() {
            let Claim::External(address, port) = &contender.claim else { continue };
            if address.ip != to.ip || !address.is_served(Some(assumption.mode())) || self.is_copy(index, &claims) {
                continue;
            }
            if !self.serves(assumption, case, index, (address.service, address.part()))
                || !assumption.captures_external(address, from)?
            {
                continue;
            }
            let backing = self.backing(case, index, (address.service, port), Family::of(to.ip));
            claims.push((index, assumption.outcome_of_external_ip((to, self.protocol), from, backing)));
            if claims.len() > MOST_SERVICES {
                return Err(unclear(TWO_SERVICES));
            }
        }
        Ok(of_any_order(assumption, &claims))
    }

    /// The NodePorts that may get the connection, each with its outcome.
    fn node_ports(
        &self,
        assumption: &Assumption,
        case: &mut Case,
        (from, to): (Vantage, LocalAddress),
        listeners: &[usize],
    ) -> Result<Vec<(usize, Outcome)>, Gap> {
        let family = Family::of(to.ip);
        let mut claims: Vec<(usize, Outcome)> = Vec::new();
        for (index, contender) in self.others() {
            let Claim::NodePort(service, port) = contender.claim else { continue };
            let has = service.families.contains(&family) && !self.is_copy(index, &claims);
            if !has || !self.serves(assumption, case, index, (service, Part::NodePorts)) {
                continue;
            }
            let outcome = match self.strays(assumption, (from, to), service, listeners) {
                true => Outcome::Nowhere,
                false => {
                    let backing = self.backing(case, index, (service, port), family);
                    assumption.outcome((to, (self.protocol, self.number)), from, backing)
                }
            };
            claims.push((index, outcome));
            if claims.len() > MOST_SERVICES {
                return Err(unclear(TWO_SERVICES));
            }
        }
        Ok(of_any_order(assumption, &claims))
    }

    /// Whether an earlier claim is the same port of the same Service. A file may contain a Service twice.
    fn is_copy(&self, index: usize, earlier: &[(usize, Outcome)]) -> bool {
        let of = |index: usize| match &self.contenders[index].claim {
            Claim::External(ExternalAddress { service, .. }, port) | Claim::NodePort(service, port) => {
                Some((&service.namespace, &service.name, &port.name))
            }
            _ => None,
        };
        earlier.iter().any(|(it, _)| of(*it) == of(index))
    }

    /// A pod whose redirection certainly exists comes first.
    fn host_port(&self, assumption: &Assumption, from: Vantage, to: LocalAddress) -> Result<Option<Redirected>, Gap> {
        let mut perhaps = None;
        for (index, contender) in self.others() {
            let Claim::HostPort(pod, host) = &contender.claim else { continue };
            let served = assumption.serves_host_port((pod, host), to, from);
            let is_for = || covers(host, to.ip) && may_have(pod, Family::of(to.ip));
            match (served, cilium_range(self.round.now).map(|range| range.contains(self.number))) {
                (served, Ok(true)) if assumption.mode() == Mode::Cilium => {
                    if served != Ok(false) || is_for() {
                        return Ok(Some(Redirected::LeftOut));
                    }
                }
                (Ok(false), _) => {}
                (_, Err(gap)) if assumption.mode() == Mode::Cilium => return Err(gap),
                (Ok(true), _) => {
                    let outcome = of_host_port(to.ip, Outcome::Pod);
                    match unsettled(self.round.now, pod) {
                        None => return Ok(Some(Redirected::To(index, Ok(outcome)))),
                        Some(gap) => perhaps = perhaps.or(Some(Redirected::Perhaps(index, outcome, gap))),
                    }
                }
                (Err(gap), _) => return Err(gap),
            }
        }
        Ok(perhaps)
    }

    /// A hostPort that Cilium serves comes before the redirections, because Cilium's connections bypass netfilter.
    fn redirected(&self, assumption: &Assumption, from: Vantage, to: LocalAddress) -> Result<Option<Redirected>, Gap> {
        let takes = |it: &Redirection| Family::of(it.to) == Family::of(to.ip) && it.ip.is_none_or(|ip| ip == to.ip);
        let left = self.others().find_map(|(index, contender)| match contender.claim {
            Claim::Redirection(left) if takes(left) => Some((index, left)),
            _ => None,
        });
        let pods = self.host_port(assumption, from, to)?;
        let Some((index, left)) = left else { return Ok(pods) };
        let redirections = self.round.redirections().get()?;
        // The listeners lose the connection to any of these redirections.
        let one_of = |by: &[usize], gap| Undecided { gap, loses: true, by: by.iter().copied().collect() };
        let is_first = match &pods {
            None | Some(Redirected::LeftOut) => Ok(true),
            Some(_) if assumption.mode() == Mode::Cilium => Ok(false),
            Some(Redirected::Perhaps(its, _, gap)) => Err(one_of(&[index, *its], gap.clone())),
            Some(Redirected::To(its, _)) => match self.contenders[*its].claim {
                Claim::HostPort(pod, _) => redirections.is_before(left, pod).map_err(|gap| one_of(&[index, *its], gap)),
                _ => Ok(false),
            },
        };
        let there = || redirections.leads_to(left).map_err(|gap| one_of(&[index], gap));
        match is_first {
            Ok(false) => Ok(pods),
            Ok(true) => Ok(Some(Redirected::To(index, there().map(|there| of_host_port(to.ip, there))))),
            Err(undecided) => Ok(Some(Redirected::To(index, Err(undecided)))),
        }
    }

    /// Finds the sockets from which the kernel chooses if no other claim gets the connection. The kernel chooses from
    /// several sockets if several owners share an address and a port (`SO_REUSEPORT`, or `SO_REUSEADDR` with UDP).
    fn listeners(&self, case: &mut Case, place: (Vantage, LocalAddress)) -> Vec<usize> {
        let by_address = self.by_address.get_or_init(|| {
            let mut all: BTreeMap<IpAddr, Vec<usize>> = BTreeMap::new();
            for (index, contender) in self.contenders.iter().enumerate() {
                if let Claim::Listener(socket, _) = contender.claim {
                    all.entry(socket.local).or_default().push(index);
                }
            }
            all
        });
        let near = EVERY.iter().chain([&place.1.ip]).filter_map(|ip| by_address.get(ip));
        // The set sorts the indexes in the order of the claims.
        let near: BTreeSet<usize> = near.flatten().copied().collect();
        let sockets = near.into_iter().filter_map(|index| match self.contenders[index].claim {
            Claim::Listener(socket, _) => Some(((index, socket), rank(socket), group(socket))),
            _ => None,
        });
        let interfaces = self.addressed.interfaces;
        let found = first_of_each_owner(sockets, |(_, socket)| takes(case, socket, place, interfaces));
        found.into_iter().map(|(index, _)| index).collect()
    }

    /// The claims that are no listeners, each with its index.
    fn others(&self) -> impl Iterator<Item = (usize, &Contender<'c>)> {
        self.contenders[..self.first_listener].iter().enumerate()
    }

    fn sockets(&self, listeners: &[usize]) -> impl Iterator<Item = &Socket> {
        listeners.iter().filter_map(move |index| match self.contenders[*index].claim {
            Claim::Listener(socket, _) => Some(socket),
            _ => None,
        })
    }

    fn serves(
        &self,
        assumption: &Assumption,
        case: &mut Case,
        index: usize,
        (service, part): (&Service, Part),
    ) -> bool {
        let known = &self.contenders[index].serves;
        assumption.mode() != Mode::Cilium
            || case.serves(known.get_or_init(|| serves(self.round, service, part)), service)
    }

    fn backing(
        &self,
        case: &mut Case,
        index: usize,
        (service, port): (&Service, &ServicePort),
        family: Family,
    ) -> Backing {
        let known = &self.contenders[index].backing[family.index()];
        let known = known.get_or_init(|| self.round.endpoints().backing(service, port, family));
        case.backing(self.round, known, (service, port), family)
    }

    /// Whether the node's own connection to its link-local address is lost, because the data plane masquerades this
    /// connection. A masqueraded connection reaches only a UDP socket, or a socket that is bound to the address's
    /// device. If the data plane serves the NodePort on no address of the family, nothing masquerades the connection
    /// (kubernetes pkg/proxy/ipvs/proxier.go, syncProxyRules).
    fn strays(
        &self,
        assumption: &Assumption,
        (from, to): (Vantage, LocalAddress),
        service: &Service,
        listeners: &[usize],
    ) -> bool {
        let on_every_device = |socket: &Socket| socket.device == 0 && socket.protocol != Protocol::Udp;
        let is_lost = || !service.external_local && self.sockets(listeners).any(on_every_device);
        let mut of_family = self.addressed.locals.iter().filter(|it| Family::of(it.ip) == Family::of(to.ip));
        let mut is_served = || of_family.any(|it| assumption.captures(*it, self.number));
        assumption.plane.masquerades_own_link_local && is_own_link_local(to, from) && is_lost() && is_served()
    }

    fn decided(
        &self,
        assumption: &Assumption,
        (from, to): (Vantage, LocalAddress),
        service: Option<(usize, Outcome)>,
        host_port: Option<&Redirected>,
        listeners: &[usize],
    ) -> Result<Answer, Undecided> {
        let listener = listeners.first().copied();
        let answer = |outcome, by| Ok(Answer { outcome, by });
        let at_home = |by| match listeners.len() {
            0 | 1 => answer(Outcome::Listener, by),
            _ => Err(Undecided::from(Gap::new(Source::Listeners, Why::Ambiguous, SHARED))),
        };
        if let Some(Redirected::Perhaps(index, outcome, gap)) = host_port {
            let of = |host_port| self.decided(assumption, (from, to), service, host_port, listeners);
            let (with, without) = (of(Some(&Redirected::To(*index, Ok(*outcome)))), of(None));
            return match with == without {
                true => with,
                false => Err(either(&with, &without, gap.clone())),
            };
        }
        if let Some(Redirected::To(host_port, outcome)) = host_port {
            let redirected = || match outcome {
                Ok(outcome) => answer(*outcome, Some(*host_port)),
                Err(undecided) => Err(undecided.clone()),
            };
            let is_left = matches!(self.contenders[*host_port].claim, Claim::Redirection(_));
            match service.map(|(_, outcome)| assumption.node_port_or_host_port(outcome, is_left)) {
                Some(Ok(ClaimKind::NodePort)) => {}
                // At a link-local address, connections of NodePorts and hostPorts reach no process. At other addresses,
                // the answer depends on which of the two claims comes first.
                Some(Err(why)) if !is_link_local(to.ip) => {
                    let served = self.decided(assumption, (from, to), service, None, listeners);
                    return Err(either(&redirected(), &served, unclear(why)));
                }
                _ => return redirected(),
            }
        }
        let is_captured = |index: usize| {
            let is_node_port = matches!(self.contenders[index].claim, Claim::NodePort(..));
            !is_node_port || assumption.captures_from((to, self.number), from)
        };
        match service {
            None | Some((_, Outcome::Listener)) if self.may_be_dropped(assumption, from, to.ip) => {
                Err(unclear(OTHER_PORTS).into())
            }
            None | Some((_, Outcome::Listener)) if listener.is_some() => at_home(listener),
            // Cilium does not serve the hostPort, and the Service has no endpoint. The answer names the Service only if
            // Cilium serves the Service at this address.
            Some((index, Outcome::Listener))
                if matches!(host_port, Some(Redirected::LeftOut)) && is_captured(index) =>
            {
                answer(Outcome::Refused, Some(index))
            }
            None | Some((_, Outcome::Listener)) => answer(Outcome::Refused, None),
            // A connection to a pod may be stuck on loopback, or may time out. But if the endpoint is the listener on
            // this node, the connection reaches the listener.
            Some((index, outcome @ (Outcome::Pod | Outcome::Nowhere | Outcome::TimedOut)))
                if !is_own_link_local(to, from) =>
            {
                let family = Family::of(to.ip);
                // If kube-proxy's local detector does not match a pod, kube-proxy treats the pod as a client outside
                // the cluster. At addresses without NodePorts, the rules of externalTrafficPolicy drop the connections
                // of every client.
                let is_outside = match from {
                    Vantage::Remote => true,
                    Vantage::Pods if !assumption.settings.detects_pods(family) => true,
                    _ => outcome == Outcome::TimedOut && !assumption.captures(to, self.number),
                };
                let policy = (is_outside, family, assumption.mode());
                for listener in listeners {
                    if self.leads_home(from, policy, index, *listener)? {
                        return at_home(Some(index));
                    }
                }
                answer(outcome.over(self.protocol), Some(index))
            }
            Some((index, outcome)) => answer(outcome.over(self.protocol), Some(index)),
        }
    }

    fn may_be_dropped(&self, assumption: &Assumption, from: Vantage, to: IpAddr) -> bool {
        let is_balanced = || self.is_complete && self.round.balanced().contains(&to);
        let settings = &assumption.settings;
        from == Vantage::Remote && is_balanced() && settings.may_drop_other_ports && !settings.is_of_devices(to)
    }

    /// Whether the Service sends connections to the listener as one of its endpoints.
    fn leads_home(
        &self,
        from: Vantage,
        (is_outside, family, mode): (bool, Family, Mode),
        index: usize,
        listener: usize,
    ) -> Result<bool, Gap> {
        let (
            Claim::External(ExternalAddress { service, .. }, port) | Claim::NodePort(service, port),
            Claim::Listener(socket, _),
        ) = (self.contenders[index].claim, self.contenders[listener].claim)
        else {
            return Ok(false);
        };
        let mut home = self.contenders[index].home.borrow_mut();
        let is_home = home.entry((listener, from, is_outside, family, mode)).or_insert_with(|| {
            // A translated connection from loopback is a connection of the node itself.
            let via = if from == Vantage::Loopback { Vantage::Node } else { from };
            let may_get = |ip: &IpAddr| self.round.may_get(self.addressed, socket, (via, *ip));
            self.round.endpoints().sends_to((service, port), (is_outside, family, mode), socket.local_port, may_get)
        });
        is_home.clone()
    }
}

impl<'a> Round<'a> {
    /// Whether the process that has this listening socket is an endpoint of a Service in this family. The endpoint may
    /// be unready.
    ///
    /// # Errors
    /// Fails if endpoints were not read, and one of these endpoints may be the process.
    pub fn is_endpoint(
        &self,
        addressed: &Addressed<'_>,
        (service, port): (&Service, &ServicePort),
        family: Family,
        socket: &Socket,
    ) -> Result<bool, Gap> {
        let may_get = |ip: &IpAddr| self.may_get(addressed, socket, (Vantage::Node, *ip));
        self.endpoints().has_home((service, port), (family, socket.local_port), may_get)
    }

    /// Whether the kernel gives a connection to another socket that the kernel prefers to `socket`. Rules judge
    /// thousands of similar sockets in sequence, so the round keeps the answers for the last kind of sockets.
    pub(super) fn is_behind(&self, socket: &Socket, place: (Vantage, LocalAddress)) -> Result<bool, Gap> {
        let (interfaces, kind) = (self.addressed().get()?.interfaces, alike(socket));
        let all = self.listeners().get()?.at((socket.protocol, socket.local_port));
        let preferred = |ip: IpAddr| {
            let first = all.get(all.partition_point(|it| it.local < ip)).copied();
            let next = move |last: &&'a Socket| all.get(all.partition_point(|it| alike(it) <= alike(last))).copied();
            iter::successors(first, next).take_while(move |it| it.local == ip).filter(move |it| rank(it) < rank(socket))
        };
        let mut behind = self.behind.borrow_mut();
        if behind.0 != Some(kind) {
            *behind = (Some(kind), EVERY.into_iter().flat_map(preferred).collect(), BTreeMap::new());
        }
        let (_, everywhere, known) = &mut *behind;
        let answers = |it: &Socket| answers(it, place, interfaces);
        let gets = |it: &Socket| match it.serves(Family::of(place.1.ip)) {
            None if answers(&Socket { v6only: Some(false), ..it.clone() }) != Ok(false) => Err(v6only_unknown(it)),
            // `socket` only matters if `socket` gets the packet. Then the packet is on the device of `socket`.
            _ => answers(it).or_else(|gap| if it.device == socket.device { Ok(true) } else { Err(gap) }),
        };
        let all = preferred(place.1.ip).chain(everywhere.iter().copied()).map(gets).filter(|it| *it != Ok(false));
        let find = || all.reduce(|one, other| if one == Ok(true) { one } else { other }).unwrap_or(Ok(false));
        let of_another = |gap: Gap| Gap {
            detail: format!("another socket on this port may get the connections: {}", gap.detail),
            ..gap
        };
        known.entry(place).or_insert_with(|| find().map_err(of_another)).clone()
    }

    /// Whether the kernel may give a socket the connections from a vantage point to an endpoint's address. The result
    /// is false if the socket does not answer on this address, or if the kernel prefers another socket. The socket's
    /// device counts only for connections of the node, because a translated packet from outside keeps its own device.
    fn may_get(&self, addressed: &Addressed<'_>, socket: &Socket, (from, ip): (Vantage, IpAddr)) -> bool {
        let has_it = || addressed.interfaces.addresses.iter().any(|it| it.ip == ip);
        if socket.local != ip && !(socket.local.is_unspecified() && has_it()) {
            return false;
        }
        let to = addressed.local(ip).copied().unwrap_or(LocalAddress { ip, vrf: false });
        let device = if from == Vantage::Node { socket.device } else { 0 };
        let at_device = Socket { v6only: Some(socket.v6only == Some(true)), device, ..socket.clone() };
        answers(&at_device, (from, to), addressed.interfaces) != Ok(false)
            && self.is_behind(socket, (from, to)) != Ok(true)
    }
}

impl Case {
    fn serves(&mut self, known: &Result<bool, Gap>, service: &Service) -> bool {
        match known {
            Ok(served) => *served,
            Err(gap) => self.choose((Doubt::KeptOff, ptr::from_ref(service).addr(), 0), &[true, false], || gap.clone()),
        }
    }

    fn backing(
        &mut self,
        round: &Round<'_>,
        known: &Result<Backing, Gap>,
        (service, port): (&Service, &ServicePort),
        family: Family,
    ) -> Backing {
        match known {
            Ok(backing) => *backing,
            Err(gap) => {
                let question = (Doubt::Endpoints, ptr::from_ref(port).addr(), family.index());
                self.choose(question, &round.endpoints().possible(service, port, family), || gap.clone())
            }
        }
    }

    /// The endpoints of a Service port in this case.
    pub fn backing_of(&mut self, round: &Round<'_>, of: (&Service, &ServicePort), family: Family) -> Backing {
        self.backing(round, &round.endpoints().backing(of.0, of.1, family), of, family)
    }

    /// Whether this node serves a part of a Service in this case.
    pub fn is_served(&mut self, round: &Round<'_>, assumption: &Assumption, (service, part): (&Service, Part)) -> bool {
        assumption.mode() != Mode::Cilium || self.serves(&serves(round, service, part), service)
    }
}

/// Whether an IPv6 socket also gets IPv4 connections in this case. `/proc/net` does not show `IPV6_V6ONLY`, and
/// sock_diag may be forbidden. The case without IPv4 comes first, because a socket with fewer connections has a smaller
/// loss.
fn takes_both(case: &mut Case, socket: &Socket) -> bool {
    case.choose((Doubt::V6Only, kind(socket), 0), &[false, true], || v6only_unknown(socket))
}

/// The unread input that decides whether an IPv6 socket also gets IPv4 connections.
pub fn v6only_unknown(socket: &Socket) -> Gap {
    let detail = format!(
        "the kernel did not report IPV6_V6ONLY, so it is not known whether [::]:{} also gets IPv4 connections",
        socket.local_port
    );
    Gap::new(Source::Listeners, Why::Ambiguous, detail)
}

/// Whether a socket gets connections from a vantage point to an address in this case, if no proxy interferes.
pub fn takes(case: &mut Case, socket: &Socket, (from, to): (Vantage, LocalAddress), interfaces: &Interfaces) -> bool {
    let question = (Doubt::Device, kind(socket), usize::from(to.vrf));
    let may_answer = |case: &mut Case, socket: &Socket| {
        answers(socket, (from, to), interfaces).unwrap_or_else(|gap| case.choose(question, &[false, true], || gap))
    };
    match socket.serves(Family::of(to.ip)) {
        Some(_) => may_answer(case, socket),
        // If the socket could answer IPv4 clients, the case chooses whether the socket also gets IPv4.
        None => may_answer(case, &Socket { v6only: Some(false), ..socket.clone() }) && takes_both(case, socket),
    }
}

/// Whether the node itself connects to one of its link-local addresses. If a data plane translates a packet of this
/// connection, the packet is lost.
fn is_own_link_local(to: LocalAddress, from: Vantage) -> bool {
    is_link_local(to.ip) && from == Vantage::Node
}

/// `there` is the outcome at the target of the redirection. The kernel does not forward link-local packets, and no pod
/// can answer a packet from `::1`.
fn of_host_port(to: IpAddr, there: Outcome) -> Outcome {
    match to {
        to if is_link_local(to) => Outcome::Nowhere,
        IpAddr::V6(to) if to.is_loopback() => Outcome::TimedOut,
        _ => there,
    }
}

/// Keeps only the claims that get the connection in at least one order.
fn of_any_order(assumption: &Assumption, claims: &[(usize, Outcome)]) -> Vec<(usize, Outcome)> {
    let loses = |outcome: Outcome| claims.iter().any(|(_, other)| assumption.outranks(*other, outcome));
    claims.iter().copied().filter(|(_, outcome)| !loses(*outcome)).collect()
}

/// The first socket of each owner that takes the connection. Each socket has its rank and its owner, and the best rank
/// comes first: sockets with another rank than the first result are left out.
fn first_of_each_owner<T, R: PartialEq, O: Ord>(
    sockets: impl Iterator<Item = (T, R, O)>,
    mut takes: impl FnMut(&T) -> bool,
) -> Vec<T> {
    let (mut found, mut best, mut owners) = (Vec::new(), None, BTreeSet::new());
    for (socket, rank, owner) in sockets {
        let is_behind = best.as_ref().is_some_and(|best| *best != rank) || owners.contains(&owner);
        if !is_behind && takes(&socket) {
            best.get_or_insert(rank);
            owners.insert(owner);
            found.push(socket);
        }
    }
    found
}

/// The kernel prefers a socket on one address, then a socket on the packet's device, then a socket of IPv4 (Linux
/// net/ipv4/inet_hashtables.c and net/ipv4/udp.c, `compute_score`). The preferred socket has the smallest rank.
fn rank(socket: &Socket) -> (bool, Reverse<u8>) {
    let of_device = if socket.protocol == Protocol::Udp { 2 } else { 1 };
    let score = of_device * u8::from(socket.device != 0) + u8::from(socket.family == Family::V4);
    (socket.local.is_unspecified(), Reverse(score))
}

/// Sockets of one kind have equal rank. A case makes one choice for all sockets of one kind, because a user can make a
/// socket for each device. Two cases are enough: with all sockets of a kind, and without these sockets. If both cases
/// have the same result, a case with only some of these sockets has this result too.
fn kind(socket: &Socket) -> usize {
    let kind = [socket.local.is_unspecified(), socket.device != 0, socket.family == Family::V4];
    kind.into_iter().fold(0, |all, it| 2 * all + usize::from(it))
}

pub(super) fn alike(it: &Socket) -> Alike {
    (it.protocol, it.local_port, it.local, it.device, it.family, it.v6only)
}

#[cfg(test)]
mod tests {
    use std::{cell::Cell, cmp::Ordering};

    use super::*;
    use portreeve_facts::{
        Snapshot, State,
        healthy::{PRIMARY, World, ip},
    };

    /// An owner that counts its comparisons.
    #[derive(Eq)]
    struct Counted<'c>(u32, &'c Cell<usize>);

    impl PartialEq for Counted<'_> {
        fn eq(&self, other: &Self) -> bool {
            self.cmp(other).is_eq()
        }
    }

    impl Ord for Counted<'_> {
        fn cmp(&self, other: &Self) -> Ordering {
            self.1.set(self.1.get() + 1);
            self.0.cmp(&other.0)
        }
    }

    impl PartialOrd for Counted<'_> {
        fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
            Some(self.cmp(other))
        }
    }

    #[test]
    fn of_thousands_of_owners_each_is_compared_with_a_few_others() {
        const OWNERS: u32 = 4_096;
        let compared = Cell::new(0);
        let sockets = (0..OWNERS).map(|owner| (owner, (), Counted(owner, &compared)));
        assert!(first_of_each_owner(sockets, |_| true).into_iter().eq(0..OWNERS));
        assert!(compared.get() < OWNERS as usize * 256, "{} comparisons", compared.get());
    }

    #[test]
    fn of_one_owner_and_of_a_worse_rank_one_socket_is_enough() {
        let sockets = || [("a", 0, 7), ("b", 0, 7), ("c", 0, 8), ("d", 1, 9)].into_iter();
        assert_eq!(first_of_each_owner(sockets(), |_| true), ["a", "c"]);
        assert_eq!(first_of_each_owner(sockets(), |it| *it != "a"), ["b", "c"]);
        assert_eq!(first_of_each_owner(sockets(), |it| *it == "d"), ["d"]);
    }

    #[test]
    fn a_socket_on_every_ipv6_address_is_an_endpoint_of_ipv4_unless_it_is_v6only() {
        let endpoint = |it: World| {
            it.node_port(30080).each_slice(|slice| {
                slice.ports[0].port = Some(30080);
                slice.endpoints[0].addresses = vec![ip(PRIMARY[0])];
            })
        };
        for (v6only, is_endpoint) in [(Some(false), true), (None, true), (Some(true), false)] {
            let world = Snapshot::healthy().service("web", endpoint);
            let world = world.socket(Protocol::Tcp, State::Listen, "[::]:30080", "[::]:0", |it| it.v6only = v6only);
            let round = Round::of(&world, None, 60);
            let addressed = round.addressed().get().expect("addresses");
            let service: &Service = &world.cluster.services.seen().expect("services")[0];
            let socket = world.kernel.listeners.seen().expect("listeners").last().expect("one");
            let found = round.is_endpoint(addressed, (service, &service.ports[0]), Family::V4, socket);
            assert_eq!(found, Ok(is_endpoint), "{v6only:?}");
        }
    }
}
