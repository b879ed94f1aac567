//! The lines of a watch. Each line has a limit, and contains one event that describes a change:
//! `{"type":"ADDED","object":{...}}` (apimachinery `meta/v1` WatchEvent).

use std::{borrow::Cow, io::ErrorKind};

use kube::core::ObjectMeta;
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::io::{AsyncBufRead, AsyncBufReadExt as _, AsyncReadExt as _, Lines, Take};

use super::index::CachedObject;
use crate::{
    answer::{LONGEST_OBJECT, wrong},
    error::{Error, causes},
    input_meter::WHOLE,
    objects::{Identity, Object},
};
use portreeve_facts::text;

/// The longest line, in bytes: one object and the type of its event.
const LINE: u64 = LONGEST_OBJECT as u64;
const MESSAGE: usize = 256;
/// The annotation `InitialEventsAnnotationKey` of apimachinery.
const ENDS_STATE: &str = "k8s.io/initial-events-end";

pub(crate) struct EventLines {
    /// The limit of this reader is the number of bytes that may still follow in the present line.
    lines: Lines<Take<Box<dyn AsyncBufRead + Send + Unpin>>>,
    /// The request of the watch, for messages.
    pub(super) request: String,
}

impl EventLines {
    pub(crate) fn new(request: String, body: impl AsyncBufRead + Send + Unpin + 'static) -> Self {
        let body: Box<dyn AsyncBufRead + Send + Unpin> = Box::new(body.take(WHOLE as u64));
        Self { lines: body.take(LINE).lines(), request }
    }

    /// The next line that is not empty. `None` at the end. If the caller stops waiting, no byte is lost.
    ///
    /// # Errors
    /// Fails if the line is too long or is not text, or if the connection breaks.
    pub(super) async fn next(&mut self) -> Result<Option<String>, Error> {
        loop {
            let line = self.lines.next_line().await;
            // At the limit, the reader stops as at the end of the data, and can return a cut line. So this function
            // first checks whether the line reached the limit.
            if self.lines.get_ref().limit() == 0 {
                let what = format!("one event is longer than {} MiB", LONGEST_OBJECT >> 20);
                return Err(Error::TooMuch { request: self.request.clone(), what });
            }
            self.lines.get_mut().set_limit(LINE);
            match line {
                Ok(Some(line)) if line.trim_ascii().is_empty() => {}
                Ok(line) => return Ok(line),
                Err(error) if error.kind() == ErrorKind::InvalidData => {
                    return Err(malformed(&self.request, "it is not text"));
                }
                Err(error) => return Err(Error::Unreachable { request: self.request.clone(), what: causes(&error) }),
            }
        }
    }
}

/// The meaning of a line. The last field is the resource version at this line.
#[derive(Debug, PartialEq)]
pub enum WatchEvent {
    /// The new state of the object with this title, `namespace/name`. The state is `None` if no rule uses the object,
    /// or if the object was deleted.
    Applied(String, Option<CachedObject>, Option<String>),
    /// No object changed. The flag is true if this line is the end of the state with which the watch began.
    Bookmark(bool, Option<String>),
}

#[derive(Deserialize)]
struct Line<'a> {
    #[serde(rename = "type", borrow)]
    word: Cow<'a, str>,
    #[serde(borrow)]
    object: &'a RawValue,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Bookmark {
    metadata: ObjectMeta,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Status {
    code: u16,
    message: Option<String>,
}

impl WatchEvent {
    /// Parses a line from `place`, an answer to `request`. If the API server would refuse the object, the event
    /// contains the object as rejected.
    ///
    /// # Errors
    /// Fails if the text is not a line of a watch, for example because the text is incomplete. Also if the server ended
    /// the watch with a Status.
    pub fn read<K: Object>(request: &str, place: &str, line: &str) -> Result<Self, Error> {
        let Line { word, object } = parsed(request, line)?;
        match &*word {
            "ADDED" | "MODIFIED" => {
                let (Identity { title, version }, object) = CachedObject::read::<K>(place, object);
                Ok(Self::Applied(title, object, version))
            }
            "DELETED" => {
                let Identity { title, version } = Identity::of(object);
                Ok(Self::Applied(title, None, version))
            }
            "BOOKMARK" => {
                let Bookmark { metadata } = parsed(request, object.get())?;
                let ends = metadata.annotations.is_some_and(|all| all.get(ENDS_STATE).is_some_and(|it| it == "true"));
                Ok(Self::Bookmark(ends, metadata.resource_version.filter(|version| !version.is_empty())))
            }
            "ERROR" => {
                let Status { code, message } = parsed(request, object.get())?;
                let message = text::clean(&message.unwrap_or_default(), MESSAGE);
                Err(Error::Status { request: request.to_owned(), code, message, retry_after: None })
            }
            _ => Err(malformed(request, "it is not an event of a watch")),
        }
    }
}

