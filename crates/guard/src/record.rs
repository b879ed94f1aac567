//! The guard's record of its own entries, in a file. The file stays when the process ends. After a boot, the guard
//! ignores the record.

use std::{
    fs::{self, DirBuilder, File, OpenOptions, TryLockError},
    io::{self, ErrorKind, Read as _, Write as _},
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    thread::sleep,
    time::{Duration, SystemTime},
};

use nix::{fcntl::OFlag, unistd::geteuid};
use serde::{Deserialize, Serialize};

use super::GuardError;
use portreeve_facts::PortSet;

/// The longest record that the guard reads, in bytes. A record of all ports is shorter than this limit.
const LONGEST: u64 = 16 << 20;

/// The number of attempts to take the lock, with a pause after each attempt. A call of [`unrenewed_for`] can hold the
/// lock for a moment.
const TRIES: usize = 5;
const PAUSE: Duration = Duration::from_millis(20);

/// The boot and the network namespace to which a list belongs. Each namespace has its own list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// The kernel's boot id.
    pub boot_id: String,
    /// The inode of the network namespace.
    pub netns: u64,
}

impl Place {
    /// The present boot of the node, and the network namespace of this thread.
    ///
    /// # Errors
    /// Fails if the boot id or the namespace cannot be read.
    pub fn below(host_root: &Path) -> Result<Self, GuardError> {
        let failed = |path: &Path, error| GuardError::Read { path: path.to_owned(), error };
        let path = host_root.join("proc/sys/kernel/random/boot_id");
        let id = fs::read_to_string(&path).map_err(|error| failed(&path, error))?;
        let path = Path::new("/proc/thread-self/ns/net");
        let netns = fs::metadata(path).map_err(|error| failed(path, error))?.ino();
        Ok(Self { boot_id: id.trim().to_owned(), netns })
    }
}

/// What the guard knows: the kernel's list, and the guard's own entries in it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Record {
    /// The kernel's boot id. The guard ignores a record from another boot.
    pub boot_id: String,
    /// The inode of the network namespace. The guard refuses a record from another namespace.
    pub netns: u64,
    /// The entries that the guard added.
    pub ours: PortSet,
    /// The whole list.
    pub list: PortSet,
    /// Ports of daemons, also those that the guard did not add. A daemon that does not listen now may start again.
    #[serde(default, skip_serializing_if = "PortSet::is_empty")]
    pub daemons: PortSet,
    /// The state before the last write. `None` if the guard has checked the list after this write.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) before: Option<State>,
}

/// The kernel's list, and the guard's own entries in it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct State {
    pub(super) ours: PortSet,
    pub(super) list: PortSet,
}

impl Record {
    /// The guard's entries in this list. Entries that may belong to another program are left out.
    pub fn ours_in(&self, list: &PortSet, boot_id: &str) -> PortSet {
        match &self.before {
            _ if self.boot_id != boot_id => PortSet::default(),
            _ if self.list == *list => self.ours.intersection(list),
            // The guard was killed before it wrote the list.
            Some(before) if before.list == *list => before.ours.intersection(list),
            _ => PortSet::default(),
        }
    }
}

/// A write that a killed guard did not finish. The guard writes a long list in several parts. The list has neither the
/// state before the write nor the state after the write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Unfinished {
    /// The entries that are in both states, but not in the list. If another program also wrote, entries of the guard
    /// are left out.
    pub(super) missing: PortSet,
    /// The guard's entries in at least one of the two states. Empty if another program also wrote.
    pub(super) ours: PortSet,
}

impl Record {
    /// The unfinished write, if the list equals neither the state before the write nor the state after it.
    pub(super) fn unfinished(&self, list: &PortSet) -> Option<Unfinished> {
        let before = self.before.as_ref().filter(|before| before.list != *list && self.list != *list)?;
        let (both, ours) = (self.list.intersection(&before.list), self.ours.union(&before.ours));
        let missing = both.minus(list);
        let is_of_the_guard = list.minus(&self.list.union(&before.list)).is_empty();
        Some(match is_of_the_guard {
            true => Unfinished { missing, ours },
            false => Unfinished { missing: missing.minus(&ours), ours: PortSet::default() },
        })
    }
}

/// Stores the record.
pub trait Store {
    /// Checks that this guard is still the only guard that writes. Returns whether another guard may have written the
    /// record since the last check.
    ///
    /// # Errors
    /// Fails if another guard has the lock now, or if the lock cannot be checked.
    fn hold(&mut self) -> Result<bool, GuardError>;

