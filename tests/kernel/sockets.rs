//! Sockets of every kind and state. The test compares the results of sock_diag, `/proc/net` and `ss`.

use std::{
    collections::BTreeSet,
    io,
    net::{SocketAddr, TcpListener, TcpStream, UdpSocket},
    os::fd::{AsRawFd, OwnedFd},
    path::Path,
    process::Command,
};

use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, SockaddrStorage, bind, connect, listen, setsockopt, socket, sockopt,
};
use portreeve_facts::{Clients, Gap, Owner, PortRange, PortSet, Protocol, Socket, State, Why};
use portreeve_kernel::{Counting, Sockets};

use crate::{namespace::Namespace, process::eventually};

fn live() -> Sockets {
    Sockets::live(Path::new("/proc"))
}

fn every_port() -> PortSet {
    PortRange { first: 1, last: u16::MAX }.into()
}

fn listeners() -> Vec<Socket> {
    live().listeners().expect("listeners").sockets
}

fn on_port(sockets: &[Socket], port: u16) -> &Socket {
    let [socket] = &sockets.iter().filter(|socket| socket.local_port == port).collect::<Vec<_>>()[..] else {
        panic!("not one socket on port {port}: {sockets:?}");
    };
    socket
}

/// `prepare` sets the options that must be set before `bind`.
fn bound(address: &str, prepare: impl FnOnce(&OwnedFd) -> nix::Result<()>) -> OwnedFd {
    let address: SocketAddr = address.parse().expect("an address");
    let family = if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let made =
        socket(family, SockType::Stream, SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK, None).expect("a socket");
    prepare(&made).expect("an option");
    bind(made.as_raw_fd(), &SockaddrStorage::from(address)).expect("a free port");
    made
}

/// A connection that stays in SYN-SENT. The local address of the connection is 10.66.0.1, and the local port is `port`.
fn hanging(port: u16) -> OwnedFd {
    let client = bound(&format!("10.66.0.1:{port}"), |_| Ok(()));
    let peer: SocketAddr = "10.66.0.2:8080".parse().expect("an address");
    let outcome = connect(client.as_raw_fd(), &SockaddrStorage::from(peer));
    assert_eq!(outcome, Err(nix::errno::Errno::EINPROGRESS));
    client
}

fn connection(from: &str, to: SocketAddr) -> TcpStream {
    let client = bound(from, |client| setsockopt(client, sockopt::ReuseAddr, &true));
    let outcome = connect(client.as_raw_fd(), &SockaddrStorage::from(to));
    assert!(matches!(outcome, Ok(()) | Err(nix::errno::Errno::EINPROGRESS)), "{outcome:?}");
    let client = TcpStream::from(client);
    client.set_nonblocking(false).expect("a blocking socket");
    eventually(|| client.peer_addr().ok()).expect("connected");
    client
}

#[test]
fn listeners_have_address_family_v6only_device_uid_and_inode() {
    let namespace = Namespace::enter();
    namespace.add_void();
    let wildcard = TcpListener::bind("0.0.0.0:30080").expect("bound");
    let _dual = TcpListener::bind("[::]:30081").expect("bound");
    let only = bound("[::]:30082", |socket| setsockopt(socket, sockopt::Ipv6V6Only, &true));
    listen(&only, Backlog::MAXCONN).expect("listening");
    let device = bound("10.66.0.1:30083", |socket| setsockopt(socket, sockopt::BindToDevice, &"void".into()));
    listen(&device, Backlog::MAXCONN).expect("listening");
    let _udp = UdpSocket::bind("[::1]:30084").expect("bound");
    let _loopback = TcpListener::bind("127.0.0.1:30085").expect("bound");

    let seen = listeners();
    assert_eq!(seen.len(), 6, "{seen:?}");
    let first = on_port(&seen, 30080);
    let link = std::fs::read_link(format!("/proc/self/fd/{}", wildcard.as_raw_fd())).expect("a descriptor");
    assert_eq!(link.to_string_lossy(), format!("socket:[{}]", first.inode));
    assert_eq!((first.protocol, first.state, first.uid), (Protocol::Tcp, State::Listen, 0));
    assert_eq!((first.local.to_string(), first.owner.clone()), ("0.0.0.0".to_owned(), Owner::NotRead));
    assert!(first.cgroup.is_some());
    let told = |port: u16| (on_port(&seen, port).local.to_string(), on_port(&seen, port).v6only);
    assert_eq!(told(30081), ("::".to_owned(), Some(false)));
    assert_eq!(told(30082), ("::".to_owned(), Some(true)));
    let index = nix::net::if_::if_nametoindex("void").expect("a link");
    assert_eq!((on_port(&seen, 30083).device, first.device), (index, 0));
    let udp = on_port(&seen, 30084);
    assert_eq!((udp.protocol, udp.state, udp.local.to_string()), (Protocol::Udp, State::Close, "::1".to_owned()));
}

