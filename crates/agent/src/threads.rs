//! Runtimes of one thread each, and the threads that answer requests: no scrape waits for a look, and no look for a scrape.

use std::{io, thread, time::Duration};

use anyhow::Context;
use tokio::{
    runtime::{Builder, Runtime},
    sync::oneshot,
};

use super::tasks::Tasks;

/// Longer than any shortage. By default a thread ends after ten seconds without work, and the next piece of work panics
/// where its place was taken meanwhile.
const KEPT: Duration = Duration::from_secs(30 * 24 * 3600);
/// At most so many threads for work that blocks: one for each resource that is read, and some for answers. The rest waits.
const MOST: usize = 16;

/// A runtime of one thread, and of one more for work that blocks, which is there from the beginning and stays.
///
/// # Errors
/// When there is no thread for it.
pub(super) fn runtime() -> io::Result<Runtime> {
    let runtime =
        Builder::new_current_thread().enable_all().thread_keep_alive(KEPT).max_blocking_threads(MOST).build()?;
    // The runtime panics where it can start none.
    drop(thread::Builder::new().spawn(|| ())?.join());
    drop(runtime.spawn_blocking(|| ()));
    Ok(runtime)
}

/// Runs `serve` on a thread and a runtime of its own. Its end is noticed.
///
/// # Errors
/// When there is no thread or no runtime for it.
pub(super) fn start<F: Future<Output = ()>>(
    name: &'static str,
    tasks: &mut Tasks,
    serve: impl FnOnce() -> F + Send + 'static,
) -> anyhow::Result<()> {
    let runtime = runtime().context("starting a runtime")?;
    let (alive, ended) = oneshot::channel::<()>();
    let answering = move || {
        // Dropped when this ends, by a panic too.
        let _alive = alive;
        runtime.block_on(serve());
    };
    thread::Builder::new().name(name.to_owned()).spawn(answering).context("starting a thread")?;
    tasks.spawn_saying_why(name, async move {
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
    async fn a_thread_has_the_name_of_what_it_does() {
        let (tell, told) = oneshot::channel();
        start("answering", &mut Tasks::default(), move || async move {
            drop(tell.send(thread::current().name().map(str::to_owned)));
        })
        .expect("a thread");
        assert_eq!(told.await, Ok(Some("answering".to_owned())));
    }
}
