//! Programs that a test runs to their end.

use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::Value;

use super::{control_plane::ControlPlane, directory::Directory, programs};

#[track_caller]
pub fn run(command: &mut Command) -> Result<String, String> {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let [said, complaint] = [&output.stdout, &output.stderr].map(|it| String::from_utf8_lossy(it).into_owned());
    if output.status.success() { Ok(said) } else { Err(said + &complaint) }
}

/// Runs the commands of a finding's first remedy on the node of the calling thread, with all rights.
#[track_caller]
pub fn follow(cluster: &ControlPlane, finding: &Value) {
    let steps = finding["remedies"][0]["steps"].as_array().expect("steps").iter();
    let commands: Vec<&str> = steps.filter(|it| it["kind"] == "command").filter_map(|it| it["text"].as_str()).collect();
    assert!(!commands.is_empty(), "there is nothing to type: {finding:#}");
    for command in commands {
        let mut shell = Command::new("bash");
        shell.args(["-ec", command]).env("KUBECONFIG", cluster.kubeconfig("admin"));
        run(&mut shell).unwrap_or_else(|complaint| panic!("{command}: {complaint}"));
    }
}

/// A user with all rights. Each `Person` has a new home directory.
pub struct Person<'a> {
    cluster: &'a ControlPlane,
    folder: PathBuf,
    home: Directory,
}

impl<'a> Person<'a> {
    pub fn of(cluster: &'a ControlPlane) -> Self {
        Self { cluster, folder: env!("CARGO_MANIFEST_DIR").into(), home: Directory::new() }
    }

    pub fn moves_to(self, folder: &Path) -> Self {
        Self { folder: folder.to_owned(), ..self }
    }

    /// Runs a command line without a shell, and returns its output. The line must have no quotes.
    #[track_caller]
    pub fn types(&self, line: &str) -> String {
        self.tries(line).unwrap_or_else(|complaint| panic!("{line}: {complaint}"))
    }

    #[track_caller]
    pub fn tries(&self, line: &str) -> Result<String, String> {
        let mut words = line.split_whitespace();
        let program = programs::find(words.next().expect("a program"));
        run(self.command(&program).args(words))
    }

    /// Also returns the output of a failed command, because a command that reports findings fails.
    #[track_caller]
    pub fn pipes(&self, line: &str) -> String {
        run(self.command("bash".as_ref()).args(["-c", line])).unwrap_or_else(|said| said)
    }

    fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command.current_dir(&self.folder);
        let plugins = self.home.path().join(".krew/bin");
        let kubectl = programs::find("kubectl").parent().expect("a folder").to_owned();
        let places = env::split_paths(&env::var_os("PATH").unwrap_or_default()).collect::<Vec<_>>();
        command.env("PATH", env::join_paths([plugins, kubectl].into_iter().chain(places)).expect("a PATH"));
        // The home directory is new: kubectl's cache may have facts about an earlier cluster at the same address.
        command.env("HOME", self.home.path()).env("KUBECONFIG", self.cluster.kubeconfig("admin"));
        command
    }
}
