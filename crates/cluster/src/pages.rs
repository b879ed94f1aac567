//! Lists that come in pages, and the bounds that keep a server from answering for ever.

use std::{collections::HashSet, time::Duration};

use tokio::time::Instant;

use super::{
    answer::{Limits, ObjectSink},
    collection::Collection,
    error::Error,
    facts_builder::FactsBuilder,
    list_reader::{ListMeta, ListSummary},
    objects::Object,
    requests::{Format, Server, encoded},
};

/// The `limit` of a page.
const PAGE: usize = 500;
/// How long a list may take, with all its pages, as long as they keep coming.
pub(super) const WHOLE: Duration = Duration::from_secs(600);
/// The most pages of a list.
const PAGES: usize = 2_000;
/// The most pages but the last that bring less than half of what they may: a server fills its pages.
const SHORT_PAGES: usize = 20;
/// The longest `continue` token, in bytes: it goes into an URL.
const TOKEN: usize = 4 << 10;

/// How old a list may be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Recency {
    /// As of now. The server reads it from etcd, in pages.
    Now,
    /// Any state that the server has in its cache, which it answers whole, whatever the limit.
    Any,
    /// The same, but not older than a version.
    NotOlderThan(String),
}

impl Recency {
    /// The parameters of the first request.
    fn query(&self) -> String {
        match self {
            Self::Now => format!("limit={PAGE}"),
            Self::Any => "resourceVersion=0".to_owned(),
            Self::NotOlderThan(version) => {
                format!("resourceVersion={}&resourceVersionMatch=NotOlderThan", encoded(version))
            }
        }
    }
}

impl Server {
    /// Every object of a collection, as of now. `selector` is empty, or goes with its `&` into the query.
    pub(super) async fn list<K: Object>(&self, collection: &Collection, selector: &str) -> Result<FactsBuilder, Error> {
        let pages = self.pages::<K, _>(collection, selector, Recency::Now, FactsBuilder::default).await;
        pages.map(|(facts, _)| facts)
    }

    /// Every object of a collection, into what `empty` makes, and the resource version of the list. A list that expired
    /// between two pages is read once more from its start, as of now.
    pub(super) async fn pages<K: Object, S: ObjectSink>(
        &self,
        collection: &Collection,
        selector: &str,
        recency: Recency,
        empty: impl Fn() -> S,
    ) -> Result<(S, String), Error> {
        self.pages_as::<K, S>(Format::Whole, collection, selector, recency, empty).await
    }

    /// The same in another format.
    pub(super) async fn pages_as<K: Object, S: ObjectSink>(
        &self,
        format: Format,
        collection: &Collection,
        selector: &str,
        recency: Recency,
        empty: impl Fn() -> S,
    ) -> Result<(S, String), Error> {
        let limits = Limits { silence: self.timeout(), until: Instant::now() + WHOLE };
        let mut recency = recency;
        let mut restarted = false;
        loop {
            let first = format!("{}?{}{selector}", collection.path, recency.query());
            let list = List { server: self, format, collection, selector, limits };
            match list.read::<K, S>(first, empty()).await {
                Err(Interrupted { error: Error::Status { code: 410, .. }, pages: 1.. }) if !restarted => {
                    (recency, restarted) = (Recency::Now, true);
                }
                Err(Interrupted { error, pages }) => return Err(self.of_a_page(collection, error, pages)),
                Ok(read) => return Ok(read),
            }
        }
    }

    /// What was refused when a part was there already is not absent or forbidden: the list is incomplete.
    fn of_a_page(&self, collection: &Collection, error: Error, pages: usize) -> Error {
        match error {
            Error::Status { code: 401 | 403..=406, message, .. } if pages > 0 => {
                self.not_a_list(&collection.path, &format!("page {} of it is refused: {message}", pages + 1))
            }
            error => error,
        }
    }
}

/// One attempt at a list.
struct List<'a> {
    server: &'a Server,
    format: Format,
    collection: &'a Collection,
    selector: &'a str,
    limits: Limits,
}

/// A list that was not read to its end.
struct Interrupted {
    error: Error,
    /// How many pages were read.
    pages: usize,
}

impl List<'_> {
    async fn read<K: Object, S: ObjectSink>(&self, first: String, empty: S) -> Result<(S, String), Interrupted> {
        let Self { server, collection, selector, .. } = self;
        let (mut all, mut meter) = (empty, server.meter());
        let mut version_of_all: Option<String> = None;
        let mut tokens = HashSet::new();
        let (mut path, mut short_pages) = (first, 0);
        for pages in 0..PAGES {
            let wrong = |what: &str| Interrupted { error: server.not_a_list(&collection.path, what), pages };
            let read = server.objects_into::<K, S>(self.format, &path, (all, meter), self.limits).await;
            let (sink, meter_of_all, summary) = read.map_err(|error| Interrupted { error, pages })?;
            (all, meter) = (sink, meter_of_all);
            let ListSummary { list, metadata: ListMeta { next_page, resource_version: version, .. }, .. } = summary;
            if !list {
                return Err(wrong(&format!("it is no list of {}", collection.kind)));
            }
            version_of_all = version_of_all.or(version);
            let Some(token) = next_page.filter(|token| !token.is_empty()) else {
                let version = version_of_all.filter(|version| !version.is_empty());
                return version.map(|version| (all, version)).ok_or_else(|| wrong("it has no resource version"));
            };
            short_pages += usize::from(meter.objects_of_page() < PAGE / 2);
            if token.len() > TOKEN {
                return Err(wrong(&format!("its continue token is {} bytes long", token.len())));
            }
            if short_pages > SHORT_PAGES {
                return Err(wrong("its pages bring hardly anything"));
            }
            path = format!("{}?limit={PAGE}{selector}&continue={}", collection.path, encoded(&token));
            if !tokens.insert(token) {
                return Err(wrong("it goes on with a page that was there already"));
            }
        }
        Err(Interrupted {
            error: server.not_a_list(&collection.path, &format!("it has more than {PAGES} pages")),
            pages: PAGES,
        })
    }
}
