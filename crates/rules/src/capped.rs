//! Limits how many judgements a rule reports. A user who can write one object can write thousands of ports in this
//! object.

use std::{
    cmp::Reverse,
    collections::{HashMap, HashSet},
};

use super::wording::MOST_LISTED;
use crate::findings::{Evidence, Judgement, Subject, Verdict};
use portreeve_dataplane::{Port, is_on_loopback, workers};
use portreeve_facts::{Gap, Snapshot, Socket, Source, Why};

/// The largest number of judgements about one subject.
pub(super) const OF_SUBJECT: usize = 16;
/// The largest number of judgements of one rule. A judgement takes about four kilobytes; an agent's pod has 128 MiB.
pub(super) const OF_RULE: usize = 1024;
/// The largest number of judgements in memory. When a rule has this number of judgements, only the worst judgements are
/// kept.
const HELD: usize = 2048;

/// The judgements of one rule. If a rule makes too many judgements, only the worst judgements are kept, and a judgement
/// *unknown* reports that there are more.
pub(super) struct Capped<'a> {
    snapshot: &'a Snapshot,
    source: Source,
    judgements: Vec<Judgement>,
    of_subject: HashMap<Subject, usize>,
    is_cut: bool,
}

impl<'a> Capped<'a> {
    pub(super) fn of(snapshot: &'a Snapshot, source: Source) -> Self {
        Self { snapshot, source, judgements: Vec::new(), of_subject: HashMap::new(), is_cut: false }
    }

    /// Whether the limit permits one more judgement about this subject. Above the limit, a worse judgement still
    /// replaces a milder one.
    pub(super) fn takes(&self, subject: &Subject) -> bool {
        self.of_subject.get(subject).is_none_or(|capped| *capped < OF_SUBJECT)
    }

    pub(super) fn push(&mut self, judgement: Judgement) {
        *self.of_subject.entry(judgement.subject.clone()).or_default() += 1;
        self.judgements.push(judgement);
        if self.judgements.len() >= HELD {
            self.cut();
        }
    }

    pub(super) fn leave_out(&mut self) {
        self.is_cut = true;
    }

    pub(super) fn all(mut self) -> Vec<Judgement> {
        self.cut();
        if self.is_cut {
            let detail = format!(
                "the rule reports at most {OF_SUBJECT} ports of one object, and {OF_RULE} in all; there are more"
            );
            self.judgements.push(Judgement::of(
                Subject::this_node(self.snapshot),
                Verdict::Unknown(Gap::new(self.source, Why::TooMuch, detail)),
            ));
        }
        self.judgements
    }

    /// Keeps the worst judgements of each subject and of the rule, in the order in which the rule found them.
    fn cut(&mut self) {
        let all = self.judgements.len();
        let mut worst_first: Vec<usize> = (0..all).collect();
        worst_first.sort_by_key(|index| Reverse(self.judgements[*index].verdict.severity()));
        self.of_subject.clear();
        let (mut kept, mut left) = (vec![false; all], OF_RULE);
        for index in worst_first {
            let capped = self.of_subject.entry(self.judgements[index].subject.clone()).or_default();
            if *capped < OF_SUBJECT && left > 0 {
                (*capped, left, kept[index]) = (*capped + 1, left - 1, true);
            }
        }
        let mut kept = kept.into_iter();
        self.judgements.retain(|_| kept.next() == Some(true));
        self.is_cut |= self.judgements.len() < all;
    }
}

/// The largest number of sockets that are judged on one port. A user can make any number of sockets.
pub(super) const MOST_JUDGED: usize = 1 << 10;

/// One socket of each server on a port, with the number of the server's sockets. The first socket of each address,
/// device and family comes before all other sockets. Both groups are sorted by loopback, device and `rank`: a socket on
/// loopback or on a device loses less. A user can make any number of sockets on loopback, on devices, or with equal
/// addresses (`SO_REUSEPORT`).
pub(super) fn in_order<'a, K: Ord>(sockets: &[&'a Socket], rank: impl Fn(&Socket) -> K) -> Vec<(&'a Socket, usize)> {
    let mut sockets = workers(sockets);
    sockets.sort_by_cached_key(|(it, _)| (is_on_loopback(it), it.device != 0, rank(it)));
    let mut kinds = HashSet::new();
    let is_first = |(it, _): &(&Socket, usize)| kinds.insert((it.local, it.device, it.family, it.v6only));
    let (first, others): (Vec<_>, Vec<_>) = sockets.into_iter().partition(is_first);
    [first, others].concat()
}

