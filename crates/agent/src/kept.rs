//! Keeps a text that many clients request, such as the metrics. The text is made at most once a second and after each
//! scan. So a flood of requests costs little.

use std::{
    io,
    sync::Arc,
    time::{Duration, Instant},
};

use axum::body::Bytes;
use tokio::{sync::Mutex, task::spawn_blocking};

const OLDEST: Duration = Duration::from_secs(1);

/// The last text. Only one caller at a time makes a new text.
#[derive(Default)]
pub(super) struct Kept(Arc<Mutex<Option<Last>>>);

struct Last {
    made: Instant,
    /// The text is about the scan that was judged at this time.
    scan: Option<Instant>,
    text: Bytes,
}

impl Kept {
    /// Returns the text about the scan that was judged at the time `scan`. Returns the last text if it is about this
    /// scan and at most a second old. Otherwise `make` makes a new text, on a thread that may block.
    pub(super) async fn text(
        &self,
        scan: Option<Instant>,
        make: impl FnOnce() -> io::Result<Vec<u8>> + Send + 'static,
    ) -> io::Result<Bytes> {
        let mut last = Arc::clone(&self.0).lock_owned().await;
        if let Some(last) = last.as_ref().filter(|last| last.scan == scan && last.made.elapsed() < OLDEST) {
            return Ok(last.text.clone());
        }
        let made = spawn_blocking(move || {
            let text = Bytes::from(make()?);
            // The text is kept even if the client has closed the connection.
            *last = Some(Last { made: Instant::now(), scan, text: text.clone() });
            Ok(text)
        });
        made.await.map_err(io::Error::other)?
    }
}

#[cfg(test)]
mod tests {
    use std::{
        pin::pin,
        sync::atomic::{AtomicUsize, Ordering},
        task::{Context, Waker},
    };

    use super::*;

    #[derive(Default)]
    struct Counted {
        kept: Kept,
        made: Arc<AtomicUsize>,
    }

    impl Counted {
        async fn text(&self) -> String {
            self.text_of(None).await
        }

        async fn text_of(&self, scan: Option<Instant>) -> String {
            let made = Arc::clone(&self.made);
            let make = move || Ok(made.fetch_add(1, Ordering::Relaxed).to_string().into_bytes());
            let text = self.kept.text(scan, make).await.expect("a text");
            String::from_utf8(text.to_vec()).expect("UTF-8")
        }
    }

    #[tokio::test]
    async fn a_flood_has_one_text_made_a_second_and_later_requests_have_a_new_one() {
        let counted = Counted::default();
        for _ in 0..100 {
            assert_eq!(counted.text().await, "0");
        }
        let aged = Instant::now().checked_sub(OLDEST).expect("this machine runs longer than that");
        counted.kept.0.lock().await.as_mut().expect("a text").made = aged;
        assert_eq!(counted.text().await, "1");
        let scan = Some(Instant::now());
        assert_eq!([counted.text_of(scan).await, counted.text_of(scan).await], ["2", "2"], "a scan came in between");
    }

    /// hyper drops an answer when its client closes the connection.
    #[tokio::test]
    async fn a_text_whose_client_has_gone_is_kept_and_no_second_one_is_made() {
        let counted = Counted::default();
        {
            let gone = pin!(counted.text());
            assert!(gone.poll(&mut Context::from_waker(Waker::noop())).is_pending());
        }
        assert_eq!(counted.text().await, "0");
    }

    #[tokio::test]
    async fn a_text_that_cannot_be_made_is_an_error_and_is_not_kept() {
        let kept = Kept::default();
        kept.text(None, || Err(io::Error::other("no"))).await.expect_err("it cannot be made");
        kept.text(None, || panic!("a bug of a writer")).await.expect_err("it cannot be made");
        assert_eq!(kept.text(None, || Ok(b"text".to_vec())).await.expect("a text"), "text");
    }
}
