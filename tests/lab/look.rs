//! Runs commands of the binary once, in the network namespace of the calling thread.

use crate::parts::named::is_of;
use std::{
    path::Path,
    process::{Command, Output},
};

use portreeve_facts::Snapshot;
use serde_json::Value;

use crate::parts::slowness;

#[track_caller]
pub fn snapshot(kubeconfig: &Path) -> Snapshot {
    serde_json::from_value(document(&run(&["snapshot"], kubeconfig))).expect("a snapshot")
}

#[track_caller]
pub fn table(kubeconfig: &Path) -> String {
    words("check", kubeconfig)
}

#[track_caller]
pub fn map(kubeconfig: &Path) -> String {
    words("map", kubeconfig)
}

#[track_caller]
fn words(command: &str, kubeconfig: &Path) -> String {
    let output = run(&[command], kubeconfig);
    let said = String::from_utf8(output.stdout).expect("UTF-8");
    said.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[track_caller]
pub fn owner(port: u16, kubeconfig: &Path) -> Value {
    document(&run(&["owner", &format!("{port}/tcp"), "-o", "json"], kubeconfig))
}

/// The output of `check -o json` or `lint -o json`.
pub struct Look {
    pub code: i32,
    pub json: Value,
}

impl Look {
    /// Runs `check` without flags: Portreeve must find the facts about the node by itself.
    #[track_caller]
    pub fn check(kubeconfig: &Path) -> Self {
        Self::check_with(&[], kubeconfig)
    }

    #[track_caller]
    pub fn check_with(arguments: &[&str], kubeconfig: &Path) -> Self {
        Self::of(&run(&[&["check", "-o", "json"], arguments].concat(), kubeconfig))
    }

    /// Runs `check` on manifests of objects that no cluster has yet.
    #[track_caller]
    pub fn before(rule: &str, manifests: &str) -> Self {
        let words = ["check", "-o", "json", "--node", "n1", "--rule", rule, "--services", manifests];
        Self::of(&Command::new(env!("CARGO_BIN_EXE_portreeve")).args(words).output().expect("portreeve runs"))
    }

    /// Runs `lint` on a file of manifests.
    #[track_caller]
    pub fn lint(rule: &str, manifests: &str) -> Self {
        let words = ["lint", "-o", "json", "--rule", rule, manifests];
        Self::of(&Command::new(env!("CARGO_BIN_EXE_portreeve")).args(words).output().expect("portreeve runs"))
    }

    #[track_caller]
    fn of(output: &Output) -> Self {
        Self { code: output.status.code().expect("an exit code"), json: document(output) }
    }

    pub fn findings(&self, rule: &str) -> Vec<&Value> {
        self.list("findings").filter(|finding| is_of(finding, rule)).collect()
    }

    pub fn alarms(&self) -> Vec<&Value> {
        self.list("findings").filter(|finding| finding["severity"] != "info").collect()
    }

    pub fn unknown(&self) -> Vec<&Value> {
        self.list("unknown").collect()
    }

    fn list(&self, name: &str) -> impl Iterator<Item = &Value> {
        self.json[name].as_array().expect("a list").iter()
    }
}

#[track_caller]
fn document(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&output.stderr)))
}

fn run(words: &[&str], kubeconfig: &Path) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_portreeve"));
    // In a guest, the API server is slow too.
    let timeout = format!("{}s", 10 * slowness());
    command.args(words).args(["--node", "n1", "--request-timeout", &timeout, "--kubeconfig"]).arg(kubeconfig);
    command.output().expect("portreeve runs")
}
