//! Watches one resource. The state comes from the start of a watch, or from a LIST. Afterwards, a WATCH continues from
//! the resource version of the state.

use std::{convert::Infallible, mem, time::Duration};

use tokio::{
    select,
    sync::watch,
    time::{Instant, sleep, sleep_until, timeout},
};

use super::{
    index::{ObjectBatch, Update},
    position::WatchPosition,
    reading_pace::{ReadingPace, TOGETHER},
    resource_feed::ResourceFeed,
    selection::Selection,
    watch_event::{EventLines, WatchEvent, malformed},
};
use crate::{
    answer::{OBJECTS, too_many},
    collection::Collection,
    error::Error,
    jitter::jitter,
    objects::Object,
    pages::WHOLE,
    requests::{JSON, Server},
};

/// A server that cannot continue from a version may accept the watch, and refuse it with the first line. So the watcher
/// waits for this time before it reports *no change*.
const REFUSAL_WINDOW: Duration = Duration::from_secs(1);
/// The number of lines that a new watch reads without a pause. A server refuses a watch in the first line.
const FIRST: u32 = 4;
/// The largest number of bytes that one watch may send. In a large cluster, a watch sends a hundredth of this number in
/// ten minutes. If a watch sends more bytes, the watcher reads the present state again, and the limits of a list apply.
/// So the known state cannot grow without end.
const LONGEST: usize = 64 << 20;
/// A watch that sends old changes can cost more than a new list. So the watcher lists again after so many bytes of one
/// watch: `STATE`, and `OBJECT` for each known object.
const STATE: usize = 4 << 20;
const OBJECT: usize = 2 << 10;

/// Watches one resource. If the selection is `None`, waits until the selection is known.
pub(super) async fn watcher<K: Object>(feed: ResourceFeed, mut selections: watch::Receiver<Option<Selection>>) {
    let mut position = WatchPosition::new();
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
            session::<K>(&feed, &selection, &mut position).await
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
        // This wait protects the server. So a new selection does not end the wait early.
        feed.back_off(error, failures).await;
        if selections.borrow().as_ref() != Some(&selection) {
            position.version = None;
        }
    }
}

async fn session<K: Object>(
    feed: &ResourceFeed,
    selection: &Selection,
    position: &mut WatchPosition,
) -> Result<Infallible, Error> {
    let collection = Collection::of::<K>();
    let query = if position.without_selector { String::new() } else { selection.query() };
    let server = feed.connect().await?;
    feed.send(Update::Connected(server.address().to_owned())).await;
    if let Some(path) = position.doubt(&collection) {
        match server.text(&path).await {
            // The server has reached the version, or does not support the check. The check is not repeated.
            Ok(_) | Err(Error::Status { code: 400 | 404 | 422, .. }) => position.doubted = false,
            Err(error) => return Err(error),
        }
    }
    loop {
        if position.version.is_none() && !position.streams {
            let empty = || feed.batch(selection);
            let (objects, version) =
                server.pages(JSON, &collection, &query, position.recency(), empty, ObjectBatch::add::<K>).await?;
            position.is_whole(version, objects.objects.len());
            feed.send(Update::Replaced(selection.clone(), objects)).await;
        }
        let began = Instant::now();
        let seconds = feed.timing.spread_watch_duration(jitter()).as_secs().max(1);
        let bounds = format!("watch=1&allowWatchBookmarks=true&timeoutSeconds={seconds}");
        let path = format!("{}?{bounds}{}{query}", collection.path, position.beginning());
        let lines = match server.watch(&path).await {
            // The server does not support a watch that begins with the present state. Servers before 1.32 and some
            // later servers do not support this watch.
            Err(Error::Status { code: 400 | 422, .. }) if position.version.is_none() => {
                position.streams = false;
                continue;
            }
            lines => lines?,
        };
        let mut watch = OpenWatch { feed, server: &server, lines, read: 0, behind: None, in_batch: false };
        if position.version.is_none() && !watch.read_state::<K>(selection, position).await? {
            continue;
        }
        let brought = watch.follow::<K>(position).await?;
        // If a server ends every watch immediately, the watcher waits longer and longer before the next watch.
        let ends = position.patience.ended(brought, began.elapsed(), feed.timing.lasting());
        sleep_until(began + feed.timing.backoff(ends, None, jitter())).await;
    }
}

struct OpenWatch<'a> {
    feed: &'a ResourceFeed,
    server: &'a Server,
    lines: EventLines,
    /// The number of lines that were read, at most [`FIRST`].
    read: u32,
    /// The time since which lines have arrived faster than they are read.
    behind: Option<Instant>,
    /// Whether the last line belongs to a batch that may go on.
    in_batch: bool,
}