/// Returns `None` if another socket has the port.
fn is_given(kind: SockType, address: &str, shares: bool) -> Option<OwnedFd> {
    let address: SocketAddr = address.parse().expect("an address");
    let made = socket(AddressFamily::Inet, kind, SockFlag::SOCK_CLOEXEC, None).expect("a socket");
    setsockopt(&made, sockopt::ReuseAddr, &shares).expect("an option");
    match bind(made.as_raw_fd(), &SockaddrStorage::from(address)) {
        Ok(()) => Some(made),
        Err(error) => {
            assert_eq!(error, nix::errno::Errno::EADDRINUSE, "{address}");
            None
        }
    }
}

/// Another process listens on the port on one address, like systemd-resolved: its socket is bound to loopback and has
/// `SO_REUSEADDR`. The rule `host-network-port-taken` relies on this behaviour of the kernel.
#[test]
fn a_listener_on_one_address_blocks_a_server_on_every_address_and_on_no_other_single_address() {
    let _namespace = Namespace::enter();
    let to_loopback = |it: &OwnedFd| setsockopt(it, sockopt::BindToDevice, &"lo".into());
    let to_share = |it: &OwnedFd| setsockopt(it, sockopt::ReuseAddr, &true);
    let stub = bound("127.0.0.53:53", |it| to_share(it).and_then(|()| to_loopback(it)));
    listen(&stub, Backlog::MAXCONN).expect("listening");
    for shares in [false, true] {
        assert!(is_given(SockType::Stream, "0.0.0.0:53", shares).is_none(), "TCP is not shared with a listener");
        assert!(is_given(SockType::Stream, "127.0.0.1:53", shares).is_some());
    }
    assert!(is_given(SockType::Datagram, "0.0.0.0:53", false).is_some(), "UDP is another protocol");
    let _stub = is_given(SockType::Datagram, "127.0.0.53:53", true).expect("a free port");
    assert!(is_given(SockType::Datagram, "0.0.0.0:53", false).is_none());
    assert!(is_given(SockType::Datagram, "0.0.0.0:53", true).is_some(), "both ask to share");
    assert!(is_given(SockType::Datagram, "127.0.0.1:53", false).is_some());
}

#[test]
fn each_worker_that_shares_a_port_is_listed() {
    let _namespace = Namespace::enter();
    let worker = || {
        let socket = bound("0.0.0.0:30080", |socket| setsockopt(socket, sockopt::ReusePort, &true));
        listen(&socket, Backlog::MAXCONN).expect("listening");
        socket
    };
    let _workers = [worker(), worker(), worker()];
    assert_eq!(listeners().len(), 3);
}

