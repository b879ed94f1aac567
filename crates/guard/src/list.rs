//! The kernel's list of reserved ports.

use std::{
    fs::{File, OpenOptions},
    io::{self, ErrorKind, Read as _},
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
};

use super::{GuardError, watch::Watch};
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
    /// Fails if the list cannot be read.
    fn read(&mut self) -> Result<PortSet, GuardError>;

    /// Checks that the list can be written. Does not change the list.
    ///
    /// # Errors
    /// Fails if the list cannot be written.
    fn require_writable(&mut self) -> Result<(), GuardError>;

    /// Lets [`Self::was_written`] notice writes of other programs from now on. A second call changes nothing.
    ///
    /// # Errors
    /// Fails if the list cannot be watched.
    fn watch(&mut self) -> Result<(), GuardError>;

    /// Whether another program wrote the list since the last call, even if the write changed no port. Always false
    /// before [`Self::watch`].
    fn was_written(&mut self) -> bool;

    /// Adds `ports` if the list equals `expected` and another program did not write it. Returns whether the ports were
    /// added. An entry can get lost only if two programs add entries within a microsecond.
    ///
    /// # Errors
    /// Fails if the list cannot be read or written.
    fn add(&mut self, expected: &PortSet, ports: &PortSet) -> Result<bool, GuardError>;

    /// If the list equals `expected` and another program did not write it, replaces the list by the ports in `first`
    /// and `then`. Returns whether the list was replaced. A long list needs several writes: the ports in `first` are written before the ports in `then`.
    ///
    /// # Errors
    /// Fails if the list cannot be read or written.
    fn replace(&mut self, expected: &PortSet, first: &PortSet, then: &PortSet) -> Result<bool, GuardError>;

    /// Whether the guard can write these ports in one part. If the guard writes only one part, other processes see
    /// either the old or the new list.
    fn is_written_at_once(&self, ports: &PortSet) -> bool;
}

/// `/proc/sys/net/ipv4/ip_local_reserved_ports`. The list belongs to the network namespace of the thread that opens the
/// file.
#[derive(Debug)]
pub struct KernelList {
    path: PathBuf,
    watch: Option<Watch>,
}

impl KernelList {
    /// The list in `directory`, which has the form of `/proc/sys/net`.
    pub fn below(directory: &Path) -> Self {
        Self { path: directory.join("ipv4/ip_local_reserved_ports"), watch: None }
    }

    fn open(&self) -> Result<File, GuardError> {
        OpenOptions::new().write(true).open(&self.path).map_err(|error| match error.kind() {
            ErrorKind::NotFound => GuardError::NoList(self.path.clone()),
            _ => self.not_written(error),
        })
    }

    fn not_written(&self, error: io::Error) -> GuardError {
        GuardError::Write { path: self.path.clone(), error }
    }

    fn write_over(&mut self, expected: &PortSet, parts: &[String], offset: u64) -> Result<bool, GuardError> {
        let file = self.open()?;
        if self.read()? != *expected || self.was_written() {
            return Ok(false);
        }
        let written = self.write(&file, parts, offset);
        // Drops the events of this write. The events do not show which process wrote, so a write of another program
        // within these microseconds is not noticed.
        self.was_written();
        written.map(|()| true)
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
        let bytes = File::open(&self.path).and_then(read).map_err(|error| match error.kind() {
            ErrorKind::NotFound => GuardError::NoList(self.path.clone()),
            _ => GuardError::Read { path: self.path.clone(), error },
        })?;
        let content = String::from_utf8_lossy(&bytes);
        let malformed = || GuardError::Malformed { path: self.path.clone(), text: text::clean(content.trim(), 64) };
        content.parse().map_err(|_| malformed())
    }

    fn require_writable(&mut self) -> Result<(), GuardError> {
        self.open().map(drop)
    }

    fn watch(&mut self) -> Result<(), GuardError> {
        if self.watch.is_none() {
            let failed = |error| GuardError::Watch { path: self.path.clone(), error };
            self.watch = Some(Watch::start(&self.path).map_err(failed)?);
        }
        Ok(())
    }

    fn was_written(&mut self) -> bool {
        self.watch.as_ref().is_some_and(Watch::was_written)
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

    #[test]
    fn a_write_of_another_program_is_noticed_even_if_it_changes_no_port_and_a_write_of_the_guard_is_not() {
        let directory = tempfile::tempdir().expect("a directory");
        let mut list = KernelList::below(directory.path());
        assert!(matches!(list.watch(), Err(GuardError::Watch { .. })), "there is no file");
        let path = directory.path().join("ipv4/ip_local_reserved_ports");
        std::fs::create_dir(directory.path().join("ipv4")).expect("a directory");
        let ports = |text: &str| text.parse::<PortSet>().expect("ports");
        let another_writes = || std::fs::write(&path, "7\n").expect("a file");
        another_writes();
        list.watch().expect("there is a file");
        assert!(!list.was_written(), "the write was before the watch");
        for _ in 0..2 {
            another_writes();
            list.watch().expect("a second call changes nothing");
        }
        assert_eq!((list.was_written(), list.was_written()), (true, false));
        let mut replace = |by: &str| list.replace(&ports("7"), &ports(by), &ports("")).expect("a file");
        another_writes();
        assert!(!replace("9"), "another program may need port 7");
        assert!(replace("9"));
        assert_eq!((list.read().expect("a file"), list.was_written()), (ports("9"), false));
    }
}
