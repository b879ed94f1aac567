//! The guard's record of its own entries: a file that outlives the process and not the boot.

use std::{
    fs::{self, DirBuilder, File, OpenOptions, TryLockError},
    io::{self, ErrorKind, Read as _, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    thread::sleep,
    time::Duration,
};

use nix::fcntl::OFlag;
use serde::{Deserialize, Serialize};

use super::GuardError;
use portreeve_facts::PortSet;

/// The longest record that is read, in bytes: more than a record of all ports.
const LONGEST: u64 = 16 << 20;

/// A guard that starts tries to take the lock for so many times, with a pause: [`is_held`] has the lock for a moment.
const TRIES: usize = 5;
const PAUSE: Duration = Duration::from_millis(20);

/// The list of the kernel, and the guard's part of the list.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Record {
    /// The kernel's boot id. A record of another boot is ignored.
    pub boot_id: String,
    /// The entries that the guard added.
    pub ours: PortSet,
    /// The whole list.
    pub list: PortSet,
    /// Ports of daemons, also ports that are not entries of the guard. A daemon that does not listen now may start again.
    #[serde(default, skip_serializing_if = "PortSet::is_empty")]
    pub daemons: PortSet,
    /// The state before a write that was not confirmed yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) before: Option<Before>,
}

/// The state before a write.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Before {
    pub(super) ours: PortSet,
    pub(super) list: PortSet,
}

impl Record {
    /// The guard's part of a list that was read. In doubt an entry belongs to another program.
    pub fn ours_in(&self, list: &PortSet, boot_id: &str) -> PortSet {
        match &self.before {
            _ if self.boot_id != boot_id => PortSet::default(),
            _ if self.list == *list => self.ours.intersection(list),
            // The guard ended before its write.
            Some(before) if before.list == *list => before.ours.intersection(list),
            _ => PortSet::default(),
        }
    }
}

/// A list between the states before and after a write in parts: the guard ended in between.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Unfinished {
    /// Entries that are in both states, and not in the list. If another program wrote too, entries of the guard are left out.
    pub(super) missing: PortSet,
    /// The guard's entries in both states. None if another program wrote too.
    pub(super) ours: PortSet,
    /// The list has only entries of the two states.
    is_of_the_guard: bool,
}

#[cfg(test)]
impl Unfinished {
    /// Nothing shows whether another program wrote too.
    pub(super) fn is_half_of_ours(&self) -> bool {
        self.is_of_the_guard
    }
}

impl Record {
    /// A list that is not one of the two lists of an unconfirmed write.
    pub(super) fn unfinished(&self, list: &PortSet) -> Option<Unfinished> {
        let before = self.before.as_ref().filter(|before| before.list != *list && self.list != *list)?;
        let (both, ours) = (self.list.intersection(&before.list), self.ours.union(&before.ours));
        let missing = both.minus(list);
        let is_of_the_guard = list.minus(&self.list.union(&before.list)).is_empty();
        Some(match is_of_the_guard {
            true => Unfinished { missing, ours, is_of_the_guard },
            false => Unfinished { missing: missing.minus(&ours), ours: PortSet::default(), is_of_the_guard },
        })
    }
}

/// Keeps the record.
pub trait Store {
    /// The record; nothing if there is none. If it cannot be parsed: why.
    ///
    /// # Errors
    /// If it cannot be read.
    fn load(&mut self) -> Result<Option<Result<Record, String>>, GuardError>;

    /// Replaces the record, on the disk too.
    ///
    /// # Errors
    /// If it cannot be written.
    fn save(&mut self, record: &Record) -> Result<(), GuardError>;

    /// Removes the record.
    ///
    /// # Errors
    /// If it cannot be removed.
    fn clear(&mut self) -> Result<(), GuardError>;
}

/// A file, and a lock beside it: the record is replaced, so that it cannot be locked itself.
#[derive(Debug)]
pub struct Files {
    path: PathBuf,
    /// The kernel gives the lock back when the process ends, however it ends.
    _lock: File,
}

