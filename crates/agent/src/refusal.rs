//! Why a request gets no document, as a status and one line that says what to do.

use axum::{
    http::{StatusCode, header},
    response::{IntoResponse, Response},
};
use serde_json::json;

/// Why a request is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// There is nobody to ask who may read it.
    NoApiServer,
    /// No token came with the request.
    NoToken,
    /// The token is none, or has expired, or was not made for agents.
    BadToken,
    /// The user of the token may not read this.
    Forbidden { user: String, path: String },
    /// More reviews are wanted than the API server is asked for.
    TooManyReviews,
    /// The API server does not answer.
    NotReviewed,
    /// Others are reading.
    Busy,
    /// Nothing is there to be read.
    NoLookYet,
}

impl Refusal {
    fn status(&self) -> StatusCode {
        match self {
            Self::NoToken | Self::BadToken => StatusCode::UNAUTHORIZED,
            Self::NoApiServer | Self::Forbidden { .. } => StatusCode::FORBIDDEN,
            Self::TooManyReviews => StatusCode::TOO_MANY_REQUESTS,
            Self::NotReviewed | Self::Busy | Self::NoLookYet => StatusCode::SERVICE_UNAVAILABLE,
        }
    }

    fn retry_after(&self) -> Option<u32> {
        match self {
            Self::TooManyReviews | Self::Busy => Some(1),
            Self::NotReviewed => Some(5),
            _ => None,
        }
    }

    /// For the person who asked. Whoever asks may be anybody, so it tells nothing of this node.
    fn message(&self) -> String {
        match self {
            Self::NoApiServer => {
                "this agent has no API server that could say who may read this; on the node, start it \
                                  with --socket and read it there"
                    .to_owned()
            }
            Self::NoToken => {
                "a token is needed: use kubectl portreeve of this agent's version or later, which asks the \
                              API server for one"
                    .to_owned()
            }
            Self::BadToken => "the token is not valid here: it has to be of this cluster, not expired, and for the \
                               audience portreeve/NODE of this node"
                .to_owned(),
            Self::Forbidden { user, path } => {
                format!("user {user:?} may not get {path}; the chart's ClusterRole for readers grants it")
            }
            Self::TooManyReviews => "too many tokens at a time; try again".to_owned(),
            Self::NotReviewed => {
                "the API server does not tell this agent who may read this; the agent's log says why".to_owned()
            }
            Self::Busy => "others are reading just now; try again".to_owned(),
            Self::NoLookYet => "nothing has been looked at yet".to_owned(),
        }
    }
}

impl IntoResponse for Refusal {
    /// In the form in which an API server refuses, whose message clients show.
    fn into_response(self) -> Response {
        let status = self.status();
        let body = json!({
            "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": status.as_u16(), "message": self.message(),
        });
        let kind = [(header::CONTENT_TYPE, "application/json")];
        let mut response = (status, kind, format!("{body}\n")).into_response();
        if let Some(seconds) = self.retry_after() {
            response.headers_mut().insert(header::RETRY_AFTER, seconds.into());
        }
        if status == StatusCode::UNAUTHORIZED {
            let challenge = header::HeaderValue::from_static("Bearer realm=\"portreeve\"");
            response.headers_mut().insert(header::WWW_AUTHENTICATE, challenge);
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_refusal_is_one_short_line_that_old_clients_show_whole() {
        let user = "system:serviceaccount:portreeve:portreeve-reader".to_owned();
        for refusal in [
            Refusal::NoApiServer,
            Refusal::NoToken,
            Refusal::BadToken,
            Refusal::Forbidden { user, path: "/portreeve/snapshot".to_owned() },
            Refusal::TooManyReviews,
            Refusal::NotReviewed,
            Refusal::Busy,
            Refusal::NoLookYet,
        ] {
            let message = refusal.message();
            assert!(message.len() <= 160 && !message.contains('\n'), "{message}");
            assert!(refusal.status().as_u16() >= 400);
        }
    }
}
