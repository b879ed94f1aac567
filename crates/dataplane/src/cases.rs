//! Cases: the possible values of unread inputs. A fold over the results of all cases gives one result.

use std::collections::BTreeMap;

use super::{assumption::Assumption, round::Addressed};
use portreeve_facts::{Affected, Gap, Why};

/// An unread input that may have several values. The variants are sorted by how easily a user can supply the input. A
/// verdict names the first input that alone changes the verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Doubt {
    Endpoints,
    V6Only,
    /// Whether this node serves a part of a Service, such as its NodePorts.
    KeptOff,
    /// Whether packets reach a socket that is bound to a device, or a socket at an address in a VRF.
    Device,
}

/// A doubt, and two numbers that identify its object, for example the object's address in memory.
pub(super) type Question = (Doubt, usize, usize);

/// One case: a value for every unread input that the judgement used. A case leaves out inputs that were read.
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
    /// The value of an input in this case: one of `options`.
    ///
    /// # Panics
    /// Panics if `options` is empty.
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

    /// Moves to the next case. Returns false after the last case.
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

/// The loss in a case, for example the connections that a socket loses.
pub trait Loss: Sized + Clone + PartialEq {
    /// The common part of two losses; `None` if the losses have no common part.
    fn meet(self, other: &Self) -> Option<Self>;

    /// The union of two losses. A rule that needs to know only whether there is a loss keeps this default.
    #[must_use]
    fn join(self, _: Self) -> Self {
        self
    }
}

/// The result over all cases.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Judged<T> {
    /// Every case has at least this loss. If the loss is larger in some cases, the `Gap` is the unread input that
    /// causes the difference.
    Certain(T, Option<Gap>),
    /// No case has a loss.
    Never,
    /// The result depends on an unread input.
    Depends {
        /// The unread input.
        on: Gap,
        /// The union of the losses of all judged cases. After a case that cannot be decided, no other case is judged.
        ever: Option<T>,
    },
}

/// The largest number of cases of one assumption. Each unread input may double the cases, and a snapshot from a
/// stranger can have any number of unread inputs.
const MOST_CASES: usize = 256;

/// The index of an assumption, the choices of a case, and the position of the case's loss, from 1. Zero means no loss.
type Seen = (usize, Vec<(Question, usize)>, usize);

