//! A directory that is kept only if the test fails.

use std::{fs, path::Path, thread};

use tempfile::TempDir;

/// If the test has failed, the directory stays and its name is printed.
pub struct Directory(Option<TempDir>);

impl Directory {
    pub fn new() -> Self {
        Self(Some(TempDir::with_prefix("portreeve-lab-").expect("a directory")))
    }

    pub fn path(&self) -> &Path {
        self.0.as_ref().expect("it is taken only when dropped").path()
    }

    pub fn write(&self, name: &str, text: &str) -> String {
        let path = self.path().join(name);
        fs::write(&path, text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        path.to_str().expect("the path of a temporary directory is UTF-8").to_owned()
    }

    pub fn keep(mut self) {
        self.leave();
    }

    fn leave(&mut self) {
        if let Some(directory) = self.0.take() {
            eprintln!("logs are kept in {}", directory.keep().display());
        }
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        if thread::panicking() {
            self.leave();
        }
    }
}
