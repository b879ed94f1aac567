//! The privileges of this process.

use super::root::read_text;
use portreeve_facts::{Gap, Source, Why};

/// The capabilities that a reader uses, by number (include/uapi/linux/capability.h).
const USED: [(u32, &str); 5] =
    [(2, "CAP_DAC_READ_SEARCH"), (12, "CAP_NET_ADMIN"), (19, "CAP_SYS_PTRACE"), (21, "CAP_SYS_ADMIN"), (39, "CAP_BPF")];

/// The names of the capabilities in [`USED`] that the calling thread has. The list is empty if the capabilities cannot
/// be read. If this list is empty, the `Gap` of a reader still names the missing capability.
pub(super) fn read() -> Vec<String> {
    status().map(|status| effective(&status)).unwrap_or_default()
}

/// Refuses a request if this thread lacks `CAP_NET_ADMIN`. The kernel would also refuse the request, but would first
/// load modules. If the capabilities of this thread cannot be read, this function accepts the request.
///
/// # Errors
/// `NotPermitted`, with the given source.
pub(super) fn require_net_admin(source: Source, what: &str) -> Result<(), Gap> {
    match status() {
        Ok(status) if !effective(&status).iter().any(|held| held == "CAP_NET_ADMIN") => {
            Err(Gap::new(source, Why::NotPermitted, format!("dump of {what}: this needs CAP_NET_ADMIN")))
        }
        _ => Ok(()),
    }
}

fn status() -> Result<String, Gap> {
    read_text(Source::Processes, "/proc/thread-self/status".as_ref(), 16 * 1024)
}

fn effective(status: &str) -> Vec<String> {
    let mask = status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or(0);
    USED.into_iter().filter(|(bit, _)| mask >> bit & 1 == 1).map(|(_, name)| name.to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mask_names_what_readers_use() {
        // Linux 6.18: `grep CapEff /proc/self/status` of root in a container with NET_ADMIN and SYS_PTRACE.
        assert_eq!(effective("Name:\tx\nCapEff:\t0000000000081000\n"), ["CAP_NET_ADMIN", "CAP_SYS_PTRACE"]);
        assert_eq!(effective("CapEff:\t0000000000000000\n"), Vec::<String>::new());
        assert_eq!(effective("CapEff:\t000001ffffffffff\n").len(), USED.len());
        assert_eq!(effective("CapEff:\tnonsense\n"), Vec::<String>::new());
    }
}
