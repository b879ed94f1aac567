//! A control group of version 2 that a test makes for itself.

use std::{
    fs,
    io::ErrorKind,
    path::{Path, PathBuf},
    thread::sleep,
    time::Duration,
};

/// A control group that contains this process and further groups.
pub struct Group {
    pub path: PathBuf,
    before: PathBuf,
}

impl Group {
    pub fn new() -> Self {
        let mounts = fs::read_to_string("/proc/self/mounts").expect("mounts");
        let mut mounts = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
        let mount =
            mounts.find(|mount| mount[2] == "cgroup2").expect("a mount of control groups of version 2")[1].to_owned();
        let own = fs::read_to_string("/proc/self/cgroup").expect("own groups");
        let own = own.lines().find_map(|line| line.strip_prefix("0::/")).expect("a group of version 2");
        let path = Path::new(&mount).join(format!("portreeve-guard-{}", std::process::id()));
        fs::create_dir(&path).expect("a new group");
        enter(&path);
        Self { path, before: Path::new(&mount).join(own) }
    }

    pub fn below(&self, name: &str) -> PathBuf {
        let path = self.path.join(name);
        fs::create_dir_all(&path).expect("a new group");
        path
    }

    /// A command that runs a program in `group`. The caller appends the program and its arguments.
    pub fn entering(group: &Path) -> [String; 4] {
        let group = group.to_str().expect("UTF-8");
        ["sh", "-c", "echo $$ > \"$0/cgroup.procs\" && exec \"$@\"", group].map(str::to_owned)
    }

    /// The path of the group without the mount point of cgroup2, for `--allow`.
    pub fn folder(group: &Path) -> String {
        let parts: Vec<&str> = group.to_str().expect("UTF-8").rsplit('/').take(2).collect();
        format!("{}/{}", parts[1], parts[0])
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        enter(&self.before);
        remove(&self.path);
    }
}

fn remove(group: &Path) {
    let entries = fs::read_dir(group).expect("a group").flatten();
    entries.filter(|entry| entry.file_type().is_ok_and(|it| it.is_dir())).for_each(|it| remove(&it.path()));
    // A killed process leaves its group a moment later, so the removal is repeated.
    while let Err(error) = fs::remove_dir(group) {
        assert_eq!(error.kind(), ErrorKind::ResourceBusy, "{error}");
        sleep(Duration::from_millis(10));
    }
}

fn enter(group: &Path) {
    fs::write(group.join("cgroup.procs"), std::process::id().to_string()).expect("the process moves");
}
