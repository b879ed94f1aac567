//! The nodes about which a verb reports: this node, the nodes of snapshot files, or all nodes that have an agent.

use std::collections::BTreeSet;

use super::console::Console;
use portreeve_facts::{Gap, PortSet, Snapshot, Source};
use portreeve_report::NodeScan;

/// The flags that choose the nodes. A verb judges one snapshot at a time, so the code of a verb does not depend on
/// these flags.
pub(super) trait Scope: clap::Args {
    fn is_this_node(&self) -> bool {
        false
    }

    /// Calls `judge` with the snapshot of each node.
    ///
    /// # Errors
    /// Fails if no node can be read.
    fn judge<T>(
        self,
        wanted: &Wanted,
        console: &Console,
        judge: impl FnMut(&Snapshot) -> Result<T, Gap>,
    ) -> anyhow::Result<NodeResults<T>>;
}

#[derive(Clone, Debug, Default)]
pub(super) struct Wanted {
    pub(super) behind: Behind,
    pub(super) skipped: BTreeSet<Source>,
    /// The ports on which a scan of this node also searches for connections and bound sockets.
    pub(super) searched: PortSet,
    /// Whether to list the guards of a cluster.
    pub(super) guards: bool,
}

/// The ports whose endpoints a verb needs. The snapshot of an agent can lack the endpoints, so the verb requests
/// missing endpoints from the API server.
#[derive(Clone, Copy, Debug, Default)]
pub(super) enum Behind {
    #[default]
    NoPort,
    Port(u16),
    EveryNodePort,
}

pub(super) struct NodeResults<T> {
    /// The name and the result of each node, including nodes whose agents were not queried.
    pub(super) results: Vec<(String, Result<T, Gap>)>,
    pub(super) nodes: Vec<NodeScan>,
    /// A text about the agents that were not queried, if there are any.
    pub(super) partial: Option<String>,
    /// The nodes on which the pod of a guard is Ready. Empty if the verb or the scope lists no guards.
    pub(super) guarded: Result<BTreeSet<String>, Gap>,
    /// The age of the oldest scan of an agent, in words: `the oldest scan is 62 s old (n1)`.
    pub(super) oldest: Option<String>,
    /// The nodes, in words: `2 agents of namespace portreeve; other nodes are not included`.
    pub(super) scope: String,
}
