//! Answers over HTTP, and takes its port as soon as it can.

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
    connections,
    document::Document,
    feed::{Endpoints, View},
    process, pulse,
    scanner::Busy,
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

/// A look and what was made of it.
pub(super) type Look = (Arc<Snapshot>, Arc<Board>);

/// What the loop hands to whoever asks.
#[derive(Clone, Debug, Default)]
pub(super) struct Told {
    /// The last look; nothing before the first.
    pub(super) look: Option<Look>,
    /// The crank's own work.
    pub(super) work: Work,
}

/// What an answer is made of.
#[derive(Clone)]
pub(super) struct Front {
    pub(super) told: Receiver<Told>,
    pub(super) cluster: Receiver<View>,
    pub(super) endpoints: Endpoints,
    pub(super) busy: Busy,
    /// Where there is an API server to write Events to.
    pub(super) recorder: Option<Arc<Recorder>>,
    pub(super) started: Timestamp,
    pub(super) documents: Arc<Documents>,
}

/// What may be long.
#[derive(Debug, Default)]
pub(super) struct Documents {
    page: Document,
    findings: Document,
    snapshot: Document,
}

/// Tries to take the port, and goes on trying beside the loop. The receiver says how that stands.
pub(super) async fn open(front: Front, address: SocketAddr) -> Receiver<Reading<OwnPort>> {
    let first = TcpListener::bind(address).await;
    let (sender, receiver) = channel(standing(address, &first));
    tokio::spawn(keep(front, address, first, sender));
    receiver
}

async fn keep(
    front: Front,
    address: SocketAddr,
    mut attempt: io::Result<TcpListener>,
    standings: Sender<Reading<OwnPort>>,
) {
    let mut pause = FIRST_PAUSE;
    let mut told = None;
    let listener = loop {
        standings.send_replace(standing(address, &attempt));
        match attempt {
            Ok(listener) => break listener,
            Err(error) if told != Some(error.kind()) => {
                warn!(%address, %error, "cannot answer here, trying again; detection goes on");
                told = Some(error.kind());
            }
            Err(_) => {}
        }
        sleep(pause).await;
        pause = (2 * pause).min(LONGEST_PAUSE);
        attempt = TcpListener::bind(address).await;
    };
    info!(%address, "answering");
    connections::serve(listener, router(front)).await;
}

fn standing(address: SocketAddr, attempt: &io::Result<TcpListener>) -> Reading<OwnPort> {
    match attempt {
        Ok(_) => Reading::Seen(OwnPort { address, taken: false }),
        Err(error) if error.kind() == ErrorKind::AddrInUse => Reading::Seen(OwnPort { address, taken: true }),
        Err(error) => {
            Reading::Gap(Gap::new(Source::OwnPort, Why::Unreachable, format!("listening on {address}: {error}")))
        }
    }
}

fn router(front: Front) -> Router {
    Router::new()
        .route("/", get(people))
        .route("/metrics", get(numbers))
        .route("/livez", get(alive))
        .route("/readyz", get(ready))
        .route("/findings", get(findings))
        .route("/snapshot", get(snapshot))
        .with_state(front)
}

impl Front {
    fn look(&self) -> Option<Look> {
        self.told.borrow().look.clone()
    }
}

async fn people(State(front): State<Front>) -> Response {
    let look = front.look();
    let html = match &look {
        None => written(|out| write_html_page(None, out)).map(Bytes::from),
        Some((snapshot, board)) => {
            let report = Report::of(snapshot, board);
            front.documents.page.of(snapshot, || written(|out| write_html_page(Some(&report), out)))
        }
    };
    let policy = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'";
    ([(header::CONTENT_SECURITY_POLICY, policy)], answer(html, "text/html; charset=utf-8")).into_response()
}

async fn numbers(State(front): State<Front>, headers: HeaderMap) -> Response {
    let accept = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or("");
    let form = Exposition::accepted(accept);
    let Told { look, work } = front.told.borrow().clone();
    let views = front.cluster.borrow().ages(Instant::now());
    let events = front.recorder.as_ref().map(|recorder| recorder.counters());
    let process = process::usage(front.started);
    match metrics(Telling { look, work, views, events, process }, form) {
        Ok(text) => ([(header::CONTENT_TYPE, form.content_type())], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response(),
    }
}

async fn alive(State(front): State<Front>) -> Response {
    match pulse::is_alive(&front.busy) {
        true => "ok\n".into_response(),
        false => (StatusCode::SERVICE_UNAVAILABLE, "the reader of the node is stuck\n").into_response(),
    }
}

async fn ready(State(front): State<Front>) -> Response {
    if front.look().is_some() { "ok\n".into_response() } else { too_early() }
}

async fn findings(State(front): State<Front>) -> Response {
    let Some((snapshot, board)) = front.look() else { return too_early() };
    let document = front.documents.findings.of(&snapshot, || {
        let report = Report::of(&snapshot, &board);
        written(|out| write_json(&report, out))
    });
    answer(document, "application/json")
}

async fn snapshot(State(front): State<Front>) -> Response {
    let Some((snapshot, _)) = front.look() else { return too_early() };
    // Whoever reads it may ask about any port, whatever was on it.
    let mut cluster = snapshot.cluster.clone();
    front.endpoints.tell(cluster.reachable(), &mut cluster).await;
    let make = || {
        let whole = Snapshot { cluster, ..Snapshot::clone(&snapshot) };
        serde_json::to_vec_pretty(&whole).map_err(io::Error::other)
    };
    answer(front.documents.snapshot.of(&snapshot, make), "application/json")
}

fn written(write: impl FnOnce(&mut Vec<u8>) -> io::Result<()>) -> io::Result<Vec<u8>> {
    let mut document = Vec::new();
    write(&mut document).map(|()| document)
}

fn answer(document: io::Result<Bytes>, kind: &'static str) -> Response {
    match document {
        Ok(document) => ([(header::CONTENT_TYPE, kind)], document).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response(),
    }
}

fn too_early() -> Response {
    (StatusCode::SERVICE_UNAVAILABLE, "nothing has been looked at yet\n").into_response()
}
