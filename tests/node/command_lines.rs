//! Command lines may contain passwords.

use std::process::Command;

use serde_json::Value;

use crate::{
    agent::{Agent, SQUATTED, wait_for, web},
    proxy::Squatter,
    stage::Stage,
};

const PASSWORD: &str = "--password=open-sesame";

fn printed(stage: &Stage, command: &str, arguments: &[&str]) -> String {
    let output = stage.command(command).args(["--proxy-mode", "iptables"]).args(arguments).output();
    String::from_utf8(output.expect("portreeve runs").stdout).expect("UTF-8")
}

#[test]
fn a_check_prints_command_lines_and_a_snapshot_never_does() {
    let stage = web();
    let _careless = Squatter::with("0.0.0.0:30080", &[PASSWORD]);
    assert!(printed(&stage, "check", &["-o", "json"]).contains(PASSWORD), "a person on the node runs this");
    let snapshot = printed(&stage, "snapshot", &[]);
    assert!(
        snapshot.contains("30080") && snapshot.contains("\"perl\""),
        "the name of the program is in it: {snapshot}"
    );
    assert!(!snapshot.contains(PASSWORD));
    let _agent = Agent::start(&stage, &["--proxy-mode", "iptables"]);
    wait_for("/metrics", |text| text.contains(SQUATTED));
    for path in ["/metrics", "/findings", "/snapshot", "/"] {
        let told = wait_for(path, |text| text.contains("30080") || path == "/metrics");
        assert!(!told.contains(PASSWORD), "{path}: {told}");
    }
}

fn without_command_lines(document: &str) -> Value {
    let mut document: Value = serde_json::from_str(document).expect("JSON");
    document["nodes"][0]["lookedAt"] = Value::Null;
    for finding in document["findings"].as_array_mut().expect("findings") {
        finding["since"] = Value::Null;
        let evidence = finding["evidence"].as_array_mut().expect("evidence");
        evidence.retain(|it| it["name"] != "command line");
    }
    document
}

#[test]
fn a_snapshot_gives_the_same_report_as_a_check_without_command_lines() {
    let stage = web();
    let _squatter = Squatter::with("0.0.0.0:30080", &[]);
    let check = printed(&stage, "check", &["-o", "json"]);
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), printed(&stage, "snapshot", &[])).expect("a file");
    let replay = || {
        let output = Command::new(env!("CARGO_BIN_EXE_portreeve"))
            .args(["check", "--snapshot"])
            .arg(file.path())
            .args(["-o", "json"])
            .output();
        String::from_utf8(output.expect("portreeve runs").stdout).expect("UTF-8")
    };
    let replayed = replay();
    assert!(check.contains("30080") && check.contains("command line"), "{check}");
    assert_eq!(without_command_lines(&check), without_command_lines(&replayed));
    assert_eq!(replayed, replay());
}
