//! Control groups (cgroups): the path of a socket's cgroup id, and the pod and the container in a path.

use std::{
    collections::{HashMap, HashSet},
    fs, io,
    ops::ControlFlow,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use procfs_core::process::MountInfo;

use super::root::{read_unsized, read_unsized_text};
use portreeve_facts::{Cgroup, Gap, PodContainer, Source, Why, text};

const DIRECTORIES: usize = 200_000;
/// The inode of the real root of the hierarchy (fs/kernfs/dir.c, Linux 5.5). A process in a cgroup namespace sees
/// another root, with another inode.
const ROOT: u64 = 1;
const PATH: usize = 1024;

/// The largest number of bytes that are read: `MOUNTS` from the mounts of this process, `PROCESSES` from the list of
/// processes of one cgroup.
const MOUNTS: u64 = 4 * 1024 * 1024;
const PROCESSES: u64 = 1024 * 1024;

/// The cgroup2 hierarchy at its mount in this process's mount namespace.
#[derive(Clone, Debug)]
pub struct Cgroups {
    mount: Result<PathBuf, Gap>,
    whole: bool,
}

impl Cgroups {
    /// Finds the mount that shows the most cgroups. `root` is the mount of the host's root directory. The function
    /// first tries `/sys/fs/cgroup` (unified) and `/sys/fs/cgroup/unified` (hybrid) below `root`. Then the function
    /// tries all cgroup2 mounts of this process.
    pub fn find(root: &Path) -> Self {
        let usual = ["sys/fs/cgroup", "sys/fs/cgroup/unified"].map(|place| root.join(place));
        let usual: Vec<_> = usual.into_iter().filter(|place| is_cgroup2(place)).collect();
        if let Some(whole) = usual.iter().find(|place| is_whole(place)) {
            return Self { whole: true, mount: Ok(whole.clone()) };
        }
        let mounts = read_unsized("/proc/thread-self/mountinfo".as_ref(), MOUNTS).unwrap_or_default();
        let mounted: Vec<_> =
            cgroup2_mounts(&String::from_utf8_lossy(&mounts)).filter(|place| is_cgroup2(place)).collect();
        let whole = mounted.iter().find(|place| is_whole(place));
        let mount = whole.or(usual.first()).or(mounted.first()).cloned().ok_or_else(|| {
            let detail = format!("no cgroup2 hierarchy is mounted below {}", root.display());
            Gap::new(Source::Cgroups, Why::NotSupported, detail)
        });
        Self { whole: whole.is_some(), mount }
    }

    /// Returns the path of each cgroup id, or the reason why the path is unknown. One walk finds all paths.
    pub fn of(&self, ids: &HashSet<u64>) -> HashMap<u64, Result<Cgroup, Gap>> {
        let mount = match &self.mount {
            Ok(mount) => mount,
            Err(gap) => return ids.iter().map(|id| (*id, Err(gap.clone()))).collect(),
        };
        let mut missing = ids.clone();
        let mut found = HashMap::with_capacity(ids.len());
        let outcome = walk(mount, |id, path| {
            if missing.remove(&id) {
                found.insert(id, Ok(with_pod_of_root(mount, cgroup(&format!("/{}", path.to_string_lossy())))));
            }
            if missing.is_empty() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        let (why, detail) = match outcome {
            Err(error) => (super::proc_net::why(&error), format!("{}: {error}", mount.display())),
            Ok(false) => (Why::NotSupported, format!("more than {DIRECTORIES} cgroups below {}", mount.display())),
            Ok(true) if !self.whole => {
                (Why::NotPermitted, format!("{} shows only the cgroups of this container", mount.display()))
            }
            Ok(true) => (Why::Stale, "the cgroup in which the socket was made was removed".to_owned()),
        };
        let unknown = Gap::new(Source::Cgroups, why, detail);
        found.extend(missing.into_iter().map(|id| (id, Err(unknown.clone()))));
        found
    }

    /// The directory at which the hierarchy is mounted.
    ///
    /// # Errors
    /// Fails if no cgroup2 hierarchy is mounted.
    pub fn mount(&self) -> Result<&Path, Gap> {
        self.mount.as_deref().map_err(Clone::clone)
    }

    /// Whether the mount shows all cgroups of the node. The mount of a container may show only the container's cgroups.
    pub fn is_whole(&self) -> bool {
        self.whole
    }

    /// The id of the cgroup at this path, if there is one.
    pub fn id(&self, path: &str) -> Option<u64> {
        let directory = self.mount.as_ref().ok()?.join(path.trim_start_matches('/'));
        fs::metadata(directory).ok().filter(fs::Metadata::is_dir).map(|directory| directory.ino())
    }

    /// The cgroup id of each pod. The key is the pod's uid, from the name of the cgroup. Pods whose cgroup does not
    /// exist or is not visible to this process are left out.
    pub fn pods(&self) -> HashMap<String, u64> {
        let mut pods = HashMap::new();
        let Ok(mount) = &self.mount else { return pods };
        // If the walk stops early, the pods that were found are still returned.
        drop(walk(mount, |id, path| {
            let cgroup = cgroup(&path.to_string_lossy());
            // The walk visits a pod's directory before the directories of its containers.
            if cgroup.pod.as_ref().is_some_and(|pod| pod.container.is_none())
                && let Some(pod) = with_pod_of_root(mount, cgroup).pod
            {
                pods.entry(pod.pod_uid).or_insert(id);
            }
            ControlFlow::Continue(())
        }));
        pods
    }

    /// The processes in a cgroup, by their pids in the pid namespace of this process. If the list cannot be read, it is
    /// empty.
    pub fn processes(&self, cgroup: &Cgroup) -> Vec<u32> {
        let Ok(mount) = &self.mount else { return Vec::new() };
        let list = mount.join(cgroup.path.trim_start_matches('/')).join("cgroup.procs");
        // The search for the owner begins with these processes, and then continues with all processes. So an empty list
        // is harmless.
        let list = read_unsized_text(&list, PROCESSES).unwrap_or_default();
        list.lines().filter_map(|pid| pid.parse().ok()).filter(|pid| *pid != 0).collect()
    }
}

/// The cgroup at a path, with the pod whose uid is in the path.
pub fn cgroup(path: &str) -> Cgroup {
    Cgroup { path: text::clean(path, PATH), pod: pod_of(path) }
}

/// Drops the pod if root does not own the directory. The kubelet makes the directories of pods as root. But a user who
/// owns a cgroup can make directories of any name in this cgroup.
fn with_pod_of_root(mount: &Path, cgroup: Cgroup) -> Cgroup {
    let of_root = || {
        let directory = fs::metadata(mount.join(cgroup.path.trim_start_matches('/')));
        directory.is_ok_and(|directory| directory.uid() == 0)
    };
    let pod = cgroup.pod.clone().filter(|_| of_root());
    Cgroup { pod, ..cgroup }
}

/// The cgroup of a process, from the text of `/proc/<pid>/cgroup`. The function uses the path of cgroup2 if this path
/// names a pod. Otherwise the function uses a path of version 1 that names a pod: the kubelet uses equal names in both
/// versions. If no path names a pod, the function uses the path of cgroup2 or of systemd's hierarchy.
pub fn cgroup_of_process(text: &str) -> Option<Cgroup> {
    let path = |line: &'_ str| line.splitn(3, ':').nth(2).map(cgroup);
    let named = |hierarchy: &str| text.lines().find(|line| hierarchy_of(line) == Some(hierarchy)).and_then(path);
    let unified = named("");
    if unified.as_ref().is_some_and(|cgroup| cgroup.pod.is_some()) {
        return unified;
    }
    text.lines().filter_map(path).find(|cgroup| cgroup.pod.is_some()).or(unified).or_else(|| named("name=systemd"))
}

/// The hierarchy in a line of `/proc/<pid>/cgroup`. For cgroup2, this text is empty (`0::/`). For version 1, this text
/// is a list of controllers or a name (`1:name=systemd:/`).
fn hierarchy_of(line: &str) -> Option<&str> {
    line.split(':').nth(1)
}

/// The pod and the container in a path that a kubelet made (pkg/kubelet/cm/cgroup_manager_linux.go). The function
/// understands the drivers cgroupfs and systemd, at any depth: `/kubepods/burstable/pod<uid>/<id>`,
/// `/kubepods.slice/kubepods-pod<uid with underscores>.slice/cri-containerd-<id>.scope`. A user who owns a subtree can
/// choose any names in this subtree.
pub fn pod_of(path: &str) -> Option<PodContainer> {
    if path.split('/').any(|component| component == "user.slice" || component.starts_with("user@")) {
        return None;
    }
    let mut below_kubepods = false;
    let mut components = path.split('/').filter(|component| !component.is_empty());
    let pod_uid = components.by_ref().find_map(|component| {
        let uid = match component.strip_suffix(".slice") {
            Some(slice) => {
                slice.split_once("kubepods").and_then(|(_, rest)| rest.split_once("-pod")).map(|(_, uid)| uid)
            }
            None => component.strip_prefix("pod").filter(|_| below_kubepods),
        };
        below_kubepods |= component == "kubepods" || component.ends_with("kubepods.slice");
        uid.filter(|uid| is_pod_uid(uid)).map(|uid| uid.replace('_', "-"))
    })?;
    Some(PodContainer { pod_uid, container: components.next().and_then(container_of) })
}

/// Whether the text is a uid with dashes or underscores, or the hash of a static pod's configuration.
fn is_pod_uid(text: &str) -> bool {
    (8..=64).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-' || byte == b'_')
}

/// The container id in `<id>`, `crio-<id>`, `cri-containerd-<id>.scope` or `docker-<id>.scope`.
fn container_of(component: &str) -> Option<String> {
    let name = component.strip_suffix(".scope").unwrap_or(component);
    let id = name.rsplit('-').next()?;
    let is_id = (12..=64).contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_id.then(|| id.to_owned())
}

/// The mount points of cgroup2 in the text of a mountinfo. Each line is parsed alone, because `MountInfos` would fail
/// on a malformed line of another mount.
pub fn cgroup2_mounts(mountinfo: &str) -> impl Iterator<Item = PathBuf> {
    let mounts = mountinfo.lines().filter_map(|line| MountInfo::from_line(line).ok());
    mounts.filter(|mount| mount.fs_type == "cgroup2").map(|mount| mount.mount_point)
}

fn is_cgroup2(place: &Path) -> bool {
    place.join("cgroup.controllers").exists()
}

fn is_whole(place: &Path) -> bool {
    fs::metadata(place).is_ok_and(|directory| directory.ino() == ROOT)
}

/// Calls `visit` for each directory. Returns false if there are too many directories.
fn walk(mount: &Path, mut visit: impl FnMut(u64, &Path) -> ControlFlow<()>) -> io::Result<bool> {
    if visit(fs::metadata(mount)?.ino(), Path::new("")).is_break() {
        return Ok(true);
    }
    let mut pending = vec![PathBuf::new()];
    let mut seen = 0;
    while let Some(directory) = pending.pop() {
        let place = mount.join(&directory);
        // A kernfs directory has two links and one link for each subdirectory. So a directory with two links has no
        // subdirectories.
        if fs::symlink_metadata(&place).is_ok_and(|directory| directory.nlink() == 2) {
            continue;
        }
        let entries = match fs::read_dir(place) {
            Ok(entries) => entries,
            Err(error) if directory.as_os_str().is_empty() => return Err(error),
            // Cgroups are deleted at any time. A directory that was deleted during the walk belongs to no socket.
            Err(_) => continue,
        };
        for entry in entries.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
            seen += 1;
            if seen > DIRECTORIES {
                return Ok(false);
            }
            let path = directory.join(entry.file_name());
            if visit(std::os::unix::fs::DirEntryExt::ino(&entry), &path).is_break() {
                return Ok(true);
            }
            pending.push(path);
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "5f7bb1c1d5b0cd8ba6bd0d2d3c1b1cd6a1c0a3b1e5e2b97bb0e2ad9c4d5e6f70";
    const UID: &str = "0e6a3a0c-5a0b-4b1e-8d6e-3f2b1c0d9e8f";

    #[test]
    fn every_way_a_kubelet_names_a_pod_is_read() {
        let slice = UID.replace('-', "_");
        for path in [
            format!("/kubepods/burstable/pod{UID}/{ID}"),
            format!("/kubepods/pod{UID}/crio-{ID}"),
            format!(
                "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{slice}.slice/cri-containerd-{ID}.scope"
            ),
            format!("/kubepods.slice/kubepods-pod{slice}.slice/crio-{ID}.scope"),
            format!("/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{slice}.slice/docker-{ID}.scope"),
            format!(
                "/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod{slice}.slice/cri-containerd-{ID}.scope"
            ),
            format!("/docker/{ID}/kubelet/kubepods/besteffort/pod{UID}/{ID}/nested/deeper"),
            format!("/../../../kubepods/burstable/pod{UID}/{ID}"),
        ] {
            let pod = PodContainer { pod_uid: UID.to_owned(), container: Some(ID.to_owned()) };
            assert_eq!(pod_of(&path), Some(pod), "{path}");
        }
    }

    #[test]
    fn a_static_pod_is_named_by_its_hash_and_a_pod_itself_has_no_container() {
        let hash = "3a1d0b2c4e5f60718293a4b5c6d7e8f9";
        let pod = pod_of(&format!("/kubepods/burstable/pod{hash}")).expect("a pod");
        assert_eq!((pod.pod_uid.as_str(), pod.container), (hash, None));
    }

    #[test]
    fn a_path_without_a_pod_names_no_pod() {
        for path in [
            "/",
            "/system.slice/kubelet.service",
            "/system.slice/podman.service",
            "/kubepods.slice",
            "/kubepods/burstable",
            "/kubepods/pod\u{1b}[31m/x",
            &format!("/user.slice/pod{UID}"),
            &format!("/user.slice/user-1000.slice/user@1000.service/kubepods-pod{}.slice", UID.replace('-', "_")),
            &format!("/user@1000.service/kubepods/pod{UID}/{ID}"),
        ] {
            assert_eq!(pod_of(path), None, "{path}");
        }
    }

    #[test]
    fn the_cgroup_of_a_process_is_the_unified_one_unless_only_another_names_the_pod() {
        let hybrid = format!("4:memory:/kubepods/burstable/pod{UID}/{ID}\n0::/\n");
        assert!(cgroup_of_process(&hybrid).expect("a cgroup").pod.is_some());
        let plain = "4:memory:/user\n0::/system.slice/a:b.service\n";
        assert_eq!(cgroup_of_process(plain).expect("a cgroup").path, "/system.slice/a:b.service");
        let first = "4:memory:/other\n1:name=systemd:/system.slice/a.service\n";
        assert_eq!(cgroup_of_process(first).expect("a cgroup").path, "/system.slice/a.service");
        assert_eq!(cgroup_of_process("4:memory:/other\n"), None, "a line of a controller is not used");
        assert_eq!(cgroup_of_process(""), None);
    }

    #[test]
    fn directories_are_found_by_inode_and_a_missing_one_is_unread() {
        let root = tempfile::tempdir().expect("a directory");
        let mount = root.path().join("sys/fs/cgroup");
        let deep = mount.join("kubepods/burstable").join(format!("pod{UID}"));
        fs::create_dir_all(&deep).expect("made");
        fs::write(mount.join("cgroup.controllers"), "").expect("written");
        fs::write(deep.join("cgroup.procs"), "12\n0\n7\n").expect("written");
        let id = fs::metadata(&deep).expect("there").ino();
        let cgroups = Cgroups { mount: Ok(mount.clone()), whole: false };
        let found = cgroups.of(&HashSet::from([id, 3]));
        let cgroup = found[&id].clone().expect("found");
        assert_eq!(cgroup.pod.as_ref().expect("a pod").pod_uid, UID);
        assert_eq!(cgroups.processes(&cgroup), [12, 7]);
        assert_eq!(found[&3].clone().expect_err("unknown").why, Why::NotPermitted);
        let container = deep.join(ID);
        fs::create_dir(&container).expect("made");
        assert_eq!(cgroups.pods(), HashMap::from([(UID.to_owned(), id)]), "the pod, and not its container");
        assert_eq!(cgroups.id(&format!("/kubepods/burstable/pod{UID}")), Some(id));
        assert_eq!((cgroups.id("/kubepods/other"), cgroups.id("cgroup.controllers")), (None, None));
    }

    #[test]
    fn mounts_are_read_from_mountinfo() {
        let text = "30 24 0:26 / /sys/fs/cgroup/unified rw,nosuid shared:5 - cgroup2 cgroup2 rw,nsdelegate\n\
            31 24 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
            x y z an odd line - cgroup2\n";
        assert_eq!(cgroup2_mounts(text).collect::<Vec<_>>(), [PathBuf::from("/sys/fs/cgroup/unified")]);
    }
}
