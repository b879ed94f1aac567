//! The HTTP server. The server binds its port as soon as it can, and answers from the state that the loop has
//! published. Over the network, a client needs a token for findings and snapshots.

use std::{
    fs,
    io::{self, ErrorKind, Write},
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::Context;
use axum::{
    Extension, Router,
    extract::{Path, State},
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse, Response},
    routing::get,
};
use jiff::Timestamp;
use nix::sys::resource::{Resource, UsageWho, getrlimit, getrusage};
use tokio::{
    net::UnixListener,
    runtime::Handle,
    sync::watch::{Receiver, channel},
};
use tracing::{error, info};

use super::{
    authorization::Authorization,
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
    metrics::{Exposition, ProcessUse, Scrape, Work, metrics},
    node_condition::NodeCondition,
};
use portreeve_cluster::Reviewer;
use portreeve_facts::{Gap, OwnPort, Reading, Snapshot, Source, Why};
use portreeve_report::{PageDetail, Report, ScanAge, write_html_page, write_html_rule_page, write_json};
use portreeve_rules::{ids::IDS, ledger::Board};

/// A client that reads findings needs the right to `get` this path.
const FINDINGS: &str = "/portreeve/findings";
/// A client that reads snapshots needs the right to `get` this path.
const SNAPSHOT: &str = "/portreeve/snapshot";

pub(super) type Judged = (Arc<Snapshot>, Arc<Board>);

#[derive(Clone, Debug, Default)]
pub(super) struct Published {
    /// The last judged scan. `None` before the first scan.
    pub(super) last: Option<Judged>,
    pub(super) work: Work,
    pub(super) judged_at: Option<Instant>,
    /// The longest time from one scan to the next, even if scans are very expensive.
    pub(super) longest: Duration,
}

#[derive(Clone)]
pub(super) struct ServerState {
    pub(super) published: Receiver<Published>,
    pub(super) cluster: ClusterState,
    pub(super) busy: Busy,
    pub(super) event_loop: Handle,
    pub(super) recorder: Option<Arc<Recorder>>,
    pub(super) condition: Option<Arc<NodeCondition>>,
    pub(super) started: Timestamp,
    pub(super) shared: Arc<Shared>,
}

pub(super) struct Shared {
    authorization: Authorization,
    documents: Documents,
    open_metrics: Kept,
    plain_metrics: Kept,
    public_page: Kept,
    private_page: Kept,
}

impl Shared {
    /// `reviewer` is `None` if no client may read private documents over the network.
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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Network,
    /// The request came through the socket's file. Only the owner of this file can connect.
    Socket,
}

