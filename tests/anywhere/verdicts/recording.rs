//! The recorded answers to test packets, in one configuration of one node.

use std::{fs, net::IpAddr, path::PathBuf};

use portreeve_facts::Protocol;
use portreeve_rules::findings::Vantage;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// The names of recorded nodes. Configurations of one node differ only in [`Recording::kernel`].
pub const NODES: [&str; 2] = ["world", "world-with-ipvs"];

/// The name of a client: a network namespace on the node that belongs to no pod of the data plane. The client is not a
/// vantage point, but may get other answers.
pub const NAMESPACE: &str = "namespace";

#[derive(Clone, Default, Serialize, Deserialize)]
pub struct Recording {
    /// The name of the node's recorded snapshot, one of [`NODES`].
    pub world: String,
    /// The fields of `kernel` that replace the fields of the node's snapshot: the proxy, IPVS, sysctls, and listeners.
    pub kernel: Map<String, Value>,
    /// The settings in the data plane's ConfigMap, if it has a ConfigMap.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub settings: Map<String, Value>,
    /// The version of the data plane, if it differs from the other recordings.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub version: String,
    /// The name of another recording, or an empty text. If there is a name, `listeners` has only the listeners whose
    /// answers differ from the named recording.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub like: String,
    /// The questions about each port, in the order of the answers: the place of the client, and the address.
    pub questions: Vec<(String, IpAddr)>,
    pub listeners: Vec<Row>,
}

/// One listener, and the Service with the same port as nodePort or as port of an externalIP.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Row {
    pub bind: String,
    pub protocol: Protocol,
    pub shape: String,
    pub port: u16,
    /// A letter for each question. The listener answered (`L`), a pod answered (`P`), the connection was refused (`R`),
    /// timed out (`T`) or got *no route to host* (`N`). A dot means no recorded answer, because the listener did not
    /// answer even before the proxy ran.
    pub answers: String,
}

impl Recording {
    pub fn cells<'a>(&'a self, row: &'a Row) -> impl Iterator<Item = (Vantage, IpAddr, char)> {
        let vantage = |word: &str| Vantage::ALL.into_iter().find(|it| it.name() == word).expect("a vantage point");
        let cells = self.every_cell(row).filter(|(from, ..)| *from != NAMESPACE);
        cells.map(move |(from, to, letter)| (vantage(from), to, letter))
    }

    /// The answers of a row, including answers to clients at places that are not vantage points.
    pub fn every_cell<'a>(&'a self, row: &'a Row) -> impl Iterator<Item = (&'a str, IpAddr, char)> {
        let asked = self.questions.iter().zip(row.answers.chars()).filter(|(_, letter)| *letter != '.');
        asked.map(|((from, to), letter)| (from.as_str(), *to, letter))
    }

    pub fn count(&self) -> usize {
        self.listeners.iter().map(|row| self.cells(row).count()).sum()
    }
}

pub fn path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("tests/anywhere/verdicts/recorded/{name}.json"))
}

/// The recording with this name. If the field `like` of this recording names another recording, the result also has the
/// listeners of that recording.
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

#[track_caller]
pub fn read<T: for<'a> Deserialize<'a>>(name: &str) -> T {
    let path = path(name);
    let text = fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_slice(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}
