//! One line of a watch: `{"type":"ADDED","object":{...}}` (apimachinery `meta/v1` WatchEvent).

use std::borrow::Cow;

use serde::{Deserialize, de::Error};
use serde_json::value::RawValue;

/// One event of a watch. Its object is read later, by itself.
#[derive(Debug)]
pub(crate) enum WatchEvent<'a> {
    /// An object as it is now.
    Applied(&'a RawValue),
    /// An object that was deleted, as it was last.
    Deleted(&'a RawValue),
    /// A version up to which nothing has changed, and whether it ends the state with which the watch began.
    Bookmark(Option<String>, bool),
    /// The end of the watch: the code and the message of a Status.
    Error(u16, String),
}

#[derive(Deserialize)]
struct Envelope<'a> {
    #[serde(rename = "type", borrow)]
    word: Cow<'a, str>,
    #[serde(borrow)]
    object: &'a RawValue,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Bookmark {
    metadata: BookmarkMetadata,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct BookmarkMetadata {
    resource_version: Option<String>,
    annotations: Option<BookmarkAnnotations>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct BookmarkAnnotations {
    /// apimachinery `InitialEventsAnnotationKey`.
    #[serde(rename = "k8s.io/initial-events-end")]
    ends_state: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Status {
    code: u16,
    message: Option<String>,
}

impl<'a> WatchEvent<'a> {
    /// Reads a line.
    pub(crate) fn read(line: &'a [u8]) -> Result<Self, serde_json::Error> {
        let Envelope { word, object } = serde_json::from_slice(line)?;
        match &*word {
            "ADDED" | "MODIFIED" => Ok(Self::Applied(object)),
            "DELETED" => Ok(Self::Deleted(object)),
            "BOOKMARK" => {
                let Bookmark { metadata } = serde_json::from_str(object.get())?;
                let ends = metadata.annotations.and_then(|it| it.ends_state).is_some_and(|ends| ends == "true");
                Ok(Self::Bookmark(metadata.resource_version, ends))
            }
            "ERROR" => {
                let Status { code, message } = serde_json::from_str(object.get())?;
                Ok(Self::Error(code, message.unwrap_or_default()))
            }
            _ => Err(serde_json::Error::custom("it is no event of a watch")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_line_is_recognized_whatever_comes_first() {
        let object =
            r#"{"metadata":{"name":"a","resourceVersion":"7","annotations":{"k8s.io/initial-events-end":"true"}}}"#;
        let read = |word: &str| {
            let lines = [
                format!(r#"{{"type":"{word}","object":{object}}}"#),
                format!(r#"{{"object":{object},"more":[1],"type":"{word}"}}"#),
            ];
            lines.map(|line| format!("{:?}", WatchEvent::read(line.as_bytes()).expect("an event")))
        };
        for (word, wanted) in [
            ("ADDED", "Applied("),
            ("MODIFIED", "Applied("),
            ("DELETED", "Deleted("),
            ("BOOKMARK", "Bookmark(Some(\"7\"), true)"),
        ] {
            assert!(read(word).iter().all(|event| event.starts_with(wanted)), "{word}: {:?}", read(word));
        }
        let line = br#"{"type":"ERROR","object":{"kind":"Status","status":"Failure","message":"too old","code":410}}"#;
        assert!(matches!(WatchEvent::read(line), Ok(WatchEvent::Error(410, message)) if message == "too old"));
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
            assert!(WatchEvent::read(line.as_bytes()).is_err(), "{line}");
        }
    }
}
