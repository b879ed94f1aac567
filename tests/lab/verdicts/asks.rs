//! Connections and datagrams that test clients send, and their answers.

use std::{
    collections::BTreeMap,
    io::{self, ErrorKind},
    net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket},
    sync::Mutex,
    thread,
};

use nix::net::if_::if_nametoindex;
use portreeve_facts::Protocol;
use portreeve_rules::findings::Vantage;

use super::binds::OTHER_LOOPBACK;
use crate::parts::{ADDRESSES, Answer, LINK_LOCAL, Wired, answer_within, ask, slowness};

pub type Ask = (Vantage, Protocol, SocketAddr);

/// The number of parallel connections from one network namespace, on a fast machine.
const AT_ONCE: u32 = 128;

pub fn questions(protocol: Protocol, port: u16) -> Vec<Ask> {
    let to = |vantage, address: &str| (vantage, protocol, SocketAddr::new(address.parse().expect("an address"), port));
    let outside = [Vantage::Remote, Vantage::Node, Vantage::Pods].into_iter();
    let outside = outside.flat_map(|vantage| ADDRESSES.map(|address| to(vantage, address)));
    let on_the_link = [Vantage::Remote, Vantage::Node].map(|vantage| to(vantage, LINK_LOCAL));
    let loopback = ["127.0.0.1", "::1"].map(|address| to(Vantage::Loopback, address));
    outside.chain(on_the_link).chain(loopback).collect()
}

/// All test connections to a port, including connections to 127.0.0.53, which only the node itself reaches.
pub fn every_question(protocol: Protocol, port: u16) -> Vec<Ask> {
    let other = SocketAddr::new(OTHER_LOOPBACK.parse().expect("an address"), port);
    questions(protocol, port).into_iter().chain([(Vantage::Loopback, protocol, other)]).collect()
}

/// Makes each test connection. A connection without an answer is repeated twice, because a busy machine loses packets.
pub fn ask_all(wired: &Wired, asks: &[Ask]) -> BTreeMap<Ask, Answer> {
    let mut answers = ask_once(wired, asks);
    for _ in 0..2 {
        let silent = answers.iter().filter(|(_, answer)| **answer == Answer::TimedOut);
        let silent: Vec<Ask> = silent.map(|(ask, _)| *ask).collect();
        answers.extend(ask_once(wired, &silent));
    }
    answers
}

fn ask_once(wired: &Wired, asks: &[Ask]) -> BTreeMap<Ask, Answer> {
    let from = |vantages: &[Vantage]| -> Vec<Ask> {
        asks.iter().copied().filter(|(vantage, ..)| vantages.contains(vantage)).collect()
    };
    let [remote, pods] = [Vantage::Remote, Vantage::Pods].map(|it| from(&[it]));
    let own = from(&[Vantage::Node, Vantage::Loopback]);
    thread::scope(|scope| {
        let elsewhere = scope.spawn(|| wired.client.run(move || at_once(&remote)));
        let pods = scope.spawn(|| wired.pod.run(move || at_once(&pods)));
        let mut answers = at_once(&own);
        answers.extend(elsewhere.join().expect("answers"));
        answers.extend(pods.join().expect("answers"));
        answers
    })
}

pub fn at_once(asks: &[Ask]) -> BTreeMap<Ask, Answer> {
    let left = Mutex::new(asks.iter());
    let work = || {
        let next = || left.lock().expect("nobody panicked").next();
        let mut answers = Vec::new();
        while let Some(it) = next() {
            let (_, protocol, address) = *it;
            answers.push((*it, if protocol == Protocol::Udp { ask_udp(address) } else { ask(address) }));
        }
        answers
    };
    thread::scope(|scope| {
        let workers: Vec<_> = (0..AT_ONCE / slowness()).map(|_| scope.spawn(work)).collect();
        workers.into_iter().flat_map(|worker| worker.join().expect("answers")).collect()
    })
}

#[track_caller]
fn ask_udp(address: SocketAddr) -> Answer {
    match exchange(address) {
        Ok(said) => {
            Answer::said(&said).unwrap_or_else(|| panic!("{address} says {:?}", String::from_utf8_lossy(&said)))
        }
        // `InvalidInput` means that the kernel has translated the datagram, and cannot send it out of loopback.
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::InvalidInput) => {
            Answer::TimedOut
        }
        // A virtual server of ipvs without endpoints refuses a datagram of its own node with `PermissionDenied`.
        Err(error) if matches!(error.kind(), ErrorKind::ConnectionRefused | ErrorKind::PermissionDenied) => {
            Answer::Refused
        }
        Err(error) if matches!(error.kind(), ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable) => {
            Answer::Unreachable
        }
        Err(error) => panic!("{address}: {error}"),
    }
}

fn exchange(mut address: SocketAddr) -> io::Result<Vec<u8>> {
    if let SocketAddr::V6(it) = &mut address
        && it.ip().is_unicast_link_local()
    {
        it.set_scope_id(if_nametoindex("eth0")?);
    }
    let any = if address.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind(SocketAddr::new(any, 0))?;
    socket.set_read_timeout(Some(answer_within()))?;
    socket.connect(address)?;
    socket.send(b"?")?;
    let mut said = [0; 16];
    let length = socket.recv(&mut said)?;
    Ok(said[..length].to_vec())
}