impl OpenWatch<'_> {
    /// Reads the present state from the start of a watch. The state is complete when the server marks the end of the
    /// state. Returns false if the server sends no end mark, because the server does not support a watch that begins
    /// with the present state.
    async fn read_state<K: Object>(
        &mut self,
        selection: &Selection,
        position: &mut WatchPosition,
    ) -> Result<bool, Error> {
        let mut state = self.feed.batch(selection);
        let until = Instant::now() + WHOLE;
        // The limit for objects is also used as the limit for events. Deletions and bookmarks are few.
        for _ in 0..=OBJECTS {
            let wait = self.server.timeout().min(until.saturating_duration_since(Instant::now()));
            let Ok(next) = timeout(wait, self.lines.next()).await else { return Ok(position.knows_no_streams()) };
            let Some(line) = next? else { return Ok(position.knows_no_streams()) };
            match WatchEvent::read::<K>(&self.lines.request, self.server.address(), &line)? {
                WatchEvent::Applied(title, object, _) => state.put(title, object),
                WatchEvent::Bookmark(true, Some(version)) => {
                    position.is_whole(version, state.objects.len());
                    self.feed.send(Update::Replaced(selection.clone(), state)).await;
                    position.patience.succeeded(Instant::now());
                    return Ok(true);
                }
                WatchEvent::Bookmark(true, None) => {
                    return Err(malformed(&self.lines.request, "the state has no resource version"));
                }
                WatchEvent::Bookmark(false, _) => {}
            }
        }
        Err(Error::TooMuch { request: self.lines.request.clone(), what: too_many() })
    }

    /// Reads changes until the watch ends, or until no line arrives for `idle_timeout`. Returns whether there was a
    /// change. After an idle watch, the next watch shows whether the server still answers.
    async fn follow<K: Object>(&mut self, position: &mut WatchPosition) -> Result<bool, Error> {
        let (mut accepted, mut brought) = (false, 0_usize);
        loop {
            let wait = if accepted { self.feed.timing.idle_timeout } else { REFUSAL_WINDOW };
            let next = match timeout(wait, self.paced_line(&mut position.pace)).await {
                Ok(next) => next?,
                Err(_) if accepted => return Ok(brought > 0),
                Err(_) => {
                    accepted = true;
                    self.feed.send(Update::Confirmed).await;
                    continue;
                }
            };
            accepted = true;
            // Unread lines may contain changes. So the state is confirmed only up to the time `behind`.
            let as_of = self.behind.unwrap_or_else(Instant::now);
            let Some(line) = next else {
                self.feed.send_as_of(as_of, Update::Confirmed).await;
                position.patience.succeeded(Instant::now());
                return Ok(brought > 0);
            };
            brought += line.len();
            let enough =
                if as_of.elapsed() < self.feed.timing.behind { LONGEST } else { position.objects * OBJECT + STATE };
            if brought > enough.min(LONGEST) {
                position.version = None;
                return Ok(true);
            }
            let (update, version) = match WatchEvent::read::<K>(&self.lines.request, self.server.address(), &line)? {
                WatchEvent::Applied(title, object, version) => (Update::Applied(title, object), version),
                WatchEvent::Bookmark(_, version) => (Update::Confirmed, version),
            };
            self.feed.send_as_of(as_of, update).await;
            position.patience.succeeded(Instant::now());
            position.reached(version);
        }
    }

    /// Reads a line. If lines arrive constantly, they are read in batches, because reading each line by itself would
    /// wake the process for each line.
    async fn paced_line(&mut self, pace: &mut ReadingPace) -> Result<Option<String>, Error> {
        let was_in_batch = mem::take(&mut self.in_batch);
        let goes_on = was_in_batch && !pace.is_full();
        let together = if goes_on { timeout(TOGETHER, self.lines.next()).await.ok() } else { None };
        let line = match together {
            Some(line) => line,
            None => {
                let now = Instant::now();
                if was_in_batch {
                    self.behind = if goes_on { None } else { self.behind.or(Some(now)) };
                }
                let pause = pace.pause(now);
                if self.read >= FIRST {
                    sleep(pause).await;
                }
                self.lines.next().await
            }
        };
        self.read = (self.read + 1).min(FIRST);
        pace.read(line.as_ref().ok().and_then(Option::as_ref).map_or(0, String::len));
        self.in_batch = true;
        line
    }
}
