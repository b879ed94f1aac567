//! Runtimes whose blocking work goes on where no further thread may be started.

use std::{io, thread, time::Duration};

use tokio::runtime::{Builder, Runtime};

/// Longer than any shortage. By default a thread ends after ten seconds without work, and the next piece of work panics
/// where its place was taken meanwhile.
const KEPT: Duration = Duration::from_secs(30 * 24 * 3600);
/// At most so many threads for work that blocks: one for each resource that is read, and some for answers. The rest waits.
const MOST: usize = 16;

/// A runtime of one thread, and of one more for work that blocks, which is there from the beginning and stays. `builder`
/// comes with what else the runtime needs.
///
/// # Errors
/// When there is no thread for it.
pub(super) fn runtime(builder: &mut Builder) -> io::Result<Runtime> {
    let runtime = builder.enable_all().thread_keep_alive(KEPT).max_blocking_threads(MOST).build()?;
    // The runtime panics where it can start none.
    drop(thread::Builder::new().spawn(|| ())?.join());
    drop(runtime.spawn_blocking(|| ()));
    Ok(runtime)
}
