//! The guard's answers over HTTP: `/metrics`, and `/healthz`.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use axum::{
    Router,
    extract::State,
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse as _, Response},
    routing::get,
};
use tokio::sync::watch::Receiver;

use super::{GuardState, READ_INTERVAL, metrics::Exported};
use crate::{
    cluster_state::ClusterState,
    connections,
    metrics::{Exposition, metrics},
    tasks::Tasks,
    threads,
};

/// A guard whose last run is older than this time is not healthy.
const STUCK: Duration = READ_INTERVAL.saturating_mul(4);

#[derive(Clone)]
struct Shared {
    state: Receiver<GuardState>,
    cluster: ClusterState,
    started: Instant,
}

/// Starts the server. If the port is taken, a thread tries again until the port can be bound. While the server waits
/// for the port, the guard works, because reserved ports matter more than metrics.
pub(super) fn start(
    address: SocketAddr,
    state: Receiver<GuardState>,
    cluster: ClusterState,
    tasks: &mut Tasks,
) -> anyhow::Result<()> {
    let router = Router::new()
        .route("/metrics", get(metrics_text))
        .route("/healthz", get(healthz))
        .with_state(Shared { state, cluster, started: Instant::now() });
    let first = connections::listen(address);
    threads::start("answering over HTTP", tasks, move || connections::bind_and_serve(address, first, router, |_| ()))
}

async fn metrics_text(State(shared): State<Shared>, headers: HeaderMap) -> Response {
    let form = Exposition::accepted(headers.get(header::ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or(""));
    let ages = shared.cluster.ages(Instant::now());
    let of = |name: &str| ages.iter().find(|it| it.resource == name).and_then(|it| it.age);
    // If Services or pods were not read yet, the age of the guard counts as their age.
    let view_age =
        of("services").zip(of("pods")).map_or(shared.started.elapsed(), |(services, pods)| services.max(pods));
    let state = shared.state.borrow().clone();
    match metrics(Exported { state, view_age }, form) {
        Ok(text) => ([(header::CONTENT_TYPE, form.content_type())], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response(),
    }
}

async fn healthz(State(shared): State<Shared>) -> Response {
    let since = shared.state.borrow().ran.unwrap_or(shared.started).elapsed();
    if since < STUCK {
        return "ok\n".into_response();
    }
    (StatusCode::SERVICE_UNAVAILABLE, format!("the last run was {} s ago\n", since.as_secs())).into_response()
}
