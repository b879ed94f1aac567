//! From where an address of this node can be asked, and from where a socket answers there.

use std::net::IpAddr;

use super::setup::is_link_local;
use crate::{
    facts::{Family, Interfaces, Socket},
    findings::Vantage,
};

/// The vantage points from which an address of this node can be asked.
pub(super) fn vantages(address: IpAddr) -> &'static [Vantage] {
    if address.is_loopback() {
        &[Vantage::Loopback]
    } else if is_link_local(address) {
        &[Vantage::Remote, Vantage::Node]
    } else {
        &[Vantage::Remote, Vantage::Node, Vantage::Pods]
    }
}

/// Those of them from which a listener of that address answers, the proxy aside: none where it does not listen there.
pub(super) fn answers(socket: &Socket, address: IpAddr, interfaces: &Interfaces) -> &'static [Vantage] {
    let listens = socket.local.is_unspecified() || socket.local == address;
    if !listens || socket.serves(Family::of(address)) != Some(true) {
        return &[];
    }
    let on_loopback = || interfaces.links.iter().any(|it| it.name == "lo" && it.index == socket.device);
    match (socket.device, address.is_loopback()) {
        (0, _) => vantages(address),
        (_, true) if on_loopback() => &[Vantage::Loopback],
        (_, true) => &[],
        // A device's own traffic only: the node reaches its own addresses over `lo`.
        (_, false) if on_loopback() => &[Vantage::Node],
        (_, false) => &[Vantage::Remote],
    }
}
