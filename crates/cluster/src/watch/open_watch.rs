//! One watch that a server has answered, from its beginning to its end.

use std::time::Duration;

use tokio::time::{Instant, timeout};

use super::{
    line::{InitialState, LineError, change},
    position::WatchPosition,
    resource_feed::ResourceFeed,
    selection::Selection,
    update::Update,
    watch_lines::WatchLines,
};
use crate::{error::Error, objects::Object, pages::WHOLE, requests::Server};

/// A server that cannot go on from a version accepts the watch all the same, and refuses in its first line. Only after
/// so long without a line does the watch confirm that nothing has changed.
const REFUSAL_WINDOW: Duration = Duration::from_secs(1);

/// What one watch may bring, in bytes: a hundred times what ten minutes bring in a large cluster. Beyond it the present
/// state is read anew, within the bounds of a list: what is known must not grow without an end.
const LONGEST: usize = 64 << 20;
/// Where a watch lags behind, the state is not read anew before it has brought so much, and so much for each object of the
/// state, in bytes: both together take no more than twice what the watch alone takes.
const STATE: usize = 4 << 20;
const OBJECT: usize = 2 << 10;

/// A watch, line by line.
pub(super) struct OpenWatch<'a> {
    pub(super) feed: &'a ResourceFeed,
    pub(super) server: &'a Server,
    pub(super) lines: WatchLines,
}

impl OpenWatch<'_> {
    /// Reads the present state, with which a watch begins that has no version to begin at. Its end is marked: before that
    /// it is not whole. False where the server does not come to it: it knows no such beginning.
    pub(super) async fn read_state<K: Object>(
        &mut self,
        selection: &Selection,
        position: &mut WatchPosition,
    ) -> Result<bool, Error> {
        let mut state = InitialState::of(self.feed.batch(selection), self.server.meter());
        let until = Instant::now() + WHOLE;
        loop {
            let wait = self.server.timeout().min(until.saturating_duration_since(Instant::now()));
            let Ok(next) = timeout(wait, self.lines.next(None)).await else { break };
            let Some(line) = next? else { break };
            let taken = state.take::<K>(self.server.address(), &line);
            if let Some(version) = taken.map_err(|error| self.error(error))? {
                let objects = state.into_objects();
                position.is_whole(version, objects.objects.len());
                self.feed.send(Update::Replaced(selection.clone(), objects)).await;
                position.patience.succeeded(Instant::now());
                return Ok(true);
            }
        }
        position.streams = false;
        Ok(false)
    }

    /// Follows what changes, until the orderly end of the watch, and says whether it brought anything. It also ends after
    /// `idle_timeout` without a line: the next watch shows whether the server is there.
    pub(super) async fn follow<K: Object>(&mut self, position: &mut WatchPosition) -> Result<bool, Error> {
        let (mut accepted, mut brought) = (false, 0_usize);
        loop {
            let wait = if accepted { self.feed.timing.idle_timeout } else { REFUSAL_WINDOW };
            let next = match timeout(wait, self.lines.next(Some(&mut position.pace))).await {
                Ok(next) => next?,
                Err(_) if accepted => return Ok(brought > 0),
                Err(_) => {
                    accepted = true;
                    self.feed.send(Update::Confirmed).await;
                    continue;
                }
            };
            accepted = true;
            // What was left unread, nobody confirms.
            let as_of = self.lines.behind().unwrap_or_else(Instant::now);
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
            let changed = change::<K>(self.server.address(), &line, &self.feed.allowance);
            let Some((update, version)) = changed.map_err(|error| self.error(error))? else { continue };
            self.feed.send_as_of(as_of, update).await;
            position.patience.succeeded(Instant::now());
            position.reached(version);
        }
    }

    fn error(&self, error: LineError) -> Error {
        match error {
            LineError::Stopped(why) => self.lines.stopped(&why),
            LineError::Refused(code, message) => self.lines.refused(code, &message),
        }
    }
}
