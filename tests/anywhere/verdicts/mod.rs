//! Compares verdicts with the recorded answers to test packets. `tests/lab/verdicts` sends the packets again. With
//! `UPDATE=1`, it records the answers.

mod cilium;
mod judged;
mod matrix;
mod recording;
mod unread;

use std::fs;

use portreeve_facts::{Mode, Snapshot};
use serde_json::Value;

use self::{
    judged::disagreements,
    recording::{NODES, Recording, Row, path, read},
};

pub(crate) fn recordings() -> Vec<(String, Recording, Snapshot)> {
    let folder = path(NODES[0]).parent().expect("a folder").to_owned();
    let mut names: Vec<String> = fs::read_dir(folder)
        .expect("recordings")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.is_file())
        .map(|path| path.file_stem().expect("a name").to_string_lossy().into_owned())
        .filter(|name| !NODES.contains(&name.as_str()))
        .collect();
    names.sort();
    let whole = |name: String| {
        let recording: Recording = read(&name);
        let mut world: Value = read(&recording.world);
        for (field, value) in &recording.kernel {
            world["kernel"][field] = value.clone();
        }
        let snapshot = serde_json::from_value(world).expect("a snapshot");
        (name, recording, snapshot)
    };
    names.into_iter().map(whole).collect()
}

pub(crate) fn behind_cilium() -> impl Iterator<Item = (String, Snapshot)> {
    cilium::recordings().into_iter().map(|(name, recording)| (format!("cilium/{name}"), cilium::node(&recording)))
}

#[test]
fn every_verdict_is_what_packets_showed() {
    let recordings = recordings();
    assert!(!recordings.is_empty(), "recordings are read");
    for (name, recording, world) in &recordings {
        let wrong = disagreements(recording, world);
        assert!(wrong.is_empty(), "{name}: {} of {} cells\n{}", wrong.len(), recording.count(), wrong.join("\n"));
    }
}

/// README.md states how many answers were compared.
#[test]
fn the_readme_has_the_number_of_compared_answers() {
    let readme = include_str!("../../../README.md").split_whitespace().collect::<Vec<_>>().join(" ");
    for (is_ipvs, words) in [(false, "cases in iptables and nftables mode"), (true, "cases in ipvs mode")] {
        let recordings = recordings().into_iter().filter(|(name, ..)| name.starts_with("ipvs") == is_ipvs);
        let count: usize = recordings.map(|(_, recording, _)| recording.count()).sum();
        let count = format!("{},{:03} {words}", count / 1000, count % 1000);
        assert!(readme.contains(&count), "README.md has another number than {count}");
    }
}

#[test]
fn a_verdict_of_another_configuration_is_told_apart() {
    let recordings = recordings();
    let (iptables, nftables) = (&recordings[0], &recordings[recordings.len() - 1]);
    assert!(iptables.0.starts_with("iptables") && nftables.0.starts_with("nftables"));
    assert!(!disagreements(&iptables.1, &nftables.2).is_empty());
    assert!(!disagreements(&nftables.1, &iptables.2).is_empty());
}

/// Takes the listeners and ports of `node`, and replaces the answers with the answers in `shown`. Leaves out the
/// listeners that `shown` does not have.
fn at_the_ports_of(node: &Recording, shown: &Recording) -> Recording {
    assert_eq!(node.questions, shown.questions);
    let rows = node.listeners.iter().filter_map(|row| {
        let same = |it: &&Row| (&it.bind, it.protocol, &it.shape) == (&row.bind, row.protocol, &row.shape);
        shown.listeners.iter().find(same).map(|it| Row { answers: it.answers.clone(), ..row.clone() })
    });
    let (listeners, questions) = (rows.collect(), node.questions.clone());
    Recording { listeners, questions, ..Recording::default() }
}

#[test]
fn what_is_supposed_of_another_mode_is_what_packets_show_once_it_is_there() {
    let recordings = recordings();
    let of = |name: &str| recordings.iter().find(|(it, ..)| it == name).expect("a recording");
    for (from, to, mode, least) in [
        ("ipvs-default", "nftables-default", Mode::Nftables, 1_000),
        ("ipvs-default", "iptables-default", Mode::Iptables, 1_000),
        ("iptables-default", "nftables-default", Mode::Nftables, 2_000),
    ] {
        let (_, node, world) = of(from);
        let mut supposed = world.clone();
        supposed.suppose_mode(mode, "--set");
        let then = at_the_ports_of(node, &of(to).1);
        let wrong = disagreements(&then, &supposed);
        assert!(wrong.is_empty(), "{from} to {to}: {} of {} cells\n{}", wrong.len(), then.count(), wrong.join("\n"));
        assert!(then.count() >= least, "{} cells", then.count());
    }
}