#[test]
fn clients_on_requested_ports_are_listed_in_every_state() {
    let namespace = Namespace::enter();
    namespace.add_void();
    let server = TcpListener::bind("127.0.0.1:80").expect("bound");
    let to = server.local_addr().expect("an address");
    let _hanging = hanging(30080);
    let _established = connection("127.0.0.1:30081", to);
    let _not_asked_for = connection("127.0.0.1:30085", to);
    let closing = connection("127.0.0.1:30082", to);
    let _accepted: Vec<_> = (0..3).map(|_| server.accept().expect("a connection")).collect();
    let udp = UdpSocket::bind("127.0.0.1:30090").expect("bound");
    udp.connect("127.0.0.1:53").expect("connected");
    closing.shutdown(std::net::Shutdown::Both).expect("open");
    drop(closing);
    drop(_accepted);

    let ports: PortSet = "30080-30082,30090".parse().expect("ports");
    let clients = eventually(|| {
        let clients = live().connections(Some(&ports), None, &listeners()).clients.expect("clients");
        let retransmitted = clients.sockets.iter().any(|socket| socket.retransmits > 0);
        let waits = clients.sockets.iter().any(|socket| socket.state == State::TimeWait);
        (retransmitted && waits).then_some(clients)
    });
    let clients = clients.expect("a retransmission and a TIME_WAIT");
    let told: BTreeSet<_> = clients.sockets.iter().map(|socket| (socket.local_port, socket.state)).collect();
    // The peer of the connection from port 30081 has closed the connection.
    let expected =
        [(30080, State::SynSent), (30081, State::CloseWait), (30082, State::TimeWait), (30090, State::Established)];
    assert_eq!(told, BTreeSet::from(expected));
    let hanging = on_port(&clients.sockets, 30080);
    assert_eq!((hanging.remote.to_string(), hanging.remote_port), ("10.66.0.2".to_owned(), 8080));
    assert_eq!(clients.sockets[0].local_port, 30080, "SYN-SENT comes first");
    let gone = on_port(&clients.sockets, 30082);
    assert_eq!((gone.inode, gone.cgroup), (0, None));
    assert_eq!(clients.beyond, 0);
    assert_eq!(live().connections(Some(&PortSet::default()), None, &[]).clients, Ok(Clients::default()));
}

#[test]
fn a_second_walk_shows_peers_that_are_servers_and_sockets_that_are_only_bound() {
    let _namespace = Namespace::enter();
    let server = TcpListener::bind("127.0.0.1:8080").expect("bound");
    let to = server.local_addr().expect("an address");
    let _contested = connection("127.0.0.1:30081", to);
    let _accepted = server.accept().expect("a connection");
    let _bound = bound("127.0.0.1:30082", |_| Ok(()));
    let scan = |contested: &str, lists_bound| {
        let contested: PortSet = contested.parse().expect("ports");
        let clients = live().connections(Some(&contested), None, &listeners()).clients.expect("clients");
        let told = live().walk_again(clients, &contested, &listeners(), lists_bound).expect("clients");
        assert_eq!(told.bound_unlisted, !lists_bound);
        assert_eq!(told.bound_searched.is_empty(), !lists_bound);
        (told.servers, told.sockets.iter().map(|it| (it.local_port, it.state)).collect::<Vec<_>>())
    };
    let connected = (30081, State::Established);
    assert_eq!(
        scan("30081-30082", true),
        (vec![], vec![connected, (30082, State::Close)]),
        "no other connection has this peer"
    );
    assert_eq!(scan("30081-30082", false), (vec![], vec![connected]), "an older kernel");
    assert_eq!(scan("30083", true), (vec![], vec![]), "another port");
    let text = Sockets::recorded(Path::new("/proc/thread-self/net"));
    let of_text = text.walk_again(Clients::default(), &"30082".parse().expect("a port"), &[], true);
    assert!(of_text.expect("clients").bound_unlisted, "the text tables have no such socket");
    let _other = connection("127.0.0.1:30085", to);
    let _accepted = server.accept().expect("a connection");
    assert_eq!(scan("30081", true), (vec![to], vec![connected]));
    assert_eq!(scan("30081,30085", true).0, vec![], "both are contested");
    let _listener = TcpListener::bind("127.0.0.2:30085").expect("bound");
    assert_eq!(scan("30081", true).0, vec![to], "the listener has another address");
}

#[test]
fn a_peer_with_accepted_connections_only_is_no_server() {
    let _namespace = Namespace::enter();
    let [one, other] = ["127.0.0.1:30081", "127.0.0.1:30085"].map(|at| TcpListener::bind(at).expect("bound"));
    let accepted = [&one, &other].map(|server| {
        let client = connection("127.0.0.1:40000", server.local_addr().expect("an address"));
        (client, server.accept().expect("a connection"))
    });
    drop(one);
    let contested: PortSet = "30081".parse().expect("ports");
    let clients = live().connections(Some(&contested), None, &listeners()).clients.expect("clients");
    let told = live().walk_again(clients, &contested, &listeners(), true).expect("clients");
    let left: Vec<_> = told.sockets.iter().map(|it| (it.local_port, it.remote_port)).collect();
    assert_eq!((told.servers, left), (vec![], vec![(30081, 40000)]), "30085 listens");
    drop(accepted);
}

