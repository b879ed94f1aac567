//! One resource: LIST, then WATCH from its resource version, until the task ends.

use std::{convert::Infallible, time::Duration};

use tokio::{
    select,
    sync::watch,
    time::{Instant, sleep_until, timeout},
};

use super::{
    cached_object::ObjectBatch, patience::Patience, resource_feed::ResourceFeed, selection::Selection, update::Update,
    watch_event::WatchEvent, watch_lines::WatchLines,
};
use crate::cluster::{
    collection::Collection, error::Error, jitter::jitter, object_sink::ObjectSink, pages::Recency, requests::Server,
};

/// What a server says of a version that it has not reached: its state was restored from before it, or it lags behind
/// (apimachinery `NewTooLargeResourceVersionError`).
const FROM_THE_FUTURE: &str = "Too large resource version";
/// A server that cannot go on from a version accepts the watch all the same, and refuses in its first line. Only after
/// so long without a line does the watch confirm that nothing has changed.
const REFUSAL_WINDOW: Duration = Duration::from_secs(1);

/// Where a watcher is.
#[derive(Default)]
struct WatchPosition {
    /// The resource version from which to watch; `None`: LIST first.
    version: Option<String>,
    /// The last version that was seen. No LIST may be older, whichever server answers it.
    seen: Option<String>,
    /// The version is gone (410): the next LIST asks for the present state, not for the server's cache.
    expired: bool,
    /// The server knows no field selector for this resource.
    without_selector: bool,
    patience: Patience,
}

impl WatchPosition {
    fn failed(&mut self, error: &Error, selection: &Selection) {
        match error {
            Error::Status { code: 504, message, .. } if message.contains(FROM_THE_FUTURE) => {
                (self.version, self.seen, self.expired) = (None, None, true);
            }
            Error::Status { code: 410, .. } => (self.version, self.seen, self.expired) = (None, None, true),
            Error::Status { code: 400, .. } if *selection == Selection::Served => self.without_selector = true,
            // After an answer that made no sense, everything is read again.
            Error::Answer { .. } => self.version = None,
            _ => {}
        }
    }

    /// Everything up to this version is known.
    fn reached(&mut self, version: Option<String>) {
        if version.is_some() {
            self.seen.clone_from(&version);
            self.version = version;
        }
    }

    /// How old a LIST may be.
    fn recency(&self) -> Recency {
        match &self.seen {
            _ if self.expired => Recency::Now,
            Some(version) => Recency::NotOlderThan(version.clone()),
            None => Recency::Any,
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
            session(&feed, &collection, &selection, &mut position).await
        };
        let ended = select! {
            Err(error) = session => Some(error),
            Ok(()) = selections.changed() => None,
        };
        let Some(error) = ended else {
            position.version = None;
            continue;
        };
        position.failed(&error, &selection);
        let failures = position.patience.failed(&error, feed.timing.lasting(), Instant::now());
        // Nothing shortens this: another selection is no reason to come back to a server that wants to be left alone.
        feed.back_off(error, failures).await;
        if selections.borrow().as_ref() != Some(&selection) {
            position.version = None;
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
                let empty = || ObjectBatch::within(selection.clone());
                let listed = server.pages(collection, &query, position.recency(), empty).await;
                let (objects, version) = listed?;
                feed.send(Update::Replaced(selection.clone(), objects)).await;
                position.expired = false;
                position.reached(Some(version.clone()));
                version
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
            position.patience.succeeded(Instant::now());
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
        position.patience.succeeded(Instant::now());
        position.reached(version);
    }
}
