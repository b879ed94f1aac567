//! The names of many nodes, in a few words.

/// The number of nodes that are named if there is no space for all nodes.
pub(super) const NAMED: usize = 3;

/// The first names, and the number of other names: `n1, n2, n3 and 28 more`.
pub fn first_names<T: AsRef<str>>(names: &[T], shown: usize) -> String {
    let (first, others) = names.split_at(shown.min(names.len()));
    let first: Vec<&str> = first.iter().map(AsRef::as_ref).collect();
    let more = if others.is_empty() { String::new() } else { format!(" and {} more", others.len()) };
    format!("{}{more}", first.join(", "))
}

/// The first names of nodes. The name of a node is empty if an agent's pod has no node, or if the pod cannot be used.
pub fn first_nodes<T: AsRef<str>>(nodes: &[T], shown: usize) -> String {
    let named = nodes.iter().map(|node| match node.as_ref() {
        "" => "an unknown node",
        name => name,
    });
    first_names(&named.collect::<Vec<&str>>(), shown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_are_named_and_the_others_counted() {
        let names = ["n1", "n2", "n3", "n4", "n5"];
        assert_eq!(first_names(&names, NAMED), "n1, n2, n3 and 2 more");
        assert_eq!(first_names(&names[..3], NAMED), "n1, n2, n3");
        assert_eq!(first_names(&names, usize::MAX), "n1, n2, n3, n4, n5");
        assert_eq!(first_names::<&str>(&[], NAMED), "");
        assert_eq!(first_nodes(&["", "n1"], NAMED), "an unknown node, n1");
    }
}
