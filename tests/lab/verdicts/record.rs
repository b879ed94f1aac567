//! The answers of packets, as the repository stores them.

use std::{env, fs};

use portreeve_facts::{Protocol, Snapshot};
use portreeve_rules::findings::Vantage;
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::{
    Answers, Ask, Listener,
    asks::every_question,
    judged::is_link_local,
    recording::{NODES, Recording, Row, path, whole},
};
use crate::parts::Answer;

/// The configurations whose snapshot is stored for all configurations of the same node.
const FIRST: [&str; 4] = ["iptables-default", "ipvs-default", "cilium/default", "cilium/apart"];

/// The configurations in which the proxy has listeners of its own.
const HOLDING: [&str; 2] = ["iptables-1.23", "nftables-1.37-localhost"];

pub fn record(name: &str, listeners: &[Listener], answers: &Answers, seen: &Snapshot) -> Recording {
    let rows = listeners.iter().map(|Listener { bind, protocol, shape, port }| {
        let questions = every_question(*protocol, *port);
        let answers = questions.iter().map(|ask| answers.get(ask).map_or('.', |answer| letter(ask, *answer)));
        let (bind, shape) = (bind.name.to_owned(), shape.name.to_owned());
        Row { bind, protocol: *protocol, shape, port: *port, answers: answers.collect() }
    });
    let places = every_question(Protocol::Tcp, 1);
    let kernel = json!(seen.kernel);
    let world = NODES[usize::from(seen.kernel.ip_vs.seen().is_some())];
    Recording {
        world: world.to_owned(),
        kernel: ["proxy", "ip_vs", "sysctls"]
            .into_iter()
            .chain(HOLDING.contains(&name).then_some("listeners"))
            .map(|field| (field.to_owned(), kernel[field].clone()))
            .collect(),
        questions: places.iter().map(|(from, _, to)| (from.name().to_owned(), to.ip())).collect(),
        settings: Map::new(),
        version: String::new(),
        like: String::new(),
        listeners: rows.collect(),
    }
}

/// Compares the recording with the stored recording. With `UPDATE=1`, the function first writes the recording.
#[track_caller]
pub fn keep(name: &str, recording: &Recording, seen: &Snapshot) {
    update(name, recording);
    if FIRST.contains(&name) {
        update(&recording.world, seen);
    }
    let committed = whole(name).listeners.len();
    assert_eq!(recording.listeners.len(), committed, "{name}: `UPDATE=1` records it anew");
    compare(name, recording);
}

/// If an answer differs from the recorded answer, the test fails, even if Portreeve's verdict equals the new answer: a
/// person must see the answer. At least 95 % of the recorded connections must get an answer.
#[track_caller]
pub fn compare(name: &str, recording: &Recording) {
    let committed = whole(name).listeners;
    let given = |row: &Row| row.answers.chars().filter(|it| *it != '.').count();
    let (mut now, mut wanted) = (0, 0);
    for row in &recording.listeners {
        let before = committed.iter().find(|it| (it.port, it.protocol) == (row.port, row.protocol));
        let before = before.unwrap_or_else(|| panic!("{name}: no port {}; `UPDATE=1` records it", row.port));
        (now, wanted) = (now + given(row), wanted + given(before));
        // A missing answer does not count as new, because a busy machine loses answers.
        let pairs = row.answers.chars().zip(before.answers.chars());
        let mut new = pairs.filter(|(now, before)| *now != *before && ![*now, *before].contains(&'.'));
        assert!(
            (&row.bind, &row.shape) == (&before.bind, &before.shape) && new.next().is_none(),
            "{name}: packets show something new; `UPDATE=1` records it\n  {row:?}\n  {before:?}"
        );
    }
    assert!(now * 20 >= wanted * 19, "{name}: only {now} of {wanted} questions were answered");
}

/// A connection to a link-local address may fail with an error, or get no answer. `N` stands for both results.
pub fn letter((from, _, to): &Ask, answer: Answer) -> char {
    match (answer, is_link_local(to.ip()), from) {
        (Answer::TimedOut, true, _) | (Answer::Refused, true, Vantage::Node) => 'N',
        (Answer::Process, ..) => 'L',
        (Answer::Pod, ..) => 'P',
        (Answer::OtherPod, ..) => 'O',
        (Answer::Refused, ..) => 'R',
        (Answer::TimedOut, ..) => 'T',
        (Answer::Unreachable, ..) => 'N',
    }
}

/// Writes one line for each listener, so that a person can read the differences.
#[track_caller]
fn update(name: &str, value: &impl Serialize) {
    if env::var_os("UPDATE").is_none() {
        return;
    }
    let mut document = json!(value);
    let like = document["like"].as_str().map(|it| json!(whole(it).listeners));
    let rows = document.get_mut("listeners").and_then(Value::as_array_mut).map(std::mem::take).unwrap_or_default();
    let common = like.as_ref().and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let rows: Vec<Value> = rows.into_iter().filter(|row| !common.contains(row)).collect();
    let mut text = document.to_string();
    if !rows.is_empty() {
        let rows: Vec<String> = rows.iter().map(Value::to_string).collect();
        text = text.replacen("\"listeners\":[]", &format!("\"listeners\":[\n{}\n]", rows.join(",\n")), 1);
    }
    let path = path(name);
    fs::write(&path, text + "\n").unwrap_or_else(|error| panic!("{}: {error}", path.display()));
}
