//! The kernel's list of reserved ports.

use std::{
    fs::{File, OpenOptions},
    io::{self, ErrorKind, Read as _},
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
};

use super::GuardError;
use portreeve_facts::{PortSet, text};

/// The size of the read buffer, in bytes. The longest list that the kernel prints has 32,768 ports that are not
/// adjacent, with 6 bytes each.
const LONGEST: usize = 256 * 1024;
/// The largest number of bytes in one write. The kernel accepts at most one memory page in a write (kernel/sysctl.c,
/// `proc_do_large_bitmap`).
const LONGEST_WRITE: usize = 4000;

/// The list of reserved ports, and the two ways to change it.
pub trait List {
    /// The present list.
    ///
    /// # Errors
    /// If the list cannot be read.
    fn read(&mut self) -> Result<PortSet, GuardError>;

    /// Checks that the list can be written. Does not change the list.
    ///
    /// # Errors
    /// If the list cannot be written.
    fn require_writable(&mut self) -> Result<(), GuardError>;

    /// Adds `ports` if the list equals `expected`, and returns whether it added them. An entry can get lost only if two
    /// programs add entries within a microsecond.
    ///
    /// # Errors
    /// If the list cannot be read or written.
    fn add(&mut self, expected: &PortSet, ports: &PortSet) -> Result<bool, GuardError>;

    /// If the list equals `expected`, replaces the list by the ports in `first` and `then`. Returns whether the list
    /// equalled `expected`. A long list is written in parts: first the parts of `first`.
    ///
    /// # Errors
    /// If the list cannot be read or written.
    fn replace(&mut self, expected: &PortSet, first: &PortSet, then: &PortSet) -> Result<bool, GuardError>;

    /// Whether the guard can write these ports in one part. If the guard writes only one part, other processes see
    /// either the old or the new list.
    fn is_written_at_once(&self, ports: &PortSet) -> bool;
}

/// `/proc/sys/net/ipv4/ip_local_reserved_ports`. The list belongs to the network namespace of the thread that opens the
/// file.
#[derive(Clone, Debug)]
pub struct KernelList(PathBuf);

impl KernelList {
    /// The list in `directory`, which has the form of `/proc/sys/net`.
    pub fn below(directory: &Path) -> Self {
        Self(directory.join("ipv4/ip_local_reserved_ports"))
    }

    fn open(&self) -> Result<File, GuardError> {
        OpenOptions::new().write(true).open(&self.0).map_err(|error| match error.kind() {
            ErrorKind::NotFound => GuardError::NoList(self.0.clone()),
            _ => self.not_written(error),
        })
    }

    fn not_written(&self, error: io::Error) -> GuardError {
        GuardError::Write { path: self.0.clone(), error }
    }

    fn write_over(&mut self, expected: &PortSet, parts: &[String], offset: u64) -> Result<bool, GuardError> {
        let file = self.open()?;
        if self.read()? != *expected {
            return Ok(false);
        }
        self.write(&file, parts, offset).map(|()| true)
    }

    fn write(&self, file: &File, parts: &[String], offset: u64) -> Result<(), GuardError> {
        for (index, part) in parts.iter().enumerate() {
            let offset = if index == 0 { offset } else { ADDS };
            let written = file.write_at(part.as_bytes(), offset).map_err(|error| self.not_written(error))?;
            if written != part.len() {
                let error =
                    io::Error::new(ErrorKind::WriteZero, format!("the kernel took {written} of {} bytes", part.len()));
                return Err(self.not_written(error));
            }
        }
        Ok(())
    }
}

/// A write at this offset replaces the list.
const REPLACES: u64 = 0;
/// A write at any other offset adds to the list.
const ADDS: u64 = 1;

/// The list in parts that are short enough for one write each. There is at least one part.
fn parts(ports: &PortSet) -> Vec<String> {
    let mut parts = vec![String::new()];
    for range in ports.ranges() {
        let entry = range.to_string();
        let is_full = parts.last().is_some_and(|part| part.len() + entry.len() + 2 > LONGEST_WRITE);
        if is_full {
            parts.push(String::new());
        }
        let part = parts.last_mut().expect("there is a part");
        if !part.is_empty() {
            part.push(',');
        }
        part.push_str(&entry);
    }
    parts.iter_mut().for_each(|part| part.push('\n'));
    parts
}

impl List for KernelList {
    fn read(&mut self) -> Result<PortSet, GuardError> {
        let read = |mut file: File| {
            // The kernel prints the whole list in the first read. A second read returns nothing.
            let mut bytes = vec![0; LONGEST];
            let length = file.read(&mut bytes)?;
            bytes.truncate(length);
            Ok(bytes)
        };
        let bytes = File::open(&self.0).and_then(read).map_err(|error| match error.kind() {
            ErrorKind::NotFound => GuardError::NoList(self.0.clone()),
            _ => GuardError::Read { path: self.0.clone(), error },
        })?;
        let content = String::from_utf8_lossy(&bytes);
        let malformed = || GuardError::Malformed { path: self.0.clone(), text: text::clean(content.trim(), 64) };
        content.parse().map_err(|_| malformed())
    }

    fn require_writable(&mut self) -> Result<(), GuardError> {
        self.open().map(drop)
    }

    fn add(&mut self, expected: &PortSet, ports: &PortSet) -> Result<bool, GuardError> {
        self.write_over(expected, &parts(ports), ADDS)
    }

    fn replace(&mut self, expected: &PortSet, first: &PortSet, then: &PortSet) -> Result<bool, GuardError> {
        let all = first.union(then);
        let parts = match self.is_written_at_once(&all) {
            true => parts(&all),
            false => [first, then].into_iter().filter(|ports| !ports.is_empty()).flat_map(parts).collect(),
        };
        self.write_over(expected, &parts, REPLACES)
    }

    fn is_written_at_once(&self, ports: &PortSet) -> bool {
        parts(ports).len() == 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_list_is_written_in_parts_that_the_kernel_takes() {
        let scattered: PortSet = (10_000..30_000u16).step_by(2).collect();
        let parts = parts(&scattered);
        assert!(parts.len() > 1 && parts.iter().all(|part| part.len() <= LONGEST_WRITE && part.ends_with('\n')));
        let together = parts.iter().fold(PortSet::default(), |all, part| all.union(&part.parse().expect("ports")));
        assert_eq!(together, scattered);
        assert_eq!(super::parts(&PortSet::default()), ["\n"], "this makes the list empty");
    }

    #[test]
    fn a_missing_file_is_a_kernel_without_reserved_ports_and_nonsense_is_malformed() {
        let directory = tempfile::tempdir().expect("a directory");
        let mut list = KernelList::below(directory.path());
        assert!(matches!(list.read(), Err(GuardError::NoList(_))));
        assert!(matches!(list.require_writable(), Err(GuardError::NoList(_))));
        std::fs::create_dir(directory.path().join("ipv4")).expect("a directory");
        std::fs::write(directory.path().join("ipv4/ip_local_reserved_ports"), "<html>\u{1b}").expect("a file");
        let error = list.read().expect_err("malformed").to_string();
        assert!(error.contains("<html>") && error.ends_with("wanted ports like 2703,30000-32767"), "{error}");
        assert!(!error.contains('\u{1b}'), "{error}");
    }
}
