//! Where a watcher is: what it has seen, and what it has learnt about its server.

use tokio::time::Instant;

use super::{patience::Patience, reading_pace::ReadingPace, selection::Selection};
use crate::{collection::Collection, error::Error, pages::Recency, requests::encoded};

/// What a server says of a version that it has not reached: its state was restored from before it, or it lags behind
/// (apimachinery `NewTooLargeResourceVersionError`).
const FROM_THE_FUTURE: &str = "Too large resource version";

/// Whether a server refuses since it has not reached a version.
fn is_from_the_future(error: &Error) -> bool {
    matches!(error, Error::Status { code: 504, message, .. } if message.contains(FROM_THE_FUTURE))
}

/// Where a watcher is.
pub(super) struct WatchPosition {
    /// The resource version from which to watch; `None`: the watch begins with the present state, or a LIST comes first where
    /// the server has no `streams`.
    pub(super) version: Option<String>,
    /// The last version that was seen. No LIST may be older, whichever server answers it.
    seen: Option<String>,
    /// The server could not be reached meanwhile: what answers now may have an older state.
    pub(super) doubted: bool,
    /// So many objects were there when everything was read.
    pub(super) objects: usize,
    /// The version is gone (410): the next LIST asks for the present state, not for the server's cache.
    expired: bool,
    /// The server knows no field selector for this resource.
    pub(super) without_selector: bool,
    /// The server may send the present state as the beginning of a watch.
    pub(super) streams: bool,
    pub(super) patience: Patience,
    /// The pace of all its watches: a server that ends one does not begin it anew.
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
            // After an answer that made no sense, everything is read again.
            Error::Answer { .. } | Error::TooMuch { .. } => self.version = None,
            // The server that answers next may be another one, and know streamed lists.
            Error::Unreachable { .. } => (self.doubted, self.streams) = (true, true),
            Error::TimedOut { .. } => self.doubted = true,
            _ => {}
        }
    }

    /// The server does not come to the end of a state with which a watch begins. False: there is no such state.
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

    /// Everything was read, as of this version: so many objects.
    pub(super) fn is_whole(&mut self, version: String, objects: usize) {
        self.expired = false;
        self.objects = objects;
        self.reached(Some(version));
    }

    /// The parameters with which a watch begins: at a version, or with the present state, which is not older than what
    /// was seen.
    pub(super) fn beginning(&self) -> String {
        let at = |version: &String| format!("&resourceVersion={}", encoded(version));
        let seen = || self.seen.as_ref().map(at).unwrap_or_default();
        let state = || format!("&sendInitialEvents=true&resourceVersionMatch=NotOlderThan{}", seen());
        self.version.as_ref().map_or_else(state, at)
    }

    /// The path of a small LIST that a server refuses if it has not reached the version that was seen. A watch from such
    /// a version it accepts without a word (kube-apiserver 1.36). Nothing where there is no reason to doubt it.
    pub(super) fn doubt(&self, collection: &Collection) -> Option<String> {
        let version = self.version.as_ref().filter(|_| self.doubted)?;
        let (root, plural) = collection.path.rsplit_once('/')?;
        // One object by its name: the server looks up its key, and walks nothing.
        let one = "fieldSelector=metadata.name%3Dkubernetes&resourceVersionMatch=NotOlderThan";
        Some(format!("{root}/namespaces/default/{plural}?{one}&resourceVersion={}", encoded(version)))
    }

    /// How old a LIST may be.
    pub(super) fn recency(&self) -> Recency {
        match &self.seen {
            _ if self.expired => Recency::Now,
            Some(version) => Recency::NotOlderThan(version.clone()),
            None => Recency::Any,
        }
    }
}
