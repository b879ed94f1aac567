//! The chart of one version with the program of another version. A user can set `image.tag`, and a roll-out updates one
//! node after the other.

use std::{collections::BTreeSet, process::Command};

use serde_json::Value;

use crate::{config, helm};

/// The keys of the agent's configuration at the commit c2f01163, recorded from its command line. Each key is a flag,
/// and also an environment variable with the prefix `PORTREEVE_`.
const BEFORE: [&str; 17] = [
    "apiserver",
    "context",
    "cpu-percent",
    "heartbeat",
    "host-root",
    "interval",
    "kubeconfig",
    "limits",
    "listen",
    "log-format",
    "log-level",
    "node",
    "node-port-range",
    "proxy-mode",
    "request-timeout",
    "services",
    "socket",
];

/// The keys that the agent no longer has, each with the release that removed the key, and the reason. A key that was in
/// a release stays for one more minor version.
const GONE: [(&str, &str); 1] = [("heartbeat", "before 0.1.0: the probe connects to the socket")];

fn container(chart: &str) -> Value {
    let image = helm::image();
    let arguments =
        ["template", "portreeve", chart, "--namespace=portreeve", "--kube-version=1.36.3", "--set-json", &image];
    let manifest = helm::run(arguments.into_iter()).unwrap_or_else(|error| panic!("{chart}: {error}"));
    let mut objects = helm::objects(&manifest).into_iter();
    let set = objects.find(|object| object["kind"] == "DaemonSet").expect("a DaemonSet");
    set["spec"]["template"]["spec"]["containers"][0].clone()
}

fn words(list: &Value) -> Vec<&str> {
    list.as_array().expect("words").iter().map(|word| word.as_str().expect("a word")).collect()
}

fn keys(container: &Value) -> BTreeSet<String> {
    let names = container["env"].as_array().expect("an environment").iter().filter_map(|it| it["name"].as_str());
    names.filter_map(|name| name.strip_prefix("PORTREEVE_")).map(|key| key.to_lowercase().replace('_', "-")).collect()
}

#[test]
fn the_agent_of_before_knows_everything_that_the_chart_gives_it() {
    let container = container("deploy/chart");
    assert_eq!(words(&container["args"]), ["agent", "--config=/etc/portreeve/agent.yaml"]);
    assert_eq!(words(&container["livenessProbe"]["exec"]["command"]), ["/portreeve", "agent", "--probe"]);
    for key in keys(&container) {
        assert!(BEFORE.contains(&&*key), "{key} is a key that the agent of before does not know");
    }
}

#[test]
fn the_agent_knows_everything_that_the_chart_of_before_gives_it() {
    let container = container("tests/lab/chart-before");
    let probe = &container["livenessProbe"]["exec"]["command"];
    for arguments in [words(&container["args"]), words(probe)[1..].to_vec()] {
        let read = Command::new(env!("CARGO_BIN_EXE_portreeve")).args(&arguments).arg("--help").output();
        assert!(read.expect("portreeve runs").status.success(), "{arguments:?}");
    }
    let known = config::keys();
    let given = keys(&container);
    assert!(!given.is_empty());
    for key in given.iter().map(String::as_str).chain(BEFORE) {
        let is_gone = GONE.iter().any(|(gone, _)| *gone == key);
        assert_ne!(known.contains_key(key), is_gone, "{key}: the agent has it, or GONE has the reason");
    }
}
