//! The answers to refused requests: an HTTP status, and one line with the reason and the remedy.

use axum::{
    http::{StatusCode, header},
    response::{IntoResponse, Response},
};
use serde_json::json;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    NoApiServer,
    NoToken,
    /// The token is malformed or has expired, or its audience is not this agent.
    BadToken,
    Forbidden {
        user: String,
        path: String,
    },
    TooManyReviews,
    /// The API server does not answer.
    NotReviewed,
    Busy,
    NoScanYet,
    OldScan,
}

impl Refusal {
    fn status(&self) -> StatusCode {
        match self {
            Self::NoToken | Self::BadToken => StatusCode::UNAUTHORIZED,
            Self::NoApiServer | Self::Forbidden { .. } => StatusCode::FORBIDDEN,
            Self::TooManyReviews => StatusCode::TOO_MANY_REQUESTS,
            Self::NotReviewed | Self::Busy | Self::NoScanYet | Self::OldScan => StatusCode::SERVICE_UNAVAILABLE,
        }
    }

    fn retry_after(&self) -> Option<u32> {
        match self {
            Self::TooManyReviews | Self::Busy => Some(1),
            Self::NotReviewed => Some(5),
            _ => None,
        }
    }

    /// The line contains no fact about this node, because the client may have no right to read facts.
    fn message(&self) -> String {
        match self {
            Self::NoApiServer => {
                "this agent cannot check tokens, because it has no API server; start the agent with --socket FILE, and connect to this socket on the node"
                    .to_owned()
            }
            Self::NoToken => {
                "a token is needed: use kubectl portreeve of this agent's version or later, which requests a token from the API server"
                    .to_owned()
            }
            Self::BadToken => "the token is not valid here: it must be from this cluster, not expired, and for the audience portreeve/NODE of this node"
                .to_owned(),
            Self::Forbidden { user, path } => {
                format!("user {user:?} has no right to get {path}; the chart's ClusterRole for readers grants it")
            }
            Self::TooManyReviews => "too many tokens at a time; try again".to_owned(),
            Self::NotReviewed => "the API server does not review the token; the agent's log has the reason".to_owned(),
            Self::Busy => "too many other readers now; try again".to_owned(),
            Self::NoScanYet => "the agent has not scanned this node yet; try again".to_owned(),
            Self::OldScan => "the agent's last scan is too old: the agent no longer reads its node".to_owned(),
        }
    }
}

impl IntoResponse for Refusal {
    /// The answer has the form of an API server's refusal, so that clients like kubectl show the message.
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
            Refusal::NoScanYet,
            Refusal::OldScan,
        ] {
            let message = refusal.message();
            assert!(message.len() <= 160 && !message.contains('\n'), "{message}");
            assert!(refusal.status().as_u16() >= 400);
        }
    }
}
