//! The agent's log: its form, its level, and panics as lines of it.

use std::{
    collections::BTreeSet,
    io, panic,
    sync::{Mutex, PoisonError},
};

use clap::ValueEnum;
use serde::Deserialize;
use tracing::error;
use tracing_subscriber::{
    filter::{LevelFilter, Targets},
    fmt,
    layer::{Layer as _, SubscriberExt as _},
    util::SubscriberInitExt as _,
};

use super::log_queue::LogQueue;
use portreeve_facts::text;

/// The form of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum LogFormat {
    /// For people
    Text,
    /// One JSON object a line
    Json,
}

/// The mildest log lines to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum LogLevel {
    /// What keeps the agent from its work
    Error,
    /// And what is wrong
    Warn,
    /// And what changed
    Info,
    /// And what is being done
    Debug,
}

/// Starts logging. What is logged is written beside the work, and flushed through what is returned.
///
/// # Errors
/// When there can be no thread.
pub fn start(format: LogFormat, level: LogLevel, colour: bool) -> io::Result<LogQueue> {
    let queue = LogQueue::start()?;
    // A failed request of the client library is logged by us too, and once.
    let quiet = |others| Targets::new().with_default(others).with_target("kube_client", LevelFilter::OFF);
    let filter = match level {
        LogLevel::Error => quiet(LevelFilter::ERROR),
        LogLevel::Warn => quiet(LevelFilter::WARN),
        LogLevel::Info => quiet(LevelFilter::WARN).with_target("portreeve", LevelFilter::INFO),
        LogLevel::Debug => Targets::new().with_default(LevelFilter::INFO).with_target("portreeve", LevelFilter::DEBUG),
    };
    let lines = fmt::layer().with_writer(queue.clone());
    let lines = match format {
        LogFormat::Json => lines.json().flatten_event(true).boxed(),
        LogFormat::Text => lines.compact().with_ansi(colour).boxed(),
    };
    tracing_subscriber::registry().with(lines).with(filter).init();
    log_panics();
    Ok(queue)
}

/// Logs a panic as a line like any other; one that repeats with every scan is logged once.
fn log_panics() {
    let logged = Mutex::new(BTreeSet::new());
    panic::set_hook(Box::new(move |panic| {
        let place = panic.location().map(ToString::to_string);
        if logged.lock().unwrap_or_else(PoisonError::into_inner).insert(place) {
            error!("{}", text::clean(&panic.to_string(), 1024));
        }
    }));
}
