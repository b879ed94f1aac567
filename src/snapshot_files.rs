//! Snapshots in files. Every verb that scans a node also reads snapshots.

use std::path::Path;

use anyhow::Context as _;

use super::progress::Progress;
use portreeve_cluster::{Accepted, Input};
use portreeve_facts::Snapshot;

/// The longest snapshot that is read, in bytes. The snapshot of a node with half a million sockets is shorter than this
/// limit.
const LONGEST: u64 = 256 << 20;

/// Reads a file that `snapshot` wrote. The name `-` means standard input.
pub(super) fn read(file: &Path) -> anyhow::Result<Snapshot> {
    let input = Input::from(file.to_owned());
    let place = input.to_string();
    let progress = Progress::start();
    progress.show(format_args!("reading {place}"));
    let bytes = input.read(Accepted::Anything, LONGEST).with_context(|| format!("reading a snapshot from {place}"))?;
    Snapshot::from_json(&bytes).map_err(anyhow::Error::msg).with_context(|| format!("{place} is not a snapshot"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The tests of the binary use the file `healthy.json`. `make docs` writes the file again.
    #[test]
    fn the_recorded_world_is_the_healthy_one() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/anywhere/worlds/healthy.json");
        let world = Snapshot::healthy().service("web", |it| it.node_port(30080));
        if std::env::var_os("UPDATE").is_some() {
            let text = serde_json::to_string_pretty(&world).expect("a snapshot is JSON");
            std::fs::write(&path, text + "\n").expect("the file can be written");
        }
        assert_eq!(read(&path).expect("the recorded world"), world, "`make docs` records it anew");
    }
}
