//! One request to the API server: its time limit, its retry, its answer as a stream of objects.

use std::{
    io::{self, BufReader, Read},
    mem,
    time::Duration,
};

use http::{Request, Response, StatusCode, header};
use http_body_util::BodyExt;
use hyper::body::Bytes;
use kube::client::{Body, Client};
use serde::{Deserialize, de::DeserializeSeed};
use tokio::{sync::mpsc, task, time};

use super::{
    document::{Document, Outcome},
    error::{Error, causes},
    gathered::Gathered,
    wire::Object,
};
use crate::facts::text;

/// Objects of one page of a list that is read once.
const PAGE: usize = 500;
/// Frames of an answer that may wait for the parser.
const FRAMES: usize = 8;
/// At most this much of an error's text or a `/flagz` is read, in bytes.
const TEXT: usize = 256 << 10;
/// The longest line of a watch, in bytes; etcd keeps no object of more than 1.5 MB.
const LINE: usize = 8 << 20;
/// What is asked for: whole objects, or where the server can a Table.
const WHOLE: &str = "application/json, */*;q=0.8";
const BRIEF: &str = "application/json;as=Table;v=v1;g=meta.k8s.io, application/json;q=0.9";
/// The longest message of a server that is passed on, in bytes.
const MESSAGE: usize = 256;

/// What objects of an answer are put into, one by one.
pub(super) trait Collect: Default + Send + 'static {
    /// Takes one object; `place` is where it was read.
    fn accept(&mut self, place: &str, object: Object);
    /// Takes over what another page held.
    fn absorb(&mut self, other: Self);
}

impl Collect for Gathered {
    fn accept(&mut self, place: &str, object: Object) {
        self.accept(place, object);
    }

    fn absorb(&mut self, other: Self) {
        self.absorb(other);
    }
}

/// An API server.
#[derive(Clone)]
pub(super) struct Server {
    client: Client,
    address: String,
    timeout: Duration,
}

impl Server {
    /// A server that is given `timeout` for each request.
    pub(super) fn new(client: Client, address: String, timeout: Duration) -> Self {
        Self { client, address, timeout }
    }

    /// Its address, for people.
    pub(super) fn address(&self) -> &str {
        &self.address
    }

    /// Every object of a list, as of now.
    pub(super) async fn list(&self, path: &str, kind: &'static str, selector: &str) -> Result<Gathered, Error> {
        let pages = self.pages(path, kind, &format!("limit={PAGE}{selector}"), "", Gathered::default).await;
        pages.map(|(gathered, _)| gathered)
    }

