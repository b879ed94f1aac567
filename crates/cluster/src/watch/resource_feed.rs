//! One resource: its connection to the API server, and its channel to the index.

use std::{convert::Infallible, sync::Arc, time::Duration};

use tokio::{
    sync::mpsc,
    time::{Instant, sleep},
};

use super::{
    index::{CachedObject, ObjectBatch, Update},
    resource::Resource,
    selection::Selection,
    timing::WatchTiming,
    view::KnownObjects,
};
use crate::{
    connect::{Access, connect},
    error::Error,
    facts_builder::FactsBuilder,
    jitter::jitter,
    requests::Server,
};

/// If a watcher has no objects to watch, it confirms its state in this interval. So the state does not become old.
const CONFIRM_EVERY: Duration = Duration::from_secs(10);

pub(super) struct ResourceFeed {
    pub(super) resource: Resource,
    pub(super) access: Access,
    pub(super) timing: WatchTiming,
    pub(super) updates: mpsc::Sender<(Resource, Update, Instant)>,
    pub(super) known: KnownObjects,
}

impl ResourceFeed {
    pub(super) async fn send(&self, update: Update) {
        self.send_as_of(Instant::now(), update).await;
    }

    pub(super) async fn send_as_of(&self, at: Instant, update: Update) {
        self.updates.send((self.resource, update, at)).await.expect("the index lives as long as the watchers");
    }

    /// Makes a new connection, so that a new token or certificate authority is used.
    pub(super) async fn connect(&self) -> Result<Server, Error> {
        let (client, address) = connect(&self.access).await?;
        Ok(Server::new(client, address, self.access.request_timeout).without_retry())
    }

    pub(super) fn batch(&self, selection: &Selection) -> ObjectBatch {
        ObjectBatch::within(selection.clone(), Some(self.known.clone()))
    }

    pub(super) async fn back_off(&self, error: Error, failures: u32) {
        let wait = self.timing.backoff(failures, error.retry_after(), jitter());
        self.send(Update::Failed(error)).await;
        sleep(wait).await;
    }

    /// Keeps an empty selection fresh without a request, because no object can be in this selection.
    pub(super) async fn idle(&self, selection: &Selection) -> Infallible {
        self.send(Update::Replaced(selection.clone(), ObjectBatch::default())).await;
        loop {
            sleep(CONFIRM_EVERY).await;
            self.send(Update::Confirmed).await;
        }
    }

    pub(super) async fn replace(&self, facts: FactsBuilder) {
        let object = CachedObject::More(Arc::new(facts));
        self.send(Update::Replaced(Selection::All, ObjectBatch::of_one(object))).await;
    }

    pub(super) async fn wait_for_next_poll(&self, failed: Option<Error>, failures: &mut u32, interval: Duration) {
        match failed {
            Some(error) => {
                *failures += 1;
                self.back_off(error, *failures).await;
            }
            None => {
                *failures = 0;
                sleep(interval.mul_f64(1.0 + jitter() / 10.0)).await;
            }
        }
    }
}
