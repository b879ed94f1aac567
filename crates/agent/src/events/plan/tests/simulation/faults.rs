//! What goes wrong: of the server, of all agents at once, and of those that tell.

use super::{HOUR, INTERVAL, MINUTE, SECOND, World, empty_place, hit_everywhere, promised, seeds, world::Fault};

/// When a fault begins: with the incident, when all have told, and when their Events are about to expire.
const BEGIN: [i64; 3] = [0, 2 * MINUTE, 55 * MINUTE];
const FAULTS: [Fault; 6] = [Fault::Down, Fault::Deaf, Fault::Full, Fault::Forbids, Fault::Busy(100), Fault::Restarts];

/// How long it lasts: an hour is longer than Events live. Of thousands of agents every second is hundreds of attempts.
fn lasts(nodes: usize, fault: Fault) -> i64 {
    match fault {
        Fault::Restarts => 1,
        _ if nodes > 1_000 => 3 * MINUTE,
        Fault::Down if nodes <= 120 => HOUR,
        Fault::Down | Fault::Deaf | Fault::Full | Fault::Forbids | Fault::Busy(_) => 10 * MINUTE,
    }
}

/// How long after a fault everybody has been asked again: what was forbidden is asked for every ten minutes.
fn settles(fault: Fault) -> i64 {
    if fault == Fault::Forbids { 11 * MINUTE } else { 2 * MINUTE }
}

/// When the nodes are repaired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Repair {
    Within,
    After,
}

fn suffer(nodes: usize, seed: u64, (fault, from): (Fault, i64), repair: Repair) {
    let mut world = World::new(nodes, seed);
    let until = from + lasts(nodes, fault);
    let case = format!("{fault:?} at {} min, repaired {repair:?}", from / MINUTE);
    world.fault(fault, from, until);
    hit_everywhere(&mut world, INTERVAL);
    let repaired = match repair {
        Repair::Within => from + INTERVAL + (until - from) / 2,
        Repair::After => {
            world.run_until(until + settles(fault) + empty_place(nodes));
            assert!((1..=5).contains(&world.tellers()), "{case}: {} tell: {world}", world.tellers());
            assert!(world.first_told() <= until + settles(fault), "{case}: first told at {}", world.first_told());
            world.now()
        }
    };
    for node in 0..nodes {
        let at = repaired + world.chance(INTERVAL);
        world.clear(at, node);
    }
    world.run_until(repaired.max(until) + INTERVAL + settles(fault) + 2 * MINUTE);
    let (busiest, most) = (world.busiest(), world.most_attempts());
    match fault {
        // Those that it turns away come again, ever less often.
        Fault::Busy(_) | Fault::Forbids | Fault::Full => {
            assert!(busiest <= promised(nodes).max(nodes as u32 / 10), "{case}: {busiest} a second: {world}");
        }
        _ => assert!(busiest <= promised(nodes), "{case}: {busiest} a second: {world}"),
    }
    assert!(most <= promised(nodes).max(nodes as u32 / 10), "{case}: {most} attempts a second: {world}");
    assert!(world.most_tellers <= 5, "{case}: {} tell: {world}", world.most_tellers);
    assert_eq!(world.untrue, 0, "{case}: {world}");
    assert!(world.told.is_subset(&world.ended), "{case}: each that told has its end: {world}");
    // Whether what was not answered was done, nobody knows.
    let is_lost = matches!(fault, Fault::Down | Fault::Deaf | Fault::Full | Fault::Restarts);
    assert!(is_lost || world.ended == world.told, "{case}: {:?}, not {:?}: {world}", world.ended, world.told);
    assert_eq!(world.tellers(), 0, "{case}: {world}");
    let asked = world.requests();
    world.run_until(world.now() + 3 * HOUR);
    assert_eq!(world.requests(), asked, "{case}: at rest nobody asks: {world}");
}

#[test]
fn in_and_after_a_fault_few_tell_each_has_its_end_and_the_server_is_not_overrun() {
    for (nodes, seeds) in [(1, 1..4), (3, 1..6), (120, 1..2), (201, 2..3)] {
        for seed in seeds {
            for fault in FAULTS.into_iter().flat_map(|fault| BEGIN.map(|from| (fault, from))) {
                suffer(nodes, seed, fault, Repair::After);
                if fault.0 != Fault::Restarts {
                    suffer(nodes, seed, fault, Repair::Within);
                }
            }
        }
    }
}

