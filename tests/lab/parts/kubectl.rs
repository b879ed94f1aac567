//! kubectl, as a user types it.

use std::{env, ffi::OsString, os::unix::fs::symlink, path::Path, process::Command};

use super::{control_plane::ControlPlane, directory::Directory, programs};

#[track_caller]
pub fn kubectl(cluster: &ControlPlane, words: &[&str]) -> String {
    let cache = Directory::new();
    let mut command = Command::new(programs::find("kubectl"));
    command.env("KUBERC", "off").env("KUBECACHEDIR", cache.path()).args(words);
    command.arg("--kubeconfig").arg(cluster.kubeconfig("admin"));
    let output = command.output().expect("kubectl runs");
    assert!(output.status.success(), "kubectl {words:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("UTF-8")
}

pub struct Plugin {
    home: Directory,
    kubeconfig: OsString,
}

impl Plugin {
    pub fn of(kubeconfig: &Path) -> Self {
        Self::of_program(env!("CARGO_BIN_EXE_portreeve").as_ref(), kubeconfig)
    }

    pub fn of_program(program: &Path, kubeconfig: &Path) -> Self {
        let home = Directory::new();
        for name in ["kubectl-portreeve", "kubectl_complete-portreeve"] {
            symlink(program, home.path().join(name)).expect("a link");
        }
        Self { home, kubeconfig: kubeconfig.as_os_str().to_owned() }
    }

    pub fn write(&self, name: &str, text: &str) -> String {
        self.home.write(name, text)
    }

    /// The line begins with `kubectl` and has no quotes.
    #[track_caller]
    pub fn types(&self, line: &str) -> (i32, String, String) {
        let mut words = line.split_whitespace();
        assert_eq!(words.next(), Some("kubectl"));
        let own = env::split_paths(&env::var_os("PATH").unwrap_or_default()).collect::<Vec<_>>();
        let path = env::join_paths([self.home.path().to_owned()].into_iter().chain(own)).expect("a PATH");
        let mut command = Command::new(programs::find("kubectl"));
        command.env("PATH", path).env("HOME", self.home.path()).env("KUBECONFIG", &self.kubeconfig).args(words);
        let output = command.output().expect("kubectl runs");
        let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
        (output.status.code().expect("an exit code"), text(output.stdout), text(output.stderr))
    }
}