fn parsed<'a, T: Deserialize<'a>>(request: &str, text: &'a str) -> Result<T, Error> {
    serde_json::from_str(text).map_err(|error| malformed(request, &error.to_string()))
}

pub(super) fn malformed(request: &str, what: &str) -> Error {
    wrong(request.to_owned(), "json".to_owned(), what)
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;
    use crate::objects::Service;

    #[tokio::test]
    async fn a_line_has_a_bound_of_its_own_and_the_lines_before_it_are_read() {
        let most = "x".repeat(LONGEST_OBJECT - 2);
        let body = format!("{most}\n{most}\n{}", "ü".repeat(LONGEST_OBJECT));
        let mut lines = EventLines::new(String::new(), Cursor::new(body));
        for _ in 0..2 {
            assert_eq!(lines.next().await.expect("a line").map(|line| line.len()), Some(most.len()));
        }
        assert!(matches!(lines.next().await, Err(Error::TooMuch { .. })), "no end");
    }

    #[tokio::test]
    async fn the_last_line_needs_no_end() {
        let mut lines = EventLines::new(String::new(), Cursor::new("a\nb"));
        for line in [Some("a"), Some("b"), None] {
            assert_eq!(lines.next().await.expect("a line").as_deref(), line);
        }
    }

    #[test]
    fn each_kind_of_line_is_recognized_with_its_fields_in_any_order() {
        let metadata =
            r#"{"name":"a","namespace":"d","resourceVersion":"7","annotations":{"k8s.io/initial-events-end":"true"}}"#;
        let read = |word: &str, spec: &str| {
            let object = format!(r#"{{"metadata":{metadata},"spec":{spec}}}"#);
            let read = |line: &str| WatchEvent::read::<Service>("a watch", "here", line).expect("an event");
            let first = read(&format!(r#"{{"type":"{word}","object":{object}}}"#));
            assert_eq!(first, read(&format!(r#"{{"object":{object},"more":[1],"type":"{word}"}}"#)));
            first
        };
        let (title, version) = ("d/a".to_owned(), Some("7".to_owned()));
        for word in ["ADDED", "MODIFIED"] {
            let WatchEvent::Applied(of, Some(CachedObject::Service(_)), at) = read(word, "{}") else {
                panic!("{word}")
            };
            assert_eq!((of, at), (title.clone(), version.clone()));
            let WatchEvent::Applied(of, Some(CachedObject::More(rejected)), at) = read(word, "5") else {
                panic!("a value that is no Service must be rejected")
            };
            assert_eq!((of, at, rejected.rejected().len()), (title.clone(), version.clone(), 1));
        }
        assert_eq!(read("DELETED", "5"), WatchEvent::Applied(title, None, version.clone()));
        assert_eq!(read("BOOKMARK", "5"), WatchEvent::Bookmark(true, version));
        let line = r#"{"type":"ERROR","object":{"kind":"Status","status":"Failure","message":"too old","code":410}}"#;
        let refused = WatchEvent::read::<Service>("a watch", "here", line).expect_err("a Status");
        assert!(matches!(&refused, Error::Status { code: 410, message, .. } if message == "too old"), "{refused}");
    }

    #[test]
    fn a_line_that_is_no_event_is_an_error() {
        for line in [
            "",
            "{}",
            "[]",
            "<html>",
            r#"{"type":"ADDED"}"#,
            r#"{"type":"ADDED","object":{"#,
            r#"{"type":"X","object":{}}"#,
        ] {
            assert!(WatchEvent::read::<Service>("a watch", "here", line).is_err(), "{line}");
        }
    }
}
