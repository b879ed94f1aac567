//! A holder process. The holder gets orders on standard input, makes sockets, and holds the sockets until the process
//! is killed.

use std::{
    fs,
    io::{BufRead as _, Write as _, stdin, stdout},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket},
    os::fd::{AsRawFd as _, OwnedFd},
    process::{ExitCode, id},
};

use nix::{
    sys::{
        resource::{Resource, getrlimit, setrlimit},
        socket::{
            AddressFamily, SockFlag, SockType, SockaddrStorage, bind, connect, setsockopt, socket, sockopt::ReuseAddr,
        },
    },
    unistd::{Uid, seteuid},
};

use crate::parts::enter_alone;

struct Held {
    place: TcpListener,
    pairs: Vec<[TcpStream; 2]>,
    listeners: Vec<TcpListener>,
    datagrams: Vec<UdpSocket>,
    clients: Vec<(OwnedFd, TcpStream)>,
    files: Vec<fs::File>,
}

/// Moves this process to a control group, and to a new network namespace if `apart` is set. Each input line is an
/// order. The process carries out the order, and answers with a line.
pub fn hold(cgroup: &str, place: &str, apart: bool) -> ExitCode {
    fs::write(format!("{cgroup}/cgroup.procs"), id().to_string()).expect("a process can be moved");
    if apart {
        enter_alone();
    }
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).expect("a limit");
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard).expect("the hard limit");
    let place: SocketAddr = place.parse().expect("an address");
    let mut held = Held {
        place: TcpListener::bind(place).expect("an address that is free"),
        pairs: Vec::new(),
        listeners: Vec::new(),
        datagrams: Vec::new(),
        clients: Vec::new(),
        files: Vec::new(),
    };
    for order in stdin().lock().lines() {
        let order = order.expect("an order");
        let words: Vec<&str> = order.split(' ').collect();
        held.obey(&words);
        stdout().write_all(b"done\n").and_then(|()| stdout().flush()).expect("the parent reads");
    }
    ExitCode::SUCCESS
}

impl Held {
    fn obey(&mut self, order: &[&str]) {
        let number = |word: &str| word.parse::<usize>().expect("a number");
        let address = |word: &str| word.parse::<SocketAddr>().expect("an address");
        match order {
            ["pairs", count] => self.pairs(number(count)),
            ["listen", place] => self.listeners.push(TcpListener::bind(address(place)).expect("a free port")),
            // Portreeve sends no request to a listener that does not belong to root.
            ["listen", "as", "nobody", place] => {
                seteuid(Uid::from_raw(65534)).expect("root may change its user");
                self.obey(&["listen", place]);
                seteuid(Uid::from_raw(0)).expect("root may come back");
            }
            ["close", place] => {
                let place = address(place);
                self.listeners.retain(|it| it.local_addr().expect("an address") != place);
            }
            ["datagrams", count] => {
                let more = (0..number(count)).map(|_| UdpSocket::bind("127.0.0.1:0").expect("a free port"));
                self.datagrams.extend(more);
            }
            ["client", from] => {
                let client = self.client(address(from));
                self.clients.push(client);
            }
            ["hang", "up"] => self.clients.clear(),
            ["wait", from] => self.wait(address(from)),
            ["files", count] => {
                let more = (0..number(count)).map(|_| fs::File::open("/dev/null").expect("a file"));
                self.files.extend(more);
            }
            other => panic!("{other:?} is no order"),
        }
    }

    fn pairs(&mut self, count: usize) {
        let place = self.place.local_addr().expect("an address");
        while self.pairs.len() < count {
            let near = TcpStream::connect(place).expect("a connection");
            self.pairs.push([near, self.place.accept().expect("a connection").0]);
        }
        self.pairs.truncate(count);
    }

    fn client(&self, from: SocketAddr) -> (OwnedFd, TcpStream) {
        let near = socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, None).expect("a socket");
        setsockopt(&near, ReuseAddr, &true).expect("an option");
        bind(near.as_raw_fd(), &SockaddrStorage::from(from)).expect("a free port");
        let to = self.place.local_addr().expect("an address");
        connect(near.as_raw_fd(), &SockaddrStorage::from(to)).expect("a connection");
        (near, self.place.accept().expect("a connection").0)
    }

    /// Makes a connection in TIME_WAIT with a given local address and port. The local end closes first.
    fn wait(&self, from: SocketAddr) {
        let (near, far) = self.client(from);
        let near = TcpStream::from(near);
        near.shutdown(Shutdown::Write).expect("open");
        far.shutdown(Shutdown::Write).expect("open");
    }
}
