//! One resource: LIST, then WATCH from its resource version, until the task ends.

use std::{convert::Infallible, mem, time::Duration};

use tokio::{
    select,
    sync::watch,
    time::{Instant, sleep_until, timeout},
};

use super::{
    cached_object::ObjectBatch, resource_feed::ResourceFeed, selection::Selection, timing::jitter, update::Update,
    watch_event::WatchEvent, watch_lines::WatchLines,
};
use crate::cluster::{collection::Collection, error::Error, object_sink::ObjectSink, requests::Server};

/// The `limit` of a LIST. A server may answer a first LIST whole, from its cache.
const PAGE: usize = 50;
/// Any answer from the server's cache will do.
const ANY_VERSION: &str = "&resourceVersion=0";
/// A server that cannot go on from a version accepts the watch all the same, and refuses in its first line. Only after
/// so long without a line does the watch confirm that nothing has changed.
const REFUSAL_WINDOW: Duration = Duration::from_secs(1);

/// Where a watcher is.
#[derive(Default)]
struct WatchPosition {
    /// The resource version from which to watch; `None`: LIST first.
    version: Option<String>,
    /// The version is gone (410): the next LIST asks for the present state, not for the server's cache.
    expired: bool,
    /// The server knows no field selector for this resource.
    without_selector: bool,
    /// Failures in succession. They count from 1 again when a server that was unreachable answers with a refusal: it
    /// has just started, and will know the client and its versions soon.
    failures: u32,
    /// The last failure was such a refusal.
    refused: bool,
}

impl WatchPosition {
    fn succeeded(&mut self) {
        (self.failures, self.refused) = (0, false);
    }

    fn failed(&mut self, error: &Error, selection: &Selection) {
        let refused = matches!(error, Error::Status { code: 401 | 403 | 410, .. });
        let first_refusal = !mem::replace(&mut self.refused, refused) && refused;
        self.failures = if first_refusal { 1 } else { self.failures.saturating_add(1) };
        match error {
            Error::Status { code: 410, .. } => (self.version, self.expired) = (None, true),
            Error::Status { code: 400, .. } if *selection == Selection::Served => self.without_selector = true,
            // After an answer that made no sense, everything is read again.
            Error::Answer { .. } => self.version = None,
            _ => {}
        }
    }
}

/// Watches a collection within a selection, which may change; `None` means that it is not known yet.
pub(super) async fn watcher(
    feed: ResourceFeed,
    collection: Collection,
    mut selections: watch::Receiver<Option<Selection>>,
) {
    let mut position = WatchPosition::default();
    loop {
        let Some(selection) = selections.borrow_and_update().clone() else {
            if selections.changed().await.is_err() {
                return;
            }
            continue;
        };
        let session = async {
            if selection.is_nothing() {
                feed.idle(&selection).await;
            }
            let Err(error) = session(&feed, &collection, &selection, &mut position).await;
            position.failed(&error, &selection);
            feed.back_off(error, position.failures).await;
        };
        select! {
            () = session => {}
            Ok(()) = selections.changed() => position.version = None,
        }
    }
}

/// From connecting to the first failure.
async fn session(
    feed: &ResourceFeed,
    collection: &Collection,
    selection: &Selection,
    position: &mut WatchPosition,
) -> Result<Infallible, Error> {
    let query = if position.without_selector { String::new() } else { selection.query() };
    let server = feed.connect().await?;
    feed.send(Update::Connected(server.address().to_owned())).await;
    loop {
        let version = match &position.version {
            Some(version) => version.clone(),
            None => {
                let recency = if position.expired { "" } else { ANY_VERSION };
                let empty = || ObjectBatch::within(selection.clone());
                let listed = server.pages(collection, &format!("limit={PAGE}{query}"), recency, empty).await;
                let (objects, version) = listed?;
                feed.send(Update::Replaced(selection.clone(), objects)).await;
                position.expired = false;
                position.version.insert(version.unwrap_or_default()).clone()
            }
        };
        let began = Instant::now();
        let seconds = feed.timing.spread_watch_duration(jitter()).as_secs().max(1);
        let bounds = format!("watch=1&allowWatchBookmarks=true&timeoutSeconds={seconds}&resourceVersion={version}");
        let path = format!("{}?{bounds}{query}", collection.path);
        follow(feed, &server, &path, collection.kind, position).await?;
        // A server that ends every watch at once gets a pause between them.
        sleep_until(began + feed.timing.backoff(1, None, jitter())).await;
    }
}

/// One watch, from its beginning to its orderly end. It also ends after `idle_timeout` without a line: the next watch
/// shows whether the server is there.
async fn follow(
    feed: &ResourceFeed,
    server: &Server,
    path: &str,
    kind: &'static str,
    position: &mut WatchPosition,
) -> Result<(), Error> {
    let mut lines = WatchLines::of(server.watch(path).await?);
    let mut accepted = false;
    loop {
        let wait = if accepted { feed.timing.idle_timeout } else { REFUSAL_WINDOW };
        let next = match timeout(wait, lines.next()).await {
            Ok(next) => next?,
            Err(_) if accepted => return Ok(()),
            Err(_) => {
                accepted = true;
                feed.send(Update::Confirmed).await;
                continue;
            }
        };
        accepted = true;
        let Some(line) = next else {
            feed.send(Update::Confirmed).await;
            position.succeeded();
            return Ok(());
        };
        if line.trim_ascii().is_empty() {
            continue;
        }
        let event = WatchEvent::read(&line, kind).map_err(|error| lines.wrong(&error.to_string()))?;
        let version = event.version().cloned();
        feed.send(match event {
            WatchEvent::Applied(object) => {
                let mut objects = ObjectBatch::default();
                objects.add(server.address(), *object);
                Update::Applied(objects)
            }
            WatchEvent::Deleted(object) => Update::Deleted(object.title()),
            WatchEvent::Bookmark(_) => Update::Confirmed,
            WatchEvent::Error(code, message) => return Err(lines.refused(code, &message)),
        })
        .await;
        position.succeeded();
        position.version = version.or(position.version.take());
    }
}
