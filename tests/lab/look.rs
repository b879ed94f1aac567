//! One look of the shipped binary at a cluster, as this thread's child.

use std::{path::Path, process::Command};

use serde_json::Value;

/// What `check -o json` or `snapshot` said.
pub struct Look {
    /// The exit code.
    pub code: i32,
    /// The document.
    pub json: Value,
}

impl Look {
    /// `portreeve check` on node `n1`.
    #[track_caller]
    pub fn check(kubeconfig: &Path) -> Self {
        Self::of(&["check", "-o", "json"], kubeconfig)
    }

    /// `portreeve snapshot` on node `n1`.
    #[track_caller]
    pub fn snapshot(kubeconfig: &Path) -> Self {
        Self::of(&["snapshot"], kubeconfig)
    }

    #[track_caller]
    fn of(words: &[&str], kubeconfig: &Path) -> Self {
        let output = Command::new(env!("CARGO_BIN_EXE_portreeve"))
            .args(words)
            .args(["--node", "n1", "--kubeconfig"])
            .arg(kubeconfig)
            .output()
            .expect("portreeve runs");
        let json = serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&output.stderr)));
        Self { code: output.status.code().expect("an exit code"), json }
    }

    /// The findings of a rule.
    pub fn findings(&self, rule: &str) -> Vec<&Value> {
        self.list("findings").filter(|finding| finding["rule"] == rule).collect()
    }

    /// What is above info, for tests of silence.
    pub fn alarms(&self) -> Vec<&Value> {
        self.list("findings").filter(|finding| finding["severity"] != "info").collect()
    }

    /// Every gap.
    pub fn unknown(&self) -> Vec<&Value> {
        self.list("unknown").collect()
    }

    fn list(&self, name: &str) -> impl Iterator<Item = &Value> {
        self.json[name].as_array().expect("a list").iter()
    }
}
