//! Runs the commands in a page of the runbooks, and compares the real output with the page.

use std::{env, fs, path::Path, process::Command};

use super::{commands::run, control_plane::ControlPlane, directory::Directory, programs};

/// The first commands of a runbook, from `docs/runbooks/README.md`. The commands set the variables `node` and `agent`.
pub const AGENT: &str = "node=n1
agent=$(kubectl -n portreeve get pods -l app.kubernetes.io/name=portreeve --field-selector spec.nodeName=$node -o name)";

/// A user with all rights on node `n1` who types the commands of a page of `docs/runbooks`.
pub struct Reader<'a> {
    cluster: &'a ControlPlane,
    home: Directory,
}

/// In the expected output, the line `...` stands for any lines.
struct Step {
    command: String,
    said: Vec<String>,
}

impl<'a> Reader<'a> {
    pub fn of(cluster: &'a ControlPlane) -> Self {
        Self { cluster, home: Directory::new() }
    }

    /// Types each command of a page that follows a `$`, and compares the output with the page. Words must be equal.
    /// Numbers, times and the random ends of names may differ.
    ///
    /// # Panics
    /// At the first difference. The message contains the output.
    #[track_caller]
    pub fn follows(&self, page: &str) {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/runbooks").join(page).with_extension("md");
        let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let steps = steps(&text);
        assert!(!steps.is_empty(), "{page} says nothing to type");
        for Step { command, said } in steps {
            let printed = self.types(&command);
            let lines = |text: &[String]| text.iter().map(|line| steady(line)).collect::<Vec<_>>();
            let found: Vec<String> =
                printed.lines().map(str::to_owned).filter(|line| !line.trim().is_empty()).collect();
            assert!(is_told(&lines(&said), &lines(&found)), "{page}: {command}\n{printed}");
        }
    }

    #[track_caller]
    fn types(&self, command: &str) -> String {
        let command = format!("{AGENT}\n{command}");
        let kubectl = programs::find("kubectl");
        let folder = kubectl.parent().expect("a folder").display();
        let ours = Path::new(env!("CARGO_BIN_EXE_portreeve")).parent().expect("a folder").display();
        let path = format!("{folder}:{ours}:{}:/usr/sbin:/sbin", env::var("PATH").unwrap_or_default());
        let mut shell = Command::new("bash");
        shell.args(["-c", &command]).env("PATH", path).current_dir(self.home.path());
        shell.env("HOME", self.home.path()).env("KUBECONFIG", self.cluster.kubeconfig("admin"));
        // Some commands fail because they report findings.
        run(&mut shell).unwrap_or_else(|said| said)
    }
}

/// A backslash or a pipe at the end of a line continues the command.
fn steps(text: &str) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    let mut goes_on = false;
    for block in text.split("```console\n").skip(1).filter_map(|rest| rest.split("```").next()) {
        for line in block.lines().filter(|line| !line.trim().is_empty()) {
            match (line.strip_prefix("$ "), steps.last_mut()) {
                (Some(command), _) => steps.push(Step { command: command.to_owned(), said: Vec::new() }),
                (None, Some(step)) if goes_on => step.command += &format!("\n{line}"),
                (None, Some(step)) => step.said.push(line.to_owned()),
                (None, None) => panic!("{line} belongs to no command"),
            }
            goes_on = (goes_on || line.starts_with("$ ")) && line.ends_with(['\\', '|']);
        }
    }
    steps
}

fn is_told(said: &[String], found: &[String]) -> bool {
    match said.split_first() {
        None => found.is_empty(),
        Some((line, rest)) if line == "..." => (0..=found.len()).any(|skipped| is_told(rest, &found[skipped..])),
        Some((line, rest)) => found.first() == Some(line) && is_told(rest, &found[1..]),
    }
}

/// A line without the parts that differ from run to run.
fn steady(line: &str) -> String {
    let word = |word: &str| {
        let name = word.strip_prefix("portreeve-").or(word.strip_prefix("pod/portreeve-")).filter(|end| end.len() == 5);
        let is_age =
            word.starts_with(|it: char| it.is_ascii_digit()) && word.chars().all(|it| "0123456789dhms".contains(it));
        match name {
            Some(_) => "portreeve-x".to_owned(),
            None if is_age => "0".to_owned(),
            None => {
                word.split(|it: char| it.is_ascii_digit()).filter(|it| !it.is_empty()).collect::<Vec<_>>().join("0")
            }
        }
    };
    line.split_whitespace().map(word).collect::<Vec<_>>().join(" ")
}

#[test]
fn words_have_to_be_the_same_and_numbers_may_differ() {
    let page = "```console\n$ a |\n    b\none 12s 30080/tcp\n...\nlast\n```\ntext\n```console\n$ c\n```\n";
    let steps = steps(page);
    assert_eq!(steps.iter().map(|it| it.command.as_str()).collect::<Vec<_>>(), ["a |\n    b", "c"]);
    let said: Vec<String> = steps[0].said.iter().map(|line| steady(line)).collect();
    for (found, wanted) in [
        ("one  3m2s 1/tcp|x|last", true),
        ("one 3s 1/tcp|last", true),
        ("one 3s 1/tcp|end", false),
        ("one 3s 1/udp|last", false),
    ] {
        let found: Vec<String> = found.split('|').map(steady).collect();
        assert_eq!(is_told(&said, &found), wanted, "{found:?}");
    }
}
