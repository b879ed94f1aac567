//! One line on standard error while something takes longer than a second, gone when it is done.

use std::{
    fmt::Display,
    io::{IsTerminal, Write, stderr},
    sync::mpsc::{self, RecvTimeoutError, Sender},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

/// How long nothing is printed.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long a line stays at least.
const READABLE: Duration = Duration::from_millis(100);

/// What is going on, for a person at a terminal; silent everywhere else.
pub(super) struct Progress<S>(Option<(Sender<S>, JoinHandle<()>)>);

impl<S: Display + Send + 'static> Progress<S> {
    pub(super) fn start() -> Self {
        if !stderr().is_terminal() {
            return Self(None);
        }
        let (sender, steps) = mpsc::channel();
        let printer = thread::spawn(move || {
            let begun = Instant::now();
            let mut now: Option<S> = None;
            let mut shown = false;
            loop {
                let step = if shown {
                    steps.recv().map_err(|_| RecvTimeoutError::Disconnected)
                } else {
                    steps.recv_timeout(PATIENCE.saturating_sub(begun.elapsed()))
                };
                match step {
                    Ok(step) => now = Some(step),
                    Err(RecvTimeoutError::Timeout) => shown = true,
                    Err(RecvTimeoutError::Disconnected) => break,
                }
                if let (true, Some(step)) = (shown, &now) {
                    print(&format!("\r\u{1b}[K{step} ..."));
                    // What comes meanwhile is old by then.
                    thread::sleep(READABLE);
                    now = steps.try_iter().last().or(now);
                }
            }
            if shown {
                print("\r\u{1b}[K");
            }
        });
        Self(Some((sender, printer)))
    }

    pub(super) fn show(&self, step: S) {
        if let Self(Some((sender, _))) = self {
            // The thread ends before its sender only if standard error is broken.
            sender.send(step).unwrap_or_default();
        }
    }
}

impl<S> Drop for Progress<S> {
    fn drop(&mut self) {
        if let Some((sender, printer)) = self.0.take() {
            drop(sender);
            drop(printer.join());
        }
    }
}

/// Progress that cannot be shown is not missed.
fn print(text: &str) {
    let mut out = stderr();
    drop(out.write_all(text.as_bytes()).and_then(|()| out.flush()));
}
