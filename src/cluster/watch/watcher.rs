//! Input and output of one resource: LIST, then WATCH from where it ended, for ever.

use std::{collections::BTreeSet, convert::Infallible, mem, time::Duration};

use tokio::{
    select,
    sync::{mpsc, watch},
    time::{Instant, sleep, sleep_until, timeout},
};

use super::{
    News, Resource,
    event::Event,
    pace::{Pace, dice},
    row::{Row, Rows},
    scope::Scope,
};
use crate::{
    cluster::{
        api::{self, Found},
        connect::{Access, connect},
        error::Error,
        gathered::Gathered,
        requests::{Collect, Server},
    },
    facts::Why,
};

/// Objects of one page of a LIST: few, since every agent of a cluster asks.
const PAGE: usize = 50;
/// Any answer will do that the server has at hand.
const ANY: &str = "&resourceVersion=0";

/// A server that cannot go on from a version takes the watch all the same, and says so in its first line: only silence
/// for so long means that nothing has changed.
const OBJECTION: Duration = Duration::from_secs(1);
/// A place that told settings before and is not there any more is believed to be gone after so many looks in a row, ten
/// seconds or so: a server that has just started does not know all its resources yet, and without what the place told,
/// the NodePort range would be another one.
const GONE: u32 = 5;

/// One resource's way to the server, and to whoever wants the news.
pub(super) struct Line {
    pub(super) resource: Resource,
    pub(super) access: Access,
    pub(super) pace: Pace,
    pub(super) news: mpsc::Sender<(Resource, News)>,
}

impl Line {
    async fn tell(&self, news: News) {
        self.news.send((self.resource, news)).await.expect("the publisher lives as long as the watchers");
    }

    /// A connection of its own, with credentials as they are now: after every failure it is made anew, so that a token
    /// or a certificate authority that has changed is all it takes.
    async fn connect(&self) -> Result<Server, Error> {
        let (client, address) = connect(&self.access).await?;
        Ok(Server::new(client, address, self.access.request_timeout))
    }

    /// Tells of a failure and waits.
    async fn recover(&self, error: Error, failures: u32) {
        let wait = self.pace.back_off(failures, error.retry_after(), dice());
        self.tell(News::Failed(error)).await;
        sleep(wait).await;
    }

    /// Asks nobody.
    async fn rest(&self, scope: &Scope) -> Infallible {
        self.tell(News::Replaced(scope.clone(), Rows::default())).await;
        loop {
            sleep(REST).await;
            self.tell(News::Confirmed).await;
        }
    }

    /// Tells everything there is of what has to be read as a whole.
    async fn replace(&self, gathered: Gathered) {
        let row = Row::More(Box::new(gathered));
        self.tell(News::Replaced(Scope::All, Rows::nameless(row))).await;
    }

    /// Waits until it is time to read again, sooner after a failure, of which it tells.
    async fn pause(&self, failed: Option<Error>, failures: &mut u32) {
        match failed {
            Some(error) => {
                *failures += 1;
                self.recover(error, *failures).await;
            }
            None => {
                *failures = 0;
                sleep(self.pace.settings.mul_f64(1.0 + dice() / 10.0)).await;
            }
        }
    }
}

/// How often a watcher that has nothing to ask says that nothing grows old.
const REST: Duration = Duration::from_secs(10);

/// The path and the kind of what is watched.
pub(super) type Watched = (&'static str, &'static str);

/// Where a watcher is.
#[derive(Default)]
struct Progress {
    /// The version from which to go on; `None` means from a LIST.
    version: Option<String>,
    /// The version is gone: an answer as of now is needed, not one that the server has at hand.
    expired: bool,
    /// The server knows no field selector for this resource.
    plain: bool,
    /// Failures in a row, since the server came up: one that does not know us yet, or not what we know, soon will.
    failures: u32,
    /// The last failure was of such a kind.
    up: bool,
}

impl Progress {
    fn well(&mut self) {
        (self.failures, self.up) = (0, false);
    }
}

/// Watches a resource within a scope, which may change.
pub(super) async fn watcher(line: Line, what: Watched, mut scopes: watch::Receiver<Option<Scope>>) {
    let mut progress = Progress::default();
    loop {
        let Some(scope) = scopes.borrow_and_update().clone() else {
            if scopes.changed().await.is_err() {
                return;
            }
            continue;
        };
        let session = async {
            if scope.is_nothing() {
                line.rest(&scope).await;
            }
            let Err(error) = session(&line, what, &scope, &mut progress).await;
            let up = matches!(error, Error::Status { code: 401 | 403 | 410, .. });
            let came_up = !mem::replace(&mut progress.up, up) && up;
            progress.failures = if came_up { 1 } else { progress.failures.saturating_add(1) };
            match &error {
                Error::Status { code: 410, .. } => (progress.version, progress.expired) = (None, true),
                Error::Status { code: 400, .. } if scope == Scope::Served => progress.plain = true,
                // What was misread is read again as a whole.
                Error::Answer { .. } => progress.version = None,
                _ => {}
            }
            line.recover(error, progress.failures).await;
        };
        select! {
            () = session => {}
            Ok(()) = scopes.changed() => progress.version = None,
        }
    }
}

