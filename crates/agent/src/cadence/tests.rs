//! The tests simulate hours of scans, but run in a moment. Each test sets the cost of a scan, and the times at which
//! the cluster changes.

use super::*;

const INTERVAL: Duration = Duration::from_secs(15);
const SHARE: f64 = 0.002;
const SECOND: Duration = Duration::from_secs(1);
const MILLISECOND: Duration = Duration::from_millis(1);
const LASTS: Duration = Duration::from_secs(3600);

#[derive(Clone, Copy)]
struct Load {
    scan: Duration,
    connections: Duration,
    changes: Option<Duration>,
}

/// The scans of a simulation: the time at which each scan began, and whether it read connections.
struct Scans {
    load: Load,
    all: Vec<(Duration, bool)>,
}

impl Load {
    fn quiet(scan: Duration, connections: Duration) -> Self {
        Self { scan, connections, changes: None }
    }

    fn run(self) -> Scans {
        let start = Instant::now();
        let mut cadence = Cadence::new(INTERVAL, 100.0 * SHARE);
        let (mut now, mut next_change) = (start, self.changes.map(|every| start + every));
        let mut scans = Scans { load: self, all: Vec::new() };
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
                    now += self.scan + if reads { self.connections } else { Duration::ZERO };
                    cadence.scanned(began, self.scan, reads.then_some(self.connections));
                    scans.all.push((began - start, reads));
                }
                Err(wait) => {
                    assert!(wait > Duration::ZERO, "a wait of nothing is a loop without end");
                    now = next_change.map_or(now + wait, |change| change.min(now + wait)).max(now + MILLISECOND / 10);
                }
            }
        }
        scans
    }
}

impl Scans {
    fn longest_gap(&self, with_connections: bool) -> Duration {
        let times: Vec<_> = self.all.iter().filter(|(_, reads)| *reads || !with_connections).map(|it| it.0).collect();
        times.windows(2).map(|pair| pair[1] - pair[0]).max().expect("two scans at least")
    }

    /// The shares of a core that scans and readings use. The first scan and the first reading do not count.
    fn shares(&self) -> (f64, f64) {
        let part = |count: usize, cost: Duration| (count as f64 - 1.0) * cost.as_secs_f64() / LASTS.as_secs_f64();
        let reading = self.all.iter().filter(|(_, reads)| *reads).count();
        (part(self.all.len(), self.load.scan), part(reading, self.load.connections))
    }
}

#[test]
fn on_an_ordinary_node_every_tick_reads_connections() {
    let scans = Load::quiet(MILLISECOND, 6 * MILLISECOND).run();
    assert!(scans.all.iter().all(|(_, reads)| *reads));
    assert!(scans.longest_gap(true) <= INTERVAL + SECOND, "{:?}", scans.longest_gap(true));
}

#[test]
fn however_long_connections_take_ticks_keep_their_time_and_connections_are_read_as_the_share_allows() {
    for connections in [MILLISECOND, 70 * MILLISECOND, 400 * MILLISECOND, 5 * SECOND] {
        let scans = Load::quiet(3 * MILLISECOND, connections).run();
        // While a scan reads connections, the next scan waits.
        assert!(scans.longest_gap(false) <= INTERVAL.max(connections) + SECOND, "{connections:?}");
        let wanted = connections.div_f64(SHARE).min(LONGEST).max(INTERVAL);
        assert!(scans.longest_gap(true) <= wanted + INTERVAL.max(connections) + SECOND, "{connections:?}");
        if connections.div_f64(SHARE) <= LONGEST {
            assert!(scans.shares().1 <= SHARE, "{connections:?}: {:?}", scans.shares());
        }
    }
}

#[test]
fn no_storm_of_changes_costs_more_than_the_share_and_none_keeps_ticks_or_connections_away() {
    for scan in [1, 5, 22, 80] {
        for connections in [1, 50, 400] {
            for every in [20, 300, 2000] {
                let (scan, connections, every) = (scan * MILLISECOND, connections * MILLISECOND, every * MILLISECOND);
                let scans = Load { scan, connections, changes: Some(every) }.run();
                let case = format!("a scan {scan:?}, connections {connections:?}, a change every {every:?}");
                let (of_scans, of_connections) = scans.shares();
                assert!(of_scans <= 1.01 * SHARE && of_connections <= 1.01 * SHARE, "{case}: {:?}", scans.shares());
                assert!(scans.longest_gap(false) <= INTERVAL.max(scan.div_f64(SHARE)) + 2 * SECOND, "{case}");
                let wanted = INTERVAL.max(scan.div_f64(SHARE)) + connections.div_f64(SHARE);
                assert!(scans.longest_gap(true) <= wanted + 2 * SECOND, "{case}");
            }
        }
    }
}

#[test]
fn a_scan_that_costs_more_than_the_share_comes_less_often_and_every_two_minutes_at_least() {
    let scans = Load::quiet(80 * MILLISECOND, MILLISECOND).run();
    assert!(scans.shares().0 <= SHARE && scans.longest_gap(false) <= 41 * SECOND, "{:?}", scans.longest_gap(false));
    let scans = Load::quiet(10 * SECOND, MILLISECOND).run();
    assert!(scans.longest_gap(false) <= LONGEST_TICK + SECOND, "{:?}", scans.longest_gap(false));
}

#[test]
fn a_change_is_judged_once_the_cluster_is_quiet_and_after_a_second_at_the_latest() {
    let start = Instant::now();
    let mut cadence = Cadence::new(INTERVAL, 100.0 * SHARE);
    cadence.scanned(start, 20 * MILLISECOND, Some(SECOND));
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
    // The scan costs 20 ms. At a share of 0.2 per cent, the next scan may begin after 10 seconds.
    let scanned = changed + 2 * SECOND;
    cadence.scanned(scanned, 20 * MILLISECOND, None);
    cadence.changed(scanned + MILLISECOND);
    assert_eq!(cadence.next(scanned + 9 * SECOND), Err(SECOND));
    assert_eq!(cadence.next(scanned + 10 * SECOND), Ok(Cause::Change));
}

#[test]
fn a_change_during_a_scan_is_judged_by_the_next_one() {
    let start = Instant::now();
    let mut cadence = Cadence::new(INTERVAL, 100.0 * SHARE);
    cadence.changed(start);
    cadence.changed(start + 2 * MILLISECOND);
    cadence.scanned(start + MILLISECOND, MILLISECOND / 10, None);
    assert_eq!(cadence.next(start + QUIET + 2 * MILLISECOND), Ok(Cause::Change));
    cadence.scanned(start + QUIET + 3 * MILLISECOND, MILLISECOND / 10, None);
    assert!(cadence.next(start + 2 * SECOND).is_err(), "it was judged");
}

#[test]
fn another_interval_and_another_share_count_from_now_on() {
    let start = Instant::now();
    let mut cadence = Cadence::new(600 * SECOND, 100.0 * SHARE);
    cadence.scanned(start, MILLISECOND, Some(400 * MILLISECOND));
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
    cadence.scanned(start, Duration::MAX, Some(Duration::MAX));
    assert_eq!(cadence.next(start), Err(LONGEST_TICK));
    assert!(!cadence.reads_connections(start) && cadence.reads_connections(start + LONGEST));
}
