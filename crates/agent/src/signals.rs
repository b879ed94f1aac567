//! The signals of the agent.

use anyhow::Context;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Listens for one.
///
/// # Errors
/// When the operating system does not allow it.
pub(super) fn listen(kind: SignalKind) -> anyhow::Result<Signal> {
    signal(kind).context("listening for signals")
}

/// Waits for a signal; for ever where it cannot come any more.
pub(super) async fn received(signal: &mut Signal) {
    if signal.recv().await.is_none() {
        std::future::pending::<()>().await;
    }
}