impl Files {
    /// Takes the lock, and makes the directory.
    ///
    /// # Errors
    /// If another guard has the lock, or the lock cannot be made.
    pub fn lock(path: PathBuf) -> Result<Self, GuardError> {
        let lock_path = beside(&path, ".lock");
        let failed = |error| GuardError::Lock { path: lock_path.clone(), error };
        if let Some(directory) = path.parent() {
            DirBuilder::new().recursive(true).mode(0o755).create(directory).map_err(failed)?;
        }
        let lock = open(OpenOptions::new().create(true).append(true).mode(0o600), &lock_path).map_err(failed)?;
        for _ in 0..TRIES {
            match lock.try_lock() {
                Ok(()) => return Ok(Self { path, _lock: lock }),
                Err(TryLockError::WouldBlock) => sleep(PAUSE),
                Err(TryLockError::Error(error)) => return Err(failed(error)),
            }
        }
        Err(GuardError::Locked(lock_path))
    }
}

/// Whether a guard runs: it holds the lock beside its record.
///
/// # Errors
/// If the lock cannot be read. Only root may read it: a process that can read a lock can hold it.
pub fn is_held(record: &Path) -> Result<bool, GuardError> {
    let lock_path = beside(record, ".lock");
    let tried = match open(OpenOptions::new().read(true), &lock_path) {
        Ok(lock) => lock.try_lock_shared(),
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
        Err(error) => Err(TryLockError::Error(error)),
    };
    match tried {
        Ok(()) => Ok(false),
        Err(TryLockError::WouldBlock) => Ok(true),
        Err(TryLockError::Error(error)) => Err(GuardError::Lock { path: lock_path, error }),
    }
}

/// The path with an ending after the whole name, so that no name of a record is the name of another file of the guard.
fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ending);
    name.into()
}

/// Opens a regular file: it follows no symbolic link, and waits for no writer of a pipe.
fn open(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK;
    let file = options.custom_flags(flags.bits()).open(path)?;
    let is_file = file.metadata()?.is_file();
    if is_file { Ok(file) } else { Err(io::Error::other("wanted a regular file")) }
}

/// Reads a record; nothing if there is no file. If it cannot be parsed: why.
///
/// # Errors
/// If it cannot be read.
pub fn read_record(path: &Path) -> Result<Option<Result<Record, String>>, GuardError> {
    let failed = |error| GuardError::ReadRecord { path: path.to_owned(), error };
    let file = match open(OpenOptions::new().read(true), path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error)),
    };
    let mut bytes = Vec::new();
    file.take(LONGEST).read_to_end(&mut bytes).map_err(failed)?;
    Ok(Some(serde_json::from_slice(&bytes).map_err(|error| error.to_string())))
}

impl Store for Files {
    fn load(&mut self) -> Result<Option<Result<Record, String>>, GuardError> {
        read_record(&self.path)
    }

    fn save(&mut self, record: &Record) -> Result<(), GuardError> {
        let save = || {
            let directory = self.path.parent().filter(|it| !it.as_os_str().is_empty()).unwrap_or(Path::new("."));
            // The lock makes this the only writer, so that a killed guard leaves one such file at most.
            let new = beside(&self.path, ".new");
            let mut file = open(OpenOptions::new().create(true).write(true).mode(0o644), &new)?;
            file.set_len(0)?;
            file.write_all(&serde_json::to_vec(record)?)?;
            file.write_all(b"\n")?;
            file.sync_all()?;
            fs::rename(&new, &self.path)?;
            File::open(directory)?.sync_all()
        };
        save().map_err(|error| GuardError::WriteRecord { path: self.path.clone(), error })
    }

