//! An agent whose files of cluster facts are malformed, missing, or pipes.

use std::fs;

use nix::{
    sys::{signal::Signal, stat::Mode},
    unistd::mkfifo,
};

use crate::{
    agent::{Agent, until, wait_for, web},
    proxy::Squatter,
    stage::{Stage, portreeve},
};

const FOUND: &str = "portreeve_findings{rule=\"listener-on-node-port\",variant=\"loses\",severity=\"critical\"} 1";

/// Fault (disk): the file of Services loses all Services
/// Does: `portreeve_source_up` is 0; known findings stay open
/// Right again: when the file has Services
/// Lost: nothing
#[test]
fn a_file_without_services_does_not_mean_that_they_are_gone() {
    let stage = web();
    let _squatter = Squatter::on("0.0.0.0:30080");
    let _agent = Agent::start(&stage, &["--proxy-mode", "iptables"]);
    wait_for("/metrics", |text| text.contains(FOUND));
    for content in
        ["kind: Pod\nmetadata: {name: a}\n", "apiVersion: v1\nitems:\n", "kind: service\nmetadata: {name: a}\n"]
    {
        let scans = |text: &str| {
            let line = text.lines().find(|line| line.starts_with("portreeve_scans_total"));
            line.and_then(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).unwrap_or(0.0)
        };
        fs::write(stage.path("cluster.yaml"), content).expect("a file");
        wait_for("/metrics", |text| text.contains("portreeve_source_up{source=\"services\"} 0"));
        let before = scans(&wait_for("/metrics", |_| true));
        let later = wait_for("/metrics", |text| scans(text) > before + 2.0);
        assert!(later.contains(FOUND), "{content}: {later}");
        stage.manifest();
        wait_for("/metrics", |text| text.contains("portreeve_source_up{source=\"services\"} 1"));
    }
}

/// Fault (disk): a pipe without a writer replaces a file of cluster facts
/// Does: reports that the file cannot be read; a signal ends the agent
/// Right again: when the path is a file
/// Lost: the content of the file
#[test]
fn a_pipe_in_place_of_its_files_does_not_block_its_end() {
    let stage = Stage::new();
    let path = stage.path("pipe");
    mkfifo(&path, Mode::S_IRWXU).expect("a pipe");
    let mut command = portreeve();
    command.arg("agent").arg("--services").arg(&path);
    let mut agent = Agent::of(command, &stage, &[]);
    let findings = wait_for("/findings", |text| text.contains("not a regular file"));
    assert!(findings.contains("pipe: cannot be read"), "{findings}");
    agent.signal(Signal::SIGTERM);
    agent.says("stopped");
    let child = std::cell::RefCell::new(&mut agent.child);
    assert!(until(|| child.borrow_mut().try_wait().expect("a child")).is_some_and(|status| status.success()));
}
