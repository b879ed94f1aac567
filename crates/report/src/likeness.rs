//! Reduces a text to the part that is equal on several nodes. Names and addresses of nodes are removed, and also
//! generated ends of pod names.

use std::{
    collections::HashMap,
    net::{IpAddr, SocketAddr},
};

use super::names::{NAMED, first_nodes};
use portreeve_facts::{Gap, Source, Why};

/// The letters in names that Kubernetes generates (`k8s.io/apimachinery/pkg/util/rand`).
const LETTERS: &str = "bcdfghjklmnpqrstvwxz2456789";
/// The number of letters that Kubernetes generates at the end of a pod's name.
const MADE_UP: usize = 5;
/// A word with at least this number of hexadecimal digits is an identifier: of a container, or the last group of a uid.
const IDENTIFIER: usize = 12;
const PID: &str = "pid ";

/// The unread inputs of nodes, in words. Each reason is listed once, with its nodes: `not known of n1: no answer`, or
/// `not known of 31 nodes, n1, n2, n3 and 28 more: no answer`.
pub fn gaps_alike(gaps: &[(String, Gap)]) -> Vec<String> {
    let mut places: HashMap<(Source, Why, String), usize> = HashMap::new();
    let mut alike: Vec<(Vec<&str>, &Gap)> = Vec::new();
    for (node, gap) in gaps {
        let place = *places.entry((gap.source, gap.why, likeness(&gap.detail, node))).or_insert(alike.len());
        match alike.get_mut(place) {
            Some((nodes, _)) => nodes.push(node),
            None => alike.push((vec![node], gap)),
        }
    }
    let words = |nodes: &[&str]| match nodes {
        [_] => first_nodes(nodes, NAMED),
        nodes => format!("{} nodes, {}", nodes.len(), first_nodes(nodes, NAMED)),
    };
    alike.into_iter().map(|(nodes, gap)| format!("not known of {}: {}", words(&nodes), gap.detail)).collect()
}

/// The common part of a text from `node`. This text is only compared, and not shown to users.
pub(super) fn likeness(text: &str, node: &str) -> String {
    let of_word = |it: char| it.is_ascii_alphanumeric() || "-._:".contains(it);
    let mut common = String::with_capacity(text.len());
    for piece in text.split_inclusive(|it| !of_word(it)) {
        let word = piece.trim_end_matches(|it| !of_word(it) || ":.".contains(it));
        let is_address = word.parse::<IpAddr>().is_ok() || word.parse::<SocketAddr>().is_ok();
        if is_address || common.ends_with(PID) && word.bytes().all(|it| it.is_ascii_digit()) {
            common.push('#');
        } else {
            // A word can be a name and a port, like `portreeve-x7f2p:29517`.
            let parts: Vec<&str> = word.split(':').map(|part| common_part(part, node)).collect();
            common.push_str(&parts.join(":"));
        }
        common.push_str(&piece[word.len()..]);
    }
    common
}

fn common_part<'a>(part: &'a str, node: &str) -> &'a str {
    let digits = part.rsplit(['-', '_', '.']).find(|it| it.len() >= IDENTIFIER);
    match digits {
        _ if part == node => "#",
        Some(digits) if digits.bytes().all(|it| it.is_ascii_hexdigit()) => "#",
        _ => controlled(part).unwrap_or(part),
    }
}

/// The part of a pod's name before the generated end. `None` if no controller generated the name.
pub(super) fn controlled(name: &str) -> Option<&str> {
    let (before, end) = name.rsplit_once('-')?;
    let made_up = end.len() == MADE_UP && end.chars().all(|it| LETTERS.contains(it));
    made_up.then_some(before).filter(|before| !before.is_empty())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn texts_that_differ_by_node_address_or_pod_are_alike() {
        for (one, other) in [
            ("Pod office/scanner-x7f2p listens on 30080.", "Pod office/scanner-b9zzk listens on 30080."),
            ("node-1 has no route", "node-2 has no route"),
            ("dial tcp 10.0.0.1:29517: connection refused", "dial tcp 10.0.31.7:29517: connection refused"),
            ("dial tcp [fd00::1]:29517: refused", "dial tcp [fd00:7::2]:29517: refused"),
            ("process nginx (pid 4242)", "process nginx (pid 17)"),
            (
                "/kubepods/pod0d1f4a3e-2c5b-4d6e-8f70-0123456789ab/c1",
                "/kubepods/podffff4a3e-2c5b-4d6e-8f70-ba9876543210/c1",
            ),
            (
                "GET https://h:6443/pods/portreeve-2x7f2:29517/proxy",
                "GET https://h:6443/pods/portreeve-b9zzk:29517/proxy",
            ),
        ] {
            assert_eq!(likeness(one, "node-1"), likeness(other, "node-2"));
        }
    }

    #[test]
    fn texts_that_say_something_else_are_not() {
        for (one, other) in [
            ("nginx listens on 30080.", "haproxy listens on 30080."),
            ("nginx listens on 30080.", "nginx listens on 30081."),
            ("it answers 502", "it answers 503"),
            ("pod web-0 waits", "pod web-1 waits"),
        ] {
            assert_ne!(likeness(one, "n1"), likeness(other, "n2"));
        }
    }

    #[test]
    fn only_a_name_that_a_controller_made_has_a_controller() {
        assert_eq!(controlled("scanner-x7f2p"), Some("scanner"));
        assert_eq!(controlled("web-6d4cf56db6-x7f2p"), Some("web-6d4cf56db6"));
        for name in ["web-0", "coredns", "kube-proxy", "a-known", "-x7f2p", "x7f2p"] {
            assert_eq!(controlled(name), None, "{name}");
        }
    }

    #[test]
    fn what_is_not_known_of_nodes_for_one_reason_is_said_once() {
        let gap = |detail: &str| Gap::new(Source::Agent, Why::Unreachable, detail);
        let gaps = ["a", "b", "c", "d"].map(|node| (node.to_owned(), gap(&format!("no way to {node}"))));
        assert_eq!(gaps_alike(&gaps), ["not known of 4 nodes, a, b, c and 1 more: no way to a"]);
        assert_eq!(gaps_alike(&gaps[..1]), ["not known of a: no way to a"]);
    }

    proptest! {
        #[test]
        fn what_is_no_part_of_a_word_stays(text in ".{0,60}") {
            let rest = |text: &str| text.replace(|it: char| it.is_ascii_alphanumeric() || "-._:#".contains(it), "");
            prop_assert_eq!(rest(&likeness(&text, "n1")), rest(&text));
        }
    }
}
