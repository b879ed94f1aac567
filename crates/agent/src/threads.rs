//! Runtimes with one thread each, and the threads that answer requests. With separate threads, scrapes and scans do not
//! wait for each other.

use std::{io, thread, time::Duration};

use anyhow::Context;
use tokio::{
    runtime::{Builder, Runtime},
    sync::oneshot,
};

use super::tasks::Tasks;

/// How long the runtime keeps an idle thread. A shortage of threads ends before this time. By default, tokio ends a
/// thread after ten idle seconds. If the system then cannot start a thread, the next blocking work panics.
const KEPT: Duration = Duration::from_secs(30 * 24 * 3600);
/// The greatest number of threads for blocking work: one for each resource that is read, and some for answers. If all
/// threads are busy, new work waits.
const MOST: usize = 16;

/// The runtime has a second thread for blocking work. The second thread starts immediately, and does not end when the
/// thread is idle.
pub(super) fn runtime() -> io::Result<Runtime> {
    let runtime =
        Builder::new_current_thread().enable_all().thread_keep_alive(KEPT).max_blocking_threads(MOST).build()?;
    // The runtime would panic if it cannot start a thread. So this line starts a thread first, and returns the error.
    drop(thread::Builder::new().spawn(|| ())?.join());
    drop(runtime.spawn_blocking(|| ()));
    Ok(runtime)
}

/// Starts a thread, and a task in `tasks` that ends with the thread.
pub(super) fn start<F: Future<Output = ()>>(
    name: &'static str,
    tasks: &mut Tasks,
    serve: impl FnOnce() -> F + Send + 'static,
) -> anyhow::Result<()> {
    let runtime = runtime().context("starting a runtime")?;
    let (alive, ended) = oneshot::channel::<()>();
    let answering = move || {
        // This value is dropped when the thread ends or panics.
        let _alive = alive;
        runtime.block_on(serve());
    };
    thread::Builder::new().name(name.to_owned()).spawn(answering).context("starting a thread")?;
    tasks.spawn_with_reason(name, async move {
        drop(ended.await);
        "its thread has ended".to_owned()
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_thread_that_panics_or_returns_ends_the_agent() {
        for panics in [true, false] {
            let mut tasks = Tasks::default();
            start("answering", &mut tasks, move || async move { assert!(!panics, "a bug of the server") })
                .expect("a thread");
            assert_eq!(tasks.ended().await, "answering ended: its thread has ended");
        }
    }

    #[tokio::test]
    async fn a_thread_has_the_name_of_its_work() {
        let (sender, name) = oneshot::channel();
        start("answering", &mut Tasks::default(), move || async move {
            drop(sender.send(thread::current().name().map(str::to_owned)));
        })
        .expect("a thread");
        assert_eq!(name.await, Ok(Some("answering".to_owned())));
    }
}
