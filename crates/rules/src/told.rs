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

    /// Whether one more of this subject would be kept.
    pub(super) fn has_room(&self, subject: &Subject) -> bool {
        self.of_subject.get(subject).is_none_or(|told| *told < OF_SUBJECT)
    }

    /// Takes one more, as far as there is room.
    pub(super) fn push(&mut self, judgement: Judgement) {
        if !self.has_room(&judgement.subject) {
            self.is_cut = true;
            return;
        }
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

    /// Keeps the worst, in the order in which they came.
    fn cut(&mut self) {
        if self.judgements.len() > OF_RULE {
            self.judgements.sort_by_key(|judgement| Reverse(judgement.verdict.severity()));
            self.judgements.truncate(OF_RULE);
            self.is_cut = true;
        }
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
        assert!(matches!(&all[0].verdict, Verdict::Problem(evidence) if evidence.severity == Severity::Critical));
        assert!(matches!(&all[OF_RULE].verdict, Verdict::Unknown(gap) if gap.why == Why::TooMuch));

        let mut told = Told::of(&world, Source::Services);
        (0..2 * OF_SUBJECT).for_each(|_| told.push(problem(1, Severity::Info)));
        assert_eq!(told.all().len(), OF_SUBJECT + 1);
    }
}
