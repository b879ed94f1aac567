//! Who would answer on a port of this node. The answer lists every claimant, in the order in which the kernel checks
//! claims for a new connection. For each vantage point, the answer names the claimant that answers, and the listener
//! that loses connections.

mod beside;
mod claims;
mod in_pod;
mod needs;
mod ownership;

use beside::beside;
pub use beside::{Beside, BesideKind};
use claims::claims;
pub use in_pod::{owner_in_pod, pod_of_name};
use needs::needs;
pub use ownership::{Answered, Claimant, Ownership};

use super::{
    assumption::Assumption,
    cases::{Judged, Loss, Stratum},
    cilium::{ignores_host_port, may_be as may_be_cilium},
    claim::ClaimKind,
    contest::{Answer, Contest},
    local_address::LocalAddress,
    outcome::Outcome,
    round::{Addressed, Round},
};
use portreeve_facts::{Gap, Mode, Protocol, Source, Unread, Vantage, Why};

/// Who owns a port. Without the node's addresses, there are no answers, and [`Ownership::unread`] has the reason.
///
/// # Errors
/// Fails if the listeners, or the Services of a configured cluster, could not be read.
pub fn owner(round: &Round<'_>, protocol: Protocol, port: u16) -> Result<Ownership, Gap> {
    let snapshot = round.now;
    // Without a configured cluster, there are no Services to read.
    if let Some(gap) = snapshot.cluster.services.gap().filter(|_| snapshot.cluster.configured) {
        return Err(gap.clone());
    }
    let claims = claims(round, (protocol, port))?;
    if let Some(gap) = snapshot.kernel.no_udp.as_ref().filter(|_| protocol == Protocol::Udp) {
        return Err(gap.clone());
    }
    let cluster = &snapshot.cluster;
    // All protocols have the same unread inputs: the report prints them once.
    let may_be_here = cluster.unplaced_ports().any(|(number, ..)| number == port);
    let may_have = |gap: &&Gap| match gap.source {
        Source::Services | Source::Pods => gap.hides_ports(),
        Source::Nodes => may_be_here || cluster.unknown_node() != Some(*gap),
        _ => false,
    };
    let left_out = cluster.rejected.iter().filter(may_have);
    let unread = [snapshot.kernel.interfaces.gap(), cluster.services.gap(), cluster.pods.gap()];
    let unread: Vec<Gap> = unread.into_iter().flatten().chain(left_out).cloned().collect();
    let redirections = round.unread_redirections();
    let (claimants, answers, mode): (Vec<Claimant>, Vec<Answered>, String) = match round.addressed().get() {
        Ok(addressed) => {
            let contest = Contest::of(round, addressed, (protocol, port), claims).complete();
            let claimants: Vec<Claimant> = contest.claims().map(|it| it.claimant(round)).collect();
            let first = may_be_first(round, addressed, port, &unread, redirections.as_ref());
            let first = |it: Answer| first(it.by.map(|by| claimants[by].claim), it.outcome);
            let answered = |place| answered(&contest, addressed, first, place);
            let mut answers: Vec<Answered> = contest.places().map(answered).collect();
            answers.sort_by_key(|it| (it.from, it.to));
            (claimants, answers, addressed.assumptions.mode_in_words())
        }
        Err(_) => {
            let mode = snapshot.proxy_mode().map_or_else(|gap| format!("unknown: {}", gap.detail), |it| it.to_string());
            (claims.iter().map(|it| it.claimant(round)).collect(), Vec::new(), mode)
        }
    };
    let proxy_mode = snapshot.proxy_mode().ok().map(|mode| mode.value);
    let is_of_service = |it: &Claimant| matches!(it.claim, ClaimKind::ExternalIp | ClaimKind::NodePort);
    let links = snapshot.kernel.interfaces.known(Unread::Doubted);
    let may_lack_proxy = proxy_mode != Some(Mode::Cilium)
        && snapshot.overrides.proxy_mode.is_none()
        && links.is_none_or(|it| match proxy_mode {
            // Beside a known mode of kube-proxy, Antrea and kube-router may be network plugins only.
            Some(_) => it.unmeasured_proxy().is_none(),
            None => it.unmeasured().is_none() && !may_be_cilium(snapshot, it),
        })
        && claimants.iter().any(is_of_service);
    let no_proxy = snapshot.kernel.proxy.mode.gap().filter(|gap| may_lack_proxy && gap.why == Why::Unreachable);
    let no_proxy = no_proxy.cloned();
    let users = beside(round, (protocol, port), claimants.is_empty());
    let beside = needs(round, (protocol, port)).into_iter().chain(users).collect();
    Ok(Ownership { protocol, port, claimants, beside, answers, proxy_mode, mode, unread, redirections, no_proxy })
}

