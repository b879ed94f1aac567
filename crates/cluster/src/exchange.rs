//! One request of the client library, within one time limit.

use std::time::Duration;

use tokio::time::timeout;

use super::error::{Error, NO_ANSWER, causes};
use portreeve_facts::text;

/// The greatest number of bytes of a refusal that are shown.
const MESSAGE: usize = 256;

/// The answer to a request. Errors name it as `request`.
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
