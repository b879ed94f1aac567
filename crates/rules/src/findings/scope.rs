//! The scope of a problem: this node, or the cluster.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Whether each node reports its own problem, or all nodes report the same problem.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Scope {
    /// The problem is about this node. Another node reports a separate problem, even about the same object.
    #[default]
    Node,
    /// The problem is about the cluster. All nodes see the same problem, so one report is enough.
    Cluster,
}

impl Scope {
    /// The word in JSON and in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Node => "node",
            Self::Cluster => "cluster",
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn its_word_is_that_of_json() {
        for scope in [Scope::Node, Scope::Cluster] {
            assert_eq!(json!(scope), scope.name());
        }
    }
}