#[test]
fn clients_are_capped_and_the_rest_is_counted() {
    let namespace = Namespace::enter();
    namespace.add_void();
    namespace.set("ipv4/ip_local_port_range", "1024 65535");
    let server = TcpListener::bind("127.0.0.1:80").expect("bound");
    let to = server.local_addr().expect("an address");
    let _streams: Vec<_> = (0..2100)
        .map(|_| (TcpStream::connect(to).expect("connected"), server.accept().expect("a connection")))
        .collect();
    let _hanging = hanging(30080);
    let clients = live().connections(Some(&every_port()), None, &listeners()).clients.expect("clients");
    assert_eq!((clients.sockets.len(), clients.beyond), (4096, 105));
    assert_eq!(clients.sockets[0].state, State::SynSent);
    let from_server = clients.sockets.iter().filter(|socket| socket.local_port == 80).count();
    assert_eq!(from_server, 1995, "accepted connections are dropped first");
}

#[test]
fn text_and_sock_diag_show_the_same_sockets() {
    let namespace = Namespace::enter();
    namespace.add_void();
    let server = TcpListener::bind("[::]:30080").expect("bound");
    let _other = TcpListener::bind("127.0.0.1:30081").expect("bound");
    let _udp = UdpSocket::bind("0.0.0.0:30082").expect("bound");
    let connected = UdpSocket::bind("[::1]:30083").expect("bound");
    connected.connect("[::1]:53").expect("connected");
    let _mapped = TcpStream::connect("127.0.0.1:30080").expect("connected");
    let _native = TcpStream::connect("[::1]:30080").expect("connected");
    let _accepted = [server.accept().expect("a connection"), server.accept().expect("a connection")];

    let text = Sockets::recorded(Path::new("/proc/thread-self/net"));
    // Removes the fields that the tables in `/proc/net` do not have.
    let told_by_both = |sockets: Vec<Socket>| -> Vec<_> {
        sockets.into_iter().map(|socket| Socket { v6only: None, cgroup: None, device: 0, ..socket }).collect()
    };
    let by_text = text.listeners().expect("listeners");
    assert!(by_text.read_from.contains("/proc/net for tcp and udp"), "{}", by_text.read_from);
    assert_eq!(live().listeners().expect("listeners").read_from.split(';').next(), Some("sock_diag"));
    assert_eq!(by_text.sockets.len(), 3);
    assert_eq!(by_text.sockets, told_by_both(listeners()));
    let clients_by_text = text.connections(Some(&every_port()), None, &by_text.sockets).clients.expect("clients");
    assert_eq!(clients_by_text.sockets.len(), 5);
    let clients = live().connections(Some(&every_port()), None, &listeners()).clients.expect("clients");
    assert_eq!(clients_by_text.sockets, told_by_both(clients.sockets));
}

#[test]
fn ss_lists_the_same() {
    let namespace = Namespace::enter();
    namespace.add_void();
    let server = TcpListener::bind("0.0.0.0:30080").expect("bound");
    let _six = TcpListener::bind("[::1]:30081").expect("bound");
    let _udp = UdpSocket::bind("127.0.0.1:30082").expect("bound");
    let _hanging = hanging(30083);
    let closing = TcpStream::connect("127.0.0.1:30080").expect("connected");
    let _accepted = server.accept().expect("a connection");
    closing.shutdown(std::net::Shutdown::Both).expect("open");
    let clients = || live().connections(Some(&every_port()), None, &listeners()).clients.expect("clients").sockets;
    let acknowledged = || clients().iter().any(|socket| socket.state == State::FinWait2).then_some(());
    eventually(acknowledged).expect("the end of the connection is acknowledged");

    let output = Command::new("ss").args(["-Htuan"]).output().expect("ss of iproute2 is installed");
    let told_by_ss: BTreeSet<_> = String::from_utf8_lossy(&output.stdout)
        .lines()
        .map(|line| {
            let fields: Vec<_> = line.split_ascii_whitespace().collect();
            [0, 1, 4].map(|index| fields[index].to_owned())
        })
        .collect();
    let told_by_us: BTreeSet<_> = listeners()
        .iter()
        .chain(&clients())
        .map(|socket| {
            let local = SocketAddr::new(socket.local, socket.local_port).to_string();
            [socket.protocol.to_string(), socket.state.name().to_owned(), local]
        })
        .collect();
    assert_eq!(told_by_us, told_by_ss);
    assert_eq!(told_by_us.len(), 6);
}

