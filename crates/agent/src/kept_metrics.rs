//! The text of metrics, made beside the event loop: anew for each scrape as long as there is processor time for it, else
//! that of some seconds ago.

use std::{
    fmt,
    sync::Arc,
    time::{Duration, Instant},
};

use axum::body::Bytes;
use tokio::{sync::Mutex, task::spawn_blocking};

use super::{request_budget::RequestBudget, scanner::thread_cpu_time};
use crate::metrics::{Exposition, Telling, metrics};

/// How old a text may be where time is short.
const OLDEST: Duration = Duration::from_secs(15);

/// The last text of each form. One is made at a time, and whoever asked for it may have gone: it is made, charged and kept
/// all the same, so that nobody makes an agent work for nobody's account.
pub(super) struct KeptMetrics {
    budget: Arc<RequestBudget>,
    open: Arc<Mutex<Option<(Instant, Bytes)>>>,
    plain: Arc<Mutex<Option<(Instant, Bytes)>>>,
}

impl KeptMetrics {
    pub(super) fn new(budget: Arc<RequestBudget>) -> Self {
        Self { budget, open: Arc::default(), plain: Arc::default() }
    }

    /// The text in one of the two forms.
    ///
    /// # Errors
    /// When it cannot be made.
    pub(super) async fn text(&self, form: Exposition, telling: impl FnOnce() -> Telling) -> Result<Bytes, fmt::Error> {
        let kept = match form {
            Exposition::OpenMetrics => &self.open,
            Exposition::Text => &self.plain,
        };
        let mut last = Arc::clone(kept).lock_owned().await;
        if let Some((_, text)) = last.as_ref().filter(|(made, _)| made.elapsed() < OLDEST)
            && self.budget.wait().is_some()
        {
            return Ok(text.clone());
        }
        let (telling, budget) = (telling(), Arc::clone(&self.budget));
        let made = spawn_blocking(move || {
            let begun = thread_cpu_time();
            let text = metrics(telling, form);
            budget.charge(thread_cpu_time().saturating_sub(begun));
            let text = Bytes::from(text?);
            *last = Some((Instant::now(), text.clone()));
            Ok(text)
        });
        made.await.map_err(|_| fmt::Error)?
    }
}

#[cfg(test)]
mod tests {
    use std::{
        cell::Cell,
        task::{Context, Waker},
    };

    use super::*;
    use crate::metrics::{ProcessUse, Work};

    #[tokio::test]
    async fn metrics_are_fresh_as_long_as_there_is_time_and_never_missing() {
        let budget = Arc::new(RequestBudget::public(0.2, Instant::now()));
        let (kept, made) = (KeptMetrics::new(Arc::clone(&budget)), Cell::new(0));
        let scrape = async |form| {
            let telling = || {
                made.set(made.get() + 1);
                let work = Work { scans: made.get(), ..Work::default() };
                Telling { look: None, work, views: Vec::new(), events: None, process: ProcessUse::default() }
            };
            let text = kept.text(form, telling).await.expect("a text");
            String::from_utf8(text.to_vec()).expect("UTF-8")
        };
        for scans in 1..=3 {
            let text = scrape(Exposition::Text).await;
            assert!(text.contains(&format!("portreeve_scans_total {scans}")), "{text}");
        }
        budget.charge(Duration::from_secs(60));
        let (first, second) = (scrape(Exposition::Text).await, scrape(Exposition::Text).await);
        assert!(first == second && first.contains("portreeve_scans_total 3"), "{first}");
        let open = scrape(Exposition::OpenMetrics).await;
        assert!(open.contains("portreeve_scans_total 4") && open.ends_with("# EOF\n"), "there was none yet: {open}");
        let aged = Instant::now().checked_sub(OLDEST).expect("this machine runs longer than that");
        kept.plain.lock().await.as_mut().expect("a text").0 = aged;
        assert!(scrape(Exposition::Text).await.contains("portreeve_scans_total 5"), "the last one was too old");
    }

    /// hyper drops the answer of a client that hangs up.
    #[tokio::test]
    async fn a_text_that_nobody_waits_for_any_more_is_charged_and_kept_and_no_second_one_is_begun_beside_it() {
        let budget = Arc::new(RequestBudget::public(0.2, Instant::now()));
        let (kept, made) = (KeptMetrics::new(Arc::clone(&budget)), Cell::new(0));
        let telling = || {
            made.set(made.get() + 1);
            let work = Work { scans: made.get(), ..Work::default() };
            Telling { look: None, work, views: Vec::new(), events: None, process: ProcessUse::default() }
        };
        let mut gone = Box::pin(kept.text(Exposition::Text, telling));
        assert!(gone.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        drop(gone);
        let debt = Duration::from_secs(60);
        budget.charge(debt);
        let text = kept.text(Exposition::Text, telling).await.expect("a text");
        assert!(String::from_utf8_lossy(&text).contains("portreeve_scans_total 1"));
        assert_eq!(made.get(), 1, "it was kept");
        assert!(budget.spent() > debt, "it was charged");
    }
}
