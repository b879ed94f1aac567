//! A client that reads its credentials again when they expire.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use http::{Request, Response, StatusCode};
use jiff::Timestamp;
use kube::client::{Body, Client};
use tokio::sync::Mutex;
use tower::{BoxError, service_fn};

use super::connect::{Access, Impersonation, log_in};

/// A client for writes to the cluster. The client reads credentials before its first request, and again when the
/// credentials expire. If a request failed, was dropped or got the status 401, the client reads credentials before its
/// next request. So the next request uses a new token or certificate authority. The client needs a tokio runtime.
pub fn client(access: Access) -> Client {
    let who = Arc::new((access, Impersonation::default()));
    // This default namespace has no effect, because the path of every write contains its namespace.
    Reconnecting { who, kept: Arc::default(), doubts: true }.into_client("default".to_owned())
}

/// Passes requests to a kube client. Replaces this client when its credentials expire, and with `doubts` also after a
/// failed request.
#[derive(Clone)]
pub(super) struct Reconnecting {
    who: Arc<(Access, Impersonation)>,
    /// The lock lets only one request at a time read credentials.
    kept: Arc<Mutex<Option<KeptClient>>>,
    /// If true, the request after a failed request reads the credentials again.
    doubts: bool,
}

#[derive(Clone)]
struct KeptClient {
    client: Client,
    /// Whether a request with this client failed. After a failed request, the next request makes a new client.
    failed: Arc<AtomicBool>,
}

impl KeptClient {
    fn new(client: Client) -> Self {
        Self { client, failed: Arc::default() }
    }

    fn is_usable(&self) -> bool {
        let ends = self.client.valid_until().is_some_and(|until| until <= Timestamp::now());
        !ends && !self.failed.load(Ordering::Relaxed)
    }
}

/// Marks a request as failed when this value is dropped, unless the request got a good answer. If a caller drops the
/// request, only `drop` can still mark the failure.
struct Unanswered(Option<Arc<AtomicBool>>);

impl Drop for Unanswered {
    fn drop(&mut self) {
        if let Some(failed) = &self.0 {
            failed.store(true, Ordering::Relaxed);
        }
    }
}

impl Reconnecting {
    /// Uses `client` until its credentials expire. A failed request does not replace the client, because the failure
    /// may have other causes than the credentials.
    pub(super) fn from(access: &Access, impersonation: &Impersonation, client: Client) -> Client {
        let who = Arc::new((access.clone(), impersonation.clone()));
        let namespace = client.default_namespace().to_owned();
        let kept = Arc::new(Mutex::new(Some(KeptClient::new(client))));
        Self { who, kept, doubts: false }.into_client(namespace)
    }

    fn into_client(self, namespace: String) -> Client {
        Client::new(service_fn(move |request| self.clone().answer(request)), namespace)
    }

    async fn answer(self, request: Request<Body>) -> Result<Response<Body>, BoxError> {
        let KeptClient { client, failed } = self.kept().await?;
        let mut unanswered = Unanswered(self.doubts.then_some(failed));
        let answer = client.send(request).await;
        if answer.as_ref().is_ok_and(|answer| answer.status() != StatusCode::UNAUTHORIZED) {
            unanswered.0 = None;
        }
        Ok(answer?)
    }

    async fn kept(&self) -> Result<KeptClient, BoxError> {
        let mut kept = self.kept.lock().await;
        match kept.take().filter(KeptClient::is_usable) {
            Some(client) => Ok(kept.insert(client).clone()),
            None => Ok(kept.insert(KeptClient::new(log_in(&self.who.0, &self.who.1).await?.0)).clone()),
        }
    }
}
