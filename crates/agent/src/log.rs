//! The agent's log: the form of its lines, its level, and a line for each panic.

use std::{
    collections::BTreeSet,
    io::{self, Write, stderr},
    panic,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    thread,
    time::Duration,
};

use clap::ValueEnum;
use serde::Deserialize;
use tracing::error;
use tracing_subscriber::{
    Registry,
    filter::{LevelFilter, Targets},
    fmt::{self, MakeWriter},
    layer::{Layer, SubscriberExt as _},
    reload,
    util::SubscriberInitExt as _,
};

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

/// The lowest level of lines that are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum LogLevel {
    /// Errors that stop the agent's work
    Error,
    /// Also problems
    Warn,
    /// Also changes
    Info,
    /// Also the agent's steps
    Debug,
}

/// Form and level of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogStyle {
    /// The form of log lines.
    pub format: LogFormat,
    /// The lowest level of log lines.
    pub level: LogLevel,
}

type Lines = Box<dyn Layer<Registry> + Send + Sync>;

/// The agent's log. A separate thread writes the lines.
pub struct Log {
    queue: LogQueue,
    lines: reload::Handle<Lines, Registry>,
    style: Mutex<LogStyle>,
    colour: bool,
}

impl Log {
    /// Starts logging to standard error.
    ///
    /// # Errors
    /// Fails if the system has no thread left.
    pub fn start(style: LogStyle, colour: bool) -> io::Result<Self> {
        let (log, lines) = Self::to(LogQueue::to(stderr())?, style, colour);
        tracing_subscriber::registry().with(lines).init();
        log_panics();
        Ok(log)
    }

    fn to(queue: LogQueue, style: LogStyle, colour: bool) -> (Self, reload::Layer<Lines, Registry>) {
        let (layer, lines) = reload::Layer::new(style.lines(&queue, colour));
        (Self { queue, lines, style: Mutex::new(style), colour }, layer)
    }

    /// Changes the form and the level of later lines.
    pub fn restyle(&self, style: LogStyle) {
        let mut before = self.style.lock().unwrap_or_else(PoisonError::into_inner);
        if *before != style {
            *before = style;
            // The reload fails only if the log no longer exists, so the error is ignored.
            self.lines.reload(style.lines(&self.queue, self.colour)).unwrap_or_default();
        }
    }

    /// Waits a moment until all lines are written.
    pub fn flush(&self) {
        self.queue.flush();
    }
}

impl LogStyle {
    fn lines(self, queue: &LogQueue, colour: bool) -> Lines {
        // The agent logs a failed request itself, so the lines of the library are left out.
        let quiet = |others| Targets::new().with_default(others).with_target("kube_client", LevelFilter::OFF);
        let filter = match self.level {
            LogLevel::Error => quiet(LevelFilter::ERROR),
            LogLevel::Warn => quiet(LevelFilter::WARN),
            LogLevel::Info => quiet(LevelFilter::WARN).with_target("portreeve", LevelFilter::INFO),
            LogLevel::Debug => {
                Targets::new().with_default(LevelFilter::INFO).with_target("portreeve", LevelFilter::DEBUG)
            }
        };
        let lines = fmt::layer().with_writer(queue.clone());
        let lines: Lines = match self.format {
            LogFormat::Json => lines.json().flatten_event(true).boxed(),
            LogFormat::Text => lines.compact().with_ansi(colour).boxed(),
        };
        filter.and_then(lines).boxed()
    }
}

/// Logs panics. A panic that repeats with every scan is logged once.
fn log_panics() {
    let logged = Mutex::new(BTreeSet::new());
    panic::set_hook(Box::new(move |panic| {
        let place = panic.location().map(ToString::to_string);
        if logged.lock().unwrap_or_else(PoisonError::into_inner).insert(place) {
            error!("{}", text::clean(&panic.to_string(), 1024));
        }
    }));
}

const WAITING: usize = 1024;
const LONGEST: usize = 64 << 10;
const PATIENCE: Duration = Duration::from_millis(500);

/// The queue of lines for standard error. The agent does not wait for the queue. If no process reads standard error,
/// lines are dropped and counted.
#[derive(Clone, Debug)]
struct LogQueue {
    lines: SyncSender<Item>,
    dropped: Arc<AtomicU64>,
}

#[derive(Debug)]
enum Item {
    Line(Vec<u8>),
    /// A mark in the queue. When the writer reaches the mark, it has written all earlier lines, and sends a message.
    Written(SyncSender<()>),
}

impl LogQueue {
    fn to(out: impl Write + Send + 'static) -> io::Result<Self> {
        let (lines, items) = sync_channel(WAITING);
        let dropped = Arc::new(AtomicU64::new(0));
        let counter = Arc::clone(&dropped);
        thread::Builder::new().name("log".to_owned()).spawn(move || write_lines(&items, &counter, out))?;
        Ok(Self { lines, dropped })
    }