    /// The record. `None` if there is no record. A record that cannot be parsed is moved to another file, and the
    /// returned text has the reason and the new path.
    ///
    /// # Errors
    /// Fails if the record cannot be read, or belongs to another network namespace.
    fn load(&mut self, place: &Place) -> Result<Option<Result<Record, String>>, GuardError>;

    /// Notes that a run just succeeded.
    ///
    /// # Errors
    /// Fails if the note cannot be written.
    fn renew(&mut self) -> Result<(), GuardError>;

    /// Replaces the record. When the function returns, the new record is on the disk.
    ///
    /// # Errors
    /// Fails if the record cannot be written.
    fn save(&mut self, record: &Record) -> Result<(), GuardError>;

    /// Removes the record.
    ///
    /// # Errors
    /// Fails if the record cannot be removed.
    fn clear(&mut self) -> Result<(), GuardError>;
}

/// The file of the record, and a separate file for the lock. Each write replaces the record's file, so a lock on the
/// record's file would be lost.
#[derive(Debug)]
pub struct Files {
    path: PathBuf,
    /// The open lock file. The kernel releases the lock whenever the process ends. The file's modification time is the
    /// time of the last successful run. Before the first run, the modification time is the time at which the guard
    /// started.
    lock: File,
}

impl Files {
    /// Makes the directory, and takes the lock.
    ///
    /// # Errors
    /// Fails if another guard has the lock, or if the lock file cannot be made.
    pub fn lock(path: PathBuf) -> Result<Self, GuardError> {
        take(&beside(&path, ".lock")).map(|lock| Self { path, lock })
    }
}

fn take(path: &Path) -> Result<File, GuardError> {
    let failed = |error| GuardError::Lock { path: path.to_owned(), error };
    if let Some(directory) = path.parent() {
        DirBuilder::new().recursive(true).mode(0o755).create(directory).map_err(failed)?;
    }
    for _ in 0..TRIES {
        let lock = open(OpenOptions::new().create(true).append(true).mode(0o600), path).map_err(failed)?;
        match lock.try_lock() {
            Ok(()) if is_at(&lock, path).map_err(failed)? => {
                // The lock file may have the modification time of an earlier guard. With the old time, the new guard
                // would look stuck before its first run.
                lock.set_modified(SystemTime::now()).map_err(failed)?;
                return Ok(lock);
            }
            // Another program deleted the lock file. A second guard would make and lock a new file, so this lock is
            // worth nothing.
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => sleep(PAUSE),
            Err(TryLockError::Error(error)) => return Err(failed(error)),
        }
    }
    Err(GuardError::Locked(path.to_owned()))
}

fn is_at(file: &File, path: &Path) -> io::Result<bool> {
    let own = file.metadata()?;
    match fs::symlink_metadata(path) {
        Ok(found) => Ok((found.dev(), found.ino()) == (own.dev(), own.ino())),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// The time since the last successful run of the guard that holds this lock. Before the first run, the time since the
/// guard started. `None` if no process holds the lock.
///
/// # Errors
/// Fails if the lock file cannot be read. Only root may read the file, because a process that can read it can also hold
/// the lock.
pub fn unrenewed_for(record: &Path) -> Result<Option<Duration>, GuardError> {
    let lock_path = beside(record, ".lock");
    let failed = |error| GuardError::Lock { path: lock_path.clone(), error };
    let lock = match open(OpenOptions::new().read(true), &lock_path) {
        Ok(lock) => lock,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error)),
    };
    match lock.try_lock_shared() {
        Ok(()) => Ok(None),
        Err(TryLockError::WouldBlock) => {
            let renewed = lock.metadata().and_then(|it| it.modified()).map_err(failed)?;
            // If the clock was set back, the function returns zero.
            Ok(Some(SystemTime::now().duration_since(renewed).unwrap_or_default()))
        }
        Err(TryLockError::Error(error)) => Err(failed(error)),
    }
}

/// The path with `ending` after the full file name. So the new path always differs from `path`.
fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ending);
    name.into()
}

/// Opens a regular file that only root or this user can write. Symbolic links are not followed. If the path is a pipe,
/// the function does not wait.
fn open(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK;
    let file = options.custom_flags(flags.bits()).open(path)?;
    let found = file.metadata()?;
    if !found.is_file() {
        return Err(io::Error::other("wanted a regular file"));
    }
    distrust(found.uid(), found.mode(), geteuid().as_raw()).map_or(Ok(file), |why| Err(io::Error::other(why)))
}

/// The reason why a file with this owner and mode is not safe: another user could have written it. `None` if the file
/// is safe.
fn distrust(owner: u32, mode: u32, own: u32) -> Option<String> {
    let (is_trusted, mode) = ((owner == 0 || owner == own) && mode & 0o022 == 0, mode & 0o777);
    let whose = if own == 0 { "root".to_owned() } else { format!("root or user {own}") };
    (!is_trusted).then(|| {
        format!("it belongs to user {owner} and has mode {mode:03o}; wanted a file that only {whose} can write")
    })
}

