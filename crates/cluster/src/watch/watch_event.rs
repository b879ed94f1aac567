//! One line of a watch: `{"type":"ADDED","object":{...}}` (apimachinery `meta/v1` WatchEvent).

use std::fmt;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Status;
use serde::{
    Deserialize, Deserializer,
    de::{DeserializeSeed, Error, IgnoredAny, MapAccess, Visitor},
};

use crate::{object_reader::ObjectReader, slim_object::SlimObject};

/// One event of a watch.
#[derive(Debug)]
pub(crate) enum WatchEvent {
    /// An object as it is now.
    Applied(Box<SlimObject>),
    /// An object that was deleted, as it was last.
    Deleted(Box<SlimObject>),
    /// A version up to which nothing has changed.
    Bookmark(Box<SlimObject>),
    /// The end of the watch: the code and the message of a Status.
    Error(u16, String),
}

impl WatchEvent {
    /// Reads a line; `kind` is the kind of objects that carry none.
    pub(crate) fn read(line: &[u8], kind: &str) -> Result<Self, serde_json::Error> {
        let mut parser = serde_json::Deserializer::from_slice(line);
        let (word, object) = Envelope { kind }.deserialize(&mut parser)?;
        parser.end()?;
        let is_wrong = |object: &SlimObject| object.kind.seen().is_some_and(|it| it != kind) && word != "ERROR";
        if object.as_ref().is_some_and(is_wrong) {
            return Err(serde_json::Error::custom(format!("it holds something else than a {kind}")));
        }
        let object = || object.map(Box::new).ok_or_else(|| serde_json::Error::custom("it holds no object"));
        match word.as_str() {
            "ADDED" | "MODIFIED" => Ok(Self::Applied(object()?)),
            "DELETED" => Ok(Self::Deleted(object()?)),
            "BOOKMARK" => Ok(Self::Bookmark(object()?)),
            "ERROR" => {
                let Failure { object: Status { code, message, .. } } = serde_json::from_slice(line)?;
                let code = code.and_then(|code| u16::try_from(code).ok()).unwrap_or_default();
                Ok(Self::Error(code, message.unwrap_or_default()))
            }
            _ => Err(serde_json::Error::custom("it is no event of a watch")),
        }
    }

    /// Whether it ends the state with which a watch began (apimachinery `InitialEventsAnnotationKey`).
    pub(super) fn ends_state(&self) -> bool {
        let Self::Bookmark(object) = self else { return false };
        let annotations = object.metadata.seen().and_then(|metadata| metadata.annotations.seen());
        annotations.and_then(|it| it.state_ends.seen()).is_some_and(|ends| ends == "true")
    }

    /// `metadata.resourceVersion` of its object.
    pub(super) fn version(&self) -> Option<&String> {
        match self {
            Self::Applied(object) | Self::Deleted(object) | Self::Bookmark(object) => {
                object.metadata.seen().and_then(|metadata| metadata.version.seen())
            }
            Self::Error(..) => None,
        }
    }
}

#[derive(Deserialize)]
struct Failure {
    object: Status,
}

struct Envelope<'a> {
    kind: &'a str,
}

impl<'de> DeserializeSeed<'de> for Envelope<'_> {
    type Value = (String, Option<SlimObject>);

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Envelope<'_> {
    type Value = (String, Option<SlimObject>);

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an event of a watch")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut word = String::new();
        let mut found = None;
        while let Some(key) = map.next_key::<String>()? {
            match key.as_str() {
                "type" => word = map.next_value()?,
                "object" => {
                    let mut sink = |object| found = Some(object);
                    map.next_value_seed(ObjectReader { kind: Some(self.kind), closed: true, sink: &mut sink })?;
                }
                _ => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok((word, found))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_line_is_recognized_whatever_comes_first() {
        let object = r#"{"kind":"Service","metadata":{"name":"a","namespace":"d","resourceVersion":"7"},"spec":{}}"#;
        let read = |word: &str| {
            let lines = [
                format!(r#"{{"type":"{word}","object":{object}}}"#),
                format!(r#"{{"object":{object},"more":[1],"type":"{word}"}}"#),
            ];
            lines.map(|line| WatchEvent::read(line.as_bytes(), "Service").expect("an event"))
        };
        for event in read("ADDED").into_iter().chain(read("MODIFIED")) {
            assert_eq!(event.version().map(String::as_str), Some("7"));
            assert!(matches!(event, WatchEvent::Applied(object) if object.title() == "d/a"));
        }
        assert!(read("DELETED").iter().all(|event| matches!(event, WatchEvent::Deleted(_))));
        assert!(read("BOOKMARK").iter().all(|event| matches!(event, WatchEvent::Bookmark(_))));
        let line = br#"{"type":"ERROR","object":{"kind":"Status","status":"Failure","message":"too old","code":410}}"#;
        assert!(
            matches!(WatchEvent::read(line, "Service"), Ok(WatchEvent::Error(410, message)) if message == "too old")
        );
    }

    #[test]
    fn an_object_of_another_kind_is_none() {
        for word in ["ADDED", "DELETED", "BOOKMARK"] {
            let line = format!(r#"{{"type":"{word}","object":{{"kind":"Pod","metadata":{{"name":"a"}}}}}}"#);
            assert!(WatchEvent::read(line.as_bytes(), "Service").is_err(), "{line}");
        }
    }

    #[test]
    fn a_line_that_is_no_event_is_an_error() {
        for line in
            ["", "{}", "[]", "<html>", r#"{"type":"ADDED"}"#, r#"{"type":"ADDED","object":{"#, r#"{"type":"X"}"#]
        {
            assert!(WatchEvent::read(line.as_bytes(), "Service").is_err(), "{line}");
        }
    }
}