#[test]
fn of_thousands_of_nodes_too() {
    for fault in FAULTS {
        suffer(5_000, 1, (fault, 0), Repair::After);
    }
    for fault in [Fault::Deaf, Fault::Forbids, Fault::Busy(100)] {
        suffer(5_000, 2, (fault, BEGIN[1]), Repair::Within);
    }
    suffer(50_000, 1, (Fault::Restarts, BEGIN[1]), Repair::After);
}

#[test]
fn an_incident_that_begins_in_an_outage_is_told_when_the_server_is_back() {
    for nodes in [1, 120, 5_000, 50_000] {
        let mut world = World::new(nodes, 7);
        let back = if nodes > 120 { 3 * MINUTE } else { HOUR };
        world.fault(Fault::Down, 0, back);
        hit_everywhere(&mut world, INTERVAL);
        world.run_until(back + MINUTE);
        assert!((1..=5).contains(&world.tellers()), "{world}");
        assert!(world.first_told() <= back + 32 * SECOND, "{world}");
        assert!(world.busiest() <= promised(nodes), "{} a second: {world}", world.busiest());
    }
}

#[test]
fn agents_that_have_not_read_how_many_nodes_there_are_come_apart_too() {
    for nodes in [3, 120, 5_000] {
        for every in [1, 2] {
            let mut world = World::new(nodes, 3);
            world.leave_nodes_unread(every);
            hit_everywhere(&mut world, SECOND);
            world.run_until(10 * MINUTE);
            assert!(world.first_told() <= 32 * SECOND && world.busiest() <= promised(nodes), "{world}");
            let repaired = world.now();
            (0..nodes).for_each(|node| world.clear(repaired, node));
            world.run_until(repaired + 10 * MINUTE);
            assert!(world.busiest() <= promised(nodes), "{} a second: {world}", world.busiest());
            assert!(world.most_tellers <= 5 && world.ended == world.told && world.untrue == 0, "{world}");
        }
    }
}

#[test]
fn a_holder_that_goes_without_an_end_is_followed_within_an_hour_and_a_quarter() {
    for nodes in [120, 5_000] {
        for seed in seeds(nodes) {
            for gone in [3, 20, 69] {
                let mut world = World::new(nodes, seed);
                hit_everywhere(&mut world, INTERVAL);
                world.run_until(gone * MINUTE);
                let holders = world.holders();
                assert_eq!(holders.len(), 5, "{world}");
                holders.iter().for_each(|node| world.vanish(gone * MINUTE, *node));
                world.run_until((gone + 75) * MINUTE);
                assert_eq!(world.tellers(), 5, "{world}");
                assert!(world.holders().iter().all(|node| !holders.contains(node)), "{world}");
                assert!(world.longest_silence <= 75 * MINUTE, "{} ms: {world}", world.longest_silence);
                assert!(world.most_tellers <= 5, "{} tell: {world}", world.most_tellers);
            }
        }
    }
}

#[test]
fn who_is_repaired_while_its_agent_restarts_and_is_hit_again_is_told_of() {
    for seed in seeds(120) {
        let mut world = World::new(120, seed);
        hit_everywhere(&mut world, INTERVAL);
        // Half of them at a time, over three hours, so that most that hold a voice stand beside the gate of another.
        for node in 0..120 {
            let at = 2 * MINUTE + world.chance(3 * HOUR);
            world.clear(at, node);
            let down = at + MINUTE + world.chance(MINUTE);
            world.vanish(down, node);
            let again = down + MINUTE + world.chance(20 * MINUTE);
            world.raise(again, node);
        }
        world.run_until(4 * HOUR);
        assert_eq!(world.untrue, 0, "{world}");
        assert!(world.longest_silence <= 15 * MINUTE, "{} ms: {world}", world.longest_silence);
        assert!((1..=5).contains(&world.tellers()), "{world}");
        let repaired = world.now();
        (0..120).for_each(|node| world.clear(repaired, node));
        world.run_until(repaired + 10 * MINUTE);
        assert_eq!(world.tellers(), 0, "{world}");
    }
}