/// From connecting to the first failure.
async fn session(line: &Line, what: Watched, scope: &Scope, progress: &mut Progress) -> Result<Infallible, Error> {
    let (path, kind) = what;
    let query = if progress.plain { String::new() } else { scope.query() };
    let server = line.connect().await?;
    line.tell(News::Reached(server.address().to_owned())).await;
    loop {
        let version = match &progress.version {
            Some(version) => version.clone(),
            None => {
                let recency = if progress.expired { "" } else { ANY };
                let listed = server
                    .pages(path, kind, &format!("limit={PAGE}{query}"), recency, || Rows::within(scope.clone()))
                    .await;
                let (rows, version) = listed?;
                line.tell(News::Replaced(scope.clone(), rows)).await;
                progress.expired = false;
                progress.version.insert(version.unwrap_or_default()).clone()
            }
        };
        let began = Instant::now();
        let seconds = line.pace.watch_for(dice()).as_secs().max(1);
        let bounds = format!("watch=1&allowWatchBookmarks=true&timeoutSeconds={seconds}&resourceVersion={version}");
        follow(line, &server, &format!("{path}?{bounds}{query}"), kind, progress).await?;
        // A server that ends every watch at once is not asked without a pause.
        sleep_until(began + line.pace.back_off(1, None, dice())).await;
    }
}

/// One watch, from its beginning to its orderly end. Silence ends it too: the next one shows whether anybody is there.
async fn follow(
    line: &Line,
    server: &Server,
    path: &str,
    kind: &'static str,
    progress: &mut Progress,
) -> Result<(), Error> {
    let mut lines = server.watch(path).await?;
    let mut accepted = false;
    loop {
        let patience = if accepted { line.pace.idle } else { OBJECTION };
        let next = match timeout(patience, lines.next()).await {
            Ok(next) => next?,
            Err(_) if accepted => return Ok(()),
            Err(_) => {
                accepted = true;
                line.tell(News::Confirmed).await;
                continue;
            }
        };
        accepted = true;
        let Some(text) = next else {
            line.tell(News::Confirmed).await;
            progress.well();
            return Ok(());
        };
        if text.trim_ascii().is_empty() {
            continue;
        }
        let event = Event::read(&text, kind).map_err(|error| lines.wrong(&error.to_string()))?;
        let version = event.version().cloned();
        line.tell(match event {
            Event::Applied(object) => {
                let mut rows = Rows::default();
                rows.accept(server.address(), *object);
                News::Applied(rows)
            }
            Event::Deleted(object) => News::Deleted(object.title()),
            Event::Bookmark(_) => News::Confirmed,
            Event::Ended(code, message) => return Err(lines.refused(code, &message)),
        })
        .await;
        progress.well();
        progress.version = version.or(progress.version.take());
    }
}

/// Reads settings now and then: nobody may watch objects by name, and they hardly ever change.
pub(super) async fn settings(line: Line) {
    let mut failures = 0;
    // The places that told something when the settings were last read as a whole.
    let mut known: Option<BTreeSet<api::Place>> = None;
    // How often in a row one of them was not there.
    let mut absent = 0;
    loop {
        let found = async { Ok(api::settings(&line.connect().await?).await) };
        let failed = match found.await {
            Err(error) => Some(error),
            Ok(Found { gathered, told, silent, broken }) => {
                let told_before = |place: &api::Place| known.as_ref().is_some_and(|known| known.contains(place));
                let mut lost: Vec<Error> =
                    silent.into_iter().filter(|(place, _)| told_before(place)).map(|(_, error)| error).collect();
                absent = if lost.is_empty() { 0 } else { absent + 1 };
                // What was open before and is closed now is not the same as absent.
                lost.retain(|error| error.why() == Why::NotPermitted || absent < GONE);
                // Until everything is known, what some places say is better than nothing; what none says is nothing.
                if lost.is_empty() && (broken.is_empty() || (known.is_none() && broken.len() < api::PLACES)) {
                    line.replace(gathered).await;
                }
                if lost.is_empty() && broken.is_empty() {
                    known = Some(told);
                }
                broken.into_iter().map(|(_, error)| error).chain(lost).next()
            }
        };
        line.pause(failed, &mut failures).await;
    }
}

/// Reads Nodes now and then: a kubelet changes its Node every five minutes, and to hear that of thousands would cost more
/// than everything else. What rules ask of a Node hardly ever changes.
pub(super) async fn nodes(line: Line, own: Option<&str>) {
    let mut failures = 0;
    loop {
        let found = async { api::nodes(&line.connect().await?, own).await };
        let failed = match found.await {
            Ok(nodes) => {
                line.replace(nodes).await;
                None
            }
            Err(error) => Some(error),
        };
        line.pause(failed, &mut failures).await;
    }
}
