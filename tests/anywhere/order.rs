//! If the order of the input changes, no byte of the output changes.

use std::{fs, io::Write as _, os::unix::fs::symlink, process::Command, sync::Arc};

use portreeve_facts::{Reading, Snapshot};
use portreeve_report::{
    CheckResult, NodeOwner, NodeScan, PortArgument, Report, ReservationReport, Style, map_result, write_json,
    write_map, write_owner, write_owner_json, write_reservation_json, write_table, write_yaml,
};
use portreeve_rules::{FleetReservation, FreePorts, NodeReservation, findings::Finding, free_port, port_usage};

use crate::{
    cli::ended,
    every_node::{board, one_of_each_plane, pair, ports, small},
    snapshots,
};

const SEEDS: [u64; 2] = [1, 2];

/// Random numbers that depend only on the seed.
struct Dice(u64);

impl Dice {
    /// The next random number, smaller than `end` (splitmix64).
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % end.max(1) as u64) as usize
    }

    fn shuffle<T>(&mut self, list: &mut [T]) {
        for last in (1..list.len()).rev() {
            list.swap(last, self.below(last + 1));
        }
    }

    fn shuffle_seen<T>(&mut self, list: &mut Reading<Vec<T>>) {
        if let Reading::Seen(list) = list {
            self.shuffle(list);
        }
    }

    /// `within` shuffles the unordered lists in each object.
    fn shuffle_objects<T: Clone>(&mut self, list: &mut Reading<Vec<Arc<T>>>, within: impl Fn(&mut Self, &mut T)) {
        self.shuffle_seen(list);
        if let Reading::Seen(list) = list {
            list.iter_mut().for_each(|object| within(self, Arc::make_mut(object)));
        }
    }
}

/// Like [`shuffled`], but the lists inside Services are in another order too. The output may differ, because commands
/// and sentences list addresses and ports in the order of the Service.
fn shuffled_within(snapshot: &Snapshot, seed: u64) -> Snapshot {
    let mut dice = Dice(seed);
    let mut other = shuffled(snapshot, seed);
    dice.shuffle_objects(&mut other.cluster.services, |dice, service| {
        dice.shuffle(&mut service.external_ips);
        dice.shuffle(&mut service.load_balancer_ips);
        dice.shuffle(&mut service.ports);
    });
    other.cluster = other.cluster.in_order();
    other
}

/// The same node, with every unordered list in another order. A list keeps its order if the order has a meaning. The
/// program uses the first family of a Service, the first address of an endpoint, and the first address of each type of
/// a Node. The kernel evaluates redirections in their order.
fn shuffled(snapshot: &Snapshot, seed: u64) -> Snapshot {
    let mut dice = Dice(seed);
    let mut other = snapshot.clone();
    let Snapshot { kernel, cluster, .. } = &mut other;
    dice.shuffle_seen(&mut cluster.services);
    dice.shuffle_objects(&mut cluster.endpoint_slices, |dice, slice| {
        dice.shuffle(&mut slice.ports);
        dice.shuffle(&mut slice.endpoints);
    });
    dice.shuffle_objects(&mut cluster.pods, |dice, pod| dice.shuffle(&mut pod.ports));
    dice.shuffle_objects(&mut cluster.waiting_pods, |dice, pod| dice.shuffle(&mut pod.ports));
    dice.shuffle_objects(&mut cluster.nodes, |_, _| ());
    dice.shuffle(&mut cluster.workloads);
    dice.shuffle(&mut cluster.range_claims);
    dice.shuffle(&mut cluster.rejected);
    dice.shuffle(&mut cluster.unread_services);
    dice.shuffle_seen(&mut kernel.listeners);
    if let Reading::Seen(clients) = &mut kernel.clients {
        dice.shuffle(&mut clients.sockets);
    }
    dice.shuffle_seen(&mut kernel.pod_namespaces);
    if let Reading::Seen(interfaces) = &mut kernel.interfaces {
        let interfaces = Arc::make_mut(interfaces);
        dice.shuffle(&mut interfaces.links);
        dice.shuffle(&mut interfaces.addresses);
        dice.shuffle(&mut interfaces.gateways);
    }
    dice.shuffle_seen(&mut kernel.nameservers);
    dice.shuffle_seen(&mut kernel.ip_vs);
    dice.shuffle_seen(&mut kernel.ip_vs_connections);
    if let Reading::Seen(masquerade) = &mut kernel.masquerade {
        dice.shuffle(&mut masquerade.unanswered);
    }
    if let Reading::Seen(netfilter) = &mut kernel.netfilter {
        dice.shuffle(&mut netfilter.tables);
        dice.shuffle(&mut netfilter.chains);
        dice.shuffle(&mut netfilter.legacy_tables);
    }
    dice.shuffle_seen(&mut kernel.health_checks);
    other.cluster = other.cluster.in_order();
    other
}

