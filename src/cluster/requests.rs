//! Requests to the API server: their time limit, their retry, their pages.

use std::time::Duration;

use http::{Request, StatusCode, header};
use kube::client::{Body, Client};
use serde::de::DeserializeOwned;
use tokio::time;

use super::{
    answer::{Answer, parse, retry_after, wrong},
    collection::Collection,
    error::{Error, causes},
    facts_builder::FactsBuilder,
    object_reader::DocumentSummary,
    object_sink::ObjectSink,
};

/// The `limit` of a list that is read once.
const PAGE: usize = 500;
/// The longest answer that is held whole to be read as a type of `k8s_openapi`, in bytes. etcd stores no object of more
/// than 1.5 MB.
const TYPED: usize = 8 << 20;
/// `Accept` of whole objects.
const WHOLE: &str = "application/json, */*;q=0.8";
/// `Accept` of a Table, from servers that know Tables.
const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io, application/json;q=0.9";

/// An API server.
#[derive(Clone)]
pub(super) struct Server {
    client: Client,
    address: String,
    timeout: Duration,
}

impl Server {
    /// A server, and the time that each request may take.
    pub(super) fn new(client: Client, address: String, timeout: Duration) -> Self {
        Self { client, address, timeout }
    }

    /// Its address, for people.
    pub(super) fn address(&self) -> &str {
        &self.address
    }

    /// Every object of a collection, as of now. `selector` goes to the end of the query.
    pub(super) async fn list(&self, collection: &Collection, selector: &str) -> Result<FactsBuilder, Error> {
        let pages = self.pages(collection, &format!("limit={PAGE}{selector}"), "", FactsBuilder::default).await;
        pages.map(|(facts, _)| facts)
    }

    /// Every object of a collection, page by page into what `empty` makes, and the resource version of the list.
    /// `recency` goes into the query of the first page: how old the answer may be. A list that expired between two pages
    /// is read once more from its start, as of now.
    pub(super) async fn pages<S: ObjectSink>(
        &self,
        collection: &Collection,
        query: &str,
        recency: &str,
        empty: impl Fn() -> S,
    ) -> Result<(S, Option<String>), Error> {
        let path = &collection.path;
        let not_a_list = |what: &str| wrong(self.request(path), "json".to_owned(), what);
        let mut all = empty();
        let mut version_of_all: Option<String> = None;
        let mut next: Option<String> = None;
        let mut restarted = false;
        loop {
            let recency = if restarted { "" } else { recency };
            let page =
                next.as_ref().map_or_else(|| recency.to_owned(), |token| format!("&continue={}", encoded(token)));
            match self.objects(&format!("{path}?{query}{page}"), collection.kind).await {
                Ok((part, DocumentSummary { list: true, next_page, version, .. })) => {
                    all.merge(part);
                    version_of_all = version_of_all.or(version);
                    let stuck = next_page.is_some() && next_page == next;
                    match next_page {
                        Some(_) if stuck => return Err(not_a_list("it ends with the page it began with")),
                        Some(token) => next = Some(token),
                        None => return Ok((all, version_of_all)),
                    }
                }
                Ok(_) => return Err(not_a_list(&format!("it is no list of {}", collection.kind))),
                Err(Error::Status { code: 410, .. }) if next.is_some() && !restarted => {
                    (all, version_of_all, next, restarted) = (empty(), None, None, true);
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// The objects of one answer, and what kind of document it was.
    pub(super) async fn objects<S: ObjectSink>(
        &self,
        path: &str,
        kind: &'static str,
    ) -> Result<(S, DocumentSummary), Error> {
        self.objects_as(WHOLE, path, kind).await
    }

    /// The same as a Table, with the columns of `kubectl get --output wide`; whole objects from a server that knows no
    /// Tables.
    pub(super) async fn table<S: ObjectSink>(
        &self,
        path: &str,
        kind: &'static str,
    ) -> Result<(S, DocumentSummary), Error> {
        self.objects_as(TABLE, path, kind).await
    }

    async fn objects_as<S: ObjectSink>(
        &self,
        accept: &'static str,
        path: &str,
        kind: &'static str,
    ) -> Result<(S, DocumentSummary), Error> {
        self.in_time(path, async { self.answer(accept, path).await?.objects(self.address.clone(), kind).await }).await
    }

    /// A small answer, read as `T`, a type of `k8s_openapi`. `add` takes it with the address of the server, and is
    /// false where it holds nothing.
    ///
    /// Such a type refuses an object with a single field of the wrong type. That answer is read field by field instead,
    /// as lists are: the field is rejected by name, and the rest is kept.
    pub(super) async fn typed<T: DeserializeOwned>(
        &self,
        path: &str,
        kind: &'static str,
        add: impl FnOnce(&mut FactsBuilder, &str, T) -> bool,
    ) -> Result<FactsBuilder, Error> {
        self.in_time(path, async {
            let mut answer = self.answer(WHOLE, path).await?;
            let body = answer.bytes(TYPED).await?;
            let mut facts = FactsBuilder::default();
            if serde_json::from_slice(&body).is_ok_and(|object| add(&mut facts, &self.address, object)) {
                return Ok(facts);
            }
            let parsed = parse(&self.address, kind, body.as_slice());
            parsed.map(|(facts, _)| facts).map_err(|error| answer.wrong(&error.to_string()))
        })
        .await
    }

    /// An answer as text, cut at 256 KiB.
    pub(super) async fn text(&self, path: &str) -> Result<String, Error> {
        self.in_time(path, async { self.answer(WHOLE, path).await?.text().await }).await
    }

    /// The answer to a watch, whose body arrives line by line without a time limit.
    pub(super) async fn watch(&self, path: &str) -> Result<Answer, Error> {
        self.in_time(path, self.answer(WHOLE, path)).await
    }

    async fn in_time<T>(&self, path: &str, work: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        let late = |_| Err(Error::TimedOut { request: self.request(path), limit: self.timeout });
        time::timeout(self.timeout, work).await.unwrap_or_else(late)
    }

    /// A successful answer. A busy server that names a time gets one retry after it.
    async fn answer(&self, accept: &'static str, path: &str) -> Result<Answer, Error> {
        let unreachable = |error: &(dyn std::error::Error + 'static)| Error::Unreachable {
            request: self.request(path),
            what: causes(error),
        };
        let mut may_retry = true;
        loop {
            let request = Request::get(path).header(header::ACCEPT, accept).body(Body::empty());
            let request = request.map_err(|error| unreachable(&error))?;
            let response = self.client.send(request).await.map_err(|error| unreachable(&error))?;
            let status = response.status();
            if status.is_success() {
                return Ok(Answer::new(self.request(path), response));
            }
            let busy = matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE);
            let wait = retry_after(&response).filter(|wait| *wait < self.timeout / 2);
            if let (true, true, Some(wait)) = (busy, may_retry, wait) {
                may_retry = false;
                time::sleep(wait).await;
                continue;
            }
            return Err(Answer::new(self.request(path), response).into_refusal().await);
        }
    }

    /// The request for people: without its query, which is long.
    fn request(&self, path: &str) -> String {
        format!("GET {}{}", self.address, path.split_once('?').map_or(path, |(path, _)| path))
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
