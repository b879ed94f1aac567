//! Sockets in words.

use std::{collections::BTreeMap, net::SocketAddr};

use super::proxy_sockets::{group, is_of_one_program};
use portreeve_facts::{Owner, Protocol, Socket, State};

/// One socket of each server, with the number of the server's sockets. Sockets with equal owner, address, port and
/// device are SO_REUSEPORT workers of one server.
pub fn workers<'a>(sockets: &[&'a Socket]) -> Vec<(&'a Socket, usize)> {
    let mut groups: BTreeMap<_, Vec<&Socket>> = BTreeMap::new();
    for socket in sockets {
        let key = (socket.local, socket.device, socket.family, socket.v6only, group(socket));
        groups.entry(key).or_default().push(socket);
    }
    groups.into_values().map(|group| (group[0], group.len())).collect()
}

/// `, 2 workers`, or the number of sockets that several programs may have. Empty for one socket.
pub(super) fn workers_in_words(socket: &Socket, count: usize) -> String {
    match count {
        1 => String::new(),
        _ if matches!(socket.owner, Owner::Kernel { .. }) => format!(", {count} sockets"),
        _ if is_of_one_program(socket) => format!(", {count} workers"),
        _ => format!(", {count} sockets, perhaps of several programs"),
    }
}

/// `0.0.0.0:30080/tcp`.
pub fn place(socket: &Socket) -> String {
    format!("{}/{}", SocketAddr::new(socket.local, socket.local_port), socket.protocol)
}

/// Whether a TCP socket is bound to an address, and neither listens nor connects.
pub fn is_bound(socket: &Socket) -> bool {
    socket.protocol == Protocol::Tcp && socket.state == State::Close
}

/// Whether a socket is on an address of loopback, or is bound to the device `lo`, index 1 (Linux include/net/flow.h,
/// `LOOPBACK_IFINDEX`). Other hosts do not reach a socket on loopback. A user can make any number of sockets on
/// loopback.
pub fn is_on_loopback(socket: &Socket) -> bool {
    socket.local.is_loopback() || socket.device == 1
}

/// `tcp LISTEN 0.0.0.0:30080`, and the device, if the socket is bound to a device.
pub fn socket_in_words(socket: &Socket) -> String {
    let local = SocketAddr::new(socket.local, socket.local_port);
    let state = if is_bound(socket) { "BOUND" } else { socket.state.name() };
    let mut words = format!("{} {state} {local}", socket.protocol);
    if !matches!((socket.protocol, socket.state), (_, State::Listen) | (Protocol::Tcp | Protocol::Udp, State::Close)) {
        words.push_str(&format!(" -> {}", SocketAddr::new(socket.remote, socket.remote_port)));
    }
    if socket.retransmits > 0 {
        words.push_str(" retransmitting");
    }
    if socket.v6only == Some(true) {
        words.push_str(" v6only");
    }
    if socket.device != 0 {
        words.push_str(&format!(" on interface {}", socket.device));
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;
    use portreeve_facts::{
        Snapshot, Source, Why,
        healthy::{daemon, gap, held, seen},
    };

    #[test]
    fn workers_are_of_one_owner() {
        let on = |owners: &[(&str, u32)]| {
            let listens =
                |world: Snapshot, (name, pid): &(&str, u32)| world.listens_as("0.0.0.0:8080", daemon(name, *pid));
            let world = owners.iter().fold(Snapshot::healthy(), listens);
            let all = world.kernel.listeners.seen().expect("listeners");
            let sockets: Vec<&Socket> = all.iter().filter(|it| it.local_port == 8080).collect();
            workers(&sockets).into_iter().map(|(_, count)| count).collect::<Vec<_>>()
        };
        assert_eq!(on(&[("nginx", 7), ("nginx", 7), ("nginx", 7)]), [3]);
        assert_eq!(on(&[("nginx", 7), ("haproxy", 8), ("nginx", 7)]), [1, 2]);
    }

    #[test]
    fn sockets_whose_program_was_not_read_are_not_called_workers() {
        let words = |owner: Owner| {
            let world = Snapshot::healthy().listens_as("0.0.0.0:8080", owner);
            workers_in_words(world.kernel.listeners.seen().expect("listeners").last().expect("a listener"), 2)
        };
        assert_eq!(words(daemon("nginx", 7)), ", 2 workers");
        assert_eq!(words(Owner::Kernel { link: "vxlan.calico".to_owned() }), ", 2 sockets");
        let mut of_session = held("/user.slice/user-0.slice/session-3.scope", None, "nginx", 7);
        let Owner::Held(holder) = &mut of_session else { panic!("a holder") };
        holder.process = gap(Source::Processes, Why::NotPermitted);
        for owner in [of_session, Owner::NotRead] {
            assert_eq!(words(owner), ", 2 sockets, perhaps of several programs");
        }
    }

    #[test]
    fn processes_of_one_session_are_several_owners_and_processes_of_one_service_are_one() {
        let on = |group: &str, are_read: bool| {
            let owners = [("nginx", 7), ("haproxy", 8), ("nginx", 7)].map(|(name, pid)| held(group, None, name, pid));
            let mut world =
                owners.into_iter().fold(Snapshot::healthy(), |world, owner| world.listens_as("0.0.0.0:8080", owner));
            let sockets = seen(&mut world.kernel.listeners).iter_mut().filter(|it| it.local_port == 8080);
            for socket in sockets.filter(|_| !are_read) {
                let Owner::Held(holder) = &mut socket.owner else { panic!("a holder") };
                holder.process = gap(Source::Processes, Why::NotPermitted);
            }
            let all = world.kernel.listeners.seen().expect("listeners");
            let sockets: Vec<&Socket> = all.iter().filter(|it| it.local_port == 8080).collect();
            workers(&sockets).into_iter().map(|(_, count)| count).collect::<Vec<_>>()
        };
        let session = "/user.slice/user-0.slice/session-3.scope";
        assert_eq!((on(session, true), on("/system.slice/web.service", true)), (vec![2, 1], vec![3]));
        assert_eq!(on(session, false), [3], "nobody knows their processes");
    }
}
