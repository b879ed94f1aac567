//! The HTTP server: binds its port as soon as it can, and answers from what the loop published. Over the network it tells
//! what metrics tell; more is for who may read it.

use std::{
    fs,
    io::{self, ErrorKind, Write},
    net::SocketAddr,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::Context;
use axum::{
    Extension, Router,
    extract::State,
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse, Response},
    routing::get,
};
use jiff::Timestamp;
use nix::sys::resource::{Resource, UsageWho, getrlimit, getrusage};
use tokio::{
    net::{TcpListener, UnixListener},
    runtime::Handle,
    sync::watch::{Receiver, Sender, channel},
    time::sleep,
};
use tracing::{error, info, warn};

use super::{
    authorization::{Authorization, Wish},
    cluster_state::ClusterState,
    connections,
    documents::Documents,
    kept::Kept,
    liveness,
    refusal::Refusal,
    scanner::Busy,
    socket::{self, SocketFile},
    tasks::Tasks,
    threads,
};
use crate::{
    events::Recorder,
    metrics::{Exposition, ProcessUse, Telling, Work, metrics},
};
use portreeve_cluster::Reviewer;
use portreeve_facts::{Gap, OwnPort, Reading, Snapshot, Source, Why};
use portreeve_report::{PageDetail, Report, ScanAge, write_html_page, write_json_with_age};
use portreeve_rules::ledger::Board;

/// What a reader of findings must be allowed to `get`.
const FINDINGS: &str = "/portreeve/findings";
/// What a reader of snapshots must be allowed to `get`.
const SNAPSHOT: &str = "/portreeve/snapshot";
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
    /// When the last snapshot was judged.
    pub(super) judged_at: Option<Instant>,
    /// The longest time from one look to the next, whatever looks cost.
    pub(super) longest: Duration,
}

/// The state of the server, from which every answer is made.
#[derive(Clone)]
pub(super) struct ServerState {
    pub(super) published: Receiver<Published>,
    pub(super) cluster: ClusterState,
    pub(super) busy: Busy,
    /// Where the loop runs.
    pub(super) event_loop: Handle,
    /// Where there is an API server to write Events to.
    pub(super) recorder: Option<Arc<Recorder>>,
    pub(super) started: Timestamp,
    pub(super) shared: Arc<Shared>,
}

/// What all connections have in common.
pub(super) struct Shared {
    authorization: Authorization,
    documents: Documents,
    open_metrics: Kept,
    plain_metrics: Kept,
    public_page: Kept,
    private_page: Kept,
}

impl Shared {
    /// Without a reviewer, nobody reads documents over the network.
    pub(super) fn new(reviewer: Option<Reviewer>) -> Self {
        Self {
            authorization: Authorization::new(reviewer),
            documents: Documents::new(),
            open_metrics: Kept::default(),
            plain_metrics: Kept::default(),
            public_page: Kept::default(),
            private_page: Kept::default(),
        }
    }
}

/// The way on which a request came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// From anybody.
    Network,
    /// From the owner of a file on this node.
    Socket,
}

/// Answers at a socket in the file tree, which ends with the value that is returned.
///
/// # Errors
/// When it cannot listen there.
pub(super) fn start_at_socket(state: ServerState, path: &Path, tasks: &mut Tasks) -> anyhow::Result<SocketFile> {
    let (listener, file) = socket::listen(path).with_context(|| format!("listening on {}", path.display()))?;
    let listener = listener.into_std()?;
    threads::start("answering at the socket", tasks, move || async move {
        match UnixListener::from_std(listener) {
            Ok(listener) => drop(connections::serve(listener, router(state, Way::Socket)).await),
            Err(error) => error!(%error, "cannot answer at the socket"),
        }
    })?;
    Ok(file)
}

/// Binds the port, or retries beside the loop until it can. The receiver holds the state of the port.
///
/// # Errors
/// When there is no thread for it.
pub(super) fn start(
    state: ServerState,
    address: SocketAddr,
    tasks: &mut Tasks,
) -> anyhow::Result<Receiver<Reading<OwnPort>>> {
    let first = connections::listen(address);
    let (sender, receiver) = channel(port_state(address, &first));
    threads::start("answering over HTTP", tasks, move || bind_and_serve(state, address, first, sender))?;
    Ok(receiver)
}

/// Logs that the port was free at once. Its own thread would do so at any moment, before the start as well.
pub(super) fn log_first(state: &Reading<OwnPort>) {
    if let Reading::Seen(OwnPort { address, taken: false }) = state {
        info!(%address, "answering");
    }
}

