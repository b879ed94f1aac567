//! Where files come from: the live host, a mount of it, or a recorded tree.

use std::{
    fs::File,
    io::{self, BufRead, BufReader, Read},
    path::{Path, PathBuf},
};

use crate::facts::{Gap, Source, Why};

/// Changes with every boot, so equal ids mean the same running kernel (Documentation/admin-guide/sysctl/kernel.rst).
const BOOT_ID: &str = "proc/sys/kernel/random/boot_id";

/// No line of a file this room reads comes near it; a longer one is no such file.
const LONGEST_LINE: u64 = 4096;

/// What is enough for most files that are read at once.
const PAGE: usize = 4096;

/// A directory that is, mounts or records a host's `/`.
#[derive(Clone, Debug)]
pub(super) struct Root {
    path: PathBuf,
    live: bool,
}

impl Root {
    /// A root; it is live when it is `/`, or shows this kernel's own boot id.
    pub(super) fn at(path: PathBuf) -> Self {
        let boot_id = |root: &Path| std::fs::read(root.join(BOOT_ID)).ok();
        let live = path == Path::new("/") || boot_id(&path).is_some_and(|id| Some(id) == boot_id(Path::new("/")));
        Self { path, live }
    }

    /// Whether the running kernel can be asked about it.
    pub(super) fn is_live(&self) -> bool {
        self.live
    }

    /// The root itself.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// A file by its path below the root. Absolute links are followed below the root too.
    pub(super) fn file(&self, below: &str) -> PathBuf {
        let mut path = self.path.join(below);
        // As many as the kernel follows (fs/namei.c MAXSYMLINKS); an endless chain then fails to open.
        for _ in 0..40 {
            match std::fs::read_link(&path) {
                Ok(target) if target.is_absolute() => {
                    path = self.path.join(target.strip_prefix("/").unwrap_or(&target));
                }
                Ok(target) => path = path.parent().unwrap_or(&self.path).join(target),
                Err(_) => break,
            }
        }
        path
    }

    /// A file of `/proc/net`. On a live host it shows the network namespace of the calling thread.
    pub(super) fn net(&self, name: &str) -> PathBuf {
        if self.live { Path::new("/proc/thread-self/net").join(name) } else { self.path.join("proc/net").join(name) }
    }
}

/// The gap of a fact that only a running kernel can tell.
pub(super) fn recorded(source: Source) -> Gap {
    Gap::new(source, Why::NotSupported, "a recorded tree: only a running kernel can be asked")
}

/// The gap of a file that could not be opened or read.
pub(super) fn unread(source: Source, path: &Path, error: &io::Error) -> Gap {
    let why = match error.kind() {
        io::ErrorKind::PermissionDenied => Why::NotPermitted,
        io::ErrorKind::NotFound => Why::NotSupported,
        _ => Why::Malformed,
    };
    Gap::new(source, why, format!("read {}: {error}", path.display()))
}

/// The text of a file of at most `limit` bytes, taken in one read.
///
/// One read is what makes it right for `/proc/sys`: a list such as `ip_local_reserved_ports` answers the first read
/// only, cut to its size (kernel/sysctl.c `proc_do_large_bitmap`), and `std::fs::read` begins with 32 bytes. Most are
/// short, and the kernel makes as many bytes empty as it is asked for (fs/proc/proc_sysctl.c `proc_sys_call_handler`):
/// only one that fills a page is read again, as long as it may be.
///
/// # Errors
/// A gap naming the path when it cannot be read, is longer, or is not UTF-8.
pub(super) fn read_text(source: Source, path: &Path, limit: usize) -> Result<String, Gap> {
    let answer = |buffer: &mut [u8]| {
        let read = File::open(path).and_then(|mut file| file.read(buffer));
        read.map_err(|error| unread(source, path, &error))
    };
    let malformed = |what: &str| Gap::new(source, Why::Malformed, format!("{}: {what}", path.display()));
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
        return Err(malformed(&format!("longer than {limit} bytes")));
    }
    let bytes = buffer.get(..read).unwrap_or_default().to_vec();
    String::from_utf8(bytes).map_err(|_| malformed("not UTF-8"))
}

/// The bytes of a file whose size nobody tells, as most below `/proc`. `std::fs::read` takes these 32 bytes at a time,
/// then 64, and so on.
pub(super) fn read_unsized(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(PAGE);
    File::open(path)?.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Opens a file for [`each_line`].
///
/// # Errors
/// A gap naming the path.
pub(super) fn open(source: Source, path: &Path) -> Result<BufReader<File>, Gap> {
    File::open(path).map(BufReader::new).map_err(|error| unread(source, path, &error))
}

/// Hands each line to `take`, which answers `None` to a line that is not what it must be.
///
/// # Errors
/// A gap naming `name`, the line's number and what was `wanted`.
pub(super) fn each_line(
    source: Source,
    name: &Path,
    wanted: &str,
    mut reader: impl BufRead,
    mut take: impl FnMut(&str) -> Option<()>,
) -> Result<(), Gap> {
    let mut line = String::new();
    for number in 1u64.. {
        line.clear();
        let read =
            (&mut reader).take(LONGEST_LINE).read_line(&mut line).map_err(|error| unread(source, name, &error))?;
        if read == 0 {
            break;
        }
        take(line.trim_end_matches(['\n', '\r'])).ok_or_else(|| {
            Gap::new(source, Why::Malformed, format!("{} line {number}: wanted {wanted}", name.display()))
        })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
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
    fn absolute_links_stay_below_the_root() {
        let tree = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(tree.path().join("etc")).unwrap();
        std::os::unix::fs::symlink("/run/real", tree.path().join("etc/linked")).unwrap();
        assert_eq!(Root::at(tree.path().into()).file("etc/linked"), tree.path().join("run/real"));
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
        assert_eq!(why(&file).why, Why::Malformed);
        std::fs::write(&file, [0xff, b'\n']).unwrap();
        assert_eq!(why(&file).why, Why::Malformed);
    }
}
