//! The text of metrics, made beside the event loop: anew for each scrape as long as there is processor time for it, else
//! that of a few seconds ago.

use std::{
    fmt,
    sync::Arc,
    time::{Duration, Instant},
};

use axum::body::Bytes;
use tokio::{sync::Mutex, task::spawn_blocking};

use super::{request_budget::RequestBudget, scanner::thread_cpu_time};
use crate::sinks::metrics::{Exposition, Telling, metrics};

/// How old a text may be where time is short.
const OLDEST: Duration = Duration::from_secs(5);

/// The last text of each form. One is made at a time.
pub(super) struct KeptMetrics {
    budget: Arc<RequestBudget>,
    open: Mutex<Option<(Instant, Bytes)>>,
    plain: Mutex<Option<(Instant, Bytes)>>,
}

impl KeptMetrics {
    pub(super) fn new(budget: Arc<RequestBudget>) -> Self {
        Self { budget, open: Mutex::default(), plain: Mutex::default() }
    }

    /// The text in one of the two forms.
    ///
    /// # Errors
    /// When it cannot be made.
    pub(super) async fn text(&self, form: Exposition, telling: impl FnOnce() -> Telling) -> Result<Bytes, fmt::Error> {
        let mut last = match form {
            Exposition::OpenMetrics => self.open.lock().await,
            Exposition::Text => self.plain.lock().await,
        };
        if let Some((_, text)) = last.as_ref().filter(|(made, _)| made.elapsed() < OLDEST)
            && self.budget.wait().is_some()
        {
            return Ok(text.clone());
        }
        let telling = telling();
        let made = spawn_blocking(move || {
            let begun = thread_cpu_time();
            (metrics(telling, form), thread_cpu_time().saturating_sub(begun))
        });
        let (text, cost) = made.await.map_err(|_| fmt::Error)?;
        self.budget.charge(cost);
        let text = Bytes::from(text?);
        *last = Some((Instant::now(), text.clone()));
        Ok(text)
    }
}
