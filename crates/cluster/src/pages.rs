//! Lists that arrive in pages.

use std::time::Duration;

use tokio::time::Instant;

use super::{
    answer::{AddObject, Limits},
    collection::Collection,
    error::Error,
    facts_builder::FactsBuilder,
    list_reader::{ListMeta, ListSummary},
    objects::Object,
    requests::{JSON, Server, encoded},
};

/// The number of objects in a page, as in kubectl. The objects are parsed while the page arrives, and none of its bytes
/// are kept. So a smaller page would save no memory, but would need more requests.
const PAGE: usize = 500;
/// The longest time for a whole list. A separate limit (`Limits::silence`) applies to the wait for the next part of the
/// list.
pub(super) const WHOLE: Duration = Duration::from_secs(600);

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Recency {
    /// The present state, which the server reads from etcd, in pages.
    Now,
    /// Any state in the server's cache. The server sends the list in one piece, even if the request has a limit.
    Any,
    NotOlderThan(String),
}

impl Recency {
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
    /// Reads all objects of a collection. `selector` is empty, or a query parameter with its `&`.
    pub(super) async fn list<K: Object>(&self, collection: &Collection, selector: &str) -> Result<FactsBuilder, Error> {
        let (empty, add) = (FactsBuilder::default, FactsBuilder::add_listed::<K>);
        self.pages(JSON, collection, selector, Recency::Now, empty, add).await.map(|(facts, _)| facts)
    }

    /// Reads all objects of a collection. Adds each object to the value that `empty` makes. Returns this value and the
    /// resource version of the list. If the list expires between two pages, the present state is read once, from the
    /// first page.
    pub(super) async fn pages<T: Send + 'static>(
        &self,
        accept: &'static str,
        collection: &Collection,
        selector: &str,
        recency: Recency,
        empty: impl Fn() -> T,
        add: AddObject<T>,
    ) -> Result<(T, String), Error> {
        let limits = Limits { silence: self.timeout(), until: Instant::now() + WHOLE };
        let wrong = |what: &str| self.not_a_list(&collection.path, what);
        let first = |recency: &Recency| format!("{}?{}{selector}", collection.path, recency.query());
        let (mut path, mut into, mut version_of_all) = (first(&recency), (empty(), 0), None);
        let (mut page, mut restarted) = (1, false);
        loop {
            let reading = async {
                let mut answer = self.answer(accept, None, &path, Some(limits)).await?;
                answer.objects(self.address().to_owned(), collection.kind, into, add).await
            };
            let (all, count, summary) = match reading.await {
                Err(Error::Status { code: 410, .. }) if page > 1 && !restarted => {
                    (path, into, version_of_all) = (first(&Recency::Now), (empty(), 0), None);
                    (page, restarted) = (1, true);
                    continue;
                }
                // An earlier page arrived, so the user may read the resource. So the error is an incomplete list, and
                // not a missing right.
                Err(Error::Status { code: 401 | 403..=406, message, .. }) if page > 1 => {
                    return Err(wrong(&format!("page {page} of the list is refused: {message}")));
                }
                read => read?,
            };
            let ListSummary { list, metadata: ListMeta { next_page, resource_version, .. }, .. } = summary;
            if !list {
                return Err(wrong(&format!("the answer is not a list of {}", collection.kind)));
            }
            version_of_all = version_of_all.or(resource_version).filter(|version| !version.is_empty());
            let Some(token) = next_page.filter(|token| !token.is_empty()) else {
                return version_of_all
                    .map(|version| (all, version))
                    .ok_or_else(|| wrong("the list has no resource version"));
            };
            let next = format!("{}?limit={PAGE}{selector}&continue={}", collection.path, encoded(&token));
            if next == path {
                return Err(wrong("the next page is a page that was already read"));
            }
            path = next;
            into = (all, count);
            page += 1;
        }
    }
}
