//! Serves HTTP connections within a bounded number of file descriptors and bounded memory, whatever clients do.

use std::{collections::VecDeque, convert::Infallible, io::ErrorKind, time::Duration};

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::{rt::TokioIo, service::TowerToHyperService};
use tokio::{
    net::{TcpListener, TcpStream},
    task::{AbortHandle, yield_now},
    time::{sleep, timeout},
};
use tracing::warn;

/// How many connections there may be at a time. One more ends the oldest, which has had its chance: an answer takes
/// milliseconds.
const MAX_CONNECTIONS: usize = 32;
/// How long a connection may take for its one request and the answer.
const TIMEOUT: Duration = Duration::from_secs(30);
/// The longest head of a request, in bytes.
const MAX_HEAD: usize = 16 * 1024;
/// How long to wait where no connection can be accepted, for want of descriptors.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// Answers one request on each connection, and never ends.
pub(super) async fn serve(listener: TcpListener, router: Router) -> Infallible {
    let mut open: VecDeque<AbortHandle> = VecDeque::with_capacity(MAX_CONNECTIONS);
    let mut failing = false;
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                failing = false;
                open.retain(|connection| !connection.is_finished());
                if open.len() == MAX_CONNECTIONS
                    && let Some(oldest) = open.pop_front()
                {
                    oldest.abort();
                }
                open.push_back(tokio::spawn(answer(stream, router.clone())).abort_handle());
                // It is read from before the next one can push it out.
                yield_now().await;
            }
            Err(error) if is_client_error(error.kind()) => {}
            Err(error) => {
                if !failing {
                    warn!(%error, "no connection can be accepted");
                }
                failing = true;
                sleep(RETRY_PAUSE).await;
            }
        }
    }
}

async fn answer(stream: TcpStream, router: Router) {
    let mut server = http1::Builder::new();
    server.keep_alive(false).max_header_size(MAX_HEAD).max_buf_size(MAX_HEAD);
    let connection = server.serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    // A client that sends nonsense, hangs up or takes too long is no error of the agent.
    drop(timeout(TIMEOUT, connection).await);
}

/// Whether only the connection that was about to be accepted failed.
fn is_client_error(error: ErrorKind) -> bool {
    matches!(error, ErrorKind::ConnectionAborted | ErrorKind::ConnectionReset | ErrorKind::ConnectionRefused)
}
