//! A thread that answers requests, with a runtime of its own: whatever it does is known to have been done for requests,
//! and no flood of them takes the time of the loop that looks.

use std::{sync::Arc, thread};

use anyhow::Context;
use tokio::{runtime::Builder, sync::oneshot};

use super::{request_budget::RequestBudget, tasks::Tasks};

/// Runs `serve` on a thread called `name`, and charges everything that the thread does.
///
/// # Errors
/// When there is no thread or no runtime for it.
pub(super) fn start<F: Future<Output = ()>>(
    name: &'static str,
    budget: Arc<RequestBudget>,
    tasks: &mut Tasks,
    serve: impl FnOnce() -> F + Send + 'static,
) -> anyhow::Result<()> {
    let parked = Arc::clone(&budget);
    let runtime = Builder::new_current_thread().enable_all().on_thread_park(move || parked.settle()).build();
    let runtime = runtime.context("starting a runtime")?;
    let (alive, ended) = oneshot::channel::<()>();
    let answering = move || {
        // Dropped when this ends, by a panic too.
        let _alive = alive;
        runtime.block_on(serve());
    };
    thread::Builder::new().name("http".to_owned()).spawn(answering).context("starting a thread")?;
    tasks.spawn_saying_why(name, async move {
        drop(ended.await);
        "its thread has ended".to_owned()
    });
    Ok(())
}
