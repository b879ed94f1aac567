//! `portreeve demo` finds every incident. If a step is left out, the demo must find no incident. At the end, the demo
//! leaves no process and no file.

use std::{
    fs,
    os::unix::{fs::PermissionsExt, process::CommandExt},
    path::PathBuf,
    process::{Command, Output, Stdio},
};

use tempfile::TempDir;

use crate::process::{ControlGroup, eventually};

const NOBODY: u32 = 65534;

/// A copy of the program that every user may run, and a directory for its temporary files. The path of the copy
/// identifies the processes of the demo.
struct Copy {
    program: PathBuf,
    temporary: PathBuf,
    _place: TempDir,
}

impl Copy {
    fn new() -> Self {
        let place = tempfile::tempdir().expect("a directory");
        let open = |path: &PathBuf, mode| fs::set_permissions(path, PermissionsExt::from_mode(mode)).expect("opened");
        open(&place.path().to_owned(), 0o755);
        let temporary = place.path().join("tmp");
        fs::create_dir(&temporary).expect("a directory");
        open(&temporary, 0o777);
        let program = place.path().join("portreeve");
        // This process must not open the copy for writing: a child process of another test could inherit the open file.
        // The kernel refuses to run a program that a process has open for writing.
        let copied = Command::new("cp").arg(env!("CARGO_BIN_EXE_portreeve")).arg(&program).status();
        assert!(copied.expect("cp is installed").success());
        Self { program, temporary, _place: place }
    }

    fn demo(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.arg("demo").args(arguments).env("TMPDIR", &self.temporary).stdin(Stdio::null());
        command
    }

    fn run(&self, arguments: &[&str]) -> (Output, String) {
        let output = self.demo(arguments).output().expect("the program runs");
        let text = String::from_utf8(output.stdout.clone()).expect("text");
        (output, text)
    }

    fn processes(&self) -> Vec<String> {
        let processes = fs::read_dir("/proc").expect("/proc").map(|entry| entry.expect("an entry").path());
        processes
            .filter(|process| fs::read_link(process.join("exe")).is_ok_and(|exe| exe == self.program))
            .map(|process| process.display().to_string())
            .collect()
    }

    fn assert_nothing_stays(&self) {
        assert_eq!(self.processes(), Vec::<String>::new());
        let files: Vec<_> = fs::read_dir(&self.temporary).expect("a directory").collect();
        assert!(files.is_empty(), "{files:?}");
    }
}

fn steps(report: &str) -> Vec<(String, Vec<String>)> {
    let mut incidents: Vec<(String, Vec<String>)> = Vec::new();
    let mut in_steps = false;
    for line in report.lines() {
        let title = line.strip_suffix(')').filter(|line| line.starts_with(|first: char| first.is_ascii_digit()));
        if let Some((_, name)) = title.and_then(|title| title.rsplit_once('(')) {
            incidents.push((name.to_owned(), Vec::new()));
        }
        match line {
            "   set up" => in_steps = true,
            _ if line.starts_with("     ") => {
                let (_, steps) = incidents.last_mut().expect("steps belong to an incident");
                steps.extend(in_steps.then(|| line.split_whitespace().next().expect("a name").to_owned()));
            }
            _ => in_steps = false,
        }
    }
    incidents
}

#[test]
fn every_incident_is_found_and_nothing_stays_behind() {
    let copy = Copy::new();
    let (output, report) = copy.run(&[]);
    assert!(output.status.success(), "{report}\n{output:?}");
    assert!(report.ends_with("5 of 5 found.\n"), "{report}");
    assert_eq!(report.lines().filter(|line| *line == "   ok").count(), 5);
    copy.assert_nothing_stays();
}

#[test]
fn an_incident_without_one_of_its_steps_is_not_found() {
    let copy = Copy::new();
    let (output, report) = copy.run(&[]);
    assert!(output.status.success(), "{report}");
    let incidents = steps(&report);
    assert_eq!(incidents.len(), 5, "{report}");
    for (incident, steps) in incidents {
        assert!(steps.len() >= 3, "{incident}: {steps:?}");
        for step in steps {
            let (output, report) = copy.run(&["--without", &step, &incident]);
            assert_eq!(output.status.code(), Some(1), "without {step}:\n{report}");
            assert!(report.contains("left out: "), "without {step}:\n{report}");
            assert!(!report.contains("could not be made"), "without {step}:\n{report}");
            assert!(report.ends_with("   NOT FOUND\n\n0 of 1 found.\n"), "without {step}:\n{report}");
        }
    }
    copy.assert_nothing_stays();
}

#[test]
fn the_other_incidents_are_found_when_one_is_incomplete() {
    let copy = Copy::new();
    let (output, report) = copy.run(&["--without", "web-listener"]);
    assert_eq!(output.status.code(), Some(1), "{report}");
    assert!(report.ends_with("4 of 5 found.\n"), "{report}");
}

#[test]
fn root_is_not_needed_if_user_namespaces_are_allowed() {
    let copy = Copy::new();
    let output = copy.demo(&[]).uid(NOBODY).gid(NOBODY).output().expect("the program runs");
    let report = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{report}\n{output:?}");
    copy.assert_nothing_stays();
}

/// The Ubuntu setting `apparmor_restrict_unprivileged_userns` keeps users from making user namespaces. Other test
/// machines do not have the file of this setting, so the test makes the file in a private mount.
#[test]
fn the_check_gives_users_their_namespaces_on_a_machine_of_a_forge_and_nowhere_else() {
    let check = "cd /proc/sys/kernel; last=$(cat cap_last_cap); mount -t tmpfs tmpfs /proc/sys/kernel; cd /proc/sys/kernel; \
                 echo \"$last\" > cap_last_cap; echo 1 > apparmor_restrict_unprivileged_userns; \
                 \"$0\" --check; cat apparmor_restrict_unprivileged_userns";
    for (runner, left) in [("github-hosted", "0\n"), ("self-hosted", "1\n"), ("", "1\n")] {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/in-private-namespaces");
        let mut command = Command::new("unshare");
        command
            .args(["--mount", "--", "bash", "-euc", check, script])
            .env("CI", "true")
            .env("RUNNER_ENVIRONMENT", runner);
        let output = command.output().expect("unshare is installed");
        assert_eq!(String::from_utf8_lossy(&output.stdout), left, "{runner}: {output:?}");
    }
}

#[test]
fn it_finds_the_same_if_started_in_a_cgroup_below_the_root() {
    let copy = Copy::new();
    let cgroup = ControlGroup::make("demo", "session.scope");
    let enter = format!("echo $$ > {} && exec \"$0\" demo squatting-listener", cgroup.procs().display());
    let output = Command::new("sh").args(["-c", &enter]).arg(&copy.program).output().expect("the program runs");
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn all_its_processes_end_if_it_is_killed() {
    let copy = Copy::new();
    let mut demo = copy.demo(&[]).stdout(Stdio::null()).spawn().expect("the program runs");
    // At least seven processes: the main process, five processes that make incidents, and one process inside an
    // incident.
    eventually(|| (copy.processes().len() > 6).then_some(())).expect("stages that are set");
    demo.kill().expect("killed");
    demo.wait().expect("reaped");
    eventually(|| copy.processes().is_empty().then_some(())).expect("an end of all processes");
    copy.assert_nothing_stays();
}

#[test]
fn an_unknown_incident_is_a_usage_error_that_names_the_known_ones() {
    let (output, _) = Copy::new().run(&["flood"]);
    assert_eq!(output.status.code(), Some(64));
    assert!(String::from_utf8_lossy(&output.stderr).contains("starved-proxy"));
}
