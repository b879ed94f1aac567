//! The source of the files: the live host, a mount of the host's root directory, or a recorded tree.

use std::{
    collections::VecDeque,
    ffi::OsString,
    fs::{File, OpenOptions},
    io::{self, BufRead, BufReader, Read},
    os::unix::fs::OpenOptionsExt as _,
    path::{Component, Path, PathBuf},
    str::FromStr,
};

use nix::fcntl::OFlag;

use portreeve_facts::{Gap, Source, Why, text};

/// A file whose id changes with every boot. Equal ids mean that the running kernel is the same
/// (Documentation/admin-guide/sysctl/kernel.rst).
const BOOT_ID: &str = "proc/sys/kernel/random/boot_id";

/// The greatest length of the id that is read, in bytes.
const BOOT_ID_LENGTH: u64 = 64;

/// The greatest length of a line, in bytes. The lines of the expected files are much shorter.
const LONGEST_LINE: u64 = 4096;

/// The greatest length of a file, in bytes. The expected tables are much smaller: a million sockets take 150 MB.
const LONGEST_FILE: u64 = if cfg!(test) { 16 } else { 512 } * 1024 * 1024;

/// The largest number of links that the kernel follows (fs/namei.c `MAXSYMLINKS`).
const MOST_LINKS: usize = 40;

/// The number of bytes that the first read requests. Most files are smaller.
const PAGE: usize = 4096;

/// The `/` of a host: the running host's `/`, a mount of it, or a recorded tree.
#[derive(Clone, Debug)]
pub(super) struct Root {
    path: PathBuf,
    live: bool,
}

impl Root {
    /// The root is live if `path` is `/`, or has the boot id of this kernel.
    pub(super) fn at(path: PathBuf) -> Self {
        let boot_id = |root: &Path| read_unsized(&below(root, BOOT_ID), BOOT_ID_LENGTH).ok();
        let live = path == Path::new("/") || boot_id(&path).is_some_and(|id| Some(id) == boot_id(Path::new("/")));
        Self { path, live }
    }

    /// Whether the running kernel can be queried about this host.
    pub(super) fn is_live(&self) -> bool {
        self.live
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The path of a file below the root. Links stay below the root: an absolute link begins at the root, and `..`
    /// stops at the root.
    pub(super) fn file(&self, path: &str) -> PathBuf {
        below(&self.path, path)
    }

    /// A file in `/proc/net`. On a live host, the file is from the network namespace of the calling thread.
    pub(super) fn net(&self, name: &str) -> PathBuf {
        if self.live { Path::new("/proc/thread-self/net").join(name) } else { self.file("proc/net").join(name) }
    }
}

/// A path below a root, with all links resolved. If a program puts a link into the path later, [`open_file`] refuses
/// the link. openat2(2) would need Linux 5.6.
fn below(root: &Path, path: &str) -> PathBuf {
    let names = |path: &Path| -> Vec<OsString> {
        let named = |component: Component<'_>| match component {
            Component::Normal(_) | Component::ParentDir => Some(component.as_os_str().to_owned()),
            _ => None,
        };
        path.components().filter_map(named).collect()
    };
    let mut left: VecDeque<OsString> = names(Path::new(path)).into();
    let (mut taken, mut links) = (PathBuf::new(), 0);
    while let Some(name) = left.pop_front() {
        if name == ".." {
            taken.pop();
            continue;
        }
        let target = if links < MOST_LINKS { std::fs::read_link(root.join(&taken).join(&name)).ok() } else { None };
        let Some(target) = target else {
            taken.push(name);
            continue;
        };
        links += 1;
        if target.is_absolute() {
            taken.clear();
        }
        names(&target).into_iter().rev().for_each(|name| left.push_front(name));
    }
    root.join(taken)
}

/// Opens a regular file. Refuses a FIFO, a device, a directory or a link, and never waits.
pub(super) fn open_file(path: &Path) -> io::Result<File> {
    let flags = OFlag::O_NONBLOCK | OFlag::O_NOFOLLOW | OFlag::O_NOCTTY;
    let file = OpenOptions::new().read(true).custom_flags(flags.bits()).open(path)?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(io::Error::new(io::ErrorKind::InvalidInput, "not a file")) }
}