/// Returns a function. For the kind of the claim that answers, and for the outcome, the function returns an unread
/// input that may have an earlier claim. For `None`, any unread claim may get the connection.
///
/// An unread Service may have a NodePort if the number is in the NodePort range and no known Service has the number. On
/// other numbers, an unread Service could only have an external address of this node. Known claims assume no such
/// address, because otherwise no process would be known without a cluster.
///
/// A hostPort and a leftover redirection may have any number, and come before each listener. The data plane decides
/// whether they come before a Service. If a right or a kernel feature is missing, the function assumes no leftover
/// redirection.
fn may_be_first<'u>(
    round: &Round<'_>,
    addressed: &Addressed<'_>,
    port: u16,
    unread: &'u [Gap],
    redirections: Option<&'u Gap>,
) -> impl Fn(Option<ClaimKind>, Outcome) -> Option<&'u Gap> {
    let range = round.now.cluster.node_port_range.known(Unread::Doubted);
    let is_allocated = round.allocated().known(Unread::Doubted).is_some_and(|all| !all.at(port).is_empty());
    let may_be_node_port = range.is_none_or(|it| it.range.contains(port)) && !is_allocated;
    let service = unread.iter().find(|it| it.source == Source::Services);
    let node_port = service.filter(|_| may_be_node_port);
    let host_port = unread.iter().find(|it| it.source == Source::Pods && it.why != Why::NotRequested);
    let host_port = host_port.filter(|_| !ignores_host_port(round.now, port));
    let left = redirections.filter(|it| !matches!(it.why, Why::NotPermitted | Why::NotSupported));
    let is_first = |it: &Assumption, service| it.node_port_or_host_port(service, false) == Ok(ClaimKind::NodePort);
    let is_before_host_port = move |outcome: Outcome| match outcome {
        // A hostPort at this address leads nowhere too.
        Outcome::Nowhere => true,
        // The Service sends the connections to the process.
        Outcome::Listener => addressed.assumptions.iter().all(|it| is_first(it, Outcome::Pod)),
        outcome => addressed.assumptions.iter().all(|it| is_first(it, outcome)),
    };
    let is_host_port_first = |it: &Assumption| {
        let first = |service| it.node_port_or_host_port(service, false);
        [Outcome::Pod, Outcome::Refused, Outcome::TimedOut].map(first) == [Ok(ClaimKind::HostPort); 3]
    };
    let node_port_or_left =
        if addressed.assumptions.iter().all(is_host_port_first) { left } else { node_port.or(left) };
    move |by, outcome| match by {
        Some(ClaimKind::ExternalIp | ClaimKind::NodePort) => {
            host_port.or(left).filter(|_| !is_before_host_port(outcome))
        }
        Some(ClaimKind::HostPort | ClaimKind::Redirection) => node_port_or_left,
        Some(ClaimKind::Listener | ClaimKind::Proxy) => node_port.or(host_port).or(left),
        None => service.or(host_port).or(left),
    }
}

/// The result of one case. The fold over all cases keeps the answer and the losers that all cases share.
#[derive(Clone, PartialEq)]
struct CaseResult {
    /// The outcome and the claim that gets the connection; `Ok(None)` if the cases differ.
    answer: Result<Option<Answer>, Gap>,
    /// The listeners that lose the connection in every case, even if the outcomes differ. Sorted, because a user can
    /// make thousands of sockets.
    losers: Vec<usize>,
}

impl Loss for CaseResult {
    fn meet(self, other: &Self) -> Option<Self> {
        let answer = match (self.answer, &other.answer) {
            (Err(gap), _) => Err(gap),
            (_, Err(gap)) => Err(gap.clone()),
            (Ok(one), Ok(other)) => Ok(one.filter(|it| other.as_ref() == Some(it))),
        };
        let losers: Vec<usize> = self.losers.into_iter().filter(|it| other.losers.binary_search(it).is_ok()).collect();
        (answer != Ok(None) || !losers.is_empty()).then_some(Self { answer, losers })
    }
}

/// The answer at one place. `first` is the result of [`may_be_first`] for an answer.
fn answered<'u>(
    contest: &Contest<'_, '_, '_>,
    addressed: &Addressed<'_>,
    first: impl Fn(Answer) -> Option<&'u Gap>,
    (from, to): (Vantage, LocalAddress),
) -> Answered {
    let (result, assumed) = addressed.over(true, |assumption, case| match contest.who(assumption, case, (from, to)) {
        (Err(gap), losers) if losers.is_empty() => Err(gap),
        (answer, losers) => Ok(Some(CaseResult { answer: answer.map(Some), losers })),
    });
    let (CaseResult { answer, losers }, gap) = match result {
        Judged::Certain(result, gap) => (result, gap),
        Judged::Depends { on, .. } => (CaseResult { answer: Err(on), losers: Vec::new() }, None),
        Judged::Never => unreachable!("each case has a result"),
    };
    // If all settings share only the losers, the settings that `over` assumes may share the answer too.
    let of_assumed = (answer == Ok(None)).then(|| {
        addressed.over(true, |assumption, case| {
            let (answer, _) = contest.who(assumption, case, (from, to));
            Ok(Some(CaseResult { answer: Ok(Some(answer?)), losers: Vec::new() }))
        })
    });
    let (answer, assumed) = match of_assumed {
        Some((Judged::Certain(result, _), assumed)) => (result.answer, assumed),
        _ => (answer, assumed),
    };
    let differs = || gap.unwrap_or_else(|| addressed.assumptions.ambiguity());
    let answer = answer.and_then(|it| it.ok_or_else(differs));
    let (outcome, by) = match answer.and_then(|it| first(it).map_or(Ok(it), |gap| Err(gap.clone()))) {
        Ok(Answer { outcome, by }) => (Ok(outcome), by),
        Err(gap) => (Err(gap), None),
    };
    let assumed = if outcome.is_ok() || !losers.is_empty() { assumed } else { Stratum::Any };
    Answered { from, to: to.ip, outcome, by, losers, assumed }
}

#[cfg(test)]
mod tests;
