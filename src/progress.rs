//! One line on standard error while something takes longer than a second, gone when it is done.

use std::{
    fmt::Display,
    io::{IsTerminal, Write, stderr},
    sync::mpsc::{self, RecvTimeoutError, Sender},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use terminal_size::terminal_size_of;

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
                    print(&format!("\r\u{1b}[K{}", fitting(&step.to_string(), width())));
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

/// Columns of the terminal.
fn width() -> usize {
    terminal_size_of(stderr()).map_or(80, |(width, _)| usize::from(width.0))
}

/// As much of a line as a terminal shows in one row: what is longer could not be taken back.
fn fitting(line: &str, width: usize) -> String {
    let dots = " ...";
    match width.saturating_sub(1) {
        room if line.len() + dots.len() <= room => format!("{line}{dots}"),
        room => line.chars().take(room).collect(),
    }
}

/// Progress that cannot be shown is not missed.
fn print(text: &str) {
    let mut out = stderr();
    drop(out.write_all(text.as_bytes()).and_then(|()| out.flush()));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_never_longer_than_the_terminal() {
        assert_eq!(fitting("1 of 2 asked", 80), "1 of 2 asked ...");
        assert_eq!(fitting("1 of 2 asked", 17), "1 of 2 asked ...");
        assert_eq!(fitting("1 of 2 asked", 16), "1 of 2 asked");
        assert_eq!(fitting("1 of 2 asked", 7), "1 of 2");
        assert_eq!(fitting("1 of 2 asked", 0), "");
    }
}
