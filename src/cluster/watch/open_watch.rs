//! One watch that a server has answered, from its beginning to its end.

use std::time::Duration;

use tokio::time::{Instant, timeout};

use super::{
    cached_object::ObjectBatch, position::WatchPosition, resource_feed::ResourceFeed, selection::Selection,
    update::Update, watch_event::WatchEvent, watch_lines::WatchLines,
};
use crate::cluster::{error::Error, meter::Meter, object_sink::ObjectSink, pages::WHOLE, requests::Server};

/// A server that cannot go on from a version accepts the watch all the same, and refuses in its first line. Only after
/// so long without a line does the watch confirm that nothing has changed.
const REFUSAL_WINDOW: Duration = Duration::from_secs(1);

/// What one watch may bring, in bytes: a hundred times what ten minutes bring in a large cluster. Beyond it the present
/// state is read anew, within the bounds of a list: what is known must not grow without an end.
const LONGEST: usize = 64 << 20;

/// A watch, line by line.
pub(super) struct OpenWatch<'a> {
    pub(super) feed: &'a ResourceFeed,
    pub(super) server: &'a Server,
    /// The kind of its objects.
    pub(super) kind: &'static str,
    pub(super) lines: WatchLines,
}

impl OpenWatch<'_> {
    /// Reads the present state, with which a watch begins that has no version to begin at. Its end is marked: before that
    /// it is not whole. False where the server does not come to it: it knows no such beginning.
    pub(super) async fn read_state(
        &mut self,
        selection: &Selection,
        position: &mut WatchPosition,
    ) -> Result<bool, Error> {
        let (mut state, meter) = (ObjectBatch::within(selection.clone()), Meter::default());
        let until = Instant::now() + WHOLE;
        loop {
            let wait = self.server.timeout().min(until.saturating_duration_since(Instant::now()));
            let Ok(next) = timeout(wait, self.lines.next()).await else { break };
            let Some(line) = next? else { break };
            if line.trim_ascii().is_empty() {
                continue;
            }
            meter.read(&line).map_err(|error| self.lines.wrong(&error.to_string()))?;
            match self.event(&line)? {
                WatchEvent::Applied(object) => meter.object(state.add(self.server.address(), *object)),
                WatchEvent::Deleted(object) => {
                    meter.object(0);
                    state.remove(&object.title());
                }
                WatchEvent::Error(code, message) => return Err(self.lines.refused(code, &message)),
                event @ WatchEvent::Bookmark(_) if event.ends_state() => {
                    let version = event.version().filter(|version| !version.is_empty()).cloned();
                    let version = version.ok_or_else(|| self.lines.wrong("its state has no resource version"))?;
                    self.feed.send(Update::Replaced(selection.clone(), state)).await;
                    position.is_whole(version);
                    position.patience.succeeded(Instant::now());
                    return Ok(true);
                }
                WatchEvent::Bookmark(_) => meter.object(0),
            }
        }
        position.streams = false;
        Ok(false)
    }

    /// Follows what changes, until the orderly end of the watch. It also ends after `idle_timeout` without a line: the
    /// next watch shows whether the server is there.
    pub(super) async fn follow(&mut self, position: &mut WatchPosition) -> Result<(), Error> {
        let (mut accepted, mut brought) = (false, 0_usize);
        loop {
            let wait = if accepted { self.feed.timing.idle_timeout } else { REFUSAL_WINDOW };
            let next = match timeout(wait, self.lines.next()).await {
                Ok(next) => next?,
                Err(_) if accepted => return Ok(()),
                Err(_) => {
                    accepted = true;
                    self.feed.send(Update::Confirmed).await;
                    continue;
                }
            };
            accepted = true;
            let Some(line) = next else {
                self.feed.send(Update::Confirmed).await;
                position.patience.succeeded(Instant::now());
                return Ok(());
            };
            brought += line.len();
            if brought > LONGEST {
                position.version = None;
                return Ok(());
            }
            if line.trim_ascii().is_empty() {
                continue;
            }
            let event = self.event(&line)?;
            let version = event.version().cloned();
            let update = match event {
                WatchEvent::Applied(object) => {
                    let mut objects = ObjectBatch::default();
                    objects.add(self.server.address(), *object);
                    Update::Applied(objects)
                }
                WatchEvent::Deleted(object) => Update::Deleted(object.title()),
                WatchEvent::Bookmark(_) => Update::Confirmed,
                WatchEvent::Error(code, message) => return Err(self.lines.refused(code, &message)),
            };
            self.feed.send(update).await;
            position.patience.succeeded(Instant::now());
            position.reached(version);
        }
    }

    fn event(&self, line: &[u8]) -> Result<WatchEvent, Error> {
        WatchEvent::read(line, self.kind).map_err(|error| self.lines.wrong(&error.to_string()))
    }
}