/// Folds the losses of every case of every assumption into one result. Every conclusion from cases is drawn here.
/// `settings` returns the reason why there are several assumptions.
pub(super) fn over<T: Loss>(
    assumptions: &[Assumption],
    settings: impl Fn() -> Gap,
    mut judge: impl FnMut(&Assumption, &mut Case) -> Result<Option<T>, Gap>,
) -> Judged<T> {
    // The common loss of all cases until now: `None` before the first case, `Some(None)` if the cases have no common
    // loss.
    let (mut met, mut ever): (Option<Option<T>>, Option<T>) = (None, None);
    let (mut unknown, mut is_silent, mut losses): (Option<Gap>, bool, Vec<T>) = (None, false, Vec::new());
    let (mut seen, mut gaps): (Vec<Seen>, Vec<(Question, Gap)>) = (Vec::new(), Vec::new());
    'all: for (index, assumption) in assumptions.iter().enumerate() {
        let (mut case, mut cases) = (Case::default(), 1);
        loop {
            let found = judge(assumption, &mut case);
            for choice in &case.choices {
                if !gaps.iter().any(|(question, _)| *question == choice.question) {
                    gaps.push((choice.question, choice.gap.clone()));
                }
            }
            let choices = case.choices.iter().map(|it| (it.question, it.chosen)).collect();
            match found {
                // If one case cannot be decided, the result is unknown, whatever other cases lose.
                Err(gap) => {
                    unknown = Some(gap);
                    break 'all;
                }
                Ok(None) => {
                    is_silent = true;
                    seen.push((index, choices, 0));
                }
                Ok(Some(lost)) => {
                    // A loss that was seen before does not change the result. Most assumptions have equal losses.
                    let known = losses.iter().position(|it| *it == lost);
                    let loss = known.unwrap_or(losses.len());
                    seen.push((index, choices, loss + 1));
                    if known.is_none() {
                        met = Some(match met.take() {
                            None => Some(lost.clone()),
                            Some(met) => met.and_then(|met| met.meet(&lost)),
                        });
                        ever = Some(match ever.take() {
                            None => lost.clone(),
                            Some(ever) => ever.join(lost.clone()),
                        });
                        losses.push(lost);
                    }
                }
            }
            if !case.next() {
                break;
            }
            cases += 1;
            if cases > MOST_CASES {
                let detail = "too many inputs were not read: Portreeve cannot compare all cases";
                unknown = case.choices.first().map(|it| Gap::new(it.gap.source, Why::TooMuch, detail));
                break 'all;
            }
        }
    }
    // If some case has no loss, all losses are treated as equal.
    seen.iter_mut().filter(|_| is_silent).for_each(|(.., loss)| *loss = (*loss).min(1));
    // The sort is stable and compares only the kinds of doubts, because memory addresses differ from run to run. Doubts
    // of one kind stay in the order in which the judgement used them.
    gaps.sort_by_key(|((doubt, ..), _)| *doubt);
    let named = || {
        let deciders = || gaps.iter().filter(|(question, _)| decides(*question, &seen)).map(|(_, gap)| gap);
        // An input that is missing because of a fault is named before an input that is normally missing.
        let decider = deciders().find(|gap| !is_expected(gap));
        let decider = decider.or_else(|| deciders().next().filter(|_| !settings_decide(&seen)));
        // If there is only one assumption, the settings are known, so an unread input is the reason.
        let decider = decider.or_else(|| gaps.first().map(|(_, gap)| gap).filter(|_| assumptions.len() == 1));
        decider.cloned().unwrap_or_else(&settings)
    };
    match (met, is_silent, unknown) {
        (_, _, Some(gap)) => Judged::Depends { on: gap, ever },
        (Some(Some(lost)), false, None) => Judged::Certain(lost, (losses.len() > 1).then(&named)),
        (None, ..) => Judged::Never,
        (Some(_), ..) => Judged::Depends { on: named(), ever },
    }
}

fn is_expected(gap: &Gap) -> bool {
    matches!(gap.why, Why::NotPermitted | Why::NotSupported | Why::NotRequested)
}

fn settings_decide(seen: &[Seen]) -> bool {
    let mut losses: BTreeMap<&[(Question, usize)], usize> = BTreeMap::new();
    seen.iter().any(|(_, choices, loss)| *losses.entry(choices).or_insert(*loss) != *loss)
}

fn decides(question: Question, seen: &[Seen]) -> bool {
    let chosen =
        |choices: &[(Question, usize)]| choices.iter().find(|(it, _)| *it == question).map(|(_, chosen)| *chosen);
    let agree = |one: &[(Question, usize)], other: &[(Question, usize)]| {
        let differs = |(it, value): &(Question, usize)| {
            *it != question && other.iter().any(|(other, chosen)| other == it && chosen != value)
        };
        !one.iter().any(differs)
    };
    seen.iter().enumerate().any(|(index, (assumption, one, loss))| {
        let same = seen[index + 1..].iter().take_while(|(other, ..)| other == assumption);
        let mut others = same.filter(|(.., other)| other != loss);
        others.any(|(_, other, _)| chosen(one) != chosen(other) && agree(one, other))
    })
}

impl Loss for Affected {
    fn meet(self, other: &Self) -> Option<Self> {
        Some(&self & other)
    }
}

/// The settings for which a result is true.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stratum {
    /// All possible settings of the node.
    Any,
    /// The defaults of the mode, if the user named a mode and its settings were not read.
    Defaults,
    /// All possible settings in which no unread setting excludes a family or all addresses of this node.
    Served,
}

