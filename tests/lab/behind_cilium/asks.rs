//! The clients and their places: the vantage points of a node with Cilium, and a network namespace without a pod.

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
    thread,
    time::Duration,
};

use portreeve_facts::Protocol;
use portreeve_rules::findings::Vantage;

use crate::{
    parts::{ADDRESSES, Answer, Namespace},
    verdicts::{
        asks::{Ask, at_once},
        recording::NAMESPACE,
    },
};

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum From {
    At(Vantage),
    /// A network namespace on the node. Cilium did not make this namespace.
    Namespace,
}

/// The place of the client, and the address whose ports the client queries.
pub type Place = (From, IpAddr);

pub struct Everybody<'a> {
    pub client: &'a Namespace,
    pub pod: &'a Namespace,
    pub namespace: &'a Namespace,
}

impl From {
    pub fn name(self) -> &'static str {
        match self {
            Self::At(vantage) => vantage.name(),
            Self::Namespace => NAMESPACE,
        }
    }

    /// A client in a network namespace counts as a pod.
    pub fn ask(self, protocol: Protocol, to: IpAddr, port: u16) -> Ask {
        let vantage = if let Self::At(vantage) = self { vantage } else { Vantage::Pods };
        (vantage, protocol, SocketAddr::new(to, port))
    }
}

pub fn places(further: &[&str]) -> Vec<Place> {
    let parse = |it: &str| it.parse::<IpAddr>().expect("an address");
    let outside = [Vantage::Remote, Vantage::Node, Vantage::Pods].map(From::At).into_iter().chain([From::Namespace]);
    let reached: Vec<IpAddr> = ADDRESSES[..6].iter().chain(further).map(|it| parse(it)).collect();
    let outside = outside.flat_map(|from| reached.iter().map(move |to| (from, *to)).collect::<Vec<_>>());
    outside.chain(["127.0.0.1", "::1"].map(|it| (From::At(Vantage::Loopback), parse(it)))).collect()
}

pub type Answers = BTreeMap<(From, Protocol, IpAddr, u16), Answer>;

/// The pause before each attempt of a query. One lost packet proves nothing. Behind Cilium, about one in ten thousand
/// UDP flows loses all packets for some seconds.
const RESTS: [Duration; 3] = [Duration::ZERO, Duration::from_secs(2), Duration::from_secs(10)];

pub fn ask_everything(everybody: &Everybody<'_>, places: &[Place], ports: &[(Protocol, u16)]) -> Answers {
    let all =
        ports.iter().flat_map(|(protocol, port)| places.iter().map(move |(from, to)| (*from, *protocol, *to, *port)));
    let mut answers = ask_once(everybody, &all.collect::<Vec<_>>());
    for rest in RESTS {
        let silent = answers.iter().filter(|(_, answer)| **answer == Answer::TimedOut).map(|(it, _)| *it);
        let silent: Vec<_> = silent.collect();
        if silent.is_empty() {
            break;
        }
        thread::sleep(rest);
        answers.extend(ask_once(everybody, &silent));
    }
    answers
}

fn ask_once(everybody: &Everybody<'_>, all: &[(From, Protocol, IpAddr, u16)]) -> Answers {
    let of = |wanted: &[From]| -> Vec<Ask> {
        let some = all.iter().filter(|(from, ..)| wanted.contains(from));
        some.map(|(from, protocol, to, port)| from.ask(*protocol, *to, *port)).collect()
    };
    let node = [Vantage::Node, Vantage::Loopback].map(From::At);
    let groups = [
        (Some(everybody.client), of(&[From::At(Vantage::Remote)])),
        (Some(everybody.pod), of(&[From::At(Vantage::Pods)])),
        (Some(everybody.namespace), of(&[From::Namespace])),
        (None, of(&node)),
    ];
    let answers: Vec<BTreeMap<Ask, Answer>> = thread::scope(|scope| {
        let asking = groups.map(|(namespace, asks)| {
            scope.spawn(move || match namespace {
                Some(namespace) => namespace.run(move || at_once(&asks)),
                None => at_once(&asks),
            })
        });
        asking.into_iter().map(|it| it.join().expect("answers")).collect()
    });
    let answer = |from: From, ask: &Ask| match from {
        From::At(Vantage::Remote) => answers[0][ask],
        From::At(Vantage::Pods) => answers[1][ask],
        From::Namespace => answers[2][ask],
        From::At(_) => answers[3][ask],
    };
    all.iter().map(|it| (*it, answer(it.0, &it.0.ask(it.1, it.2, it.3)))).collect()
}
