//! The position of a watcher: the resource versions that it read, and the features of its server.

use tokio::time::Instant;

use super::{patience::Patience, reading_pace::ReadingPace, selection::Selection};
use crate::{collection::Collection, error::Error, pages::Recency, requests::encoded};

/// The message of a server that has not reached the requested version. The server was restored from an old state, or is
/// behind other servers (apimachinery `NewTooLargeResourceVersionError`).
const FROM_THE_FUTURE: &str = "Too large resource version";

fn is_from_the_future(error: &Error) -> bool {
    matches!(error, Error::Status { code: 504, message, .. } if message.contains(FROM_THE_FUTURE))
}

pub(super) struct WatchPosition {
    /// The resource version from which the next watch begins. If the version is `None`, the watch begins with the
    /// present state. If `streams` is false, a LIST comes before the watch.
    pub(super) version: Option<String>,
    /// The last version that was read. A later LIST must be at least as new, even if another server answers.
    seen: Option<String>,
    /// Whether the server was unreachable since the last answer. If true, the next answer may show an older state.
    pub(super) doubted: bool,
    pub(super) objects: usize,
    /// Whether the version is gone (410). If true, the next LIST requests the present state instead of the server's
    /// cache.
    expired: bool,
    pub(super) without_selector: bool,
    /// Whether the server may support a watch that begins with the present state.
    pub(super) streams: bool,
    pub(super) patience: Patience,
    /// How often the watch is read. This pace stays the same if a server ends a watch.
    pub(super) pace: ReadingPace,
}

impl WatchPosition {
    pub(super) fn new() -> Self {
        Self {
            version: None,
            seen: None,
            doubted: false,
            objects: 0,
            expired: false,
            without_selector: false,
            streams: true,
            patience: Patience::default(),
            pace: ReadingPace::new(Instant::now()),
        }
    }

    pub(super) fn failed(&mut self, error: &Error, selection: &Selection) {
        match error {
            error if is_from_the_future(error) => (self.version, self.seen, self.expired) = (None, None, true),
            Error::Status { code: 410, .. } => (self.version, self.seen, self.expired) = (None, None, true),
            Error::Status { code: 400, .. } if *selection == Selection::Served => self.without_selector = true,
            // An answer that cannot be used may have lost a change. So everything is read again.
            Error::Answer { .. } | Error::TooMuch { .. } => self.version = None,
            // The next answer may come from another server, and that server may send the present state at the start of
            // a watch.
            Error::Unreachable { .. } => (self.doubted, self.streams) = (true, true),
            Error::TimedOut { .. } => self.doubted = true,
            _ => {}
        }
    }

    /// Notes that the server did not send the present state at the start of a watch. So the watcher uses a LIST next
    /// time. Returns false, because the watch began without a state.
    pub(super) fn knows_no_streams(&mut self) -> bool {
        self.streams = false;
        false
    }

    pub(super) fn reached(&mut self, version: Option<String>) {
        if version.is_some() {
            self.seen.clone_from(&version);
            self.version = version;
        }
    }

    /// Notes that the whole state at this version was read, with this number of objects.
    pub(super) fn is_whole(&mut self, version: String, objects: usize) {
        self.expired = false;
        self.objects = objects;
        self.reached(Some(version));
    }

    /// The parameters with which a watch begins. The state must be at least as new as the last version that was read.
    pub(super) fn beginning(&self) -> String {
        let at = |version: &String| format!("&resourceVersion={}", encoded(version));
        let seen = || self.seen.as_ref().map(at).unwrap_or_default();
        let state = || format!("&sendInitialEvents=true&resourceVersionMatch=NotOlderThan{}", seen());
        self.version.as_ref().map_or_else(state, at)
    }

    /// The path of a small LIST that checks whether the server has reached the last known version. A server behind this
    /// version refuses the LIST. The same server accepts a watch from this version, and sends no error (kube-apiserver
    /// 1.36). `None` if there was no failure.
    pub(super) fn doubt(&self, collection: &Collection) -> Option<String> {
        let version = self.version.as_ref().filter(|_| self.doubted)?;
        let (root, plural) = collection.path.rsplit_once('/')?;
        // The selector names one object, so the server does not search all objects.
        let one = "fieldSelector=metadata.name%3Dkubernetes&resourceVersionMatch=NotOlderThan";
        Some(format!("{root}/namespaces/default/{plural}?{one}&resourceVersion={}", encoded(version)))
    }

    pub(super) fn recency(&self) -> Recency {
        match &self.seen {
            _ if self.expired => Recency::Now,
            Some(version) => Recency::NotOlderThan(version.clone()),
            None => Recency::Any,
        }
    }
}
