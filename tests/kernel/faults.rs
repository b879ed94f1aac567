//! Faults in the answers of the kernel. Each comment above a test is an entry of `docs/faults.md`.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    fs,
    io::Write as _,
    net::IpAddr,
    path::Path,
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use portreeve_facts::{NodeQuery, Reading};
use portreeve_kernel::{Host, Known, pod_namespaces};

use crate::{
    namespace::Namespace,
    process::{ControlGroup, eventually},
};

const STAY: u8 = 200;
const GO: u8 = 200;

fn ip(lines: &str) -> Child {
    let batch = Command::new("ip").args(["-batch", "-"]).stdin(Stdio::piped()).spawn();
    let mut batch = batch.expect("ip of iproute2 is installed");
    batch.stdin.take().expect("a pipe").write_all(lines.as_bytes()).expect("ip reads its lines");
    batch
}

fn batch(word: &str, network: u8, count: u8) -> String {
    (0..count).fold(String::new(), |mut lines, number| {
        writeln!(lines, "address {word} 10.{network}.0.{number}/32 dev lo").expect("writing to a string");
        lines
    })
}

fn of(network: u8, addresses: &BTreeSet<IpAddr>) -> usize {
    addresses.iter().filter(|it| matches!(it, IpAddr::V4(it) if it.octets()[..2] == [10, network])).count()
}

fn addresses(known: &mut Known) -> Option<BTreeSet<IpAddr>> {
    let (seen, _) = Host::at("/").read_again(&NodeQuery::default(), known);
    Some(seen.interfaces.seen()?.addresses.iter().map(|address| address.ip).collect())
}

/// Fault (kernel): addresses change while the agent lists addresses (an interrupted netlink dump)
/// Does: lists the addresses again
/// Right again: with the next list that is complete
/// Lost: nothing: a list that is torn every time is unread
#[test]
fn every_address_that_stays_is_listed_while_others_come_and_go() {
    let _namespace = Namespace::enter();
    assert!(ip(&batch("add", 1, STAY)).wait().expect("ip ends").success());
    let is_over = AtomicBool::new(false);
    let mut whole = 0;
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                for word in ["add", "del"] {
                    assert!(ip(&batch(word, 2, GO)).wait().expect("ip ends").success());
                }
            }
        });
        let mut known = Known::default();
        let missing: Vec<_> = (0..200)
            .filter_map(|_| addresses(&mut known))
            .inspect(|_| whole += 1)
            .filter(|seen| of(1, seen) != usize::from(STAY))
            .collect();
        is_over.store(true, Ordering::Relaxed);
        assert_eq!(missing, [] as [BTreeSet<IpAddr>; 0]);
    });
    assert!(whole > 0, "some lists are complete");
}

/// Fault (kernel): so many addresses change that the kernel drops notifications
/// Does: lists all addresses again
/// Right again: with the next scan
/// Lost: nothing
#[test]
fn everything_is_listed_anew_after_lost_notifications() {
    let _namespace = Namespace::enter();
    let mut known = Known::default();
    assert_eq!(addresses(&mut known).map(|seen| of(3, &seen)), Some(0));
    // The kernel reports each of these changes. The last line adds one address, and all changes before it cancel each
    // other.
    let lines: String = (0..40).flat_map(|_| ["add", "del"]).map(|word| batch(word, 3, 250)).collect();
    assert!(ip(&(lines + &batch("add", 3, 1))).wait().expect("ip ends").success());
    assert_eq!(addresses(&mut known).map(|seen| of(3, &seen)), Some(1));
    assert!(ip(&batch("del", 3, 1)).wait().expect("ip ends").success());
    assert_eq!(addresses(&mut known).map(|seen| of(3, &seen)), Some(0), "later changes are reported again");
}

/// Fault (kernel): pods and their network namespaces end while the agent reads the pods
/// Does: reads the other pods; a pod that ended is left out, or is unread with its own reason
/// Right again: with the next scan
/// Lost: nothing
#[test]
fn pods_that_end_while_they_are_read_affect_no_other() {
    const CONTAINER: &str = "5f7bb1c1d5b0cd8ba6bd0d2d3c1b1cd6a1c0a3b1e5e2b97bb0e2ad9c4d5e6f70";
    let [stays, goes] = ["1a9a4f57-7f0e-4c4b-8f5a-0f4ad2b7f4c1", "2b9a4f57-7f0e-4c4b-8f5a-0f4ad2b7f4c2"];
    let group = |name: &str, uid: &str| ControlGroup::make(name, &format!("kubepods/besteffort/pod{uid}/{CONTAINER}"));
    let groups = [group("stays", stays), group("goes", goes)];
    let [stayer, goer] = groups.each_ref().map(|group| group.procs().display().to_string());
    let pod = |procs: &str, seconds: &str| {
        let words = ["--net", "--", "sh", "-c", "echo $$ > \"$0\" && exec sleep \"$1\"", procs, seconds];
        Command::new("unshare").args(words).stdin(Stdio::null()).spawn().expect("unshare of util-linux is installed")
    };
    let mut staying = pod(&stayer, "600");
    let is_over = AtomicBool::new(false);
    let mut known = Known::default();
    let mut read = || pod_namespaces(Path::new("/proc"), 0, &BTreeMap::new(), &mut known);
    let has = |found: &[portreeve_facts::PodNamespace]| found.iter().any(|it| it.pod_uid == stays);
    eventually(|| has(&read().ok()?).then_some(())).expect("the pod that stays");
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                let mut going: Vec<_> = (0..8).map(|_| pod(&goer, "0.02")).collect();
                for one in &mut going {
                    one.wait().expect("the process ends");
                }
            }
        });
        let scans: Vec<_> = (0..100).map(|_| read()).collect();
        is_over.store(true, Ordering::Relaxed);
        for scan in scans {
            let found = scan.expect("no gap of all pods");
            let one = found.iter().find(|it| it.pod_uid == stays).expect("the pod that stays");
            assert!(matches!(one.ephemeral, Reading::Seen(_)), "{one:?}");
        }
    });
    staying.kill().expect("the process is a child");
    staying.wait().expect("the process ended");
    for procs in [stayer, goer] {
        eventually(|| fs::read_to_string(&procs).ok()?.is_empty().then_some(())).expect("an empty control group");
    }
}