/// Starts the server at a Unix socket. When the returned value is dropped, the socket's file is removed.
pub(super) fn start_at_socket(
    state: ServerState,
    path: &std::path::Path,
    tasks: &mut Tasks,
) -> anyhow::Result<SocketFile> {
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

/// Starts the server. If the port is taken, a thread tries again until the port can be bound. The receiver has the
/// port's state.
pub(super) fn start(
    state: ServerState,
    address: SocketAddr,
    tasks: &mut Tasks,
) -> anyhow::Result<Receiver<Reading<OwnPort>>> {
    let first = connections::listen(address);
    let (sender, receiver) = channel(port_state(address, &first));
    let router = router(state, Way::Network);
    threads::start("answering over HTTP", tasks, move || {
        connections::bind_and_serve(address, first, router, move |attempt| {
            sender.send_replace(port_state(address, attempt));
        })
    })?;
    Ok(receiver)
}

/// Logs the address and port of the agent, if the agent has this port. The caller has already logged the start of the
/// agent. In the thread of the server, the address could be logged before the start.
pub(super) fn log_first(state: &Reading<OwnPort>) {
    if let Reading::Seen(OwnPort { address, taken: false }) = state {
        info!(%address, "answering");
    }
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
        .route("/rules/{name}", get(rule_page))
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

    /// The age of the last scan. `None` before the first scan.
    fn age(&self) -> Option<ScanAge> {
        let published = self.published.borrow();
        published.judged_at.map(|at| ScanAge::new(at.elapsed(), published.longest))
    }

    async fn admit(&self, way: Way, headers: &HeaderMap, path: &str) -> Result<Judged, Refusal> {
        let last = self.last().ok_or(Refusal::NoScanYet)?;
        if way == Way::Network {
            self.shared.authorization.check(headers, last.0.node_name(), path).await?;
        }
        Ok(last)
    }
}

async fn html_page(State(state): State<ServerState>, Extension(way): Extension<Way>) -> Response {
    let (detail, kept) = match way {
        Way::Network => (PageDetail::AsMetrics, &state.shared.public_page),
        Way::Socket => (PageDetail::Everything, &state.shared.private_page),
    };
    let (age, Published { last, judged_at, .. }) = (state.age(), state.published.borrow().clone());
    let write = move || {
        let mut html = Vec::new();
        let report = last.as_ref().map(|(snapshot, board)| Report::of(snapshot, board));
        write_html_page(report.as_ref(), detail, age, &mut html).map(|()| html)
    };
    match kept.text(judged_at, write).await {
        Ok(html) => as_html(html),
        Err(error) => failed(&error),
    }
}

/// A page of a rule contains no fact about the node, so any client may read it.
async fn rule_page(Path(name): Path<String>) -> Response {
    let Some(id) = IDS.iter().find(|id| id.name.0 == name) else {
        return (StatusCode::NOT_FOUND, "no rule has this name\n").into_response();
    };
    let mut html = Vec::new();
    match write_html_rule_page(id, &mut html) {
        Ok(()) => as_html(html),
        Err(error) => failed(&error),
    }
}

fn as_html(html: impl IntoResponse) -> Response {
    let policy = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'";
    let kind = (header::CONTENT_TYPE, "text/html; charset=utf-8");
    ([(header::CONTENT_SECURITY_POLICY, policy), kind], html).into_response()
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
        let condition = state.condition.as_ref().map(|condition| condition.writes());
        let scrape = Scrape { scan: last, work, views, events, condition, process: process_usage(state.started) };
        metrics(scrape, form).map(String::into_bytes).map_err(io::Error::other)
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
        None => "the agent has not scanned this node yet\n".to_owned(),
        Some(scan) if scan.is_old() => {
            let (age, old_after) = (scan.age.as_secs(), scan.old_after.as_secs());
            format!("the last scan is {age} s old, which is too old: the limit is {old_after} s\n")
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
    let age = state.age().ok_or(Refusal::NoScanYet)?;
    let write = move |out: &mut dyn Write| write_json(&Report::of(&snapshot, &board), Some(age), out);
    state.shared.documents.send(write)
}

/// Sends the last snapshot, without a new reading. The snapshot has only the endpoints that rules need on this node.
async fn snapshot(
    State(state): State<ServerState>,
    Extension(way): Extension<Way>,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    let (snapshot, _) = state.admit(way, &headers, SNAPSHOT).await?;
    // A client cannot detect an old scan, because the snapshot does not contain the agent's interval. So the agent does
    // not send an old snapshot.
    if state.age().is_some_and(ScanAge::is_old) {
        return Err(Refusal::OldScan);
    }
    state.shared.documents.send(move |out| serde_json::to_writer_pretty(out, &*snapshot).map_err(io::Error::from))
}

fn failed(error: &dyn std::fmt::Display) -> Response {
    (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response()
}

fn process_usage(started: Timestamp) -> ProcessUse {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)?.trim().strip_suffix(" kB"));
    let bytes = |name: &str| Some(1024 * field(name)?.parse::<u64>().ok()?);
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

    /// The status and the text of an answer. The agent scans at least every 15 seconds, and the last scan was judged
    /// `ago` earlier.
    async fn ask(ago: Option<Duration>, answer: impl AsyncFnOnce(ServerState) -> Response) -> (StatusCode, String) {
        let mut tasks = Tasks::default();
        let (cluster, _requests) =
            cluster_updates::start(ClusterSource::None, &[], None, "n1".to_owned(), &mut tasks).await;
        let judged_at = ago.map(|ago| Instant::now().checked_sub(ago).expect("this machine runs longer than that"));
        let last = judged_at.map(|_| (Arc::new(Snapshot::healthy()), Arc::new(Board::default())));
        let longest = Duration::from_secs(15);
        let (_sender, published) = channel(Published { last, work: Work::default(), judged_at, longest });
        let (busy, started) = (Busy::default(), Timestamp::UNIX_EPOCH);
        let shared = Arc::new(Shared::new(None));
        let event_loop = Handle::current();
        let (recorder, condition) = (None, None);
        let state = ServerState { published, cluster, busy, event_loop, recorder, condition, started, shared };
        let answer = answer(state).await;
        let status = answer.status();
        let body = axum::body::to_bytes(answer.into_body(), usize::MAX).await.expect("a body");
        (status, String::from_utf8(body.to_vec()).expect("UTF-8"))
    }

    #[tokio::test]
    async fn each_rule_has_a_page_without_scripts_and_other_names_have_none() {
        for id in IDS {
            let answer = rule_page(Path(id.name.0.to_owned())).await;
            assert_eq!(answer.status(), StatusCode::OK);
            let policy = answer.headers()[header::CONTENT_SECURITY_POLICY].to_str().expect("text");
            assert!(policy.starts_with("default-src 'none'") && !policy.contains("script"), "{policy}");
        }
        assert_eq!(rule_page(Path("other".to_owned())).await.status(), StatusCode::NOT_FOUND);
    }

    #[tokio::test]
    async fn an_agent_is_ready_as_long_as_its_last_scan_is_not_old_and_reports_the_reason_if_not() {
        let ready = |ago| ask(ago, async |state| readyz(State(state)).await);
        assert_eq!(
            ready(None).await,
            (StatusCode::SERVICE_UNAVAILABLE, "the agent has not scanned this node yet\n".to_owned())
        );
        assert_eq!(ready(Some(Duration::from_secs(20))).await, (StatusCode::OK, "ok\n".to_owned()));
        let (status, words) = ready(Some(Duration::from_secs(60))).await;
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
        assert!(words.starts_with("the last scan is 6") && words.ends_with("the limit is 30 s\n"), "{words}");
    }

    #[tokio::test]
    async fn an_agent_whose_last_scan_is_old_gives_no_snapshot() {
        let asked = async |state| {
            snapshot(State(state), Extension(Way::Socket), HeaderMap::new())
                .await
                .unwrap_or_else(Refusal::into_response)
        };
        assert_eq!(ask(Some(Duration::from_secs(20)), asked).await.0, StatusCode::OK);
        let (status, words) = ask(Some(Duration::from_secs(60)), asked).await;
        assert!(status == StatusCode::SERVICE_UNAVAILABLE && words.contains("too old"), "{words}");
    }
}
