//! Up to 50,000 agents in virtual time against one API server: how much they ask of it, and whether what they tell is true.
//!
//! A run depends on nothing but its seed, which every failure names.

mod curve;
mod faults;
mod world;

use std::collections::BTreeSet;

use world::{HOUR, MINUTE, SECOND, World};

/// Fewer, and as many as are promised.
const SIZES: [usize; 6] = [1, 3, 120, 200, 5_000, 50_000];
/// From one more than the first of each pair something is done in another way.
const EDGES: [usize; 4] = [200, 201, 6_000, 6_001];
/// Looks are taken so often, each agent at its own moment.
const INTERVAL: i64 = 15 * SECOND;

/// The most requests in a second that so many agents may make, once.
fn promised(nodes: usize) -> u32 {
    if nodes <= 6_000 { 250 } else { u32::try_from(nodes / 25).expect("a few thousand") }
}

/// How long a place may be empty while nodes are affected: of very many nodes each looks less often.
fn empty_place(nodes: usize) -> i64 {
    if nodes <= 6_000 { 15 * MINUTE } else { 65 * MINUTE }
}

fn seeds(nodes: usize) -> std::ops::Range<u64> {
    if nodes > 1_000 { 1..2 } else { 1..6 }
}

/// Every node is hit within one interval, or in a second, as by a new Service.
fn hit_everywhere(world: &mut World, within: i64) {
    for node in 0..world.nodes() {
        let at = world.chance(within);
        world.raise(at, node);
    }
}

#[test]
fn an_incident_on_every_node_is_five_events_and_so_is_its_end() {
    for nodes in SIZES.into_iter().chain(EDGES) {
        for seed in seeds(nodes) {
            for within in [INTERVAL, SECOND] {
                if EDGES.contains(&nodes) && within == INTERVAL {
                    continue;
                }
                let mut world = World::new(nodes, seed);
                hit_everywhere(&mut world, within);
                world.run_until(within + 31 * SECOND);
                let voices = nodes.min(5);
                assert!(world.tellers() >= 1 && world.first_told() <= within + 30 * SECOND, "{world}");
                assert!(world.busiest() <= promised(nodes), "{} a second: {world}", world.busiest());
                world.run_until(if nodes > 5_000 { 20 * MINUTE } else { 3 * HOUR });
                assert!(world.most_tellers <= voices, "{} tell: {world}", world.most_tellers);
                assert!(nodes < 120 || world.tellers() == voices, "{} tell: {world}", world.tellers());

                let repair = world.now();
                for node in 0..nodes {
                    let at = repair + world.chance(within);
                    world.clear(at, node);
                }
                world.run_until(repair + 10 * MINUTE);
                assert_eq!(world.ended, world.told, "an end for each that told: {world}");
                assert!(world.busiest() <= promised(nodes), "{world}");
                let asked = world.requests();
                world.run_until(repair + 3 * HOUR);
                assert_eq!(world.requests(), asked, "at rest nobody asks: {world}");
                assert_eq!(world.untrue, 0, "{world}");
            }
        }
    }
}

#[test]
fn a_node_that_is_alone_in_its_trouble_is_told_within_half_a_minute() {
    for nodes in SIZES.into_iter().chain(EDGES) {
        for seed in seeds(nodes) {
            let mut world = World::new(nodes, seed);
            let node = usize::try_from(world.chance(nodes as i64 - 1)).expect("a node");
            world.raise(0, node);
            let most = if nodes <= 200 { SECOND } else { 30 * SECOND + SECOND };
            world.run_until(most);
            assert_eq!(world.told, BTreeSet::from([node]), "{world}");
            assert_eq!(world.requests(), 2, "a look and the Event: {world}");
        }
    }
}

#[test]
fn a_node_that_is_left_over_is_told_within_a_quarter_of_an_hour_or_an_hour_of_very_many() {
    for nodes in [3, 120, 5_000, 6_000, 50_000] {
        for seed in seeds(nodes) {
            let mut world = World::new(nodes, seed);
            hit_everywhere(&mut world, INTERVAL);
            world.run_until(10 * MINUTE);
            let left = usize::try_from(world.chance(nodes as i64 - 1)).expect("a node");
            for node in (0..nodes).filter(|node| *node != left) {
                let at = 10 * MINUTE + world.chance(INTERVAL);
                world.clear(at, node);
            }
            world.run_until(10 * MINUTE + empty_place(nodes));
            assert_eq!((world.tellers(), world.told.contains(&left)), (1, true), "{world}");
            world.run_until(4 * HOUR);
            assert_eq!((world.tellers(), world.openings()), (1, 1), "only its Event is left: {world}");
            assert_eq!(world.untrue, 0, "{world}");
            world.clear(4 * HOUR, left);
            world.run_until(4 * HOUR + MINUTE);
            assert_eq!(world.ended, world.told, "{world}");
        }
    }
}

