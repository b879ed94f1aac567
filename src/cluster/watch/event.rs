//! One line of a watch: `{"type":"ADDED","object":{...}}` (apimachinery `meta/v1` WatchEvent).

use std::fmt;

use serde::{
    Deserialize, Deserializer,
    de::{DeserializeSeed, Error, IgnoredAny, MapAccess, Visitor},
};

use super::super::{document::Document, wire::Object};

/// What the server says in one line.
#[derive(Debug)]
pub(super) enum Event {
    /// An object as it is now.
    Applied(Box<Object>),
    /// An object that is no more.
    Deleted(Box<Object>),
    /// A version up to which nothing has changed.
    Bookmark(Box<Object>),
    /// The end of the watch: a status and a sentence.
    Ended(u16, String),
}

impl Event {
    /// Reads a line; `kind` is the kind of objects that carry none.
    pub(super) fn read(line: &[u8], kind: &str) -> Result<Self, serde_json::Error> {
        let mut parser = serde_json::Deserializer::from_slice(line);
        let (word, object) = Envelope { kind }.deserialize(&mut parser)?;
        parser.end()?;
        let object = || object.map(Box::new).ok_or_else(|| serde_json::Error::custom("it holds no object"));
        match word.as_str() {
            "ADDED" | "MODIFIED" => Ok(Self::Applied(object()?)),
            "DELETED" => Ok(Self::Deleted(object()?)),
            "BOOKMARK" => Ok(Self::Bookmark(object()?)),
            "ERROR" => {
                let Failure { object: Status { code, message } } = serde_json::from_slice(line)?;
                Ok(Self::Ended(code, message))
            }
            _ => Err(serde_json::Error::custom("it is no event of a watch")),
        }
    }

    /// `metadata.resourceVersion` of its object.
    pub(super) fn version(&self) -> Option<&String> {
        match self {
            Self::Applied(object) | Self::Deleted(object) | Self::Bookmark(object) => {
                object.metadata.seen().and_then(|metadata| metadata.version.seen())
            }
            Self::Ended(..) => None,
        }
    }
}

#[derive(Deserialize)]
struct Failure {
    object: Status,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Status {
    code: u16,
    message: String,
}

struct Envelope<'a> {
    kind: &'a str,
}

impl<'de> DeserializeSeed<'de> for Envelope<'_> {
    type Value = (String, Option<Object>);

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Envelope<'_> {
    type Value = (String, Option<Object>);

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
                    map.next_value_seed(Document { kind: Some(self.kind), closed: true, sink: &mut sink })?;
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
    fn each_kind_of_line_is_told_apart_whatever_comes_first() {
        let object = r#"{"kind":"Service","metadata":{"name":"a","namespace":"d","resourceVersion":"7"},"spec":{}}"#;
        let read = |word: &str| {
            let lines = [
                format!(r#"{{"type":"{word}","object":{object}}}"#),
                format!(r#"{{"object":{object},"more":[1],"type":"{word}"}}"#),
            ];
            lines.map(|line| Event::read(line.as_bytes(), "Service").expect("an event"))
        };
        for event in read("ADDED").into_iter().chain(read("MODIFIED")) {
            assert_eq!(event.version().map(String::as_str), Some("7"));
            assert!(matches!(event, Event::Applied(object) if object.title() == "d/a"));
        }
        assert!(read("DELETED").iter().all(|event| matches!(event, Event::Deleted(_))));
        assert!(read("BOOKMARK").iter().all(|event| matches!(event, Event::Bookmark(_))));
        let line = br#"{"type":"ERROR","object":{"kind":"Status","status":"Failure","message":"too old","code":410}}"#;
        assert!(matches!(Event::read(line, "Service"), Ok(Event::Ended(410, message)) if message == "too old"));
    }

    #[test]
    fn a_line_that_is_no_event_is_an_error() {
        for line in
            ["", "{}", "[]", "<html>", r#"{"type":"ADDED"}"#, r#"{"type":"ADDED","object":{"#, r#"{"type":"X"}"#]
        {
            assert!(Event::read(line.as_bytes(), "Service").is_err(), "{line}");
        }
    }
}
