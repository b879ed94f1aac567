//! Problems of the cluster, which several agents see.

use super::*;
use crate::events::event_state::wait;

#[test]
fn what_one_rule_says_of_a_node_is_written_by_each_node_and_what_it_says_of_the_cluster_once() {
    let (mut server, mut written) = (Server::default(), 0);
    for node in ["n1", "n2"] {
        let mut events = Plan::default();
        let mut own = finding(1, Severity::Critical);
        own.key.subject = Subject { uid: Some(format!("uid-{node}")), ..Subject::node(node, None) };
        for finding in [own, of_the_cluster(2)] {
            events.offer(second(0), &Change::Raised(finding), &place(node));
        }
        server.serve(&mut events, second(0));
        written += events.counters().written;
    }
    assert_eq!(written, 3, "each node's own, and one of the cluster: {:?}", server.events);
}

#[test]
fn a_fact_of_the_cluster_is_written_by_one_agent_and_by_another_when_that_one_is_gone() {
    let mut server = Server::default();
    let mut agents = ["n1", "n2"].map(|node| (node, Plan::default()));
    let finding = of_the_cluster(1);
    for (node, events) in &mut agents {
        events.offer(minute(0), &Change::Raised(finding.clone()), &place(node));
        server.serve(events, minute(0));
    }
    let [(_, first), (_, mut second)] = agents;
    assert_eq!(first.counters(), Counters { written: 1, ..Counters::default() });
    assert_eq!(second.counters(), Counters { deduplicated: 1, ..Counters::default() });
    assert_eq!(server.events.len(), 1);
    let again = second.due(minute(1)).expect("it tries again");
    assert!(again >= minute(55) && again <= minute(70), "{again}");
    server.events.clear();
    server.serve(&mut second, again);
    assert_eq!(second.counters().written, 1);
    assert_eq!(second.due(again), Some(again + wait(1)), "from now on it is the one");
}

#[test]
fn a_fact_of_the_cluster_ends_once() {
    let mut server = Server::default();
    let mut agents = ["n1", "n2", "n3"].map(|node| (node, Plan::default()));
    let finding = of_the_cluster(1);
    for (node, events) in &mut agents {
        events.offer(minute(0), &Change::Raised(finding.clone()), &place(node));
        server.serve(events, minute(0));
    }
    // One of those that stayed silent sees it first.
    for (node, events) in agents.iter_mut().rev() {
        events.offer(minute(1), &Change::Cleared(finding.clone(), Clearance::Repaired), &place(node));
        server.serve(events, minute(1));
    }
    assert!(server.events.values().all(|kept| kept.series.count == 1), "{:?}", server.events);
    assert_eq!(server.events.len(), 2);
}
