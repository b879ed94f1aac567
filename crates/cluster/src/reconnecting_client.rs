//! A client that outlives its credentials.

use std::{
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll},
};

use http::{Request, Response, StatusCode};
use kube::client::{Body, Client};
use tower::Service;

use super::connect::{Access, connect};

/// A client for what is written to the cluster. Credentials are read when it is first used, and again after every
/// request that failed or was answered with 401: a rotated token or certificate authority is used by the
/// next. Needs a tokio runtime.
pub fn client(access: Access) -> Client {
    Client::new(ReconnectingService { access: Arc::new(access), kept: Arc::default() }, "default")
}

struct ReconnectingService {
    access: Arc<Access>,
    /// The client of the last request that succeeded. A request takes it out, so that an aborted one leaves none.
    kept: Arc<Mutex<Option<Client>>>,
}

type Failed = Box<dyn std::error::Error + Send + Sync>;
type Answer = Pin<Box<dyn Future<Output = Result<Response<Body>, Failed>> + Send>>;

impl Service<Request<Body>> for ReconnectingService {
    type Response = Response<Body>;
    type Error = Failed;
    type Future = Answer;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Failed>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Answer {
        let (access, kept) = (Arc::clone(&self.access), Arc::clone(&self.kept));
        Box::pin(async move {
            let known = kept.lock().unwrap_or_else(PoisonError::into_inner).take();
            let client = match known {
                Some(client) => client,
                None => connect(&access).await?.0,
            };
            let response = client.send(request).await?;
            if response.status() != StatusCode::UNAUTHORIZED {
                *kept.lock().unwrap_or_else(PoisonError::into_inner) = Some(client);
            }
            Ok(response)
        })
    }
}
