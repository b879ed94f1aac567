//! Starts etcd. A test can freeze etcd, kill it, or start it again with older content.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use nix::sys::signal::Signal;
use tempfile::TempDir;

use super::{
    process::{FEWER_COLLECTIONS, Process},
    talk::http_get,
};

pub const PLACE: &str = "127.0.0.1:2379";

pub struct Etcd {
    process: Option<Process>,
    database: TempDir,
    logs: PathBuf,
}

pub struct Saved(TempDir);

impl Etcd {
    /// Starts etcd without content, and does not wait until etcd answers.
    #[track_caller]
    pub fn start(logs: &Path) -> Self {
        let mut etcd = Self { process: None, database: directory(), logs: logs.to_owned() };
        etcd.run();
        etcd
    }

    #[track_caller]
    pub fn wait_until_ready(&mut self) {
        self.process.as_mut().expect("it runs").wait_for("etcd", || http_get(PLACE, "/readyz"));
    }

    #[track_caller]
    pub fn freeze(&self) {
        self.process.as_ref().expect("it runs").signal(Signal::SIGSTOP);
    }

    #[track_caller]
    pub fn thaw(&self) {
        self.process.as_ref().expect("it runs").signal(Signal::SIGCONT);
    }

    pub fn kill(&mut self) {
        self.process = None;
    }

    #[track_caller]
    pub fn restart(&mut self) {
        self.kill();
        self.run();
        self.wait_until_ready();
    }

    #[track_caller]
    pub fn save(&mut self) -> Saved {
        self.kill();
        let saved = directory();
        copy(self.database.path(), saved.path());
        self.restart();
        Saved(saved)
    }

    /// If `saved` is `None`, etcd has no content afterwards.
    #[track_caller]
    pub fn restore(&mut self, saved: Option<&Saved>) {
        self.kill();
        self.database = directory();
        if let Some(Saved(saved)) = saved {
            copy(saved.path(), self.database.path());
        }
        self.restart();
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
        let command = FEWER_COLLECTIONS.map(str::to_owned);
        self.process = Some(Process::start_by(&command, "etcd", &flags.map(ToOwned::to_owned), &self.logs));
    }
}

#[track_caller]
fn copy(from: &Path, to: &Path) {
    let copied = Command::new("cp").arg("-a").arg(from.join(".")).arg(to).status();
    assert!(copied.expect("the program cp").success());
}

fn directory() -> TempDir {
    TempDir::with_prefix("portreeve-lab-etcd-").expect("a directory")
}
