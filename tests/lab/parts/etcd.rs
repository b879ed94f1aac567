//! etcd, which can hang, die and come back.

use std::path::{Path, PathBuf};

use nix::sys::signal::Signal;
use tempfile::TempDir;

use super::{process::Process, talk::http_get};

/// Where it answers.
pub const PLACE: &str = "127.0.0.1:2379";

/// An etcd; it ends with this value.
pub struct Etcd {
    process: Option<Process>,
    database: TempDir,
    /// Where its log is.
    logs: PathBuf,
}

impl Etcd {
    /// One without anything, which may not answer yet; its log goes to a directory.
    #[track_caller]
    pub fn start(logs: &Path) -> Self {
        let database = TempDir::with_prefix("portreeve-lab-etcd-").expect("a directory");
        let mut etcd = Self { process: None, database, logs: logs.to_owned() };
        etcd.run();
        etcd
    }

    #[track_caller]
    pub fn wait_until_ready(&mut self) {
        self.process.as_mut().expect("it runs").wait_for("etcd", || http_get(PLACE, "/readyz"));
    }

    /// Stops it in the middle of whatever it does.
    #[track_caller]
    pub fn freeze(&self) {
        self.process.as_ref().expect("it runs").signal(Signal::SIGSTOP);
    }

    /// Lets it go on.
    #[track_caller]
    pub fn thaw(&self) {
        self.process.as_ref().expect("it runs").signal(Signal::SIGCONT);
    }

    /// Ends it.
    pub fn kill(&mut self) {
        self.process = None;
    }

    /// Starts it again, with what it has.
    #[track_caller]
    pub fn restart(&mut self) {
        self.kill();
        self.run();
        self.wait_until_ready();
    }

    #[track_caller]
    fn run(&mut self) {
        let flags = [
            &format!("--data-dir={}", self.database.path().display()),
            "--unsafe-no-fsync",
            "--listen-client-urls=http://127.0.0.1:2379",
            "--advertise-client-urls=http://127.0.0.1:2379",
            "--listen-peer-urls=http://127.0.0.1:2380",
        ];
        self.process = Some(Process::start("etcd", &flags.map(ToOwned::to_owned), &self.logs));
    }
}