impl Stratum {
    /// The assumed settings in words; `None` if the result is true for all settings.
    pub fn in_words(self) -> Option<&'static str> {
        match self {
            Self::Any => None,
            Self::Defaults => Some("the defaults of the proxy's settings"),
            Self::Served => Some("that nodePortAddresses has an address of this node in each family"),
        }
    }
}

impl Addressed<'_> {
    /// The loss of a socket. `everywhere` is true if the socket is on every address of this node. The result uses an
    /// assumption only if possible settings give different losses. If the user named a mode, the result assumes the
    /// defaults of this mode. If the user named no mode and `everywhere` is true, the result assumes: no unread setting
    /// excludes a family or all addresses of this node.
    pub fn over<T: Loss>(
        &self,
        everywhere: bool,
        mut judge: impl FnMut(&Assumption, &mut Case) -> Result<Option<T>, Gap>,
    ) -> (Judged<T>, Stratum) {
        let assumptions = &self.assumptions;
        let mut fold = |list| over(list, || assumptions.ambiguity(), &mut judge);
        if let Some(unassumed) = assumptions.unassumed() {
            return match fold(unassumed) {
                judged @ (Judged::Certain(..) | Judged::Never) => (judged, Stratum::Any),
                Judged::Depends { .. } => (fold(assumptions.at(false)), Stratum::Defaults),
            };
        }
        let (all, served) = (assumptions.at(false), assumptions.at(true));
        match fold(all) {
            // If every setting was read, `served` and `all` have the same length.
            Judged::Depends { .. } if everywhere && served.len() < all.len() => (fold(served), Stratum::Served),
            judged => (judged, Stratum::Any),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{super::round::Round, *};
    use portreeve_facts::{Learned, Mode, Snapshot, Source, Vantage, healthy::gap};

    fn unread(name: &str) -> Gap {
        Gap::new(Source::EndpointSlices, Why::NotPermitted, name)
    }

    fn asked(case: &mut Case, doubt: Doubt, name: &str) -> bool {
        case.choose((doubt, name.len(), 0), &[false, true], || unread(name))
    }

    fn lost(vantages: &[Vantage]) -> Option<Affected> {
        (!vantages.is_empty()).then(|| vantages.iter().copied().collect())
    }

    fn judged(judge: impl FnMut(&mut Case) -> Result<Option<Affected>, Gap>) -> Judged<Affected> {
        let (world, mut judge) = (Snapshot::healthy(), judge);
        let round = Round::of(&world, None, 60);
        round.addressed().get().expect("addresses").over(true, |_, case| judge(case)).0
    }

    #[test]
    fn what_is_lost_in_every_case_is_certain_though_more_may_be() {
        let mut cases = 0;
        let found = judged(|case| {
            cases += 1;
            let more = asked(case, Doubt::Endpoints, "endpoints");
            assert_eq!(asked(case, Doubt::Endpoints, "endpoints"), more, "one answer in a case");
            Ok(lost(if more { &[Vantage::Remote, Vantage::Node] } else { &[Vantage::Remote] }))
        });
        let remote: Affected = [Vantage::Remote].into_iter().collect();
        assert_eq!(found, Judged::Certain(remote.clone(), Some(unread("endpoints"))));
        assert_eq!(cases, 2);
        assert_eq!(judged(|_| Ok(lost(&[Vantage::Remote]))), Judged::Certain(remote, None));
    }

    #[test]
    fn where_nothing_is_lost_no_doubt_counts() {
        let found = judged(|case| {
            asked(case, Doubt::KeptOff, "kept off");
            Ok(None)
        });
        assert_eq!(found, Judged::Never);
    }

    #[test]
    fn the_input_that_decides_is_named_and_the_one_that_changes_nothing_is_not() {
        let of = |decider: Doubt| {
            judged(|case| {
                let chosen = [(Doubt::Endpoints, "a"), (Doubt::V6Only, "bb"), (Doubt::KeptOff, "ccc")]
                    .map(|(doubt, name)| (doubt, asked(case, doubt, name)));
                let loses = chosen.iter().any(|(doubt, chosen)| *doubt == decider && *chosen);
                Ok(lost(if loses { &[Vantage::Node] } else { &[] }))
            })
        };
        for (decider, name) in [(Doubt::Endpoints, "a"), (Doubt::V6Only, "bb"), (Doubt::KeptOff, "ccc")] {
            assert!(matches!(of(decider), Judged::Depends { on, ever: Some(_) } if on == unread(name)), "{decider:?}");
        }
    }

    #[test]
    fn a_right_that_is_missing_is_named_only_where_nothing_else_decides() {
        let of = |other: Why| {
            judged(|case| {
                let right = asked(case, Doubt::Endpoints, "a right");
                let other = case
                    .choose((Doubt::KeptOff, 0, 0), &[false, true], || Gap::new(Source::Services, other, "another"));
                Ok(lost(if right != other { &[Vantage::Node] } else { &[] }))
            })
        };
        for (other, name) in [(Why::Ambiguous, "another"), (Why::NotSupported, "a right")] {
            assert!(matches!(of(other), Judged::Depends { on, .. } if on.detail == name), "{other:?}");
        }
    }

    #[test]
    fn a_question_is_a_case_only_where_it_is_asked() {
        let mut cases = 0;
        let found = judged(|case| {
            cases += 1;
            let both = asked(case, Doubt::V6Only, "bb") && asked(case, Doubt::Endpoints, "a");
            Ok(lost(if both { &[Vantage::Node] } else { &[] }))
        });
        assert!(matches!(found, Judged::Depends { .. }));
        assert_eq!(cases, 3, "whose first answer loses nothing is asked no more");
    }

    #[test]
    fn more_cases_than_are_compared_are_not_known() {
        let mut cases = 0;
        let found = judged(|case| {
            cases += 1;
            let each = (0..30).map(|n| case.choose((Doubt::V6Only, n, 0), &[false, true], || unread("one of many")));
            assert_eq!(each.map(u8::from).count(), 30);
            Ok(lost(&[Vantage::Node]))
        });
        assert!(matches!(found, Judged::Depends { on, .. } if on.why == Why::TooMuch));
        assert_eq!(cases, MOST_CASES);
    }

    #[test]
    fn what_nobody_can_say_in_one_case_is_not_known_and_what_others_lose_is_kept() {
        let found = judged(|case| match asked(case, Doubt::Endpoints, "a") {
            true => Err(unread("not measured")),
            false => Ok(lost(&[Vantage::Pods])),
        });
        let ever = lost(&[Vantage::Pods]);
        assert_eq!(found, Judged::Depends { on: unread("not measured"), ever });
    }

    #[test]
    fn it_is_asked_a_second_time_only_where_settings_were_not_read() {
        let stratum = |world: &Snapshot, everywhere: bool| {
            let round = Round::of(world, None, 60);
            let addressed = round.addressed().get().expect("addresses");
            let first = addressed.assumptions.unassumed().unwrap_or(addressed.assumptions.at(false)).len();
            let mut cases = 0;
            let (found, stratum) = addressed.over(everywhere, |_, case| {
                cases += 1;
                Ok(lost(if asked(case, Doubt::Endpoints, "a") { &[Vantage::Node] } else { &[] }))
            });
            assert!(matches!(found, Judged::Depends { .. }));
            assert_eq!(cases > 2 * first, stratum != Stratum::Any);
            stratum
        };
        let mut world = Snapshot::healthy();
        assert_eq!([true, false].map(|everywhere| stratum(&world, everywhere)), [Stratum::Any; 2]);
        world.kernel.proxy.config = gap(Source::ProxyConfig, Why::NotPermitted);
        world.cluster.proxy_config = gap(Source::ConfigMaps, Why::NotPermitted);
        assert_eq!([true, false].map(|everywhere| stratum(&world, everywhere)), [Stratum::Served, Stratum::Any]);
        world.overrides.proxy_mode = Some(Learned { value: Mode::Iptables, place: "--proxy-mode".to_owned() });
        assert_eq!([true, false].map(|everywhere| stratum(&world, everywhere)), [Stratum::Defaults; 2]);
    }
}
