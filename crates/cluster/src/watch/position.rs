//! The position of a watcher: the versions that it read, and the features of its server.

use tokio::time::Instant;

use super::{patience::Patience, reading_pace::ReadingPace, selection::Selection};
use crate::{collection::Collection, error::Error, pages::Recency, requests::encoded};

/// A server's message about a version that it has not reached: its state was restored from an earlier time, or it is
/// behind (apimachinery `NewTooLargeResourceVersionError`).
const FROM_THE_FUTURE: &str = "Too large resource version";

/// Whether a server refuses because it has not reached a version.
fn is_from_the_future(error: &Error) -> bool {
    matches!(error, Error::Status { code: 504, message, .. } if message.contains(FROM_THE_FUTURE))
}

/// The position of a watcher.
pub(super) struct WatchPosition {
    /// The resource version from which to watch. `None`: the watch begins with the present state, or, if the server has
    /// no `streams`, a LIST comes first.
    pub(super) version: Option<String>,
    /// The last version that was read. No LIST may be older, from any server.
    seen: Option<String>,
    /// The server was unreachable since the last answer. The next answer may come from an older state.
    pub(super) doubted: bool,
    /// The number of objects at the last complete read.
    pub(super) objects: usize,
    /// The version is gone (410): the next LIST requests the present state, not the server's cache.
    expired: bool,
    /// The server knows no field selector for this resource.
    pub(super) without_selector: bool,
    /// The server may send the present state at the beginning of a watch.
    pub(super) streams: bool,
    pub(super) patience: Patience,
    /// The pace of all its watches. It continues after a server ends one.
    pub(super) pace: ReadingPace,
}

impl WatchPosition {
    /// Nothing is known yet.
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
            // After an answer that was not understood, everything is read again.
            Error::Answer { .. } | Error::TooMuch { .. } => self.version = None,
            // The next answer may come from another server, which supports streamed lists.
            Error::Unreachable { .. } => (self.doubted, self.streams) = (true, true),
            Error::TimedOut { .. } => self.doubted = true,
            _ => {}
        }
    }

    /// The server does not complete the state with which a watch begins. False: the watch began without such a state.
    pub(super) fn knows_no_streams(&mut self) -> bool {
        self.streams = false;
        false
    }

    /// Everything up to this version is known.
    pub(super) fn reached(&mut self, version: Option<String>) {
        if version.is_some() {
            self.seen.clone_from(&version);
            self.version = version;
        }
    }

    /// Everything was read at this version, with this number of objects.
    pub(super) fn is_whole(&mut self, version: String, objects: usize) {
        self.expired = false;
        self.objects = objects;
        self.reached(Some(version));
    }

    /// The parameters of the start of a watch: at a version, or with the present state. That state is not older than
    /// the last version that was read.
    pub(super) fn beginning(&self) -> String {
        let at = |version: &String| format!("&resourceVersion={}", encoded(version));
        let seen = || self.seen.as_ref().map(at).unwrap_or_default();
        let state = || format!("&sendInitialEvents=true&resourceVersionMatch=NotOlderThan{}", seen());
        self.version.as_ref().map_or_else(state, at)
    }

    /// The path of a small LIST that a server refuses if it has not reached the last version that was read. Without it,
    /// the server accepts a watch from such a version silently (kube-apiserver 1.36). None if there is no reason for
    /// doubt.
    pub(super) fn doubt(&self, collection: &Collection) -> Option<String> {
        let version = self.version.as_ref().filter(|_| self.doubted)?;
        let (root, plural) = collection.path.rsplit_once('/')?;
        // One object by its name: the server finds it by its key, without a walk.
        let one = "fieldSelector=metadata.name%3Dkubernetes&resourceVersionMatch=NotOlderThan";
        Some(format!("{root}/namespaces/default/{plural}?{one}&resourceVersion={}", encoded(version)))
    }

    /// The allowed age of a LIST.
    pub(super) fn recency(&self) -> Recency {
        match &self.seen {
            _ if self.expired => Recency::Now,
            Some(version) => Recency::NotOlderThan(version.clone()),
            None => Recency::Any,
        }
    }
}