    fn put(&self, line: Vec<u8>) {
        if self.lines.try_send(Item::Line(line)).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn flush(&self) {
        let (written, done) = sync_channel(1);
        if self.lines.try_send(Item::Written(written)).is_ok() {
            // Lines that no process reads in this time are lost.
            done.recv_timeout(PATIENCE).unwrap_or_default();
        }
    }
}

fn write_lines(items: &Receiver<Item>, dropped: &AtomicU64, mut out: impl Write) {
    for item in items {
        let lost = dropped.swap(0, Ordering::Relaxed);
        // A failed write to standard error is ignored, because the agent has no other place to report the failure.
        if lost > 0 {
            drop(writeln!(out, "{lost} lines of the log were dropped, because no process read them"));
        }
        match item {
            Item::Line(line) => drop(out.write_all(&line)),
            Item::Written(done) => done.try_send(()).unwrap_or_default(),
        }
    }
}

/// A line that is still incomplete.
#[derive(Debug)]
struct Line<'a> {
    queue: &'a LogQueue,
    text: Vec<u8>,
}

impl Write for Line<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let room = LONGEST.saturating_sub(self.text.len());
        self.text.extend_from_slice(&bytes[..bytes.len().min(room)]);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Line<'_> {
    fn drop(&mut self) {
        if let Some(last) = self.text.last_mut() {
            // A line that was cut must also end with a newline.
            *last = b'\n';
            self.queue.put(std::mem::take(&mut self.text));
        }
    }
}

impl<'a> MakeWriter<'a> for LogQueue {
    type Writer = Line<'a>;

    fn make_writer(&'a self) -> Line<'a> {
        Line { queue: self, text: Vec::new() }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{PipeWriter, Read as _, pipe};

    use super::*;

    fn log(queue: &LogQueue, line: &str) {
        queue.make_writer().write_all(line.as_bytes()).expect("a line");
    }

    #[test]
    fn form_and_level_change_while_it_runs() {
        let (mut reader, writer) = pipe().expect("a pipe");
        let text = LogStyle { format: LogFormat::Text, level: LogLevel::Info };
        let (log, lines) = Log::to(LogQueue::to(writer).expect("a thread"), text, false);
        tracing::subscriber::with_default(tracing_subscriber::registry().with(lines), || {
            let write = |words| {
                tracing::debug!(target: "portreeve", "hidden {words}");
                tracing::info!(target: "portreeve", "shown {words}");
            };
            write("first");
            log.restyle(LogStyle { format: LogFormat::Json, ..text });
            write("second");
            log.restyle(LogStyle { format: LogFormat::Json, level: LogLevel::Warn });
            write("third");
            log.restyle(LogStyle { format: LogFormat::Text, level: LogLevel::Debug });
            write("fourth");
        });
        log.flush();
        drop(log);
        let mut written = String::new();
        reader.read_to_string(&mut written).expect("text");
        let lines: Vec<&str> = written.lines().collect();
        let [first, second, hidden, fourth] = lines[..] else { panic!("{written}") };
        assert!(!first.starts_with('{') && first.ends_with("shown first"), "{written}");
        assert!(second.starts_with('{') && second.contains(r#""message":"shown second""#), "{written}");
        assert!(hidden.ends_with("hidden fourth") && fourth.ends_with("shown fourth"), "{written}");
    }

    #[test]
    fn a_pipe_that_no_process_reads_costs_lines_and_no_time() {
        let (mut reader, writer): (_, PipeWriter) = pipe().expect("a pipe");
        let queue = LogQueue::to(writer).expect("a thread");
        let line = format!("{}\n", "x".repeat(999));
        // These lines are too many for the pipe and the queue. If the logger waited for space, this test would never
        // end.
        for _ in 0..5000 {
            log(&queue, &line);
        }
        let read = thread::spawn(move || {
            let mut text = String::new();
            reader.read_to_string(&mut text).map(|_| text)
        });
        // The reader empties the queue, now or later. The next line contains the count of dropped lines.
        queue.flush();
        log(&queue, "the last\n");
        queue.flush();
        drop(queue);
        let text = read.join().expect("it ends").expect("text");
        let whole = text.lines().filter(|it| it.len() == 999).count() as u64;
        // Each count says how many lines were dropped since the previous count.
        let counts =
            text.lines().filter_map(|it| it.split_once(" lines of the log were dropped")?.0.parse::<u64>().ok());
        let dropped: u64 = counts.sum();
        assert!(whole >= 1000 && dropped > 1000 && whole + dropped <= 5001, "{whole} + {dropped}");
    }
}
