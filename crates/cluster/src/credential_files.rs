//! The files of credentials: kubeconfigs, certificates, tokens. Each is a regular file of a length that makes sense, so
//! that none of them can hang a reader or fill its memory.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read as _},
    os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _},
    path::Path,
};

use kube::config::Kubeconfig;
use nix::fcntl::OFlag;

/// The longest file, in bytes: kubeconfigs of hundreds of clusters, with certificates, are shorter.
pub(super) const LONGEST: u64 = 4 << 20;
/// Where the service account of a pod is.
const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// Checks that a path leads to a regular file that is not too long. The error names the path.
pub(super) fn check(path: &Path) -> Result<(), String> {
    open(path).map(drop)
}

/// The same of a kubeconfig. The client library reads UTF-16 too, and panics where half of a character is missing.
pub(super) fn check_kubeconfig(path: &Path) -> Result<(), String> {
    let mut file = open(path)?;
    let length = file.metadata().map_err(|error| unreadable(path, &error))?.len();
    let mut mark = [0; 2];
    let is_utf16 = file.read_exact(&mut mark).is_ok() && [[0xff, 0xfe], [0xfe, 0xff]].contains(&mark);
    match is_utf16 && length % 2 != 0 {
        true => Err(format!(
            "{} is UTF-16 of {length} bytes, which is half a character too much or too few",
            path.display()
        )),
        false => Ok(()),
    }
}

/// Reads a text.
pub(super) fn read(path: &Path) -> Result<String, String> {
    let mut text = String::new();
    let read = open(path)?.take(LONGEST).read_to_string(&mut text);
    read.map(|_| text).map_err(|error| unreadable(path, &error))
}

/// Checks the files that a context of a kubeconfig names: of its cluster and of its user.
pub(super) fn check_context(config: &Kubeconfig, context: Option<&str>) -> Result<(), String> {
    let Some(context) = context.or(config.current_context.as_deref()) else { return Ok(()) };
    let context = config.contexts.iter().find(|it| it.name == context).and_then(|it| it.context.as_ref());
    // What does not fit together is said by whoever puts it together.
    let Some(context) = context else { return Ok(()) };
    let cluster = config.clusters.iter().find(|it| it.name == context.cluster).and_then(|it| it.cluster.as_ref());
    let user = config.auth_infos.iter().find(|it| Some(&it.name) == context.user.as_ref());
    let user = user.and_then(|it| it.auth_info.as_ref());
    let of_cluster = cluster.and_then(|it| it.certificate_authority.as_deref());
    let of_user = user.into_iter().flat_map(|it| {
        [it.client_certificate.as_deref(), it.client_key.as_deref(), it.token_file.as_deref()].into_iter().flatten()
    });
    of_cluster.into_iter().chain(of_user).try_for_each(|path| check(Path::new(path)))
}

/// Checks the files of the pod's service account.
pub(super) fn check_service_account() -> Result<(), String> {
    ["ca.crt", "namespace", "token"].into_iter().try_for_each(|name| check(&Path::new(SERVICE_ACCOUNT).join(name)))
}

/// The namespace of the pod this runs in, where it can be read.
pub(super) fn own_namespace() -> Option<String> {
    let namespace = read(&Path::new(SERVICE_ACCOUNT).join("namespace")).ok()?;
    Some(namespace.trim().to_owned()).filter(|namespace| !namespace.is_empty())
}

fn open(path: &Path) -> Result<File, String> {
    // A pipe that nobody writes to would be waited for.
    let file = OpenOptions::new().read(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(path);
    let file = file.map_err(|error| unreadable(path, &error))?;
    let metadata = file.metadata().map_err(|error| unreadable(path, &error))?;
    if !metadata.is_file() {
        return Err(format!("{} is {}, wanted a file", path.display(), kind(metadata.file_type())));
    }
    if metadata.len() > LONGEST {
        return Err(format!("{} is {} bytes long, wanted at most {LONGEST}", path.display(), metadata.len()));
    }
    Ok(file)
}

fn kind(kind: fs::FileType) -> &'static str {
    match () {
        () if kind.is_dir() => "a directory",
        () if kind.is_fifo() => "a pipe",
        () if kind.is_char_device() || kind.is_block_device() => "a device",
        () => "no regular file",
    }
}

fn unreadable(path: &Path, error: &io::Error) -> String {
    format!("{} cannot be read: {error}", path.display())
}

#[cfg(test)]
mod tests {
    use nix::{sys::stat::Mode, unistd::mkfifo};

    use super::*;

    #[test]
    fn what_is_no_file_or_too_long_is_named_and_nobody_waits_for_it() {
        let directory = tempfile::tempdir().expect("a directory");
        let at = |name: &str| directory.path().join(name);
        mkfifo(&at("pipe"), Mode::S_IRWXU).expect("a pipe");
        let long = File::create(at("long")).expect("a file");
        long.set_len(LONGEST + 1).expect("a length");
        for (path, wanted) in [
            (at("pipe"), "pipe is a pipe, wanted a file"),
            (directory.path().to_owned(), "is a directory, wanted a file"),
            ("/dev/zero".into(), "/dev/zero is a device, wanted a file"),
            (at("long"), "4194305 bytes long"),
            (at("absent"), "absent cannot be read: No such file"),
        ] {
            let said = read(&path).expect_err("it cannot be read");
            assert!(said.contains(wanted), "{said}");
        }
        for (bytes, is_read) in [(&b"\xff\xfek\0i"[..], false), (b"\xfe\xff\0k\0i", true), (b"\xff", true), (b"", true)]
        {
            fs::write(at("config"), bytes).expect("a file");
            assert_eq!(check_kubeconfig(&at("config")).is_ok(), is_read, "{bytes:?}");
        }
        fs::write(at("short"), "text").expect("a file");
        assert_eq!(read(&at("short")).as_deref(), Ok("text"));
    }
}
