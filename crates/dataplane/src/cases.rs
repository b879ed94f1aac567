//! Cases: what inputs that were not read may be, and the one fold over what is found in each.

use std::collections::BTreeMap;

use super::{candidate::Candidate, round::Addressed};
use portreeve_facts::{Affected, Gap};

/// An input that may have several values. Their order is the one in which a reader can do something about them: of the inputs that
/// change a verdict by themselves, the first is named.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Doubt {
    /// What endpoints a Service port has in a family.
    Endpoints,
    /// Whether a socket of IPv6 takes IPv4 too.
    V6Only,
    /// Whether a part of a Service is served by this node.
    KeptOff,
}

/// A doubt, and of what: an address in memory, or a number of the caller's.
pub(super) type Question = (Doubt, usize, usize);

/// One case: a value for every input that was asked for. Who asks for an input that was read makes no case.
#[derive(Debug, Default)]
pub struct Case {
    choices: Vec<Choice>,
}

#[derive(Debug)]
struct Choice {
    question: Question,
    chosen: usize,
    options: usize,
    gap: Gap,
}

impl Case {
    /// The value of an input in this case: one of several, or the only one.
    ///
    /// # Panics
    /// When there is none.
    pub(super) fn choose<T: Copy>(&mut self, question: Question, options: &[T], gap: impl FnOnce() -> Gap) -> T {
        let known = self.choices.iter().find(|it| it.question == question).map(|it| it.chosen);
        let chosen = known.unwrap_or_else(|| {
            if options.len() > 1 {
                self.choices.push(Choice { question, chosen: 0, options: options.len(), gap: gap() });
            }
            0
        });
        options[chosen]
    }

    /// Makes it the next one; false after the last.
    fn next(&mut self) -> bool {
        while let Some(last) = self.choices.last_mut() {
            if last.chosen + 1 < last.options {
                last.chosen += 1;
                return true;
            }
            self.choices.pop();
        }
        false
    }
}

/// What is lost in a case.
pub trait Loss: Sized + Clone + PartialEq {
    /// What is lost in both of two cases; nothing where they have nothing in common.
    fn meet(self, other: &Self) -> Option<Self>;

    /// What is lost in one of two cases.
    #[must_use]
    fn join(self, other: Self) -> Self;
}

/// What holds over all cases.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Judged<T> {
    /// Something is lost in each: this at least. Where some lose more, the input that decides it.
    Certain(T, Option<Gap>),
    /// Nothing is lost in any.
    Never,
    /// It depends on an input that was not read.
    Depends {
        /// This input.
        on: Gap,
        /// What may be lost at worst, where a case that is known loses something.
        ever: Option<T>,
    },
}

/// A candidate, what was chosen in a case of it, and which of the losses was found there: zero is none.
type Seen = (usize, Vec<(Question, usize)>, usize);

