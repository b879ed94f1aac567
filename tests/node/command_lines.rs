//! Command lines, which can hold passwords: who prints them.

use crate::{
    agent::{Agent, SQUATTED, wait_for, web},
    proxy::Squatter,
    stage::Stage,
};

/// What nobody else should read.
const PASSWORD: &str = "--password=open-sesame";

fn printed(stage: &Stage, command: &str, arguments: &[&str]) -> String {
    let output = stage.command(command).args(["--proxy-mode", "iptables"]).args(arguments).output();
    String::from_utf8(output.expect("portreeve runs").stdout).expect("UTF-8")
}

#[test]
fn a_check_tells_command_lines_and_a_snapshot_never() {
    let stage = web();
    let _careless = Squatter::with("0.0.0.0:30080", &[PASSWORD]);
    assert!(printed(&stage, "check", &["-o", "json"]).contains(PASSWORD), "a person on the node asks for it");
    let snapshot = printed(&stage, "snapshot", &[]);
    assert!(snapshot.contains("30080") && snapshot.contains("\"perl\""), "the program itself is told: {snapshot}");
    assert!(!snapshot.contains(PASSWORD));
    let _agent = Agent::start(&stage, &["--proxy-mode", "iptables"]);
    wait_for("/metrics", |text| text.contains(SQUATTED));
    for path in ["/metrics", "/findings", "/snapshot", "/"] {
        let told = wait_for(path, |text| text.contains("30080") || path == "/metrics");
        assert!(!told.contains(PASSWORD), "{path}: {told}");
    }
}
