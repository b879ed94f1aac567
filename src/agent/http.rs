//! The HTTP server: binds its port as soon as it can, and answers from what the loop published.

use std::{
    io::{self, ErrorKind},
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use axum::{
    Router,
    body::Bytes,
    extract::State,
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse, Response},
    routing::get,
};
use jiff::Timestamp;
use tokio::{
    net::TcpListener,
    sync::watch::{Receiver, Sender, channel},
    time::sleep,
};
use tracing::{info, warn};

use super::{
    cluster_state::ClusterState, cluster_updates::EndpointsRequest, connections, heartbeat, process_usage,
    scanner::Busy, shared_body::SharedBody,
};
use crate::{
    facts::{Gap, OwnPort, Reading, Snapshot, Source, Why},
    ledger::Board,
    sinks::{
        Report,
        events::Recorder,
        metrics::{Exposition, Telling, Work, metrics},
        write_html_page, write_json,
    },
};

/// From the first attempt to take the port to the second.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// The longest pause between two attempts.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// A snapshot and its judged findings.
pub(super) type Judged = (Arc<Snapshot>, Arc<Board>);

/// What the loop publishes for every HTTP answer.
#[derive(Clone, Debug, Default)]
pub(super) struct Published {
    /// The last snapshot and its findings; nothing before the first.
    pub(super) last: Option<Judged>,
    /// The agent's own work.
    pub(super) work: Work,
}

/// The state of the server, from which every answer is made.
#[derive(Clone)]
pub(super) struct ServerState {
    pub(super) published: Receiver<Published>,
    pub(super) cluster: ClusterState,
    pub(super) endpoints: EndpointsRequest,
    pub(super) busy: Busy,
    /// Where there is an API server to write Events to.
    pub(super) recorder: Option<Arc<Recorder>>,
    pub(super) started: Timestamp,
    pub(super) bodies: Arc<SharedBodies>,
}

/// The bodies that may be long.
#[derive(Debug, Default)]
pub(super) struct SharedBodies {
    page: SharedBody,
    findings: SharedBody,
    snapshot: SharedBody,
}

/// Binds the port, or retries beside the loop until it can. The receiver holds the state of the port.
pub(super) async fn start(state: ServerState, address: SocketAddr) -> Receiver<Reading<OwnPort>> {
    let first = TcpListener::bind(address).await;
    let (sender, receiver) = channel(port_state(address, &first));
    tokio::spawn(bind_and_serve(state, address, first, sender));
    receiver
}

async fn bind_and_serve(
    state: ServerState,
    address: SocketAddr,
    mut attempt: io::Result<TcpListener>,
    port_states: Sender<Reading<OwnPort>>,
) {
    let mut pause = FIRST_PAUSE;
    let mut logged = None;
    let listener = loop {
        port_states.send_replace(port_state(address, &attempt));
        match attempt {
            Ok(listener) => break listener,
            Err(error) if logged != Some(error.kind()) => {
                warn!(%address, %error, "cannot answer here, trying again; detection goes on");
                logged = Some(error.kind());
            }
            Err(_) => {}
        }
        sleep(pause).await;
        pause = (2 * pause).min(LONGEST_PAUSE);
        attempt = TcpListener::bind(address).await;
    };
    info!(%address, "answering");
    connections::serve(listener, router(state)).await;
}

fn port_state(address: SocketAddr, attempt: &io::Result<TcpListener>) -> Reading<OwnPort> {
    match attempt {
        Ok(_) => Reading::Seen(OwnPort { address, taken: false }),
        Err(error) if error.kind() == ErrorKind::AddrInUse => Reading::Seen(OwnPort { address, taken: true }),
        Err(error) => {
            Reading::Gap(Gap::new(Source::OwnPort, Why::Unreachable, format!("listening on {address}: {error}")))
        }
    }
}

fn router(state: ServerState) -> Router {
    Router::new()
        .route("/", get(html_page))
        .route("/metrics", get(metrics_text))
        .route("/livez", get(livez))
        .route("/readyz", get(readyz))
        .route("/findings", get(findings))
        .route("/snapshot", get(snapshot))
        .with_state(state)
}

impl ServerState {
    fn last(&self) -> Option<Judged> {
        self.published.borrow().last.clone()
    }
}

async fn html_page(State(state): State<ServerState>) -> Response {
    let last = state.last();
    let html = match &last {
        None => rendered(|out| write_html_page(None, out)).map(Bytes::from),
        Some((snapshot, board)) => {
            let report = Report::of(snapshot, board);
            state.bodies.page.of(snapshot, || rendered(|out| write_html_page(Some(&report), out)))
        }
    };
    let policy = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'";
    ([(header::CONTENT_SECURITY_POLICY, policy)], response(html, "text/html; charset=utf-8")).into_response()
}

async fn metrics_text(State(state): State<ServerState>, headers: HeaderMap) -> Response {
    let accept = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or("");
    let form = Exposition::accepted(accept);
    let Published { last, work } = state.published.borrow().clone();
    let views = state.cluster.ages(Instant::now());
    let events = state.recorder.as_ref().map(|recorder| recorder.counters());
    let process = process_usage::usage(state.started);
    match metrics(Telling { look: last, work, views, events, process }, form) {
        Ok(text) => ([(header::CONTENT_TYPE, form.content_type())], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response(),
    }
}

async fn livez(State(state): State<ServerState>) -> Response {
    match heartbeat::is_alive(&state.busy) {
        true => "ok\n".into_response(),
        false => (StatusCode::SERVICE_UNAVAILABLE, "the reader of the node is stuck\n").into_response(),
    }
}

async fn readyz(State(state): State<ServerState>) -> Response {
    if state.last().is_some() { "ok\n".into_response() } else { no_snapshot_yet() }
}

async fn findings(State(state): State<ServerState>) -> Response {
    let Some((snapshot, board)) = state.last() else { return no_snapshot_yet() };
    let body = state.bodies.findings.of(&snapshot, || {
        let report = Report::of(&snapshot, &board);
        rendered(|out| write_json(&report, out))
    });
    response(body, "application/json")
}

async fn snapshot(State(state): State<ServerState>) -> Response {
    let Some((snapshot, _)) = state.last() else { return no_snapshot_yet() };
    // The reader of a snapshot may judge any port, so that it needs all reachable endpoints.
    let mut cluster = snapshot.cluster.clone();
    state.endpoints.fill_in(cluster.reachable(), &mut cluster).await;
    let make = || {
        let whole = Snapshot { cluster, ..Snapshot::clone(&snapshot) };
        serde_json::to_vec_pretty(&whole).map_err(io::Error::other)
    };
    response(state.bodies.snapshot.of(&snapshot, make), "application/json")
}

fn rendered(write: impl FnOnce(&mut Vec<u8>) -> io::Result<()>) -> io::Result<Vec<u8>> {
    let mut body = Vec::new();
    write(&mut body).map(|()| body)
}

fn response(body: io::Result<Bytes>, kind: &'static str) -> Response {
    match body {
        Ok(body) => ([(header::CONTENT_TYPE, kind)], body).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response(),
    }
}

fn no_snapshot_yet() -> Response {
    (StatusCode::SERVICE_UNAVAILABLE, "nothing has been looked at yet\n").into_response()
}
