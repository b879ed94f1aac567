//! How agents that learn something at one moment come apart, without knowing of each other.

use jiff::SignedDuration;

use super::hash::hash;

/// So many Nodes can write at once.
const FEW: usize = 200;
/// Of more Nodes, so many write in a second.
const A_SECOND: usize = 200;
/// The longest wait, in milliseconds, however many there are.
const LONGEST: usize = 30_000;

/// How many Nodes there are, as far as is known.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Spread {
    nodes: usize,
}

impl Spread {
    /// Of so many Nodes. Where they were not read there are few.
    pub(super) fn over(nodes: Option<usize>) -> Self {
        Self { nodes: nodes.unwrap_or(0) }
    }

    /// The wait of this node about this Event.
    pub(super) fn delay(self, node: &str, event: &str) -> Delay {
        Delay { own: part(self.longest(), &["wait", node, event]), longest: self.longest() }
    }

    /// The longest wait of any node.
    pub(super) fn longest(self) -> SignedDuration {
        let most = if self.nodes > FEW { (self.nodes * 1000 / A_SECOND).min(LONGEST) } else { 0 };
        SignedDuration::from_millis(most as i64)
    }
}

/// How long this node waits before it writes what all nodes write, and how long the one that waits longest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Delay {
    pub(super) own: SignedDuration,
    pub(super) longest: SignedDuration,
}

/// A part of this time, which differs with what is hashed.
pub(super) fn part(most: SignedDuration, of: &[&str]) -> SignedDuration {
    let most = most.as_millis().unsigned_abs();
    // The middle of the hash: its end decides about voices.
    let milliseconds = (hash(of) >> 40) % (most + 1);
    SignedDuration::from_millis(milliseconds as i64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn longest(nodes: usize) -> i64 {
        Spread::over(Some(nodes)).longest().as_secs()
    }

    #[test]
    fn few_nodes_write_at_once_and_more_are_spread_over_half_a_minute_at_most() {
        assert_eq!([0, 1, 200].map(longest), [0, 0, 0]);
        assert_eq!([201, 1000, 5000, 6000, 50_000].map(longest), [1, 5, 25, 30, 30]);
        assert_eq!(Spread::over(None).longest(), SignedDuration::ZERO);
    }

    #[test]
    fn the_waits_of_five_thousand_nodes_fill_every_second_alike() {
        let spread = Spread::over(Some(5000));
        let mut seconds = [0; 26];
        for node in 0..5000 {
            let wait = spread.delay(&format!("node-{node}"), "portreeve.7").own;
            seconds[wait.as_secs() as usize] += 1;
        }
        assert!(seconds[..25].iter().all(|count| (140..=250).contains(count)), "{seconds:?}");
    }
}