#[test]
fn one_walk_gives_the_clients_and_the_counts_of_two_walks() {
    let namespace = Namespace::enter();
    namespace.add_void();
    namespace.set("ipv4/ip_local_port_range", "40000 40099");
    let server = TcpListener::bind("[::]:80").expect("bound");
    let near = ["127.0.0.1:80", "[::1]:80"].map(|place| TcpStream::connect(place).expect("connected"));
    let _accepted = near.each_ref().map(|_| server.accept().expect("a connection"));
    let _chosen = connection("127.0.0.1:30080", "127.0.0.1:80".parse().expect("an address"));
    let _in_both = connection("127.0.0.1:40007", "127.0.0.1:80".parse().expect("an address"));
    let _hanging = hanging(30081);
    let udp = UdpSocket::bind("127.0.0.1:30082").expect("bound");
    udp.connect("127.0.0.1:53").expect("connected");

    let (listeners, listed) = (listeners(), "443,30080-30082,40007,65000".parse().expect("ports"));
    let counted = PortSet::from(PortRange { first: 40000, last: 40099 });
    let counting = Counting { ports: &counted, at_most: None, worth_walking: 1, tcp_tw_reuse: Some(2) };
    for sockets in [live(), Sockets::recorded(Path::new("/proc/thread-self/net"))] {
        let both = sockets.connections(Some(&listed), Some(&counting), &listeners);
        // After one second, the kernel repeats the SYN of the hanging connection. So the comparison ignores
        // `retransmits`.
        let clients = |clients: Result<Clients, Gap>| {
            let mut clients = clients.expect("clients");
            clients.sockets.iter_mut().for_each(|it| it.retransmits = 0);
            clients
        };
        let of_both = clients(both.clients);
        assert_eq!(of_both, clients(sockets.connections(Some(&listed), None, &listeners).clients));
        assert_eq!(both.counted, sockets.ephemeral_use(&counting, &listeners));
        let ports: BTreeSet<u16> = of_both.sockets.iter().map(|it| it.local_port).collect();
        assert_eq!(ports, BTreeSet::from([30080, 30081, 30082, 40007]));
        let used: u32 = both.counted.expect("counts").ephemeral.busiest.iter().map(|one| one.used).sum();
        assert_eq!(used, 3, "both families, and the connection that is also listed");
        let neither = sockets.connections(None, None, &listeners);
        assert_eq!(neither.clients.expect_err("not wanted").why, Why::NotRequested);
        assert_eq!(neither.counted.expect_err("not wanted").why, Why::NotRequested);
    }
}

#[test]
fn ephemeral_use_counts_the_ports_that_fill_the_range() {
    let namespace = Namespace::enter();
    namespace.set("ipv4/ip_local_port_range", "40000 40009");
    let server = TcpListener::bind("127.0.0.1:80").expect("bound");
    // The port of this listener is inside the range. So the connections that this listener accepts look like
    // connections of a client.
    let inside = TcpListener::bind("127.0.0.1:40005").expect("bound");
    let to = server.local_addr().expect("an address");
    let mut clients = Vec::new();
    let exhausted = loop {
        match TcpStream::connect(to) {
            Ok(client) => clients.push((client, server.accept().expect("a connection"))),
            Err(error) => break error,
        }
        assert!(clients.len() <= 10, "the range holds ten ports");
    };
    assert_eq!(exhausted.kind(), io::ErrorKind::AddrNotAvailable);
    let _accepted_inside: Vec<_> = (0..3)
        .map(|_| (TcpStream::connect("127.0.0.1:40005").expect("connected"), inside.accept().expect("a connection")))
        .collect();

    let ports = PortSet::from(PortRange { first: 40000, last: 40009 });
    let counting = Counting { ports: &ports, at_most: None, worth_walking: 8, tcp_tw_reuse: Some(2) };
    let counted = live().ephemeral_use(&counting, &listeners()).expect("counted");
    let told: Vec<_> = counted.ephemeral.busiest.iter().map(|one| (one.port, one.used)).collect();
    assert_eq!(told, [(80, u32::try_from(clients.len()).expect("few")), (40005, 3)]);
    assert_ne!(counted.examples[0].inode, 0);
    let quiet = Counting { at_most: Some(7), ..counting };
    assert!(live().ephemeral_use(&quiet, &[]).expect("counted").ephemeral.busiest.is_empty());
}