fn reported(snapshot: &Snapshot) -> Vec<(String, String)> {
    let style = Style { width: 120, colour: false, program: "portreeve".to_owned() };
    let board = board(snapshot);
    let report = Report::of(snapshot, &board);
    let mut reported: Vec<(String, Vec<u8>)> = Vec::new();
    let mut part = |name: &str, write: &dyn Fn(&mut Vec<u8>)| {
        let mut text = Vec::new();
        write(&mut text);
        reported.push((name.to_owned(), text));
    };
    part("replay -o json", &|out| write_json(&report, None, out).expect("memory"));
    part("replay -o yaml", &|out| write_yaml(&report, out).expect("memory"));
    part("replay", &|out| write_table(&report, false, &style, out).expect("memory"));
    part("replay -o wide", &|out| write_table(&report, true, &style, out).expect("memory"));
    part("map", &|out| {
        let usage = port_usage(snapshot);
        usage.iter().for_each(|usage| write_map(usage, &style, out).expect("memory"));
        write!(out, "{:?}", usage.map(|usage| map_result(&usage))).expect("memory");
    });
    part("suggest", &|out| {
        let free = FreePorts::of(snapshot);
        write!(out, "{:?} {:?}", free.as_read().take(50).collect::<Vec<_>>(), free.unread).expect("memory");
    });
    part("reserve", &|out| {
        let fleet = FleetReservation { nodes: NodeReservation::of(snapshot, None).into_iter().collect() };
        let list = fleet.list();
        if let Ok(list) = &list {
            let report = ReservationReport { fleet: &fleet, list, unread: &[], partial: None, may_be_guarded: false };
            write_reservation_json(CheckResult::Clear, &report, &[NodeScan::of(snapshot)], out).expect("memory");
        }
        write!(out, "{:?} {:?}", list.err(), fleet.doubts()).expect("memory");
    });
    for (port, protocol) in ports(&board.findings).into_iter().take(MOST_PORTS) {
        let argument: PortArgument = format!("{port}/{protocol}").parse().expect("a port");
        part(&format!("owner {port}/{protocol}"), &|out| match argument.owner(
            snapshot,
            true,
            free_port(snapshot, port).as_ref(),
        ) {
            Ok(owner) => {
                write_owner(&owner, &style, out).expect("memory");
                let node = NodeOwner { node: snapshot.node_name().to_owned(), owner: Ok(owner) };
                write_owner_json(port, &[node], out).expect("memory");
            }
            Err(gap) => write!(out, "{gap:?}").expect("memory"),
        });
    }
    reported.into_iter().map(|(name, text)| (name, String::from_utf8(text).expect("UTF-8"))).collect()
}

/// The largest number of ports for which a test compares `owner` on one node. Some nodes have hundreds of ports.
const MOST_PORTS: usize = 6;

