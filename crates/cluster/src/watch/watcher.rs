//! One resource: its state by a watch that begins with it, or by LIST; then WATCH from its resource version, until the task
//! ends.

use std::convert::Infallible;

use tokio::{
    select,
    sync::watch,
    time::{Instant, sleep_until},
};

use super::{
    open_watch::OpenWatch, position::WatchPosition, resource_feed::ResourceFeed, selection::Selection, update::Update,
    watch_lines::WatchLines,
};
use crate::{collection::Collection, error::Error, jitter::jitter, objects::Object};

/// Watches the objects of a kind within a selection, which may change; `None` means that it is not known yet.
pub(super) async fn watcher<K: Object>(feed: ResourceFeed, mut selections: watch::Receiver<Option<Selection>>) {
    let (collection, mut position) = (Collection::of::<K>(), WatchPosition::new());
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
            session::<K>(&feed, &collection, &selection, &mut position).await
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
async fn session<K: Object>(
    feed: &ResourceFeed,
    collection: &Collection,
    selection: &Selection,
    position: &mut WatchPosition,
) -> Result<Infallible, Error> {
    let query = if position.without_selector { String::new() } else { selection.query() };
    let server = feed.connect().await?;
    feed.send(Update::Connected(server.address().to_owned())).await;
    if let Some(path) = position.doubt(collection) {
        match server.text(&path).await {
            // A server that does not understand the question is asked nothing else.
            Ok(_) | Err(Error::Status { code: 400 | 404 | 422, .. }) => position.doubted = false,
            Err(error) => return Err(error),
        }
    }
    loop {
        if position.version.is_none() && !position.streams {
            let empty = || feed.batch(selection);
            let (objects, version) = server.pages::<K, _>(collection, &query, position.recency(), empty).await?;
            position.is_whole(version, objects.objects.len());
            feed.send(Update::Replaced(selection.clone(), objects)).await;
        }
        let began = Instant::now();
        let seconds = feed.timing.spread_watch_duration(jitter()).as_secs().max(1);
        let bounds = format!("watch=1&allowWatchBookmarks=true&timeoutSeconds={seconds}");
        let path = format!("{}?{bounds}{}{query}", collection.path, position.beginning());
        let answer = match server.watch(&path).await {
            // Servers before 1.32, and some after it, know no streamed lists.
            Err(Error::Status { code: 400 | 422, .. }) if position.version.is_none() => {
                position.streams = false;
                continue;
            }
            answer => answer?,
        };
        let mut watch = OpenWatch { feed, server: &server, lines: WatchLines::of(answer) };
        if position.version.is_none() && !watch.read_state::<K>(selection, position).await? {
            continue;
        }
        let brought = watch.follow::<K>(position).await?;
        // A server that ends every watch at once gets a pause between them, and a longer one each time.
        let ends = position.patience.ended(brought, began.elapsed(), feed.timing.lasting());
        sleep_until(began + feed.timing.backoff(ends, None, jitter())).await;
    }
}
