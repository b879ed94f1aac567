//! A client that stays valid when its credentials end.

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
};

use http::{Request, Response, StatusCode};
use jiff::Timestamp;
use kube::client::{Body, Client};
use tokio::sync::Mutex;
use tower::{BoxError, Service};

use super::connect::{Access, Impersonation, log_in};

/// A client for writes to the cluster. It reads credentials when it is used first. It reads them again when they end,
/// and after a request that failed, was dropped or got the status 401. So the next request uses a new token or
/// certificate authority. Needs a tokio runtime.
pub fn client(access: Access) -> Client {
    Reconnecting { who: Arc::new((access, Impersonation::default())), kept: Arc::default(), doubts: true }.client()
}

/// Passes requests to a client of the library, and replaces this client.
#[derive(Clone)]
pub(super) struct Reconnecting {
    who: Arc<(Access, Impersonation)>,
    /// The client of the last request. Only one request at a time logs in.
    kept: Arc<Mutex<Option<KeptClient>>>,
    /// Whether the credentials may no longer be valid after a failure.
    doubts: bool,
}

/// A client that several requests may use at the same time.
#[derive(Clone)]
struct KeptClient {
    client: Client,
    /// Whether a request with this client failed. Then the next request logs in.
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

/// A request that has no good answer yet. If a caller drops the request, none of its later lines run. So if this value
/// is dropped before an answer, the request has failed.
struct Unanswered(Option<Arc<AtomicBool>>);

impl Drop for Unanswered {
    fn drop(&mut self) {
        if let Some(failed) = &self.0 {
            failed.store(true, Ordering::Relaxed);
        }
    }
}

type Answer = Pin<Box<dyn Future<Output = Result<Response<Body>, BoxError>> + Send>>;

impl Reconnecting {
    /// Begins with a client, and replaces it only when its credentials end, because its requests may be refused for
    /// other reasons.
    pub(super) fn from(access: &Access, impersonation: &Impersonation, client: Client) -> Client {
        let who = Arc::new((access.clone(), impersonation.clone()));
        Self { who, kept: Arc::new(Mutex::new(Some(KeptClient::new(client)))), doubts: false }.client()
    }

    fn client(self) -> Client {
        // The paths already contain the namespace.
        Client::new(self, "default")
    }

    async fn kept(&self) -> Result<KeptClient, BoxError> {
        let mut kept = self.kept.lock().await;
        match kept.take().filter(KeptClient::is_usable) {
            Some(client) => Ok(kept.insert(client).clone()),
            None => Ok(kept.insert(KeptClient::new(log_in(&self.who.0, &self.who.1).await?.0)).clone()),
        }
    }
}

impl Service<Request<Body>> for Reconnecting {
    type Response = Response<Body>;
    type Error = BoxError;
    type Future = Answer;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Answer {
        let this = self.clone();
        Box::pin(async move {
            let KeptClient { client, failed } = this.kept().await?;
            let mut unanswered = Unanswered(this.doubts.then_some(failed));
            let answer = client.send(request).await;
            if answer.as_ref().is_ok_and(|answer| answer.status() != StatusCode::UNAUTHORIZED) {
                unanswered.0 = None;
            }
            Ok(answer?)
        })
    }
}