/// Folds what is lost over every case of every candidate: the only place in which anything is concluded from cases. `settings` says why
/// there are several candidates.
pub(super) fn over<T: Loss>(
    candidates: &[Candidate],
    settings: impl FnOnce() -> Gap,
    mut judge: impl FnMut(&Candidate, &mut Case) -> Result<Option<T>, Gap>,
) -> Judged<T> {
    // What is lost in all so far: nothing before the first, `Some(None)` where they have nothing in common.
    let (mut met, mut ever): (Option<Option<T>>, Option<T>) = (None, None);
    let (mut unknown, mut is_silent, mut losses): (Option<Gap>, bool, Vec<T>) = (None, false, Vec::new());
    let (mut seen, mut gaps): (Vec<Seen>, BTreeMap<Question, Gap>) = (Vec::new(), BTreeMap::new());
    for (index, candidate) in candidates.iter().enumerate() {
        let mut case = Case::default();
        loop {
            let found = judge(candidate, &mut case);
            for choice in &case.choices {
                gaps.entry(choice.question).or_insert_with(|| choice.gap.clone());
            }
            let choices = case.choices.iter().map(|it| (it.question, it.chosen)).collect();
            match found {
                Err(gap) => unknown = unknown.or(Some(gap)),
                Ok(None) => {
                    is_silent = true;
                    seen.push((index, choices, 0));
                }
                Ok(Some(lost)) => {
                    let known = losses.iter().position(|it| *it == lost);
                    let loss = known.unwrap_or_else(|| {
                        losses.push(lost.clone());
                        losses.len() - 1
                    });
                    seen.push((index, choices, loss + 1));
                    met = Some(match met.take() {
                        None => Some(lost.clone()),
                        Some(met) => met.and_then(|met| met.meet(&lost)),
                    });
                    ever = Some(match ever.take() {
                        None => lost,
                        Some(ever) => ever.join(lost),
                    });
                }
            }
            if !case.next() {
                break;
            }
        }
    }
    // Whether something is lost comes before what it is.
    seen.iter_mut().filter(|_| is_silent).for_each(|(.., loss)| *loss = (*loss).min(1));
    let decider = || gaps.iter().find(|(question, _)| decides(**question, &seen)).map(|(_, gap)| gap.clone());
    let named = || decider().or_else(|| gaps.values().next().cloned().filter(|_| candidates.len() == 1));
    match (met, is_silent, unknown) {
        (_, _, Some(gap)) => Judged::Depends { on: gap, ever },
        (Some(Some(lost)), false, None) => {
            Judged::Certain(lost, (losses.len() > 1).then(|| named().unwrap_or_else(settings)))
        }
        (None, ..) => Judged::Never,
        (Some(_), ..) => Judged::Depends { on: named().unwrap_or_else(settings), ever },
    }
}

/// Whether an input decides by itself what is lost: all else alike, one case has another loss than the other.
fn decides(question: Question, seen: &[Seen]) -> bool {
    let chosen =
        |choices: &[(Question, usize)]| choices.iter().find(|(it, _)| *it == question).map(|(_, chosen)| *chosen);
    let agree = |one: &[(Question, usize)], other: &[(Question, usize)]| {
        let differs = |(it, value): &(Question, usize)| {
            *it != question && other.iter().any(|(other, chosen)| other == it && chosen != value)
        };
        !one.iter().any(differs)
    };
    seen.iter().enumerate().any(|(index, (candidate, one, loss))| {
        let same = seen[index + 1..].iter().take_while(|(other, ..)| other == candidate);
        let mut others = same.filter(|(.., other)| other != loss);
        others.any(|(_, other, _)| chosen(one) != chosen(other) && agree(one, other))
    })
}

impl Loss for Affected {
    fn meet(self, other: &Self) -> Option<Self> {
        Some(&self & other)
    }

    fn join(self, other: Self) -> Self {
        &self | &other
    }
}

/// The settings with which something holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stratum {
    /// Any that the node may have.
    Any,
    /// Those that are assumed, where a mode was named and its settings were not read.
    Defaults,
    /// Those with which some address of this node is served, where a list of addresses was not read.
    Served,
}

impl Addressed<'_> {
    /// What is lost of who is asked at every address of this node, or at some of them: with any settings, where that is certain, or else
    /// with those that are assumed, or else with those that serve this node. Who is asked at every address is asked at one that is served,
    /// whatever list of addresses somebody wrote.
    pub fn over<T: Loss>(
        &self,
        everywhere: bool,
        mut judge: impl FnMut(&Candidate, &mut Case) -> Result<Option<T>, Gap>,
    ) -> (Judged<T>, Stratum) {
        let candidates = &self.candidates;
        let mut fold = |list| over(list, || candidates.ambiguity(), &mut judge);
        if let Some(unassumed) = candidates.unassumed_at(false) {
            return match fold(unassumed) {
                judged @ (Judged::Certain(..) | Judged::Never) => (judged, Stratum::Any),
                Judged::Depends { .. } => (fold(candidates.at(false)), Stratum::Defaults),
            };
        }
        let (all, served) = (candidates.at(false), candidates.at(true));
        match fold(all) {
            // Where all settings were read, nothing is left out.
            Judged::Depends { .. } if everywhere && served.len() < all.len() => (fold(served), Stratum::Served),
            judged => (judged, Stratum::Any),
        }
    }
}
