//! What this process may see.

use procfs_core::{FromBufRead, process::Status};

use super::root::read_text;
use crate::facts::Source;

/// The capabilities a reader uses, by number (include/uapi/linux/capability.h).
const USED: [(u32, &str); 5] =
    [(2, "CAP_DAC_READ_SEARCH"), (12, "CAP_NET_ADMIN"), (19, "CAP_SYS_PTRACE"), (21, "CAP_SYS_ADMIN"), (39, "CAP_BPF")];

/// The names of those of [`USED`] that the calling thread has; none where they cannot be read, since each reader then
/// has a gap of its own for what it may not do.
pub(super) fn read() -> Vec<String> {
    let status = "/proc/thread-self/status";
    read_text(Source::Processes, status.as_ref(), 16 * 1024).map(|status| effective(&status)).unwrap_or_default()
}

/// The effective capabilities in a `/proc/<pid>/status`.
fn effective(status: &str) -> Vec<String> {
    let mask = Status::from_buf_read(status.as_bytes()).map_or(0, |status| status.capeff);
    USED.into_iter().filter(|(bit, _)| mask >> bit & 1 == 1).map(|(_, name)| name.to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    // Linux 6.18: `cat /proc/self/status` of root in a container with NET_ADMIN and SYS_PTRACE; lines that all kernels have.
    const STATUS: &str = "Name:\tcat\nUmask:\t0022\nState:\tR (running)\nTgid:\t12\nNgid:\t0\nPid:\t12\nPPid:\t1\n\
        TracerPid:\t0\nUid:\t0\t0\t0\t0\nGid:\t0\t0\t0\t0\nFDSize:\t64\nGroups:\t0 \nNSpid:\t4711\t12\nThreads:\t1\n\
        SigQ:\t1/31190\nSigPnd:\t0000000000000000\nShdPnd:\t0000000000000000\nSigBlk:\t0000000000000000\n\
        SigIgn:\t0000000000000000\nSigCgt:\t0000000000000000\nCapInh:\t0000000000000000\nCapPrm:\t0000000000081000\n\
        CapEff:\t0000000000081000\nCapBnd:\t0000000000081000\nCapAmb:\t0000000000000000\n";

    #[test]
    fn the_mask_names_what_readers_use() {
        let with = |mask: &str| effective(&STATUS.replace("CapEff:\t0000000000081000", &format!("CapEff:\t{mask}")));
        assert_eq!(effective(STATUS), ["CAP_NET_ADMIN", "CAP_SYS_PTRACE"]);
        assert_eq!(with("0000000000000000"), Vec::<String>::new());
        assert_eq!(with("000001ffffffffff").len(), USED.len());
        assert_eq!(with("nonsense"), Vec::<String>::new());
        assert_eq!(effective("CapEff:\t000001ffffffffff\n"), Vec::<String>::new(), "not the file it should be");
    }

    #[test]
    fn the_status_of_this_process_is_read() {
        let status = std::fs::read_to_string("/proc/thread-self/status").expect("a file of procfs");
        assert!(Status::from_buf_read(status.as_bytes()).is_ok(), "{status}");
    }

    proptest! {
        #[test]
        fn no_text_panics(at in 0..STATUS.len(), text in "(?s).{0,20}") {
            let changed = format!("{}{text}{}", &STATUS[..at], &STATUS[at..]);
            prop_assert!(effective(&changed).len() <= USED.len());
            prop_assert!(effective(&text).is_empty());
        }
    }
}
