//! Hours of an agent in a moment: its looks cost what a test says, and the cluster changes when a test says.

use super::*;

const INTERVAL: Duration = Duration::from_secs(15);
const PERCENT: f64 = 0.2;
const MILLISECOND: Duration = Duration::from_millis(1);

/// What looks cost, what happens, and for how long.
#[derive(Clone, Copy)]
struct World {
    brief: Duration,
    whole: Duration,
    /// From one change of the cluster to the next, and what each costs beside the looks.
    changes: Option<(Duration, Duration)>,
    lasts: Duration,
}

/// The looks that were taken: when, why, and how much was read.
struct Looks {
    all: Vec<(Duration, Cause, Extent)>,
    used: Duration,
}

impl World {
    fn quiet(brief: Duration, whole: Duration) -> Self {
        Self { brief, whole, changes: None, lasts: Duration::from_secs(3600) }
    }

    fn storm(self, every: Duration, beside: Duration) -> Self {
        Self { changes: Some((every, beside)), ..self }
    }

    fn run(self) -> Looks {
        let start = Instant::now();
        let mut scheduler = Scheduler::new(INTERVAL, PERCENT, start);
        let (mut now, mut next_change) = (start, self.changes.map(|(every, _)| start + every));
        let mut looks = Looks { all: Vec::new(), used: Duration::ZERO };
        while now < start + self.lasts {
            if let (Some(at), Some((every, beside))) = (next_change, self.changes)
                && at <= now
            {
                scheduler.changed(now);
                scheduler.charge(beside, now);
                looks.used += beside;
                next_change = Some(at + every);
            }
            match scheduler.next(now) {
                Ok(look) => {
                    let cost = if look.1 == Extent::Whole { self.whole } else { self.brief };
                    let began = now;
                    now += cost;
                    scheduler.looked(look, cost, began, now);
                    looks.used += cost;
                    looks.all.push((began - start, look.0, look.1));
                }
                Err(wait) => {
                    assert!(wait > Duration::ZERO, "a wait of nothing is a loop without end");
                    now = next_change.map_or(now + wait, |change| change.min(now + wait)).max(now + MILLISECOND / 10);
                }
            }
        }
        looks
    }
}

impl Looks {
    /// The longest time between two looks that satisfy a test.
    fn longest_gap(&self, of: impl Fn(Cause, Extent) -> bool) -> Duration {
        let times: Vec<_> = self.all.iter().filter(|(_, cause, extent)| of(*cause, *extent)).map(|it| it.0).collect();
        times.windows(2).map(|pair| pair[1] - pair[0]).max().expect("two looks at least")
    }

    fn count(&self, of: impl Fn(Cause, Extent) -> bool) -> usize {
        self.all.iter().filter(|(_, cause, extent)| of(*cause, *extent)).count()
    }

    /// What was used, of what the share allows over this time, with the burst at its beginning.
    fn share_used(&self, lasts: Duration, one: Duration) -> f64 {
        (self.used.as_secs_f64() - one.as_secs_f64()) / (PERCENT / 100.0 * (lasts + BURST).as_secs_f64())
    }
}

fn any(_: Cause, _: Extent) -> bool {
    true
}

fn is_whole(_: Cause, extent: Extent) -> bool {
    extent == Extent::Whole
}

#[test]
fn on_an_ordinary_node_every_tick_is_a_whole_look() {
    let looks = World::quiet(MILLISECOND, 6 * MILLISECOND).run();
    assert_eq!(looks.count(is_whole), looks.all.len());
    assert!(looks.longest_gap(any) <= INTERVAL + MILLISECOND, "{:?}", looks.longest_gap(any));
}

#[test]
fn where_connections_take_long_ticks_keep_their_time_and_whole_looks_come_as_the_share_allows() {
    let world = World::quiet(3 * MILLISECOND, 400 * MILLISECOND);
    let looks = world.run();
    assert!(looks.longest_gap(any) <= INTERVAL + Duration::from_secs(1), "{:?}", looks.longest_gap(any));
    // 400 ms at what ticks leave of 2 ms in a second.
    assert!(looks.longest_gap(is_whole) <= Duration::from_secs(240), "{:?}", looks.longest_gap(is_whole));
    assert!(looks.share_used(world.lasts, world.whole) <= 1.0);
}

#[test]
fn no_storm_of_changes_costs_more_than_the_share_and_none_keeps_ticks_or_whole_looks_away() {
    for brief in [1, 5, 22] {
        for whole in [brief, 50, 400] {
            for every in [1, 20, 300, 2000] {
                let (brief, whole, every) = (brief * MILLISECOND, whole * MILLISECOND, every * MILLISECOND);
                let world = World::quiet(brief, whole.max(brief)).storm(every, Duration::ZERO);
                let looks = world.run();
                let case = format!("brief {brief:?}, whole {whole:?}, a change every {every:?}");
                assert!(looks.share_used(world.lasts, world.whole) <= 1.0, "{case}: {:?}", looks.used);
                // 22 ms at three quarters of the share come every 15 s, nearly.
                assert!(looks.longest_gap(any) <= INTERVAL + Duration::from_secs(2), "{case}");
                assert!(looks.longest_gap(is_whole) <= LONGEST + 2 * INTERVAL, "{case}");
            }
        }
    }
}

#[test]
fn work_beside_the_looks_is_part_of_the_share() {
    // One part in a thousand of a core goes into reading changes.
    let beside = World::quiet(MILLISECOND, 60 * MILLISECOND).storm(100 * MILLISECOND, MILLISECOND / 10);
    let looks = beside.run();
    assert!(looks.share_used(beside.lasts, beside.whole) <= 1.0, "{:?}", looks.used);
    assert!(looks.longest_gap(any) <= INTERVAL + Duration::from_secs(1));
}

