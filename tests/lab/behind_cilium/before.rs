//! Recordings with an older version of Cilium, only for settings that the newest version handles differently.

use std::net::IpAddr;

use portreeve_dataplane::{Outcome, owner};
use portreeve_facts::Protocol;
use portreeve_rules::{Limits, findings::Vantage};

use super::{
    BESIDE, DETECTED, FAR, ON_LO, Told, ask_all, ask_common,
    asks::{Everybody, From, ask_everything, places},
    live::{Behind, is_refused},
    often,
    shapes::SECOND,
};
use crate::{
    look::snapshot,
    parts::{Answer, PRIMARY, Release, Wired},
    verdicts::binds::{Held, to},
};

#[test]
fn by_default() {
    ask_all(&Told::before("default", often::DEFAULT));
}

#[test]
fn on_one_address() {
    ask_all(&Told::before("second", often::SECOND));
}

#[test]
fn on_every_address_of_two_devices() {
    ask_all(&Told::before("all", often::ALL));
}

#[test]
fn without_endpoints_in_silence() {
    ask_all(&Told::before("drop", often::DROP));
}

#[test]
fn without_endpoints_not_taken() {
    ask_all(&Told::before("not-routable", often::NOT_ROUTABLE));
}

#[test]
fn with_sockets_of_the_host_only() {
    ask_all(&Told::before("host-sockets", often::HOST_SOCKETS));
}

#[test]
fn beside_kube_proxy() {
    ask_all(&Told::before(BESIDE, often::WITHOUT));
}

#[test]
fn on_devices_that_it_finds_by_itself() {
    ask_common(&Told::before(DETECTED, often::DETECTS));
}

/// An address outside the ranges that Cilium counts as private.
const PUBLIC: &str = "128.66.0.1";

#[test]
fn beside_a_public_address_of_the_node_it_serves_a_private_one_and_neither_is_said_to_be() {
    for release in [Release::Newest, Release::Before] {
        let mut node = Behind::start_of(release, &["128.66.0.1/24"], &[PUBLIC, PRIMARY[1]]);
        let _squatter = Held::on(&to("0.0.0.0"), Protocol::Tcp, 30080, Answer::Process);
        let _far = node.far();
        node.serve(&[("web", Protocol::Tcp, 30080, Wired::PORT, FAR)]);
        let everybody = Everybody { client: &node.wired.client, pod: &node.pod, namespace: &node.wired.pod };
        let addresses = [PUBLIC, PRIMARY[0], "192.0.2.2"].map(|it| it.parse().expect("an address"));
        let places = addresses.map(|it| (From::At(Vantage::Remote), it));
        let answers = ask_everything(&everybody, &places, &[(Protocol::Tcp, 30080)]);
        let shown = places.map(|(from, address)| answers[&(from, Protocol::Tcp, address, 30080)]);
        assert_eq!(shown.map(|it| it == Answer::Pod), [false, true, false], "{release:?}: {shown:?}");
        let seen = snapshot(&node.cluster.kubeconfig("admin"));
        let owned = owner(&Limits::default().round(&seen, None), Protocol::Tcp, 30080).expect("it can be told");
        for (address, shown) in addresses.into_iter().zip(shown) {
            let told = owned.answers.iter().find(|it| it.from == Vantage::Remote && it.to == address);
            let outcome = if shown == Answer::Pod { Outcome::Pod } else { Outcome::Listener };
            assert!(told.is_some_and(|it| it.outcome.as_ref().map_or(true, |told| *told == outcome)), "{address}");
        }
    }
}

/// Cilium's range is the upper part of the API server's range.
#[test]
fn a_node_port_outside_of_its_range_is_served_only_where_it_serves_remote_clients() {
    for release in [Release::Newest, Release::Before] {
        let mut node = Behind::start_all(release, &[("node-port-range", "31000,32767")], &[], &PRIMARY);
        let squatter = Held::on(&to("::"), Protocol::Tcp, 30080, Answer::Process);
        let _far = node.far();
        node.serve(&[("web", Protocol::Tcp, 30080, Wired::PORT, FAR)]);
        let everybody = Everybody { client: &node.wired.client, pod: &node.pod, namespace: &node.wired.pod };
        let answers = ask_everything(&everybody, &places(&ON_LO), &[(Protocol::Tcp, 30080)]);
        let shown = |from, to: &str| {
            let to = to.parse::<IpAddr>().expect("an address");
            answers[&(From::At(from), Protocol::Tcp, to, 30080)]
        };
        for from in [Vantage::Remote, Vantage::Node, Vantage::Pods] {
            assert_eq!(PRIMARY.map(|to| shown(from, to)), [Answer::Pod; 2], "{release:?}: {from}");
            assert_eq!(SECOND.map(|to| shown(from, to)), [Answer::Process; 2], "{release:?}: {from}");
        }
        let loopback = ["127.0.0.1", "::1"].map(|to| shown(Vantage::Loopback, to));
        assert_eq!(loopback, [Answer::Process; 2], "{release:?}");
        let seen = snapshot(&node.cluster.kubeconfig("admin"));
        let owned = owner(&Limits::default().round(&seen, None), Protocol::Tcp, 30080).expect("it can be told");
        for ((from, _, address, _), shown) in &answers {
            let From::At(vantage) = from else { continue };
            let told = owned.answers.iter().find(|it| it.from == *vantage && it.to == *address);
            let outcome = if *shown == Answer::Pod { Outcome::Pod } else { Outcome::Listener };
            assert!(told.is_some_and(|it| it.outcome == Ok(outcome)), "{release:?}: {vantage} to {address}: {told:?}");
        }

        drop(squatter);
        let refused = ["0.0.0.0", "::", PRIMARY[0], SECOND[0], "127.0.0.1"].map(|it| is_refused(it, 30080));
        assert_eq!(refused, [true, true, true, false, false], "{release:?}");
    }
}
