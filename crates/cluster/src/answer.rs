//! The answer to one request: its body as bytes, text or objects, and its errors.

use std::{
    io::{self, BufReader, Read},
    time::Duration,
};

use http::{Response, StatusCode, header};
use http_body_util::BodyExt;
use hyper::body::Bytes;
use kube::client::Body;
use serde::de::DeserializeSeed;
use serde_json::value::RawValue;
use tokio::{
    sync::mpsc,
    task,
    time::{Instant, timeout},
};
use tokio_util::io::StreamReader;

use super::{
    error::{Error, causes},
    input_meter::{InputMeter, MeteredInput},
    list_reader::{ListReader, ListSummary},
    watch::watch_event::EventLines,
};
use portreeve_facts::{Why, text};

/// The largest number of objects in a list. An agent has no memory for more objects.
pub(crate) const OBJECTS: usize = 200_000;
/// The longest accepted object, in bytes. etcd accepts requests of at most 1.5 MiB (server/embed/config.go,
/// `DefaultMaxRequestBytes`), and JSON needs at most six bytes for one byte of text.
pub(crate) const LONGEST_OBJECT: usize = 10 << 20;

const FRAMES: usize = 8;
/// Portreeve reads at most this number of bytes from a text, such as a refusal or `/flagz`.
const TEXT: usize = 256 << 10;
const MESSAGE: usize = 256;

/// A function that adds one parsed object to a value. The text names the source of the object. Objects are added one by
/// one, so that memory never contains a whole list.
pub type AddObject<T> = fn(&mut T, &str, &RawValue);

/// The time limits for the body of an answer.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The longest time without a byte.
    pub silence: Duration,
    /// The time by which the body must be complete.
    pub until: Instant,
}

/// An answer whose body was not yet read.
pub struct Answer {
    request: String,
    content: String,
    response: Response<Body>,
    /// `None` if the caller limits the time in which the body is read.
    limits: Option<Limits>,
}

impl Answer {
    /// The answer to `request`. Errors have the name of the request.
    pub fn new(request: String, response: Response<Body>, limits: Option<Limits>) -> Self {
        let value = response.headers().get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
        let content = value.map_or_else(|| "without a content type".to_owned(), |value| text::clean(value, 64));
        Self { request, content, response, limits }
    }

    /// The next bytes of the body; `None` at its end.
    pub async fn frame(&mut self) -> Result<Option<Bytes>, Error> {
        let frame = self.response.body_mut().frame();
        let frame = match self.limits {
            None => frame.await,
            Some(Limits { silence, until }) => {
                let left = until.saturating_duration_since(Instant::now());
                let what = if left < silence { "the answer has not ended" } else { "nothing more of the answer" };
                let limit = left.min(silence);
                let late = |_| Error::TimedOut { request: self.request.clone(), what, limit };
                timeout(limit, frame).await.map_err(late)?
            }
        };
        match frame {
            None => Ok(None),
            // A trailer frame has no data.
            Some(Ok(frame)) => Ok(Some(frame.into_data().unwrap_or_default())),
            Some(Err(error)) => Err(Error::Unreachable { request: self.request.clone(), what: causes(&error) }),
        }
    }

    /// The whole body, of at most `most` bytes.
    pub async fn bytes(&mut self, most: usize) -> Result<Vec<u8>, Error> {
        let mut bytes = Vec::new();
        while let Some(frame) = self.frame().await? {
            bytes.extend_from_slice(&frame);
            if bytes.len() > most {
                return Err(self.too_long(most));
            }
        }
        Ok(bytes)
    }