async fn bind_and_serve(
    state: ServerState,
    address: SocketAddr,
    mut attempt: io::Result<std::net::TcpListener>,
    port_states: Sender<Reading<OwnPort>>,
) {
    let mut pause = FIRST_PAUSE;
    let mut logged = None;
    let at_once = attempt.is_ok();
    let listener = loop {
        port_states.send_replace(port_state(address, &attempt));
        match attempt.and_then(TcpListener::from_std) {
            Ok(listener) => break listener,
            Err(error) if logged != Some(error.kind()) => {
                warn!(%address, %error, "cannot answer here, trying again; detection goes on");
                logged = Some(error.kind());
            }
            Err(_) => {}
        }
        sleep(pause).await;
        pause = (2 * pause).min(LONGEST_PAUSE);
        attempt = connections::listen(address);
    };
    if !at_once {
        info!(%address, "answering");
    }
    connections::serve(listener, router(state, Way::Network)).await;
}

fn port_state(address: SocketAddr, attempt: &io::Result<std::net::TcpListener>) -> Reading<OwnPort> {
    match attempt {
        Ok(_) => Reading::Seen(OwnPort { address, taken: false }),
        Err(error) if error.kind() == ErrorKind::AddrInUse => Reading::Seen(OwnPort { address, taken: true }),
        Err(error) => {
            Reading::Gap(Gap::new(Source::OwnPort, Why::Unreachable, format!("listening on {address}: {error}")))
        }
    }
}

fn router(state: ServerState, way: Way) -> Router {
    Router::new()
        .route("/", get(html_page))
        .route("/metrics", get(metrics_text))
        .route("/livez", get(livez))
        .route("/readyz", get(readyz))
        .route("/findings", get(findings))
        .route("/snapshot", get(snapshot))
        .layer(Extension(way))
        .with_state(state)
}

impl ServerState {
    fn last(&self) -> Option<Judged> {
        self.published.borrow().last.clone()
    }

    /// The age of the last look; nothing before the first.
    fn age(&self) -> Option<ScanAge> {
        let published = self.published.borrow();
        published.judged_at.map(|at| ScanAge::new(at.elapsed(), published.longest))
    }

    /// Lets a request pass that may read `path`.
    async fn admit(&self, way: Way, headers: &HeaderMap, path: &str) -> Result<Judged, Refusal> {
        let last = self.last().ok_or(Refusal::NoLookYet)?;
        if way == Way::Network {
            let wish = Wish { node: last.0.node_name(), path };
            self.shared.authorization.check(headers, &wish).await?;
        }
        Ok(last)
    }
}

async fn html_page(State(state): State<ServerState>, Extension(way): Extension<Way>) -> Response {
    let (detail, kept) = match way {
        Way::Network => (PageDetail::AsMetrics, &state.shared.public_page),
        Way::Socket => (PageDetail::Everything, &state.shared.private_page),
    };
    let Published { last, judged_at, .. } = state.published.borrow().clone();
    let write = move || {
        let mut html = Vec::new();
        let report = last.as_ref().map(|(snapshot, board)| Report::of(snapshot, board));
        write_html_page(report.as_ref(), detail, &mut html).map(|()| html)
    };
    match kept.text(judged_at, write).await {
        Ok(html) => {
            let policy = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'";
            let kind = (header::CONTENT_TYPE, "text/html; charset=utf-8");
            ([(header::CONTENT_SECURITY_POLICY, policy), kind], html).into_response()
        }
        Err(error) => failed(&error),
    }
}

async fn metrics_text(State(state): State<ServerState>, headers: HeaderMap) -> Response {
    let accept = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or("");
    let form = Exposition::accepted(accept);
    let shared = Arc::clone(&state.shared);
    let judged_at = state.published.borrow().judged_at;
    let kept = match form {
        Exposition::OpenMetrics => &shared.open_metrics,
        Exposition::Text => &shared.plain_metrics,
    };
    let write = move || {
        let Published { last, work, .. } = state.published.borrow().clone();
        let views = state.cluster.ages(Instant::now());
        let events = state.recorder.as_ref().map(|recorder| recorder.counters());
        let telling = Telling { look: last, work, views, events, process: process_usage(state.started) };
        metrics(telling, form).map(String::into_bytes).map_err(io::Error::other)
    };
    match kept.text(judged_at, write).await {
        Ok(text) => ([(header::CONTENT_TYPE, form.content_type())], text).into_response(),
        Err(error) => failed(&error),
    }
}

async fn livez(State(state): State<ServerState>) -> Response {
    match liveness::check(&state.event_loop, &state.busy).await {
        Ok(()) => "ok\n".into_response(),
        Err(stuck) => (StatusCode::SERVICE_UNAVAILABLE, stuck).into_response(),
    }
}

