//! Recorded answers of packets in one configuration of one node, as data.

use std::{fs, net::IpAddr, path::PathBuf};

use portreeve_facts::Protocol;
use portreeve_rules::findings::Vantage;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// The recorded snapshots of nodes. The configurations of one node differ only in [`Recording::kernel`].
pub const NODES: [&str; 2] = ["world", "world-with-ipvs"];

/// A network namespace of the node that is no pod of its data plane: no vantage point, but a client if the data plane
/// treats it differently.
pub const NAMESPACE: &str = "namespace";

/// One configuration.
#[derive(Clone, Default, Serialize, Deserialize)]
pub struct Recording {
    /// The node's recording, one of [`NODES`].
    pub world: String,
    /// The differences in the snapshot, by the names of `kernel`: the proxy, IPVS, sysctls, and listeners if the proxy has some.
    pub kernel: Map<String, Value>,
    /// The data plane's settings in a ConfigMap, if it has one.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub settings: Map<String, Value>,
    /// The version of the data plane, if it differs from the other recordings.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub version: String,
    /// Another recording, if this one has only the listeners with other answers.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub like: String,
    /// The questions about each port, in the order of the answers: from which place, and to which address.
    pub questions: Vec<(String, IpAddr)>,
    /// Every listener.
    pub listeners: Vec<Row>,
}

/// One listener and the Service of a shape that has its port as nodePort or externalIP port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Row {
    /// The address to which it is bound.
    pub bind: String,
    /// Its protocol.
    pub protocol: Protocol,
    /// The kind of Service that it meets.
    pub shape: String,
    /// Its port.
    pub port: u16,
    /// A letter for each question: the listener answered (`L`), a pod (`P`), a refusal (`R`), a time-out (`T`), or *no
    /// route to host* (`N`). A point is a question without a recorded answer: the listener did not answer it before the
    /// proxy ran either.
    pub answers: String,
}

impl Recording {
    /// The recorded answers of a listener: client, address, and letter.
    pub fn cells<'a>(&'a self, row: &'a Row) -> impl Iterator<Item = (Vantage, IpAddr, char)> {
        let vantage = |word: &str| Vantage::ALL.into_iter().find(|it| it.name() == word).expect("a vantage point");
        let cells = self.every_cell(row).filter(|(from, ..)| *from != NAMESPACE);
        cells.map(move |(from, to, letter)| (vantage(from), to, letter))
    }

    /// The recorded answers of a listener, also for clients at places that are no vantage points, each by its name.
    pub fn every_cell<'a>(&'a self, row: &'a Row) -> impl Iterator<Item = (&'a str, IpAddr, char)> {
        let asked = self.questions.iter().zip(row.answers.chars()).filter(|(_, letter)| *letter != '.');
        asked.map(|((from, to), letter)| (from.as_str(), *to, letter))
    }

    /// The number of recorded answers.
    pub fn count(&self) -> usize {
        self.listeners.iter().map(|row| self.cells(row).count()).sum()
    }
}

/// The file of a recording.
pub fn path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("tests/anywhere/verdicts/recorded/{name}.json"))
}

/// A committed recording with every listener.
#[track_caller]
pub fn whole(name: &str) -> Recording {
    let mut recording: Recording = read(name);
    if !recording.like.is_empty() {
        let mut rows = whole(&recording.like).listeners;
        for own in std::mem::take(&mut recording.listeners) {
            let same = rows.iter().position(|it| it.port == own.port && it.protocol == own.protocol);
            let same = same.unwrap_or_else(|| panic!("{name}: no port {} in {}", own.port, recording.like));
            rows[same] = own;
        }
        recording.listeners = rows;
    }
    recording
}

/// The committed recording.
#[track_caller]
pub fn read<T: for<'a> Deserialize<'a>>(name: &str) -> T {
    let path = path(name);
    let text = fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_slice(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}
