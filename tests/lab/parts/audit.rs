//! The audit log of an API server: users, requests and answers.

use std::{collections::HashSet, fs};

use serde_json::Value;

use super::directory::Directory;

const POLICY: &str = "apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived]\n\
                      rules: [{level: Metadata}]\n";

/// The folder of an audit log. A test must drop the API server before the test drops this folder.
pub struct Audit(Directory);

#[derive(Clone, Debug)]
pub struct Asked {
    pub verb: String,
    pub uri: String,
    pub code: u64,
    /// The time at which the request arrived, in seconds since 1970.
    #[allow(dead_code, reason = "benchmarks ask for it")]
    pub at: u64,
}

impl Audit {
    pub fn new() -> Self {
        let directory = Directory::new();
        directory.write("policy.yaml", POLICY);
        Self(directory)
    }

    pub fn flags(&self) -> [String; 2] {
        let path = |name| self.0.path().join(name).display().to_string();
        [format!("--audit-policy-file={}", path("policy.yaml")), format!("--audit-log-path={}", path("audit.log"))]
    }

    /// Returns each request of a user once. The log has two entries for a watch, at its start and at its end.
    #[track_caller]
    pub fn of(&self, user: &str) -> Vec<Asked> {
        let log = fs::read_to_string(self.0.path().join("audit.log")).expect("an audit log");
        // The last line may be incomplete.
        let lines = log.split_inclusive('\n').filter(|line| line.ends_with('\n'));
        let told = lines.map(|line| serde_json::from_str::<Value>(line).expect("a line of JSON"));
        let word = |value: &Value| value.as_str().expect("a word").to_owned();
        let mut seen = HashSet::new();
        told.filter(|it| it["user"]["username"] == user && seen.insert(it["auditID"].to_string()))
            .map(|it| Asked {
                verb: word(&it["verb"]),
                uri: word(&it["requestURI"]),
                code: it["responseStatus"]["code"].as_u64().expect("a status"),
                at: second(&it["requestReceivedTimestamp"]),
            })
            .collect()
    }
}

#[track_caller]
fn second(time: &Value) -> u64 {
    let time: jiff::Timestamp = time.as_str().expect("a word").parse().expect("a time");
    time.as_second().try_into().expect("a time after 1970")
}
