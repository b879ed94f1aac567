//! Requests to the API server: time limits, and second attempts.

use std::time::Duration;

use http::{HeaderValue, Request, header};
use kube::client::{Body, Client};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use tokio::time;

use super::{
    answer::{Answer, Limits, short_wait, wrong},
    error::{Error, NO_ANSWER, causes},
    facts_builder::FactsBuilder,
    jitter::{jitter, spread},
    objects::{Object, decode},
    reviews::TOKEN_HEADER,
    watch::watch_event::EventLines,
};

/// The longest answer that is kept in memory as one piece, in bytes. An object in etcd has at most 1.5 MB.
const HELD: usize = 8 << 20;
pub(super) const JSON: &str = "application/json, */*;q=0.8";
/// `Accept` for a Table with the columns of `kubectl get --output wide`. A server that cannot send Tables sends whole
/// objects.
pub(super) const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io, application/json;q=0.9";

#[derive(Clone)]
pub(super) struct Server {
    client: Client,
    address: String,
    timeout: Duration,
    retries: bool,
}

impl Server {
    /// A server whose requests may be repeated: if the server is busy and names a short time to wait, the request is
    /// sent once more.
    pub(super) fn new(client: Client, address: String, timeout: Duration) -> Self {
        Self { client, address, timeout, retries: true }
    }

    /// Does not repeat a request to a busy server. The caller gets the error, and repeats the request later.
    pub(super) fn without_retry(self) -> Self {
        Self { retries: false, ..self }
    }

    pub(super) fn timeout(&self) -> Duration {
        self.timeout
    }

    pub(super) fn address(&self) -> &str {
        &self.address
    }

    pub(super) fn not_a_list(&self, path: &str, what: &str) -> Error {
        wrong(self.request(path), "json".to_owned(), what)
    }

    pub(super) async fn facts_of<K: Object>(&self, path: &str) -> Result<FactsBuilder, Error> {
        self.in_time(path, async {
            let (_, object) = self.object(path).await?;
            let mut facts = FactsBuilder::default();
            facts.add::<K>(&self.address, &*object);
            Ok(facts)
        })
        .await
    }

    pub(super) async fn only<T: DeserializeOwned>(&self, path: &str) -> Result<T, Error> {
        self.in_time(path, async {
            let (answer, object) = self.object(path).await?;
            decode(&*object).map_err(|why| answer.wrong(&why.to_string()))
        })
        .await
    }

    async fn object(&self, path: &str) -> Result<(Answer, Box<RawValue>), Error> {
        let mut answer = self.answer(JSON, None, path, None).await?;
        let body = answer.bytes(HELD).await?;
        let object = serde_json::from_slice(&body).map_err(|error| answer.wrong(&error.to_string()))?;
        Ok((answer, object))
    }

    /// The answer as bytes, at most `most`. `token` is a token for an agent.
    pub(super) async fn bytes(&self, path: &str, token: Option<&HeaderValue>, most: usize) -> Result<Vec<u8>, Error> {
        self.in_time(path, async { self.answer(JSON, token, path, None).await?.bytes(most).await }).await
    }

    /// An answer as text, cut at 256 KiB.
    pub(super) async fn text(&self, path: &str) -> Result<String, Error> {
        self.in_time(path, async { self.answer(JSON, None, path, None).await?.text().await }).await
    }

    /// The lines of a watch, which arrive without a time limit.
    pub(super) async fn watch(&self, path: &str) -> Result<EventLines, Error> {
        self.answer(JSON, None, path, None).await.map(Answer::lines)
    }

    async fn in_time<T>(&self, path: &str, work: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        let late = |_| Err(Error::TimedOut { request: self.request(path), what: NO_ANSWER, limit: self.timeout });
        time::timeout(self.timeout, work).await.unwrap_or_else(late)
    }

    /// Sends a request. If a busy server names a short time to wait, the request is sent once more after this time.
    pub(super) async fn answer(
        &self,
        accept: &'static str,
        token: Option<&HeaderValue>,
        path: &str,
        limits: Option<Limits>,
    ) -> Result<Answer, Error> {
        let unreachable = |error: &(dyn std::error::Error + 'static)| Error::Unreachable {
            request: self.request(path),
            what: causes(error),
        };
        let mut may_retry = self.retries;
        loop {
            let request = Request::get(path).header(header::ACCEPT, accept);
            let request = token.iter().fold(request, |request, token| request.header(TOKEN_HEADER, *token));
            let request = request.body(Body::empty()).map_err(|error| unreachable(&error))?;
            let sent = self.in_time(path, async { Ok(self.client.send(request).await) }).await?;
            let response = sent.map_err(|error| unreachable(&error))?;
            let status = response.status();
            if status.is_success() {
                return Ok(Answer::new(self.request(path), response, limits));
            }
            if let Some(wait) = short_wait(&response, self.timeout).filter(|_| may_retry) {
                may_retry = false;
                time::sleep(spread(wait, jitter())).await;
                continue;
            }
            let refused = Answer::new(self.request(path), response, None).into_refusal();
            return Err(self.in_time(path, async { Ok(refused.await) }).await?);
        }
    }

    /// The request without its long query, for messages.
    pub(super) fn request(&self, path: &str) -> String {
        format!("GET {}{}", self.address, path.split_once('?').map_or(path, |(path, _)| path))
    }
}

/// A value in a query, percent-encoded (RFC 3986, 2.3).
pub(super) fn encoded(value: &str) -> String {
    const RESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');
    utf8_percent_encode(value, RESERVED).to_string()
}
