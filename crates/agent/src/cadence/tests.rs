//! Hours of an agent in a moment: its looks cost what a test says, and the cluster changes when a test says.

use super::*;

const INTERVAL: Duration = Duration::from_secs(15);
const SHARE: f64 = 0.002;
const SECOND: Duration = Duration::from_secs(1);
const MILLISECOND: Duration = Duration::from_millis(1);
const LASTS: Duration = Duration::from_secs(3600);

/// What a look costs, and reading connections; from one change of the cluster to the next.
#[derive(Clone, Copy)]
struct World {
    look: Duration,
    connections: Duration,
    changes: Option<Duration>,
}

/// The looks that were taken: when, and whether they read connections.
struct Looks {
    world: World,
    all: Vec<(Duration, bool)>,
}

impl World {
    fn quiet(look: Duration, connections: Duration) -> Self {
        Self { look, connections, changes: None }
    }

    fn run(self) -> Looks {
        let start = Instant::now();
        let mut cadence = Cadence::new(INTERVAL, 100.0 * SHARE);
        let (mut now, mut next_change) = (start, self.changes.map(|every| start + every));
        let mut looks = Looks { world: self, all: Vec::new() };
        while now < start + LASTS {
            if let (Some(at), Some(every)) = (next_change, self.changes)
                && at <= now
            {
                cadence.changed(now);
                next_change = Some(at + every);
            }
            match cadence.next(now) {
                Ok(_) => {
                    let (began, reads) = (now, cadence.reads_connections(now));
                    now += self.look + if reads { self.connections } else { Duration::ZERO };
                    cadence.looked(began, self.look, reads.then_some(self.connections));
                    looks.all.push((began - start, reads));
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
    /// The longest time between two looks, or between two that read connections.
    fn longest_gap(&self, with_connections: bool) -> Duration {
        let times: Vec<_> = self.all.iter().filter(|(_, reads)| *reads || !with_connections).map(|it| it.0).collect();
        times.windows(2).map(|pair| pair[1] - pair[0]).max().expect("two looks at least")
    }

    /// The parts of a core that looks took, and that reading connections took; the first of each apart.
    fn shares(&self) -> (f64, f64) {
        let part = |count: usize, cost: Duration| (count as f64 - 1.0) * cost.as_secs_f64() / LASTS.as_secs_f64();
        let reading = self.all.iter().filter(|(_, reads)| *reads).count();
        (part(self.all.len(), self.world.look), part(reading, self.world.connections))
    }
}

#[test]
fn on_an_ordinary_node_every_tick_reads_connections() {
    let looks = World::quiet(MILLISECOND, 6 * MILLISECOND).run();
    assert!(looks.all.iter().all(|(_, reads)| *reads));
    assert!(looks.longest_gap(true) <= INTERVAL + SECOND, "{:?}", looks.longest_gap(true));
}

#[test]
fn however_long_connections_take_ticks_keep_their_time_and_connections_are_read_as_the_share_allows() {
    for connections in [MILLISECOND, 70 * MILLISECOND, 400 * MILLISECOND, 5 * SECOND] {
        let looks = World::quiet(3 * MILLISECOND, connections).run();
        // A look waits while one before it reads connections.
        assert!(looks.longest_gap(false) <= INTERVAL.max(connections) + SECOND, "{connections:?}");
        let wanted = connections.div_f64(SHARE).min(LONGEST).max(INTERVAL);
        assert!(looks.longest_gap(true) <= wanted + INTERVAL.max(connections) + SECOND, "{connections:?}");
        if connections.div_f64(SHARE) <= LONGEST {
            assert!(looks.shares().1 <= SHARE, "{connections:?}: {:?}", looks.shares());
        }
    }
}

#[test]
fn no_storm_of_changes_costs_more_than_the_share_and_none_keeps_ticks_or_connections_away() {
    for look in [1, 5, 22, 80] {
        for connections in [1, 50, 400] {
            for every in [20, 300, 2000] {
                let (look, connections, every) = (look * MILLISECOND, connections * MILLISECOND, every * MILLISECOND);
                let looks = World { look, connections, changes: Some(every) }.run();
                let case = format!("a look {look:?}, connections {connections:?}, a change every {every:?}");
                let (of_looks, of_connections) = looks.shares();
                assert!(of_looks <= 1.01 * SHARE && of_connections <= 1.01 * SHARE, "{case}: {:?}", looks.shares());
                assert!(looks.longest_gap(false) <= INTERVAL.max(look.div_f64(SHARE)) + 2 * SECOND, "{case}");
                let wanted = INTERVAL.max(look.div_f64(SHARE)) + connections.div_f64(SHARE);
                assert!(looks.longest_gap(true) <= wanted + 2 * SECOND, "{case}");
            }
        }
    }
}

#[test]
fn a_look_that_costs_more_than_the_share_comes_less_often_and_every_two_minutes_at_least() {
    let looks = World::quiet(80 * MILLISECOND, MILLISECOND).run();
    assert!(looks.shares().0 <= SHARE && looks.longest_gap(false) <= 41 * SECOND, "{:?}", looks.longest_gap(false));
    let looks = World::quiet(10 * SECOND, MILLISECOND).run();
    assert!(looks.longest_gap(false) <= LONGEST_TICK + SECOND, "{:?}", looks.longest_gap(false));
}

#[test]
fn a_change_is_judged_once_the_cluster_is_quiet_and_after_a_second_at_the_latest() {
    let start = Instant::now();
    let mut cadence = Cadence::new(INTERVAL, 100.0 * SHARE);
    // However much the tick before it cost.
    cadence.looked(start, 20 * MILLISECOND, Some(SECOND));
    let changed = start + 3 * SECOND;
    cadence.changed(changed);
    assert_eq!(cadence.next(changed), Err(QUIET));
    assert_eq!(cadence.next(changed + QUIET), Ok(Cause::Change));
    for step in 1..10 {
        let now = changed + step * QUIET / 2;
        cadence.changed(now);
        let quiet_at_last = changed + LONGEST_QUIET_WAIT <= now;
        assert_eq!(cadence.next(now).is_ok(), quiet_at_last, "step {step}");
    }
    // The next one waits until this one is paid for.
    let looked = changed + 2 * SECOND;
    cadence.looked(looked, 20 * MILLISECOND, None);
    cadence.changed(looked + MILLISECOND);
    assert_eq!(cadence.next(looked + 9 * SECOND), Err(SECOND));
    assert_eq!(cadence.next(looked + 10 * SECOND), Ok(Cause::Change));
}

#[test]
fn a_change_during_a_look_is_judged_by_the_next_one() {
    let start = Instant::now();
    let mut cadence = Cadence::new(INTERVAL, 100.0 * SHARE);
    cadence.changed(start);
    cadence.changed(start + 2 * MILLISECOND);
    cadence.looked(start + MILLISECOND, MILLISECOND / 10, None);
    assert_eq!(cadence.next(start + QUIET + 2 * MILLISECOND), Ok(Cause::Change));
    cadence.looked(start + QUIET + 3 * MILLISECOND, MILLISECOND / 10, None);
    assert!(cadence.next(start + 2 * SECOND).is_err(), "it was judged");
}

#[test]
fn another_interval_and_another_share_count_from_now_on() {
    let start = Instant::now();
    let mut cadence = Cadence::new(600 * SECOND, 100.0 * SHARE);
    cadence.looked(start, MILLISECOND, Some(400 * MILLISECOND));
    cadence.configure(INTERVAL, 100.0 * SHARE);
    assert_eq!(cadence.next(start), Err(INTERVAL));
    assert!(!cadence.reads_connections(start + INTERVAL));
    cadence.configure(INTERVAL, 50.0);
    assert!(cadence.reads_connections(start + SECOND));
}

#[test]
fn a_cost_that_was_measured_wrongly_ends_nothing() {
    let start = Instant::now();
    let mut cadence = Cadence::new(INTERVAL, 0.001);
    cadence.looked(start, Duration::MAX, Some(Duration::MAX));
    assert_eq!(cadence.next(start), Err(LONGEST_TICK));
    assert!(!cadence.reads_connections(start) && cadence.reads_connections(start + LONGEST));
}