/// Judges the first sockets of a port. [`in_order`] has sorted `sockets`. Merges the losses into one problem. Also
/// returns the reasons why the loss of a socket is unknown, or why sockets were not judged or are not reported.
pub(super) fn of_sockets(
    (protocol, number): Port,
    sockets: &[(&Socket, usize)],
    judge: impl FnMut(&(&Socket, usize)) -> Option<Result<Evidence, Gap>>,
) -> (Option<Evidence>, Vec<Gap>) {
    let (mut losses, mut unknown, mut are_all) = (Vec::new(), Vec::new(), sockets.len() <= MOST_JUDGED);
    for lost in sockets.iter().take(MOST_JUDGED).filter_map(judge) {
        match lost {
            Ok(lost) if losses.len() < MOST_LISTED => losses.push(lost),
            Ok(_) => {
                are_all = false;
                break;
            }
            // One reason of each kind is enough. An unknown loss must not hide a certain loss.
            Err(gap) if unknown.iter().any(|it: &Gap| (it.source, it.why) == (gap.source, gap.why)) => {}
            Err(gap) => unknown.push(gap),
        }
    }
    if !are_all {
        let detail = "too many sockets: some that may lose connections are not reported";
        unknown.push(Gap::new(Source::Listeners, Why::TooMuch, format!("{number}/{protocol} has {detail}")));
    }
    (losses.into_iter().reduce(Evidence::merge), unknown)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::findings::Severity;
    use portreeve_facts::{Protocol, Service};

    fn problem(name: usize, severity: Severity) -> Judgement {
        let world = Snapshot::healthy().service(&format!("s{name}"), |it| it);
        let services: &[std::sync::Arc<Service>] = world.cluster.services.seen().expect("Services");
        let verdict = Verdict::Problem(Evidence::new(severity, "wrong"));
        Judgement::of(Subject::service(&services[0]), verdict)
    }

    #[test]
    fn the_worst_are_told_and_that_there_are_more() {
        let world = Snapshot::healthy();
        let mut capped = Capped::of(&world, Source::Services);
        capped.push(problem(0, Severity::Info));
        assert_eq!(capped.all().len(), 1);

        let mut capped = Capped::of(&world, Source::Services);
        (0..5 * OF_RULE).for_each(|name| capped.push(problem(name, Severity::Info)));
        capped.push(problem(5 * OF_RULE, Severity::Critical));
        assert!(capped.judgements.len() <= HELD);
        let all = capped.all();
        assert_eq!(all.len(), OF_RULE + 1);
        let is_critical = |it: &Judgement| it.verdict.severity() == Some(Severity::Critical);
        assert!(is_critical(&all[OF_RULE - 1]), "in the order in which they came");
        assert!(matches!(&all[OF_RULE].verdict, Verdict::Unknown(gap) if gap.why == Why::TooMuch));

        let mut capped = Capped::of(&world, Source::Services);
        (0..2 * OF_SUBJECT).for_each(|_| capped.push(problem(1, Severity::Info)));
        assert_eq!(capped.all().len(), OF_SUBJECT + 1);

        let mut capped = Capped::of(&world, Source::Services);
        (0..OF_SUBJECT).for_each(|_| capped.push(problem(1, Severity::Info)));
        capped.push(problem(1, Severity::Critical));
        (0..OF_SUBJECT).for_each(|_| capped.push(problem(2, Severity::Info)));
        let all = capped.all();
        assert_eq!(all.len(), 2 * OF_SUBJECT + 1);
        assert_eq!(all.iter().filter(|it| is_critical(it)).count(), 1, "the worst of a subject, though it came last");
    }

    #[test]
    fn each_kind_of_reason_is_kept() {
        let listens = |world: Snapshot, n| world.listens(&format!("127.0.0.{n}:30080"));
        let world = (1..=20).fold(Snapshot::healthy(), listens);
        let all = world.kernel.listeners.seen().expect("listeners");
        let sockets: Vec<(&Socket, usize)> = all.iter().map(|it| (it, 1)).collect();
        let mut left = sockets.len();
        let (_, unknown) = of_sockets((Protocol::Tcp, 30080), &sockets, |_| {
            left -= 1;
            let why = if left == 0 { Why::Torn } else { Why::NotPermitted };
            Some(Err(Gap::new(Source::Processes, why, "of a test")))
        });
        assert_eq!(unknown.into_iter().map(|it| it.why).collect::<Vec<_>>(), [Why::NotPermitted, Why::Torn]);
    }
}
