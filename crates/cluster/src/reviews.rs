//! Requests TokenReviews and SubjectAccessReviews from the API server. A TokenReview gives the user of a token. A
//! SubjectAccessReview shows whether this user has the right to read a path.

use std::{fmt::Debug, time::Duration};

use k8s_openapi::api::{
    authentication::v1::{TokenReview, TokenReviewSpec, UserInfo},
    authorization::v1::{NonResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec},
};
use kube::{Api, Resource, api::PostParams, client::Client, core::ClusterResourceScope};
use serde::{Serialize, de::DeserializeOwned};
use tokio::time::timeout;

use super::{
    connect::Access,
    error::{Error, NO_ANSWER, causes},
    reconnecting_client::client,
};
use portreeve_facts::text;

const MESSAGE: usize = 256;

/// The audience of a token for the agent of this node. API servers, agents of other nodes and other services refuse a
/// token with this audience.
pub(super) fn audience(node: &str) -> String {
    format!("portreeve/{node}")
}

/// The header with the token. The API server's proxy does not pass on `Authorization`.
pub const TOKEN_HEADER: &str = "portreeve-token";

/// The API server's decision about a token and a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Review {
    /// The user of the token has the right to read the path.
    Allowed,
    /// The token is invalid, or is for another service.
    Unauthenticated,
    /// The user of the token has no right to read the path.
    Forbidden {
        /// The user's name.
        user: String,
    },
}

/// Requests reviews with the agent's own rights.
#[derive(Clone)]
pub struct Reviewer {
    client: Client,
    within: Duration,
}

impl Reviewer {
    /// A reviewer. The reviewer reads credentials before the first review, and again after every failure.
    pub fn new(access: Access) -> Self {
        // A client of the agent waits for the review, so the time limit must be short.
        let within = access.request_timeout.min(Duration::from_secs(10));
        Self { client: client(access), within }
    }

    /// Whether this token is for the agent of `node`, and whether its user may `get` the path. The path is a
    /// `nonResourceURL`, not a resource.
    ///
    /// # Errors
    /// Fails if the API server does not answer, or refuses the review. The error is one line for a person.
    pub async fn review(&self, token: &str, node: &str, path: &str) -> Result<Review, String> {
        let wanted = audience(node);
        let spec = TokenReviewSpec { audiences: Some(vec![wanted.clone()]), token: Some(token.to_owned()) };
        let review = TokenReview { spec, ..TokenReview::default() };
        let status = self.create(&review).await?.status.unwrap_or_default();
        // If a server does not support audiences, the server returns no audiences, and the token is for the API server,
        // not for the agent.
        let is_for_it = status.audiences.is_some_and(|all| all.contains(&wanted));
        let (Some(true), true, Some(user)) = (status.authenticated, is_for_it, status.user) else {
            return Ok(Review::Unauthenticated);
        };
        let UserInfo { extra, groups, uid, username } = user;
        let Some(name) = username.clone().filter(|name| !name.is_empty()) else { return Ok(Review::Unauthenticated) };
        let attributes = NonResourceAttributes { path: Some(path.to_owned()), verb: Some("get".to_owned()) };
        let spec = SubjectAccessReviewSpec {
            extra,
            groups,
            uid,
            user: username,
            non_resource_attributes: Some(attributes),
            resource_attributes: None,
        };
        let review = SubjectAccessReview { spec, ..SubjectAccessReview::default() };
        let status = self.create(&review).await?.status.unwrap_or_default();
        if status.allowed && status.denied != Some(true) {
            return Ok(Review::Allowed);
        }
        Ok(Review::Forbidden { user: text::clean(&name, text::NAME) })
    }

    async fn create<T>(&self, review: &T) -> Result<T, String>
    where
        T: Resource<DynamicType = (), Scope = ClusterResourceScope> + Clone + Debug + Serialize + DeserializeOwned,
    {
        let reviews = Api::all(self.client.clone());
        let params = PostParams::default();
        let sent = reviews.create(&params, review);
        let answer = in_time(&format!("POST {}", T::plural(&())), self.within, sent).await;
        answer.map_err(|error| text::clean(&error.to_string(), 512))
    }
}

/// Waits for an answer, at most for `within`. Errors contain the name `request`.
pub(super) async fn in_time<T>(
    request: &str,
    within: Duration,
    sent: impl Future<Output = kube::Result<T>>,
) -> Result<T, Error> {
    let request = request.to_owned();
    match timeout(within, sent).await {
        Err(_) => Err(Error::TimedOut { request, what: NO_ANSWER, limit: within }),
        Ok(Err(kube::Error::Api(status))) => {
            let message = text::clean(&status.message, MESSAGE);
            Err(Error::Status { request, code: status.code, message, retry_after: None })
        }
        Ok(answer) => answer.map_err(|error| Error::Unreachable { request, what: causes(&error) }),
    }
}