#[test]
fn costly_looks_and_costly_changes_together_stay_within_the_share() {
    // As a node with two thousand conflicts on a busy machine: 0.4 ms to take in each change.
    let world = World::quiet(22 * MILLISECOND, 60 * MILLISECOND).storm(300 * MILLISECOND, 4 * MILLISECOND / 10);
    let looks = world.run();
    assert!(looks.share_used(world.lasts, world.whole) <= 1.0, "{:?}", looks.used);
    assert!(looks.longest_gap(any) <= LONGEST_TICK + Duration::from_secs(1), "{:?}", looks.longest_gap(any));
}

#[test]
fn looks_that_cost_too_much_for_their_interval_come_as_it_pays_for_them() {
    // As in a node with two thousand conflicts, where hardly anything changes.
    let world = World::quiet(90 * MILLISECOND, 100 * MILLISECOND).storm(Duration::from_secs(5), MILLISECOND / 10);
    let looks = world.run();
    assert!(looks.share_used(world.lasts, world.whole) <= 1.0, "{:?}", looks.used);
    assert!(looks.longest_gap(any) <= LONGEST_TICK, "{:?}", looks.longest_gap(any));
}

#[test]
fn work_beside_the_looks_that_takes_more_than_the_share_keeps_no_look_away() {
    let looks = World::quiet(MILLISECOND, 400 * MILLISECOND).storm(10 * MILLISECOND, MILLISECOND).run();
    assert!(looks.longest_gap(any) <= LONGEST_TICK + Duration::from_secs(1), "{:?}", looks.longest_gap(any));
    assert!(looks.longest_gap(is_whole) <= LONGEST + 2 * INTERVAL, "{:?}", looks.longest_gap(is_whole));
}

#[test]
fn after_a_storm_the_next_ticks_come_in_time_and_whole_ones_follow() {
    let start = Instant::now();
    let mut scheduler = Scheduler::new(INTERVAL, PERCENT, start);
    // A storm has used up everything.
    for cause in [Cause::Tick, Cause::Change] {
        scheduler.looked((cause, Extent::Brief), 100 * MILLISECOND, start, start);
    }
    scheduler.looked((Cause::Tick, Extent::Whole), 400 * MILLISECOND, start, start);
    let two_ticks = start + 2 * INTERVAL;
    assert_eq!(scheduler.next(two_ticks), Ok((Cause::Tick, Extent::Brief)));
    assert_eq!(scheduler.next(start + LONGEST), Ok((Cause::Tick, Extent::Whole)));
}

#[test]
fn after_hours_of_other_work_ticks_come_in_time() {
    let start = Instant::now();
    let mut scheduler = Scheduler::new(INTERVAL, PERCENT, start);
    scheduler.looked((Cause::Tick, Extent::Whole), MILLISECOND, start, start);
    scheduler.charge(Duration::from_secs(3600), start);
    assert_eq!(scheduler.next(start + INTERVAL), Ok((Cause::Tick, Extent::Brief)));
}

#[test]
fn a_change_is_judged_once_the_cluster_is_quiet_and_after_a_second_at_the_latest() {
    let start = Instant::now();
    let mut scheduler = Scheduler::new(INTERVAL, PERCENT, start);
    scheduler.looked((Cause::Tick, Extent::Whole), MILLISECOND, start, start);
    let changed = start + Duration::from_secs(3);
    scheduler.changed(changed);
    assert_eq!(scheduler.next(changed), Err(QUIET));
    assert_eq!(scheduler.next(changed + QUIET), Ok((Cause::Change, Extent::Brief)));
    for step in 1..10 {
        let now = changed + step * QUIET / 2;
        scheduler.changed(now);
        let quiet_at_last = changed + LONGEST_QUIET_WAIT <= now;
        assert_eq!(scheduler.next(now).is_ok(), quiet_at_last, "step {step}");
    }
}

#[test]
fn a_change_during_a_look_is_judged_by_the_next_one() {
    let start = Instant::now();
    let mut scheduler = Scheduler::new(INTERVAL, PERCENT, start);
    scheduler.changed(start);
    scheduler.changed(start + 2 * MILLISECOND);
    scheduler.looked((Cause::Tick, Extent::Whole), MILLISECOND, start + MILLISECOND, start + 3 * MILLISECOND);
    assert_eq!(scheduler.next(start + QUIET + 2 * MILLISECOND), Ok((Cause::Change, Extent::Brief)));
    let now = start + QUIET + 3 * MILLISECOND;
    scheduler.looked((Cause::Change, Extent::Brief), MILLISECOND, now, now);
    assert!(scheduler.next(now + Duration::from_secs(2)).is_err(), "it was judged");
}

#[test]
fn another_interval_and_another_share_count_from_now_on() {
    let start = Instant::now();
    let mut scheduler = Scheduler::new(600 * Duration::from_secs(1), PERCENT, start);
    scheduler.looked((Cause::Tick, Extent::Whole), MILLISECOND, start, start);
    scheduler.configure(INTERVAL, PERCENT, start);
    assert_eq!(scheduler.next(start), Err(INTERVAL));
    scheduler.looked((Cause::Tick, Extent::Whole), 400 * MILLISECOND, start, start);
    assert_eq!(scheduler.next(start + INTERVAL), Ok((Cause::Tick, Extent::Brief)));
    scheduler.configure(INTERVAL, 50.0, start + INTERVAL);
    assert_eq!(scheduler.next(start + INTERVAL + Duration::from_secs(1)), Ok((Cause::Tick, Extent::Whole)));
}
