//! The answer to one request: its body as bytes, text or objects, and the errors that are about it.

use std::{
    io::{self, BufReader, Read},
    time::Duration,
};

use http::{Response, header};
use http_body_util::BodyExt;
use hyper::body::Bytes;
use kube::client::Body;
use serde::de::DeserializeSeed;
use tokio::{sync::mpsc, task};

use super::{
    error::{Error, causes},
    object_reader::{DocumentSummary, ObjectReader},
    object_sink::ObjectSink,
};
use crate::facts::text;

/// Frames of a body that may wait for the parser.
const FRAMES: usize = 8;
/// At most this much of a text is read, in bytes: of a refusal or of `/flagz`.
const TEXT: usize = 256 << 10;
/// The longest message of a server that is passed on, in bytes.
const MESSAGE: usize = 256;

/// An answer whose body was not read yet.
pub(super) struct Answer {
    /// The request, for people.
    request: String,
    content: String,
    response: Response<Body>,
}

impl Answer {
    /// The answer to `request`, which is named in errors.
    pub(super) fn new(request: String, response: Response<Body>) -> Self {
        let value = response.headers().get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
        let content = value.map_or_else(|| "without a content type".to_owned(), |value| text::clean(value, 64));
        Self { request, content, response }
    }

    /// The next bytes of the body; `None` at its end.
    pub(super) async fn frame(&mut self) -> Result<Option<Bytes>, Error> {
        match self.response.body_mut().frame().await {
            None => Ok(None),
            // A trailer holds no data.
            Some(Ok(frame)) => Ok(Some(frame.into_data().unwrap_or_default())),
            Some(Err(error)) => Err(Error::Unreachable { request: self.request.clone(), what: causes(&error) }),
        }
    }

    /// The whole body, of at most `most` bytes.
    pub(super) async fn bytes(&mut self, most: usize) -> Result<Vec<u8>, Error> {
        let mut bytes = Vec::new();
        while let Some(frame) = self.frame().await? {
            bytes.extend_from_slice(&frame);
            if bytes.len() > most {
                return Err(self.wrong(&format!("it is longer than {most} bytes")));
            }
        }
        Ok(bytes)
    }

    /// The body as text, cut at [`TEXT`].
    pub(super) async fn text(&mut self) -> Result<String, Error> {
        let mut bytes = Vec::new();
        while let Some(frame) = self.frame().await? {
            bytes.extend_from_slice(&frame);
            if bytes.len() >= TEXT {
                bytes.truncate(TEXT);
                break;
            }
        }
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// The objects of the body, parsed on a blocking thread while it arrives. `place` is where they are read, and
    /// `kind` the kind of those that name none.
    pub(super) async fn objects<S: ObjectSink>(
        &mut self,
        place: String,
        kind: &'static str,
    ) -> Result<(S, DocumentSummary), Error> {
        let (frames, receiver) = mpsc::channel(FRAMES);
        let parser = task::spawn_blocking(move || parse(&place, kind, Frames { receiver, rest: Bytes::new() }));
        let sent = async {
            while let Some(frame) = self.frame().await? {
                if frames.send(frame).await.is_err() {
                    // The parser has stopped; its result has the reason.
                    break;
                }
            }
            Ok(())
        }
        .await;
        drop(frames);
        let parsed = parser.await;
        sent?;
        match parsed {
            Ok(parsed) => parsed.map_err(|error| self.wrong(&error.to_string())),
            Err(panicked) => Err(self.wrong(&panicked.to_string())),
        }
    }

    /// An answer that is not what the request was for.
    pub(super) fn wrong(&self, what: &str) -> Error {
        wrong(self.request.clone(), self.content.clone(), what)
    }

    /// A refusal within an answer, such as the line that ends a watch.
    pub(super) fn refused(&self, code: u16, message: &str) -> Error {
        let (request, message) = (self.request.clone(), text::clean(message, MESSAGE));
        Error::Status { request, code, message, retry_after: None }
    }

    /// An answer other than 200 as an error, with the message of its Status.
    pub(super) async fn into_refusal(mut self) -> Error {
        let status = self.response.status();
        let reason = status.canonical_reason().unwrap_or("an error");
        let retry_after = retry_after(&self.response);
        let body = self.text().await.unwrap_or_default();
        let message = message_of(&body);
        let message = text::clean(message.as_deref().unwrap_or(reason), MESSAGE);
        Error::Status { request: self.request, code: status.as_u16(), message, retry_after }
    }
}

/// The `message` of a refusal. Proxies before an API server answer in shapes of their own, so nothing else has to fit.
fn message_of(body: &str) -> Option<String> {
    let refusal: serde_json::Value = serde_json::from_str(body).ok()?;
    Some(refusal.get("message")?.as_str()?.to_owned())
}

/// An answer that is not what the request was for.
pub(super) fn wrong(request: String, content: String, what: &str) -> Error {
    Error::Answer { request, content, what: text::clean(what, MESSAGE) }
}

/// How long the server wants to be left alone: `Retry-After`, in seconds.
pub(super) fn retry_after(response: &Response<Body>) -> Option<Duration> {
    let value = response.headers().get(header::RETRY_AFTER)?.to_str().ok()?;
    value.trim().parse().ok().map(Duration::from_secs)
}

/// Reads one JSON document to its end.
pub(super) fn parse<S: ObjectSink>(
    place: &str,
    kind: &str,
    body: impl Read,
) -> Result<(S, DocumentSummary), serde_json::Error> {
    let mut objects = S::default();
    let mut parser = serde_json::Deserializer::from_reader(BufReader::new(body));
    let mut sink = |object| objects.add(place, object);
    let summary = ObjectReader { kind: Some(kind), closed: true, sink: &mut sink }.deserialize(&mut parser)?;
    parser.end()?;
    Ok((objects, summary))
}

/// The frames of a body as a blocking reader, for a parser that pulls.
struct Frames {
    receiver: mpsc::Receiver<Bytes>,
    rest: Bytes,
}

impl Read for Frames {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.rest.is_empty() {
            match self.receiver.blocking_recv() {
                Some(bytes) => self.rest = bytes,
                None => return Ok(0),
            }
        }
        let length = self.rest.len().min(buffer.len());
        buffer[..length].copy_from_slice(&self.rest.split_to(length));
        Ok(length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_message_of_a_refusal_is_read_whatever_else_it_holds() {
        let message = |body| message_of(body);
        let status = r#"{"kind":"Status","code":403,"message":"services is forbidden"}"#;
        assert_eq!(message(status).as_deref(), Some("services is forbidden"));
        let of_a_proxy = r#"{"type":"error","code":"Unauthorized","message":"must authenticate"}"#;
        assert_eq!(message(of_a_proxy).as_deref(), Some("must authenticate"));
        for other in ["", "<html>", "[]", r#"{"message":7}"#] {
            assert_eq!(message(other), None, "{other}");
        }
    }
}