    /// The body as text, cut after `TEXT` bytes.
    pub async fn text(&mut self) -> Result<String, Error> {
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

    /// Adds the items of the body, which is a List, to `into` while the items arrive. A blocking thread parses the
    /// items. The number in `into` counts the objects of earlier pages.
    pub(crate) async fn objects<T: Send + 'static>(
        &mut self,
        place: String,
        kind: &'static str,
        into: (T, usize),
        add: AddObject<T>,
    ) -> Result<(T, usize, ListSummary), Error> {
        let (frames, receiver) = mpsc::channel(FRAMES);
        let body = Frames { receiver, rest: Bytes::new() };
        let parser = task::spawn_blocking(move || parse(&place, body, kind, into, add));
        let sent = async {
            while let Some(frame) = self.frame().await? {
                if frames.send(frame).await.is_err() {
                    // The parser has stopped. The parser's result contains the reason.
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
            Ok(Ok(parsed)) => Ok(parsed),
            Ok(Err((Why::TooMuch, what))) => Err(Error::TooMuch { request: self.request.clone(), what }),
            Ok(Err((_, what))) => Err(self.wrong(&what)),
            Err(panicked) => Err(self.wrong(&panicked.to_string())),
        }
    }

    pub(crate) fn lines(self) -> EventLines {
        let body = self.response.into_body().map_err(io::Error::other).into_data_stream();
        EventLines::new(self.request, StreamReader::new(body))
    }

    /// The error for an answer that does not match the request.
    pub fn wrong(&self, what: &str) -> Error {
        wrong(self.request.clone(), self.content.clone(), what)
    }

    fn too_long(&self, most: usize) -> Error {
        Error::TooLong { request: self.request.clone(), content: self.content.clone(), most }
    }

    /// Converts an answer with a status other than 200 to an error. The error contains the message of the answer's
    /// Status object.
    pub async fn into_refusal(mut self) -> Error {
        let status = self.response.status();
        let reason = status.canonical_reason().unwrap_or("an error");
        let retry_after = retry_after(&self.response);
        // If the body cannot be read, the error still has the status code.
        let body = self.text().await.unwrap_or_default();
        let message = message_of(&body);
        let message = text::clean(message.as_deref().unwrap_or(reason), MESSAGE);
        Error::Status { request: self.request, code: status.as_u16(), message, retry_after }
    }
}

/// Only `message` is read, because a proxy in front of the API server may send JSON that is not a Status.
fn message_of(body: &str) -> Option<String> {
    let refusal: serde_json::Value = serde_json::from_str(body).ok()?;
    Some(refusal.get("message")?.as_str()?.to_owned())
}

/// The error of an answer that does not match the request.
pub fn wrong(request: String, content: String, what: &str) -> Error {
    Error::Answer { request, content, what: text::clean(what, MESSAGE) }
}

/// The time to wait before a second request to a busy server. `None` if the server names no time, or if the time is at
/// least a quarter of `within`. `within` is the time limit of a request.
pub fn short_wait(response: &Response<Body>, within: Duration) -> Option<Duration> {
    let busy = matches!(response.status(), StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE);
    retry_after(response).filter(|wait| busy && *wait < within / 4)
}

/// The time for which the server wants no request: `Retry-After`, in seconds.
pub fn retry_after(response: &Response<Body>) -> Option<Duration> {
    let value = response.headers().get(header::RETRY_AFTER)?.to_str().ok()?;
    value.trim().parse::<u32>().ok().map(|seconds| Duration::from_secs(seconds.into()))
}

/// Parses one JSON document to its end. The document must be a List of the kind, or a Table. `count` is the number of
/// objects on earlier pages. An error has its kind and the reason.
pub fn parse<T>(
    place: &str,
    body: impl Read,
    kind: &str,
    (mut objects, mut count): (T, usize),
    add: AddObject<T>,
) -> Result<(T, usize, ListSummary), (Why, String)> {
    let meter = InputMeter::new(LONGEST_OBJECT);
    let body = MeteredInput { reader: body, meter: &meter };
    let mut parser = serde_json::Deserializer::from_reader(BufReader::new(body));
    let mut sink = |object: &RawValue| {
        meter.count_object();
        count += 1;
        if count > OBJECTS {
            return Err(too_many());
        }
        add(&mut objects, place, object);
        Ok(())
    };
    let read = ListReader { sink: &mut sink }.deserialize(&mut parser);
    let wrong = |what: String| Err((Why::Malformed, what));
    let summary = match read.and_then(|summary| parser.end().map(|()| summary)) {
        Err(_) if count > OBJECTS => return Err((Why::TooMuch, too_many())),
        Err(error) => {
            let fault = meter.fault().filter(|(why, _)| *why == Why::TooMuch);
            return fault.map_or_else(|| wrong(error.to_string()), Err);
        }
        Ok(summary) => summary,
    };
    let is_wanted = |of: &str| of == "Table" || of.strip_suffix("List") == Some(kind);
    let is_last = summary.metadata.next_page.as_ref().is_none_or(String::is_empty);
    match (&summary.kind, summary.metadata.remaining_item_count) {
        (_, Some(remaining)) if is_last && remaining != 0 => {
            wrong(format!("the last page has {remaining} more items on the server, wanted a link to the next page"))
        }
        (Some(other), _) if !is_wanted(other) => wrong(format!("the answer is a {other}, wanted a {kind}List")),
        (None, _) => wrong(format!("the answer has no kind, wanted a {kind}List")),
        _ => Ok((objects, count, summary)),
    }
}

pub(crate) fn too_many() -> String {
    format!("it holds more than {OBJECTS} objects")
}

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
    fn only_a_busy_server_that_names_a_short_time_gets_one_more_request() {
        let wait = |status: u16, after: &str| {
            let response = Response::builder().status(status).header(header::RETRY_AFTER, after);
            short_wait(&response.body(Body::empty()).expect("a response"), Duration::from_secs(10))
        };
        assert_eq!([429, 503].map(|status| wait(status, "2")), [Some(Duration::from_secs(2)); 2]);
        assert_eq!([wait(429, "3"), wait(429, "soon"), wait(500, "2"), wait(200, "2")], [None; 4]);
    }

    #[test]
    fn the_message_of_a_refusal_is_read_in_every_format() {
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