async fn readyz(State(state): State<ServerState>) -> Response {
    let words = match state.age() {
        None => "nothing has been looked at yet\n".to_owned(),
        Some(look) if look.is_old() => {
            let (age, old_after) = (look.age.as_secs(), look.old_after.as_secs());
            format!("the last look is {age} s old; it may be {old_after} s old\n")
        }
        Some(_) => return "ok\n".into_response(),
    };
    (StatusCode::SERVICE_UNAVAILABLE, words).into_response()
}

async fn findings(
    State(state): State<ServerState>,
    Extension(way): Extension<Way>,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    let (snapshot, board) = state.admit(way, &headers, FINDINGS).await?;
    let age = state.age().ok_or(Refusal::NoLookYet)?;
    let write = move |out: &mut dyn Write| write_json_with_age(&Report::of(&snapshot, &board), age, out);
    state.shared.documents.send("application/json", write)
}

/// The endpoints in it are those that rules need here: no request makes the agent read more.
async fn snapshot(
    State(state): State<ServerState>,
    Extension(way): Extension<Way>,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    let (snapshot, _) = state.admit(way, &headers, SNAPSHOT).await?;
    state
        .shared
        .documents
        .send("application/json", move |out| serde_json::to_writer_pretty(out, &*snapshot).map_err(io::Error::from))
}

fn failed(error: &dyn std::fmt::Display) -> Response {
    (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response()
}

/// Reads the usage of this process, which began at `started`.
fn process_usage(started: Timestamp) -> ProcessUse {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let bytes = |field: &str| {
        Some(
            1024 * status
                .lines()
                .find_map(|line| line.strip_prefix(field))?
                .trim()
                .strip_suffix(" kB")?
                .parse::<u64>()
                .ok()?,
        )
    };
    let cpu = getrusage(UsageWho::RUSAGE_SELF).map(|usage| {
        let seconds = |it: nix::sys::time::TimeVal| {
            Duration::new(it.tv_sec().unsigned_abs(), 1000 * u32::try_from(it.tv_usec()).unwrap_or(0)).as_secs_f64()
        };
        seconds(usage.user_time()) + seconds(usage.system_time())
    });
    ProcessUse {
        cpu_seconds: cpu.ok(),
        resident_bytes: bytes("VmRSS:"),
        virtual_bytes: bytes("VmSize:"),
        open_fds: fs::read_dir("/proc/self/fd").ok().map(|fds| fds.count() as u64),
        max_fds: getrlimit(Resource::RLIMIT_NOFILE).ok().map(|(soft, _)| soft),
        started: Some(started),
    }
}

#[cfg(test)]
mod tests {
    use super::{super::cluster_updates, *};
    use portreeve_cluster::ClusterSource;

    /// The status and the words of `/readyz`, of an agent that looks every 15 seconds at the least and did so this long ago.
    async fn ready(ago: Option<Duration>) -> (StatusCode, String) {
        let mut tasks = Tasks::default();
        let (cluster, _requests) = cluster_updates::start(ClusterSource::None, None, "n1".to_owned(), &mut tasks).await;
        let judged_at = ago.map(|ago| Instant::now().checked_sub(ago).expect("this machine runs longer than that"));
        let last = judged_at.map(|_| (Arc::new(Snapshot::healthy()), Arc::new(Board::default())));
        let longest = Duration::from_secs(15);
        let (_sender, published) = channel(Published { last, work: Work::default(), judged_at, longest });
        let (busy, started) = (Busy::default(), Timestamp::UNIX_EPOCH);
        let shared = Arc::new(Shared::new(None));
        let event_loop = Handle::current();
        let state = ServerState { published, cluster, busy, event_loop, recorder: None, started, shared };
        let answer = readyz(State(state)).await;
        let status = answer.status();
        let body = axum::body::to_bytes(answer.into_body(), 4096).await.expect("a body");
        (status, String::from_utf8(body.to_vec()).expect("UTF-8"))
    }

    #[tokio::test]
    async fn an_agent_is_ready_as_long_as_its_last_look_is_not_old_and_says_why_it_is_not() {
        assert_eq!(ready(None).await, (StatusCode::SERVICE_UNAVAILABLE, "nothing has been looked at yet\n".to_owned()));
        assert_eq!(ready(Some(Duration::from_secs(20))).await, (StatusCode::OK, "ok\n".to_owned()));
        let (status, words) = ready(Some(Duration::from_secs(60))).await;
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
        assert!(words.starts_with("the last look is 6") && words.ends_with("it may be 30 s old\n"), "{words}");
    }
}
