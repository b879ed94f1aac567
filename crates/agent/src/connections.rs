//! Serves HTTP connections. The number of file descriptors and the memory are limited, even if clients misbehave.
//! `axum::serve` limits neither the number of connections nor their duration.

use std::{collections::VecDeque, convert::Infallible, io, net::SocketAddr, time::Duration};

use axum::{Router, serve::Listener};
use hyper::server::conn::http1;
use hyper_util::{rt::TokioIo, service::TowerToHyperService};
use tokio::{
    net::{TcpListener, TcpSocket},
    task::AbortHandle,
    time::{sleep, timeout},
};
use tracing::{info, warn};

/// The largest number of open connections. If there are more clients, the oldest connection ends.
const MAX_CONNECTIONS: usize = 32;
/// The pause after the agent accepts a connection, so that a flood of clients costs little. With this pause, a flood
/// can end a new connection only after a third of a second. An answer takes only milliseconds.
const PACE: Duration = Duration::from_millis(10);
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// The longest duration of a connection. A connection carries one request and its answer.
const LONGEST: Duration = Duration::from_secs(120);
const MAX_HEAD: usize = 16 * 1024;
/// The size of a socket buffer, in bytes. The kernel doubles this size.
const SOCKET_BUFFER: u32 = 64 << 10;
const BACKLOG: u32 = 128;

pub(super) fn listen(address: SocketAddr) -> io::Result<std::net::TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    // The standard library also sets this option.
    socket.set_reuseaddr(true)?;
    // Connections inherit the buffer sizes of their listener.
    socket.set_send_buffer_size(SOCKET_BUFFER)?;
    socket.set_recv_buffer_size(SOCKET_BUFFER)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)?.into_std()
}

/// If the port is taken, tries again until the port can be bound. `attempt` is the result of the first attempt. `seen`
/// gets the result of each attempt.
pub(super) async fn bind_and_serve(
    address: SocketAddr,
    mut attempt: io::Result<std::net::TcpListener>,
    router: Router,
    seen: impl Fn(&io::Result<std::net::TcpListener>),
) {
    let mut pause = FIRST_PAUSE;
    let mut logged = None;
    let at_once = attempt.is_ok();
    let listener = loop {
        seen(&attempt);
        match attempt.and_then(TcpListener::from_std) {
            Ok(listener) => break listener,
            Err(error) if logged != Some(error.kind()) => {
                warn!(%address, %error, "cannot listen here; the program tries again, and still scans");
                logged = Some(error.kind());
            }
            Err(_) => {}
        }
        sleep(pause).await;
        pause = (2 * pause).min(LONGEST_PAUSE);
        attempt = listen(address);
    };
    if !at_once {
        info!(%address, "answering");
    }
    serve(listener, router).await;
}

pub(super) async fn serve(listener: impl Listener, router: Router) -> Infallible {
    serve_within(listener, router, LONGEST).await
}

async fn serve_within(mut listener: impl Listener, router: Router, longest: Duration) -> Infallible {
    let mut server = http1::Builder::new();
    server.keep_alive(false).max_header_size(MAX_HEAD).max_buf_size(MAX_HEAD);
    let service = TowerToHyperService::new(router);
    let mut open: VecDeque<AbortHandle> = VecDeque::with_capacity(MAX_CONNECTIONS);
    loop {
        let (stream, _) = listener.accept().await;
        open.retain(|connection| !connection.is_finished());
        if open.len() == MAX_CONNECTIONS
            && let Some(oldest) = open.pop_front()
        {
            oldest.abort();
        }
        // Each error here is an error of the client: a bad request, a closed connection or a slow client.
        let connection = timeout(longest, server.serve_connection(TokioIo::new(stream), service.clone()));
        open.push_back(tokio::spawn(connection).abort_handle());
        sleep(PACE).await;
    }
}

#[cfg(test)]
mod tests {
    use axum::routing::get;
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        net::TcpStream,
        task::JoinHandle,
    };

    use super::*;

    const GET: &str = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
    /// The length of an answer, in bytes. The buffers of a connection are smaller.
    const LONG: usize = 4 << 20;

    fn server(longest: Duration) -> (SocketAddr, JoinHandle<Infallible>) {
        let listener = listen("127.0.0.1:0".parse().expect("an address")).expect("a socket");
        let address = listener.local_addr().expect("an address");
        let listener = TcpListener::from_std(listener).expect("a socket");
        let router = Router::new().route("/", get(async || "x".repeat(LONG)));
        (address, tokio::spawn(serve_within(listener, router, longest)))
    }

    async fn client(address: SocketAddr, request: &str) -> TcpStream {
        let mut stream = TcpStream::connect(address).await.expect("it listens");
        stream.write_all(request.as_bytes()).await.expect("a request");
        stream
    }

    async fn length(mut stream: TcpStream, pause: Duration) -> usize {
        sleep(pause).await;
        let (mut bytes, mut read) = (vec![0; 64 << 10], 0);
        loop {
            match stream.read(&mut bytes).await {
                Ok(0) | Err(_) => return read,
                Ok(more) => read += more,
            }
        }
    }

    #[tokio::test]
    async fn a_client_that_sends_nothing_or_reads_slowly_is_cut_off() {
        let (address, _server) = server(Duration::from_millis(300));
        let late = Duration::from_secs(1);
        assert_eq!(length(client(address, "GET / HT").await, Duration::ZERO).await, 0, "half a request");
        assert!(length(client(address, GET).await, late).await < LONG, "a slow reader");
        let (patient, _server) = server(Duration::from_secs(60));
        assert!(length(client(patient, GET).await, late).await > LONG, "a reader in its time");
    }

    #[tokio::test]
    async fn one_connection_too_many_ends_the_oldest_and_is_answered() {
        let (address, _server) = server(Duration::from_secs(60));
        let mut silent = VecDeque::new();
        for _ in 0..=MAX_CONNECTIONS {
            silent.push_back(client(address, "GET / HT").await);
        }
        assert!(length(client(address, GET).await, Duration::ZERO).await > LONG);
        for _ in 0..2 {
            assert_eq!(length(silent.pop_front().expect("a client"), Duration::ZERO).await, 0, "it was ended");
        }
        let third = length(silent.pop_front().expect("a client"), Duration::ZERO);
        timeout(Duration::from_millis(100), third).await.expect_err("it has its chance");
    }
}
