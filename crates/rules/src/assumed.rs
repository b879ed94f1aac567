//! What holds though the proxy's settings were not read: with any that a node may have, or with those that are assumed.

use crate::findings::{Severity, Verdict};
use portreeve_dataplane::{Candidate, Candidates};

const DEFAULTS: &str = "that the proxy's settings are at their defaults";
const SERVED: &str = "that nodePortAddresses has an address of this node";

/// What is found of who is asked at every address of this node, or at some of them: with any settings that it may have, where that is
/// certain, or else with those that are assumed, and that it is so.
pub(super) fn with_any_or_assumed<T>(
    candidates: &Candidates,
    everywhere: bool,
    find: impl Fn(&[Candidate]) -> T,
    is_certain: impl Fn(&T) -> bool,
) -> (T, bool) {
    match candidates.unassumed_at(everywhere).map(&find) {
        Some(found) if is_certain(&found) => (found, false),
        unassumed => (find(candidates.at(everywhere)), unassumed.is_some()),
    }
}

/// What holds of who is asked at every address of this node, or at some of them, with any settings that it may have. Or else what holds
/// with the settings that are assumed: of some addresses that is a warning at most, and who is asked at all of them is so at one that is
/// served. Or else what holds where a list of addresses has one.
pub(super) fn judged(
    candidates: &Candidates,
    everywhere: bool,
    judge: impl Fn(&[Candidate]) -> Option<Verdict>,
) -> Option<Verdict> {
    let is_certain = |verdict: &Option<Verdict>| !matches!(verdict, Some(Verdict::Unknown(_)));
    let (verdict, is_assumed) = with_any_or_assumed(candidates, false, &judge, is_certain);
    // Where all settings were read, nothing is left out.
    let leaves_out = || candidates.at(true).len() < candidates.at(false).len();
    match (is_assumed, everywhere) {
        (true, true) => verdict.map(|verdict| assuming(DEFAULTS, verdict)),
        (true, false) => verdict.map(at_most_a_warning),
        (false, true) if !is_certain(&verdict) && leaves_out() => {
            judge(candidates.at(true)).map(|verdict| assuming(SERVED, verdict))
        }
        (false, _) => verdict,
    }
}

fn assuming(what: &str, verdict: Verdict) -> Verdict {
    match verdict {
        Verdict::Problem(evidence) => Verdict::Problem(evidence.value("assumed", what)),
        verdict => verdict,
    }
}

/// A verdict that holds with the settings that are assumed, and not with all others.
pub(super) fn at_most_a_warning(verdict: Verdict) -> Verdict {
    match assuming(DEFAULTS, verdict) {
        Verdict::Problem(mut evidence) => {
            evidence.severity = evidence.severity.min(Severity::Warning);
            Verdict::Problem(evidence)
        }
        verdict => verdict,
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use portreeve_facts::{Gap, Learned, Mode, Snapshot, Source, Why, healthy::gap};

    /// How often it is asked of a node on which nothing is certain.
    fn asked(world: &Snapshot, everywhere: bool) -> usize {
        let asked = Cell::new(0);
        let candidates = Candidates::of(world, world.kernel.interfaces.seen().expect("links"), 60);
        let verdict = judged(&candidates, everywhere, |all| {
            assert!(!all.is_empty());
            asked.set(asked.get() + 1);
            Some(Verdict::Unknown(Gap::new(Source::EndpointSlices, Why::NotPermitted, "not read")))
        });
        assert!(matches!(verdict, Some(Verdict::Unknown(_))));
        asked.get()
    }

    #[test]
    fn it_is_asked_a_second_time_only_where_settings_were_not_read() {
        let mut world = Snapshot::healthy();
        assert_eq!([true, false].map(|everywhere| asked(&world, everywhere)), [1, 1]);
        world.kernel.proxy.config = gap(Source::ProxyConfig, Why::NotPermitted);
        world.cluster.proxy_config = gap(Source::ConfigMaps, Why::NotPermitted);
        assert_eq!([true, false].map(|everywhere| asked(&world, everywhere)), [2, 1]);
        world.overrides.proxy_mode = Some(Learned { value: Mode::Iptables, place: "--proxy-mode".to_owned() });
        assert_eq!([true, false].map(|everywhere| asked(&world, everywhere)), [2, 2]);
    }
}