    fn clear(&mut self) -> Result<(), GuardError> {
        let gone = |error: io::Error| if error.kind() == ErrorKind::NotFound { Ok(()) } else { Err(error) };
        fs::remove_file(&self.path)
            .or_else(gone)
            .map_err(|error| GuardError::WriteRecord { path: self.path.clone(), error })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::tests::ports;

    #[test]
    fn ours_are_known_by_the_list_of_before_or_after_a_write_and_by_no_other_list() {
        let before = Before { ours: ports("1"), list: ports("1,9") };
        let record = Record {
            boot_id: "b".to_owned(),
            ours: ports("1-2"),
            list: ports("1-2,9"),
            before: Some(before),
            ..Record::default()
        };
        assert_eq!(record.ours_in(&ports("1-2,9"), "b"), ports("1-2"));
        assert_eq!(record.ours_in(&ports("1,9"), "b"), ports("1"), "the write was not made");
        for other in ["1-2,8-9", "1-2", "9", ""] {
            assert_eq!(record.ours_in(&ports(other), "b"), ports(""), "another program wrote {other}");
        }
        assert_eq!(record.ours_in(&ports("1-2,9"), "c"), ports(""), "another boot");
    }

    #[test]
    fn a_write_in_parts_that_did_not_end_is_known_by_entries_of_before_and_after_alone() {
        let before = Before { ours: ports("1-3"), list: ports("1-3,8-9") };
        let record = Record { ours: ports("1-2"), list: ports("1-2,8-9"), before: Some(before), ..Record::default() };
        let half = record.unfinished(&ports("1,8")).expect("a half-done write");
        assert_eq!((half.missing, half.ours), (ports("2,9"), ports("1-3")));
        let doubt = record.unfinished(&ports("1,7-8")).expect("another program wrote too");
        assert_eq!((doubt.missing, doubt.ours), (ports("9"), ports("")));
        assert_eq!(record.unfinished(&ports("1-2,8-9")), None);
        assert_eq!(record.unfinished(&ports("1-3,8-9")), None);
    }

    #[test]
    fn no_link_is_followed_and_no_pipe_waited_for() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("guard.lock");
        let mut files = Files::lock(path.clone()).expect("a lock beside the record");
        assert_eq!(files.load().expect("read"), None, "the lock is not the record");
        let other = directory.path().join("other");
        fs::write(&other, "x").expect("written");
        std::os::unix::fs::symlink(&other, directory.path().join("guard.lock.new")).expect("a link");
        assert!(matches!(files.save(&Record::default()), Err(GuardError::WriteRecord { .. })));
        assert_eq!(fs::read_to_string(&other).expect("read"), "x");
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).expect("a pipe");
        assert!(matches!(files.load(), Err(GuardError::ReadRecord { .. })));
    }

    #[test]
    fn a_record_is_read_as_it_was_written_and_a_second_guard_gets_no_lock() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("run/portreeve/guard.json");
        let mut files = Files::lock(path.clone()).expect("a lock");
        assert!(matches!(Files::lock(path.clone()), Err(GuardError::Locked(_))));
        assert!(is_held(&path).expect("read"));
        assert_eq!(files.load().expect("read"), None);
        let record = Record { boot_id: "b".to_owned(), ours: ports("1-2"), list: ports("1-2,9"), ..Record::default() };
        files.save(&record).expect("written");
        assert_eq!(files.load().expect("read"), Some(Ok(record)));
        std::fs::write(&path, "{\"bootId\": 7").expect("written");
        assert!(matches!(files.load(), Ok(Some(Err(_)))), "malformed is neither absent nor an error");
        files.clear().expect("removed");
        files.clear().expect("it is gone already");
        assert_eq!(files.load().expect("read"), None);
        std::fs::create_dir(&path).expect("a directory");
        assert!(matches!(files.load(), Err(GuardError::ReadRecord { .. })), "not read is not absent");
        drop(files);
        assert!(!is_held(&path).expect("read"));
        Files::lock(path).expect("the lock is free again");
    }

    #[test]
    fn a_guard_that_starts_while_somebody_asks_whether_one_runs_gets_the_lock() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("guard.json");
        assert!(!is_held(&path).expect("there is no lock"));
        drop(Files::lock(path.clone()).expect("a lock"));
        let asking = File::open(beside(&path, ".lock")).expect("the lock");
        asking.try_lock_shared().expect("it is free");
        let asking = std::thread::spawn(move || {
            sleep(PAUSE);
            drop(asking);
        });
        Files::lock(path.clone()).expect("the lock");
        asking.join().expect("it ends");
        fs::remove_file(beside(&path, ".lock")).expect("removed");
        fs::create_dir(beside(&path, ".lock")).expect("a directory");
        assert!(matches!(is_held(&path), Err(GuardError::Lock { .. })), "not read is not absent");
    }
}
