//! A client that outlives its credentials.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use http::{Request, Response, StatusCode};
use jiff::Timestamp;
use kube::client::{Body, Client};
use tokio::sync::Mutex;
use tower::{BoxError, Service};

use super::connect::{Access, Impersonation, log_in};

/// A client for what is written to the cluster. Credentials are read when it is first used, and again when they end and after every
/// request that failed or was answered with 401: a rotated token or certificate authority is used by the next. Needs a
/// tokio runtime.
pub fn client(access: Access) -> Client {
    Reconnecting { who: Arc::new((access, Impersonation::default())), kept: Arc::default(), doubts: true }.client()
}

/// Hands requests to a client of the library, which it replaces.
#[derive(Clone)]
pub(super) struct Reconnecting {
    who: Arc<(Access, Impersonation)>,
    /// The client of the last request. One request at a time logs in.
    kept: Arc<Mutex<Option<Client>>>,
    /// A failure may mean that the credentials are of no use any more.
    doubts: bool,
}

type Answer = Pin<Box<dyn Future<Output = Result<Response<Body>, BoxError>> + Send>>;

impl Reconnecting {
    /// Begins with a client, and replaces it only when its credentials end: what it asks may be refused for other reasons.
    pub(super) fn from(access: &Access, impersonation: &Impersonation, client: Client) -> Client {
        let who = Arc::new((access.clone(), impersonation.clone()));
        Self { who, kept: Arc::new(Mutex::new(Some(client))), doubts: false }.client()
    }

    fn client(self) -> Client {
        // Paths name the namespace.
        Client::new(self, "default")
    }

    async fn kept(&self) -> Result<Client, BoxError> {
        let mut kept = self.kept.lock().await;
        let ends = |client: &Client| client.valid_until().is_some_and(|until| until <= Timestamp::now());
        match kept.take().filter(|client| !ends(client)) {
            Some(client) => Ok(kept.insert(client).clone()),
            None => Ok(kept.insert(log_in(&self.who.0, &self.who.1).await?.0).clone()),
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
            let answer = this.kept().await?.send(request).await;
            let is_good = answer.as_ref().is_ok_and(|answer| answer.status() != StatusCode::UNAUTHORIZED);
            if this.doubts && !is_good {
                *this.kept.lock().await = None;
            }
            Ok(answer?)
        })
    }
}