    /// Every object of a list, page by page into what `empty` makes, and its version. `recency` says in the query of the
    /// first page how old the answer may be. A list that expired between two pages is read once more from its start, as
    /// of now.
    pub(super) async fn pages<C: Collect>(
        &self,
        path: &str,
        kind: &'static str,
        query: &str,
        recency: &str,
        empty: impl Fn() -> C,
    ) -> Result<(C, Option<String>), Error> {
        let mut all = empty();
        let mut of_all: Option<String> = None;
        let mut next: Option<String> = None;
        let mut restarted = false;
        loop {
            let recency = if restarted { "" } else { recency };
            let page =
                next.as_ref().map_or_else(|| recency.to_owned(), |token| format!("&continue={}", encoded(token)));
            match self.objects(&format!("{path}?{query}{page}"), kind).await {
                Ok((part, Outcome { list: true, next_page, version, .. })) => {
                    all.absorb(part);
                    of_all = of_all.or(version);
                    let stuck = next_page.is_some() && next_page == next;
                    match next_page {
                        Some(_) if stuck => {
                            return Err(self.wrong(path, "json", "it ends with the page it began with"));
                        }
                        Some(token) => next = Some(token),
                        None => return Ok((all, of_all)),
                    }
                }
                Ok(_) => return Err(self.wrong(path, "json", &format!("it is no list of {kind}"))),
                Err(Error::Status { code: 410, .. }) if next.is_some() && !restarted => {
                    (all, of_all, next, restarted) = (empty(), None, None, true);
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// The objects of one answer, and what kind of document it was.
    pub(super) async fn objects<C: Collect>(&self, path: &str, kind: &'static str) -> Result<(C, Outcome), Error> {
        self.objects_in(WHOLE, path, kind).await
    }

    /// The same in brief, with what the columns of `kubectl get --output wide` tell; whole from a server that knows no
    /// Tables.
    pub(super) async fn brief<C: Collect>(&self, path: &str, kind: &'static str) -> Result<(C, Outcome), Error> {
        self.objects_in(BRIEF, path, kind).await
    }

    async fn objects_in<C: Collect>(
        &self,
        form: &'static str,
        path: &str,
        kind: &'static str,
    ) -> Result<(C, Outcome), Error> {
        self.in_time(path, async {
            let mut response = self.answer(form, path).await?;
            let content = content_type(&response);
            let (frames, receiver) = mpsc::channel(FRAMES);
            let place = self.address.clone();
            let parser = task::spawn_blocking(move || parse(&place, kind, Frames { receiver, rest: Bytes::new() }));
            let fed = async {
                while let Some(frame) = response.body_mut().frame().await {
                    let frame = frame.map_err(|error| self.unreachable(path, &error))?;
                    if let Ok(bytes) = frame.into_data()
                        && frames.send(bytes).await.is_err()
                    {
                        // The parser has given up, and says why.
                        break;
                    }
                }
                Ok(())
            }
            .await;
            drop(frames);
            let parsed = parser.await;
            fed?;
            match parsed {
                Ok(parsed) => parsed.map_err(|error| self.wrong(path, &content, &error.to_string())),
                Err(panicked) => Err(self.wrong(path, &content, &panicked.to_string())),
            }
        })
        .await
    }

    /// An answer as text, cut at [`TEXT`].
    pub(super) async fn text(&self, path: &str) -> Result<String, Error> {
        self.in_time(path, async { self.body(path, self.answer(WHOLE, path).await?).await }).await
    }

    /// An answer as it is, of at most `most` bytes.
    pub(super) async fn bytes(&self, path: &str, most: usize) -> Result<Vec<u8>, Error> {
        self.in_time(path, async {
            let mut response = self.answer(WHOLE, path).await?;
            let content = content_type(&response);
            let mut bytes = Vec::new();
            while let Some(frame) = response.body_mut().frame().await {
                let frame = frame.map_err(|error| self.unreachable(path, &error))?;
                bytes.extend_from_slice(frame.data_ref().map_or(&[], |data| data.as_ref()));
                if bytes.len() > most {
                    return Err(self.wrong(path, &content, &format!("it is longer than {most} bytes")));
                }
            }
            Ok(bytes)
        })
        .await
    }

    /// The lines of a watch, as they come.
    pub(super) async fn watch(&self, path: &str) -> Result<Lines, Error> {
        let response = self.in_time(path, self.answer(WHOLE, path)).await?;
        let content = content_type(&response);
        Ok(Lines { server: self.clone(), path: path.to_owned(), content, response, read: Vec::new(), seen: 0 })
    }

    async fn in_time<T>(&self, path: &str, work: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        let late = |_| Err(Error::TimedOut { request: self.named(path), limit: self.timeout });
        time::timeout(self.timeout, work).await.unwrap_or_else(late)
    }

    /// A successful answer. A server that is busy is asked once more, when it says so.
    async fn answer(&self, form: &'static str, path: &str) -> Result<Response<Body>, Error> {
        let mut patient = true;
        loop {
            let request = Request::get(path).header(header::ACCEPT, form).body(Body::empty());
            let request = request.map_err(|error| self.unreachable(path, &error))?;
            let response = self.client.send(request).await.map_err(|error| self.unreachable(path, &error))?;
            let status = response.status();
            if status.is_success() {
                return Ok(response);
            }
            let busy = matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE);
            let wait = retry_after(&response).filter(|wait| *wait < self.timeout / 2);
            if let (true, true, Some(wait)) = (busy, patient, wait) {
                patient = false;
                time::sleep(wait).await;
                continue;
            }
            return Err(self.refusal(path, response).await);
        }
    }

    async fn refusal(&self, path: &str, response: Response<Body>) -> Error {
        #[derive(Deserialize)]
        struct Status {
            message: String,
        }
        let status = response.status();
        let reason = status.canonical_reason().unwrap_or("an error");
        let retry_after = retry_after(&response);
        let body = self.body(path, response).await.unwrap_or_default();
        let message = serde_json::from_str::<Status>(&body).map_or_else(|_| reason.to_owned(), |status| status.message);
        let message = text::clean(&message, MESSAGE);
        Error::Status { request: self.named(path), code: status.as_u16(), message, retry_after }
    }

    async fn body(&self, path: &str, mut response: Response<Body>) -> Result<String, Error> {
        let mut bytes = Vec::new();
        while let Some(frame) = response.body_mut().frame().await {
            let frame = frame.map_err(|error| self.unreachable(path, &error))?;
            bytes.extend_from_slice(frame.data_ref().map_or(&[], |data| data.as_ref()));
            if bytes.len() >= TEXT {
                bytes.truncate(TEXT);
                break;
            }
        }
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// The request for people: without its query, which is ours.
    fn named(&self, path: &str) -> String {
        format!("GET {}{}", self.address, path.split_once('?').map_or(path, |(path, _)| path))
    }

    fn unreachable(&self, path: &str, error: &(dyn std::error::Error + 'static)) -> Error {
        Error::Unreachable { request: self.named(path), what: causes(error) }
    }

    fn wrong(&self, path: &str, content: &str, what: &str) -> Error {
        Error::Answer { request: self.named(path), content: content.to_owned(), what: text::clean(what, MESSAGE) }
    }
}

/// A value in a query, percent-encoded (RFC 3986, 2.3).
pub(super) fn encoded(value: &str) -> String {
    value.bytes().fold(String::with_capacity(value.len()), |mut query, byte| {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            query.push(char::from(byte));
        } else {
            query.push_str(&format!("%{byte:02X}"));
        }
        query
    })
}

fn parse<C: Collect>(place: &str, kind: &str, frames: Frames) -> Result<(C, Outcome), serde_json::Error> {
    let mut gathered = C::default();
    let mut parser = serde_json::Deserializer::from_reader(BufReader::new(frames));
    let mut sink = |object| gathered.accept(place, object);
    let outcome = Document { kind: Some(kind), closed: true, sink: &mut sink }.deserialize(&mut parser)?;
    parser.end()?;
    Ok((gathered, outcome))
}

fn content_type(response: &Response<Body>) -> String {
    let value = response.headers().get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    value.map_or_else(|| "without a content type".to_owned(), |value| text::clean(value, 64))
}

fn retry_after(response: &Response<Body>) -> Option<Duration> {
    let value = response.headers().get(header::RETRY_AFTER)?.to_str().ok()?;
    value.trim().parse().ok().map(Duration::from_secs)
}

/// The lines of an answer that goes on until somebody ends it.
pub(super) struct Lines {
    server: Server,
    path: String,
    content: String,
    response: Response<Body>,
    read: Vec<u8>,
    /// So many bytes of `read` are known to hold no end of a line.
    seen: usize,
}

impl Lines {
    /// The next line; `None` at the end.
    pub(super) async fn next(&mut self) -> Result<Option<Vec<u8>>, Error> {
        loop {
            if let Some(length) = self.read[self.seen..].iter().position(|byte| *byte == b'\n') {
                let rest = self.read.split_off(self.seen + length + 1);
                self.seen = 0;
                return Ok(Some(mem::replace(&mut self.read, rest)));
            }
            self.seen = self.read.len();
            if self.seen > LINE {
                return Err(self.wrong(&format!("a line is longer than {LINE} bytes")));
            }
            match self.response.body_mut().frame().await {
                None if self.read.is_empty() => return Ok(None),
                None => return Err(self.wrong("it ends inside a line")),
                Some(Err(error)) => return Err(self.server.unreachable(&self.path, &error)),
                Some(Ok(frame)) => self.read.extend_from_slice(frame.data_ref().map_or(&[], |data| data.as_ref())),
            }
        }
    }

    /// A line that is not what a watch says.
    pub(super) fn wrong(&self, what: &str) -> Error {
        self.server.wrong(&self.path, &self.content, what)
    }

    /// A line in which the server ends the watch.
    pub(super) fn refused(&self, code: u16, message: &str) -> Error {
        let (request, message) = (self.server.named(&self.path), text::clean(message, MESSAGE));
        Error::Status { request, code, message, retry_after: None }
    }
}

/// The frames of an answer as a blocking reader, for a parser that pulls.
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
