//! Queries many agents, and shows the progress. Ends early if the user presses Ctrl-C, or when the time limit is over.

use tokio::{
    select,
    signal::unix::{Signal, SignalKind, signal},
    time::{Duration, sleep},
};

use crate::progress::Progress;
use portreeve_cluster::{Agent, AgentRequest, Agents};
use portreeve_facts::Gap;
use portreeve_report::Stopped;

fn queried(so_far: usize, agents: usize, silent: usize) -> String {
    let silent = if silent > 0 { format!(", {silent} gave no answer") } else { String::new() };
    format!("{so_far} of {agents} agents queried{silent}; Ctrl-C prints the result")
}

/// Receives Ctrl-C. While this value exists, Ctrl-C does not end the program.
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

    /// Calls `take` with each answer that arrives. If some agents were not queried, returns the reason.
    pub(super) async fn query(
        &mut self,
        agents: &Agents,
        listed: &[Agent],
        request: AgentRequest,
        time_limit: Duration,
        mut take: impl AsyncFnMut(usize, Result<Vec<u8>, Gap>),
    ) -> Option<Stopped> {
        let progress = Progress::start();
        let (mut so_far, mut silent) = (0, 0);
        progress.show(queried(so_far, listed.len(), silent));
        let take = async |number, answer: Result<Vec<u8>, Gap>| {
            so_far += 1;
            silent += usize::from(answer.is_err());
            progress.show(queried(so_far, listed.len(), silent));
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
        let words = queried(49_999, 50_000, 12_345);
        assert_eq!(words, "49999 of 50000 agents queried, 12345 gave no answer; Ctrl-C prints the result");
        assert!(words.len() < 80, "without its dots");
        assert!(queried(0, 2, 0).starts_with("0 of 2 agents queried; "));
    }
}
