//! One request to the API server and its whole answer, within a time and a length: for what is no list and no watch.

use std::time::Duration;

use http::{Method, Request, header};
use kube::client::{Body, Client};
use serde::{Serialize, de::DeserializeOwned};
use tokio::time;

use super::{
    answer::{Answer, short_wait},
    error::{Error, NO_ANSWER, causes},
    jitter::{jitter, spread},
};

/// The longest answer to a document that is sent, in bytes: a review or a token takes a few thousand.
const DOCUMENT: usize = 256 << 10;

/// Where requests go, and the bound of each.
#[derive(Clone)]
pub(super) struct Exchange {
    pub(super) client: Client,
    /// The server's address, for people; empty where it is not known.
    pub(super) address: String,
    /// How long a request may take, its repetition included.
    pub(super) within: Duration,
}

impl Exchange {
    /// The body of the answer to a GET, of at most `longest` bytes. A server that is busy and names a short time is asked
    /// once more after it.
    pub(super) async fn get(
        &self,
        path: &str,
        headers: &[(&'static str, header::HeaderValue)],
        longest: usize,
    ) -> Result<Vec<u8>, Error> {
        self.in_time(&Method::GET, path, async {
            let mut may_repeat = true;
            loop {
                let request =
                    headers.iter().fold(Request::get(path), |request, (name, value)| request.header(*name, value));
                let request = request.header(header::ACCEPT, "application/json, */*;q=0.8").body(Body::empty());
                let response = self.send(&Method::GET, path, request).await?;
                let status = response.status();
                if status.is_success() {
                    return Answer::new(self.name(&Method::GET, path), response, None).bytes(longest).await;
                }
                match short_wait(&response, self.within).filter(|_| may_repeat) {
                    Some(wait) => {
                        may_repeat = false;
                        time::sleep(spread(wait, jitter())).await;
                    }
                    None => {
                        return Err(Answer::new(self.name(&Method::GET, path), response, None).into_refusal().await);
                    }
                }
            }
        })
        .await
    }

    /// What the server makes of a document: the same, filled in.
    pub(super) async fn post<T: Serialize + DeserializeOwned>(&self, path: &str, document: &T) -> Result<T, Error> {
        self.in_time(&Method::POST, path, async {
            let body = serde_json::to_vec(document).map_err(|error| self.unreachable(&Method::POST, path, &error))?;
            let request = Request::post(path).header(header::CONTENT_TYPE, "application/json").body(Body::from(body));
            let response = self.send(&Method::POST, path, request).await?;
            let is_success = response.status().is_success();
            let mut answer = Answer::new(self.name(&Method::POST, path), response, None);
            if !is_success {
                return Err(answer.into_refusal().await);
            }
            let body = answer.bytes(DOCUMENT).await?;
            serde_json::from_slice(&body).map_err(|error| answer.wrong(&error.to_string()))
        })
        .await
    }

    async fn send(
        &self,
        method: &Method,
        path: &str,
        request: http::Result<Request<Body>>,
    ) -> Result<http::Response<Body>, Error> {
        let request = request.map_err(|error| self.unreachable(method, path, &error))?;
        self.client.send(request).await.map_err(|error| self.unreachable(method, path, &error))
    }

    async fn in_time<T>(
        &self,
        method: &Method,
        path: &str,
        work: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        let late = |_| Err(Error::TimedOut { request: self.name(method, path), what: NO_ANSWER, limit: self.within });
        time::timeout(self.within, work).await.unwrap_or_else(late)
    }

    fn unreachable(&self, method: &Method, path: &str, error: &(dyn std::error::Error + 'static)) -> Error {
        Error::Unreachable { request: self.name(method, path), what: causes(error) }
    }

    fn name(&self, method: &Method, path: &str) -> String {
        format!("{method} {}{path}", self.address)
    }
}
