//! Tokens that allow a user to read agents. Portreeve requests the tokens from the API server with the user's own
//! rights. Each token is valid for the agent of one node only. So a program that pretends to be an agent cannot use the
//! token to read other agents.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use http::header::HeaderValue;
use k8s_openapi::{
    api::{
        authentication::v1::{TokenRequest, TokenRequestSpec},
        core::v1::ServiceAccount,
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::{Api, api::PostParams, client::Client};
use tokio::time::sleep;

use super::{
    error::Error,
    jitter::{jitter, spread},
    reviews::{audience, in_time},
};
use portreeve_facts::{Gap, Source, Why};

/// The lifetime of a token, in seconds: the shortest lifetime that an API server grants.
const VALID: i64 = 600;
/// The time for which a token is used. Afterwards, the token stays valid long enough for the last request to end.
const USED: Duration = Duration::from_secs(300);
/// After the API server refuses one token, Portreeve requests no token for any agent during this time.
const REFUSED: Duration = Duration::from_secs(5);
/// The time to wait for a busy API server: one second, as in kube-apiserver's answers (`util/flowcontrol` and
/// `max_in_flight`).
const BUSY: Duration = Duration::from_secs(1);

#[derive(Clone)]
pub(super) struct ReaderToken {
    accounts: Api<ServiceAccount>,
    account: String,
    within: Duration,
    known: Arc<Mutex<Known>>,
}

#[derive(Default)]
struct Known {
    /// Tokens by node.
    tokens: BTreeMap<String, (Instant, HeaderValue)>,
    refused: Option<(Instant, Gap)>,
}

impl ReaderToken {
    pub(super) fn new(client: Client, namespace: &str, account: String, within: Duration) -> Self {
        Self { accounts: Api::namespaced(client, namespace), account, within, known: Arc::default() }
    }

    /// A token for a request to the agent of this node. A token is used again until its age is [`USED`].
    ///
    /// # Errors
    /// Fails if the API server issues no token. The user may lack the right to request a token, or the ServiceAccount
    /// may not exist.
    pub(super) async fn of(&self, node: &str) -> Result<HeaderValue, Gap> {
        {
            let known = self.known();
            if let Some((_, token)) = known.tokens.get(node).filter(|(since, _)| since.elapsed() < USED) {
                return Ok(token.clone());
            }
            if let Some((_, gap)) = known.refused.as_ref().filter(|(since, _)| since.elapsed() < REFUSED) {
                return Err(gap.clone());
            }
        }
        let token = self.request(node).await;
        let mut known = self.known();
        match &token {
            Ok(token) => drop(known.tokens.insert(node.to_owned(), (Instant::now(), token.clone()))),
            Err(gap) if matches!(gap.why, Why::NotPermitted | Why::NotSupported) => {
                known.refused = Some((Instant::now(), gap.clone()));
            }
            Err(_) => {}
        }
        token
    }

    async fn request(&self, node: &str) -> Result<HeaderValue, Gap> {
        let spec = TokenRequestSpec {
            audiences: vec![audience(node)],
            expiration_seconds: Some(VALID),
            bound_object_ref: None,
        };
        let request = TokenRequest { metadata: ObjectMeta::default(), spec, status: None };
        let name = format!("POST serviceaccounts/{}/token", self.account);
        let params = PostParams::default();
        let post = async || {
            in_time(&name, self.within, self.accounts.create_token_request(&self.account, &params, &request)).await
        };
        let issued = match post().await {
            Err(Error::Status { code: 429, .. }) if BUSY < self.within / 4 => {
                sleep(spread(BUSY, jitter())).await;
                post().await
            }
            issued => issued,
        };
        let issued = issued.map_err(|error| error.gap(Source::Agent))?;
        let token = issued.status.and_then(|status| HeaderValue::from_str(&status.token).ok());
        let Some(mut token) = token.filter(|token| !token.is_empty()) else {
            return Err(Gap::new(Source::Agent, Why::Malformed, "the API server issued a token that cannot be sent"));
        };
        token.set_sensitive(true);
        Ok(token)
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
