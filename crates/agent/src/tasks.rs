//! The tasks that the agent needs. If one task ends, by a panic or for another reason, the agent ends, and the kubelet
//! starts the agent again.

use std::collections::HashMap;

use tokio::task::{Id, JoinHandle, JoinSet};

/// When this value is dropped, the tasks end.
#[derive(Debug, Default)]
pub(super) struct Tasks {
    running: JoinSet<String>,
    names: HashMap<Id, &'static str>,
}

impl Tasks {
    /// The caller needs a tokio runtime.
    pub(super) fn spawn(&mut self, name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        let with_reason = async {
            task.await;
            "it returned".to_owned()
        };
        self.spawn_with_reason(name, with_reason);
    }

    pub(super) fn spawn_with_reason(
        &mut self,
        name: &'static str,
        task: impl Future<Output = String> + Send + 'static,
    ) {
        let started = self.running.spawn(task);
        self.names.insert(started.id(), name);
    }

    pub(super) fn watch_over(&mut self, name: &'static str, task: JoinHandle<()>) {
        self.spawn_with_reason(name, async {
            task.await.map_or_else(|panicked| panicked.to_string(), |()| "it returned".to_owned())
        });
    }

    /// Waits until a task ends. Returns the name of the task, and why it ended.
    pub(super) async fn ended(&mut self) -> String {
        let (id, how) = match self.running.join_next_with_id().await {
            Some(Ok((id, how))) => (id, how),
            Some(Err(panicked)) => (panicked.id(), panicked.to_string()),
            // There are no tasks, so this wait never ends.
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
        let ended = tasks.ended().await;
        assert!(ended.starts_with("the cook ended: ") && ended.contains("the soup is cold"), "{ended}");
        tasks.spawn_with_reason("the guard", async { "no one is left".to_owned() });
        assert_eq!(tasks.ended().await, "the guard ended: no one is left");
    }
}