#[test]
fn a_slow_repair_is_told_of_by_nodes_that_are_still_affected() {
    for nodes in [120, 5_000, 50_000] {
        for seed in seeds(nodes) {
            let mut world = World::new(nodes, seed);
            hit_everywhere(&mut world, INTERVAL);
            for node in 0..nodes {
                let at = MINUTE + world.chance(6 * HOUR);
                world.clear(at, node);
            }
            world.run_until(5 * HOUR);
            assert!(world.most_tellers <= 5 && world.tellers() >= 1, "{world}");
            world.run_until(6 * HOUR + 30 * MINUTE);
            assert_eq!(world.ended, world.told, "{world}");
            assert_eq!((world.tellers(), world.untrue), (0, 0), "{world}");
            assert!(world.longest_silence <= empty_place(nodes), "{} ms: {world}", world.longest_silence);
            assert!(world.most_events <= 80, "{} Events at a time: {world}", world.most_events);
        }
    }
}

/// Prints the table of `docs/performance.md`: what an incident on every node asks, from its beginning to an hour after its end.
#[test]
fn the_numbers_of_the_document_are_those_of_the_simulation() {
    let rows = SIZES.map(|nodes| {
        let mut world = World::new(nodes, 1);
        hit_everywhere(&mut world, INTERVAL);
        world.run_until(MINUTE);
        let (begin, most, first) = (world.requests(), world.busiest(), world.first_told() as f64 / 1000.0);
        world.run_until(11 * MINUTE);
        let open = f64::from(world.requests() - begin) / 600.0;
        let asked = world.requests();
        for node in 0..nodes {
            let at = 11 * MINUTE + world.chance(INTERVAL);
            world.clear(at, node);
        }
        world.run_until(71 * MINUTE);
        let (end, told, events) = (world.requests() - asked, world.told.len(), world.most_events);
        format!("| {nodes} | {begin} | {most} | {first:.1} s | {told} | {events} | {open:.2} | {end} |\n")
    });
    let head = "| nodes | requests in the first minute | in the busiest second | first Event after | nodes that told | Events, with the ends \
                | requests a second while it lasts | requests about its end |\n|---|---|---|---|---|---|---|---|\n";
    let table = format!("{head}{}", rows.concat());
    let page = include_str!("../../../../../../docs/performance.md");
    assert!(page.contains(&table), "docs/performance.md has another table than this:\n{table}");
}

/// The column *simulated* of the table beside 200 real agents: an incident on every node, which ends on all but five that have not told.
#[test]
fn what_the_document_compares_with_real_agents_is_simulated_here() {
    const NODES: usize = 200;
    let mut world = World::new(NODES, 1);
    hit_everywhere(&mut world, INTERVAL);
    world.run_until(MINUTE);
    let (told, begin, most) = (world.told.len(), world.requests(), world.busiest());
    let left: Vec<usize> = (0..NODES).rev().filter(|node| !world.told.contains(node)).take(5).collect();
    for node in (0..NODES).filter(|node| !left.contains(node)) {
        let at = MINUTE + world.chance(INTERVAL);
        world.clear(at, node);
    }
    let mut next = MINUTE;
    while !left.iter().any(|node| world.told.contains(node)) {
        next += SECOND;
        world.run_until(next);
    }
    assert!(next <= MINUTE + empty_place(NODES), "{world}");
    for node in left {
        world.clear(next, node);
    }
    world.run_until(next + HOUR);
    let of_repair = world.seconds.iter().filter(|(second, _)| **second * SECOND >= MINUTE);
    let of_repair = of_repair.map(|(_, requests)| requests).max().expect("some");
    assert_eq!(world.ended, world.told, "{world}");
    let rows = [
        format!("| nodes that told, and Events | {told} |"),
        format!("| requests about Events | {begin} |"),
        format!("| in the busiest second | {most} |"),
        format!("| repaired on all but five: one of these tells after | {} s |", (next - MINUTE) / SECOND),
        format!("| in the busiest second of the repair | {of_repair} |"),
        format!("| nodes that told until it was over, and ends | {} and {} |", world.told.len(), world.ended.len()),
        format!("| ends that are told by nodes that are still affected | {} |", world.untrue),
    ];
    let page = include_str!("../../../../../../docs/performance.md");
    let missing: Vec<&String> = rows.iter().filter(|row| !page.contains(row.as_str())).collect();
    assert!(missing.is_empty(), "docs/performance.md has other rows than these: {missing:#?}");
}

/// `UPDATE=1` draws it anew.
#[test]
#[expect(clippy::disallowed_methods, reason = "the picture of a document lies beside the document")]
fn the_picture_of_the_document_is_what_the_simulation_draws() {
    let worlds = [120, 5_000, 50_000].map(|nodes| {
        let mut world = World::new(nodes, 1);
        hit_everywhere(&mut world, INTERVAL);
        world.run_until(MINUTE);
        world
    });
    let picture = curve::draw(&worlds.each_ref().map(|it| (it.nodes(), &it.seconds, promised(it.nodes()))));
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/pictures/events-of-an-incident.svg");
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(path, &picture).expect("a folder of pictures");
    }
    assert_eq!(std::fs::read_to_string(path).expect("a picture"), picture, "UPDATE=1 draws it anew");
}
