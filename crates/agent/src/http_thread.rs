//! A thread that answers requests, with a runtime of its own: whatever it does is known to have been done for requests,
//! and no flood of them takes the time of the loop that looks.

use std::{sync::Arc, thread};

use anyhow::Context;
use tokio::{runtime::Builder, sync::oneshot};

use super::{kept_threads, request_budget::RequestBudget, tasks::Tasks};

/// Runs `serve` on a thread called `name`, and charges everything that the thread does.
///
/// # Errors
/// When there is no thread or no runtime for it.
pub(super) fn start<F: Future<Output = ()>>(
    name: &'static str,
    budget: &Arc<RequestBudget>,
    tasks: &mut Tasks,
    serve: impl FnOnce() -> F + Send + 'static,
) -> anyhow::Result<()> {
    let parked = Arc::clone(budget);
    let runtime = kept_threads::runtime(Builder::new_current_thread().on_thread_park(move || parked.settle()));
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

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::scanner::thread_cpu_time;

    const TOIL: Duration = Duration::from_millis(20);

    fn toil() {
        let begun = thread_cpu_time();
        while thread_cpu_time() - begun < TOIL {
            std::hint::spin_loop();
        }
    }

    #[tokio::test]
    async fn whatever_the_thread_does_is_charged_and_its_end_is_noticed() {
        let budget = Arc::new(RequestBudget::public(100.0, Instant::now()));
        let mut tasks = Tasks::default();
        let serve = || async {
            // Neither is a connection that somebody measures.
            toil();
            tokio::spawn(async { toil() }).await.expect("no panic");
            tokio::time::sleep(TOIL).await;
        };
        start("answering", &budget, &mut tasks, serve).expect("a thread");
        assert_eq!(tasks.ended().await, "answering ended: its thread has ended");
        assert!(budget.spent() >= 2 * TOIL, "{:?}", budget.spent());
    }

    #[tokio::test]
    async fn a_thread_that_panics_ends_too() {
        let (budget, mut tasks) = (Arc::new(RequestBudget::public(100.0, Instant::now())), Tasks::default());
        start("answering", &budget, &mut tasks, || async { panic!("a bug of the server") }).expect("a thread");
        assert_eq!(tasks.ended().await, "answering ended: its thread has ended");
    }
}