pub(super) fn recorded(source: Source) -> Gap {
    Gap::new(source, Why::NotSupported, "only a running kernel has this fact, and this is a recorded tree")
}

pub(super) fn unread(source: Source, path: &Path, error: &io::Error) -> Gap {
    let why = match error.kind() {
        io::ErrorKind::PermissionDenied => Why::NotPermitted,
        io::ErrorKind::NotFound => Why::NotSupported,
        _ => Why::Malformed,
    };
    Gap::new(source, why, format!("read {}: {error}", path.display()))
}

/// The text of a file of at most `limit` bytes, read in one piece.
///
/// A file in `/proc/sys` must be read with one call. The kernel prints a list such as `ip_local_reserved_ports` only in
/// the first read, and cuts the list to the requested size (kernel/sysctl.c `proc_do_large_bitmap`). `std::fs::read`
/// would begin with 32 bytes. Most values are short, and the kernel clears a buffer of the requested size
/// (fs/proc/proc_sysctl.c `proc_sys_call_handler`). So the first read requests a page. A value that fills the page is
/// read again, with `limit`.
///
/// # Errors
/// A `Gap` with the path if the file cannot be read, is longer, or is not UTF-8.
pub(super) fn read_text(source: Source, path: &Path, limit: usize) -> Result<String, Gap> {
    let answer = |buffer: &mut [u8]| {
        let read = open_file(path).and_then(|mut file| file.read(buffer));
        read.map_err(|error| unread(source, path, &error))
    };
    let wrong = |why, what: &str| Gap::new(source, why, format!("{}: {what}", path.display()));
    let mut page = [0; PAGE];
    let mut whole = Vec::new();
    let mut buffer = &mut page[..limit.min(PAGE)];
    let mut read = answer(buffer)?;
    if limit > PAGE && read == PAGE {
        whole.resize(limit, 0);
        buffer = &mut whole;
        read = answer(buffer)?;
    }
    if read == limit {
        return Err(wrong(Why::TooMuch, &format!("longer than {limit} bytes")));
    }
    let bytes = buffer.get(..read).unwrap_or_default().to_vec();
    String::from_utf8(bytes).map_err(|_| wrong(Why::Malformed, "not UTF-8"))
}

/// The value in a file that has only this value.
///
/// # Errors
/// As [`read_text`], or a `Gap` with the path and the `wanted` form.
pub(super) fn read_value<T: FromStr>(source: Source, path: &Path, limit: usize, wanted: &str) -> Result<T, Gap> {
    let content = read_text(source, path, limit)?;
    content.trim().parse().map_err(|_| {
        let seen = text::clean(&content, 64);
        Gap::new(source, Why::Malformed, format!("{}: {seen:?} is not {wanted}", path.display()))
    })
}

