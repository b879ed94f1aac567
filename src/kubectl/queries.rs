//! Queries many agents, and shows the progress. Ends early if the user presses Ctrl-C, or when the time limit is over.

use std::fmt;

use tokio::{
    select,
    signal::unix::{Signal, SignalKind, signal},
    time::{Duration, sleep},
};

use crate::progress::Progress;
use portreeve_cluster::{Agent, AgentRequest, Agents};
use portreeve_facts::Gap;
use portreeve_report::Stopped;

#[derive(Clone, Copy, Debug)]
struct QueryProgress {
    agents: usize,
    so_far: usize,
    silent: usize,
}

impl fmt::Display for QueryProgress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { agents, so_far, silent } = self;
        write!(f, "{so_far} of {agents} agents queried")?;
        if *silent > 0 {
            write!(f, ", {silent} gave no answer")?;
        }
        f.write_str("; Ctrl-C prints the result")
    }
}

/// While this value exists, Ctrl-C does not end the program by itself.
pub(super) struct Interrupts(Signal);

impl Interrupts {
    pub(super) fn new() -> anyhow::Result<Self> {
        Ok(Self(signal(SignalKind::interrupt())?))
    }

    pub(super) async fn unless<T>(&mut self, work: impl Future<Output = T>) -> Option<T> {
        select! {
            biased;
            _ = self.0.recv() => None,
            done = work => Some(done),
        }
    }

    /// `take` gets each answer when it arrives. If some agents were not queried, the function returns the reason.
    pub(super) async fn query(
        &mut self,
        agents: &Agents,
        listed: &[Agent],
        request: AgentRequest,
        time_limit: Duration,
        mut take: impl AsyncFnMut(usize, Result<Vec<u8>, Gap>),
    ) -> Option<Stopped> {
        let progress = Progress::start();
        let mut queried = QueryProgress { agents: listed.len(), so_far: 0, silent: 0 };
        progress.show(queried);
        let take = async |number, answer: Result<Vec<u8>, Gap>| {
            queried.so_far += 1;
            queried.silent += usize::from(answer.is_err());
            progress.show(queried);
            take(number, answer).await;
        };
        select! {
            biased;
            _ = self.0.recv() => Some(Stopped::Interrupted),
            () = sleep(time_limit) => Some(Stopped::TimeLimit),
            () = agents.fetch(listed, request, take) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn how_far_it_is_fits_into_a_line_of_a_terminal() {
        let queried = QueryProgress { agents: 50_000, so_far: 49_999, silent: 12_345 };
        assert_eq!(
            queried.to_string(),
            "49999 of 50000 agents queried, 12345 gave no answer; Ctrl-C prints the result"
        );
        assert!(queried.to_string().len() < 80, "without its dots");
        let begun = QueryProgress { agents: 2, so_far: 0, silent: 0 };
        assert!(begun.to_string().starts_with("0 of 2 agents queried; "));
    }
}
