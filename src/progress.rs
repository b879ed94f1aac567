//! A line on a terminal with the current step. The line appears two seconds after the start, and is deleted after the
//! last step.

use std::{
    fmt::Display,
    io::{IsTerminal, stderr},
    thread,
    time::Duration,
};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// The time before the line appears.
const PATIENCE: Duration = Duration::from_secs(2);
/// The time between two updates of the line.
const OFTEN: Duration = Duration::from_millis(100);

/// The line with the current step. Without a terminal, nothing is written.
pub(super) struct Progress(ProgressBar);

impl Progress {
    pub(super) fn start() -> Self {
        let line = ProgressBar::hidden().with_style(ProgressStyle::with_template("{wide_msg}").expect("a template"));
        if stderr().is_terminal() {
            let line = line.clone();
            thread::spawn(move || {
                thread::sleep(PATIENCE);
                if !line.is_finished() {
                    line.set_draw_target(ProgressDrawTarget::stderr());
                    line.enable_steady_tick(OFTEN);
                }
            });
        }
        Self(line)
    }

    pub(super) fn show(&self, step: impl Display) {
        self.0.set_message(format!("{step} ..."));
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
