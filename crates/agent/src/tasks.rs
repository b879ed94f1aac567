//! The tasks without which the agent would be blind or silent. None of them ends by itself: one that does, by a panic or
//! otherwise, ends the agent, so that kubelet starts it anew.

use std::collections::HashMap;

use tokio::task::{Id, JoinHandle, JoinSet};

/// Named tasks. They end when this is dropped.
#[derive(Debug, Default)]
pub(super) struct Tasks {
    running: JoinSet<String>,
    names: HashMap<Id, &'static str>,
}

impl Tasks {
    /// Starts a task that is to run for ever. Needs a tokio runtime.
    pub(super) fn spawn(&mut self, name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        let saying_why = async {
            task.await;
            "it returned".to_owned()
        };
        self.spawn_saying_why(name, saying_why);
    }

    /// The same for a task that says why it ended.
    pub(super) fn spawn_saying_why(&mut self, name: &'static str, task: impl Future<Output = String> + Send + 'static) {
        let started = self.running.spawn(task);
        self.names.insert(started.id(), name);
    }

    /// The same for a task that was started elsewhere.
    pub(super) fn watch_over(&mut self, name: &'static str, task: JoinHandle<()>) {
        self.spawn_saying_why(name, async {
            task.await.map_or_else(|panicked| panicked.to_string(), |()| "it returned".to_owned())
        });
    }

    /// Waits until one of them ends; says which, and how.
    pub(super) async fn ended(&mut self) -> String {
        let (id, how) = match self.running.join_next_with_id().await {
            Some(Ok((id, how))) => (id, how),
            Some(Err(panicked)) => (panicked.id(), panicked.to_string()),
            // Where there are none, none ends.
            None => std::future::pending().await,
        };
        format!("{} ended: {how}", self.names.get(&id).copied().unwrap_or("a task"))
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use super::*;

    #[tokio::test]
    async fn the_task_that_ended_is_named_however_it_did() {
        let mut tasks = Tasks::default();
        tasks.spawn("the watch", pending());
        tasks.spawn("the clock", ready(()));
        assert_eq!(tasks.ended().await, "the clock ended: it returned");
        tasks.spawn("the cook", async { panic!("the soup is cold") });
        let said = tasks.ended().await;
        assert!(said.starts_with("the cook ended: ") && said.contains("the soup is cold"), "{said}");
        tasks.spawn_saying_why("the guard", async { "nobody is left".to_owned() });
        assert_eq!(tasks.ended().await, "the guard ended: nobody is left");
    }
}
