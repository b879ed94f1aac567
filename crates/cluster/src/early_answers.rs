//! What a server may say before it answers: `100 Continue` and its like (RFC 9110, 15.2), without an end otherwise.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::Relaxed},
};

use http::Request;
use hyper::ext::on_informational;
use tokio::sync::Notify;

/// The most of them before one answer. Go's client, and so kubectl, takes no more (`net/http` `max1xxResponses`).
const MOST: usize = 5;

/// That there are too many of them before the answer to this request. Who drops the request then closes the connection; the
/// client library would read on until the request's time is over, which takes a whole core.
pub(super) fn too_many<B>(request: &mut Request<B>) -> Arc<Notify> {
    let too_many = Arc::new(Notify::new());
    let (told, seen) = (Arc::clone(&too_many), AtomicUsize::new(0));
    on_informational(request, move |_| {
        if seen.fetch_add(1, Relaxed) == MOST {
            told.notify_one();
        }
    });
    too_many
}
