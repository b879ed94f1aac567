//! Judgements of which others choose the number: a person who may write one object chooses how many ports it has.

use std::{cmp::Reverse, collections::HashMap};

use crate::findings::{Judgement, Subject, Verdict};
use portreeve_facts::{Gap, Snapshot, Source, Why};

/// The most judgements of one subject.
pub(super) const OF_SUBJECT: usize = 16;
/// The most of one rule. Each takes some four kilobytes, and the pod of an agent 128 MiB.
pub(super) const OF_RULE: usize = 1024;
/// The most that are held: a cut sorts them, and leaves room for as many again.
const HELD: usize = 2048;

/// The judgements of one rule: the worst of them where there are too many, and that there are more.
pub(super) struct Told<'a> {
    snapshot: &'a Snapshot,
    /// What they are about.
    source: Source,
    judgements: Vec<Judgement>,
    of_subject: HashMap<Subject, usize>,
    is_cut: bool,
}

impl<'a> Told<'a> {
    /// None yet.
    pub(super) fn of(snapshot: &'a Snapshot, source: Source) -> Self {
        Self { snapshot, source, judgements: Vec::new(), of_subject: HashMap::new(), is_cut: false }
    }

    /// Whether one more of this subject would be kept, if it is no worse than those that are.
    pub(super) fn has_room(&self, subject: &Subject) -> bool {
        self.of_subject.get(subject).is_none_or(|told| *told < OF_SUBJECT)
    }

    /// Takes one more.
    pub(super) fn push(&mut self, judgement: Judgement) {
        *self.of_subject.entry(judgement.subject.clone()).or_default() += 1;
        self.judgements.push(judgement);
        if self.judgements.len() >= HELD {
            self.cut();
        }
    }

    /// Something was not looked at, for it was too much.
    pub(super) fn leave_out(&mut self) {
        self.is_cut = true;
    }

    /// All of them.
    pub(super) fn all(mut self) -> Vec<Judgement> {
        self.cut();
        if self.is_cut {
            let detail = format!("there is more to tell than {OF_SUBJECT} ports of one object, or {OF_RULE} in all");
            self.judgements.push(Judgement::of(
                Subject::this_node(self.snapshot),
                Verdict::Unknown(Gap::new(self.source, Why::TooMuch, detail)),
            ));
        }
        self.judgements
    }

    /// Keeps the worst of each subject and of all, in the order in which they came.
    fn cut(&mut self) {
        let all = self.judgements.len();
        let mut worst_first: Vec<usize> = (0..all).collect();
        worst_first.sort_by_key(|index| Reverse(self.judgements[*index].verdict.severity()));
        self.of_subject.clear();
        let (mut kept, mut left) = (vec![false; all], OF_RULE);
        for index in worst_first {
            let told = self.of_subject.entry(self.judgements[index].subject.clone()).or_default();
            if *told < OF_SUBJECT && left > 0 {
                (*told, left, kept[index]) = (*told + 1, left - 1, true);
            }
        }
        let mut kept = kept.into_iter();
        self.judgements.retain(|_| kept.next() == Some(true));
        self.is_cut |= self.judgements.len() < all;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::findings::{Evidence, Severity};
    use portreeve_facts::Service;

    fn problem(name: usize, severity: Severity) -> Judgement {
        let world = Snapshot::healthy().service(&format!("s{name}"), |it| it);
        let services: &[std::sync::Arc<Service>] = world.cluster.services.seen().expect("Services");
        let verdict = Verdict::Problem(Evidence::new(severity, "wrong"));
        Judgement::of(Subject::service(&services[0]), verdict)
    }

    #[test]
    fn the_worst_are_told_and_that_there_are_more() {
        let world = Snapshot::healthy();
        let mut told = Told::of(&world, Source::Services);
        told.push(problem(0, Severity::Info));
        assert_eq!(told.all().len(), 1);

        let mut told = Told::of(&world, Source::Services);
        (0..5 * OF_RULE).for_each(|name| told.push(problem(name, Severity::Info)));
        told.push(problem(5 * OF_RULE, Severity::Critical));
        assert!(told.judgements.len() <= HELD);
        let all = told.all();
        assert_eq!(all.len(), OF_RULE + 1);
        let is_critical = |it: &Judgement| it.verdict.severity() == Some(Severity::Critical);
        assert!(is_critical(&all[OF_RULE - 1]), "in the order in which they came");
        assert!(matches!(&all[OF_RULE].verdict, Verdict::Unknown(gap) if gap.why == Why::TooMuch));

        let mut told = Told::of(&world, Source::Services);
        (0..2 * OF_SUBJECT).for_each(|_| told.push(problem(1, Severity::Info)));
        assert_eq!(told.all().len(), OF_SUBJECT + 1);

        let mut told = Told::of(&world, Source::Services);
        (0..OF_SUBJECT).for_each(|_| told.push(problem(1, Severity::Info)));
        told.push(problem(1, Severity::Critical));
        (0..OF_SUBJECT).for_each(|_| told.push(problem(2, Severity::Info)));
        let all = told.all();
        assert_eq!(all.len(), 2 * OF_SUBJECT + 1);
        assert_eq!(all.iter().filter(|it| is_critical(it)).count(), 1, "the worst of a subject, though it came last");
    }
}