/// The content of a file of unknown size, such as most files below `/proc`. At most `limit` bytes are read, because a
/// process may make the file longer. `std::fs::read` would begin with 32 bytes, and then read 64, and so on.
pub(super) fn read_unsized(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(PAGE);
    open_file(path)?.take(limit).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Bytes that are not UTF-8 are replaced.
pub(super) fn read_unsized_text(path: &Path, limit: u64) -> io::Result<String> {
    read_unsized(path, limit).map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

pub(super) fn open(source: Source, path: &Path) -> Result<BufReader<File>, Gap> {
    open_file(path).map(BufReader::new).map_err(|error| unread(source, path, &error))
}

/// Passes each line to `take`. `take` returns `None` for a malformed line.
///
/// # Errors
/// A `Gap` with `name`, the line's number and the `wanted` form.
pub(super) fn each_line(
    source: Source,
    name: &Path,
    wanted: &str,
    mut reader: impl BufRead,
    mut take: impl FnMut(&str) -> Option<()>,
) -> Result<(), Gap> {
    let mut line = String::new();
    let mut left = LONGEST_FILE;
    for number in 1u64.. {
        line.clear();
        let read =
            (&mut reader).take(LONGEST_LINE).read_line(&mut line).map_err(|error| unread(source, name, &error))?;
        if read == 0 {
            break;
        }
        left = left.checked_sub(u64::try_from(read).unwrap_or(u64::MAX)).ok_or_else(|| {
            Gap::new(source, Why::TooMuch, format!("{}: longer than {LONGEST_FILE} bytes", name.display()))
        })?;
        take(line.trim_end_matches(['\n', '\r'])).ok_or_else(|| {
            Gap::new(source, Why::Malformed, format!("{} line {number}: wanted {wanted}", name.display()))
        })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use nix::{sys::stat::Mode, unistd::mkfifo};

    use super::*;

    #[test]
    fn a_mount_of_this_host_is_live_and_a_copy_of_another_is_not() {
        assert!(Root::at("/".into()).is_live());
        assert!(Root::at("/proc/self/root".into()).is_live());
        let tree = tempfile::tempdir().unwrap();
        assert!(!Root::at(tree.path().into()).is_live());
        let random = tree.path().join("proc/sys/kernel/random");
        std::fs::create_dir_all(&random).unwrap();
        std::fs::write(random.join("boot_id"), "8f7a1d0e-1111-2222-3333-444455556666\n").unwrap();
        assert!(!Root::at(tree.path().into()).is_live());
    }

    #[test]
    fn no_link_leads_out_of_the_root() {
        let tree = tempfile::tempdir().unwrap();
        let root = tree.path().join("root");
        std::fs::create_dir_all(root.join("etc")).unwrap();
        std::fs::create_dir_all(root.join("run/real")).unwrap();
        let file = |name: &str| Root::at(root.clone()).file(name);
        for (link, target, wanted) in [
            ("etc/absolute", "/run/real", "run/real"),
            ("etc/climbing", "../../../../../etc/shadow", "etc/shadow"),
            ("etc/relative", "../run/./real", "run/real"),
            ("etc/chain", "absolute/x", "run/real/x"),
            ("proc", "/etc", "etc"),
        ] {
            symlink(target, root.join(link)).unwrap();
            assert_eq!(file(link), root.join(wanted), "{link}");
        }
        assert_eq!(file("proc/absolute/../x"), root.join("run/x"), "a directory in the path may be a link");
        symlink("loop", root.join("etc/loop")).unwrap();
        assert!(open_file(&file("etc/loop")).is_err());
    }

    #[test]
    fn an_object_that_is_not_a_file_is_refused_at_once() {
        let tree = tempfile::tempdir().unwrap();
        let fifo = tree.path().join("fifo");
        mkfifo(&fifo, Mode::S_IRWXU).unwrap();
        for path in [fifo.as_path(), tree.path(), Path::new("/dev/zero")] {
            assert_eq!(open_file(path).unwrap_err().kind(), io::ErrorKind::InvalidInput, "{}", path.display());
        }
        let link = tree.path().join("link");
        symlink("/proc/self/comm", &link).unwrap();
        assert!(open_file(&link).is_err());
    }

    #[test]
    fn only_the_beginning_of_an_endless_file_is_read() {
        let tree = tempfile::tempdir().unwrap();
        let path = tree.path().join("file");
        File::create(&path).unwrap().set_len(1 << 40).unwrap();
        assert_eq!(read_unsized(&path, 100).unwrap().len(), 100);
        let lines = format!("{}\n", "x".repeat(4000)).repeat(5000);
        let gap = each_line(Source::IpVs, &path, "", lines.as_bytes(), |_| Some(())).unwrap_err();
        assert!(gap.detail.contains("longer than"), "{}", gap.detail);
    }

    #[test]
    fn a_directory_a_missing_file_and_a_long_one_are_named() {
        let tree = tempfile::tempdir().unwrap();
        let why = |path: &Path| read_text(Source::Sysctls, path, 4).unwrap_err();
        assert_eq!(why(tree.path()).why, Why::Malformed);
        let file = tree.path().join("file");
        assert_eq!(why(&file).why, Why::NotSupported);
        assert!(why(&file).detail.contains(&file.display().to_string()));
        std::fs::write(&file, "12345").unwrap();
        assert_eq!(why(&file).why, Why::TooMuch);
        std::fs::write(&file, [0xff, b'\n']).unwrap();
        assert_eq!(why(&file).why, Why::Malformed);
    }
}