/// For each seed, the first difference in the output if the node's input is in another order.
pub(crate) fn told_otherwise(name: &str, snapshot: &Snapshot, seeds: &[u64]) -> Vec<String> {
    let as_it_was = reported(snapshot);
    let other = |seed: &u64| first_difference(name, &as_it_was, &reported(&shuffled(snapshot, *seed)));
    seeds.iter().filter_map(other).collect()
}

pub(crate) fn replayed_otherwise(name: &str, snapshot: &Snapshot) -> Option<String> {
    first_difference(name, &reported(snapshot), &reported(&replayed(snapshot)))
}

fn replayed(snapshot: &Snapshot) -> Snapshot {
    Snapshot::from_json(&serde_json::to_vec(snapshot).expect("JSON")).expect("a snapshot")
}

fn first_difference(name: &str, as_it_was: &[(String, String)], other: &[(String, String)]) -> Option<String> {
    assert_eq!(as_it_was.len(), other.len(), "{name}");
    let (was, is) = as_it_was.iter().zip(other).find(|(was, is)| was != is)?;
    let line = was.1.lines().zip(is.1.lines()).find(|(was, is)| was != is);
    Some(format!("{name}, {}: {line:#?}", was.0))
}

#[test]
fn the_order_of_what_was_read_changes_no_byte_of_what_is_told() {
    let complaints: Vec<String> = small()
        .iter()
        .chain(&one_of_each_plane().collect::<Vec<_>>())
        .flat_map(|(name, snapshot)| told_otherwise(name, snapshot, &SEEDS))
        .collect();
    assert!(complaints.is_empty(), "{}\n{}", complaints.len(), complaints.join("\n"));
}

#[test]
fn nor_does_the_order_within_a_service_change_a_verdict() {
    let verdicts = |snapshot: &Snapshot| -> Vec<String> {
        let finding = |it: &Finding| format!("{} {:?} {:?}", pair(&it.key), it.evidence.impact(), it.evidence.affects);
        let board = board(snapshot);
        let unknown = board.unknown.iter().map(|it| format!("{} {:?} {}", it.rows, it.subject, it.claims));
        board.findings.iter().map(finding).chain(unknown).collect()
    };
    for (name, snapshot) in small().into_iter().chain(one_of_each_plane()) {
        let as_it_was = verdicts(&snapshot);
        for seed in SEEDS {
            assert_eq!(as_it_was, verdicts(&shuffled_within(&snapshot, seed)), "{name}, seed {seed}");
        }
    }
}

#[test]
fn a_snapshot_is_replayed_to_the_same_bytes_twice() {
    for (name, snapshot) in small() {
        assert_eq!(snapshot, replayed(&snapshot), "{name}");
        assert_eq!(replayed_otherwise(&name, &snapshot), None);
    }
}

#[test]
fn nor_what_is_told_of_a_node_as_it_might_be() {
    let folder = tempfile::tempdir().expect("a directory");
    let plugin = folder.path().join("kubectl-portreeve");
    symlink(env!("CARGO_BIN_EXE_portreeve"), &plugin).expect("a link");
    let what_if = |snapshot: &Snapshot| {
        let file = folder.path().join("snapshot.json");
        fs::write(&file, serde_json::to_vec(snapshot).expect("JSON")).expect("a file");
        let mut command = Command::new(&plugin);
        command.env_clear().env("HOME", "/nonexistent").args(["what-if", "-o", "json", "--set"]);
        ended(command.arg("proxy_mode=nftables").arg("--snapshot").arg(file))
    };
    for (name, path) in snapshots::paths() {
        let snapshot = Snapshot::from_json(&fs::read(path).expect("a snapshot")).expect("a snapshot");
        let (code, as_it_was, error) = what_if(&snapshot);
        // A snapshot without Services ends with 2 and a short output: no setting can change its result.
        assert!(as_it_was.len() > 100 || code == 2, "{name}: {error}");
        assert_eq!(as_it_was, what_if(&shuffled(&snapshot, 4)).1, "{name}");
    }
}
