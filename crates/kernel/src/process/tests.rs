use std::os::unix::fs::symlink;

use proptest::prelude::*;

use super::*;

fn process(proc: &Path, pid: u32, started: u64, inode: u64) {
    let directory = proc.join(pid.to_string());
    fs::create_dir_all(directory.join("fd")).expect("made");
    symlink("/dev/null", directory.join("fd/0")).expect("linked");
    symlink(format!("socket:[{inode}]"), directory.join("fd/3")).expect("linked");
    let zeros = "0 ".repeat(18);
    fs::write(directory.join("stat"), format!("{pid} (a) b) S {zeros}{started} 0\n")).expect("written");
    fs::write(directory.join("comm"), "evil\u{1b}[31m\n").expect("written");
    fs::write(directory.join("cmdline"), b"/bin/evil\0--name\0x\r\n\ty\nz\n\0\0").expect("written");
}

fn owner(proc: &Path, pids: &[u32], inode: u64) -> Option<Process> {
    let mut missing = HashSet::from([inode]);
    let found = Processes::new(proc, true).owners(pids.to_vec(), &mut missing);
    assert_eq!(missing.is_empty(), !found.is_empty());
    found.into_values().next()
}

#[test]
fn the_oldest_owner_is_named_and_not_the_lowest_pid() {
    let proc = tempfile::tempdir().expect("a directory");
    process(proc.path(), 10, 900, 4711);
    process(proc.path(), 11, 100, 4711);
    process(proc.path(), 12, 50, 4712);
    let found = owner(proc.path(), &[10, 11, 12, 99], 4711).expect("found");
    assert_eq!((found.pid, found.started), (11, 100));
}

#[test]
fn a_process_with_too_many_descriptors_may_be_the_owner() {
    let proc = tempfile::tempdir().expect("a directory");
    process(proc.path(), 10, 900, 4711);
    let mut processes = Processes::new(proc.path(), false);
    processes.left = 2;
    assert!(processes.owners(vec![10], &mut HashSet::from([4712])).is_empty());
    assert_eq!(processes.overlooked().map(|gap| gap.why), Some(Why::TooMuch));
    processes.denied = 1;
    let both = processes.overlooked().expect("a gap").detail;
    assert!(both.contains("CAP_SYS_PTRACE") && both.ends_with("too many descriptors to read them all"), "{both}");
}

#[test]
fn names_and_command_lines_are_cleaned() {
    let proc = tempfile::tempdir().expect("a directory");
    process(proc.path(), 10, 900, 4711);
    let found = owner(proc.path(), &[10], 4711).expect("found");
    assert_eq!((found.command.as_str(), found.command_line.as_deref()), ("evil[31m", Some("/bin/evil --name x y z")));
}

#[test]
fn a_process_that_hides_its_descriptors_may_be_the_owner() {
    let proc = tempfile::tempdir().expect("a directory");
    process(proc.path(), 10, 900, 4712);
    process(proc.path(), 11, 901, 4712);
    fs::remove_dir_all(proc.path().join("11/fd")).expect("removed");
    fs::write(proc.path().join("11/fd"), "").expect("written");
    let mut processes = Processes::new(proc.path(), false);
    assert!(processes.owners(vec![10], &mut HashSet::from([4711])).is_empty());
    let blind = |processes: &Processes<'_>| processes.overlooked().expect("a gap").detail;
    assert!(blind(&processes).contains("no hostPID"));
    assert!(processes.owners(vec![11], &mut HashSet::from([4711])).is_empty());
    assert!(blind(&processes).starts_with("1 processes"));
}

#[test]
fn command_lines_are_not_read_unless_wanted() {
    let proc = tempfile::tempdir().expect("a directory");
    process(proc.path(), 10, 900, 4711);
    let found = Processes::new(proc.path(), false).owners(vec![10], &mut HashSet::from([4711]));
    assert_eq!(found[&4711].command_line, None);
}

#[test]
fn all_command_lines_share_one_wait() {
    let proc = tempfile::tempdir().expect("a directory");
    (10..13).for_each(|pid| process(proc.path(), pid, 900, 4700 + u64::from(pid)));
    let mut processes = Processes::new(proc.path(), true);
    let read = processes.owners(vec![10], &mut HashSet::from([4710]));
    assert!(read[&4710].command_line.is_some());
    assert!(processes.patience < SLOW_MEMORY, "the used time is subtracted");
    // Now no time is left to wait for a command line.
    processes.patience = Duration::ZERO;
    let found = processes.owners(vec![11, 12], &mut HashSet::from([4711, 4712]));
    assert_eq!(found.len(), 2, "they are named anyway");
    assert!(found.values().all(|process| process.command_line.is_none()));
    assert!(processes.overlooked().is_none_or(|gap| !gap.detail.contains("CAP_SYS_PTRACE")));
}

#[test]
fn a_pid_that_became_another_process_is_not_described() {
    let proc = tempfile::tempdir().expect("a directory");
    process(proc.path(), 10, 900, 4711);
    let described = |started| Processes::new(proc.path(), false).describe(10, started).expect("readable");
    assert!(described(900).is_some());
    assert!(described(899).is_none());
}

#[test]
fn a_proc_outside_the_own_pid_namespace_shows_the_node() {
    assert!(is_outside("Name:\tx\nNSpid:\t4711\t12\n"));
    assert!(!is_outside("Name:\tx\nNSpid:\t12\n"));
    assert!(!is_outside("Name:\tx\n"));
}

proptest! {
    #[test]
    fn no_text_panics(text in "(?s).{0,80}", fields in "[0-9 ():]{0,80}") {
        prop_assert_eq!(started(&format!("1 ({text}) S {}42", "0 ".repeat(18))), Some(42));
        for text in [&text, &fields] {
            prop_assert!(started(text).is_none_or(|_| text.contains(')')));
            prop_assert!(open_files_limit(text).is_none());
            prop_assert!(socket_inode(text).is_none());
        }
    }
}

#[test]
fn fd_use_has_the_soft_limit() {
    let proc = tempfile::tempdir().expect("a directory");
    process(proc.path(), 10, 900, 4711);
    assert_eq!(fds_of(proc.path(), 10).expect_err("no limits").why, Why::Stale);
    let limits = "Limit                     Soft Limit           Hard Limit           Units     \n\
        Max open files            1024                 524288               files     \n";
    fs::write(proc.path().join("10/limits"), limits).expect("written");
    assert_eq!(fds_of(proc.path(), 10), Ok(FdUse { open: 2, limit: 1024 }));
}

#[test]
fn a_read_that_never_ends_is_abandoned_at_the_limit() {
    let answer = in_time(Duration::from_millis(10), || {
        loop {
            thread::park();
        }
    });
    assert_eq!(answer.map_err(|error: io::Error| error.kind()), Err::<(), _>(io::ErrorKind::TimedOut));
    assert_eq!(in_time(Duration::from_secs(60), || Ok(7)).expect("an answer"), 7);
    let gone = in_time(Duration::from_secs(60), || Err::<(), _>(io::ErrorKind::NotFound.into()));
    assert_eq!(gone.expect_err("gone").kind(), io::ErrorKind::NotFound);
    let panicked = in_time(Duration::from_secs(60), || -> io::Result<()> { panic!("a reader that panics") });
    assert_eq!(panicked.expect_err("it panicked").kind(), io::ErrorKind::Other);
}