/// Reads a record. `None` if there is no file. If the record cannot be parsed, returns the reason.
///
/// # Errors
/// Fails if the file cannot be read, or if the record belongs to another network namespace.
pub fn read_record(path: &Path, place: &Place) -> Result<Option<Result<Record, String>>, GuardError> {
    let failed = |error| GuardError::ReadRecord { path: path.to_owned(), error };
    let file = match open(OpenOptions::new().read(true), path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error)),
    };
    let mut bytes = Vec::new();
    file.take(LONGEST).read_to_end(&mut bytes).map_err(failed)?;
    match serde_json::from_slice::<Record>(&bytes) {
        Ok(record) if record.boot_id == place.boot_id && record.netns != place.netns => {
            Err(GuardError::OtherNamespace { path: path.to_owned(), its: record.netns, own: place.netns })
        }
        Ok(record) => Ok(Some(Ok(record))),
        Err(error) => Ok(Some(Err(error.to_string()))),
    }
}

impl Store for Files {
    fn hold(&mut self) -> Result<bool, GuardError> {
        let lock_path = beside(&self.path, ".lock");
        let is_held = is_at(&self.lock, &lock_path);
        let is_held = is_held.map_err(|error| GuardError::Lock { path: lock_path.clone(), error })?;
        if !is_held {
            self.lock = take(&lock_path)?;
        }
        Ok(!is_held)
    }

    fn load(&mut self, place: &Place) -> Result<Option<Result<Record, String>>, GuardError> {
        let read = read_record(&self.path, place)?;
        let Some(Err(why)) = read else { return Ok(read) };
        let aside = beside(&self.path, ".malformed");
        match fs::rename(&self.path, &aside) {
            Ok(()) => Ok(Some(Err(format!("{why}; it is now {}", aside.display())))),
            Err(error) => Err(GuardError::WriteRecord { path: aside, error }),
        }
    }

    fn renew(&mut self) -> Result<(), GuardError> {
        let renewed = self.lock.set_modified(SystemTime::now());
        renewed.map_err(|error| GuardError::Lock { path: beside(&self.path, ".lock"), error })
    }

    fn save(&mut self, record: &Record) -> Result<(), GuardError> {
        let save = || {
            let directory = self.path.parent().filter(|it| !it.as_os_str().is_empty()).unwrap_or(Path::new("."));
            // Only the process with the lock writes here. So guards that were killed leave at most one file with this
            // ending.
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
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;
    use crate::plan::tests::ports;

    #[test]
    fn ours_are_known_by_the_list_of_before_or_after_a_write_and_by_no_other_list() {
        let before = State { ours: ports("1"), list: ports("1,9") };
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
        let before = State { ours: ports("1-3"), list: ports("1-3,8-9") };
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
        assert_eq!(files.load(&Place::default()).expect("read"), None, "the lock is not the record");
        let other = directory.path().join("other");
        fs::write(&other, "x").expect("written");
        std::os::unix::fs::symlink(&other, directory.path().join("guard.lock.new")).expect("a link");
        assert!(matches!(files.save(&Record::default()), Err(GuardError::WriteRecord { .. })));
        assert_eq!(fs::read_to_string(&other).expect("read"), "x");
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).expect("a pipe");
        assert!(matches!(files.load(&Place::default()), Err(GuardError::ReadRecord { .. })));
    }

    #[test]
    fn a_record_is_read_as_it_was_written_and_a_second_guard_gets_no_lock() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("run/portreeve/guard.json");
        let mut files = Files::lock(path.clone()).expect("a lock");
        assert!(matches!(Files::lock(path.clone()), Err(GuardError::Locked(_))));
        assert!(unrenewed_for(&path).expect("read").is_some());
        assert_eq!(files.load(&Place::default()).expect("read"), None);
        let record = Record { boot_id: "b".to_owned(), ours: ports("1-2"), list: ports("1-2,9"), ..Record::default() };
        files.save(&record).expect("written");
        assert_eq!(files.load(&Place::default()).expect("read"), Some(Ok(record)));
        std::fs::write(&path, "{\"bootId\": 7").expect("written");
        let Ok(Some(Err(why))) = files.load(&Place::default()) else {
            panic!("malformed is neither absent nor an error")
        };
        let aside = directory.path().join("run/portreeve/guard.json.malformed");
        assert!(why.ends_with(&format!("; it is now {}", aside.display())), "{why}");
        assert_eq!(fs::read_to_string(aside).expect("kept"), "{\"bootId\": 7");
        files.clear().expect("removed");
        files.clear().expect("it is gone already");
        assert_eq!(files.load(&Place::default()).expect("read"), None);
        std::fs::create_dir(&path).expect("a directory");
        assert!(matches!(files.load(&Place::default()), Err(GuardError::ReadRecord { .. })), "not read is not absent");
        drop(files);
        assert_eq!(unrenewed_for(&path).expect("read"), None);
        Files::lock(path).expect("the lock is free again");
    }

