//! Spreads the requests of many agents over time, although the agents do not know each other.

use jiff::SignedDuration;

use super::name::hash;

/// In a cluster with at most this number of Nodes, all agents may send requests at the same time.
const FEW: usize = 200;
/// In a larger cluster, this number of agents may send requests in the same second.
const A_SECOND: usize = 200;
/// The longest wait, in milliseconds.
const LONGEST: usize = 30_000;

/// The number of Nodes. `None` before Nodes were read for the first time.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Spread {
    nodes: Option<usize>,
}

impl Spread {
    pub(crate) fn over(self, nodes: Option<usize>) -> Self {
        Self { nodes: nodes.or(self.nodes) }
    }

    pub(super) fn is_known(self) -> bool {
        self.nodes.is_some()
    }

    pub(crate) fn wait(self, node: &str, incident: &str) -> SignedDuration {
        let most = self.longest().as_millis().unsigned_abs();
        // The wait uses the middle of the hash, because the end of the hash selects the slot.
        let milliseconds = (hash(&["wait", node, incident]) >> 40) % (most + 1);
        SignedDuration::from_millis(milliseconds as i64)
    }

    /// The longest time that an agent waits before a request. An unknown number of Nodes counts as a very large
    /// cluster.
    pub(super) fn longest(self) -> SignedDuration {
        let most = match self.nodes {
            None => LONGEST,
            Some(nodes) if nodes > FEW => (nodes * 1000 / A_SECOND).min(LONGEST),
            Some(_) => 0,
        };
        SignedDuration::from_millis(most as i64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn longest(nodes: usize) -> i64 {
        Spread::default().over(Some(nodes)).longest().as_secs()
    }

    #[test]
    fn few_nodes_write_at_once_and_more_are_spread_over_half_a_minute_at_most() {
        assert_eq!([0, 1, 200].map(longest), [0, 0, 0]);
        assert_eq!([201, 1000, 5000, 6000, 50_000].map(longest), [1, 5, 25, 30, 30]);
    }

    #[test]
    fn nodes_that_were_not_read_are_many_or_as_many_as_before() {
        assert_eq!(Spread::default().over(None).longest(), SignedDuration::from_secs(30));
        assert_eq!(Spread::default().over(Some(1000)).over(None).longest(), SignedDuration::from_secs(5));
    }

    #[test]
    fn the_waits_of_five_thousand_nodes_fill_every_second_alike() {
        let spread = Spread::default().over(Some(5000));
        let mut seconds = [0; 26];
        for node in 0..5000 {
            let wait = spread.wait(&format!("node-{node}"), "7");
            seconds[wait.as_secs() as usize] += 1;
        }
        assert!(seconds[..25].iter().all(|count| (140..=250).contains(count)), "{seconds:?}");
    }
}
