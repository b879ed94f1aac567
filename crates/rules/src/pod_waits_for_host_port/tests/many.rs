//! More pods than the rule can report or compare.

use std::net::IpAddr;

use super::*;
use crate::capped::OF_RULE;
use portreeve_facts::Why;

#[test]
fn of_any_number_so_many_are_told_and_that_there_are_more() {
    let judgements =
        |count: usize| judged((0..count).map(|it| waits(1, &it.to_string(), |pod| pod.controller = None)).collect());
    let all = judgements(OF_RULE);
    assert!(all.iter().all(|it| matches!(it.verdict, Verdict::Problem(_))) && all.len() == OF_RULE);
    let cut = judgements(OF_RULE + 9);
    let [reported @ .., last] = &cut[..] else { panic!("{cut:?}") };
    assert_eq!(reported.len(), OF_RULE);
    assert!(matches!(&last.verdict, Verdict::Unknown(gap) if gap.why == Why::TooMuch), "{last:?}");
    // Even the youngest pod is reported, if this pod is in another namespace.
    let many = (0..OF_RULE + 9).map(|it| waits(1, &it.to_string(), |pod| pod.controller = None));
    let victim = waits(9, "victim", |pod| pod.namespace = "kube-system".to_owned());
    let reported = judged(many.chain([victim]).collect());
    assert!(reported.iter().any(|it| it.subject.name == "victim"), "a tenant cannot take all places");
}

#[test]
fn of_ports_of_one_number_with_addresses_of_their_own_so_many_are_compared() {
    let ports = |net: u8| {
        let ip = move |n: u16| IpAddr::from([10, net, n.to_be_bytes()[0], n.to_be_bytes()[1]]);
        (0..1000).map(move |n| ContainerPort {
            port: 80,
            host_port: Some(80),
            host_ip: Some(ip(n)),
            protocol: Protocol::Tcp,
        })
    };
    let world = clash(|holder| holder.ports = ports(1).collect(), |waiter| waiter.ports = ports(2).collect());
    let round = Round::of(&world, None, 60);
    let judged = check(&round, &Limits::default()).expect("judged");
    let [Judgement { verdict: Verdict::Unknown(gap), .. }] = &judged[..] else { panic!("{}", judged.len()) };
    assert_eq!(gap.why, Why::TooMuch);
}
