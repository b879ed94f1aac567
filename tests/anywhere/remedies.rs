//! Runs the commands of remedies in a shell. `crates/rules/src/remedies.rs` writes all of these commands, and a test of
//! that crate records the list of the commands.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use portreeve_agent::judge;
use portreeve_rules::{Limits, findings::StepKind};

const WRITER: &str = "crates/rules/src/remedies.rs";
const HOSTILE: &str = "a'b\"c $(touch x)`touch x`;touch x\n&";

fn rooted(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn source(path: &str) -> String {
    fs::read_to_string(rooted(path)).expect("a source file")
}

fn listed() -> Vec<String> {
    let text = source("crates/rules/src/remedies/snapshots/portreeve_rules__remedies__tests__commands.snap");
    let (_, list) = text.split_once("\n---\n").expect("a head and a list");
    serde_json::from_str(list).expect("a list of commands")
}

#[track_caller]
fn a_shell_takes(command: &str) {
    let output = Command::new("sh").args(["-n", "-c", command]).output().expect("a shell");
    assert!(output.status.success() && output.stderr.is_empty(), "{command}\n{output:?}");
}

#[test]
fn a_shell_takes_every_command_that_a_rule_can_write() {
    let listed = listed();
    assert!(listed.len() >= 20, "{listed:#?}");
    listed.iter().for_each(|command| a_shell_takes(command));
}

#[test]
fn a_hostile_name_arrives_as_one_word_and_runs_nothing() {
    let mut arrived = 0;
    for command in listed().iter().filter(|it| it.contains("touch")) {
        // Without a PATH, the shell can run only these functions and its builtins.
        let functions = "PATH=; words() { for word; do printf '<%s>' \"$word\"; done; }; kubectl() { words \"$@\"; }; \
                         ip() { words \"$@\"; }; nft() { words \"$@\"; }";
        let output = Command::new("sh").args(["-c", &format!("{functions}; {command}")]).output().expect("a shell");
        let words = String::from_utf8(output.stdout).expect("UTF-8");
        assert!(output.status.success() && output.stderr.is_empty(), "{command}\n{words}");
        // The command has the hostile name in one word. If the hostile name is a label's value, the word is the label's
        // name, `=` and the hostile name.
        assert!(
            words.contains(&format!("<{HOSTILE}>")) || words.contains(&format!("={HOSTILE}>")),
            "{command}\n{words}"
        );
        arrived += 1;
    }
    assert!(arrived >= 5, "{arrived} commands");
}

#[test]
fn a_shell_takes_every_command_of_the_recorded_nodes() {
    let mut commands = BTreeSet::new();
    for (_, _, world) in crate::verdicts::recordings() {
        for finding in judge(&world, &Limits::default()).findings {
            let steps = finding.evidence.remedies.into_iter().flat_map(|remedy| remedy.steps);
            commands.extend(steps.filter(|step| step.kind == StepKind::Command).map(|step| step.text));
        }
    }
    assert!(!commands.is_empty());
    commands.iter().for_each(|command| a_shell_takes(command));
}

#[test]
fn no_rule_writes_a_command_elsewhere_and_each_is_in_the_list() {
    let writer = source(WRITER);
    let tests = source("crates/rules/src/remedies/tests.rs");
    let corpus =
        tests.split("fn every_command()").nth(1).and_then(|rest| rest.split("\n}\n").next()).expect("the test");
    for line in writer.lines().filter(|line| line.starts_with("pub(super) fn ")) {
        let name = line.trim_start_matches("pub(super) fn ").split('(').next().expect("a name");
        assert!(corpus.contains(&format!("{name}(")), "{name} is missing in `every_command`");
    }
    let rules =
        fs::read_dir(rooted("crates/rules/src")).expect("the rules").map(|entry| entry.expect("an entry").path());
    let files = rules.filter(|path| path.extension().is_some_and(|it| it == "rs") && !path.ends_with("remedies.rs"));
    let mut read = 0;
    for path in files {
        let text = fs::read_to_string(&path).expect("a source file");
        let written = text.split("#[cfg(test)]").next().unwrap_or_default();
        for word in ["Step::command", "StepKind::Command"] {
            let expected = path.ends_with("expectations.rs");
            assert!(expected || !written.contains(word), "{}: {word} belongs to {WRITER}", path.display());
        }
        read += 1;
    }
    assert!(read > 20, "{read} files");
}