    #[test]
    fn a_file_that_another_user_can_write_is_no_record_and_no_lock() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("guard.json");
        let mut files = Files::lock(path.clone()).expect("a lock");
        files.save(&Record::default()).expect("written");
        let allow = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("ours");
        allow(&path, 0o646);
        let error = read_record(&path, &Place::default()).expect_err("refused").to_string();
        assert!(error.contains("guard.json: it belongs to user ") && error.contains("has mode 646; wanted"), "{error}");
        drop(files);
        allow(&beside(&path, ".lock"), 0o620);
        assert!(matches!(unrenewed_for(&path), Err(GuardError::Lock { .. })));
        assert!(matches!(Files::lock(path), Err(GuardError::Lock { .. })));

        assert_eq!((distrust(0, 0o100_644, 7), distrust(7, 0o100_600, 7)), (None, None));
        let why = distrust(7, 0o100_644, 0).unwrap_or_default();
        assert_eq!(why, "it belongs to user 7 and has mode 644; wanted a file that only root can write");
        let why = distrust(7, 0o100_644, 8).unwrap_or_default();
        assert!(why.ends_with("only root or user 8 can write"), "{why}");
    }

    #[test]
    fn a_lock_whose_file_was_deleted_is_taken_again_or_belongs_to_the_next_guard() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("guard.json");
        let mut first = Files::lock(path.clone()).expect("a lock");
        assert!(!first.hold().expect("it has the lock"));
        let delete = || fs::remove_file(beside(&path, ".lock")).expect("removed");
        delete();
        assert!(first.hold().expect("taken again"), "another guard may have written in the meantime");
        assert!(matches!(Files::lock(path.clone()), Err(GuardError::Locked(_))));
        delete();
        let mut second = Files::lock(path.clone()).expect("nothing shows the first one");
        assert!(matches!(first.hold(), Err(GuardError::Locked(_))), "one of them writes");
        assert!(!second.hold().expect("it has the lock"));
    }

    #[test]
    fn the_lock_shows_when_its_guard_had_a_successful_run() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("guard.json");
        let mut files = Files::lock(path.clone()).expect("a lock");
        let hour = Duration::from_secs(3600);
        files.lock.set_modified(SystemTime::now() - hour).expect("ours");
        assert!(unrenewed_for(&path).expect("read").is_some_and(|age| age >= hour));
        files.renew().expect("written");
        assert!(unrenewed_for(&path).expect("read").is_some_and(|age| age < hour));
        files.lock.set_modified(SystemTime::now() + hour).expect("ours");
        assert_eq!(unrenewed_for(&path).expect("read"), Some(Duration::ZERO), "the clock was set back");
        files.lock.set_modified(SystemTime::now() - hour).expect("ours");
        drop(files);
        let _next = Files::lock(path.clone()).expect("the lock is free again");
        let age = unrenewed_for(&path).expect("read");
        assert!(age.is_some_and(|age| age < hour), "the next guard is not as old as the last one: {age:?}");
    }

    #[test]
    fn a_record_of_another_network_namespace_is_refused_and_one_of_another_boot_is_not() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("guard.json");
        let mut files = Files::lock(path).expect("a lock");
        let of = |boot_id: &str, netns| Place { boot_id: boot_id.to_owned(), netns };
        let record = Record { boot_id: "b".to_owned(), netns: 7, ..Record::default() };
        files.save(&record).expect("written");
        assert_eq!(files.load(&of("b", 7)).expect("read"), Some(Ok(record.clone())));
        assert_eq!(files.load(&of("c", 8)).expect("read"), Some(Ok(record)), "the boot made new namespaces");
        let error = files.load(&of("b", 8)).expect_err("refused").to_string();
        assert!(error.contains("network namespace net:[7]") && error.contains("net:[8]"), "{error}");
    }

    #[test]
    fn a_guard_that_starts_while_somebody_asks_whether_one_runs_gets_the_lock() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("guard.json");
        assert_eq!(unrenewed_for(&path).expect("there is no lock"), None);
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
        assert!(matches!(unrenewed_for(&path), Err(GuardError::Lock { .. })), "not read is not absent");
    }
}
