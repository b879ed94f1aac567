//! Counts, and the names of many nodes, in a few words.

use portreeve_facts::text;

/// The largest number of nodes that a text names.
pub(super) const NAMED: usize = 3;

/// The first `shown` names, then a count. An empty name stands for an unknown node, for example if an agent's pod has
/// no node.
pub fn first_nodes<T: AsRef<str>>(nodes: &[T], shown: usize) -> String {
    let named = nodes.iter().map(|node| match node.as_ref() {
        "" => "an unknown node",
        name => name,
    });
    text::listed(named, shown)
}

/// A number of things: `1 node`, `2 nodes`.
pub fn counted(count: impl TryInto<u64>, what: &str) -> String {
    let count = count.try_into().unwrap_or(u64::MAX);
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_are_named_and_the_others_counted() {
        let names = ["n1", "n2", "n3", "n4", "n5"];
        assert_eq!(first_nodes(&names, NAMED), "n1, n2, n3 and 2 more");
        assert_eq!(first_nodes(&names[..3], NAMED), "n1, n2, n3");
        assert_eq!(first_nodes(&names, usize::MAX), "n1, n2, n3, n4, n5");
        assert_eq!(first_nodes::<&str>(&[], NAMED), "");
        assert_eq!(first_nodes(&["", "n1"], NAMED), "an unknown node, n1");
    }
}
