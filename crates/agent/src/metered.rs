//! A future after each poll of which the thread settles its account: a flood of requests leaves it no time to rest, which
//! it does otherwise.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use super::request_budget::RequestBudget;

/// A future on a thread that answers requests.
pub(super) struct Metered<F> {
    future: Pin<Box<F>>,
    budget: Arc<RequestBudget>,
}

impl<F: Future> Metered<F> {
    pub(super) fn new(future: F, budget: Arc<RequestBudget>) -> Self {
        Self { future: Box::pin(future), budget }
    }
}

impl<F: Future> Future for Metered<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let polled = self.future.as_mut().poll(context);
        self.budget.settle();
        polled
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::scanner::thread_cpu_time;

    #[tokio::test]
    async fn what_a_future_does_is_charged_and_what_it_waits_for_is_not() {
        let budget = Arc::new(RequestBudget::public(100.0, Instant::now()));
        budget.settle();
        let before = budget.spent();
        let toil = Duration::from_millis(20);
        let work = async {
            tokio::time::sleep(10 * toil).await;
            let begun = thread_cpu_time();
            while thread_cpu_time() - begun < toil {
                std::hint::spin_loop();
            }
        };
        Metered::new(work, Arc::clone(&budget)).await;
        let cost = budget.spent() - before;
        assert!((toil..5 * toil).contains(&cost), "{cost:?}");
    }
}
